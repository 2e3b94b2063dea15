/* Every command of `berth` as one table: help, usage errors and completions come from it. */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include "cli/flag.h"

struct cli;

enum command_kind {
    COMMAND_API,   /* asks a server: takes --addr, --token-file, -o */
    COMMAND_LOCAL, /* does its work here */
    COMMAND_HOST,  /* becomes a server or an agent: what follows is handed on unread, see struct
                      cli_host */
};

struct command {
    const char *noun;
    const char *verb; /* NULL: the noun alone */
    const char *arg;  /* its arguments as the usage line shows them, with a blank between;
                         those in [] may be left out; NULL: none */
    const char *rest; /* what may stand behind `--`; NULL: nothing */
    enum command_kind kind;
    const struct flag_set *flags; /* NULL: only the common ones */
    const char *help;             /* one line */
    const char *detail;           /* a paragraph; NULL: none */
    const char *examples;         /* lines: "berth ..." or "# why" */
    int (*run)(struct cli *cli);
};

const struct command *command_at(size_t index); /* NULL behind the last */
/* The command that argv starts with; *ret_used words name it. NULL: `why` tells what is wrong. */
const struct command *command_find(int argc, char **argv, int *ret_used, struct problem *why);
/* Its own flags (may be an empty set), and those of every command of its kind. */
const struct flag_set *command_flags(const struct command *command);
const struct flag_set *command_common(enum command_kind kind);
/* "node ls" */
void command_name(const struct command *command, char *to, size_t size);

/* What the commands do, one file a noun: cmd_*.c and bench*.c. */
int cmd_node_ls(struct cli *cli);
int cmd_node_show(struct cli *cli);
int cmd_node_register(struct cli *cli);
int cmd_node_admin(struct cli *cli); /* drain, undrain, cordon: the verb is the route */
int cmd_node_rm(struct cli *cli);
int cmd_node_rpc(struct cli *cli);
int cmd_job_submit(struct cli *cli);
int cmd_job_ls(struct cli *cli);
int cmd_job_show(struct cli *cli);
int cmd_job_wait(struct cli *cli);
int cmd_job_cancel(struct cli *cli);
int cmd_job_retry(struct cli *cli);
int cmd_job_logs(struct cli *cli);
int cmd_pool_ls(struct cli *cli);
int cmd_session_show(struct cli *cli);
int cmd_events(struct cli *cli);
int cmd_health(struct cli *cli);
int cmd_version(struct cli *cli);
int cmd_status(struct cli *cli);
int cmd_top(struct cli *cli);
int cmd_run(struct cli *cli);
int cmd_breaker_ls(struct cli *cli);
int cmd_breaker_reset(struct cli *cli);
int cmd_token_hash(struct cli *cli);
int cmd_bench_sat(struct cli *cli);
int cmd_bench_low(struct cli *cli);
int cmd_bench_idle(struct cli *cli);

#endif
