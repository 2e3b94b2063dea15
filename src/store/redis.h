/* The store in Redis: one thread that sends batches, one that reads. See docs/redis.md. */
#ifndef STORE_REDIS_H
#define STORE_REDIS_H

#include "store/redis_wire.h"
#include "store/store.h"

extern const struct store_backend redis_backend;
extern const struct store_backend redis_sentinel_backend;
extern const struct store_backend redis_cluster_backend;
extern const struct store_backend rediss_backend; /* only reports why TLS is not supported */

/* A connection with our function library: calls batches, loads the library where it is missing, and
 * tracks the server's time. Store thread only. */

enum { REDIS_FUNCTION_MAX = 47, REDIS_GENERATION_MAX = 23, REDIS_MOVED_MS = 60000 };

struct redis_session {
    struct redis_link link;
    char master[REDIS_MASTER_MAX + 1]; /* the last server bound; "": none yet */
    struct wire wire;                  /* the batch being built */
    int64_t (*test_clock)(void);       /* NULL: use the time of Redis */
    int64_t timeout_ms;
    char library[REDIS_FUNCTION_MAX + 1];
    char function[REDIS_FUNCTION_MAX + 16];
    uint32_t name;                      /* of this instance, new with every start */
    char instance[STORE_NAME_TEXT + 1]; /* the same as text */
    /* The store's time: it read `store_ms` at local time `mono_ms` or later. */
    int64_t store_ms; /* 0: not known yet */
    int64_t mono_ms;
    char generation[REDIS_GENERATION_MAX + 1]; /* "": none seen yet */
    char next_generation[REDIS_GENERATION_MAX + 1];
    bool unknown;        /* the last call failed but may have been executed */
    bool policy_unknown; /* Redis does not reveal whether it may evict keys */
    bool emptied;        /* the generation changed: the earlier data is gone */
    /* How often another server took over, after a failover, a move of the slot or a restart. The
     * last acknowledged writes may be lost; for a while nodes report what they hold. */
    unsigned moves;
    int64_t moved_until_ms; /* clock_mono_ms */
    int64_t lost;           /* leases the last batch restored from node reports */
    int64_t offset_ms;      /* of the store's time ahead of its steady clock */
    uint64_t order;         /* its value before the first op of the last batch */
    int64_t open_breakers;
};

void redis_session_init(struct redis_session *session, const struct redis_target *target,
                        const struct store_config *config);
void redis_session_free(struct redis_session *session);
/* `number` as in struct wire_head. */
void redis_session_begin(struct redis_session *session, const struct store_config *config,
                         unsigned number);
/* Sends the batch in `wire`. The answers start at WIRE_ANSWERS, one per op. NULL: it failed, see
 * link.why; it changed nothing, or that is unknown (see `unknown`). */
redisReply *redis_session_call(struct redis_session *session, int64_t deadline_ms);

#endif
