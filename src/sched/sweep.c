/* The sweep: one DUE call, then one FINISH for each thing found (a look, if it is a job that nobody
 * has in hand any more), then again while there is more. A lease renewed meanwhile, and a job that
 * went on, are left alone by the store. */
#include "sched/sweep.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/metrics.h"
#include "sched/counts.h"
#include "sched/settle.h"

enum { SWEEP_BATCH = 256 };

struct sweep_item {
    struct store_op op;
    struct arena arena;
    struct sweep *sweep;
    char node[NODE_ID_MAX + 1]; /* whose lease it was */
    uint64_t lane;              /* in which it waited; 0: in none */
};

struct sweep {
    struct sched *sched;
    struct queue *queue;
    struct store_op op;
    struct store_due due[SWEEP_BATCH];
    struct sweep_item items[SWEEP_BATCH];
    size_t open; /* items under way */
    bool busy;
};

struct sweep *sweep_new(struct sched *sched, struct queue *queue)
{
    struct sweep *sweep = calloc(1, sizeof *sweep);

    assert(sweep);
    sweep->sched = sched;
    sweep->queue = queue;
    return sweep;
}

void sweep_free(struct sweep *sweep)
{
    if (!sweep)
        return;
    for (size_t i = 0; i < SWEEP_BATCH; i++)
        arena_free(&sweep->items[i].arena);
    free(sweep);
}

static bool waits(enum job_state state)
{
    return state == JOB_NEW || state == JOB_SELECTING || state == JOB_RETRYING;
}

static void looked(struct store_op *op);

static void look(struct sweep *sweep)
{
    assert(sweep->open == 0);
    sweep->op = (struct store_op){
        .verb = STORE_DUE, .reply_to = sched_keeper_loop(sweep->sched)->inbox, .done = looked};
    sweep->op.u.due.items = sweep->due;
    sweep->op.u.due.max = SWEEP_BATCH;
    sweep->busy = true;
    sched_send(sched_keeper_loop(sweep->sched), &sweep->op);
}

static void item_over(struct sweep_item *item)
{
    struct sweep *sweep = item->sweep;

    arena_reset(&item->arena);
    assert(sweep->open > 0);
    if (--sweep->open > 0)
        return;
    sweep->busy = false;
    if (sweep->op.u.due.count == SWEEP_BATCH)
        look(sweep);
}

static void expired(struct store_op *op)
{
    struct sweep_item *item = container_of(op, struct sweep_item, op);
    struct sched *sched = item->sweep->sched;

    assert(item->sweep->busy && op->verb == STORE_FINISH);
    if (!op->err && !op->u.settle.duplicate) { /* another instance was first */
        bool unsent = op->head.state == JOB_SELECTING;
        bool unacked = str_is(str_of(op->head.reason), "ACK_TIMEOUT");

        if (!unsent)
            metric_add(unacked ? METRIC_ACK_TIMEOUT : METRIC_LEASE_LOST, 1);
        metric_add_label(METRIC_LEASE_EXPIRED, unacked || unsent ? "reserved" : "running", 1);
        counts_take_of(sched_keeper_loop(sched)->snapshot, str_of(item->node), op);
        settle_applied(sched_keeper_loop(sched), op);
        if (item->node[0] && !unsent) /* nor is it sent there again only to be stopped */
            sched->hooks->stop(sched_keeper_loop(sched), str_of(item->node), op->job, op->attempt,
                               op->head.reason);
    }
    item_over(item);
}

/* It waited long enough. */
static void timed_out(struct store_op *op)
{
    struct sweep_item *item = container_of(op, struct sweep_item, op);

    assert(item->sweep->busy && op->verb == STORE_FINISH);
    if (!op->err && !op->u.settle.duplicate) { /* another instance was first */
        settle_applied(sched_keeper_loop(item->sweep->sched), op);
        queue_forget(item->sweep->queue, op->job, item->lane);
    }
    item_over(item);
}

/* Whoever had it in hand did nothing with it for too long, or is gone. Others may find it too: they
 * all ask the store for the same attempt. */
static void found(struct store_op *op)
{
    struct sweep_item *item = container_of(op, struct sweep_item, op);

    assert(item->sweep->busy && op->verb == STORE_JOB_GET);
    if (!op->err && waits(op->head.state) && !op->head.lane)
        queue_continue(item->sweep->queue, &op->record);
    item_over(item);
}

static void take(struct sweep *sweep, size_t i)
{
    const struct store_due *due = &sweep->due[i];
    struct sweep_item *item = &sweep->items[i];
    bool held = due->lease == LEASE_NONE && waits(due->state) && !due->lane;

    assert(i < SWEEP_BATCH && due->id);
    item->sweep = sweep;
    item->lane = due->lane;
    memcpy(item->node, due->node, sizeof item->node);
    item->op = (struct store_op){.verb = held ? STORE_JOB_GET : STORE_FINISH,
                                 .reply_to = sched_keeper_loop(sweep->sched)->inbox,
                                 .done = held        ? found
                                         : due->lane ? timed_out
                                                     : expired,
                                 .job = due->id,
                                 .attempt = due->attempt,
                                 .arena = &item->arena};
    if (!held) {
        item->op.u.settle.outcome = due->lane ? STORE_QUEUE_TIMEOUT : STORE_EXPIRE;
        item->op.u.settle.reason = due->lane ? STR("QUEUE_TIMEOUT") : STR_NONE;
        item->op.u.settle.owner = store_number(sweep->sched->store);
        item->op.u.settle.hold_ms = SCHED_HOLD_MS;
    }
    sweep->open++;
    sched_send(sched_keeper_loop(sweep->sched), &item->op);
}

/* What this instance has in hand it carries on with by itself. */
static bool is_ours(const struct sweep *sweep, const struct store_due *due)
{
    return queue_is_unsettled(sweep->queue, due->id) ||
           (due->lease == LEASE_NONE && waits(due->state) && queue_in_hand(sweep->queue, due->id));
}

static void looked(struct store_op *op)
{
    struct sweep *sweep = container_of(op, struct sweep, op);

    assert(sweep->busy && sweep->open == 0 && (op->err || op->u.due.count <= SWEEP_BATCH));
    if (op->err || op->u.due.count == 0) {
        op->u.due.count = 0;
        sweep->busy = false;
        return;
    }
    for (size_t i = 0; i < op->u.due.count; i++)
        if (!is_ours(sweep, &sweep->due[i]))
            take(sweep, i);
    sweep->busy = sweep->open > 0;
}

void sweep_tick(struct sweep *sweep)
{
    if (!sweep->busy)
        look(sweep);
}
