/* Settling. Every message may come late, twice or never: the store decides which ones count. And
 * the sweep: one DUE call, then one FINISH for each item found (a look, if it is a job that no
 * instance has in hand any more), then again while there is more. The store ignores a FINISH for a
 * lease renewed meanwhile, or a job that went on. */
#include "sched/settle.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "model/trace.h"
#include "sched/keeper.h"
#include "sched/registry.h"
#include "sched/replay.h"
#include "sched/sched.h"
#include "sched/spec.h"
#include "sched/tally.h"

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
    size_t open; /* items being processed */
    bool busy;
};

static void settled(struct store_op *op);
static void looked(struct store_op *op);

/* --- messages --- */

static const enum store_outcome outcomes[] = {
    [SETTLE_DONE] = STORE_DONE, [SETTLE_FAIL] = STORE_FAIL, [SETTLE_CANCEL] = STORE_CANCEL};

/* A node whose operator ended the job sends CANCELLED: then the job is cancelled, whatever attempts
 * are left. */
static bool is_given_up(const struct settle *settle)
{
    return settle->kind == SETTLE_FAIL && str_is(settle->reason, "CANCELLED");
}

void settle_start(struct settle *settle)
{
    const struct sched_config *config = &settle->loop->sched->config;
    struct store_op *op = &settle->op;

    assert(settle->done && settle->arena && settle->job);
    assert(!settle->node.at == !settle->attempt); /* a node names its attempt */
    *op = (struct store_op){.verb = settle->kind == SETTLE_ACK ? STORE_ACK : STORE_FINISH,
                            .done = settled,
                            .not_after_ms = sched_not_after(settle->loop),
                            .job = settle->job,
                            .attempt = settle->attempt,
                            .node = settle->node,
                            .arena = settle->arena};
    op->u.settle.send_id = settle->send_id;
    op->u.settle.terms = config->leases;
    op->u.settle.stop_grace_ms = config->stop_grace_ms;
    op->u.settle.reason = settle->reason;
    op->u.settle.result = settle->result;
    op->u.settle.command = settle->command;
    op->u.settle.hold_key = settle->hold_key;
    op->u.settle.hold_key_ms = settle->hold_key_ms;
    op->u.settle.hold_reason = settle->hold_reason;
    op->u.settle.owner = store_number(settle->loop->sched->store);
    op->u.settle.hold_ms = SCHED_HOLD_MS;
    if (settle->kind != SETTLE_ACK) {
        bool refusal = settle->kind == SETTLE_FAIL && !settle->hold_key.at &&
                       job_reason_is_refusal(settle->reason);

        op->u.settle.outcome = refusal               ? STORE_REFUSED
                               : is_given_up(settle) ? STORE_CANCEL
                                                     : outcomes[settle->kind];
        op->u.settle.candidates_left = true; /* the keeper looks; without any it fails the job */
        op->u.settle.want_record = settle->kind == SETTLE_FAIL; /* for a duplicate */
    }
    sched_send(settle->loop, op);
}

static void settled(struct store_op *op)
{
    struct settle *settle = container_of(op, struct settle, op);
    struct sched *sched = settle->loop->sched;
    enum job_state state = op->head.state;

    assert(op->job == settle->job && (op->err || op->head.id == settle->job));
    /* NODE_OVERLOADED after an ACK is a failure, not a refusal. The store knows whether there was
     * an ACK, also when the message comes again later. */
    bool was_acked =
        op->verb == STORE_FINISH && op->u.settle.outcome == STORE_REFUSED && op->err == ERR_STALE;
    /* The job its node gave up is cancelled; now its attempt ends as the node reported. */
    bool cancelled = is_given_up(settle) && op->u.settle.outcome == STORE_CANCEL &&
                     (!op->err || op->err == ERR_STALE);
    if (was_acked || cancelled) {
        if (!op->err && !op->u.settle.duplicate)
            settle_applied(settle->loop, op, settle->from);
        op->u.settle.outcome = STORE_FAIL;
        op->err = ERR_OK;
        sched_send(settle->loop, op);
        return;
    }
    settle->err = op->err == ERR_TOO_LATE ? ERR_STORE_DOWN : op->err;
    settle->head = op->head;
    settle->duplicate = op->u.settle.duplicate;
    if (!op->err && !settle->duplicate) {
        settle_applied(settle->loop, op, settle->from);
    } else if (!op->err && settle->kind == SETTLE_FAIL &&
               (state == JOB_RETRYING || state == JOB_SELECTING) &&
               op->head.owner == store_number(sched->store)) {
        /* A repeated message: the first one was not answered, so perhaps the job that goes on was
         * never taken in hand. If it was, this call is unnecessary. */
        counts_take_of(settle->loop->snapshot, settle->node, op); /* it has room again */
        keeper_continue(sched->keeper, &op->record);
    } else if (op->err == ERR_STALE && settle->kind == SETTLE_ACK) {
        char id[JOB_ID_TEXT + 1];

        job_id_text(settle->job, id);
        metric_add(METRIC_ACK_LATE, 1); /* its reservation ran out; the sweep took it */
        log_event(LOG_WARN, "ack.late", KC("job_id", id), KS("node_id", settle->node),
                  KI("attempt_id", settle->attempt), KC("reason", "ACK after reservation expired"));
    }
    settle->done(settle);
}

