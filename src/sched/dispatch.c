/* The dispatch path. Takes no lock and allocates only from the request's arena. What is true is
 * decided by the store; what is read here is advisory. */
#include "sched/dispatch.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/metrics.h"
#include "model/level.h"
#include "model/selector.h"
#include "sched/counts.h"

static const char *const why_names[WHY_COUNT] = {[WHY_NOT_READY] = "NOT_READY",
                                                 [WHY_STALE] = "STALE",
                                                 [WHY_NO_CAPACITY] = "NO_CAPACITY",
                                                 [WHY_FULL] = "FULL",
                                                 [WHY_SEND_FAILED] = "SEND_FAILED",
                                                 [WHY_TRIED] = "TRIED_BEFORE",
                                                 [WHY_REQUIRES] = "REQUIRES",
                                                 [WHY_LEVEL] = "LEVEL",
                                                 [WHY_ROUTE] = "ROUTE",
                                                 [WHY_BREAKER] = "BREAKER_OPEN"};

static const enum dispatch_why why_of_reason[LEASE_REASON_COUNT] = {
    [LEASE_OK] = WHY_FULL,
    [LEASE_RESV_EXISTS] = WHY_FULL,
    [LEASE_NOT_READY] = WHY_NOT_READY,
    [LEASE_NO_CAPACITY] = WHY_NO_CAPACITY,
    [LEASE_FULL] = WHY_FULL};

enum { RANK_STEP = 1024 }; /* more than any priority of a server */

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

    memset(dispatch, 0, offsetof(struct dispatch, list));
    dispatch->arena = arena;
    return dispatch;
}

static void finish(struct dispatch *dispatch, enum err err)
{
    int64_t us = clock_mono_us() - dispatch->begun_us;

    dispatch->err = err;
    if (err == ERR_NO_CAPABLE_NODE)
        metric_add(METRIC_POOL_EMPTY, 1);
    metric_add_label(METRIC_DISPATCH, err ? err_name(err) : "PLACED", 1);
    metric_observe_us(METRIC_DISPATCH_SECONDS, us);
    dispatch->done(dispatch);
}

static enum err refuse(struct dispatch *dispatch, enum err err)
{
    const struct spec *spec = &dispatch->spec;
    struct str detail;

    switch (err) {
    case ERR_NO_CAPABLE_NODE:
        detail = spec->f2f ? pool_refusal(spec->src, spec->tgt,
                                          (spec->options.require_tts ? POOL_WANT_TTS : 0) |
                                              (spec->options.require_asr ? POOL_WANT_ASR : 0),
                                          dispatch->arena)
                           : spec->requires
        .at ? arena_fmt(dispatch->arena,
                        "No node takes tasks of type " STR_FMT " with " STR_FMT ".",
                        STR_ARG(spec->type), STR_ARG(spec->requires))
            : arena_fmt(dispatch->arena, "No node takes tasks of type " STR_FMT ".",
                        STR_ARG(spec->type));
        return problem_set(&dispatch->why, err, "", STR_FMT, STR_ARG(detail));
    case ERR_PREFERRED_NOT_CAPABLE:
    case ERR_PREFERRED_UNAVAILABLE:
        return problem_set(&dispatch->why, err, "options.preferred_node_id",
                           "The preferred node " STR_FMT " %s.",
                           STR_ARG(spec->options.preferred_node_id),
                           err == ERR_PREFERRED_NOT_CAPABLE ? "cannot do this work"
                                                            : "has no room, and strict was asked");
    case ERR_ALL_FULL:
        return problem_set(&dispatch->why, err, "",
                           "No candidate took the job: all are full, not ready or out of reach.");
    case ERR_STORE_DOWN:
    case ERR_TOO_LATE:
        return problem_set(&dispatch->why, ERR_STORE_DOWN, "",
                           "The store cannot take the job now; nothing was started.");
    case ERR_IDEMPOTENCY:
        return problem_set(&dispatch->why, err, "Idempotency-Key",
                           "This Idempotency-Key was used with another body.");
    default:
        return problem_set(&dispatch->why, err, "", "%s.", err_title(err));
    }
}

static bool was_tried(const struct dispatch *dispatch, struct str node)
{
    for (size_t i = 0; i < dispatch->tried_count; i++)
        if (str_eq(dispatch->tried[i], node))
            return true;
    return false;
}

