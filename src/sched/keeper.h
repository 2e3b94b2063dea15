/* The keeper: the one thread that owns the table of nodes, publishes snapshots, and does the work
 * that no request waits for (sweeps, the queue, retries, the scan for silent nodes). The server
 * runs it: it calls keeper_turn after each batch of messages and keeper_tick ten times a second. */
#ifndef SCHED_KEEPER_H
#define SCHED_KEEPER_H

#include "sched/registry.h"
#include "sched/sched.h"

struct keeper;
struct hours;
struct queue;

/* Takes over `arena`, which holds `pairs`. */
struct keeper *keeper_new(struct sched *sched, const struct pool_pair *pairs, size_t pair_count,
                          struct arena arena);
void keeper_free(struct keeper *keeper);

/* On the keeper's thread. */
/* loads the nodes; sets sched->ready when they are live */
void keeper_start(struct keeper *keeper);
void keeper_turn(struct keeper *keeper);
void keeper_tick(struct keeper *keeper);
struct hours *keeper_hours(struct keeper *keeper); /* what became of work, hour by hour */
struct node_sync *keeper_view(struct keeper *keeper);
const struct queue *keeper_queue(const struct keeper *keeper);

/* Any thread. */
/* The store has it: make it live. */
void keeper_apply(struct keeper *keeper, struct node_change *change);
/* By str_hash(): a job with one of these keys may start now. Any thread. */
void keeper_keys_freed(struct keeper *keeper, const uint64_t *keys, size_t count);
/* Rules of keys, or a hold, were changed here: jobs that wait for keys are checked again. Any
 * thread. */
void keeper_limits_changed(struct keeper *keeper);
/* One of its slots became free, or the node improved in another way. Cheap when nothing waits. */
void keeper_freed(struct keeper *keeper, struct node *node);
/* A job goes on: to another node (SELECTING) or to its next attempt (RETRYING); or it was put into
 * a lane, and then counts as waiting at once. Copies what it needs of the record. */
void keeper_continue(struct keeper *keeper, const struct store_record *record);
/* The job no longer waits. The keeper would find out by itself, but the job must not be put again
 * if the store loses it, and must leave the count. */
void keeper_forget(struct keeper *keeper, uint64_t job);
/* on its own thread */
void keeper_notice(struct keeper *keeper, const struct store_notice *notice);
/* Its client was refused although the store may have the job: it must end as soon as the store
 * accepts the call, with the reason OUTCOME_UNKNOWN that the client was given. */
void keeper_abandon(struct keeper *keeper, uint64_t job, struct str spec);

#endif
