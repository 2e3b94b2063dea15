/* Copies: this node's runs of deployments. A copy is started, watched, restarted with growing
 * pauses, replaced when its spec changes, and stopped when the node may no longer run it. The
 * caller says what may run (copies_want) and until when (copies_fence); the shims enforce the
 * latter even if this agent dies first. One loop. */
#ifndef AGENT_COPIES_H
#define AGENT_COPIES_H

#include <sys/queue.h>

#include "agent/config.h"
#include "agent/packages.h"
#include "agent/run.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/map.h"
#include "io/client.h"

struct copies;
struct copy;

enum copy_state {
    COPY_WAITING,    /* for its turn, the end of a pause, or a lease */
    COPY_INSTALLING, /* for its package */
    COPY_STARTING,
    COPY_RUNNING,
    COPY_STOPPING,
    COPY_STATES
};

struct copies_config {
    const struct config *config;
    struct str node_id;
    const char *data_dir; /* absolute */
    struct runs *runs;    /* must outlive it */
    /* Does a copy with this demand fit on this node, and on which GPUs? If not, `why` gets a
     * sentence. `has` (NULL: nothing) is what it would give back. NULL: everything fits. */
    bool (*room)(struct copies *copies, const struct demand *demand, const struct demand *has,
                 uint64_t has_gpus, uint64_t *ret_gpus, struct buf *why);
    /* Room is reserved for a copy from now on, or no longer. Required if `room` is set. */
    void (*keep)(struct copies *copies, const struct demand *demand, uint64_t gpus, bool kept);
    /* Something worth reporting about a copy changed. May be NULL. */
    void (*changed)(struct copies *copies);
};

/* `config` and what it points to must outlive it. */
enum err copies_new(struct loop *loop, const struct copies_config *config, void *user,
                    struct copies **ret_copies, struct problem *why);
/* Takes up a run that an earlier agent left; true if it is a copy's. It continues unchanged until
 * the first copies_want round says otherwise. */
bool copies_adopt(struct copies *copies, struct run *run);
/* Leaves the runs to their shims. Before runs_free and loop_done. */
void copies_free(struct copies *copies);

/* What this node may run arrives in complete rounds: copies->round is incremented, each row is
 * passed, and copies that were not named are stopped at the end of the round. A row that cannot be
 * run keeps the current run; the log and the status report it. {id, type, generation, version,
 * spec} */
void copies_want(struct copies *copies, const struct json *json);
void copies_round_over(struct copies *copies);

/* The node's lease was renewed: what a round named may run until this moment (clock_lease_ms()),
 * then it has grace_ms for a gentle stop. Nothing starts before the first renewal, and a deadline
 * that has passed is never extended: by then another node may run it. */
void copies_fence(struct copies *copies, int64_t until_boot_ms, int64_t grace_ms);
/* Stops all of them and starts no more. */
void copies_end(struct copies *copies);

/* Why this node holds a copy back: it is stopped and not started again. */
enum copy_hold {
    COPY_NOT_HELD,
    COPY_DRAINED,   /* the node is drained */
    COPY_UNMATCHED, /* its selector or its namespace does not match this node */
    COPY_FAILING,   /* it cannot run here; a new spec releases it */
    COPY_NO_ROOM,   /* it needs more than this node has; likewise */
    COPY_REFUSED,   /* this node runs no deployments: allow_deployments */
};
const char *copy_hold_text(enum copy_hold hold); /* "The node is drained." */
/* Holds a copy, or releases it: COPY_NOT_HELD. */
void copies_set_hold(struct copies *copies, struct str id, enum copy_hold hold);
void copies_release_all(struct copies *copies, enum copy_hold hold); /* that are held for this */

/* A held copy without a run, so that it can be released. */
const struct copy *copies_next_held(const struct copies *copies);
size_t copies_holding(const struct copies *copies, enum copy_hold hold); /* how many */
struct str copies_first_owned(const struct copies *copies); /* not held; at == NULL: none */
/* It needs more than this node has, and has for so long. */
bool copies_lacks(const struct copies *copies, struct str id, int64_t for_ms);
/* How many times in a row it failed to run here. */
int64_t copies_failures(const struct copies *copies, struct str id);

/* Ends it because the machine is about to freeze. It rests for at least a minute, longer each time,
 * and does not start while the machine is in danger. */
void copy_kill(struct copy *copy, struct str why, int64_t grace_ms);

size_t copies_count(const struct copies *copies); /* owned ones, without daemons */
size_t copies_alive(const struct copies *copies);
/* An array with the status of each copy, from place `from` on, at most `max`. Returns the place of
 * the next; 0: that was all. One with `wants` asks whether it is its node's turn. */
