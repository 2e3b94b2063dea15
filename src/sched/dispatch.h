/* One job on its way to a node: choose candidates from the snapshot, reserve atomically in the
 * store, send; the next candidate when one is full or cannot be reached. Serves new jobs (on the
 * loop that took the request) and jobs to be placed again (on the keeper's). */
#ifndef SCHED_DISPATCH_H
#define SCHED_DISPATCH_H

#include "model/policy.h"
#include "sched/sched.h"
#include "sched/spec.h"

/* Why candidates did not get the job; counted for the answer. */
enum dispatch_why {
    WHY_NOT_READY,
    WHY_STALE,
    WHY_NO_CAPACITY,
    WHY_FULL,
    WHY_SEND_FAILED,
    WHY_TRIED,     /* it had the job before, in this attempt or a failed one */
    WHY_REQUIRES,  /* its labels do not match */
    WHY_LEVEL,     /* its machine is too loaded for work of this priority */
    WHY_ROUTE,     /* the type's route does not name it */
    WHY_NAMESPACE, /* it is restricted to other namespaces */
    WHY_TOO_SMALL, /* it has less of something than the job needs, even when idle */
    WHY_RESOURCES, /* too little is left of something the job needs */
    WHY_BREAKER,   /* its breaker for this type is open */
    WHY_COUNT
};
const char *dispatch_why_name(enum dispatch_why why); /* "NOT_READY" */

enum { DISPATCH_LOOKS_MAX = 512 }; /* of one scan, kept for explain; more are only counted */

/* What a node has too little of, for TOO_SMALL and RESOURCES. */
struct dispatch_lack {
    int32_t left, of; /* see struct resources_short */
    int8_t gpu;
    uint8_t what; /* enum dispatch_needs */
};

enum dispatch_needs {
    NEEDS_UNKNOWN, /* reported by the store; not known here */
    NEEDS_SLOTS,
    NEEDS_GPUS,
    NEEDS_VRAM,
    NEEDS_NAMED, /* plus the index of the job's need */
};

/* A node that was looked at and left out: why, and what was seen. */
struct dispatch_look {
    struct node *node;
    uint64_t hash; /* of its id */
    int32_t load, max;
    int32_t score, route_position;
    int32_t age_ms; /* of its heartbeat */
    uint8_t why;    /* enum dispatch_why */
    uint8_t health; /* enum node_health */
    uint8_t admin;  /* enum node_admin */
    int8_t level;   /* enum level; -1: it has no agent */
    int8_t warm;    /* how many preferred names it has loaded; -1: the job prefers none */
    struct dispatch_lack lack;
};

struct dispatch {
    /* the caller's */
    struct sched_loop *loop;
    struct arena *arena; /* for what lives as long as the dispatch */
    struct spec spec;
    struct str idem; /* Idempotency-Key; at == NULL: none */
    uint64_t fingerprint;
    uint64_t job;
    int attempt;
    int max_attempts;
    bool exists;             /* the store has the job already */
    bool look_at_all;        /* look at every member with room instead of a sample */
    const struct node *only; /* the offered node: no other is looked at, unless breakers decide */
    bool queued;             /* it is queued: whatever the answer, it may go on waiting */
    /* Should this node, which has room, be left to another waiting job? NULL: never. */
    bool (*spoken_for)(struct dispatch *dispatch, const struct snap_node *member);
    /* In and out: an earlier try, which the store did not answer, may have left a node reserved. It
     * is given back first, for this reason (a literal); NULL: nothing is left. */
    const char *unsettled;
    int64_t unsettled_until_ms; /* monotonic: until then its reserve may still take effect */
    bool quiet;                 /* a failed try of this job need not be kept for explain */
    struct str history;         /* for a job that is tried again: where it was before */
    void (*done)(struct dispatch *dispatch);
    void *user; /* the caller's own */

    /* the answer */
    enum err err;
    struct problem why;
    struct store_head head;
    bool duplicate;
    bool ended;                 /* the job is over: it can neither wait nor be given up */
    struct store_record record; /* when it exists but was not placed: for the queue */
    uint32_t whys[WHY_COUNT];
    struct limit_block block; /* of ERR_LIMITED */

    /* private to dispatch.c and candidates.c */
    struct outcome outcome;
    bool retry_failed_nodes; /* also to a node that had it before: the breakers of all others are
                                open */
    bool allow_probe; /* the breakers of the whole pool are open: one node gets a probe at a time */
    struct node *preferred;
    size_t count, next;
    struct node *expected; /* the node whose pending count was raised */
    size_t tried_count, failed_count;
    struct node *node; /* the node that was reserved */
    int64_t begun_us;
    /* The last choice, for explain.c: the edition, its nodes, the members of the pool that fit the
     * request; the nodes left out (looks; look_count may exceed the room for them); and the result
     * for each node on the list (0: not asked; else its enum dispatch_why + 1). */
    int64_t version;
    uint32_t nodes, members;
    struct dispatch_look *looks;
    uint32_t look_count, look_max;
    uint8_t answers[SCHED_SAMPLE_MAX];
    /* From here on not cleared by dispatch_new. */
    struct store_op op; /* also used by submit.c, once the dispatch is over */
    struct send_op send;
    struct policy_candidate list[SCHED_SAMPLE_MAX];
    /* Where the job was: first the nodes where an earlier attempt ended, then those that refused,
     * or could not be reached, in this one. */
    struct str tried[SCHED_TRIED_MAX];
    struct dispatch_look own_looks[SCHED_SAMPLE_MAX + 1]; /* plus one for the preferred node */
};

/* Cleared, in the arena; the caller fills in its own fields. */
struct dispatch *dispatch_new(struct arena *arena);

void dispatch_start(struct dispatch *dispatch);
/* The key that kept the job from starting or waiting (ERR_LIMITED). */
struct str dispatch_limited_key(const struct dispatch *dispatch);
/* Fills `why` with the sentence of a refusal; returns its error. */
enum err dispatch_refuse(struct dispatch *dispatch, enum err err);

#endif
