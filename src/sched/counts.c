/* Taking over counters, newest answer first. */
#include "sched/counts.h"

#include <assert.h>

#define COUNT_MASK ((1ull << COUNTS_BITS) - 1)
#define ORDER_MASK ((1ull << COUNTS_ORDER_BITS) - 1)

_Static_assert(2 * COUNTS_BITS + COUNTS_ORDER_BITS == 64, "all of it in one word");

static uint64_t pack(uint64_t reserved, uint64_t running, uint64_t order)
{
    assert(reserved <= COUNT_MASK && running <= COUNT_MASK);
    return (order & ORDER_MASK) << (2 * COUNTS_BITS) | running << COUNTS_BITS | reserved;
}

/* Of two orders known by their low bits: is `a` the older? They are less than half a turn apart. */
static bool is_older(uint64_t a, uint64_t b)
{
    return a != b && ((b - a) & ORDER_MASK) < 1ull << (COUNTS_ORDER_BITS - 1);
}

void counts_take(struct node *node, const struct lease_node *counts, uint64_t order, bool first)
{
    uint64_t old = atomic_load_explicit(&node->counts, memory_order_relaxed);
    uint64_t word = pack((uint64_t)counts->reserved, (uint64_t)counts->running, order);

    assert(lease_counts_ok(counts));
    if (counts->health == NODE_HEALTH_NONE)
        return; /* the answer was not about a node */
    do
        if (!first && is_older(order & ORDER_MASK, old >> (2 * COUNTS_BITS)))
            return;
    while (!atomic_compare_exchange_weak_explicit(&node->counts, &old, word, memory_order_relaxed,
                                                  memory_order_relaxed));
    atomic_store_explicit(&node->epoch, counts->epoch, memory_order_relaxed);
}

void counts_take_of(const struct snapshot *snapshot, struct str node_id, const struct store_op *op)
{
    const struct snap_node *member = snapshot_node(snapshot, node_id);

    if (member)
        counts_take(member->node, &op->counts, op->order, false);
}

void counts_full(struct node *node)
{
    uint64_t old = atomic_load_explicit(&node->counts, memory_order_relaxed);
    int32_t max = atomic_load_explicit(&node->max, memory_order_relaxed);
    int32_t running = (int32_t)(old >> COUNTS_BITS & COUNT_MASK);

    if (running >= max)
        return;
    /* Lost to a newer answer: then that is right. */
    atomic_compare_exchange_strong_explicit(
        &node->counts, &old,
        pack((uint64_t)(max - running), (uint64_t)running, old >> (2 * COUNTS_BITS)),
        memory_order_relaxed, memory_order_relaxed);
}
