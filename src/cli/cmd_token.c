/* `berth token ...`: tokens are generated here; only their digest is sent to the server. */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/digest.h"
#include "base/file.h"
#include "cli/list.h"
#include "cli/request.h"
#include "model/node.h"
#include "model/token.h"

enum { TOKEN_BYTES_MAX = 4096, TOKEN_BYTES_GOOD = 16 };

/* The first line of standard input; at a terminal it is prompted for and not echoed. */
static int read_token(struct cli *cli, char *line, size_t size)
{
    struct termios before, during;
    bool hidden = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &before) == 0;
    char *got;

    if (hidden) {
        during = before;
        during.c_lflag &= ~(tcflag_t)ECHO;
        fputs("token: ", cli->err);
        fflush(cli->err);
        tcsetattr(STDIN_FILENO, TCSAFLUSH, &during);
    }
    got = fgets(line, (int)size, stdin);
    if (hidden) {
        tcsetattr(STDIN_FILENO, TCSAFLUSH, &before);
        fputc('\n', cli->err);
    }
    if (!got)
        return cli_fail(cli, CLI_USAGE, "no token on standard input; --new makes one");
    line[strcspn(line, "\r\n")] = 0;
    if (strlen(line) + 1 == size)
        return cli_fail(cli, CLI_USAGE, "the token is longer than %zu bytes", size - 2);
    if (!line[0])
        return cli_fail(cli, CLI_USAGE, "the token is empty; --new makes one");
    for (const char *c = line; *c; c++)
        if (*c <= ' ' || *c > '~')
            return cli_fail(cli, CLI_USAGE,
                            "a token consists of letters, digits and signs, without blanks");
    if (strlen(line) < TOKEN_BYTES_GOOD)
        fprintf(cli->err, "berth: a token this short can be guessed; --new makes a good one\n");
    return CLI_OK;
}

static int cmd_token_hash(struct cli *cli)
{
    bool make = cli_given(cli, "new");
    char token[TOKEN_BYTES_MAX + 2], digest[DIGEST_HEX + 1];
    int code = CLI_OK;

    if (!make)
        code = read_token(cli, token, sizeof token);
    else if (!digest_secret(token))
        code = cli_fail(cli, CLI_FAILED, "no random bytes: %m");
    if (code != CLI_OK)
        return code;
    digest_sha256_hex(str_of(token), digest);
    if (make)
        fprintf(cli->out, "token: %s\nsha256: %s\n", token, digest);
    else
        fprintf(cli->out, "%s\n", digest);
    explicit_bzero(token, sizeof token);
    return CLI_OK;
}

/* From the flags; the digest is set when the secret is generated. */
static int read_new(struct cli *cli, struct token *ret_token)
{
    struct token token = {.name = str_of(cli->args[0]), .created_ms = clock_wall_ms()};
    const char *node = cli_text(cli, "node-id"), *quota = cli_text(cli, "quota");
    const char *namespace = cli_text(cli, "namespace");
    struct problem why;
    struct str *scopes;
    size_t count = cli_list(cli, "scope", &scopes);

    assert(cli->arg_count == 1);
    if (!str_is_id(token.name, TOKEN_NAME_MAX))
        return cli_misuse(cli, "a name has 1 to %d of A-Za-z0-9._:@-, unlike \"%s\"",
                          TOKEN_NAME_MAX, cli->args[0]);
    for (size_t i = 0; i < count; i++) {
        unsigned brings = token_scopes_of(scopes[i]);

        if (!brings)
            return cli_misuse(
                cli, "--scope is read, submit, node, deploy, operate or admin, not \"" STR_FMT "\"",
                STR_ARG(scopes[i]));
        token.scopes |= brings;
    }
    if (!token.scopes)
        return cli_misuse(cli, "--scope is missing: read, submit, node, deploy, operate or admin");
    if (node && !str_is_id(str_of(node), NODE_ID_MAX))
        return cli_misuse(cli, "\"%s\" cannot be the id of a node", node);
    token.node_id = str_of(node);
    if (quota && quota_parse(str_of(quota), &token.quota, &why))
        return cli_misuse(cli, "--quota is like rate=10/s,waiting=1000,bytes=64MiB, not \"%s\"",
                          quota);
    if (namespace && !namespace_valid(str_of(namespace)))
        return cli_misuse(cli, "a namespace has 1 to %d of A-Za-z0-9._:@-, unlike \"%s\"",
                          NAMESPACE_MAX, namespace);
    if (namespace && !token_scopes_fit(token.scopes, str_of(namespace)))
        return cli_misuse(cli, "%s", TOKEN_NAMESPACE_SCOPES);
    if (namespace && !str_eq(str_of(namespace), NAMESPACE_DEFAULT))
        token.namespace = str_of(namespace);
    if (cli_given(cli, "expires"))
        token.expires_ms = token.created_ms + cli_num(cli, "expires", 0);
    *ret_token = token;
    return CLI_OK;
}