static void add_tried(struct dispatch *dispatch, struct str node)
{
    if (dispatch->tried_count < SCHED_TRIED_MAX && !was_tried(dispatch, node))
        dispatch->tried[dispatch->tried_count++] = node;
}

/* Where it was before: a node that failed is avoided, one that refused only in that attempt. */
static void read_history(struct dispatch *dispatch)
{
    const struct json *list;

    if (!dispatch->history.len || json_parse(dispatch->history, dispatch->arena, &list, NULL) ||
        json_type(list) != JSON_ARR)
        return;
    const struct json *entry = json_first(list);
    for (uint32_t i = 0; i < list->count; i++, entry = json_next(entry)) {
        const struct json *outcome = json_get(entry, "outcome");
        bool refused = json_str_is(outcome, "refused") || json_str_is(outcome, "send_failed");
        int64_t attempt = 0;

        json_int(json_get(entry, "attempt_id"), &attempt);
        if (!refused || attempt == dispatch->attempt)
            add_tried(dispatch, json_str(json_get(entry, "node_id"), dispatch->arena));
    }
}

static unsigned wants_of(const struct spec *spec)
{
    return (spec->options.require_tts ? POOL_WANT_TTS : 0u) |
           (spec->options.require_asr ? POOL_WANT_ASR : 0u);
}

static const struct snap_pool *find_pool(const struct dispatch *dispatch)
{
    const struct snapshot *snapshot = dispatch->loop->snapshot;
    const struct spec *spec = &dispatch->spec;

    return spec->f2f ? snapshot_pool(snapshot, spec->src, spec->tgt)
                     : snapshot_type_pool(snapshot, spec->type);
}

static struct policy_candidate look_at(const struct dispatch *dispatch,
                                       const struct snap_node *member)
{
    struct node *node = member->node;

    return (struct policy_candidate){
        .node = node,
        .spare = dispatch->spec.interactive ? 0 : member->facts->reserved_slots,
        .health = (enum node_health)atomic_load_explicit(&node->health, memory_order_relaxed),
        .load = counts_load(node),
        .max = atomic_load_explicit(&node->max, memory_order_relaxed),
        .score = atomic_load_explicit(&node->score, memory_order_relaxed),
        .heartbeat_ms = atomic_load_explicit(&node->heartbeat_ms, memory_order_relaxed)};
}

static struct policy_rules rules_of(const struct dispatch *dispatch)
{
    const struct sched_config *config = &dispatch->loop->sched->config;

    return (struct policy_rules){.now_ms = *dispatch->loop->wall_ms,
                                 .stale_ms = config->heartbeat_stale_ms,
                                 .heartbeat_interval_ms = config->heartbeat_ms};
}

static bool is_routed(const struct sched *sched)
{
    return sched->config.routing.count > 0 || sched->config.routing.default_route.count > 0;
}

/* Its place in the type's order of servers. */
static bool on_route(const struct dispatch *dispatch, const struct snap_node *member,
                     struct policy_candidate *candidate)
{
    const struct routing *routing = &dispatch->loop->sched->config.routing;
    struct strs types = {.at = member->facts->pool.types, .count = member->facts->pool.type_count};
    struct routing_server server = {.id = member->node->id,
                                    .labels = member->facts->label_values,
                                    .types = &types,
                                    .priority = member->facts->priority,
                                    .slots = 1,
                                    .online = true};

    candidate->rank =
        is_routed(dispatch->loop->sched) ? routing_rank(routing, dispatch->spec.type, &server) : 0;
    if (candidate->rank == ROUTING_REFUSED)
        return false;
    /* Within one place of a route, or without routes, the server's own priority decides. */
    candidate->rank = candidate->rank * RANK_STEP + (int32_t)member->facts->priority;
    return true;
}

/* Whether this member may be a candidate at all; counts why not. */
static bool may_take(struct dispatch *dispatch, const struct snap_node *member,
                     const struct policy_rules *rules, bool again_ok,
                     struct policy_candidate *ret_candidate)
{
    static const enum dispatch_why skips[POLICY_SKIP_COUNT] = {
        [POLICY_SKIP_HEALTH] = WHY_NOT_READY, [POLICY_SKIP_STALE] = WHY_STALE};