size_t copies_write(struct copies *copies, size_t from, size_t max, struct jsonw *w);
/* Takes the server's reply to the last copies_write. */
void copies_told(struct copies *copies, const struct json *reply);
/* Output of the current (or last) run, or of the one before it. See run_log(). */
enum err copies_log(const struct copies *copies, struct str id, bool previous, int64_t offset,
                    size_t max, struct buf *out, int64_t *ret_offset, int64_t *ret_total,
                    bool *ret_ended);

struct copies {
    struct loop *loop;
    struct copies_config config;
    struct packages *packages;
    struct client *client; /* for checks by HTTP */
    void *user;
    struct map by_id;
    TAILQ_HEAD(, copy) all; /* in the order they arrived */
    bool rows_known;        /* a complete round has arrived */
    bool ending;            /* all are stopped and none is started */
    int64_t round;
    int64_t fence_ms, fence_grace_ms; /* clock_lease_ms(); 0: no lease yet */
    bool danger;                      /* the machine is in danger: set by the agent */
    int64_t number;                   /* of the next run, part of its key */
    char host[256];                   /* the machine's name */
    struct rnd rnd;
    struct loop_part part;
    bool freed; /* its runs continue without it */
};

enum { COPY_REASON_MAX = 256 }; /* size of a reason, as on the server; with its NUL */

enum copy_health { COPY_UNKNOWN, COPY_WELL, COPY_UNWELL };

enum copy_end { COPY_NOT_OVER, COPY_FINISHED, COPY_FAILED };

struct copy_check {
    int64_t next_ms;  /* CLOCK_MONOTONIC; 0: not scheduled */
    int64_t begun_ms; /* CLOCK_MONOTONIC: when checking started; 0: not yet */
    int64_t failures; /* in a row */
    bool passed;      /* at least once since its start */
    struct run *run;  /* of a check command; NULL: none is running */
    struct client_call *call;
};

struct copy {
    struct copies *copies;
    TAILQ_ENTRY(copy) entry;
    struct str id;
    struct arena id_arena, arena; /* of `spec` */
    int64_t generation;           /* what should run: the fencing token of this assignment, */
    int64_t version;              /* the version of its spec: a new version means a restart, */
    bool daemon;                  /* on every matching node, without an owner or a lease */
    struct deploy_spec spec;      /* of the last version that could be read, */
    int64_t spec_version;         /* this one */
    bool known;                   /* it has a spec; false if adopted and not yet named by a round */
    struct deploy_spec old;       /* of the running version, if another is wanted */
    int64_t old_version;          /* 0: none */
    struct arena old_arena;
    bool wanted;
    enum copy_hold held; /* if not COPY_NOT_HELD: it must not run */
    /* Its reason when it was held: how it last ended, or what it lacks; "" = none. */
    char held_reason[COPY_REASON_MAX];
    int64_t round;               /* the last round that named it */
    char wrong[COPY_REASON_MAX]; /* why its row cannot be run; "" = it can */
    enum copy_state state;
    struct run *run;                     /* NULL: none is alive */
    struct run *last;                    /* the previous run, kept for its output */
    int64_t last_version;                /* of `last` */
    int64_t run_generation, run_version; /* of `run` */
    char demand[DEMAND_TEXT_MAX + 1];    /* what is reserved for it, as text; "" = nothing */
    uint64_t gpus;                       /* GPUs assigned to it, one bit per id */
    bool lacks;                          /* the wanted version needs more than this node has, */
    int64_t lacks_since_ms;              /* CLOCK_MONOTONIC: since then */
    int64_t port;                        /* assigned to it; 0: none yet, or none are assigned */
    bool stopping;                       /* its end was requested, so it is not a failure */
    bool unhealthy;                      /* and its health check was the reason */
    char unwell[COPY_REASON_MAX];        /* last message of its check; "" = healthy */
    char ended[COPY_REASON_MAX];         /* why the last run ended, or could not be started */
    char waits[COPY_REASON_MAX];         /* why the wanted version is not started yet */
    int64_t failures;                    /* in a row */
    int64_t restarts;                    /* total since this agent knows it */
    int64_t next_ms;                     /* CLOCK_MONOTONIC: no start before */
    int64_t ask_ms;        /* CLOCK_MONOTONIC: when a changed daemon next asks for its turn */
    bool asks;             /* the next status asks for its turn */
    int64_t asked_version; /* the version the pending status asks for */
    int64_t turn_version;  /* the version the server has let this node update to */
    enum copy_health reported_health;
    int64_t since_ms;     /* CLOCK_MONOTONIC: start of this state */
    bool looping;         /* reported as a crash loop */
    enum copy_end over;   /* how it ended for good, so that it is not started again */
    int64_t over_version; /* the version that did */
    bool killed;          /* its end was requested to save the machine */
    int64_t kills;        /* how many times that happened in a row */
    char killed_why[192]; /* if that is how it last ended; else "" */
    struct copy_check check;
};

#endif
