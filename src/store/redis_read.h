/* Reads that need no atomic snapshot: jobs, lists, sessions, nodes. They use two separate
 * connections, one for reads of a single call and one for reads of many, so a long list delays
 * neither a dispatch nor the read of a single job. Each runs on its reader's thread. */
#ifndef STORE_REDIS_READ_H
#define STORE_REDIS_READ_H

#include "store/redis_link.h"
#include "store/store.h"

struct redis_read {
    struct redis_link *link;
    struct store_op *op;
    int64_t timeout_ms; /* of each answer of Redis; a list may go on as long as answers come */
    int64_t offset_ms;  /* of the store's time ahead of its steady clock, as last received */
    struct arena arena; /* until the answer is complete */
    size_t jobs, bytes; /* a list has read so far, including those filtered out */
};

bool redis_read_answers(enum store_verb verb);
bool redis_read_is_long(enum store_verb verb); /* its calls grow with the size of the answer */
/* False: the store cannot be read now; link->why says more. */
bool redis_read_run(struct redis_link *link, struct store_op *op, int64_t timeout_ms,
                    int64_t offset_ms);
/* Runs several STORE_JOB_GET in one round trip. */
enum { REDIS_READ_JOBS_MAX = 16 };
bool redis_read_jobs(struct redis_link *link, struct store_op *const *ops, size_t count,
                     int64_t timeout_ms, int64_t offset_ms);
int64_t redis_read_due_ms(const struct redis_read *read); /* the deadline of a call made now */
/* Reads the answer of HMGET for redis_state_words: an empty store has neither. */
struct wire_state;
bool redis_read_state(struct redis_read *read, const redisReply *reply,
                      struct wire_state *ret_state);

#endif
