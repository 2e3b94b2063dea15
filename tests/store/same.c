/* Compares two answers field by field. */
#include "same.h"

#include <stdlib.h>

void same_head(const struct store_op *a, const struct store_head *left,
               const struct store_head *right, bool from_row)
{
    SAME(left->id, right->id, "id");
    if (left->id == 0)
        return;
    SAME(left->state, right->state, "state");
    SAME(left->attempt, right->attempt, "attempt");
    SAME(left->max_attempts, right->max_attempts, "max_attempts");
    /* The epoch of the lease is not compared: a run that a lost node keeps has its node's epoch in
     * the embedded store, and in Redis the one in which it began. Only the store uses it. */
    SAME(left->created_ms, right->created_ms, "created_ms");
    SAME(left->updated_ms, right->updated_ms, "updated_ms");
    SAME(left->dispatched_ms, right->dispatched_ms, "dispatched_ms");
    SAME(left->acked_ms, right->acked_ms, "acked_ms");
    SAME(left->ended_ms, right->ended_ms, "ended_ms");
    SAME(left->timeout_ms, right->timeout_ms, "timeout_ms");
    SAME(left->callback, right->callback, "callback");
    SAME(left->lane, right->lane, "lane");
    SAME(left->priority, right->priority, "priority");
    SAME(left->gpus, right->gpus, "gpus");
    SAME_TEXT(str_of(left->node), str_of(right->node), "node");
    SAME_TEXT(str_of(left->type), str_of(right->type), "type");
    SAME_TEXT(str_of(left->reason), str_of(right->reason), "reason");
    if (from_row)
        return;
    SAME(left->lease, right->lease, "lease");
    /* For a job that has ended, the embedded store reads the owner from a row that may be out of
     * date. */
    if (left->id == a->job && !job_state_final(left->state))
        SAME(left->owner, right->owner, "owner");
    /* After a pause the embedded store prolongs every running lease at once, Redis each when it
     * looks at it. Nothing looks at a lease of an older epoch, so it may lack the grace; it has run
     * out in both stores by then. */
    if (left->lease != LEASE_RUNNING || left->due_ms > rig_now_ms() || right->due_ms > rig_now_ms())
        SAME(left->due_ms, right->due_ms, "due_ms");
}

void same_record(const struct store_op *a, const struct store_record *left,
                 const struct store_record *right, bool from_row)
{
    same_head(a, &left->head, &right->head, from_row);
    SAME_TEXT(left->spec, right->spec, "spec");
    SAME_TEXT(left->history, right->history, "history");
    SAME_TEXT(left->result, right->result, "result");
    if (from_row)
        return; /* a plain read does not answer it */
    SAME_TEXT(left->idem, right->idem, "key");
    SAME(left->fingerprint, right->fingerprint, "fingerprint");
}

void same_counts(const struct store_op *a, const struct lease_node *left,
                 const struct lease_node *right)
{
    SAME(left->health, right->health, "health");
    SAME(left->max, right->max, "max");
    SAME(left->reserved, right->reserved, "reserved");
    SAME(left->running, right->running, "running");
    SAME(left->epoch, right->epoch, "epoch of the node");
}

static void same_left(const struct store_op *a, const struct resources_left *left,
                      const struct resources_left *right)
{
    SAME(left->count, right->count, "number of resources");
    SAME(left->gpu_count, right->gpu_count, "number of GPUs");
    for (size_t i = 0; i < left->count; i++)
        SAME(left->left[i], right->left[i], "what is left");
    for (size_t i = 0; i < left->gpu_count; i++)
        SAME(left->gpu_left[i], right->gpu_left[i], "what is left of a GPU");
    if (left->gpu_count)
        SAME(left->shared, right->shared, "GPUs that are shared");
}

static void same_block(const struct store_op *a, const struct limit_block *left,
                       const struct limit_block *right)
{
    SAME(left->why, right->why, "why a key blocks");
    SAME(left->key, right->key, "which key blocks");
    SAME(left->limit, right->limit, "bound of a key");
    SAME(left->used, right->used, "used of a key");
    SAME(left->retry_ms, right->retry_ms, "retry of a key");
}

