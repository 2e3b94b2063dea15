/* A question to all other instances on the same store, about what each keeps for itself. One that
 * does not answer in time is left out. */
#ifndef SERVER_PEERS_ROUND_H
#define SERVER_PEERS_ROUND_H

#include "server/rpc.h"

#define PEERS_ITSELF "*" /* in the place of a node: the instance itself is asked */

struct peers_round {
    struct worker *worker;
    struct arena *arena;
    const char *method; /* see peers_job.c */
    struct str params;
    void (*done)(struct peers_round *round); /* on the worker's loop */
    /* answer */
    struct str *texts; /* those that are not empty, in the arena */
    size_t count;
    size_t asked, answered; /* instances */
    /* private */
    struct store_op op;
    struct peers_question *questions;
    size_t open;
};

void peers_round_start(struct peers_round *round); /* nobody else: done() at once */

#endif
