/* How this instance's table of nodes follows the store: everything at the start, then only what
 * differs. In a store that is shared, changes made elsewhere are heard at once; what was not heard
 * is found by the look at all counters and versions once a second. Keeper's thread. */
#ifndef SCHED_NODE_SYNC_H
#define SCHED_NODE_SYNC_H

#include "sched/sched.h"

struct view;

struct view *view_new(struct sched *sched, struct node_table *members);
void view_free(struct view *view);
void view_load(struct view *view);    /* all nodes */
void view_compare(struct view *view); /* counters and versions of all; then loads what differs */
void view_tick(struct view *view);    /* tells signs of life, at most twice a second */
/* NODES or GAP: something changed elsewhere, or may have. */
void view_heard(struct view *view, const struct store_word *word);
/* Signs of life another instance heard: what it wrote with view_tick. */
void view_seen(struct view *view, struct str text);
/* Is an instance there? One nobody has seen yet may have come a moment ago. */
bool view_has_peer(const struct view *view, uint32_t name);
/* clock_mono_us of the oldest change made elsewhere that no edition holds yet; 0: none. Forgets it.
 */
int64_t view_take_oldest_us(struct view *view);

#endif
