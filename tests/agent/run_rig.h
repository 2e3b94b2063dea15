/* An agent's worth of runs: a loop turned by hand, a directory, and what the handler was told. */
#ifndef TESTS_AGENT_RUN_RIG_H
#define TESTS_AGENT_RUN_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "agent/shim_link.h"

enum { RIG_PATIENCE_MS = 30000 };

struct rig {
    struct loop loop;
    struct runs *runs;
    char dir[64];
    int started, ended, found; /* calls of the handler */
    struct run *last;          /* that ended last */
    bool forget;               /* every run when it ended */
    const char *spawner;       /* the socket of one; NULL: each agent has its own */
};

/* Turns the loop until `condition` holds; fails the test when that takes too long. */
#define rig_await(rig, condition)                                                                  \
    do {                                                                                           \
        int64_t until_ = clock_mono_ms() + RIG_PATIENCE_MS;                                        \
        while (!(condition)) {                                                                     \
            if (clock_mono_ms() > until_)                                                          \
                fail_msg("waited in vain for %s", #condition);                                     \
            uv_run(&(rig)->loop.uv, UV_RUN_ONCE);                                                  \
        }                                                                                          \
    } while (0)

const char *rig_shim(void);       /* the program of the shims */
void rig_make(struct rig *rig);   /* a new directory, no agent yet */
void rig_open(struct rig *rig);   /* an agent on it */
void rig_adopt(struct rig *rig);  /* runs_adopt */
void rig_close(struct rig *rig);  /* the agent goes, orderly */
void rig_remove(struct rig *rig); /* the directory too */
int rig_setup(void **state);      /* make + open, for cmocka */
int rig_teardown(void **state);

/* `sh -c script` with a grace of 200 ms; NULL spec: nothing else is set. */
extern const struct run_handler rig_handler;
struct run *rig_sh(struct rig *rig, const char *key, const char *script,
                   const struct run_spec *more);
void rig_await_end(struct rig *rig, struct run *run);
/* All output that is kept. The caller frees it. */
char *rig_output(struct run *run);
void assert_exit(struct run *run, const char *reason, int exit_code, int signal);

bool rig_alive(int64_t pid);            /* there is such a process, and it is no zombie */
int64_t rig_read_pid(const char *path); /* the number in a file; 0 when it is not there yet */
/* A path in the rig's directory, in static memory. */
__attribute__((format(printf, 2, 3))) const char *rig_path(const struct rig *rig, const char *fmt,
                                                           ...);
struct run *rig_find(const struct rig *rig, struct str key); /* NULL: there is none */
int rig_fds(void);                                           /* descriptors of this process */
int rig_zombies(void); /* children of this process that nobody reaped */
int64_t rig_rss_kb(int pid);

/* What needs control groups with limits is not run on a machine without; the virtual machine has
 * them and says so with BERTH_TEST_GROUPS, and there it must run. */
#define rig_skip_groups()                                                                          \
    do {                                                                                           \
        assert_null(getenv("BERTH_TEST_GROUPS"));                                                  \
        skip();                                                                                    \
    } while (0)

#endif
