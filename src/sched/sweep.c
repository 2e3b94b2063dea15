/* The sweep: one DUE call, then one FINISH or ADOPT for each thing found, then again while there is
 * more. A lease renewed meanwhile is left alone by the store. */
#include "sched/sweep.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/metrics.h"
#include "sched/settle.h"

enum { SWEEP_BATCH = 256 };

struct sweep_item {
    struct store_op op;
    struct arena arena;
    struct sweep *sweep;
    char node[NODE_ID_MAX + 1]; /* whose lease it was */
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
        bool unacked = str_is(str_of(op->head.reason), "ACK_TIMEOUT");

        metric_add(unacked ? METRIC_ACK_TIMEOUT : METRIC_LEASE_LOST, 1);
        metric_add_label(METRIC_LEASE_EXPIRED, unacked ? "reserved" : "running", 1);
        settle_applied(sched_keeper_loop(sched), op);
        if (item->node[0])
            sched->hooks->stop(sched_keeper_loop(sched), str_of(item->node), op->job, op->attempt,
                               op->head.reason);
    }
    item_over(item);
}

static void adopted(struct store_op *op)
{
    struct sweep_item *item = container_of(op, struct sweep_item, op);

    assert(item->sweep->busy && op->verb == STORE_ADOPT);
    if (!op->err)
        queue_continue(item->sweep->queue, &op->record, false);
    item_over(item);
}

static void take(struct sweep *sweep, size_t i)
{
    const struct store_due *due = &sweep->due[i];
    struct sweep_item *item = &sweep->items[i];
    bool waits =
        due->lease == LEASE_NONE &&
        (due->state == JOB_NEW || due->state == JOB_SELECTING || due->state == JOB_RETRYING);

    assert(i < SWEEP_BATCH && due->id);
    item->sweep = sweep;
    memcpy(item->node, due->node, sizeof item->node);
    item->op = (struct store_op){.verb = waits ? STORE_ADOPT : STORE_FINISH,
                                 .reply_to = sched_keeper_loop(sweep->sched)->inbox,
                                 .done = waits ? adopted : expired,
                                 .job = due->id,
                                 .attempt = due->attempt,
                                 .arena = &item->arena};
    if (waits) {
        item->op.u.hold.owner = store_number(sweep->sched->store);
        item->op.u.hold.hold_ms = SCHED_HOLD_MS;
    } else {
        item->op.u.settle.outcome = STORE_EXPIRE;
        item->op.u.settle.owner = store_number(sweep->sched->store);
        item->op.u.settle.hold_ms = SCHED_HOLD_MS;
    }
    sweep->open++;
    sched_send(sched_keeper_loop(sweep->sched), &item->op);
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
        take(sweep, i);
}

void sweep_tick(struct sweep *sweep)
{
    if (!sweep->busy)
        look(sweep);
}
