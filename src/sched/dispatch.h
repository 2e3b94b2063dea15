/* One job on its way to a node: choose candidates from the snapshot, reserve atomically in the
 * store, send; the next candidate when one is full or cannot be reached. Serves new jobs (on the
 * loop that took the request) and jobs that go on (on the keeper's). */
#ifndef SCHED_DISPATCH_H
#define SCHED_DISPATCH_H

#include "model/outcome.h"
#include "sched/sched.h"
#include "sched/spec.h"

/* Why candidates did not get the job; counted for the answer. */
enum dispatch_why {
    WHY_NOT_READY,
    WHY_STALE,
    WHY_NO_CAPACITY,
    WHY_FULL,
    WHY_SEND_FAILED,
    WHY_TRIED,    /* had it before, in this attempt or a failed one */
    WHY_REQUIRES, /* its labels do not fit */
    WHY_LEVEL,    /* its machine is too loaded for work of this priority */
    WHY_ROUTE,    /* the type's route does not name it */
    WHY_BREAKER,  /* it keeps failing work of this type */
    WHY_COUNT
};
const char *dispatch_why_name(enum dispatch_why why); /* "NOT_READY" */

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
    bool exists;        /* the store knows the job already */
    bool scan;          /* look at every member with room instead of a sample */
    bool queued;        /* it stands in the queue: whatever is answered, it may go on waiting */
    struct str history; /* of a job that goes on: where it was before */
    void (*done)(struct dispatch *dispatch);
    void *user; /* of whoever is told */

    /* the answer */
    enum err err;
    struct problem why;
    struct store_head head;
    bool duplicate;
    bool ended;                 /* the job is over: it can neither wait nor be given up */
    struct store_record record; /* when it exists but was not placed: for the queue */
    uint32_t whys[WHY_COUNT];

    /* private to dispatch.c and candidates.c */
    struct outcome outcome;
    bool again; /* also to a node that had it before: all others are shut */
    struct node *preferred;
    size_t count, next;
    struct node *expected; /* whose pending count was raised */
    size_t tried_count, failed_count;
    struct node *node; /* reserved on */
    struct store_op op;
    struct send_op send;
    int64_t begun_us;
    /* From here on not cleared by dispatch_new. */
    struct policy_candidate list[SCHED_SAMPLE_MAX];
    /* Where it was: first those where an earlier attempt ended, then those that refused, or could
     * not be reached, in this one. */
    struct str tried[SCHED_TRIED_MAX];
};

/* Cleared, in the arena; the caller fills in its part. */
struct dispatch *dispatch_new(struct arena *arena);

void dispatch_start(struct dispatch *dispatch);

#endif
