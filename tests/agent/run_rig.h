/* The runs of one agent: a loop run by hand, a directory, and the calls of the handler. */
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
    struct run *last;          /* the last run that ended */
    bool forget;               /* forgets every run when it ends */
    const char *spawner;       /* socket of a shared spawner; NULL: each agent has its own */
};

/* Runs the loop until `condition` holds; fails the test if that takes too long. */
#define rig_await(rig, condition)                                                                  \
    do {                                                                                           \
        int64_t until_ = clock_mono_ms() + RIG_PATIENCE_MS;                                        \
        while (!(condition)) {                                                                     \
            if (clock_mono_ms() > until_)                                                          \
                fail_msg("waited in vain for %s", #condition);                                     \
            uv_run(&(rig)->loop.uv, UV_RUN_ONCE);                                                  \
        }                                                                                          \
    } while (0)

const char *rig_shim(void);       /* the shims' program */
void rig_make(struct rig *rig);   /* creates the directory, no agent yet */
void rig_open(struct rig *rig);   /* starts an agent on it */
void rig_adopt(struct rig *rig);  /* runs_adopt */
void rig_close(struct rig *rig);  /* a clean stop of the agent */
void rig_remove(struct rig *rig); /* removes the directory */
int rig_setup(void **state);      /* rig_make and rig_open, for cmocka */
int rig_teardown(void **state);

/* Runs `sh -c script` with a stop grace of 200 ms; `more` may set other fields, or be NULL. */
extern const struct run_handler rig_handler;
struct run *rig_sh(struct rig *rig, const char *key, const char *script,
                   const struct run_spec *more);
void rig_await_end(struct rig *rig, struct run *run);
/* All output that is kept. The caller frees it. */
char *rig_output(struct run *run);
void assert_exit(struct run *run, const char *reason, int exit_code, int signal);

bool rig_alive(int64_t pid);            /* the process exists and is no zombie */
int64_t rig_read_pid(const char *path); /* the number in a file; 0 if there is none yet */
/* A path in the rig's directory, in static memory. */
__attribute__((format(printf, 2, 3))) const char *rig_path(const struct rig *rig, const char *fmt,
                                                           ...);
struct run *rig_find(const struct rig *rig, struct str key); /* NULL: no such run */
int rig_fds(void);                                           /* open descriptors of this process */
int rig_zombies(void);                                       /* unreaped children of this process */
int64_t rig_rss_kb(int pid);

/* Skips a test that needs control groups with limits, on a machine without them. The virtual
 * machine has them and sets BERTH_TEST_GROUPS, so there the test must run. */
#define rig_skip_groups()                                                                          \
    do {                                                                                           \
        assert_null(getenv("BERTH_TEST_GROUPS"));                                                  \
        skip();                                                                                    \
    } while (0)

#endif
