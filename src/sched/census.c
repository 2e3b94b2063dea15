/* Counting nodes, slots, levels and leases. */
#include "sched/census.h"

#include <assert.h>

#include "base/metrics.h"
#include "sched/counts.h"

void census_add(struct census *census, const struct node *node)
{
    int32_t health = atomic_load_explicit(&node->health, memory_order_relaxed);
    int32_t level = atomic_load_explicit(&node->level, memory_order_relaxed);
    struct counts counts = counts_of(node);

    assert(health >= 0 && health < NODE_HEALTH_COUNT && level < LEVEL_COUNT);
    census->by_health[health]++;
    census->reserved += counts.reserved;
    census->running += counts.running;
    if (health != NODE_OFFLINE && level >= 0)
        census->by_level[level]++;
    if (health != NODE_READY)
        return;
    int32_t max = atomic_load_explicit(&node->max, memory_order_relaxed);
    int32_t used = counts.reserved + counts.running;
    census->max += max;
    census->used += used < max ? used : max; /* a max that was lowered below what runs: no room */
}

void census_tell(const struct census *census)
{
    for (int i = NODE_REGISTERING; i < NODE_HEALTH_COUNT; i++)
        metric_set_label(METRIC_NODES, node_health_name((enum node_health)i), census->by_health[i]);
    for (int i = 0; i < LEVEL_COUNT; i++)
        metric_set_label(METRIC_NODE_LEVELS, level_name((enum level)i), census->by_level[i]);
    metric_set_label(METRIC_LEASES, "reserved", census->reserved);
    metric_set_label(METRIC_LEASES, "running", census->running);
    metric_set_label(METRIC_SLOTS, "max", census->max);
    metric_set_label(METRIC_SLOTS, "used", census->used);
    metric_set_label(METRIC_SLOTS, "free", census->max - census->used);
}
