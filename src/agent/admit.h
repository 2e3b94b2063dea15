/* `berth run`: runs any user's command on this machine under the same admission as an agent's jobs.
 * Waits until the machine has room, takes a slot and execs the command. */
#ifndef AGENT_ADMIT_H
#define AGENT_ADMIT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct admit_request {
    const char *type;
    int64_t priority;
    bool interactive;
    int64_t wait_ms;    /* 0: do not wait; < 0: no limit */
    const char *config; /* an agent's configuration file; NULL: BERTH_CONFIG, or none */
    char **argv;        /* NULL-terminated; argv[0] is looked up in PATH */
};

/* Exit codes when the command is not executed. */
enum admit_exit {
    ADMIT_BAD = 2,        /* the configuration is not valid, or nothing can be measured */
    ADMIT_REFUSED = 5,    /* no room now, or never */
    ADMIT_TIMEOUT = 6,    /* no room within wait_ms */
    ADMIT_NO_START = 126, /* found, but it cannot be run */
    ADMIT_NO_SUCH = 127,
};

/* Reports on `err` what it waits for. Returns only if the command was not executed. */
int admit_run(const struct admit_request *request, FILE *err);

#endif
