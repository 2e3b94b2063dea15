/* The node's lease on its deployments: renewed periodically; each successful renewal says what may
 * run and until when. Passes both to the copies and reports their state. One loop. */
#ifndef AGENT_NODE_LEASE_H
#define AGENT_NODE_LEASE_H

#include "agent/copies.h"
#include "agent/link.h"

enum node_lease_admin { NODE_LEASE_NONE, NODE_LEASE_CORDONED, NODE_LEASE_DRAINING };

struct node_lease;

/* `instance` distinguishes this agent from others of the same name: the lease is the first one's.
 * `labels` (of the configuration) decide which daemons are this node's, and which deployments it
 * must give up. All must outlive it. */
struct node_lease *node_lease_new(struct loop *loop, struct link_calls *link_calls,
                                  struct copies *copies, const struct config *config,
                                  struct str node_id, struct str instance);
void node_lease_up(struct node_lease *lease); /* the link is up */
void node_lease_down(struct node_lease *lease);
void node_lease_look(struct node_lease *lease);    /* something changed: renew now */
void node_lease_judge(struct node_lease *lease);   /* our labels changed: ask anew what is ours */
void node_lease_changed(struct node_lease *lease); /* the copies changed: report it soon */
void node_lease_goodbye(struct node_lease *lease); /* this agent stops; nothing is awaited */
void node_lease_free(struct node_lease *lease);    /* before copies_free */

bool node_lease_good(const struct node_lease *lease); /* the lease is good */
/* Its length; the default before the first. */
int64_t node_lease_lease_ms(const struct node_lease *lease);
enum node_lease_admin node_lease_admin(const struct node_lease *lease);

#endif
