/* run.h without processes: runs that do what the test says. Linked instead of run.c. Runs survive
 * `runs`, as real ones do: the next runs_new finds them. */
#ifndef TESTS_AGENT_FAKE_RUN_H
#define TESTS_AGENT_FAKE_RUN_H

#include "agent/run.h"

enum { FAKE_RUNS_MAX = 64 };

struct fake_run {
    struct run run;
    bool there; /* false once forgotten */
    int starts; /* how often this key was started */
    char key[RUN_KEY_MAX + 1];
    char meta[1024];
    char cwd[256];
    char argv[1024]; /* words separated by '|' */
    char env[4096];  /* likewise */
    char secrets[256];
    char input[1024];
    char stop[32];        /* the reason; "": run_stop was not called */
    struct run_spec spec; /* its numbers, cwd and user only */
    int64_t stop_grace_ms;
    int64_t deadline_ms;
    char tail[RUN_TAIL_BYTES];
};

extern struct fake_run fake_runs[FAKE_RUNS_MAX];
extern int fake_run_count; /* total */
extern struct cgroup_place fake_run_offered;
extern const char *fake_run_fail; /* the error of runs_start; NULL: it succeeds */

void fake_run_reset(void);
struct fake_run *fake_run_find(const char *key); /* NULL: never started */
/* Ends the run like this. The agent's handler is called if there is an agent; otherwise the next
 * one finds the run ENDED. */
void fake_run_end(const char *key, const char *reason, int exit_code, int signal, const char *tail);
void fake_run_begin(const char *key); /* reports that the process runs */
int fake_run_alive(void);             /* runs that have not ended */

#endif
