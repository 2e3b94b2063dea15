/* What waits is held in the store by this instance, so that no other adopts it; and put there again
 * when the store may have lost it. */
#include "sched/queue_private.h"

#include <assert.h>
#include <stdlib.h>

#include "base/log.h"

enum {
    HOLD_EVERY_MS = 5000,
    HOLD_BATCH = 512,
    PUT_BATCH = 256, /* in one tick */
};

struct put {
    struct store_op op;
    struct arena arena;
    struct queue *queue;
};

struct hold {
    struct store_op op;
    uint64_t ids[HOLD_BATCH];
};

void queue_put_again(struct queue *queue)
{
    queue->puts++;
    queue->putting = true;
}

/* While the store did not know it, its client asked again and got another job: that one is it. */
static void replaced(struct queue *queue, const struct store_op *op)
{
    char id[JOB_ID_TEXT + 1], by[JOB_ID_TEXT + 1];

    job_id_text(op->job, id);
    job_id_text(op->head.id, by);
    log_event(LOG_WARN, "job.replaced", KC("job_id", id), KC("by", by),
              KC("reason", "its Idempotency-Key was used again while the store had lost it"));
    queue_forget(queue, op->job);
}

static void put_answered(struct store_op *op)
{
    struct put *put = container_of(op, struct put, op);
    struct queue *queue = put->queue;
    struct waiting *waiting = idmap_get(&queue->jobs, op->job);
    bool again = op->err == ERR_STORE_DOWN || op->err == ERR_BUSY || op->err == ERR_IDEMPOTENCY;

    if (waiting && op->err == ERR_IDEMPOTENCY)
        waiting->idem =
            STR_NONE; /* another request has its key now; it was accepted all the same */
    if (waiting && again) {
        waiting->put--;
        queue->putting = true;
    } else if (waiting && !op->err && op->head.id != op->job) {
        replaced(queue, op);
    }
    arena_free(&put->arena);
    free(put);
}

static void put_again(struct waiting *waiting)
{
    struct put *put = calloc(1, sizeof *put);
    struct sched *sched = waiting->queue->sched;
    struct store_op *op = &put->op;

    assert(put && waiting->spec.json.at);
    put->queue = waiting->queue;
    *op = (struct store_op){.verb = STORE_PUT,
                            .reply_to = sched_keeper_loop(sched)->inbox,
                            .done = put_answered,
                            .job = waiting->job,
                            .attempt = 1,
                            .arena = &put->arena};
    op->u.put.spec = arena_str(&put->arena, waiting->spec.json);
    op->u.put.type = arena_str(&put->arena, waiting->spec.type);
    if (waiting->idem.at)
        op->u.put.idem = arena_str(&put->arena, waiting->idem);
    op->u.put.fingerprint = waiting->fingerprint;
    op->u.put.max_attempts = waiting->max_attempts;
    op->u.put.timeout_ms = waiting->spec.timeout_ms;
    op->u.put.callback = waiting->spec.callback_url.at != NULL;
    op->u.put.owner = store_number(sched->store);
    op->u.put.hold_ms = SCHED_HOLD_MS;
    sched_send(sched_keeper_loop(sched), op);
}

/* One that is busy is left for the next tick: where it is then, its answer tells. */
static void put_some(struct queue *queue)
{
    struct waiting *waiting;
    int sent = 0;

    queue->putting = false;
    for (size_t i = 0; (waiting = idmap_next(&queue->jobs, &i));) {
        if (waiting->put == queue->puts || waiting->abandon)
            continue;
        queue->putting |= waiting->busy || sent == PUT_BATCH;
        if (waiting->busy || sent == PUT_BATCH)
            continue;
        waiting->put = queue->puts;
        put_again(waiting);
        sent++;
    }
}

static void held(struct store_op *op)
{
    free(container_of(op, struct hold, op));
}

static void send_hold(struct queue *queue, struct hold *hold, size_t count)
{
    assert(count > 0 && count <= HOLD_BATCH);
    hold->op = (struct store_op){
        .verb = STORE_HOLD, .reply_to = sched_keeper_loop(queue->sched)->inbox, .done = held};
    hold->op.u.hold.ids = hold->ids;
    hold->op.u.hold.count = count;
    hold->op.u.hold.owner = store_number(queue->sched->store);
    hold->op.u.hold.hold_ms = SCHED_HOLD_MS;
    sched_send(sched_keeper_loop(queue->sched), &hold->op);
}

static void hold_all(struct queue *queue)
{
    struct waiting *waiting;
    struct hold *hold = NULL;
    size_t count = 0;

    for (size_t i = 0; (waiting = idmap_next(&queue->jobs, &i));) {
        if (!hold) {
            hold = calloc(1, sizeof *hold);
            assert(hold);
        }
        hold->ids[count++] = waiting->job;
        if (count == HOLD_BATCH) {
            send_hold(queue, hold, count);
            hold = NULL;
            count = 0;
        }
    }
    if (hold)
        send_hold(queue, hold, count);
}

void queue_hold(struct queue *queue, int64_t now_ms)
{
    if (now_ms >= queue->next_hold_ms || queue->next_hold_ms - now_ms > HOLD_EVERY_MS) {
        queue->next_hold_ms = now_ms + HOLD_EVERY_MS;
        hold_all(queue);
    }
    if (queue->putting)
        put_some(queue);
}
