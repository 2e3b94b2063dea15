/* The dispatch path. Takes no lock. What lives as long as the request comes from its arena; a text
 * that is gone when its function returns may be a buffer on the heap. The store decides; what is
 * read here is advisory. */
#include "sched/dispatch.h"

#include <assert.h>
#include <string.h>

#include "base/log.h"
#include "base/metrics.h"
#include "model/trace.h"
#include "sched/candidates.h"
#include "sched/explain.h"
#include "sched/keeper.h"
#include "sched/sched.h"
#include "sched/settle.h"
#include "sched/shared_text.h"
#include "sched/tally.h"

static const char *const why_names[WHY_COUNT] = {[WHY_NOT_READY] = "NOT_READY",
                                                 [WHY_STALE] = "STALE",
                                                 [WHY_NO_CAPACITY] = "NO_CAPACITY",
                                                 [WHY_FULL] = "FULL",
                                                 [WHY_SEND_FAILED] = "SEND_FAILED",
                                                 [WHY_TRIED] = "TRIED_BEFORE",
                                                 [WHY_REQUIRES] = "REQUIRES",
                                                 [WHY_LEVEL] = "LEVEL",
                                                 [WHY_ROUTE] = "ROUTE",
                                                 [WHY_NAMESPACE] = "NAMESPACE",
                                                 [WHY_TOO_SMALL] = "TOO_SMALL",
                                                 [WHY_RESOURCES] = "RESOURCES",
                                                 [WHY_BREAKER] = "BREAKER_OPEN"};

static const enum dispatch_why why_of_reason[LEASE_REASON_COUNT] = {
    [LEASE_OK] = WHY_FULL,
    [LEASE_RESV_EXISTS] = WHY_FULL,
    [LEASE_NOT_READY] = WHY_NOT_READY,
    [LEASE_NO_CAPACITY] = WHY_NO_CAPACITY,
    [LEASE_FULL] = WHY_FULL,
    [LEASE_RESOURCES] = WHY_RESOURCES,
    [LEASE_BREAKER] = WHY_BREAKER};

enum { LOG_SHUT_MS = 60000 };

static void reserve_next(struct dispatch *dispatch);
static void reserved(struct store_op *op);
static void sent(struct send_op *send);
static void released(struct store_op *op);
static void give_up(struct dispatch *dispatch, enum err err);
static void gave_up(struct store_op *op);

const char *dispatch_why_name(enum dispatch_why why)
{
    assert(why < WHY_COUNT);
    return why_names[why];
}

struct dispatch *dispatch_new(struct arena *arena)
{
    struct dispatch *dispatch = arena_raw(arena, sizeof *dispatch);

    _Static_assert(offsetof(struct dispatch, list) > offsetof(struct dispatch, op),
                   "what is not cleared stands at the end");
    memset(dispatch, 0, offsetof(struct dispatch, op));
    dispatch->arena = arena;
    return dispatch;
}

static bool waits_on(const struct dispatch *dispatch, enum err err)
{
    return dispatch->spec.queue_ms > 0 &&
           (dispatch->queued || err == ERR_ALL_FULL || err == ERR_LIMITED);
}

static void finish(struct dispatch *dispatch, enum err err)
{
    int64_t us = clock_mono_us() - dispatch->begun_us;

    assert(err == ERR_OK || err == dispatch->why.err); /* a refusal has a reason */
    dispatch->err = err;
    if (!err || !dispatch->queued) { /* a job that keeps waiting has no outcome yet */
        if (err == ERR_NO_CAPABLE_NODE)
            metric_add(METRIC_POOL_EMPTY, 1);
        bool waits = err && waits_on(dispatch, err);
        const char *outcome = waits ? "WAITS" : err ? err_name(err) : "PLACED";

        metric_add_label(METRIC_DISPATCH, outcome, 1);
        metric_observe_label_us(METRIC_DISPATCH_SECONDS, outcome, us);
        if (err && !waits)
            tally_note_refusal(dispatch->loop, STR_NONE, dispatch->spec.type, outcome);
    }
    explain_note(dispatch);
    dispatch->done(dispatch);
}

static enum err refuse_all(struct dispatch *dispatch)
{
    unsigned shut = dispatch->whys[WHY_BREAKER];
    struct str type = spec_node_type(&dispatch->spec);

