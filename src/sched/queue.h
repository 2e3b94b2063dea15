/* The queue as this instance knows it. It belongs to the store: a job that waits in a lane has no
 * owner, and any instance may place it. This file knows the lanes and, for each, a window: its
 * first jobs, which are placed in order. Higher priority first, oldest first within a priority,
 * across all instances; a lane without room holds up no other.
 *
 * A job whose attempt ended is in hand of the instance that settled it: it is tried at once, then
 * waits in its lane if it may. The keeper's thread. */
#ifndef SCHED_QUEUE_H
#define SCHED_QUEUE_H

#include "sched/sched.h"

struct queue;

struct queue *queue_new(struct sched *sched);
void queue_free(struct queue *queue);
/* A record in a lane (keeper_continue has counted it), or one to be tried at once. Copies. */
void queue_continue(struct queue *queue, const struct store_record *record);
/* Ends the job: at once, or when the store accepts it. */
void queue_abandon(struct queue *queue, const struct store_record *record);
void queue_want_kick(struct queue *queue); /* place what can be placed, at the end of this turn */
/* the node may have room, or take other work */
void queue_room(struct queue *queue, struct node *node);
void queue_key_freed(struct queue *queue, uint64_t key); /* by str_hash(): one job may start now */
void queue_limits_changed(struct queue *queue);          /* any key may have room now */
void queue_turn(struct queue *queue);
void queue_tick(struct queue *queue, int64_t now_ms); /* sched_awake_ms */
/* "LANE PRIORITY JOB", a STORE_NOTICE_LANE: the job was put there, among the first. */
void queue_notice(struct queue *queue, struct str text);
void queue_look(struct queue *queue); /* a notice may have been missed: look at all lanes soon */
/* The store may have lost the latest puts: they are put again, see replay.h. */
void queue_put_again(struct queue *queue);
/* The job no longer waits. number: of the lane where it did; 0: unknown. */
void queue_forget(struct queue *queue, uint64_t job, uint64_t number);
/* Of the jobs it knows: the first ones of each lane, and those in hand. 0: none wait. */
int64_t queue_oldest_ms(const struct queue *queue, int64_t now_ms);
uint64_t queue_lane_looks(const struct queue *queue); /* looks at lanes so far */
size_t queue_bytes(const struct queue *queue);        /* of the records in all windows */
bool queue_in_hand(const struct queue *queue, uint64_t job);
/* May it have been reserved without our knowing? If so the queue itself gives that back or ends the
 * job. */
bool queue_is_unsettled(const struct queue *queue, uint64_t job);

#endif
