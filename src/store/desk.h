/* A desk: one thread and the inbox it works from. Anyone may post; only the desk's own thread ever
 * waits. */
#ifndef STORE_DESK_H
#define STORE_DESK_H

#include "base/inbox.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct desk {
    struct inbox inbox;
    _Atomic uint32_t asleep; /* futex: 1 while the thread sleeps or is about to */
    pthread_t thread;
};

void desk_init(struct desk *desk); /* messages may be posted from here on */
/* All signals are blocked on the new thread: they are for the loops. False: no thread to be had. */
bool desk_start(struct desk *desk, const char *name, void *(*work)(void *), void *arg);
void desk_join(struct desk *desk);
/* On the desk's thread: returns when something is in the inbox or the time is over. */
void desk_wait(struct desk *desk, int64_t timeout_ms);

#endif
