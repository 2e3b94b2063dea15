/* The table of commands, and finding the one that was meant. */
#include "cli/command.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "cli/command_flags.h"

static const struct command commands[] = {
    {.noun = "dev",
     .kind = COMMAND_HOST,
     .help = "a server to try things on, no configuration needed",
     .detail = "Listens on 127.0.0.1:7420 and keeps its data in ./berth-data. Takes the flags of\n"
               "`berth server`.",
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
         "configuration file, as for `berth server`.",
     .examples =
         "berth agent --server http://127.0.0.1:7420 --node-id us --data-dir /var/lib/berth\n"
         "berth agent --config examples/agent-hk.yaml --token-file /etc/berth/token"},
    {.noun = "run",
     .rest = "COMMAND [ARG...]",
     .kind = COMMAND_LOCAL,
     .flags = &flags_run,
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
    {.noun = "config",
     .verb = "show",
     .kind = COMMAND_HOST,
     .help = "every setting, its value and where it came from",
     .detail = "Takes the same flags and environment as `berth server` and starts nothing.",
     .examples = "berth config show\n"
                 "berth config show --config /etc/berth.yaml"},
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
    {.noun = "status",
     .kind = COMMAND_API,
     .flags = &flags_status,
     .help = "every server: load, slots, tasks, what it is available for",
     .examples = "berth status\n"
                 "berth status --watch=5s --wide\n"
                 "berth status -o json | jq .cluster_status",
     .run = cmd_status},
    {.noun = "top",
     .kind = COMMAND_API,
     .flags = &flags_top,
     .help = "nodes by load, the queue, dispatches and refusals, live",
     .detail =
         "The fullest first: by the larger share of its slots and of its cores in use. q ends.",
     .examples = "berth top\n"
                 "berth top --once",
     .run = cmd_top},
    {.noun = "events",
     .kind = COMMAND_API,
     .flags = &flags_events,
     .help = "follow what happens, until interrupted",
     .examples = "berth events\n"
                 "berth events --count 10 -o json",
     .run = cmd_events},

    {.noun = "node",
     .verb = "ls",
     .kind = COMMAND_API,
     .help = "all nodes",
     .examples = "berth node ls\n"
                 "berth node ls -o json | jq -r '.nodes[].node_id'",
     .run = cmd_node_ls},
    {.noun = "node",
     .verb = "show",
     .arg = "ID",
     .kind = COMMAND_API,
     .help = "one node, everything known of it",
     .examples = "berth node show node-1",
     .run = cmd_node_show},
    {.noun = "node",
     .verb = "register",
     .arg = "ID",
     .kind = COMMAND_API,
     .flags = &flags_register,
     .help = "make a node known",
     .detail = "For trying things out: a real node registers itself.",
     .examples =
         "berth node register node-1 --semantic en,zh --nmt en:zh,zh:en --tts en,zh --max 2\n"
         "berth node register worker-1 --types '*' --label zone=eu",
     .run = cmd_node_register},
    {.noun = "node",
     .verb = "drain",
     .arg = "ID",
     .kind = COMMAND_API,
     .flags = &flags_reason,
     .help = "no new work; what runs may end",
     .examples = "berth node drain node-1 --reason 'new kernel'",
     .run = cmd_node_admin},
    {.noun = "node",
     .verb = "undrain",
     .arg = "ID",
     .kind = COMMAND_API,
     .flags = &flags_reason,
     .help = "take a drain or cordon back",
     .examples = "berth node undrain node-1",
     .run = cmd_node_admin},
    {.noun = "node",
     .verb = "cordon",
     .arg = "ID",
     .kind = COMMAND_API,
     .flags = &flags_reason,
     .help = "no new work, for now",
     .examples = "berth node cordon node-1 --reason 'odd results'",
     .run = cmd_node_admin},
    {.noun = "node",
     .verb = "rm",
     .arg = "ID",
     .kind = COMMAND_API,
     .help = "forget a node",
     .examples = "berth node rm node-1",
     .run = cmd_node_rm},

    {.noun = "node",
     .verb = "rpc",
     .arg = "NODE SERVICE/METHOD [JSON]",
     .kind = COMMAND_API,
     .help = "ask a connected node something",
     .detail = "Prints the answer as it came.",
     .examples = "berth node rpc us NodeUnit/InspectResourceUsage\n"
                 "berth node rpc us Job/Logs '{\"job_id\":\"j0abcdefghijkl\",\"attempt_id\":1}'",
     .run = cmd_node_rpc},

    {.noun = "job",
     .verb = "submit",
     .rest = "COMMAND [ARG...]",
     .kind = COMMAND_API,
     .flags = &flags_submit,
     .help = "start a job and print its id",
     .detail = "A job is either f2f (speech from one language to another) or a task.",
     .examples =
         "berth job submit --session room-1 --src en --tgt zh --audio-ref blob://1\n"
         "berth job submit --type research --title 'read it' --payload '{\"url\":\"x\"}' "
         "--wait=1m\n"
         "berth job submit --type build --payload @build.json --queue 30s --requires zone=eu\n"
         "berth job submit --wait -- make -j2 test",
     .run = cmd_job_submit},
    {.noun = "job",
     .verb = "ls",
     .kind = COMMAND_API,
     .flags = &flags_job_ls,
     .help = "jobs, newest first",
     .examples = "berth job ls --state FAILED --limit 20\n"
                 "berth job ls --node node-1 -o json",
     .run = cmd_job_ls},
    {.noun = "job",
     .verb = "show",
     .arg = "ID",
     .kind = COMMAND_API,
     .help = "one job, everything known of it",
     .examples = "berth job show j0abcdefghijkl",
     .run = cmd_job_show},
    {.noun = "job",
     .verb = "wait",
     .arg = "ID",
     .kind = COMMAND_API,
     .flags = &flags_wait,
     .help = "wait for a job's end; exit 7 if it failed",
     .examples = "berth job wait j0abcdefghijkl --timeout 30s",
     .run = cmd_job_wait},
    {.noun = "job",
     .verb = "cancel",
     .arg = "ID",
     .kind = COMMAND_API,
     .help = "stop a job",
     .examples = "berth job cancel j0abcdefghijkl",
     .run = cmd_job_cancel},
    {.noun = "job",
     .verb = "retry",
     .arg = "ID",
     .kind = COMMAND_API,
     .help = "the same work again, as a new job",
     .examples = "berth job retry j0abcdefghijkl",
     .run = cmd_job_retry},

    {.noun = "job",
     .verb = "logs",
     .arg = "ID",
     .kind = COMMAND_API,
     .flags = &flags_logs,
     .help = "what a job printed",
     .examples = "berth job logs j0abcdefghijkl\n"
                 "berth job logs -f j0abcdefghijkl",
     .run = cmd_job_logs},

    {.noun = "pool",
     .verb = "ls",
     .kind = COMMAND_API,
     .help = "which work has which nodes",
     .examples = "berth pool ls",
     .run = cmd_pool_ls},
    {.noun = "session",
     .verb = "show",
     .arg = "ID",
     .kind = COMMAND_API,
     .help = "what is kept of a session",
     .examples = "berth session show room-1",
     .run = cmd_session_show},

    {.noun = "breaker",
     .verb = "ls",
     .kind = COMMAND_API,
     .help = "which node gets no work of which type, because it kept failing",
     .examples = "berth breaker ls",
     .run = cmd_breaker_ls},
    {.noun = "breaker",
     .verb = "reset",
     .arg = "NODE TYPE",
     .kind = COMMAND_API,
     .help = "let a node have such work again at once",
     .examples = "berth breaker reset us dev",
     .run = cmd_breaker_reset},
    {.noun = "token",
     .verb = "hash",
     .kind = COMMAND_LOCAL,
     .flags = &flags_token,
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

    {.noun = "bench",
     .verb = "sat",
     .kind = COMMAND_LOCAL,
     .flags = &flags_sat,
     .help = "whole job lifecycles as fast as they go",
     .detail =
         "Submits no-op jobs over HTTP; 16 no-op nodes on WebSocket in a process of their own\n"
         "acknowledge and finish them. Prints {\"jobs\":N,\"elapsed_s\":x}.",
     .examples = "berth bench sat --jobs 20000 --conc 64",
     .run = cmd_bench_sat},
    {.noun = "bench",
     .verb = "low",
     .kind = COMMAND_LOCAL,
     .flags = &flags_low,
     .help = "latency of whole job lifecycles at a steady rate",
     .detail = "Prints {\"start_us\":[...],\"done_us\":[...]}: from the submit to the start in the "
               "node,\n"
               "and to the end that the store has accepted.",
     .examples = "berth bench low --rate 100 --secs 3",
     .run = cmd_bench_low},
    {.noun = "bench",
     .verb = "idle",
     .kind = COMMAND_LOCAL,
     .flags = &flags_idle,
     .help = "many connected nodes that do nothing but heartbeat",
     .detail =
         "Prints {\"conns\":N,\"open_s\":x} once all are connected, and at the end how many\n"
         "heartbeats went out. Jobs they are given are left to run out. A number on standard\n"
         "input is a new rate of heartbeats.",
     .examples = "berth bench idle --conns 10000 --heartbeats-per-s 10000 --secs 10",
     .run = cmd_bench_idle},
};

const struct command *command_at(size_t index)
{
    return index < COUNT_OF(commands) ? &commands[index] : NULL;
}

const struct flag_set *command_flags(const struct command *command)
{
    static const struct flag_set none;

    return command->flags ? command->flags : &none;
}

const struct flag_set *command_common(enum command_kind kind)
{
    return kind == COMMAND_API ? &flags_api : &flags_local;
}

void command_name(const struct command *command, char *to, size_t size)
{
    snprintf(to, size, "%s%s%s", command->noun, command->verb ? " " : "",
             command->verb ? command->verb : "");
}

/* Nouns (noun NULL) or the verbs of a noun, without repeats. */
static size_t names_of(const char *noun, const char **names)
{
    size_t count = 0;

    for (size_t i = 0; i < COUNT_OF(commands); i++) {
        const char *name = noun ? commands[i].verb : commands[i].noun;

        if (noun && strcmp(commands[i].noun, noun) != 0)
            continue;
        if (name && (count == 0 || strcmp(names[count - 1], name) != 0))
            names[count++] = name;
    }
    assert(count > 0);
    return count;
}

static void say_unknown(const char *noun, const char *typed, struct problem *why)
{
    const char *names[COUNT_OF(commands)];
    size_t count = names_of(noun, names), used = 0;
    const char *near = typed ? flag_nearest(typed, names, count) : NULL;
    char list[256] = "";

    for (size_t i = 0; i < count && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", names[i]);
    if (near)
        problem_set(why, ERR_BAD_REQUEST, "command",
                    "unknown command \"%s%s%s\"; did you mean \"%s%s%s\"?", noun ? noun : "",
                    noun ? " " : "", typed, noun ? noun : "", noun ? " " : "", near);
    else if (typed)
        problem_set(why, ERR_BAD_REQUEST, "command", "unknown command \"%s%s%s\"; there is: %s",
                    noun ? noun : "", noun ? " " : "", typed, list);
    else
        problem_set(why, ERR_BAD_REQUEST, "command", "`berth %s` needs one of: %s", noun, list);
}

const struct command *command_find(int argc, char **argv, int *ret_used, struct problem *why)
{
    bool noun_known = false;

    assert(argc > 0);
    for (size_t i = 0; i < COUNT_OF(commands); i++) {
        const struct command *command = &commands[i];

        if (strcmp(command->noun, argv[0]) != 0)
            continue;
        noun_known = true;
        if (command->verb && (argc < 2 || strcmp(command->verb, argv[1]) != 0))
            continue;
        *ret_used = command->verb ? 2 : 1;
        return command;
    }
    if (noun_known) {
        bool typed = argc > 1 && argv[1][0] != '-';

        say_unknown(argv[0], typed ? argv[1] : NULL, why);
    } else {
        say_unknown(NULL, argv[0], why);
    }
    return NULL;
}
