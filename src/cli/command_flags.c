/* The flags of every command, a row each; command.c says which command takes which. */
#include "cli/command_flags.h"

enum {
    LIST_MAX = 1000,
    PORT_MAX = 65535,
    COUNT_MAX = 1000000000,
    WATCH_MIN_MS = 100,
    WATCH_MAX_MS = 3600000,
};

static const struct flag api_flags[] = {
    {.name = "addr",
     .type = FLAG_TEXT,
     .value = "URL",
     .help = "the server (BERTH_ADDR, default http://127.0.0.1:7420)"},
    {.name = "token-file",
     .type = FLAG_TEXT,
     .value = "FILE",
     .help = "a file that holds the token (or BERTH_TOKEN holds it)"},
    {.name = "ca-file",
     .type = FLAG_TEXT,
     .value = "FILE",
     .help = "certificates to trust for https (BERTH_CA_FILE, default the system's)"},
    {.name = "output",
     .letter = 'o',
     .type = FLAG_TEXT,
     .value = "table|json",
     .help = "how to print (default table)"},
    {.name = "help", .letter = 'h', .type = FLAG_SWITCH, .help = "this text"},
};

static const struct flag local_flags[] = {
    {.name = "help", .letter = 'h', .type = FLAG_SWITCH, .help = "this text"},
};

static const struct flag register_flags[] = {
    {.name = "semantic",
     .type = FLAG_LIST,
     .value = "LANG,...",
     .help = "languages it understands"},
    {.name = "nmt",
     .type = FLAG_LIST,
     .value = "SRC:TGT,...|any",
     .help = "pairs it translates, or any"},
    {.name = "tts", .type = FLAG_LIST, .value = "LANG,...", .help = "languages it speaks"},
    {.name = "max",
     .type = FLAG_INT,
     .value = "N",
     .min = 0,
     .max = COUNT_MAX,
     .help = "jobs at a time (default 1)"},
    {.name = "types", .type = FLAG_LIST, .value = "TYPE,...|*", .help = "types of tasks it takes"},
    {.name = "endpoint",
     .type = FLAG_TEXT,
     .value = "URL",
     .help = "where jobs are pushed to; without it the node polls"},
    {.name = "label", .type = FLAG_LIST, .value = "KEY=VALUE", .help = "a label (several allowed)"},
};

static const struct flag reason_flags[] = {
    {.name = "reason", .type = FLAG_TEXT, .value = "TEXT", .help = "shown with the node"},
};

static const struct flag submit_flags[] = {
    {.name = "wait",
     .type = FLAG_MS_MAYBE,
     .value = "DURATION",
     .help = "wait for the end; exit 7 if the job failed, 6 if it took longer"},
    {.name = "idempotency-key",
     .type = FLAG_TEXT,
     .value = "KEY",
     .help = "the same key again gives the same job"},
    {.name = "session",
     .type = FLAG_TEXT,
     .value = "ID",
     .help = "session or room",
     .group = "f2f"},
    {.name = "src",
     .type = FLAG_TEXT,
     .value = "LANG",
     .help = "from this language",
     .group = "f2f"},
    {.name = "tgt", .type = FLAG_TEXT, .value = "LANG", .help = "to this language", .group = "f2f"},
    {.name = "audio-ref",
     .type = FLAG_TEXT,
     .value = "REF",
     .help = "what to translate",
     .group = "f2f"},
    {.name = "require-tts",
     .type = FLAG_SWITCH,
     .help = "the node must also speak the target",
     .group = "f2f"},
    {.name = "preferred-node",
     .type = FLAG_TEXT,
     .value = "ID",
     .help = "try this node first",
     .group = "f2f"},
    {.name = "strict", .type = FLAG_SWITCH, .help = "the preferred node or none", .group = "f2f"},
    {.name = "type",
     .type = FLAG_TEXT,
     .value = "TYPE",
     .help = "type of task (default \"task\" with a command)",
     .group = "task"},
    {.name = "title",
     .type = FLAG_TEXT,
     .value = "TEXT",
     .help = "shown in lists",
     .group = "task"},
    {.name = "priority",
     .type = FLAG_INT,
     .value = "0-9",
     .max = 9,
     .help = "higher first (default 5)",
     .group = "task"},
    {.name = "payload",
     .type = FLAG_TEXT,
     .value = "JSON|@FILE|-",
     .help = "what the node gets; - reads standard input",
     .group = "task"},
    {.name = "queue",
     .type = FLAG_MS,
     .value = "DURATION",
     .help = "how long it may wait for a slot",
     .group = "task"},
    {.name = "timeout",
     .type = FLAG_MS,
     .value = "DURATION",
     .help = "how long it may run",
     .group = "task"},
    {.name = "max-attempts",
     .type = FLAG_INT,
     .value = "1-9",
     .min = 1,
     .max = 9,
     .help = "attempts in all",
     .group = "task"},
    {.name = "callback-url",
     .type = FLAG_TEXT,
     .value = "URL",
     .help = "told when it has ended",
     .group = "task"},
    {.name = "requires",
     .type = FLAG_LIST,
     .value = "KEY=VALUE",
     .help = "a label its node must have (several allowed)",
     .group = "task"},
    {.name = "interactive",
     .type = FLAG_SWITCH,
     .help = "a person waits: may use reserved slots",
     .group = "task"},
};

