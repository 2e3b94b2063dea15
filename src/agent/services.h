/* A file on this machine that lists where the copies of all deployments listen: requested from the
 * server every few seconds, and replaced as a whole when something changed. A copy is listed no
 * longer than its node's lease lasts, even if no server can be reached. One loop. */
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
    const char *dir; /* base of a relative path */

    /* private */
    bool up;
    bool asking;
    struct link_call call;
    int64_t asked_ms; /* clock_lease_ms() when the call was sent */
    int64_t next_ms;  /* of the next call, CLOCK_MONOTONIC */
    int64_t ends_ms;  /* clock_lease_ms(): when the first lease in the file ends; until something
                       * is known, how long the file of an earlier agent stays */
    int64_t number;   /* of the last reply; -1: request everything */
    struct arena arena;
    struct services_entry *entries; /* by name, index, node */
    size_t count;
    struct buf body;
    struct buf text; /* the wanted contents of the file */
    struct loop_part part;
    struct loop_job job;
    bool busy;          /* the pool thread uses the next four */
    struct buf written; /* the file's contents, now or after the write */
    char path[SERVICES_PATH_MAX];
    int error; /* of the last write; 0: none */
    int last_error;
};

/* `config` and what it points to, and `dir`, must outlive it. */
void services_init(struct services *services, struct loop *loop, struct link_calls *link_calls,
                   const struct config *config, struct str node_id, const char *dir);
void services_up(struct services *services);
void services_stop(struct services *services); /* before loop_done */
void services_done(struct services *services); /* after it */

#endif
