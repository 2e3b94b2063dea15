/* One connection for many jobs: WebSockets of clients, which submit over them and are told how
 * their jobs ended. What a submission is and how it is answered is api_dispatch.c's; here are the
 * messages, the credit, and the ends. Each loop has its own. */
#ifndef SERVER_SUBMIT_SOCKET_H
#define SERVER_SUBMIT_SOCKET_H

#include "server/route.h"

enum {
    SUBMIT_CREDIT_MAX = 256,            /* messages of one connection that are not answered yet */
    SUBMIT_FOLLOWED_MAX = 65536,        /* jobs of one connection whose end is to be sent */
    SUBMIT_FOLLOWED_LOOP_MAX = 1 << 20, /* and of all connections of a loop */
    SUBMIT_CLOSE_TOKEN = 4003,          /* the token that let it in is not good any more */
    SUBMIT_CLOSE_CREDIT = 4008,         /* it sent more than it had credit for */
};

struct submit_sockets;

struct submit_sockets *submit_sockets_new(struct worker *worker);
void submit_sockets_free(struct submit_sockets *all);
void submit_sockets_tick(struct submit_sockets *all);
/* The server goes: each is closed with 1012 once what it has submitted is answered. */
void submit_sockets_drain(struct submit_sockets *all);
/* The tokens changed: who may not submit any more is closed. */
void submit_sockets_recheck(struct submit_sockets *all);
/* The route: upgrades the request and consumes it, or answers what is wrong with it. */
void submit_socket_accept(struct call *call);
/* How many messages may be under way where so much may wait to be sent. */
int64_t submit_socket_credit(int64_t queue_bytes_max);

#endif
