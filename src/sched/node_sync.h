/* Keeps this instance's table of nodes in step with the store: loads everything at the start, then
 * only what differs. In a shared store, changes made elsewhere are announced at once; missed ones
 * are found by comparing all counters and versions once a second. Keeper's thread. */
#ifndef SCHED_NODE_SYNC_H
#define SCHED_NODE_SYNC_H

#include "sched/sched.h"

struct node_sync;

struct node_sync *node_sync_new(struct sched *sched, struct node_table *members);
void node_sync_free(struct node_sync *sync);
void node_sync_load(struct node_sync *sync); /* all nodes */
/* Compares the counters and versions of all; then loads what differs. */
void node_sync_compare(struct node_sync *sync);
void node_sync_tick(struct node_sync *sync); /* sends signs of life, at most twice a second */
/* NODES or GAP: something changed elsewhere, or may have. */
void node_sync_notice(struct node_sync *sync, const struct store_notice *notice);
/* Heartbeats another instance received, as written by its node_sync_tick. */
void node_sync_seen(struct node_sync *sync, struct str text);
/* clock_mono_us of the oldest change made elsewhere that no edition contains yet; 0: none. Resets
 * it. */
int64_t node_sync_take_oldest_us(struct node_sync *sync);

/* What instances share about nodes besides their records: which instance has the connection, and
 * when the last heartbeat came. Unused in a store that is not shared. Keeper's thread. */
void node_sync_list_peers(struct node_sync *sync); /* checks which instances are up */
void node_sync_take_live(struct node_sync *sync, struct node *node, const struct store_live *stored,
                         uint64_t order);

#endif
