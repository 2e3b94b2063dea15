/* The store in Redis: one thread that sends batches, one that reads. See docs/redis.md. */
#ifndef STORE_REDIS_H
#define STORE_REDIS_H

#include "store/store.h"

extern const struct store_backend redis_backend;
extern const struct store_backend redis_sentinel_backend;
extern const struct store_backend redis_cluster_backend;
extern const struct store_backend rediss_backend; /* only says why it cannot be */

#endif
