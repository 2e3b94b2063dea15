/* Jobs that wait in this instance, in memory, on the keeper's thread. Their durable record is held
 * by this instance (STORE_HOLD); when it dies another adopts them. One queue per pool and selector:
 * higher priority first, oldest first within it; a pool without room holds up no other. */
#ifndef SCHED_QUEUE_H
#define SCHED_QUEUE_H

#include "sched/sched.h"

struct queue;

struct queue *queue_new(struct sched *sched);
void queue_free(struct queue *queue);
/* A record that is NEW (waits), SELECTING or RETRYING (tried at once, then waits if it may).
 * Copies. counted: whoever put it into the store has called sched_queue_enter() already. */
void queue_continue(struct queue *queue, const struct store_record *record, bool counted);
/* Ends it: at once, or when the store takes it. */
void queue_abandon(struct queue *queue, const struct store_record *record, const char *reason);
void queue_kick(struct queue *queue);                 /* place what can be placed */
void queue_tick(struct queue *queue, int64_t now_ms); /* time-outs, holds */
/* The store may have lost what waits here: it is put there again, which changes nothing for what it
 * has. */
void queue_put_again(struct queue *queue);
void queue_forget(struct queue *queue, uint64_t job);
int64_t queue_oldest_ms(const struct queue *queue, int64_t now_ms); /* 0: nobody waits */
bool queue_holds(const struct queue *queue, uint64_t job);

#endif
