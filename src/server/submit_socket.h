/* One connection for many jobs: WebSockets of clients, which submit over them and are sent the ends
 * of their jobs. api_dispatch.c decides what a submission is and how it is answered; here are the
 * messages, the credit, and the ends. Each loop has its own. */
#ifndef SERVER_SUBMIT_SOCKET_H
#define SERVER_SUBMIT_SOCKET_H

#include "server/route.h"

enum {
    SUBMIT_CREDIT_MAX = 256,            /* unanswered messages of one connection */
    SUBMIT_FOLLOWED_MAX = 65536,        /* jobs of one connection whose end is to be sent */
    SUBMIT_FOLLOWED_LOOP_MAX = 1 << 20, /* the same for all connections of a loop */
    SUBMIT_CLOSE_TOKEN = 4003,          /* the token it connected with is no longer valid */
    SUBMIT_CLOSE_CREDIT = 4008,         /* it sent more than it had credit for */
};

struct submit_sockets;

struct submit_sockets *submit_sockets_new(struct worker *worker);
void submit_sockets_free(struct submit_sockets *all);
void submit_sockets_tick(struct submit_sockets *all);
/* Server shutdown: each is closed with 1012 once all it has submitted is answered. */
void submit_sockets_drain(struct submit_sockets *all);
/* The tokens changed: closes those that may no longer submit. */
void submit_sockets_recheck(struct submit_sockets *all);
/* The route: upgrades the request and consumes it, or answers with the problem. */
void submit_socket_accept(struct call *call);
/* How many messages may be unanswered if this many bytes may wait to be sent. */
int64_t submit_socket_credit(int64_t queue_bytes_max);

#endif