static void same_limits(const struct store_op *a, const struct store_op *b)
{
    SAME(a->u.limits.version, b->u.limits.version, "version of the rules");
    SAME(a->u.limits.rule_count, b->u.limits.rule_count, "number of rules");
    SAME(a->u.limits.key_count, b->u.limits.key_count, "number of keys");
    SAME(a->u.limits.more, b->u.limits.more, "more keys");
    for (size_t i = 0; i < a->u.limits.rule_count; i++) {
        const struct store_limit *left = &a->u.limits.rules[i];
        const struct store_limit *right = &b->u.limits.rules[i];

        SAME_TEXT(left->pattern, right->pattern, "pattern");
        SAME(left->limit.concurrency, right->limit.concurrency, "concurrency");
        SAME(left->limit.rate, right->limit.rate, "rate");
        SAME(left->limit.rate_ms, right->limit.rate_ms, "window of a rate");
        SAME(left->limit.queue, right->limit.queue, "queue");
        SAME(left->limit.weight, right->limit.weight, "weight");
    }
    for (size_t i = 0; i < a->u.limits.key_count; i++) {
        const struct store_limit_key *left = &a->u.limits.keys[i];
        const struct store_limit_key *right = &b->u.limits.keys[i];

        SAME_TEXT(left->key, right->key, "key");
        SAME_TEXT(left->pattern, right->pattern, "rule of a key");
        SAME(left->in_flight, right->in_flight, "leases of a key");
        SAME(left->waiting, right->waiting, "jobs that wait with a key");
        SAME(left->started, right->started, "starts of a key");
        SAME(left->hold_ms, right->hold_ms, "hold of a key");
        if (left->hold_ms)
            SAME_TEXT(left->hold_reason, right->hold_reason, "reason of a hold");
        SAME(left->holder_count, right->holder_count, "known holders of a key");
        for (size_t k = 0; k < left->holder_count; k++)
            SAME(left->holders[k], right->holders[k], "instance of a key");
    }
}

static void same_put(const struct store_op *a, const struct store_op *b)
{
    SAME(a->u.put.chosen, b->u.put.chosen, "chosen");
    SAME(a->u.put.duplicate, b->u.put.duplicate, "duplicate");
    if (a->err == ERR_LIMITED)
        same_block(a, &a->u.put.block, &b->u.put.block);
    if (a->verb == STORE_PUT)
        return;
    SAME(a->u.put.probe, b->u.put.probe, "probe");
    for (size_t i = 0; i < a->u.put.candidate_count; i++) {
        SAME(a->u.put.candidates[i].tried, b->u.put.candidates[i].tried, "tried");
        if (a->u.put.candidates[i].tried)
            SAME(a->u.put.candidates[i].why, b->u.put.candidates[i].why, "why");
    }
}

static int by_id(const void *a, const void *b)
{
    const struct store_due *left = a;
    const struct store_due *right = b;

    return left->id < right->id ? -1 : left->id > right->id;
}

static void same_due(const struct store_op *a, const struct store_op *b)
{
    SAME(a->u.due.count, b->u.due.count, "number of due");
    qsort(a->u.due.items, a->u.due.count, sizeof *a->u.due.items, by_id);
    qsort(b->u.due.items, b->u.due.count, sizeof *b->u.due.items, by_id);
    for (size_t i = 0; i < a->u.due.count; i++) {
        const struct store_due *left = &a->u.due.items[i];
        const struct store_due *right = &b->u.due.items[i];

        SAME(left->id, right->id, "due job");
        SAME(left->attempt, right->attempt, "due attempt");
        SAME(left->state, right->state, "due state");
        SAME(left->lease, right->lease, "due lease");
        SAME(left->lane, right->lane, "due lane");
        SAME_TEXT(str_of(left->node), str_of(right->node), "due node");
    }
}

static void same_breakers(const struct store_op *a, const struct store_op *b)
{
    SAME(a->u.breakers.count, b->u.breakers.count, "number of breakers");
    for (size_t i = 0; i < a->u.breakers.count; i++) {
        const struct store_breaker *left = &a->u.breakers.items[i];
        const struct store_breaker *right = &b->u.breakers.items[i];

        SAME_TEXT(left->node, right->node, "breaker node");
        SAME_TEXT(left->type, right->type, "breaker type");
        SAME(left->breaker.state, right->breaker.state, "breaker state");
        SAME(left->breaker.failures, right->breaker.failures, "failures");
        SAME(left->breaker.probe_until_ms, right->breaker.probe_until_ms, "probe_until_ms");
    }
}

static void same_settle(const struct store_op *a, const struct store_op *b)
{
    SAME(a->u.settle.duplicate, b->u.settle.duplicate, "duplicate");
    SAME(a->u.settle.ended_lease, b->u.settle.ended_lease, "ended_lease");
    SAME(a->u.settle.stopped, b->u.settle.stopped, "stopped");
    SAME(a->u.settle.breaker, b->u.settle.breaker, "breaker event");
    SAME_TEXT(a->u.settle.demand, b->u.settle.demand, "what the lease had taken");
    SAME(a->u.settle.freed_count, b->u.settle.freed_count, "number of freed keys");
    for (size_t i = 0; i < a->u.settle.freed_count; i++)
        SAME(a->u.settle.freed[i], b->u.settle.freed[i], "freed key");
}

