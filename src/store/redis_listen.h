/* Listening to what other instances say: a thread with a connection of its own that is subscribed,
 * and is so again as soon as it can whenever it was cut. */
#ifndef STORE_REDIS_LISTEN_H
#define STORE_REDIS_LISTEN_H

#include "store/desk.h"
#include "store/redis_link.h"
#include "store/store.h"
#include "store/textbox.h"

struct redis_ears {
    struct redis_link link;
    struct desk desk; /* only its thread */
    const struct store *store;
    struct store_ear *ear;
    char inbox[64]; /* the channel of what is for us alone */
    bool started;
    _Atomic bool deaf; /* not subscribed now; for any thread */

    /* Written by the store thread, read here. */
    struct textbox generation;
    _Atomic uint64_t master; /* a hash of where the store is now; 0: not known */
    _Atomic bool stopping;
};

void redis_ears_init(struct redis_ears *ears, const struct redis_target *target,
                     const char *instance, const struct store *store);
/* False: no thread to be had. `ear` hears from now on. */
bool redis_ears_start(struct redis_ears *ears, struct store_ear *ear);
/* Nothing is heard when this returns, a tenth of a second later at most. */
void redis_ears_stop(struct redis_ears *ears);
uint64_t redis_addr_mark(const struct redis_addr *at);

#endif
