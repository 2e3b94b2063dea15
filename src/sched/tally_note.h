/* Where tallies come from: attempts that end, dispatches that are refused, machines that are
 * looked at. */
#ifndef SCHED_TALLY_NOTE_H
#define SCHED_TALLY_NOTE_H

#include "sched/hours.h"
#include "sched/sched.h"

/* A FINISH that counted. ended: the job ended with it; not so when only an attempt did, or what was
 * cancelled before stops at last. */
void tally_note_end(struct sched_loop *loop, const struct store_op *op, bool ended);
/* A job that was accepted found no node for a further try and has failed. */
void tally_note_unplaced(struct sched_loop *loop, const struct store_head *head);
void tally_note_refusal(struct sched_loop *loop, struct str node, struct str type,
                        const char *reason);
/* A node as it was for the last `ms`. */
void tally_note_machine(struct tally *tally, const struct node *node, int64_t ms);
/* Lays out what this loop counted for the keeper; call it now and then. */
void tally_tick(struct sched_loop *loop);
/* On the keeper's thread, or when the others have ended: takes what all loops laid out. NULL: to be
 * thrown away. */
void tally_collect(struct sched *sched, struct tally *into);

#endif
