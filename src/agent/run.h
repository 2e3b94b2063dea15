/* Runs: the processes of jobs and of deployments. Each run has a directory and a shim, a separate
 * process that outlives the agent: work continues when the agent dies. The agent talks to shims
 * over sockets and adopts those it finds at its start. */
#ifndef AGENT_RUN_H
#define AGENT_RUN_H

#include "agent/cgroup.h"
#include "base/err.h"
#include "base/str.h"
#include "io/loop.h"

enum {
    RUN_KEY_MAX = 128,
    RUN_TAIL_BYTES = 4096,
    RUN_LOG_BYTES_DEFAULT = 4 << 20, /* when log_bytes_max is 0 */
    RUN_LOG_BYTES_MIN = 4096,
    RUN_DEADLINE_GRACE_MS = 10000, /* when deadline_grace_ms is 0 */
};

/* What to run. Strings are copied; all are valid UTF-8 without NUL, except `input`. */
struct run_spec {
    const struct run_handler *handler; /* called when it starts and ends */
    struct str key;  /* names the run and its directory: "j0ahx2vbjw0000.1"; str_is_id() */
    struct str meta; /* the agent's own data about it (JSON), kept with the run across restarts */
    const struct str *argv; /* argv[0] is looked up in the run's PATH */
    size_t argc;
    const struct str *env; /* "NAME=value", added to a small clean environment */
    size_t env_count;
    const struct str *secrets; /* "NAME" or "VARIABLE=NAME", see secret.h */
    size_t secret_count;
    struct str secrets_dir;   /* set by the rules: where the shim reads them, to put them into
                               * memory; at == NULL: they are in the run's directory */
    struct str cwd;           /* absolute; at == NULL: `work` in the run's directory */
    int64_t unfiltered;       /* 1: no system call filter, see sandbox.h; set by the rules */
    int64_t private_tmp;      /* 1: its own /tmp, see sandbox.h; set by the rules */
    struct str tmp_of;        /* key of a run of the same user whose /tmp, own or not, it shares;
                               * at == NULL: none */
    int64_t cwd_given;        /* 1: cwd is ours and is given to the user it runs as */
    struct str user;          /* at == NULL: see runs_set_rules() */
    bool alone;               /* then preferably one that no other run has, see job_user.h */
    struct str input;         /* sent to stdin, and in the file BERTH_PAYLOAD_FILE names; at ==
                               * NULL: empty stdin and no such file */
    int64_t timeout_ms;       /* 0 = none; then it is stopped with reason TIMEOUT */
    int64_t stop_grace_ms;    /* between TERM and KILL */
    int64_t timeout_grace_ms; /* limit for the end after its timeout; 0 = no other limit */
    int64_t deadline_boot_ms; /* 0 = none; see run_deadline() */
    int64_t deadline_sleeps;  /* 1: it is on CLOCK_MONOTONIC instead, see clock_lease_ms() */
    /* After a passed deadline KILL comes this much later, or sooner if stop_grace_ms is less. It
     * counts from the deadline, not from when the shim saw it: if the machine slept through both,
     * the run is killed at once. */
    int64_t deadline_grace_ms;
    int64_t memory_bytes_max; /* 0 = none; refused if not offered (runs_offered) */
    int64_t pids_max;         /* likewise */
    int64_t cpu_permille_max; /* of one core; likewise */
    int64_t cpu_weight;       /* its share when CPU is short, 1 to 10000, where shares can be
                               * set; 0 = 100, the default share */
    int64_t log_bytes_max;    /* of one file; one older file is kept. 0 = the default */
    int64_t disk_bytes_max;   /* of its directory, else DISK_LIMIT; 0 = the rules' limit */
    /* Set by the rules, for a run without a limit of its own, where it can be enforced. Does not
     * count swap, and kills a process, not the whole run. */
    int64_t memory_bytes_default;
};

enum run_state { RUN_STARTING, RUN_RUNNING, RUN_STOPPING, RUN_ENDED };

/* How it ended. exit_code and signal are -1 where they do not apply. */
struct run_exit {
    int exit_code;
    int signal;
    /* "EXITED", "SIGNALLED", "TIMEOUT", "DEADLINE", "OOM", "DISK_LIMIT", "START_FAILED",
     * "SHIM_LOST", or the reason passed to run_stop. */
    char reason[32];
    char detail[160];             /* for a person */
    int64_t started_ms, ended_ms; /* wall; started_ms is 0 if it never ran */
    int64_t user_ms, system_ms;   /* CPU of the whole tree, as far as it was reaped */
    int64_t rss_kb_max;
    struct str tail; /* last lines of output, valid UTF-8, at most RUN_TAIL_BYTES; run's memory */
    int64_t output_bytes;   /* total written */
    int64_t output_dropped; /* of these, discarded because of the limits */
};

struct run {
    struct runs *runs;
    struct str key, meta;
    struct str cwd; /* as its spec has it; at == NULL: `work` */
    enum run_state state;
    int64_t started_ms;   /* wall; time of the request until its shim reports the start */
    int pid;              /* of its main process; 0: unknown (yet) */
    bool adopted;         /* found when the agent started */
    bool unstarted;       /* never had a shim: see runs_record() */
    struct run_exit exit; /* when ENDED */
    const struct run_handler *handler; /* for an adopted run, set by `found` */
    void *user;                        /* for the handler's owner */
    struct run_private *priv;
};

