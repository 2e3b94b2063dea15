/* How this instance's table of nodes follows the store: everything at the start, then only what
 * differs. In a store that is shared, changes made elsewhere are noticed at once; what was missed
 * is found by the look at all counters and versions once a second. Keeper's thread. */
#ifndef SCHED_NODE_SYNC_H
#define SCHED_NODE_SYNC_H

#include "sched/sched.h"

struct node_sync;

struct node_sync *node_sync_new(struct sched *sched, struct node_table *members);
void node_sync_free(struct node_sync *view);
void node_sync_load(struct node_sync *view); /* all nodes */
void node_sync_compare(
    struct node_sync *view); /* counters and versions of all; then loads what differs */
void node_sync_tick(struct node_sync *view); /* sends signs of life, at most twice a second */
/* NODES or GAP: something changed elsewhere, or may have. */
void node_sync_notice(struct node_sync *view, const struct store_notice *notice);
/* Heartbeats another instance got: what it wrote with node_sync_tick. */
void node_sync_seen(struct node_sync *view, struct str text);
/* clock_mono_us of the oldest change made elsewhere that no edition holds yet; 0: none. Forgets it.
 */
int64_t node_sync_take_oldest_us(struct node_sync *view);

/* What instances share about nodes beside their records: which has its connection, and when its
 * last heartbeat came. Nothing of it exists in a store that is not shared. Keeper's thread. */
void node_sync_list_peers(struct node_sync *view); /* looks which instances are up */
void node_sync_take_live(struct node_sync *view, struct node *node, const struct store_live *stored,
                         uint64_t order);

#endif