    if (candidates_all_for(dispatch, WHY_BREAKER))
        return problem_set(&dispatch->why, ERR_ALL_FULL, "",
                           "Every node asked (%u) keeps failing work of type " STR_FMT
                           " and gets none until its breaker lets a probe through.",
                           shut, STR_ARG(type));
    if (dispatch->whys[WHY_RESOURCES] && !shut)
        return problem_set(&dispatch->why, ERR_ALL_FULL, "",
                           "No candidate took the job: %u %s too little left of what it needs, the "
                           "others are full, not ready or out of reach.",
                           dispatch->whys[WHY_RESOURCES],
                           dispatch->whys[WHY_RESOURCES] == 1 ? "has" : "have");
    if (shut)
        return problem_set(&dispatch->why, ERR_ALL_FULL, "",
                           "No candidate took the job: %u kept failing work of type " STR_FMT
                           " (breaker open), the others are full, not ready or out of reach.",
                           shut, STR_ARG(type));
    if (!dispatch->count || !candidates_all_for(dispatch, WHY_NO_CAPACITY))
        return problem_set(&dispatch->why, ERR_ALL_FULL, "",
                           "No candidate took the job: all are full, not ready or out of reach.");
    struct node *node = dispatch->list[0].node; /* one of them, as an example */
    struct shared_text *board = atomic_load(&node->usage);
    const struct json *usage = NULL;
    struct str reason = STR_NONE;
    struct buf buf = {0};

    if (board && shared_text_read(board, &buf) &&
        json_parse(arena_str(dispatch->arena, buf_view(&buf)), dispatch->arena, &usage, NULL) ==
            ERR_OK)
        reason = json_str(json_get(usage, "slots_reason"), dispatch->arena);
    buf_free(&buf);
    return problem_set(&dispatch->why, ERR_ALL_FULL, "",
                       "No node has a slot: %u offer%s 0 (" STR_FMT ": " STR_FMT
                       "). `berth status --wide` shows how the slots are counted.",
                       dispatch->whys[WHY_NO_CAPACITY],
                       dispatch->whys[WHY_NO_CAPACITY] == 1 ? "s" : "", STR_ARG(node->id),
                       STR_ARG(reason.len ? reason : STR("max_concurrent_jobs is 0")));
}

/* Reports which key, and how much of its limit is used. */
static enum err refuse_limited(struct dispatch *dispatch)
{
    const struct limit_block *block = &dispatch->block;
    const struct demand *demand = dispatch->spec.demand;
    struct str key = namespace_name(dispatch_limited_key(dispatch));
    static const char *const words[LIMIT_WHY_COUNT] = {
        [LIMIT_CONCURRENCY] = "of its jobs run or are about to",
        [LIMIT_RATE] = "of its jobs started within its window",
        [LIMIT_QUEUE] = "of its jobs wait already"};

    assert(demand && block->why != LIMIT_OK);
    if (block->why == LIMIT_HELD)
        return problem_set(&dispatch->why, ERR_LIMITED, "keys",
                           "The key " STR_FMT " is held for another %lld s.", STR_ARG(key),
                           (long long)((block->retry_ms + 999) / 1000));
    return problem_set(&dispatch->why, ERR_LIMITED, "keys",
                       "The key " STR_FMT " is at its limit (%s): %d of %d %s.", STR_ARG(key),
                       limit_why_name(block->why), block->used, block->limit, words[block->why]);
}

struct str dispatch_limited_key(const struct dispatch *dispatch)
{
    const struct demand *demand = dispatch->spec.demand;
    int32_t at = dispatch->block.key;

    return demand && at >= 0 && (size_t)at < demand->key_count ? demand->keys[at] : STR_NONE;
}

enum err dispatch_refuse(struct dispatch *dispatch, enum err err)
{
    const struct spec *spec = &dispatch->spec;
    struct buf needs = {0};
    struct str detail;

