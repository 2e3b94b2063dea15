/* Contexts: reading and writing their file, and `berth context ...`. */
#include "cli/context.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json.h"
#include "base/yaml.h"
#include "cli/table.h"

/* --- the file --- */

enum { CONTEXT_FILE_MAX = 64 * 1024 };

/* The members of a context, as named in the file. */
static const struct {
    const char *name;
    size_t offset;
} members[] = {
    {"addr", offsetof(struct context, addr)},
    {"token_file", offsetof(struct context, token_file)},
    {"ca_file", offsetof(struct context, ca_file)},
    {"cert_file", offsetof(struct context, cert_file)},
    {"key_file", offsetof(struct context, key_file)},
};

static struct str *member_at(struct context *context, size_t i)
{
    assert(i < COUNT_OF(members));
    return (struct str *)((char *)context + members[i].offset);
}

const char *context_path(struct cli *cli, struct str path)
{
    const char *home = getenv("HOME");

    if (home && str_starts(path, STR("~/")))
        return arena_fmt(&cli->arena, "%s%.*s", home, (int)path.len - 1, path.at + 1).at;
    return arena_cstr(&cli->arena, path);
}

static int bad(struct cli *cli, const char *path, const char *what)
{
    return cli_fail(cli, CLI_USAGE, "%s: %s", path, what);
}

static int read_context(struct cli *cli, const char *path, const struct json *key,
                        struct context *ret_context)
{
    const struct json *member;
    struct context context = {.name = json_str(key, &cli->arena)};

    if (!str_is_id(context.name, CONTEXT_NAME_MAX) || json_type(key + 1) != JSON_OBJ)
        return bad(cli, path, "contexts must map names to {addr: ..., token_file: ...}");
    for (member = json_keys(key + 1); member; member = json_after(key + 1, member)) {
        size_t i = 0;

        while (i < COUNT_OF(members) && !json_str_is(member, members[i].name))
            i++;
        if (i == COUNT_OF(members))
            return cli_fail(cli, CLI_USAGE,
                            "%s: a context has addr, token_file, ca_file, cert_file and key_file, "
                            "not \"" STR_FMT "\"",
                            path, STR_ARG(json_str(member, &cli->arena)));
        if (json_type(member + 1) != JSON_STR)
            return cli_fail(cli, CLI_USAGE, "%s: %s must be a text", path, members[i].name);
        *member_at(&context, i) = json_str(member + 1, &cli->arena);
    }
    if (!context.addr.len)
        return cli_fail(cli, CLI_USAGE, "%s: the context " STR_FMT " has no addr", path,
                        STR_ARG(context.name));
    *ret_context = context;
    return CLI_OK;
}

int contexts_load(struct cli *cli, struct contexts **ret_contexts)
{
    struct contexts *contexts = arena_new(&cli->arena, struct contexts);
    const char *base = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    const struct json *root = NULL, *map, *current, *key;
    const int *lines;
    struct problem why;
    struct str text, json;
    enum err err;
    int code;

    if (base && *base == '/')
        contexts->path = arena_fmt(&cli->arena, "%s/berth/config.yaml", base).at;
    else if (home && *home == '/') /* otherwise there is no directory for it */
        contexts->path = arena_fmt(&cli->arena, "%s/.config/berth/config.yaml", home).at;
    err = contexts->path ? file_read(contexts->path, CONTEXT_FILE_MAX, &cli->arena, &text, &why)
                         : ERR_NOT_FOUND;
    if (err == ERR_NOT_FOUND) {
        *ret_contexts = contexts;
        return CLI_OK;
    }
    if (!err)
        err = yaml_read(text, &cli->arena, &json, &lines, &why);
    if (!err)
        err = json_parse(json, &cli->arena, &root, &why);
    if (err)
        return bad(cli, contexts->path, why.detail);
    map = json_get(root, "contexts");
    current = json_get(root, "current");
    if (!json_is_null(root) &&
        (json_type(root) != JSON_OBJ || (!json_is_null(map) && json_type(map) != JSON_OBJ) ||
         (!json_is_null(current) && json_type(current) != JSON_STR)))
        return bad(cli, contexts->path, "it must have `current: NAME` and `contexts: {NAME: ...}`");
    if (!json_is_null(current))
        contexts->current = json_str(current, &cli->arena);
    for (key = json_keys(map); key; key = json_after(map, key)) {
        if (contexts->count == CONTEXTS_MAX)
            return bad(cli, contexts->path, "it has too many contexts (100 at most)");
        code = read_context(cli, contexts->path, key, &contexts->at[contexts->count]);
        if (code != CLI_OK)
            return code;
        contexts->count++;
    }
    *ret_contexts = contexts;
    return CLI_OK;
}

