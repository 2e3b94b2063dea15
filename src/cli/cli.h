/* One run of the command line: what was typed, where output goes, how to reach the server. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <stdio.h>

#include "base/json.h"
#include "base/mem.h"
#include "cli/command.h"

/* Exit codes of the process. Server errors have their own: err_exit(). */
enum cli_exit {
    CLI_OK = 0,
    CLI_FAILED = 1,
    CLI_USAGE = 2,
    CLI_NOT_FOUND = 3,
    CLI_CONFLICT = 4,
    CLI_UNAVAILABLE = 5,
    CLI_TIMEOUT = 6,
    CLI_JOB_FAILED = 7,
};

/* -o, in the order of its names in cli.c. */
enum cli_output {
    CLI_TABLE,
    CLI_WIDE,  /* a table with all columns */
    CLI_JSON,  /* the reply as received */
    CLI_JSONL, /* each item of a list as a line of JSON */
    CLI_NAME,  /* ids only, one per line */
    CLI_OUTPUT_COUNT
};

enum { CLI_TYPE_MAX = 64 }; /* characters of a task type */

/* `berth run`: a command that starts when this machine has room for it. */
struct cli_gate {
    const char *type;
    int64_t priority;
    bool interactive;
    int64_t wait_ms;    /* 0: do not wait; < 0: no limit */
    const char *config; /* NULL: not given */
    char **argv;        /* what to run, NULL-terminated */
};

/* Functions for the commands that run a server, an agent or another program; main() fills it in,
 * because the command line may not depend on those. Arguments: without the program's name and the
 * verb. */
struct cli_host {
    int (*serve)(int argc, char **argv, bool dev);
    int (*config)(int argc, char **argv); /* with the verb: show */
    int (*store)(int argc, char **argv);  /* with the verb: dump */
    void (*flags)(struct buf *out);       /* the flags they take, one per line; NULL: none */
    int (*agent)(int argc, char **argv);
    void (*agent_flags)(struct buf *out);
    int (*run)(const struct cli_gate *gate); /* returns only on failure */
};

struct cli {
    const struct cli_host *host;
    const struct command *command;
    struct arena arena; /* lives as long as the command */
    FILE *out;
    FILE *err;
    struct flag_given *given; /* in the order typed */
    size_t given_count;
    char **args; /* positional */
    int arg_count;
    char **rest; /* after `--` */
    int rest_count;
    bool help;
    enum cli_output output;
    bool json; /* the output is JSON of some kind */
    bool colour;
    bool terminal;         /* `out` is a terminal */
    const char *addr;      /* "http://127.0.0.1:7420", no slash at the end */
    const char *token;     /* NULL: none */
    const char *ca_file;   /* certificates to trust, for https; NULL: the system's */
    const char *cert_file; /* our own certificate; NULL: none */
    const char *key_file;
};

/* The whole command line; argv with the program's name. Returns main()'s exit code. */
int cli_main(int argc, char **argv, const struct cli_host *host);
/* The same with the caller's streams; `cli` is zeroed except for out and err. */
int cli_run(struct cli *cli, int argc, char **argv);

/* Finds the server's address and our credentials from flags, environment and context; reports
 * errors. */
int cli_reach(struct cli *cli);
/* The flags of a server or an agent, one per line, from the host that runs it. */
void cli_host_flags(const struct cli *cli, const struct command *command, struct buf *flags);

/* "berth: TEXT" on stderr; returns `code`, so that a caller can `return cli_fail(...)`. */
__attribute__((format(printf, 3, 4))) int cli_fail(struct cli *cli, int code, const char *fmt, ...);
/* The same for a wrong command line, with a reference to the help. */
__attribute__((format(printf, 2, 3))) int cli_misuse(struct cli *cli, const char *fmt, ...);

/* Flags by name; a name that is not in the command's table is a bug. */
bool cli_given(const struct cli *cli, const char *name);
const char *cli_text(const struct cli *cli, const char *name); /* NULL: not given */
int64_t cli_num(const struct cli *cli, const char *name, int64_t fallback);
/* Writes the flag, if given, as a member of the open object: a switch, a text or a number. */
void cli_put(const struct cli *cli, struct jsonw *w, const char *member, const char *flag);
/* All values of a flag, a FLAG_LIST split at commas; the strings point into argv, the array is in
 * the arena. */
size_t cli_list(struct cli *cli, const char *name, struct str **ret_items);

#endif