    assert(err != ERR_OK);
    switch (err) {
    case ERR_LIMITED:
        return refuse_limited(dispatch);
    case ERR_NO_CAPABLE_NODE:
        if (dispatch->whys[WHY_TOO_SMALL]) {
            struct jsonw w = jsonw_to(&needs);

            demand_write_needs(spec->demand, &w);
            problem_set(&dispatch->why, err, "needs",
                        "No node that takes jobs of type " STR_FMT
                        " has as much as it needs: " STR_FMT ".",
                        STR_ARG(spec_node_type(spec)), STR_ARG(buf_view(&needs)));
            buf_free(&needs);
            return err;
        }
        if (!spec->f2f && spec->requires.at)
            return problem_set(&dispatch->why, err, "",
                               "No node takes tasks of type " STR_FMT " with " STR_FMT ".",
                               STR_ARG(spec_node_type(spec)), STR_ARG(spec->requires));
        if (!spec->f2f)
            return problem_set(&dispatch->why, err, "", "No node takes tasks of type " STR_FMT ".",
                               STR_ARG(spec_node_type(spec)));
        detail = pool_refusal(spec->src, spec->tgt, candidates_wants(spec), dispatch->arena);
        return problem_set(&dispatch->why, err, "", STR_FMT, STR_ARG(detail));
    case ERR_PREFERRED_NOT_CAPABLE:
    case ERR_PREFERRED_UNAVAILABLE:
        return problem_set(
            &dispatch->why, err, "options.preferred_node_id", "The preferred node " STR_FMT " %s.",
            STR_ARG(spec->options.preferred_node_id),
            err == ERR_PREFERRED_NOT_CAPABLE ? "cannot do this work"
            : dispatch->whys[WHY_BREAKER] ? "keeps failing work of this type, and strict was asked"
                                          : "has no room, and strict was asked");
    case ERR_ALL_FULL:
        return refuse_all(dispatch);
    case ERR_STORE_DOWN:
    case ERR_TOO_LATE:
        return problem_set(&dispatch->why, ERR_STORE_DOWN, "",
                           "The store cannot take the job now; nothing was started.");
    case ERR_UNKNOWN:
        return problem_set(&dispatch->why, err, "",
                           "The store did not answer: the job may have been accepted. It is ended "
                           "as soon as the store answers, unless it is asked for again with its "
                           "Idempotency-Key; job_id tells what became of it.");
    case ERR_IDEMPOTENCY:
        return problem_set(&dispatch->why, err, "Idempotency-Key",
                           "This Idempotency-Key was used with another body.");
    default:
        return problem_set(&dispatch->why, err, "", "%s.", err_title(err));
    }
}

static bool choose_anew(struct dispatch *dispatch)
{
    candidates_start_over(dispatch);
    candidates_choose(dispatch, candidates_pool(dispatch));
    return dispatch->count > 0;
}

/* Makes another list if it may give more than this one did. */
static bool look_again(struct dispatch *dispatch)
{
    /* A job that may wait should not wait while a slot is free outside the sample. */
    bool wider = !dispatch->look_at_all && dispatch->spec.queue_ms > 0;
    /* The breakers of all others are open: a node that had the job before is better than none. */
    bool back = !dispatch->retry_failed_nodes && dispatch->attempt > 1 &&
                dispatch->whys[WHY_TRIED] > 0 && candidates_all_for(dispatch, WHY_BREAKER);

    if (!wider && !back)
        return false;
    dispatch->look_at_all |= wider;
    dispatch->retry_failed_nodes |= back;
    return choose_anew(dispatch);
}

/* The breakers of all nodes of the pool are open, so the pool itself would be shut. They are asked
 * once more, and one of them takes the job as a probe, unless a probe is already running. */
static bool ask_the_last(struct dispatch *dispatch)
{
    if (dispatch->allow_probe || !candidates_pool_shut(dispatch))
        return false;
    dispatch->allow_probe = true;
    if (dispatch->outcome.phase == OUTCOME_PREFERRED) { /* the only node there is */
        dispatch->next = 0;
        dispatch->whys[WHY_BREAKER] = 0;
        return true;
    }
    dispatch->preferred = NULL;
    return choose_anew(dispatch);
}

