/* A connection with our function library behind it: calls batches, loads the library where it is
 * missing, and knows what time it is there. The store thread's. */
#ifndef STORE_REDIS_SESSION_H
#define STORE_REDIS_SESSION_H

#include "store/redis_wire.h"

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
    bool unknown; /* the last call failed, but may have been run */
    bool untold;  /* it does not say whether it may evict keys */
    bool emptied; /* the generation changed: what was there before is gone */
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
/* Is this a Redis we can live with? The sentence says why not. */
enum err redis_session_check(struct redis_session *session, int64_t deadline_ms,
                             struct problem *why);
/* `number` as in struct wire_head. */
void redis_session_begin(struct redis_session *session, const struct store_config *config,
                         unsigned number);
/* What is `not_after_ms` (clock_mono_ms) by the store's clock? */
int64_t redis_session_bound(const struct redis_session *session, int64_t not_after_ms);
/* Calls go to one server until the next redis_session_release: bound after a call that worked. */
void redis_session_release(struct redis_session *session);
void redis_session_bind(struct redis_session *session);
/* Sends what was put into `wire`. The answers stand from WIRE_ANSWERS on, one for each op. NULL: it
 * failed and link.why says how; it changed nothing, or that is unknown. */
redisReply *redis_session_call(struct redis_session *session, int64_t deadline_ms);

#endif
