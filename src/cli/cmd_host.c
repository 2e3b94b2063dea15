/* The commands that become a server or an agent; main() hands in what runs them. */
#include "cli/cli.h"

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
};

const struct command_set commands_host = COMMANDS(rows);

static const struct command config_rows[] = {
    {.noun = "config",
     .verb = "show",
     .kind = COMMAND_HOST,
     .help = "every setting, its value and where it came from",
     .detail = "Takes the same flags and environment as `berth server` and starts nothing.",
     .examples = "berth config show\n"
                 "berth config show --config /etc/berth.yaml"},
    {.noun = "store",
     .verb = "dump",
     .kind = COMMAND_HOST,
     .help = "what the store holds: nodes, leases, jobs, sessions, breakers, instances",
     .detail = "Reads the store itself and changes nothing; servers may run meanwhile. Takes the\n"
               "flags and environment of `berth server` (--store, --data-dir), and\n"
               "--limit N (1000) for jobs and sessions, -o json.",
     .examples = "berth store dump --data-dir /var/lib/berth\n"
                 "berth store dump --store redis://127.0.0.1:6379/0 -o json"},
};

const struct command_set commands_config = COMMANDS(config_rows);