/* Logs once a minute that breakers keep a whole pool shut. */
static void log_shut(struct dispatch *dispatch)
{
    struct sched *sched = dispatch->loop->sched;
    const struct snap_pool *pool = candidates_pool(dispatch);
    struct str id = dispatch->spec.f2f && pool ? pool->id : dispatch->spec.type;
    _Atomic int64_t *logged_ms = &sched->shut_logged_ms[str_hash(id) % SCHED_SHUT];
    int64_t now_ms = *dispatch->loop->wall_ms;
    int64_t last_ms = atomic_load_explicit(logged_ms, memory_order_relaxed);

    int64_t apart_ms = now_ms > last_ms ? now_ms - last_ms : last_ms - now_ms;
    if (last_ms && apart_ms < LOG_SHUT_MS) /* another loop's clock may be a little ahead */
        return;
    if (atomic_compare_exchange_strong(logged_ms, &last_ms, now_ms))
        log_event(LOG_WARN, "breaker.pool_shut", KS("pool_id", id), KS("type", dispatch->spec.type),
                  KI("nodes", dispatch->whys[WHY_BREAKER]));
}

/* Breakers are judged over the whole pool: whether a node may get a probe depends on all others. */
static bool look_at_all(struct dispatch *dispatch)
{
    if (!dispatch->only || !dispatch->whys[WHY_BREAKER] ||
        dispatch->outcome.phase == OUTCOME_PREFERRED)
        return false;
    dispatch->only = NULL;
    return choose_anew(dispatch);
}

/* Every candidate on the list was tried. */
static void exhausted(struct dispatch *dispatch)
{
    if (look_at_all(dispatch) || ask_the_last(dispatch)) {
        reserve_next(dispatch);
        return;
    }
    if (dispatch->outcome.phase == OUTCOME_PREFERRED) {
        const struct snap_pool *pool = candidates_pool(dispatch);
        size_t others = pool ? pool->counts[candidates_wants(&dispatch->spec)] : 0;
        const char *reason = "FULL";
        char id[JOB_ID_TEXT + 1];

        for (int i = 0; i < WHY_COUNT; i++)
            if (dispatch->whys[i])
                reason = dispatch_why_name((enum dispatch_why)i);
        job_id_text(dispatch->job, id);
        log_event(LOG_INFO, "dispatch.preferred_failed", KC("job_id", id),
                  KS("node_id", dispatch->preferred->id), KI("attempt_id", dispatch->attempt),
                  KI("strict", dispatch->spec.options.strict), KC("reason", reason));
        outcome_preferred_failed(&dispatch->outcome, others ? others - 1 : 0);
        if (dispatch->outcome.phase == OUTCOME_WALK) {
            candidates_preferred_failed(dispatch);
            candidates_choose(dispatch, pool);
            reserve_next(dispatch);
            return;
        }
    } else if (look_again(dispatch)) {
        reserve_next(dispatch);
        return;
    } else {
        outcome_exhausted(&dispatch->outcome);
    }
    assert(dispatch->outcome.phase == OUTCOME_REFUSED);
    if (candidates_nobody_fits(dispatch)) {
        give_up(dispatch, dispatch_refuse(dispatch, ERR_NO_CAPABLE_NODE));
        return;
    }
    if (candidates_all_for(dispatch, WHY_BREAKER))
        log_shut(dispatch);
    give_up(dispatch, dispatch_refuse(dispatch, dispatch->outcome.err));
}

/* The job ended with this call: counted and reported once. */
static void note_failed(struct dispatch *dispatch, const struct store_head *head)
{
    struct settle_note note = {.head = head, .event = "failed"};

    assert(job_state_final(head->state));
    dispatch->head = *head;
    settle_count(head);
    if (dispatch->queued) /* otherwise its request is refused: the client never had a job */
        tally_note_unplaced(dispatch->loop, head);
    dispatch->loop->sched->hooks->noted(dispatch->loop, &note);
}

/* A job that exists already and may not wait ends here: a refused client must not see it run later,
 * and may send the same key again. A job that was accepted before keeps its key. */
static void give_up(struct dispatch *dispatch, enum err err)
{
    struct store_op *op = &dispatch->op;

    assert(err != ERR_OK);
    if (!dispatch->exists || dispatch->ended || waits_on(dispatch, err)) {
        finish(dispatch, err);
        return;
    }
    *op = (struct store_op){.verb = STORE_FINISH,
                            .done = gave_up,
                            .job = dispatch->job,
                            .attempt = dispatch->attempt,
                            .arena = dispatch->arena};
    op->u.settle.outcome = dispatch->queued ? STORE_NO_CANDIDATE : STORE_ABANDON;
    op->u.settle.reason = str_of(err_name(err));
    sched_send(dispatch->loop, op);
}