static void log_end(const struct store_op *op, enum log_level level)
{
    char id[JOB_ID_TEXT + 1];
    struct arena arena = {0};
    struct spec spec = {0};

    if (op->record.spec.at)
        spec_stored(op->record.spec, &arena, &spec, NULL);
    job_id_text(op->head.id, id);
    log_event(level,
              op->head.state == JOB_RETRYING ? "job.retry"
              : op->head.state == JOB_FAILED ? "job.failed"
                                             : "job.settled",
              KC("job_id", id), KC("node_id", op->head.node), KI("attempt_id", op->head.attempt),
              KC("reason", op->head.reason), TRACE_KV(spec.traceparent));
    arena_free(&arena);
}

/* What the end of an attempt did to the breaker of its node and type. */
static void note_breaker(const struct store_op *op)
{
    enum breaker_event event = op->verb == STORE_FINISH ? op->u.settle.breaker : BREAKER_NO_EVENT;
    bool opened = event != BREAKER_RECOVERED;
    struct str reason;
    char id[JOB_ID_TEXT + 1];

    if (event == BREAKER_NO_EVENT)
        return;
    job_id_text(op->head.id, id);
    reason = str_of(breaker_event_name(event));
    str_cut(&reason, ':');
    metric_add_label(METRIC_BREAKER_EVENTS, opened ? "open" : "closed", 1);
    if (opened)
        log_event(LOG_WARN, "breaker.open", KC("node_id", op->head.node), KC("type", op->head.type),
                  KS("reason", reason), KC("job_id", id), KC("failure", op->head.reason));
    else
        log_event(LOG_INFO, "breaker.closed", KC("node_id", op->head.node),
                  KC("type", op->head.type), KC("job_id", id));
}

/* Updates the figures of the node the attempt was on; it need not be looked for if it is known. */
static void note_node(struct sched_loop *loop, const struct store_op *op, const struct node *known)
{
    struct str id = op->node.at ? op->node : str_of(op->head.node);
    const struct snap_node *member = known ? snapshot_of(loop->snapshot, known) : NULL;

    assert(op->verb == STORE_ACK || op->verb == STORE_FINISH);
    if (!member)
        member = snapshot_node(loop->snapshot, id);
    if (!member)
        return;
    counts_take(member->node, &op->counts, &op->left, op->order, false);
    if (op->node.at)
        registry_alive(loop, member->node);
    if (op->verb != STORE_FINISH)
        return;
    if (op->u.settle.outcome == STORE_DONE || op->u.settle.outcome == STORE_FAIL)
        sched_ring_add(member->node, op->head.updated_ms - op->head.dispatched_ms,
                       op->u.settle.outcome == STORE_FAIL);
    if (op->u.settle.outcome == STORE_REFUSED)
        metric_add(METRIC_NODE_OVERLOAD, 1);
}

void settle_count(const struct store_head *head)
{
    const char *state = job_state_name(head->state);
    struct str namespace = namespace_of(str_of(head->type));
    char label[NAMESPACE_MAX + 16]; /* "NAMESPACE,STATE" */
    size_t len = namespace.len < NAMESPACE_MAX ? namespace.len : NAMESPACE_MAX;

    assert(job_state_final(head->state) && strlen(state) < sizeof label - NAMESPACE_MAX - 1);
    if (len)
        memcpy(label, namespace.at, len);
    label[len] = ',';
    memcpy(label + len + 1, state, strlen(state) + 1);
    metric_add_label(METRIC_JOBS, state, 1);
    metric_add_text(METRIC_NAMESPACE_JOBS, label, 1);
}

void settle_keys_freed(struct sched_loop *loop, const struct store_op *op)
{
    if (op->verb == STORE_FINISH && op->u.settle.freed_count)
        keeper_keys_freed(loop->sched->keeper, op->u.settle.freed, op->u.settle.freed_count);
}

