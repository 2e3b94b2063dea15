/* `berth run`: the flags; admission itself is the agent's, reached through the host. */
#include <assert.h>

#include "cli/cli.h"

enum { PRIORITY_DEFAULT = 5, WAIT_FOREVER = -1 };

static int cmd_run(struct cli *cli)
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

static const struct flag run_flags[] = {
    {.name = "type",
     .type = FLAG_TEXT,
     .value = "TYPE",
     .help = "type of task, as in allowed_types of the configuration"},
    {.name = "priority",
     .type = FLAG_INT,
     .value = "0-9",
     .max = 9,
     .help = "at level warning only high ones start (default 5)"},
    {.name = "interactive", .type = FLAG_SWITCH, .help = "a person waits: may use reserved slots"},
    {.name = "wait",
     .type = FLAG_MS,
     .value = "DURATION",
     .help = "give up after this long, exit 6 (default: never)"},
    {.name = "no-wait", .type = FLAG_SWITCH, .help = "now or not at all: exit 5 with the reason"},
    {.name = "config",
     .type = FLAG_TEXT,
     .value = "FILE",
     .help = "the agent's configuration (BERTH_CONFIG; default: that of an agent without one)"},
};

static const struct command rows[] = {
    {.noun = "run",
     .rest = "COMMAND [ARG...]",
     .kind = COMMAND_LOCAL,
     .flags = FLAGS(run_flags),
     .help = "run a command here once this machine has room for it",
     .detail =
         "Asks what an agent asks before it starts a job: the level of this machine and its\n"
         "slots. Several `berth run` of one user count each other; the slot is free again when\n"
         "the command and all that inherited its files have ended. Exits with the command's\n"
         "code; 5 when it may not start, 6 when it may not start in time.",
     .examples = "berth run --type dev -- make -j2 test\n"
                 "berth run --type research --priority 3 --wait 10m -- ./crawl.sh\n"
                 "berth run --type dev --no-wait --config /etc/berth/agent.yaml -- make",
     .run = cmd_run},
};

const struct command_set commands_run = COMMANDS(rows);