    if (member->node == dispatch->preferred)
        return false; /* it had its turn */
    if (!again_ok && was_tried(dispatch, member->node->id)) {
        dispatch->whys[WHY_TRIED]++;
        return false;
    }
    if (dispatch->spec.requires.at &&
        !selector_match(dispatch->spec.requires, member->facts->label_values)) {
        dispatch->whys[WHY_REQUIRES]++;
        return false;
    }
    *ret_candidate = look_at(dispatch, member);
    if (!dispatch->spec.f2f && !on_route(dispatch, member, ret_candidate)) {
        dispatch->whys[WHY_ROUTE]++;
        return false;
    }
    int32_t level = atomic_load_explicit(&member->node->level, memory_order_relaxed);
    if (level > 0 && !level_admits((enum level)level, dispatch->spec.priority,
                                   dispatch->loop->sched->config.high_priority_min)) {
        dispatch->whys[WHY_LEVEL]++;
        return false;
    }
    enum policy_skip skip = policy_filter(ret_candidate, rules);
    if (skip != POLICY_KEEP)
        dispatch->whys[skips[skip]]++;
    return skip == POLICY_KEEP;
}

/* Every member with room (by what this loop knows), a fair choice of them when there are many. Used
 * where a job must not wait while a slot is free: costs a look at each member. */
static void choose_by_scan(struct dispatch *dispatch, const uint32_t *members, uint32_t count,
                           bool again_ok, const struct policy_rules *rules)
{
    const struct snap_node *nodes = dispatch->loop->snapshot->nodes;
    uint32_t seen = 0, keep = (uint32_t)dispatch->loop->sched->config.sample_k;

    for (uint32_t i = 0; i < count; i++) {
        struct policy_candidate candidate;

        if (!may_take(dispatch, &nodes[members[i]], rules, again_ok, &candidate))
            continue;
        if (candidate.load >= candidate.max - candidate.spare) {
            dispatch->whys[WHY_FULL]++;
            continue;
        }
        uint32_t at = seen < keep ? seen : rnd_below(&dispatch->loop->rnd, seen + 1);
        seen++;
        if (at < keep)
            dispatch->list[at] = candidate;
    }
    dispatch->count = seen < keep ? seen : keep;
}

static int by_number(const void *a, const void *b)
{
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;

    return (left > right) - (left < right);
}

static void choose_by_sample(struct dispatch *dispatch, const uint32_t *members, uint32_t count,
                             bool again_ok, const struct policy_rules *rules)
{
    const struct sched_config *config = &dispatch->loop->sched->config;
    const struct snap_node *nodes = dispatch->loop->snapshot->nodes;
    uint32_t picks[SCHED_SAMPLE_MAX];
    size_t picked = policy_sample(count, (uint32_t)config->sample_k, &dispatch->loop->rnd, picks);

    if (!config->candidate_shuffle)
        qsort(picks, picked, sizeof *picks, by_number);
    for (size_t i = 0; i < picked; i++)
        if (may_take(dispatch, &nodes[members[picks[i]]], rules, again_ok,
                     &dispatch->list[dispatch->count]))
            dispatch->count++;
}

/* Fills the ranked list. */
static void choose(struct dispatch *dispatch)
{
    const struct snap_pool *pool = find_pool(dispatch);
    unsigned wants = wants_of(&dispatch->spec);
    struct policy_rules rules = rules_of(dispatch);

    dispatch->count = dispatch->next = 0;
    if (!pool)
        return;
    const uint32_t *members = pool->members[wants];
    uint32_t count = pool->counts[wants];
    /* A retry goes to another node if the pool has one, else to the same. */
    bool again_ok = count <= dispatch->tried_count && dispatch->attempt > 1;
    /* Few nodes may fit a selector: a sample could miss them all. */
    if (dispatch->scan || dispatch->spec.requires.at ||
        (!dispatch->spec.f2f && is_routed(dispatch->loop->sched)))
        choose_by_scan(dispatch, members, count, again_ok, &rules);
    else
        choose_by_sample(dispatch, members, count, again_ok, &rules);
    dispatch->count =
        policy_rank(dispatch->loop->sched->policy, dispatch->list, dispatch->count, &rules);
}

static struct str endpoint_of(const struct dispatch *dispatch, const struct node *node)
{
    const struct snap_node *member = snapshot_node(dispatch->loop->snapshot, node->id);

    if (!member || !member->facts->endpoint.at)
        return STR_NONE;
    return arena_str(dispatch->arena, member->facts->endpoint);
}