/* The store did not accept a call, or did not answer it. A queued job is tried again. Any other job
 * that the store has, or may have, is ended by the keeper; since this process may die first, the
 * client is told that the job may run. */
static void store_failed(struct dispatch *dispatch, enum err err)
{
    if (!dispatch->queued && (dispatch->exists || err == ERR_UNKNOWN)) {
        keeper_abandon(dispatch->loop->sched->keeper, dispatch->job, dispatch->spec.json);
        err = ERR_UNKNOWN;
    }
    finish(dispatch, dispatch_refuse(dispatch, err));
}

/* The job was moved on by something else (the sweep, a cancel, a message of its node): its current
 * state is the answer. */
static void went_on(struct dispatch *dispatch, const struct store_head *head)
{
    assert(dispatch->exists && head->id == dispatch->job);
    dispatch->head = *head;
    dispatch->ended = job_state_final(head->state);
    finish(dispatch, head->state == JOB_FAILED ? dispatch_refuse(dispatch, ERR_ALL_FULL) : ERR_OK);
}

static void gave_up(struct store_op *op)
{
    struct dispatch *dispatch = container_of(op, struct dispatch, op);

    assert(dispatch->exists && !dispatch->ended);
    if (!op->err && job_state_final(op->head.state))
        note_failed(dispatch, &op->head);
    else if (!op->err)
        /* another client already got it as its answer: it goes on */
        settle_applied(dispatch->loop, op, NULL);
    else if (op->err != ERR_STALE && op->err != ERR_NOT_FOUND) {
        store_failed(dispatch, op->err);
        return;
    }
    finish(dispatch, dispatch->why.err);
}

/* What is stored for the session. */
static void fill_session(struct dispatch *dispatch)
{
    const struct spec *spec = &dispatch->spec;
    struct store_op *op = &dispatch->op;
    size_t room = spec->src.len + spec->tgt.len + 2;
    char *pool = arena_raw(dispatch->arena, 2 * room);
    char *pair = pool + room;

    assert(spec->f2f && spec->src.len && spec->tgt.len);
    memcpy(pool, spec->src.at, spec->src.len);
    pool[spec->src.len] = ':';
    memcpy(pool + spec->src.len + 1, spec->tgt.at, spec->tgt.len);
    memcpy(pair, spec->src.at, spec->src.len);
    memcpy(pair + spec->src.len, "->", 2);
    memcpy(pair + spec->src.len + 2, spec->tgt.at, spec->tgt.len);
    op->u.put.pool = (struct str){.at = pool, .len = room - 1};
    op->u.put.lang_pair = (struct str){.at = pair, .len = room};
}

static void reserve_next(struct dispatch *dispatch)
{
    const struct spec *spec = &dispatch->spec;
    struct store_op *op = &dispatch->op;

    if (dispatch->next >= dispatch->count) {
        exhausted(dispatch);
        return;
    }
    /* Counts our own reserve at once, or every dispatch here would aim at the same empty node. */
    dispatch->expected = dispatch->list[dispatch->next].node;
    atomic_fetch_add_explicit(&dispatch->expected->pending, spec_slots(spec), memory_order_relaxed);
    if (spec_has_needs(spec))
        atomic_fetch_add_explicit(&dispatch->expected->resources.pending, 1, memory_order_relaxed);
    *op = (struct store_op){.verb = STORE_RESERVE,
                            .done = reserved,
                            .not_after_ms = sched_not_after(dispatch->loop),
                            .job = dispatch->job,
                            .attempt = dispatch->attempt};
    op->u.put.max_attempts = dispatch->max_attempts;
    op->u.put.timeout_ms = spec->timeout_ms;
    op->u.put.owner = store_number(dispatch->loop->sched->store);
    op->u.put.ttl_ms = dispatch->loop->sched->config.reservation_ttl_ms;
    op->u.put.last = dispatch->allow_probe;
    if (!dispatch->exists) { /* an earlier reserve found all nodes full and left nothing behind */
        op->u.put.fresh = true;
        op->u.put.spec = spec->json;
        op->u.put.type = spec->type;
        op->u.put.demand = spec->demand_text;
        op->u.put.idem = dispatch->idem;
        op->u.put.fingerprint = dispatch->fingerprint;
        op->u.put.callback = spec->callback_url.at != NULL;
        op->u.put.session = spec_session(spec, dispatch->arena);
        if (op->u.put.session.at)
            fill_session(dispatch);
    }
    while (op->u.put.candidate_count < STORE_CANDIDATES_MAX && dispatch->next < dispatch->count) {
        const struct policy_candidate *candidate = &dispatch->list[dispatch->next++];
        const struct node *node = candidate->node;

        op->u.put.candidates[op->u.put.candidate_count++] = (struct store_candidate){
            .node = node->id, .hash = candidate->hash, .withheld = candidate->withheld};
    }
    assert(op->u.put.candidate_count > 0 && dispatch->next <= dispatch->count);
    sched_send(dispatch->loop, op);
}

