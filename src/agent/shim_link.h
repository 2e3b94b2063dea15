/* Runs from the inside, for the two files that keep them: run.c has the table, shim_link.c the
 * connections to shims and to the spawner. Everything on the loop's thread, except what is said to
 * be work. */
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
    RUN_SPAWNER_MS_MAX = 10000 /* so long orders wait for a spawner that is away */
};

#define RUN_TRASH ".gone"

struct run_spawner {
    const char *path;    /* of the socket of one that is there for agents; NULL: we fork our own */
    int fd;              /* -1: none */
    int pid;             /* of our own; 0: it is another's */
    int old_pid;         /* ended, not reaped yet; 0: none */
    int64_t number;      /* of the connection, from 1 */
    int64_t version;     /* SPAWNER_VERSION of another's; 0: it has not said */
    bool private_tmp;    /* its shims can give a run its own /tmp */
    int64_t away_ms;     /* since when it cannot be reached; 0: it can */
    int64_t patience_ms; /* RUN_SPAWNER_MS_MAX; tests have less */
    char why[160];       /* and why not */
    uv_poll_t *poll;
    TAILQ_HEAD(run_unsent, run_private) unsent; /* runs whose order is not sent yet */
};

struct runs {
    struct loop *loop;
    void *user;
    struct arena arena;
    const char *dir; /* absolute */
    int dir_fd;      /* flock'ed: one agent a directory */
    const char *shim_path;
    char group_name[32];
    struct str boot_id;
    struct rnd rnd;
    struct cgroup_place place;
    bool opened_to_users; /* others may pass through our directory */
    struct run_rules rules;
    char tmp_missing[160]; /* why our own spawner's runs cannot have their own /tmp, or none */
    size_t pool;           /* how many users there are beside it */
    size_t pool_last;      /* which of them was taken last; 0: none */
    struct map by_key;
    TAILQ_HEAD(, run_private) all; /* in the order they came */
    size_t alive;                  /* not ENDED */
    struct run_spawner spawner;
    uv_timer_t tick;
    int64_t ticks;
    uv_work_t trash_work;
    int trash_fd; /* of the trash while it is emptied */
    bool trash_busy, trash_again;
    bool trash_left;                       /* not all of it could be removed */
    int64_t trash_next_ms, trash_pause_ms; /* CLOCK_MONOTONIC: then again; 0: not by itself */
    int64_t trash_number;
    int64_t patience_ms; /* RUN_PATIENCE_MS; tests have less */
    int pins;            /* handles and works that still point here */
    bool freed;          /* no handler is called any more; gone with the last pin */
};

enum run_todo { RUN_TODO_STOP = 1, RUN_TODO_DEADLINE = 2, RUN_TODO_PING = 4 };

struct run_private {
    struct run run;
    TAILQ_ENTRY(run_private) entry;
    struct arena arena; /* key, meta, places, mark, and the tail once it ended */
    TAILQ_ENTRY(run_private) unsent;
    int order_dir_fd;     /* -1: the order was sent, or there was none */
    int order_fd;         /* the shim's end of the connection, likewise */
    int64_t order_number; /* of the connection it was sent over; 0: none */
    int fd;               /* to the shim; -1: not connected */
    uv_poll_t poll;       /* open while fd is */
    bool greeted;         /* its shim has said hello */
    bool lost;            /* its end is being made: see run_lost() */
    bool unpublished;     /* being adopted: nobody knows it yet */
    bool gone;            /* forgotten: memory goes when its handles are closed */
    int pins;             /* handles and works that still point here */
    int shim_pid;         /* 0: not known */
    uint64_t shim_start;
    unsigned todo; /* enum run_todo bits to be sent to the shim */
    char stop_reason[32];
    int64_t stop_kill_ms; /* CLOCK_MONOTONIC; 0: not asked to stop */
    int64_t deadline_ms;  /* clock_lease_ms(); 0: none */
    int64_t timeout_ms, grace_ms, deadline_grace_ms;
    int64_t created_mono_ms; /* 0: adopted */
    int64_t sought_tick;     /* the last tick that looked for its shim */
    int64_t pinged_ms;       /* 0: no ping is out */
    int64_t patience_ms;     /* its shim answered: do not ask again before */
    int64_t cpu_ms_max;      /* what run_usage said last */
    struct cgroup_place place;
    struct str mark, boot_id;
    struct str user; /* to run as; empty: the default */
    uv_work_t lost_work;
    bool lost_kill;   /* there may be processes */
    bool lost_busy;   /* lost_work is under way */
    int lost_spawner; /* where what a lost shim left may be found */
};
void run_unpin(struct run_private *priv);
void runs_unpin(struct runs *runs);
int run_open_dir(const struct runs *runs, struct str key); /* -1 and errno */
void run_set_ended(struct run_private *priv, const struct run_exit *exit);

void run_link_open(struct run_private *priv, int fd); /* takes fd */
void run_link_close(struct run_private *priv);
void run_link_flush(struct run_private *priv);
/* Not connected: finds out what became of it, and connects if its shim lives. To be called until it
 * is connected, ended or lost. May end it. */
void run_link_seek(struct run_private *priv);
void run_link_watch(struct run_private *priv, int64_t now_ms); /* every tick */

/* One of our own must come up; one that serves agents may be away for now. */
enum err run_spawner_start(struct runs *runs, const char *path, struct problem *why);
/* The order leaves now or when there is room. Takes both descriptors. */
enum err run_spawner_order(struct run_private *priv, int dir_fd, int shim_fd, struct problem *why);
void run_spawner_tick(struct runs *runs);
void run_spawner_cancel(struct run_private *priv);
/* Asks for a directory to be emptied that is a job's user's. Takes fd; -1 is nothing. */
void run_spawner_clean(struct runs *runs, int fd);
void run_spawner_close(struct runs *runs);

/* Its shim is gone without a record: kills what is left of its tree and ends it. `kill` is false
 * when no process can be left. */
void run_lost(struct run_private *priv, const char *reason, const char *detail, bool kill);

#endif
