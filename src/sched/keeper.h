/* The keeper: the one thread that owns the table of nodes, publishes snapshots, and does what no
 * request waits for (sweeps, the queue, retries, the scan for silent nodes). The server runs it: it
 * calls keeper_turn after each batch of messages and keeper_tick ten times a second. */
#ifndef SCHED_KEEPER_H
#define SCHED_KEEPER_H

#include "sched/registry.h"
#include "sched/sched.h"

struct keeper;
struct hours;

/* Takes over `arena`, in which `pairs` stand. */
struct keeper *keeper_new(struct sched *sched, const struct pool_pair *pairs, size_t pair_count,
                          struct arena arena);
void keeper_free(struct keeper *keeper);

/* On the keeper's thread. */
void keeper_start(struct keeper *keeper); /* loads the nodes; sched->ready when they are live */
void keeper_turn(struct keeper *keeper);
void keeper_tick(struct keeper *keeper);
struct hours *keeper_hours(struct keeper *keeper); /* what became of work, hour by hour */
struct view *keeper_view(struct keeper *keeper);

/* Any thread. */
void keeper_apply(struct keeper *keeper,
                  struct change *change); /* true in the store: make it live */
void keeper_kick(struct keeper *keeper);  /* capacity may have become free: look at the queue */
/* A job goes on: to another node (SELECTING), to its next attempt (RETRYING) or into the queue
 * (NEW). Copies what it needs of the record. counted: see queue_continue. */
void keeper_continue(struct keeper *keeper, const struct store_record *record, bool counted);
void keeper_forget(struct keeper *keeper, uint64_t job); /* cancelled: it need not wait any more */
/* Its client was refused although the store may have the job: it must end, as soon as the store
 * takes the word for it. `reason` is a literal. */
void keeper_abandon(struct keeper *keeper, uint64_t job, struct str spec, const char *reason);

#endif