/* No member has the labels: to wait or to try again would not help. */
static bool nobody_fits(const struct dispatch *dispatch)
{
    const struct snap_pool *pool = find_pool(dispatch);

    return dispatch->spec.requires.at && pool &&
           dispatch->whys[WHY_REQUIRES] == pool->counts[wants_of(&dispatch->spec)];
}

/* All of the list was tried. */
static void exhausted(struct dispatch *dispatch)
{
    if (dispatch->outcome.phase == OUTCOME_PREFERRED) {
        const struct snap_pool *pool = find_pool(dispatch);
        size_t others = pool ? pool->counts[wants_of(&dispatch->spec)] : 0;

        log_event(LOG_INFO, "dispatch.preferred_failed", KS("node_id", dispatch->preferred->id),
                  KI("strict", dispatch->spec.options.strict));
        outcome_preferred_failed(&dispatch->outcome, others ? others - 1 : 0);
        if (dispatch->outcome.phase == OUTCOME_WALK) {
            choose(dispatch);
            reserve_next(dispatch);
            return;
        }
    } else if (!dispatch->scan && dispatch->spec.queue_ms > 0) {
        dispatch->scan = true; /* it may wait: but not while a slot is free outside the sample */
        memset(dispatch->whys, 0, sizeof dispatch->whys);
        choose(dispatch);
        if (dispatch->count) {
            reserve_next(dispatch);
            return;
        }
        outcome_exhausted(&dispatch->outcome);
    } else {
        outcome_exhausted(&dispatch->outcome);
    }
    assert(dispatch->outcome.phase == OUTCOME_REFUSED);
    if (nobody_fits(dispatch)) {
        give_up(dispatch, refuse(dispatch, ERR_NO_CAPABLE_NODE));
        return;
    }
    give_up(dispatch, refuse(dispatch, dispatch->outcome.err));
}

/* A job that exists already and may not wait ends here: who was refused must not see it run later.
 */
static void give_up(struct dispatch *dispatch, enum err err)
{
    struct store_op *op = &dispatch->op;

    if (!dispatch->exists || dispatch->spec.queue_ms > 0) {
        finish(dispatch, err);
        return;
    }
    *op = (struct store_op){.verb = STORE_FINISH,
                            .reply_to = dispatch->loop->inbox,
                            .done = gave_up,
                            .job = dispatch->job,
                            .attempt = dispatch->attempt,
                            .arena = dispatch->arena};
    op->u.settle.outcome = STORE_NO_CANDIDATE;
    op->u.settle.reason = str_of(err_name(err));
    sched_send(dispatch->loop,
               op); /* should the store be away, the sweep finds it by its lapsed hold */
}

static void gave_up(struct store_op *op)
{
    struct dispatch *dispatch = container_of(op, struct dispatch, op);

    if (!op->err) {
        struct settle_note note = {.head = &op->head, .event = "failed"};

        dispatch->head = op->head;
        metric_add_label(METRIC_JOBS, "FAILED", 1);
        dispatch->loop->sched->hooks->noted(dispatch->loop, &note);
    }
    finish(dispatch, dispatch->why.err);
}

/* R004-7: what is kept of the session. */
static void fill_session(struct dispatch *dispatch)
{
    const struct spec *spec = &dispatch->spec;
    struct store_op *op = &dispatch->op;
    size_t room = spec->src.len + spec->tgt.len + 2;
    char *pool = arena_raw(dispatch->arena, 2 * room);
    char *pair = pool + room;

    memcpy(pool, spec->src.at, spec->src.len);
    pool[spec->src.len] = ':';
    memcpy(pool + spec->src.len + 1, spec->tgt.at, spec->tgt.len);
    memcpy(pair, spec->src.at, spec->src.len);
    memcpy(pair + spec->src.len, "->", 2);
    memcpy(pair + spec->src.len + 2, spec->tgt.at, spec->tgt.len);
    op->u.put.pool = (struct str){.at = pool, .len = room - 1};
    op->u.put.lang_pair = (struct str){.at = pair, .len = room};
}

