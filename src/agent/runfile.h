/* What is in a run's directory beside its log:
 *   spec      what to run, by the agent, before the shim is asked for
 *   exit      the room for it, likewise
 *   input     the payload, likewise; until it ended
 *   work/     where the job runs unless it was given another place; until it ended
 *   tmp/      what it sees as /tmp, and var-tmp/ as /var/tmp, if it has its own; until it ended
 *   secrets/  copies of those it was given, each a file, likewise; until it ended. If it has its
 *             own /tmp they are in memory that is mounted there, and nobody else sees any
 *   sock      the shim listens here for an agent that adopts it
 *   deadline  by the agent; the shim reads it before it ends a run for a passed deadline
 *   result    what the job left in work/.result.json, by the shim when it ended
 *   exit      how it ended, by the shim, durable before it is reported
 * Spec and exit have a format, a number in the spec: a shim of another release than its agent reads
 * no spec it does not know, and writes an exit its agent knows.
 * The directory itself is flock'ed by the shim for as long as it lives (the agent takes the lock
 * and hands the descriptor over), so whether there is a shim is never a matter of process numbers.
 */
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
    RUNFILE_RESULT_MAX = 48 * 1024, /* a larger one is not kept, only that it was */
    RUNFILE_DIRS = 4
};

/* The directories in it, which go when it ended. All but the last are the job's user's, who alone
 * can empty them. */
extern const char *const runfile_dirs[RUNFILE_DIRS];

struct runfile {
    struct run_spec spec; /* `input` is only STR_NONE or not: the bytes are in the file */
    struct str dir;       /* absolute path of the run's directory */
    struct str boot_id;   /* of the kernel under which it was started */
    struct str mark;      /* "BERTH_RUN=…", in the environment of every process of the run */
    int64_t created_ms;   /* wall */
    struct str run_as; /* the user in the order; for the next agent, a shim gets it in the order */
    struct cgroup_place place;
};

/* Files are made new (0600) and never followed through links. */
enum err runfile_put(int dir_fd, const struct runfile *file, struct problem *why);
enum err runfile_put_input(int dir_fd, struct str input, struct problem *why);
/* Strings live in the arena. */
enum err runfile_get(int dir_fd, struct arena *arena, struct runfile *ret_file,
                     struct problem *why);

/* Makes the exit record's file with room for the largest there can be, so that a disk that fills up
 * while the run goes on cannot keep its end from being recorded. */
enum err runfile_reserve_exit(int dir_fd, struct str key, struct str meta, struct problem *why);
/* Durable when it returns. Carries key and meta, so that the outcome can be reported even if the
 * spec did not survive a power failure. */
enum err runfile_put_exit(int dir_fd, const struct run_exit *exit, struct str key, struct str meta,
                          struct problem *why);
/* For a run that never began: best effort, and without waiting for the disk. */
void runfile_leave_exit(int dir_fd, const struct run_exit *exit, struct str key, struct str meta);
/* ERR_NOT_FOUND: there is none, only half of one, or only its room. */
enum err runfile_get_exit(int dir_fd, struct arena *arena, struct run_exit *ret_exit,
                          struct str *ret_key, struct str *ret_meta);

/* What the job left as its result, to be opened as the job's user. -1: there is nothing to see; -2:
 * there is something, but no plain file. */
int runfile_open_result(int dir_fd);
/* The result leaves `work`, which goes when the run has ended, and is durable with the directory.
 * Takes what the other returned. One that was kept before stays. */
void runfile_keep_result(int dir_fd, int left_fd);

/* The secrets of a run go when it has ended or never began. Nothing happens if they are gone. */
void runfile_remove_secrets(int dir_fd, const struct run_spec *spec);

enum err runfile_put_deadline(int dir_fd, int64_t boot_ms);
bool runfile_get_deadline(int dir_fd, int64_t *ret_boot_ms); /* false: none was ever written */

struct str runfile_boot_id(struct arena *arena); /* of the running kernel; "" when not known */

#endif