static int contexts_save(struct cli *cli, const struct contexts *contexts)
{
    struct buf text = {0};
    struct problem why;
    enum err err;
    char *dir;

    if (!contexts->path)
        return cli_fail(cli, CLI_FAILED, "there is no HOME to keep contexts in");
    buf_str(&text, STR("# Servers by name, for the command line. See `berth context --help`.\n"));
    if (contexts->current.at) {
        buf_str(&text, STR("current: "));
        json_quote(&text, contexts->current);
        buf_char(&text, '\n');
    }
    buf_str(&text, contexts->count ? STR("contexts:\n") : STR("contexts: {}\n"));
    for (size_t i = 0; i < contexts->count; i++) {
        struct context context = contexts->at[i];
        struct jsonw w = jsonw_to(&text);

        buf_str(&text, STR("  "));
        json_quote(&text, context.name);
        buf_str(&text, STR(": "));
        jsonw_obj(&w);
        for (size_t m = 0; m < COUNT_OF(members); m++)
            if (member_at(&context, m)->at)
                jsonw_kstr(&w, members[m].name, *member_at(&context, m));
        jsonw_end_obj(&w);
        buf_char(&text, '\n');
    }
    /* Creates missing parent directories. */
    dir = arena_cstr(&cli->arena, str_of(contexts->path));
    for (char *slash = strchr(dir + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(dir, 0700);
        *slash = '/';
    }
    err = file_replace(contexts->path, buf_view(&text), &why);
    buf_free(&text);
    return err ? cli_fail(cli, CLI_FAILED, "%s", why.detail) : CLI_OK;
}

/* NULL: none. */
static struct context *contexts_find(struct contexts *contexts, struct str name)
{
    for (size_t i = 0; i < contexts->count; i++)
        if (str_eq(contexts->at[i].name, name))
            return &contexts->at[i];
    return NULL;
}

int contexts_chosen(struct cli *cli, const struct context **ret_context)
{
    const char *flag = cli_text(cli, "context"), *env = getenv("BERTH_CONTEXT");
    struct contexts *contexts;
    struct str name = str_of(flag ? flag : env && *env ? env : NULL);
    int code = contexts_load(cli, &contexts);

    if (code != CLI_OK)
        return code;
    if (!name.at)
        name = contexts->current;
    *ret_context = name.at ? contexts_find(contexts, name) : NULL;
    if (name.at && !*ret_context)
        return cli_fail(cli, CLI_USAGE,
                        "there is no context " STR_FMT "; `berth context ls` lists them",
                        STR_ARG(name));
    return CLI_OK;
}

/* --- commands --- */

static int cmd_context_ls(struct cli *cli)
{
    static const char *const titles[] = {"", "NAME", "ADDR", "TOKEN FILE", "CA FILE", "CERT FILE"};
    struct contexts *contexts;
    struct table table;
    int code = contexts_load(cli, &contexts);

    if (code != CLI_OK)
        return code;
    table_init(&table, &cli->arena, titles, COUNT_OF(titles));
    for (size_t i = 0; i < contexts->count; i++) {
        const struct context *context = &contexts->at[i];
        bool current = contexts->current.at && str_eq(contexts->current, context->name);

        table_cell_colour(&table, current ? STR("*") : STR(" "), TABLE_GREEN);
        table_cell(&table, context->name);
        table_cell(&table, context->addr);
        table_cell(&table, context->token_file);
        table_cell(&table, context->ca_file);
        table_cell(&table, context->cert_file);
    }
    table_print(&table, cli->out, cli->colour);
    return CLI_OK;
}

static int unknown(struct cli *cli)
{
    return cli_fail(cli, CLI_NOT_FOUND, "there is no context %s; `berth context ls` lists them",
                    cli->args[0]);
}

static int cmd_context_use(struct cli *cli)
{
    struct contexts *contexts;
    int code = contexts_load(cli, &contexts);

    if (code != CLI_OK)
        return code;
    if (!contexts_find(contexts, str_of(cli->args[0])))
        return unknown(cli);
    contexts->current = str_of(cli->args[0]);
    code = contexts_save(cli, contexts);
    if (code == CLI_OK)
        fprintf(cli->out, "%s is used from now on\n", cli->args[0]);
    return code;
}

static int cmd_context_set(struct cli *cli)
{
    struct contexts *contexts;
    struct context *context;
    struct str name = str_of(cli->args[0]), addr = str_of(cli_text(cli, "addr"));
    int code = contexts_load(cli, &contexts);

    if (code != CLI_OK)
        return code;
    if (!str_is_id(name, CONTEXT_NAME_MAX))
        return cli_misuse(cli, "a name has 1 to %d of A-Za-z0-9._:@-, unlike \"%s\"",
                          CONTEXT_NAME_MAX, cli->args[0]);
    if (!addr.len)
        return cli_misuse(cli, "--addr is missing: where is the server?");
    if (!cli_given(cli, "cert-file") != !cli_given(cli, "key-file"))
        return cli_misuse(cli, "--cert-file and --key-file must be given together");
    context = contexts_find(contexts, name);
    if (!context && contexts->count == CONTEXTS_MAX)
        return cli_fail(cli, CLI_FAILED, "there are %d contexts already", CONTEXTS_MAX);
    if (!context)
        context = &contexts->at[contexts->count++];
    *context = (struct context){.name = name,
                                .addr = addr,
                                .token_file = str_of(cli_text(cli, "token-file")),
                                .ca_file = str_of(cli_text(cli, "ca-file")),
                                .cert_file = str_of(cli_text(cli, "cert-file")),
                                .key_file = str_of(cli_text(cli, "key-file"))};
    if (!contexts->current.at)
        contexts->current = name;
    code = contexts_save(cli, contexts);
    if (code == CLI_OK)
        fprintf(cli->out, "%s is " STR_FMT "%s\n", cli->args[0], STR_ARG(addr),
                str_eq(contexts->current, name) ? ", and used from now on" : "");
    return code;
}

static int cmd_context_rm(struct cli *cli)
{
    struct contexts *contexts;
    struct context *context;
    int code = contexts_load(cli, &contexts);

    if (code != CLI_OK)
        return code;
    context = contexts_find(contexts, str_of(cli->args[0]));
    if (!context)
        return unknown(cli);
    if (contexts->current.at && str_eq(contexts->current, context->name))
        contexts->current = STR_NONE;
    contexts->count--;
    memmove(context, context + 1,
            sizeof *context * (size_t)(contexts->at + contexts->count - context));
    code = contexts_save(cli, contexts);
    if (code == CLI_OK)
        fprintf(cli->out, "%s removed\n", cli->args[0]);
    return code;
}

static const struct flag set_flags[] = {
    FLAG("addr", 0, TEXT, "URL", "the server"),
    FLAG("token-file", 0, TEXT, "FILE", "a file that holds the token for it"),
    FLAG("ca-file", 0, TEXT, "FILE", "certificates to trust for https (default the system's)"),
    FLAG("cert-file", 0, TEXT, "FILE", "a certificate to show to the server"),
    FLAG("key-file", 0, TEXT, "FILE", "its key"),
};

static const struct command rows[] = {
    VERB("context", "ls", NULL, .kind = COMMAND_LOCAL, .help = "servers by name; * is used",
         .examples = "berth context ls", .run = cmd_context_ls),
    VERB("context", "set", "NAME", .kind = COMMAND_LOCAL, .flags = FLAGS(set_flags),
         .help = "give a server a name",
         .detail = "Kept in ~/.config/berth/config.yaml ($XDG_CONFIG_HOME). The first one is used "
                   "at once.\n"
                   "Flags and variables (BERTH_ADDR, BERTH_TOKEN) win over it; --context and "
                   "BERTH_CONTEXT\n"
                   "name another for one command. A context's token goes to its own address only.",
         .examples = "berth context set here --addr http://127.0.0.1:7420\n"
                     "berth context set prod --addr https://berth.example.net:7420 --token-file "
                     "'~/prod.token'",
         .run = cmd_context_set),
    VERB("context", "use", "NAME", .kind = COMMAND_LOCAL,
         .help = "which of them is asked from now on", .examples = "berth context use here",
         .run = cmd_context_use),
    VERB("context", "rm", "NAME", .kind = COMMAND_LOCAL, .help = "forget a name",
         .examples = "berth context rm prod", .run = cmd_context_rm),
};

const struct command_set commands_context = COMMANDS(rows);
