/* Reads that need nothing to stand still: jobs, lists, sessions, nodes. They go over two
 * connections of their own, one for what takes a single call and one for what takes many: a long
 * list keeps neither a dispatch nor a look at one job waiting. Each on its reader's thread. */
#ifndef STORE_REDIS_READ_H
#define STORE_REDIS_READ_H

#include "store/redis_link.h"
#include "store/store.h"

struct redis_read {
    struct redis_link *link;
    struct store_op *op;
    int64_t timeout_ms; /* of each answer of Redis; as long as they come, a list may go on */
    int64_t offset_ms;  /* of the store's time before its steady clock, as last heard */
    struct arena arena; /* until the answer is complete */
    size_t jobs, bytes; /* a list has looked at so far, also those it does not tell */
};

bool redis_read_answers(enum store_verb verb);
bool redis_read_is_long(enum store_verb verb); /* its calls grow with what there is to tell */
/* False: the store cannot be read now; link->why says more. */
bool redis_read_run(struct redis_link *link, struct store_op *op, int64_t timeout_ms,
                    int64_t offset_ms);
/* The same for several STORE_JOB_GET, in one round trip. */
enum { REDIS_READ_JOBS_MAX = 16 };
bool redis_read_jobs(struct redis_link *link, struct store_op *const *ops, size_t count,
                     int64_t timeout_ms, int64_t offset_ms);
int64_t redis_read_due_ms(const struct redis_read *read); /* the deadline of a call made now */
/* What HMGET answers for the words of redis_state_words: an empty store has neither. */
struct wire_state;
bool redis_read_state(struct redis_read *read, const redisReply *reply,
                      struct wire_state *ret_state);

#endif
