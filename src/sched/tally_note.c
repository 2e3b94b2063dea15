/* On each loop one map look-up for an attempt that ended; the keeper adds up. */
#include "sched/tally_note.h"

#include <assert.h>

#include "sched/counts.h"

/* Reasons for which a run was ended from outside. */
static bool is_kill(struct str reason)
{
    static const char *const kills[] = {"EMERGENCY", "OOM", "DISK_LIMIT", "TIMEOUT", "RUN_TIMEOUT"};

    for (size_t i = 0; i < COUNT_OF(kills); i++)
        if (str_is(reason, kills[i]))
            return true;
    return false;
}

/* It was on a node and is no longer. */
static void note_attempt(struct tally *tally, const struct store_op *op)
{
    const struct store_head *head = &op->head;
    enum store_outcome outcome = op->u.settle.outcome;
    struct str node = op->node.at ? op->node : str_of(head->node);
    struct tally_work *work = tally_work(tally, node, str_of(head->type));
    bool opened =
        op->u.settle.breaker != BREAKER_NO_EVENT && op->u.settle.breaker != BREAKER_RECOVERED;
    bool retried = head->state == JOB_RETRYING;

    work->counts[TALLY_ATTEMPTS]++;
    work->counts[TALLY_RETRIED] += retried;
    work->counts[TALLY_FAILOVERS] += retried && outcome == STORE_EXPIRE;
    work->counts[TALLY_KILLS] += outcome != STORE_DONE && is_kill(str_of(head->reason));
    work->counts[TALLY_BREAKERS] += opened;
    if (head->attempt == 1)
        tally_time(&work->wait, head->dispatched_ms - head->created_ms);
    if (head->acked_ms)
        tally_time(&work->run, head->updated_ms - head->acked_ms);
    else if (outcome == STORE_DONE) /* a node that does not acknowledge: what is done has begun */
        tally_time(&work->run, head->updated_ms - head->dispatched_ms);
}

/* Counted where it was last; "-" if it never was anywhere. */
static void note_job(struct tally *tally, const struct store_head *head, enum tally_count how)
{
    assert(job_state_final(head->state) && how <= TALLY_CANCELLED);
    tally_work(tally, str_of(head->node), str_of(head->type))->counts[how]++;
}

void tally_note_end(struct sched_loop *loop, const struct store_op *op, bool ended)
{
    static const struct {
        enum tally_count job; /* what its end is to the job, unless that is done */
        bool attempt;         /* it ends one, always */
        bool refusal;         /* somebody did not take it */
    } kinds[STORE_OUTCOME_COUNT] = {
        [STORE_DONE] = {TALLY_FAILED, true, false},
        [STORE_FAIL] = {TALLY_FAILED, true, false},
        [STORE_EXPIRE] = {TALLY_FAILED, true, false},
        [STORE_CANCEL] = {TALLY_CANCELLED, false, false},
        [STORE_REFUSED] = {TALLY_FAILED, false, true},
        [STORE_SEND_FAILED] = {TALLY_FAILED, false, true},
        [STORE_QUEUE_TIMEOUT] = {TALLY_FAILED, false, true},
        [STORE_NO_CANDIDATE] = {TALLY_FAILED, false, true},
    };
    enum store_outcome outcome = op->u.settle.outcome;
    const struct store_head *head = &op->head;

    assert(op->verb == STORE_FINISH && !op->err && outcome < STORE_OUTCOME_COUNT);
    if (outcome == STORE_ABANDON)
        return; /* its request was refused, and counted then: never a job to who asked */
    if (kinds[outcome].refusal) /* of no node, if it waited for one in vain */
        tally_refuse(loop->tally, op->node, str_of(head->type),
                     op->node.at ? op->u.settle.reason : str_of(head->reason), 1);
    else if (kinds[outcome].attempt || op->u.settle.ended_lease)
        note_attempt(loop->tally, op);
    if (ended)
        note_job(loop->tally, head, head->state == JOB_DONE ? TALLY_DONE : kinds[outcome].job);
}

void tally_note_unplaced(struct sched_loop *loop, const struct store_head *head)
{
    note_job(loop->tally, head, TALLY_FAILED);
    tally_refuse(loop->tally, STR_NONE, str_of(head->type), str_of(head->reason), 1);
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
