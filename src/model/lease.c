/* The lease rules. Owns every change of a node's `reserved` and `running`; the caller keeps the
 * leases and the job records and passes in the time. Also the rules of fencing: until when a holder
 * may go on. */
#include "model/lease.h"

#include <assert.h>

#include "model/namespace.h"

/* --- leases --- */

enum { RENEWALS = 6 }; /* in one term, at least */

static const char *const reason_names[LEASE_REASON_COUNT] = {
    [LEASE_OK] = "OK",
    [LEASE_RESV_EXISTS] = "RESV_EXISTS",
    [LEASE_NOT_READY] = "NOT_READY",
    [LEASE_NO_CAPACITY] = "NO_CAPACITY",
    [LEASE_FULL] = "FULL",
    [LEASE_RESOURCES] = "RESOURCES",
    [LEASE_BREAKER] = "BREAKER_OPEN",
};

const char *lease_reason_name(enum lease_reason reason)
{
    assert(reason >= LEASE_OK && reason < LEASE_REASON_COUNT);
    return reason_names[reason];
}

const struct lease_terms lease_terms_default = {.task_ms = 120000, .f2f_ms = 45000};

int64_t lease_term_ms(const struct lease_terms *terms, struct str type)
{
    return str_is(namespace_name(type), "f2f") ? terms->f2f_ms : terms->task_ms;
}

int64_t lease_renew_every_ms(const struct lease_terms *terms)
{
    int64_t shortest_ms = terms->task_ms < terms->f2f_ms ? terms->task_ms : terms->f2f_ms;

    return shortest_ms / RENEWALS;
}

/* A lease of an older epoch ended when the epoch was raised: it no longer counts. */
static bool counts(const struct lease_node *node, const struct lease *lease)
{
    return lease->kind != LEASE_NONE && lease->epoch == node->epoch;
}

static int32_t slots_of(const struct lease *lease)
{
    return lease->slots > 0 ? lease->slots : 1;
}

static int64_t occupied(const struct lease_node *node)
{
    return (int64_t)node->running + node->reserved;
}

enum lease_reason lease_reserve(struct lease_node *node, struct lease *lease, uint64_t job,
                                int64_t now_ms, int64_t ttl_ms)
{
    int64_t until_ms;

    assert(lease_counts_ok(node));
    assert(ttl_ms >= 0);
    lease_expire(node, lease, now_ms);
    if (counts(node, lease))
        return LEASE_RESV_EXISTS;
    if (node->health != NODE_READY)
        return LEASE_NOT_READY;
    if (node->max <= 0)
        return LEASE_NO_CAPACITY;
    if (occupied(node) + slots_of(lease) > node->max)
        return LEASE_FULL;
    if (__builtin_add_overflow(now_ms, ttl_ms, &until_ms))
        until_ms = LEASE_FOREVER;
    node->reserved += slots_of(lease);
    *lease = (struct lease){
        .kind = LEASE_RESERVED,
        .slots = lease->slots,
        .epoch = node->epoch,
        .job = job,
        .until_ms = until_ms,
    };
    assert(occupied(node) <= node->max);
    return LEASE_OK;
}

bool lease_ack(struct lease_node *node, struct lease *lease, uint64_t job, int64_t now_ms,
               int64_t until_ms)
{
    assert(lease_counts_ok(node));
    if (lease_expire(node, lease, now_ms))
        return false;
    if (!counts(node, lease) || lease->kind != LEASE_RESERVED || lease->job != job)
        return false;
    assert(node->reserved >= slots_of(lease));
    node->reserved -= slots_of(lease);
    node->running += slots_of(lease);
    lease->kind = LEASE_RUNNING;
    lease->until_ms = until_ms;
    return true;
}

bool lease_release(struct lease_node *node, struct lease *lease)
{
    if (lease->kind != LEASE_RESERVED)
        return false;
    return lease_end(node, lease) == LEASE_RESERVED;
}

bool lease_finish(struct lease_node *node, struct lease *lease)
{
    if (lease->kind != LEASE_RUNNING)
        return false;
    return lease_end(node, lease) == LEASE_RUNNING;
}

enum lease_kind lease_end(struct lease_node *node, struct lease *lease)
{
    enum lease_kind kind = counts(node, lease) ? lease->kind : LEASE_NONE;

    assert(lease_counts_ok(node));
    lease->kind = LEASE_NONE;
    if (kind == LEASE_RESERVED)
        node->reserved -= slots_of(lease);
    if (kind == LEASE_RUNNING)
        node->running -= slots_of(lease);
    assert(lease_counts_ok(node));
    return kind;
}

bool lease_expire(struct lease_node *node, struct lease *lease, int64_t now_ms)
{
    if (lease->kind == LEASE_NONE || lease->until_ms == LEASE_FOREVER || now_ms < lease->until_ms)
        return false;
    lease_end(node, lease);
    return true;
}

bool lease_renew(struct lease *lease, int64_t until_ms)
{
    if (lease->kind != LEASE_RUNNING)
        return false;
    if (until_ms > lease->until_ms)
        lease->until_ms = until_ms;
    return true;
}

void lease_new_epoch(struct lease_node *node, bool keeps_runs)
{
    node->epoch++;
    node->reserved = 0;
    if (!keeps_runs)
        node->running = 0;
    assert(lease_counts_ok(node));
}

bool lease_keep(const struct lease_node *node, struct lease *lease)
{
    /* One from an even older epoch did not count before and does not now. */
    if (lease->kind != LEASE_RUNNING || lease->epoch + 1 != node->epoch)
        return false;
    lease->epoch = node->epoch;
    return true;
}

bool lease_counts_ok(const struct lease_node *node)
{
    return node->reserved >= 0 && node->running >= 0;
}

/* --- fencing --- */

enum { GRACE_MAX_MS = 10000 };

enum fence_state fence_state_by_name(struct str name)
{
    static const struct {
        const char *name;
        enum fence_state state;
    } rows[] = {{"Assigned", FENCE_ASSIGNED}, {"Running", FENCE_RUNNING}};

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (str_is(name, rows[i].name))
            return rows[i].state;
    return FENCE_NONE;
}

bool fence_active(const struct fence *fence, int64_t now_ms)
{
    return fence->state != FENCE_NONE && fence->expire_ms >= now_ms;
}

bool fence_renew(struct fence *fence, struct str holder, int64_t token, int64_t now_ms,
                 int64_t ttl_ms)
{
    assert(ttl_ms > 0);
    if (!fence_active(fence, now_ms) || !str_eq(fence->holder, holder) || fence->token != token)
        return false;
    fence->expire_ms = now_ms + ttl_ms;
    return true;
}

bool fence_reassign(struct fence *fence, struct str holder, int64_t now_ms, int64_t ttl_ms)
{
    assert(ttl_ms > 0);
    if (fence->expire_ms >= now_ms)
        return false;
    *fence = (struct fence){.state = FENCE_ASSIGNED,
                            .holder = holder,
                            .token = fence->token + 1,
                            .expire_ms = now_ms + ttl_ms};
    return true;
}

int64_t fence_stop_ms(int64_t sent_lease_ms, int64_t lease_ms)
{
    assert(lease_ms > 0);
    return sent_lease_ms + lease_ms / 3 * 2;
}

int64_t fence_grace_ms(int64_t lease_ms)
{
    int64_t grace = (lease_ms - lease_ms / 3 * 2) / 3 * 2;

    assert(grace >= 0);
    return grace < GRACE_MAX_MS ? grace : GRACE_MAX_MS;
}
