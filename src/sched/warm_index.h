/* Which nodes have a name loaded, and which names a node has: from heartbeats, read by every
 * dispatch whose job prefers something. Advisory like all live figures: any thread reads and writes
 * without waiting, nothing is stored, and no snapshot is made for it. */
#ifndef SCHED_WARM_INDEX_H
#define SCHED_WARM_INDEX_H

#include "base/clock.h"
#include "base/schema.h"
#include "sched/snapshot.h"

enum { WARM_INDEX_NODES = 64 }; /* nodes kept for a name; one on more nodes is easily sampled */

struct warm_index;

struct warm_index *warm_index_new(void);
void warm_index_free(struct warm_index *index); /* NULL is fine */

/* Everything the node has loaded. Call it again even if unchanged: that restores entries lost when
 * two threads wrote at once. */
void warm_index_put(struct warm_index *index, struct node *node, const struct strs *names);
/* How many of these names the node has. */
int32_t warm_index_has(const struct node *node, const uint32_t *marks, size_t count);
/* The numbers of nodes that have the name, as far as is known, in random order; `out` has room for
 * `max`. Returns how many. */
size_t warm_index_find(struct warm_index *index, uint32_t mark, struct rnd *rnd, size_t max,
                       uint32_t *out);
/* The node no longer has it. */
void warm_index_del(struct warm_index *index, uint32_t mark, uint32_t number);

#endif
