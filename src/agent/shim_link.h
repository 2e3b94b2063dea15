/* The internals of runs, shared by two files: run.c has the table, shim_link.c the connections to
 * shims and to the spawner. Everything runs on the loop's thread, except functions marked as pool
 * work. */
#ifndef AGENT_SHIM_LINK_H
#define AGENT_SHIM_LINK_H

#include <sys/queue.h>

#include "agent/cgroup.h"
#include "agent/run.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/map.h"
#include "base/mem.h"
#include "io/loop.h"

enum {
    RUN_TICK_MS = 100,
    RUN_PATIENCE_MS = 5000,
    RUN_LOST_ROUND_MS = 1000,
    RUN_SPAWNER_MS_MAX = 10000 /* how long orders wait for a missing spawner */
};

#define RUN_TRASH ".gone"

struct run_spawner {
    const char *path;    /* of a shared spawner's socket; NULL: we fork our own */
    int fd;              /* -1: none */
    int pid;             /* of our own; 0: a shared one */
    int old_pid;         /* ended, not reaped yet; 0: none */
    int64_t number;      /* of the connection, from 1 */
    int64_t version;     /* SPAWNER_VERSION of a shared one; 0: not reported yet */
    bool private_tmp;    /* its shims can give a run its own /tmp */
    int64_t away_ms;     /* since when it cannot be reached; 0: reachable */
    int64_t patience_ms; /* RUN_SPAWNER_MS_MAX; shorter in tests */
    char why[160];       /* why it cannot be reached */
    uv_poll_t *poll;
    TAILQ_HEAD(run_unsent, run_private) unsent; /* runs whose order is not sent yet */
};

struct runs {
    struct loop *loop;
    void *user;
    struct arena arena;
    const char *dir; /* absolute */
    int dir_fd;      /* flock'ed: one agent per directory */
    const char *shim_path;
    char group_name[32];
    struct str boot_id;
    struct rnd rnd;
    struct cgroup_place place;
    bool opened_to_users; /* other users may pass through our directory */
    struct run_rules rules;
    char tmp_missing[160]; /* why runs get no private /tmp, as found by us; "" = no reason */
    size_t pool;           /* number of numbered users beside it */
    size_t pool_last;      /* which of them was used last; 0: none */
    struct map by_key;
    TAILQ_HEAD(, run_private) all; /* in the order they arrived */
    size_t alive;                  /* not ENDED */
    struct run_spawner spawner;
    uv_timer_t tick;
    int64_t ticks;
    uv_work_t trash_work;
    int trash_fd; /* of the trash while it is emptied */
    bool trash_busy, trash_again;
    bool trash_left;                       /* not all of it could be removed */
    int64_t trash_next_ms, trash_pause_ms; /* CLOCK_MONOTONIC: next try; 0: not scheduled */
    int64_t trash_number;
    int64_t patience_ms; /* RUN_PATIENCE_MS; shorter in tests */
    int pins;            /* handles and work items that still point here */
    bool freed;          /* no handler is called any more; freed with the last pin */
};

enum run_todo { RUN_TODO_STOP = 1, RUN_TODO_DEADLINE = 2, RUN_TODO_PING = 4 };

struct run_private {
    struct run run;
    TAILQ_ENTRY(run_private) entry;
    struct arena arena; /* key, meta, paths, mark, and the tail once it ended */
    TAILQ_ENTRY(run_private) unsent;
    int order_dir_fd;     /* -1: the order was sent, or there was none */
    int order_fd;         /* the shim's end of the connection, likewise */
    int64_t order_number; /* number of the connection it was sent over; 0: none */
    int fd;               /* to the shim; -1: not connected */
    uv_poll_t poll;       /* open while fd is */
    bool greeted;         /* its shim has said hello */
    bool lost;            /* its end is being handled: see run_lost() */
    bool unpublished;     /* being adopted: not announced to anybody yet */
    bool gone;            /* dropped: freed when its handles are closed */
    int pins;             /* handles and work items that still point here */
    int shim_pid;         /* 0: unknown */
    uint64_t shim_start;
    unsigned todo; /* enum run_todo bits still to be sent to the shim */
    char stop_reason[32];
    int64_t stop_kill_ms; /* CLOCK_MONOTONIC; 0: not asked to stop */
    int64_t deadline_ms;  /* clock_lease_ms(); 0: none */
    int64_t timeout_ms, grace_ms, deadline_grace_ms;
    int64_t created_mono_ms; /* 0: adopted */
    int64_t sought_tick;     /* the last tick that looked for its shim */
    int64_t pinged_ms;       /* 0: no ping is pending */
    int64_t patience_ms;     /* its shim answered: no new ping before this */
    struct cgroup_place place;
    struct str mark, boot_id;
    struct str user; /* to run as; empty: the default */
    uv_work_t lost_work;
    bool lost_kill;   /* there may be processes left */
    bool lost_busy;   /* lost_work is under way */
    int lost_spawner; /* pid of the spawner that may have what a lost shim left */
};
void run_unpin(struct run_private *priv);
void runs_unpin(struct runs *runs);
int run_open_dir(const struct runs *runs, struct str key); /* -1 and errno */
void run_set_ended(struct run_private *priv, const struct run_exit *exit);

void run_link_open(struct run_private *priv, int fd); /* takes fd */
void run_link_close(struct run_private *priv);
void run_link_flush(struct run_private *priv);
/* Not connected: finds out what happened to the shim, and connects if it lives. Call until it is
 * connected, ended or lost. May end the run. */
void run_link_seek(struct run_private *priv);
void run_link_watch(struct run_private *priv, int64_t now_ms); /* every tick */

/* Our own spawner must start; a shared one may be unreachable for now. */
enum err run_spawner_start(struct runs *runs, const char *path, struct problem *why);
/* Sends the order now or when there is room. Takes both descriptors. */
enum err run_spawner_order(struct run_private *priv, int dir_fd, int shim_fd, struct problem *why);
void run_spawner_tick(struct runs *runs);
void run_spawner_cancel(struct run_private *priv);
/* Asks the spawner to empty a directory of a job's user. Takes fd; does nothing if it is -1. */
void run_spawner_clean(struct runs *runs, int fd);
void run_spawner_close(struct runs *runs);

/* Its shim is gone without a record: kills what is left of its tree and ends the run. `kill` is
 * false if no process can be left. */
void run_lost(struct run_private *priv, const char *reason, const char *detail, bool kill);

#endif
