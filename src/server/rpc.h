/* Calls a node over its WebSocket and waits for the answer, with a deadline. The caller may be on
 * another loop than the socket. */
#ifndef SERVER_RPC_H
#define SERVER_RPC_H

#include "server/hub.h"

enum { RPC_METHOD_MAX = 96, RPC_TIMEOUT_MS = 5000 };

struct rpc {
    struct msg msg;
    struct worker *from;
    uint64_t link; /* where the node's socket was when the call was sent */
    uint64_t id;   /* on the socket's loop */
    int64_t until_ms;
    int64_t timeout_ms; /* 0: RPC_TIMEOUT_MS */
    bool gone;          /* its socket has closed */
    bool forwarded;     /* came from another instance: not forwarded again */
    char method[RPC_METHOD_MAX];
    struct str params; /* JSON object; owned by the caller, valid until done */
    /* the answer */
    enum err err; /* ERR_OK, ERR_TIMEOUT, ERR_CONFLICT (not connected), ERR_BAD_REQUEST (refused) */
    struct buf answer; /* the result as JSON, or the node's error text; freed by the caller */
    void (*done)(struct rpc *rpc); /* on the caller's loop */
};

/* from, method, params and done are set. */
void rpc_send(struct rpc *rpc, struct node *node);
void rpc_over(struct rpc *rpc, enum err err); /* ends it on the caller's loop */
/* For the socket's loop. */
void rpc_reply(struct hub *hub, uint64_t incarnation, const struct json *body, struct arena *arena);
/* Ends the calls of a socket that closed; 0: those that timed out. */
void rpc_end(struct hub *hub, uint64_t incarnation);

/* Answers a request with the outcome of its call; `refused`: the error if the node refuses. */
void rpc_answer(struct call *call, struct rpc *rpc, enum err refused);

#endif
