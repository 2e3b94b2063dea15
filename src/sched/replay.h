/* What this instance put into the queue of a shared store in the last seconds: if that store is
 * emptied, or another server takes over without the latest acknowledged writes, it is put again.
 * Whatever the store still has is left unchanged. The keeper's thread. */
#ifndef SCHED_REPLAY_H
#define SCHED_REPLAY_H

#include "sched/sched.h"

struct replay;

/* Jobs lost in a failover are younger than this; older ones may have ended since. */
enum { REPLAY_KEEP_MS = 10000 };

struct replay *replay_new(struct sched *sched);
void replay_free(struct replay *replay);
/* A job that waits until due_ms of its head, in store time. Copies. */
void replay_add(struct replay *replay, const struct store_record *record);
/* The job went on: if it were put again, it would run a second time. */
void replay_forget(struct replay *replay, uint64_t job);
void replay_begin(struct replay *replay); /* the store may have lost them all */
void replay_tick(struct replay *replay);

#endif
