/* Slots that `berth run` has taken on this machine: a locked file each, in a directory of the
 * user's. The lock goes with the last process that has the file open, so a slot cannot be lost. */
#ifndef AGENT_ADMIT_SLOTS_H
#define AGENT_ADMIT_SLOTS_H

#include "agent/protect.h"

enum { ADMIT_SLOTS_MAX = 4096 };

struct admit_slots {
    int dir_fd;
    int gate_fd; /* locked while somebody decides */
};

/* Below $XDG_RUNTIME_DIR, else /tmp; made when it is not there, refused when it is not ours. */
enum err admit_slots_open(struct admit_slots *ret_slots, struct problem *why);
void admit_slots_close(struct admit_slots *slots);

/* Who decides has this, so that two never take the last slot together; held for milliseconds.
 * ERR_BUSY: somebody else has had it for too long. */
enum err admit_slots_lock(struct admit_slots *slots, struct problem *why);
void admit_slots_unlock(struct admit_slots *slots);

/* Under the lock. Those that are taken, in no order; at most `max`. Types are in the arena. */
size_t admit_slots_list(struct admit_slots *slots, struct protect_task *tasks, size_t max,
                        struct arena *arena);
/* Under the lock. *ret_fd holds the slot for as long as it, or a copy, is open: it stays open
 * across exec. `task` is what others see of it. */
enum err admit_slots_take(struct admit_slots *slots, const struct protect_task *task, int *ret_fd,
                          struct problem *why);

#endif
