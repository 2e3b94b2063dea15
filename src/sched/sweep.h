/* The sweep: moves on what ran out. Leases whose ACK or renewal did not come, jobs that waited long
 * enough, and those in hand of an instance that died. Any instance may do it; the store lets each
 * take effect once. Keeper's thread. */
#ifndef SCHED_SWEEP_H
#define SCHED_SWEEP_H

#include "sched/queue.h"
#include "sched/sched.h"

struct sweep;

struct sweep *sweep_new(struct sched *sched, struct queue *queue);
void sweep_free(struct sweep *sweep);
void sweep_tick(struct sweep *sweep); /* looks, unless the last look is still under way */

#endif
