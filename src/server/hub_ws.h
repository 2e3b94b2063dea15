/* The conversation with a node over its WebSocket. */
#ifndef SERVER_HUB_WS_H
#define SERVER_HUB_WS_H

#include "server/hub.h"

/* What the node did not ask for. */
bool hub_socket_send(struct socket *socket, struct str text);
void hub_calls_free(struct hub *hub);
/* A hello was taken: its socket is the node's from now on, and it is told so; then done(). Not so
 * if the socket went meanwhile, or a newer one is there: the call is over then. */
void hub_welcome(struct call *call, struct node *node,
                 void (*done)(struct call *call, struct node *node));
/* What leaves at the end of a turn, for nodes that asked for it (hub_ws.c). A job; false: the
 * socket does not take it. */
bool hub_batch_job(struct socket *socket, struct str message);
void hub_batch_flush_jobs(struct socket *socket);
/* A message of the node that must be answered, with an id above all before it; false: it has not.
 */
bool hub_batch_expect(struct socket *socket, int64_t id);
/* It was accepted; the terms are what a reply to an ACK would tell (0: nothing). */
void hub_batch_accept(struct socket *socket, int64_t id, bool ack, int64_t lease_ms,
                      int64_t stop_grace_ms);
void hub_batch_answered(struct socket *socket, int64_t id); /* by a reply of its own */
void hub_batch_free(struct socket *socket);

#endif
