/* A node's counters as the store last told them, in one word: reserved (20 bits), running (20 bits)
 * and the low bits of the answer's order (24). Answers of the store reach several loops, and may be
 * taken over in another order than the store gave them: an older one must not win. */
#ifndef SCHED_COUNTS_H
#define SCHED_COUNTS_H

#include "sched/snapshot.h"
#include "store/store.h"

enum { COUNTS_BITS = 20, COUNTS_ORDER_BITS = 24 };

struct counts {
    int32_t reserved;
    int32_t running;
};

/* Both of one moment: read apart, they could add up to more than the node ever had. */
static inline struct counts counts_of(const struct node *node)
{
    uint64_t word = atomic_load_explicit(&node->counts, memory_order_relaxed);
    uint64_t mask = (1u << COUNTS_BITS) - 1;

    return (struct counts){.reserved = (int32_t)(word & mask),
                           .running = (int32_t)(word >> COUNTS_BITS & mask)};
}

static inline int32_t counts_load(const struct node *node)
{
    struct counts now = counts_of(node);

    return now.reserved + now.running + atomic_load_explicit(&node->pending, memory_order_relaxed);
}

/* Takes over an answer's counters unless newer ones are known; the first ones of a node (`first`)
 * in any case. All counters are read once a second, so 24 bits always tell which is newer. */
void counts_take(struct node *node, const struct lease_node *counts, uint64_t order, bool first);
/* The same of a node that may not be there any more. */
void counts_take_of(const struct snapshot *snapshot, struct str node_id, const struct store_op *op);
/* The store said FULL: show it as full until it tells more. */
void counts_full(struct node *node);

#endif