static void fill_reserve(struct dispatch *dispatch)
{
    const struct sched_config *config = &dispatch->loop->sched->config;
    const struct spec *spec = &dispatch->spec;
    struct store_op *op = &dispatch->op;

    *op = (struct store_op){.verb = STORE_RESERVE,
                            .reply_to = dispatch->loop->inbox,
                            .done = reserved,
                            .not_after_ms = sched_not_after(dispatch->loop),
                            .job = dispatch->job,
                            .attempt = dispatch->attempt};
    op->u.put.max_attempts = dispatch->max_attempts;
    op->u.put.timeout_ms = spec->timeout_ms;
    op->u.put.owner = config->instance;
    op->u.put.ttl_ms = config->reservation_ttl_ms;
    if (!dispatch->exists) {
        op->u.put.spec = spec->json;
        op->u.put.idem = dispatch->idem;
        op->u.put.fingerprint = dispatch->fingerprint;
        op->u.put.callback = spec->callback_url.at != NULL;
        op->u.put.session = spec->f2f ? spec->session_id : STR_NONE;
        if (op->u.put.session.at)
            fill_session(dispatch);
    }
    while (op->u.put.candidate_count < STORE_CANDIDATES_MAX && dispatch->next < dispatch->count) {
        const struct policy_candidate *candidate = &dispatch->list[dispatch->next++];
        const struct node *node = candidate->node;

        op->u.put.candidates[op->u.put.candidate_count++] = (struct store_candidate){
            .node = node->id, .hash = node->hash, .spare = candidate->spare};
    }
}

static void reserve_next(struct dispatch *dispatch)
{
    if (dispatch->next >= dispatch->count) {
        exhausted(dispatch);
        return;
    }
    /* Count our own reserve at once, or everybody here aims at the same empty node. */
    dispatch->expected = dispatch->list[dispatch->next].node;
    atomic_fetch_add_explicit(&dispatch->expected->pending, 1, memory_order_relaxed);
    fill_reserve(dispatch);
    sched_send(dispatch->loop, &dispatch->op);
}

/* The answers of the candidates that were asked go into counts and into the local view. */
static void note_candidates(struct dispatch *dispatch)
{
    const struct store_op *op = &dispatch->op;
    size_t first = dispatch->next - op->u.put.candidate_count;

    for (size_t i = 0; i < op->u.put.candidate_count; i++) {
        const struct store_candidate *candidate = &op->u.put.candidates[i];
        struct node *node = dispatch->list[first + i].node;

        if (!candidate->tried)
            continue;
        metric_add_label(METRIC_RESERVE, lease_reason_name(candidate->why), 1);
        if (candidate->why == LEASE_OK)
            continue;
        dispatch->whys[why_of_reason[candidate->why]]++;
        if (candidate->why == LEASE_FULL)
            counts_full(node);
    }
}

static void send_job(struct dispatch *dispatch)
{
    dispatch->send =
        (struct send_op){.reply_to = dispatch->loop->inbox,
                         .done = sent,
                         .node = dispatch->node,
                         .endpoint = endpoint_of(dispatch, dispatch->node),
                         .message = spec_message(&dispatch->spec, dispatch->job, dispatch->attempt,
                                                 dispatch->op.head.due_ms, dispatch->arena),
                         .job = dispatch->job,
                         .attempt = dispatch->attempt,
                         .deadline_ms = dispatch->op.head.due_ms};
    dispatch->loop->sched->hooks->send(dispatch->loop, &dispatch->send);
}

static void reserved(struct store_op *op)
{
    struct dispatch *dispatch = container_of(op, struct dispatch, op);

    atomic_fetch_sub_explicit(&dispatch->expected->pending, 1, memory_order_relaxed);
    if (op->err == ERR_ALL_FULL) {
        note_candidates(dispatch);
        reserve_next(dispatch);
        return;
    }
    dispatch->head = op->head;
    if (op->err) {
        finish(dispatch, refuse(dispatch, op->err));
        return;
    }
    if (op->u.put.duplicate) { /* somebody asked for the same before: the first answer again */
        dispatch->duplicate = true;
        finish(dispatch, ERR_OK);
        return;
    }
    assert(op->u.put.chosen >= 0 && op->u.put.chosen < STORE_CANDIDATES_MAX);
    note_candidates(dispatch);
    size_t first = dispatch->next - op->u.put.candidate_count;
    dispatch->node = dispatch->list[first + (size_t)op->u.put.chosen].node;
    dispatch->exists = true;
    /* Those behind the chosen one were not asked: they stay candidates if the send fails. */
    dispatch->next = first + (size_t)op->u.put.chosen + 1;
    counts_take(dispatch->node, &op->counts, op->order, false);
    send_job(dispatch);
}