/* The lower of two limits of a run; 0 = no limit. */
static inline int64_t lower_limit(int64_t a, int64_t b)
{
    if (a <= 0 || b <= 0)
        return a > 0 ? a : b;
    return a < b ? a : b;
}

struct run_handler {
    void (*started)(struct run *run); /* the process runs; may be NULL */
    void (*ended)(struct run *run);   /* once; the record stays on disk until run_forget */
};

/* dir is created (0700) and locked: a second agent on it gets ERR_CONFLICT. shim_path is the
 * program that runs as shim, usually this binary. spawner is the socket of a shared spawner
 * (spawner.h); NULL: shim_path is started once as `PATH shim -` and ends with the agent. Shims do
 * not. */
enum err runs_new(struct loop *loop, const char *dir, const char *shim_path, const char *spawner,
                  void *user, struct runs **ret_runs, struct problem *why);
/* Until set: the default user, and false. An agent that cannot choose users (neither it nor its
 * spawner is root) runs work as itself, and refuses work that names another user. */
struct run_rules {
    struct str job_user;        /* user for work that names none; empty: berth-job or nobody */
    bool allow_root;            /* runs may use root */
    bool unfiltered;            /* no system call filter */
    struct str secrets_dir;     /* where secrets are; empty: there are none */
    int64_t disk_bytes_max;     /* per run; 0: half of the free space when it starts */
    int64_t memory_percent_max; /* of the machine's memory; 0 or 100: no limit */
    bool shared_tmp;            /* use the machine's /tmp, even where a run could have its own */
};
void runs_set_rules(struct runs *runs, const struct run_rules *rules);
/* Why work runs as the agent's own user; NULL: it does not. */
const char *runs_not_apart(const struct runs *runs);
/* Why no run can have its own /tmp; NULL: it can. */
const char *runs_tmp_missing(const struct runs *runs);
void *runs_user(const struct runs *runs);
const char *runs_dir(const struct runs *runs); /* absolute */
/* Adopts the runs of an earlier agent: calls found(run) for each, once, before any call of the
 * handler, which `found` sets. RUNNING: `ended` follows, `started` does not. ENDED with its record:
 * nothing follows. STOPPING: its shim is gone without a record; it ends as SHIM_LOST after the rest
 * of its tree was killed. Call once, before the first runs_start. */
void runs_adopt(struct runs *runs, void (*found)(struct run *run));
/* Refuses at once what cannot work; later failures (no such program, no such user) end the run as
 * START_FAILED without a `started`. Never calls the handler itself. */
enum err runs_start(struct runs *runs, const struct run_spec *spec, void *user,
                    struct run **ret_run, struct problem *why);
/* Records a run that ended before it could be started, with `exit` as outcome: the next agent finds
 * it like any other ended run, if the disk has room for it. Of the spec only handler, key and meta
 * are used. */
struct run *runs_record(struct runs *runs, const struct run_spec *spec, void *user,
                        const struct run_exit *exit);
/* Sends TERM to the whole tree, and KILL after grace_ms (-1: the run's own). Idempotent; a later
 * call may only shorten the grace, and the first reason stays. reason is stored in exit.reason
 * ("STOPPED", "CANCELLED", "EMERGENCY"): an id of at most 31 characters. A shim that does not react
 * is killed itself. */
void run_stop(struct run *run, const char *reason, int64_t grace_ms);
/* The shim itself stops the tree at this moment, even if the agent is dead or frozen
 * (clock_lease_ms(); 0 = no deadline), and starts nothing after it. Used by leases. */
void run_deadline(struct run *run, int64_t boot_ms);
int64_t run_deadline_ms(const struct run *run); /* 0: none */
/* The outcome of the run is settled: removes its directory and frees `run`. Only when ENDED;
 * allowed in `ended`. */
void run_forget(struct run *run);
size_t runs_count(const struct runs *runs); /* not ENDED */
/* The next run; NULL after the last. for (run = NULL; (run = runs_next(runs, run));) */
struct run *runs_next(struct runs *runs, struct run *run);
/* Removes a directory (by its name in from_fd): its name at once, its contents later, on a thread.
 * False: it cannot be moved, for example because it is on another file system. */
bool runs_discard(struct runs *runs, int from_fd, const char *name);
/* FNV-1a, starting from RUNS_HASH. Not str_hash(), which differs between agents: the next one must
 * find the names of groups and packages. */
#define RUNS_HASH 2166136261u
static inline uint32_t runs_hash(struct str text, uint32_t hash)
{
    for (size_t i = 0; i < text.len; i++)
        hash = (hash ^ (unsigned char)text.at[i]) * 16777619u;
    return hash;
}
/* Output from byte `offset` of everything it wrote (as far as it is kept): up to `max` bytes into
 * `out`; *ret_offset is where they begin (later than requested if older output is gone). */
enum err run_log(struct run *run, int64_t offset, size_t max, struct buf *out, int64_t *ret_offset,
                 int64_t *ret_total);
/* The process whose descendants are the run's tree; 0 while unknown. */
int run_shim_pid(const struct run *run);
const struct cgroup_place *runs_offered(const struct runs *runs); /* what cgroups can do here */
void runs_free(struct runs *runs); /* leaves the shims and their work running */

/* `berth shim DIR` runs one shim in the foreground; `berth shim -` is the spawner, which takes its
 * orders from the socket that is its stdin. argv are the arguments after `shim`. */
int shim_main(int argc, char **argv);

#endif
