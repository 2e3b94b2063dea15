/* Ops as arguments of the function library, and its answers as answers of ops. The other end is
 * lua/batch.lua. */
#ifndef STORE_REDIS_WIRE_H
#define STORE_REDIS_WIRE_H

#include "base/arena.h"
#include "store/redis_link.h"
#include "store/store.h"

enum {
    WIRE_OPS_MAX = 64,
    WIRE_BYTES_MAX = 256 * 1024, /* no further op joins a batch that has so many */
    WIRE_ANSWERS = 4, /* where the answers begin: now, order, generation, open breakers */
};

/* The longest time the library knows; later than that is for ever. */
#define WIRE_FOREVER INT64_C(99999999999999)

struct wire {
    struct arena arena; /* of the texts made here */
    const char **texts;
    size_t *lens;
    size_t count;
    size_t cap;
    size_t bytes;
    size_t ops_at; /* where the number of ops stands */
    int ops;
};

struct wire_head {
    const char *function;
    int64_t now_ms;         /* only a library for tests looks at it */
    int64_t late_ms;        /* store time after which nothing changes any more; 0: no bound */
    const char *instance;   /* its number and a name for this life of it */
    const char *generation; /* the name of a new one, if the store turns out to be empty */
    int64_t retention_ms;
    int64_t breaker_threshold;
    int64_t breaker_cooldown_ms;
    bool alive; /* note that this instance is there */
};

void wire_begin(struct wire *wire, const struct wire_head *head);
/* `not_after_ms` in store time. */
void wire_op(struct wire *wire, const struct store_op *op, int64_t not_after_ms);
/* Our own: an instance arrives, leaves, tidies up. */
void wire_arrive(struct wire *wire, unsigned instance, int64_t running_ttl_ms);
void wire_leave(struct wire *wire, unsigned instance);
void wire_tidy(struct wire *wire, int64_t jobs_max);
struct redis_args wire_args(struct wire *wire); /* complete; valid until the next wire_begin */
void wire_free(struct wire *wire);

/* False: it is not what this version writes. */
bool wire_answer(struct store_op *op, const redisReply *answer);
bool wire_head_read(struct str packed, struct store_head *ret_head); /* its id is left alone */
struct wire_node {
    struct lease_node counts;
    enum node_health own;
    enum node_admin admin;
    bool known;
    int64_t registered_ms;
    int64_t version;
};
/* The order of answers out of `meta.state`; 0 when there is none. */
uint64_t wire_order(struct str state);
bool wire_node_read(struct str packed, struct wire_node *ret_node);

#endif
