/* Generates random calls as a store gets them under load: several about the same job and the same
 * nodes, mostly ordinary, some odd. Each call is made for two stores. */
#ifndef TESTS_STORE_CROWD_H
#define TESTS_STORE_CROWD_H

#include "rig.h"

#include "base/clock.h"

enum {
    JOBS = 300,
    NODES = 24,
    STRANGERS = 24, /* most runs in a heartbeat's list that are not the node's */
    RUNS = JOBS + STRANGERS,
    LANES = 5,
    DUES = 4096,       /* never reached: which of too many jobs DUE lists first is undefined */
    EMBEDDED = 0,      /* index of its side and its rig */
    INSTANCES_MAX = 2, /* on Redis */
};

extern const char *const crowd_nodes[NODES];
extern const uint64_t crowd_lanes[LANES];

struct side {
    struct store_op op;
    struct store_run runs[RUNS];
    struct play *play;
};

struct call {
    struct side sides[2]; /* embedded, Redis */
    int slot;             /* of the job it is about; -1: none */
};

struct play {
    /* Embedded, then each Redis instance; all use the first one's inbox. */
    struct rig rigs[1 + INSTANCES_MAX];
    int instances;
    int turn;         /* the rig that makes the calls of this round */
    int64_t drift_ms; /* how far the clocks have moved since the instances last synchronised */
    struct rnd rnd;
    uint64_t next_id;
    struct store_head heads[JOBS]; /* as last answered, or as the batch will leave them */
    uint64_t ids[JOBS];
    struct call *calls;
    struct store_due *dues[2];
    size_t due_count; /* due jobs still to be settled */
    bool due_asked;   /* DUE was called in this round */
    bool tame;        /* nearly all calls of this round are ordinary */
    /* All jobs of this round are new and each has other terms; 0: not such a round. */
    int flood;
    int last;       /* slot of the call before; -1: none */
    uint64_t fresh; /* the job that was made last */
    int waiting;
    long ops;
    long answers[STORE_VERB_COUNT][2]; /* refused, accepted */
};

unsigned crowd_below(struct play *play, unsigned bound);
bool crowd_chance(struct play *play, unsigned one_in);
/* The `done` of each op. */
void crowd_arrived(struct store_op *op);
/* Generates a call; `before` is the previous one of this round, or NULL. */
void crowd_call(struct play *play, struct call *call, const struct call *before);

#endif
