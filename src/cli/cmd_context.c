/* `berth context ...`: servers by name. */
#include <assert.h>
#include <string.h>

#include "cli/context.h"
#include "cli/table.h"

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
    {.name = "addr", .type = FLAG_TEXT, .value = "URL", .help = "the server"},
    {.name = "token-file",
     .type = FLAG_TEXT,
     .value = "FILE",
     .help = "a file that holds the token for it"},
    {.name = "ca-file",
     .type = FLAG_TEXT,
     .value = "FILE",
     .help = "certificates to trust for https (default the system's)"},
    {.name = "cert-file",
     .type = FLAG_TEXT,
     .value = "FILE",
     .help = "a certificate to show to the server"},
    {.name = "key-file", .type = FLAG_TEXT, .value = "FILE", .help = "its key"},
};

static const struct command rows[] = {
    {.noun = "context",
     .verb = "ls",
     .kind = COMMAND_LOCAL,
     .help = "servers by name; * is used",
     .examples = "berth context ls",
     .run = cmd_context_ls},
    {.noun = "context",
     .verb = "set",
     .arg = "NAME",
     .kind = COMMAND_LOCAL,
     .flags = FLAGS(set_flags),
     .help = "give a server a name",
     .detail =
         "Kept in ~/.config/berth/config.yaml ($XDG_CONFIG_HOME). The first one is used at once.\n"
         "Flags and variables (BERTH_ADDR, BERTH_TOKEN) win over it; --context and BERTH_CONTEXT\n"
         "name another for one command. A context's token goes to its own address only.",
     .examples = "berth context set here --addr http://127.0.0.1:7420\n"
                 "berth context set prod --addr https://berth.example.net:7420 --token-file "
                 "'~/prod.token'",
     .run = cmd_context_set},
    {.noun = "context",
     .verb = "use",
     .arg = "NAME",
     .kind = COMMAND_LOCAL,
     .help = "which of them is asked from now on",
     .examples = "berth context use here",
     .run = cmd_context_use},
    {.noun = "context",
     .verb = "rm",
     .arg = "NAME",
     .kind = COMMAND_LOCAL,
     .help = "forget a name",
     .examples = "berth context rm prod",
     .run = cmd_context_rm},
};

const struct command_set commands_context = COMMANDS(rows);