static int read_tokens(struct cli *cli, const char *path, bool must, struct tokens *ret_tokens)
{
    struct problem why;
    struct str text;
    enum err err = file_read(path, TOKENS_FILE_BYTES_MAX, &cli->arena, &text, &why);

    *ret_tokens = (struct tokens){0};
    if (err == ERR_NOT_FOUND && !must)
        return CLI_OK;
    if (!err)
        err = tokens_parse(text, &cli->arena, ret_tokens, &why);
    return err ? cli_fail(cli, CLI_FAILED, "%s: %s", path, why.detail) : CLI_OK;
}

static int write_tokens(struct cli *cli, const char *path, const struct tokens *tokens)
{
    struct buf text = {0};
    struct problem why;
    enum err err;

    tokens_write(tokens, &text);
    err = file_replace(path, buf_view(&text), &why);
    buf_free(&text);
    return err ? cli_fail(cli, CLI_FAILED, "%s", why.detail) : CLI_OK;
}

static int create_in_file(struct cli *cli, const char *path, const struct token *token)
{
    struct tokens tokens;
    int code = read_tokens(cli, path, false, &tokens);

    if (code != CLI_OK)
        return code;
    if (tokens_find(&tokens, token->name))
        return cli_fail(cli, CLI_CONFLICT,
                        "%s has a token %s already; `berth token revoke` it "
                        "first, or take another name",
                        path, cli->args[0]);
    tokens = tokens_with(&tokens, token, &cli->arena);
    return write_tokens(cli, path, &tokens);
}

static int create_at_server(struct cli *cli, const struct token *token)
{
    struct request request = {.method = "POST", .path = "/v1/tokens"};
    struct jsonw w = body_begin(cli);

    token_members(&w, token, true);
    if (token->expires_ms)
        jsonw_kint(&w, "expires_in_ms", token->expires_ms - token->created_ms);
    request.body = body_end(cli, &w);
    return request_run(cli, &request);
}

/* To its own file, readable only by the owner; before the token is registered, because the secret
 * would be lost if the file could not be written. */
static int write_secret(struct cli *cli, const char *path, const char *secret)
{
    struct buf text = {0};
    struct problem why;
    enum err err;

    if (access(path, F_OK) == 0)
        return cli_fail(cli, CLI_CONFLICT, "there is a file %s already", path);
    buf_fmt(&text, "%s\n", secret);
    err = file_replace(path, buf_view(&text), &why);
    explicit_bzero(text.at, text.len);
    buf_free(&text);
    return err ? cli_fail(cli, CLI_FAILED, "%s", why.detail) : CLI_OK;
}

static int cmd_token_create(struct cli *cli)
{
    const char *path = cli_text(cli, "file"), *out = cli_text(cli, "out");
    char secret[DIGEST_HEX + 1];
    struct token token;
    int code = read_new(cli, &token);

    if (code != CLI_OK)
        return code;
    if (!digest_secret(secret))
        return cli_fail(cli, CLI_FAILED, "no random bytes: %m");
    digest_sha256_hex(str_of(secret), token.digest);
    if (out)
        code = write_secret(cli, out, secret);
    if (code == CLI_OK) {
        code = path ? create_in_file(cli, path, &token) : create_at_server(cli, &token);
        if (code != CLI_OK && out)
            unlink(out);
    }
    if (code == CLI_OK && out) {
        fprintf(cli->out, "%s created; the token is in %s\n", cli->args[0], out);
    } else if (code == CLI_OK && cli->json) {
        struct buf text = {0};
        struct jsonw w = jsonw_to(&text);

        jsonw_obj(&w);
        token_members(&w, &token, false);
        jsonw_kstr(&w, "token", str_of(secret));
        jsonw_end_obj(&w);
        show_json(cli, buf_view(&text), false, cli->out);
        explicit_bzero(text.at, text.len);
        buf_free(&text);
    } else if (code == CLI_OK) { /* alone on standard output, so that it can be redirected */
        fprintf(cli->out, "%s\n", secret);
        fprintf(cli->err, "berth: this is the only time it is shown\n");
    }
    explicit_bzero(secret, sizeof secret);
    return code;
}

