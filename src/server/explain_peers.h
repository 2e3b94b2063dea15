/* What other instances on the same store have decided about a job: each keeps its own decisions, so
 * whoever is asked asks the others. One that does not answer in time is left out. */
#ifndef SERVER_EXPLAIN_PEERS_H
#define SERVER_EXPLAIN_PEERS_H

#include "server/explain_write.h"
#include "server/rpc.h"

#define EXPLAIN_PEERS_NODE "*" /* in the place of a node: the instance itself is asked */

/* A round of questions. */
struct explain_round {
    struct worker *worker;
    struct arena *arena;
    uint64_t job;
    struct str spec; /* JSON; len 0: nobody has it */
    size_t limit;
    void (*done)(struct explain_round *round); /* on the worker's loop */
    /* answer */
    struct str *texts; /* JSON arrays of decisions, in the arena */
    size_t count;
    /* private */
    struct store_op op;
    struct explain_question *questions;
    size_t asked, open;
    struct str params;
};
void explain_round_start(struct explain_round *round); /* nobody else: done() at once */

/* On the keeper of an instance that is asked: answers through rpc_over(). */
void explain_peers_answer(struct rpc *rpc);

/* Decisions as a JSON array, oldest first. */
struct str explain_decisions(const struct buf *found, const struct explain_style *style,
                             struct arena *arena);

#endif
