/* All nodes in a few figures, once a second, for the metrics: their number is bounded however many
 * nodes there are. */
#ifndef SCHED_CENSUS_H
#define SCHED_CENSUS_H

#include "model/level.h"
#include "model/node.h"
#include "sched/snapshot.h"

struct census {
    int64_t by_health[NODE_HEALTH_COUNT];
    int64_t by_level[LEVEL_COUNT];
    int64_t reserved, running; /* of all */
    int64_t max, used;         /* of those that are ready */
};

void census_add(struct census *census, const struct node *node);
void census_tell(const struct census *census); /* to the metrics */

#endif
