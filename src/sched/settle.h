/* How attempts and jobs end: ACK, DONE, FAIL, refusal, cancel. The store applies it first; then
 * listeners are notified, and a job that goes on is handed to the keeper. */
#ifndef SCHED_SETTLE_H
#define SCHED_SETTLE_H

#include "sched/queue.h"
#include "sched/sched.h"

enum settle_kind { SETTLE_ACK, SETTLE_DONE, SETTLE_FAIL, SETTLE_CANCEL };

struct settle {
    /* the caller's */
    struct sched_loop *loop;
    struct arena *arena;
    enum settle_kind kind;
    uint64_t job;
    int attempt;             /* 0: not from a node */
    struct str node;         /* at == NULL: not from a node */
    const struct node *from; /* the same node, if it is known; else it is found by its id */
    int64_t send_id;         /* ACK: which send it is about; 0: not given */
    struct str reason;
    struct str result; /* JSON; at == NULL: none */
    bool command;      /* DONE, FAIL: of a command that came with the job */
    /* FAIL: it ran into a limit of this key of the job, which is held for hold_key_ms; at == NULL:
     * it did not. */
    struct str hold_key;
    int64_t hold_key_ms;
    struct str hold_reason; /* empty: `reason` */
    void (*done)(struct settle *settle);
    void *user;
    /* the answer */
    enum err err; /* ERR_STALE: head says what is current */
    bool duplicate;
    /* From here on filled in on the way; needs not be cleared. */
    struct store_head head;
    /* private */
    struct store_op op;
};

void settle_start(struct settle *settle);
/* What follows from a finish that was applied, including one made by the sweep. `known`: the node
 * it was on; NULL: it is found by its id. */
void settle_applied(struct sched_loop *loop, const struct store_op *op, const struct node *known);
/* Jobs that wait for a key of a job whose lease ended may start. */
void settle_keys_freed(struct sched_loop *loop, const struct store_op *op);
/* A job has ended: counts it in the metrics. */
void settle_count(const struct store_head *head);

/* The sweep: handles whatever expired. Leases whose ACK or renewal did not come, jobs that waited
 * long enough, and jobs in hand of an instance that died. Any instance may run it; the store lets
 * each item take effect once. Keeper's thread. */

struct sweep;

struct sweep *sweep_new(struct sched *sched, struct queue *queue);
void sweep_free(struct sweep *sweep);
void sweep_tick(struct sweep *sweep); /* starts a look, unless the last one is still under way */

#endif