static int cmd_token_revoke(struct cli *cli)
{
    const char *path = cli_text(cli, "file");
    struct tokens tokens;
    int code;

    if (!path)
        return answer_send(cli, "DELETE", answer_path(cli, "/v1/tokens/{id}"), STR_NONE,
                           "%s revoked", cli->args[0]);
    code = read_tokens(cli, path, true, &tokens);
    if (code != CLI_OK)
        return code;
    if (!tokens_find(&tokens, str_of(cli->args[0])))
        return cli_fail(cli, CLI_NOT_FOUND, "%s has no token %s", path, cli->args[0]);
    tokens = tokens_without(&tokens, str_of(cli->args[0]), &cli->arena);
    code = write_tokens(cli, path, &tokens);
    if (code == CLI_OK)
        fprintf(cli->out, "%s revoked\n", cli->args[0]);
    return code;
}

static const struct list_column token_columns[] = {
    {.title = "NAME", .member = "name"},
    {.title = "SCOPES", .member = "scopes"},
    {.title = "NODE", .member = "node_id"},
    {.title = "NAMESPACE", .member = "namespace"},
    {.title = "QUOTA", .member = "quota"},
    {.title = ">AGE", .member = "created_ms", .put = list_put_age},
    {.title = ">EXPIRES IN", .member = "expires_ms", .put = list_put_until},
    {.title = "EXPIRED", .member = "expired"},
    {.title = "SOURCE", .member = "source"},
};

static const struct flag hash_flags[] = {
    FLAG("new", 0, SWITCH, NULL, "make a random token and print it, this once"),
};

static const struct flag file_flags[] = {
    FLAG("file", 0, TEXT, "FILE", "in this file, without asking a server"),
};

static const struct flag create_flags[] = {
    FLAG("scope", 0, LIST, "SCOPE,...",
         "read, submit, node, deploy (and read), operate (and read, submit), admin (all)",
         .values = "read submit node deploy operate admin"),
    FLAG("node-id", 0, TEXT, "ID", "it may speak for this node only"),
    FLAG("namespace", 0, TEXT, "TEAM",
         "it sees and makes the jobs, sessions and deployments of this namespace only "
         "(default: default)"),
    FLAG("expires", 0, MS, "DURATION", "good for so long, like 90d (default: until it is revoked)",
         .min = 1, .max = INT64_C(3153600000000)),
    FLAG("quota", 0, TEXT, "QUOTA",
         "rate=10/s,waiting=1000,bytes=64MiB, or some of it: how fast it may submit jobs, how "
         "many may wait, how large those are together"),
    FLAG("file", 0, TEXT, "FILE", "into this file, without asking a server"),
    FLAG("out", 0, TEXT, "FILE",
         "put the token itself into this new file, for its owner to read only"),
};

static const struct command rows[] = {
    VERB("token", "create", "NAME", .flags = FLAGS(create_flags),
         .help = "make a token and print it, this once",
         .detail =
             "The token is made here; the server gets its digest, and it is good at once. The "
             "first\n"
             "one must be for an admin. With --file it is added to a file of tokens: the way to "
             "the\n"
             "first token of a server that others shall reach (tokens_file, or tokens.yaml in its\n"
             "data directory). The server reads that file again when it changes.",
         .examples = "berth token create ops --scope admin --out ops.token\n"
                     "berth token create ci --scope submit,read --expires 90d > ci.token\n"
                     "berth token create node-1 --scope node --node-id node-1 -o json\n"
                     "berth token create maps-ci --scope submit,read --namespace maps\n"
                     "berth token create first --scope admin --file tokens.yaml",
         .run = cmd_token_create),
    VERB("token", "ls", NULL, .list = LISTING("/v1/tokens", "tokens", "name", token_columns),
         .help = "who may call: names and scopes, never tokens",
         .examples = "berth token ls\n"
                     "berth token ls -o name"),
    VERB("token", "revoke", "NAME", .flags = FLAGS(file_flags),
         .help = "a token is not good any more, at once",
         .detail = "Connections that were opened with it are closed.",
         .examples = "berth token revoke ci\n"
                     "berth token revoke first --file tokens.yaml",
         .run = cmd_token_revoke),
    VERB("token", "hash", NULL, .kind = COMMAND_LOCAL, .flags = FLAGS(hash_flags),
         .help = "the SHA-256 of a token, for the server's configuration",
         .detail = "Reads the token from standard input. The server knows only the digest; its\n"
                   "configuration file says who may do what:\n"
                   "\n"
                   "  tokens:\n"
                   "    - {name: ops, sha256: 9f86d0..., scopes: [operate, deploy], format: 2}\n"
                   "    - {name: us, sha256: 60303a..., scopes: [node], node_id: us, format: 2}\n"
                   "\n"
                   "Callers have the token in BERTH_TOKEN or in the file of --token-file.",
         .examples = "berth token hash --new\n"
                     "berth token hash < /etc/berth/token",
         .run = cmd_token_hash),
};

const struct command_set commands_token = COMMANDS(rows);
