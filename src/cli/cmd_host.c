/* The commands that run a server or an agent, and `berth run`; main() passes in the functions that
 * run them. The agent owns admission. */
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
        return cli_misuse(cli, "what shall run? Give the command after `--`");
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
    FLAG("type", 0, TEXT, "TYPE", "type of task, as in allowed_types of the configuration"),
    FLAG("priority", 0, INT, "0-9", "at level warning only high ones start (default 5)", .max = 9),
    FLAG("interactive", 0, SWITCH, NULL, "a person waits: may use reserved slots"),
    FLAG("wait", 0, MS, "DURATION", "give up after this long, exit 6 (default: never)"),
    FLAG("no-wait", 0, SWITCH, NULL, "now or not at all: exit 5 with the reason"),
    FLAG("config", 0, TEXT, "FILE",
         "the agent's configuration (BERTH_CONFIG; default: that of an agent without one)"),
};

static const struct command rows[] = {
    {.noun = "dev",
     .kind = COMMAND_HOST,
     .help = "a server to try things on, no configuration needed",
     .detail =
         "Listens on 127.0.0.1:7420 and keeps its data in ./berth-data. It has an agent of its\n"
         "own, which runs the commands of jobs on this machine. Ctrl-C ends it and what it runs,\n"
         "a second one without their grace. Takes the flags of `berth server`.",
     .examples = "berth dev\n"
                 "berth dev --listen 127.0.0.1:8000 --data-dir ./try"},
    {.noun = "server",
     .kind = COMMAND_HOST,
     .help = "the server",
     .detail =
         "Every setting is a flag --name, a variable BERTH_NAME and a key of the configuration\n"
         "file: flag > environment > file > default. `berth config show` lists them all.",
     .examples = "berth server --listen 127.0.0.1:7420 --data-dir /var/lib/berth\n"
                 "berth server --config /etc/berth.yaml --loops 2"},
    {.noun = "agent",
     .kind = COMMAND_HOST,
     .help = "the agent: one for each machine that runs jobs",
     .detail =
         "Connects to a server, measures its machine, runs jobs as processes and refuses what\n"
         "the machine cannot carry. Every setting is a flag, a variable and a key of the\n"
         "configuration file, as for `berth server`. What runs goes on without it, and the next\n"
         "agent finds it again; with --stop-runs it ends with the agent.",
     .examples =
         "berth agent --server http://127.0.0.1:7420 --node-id us --data-dir /var/lib/berth\n"
         "berth agent --config examples/agent-hk.yaml --token-file /etc/berth/token"},
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
    VERB("config", "show", NULL, .kind = COMMAND_HOST,
         .help = "every setting, its value and where it came from",
         .detail = "Takes the same flags and environment as `berth server` and starts nothing.",
         .examples = "berth config show\n"
                     "berth config show --config /etc/berth.yaml"),
    VERB("store", "dump", NULL, .kind = COMMAND_HOST,
         .help = "what the store holds: nodes, leases, jobs, sessions, breakers, instances",
         .detail =
             "Reads the store itself and changes nothing; servers may run meanwhile. Takes the\n"
             "flags and environment of `berth server` (--store, --data-dir), and\n"
             "--limit N (1000) for jobs and sessions, -o json.",
         .examples = "berth store dump --data-dir /var/lib/berth\n"
                     "berth store dump --store redis://127.0.0.1:6379/0 -o json"),
};

const struct command_set commands_host = COMMANDS(rows);
