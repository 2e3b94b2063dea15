/* An update of a deployment of several copies: which are replaced next, when all are done, and when
 * the new version has failed. Pure. */
#ifndef MODEL_ROLLOUT_H
#define MODEL_ROLLOUT_H

#include "base/str.h"

enum rollout_state {
    ROLLOUT_NONE,        /* all copies should run the same version */
    ROLLOUT_ROLLING,     /* some should run the previous version */
    ROLLOUT_BACK,        /* the new version failed; rolling back to the previous one */
    ROLLOUT_ROLLED_BACK, /* the rollback is complete */
    ROLLOUT_STOPPED,     /* the new version failed, and the previous one is no longer kept */
    ROLLOUT_STATE_COUNT
};

const char *rollout_state_name(enum rollout_state state); /* "rolling"; "" for none */
enum rollout_state rollout_state_by_name(struct str name);

/* What a node reports of a copy. */
enum rollout_health { ROLLOUT_UNKNOWN, ROLLOUT_WELL, ROLLOUT_FAILED };
/* From the texts of a status: its state, and whether it is healthy. */
enum rollout_health rollout_health(struct str state, struct str healthy);

struct rollout_copy {
    int64_t wants; /* the version it should run */
    int64_t runs;  /* the version its node reported */
    enum rollout_health health;
    bool owned; /* a node owns it; an unowned copy runs nothing and is not waited for */
    bool late;  /* its time to become healthy is over, and a node was there to run it */
};

#define ROLLOUT_NOBODY SIZE_MAX

struct rollout_plan {
    bool done;     /* all copies that nodes own run it and are healthy, and there is at least one */
    size_t failed; /* the first that failed with it, or ROLLOUT_NOBODY */
    bool late;     /* it did not fail, but did not become healthy in time either */
    size_t count;  /* of `next` */
    size_t *next;  /* the copies that should run it from now on */
};

struct rollout_rules {
    int64_t to_version;
    int64_t max_unavailable;
    bool back; /* `to_version` is the previous version: back from one that was tried */
};

/* At most max_unavailable copies may be unavailable at any time during the update: those that got
 * the new version and are not healthy with it yet, and those that are unhealthy anyway. Unhealthy
 * copies are replaced first. Unowned copies come last, so that an untried version is not started
 * there; in a rollback they come first, and all unhealthy copies go back at once. `next` has room
 * for all copies. */
void rollout_plan(const struct rollout_copy *copies, size_t count,
                  const struct rollout_rules *rules, size_t *next, struct rollout_plan *ret_plan);

#endif
