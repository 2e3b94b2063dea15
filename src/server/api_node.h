/* A heartbeat prolongs the leases of what its node runs: exactly those it lists, or all when it
 * lists none. */
#ifndef SERVER_API_NODE_H
#define SERVER_API_NODE_H

#include "sched/node_report.h"
#include "server/server.h"

struct renew {
    struct store_op op;
    struct worker *worker;
    struct store_run *runs;
    size_t count;
    bool listed; /* running_jobs was sent */
    void (*done)(struct renew *renew);
};

/* Reads the list out of a heartbeat. */
enum err renew_read(const struct node_report *report, struct worker *worker, struct arena *arena,
                    struct renew *ret_renew, struct problem *why);
/* False: there is nothing to wait for, done() will not be called. (All of a node's leases are
 * renewed in the background then, no more often than is useful.) */
bool renew_start(struct renew *renew, struct node *node, void (*done)(struct renew *renew));

#endif