/* Takes the counters of the candidates that were asked into the local view. */
static void note_candidates(struct dispatch *dispatch)
{
    const struct store_op *op = &dispatch->op;
    size_t first = dispatch->next - op->u.put.candidate_count;

    assert(op->u.put.candidate_count <= dispatch->next);
    for (size_t i = 0; i < op->u.put.candidate_count; i++) {
        const struct store_candidate *candidate = &op->u.put.candidates[i];
        struct node *node = dispatch->list[first + i].node;

        if (!candidate->tried)
            continue;
        assert(candidate->why < LEASE_REASON_COUNT);
        metric_add_label(METRIC_RESERVE, lease_reason_name(candidate->why), 1);
        if (candidate->why == LEASE_OK)
            continue;
        dispatch->whys[why_of_reason[candidate->why]]++;
        tally_note_refusal(dispatch->loop, node->id, dispatch->spec.type,
                           lease_reason_name(candidate->why));
        dispatch->answers[first + i] = (uint8_t)(why_of_reason[candidate->why] + 1);
        if (candidate->why == LEASE_FULL)
            counts_full(node);
    }
}

static void send_job(struct dispatch *dispatch)
{
    const struct snap_node *member = snapshot_of(dispatch->loop->snapshot, dispatch->node);

    assert(dispatch->exists && str_is(dispatch->node->id, dispatch->op.head.node));
    dispatch->send = (struct send_op){
        .reply_to = dispatch->loop->inbox,
        .done = sent,
        .node = dispatch->node,
        .endpoint = member && member->has_endpoint
                        ? arena_str(dispatch->arena, member->facts->endpoint)
                        : STR_NONE,
        .traceparent = dispatch->spec.traceparent,
        .message = spec_message(&dispatch->spec, &dispatch->op.head, dispatch->arena),
        .job = dispatch->job,
        .attempt = dispatch->attempt,
        .deadline_ms = dispatch->op.head.due_ms};
    if (dispatch->loop->sched->hooks->send(dispatch->loop, &dispatch->send))
        sent(&dispatch->send);
}

/* Gives the reservation back: on this node, or wherever it is. */
static void release(struct dispatch *dispatch, struct str node, const char *reason,
                    store_done *done)
{
    struct store_op *op = &dispatch->op;

    *op = (struct store_op){.verb = STORE_FINISH,
                            .done = done,
                            .job = dispatch->job,
                            .attempt = dispatch->attempt,
                            .node = node,
                            .arena = dispatch->arena};
    op->u.settle.outcome = STORE_SEND_FAILED;
    op->u.settle.reason = str_of(reason);
    op->u.settle.candidates_left =
        !node.at || dispatch->next < dispatch->count || dispatch->spec.queue_ms > 0 ||
        (dispatch->outcome.phase == OUTCOME_PREFERRED && !dispatch->spec.options.strict);
    op->u.settle.owner = store_number(dispatch->loop->sched->store);
    op->u.settle.hold_ms = SCHED_HOLD_MS;
    sched_send(dispatch->loop, op);
}

