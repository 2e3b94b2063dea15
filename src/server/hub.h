/* How jobs reach nodes: over the node's WebSocket, by a POST to its endpoint, or through a box it
 * polls. Each loop has one hub, with the sockets and boxes that live on that loop; a node's `link`
 * says where its socket is, so no pointer crosses a thread. */
#ifndef SERVER_HUB_H
#define SERVER_HUB_H

#include "sched/dispatch.h"
#include "server/route.h"

struct hub;

struct hub *hub_new(struct worker *worker);
void hub_free(struct hub *hub);
void hub_tick(struct hub *hub);  /* polls whose wait is over */
void hub_turn(struct hub *hub);  /* what nodes are told together leaves */
void hub_drain(struct hub *hub); /* the server goes: sockets close with 1012, polls are answered */
/* A hint to every node on this loop. */
void hub_tell_all(struct hub *hub, struct str text);
/* The tokens changed: nodes whose token is not good any more are closed, and wait for no job. */
void hub_recheck(struct hub *hub);
int64_t hub_connections(const struct hub *hub);

/* sched_hooks.send */
void hub_send(struct sched_loop *from, struct send_op *send);
/* sched_hooks.stop: a cancel message, if the node has a WebSocket. Any loop. */
void hub_stop(struct sched_loop *from, struct str node_id, uint64_t job, int attempt,
              const char *reason);
/* The node left: closes its socket, empties its box. */
void hub_drop(struct server *server, struct node *node);
/* Upgrades a request of a node; consumes it. */
void hub_accept(struct call *call);
/* Answers a poll with what is in the box, or when something comes, or after wait_ms. */
void hub_poll(struct call *call, struct node *node, int64_t wait_ms, size_t max);

#endif