static bool more_candidates(const struct dispatch *dispatch)
{
    return dispatch->next < dispatch->count ||
           (dispatch->outcome.phase == OUTCOME_PREFERRED && !dispatch->spec.options.strict) ||
           dispatch->spec.queue_ms > 0;
}

static void log_dispatched(const struct dispatch *dispatch)
{
    char id[JOB_ID_TEXT + 1];

    job_id_text(dispatch->job, id);
    log_event(LOG_DEBUG, "job.dispatched", KC("job_id", id), KS("node_id", dispatch->node->id),
              KI("attempt_id", dispatch->attempt));
}

static void sent(struct send_op *send)
{
    struct dispatch *dispatch = container_of(send, struct dispatch, send);

    if (send->ok) {
        outcome_placed(&dispatch->outcome);
        struct settle_note note = {.head = &dispatch->head, .event = "dispatched"};
        dispatch->loop->sched->hooks->noted(dispatch->loop, &note);
        if (log_on(LOG_DEBUG))
            log_dispatched(dispatch);
        finish(dispatch, ERR_OK);
        return;
    }
    dispatch->whys[WHY_SEND_FAILED]++;
    add_tried(dispatch, dispatch->node->id);
    char id[JOB_ID_TEXT + 1];
    job_id_text(dispatch->job, id);
    log_event(LOG_WARN, "dispatch.send_failed", KC("job_id", id), KS("node_id", dispatch->node->id),
              KI("attempt_id", dispatch->attempt), KC("reason", send->reason));
    struct store_op *op = &dispatch->op;
    *op = (struct store_op){.verb = STORE_FINISH,
                            .reply_to = dispatch->loop->inbox,
                            .done = released,
                            .job = dispatch->job,
                            .attempt = dispatch->attempt,
                            .node = dispatch->node->id,
                            .arena = dispatch->arena};
    op->u.settle.outcome = STORE_SEND_FAILED;
    op->u.settle.reason = str_of(send->reason);
    op->u.settle.candidates_left = more_candidates(dispatch);
    op->u.settle.owner = dispatch->loop->sched->config.instance;
    op->u.settle.hold_ms = SCHED_HOLD_MS;
    sched_send(dispatch->loop, op);
}

/* The reservation was given back; or the lease ran out first, then the sweep moves the job on. */
static void released(struct store_op *op)
{
    struct dispatch *dispatch = container_of(op, struct dispatch, op);

    dispatch->head = op->head;
    if (op->err) {
        finish(dispatch, refuse(dispatch, op->err == ERR_STALE ? ERR_ALL_FULL : op->err));
        return;
    }
    counts_take(dispatch->node, &op->counts, op->order, false);
    dispatch->record = op->record;
    reserve_next(dispatch);
}

void dispatch_start(struct dispatch *dispatch)
{
    const struct spec *spec = &dispatch->spec;
    const struct snapshot *snapshot = dispatch->loop->snapshot;

    assert(dispatch->job && dispatch->attempt > 0 && dispatch->done);
    dispatch->begun_us = clock_mono_us();
    if (!snapshot) {
        finish(dispatch, problem_set(&dispatch->why, ERR_STORE_DOWN, "",
                                     "The server is starting: its nodes are not loaded yet."));
        return;
    }
    read_history(dispatch);
    const struct snap_pool *pool = find_pool(dispatch);
    unsigned wants = wants_of(spec);
    const struct snap_node *preferred = snapshot_node(snapshot, spec->options.preferred_node_id);
    bool prefers = spec->options.preferred_node_id.at && dispatch->attempt == 1;
    struct outcome_start start = {
        .store_up = true, /* a store that is down says so at once when asked */
        .preferred_given = prefers,
        .preferred_in_pool = prefers && snapshot_is_member(snapshot, pool, preferred, wants),
        .strict = spec->options.strict,
        .pool_count = pool ? pool->counts[wants] : 0};
    outcome_begin(&dispatch->outcome, &start);
    if (dispatch->outcome.phase == OUTCOME_REFUSED) {
        give_up(dispatch, refuse(dispatch, dispatch->outcome.err));
        return;
    }
    if (dispatch->outcome.phase == OUTCOME_PREFERRED) {
        dispatch->preferred = preferred->node;
        dispatch->list[0] = look_at(dispatch, preferred);
        dispatch->count = 1;
    } else {
        choose(dispatch);
    }
    reserve_next(dispatch);
}
