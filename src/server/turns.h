/* Requests whose answers grow with the cluster take turns on their loop, so that whoever asks for
 * many of them holds up the others that do, and nobody else: one is begun in a turn of the loop, a
 * few are under way, and callers come round in a ring, whatever one of them has waiting. */
#ifndef SERVER_TURNS_H
#define SERVER_TURNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/inbox.h"

enum {
    TURNS_UNDER_WAY_MAX = 4,
    TURNS_LANES =
        64, /* callers are told apart by a hash; those that share a lane wait for each other */
};

/* Stands in the memory of the request. */
struct turn {
    struct turn *next;
    bool under_way;
    void (*run)(struct turn *turn); /* its turn has come; turns_leave() when it is over */
};

struct turns {
    struct inbox *inbox; /* of the loop */
    struct msg msg;
    bool posted; /* one was begun, or ended: the next begins in another turn of the loop */
    int under_way;
    size_t lane; /* the one that had its turn last */
    struct turn *first[TURNS_LANES], *last[TURNS_LANES];
};

void turns_init(struct turns *turns, struct inbox *inbox);
/* Runs it now or later, on the same loop. */
void turns_enter(struct turns *turns, uint64_t caller, struct turn *turn);
void turns_leave(struct turns *turns); /* one that was run is over; its memory may be gone */

#endif