void same_answer(const struct store_op *a, const struct store_op *b)
{
    if (a->err != b->err)
        fail_msg("verb %d outcome %d job %llu attempt %d: %s, in Redis %s", a->verb,
                 a->verb == STORE_FINISH ? (int)a->u.settle.outcome : -1,
                 (unsigned long long)a->job, a->attempt, err_name(a->err), err_name(b->err));
    if (a->err == ERR_TOO_LATE)
        return;
    same_head(a, &a->head, &b->head, false);
    same_counts(a, &a->counts, &b->counts);
    same_left(a, &a->left, &b->left);
    if (a->verb == STORE_WAIT && a->err == ERR_LIMITED)
        same_block(a, &a->u.wait.block, &b->u.wait.block);
    if (a->verb == STORE_LIMITS && !a->err)
        same_limits(a, b);
    if (a->verb == STORE_PUT || a->verb == STORE_RESERVE)
        same_put(a, b);
    if (a->verb == STORE_ACK || a->verb == STORE_FINISH)
        same_settle(a, b);
    if (a->verb == STORE_FINISH)
        same_record(a, &a->record, &b->record, false);
    if (a->verb == STORE_RENEW)
        for (size_t i = 0; i < a->u.renew.count; i++)
            SAME(a->u.renew.runs[i].unknown, b->u.renew.runs[i].unknown, "unknown run");
    if (a->verb == STORE_DUE)
        same_due(a, b);
    if (a->verb == STORE_NODE_PUT && (!a->err || a->err == ERR_STALE)) {
        SAME(a->u.node_put.created, b->u.node_put.created, "created");
        SAME(a->u.node_put.version, b->u.node_put.version, "version");
    }
    if (a->verb == STORE_BREAKERS)
        same_breakers(a, b);
}

void same_lanes(struct rig *left, struct rig *right, uint64_t after, size_t max)
{
    struct store_op op = {.verb = STORE_LANES, .u.lanes = {.after = after, .max = max}};
    struct store_op ops[2] = {op, op};
    const struct store_op *a = &ops[0];

    assert_int_equal(rig_call(left, &ops[0]), ERR_OK);
    assert_int_equal(rig_call(right, &ops[1]), ERR_OK);
    SAME(ops[0].u.lanes.count, ops[1].u.lanes.count, "number of lanes");
    SAME(ops[0].u.lanes.more, ops[1].u.lanes.more, "more lanes");
    for (size_t i = 0; i < a->u.lanes.count; i++) {
        const struct store_lane *l = &ops[0].u.lanes.items[i], *r = &ops[1].u.lanes.items[i];

        SAME(l->lane, r->lane, "lane");
        SAME(l->count, r->count, "jobs of a lane");
        SAME(l->first, r->first, "first of a lane");
        SAME(l->priority, r->priority, "priority of the first");
    }
}

void same_lane(struct rig *left, struct rig *right, uint64_t lane, size_t max)
{
    struct store_op op = {.verb = STORE_LANE, .u.lane = {.lane = lane, .max = max}};
    struct store_op ops[2] = {op, op};
    const struct store_op *a = &ops[0];

    assert_int_equal(rig_call(left, &ops[0]), ERR_OK);
    assert_int_equal(rig_call(right, &ops[1]), ERR_OK);
    SAME(ops[0].u.lane.waiting, ops[1].u.lane.waiting, "jobs that wait in a lane");
    SAME(ops[0].u.lane.count, ops[1].u.lane.count, "jobs that a lane tells");
    for (size_t i = 0; i < a->u.lane.count; i++)
        same_record(a, &ops[0].u.lane.items[i], &ops[1].u.lane.items[i], false);
}

static int node_by_id(const void *a, const void *b)
{
    return str_cmp(((const struct store_node *)a)->id, ((const struct store_node *)b)->id);
}

static void same_node(const struct store_op *a, const struct store_node *left,
                      const struct store_node *right)
{
    SAME_TEXT(left->id, right->id, "node");
    same_counts(a, &left->counts, &right->counts);
    assert_true(left->counts.reserved >= 0 && left->counts.running >= 0);
    SAME(left->own, right->own, "own health");
    SAME(left->admin, right->admin, "admin");
    SAME(left->registered_ms, right->registered_ms, "registered_ms");
    SAME(left->version, right->version, "version");
    assert_true(str_eq(left->admin_reason, right->admin_reason));
    SAME_TEXT(left->facts, right->facts, "facts");
    if (left->resources.len || right->resources.len)
        SAME_TEXT(left->resources, right->resources, "resources");
    same_left(a, &left->left, &right->left);
}

void same_nodes(struct rig *left, struct rig *right)
{
    struct store_op ops[2] = {{.verb = STORE_NODES}, {.verb = STORE_NODES}};
    const struct store_op *a = &ops[0];

    assert_int_equal(rig_call(left, &ops[0]), ERR_OK);
    assert_int_equal(rig_call(right, &ops[1]), ERR_OK);
    SAME(ops[0].u.nodes.count, ops[1].u.nodes.count, "number of nodes");
    for (int k = 0; k < 2; k++)
        qsort(ops[k].u.nodes.items, ops[k].u.nodes.count, sizeof *ops[k].u.nodes.items, node_by_id);
    for (size_t i = 0; i < a->u.nodes.count; i++)
        same_node(a, &ops[0].u.nodes.items[i], &ops[1].u.nodes.items[i]);
}
