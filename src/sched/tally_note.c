/* On each loop one map look-up for an attempt that ended; the keeper adds up. */
#include "sched/tally_note.h"

#include <assert.h>

#include "sched/counts.h"

/* Reasons for which a run was ended from outside. */
static bool is_kill(struct str reason)
{
    static const char *const kills[] = {"EMERGENCY", "OOM", "TIMEOUT", "RUN_TIMEOUT"};

    for (size_t i = 0; i < COUNT_OF(kills); i++)
        if (str_is(reason, kills[i]))
            return true;
    return false;
}

static void note_attempt(struct tally *tally, const struct store_op *op, enum tally_count how)
{
    const struct store_head *head = &op->head;
    struct str node = op->node.at ? op->node : str_of(head->node);
    struct tally_work *work = tally_work(tally, node, str_of(head->type));
    int64_t since_ms = head->acked_ms ? head->acked_ms : head->dispatched_ms;
    bool opened =
        op->u.settle.breaker != BREAKER_NO_EVENT && op->u.settle.breaker != BREAKER_RECOVERED;

    assert(how < TALLY_COUNTS);
    work->counts[how]++;
    work->counts[TALLY_BREAKERS] += opened;
    if (how == TALLY_DONE) {
        tally_time(&work->wait, head->dispatched_ms - head->created_ms);
        tally_time(&work->run, head->updated_ms - since_ms);
    }
    if (how != TALLY_FAILED)
        return;
    work->counts[TALLY_RETRIED] += head->state == JOB_RETRYING;
    work->counts[TALLY_FAILOVERS] +=
        head->state == JOB_RETRYING && op->u.settle.outcome == STORE_EXPIRE;
    work->counts[TALLY_KILLS] += is_kill(str_of(head->reason));
}

void tally_note_end(struct sched_loop *loop, const struct store_op *op)
{
    enum store_outcome outcome = op->u.settle.outcome;
    struct tally *tally = loop->tally;
    struct str type = str_of(op->head.type);

    assert(op->verb == STORE_FINISH && !op->err);
    switch (outcome) {
    case STORE_DONE:
        if (op->head.state == JOB_DONE) /* else its node stopped what was cancelled before */
            note_attempt(tally, op, TALLY_DONE);
        return;
    case STORE_FAIL:
    case STORE_EXPIRE:
        note_attempt(tally, op, TALLY_FAILED);
        return;
    case STORE_CANCEL:
        if (op->head.node[0])
            note_attempt(tally, op, TALLY_CANCELLED);
        return;
    case STORE_REFUSED:
    case STORE_SEND_FAILED:
        tally_refuse(tally, op->node, type, op->u.settle.reason, 1);
        return;
    default: /* it waited for too long: no node has a part in it */
        tally_refuse(tally, STR_NONE, type, str_of(op->head.reason), 1);
    }
}

void tally_note_refusal(struct sched_loop *loop, struct str node, struct str type,
                        const char *reason)
{
    tally_refuse(loop->tally, node, type, str_of(reason), 1);
}

void tally_note_machine(struct tally *tally, const struct node *node, int64_t ms)
{
    struct tally_machine *machine = tally_machine(tally, node->id);
    int32_t level = atomic_load_explicit(&node->level, memory_order_relaxed);
    int32_t max = atomic_load_explicit(&node->max, memory_order_relaxed);
    struct counts counts = counts_of(node);
    bool offline = atomic_load_explicit(&node->health, memory_order_relaxed) == NODE_OFFLINE;

    assert(ms >= 0 && level < LEVEL_COUNT);
    machine->level_ms[offline ? TALLY_OFFLINE : level < 0 ? TALLY_UNMEASURED : level] += ms;
    machine->used_ms += (counts.reserved + counts.running) * ms;
    machine->max_ms += offline ? 0 : max * ms;
}

void tally_tick(struct sched_loop *loop)
{
    if (tally_is_empty(loop->tally) || atomic_load(&loop->tallied))
        return; /* the keeper has not taken the last one yet */
    atomic_store(&loop->tallied, loop->tally);
    loop->tally = tally_new();
}

void tally_collect(struct sched *sched, struct tally *into)
{
    for (int i = 0; i <= sched->loop_count; i++) {
        struct tally *more = atomic_exchange(&sched->loops[i].tallied, NULL);

        if (more && into)
            tally_merge(into, more);
        tally_free(more);
    }
}
