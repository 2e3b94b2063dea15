/* Reads that need nothing to stand still: jobs, lists, sessions, nodes. They go over a connection
 * of their own, so that a long list keeps no dispatch waiting. The helper thread's. */
#ifndef STORE_REDIS_READ_H
#define STORE_REDIS_READ_H

#include "store/redis_link.h"
#include "store/store.h"

struct redis_read {
    struct redis_link *link;
    struct store_op *op;
    int64_t deadline_ms;
    struct arena arena; /* until the answer is complete */
};

bool redis_read_answers(enum store_verb verb);
/* False: the store cannot be read now; link->why says more. */
bool redis_read_run(struct redis_link *link, struct store_op *op, int64_t deadline_ms);

/* Between redis_read.c, redis_nodes.c and redis_peers.c. An error, or not the shape that was asked
 * for, is NULL.
 */
redisReply *redis_read_checked(struct redis_read *read, redisReply *reply, int type,
                               const char *what);
redisReply *redis_read_list(struct redis_read *read, struct redis_args args, const char *what);
struct wire_state;
bool redis_read_state(struct redis_read *read, struct wire_state *ret_state);
bool redis_read_nodes(struct redis_read *read); /* NODES, COUNTS */
bool redis_read_peers(struct redis_read *read); /* PEERS */

#endif