static void reserved(struct store_op *op)
{
    struct dispatch *dispatch = container_of(op, struct dispatch, op);

    int32_t pending = atomic_fetch_sub_explicit(&dispatch->expected->pending,
                                                spec_slots(&dispatch->spec), memory_order_relaxed);
    assert(pending > 0);
    if (spec_has_needs(&dispatch->spec))
        atomic_fetch_sub_explicit(&dispatch->expected->resources.pending, 1, memory_order_relaxed);
    if (op->err == ERR_ALL_FULL) {
        note_candidates(dispatch);
        reserve_next(dispatch);
        return;
    }
    if (op->err == ERR_LIMITED) {
        dispatch->block = op->u.put.block;
        metric_add_label(METRIC_LIMITED, limit_why_name(dispatch->block.why), 1);
        give_up(dispatch, dispatch_refuse(dispatch, ERR_LIMITED));
        return;
    }
    dispatch->head = op->head;
    if (op->err == ERR_STALE && dispatch->exists) {
        went_on(dispatch, &op->head);
        return;
    }
    if (op->err) {
        if (op->err == ERR_UNKNOWN) {
            dispatch->unsettled = err_name(ERR_UNKNOWN);
            /* By the store's clock, which is known except for the duration of a call. */
            dispatch->unsettled_until_ms =
                op->not_after_ms + dispatch->loop->sched->config.store_timeout_ms;
        }
        store_failed(dispatch, op->err);
        return;
    }
    if (op->u.put.duplicate) { /* the same request was made before: the first answer again */
        dispatch->duplicate = true;
        finish(dispatch, ERR_OK);
        return;
    }
    assert(op->head.id == dispatch->job && op->head.state == JOB_DISPATCHED);
    assert(op->u.put.chosen >= 0 && op->u.put.chosen < (int)op->u.put.candidate_count);
    note_candidates(dispatch);
    size_t first = dispatch->next - op->u.put.candidate_count;
    dispatch->node = dispatch->list[first + (size_t)op->u.put.chosen].node;
    dispatch->exists = true;
    /* Those after the chosen one were not asked: they stay candidates if the send fails. */
    dispatch->next = first + (size_t)op->u.put.chosen + 1;
    counts_take(dispatch->node, &op->counts, &op->left, op->order, false);
    if (op->u.put.probe) { /* this job decides whether its node gets more work of the type */
        char id[JOB_ID_TEXT + 1];

        job_id_text(dispatch->job, id);
        metric_add_label(METRIC_BREAKER_EVENTS, "probe", 1);
        log_event(LOG_INFO, "breaker.probe", KC("job_id", id), KS("node_id", dispatch->node->id),
                  KI("attempt_id", dispatch->attempt), KS("type", dispatch->spec.type),
                  TRACE_KV(dispatch->spec.traceparent));
    }
    send_job(dispatch);
}

static void sent(struct send_op *send)
{
    struct dispatch *dispatch = container_of(send, struct dispatch, send);
    char id[JOB_ID_TEXT + 1] = "";

    assert(dispatch->exists && (send->ok || send->reason));
    if (!send->ok || log_on(LOG_DEBUG)) /* otherwise not logged, and this runs for every job */
        job_id_text(dispatch->job, id);
    if (send->ok) {
        outcome_placed(&dispatch->outcome);
        if (dispatch->spec.prefer_count)
            metric_add_label(METRIC_DISPATCH_WARM,
                             dispatch->list[dispatch->next - 1].warm > 0 ? "warm" : "cold", 1);
        struct settle_note note = {.head = &dispatch->head, .event = "dispatched"};
        dispatch->loop->sched->hooks->noted(dispatch->loop, &note);
        if (log_on(LOG_DEBUG))
            log_event(LOG_DEBUG, "job.dispatched", KC("job_id", id),
                      KS("node_id", dispatch->node->id), KI("attempt_id", dispatch->attempt),
                      TRACE_KV(dispatch->spec.traceparent));
        finish(dispatch, ERR_OK);
        return;
    }
    dispatch->whys[WHY_SEND_FAILED]++;
    dispatch->answers[dispatch->next - 1] = WHY_SEND_FAILED + 1;
    candidates_refused(dispatch, dispatch->node->id);
    log_event(LOG_WARN, "dispatch.send_failed", KC("job_id", id), KS("node_id", dispatch->node->id),
              KI("attempt_id", dispatch->attempt), KC("reason", send->reason),
              TRACE_KV(dispatch->spec.traceparent));
    release(dispatch, dispatch->node->id, send->reason, released);
}

/* The store gave the reservation back. */
static void note_given_back(struct dispatch *dispatch, const struct store_op *op)
{
    dispatch->record = op->record;
    tally_note_end(dispatch->loop, op, false);
    settle_keys_freed(dispatch->loop, op);
}

