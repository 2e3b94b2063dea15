/* The node's lease on its deployments: renewed periodically; each successful renewal says what may
 * run and until when. Passes both to the copies and reports their state. One loop. */
#ifndef AGENT_NODE_LEASE_H
#define AGENT_NODE_LEASE_H

#include "agent/copies.h"
#include "agent/link.h"

enum node_lease_admin { NODE_LEASE_NONE, NODE_LEASE_CORDONED, NODE_LEASE_DRAINING };

struct node_lease {
    struct loop *loop;
    struct link_calls *link_calls;
    struct copies *copies;
    const struct config *config;
    struct str node_id, instance;
    int64_t lease_ms, renew_ms; /* defaults until the first renewal */
    int64_t version;            /* of our copy of the table; -1: none */
    int64_t stop_at_ms;         /* clock_lease_ms(): two thirds of the lease; 0: none yet */
    enum node_lease_admin admin;
    int64_t drain_deadline_ms; /* CLOCK_MONOTONIC; 0: none */
    bool up;                   /* whether the link is up */
    bool again;                /* something changed during a renewal */
    int64_t next_ms;           /* of the next renewal, CLOCK_MONOTONIC */
    int64_t sent_ms;           /* clock_lease_ms() when the pending renewal was sent */
    struct link_call renew;
    bool renewing;
    struct link_call status;
    bool status_busy;   /* a call is under way */
    bool status_due;    /* something changed since the last one was sent */
    int64_t status_ms;  /* of the next call, CLOCK_MONOTONIC */
    size_t status_from; /* the copy the next call starts with */
    struct link_call yield;
    bool yielding;
    char leaving[DEPLOY_COPY_ID_MAX + 1]; /* the copy that is being given up */
    int64_t last_yield_ms;                /* CLOCK_MONOTONIC: when the last one was given up */
    struct link_call goodbye;
    struct rnd rnd;
    struct buf body;
    struct loop_part part;
    bool refused; /* the last renewal was refused; logged once */
};

/* `instance` tells this agent from others with the same name: the first one gets the lease.
 * `labels` (from the configuration) decide which daemons are this node's, and which deployments it
 * must give up. All must outlive it. */
struct node_lease *node_lease_new(struct loop *loop, struct link_calls *link_calls,
                                  struct copies *copies, const struct config *config,
                                  struct str node_id, struct str instance);
void node_lease_up(struct node_lease *lease);        /* the link is up */
void node_lease_renew_now(struct node_lease *lease); /* something changed: renew now */
void node_lease_reload(struct node_lease *lease);    /* our labels changed: ask what is ours */
void node_lease_changed(struct node_lease *lease);   /* the copies changed: report it soon */
void node_lease_goodbye(struct node_lease *lease); /* this agent stops; does not wait for a reply */
void node_lease_free(struct node_lease *lease);    /* before copies_free */

/* May deployments run here now? Not beyond two thirds of the lease, at which our copies stop. */
bool node_lease_may_run_now(const struct node_lease *lease);

#endif
