/* The shim: the process between the agent and a job's tree. It is the tree's parent and subreaper,
 * owns its output and its timers, and records how it ended. One thread, no libuv: it sleeps in one
 * poll and should cost next to nothing.
 *
 * Agent and shim exchange packets of plain text. Unknown packets are ignored, because either may be
 * of a newer version than the other. */
/* clang-format off */
/* To the shim:
 *   stop REASON KILL_AT    (CLOCK_MONOTONIC)
 *   deadline AT            (clock_lease_ms())
 *   ping
 * To the agent:
 *   hello PID START
 *   started WALL_MS PID
 *   stopping
 *   pong
 *   ended
 *   failed SENTENCE */
/* clang-format on */
#ifndef AGENT_SHIM_H
#define AGENT_SHIM_H

#include <linux/capability.h>
#include <sys/types.h>

#include "agent/job_user.h"
#include "agent/runfile.h"
#include "agent/sandbox.h"
#include "base/schema.h"

enum { SHIM_PACKET_MAX = 512 };

/* --- starting the job (shim_start.c) --- */

struct shim_job {
    const struct runfile *file;
    struct cgroup *group;        /* removed if the job could not enter it and need not */
    int dir_fd;                  /* of the run */
    mode_t umask;                /* what the job gets */
    int oom_adj;                 /* the shim's own; if below 0 the job's is reset to 0 */
    const struct job_user *user; /* NULL: the shim's own user */
    pid_t pid;                   /* of the main process, once it runs */
    int out_fd;                  /* its stdout and stderr, non-blocking */
};

/* The job's program runs when this returns ERR_OK. */
enum err shim_job_start(struct shim_job *job, struct problem *why);

enum shim_step {
    STEP_NONE,
    STEP_GROUP,
    STEP_TMP,
    STEP_SECRETS,
    STEP_USER,
    STEP_PRIVILEGES,
    STEP_FILTER,
    STEP_DIR,
    STEP_EXEC
};

/* Progress of the new process; in shared memory. */
struct shim_report {
    enum shim_step step;
    bool outside; /* it runs outside its group */
    int error;
};

/* Everything the new process needs, prepared before it exists. */
struct shim_plan {
    const struct shim_job *job;
    struct shim_report *report;
    int in_fd, out_fd;
    char **argv, **env;
    struct strs secrets; /* "VARIABLE=value" in env, to be wiped */
    int *secret_fds;     /* of those that are put into memory, as in the spec; NULL: none */
    const char *cwd;     /* NULL: `work` in the directory of the run */
    const char *tmp[PRIVATE_TMP_DIRS]; /* likewise; NULL: the machine's /tmp */
    const struct sock_fprog *filter;   /* for system calls; NULL: none */
    const char *path;
    bool cloned_into;
    bool must_enter; /* it has limits, so it must be in the group */
    bool is_root;    /* the settings allow root: it keeps root's privileges */
    pid_t shim;
};

/* The job's environment (shim_start.c): `secrets` ("NAME=value"), a small clean base from `base`,
 * the spec's, then ours: later entries win. user is NULL if it runs as the shim's user.
 * NULL-terminated, in the arena, except for the secrets, which are not copied. */
char **shim_env(struct arena *arena, const struct runfile *file, struct strs secrets,
                char *const *base, const struct job_user *user);
const char *shim_env_get(char *const *env, const char *name); /* NULL: not set */

/* --- its end --- */

struct shim_end {
    int status;              /* of the main process, as from waitpid */
    const char *stop_reason; /* "" when it ended by itself */
    bool killed;             /* had to be killed after TERM */
    int64_t oom_kills;
    const struct run_spec *spec;
};

/* Fills reason, detail, exit_code and signal. */
void shim_end_judge(const struct shim_end *end, struct run_exit *exit);

/* --- its life --- */

/* What a shim needs that does not run as root: to give the job its files and its own /tmp, to
 * switch to its user, to read what it left as that user, to kill it, and to reset its OOM score. */
#define SHIM_PRIVILEGES                                                                            \
    (PRIVILEGE(CAP_CHOWN) | PRIVILEGE(CAP_SETUID) | PRIVILEGE(CAP_SETGID) | PRIVILEGE(CAP_KILL) |  \
     PRIVILEGE(CAP_SYS_RESOURCE) | PRIVILEGE(CAP_SYS_ADMIN))

/* Runs what dir_fd describes until it ends, as this user (NULL: our own); the exit record is
 * durable when it returns. agent_fd is the agent's socket, or -1. Takes both descriptors. */
void shim_run(int dir_fd, int agent_fd, int oom_adj, const struct job_user *user);

#endif
