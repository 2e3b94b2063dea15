/* What queue.c and queue_hold.c share. The keeper's thread. */
#ifndef SCHED_QUEUE_PRIVATE_H
#define SCHED_QUEUE_PRIVATE_H

#include "base/heap.h"
#include "sched/queue.h"
#include "sched/spec.h"

/* The waiting jobs of one pool and selector: as far as the lane knows, who fits one of them fits
 * all. Gone with its last job: what clients may name has no end. */
struct lane {
    struct str key;
    struct heap order;
    size_t jobs;  /* that belong to it, also while they are busy */
    int aside;    /* in this kick: so many were passed over */
    bool blocked; /* in this kick: its best job found no room */
};

struct waiting {
    struct queue *queue;
    struct lane *lane;
    struct arena arena;        /* the record */
    struct heap_node order;    /* in its lane; -priority, then id */
    struct heap_node deadline; /* in queue->deadlines */
    uint64_t job;
    struct spec spec;
    struct str idem; /* its Idempotency-Key; at == NULL: none */
    uint64_t fingerprint;
    struct buf history;
    int64_t since_ms; /* it waits: wall time */
    int attempt;      /* the one to start */
    int max_attempts;
    enum job_state state;      /* when it came */
    bool busy;                 /* a dispatch or a settle is under way: it stands in no heap */
    unsigned put;              /* see queue->puts */
    int64_t missing_ms;        /* monotonic: since when the store does not know it; 0: it does */
    bool gone;                 /* forgotten meanwhile: goes when it is not busy any more */
    int64_t explained_ms;      /* a try that failed was last kept for explain */
    const char *abandon;       /* it shall end, with this reason; NULL: it waits */
    struct waiting *successor; /* newer news of the same job, that came while it was busy */
    struct waiting *next;      /* of those passed over in this kick */
};

struct queue {
    struct sched *sched;
    struct idmap jobs; /* -> struct waiting * */
    struct map lanes;  /* -> struct lane * */
    struct heap deadlines;
    int64_t next_hold_ms;
    unsigned puts; /* how often all were to be put again; a job that has fewer is still to come */
    bool putting;
    bool kicking;
    struct waiting *aside; /* passed over in this kick */
};

/* Sees to it that the store knows all that waits, and whose it is. */
void queue_hold(struct queue *queue, int64_t now_ms);

#endif
