/* What instances share about nodes beside their records: whose connection each is, and when it was
 * last heard of. Nothing of it exists in a store that is not shared. Keeper's thread. */
#ifndef SCHED_VIEW_LIVE_H
#define SCHED_VIEW_LIVE_H

#include "sched/sched.h"

struct view_live;

struct view_live *view_live_new(struct sched *sched);
void view_live_free(struct view_live *live);
void view_live_compare(struct view_live *live); /* looks which instances are there */
void view_live_tick(struct view_live *live);
void view_live_take(struct view_live *live, struct node *node, const struct store_live *said,
                    uint64_t order);
void view_live_seen(struct view_live *live, const struct node_table *members, struct str text);
bool view_live_has_peer(const struct view_live *live, uint32_t name);

#endif
