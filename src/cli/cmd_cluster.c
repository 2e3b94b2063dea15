/* Commands about the server as a whole: version, health. */
#include "cli/request.h"
#include "cli/show.h"

static int cmd_version(struct cli *cli)
{
    fprintf(cli->out, "berth %s\n", BERTH_VERSION);
    return CLI_OK;
}

/* A server that is up but not ready says so with 503 and the reason. */
static int cmd_health(struct cli *cli)
{
    struct ask ask = {.method = "GET", .path = "/readyz", .any_status = true};
    int code;

    if (cli->output == CLI_NAME)
        return cli_misuse(cli, "health has no names; `berth health -o json` is for programs");
    code = ask_run(cli, &ask);
    if (code != CLI_OK)
        return code;
    if (cli->json)
        show_raw(cli, ask.reply);
    else if (json_type(ask.json) == JSON_OBJ)
        show_object(cli, ask.json);
    if (ask.status == 200)
        return CLI_OK;
    if (json_is_null(json_get(ask.json, "reason")))
        return cli_fail(cli, CLI_UNAVAILABLE,
                        "the server is not ready; why it tells to those who may read");
    return cli_fail(cli, CLI_UNAVAILABLE, "the server is not ready: " STR_FMT,
                    STR_ARG(show_member(cli, ask.json, "reason")));
}

static const struct command rows[] = {
    {.noun = "version",
     .kind = COMMAND_LOCAL,
     .help = "the version of this program",
     .examples = "berth version",
     .run = cmd_version},
    {.noun = "health",
     .kind = COMMAND_API,
     .help = "is the server up and ready",
     .examples = "berth health\n"
                 "berth health -o json",
     .run = cmd_health},
};

const struct command_set commands_cluster = COMMANDS(rows);