/* The reservation was given back, or it expired first and the job went on. */
static void released(struct store_op *op)
{
    struct dispatch *dispatch = container_of(op, struct dispatch, op);

    if (op->err == ERR_STALE) {
        went_on(dispatch, &op->head);
        return;
    }
    if (op->err) {
        dispatch->unsettled = dispatch->send.reason;
        store_failed(dispatch, op->err);
        return;
    }
    dispatch->head = op->head;
    counts_take(dispatch->node, &op->counts, &op->left, op->order, false);
    note_given_back(dispatch, op);
    dispatch->ended = job_state_final(op->head.state);
    if (dispatch->ended)
        note_failed(dispatch, &op->head);
    reserve_next(dispatch);
}

/* Chooses the candidates and asks the first. */
static void begin(struct dispatch *dispatch)
{
    const struct spec *spec = &dispatch->spec;
    const struct snapshot *snapshot = dispatch->loop->snapshot;

    candidates_read_history(dispatch);
    const struct snap_pool *pool = candidates_pool(dispatch);
    unsigned wants = candidates_wants(spec);
    bool prefers = spec->options.preferred_node_id.at && dispatch->attempt == 1;
    const struct snap_node *preferred =
        prefers ? snapshot_node(snapshot, spec->options.preferred_node_id) : NULL;
    struct outcome_start start = {
        .store_up = true, /* a store that is down says so at once when asked */
        .preferred_given = prefers,
        .preferred_in_pool = prefers && snapshot_is_member(snapshot, pool, preferred, wants) &&
                             candidates_fits(dispatch->loop, spec, preferred),
        .strict = spec->options.strict,
        .pool_count = pool ? pool->counts[wants] : 0};
    outcome_begin(&dispatch->outcome, &start);
    if (dispatch->outcome.phase == OUTCOME_REFUSED) {
        give_up(dispatch, dispatch_refuse(dispatch, dispatch->outcome.err));
        return;
    }
    if (dispatch->outcome.phase == OUTCOME_PREFERRED)
        candidates_prefer(dispatch, preferred);
    else
        candidates_choose(dispatch, pool);
    reserve_next(dispatch);
}

/* Where the last attempt ended. */
static struct str last_node(const struct dispatch *dispatch, struct str history)
{
    const struct json *list = NULL, *last = NULL;

    json_parse(history, dispatch->arena, &list, NULL);
    for (const struct json *entry = json_items(list); entry; entry = json_after(list, entry))
        last = entry;
    return json_str(json_get(last, "node_id"), dispatch->arena);
}

/* Whatever an earlier try may have left reserved has been given back, or there was nothing. */
static void on_given_back(struct store_op *op)
{
    struct dispatch *dispatch = container_of(op, struct dispatch, op);
    bool given_back = !op->err && !op->u.settle.duplicate;

    if (op->err && op->err != ERR_STALE) {
        store_failed(dispatch, op->err);
        return;
    }
    /* Not found may mean not there yet: this call may have overtaken the reserve. */
    if (!given_back && sched_is_waiting(op->head.state) &&
        *dispatch->loop->mono_ms < dispatch->unsettled_until_ms) {
        store_failed(dispatch, ERR_UNKNOWN);
        return;
    }
    dispatch->unsettled = NULL;
    dispatch->unsettled_until_ms = 0;
    if (!given_back && !sched_is_waiting(op->head.state)) {
        went_on(dispatch, &op->head);
        return;
    }
    if (given_back) {
        counts_take_of(dispatch->loop->snapshot, last_node(dispatch, op->record.history), op);
        dispatch->history = op->record.history;
        note_given_back(dispatch, op);
    }
    begin(dispatch);
}

void dispatch_start(struct dispatch *dispatch)
{
    assert(dispatch->job && dispatch->done && dispatch->spec.json.at);
    assert(dispatch->attempt > 0 && dispatch->attempt <= dispatch->max_attempts);
    assert(dispatch->exists || !dispatch->queued);
    dispatch->begun_us = clock_mono_us();
    if (!dispatch->loop->snapshot) {
        finish(dispatch, problem_set(&dispatch->why, ERR_STORE_DOWN, "",
                                     "The server is starting: its nodes are not loaded yet."));
        return;
    }
    sched_count_cache(dispatch->loop->sched, dispatch->begun_us);
    if (dispatch->unsettled)
        release(dispatch, STR_NONE, dispatch->unsettled, on_given_back);
    else
        begin(dispatch);
}