void settle_applied(struct sched_loop *loop, const struct store_op *op, const struct node *known)
{
    static const char *const events[JOB_STATE_COUNT] = {
        [JOB_NEW] = "queued",  [JOB_SELECTING] = "selecting",   [JOB_RESERVED] = "reserved",
        [JOB_ACKED] = "acked", [JOB_DISPATCHED] = "dispatched", [JOB_RETRYING] = "retrying",
        [JOB_DONE] = "done",   [JOB_FAILED] = "failed"};
    const struct store_head *head = &op->head;
    struct keeper *keeper = loop->sched->keeper;
    assert(!op->err && head->state < JOB_STATE_COUNT);
    struct settle_note note = {.head = head, .event = events[head->state]};
    struct str node = op->node.at ? op->node : str_of(head->node);
    /* When a node stops a job that was cancelled before, the job does not end a second time. */
    bool ended =
        job_state_final(head->state) && !(op->verb == STORE_FINISH && op->u.settle.stopped);
    bool freed = op->verb == STORE_FINISH && op->u.settle.ended_lease;
    bool badly = head->state == JOB_FAILED || head->state == JOB_RETRYING;
    enum log_level level = badly ? LOG_INFO : LOG_DEBUG;
    /* A run that its node, or the node's kernel, had to end. */
    const char *kill = op->verb == STORE_FINISH ? tally_kill_name(op->u.settle.reason) : NULL;

    /* The stored result is the one in the node's message. */
    note.whole = ended && op->verb == STORE_FINISH &&
                 (op->u.settle.outcome == STORE_DONE || op->u.settle.outcome == STORE_FAIL);
    if (note.whole)
        note.result = op->u.settle.result;
    note_node(loop, op, known);
    if (log_on(level)) /* its spec is read only for this line */
        log_end(op, level);
    note_breaker(op);
    if (kill)
        metric_add_label(METRIC_KILLS, kill, 1);
    if (op->verb == STORE_FINISH)
        tally_note_end(loop, op, ended);
    if (ended)
        settle_count(head);
    if (ended || !job_state_final(head->state))
        loop->sched->hooks->noted(loop, &note);
    if (head->state == JOB_RETRYING)
        metric_add(METRIC_RETRIES, 1);
    if (head->state == JOB_RETRYING || head->state == JOB_SELECTING)
        keeper_continue(keeper, &op->record);
    if (freed && node.len)
        loop->sched->hooks->freed(loop, node, &op->counts, op->order);
    /* It waited and has started: if the store loses it now, it must not be put again. Only jobs put
     * a moment ago would be. */
    if (op->verb == STORE_ACK && store_name(loop->sched->store) &&
        head->dispatched_ms > head->created_ms &&
        head->updated_ms - head->created_ms < REPLAY_KEEP_MS)
        keeper_forget(keeper, head->id);
    if (atomic_load_explicit(&loop->sched->queue_depth, memory_order_relaxed) == 0)
        return;
    const struct snap_node *member = freed ? snapshot_node(loop->snapshot, node) : NULL;
    if (member)
        keeper_freed(keeper, member->node);
    settle_keys_freed(loop, op);
    if (op->verb == STORE_FINISH && op->u.settle.outcome == STORE_CANCEL)
        keeper_forget(keeper, head->id);
}

/* --- the sweep --- */

struct sweep *sweep_new(struct sched *sched, struct queue *queue)
{
    struct sweep *sweep = mem_new(struct sweep);

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

static void look(struct sweep *sweep)
{
    assert(sweep->open == 0);
    sweep->op = (struct store_op){.verb = STORE_DUE, .done = looked};
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
        settle_applied(sched_keeper_loop(sched), op, NULL);
        if (item->node[0] && !unsent) /* if unsent, it is not sent there only to be stopped */
            sched->hooks->stop(sched_keeper_loop(sched), str_of(item->node), op->job, op->attempt,
                               op->head.reason);
    }
    item_over(item);
}

/* Its time to wait is over. */
static void timed_out(struct store_op *op)
{
    struct sweep_item *item = container_of(op, struct sweep_item, op);

    assert(item->sweep->busy && op->verb == STORE_FINISH);
    if (!op->err && !op->u.settle.duplicate) { /* another instance was first */
        settle_applied(sched_keeper_loop(item->sweep->sched), op, NULL);
        queue_forget(item->sweep->queue, op->job, item->lane);
    }
    item_over(item);
}

/* The instance that had it in hand did nothing with it for too long, or is gone. Other instances
 * may find it too: all of them ask the store for the same attempt. */
static void found(struct store_op *op)
{
    struct sweep_item *item = container_of(op, struct sweep_item, op);

    assert(item->sweep->busy && op->verb == STORE_JOB_GET);
    if (!op->err && sched_is_waiting(op->head.state) && !op->head.lane)
        queue_continue(item->sweep->queue, &op->record);
    item_over(item);
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
    for (size_t i = 0; i < op->u.due.count; i++) {
        const struct store_due *due = &sweep->due[i];
        struct sweep_item *item = &sweep->items[i];
        bool waits = due->lease == LEASE_NONE && sched_is_waiting(due->state);
        bool held = waits && !due->lane;

        /* Jobs that this instance has in hand continue by themselves. */
        if (queue_is_unsettled(sweep->queue, due->id) ||
            (waits && queue_in_hand(sweep->queue, due->id)))
            continue;
        assert(due->id);
        item->sweep = sweep;
        item->lane = due->lane;
        memcpy(item->node, due->node, sizeof item->node);
        item->op = (struct store_op){.verb = held ? STORE_JOB_GET : STORE_FINISH,
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
    sweep->busy = sweep->open > 0;
}

void sweep_tick(struct sweep *sweep)
{
    if (!sweep->busy)
        look(sweep);
}