static const struct flag job_ls_flags[] = {
    {.name = "state", .type = FLAG_LIST, .value = "STATE,...", .help = "DONE, FAILED, ACKED, ..."},
    {.name = "type", .type = FLAG_TEXT, .value = "TYPE", .help = "only this type"},
    {.name = "session", .type = FLAG_TEXT, .value = "ID", .help = "only this session"},
    {.name = "node", .type = FLAG_TEXT, .value = "ID", .help = "only on this node"},
    {.name = "limit",
     .type = FLAG_INT,
     .value = "N",
     .min = 1,
     .max = LIST_MAX,
     .help = "at most so many (default 50)"},
    {.name = "cursor", .type = FLAG_TEXT, .value = "CURSOR", .help = "go on where a list ended"},
};

static const struct flag wait_flags[] = {
    {.name = "timeout",
     .type = FLAG_MS,
     .value = "DURATION",
     .help = "give up after this long, exit 6 (default: never)"},
};

static const struct flag events_flags[] = {
    {.name = "count",
     .type = FLAG_INT,
     .value = "N",
     .min = 1,
     .max = COUNT_MAX,
     .help = "stop after so many events"},
};

static const struct flag status_flags[] = {
    {.name = "watch",
     .type = FLAG_MS_MAYBE,
     .value = "DURATION",
     .min = WATCH_MIN_MS,
     .max = WATCH_MAX_MS,
     .help = "draw it again and again, until q (default every 2s)"},
    {.name = "wide",
     .type = FLAG_SWITCH,
     .help = "every figure and task, and how the slots come about"},
};

static const struct flag top_flags[] = {
    {.name = "once", .type = FLAG_SWITCH, .help = "one picture, with rates over one second"},
};

static const struct flag logs_flags[] = {
    {.name = "follow",
     .letter = 'f',
     .type = FLAG_SWITCH,
     .help = "go on until the job has ended and all was read"},
    {.name = "offset",
     .type = FLAG_INT,
     .value = "BYTES",
     .max = INT64_MAX,
     .help = "begin behind so many bytes (default 0)"},
};

static const struct flag token_flags[] = {
    {.name = "new", .type = FLAG_SWITCH, .help = "make a random token and print it, this once"},
};

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

#define BENCH_TARGET                                                                               \
    {.name = "addr",                                                                               \
     .type = FLAG_TEXT,                                                                            \
     .value = "URL",                                                                               \
     .help = "the server (BERTH_ADDR, default http://127.0.0.1:7420)"},                            \
    {                                                                                              \
        .name = "port", .type = FLAG_INT, .value = "PORT", .min = 1, .max = PORT_MAX,              \
        .help = "the server on 127.0.0.1 at this port"                                             \
    }

static const struct flag sat_flags[] = {
    BENCH_TARGET,
    {.name = "jobs",
     .type = FLAG_INT,
     .value = "N",
     .min = 1,
     .max = 100000000,
     .help = "jobs in all (default 20000)"},
    {.name = "conc",
     .type = FLAG_INT,
     .value = "N",
     .min = 1,
     .max = 100000,
     .help = "jobs outstanding at a time (default 64)"},
};

static const struct flag low_flags[] = {
    BENCH_TARGET,
    {.name = "rate",
     .type = FLAG_INT,
     .value = "N",
     .min = 1,
     .max = 1000000,
     .help = "jobs a second (default 100)"},
    {.name = "secs",
     .type = FLAG_TEXT,
     .value = "SECONDS",
     .help = "for so many seconds (default 3)"},
};

static const struct flag idle_flags[] = {
    BENCH_TARGET,
    {.name = "conns",
     .type = FLAG_INT,
     .value = "N",
     .min = 1,
     .max = 1000000,
     .help = "connections, a node each (default 1000)"},
    {.name = "heartbeats-per-s",
     .type = FLAG_INT,
     .value = "R",
     .max = 10000000,
     .help = "heartbeats a second, all together (default 0)"},
    {.name = "pair",
     .type = FLAG_TEXT,
     .value = "SRC:TGT",
     .help = "what the nodes translate (default xi:xj: no job of anybody's)"},
    {.name = "slots",
     .type = FLAG_INT,
     .value = "N",
     .min = 1,
     .max = 1000000,
     .help = "jobs a node takes at a time (default 1)"},
    {.name = "secs",
     .type = FLAG_TEXT,
     .value = "SECONDS",
     .help = "end after so long (default: when standard input ends)"},
};

#define FLAGS(name)                                                                                \
    const struct flag_set flags_##name = {.flags = name##_flags, .count = COUNT_OF(name##_flags)}

FLAGS(api);
FLAGS(local);
FLAGS(register);
FLAGS(reason);
FLAGS(submit);
FLAGS(job_ls);
FLAGS(wait);
FLAGS(events);
FLAGS(status);
FLAGS(top);
FLAGS(logs);
FLAGS(token);
FLAGS(run);
FLAGS(sat);
FLAGS(low);
FLAGS(idle);
