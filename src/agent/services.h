/* A file on this machine that tells where the copies of all deployments listen: asked of the server
 * every few seconds, and replaced as a whole when something is another. A copy stands in it no
 * longer than its node's lease lasts, also when no server can be asked. One loop. */
#ifndef AGENT_SERVICES_H
#define AGENT_SERVICES_H

#include "agent/config.h"
#include "agent/link.h"

enum { SERVICES_PATH_MAX = 4096 };

struct services_entry;

struct services {
    struct loop *loop;
    struct link_calls *link_calls;
    const struct config *config;
    struct str node_id;
    const char *dir; /* what a relative path begins at */

    /* private */
    bool up;
    bool asking;
    struct link_call call;
    int64_t asked_ms; /* clock_lease_ms() when the call left */
    int64_t next_ms;  /* of the next call, CLOCK_MONOTONIC */
    int64_t ends_ms;  /* clock_lease_ms(): when the first lease ends of what the file names; until
                         something is known, how long the file of an earlier agent stays */
    int64_t number;   /* of the last answer; -1: ask for everything */
    struct arena arena;
    struct services_entry *entries; /* by name, index, node */
    size_t count;
    struct buf body;
    struct buf text; /* as it should stand in the file */
    struct loop_part part;
    struct loop_job job;
    bool busy;          /* the next four are the other thread's */
    struct buf written; /* the file, as it is or will be */
    char path[SERVICES_PATH_MAX];
    int error; /* of the last try; 0: none */
    int last_error;
};

/* `config` and what it points to, and `dir`, must outlive it. */
void services_init(struct services *services, struct loop *loop, struct link_calls *link_calls,
                   const struct config *config, struct str node_id, const char *dir);
void services_up(struct services *services);
void services_down(struct services *services);
void services_stop(struct services *services); /* before loop_done */
void services_done(struct services *services); /* after it */

#endif
