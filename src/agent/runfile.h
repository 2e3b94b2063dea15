/* The files in a run's directory, except its log. The agent writes spec, the reserved exit record,
 * input and secrets/ before it sends the order to the shim:
 *   spec      what to run
 *   exit      first the reserved room; then the outcome, written by the shim and durable before it
 *             is reported
 *   input     the payload; removed at the end of the run
 *   work/     where the job runs unless it was given another directory; removed at the end
 *   tmp/      mounted as /tmp, and var-tmp/ as /var/tmp, if it has its own; removed at the end
 *   secrets/  copies of its secrets, one file each; removed at the end. If it has its own /tmp they
 *             are in memory mounted there, which nothing outside the run can see
 *   sock      the shim listens here for an agent that adopts it
 *   deadline  by the agent; the shim reads it before it ends a run for a passed deadline
 *   result    what the job left in work/.result.json, stored by the shim at the end
 * Spec and exit have a format, a number in the spec: a shim of another release than its agent
 * refuses a spec it does not know, and writes an exit its agent knows.
 * The shim holds a flock on the directory as long as it lives (the agent takes the lock and passes
 * the descriptor on), so whether there is a shim never depends on pids. */
#ifndef AGENT_RUNFILE_H
#define AGENT_RUNFILE_H

#include "agent/cgroup.h"
#include "agent/run.h"
#include "base/mem.h"

#define RUNFILE_SPEC    "spec"
#define RUNFILE_INPUT   "input"
#define RUNFILE_WORK    "work"
#define RUNFILE_TMP     "tmp"
#define RUNFILE_VAR_TMP "var-tmp"
#define RUNFILE_SECRETS "secrets"
#define RUNFILE_SOCK    "sock"
#define RUNFILE_EXIT    "exit"
#define RUNFILE_RESULT  "result"

#define RUNFILE_RESULT_LEFT ".result.json" /* in `work` */

enum {
    RUNFILE_RESULT_MAX = 48 * 1024, /* a larger one is not kept, only the fact that there was one */
    RUNFILE_DIRS = 4
};

/* The directories in it, which are removed when the run has ended. All but the last belong to the
 * job's user, who alone can empty them. */
extern const char *const runfile_dirs[RUNFILE_DIRS];

struct runfile {
    struct run_spec spec; /* `input` is only STR_NONE or set: the bytes are in the file */
    struct str dir;       /* absolute path of the run's directory */
    struct str boot_id;   /* of the kernel under which it was started */
    struct str mark;      /* "BERTH_RUN=…", in the environment of every process of the run */
    int64_t created_ms;   /* wall */
    struct str run_as; /* the user in the order; for the next agent, a shim gets it in the order */
    struct cgroup_place place;
};

/* Creates new files (0600), never through links. */
enum err runfile_put(int dir_fd, const struct runfile *file, struct problem *why);
enum err runfile_put_input(int dir_fd, struct str input, struct problem *why);
/* Strings live in the arena. */
enum err runfile_get(int dir_fd, struct arena *arena, struct runfile *ret_file,
                     struct problem *why);

/* Creates the exit record's file with room for the largest possible record, so that a disk that
 * fills up during the run cannot prevent its end from being recorded. */
enum err runfile_reserve_exit(int dir_fd, struct str key, struct str meta, struct problem *why);
/* Durable when it returns. Includes key and meta, so that the outcome can be reported even if the
 * spec did not survive a power failure. */
enum err runfile_put_exit(int dir_fd, const struct run_exit *exit, struct str key, struct str meta);
/* For a run that never started: best effort, and without waiting for the disk. */
void runfile_leave_exit(int dir_fd, const struct run_exit *exit, struct str key, struct str meta);
/* ERR_NOT_FOUND: no record, a partial one, or only the reserved room. */
enum err runfile_get_exit(int dir_fd, struct arena *arena, struct run_exit *ret_exit,
                          struct str *ret_key, struct str *ret_meta);

/* Opens what the job left as its result; call as the job's user. -1: nothing there; -2: something
 * that is not a plain file. */
int runfile_open_result(int dir_fd);
/* Moves the result out of `work`, which is removed when the run has ended; durable with the
 * directory. left_fd is what runfile_open_result returned. A result that was kept before stays. */
void runfile_keep_result(int dir_fd, int left_fd);

/* Removes the secrets of a run that has ended or never started. Does nothing if they are gone. */
void runfile_remove_secrets(int dir_fd, const struct run_spec *spec);

enum err runfile_put_deadline(int dir_fd, int64_t boot_ms);
bool runfile_get_deadline(int dir_fd, int64_t *ret_boot_ms); /* false: no deadline was written */

struct str runfile_boot_id(struct arena *arena); /* of the running kernel; "" if unknown */

#endif
