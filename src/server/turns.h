/* Requests whose answers grow with the cluster take turns on their loop, so that a caller who sends
 * many of them delays only other such requests: one is started per turn of the loop, a few run at a
 * time, and callers are served round-robin, however many requests one of them has waiting. */
#ifndef SERVER_TURNS_H
#define SERVER_TURNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/inbox.h"

enum {
    TURNS_UNDER_WAY_MAX = 4,
    TURNS_LANES =
        64, /* chosen by a hash of the caller; callers that share a lane wait for each other */
};

/* Lives in the request's memory. */
struct turn {
    struct turn *next;
    bool under_way;
    void (*run)(struct turn *turn); /* its turn has come; call turns_leave() at the end */
};

struct turns {
    struct inbox *inbox; /* of the loop */
    struct msg msg;
    bool posted; /* one was started or has ended: the next starts in another turn of the loop */
    int under_way;
    size_t lane; /* the lane served last */
    struct turn *first[TURNS_LANES], *last[TURNS_LANES];
};

void turns_init(struct turns *turns, struct inbox *inbox);
/* Runs it now or later, on the same loop. */
void turns_enter(struct turns *turns, uint64_t caller, struct turn *turn);
void turns_leave(struct turns *turns); /* one that was run has ended; it may be freed already */

#endif
