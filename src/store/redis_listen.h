/* Listens to other instances: a thread with its own subscribed connection, which reconnects as soon
 * as it can after being cut. */
#ifndef STORE_REDIS_LISTEN_H
#define STORE_REDIS_LISTEN_H

#include "store/op_queue.h"
#include "store/redis_link.h"
#include "store/store.h"

struct redis_listen {
    struct redis_link link;
    struct work_queue work_queue; /* used only for its thread */
    const struct store *store;
    struct store_listener *listener;
    char inbox[64]; /* the channel of messages to this instance only */
    bool started;
    _Atomic bool deaf; /* not subscribed now; any thread */

    /* Written by the store thread, read here. */
    struct status_text generation;
    _Atomic uint64_t master; /* a hash of the store's current address; 0: unknown */
    _Atomic bool stopping;
};

void redis_listen_init(struct redis_listen *subscriber, const struct redis_target *target,
                       const char *instance, const struct store *store);
/* False: the thread could not be created. `listener` gets notices from now on. */
bool redis_listen_start(struct redis_listen *subscriber, struct store_listener *listener);
/* No notices are delivered after this returns, which takes at most a tenth of a second. */
void redis_listen_stop(struct redis_listen *subscriber);
uint64_t redis_addr_mark(const struct redis_addr *at);

#endif
