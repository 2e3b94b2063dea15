/* `berth token hash`: what of a token may stand in a configuration file. */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <termios.h>
#include <unistd.h>

#include "cli/cli.h"
#include "io/digest.h"

enum { TOKEN_RANDOM_BYTES = 32, TOKEN_BYTES_MAX = 4096, TOKEN_BYTES_GOOD = 16 };

static int make_token(struct cli *cli, char text[2 * TOKEN_RANDOM_BYTES + 1])
{
    static const char hex[] = "0123456789abcdef";
    unsigned char raw[TOKEN_RANDOM_BYTES];

    if (getrandom(raw, sizeof raw, 0) != (ssize_t)sizeof raw)
        return cli_fail(cli, CLI_FAILED, "no random bytes: %m");
    for (size_t i = 0; i < sizeof raw; i++) {
        text[2 * i] = hex[raw[i] >> 4];
        text[2 * i + 1] = hex[raw[i] & 15];
    }
    text[2 * sizeof raw] = 0;
    return CLI_OK;
}

/* The first line of standard input; at a terminal it is asked for and not shown. */
static char *read_line(struct cli *cli, char *line, size_t size)
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
    return got;
}

static int read_token(struct cli *cli, char *line, size_t size)
{
    if (!read_line(cli, line, size))
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
    int code = make ? make_token(cli, token) : read_token(cli, token, sizeof token);

    assert(sizeof token > 2 * TOKEN_RANDOM_BYTES);
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

static const struct flag token_flags[] = {
    {.name = "new", .type = FLAG_SWITCH, .help = "make a random token and print it, this once"},
};

static const struct command rows[] = {
    {.noun = "token",
     .verb = "hash",
     .kind = COMMAND_LOCAL,
     .flags = FLAGS(token_flags),
     .help = "the SHA-256 of a token, for the server's configuration",
     .detail = "Reads the token from standard input. The server knows only the digest; its\n"
               "configuration file says who may do what:\n"
               "\n"
               "  tokens:\n"
               "    - {name: ops, sha256: 9f86d0..., scopes: [operate, submit, read]}\n"
               "    - {name: us, sha256: 60303a..., scopes: [node], node_id: us}\n"
               "\n"
               "Callers have the token in BERTH_TOKEN or in the file of --token-file.",
     .examples = "berth token hash --new\n"
                 "berth token hash < /etc/berth/token",
     .run = cmd_token_hash},
};

const struct command_set commands_token = COMMANDS(rows);
