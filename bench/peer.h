/* Queue servers that are measured beside us. What differs between them is what is said on a
 * connection: a row for each protocol (gearman.c, beanstalkd.c, nats.c); the two processes that say
 * it are peer.c's. */
#ifndef BENCH_PEER_H
#define BENCH_PEER_H

#include "load.h"

/* One of the two processes, as a protocol sees it. */
struct peer {
    const struct bench_protocol *protocol;
    struct bench_shared *shared;
    int jobs;
    int ended; /* since the submitter was last told */
};

/* The protocols tell what happened. A job is known by its number, which is its payload;
 * ERR_BAD_REQUEST when there is no such job. */
enum err peer_number(const struct peer *peer, struct str text, int *ret_number);
void peer_started(struct peer *peer, int number);
void peer_done(struct peer *peer, int number);
void peer_welcomed(struct peer *peer); /* a connection of the worker will be given jobs */

/* Everything at the front of `in` that is whole, told by `take`, and gone from it. */
enum err peer_take_all(struct peer *peer, struct bench_conn *conn, peer_take *take);

/* Both processes of every protocol but our own. */
enum err peer_submit_all(struct bench_load *load);
_Noreturn void peer_work(const struct bench_work *work);

#endif
