/* What a crowd of calls is about, and how one of them is made up: as they come under load, several
 * about the same job and the same nodes, what is ordinary between what is not. Each is made for two
 * stores. */
#ifndef TESTS_STORE_CROWD_H
#define TESTS_STORE_CROWD_H

#include "rig.h"

#include "base/clock.h"

enum {
    JOBS = 300,
    NODES = 24,
    STRANGERS = 24, /* runs that a heartbeat lists beside those of its node, at most */
    RUNS = JOBS + STRANGERS,
    LANES = 5,
    DUES = 4096,  /* more than there ever are: which of too many are told first is not promised */
    EMBEDDED = 0, /* of the sides and the rigs */
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
    struct rig rigs[1 + INSTANCES_MAX]; /* embedded, Redis; all use the first's inbox */
    int instances;
    int turn;         /* whose calls they are in this round: of the rigs */
    int64_t drift_ms; /* since the instances last met */
    struct rnd rnd;
    uint64_t next_id;
    struct store_head heads[JOBS]; /* as last answered, or as the calls before will leave it */
    uint64_t ids[JOBS];
    struct call *calls;
    struct store_due *dues[2];
    size_t due_count; /* left to be swept */
    bool due_asked;   /* in this round */
    bool tame;        /* in this round nearly all is ordinary */
    int flood;        /* in this round all are new and no two have the same terms; 0: it is none */
    int last;         /* slot of the call before; -1: none */
    uint64_t fresh;   /* the job that was only just made up */
    int waiting;
    long ops;
    long answers[STORE_VERB_COUNT][2]; /* refused, accepted */
};

unsigned crowd_below(struct play *play, unsigned bound);
bool crowd_chance(struct play *play, unsigned one_in);
/* The answer of a side came. */
void crowd_arrived(struct store_op *op);
/* Makes one up; `before` is the one that was made before in this round, or NULL. */
void crowd_call(struct play *play, struct call *call, const struct call *before);

#endif
