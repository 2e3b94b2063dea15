/* The conversation with a node over its WebSocket. */
#ifndef SERVER_HUB_WS_H
#define SERVER_HUB_WS_H

#include "server/hub.h"

/* Sends what the node did not ask for. */
bool hub_socket_send(struct socket *socket, struct str text);
void hub_calls_free(struct hub *hub);
/* A hello was accepted: from now on the node uses this socket, and is sent a welcome; then done().
 * If the socket has closed or a newer one is there, ends the call instead. */
void hub_welcome(struct call *call, struct node *node,
                 void (*done)(struct call *call, struct node *node));
/* Sent at the end of a turn, to nodes that asked for it (hub_ws.c). Adds a job; false: the socket
 * does not take it. */
bool hub_batch_job(struct socket *socket, struct str message);
void hub_batch_flush_jobs(struct socket *socket);
/* Call for a message that must be answered. Its id must be above all earlier ones; false: it is
 * not. */
bool hub_batch_expect(struct socket *socket, int64_t id);
/* It was accepted; the terms are those a reply to an ACK would contain (0: none). */
void hub_batch_accept(struct socket *socket, int64_t id, bool ack, int64_t lease_ms,
                      int64_t stop_grace_ms);
void hub_batch_answered(struct socket *socket, int64_t id); /* with a reply of its own */
void hub_batch_free(struct socket *socket);

#endif
