/* An update of a deployment of several copies: which of them are replaced next, when all are, and
 * when the new version has failed. Pure. */
#ifndef MODEL_ROLLOUT_H
#define MODEL_ROLLOUT_H

#include "base/str.h"

enum rollout_state {
    ROLLOUT_NONE,        /* all copies are to run the same version */
    ROLLOUT_ROLLING,     /* some are to run the version before */
    ROLLOUT_BACK,        /* the new one failed, and the one before comes back */
    ROLLOUT_ROLLED_BACK, /* it is back */
    ROLLOUT_STOPPED,     /* the new one failed, and the one before is not kept any more */
    ROLLOUT_STATE_COUNT
};

const char *rollout_state_name(enum rollout_state state); /* "rolling"; "" for none */
enum rollout_state rollout_state_by_name(struct str name);

/* What a node reports of a copy. */
enum rollout_health { ROLLOUT_UNKNOWN, ROLLOUT_WELL, ROLLOUT_FAILED };
/* By the words of a status: its state, and whether it is healthy. */
enum rollout_health rollout_health(struct str state, struct str healthy);

struct rollout_copy {
    int64_t wants; /* the version it is to run */
    int64_t runs;  /* the version its node reported */
    enum rollout_health health;
    bool owned; /* a node has it; what nobody has runs nothing, and nobody waits for it */
    bool late;  /* it had its time to get well, and somebody was there to run it */
};

#define ROLLOUT_NOBODY SIZE_MAX

struct rollout_plan {
    bool done;     /* all that nodes have run it, and are well; there are such */
    size_t failed; /* the first that failed with it, or ROLLOUT_NOBODY */
    bool late;     /* it did not fail, but did not get well in time either */
    size_t count;  /* of `next` */
    size_t *next;  /* those that are to run it from now on */
};

struct rollout_rules {
    int64_t to_version;
    int64_t max_unavailable;
    bool back; /* to a version that was tried: `to_version` is the one before */
};

/* So many copies may be unavailable because of the update at any time: those that were given the
 * new version and are not well with it yet, and those that are not well anyway. What is not well
 * anyway is replaced first. What nobody has comes last, so that no untried version is started
 * there; going back it comes first, and all that is not well goes back at once. `next` has room for
 * all copies. */
void rollout_plan(const struct rollout_copy *copies, size_t count,
                  const struct rollout_rules *rules, size_t *next, struct rollout_plan *ret_plan);

#endif
