/* `berth run`: the flags; admission itself is the agent's, reached through the host. */
#include <assert.h>

#include "cli/cli.h"

enum { PRIORITY_DEFAULT = 5, WAIT_FOREVER = -1 };

int cmd_run(struct cli *cli)
{
    bool no_wait = cli_given(cli, "no-wait");
    struct cli_gate gate = {.type = cli_text(cli, "type"),
                            .priority = cli_num(cli, "priority", PRIORITY_DEFAULT),
                            .interactive = cli_given(cli, "interactive"),
                            .wait_ms = no_wait ? 0 : cli_num(cli, "wait", WAIT_FOREVER),
                            .config = cli_text(cli, "config"),
                            .argv = cli->rest};

    if (cli->rest_count == 0)
        return cli_misuse(cli, "what shall run? It stands behind `--`");
    if (!gate.type)
        return cli_misuse(cli, "--type is missing");
    if (!str_is_id(str_of(gate.type), CLI_TYPE_MAX))
        return cli_misuse(cli, "\"%s\" cannot be a type of task", gate.type);
    if (no_wait && cli_given(cli, "wait"))
        return cli_misuse(cli, "--wait or --no-wait, not both");
    assert(gate.argv[cli->rest_count] == NULL && cli->host && cli->host->run);
    return cli->host->run(&gate);
}
