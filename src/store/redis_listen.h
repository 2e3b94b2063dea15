/* Listening to what other instances say: a thread with a connection of its own that is subscribed,
 * and is so again as soon as it can whenever it was cut. */
#ifndef STORE_REDIS_LISTEN_H
#define STORE_REDIS_LISTEN_H

#include "store/op_queue.h"
#include "store/redis_link.h"
#include "store/store.h"

struct redis_listen {
    struct redis_link link;
    struct work_queue work_queue; /* only its thread */
    const struct store *store;
    struct store_listener *listener;
    char inbox[64]; /* the channel of what is for us alone */
    bool started;
    _Atomic bool deaf; /* not subscribed now; for any thread */

    /* Written by the store thread, read here. */
    struct status_text generation;
    _Atomic uint64_t master; /* a hash of where the store is now; 0: not known */
    _Atomic bool stopping;
};

void redis_listen_init(struct redis_listen *subscriber, const struct redis_target *target,
                       const char *instance, const struct store *store);
/* False: no thread to be had. `listener` hears from now on. */
bool redis_listen_start(struct redis_listen *subscriber, struct store_listener *listener);
/* Nothing is heard when this returns, a tenth of a second later at most. */
void redis_listen_stop(struct redis_listen *subscriber);
uint64_t redis_addr_mark(const struct redis_addr *at);

#endif
