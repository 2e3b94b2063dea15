/* The store in Redis: one thread that sends batches, one that reads. See docs/redis.md. */
#ifndef STORE_REDIS_H
#define STORE_REDIS_H

#include "store/redis_wire.h"
#include "store/store.h"

extern const struct store_backend redis_backend;
extern const struct store_backend redis_sentinel_backend;
extern const struct store_backend redis_cluster_backend;
extern const struct store_backend rediss_backend; /* only says why it cannot be */

/* A connection with our function library behind it: calls batches, loads the library where it is
 * missing, and knows what time it is there. The store thread's. */

enum { REDIS_FUNCTION_MAX = 47, REDIS_GENERATION_MAX = 23, REDIS_MOVED_MS = 60000 };

struct redis_session {
    struct redis_link link;
    char master[REDIS_MASTER_MAX + 1]; /* the last one bound; "": none yet */
    struct wire wire;                  /* the batch that is being made */
    int64_t (*test_clock)(void);       /* NULL: Redis' own time counts */
    int64_t timeout_ms;
    char library[REDIS_FUNCTION_MAX + 1];
    char function[REDIS_FUNCTION_MAX + 16];
    uint32_t name;                      /* of this instance: another one after every start */
    char instance[STORE_NAME_TEXT + 1]; /* and as text */
    /* The store's time: `store_ms` was not before it was `mono_ms` here. */
    int64_t store_ms; /* 0: not known yet */
    int64_t mono_ms;
    char generation[REDIS_GENERATION_MAX + 1]; /* "": none seen yet */
    char next_generation[REDIS_GENERATION_MAX + 1];
    bool unknown;        /* the last call failed, but may have been run */
    bool policy_unknown; /* it does not say whether it may evict keys */
    bool emptied;        /* the generation changed: what was there before is gone */
    /* Another server took over, after a failover, a move of the slot or a restart. What the
     * one before acknowledged last may be gone; for a while nodes tell what they hold. */
    unsigned moves;
    int64_t moved_until_ms; /* clock_mono_ms */
    int64_t lost;           /* leases the last batch took back from nodes */
    int64_t offset_ms;      /* of the store's time before its steady clock */
    uint64_t order;         /* before the first op of the last batch */
    int64_t open_breakers;
};

void redis_session_init(struct redis_session *session, const struct redis_target *target,
                        const struct store_config *config);
void redis_session_free(struct redis_session *session);
/* `number` as in struct wire_head. */
void redis_session_begin(struct redis_session *session, const struct store_config *config,
                         unsigned number);
/* Sends what was put into `wire`. The answers are from WIRE_ANSWERS on, one for each op. NULL: it
 * failed and link.why says how; it changed nothing, or that is unknown. */
redisReply *redis_session_call(struct redis_session *session, int64_t deadline_ms);

#endif
