/* How jobs reach nodes: over the node's WebSocket, by a POST to its endpoint, or through a box it
 * polls. Each loop has one hub, with the sockets and boxes that live on that loop; a node's `link`
 * says where its socket is, so no pointer crosses a thread. */
#ifndef SERVER_HUB_H
#define SERVER_HUB_H

#include <sys/queue.h>

#include "io/wheel.h"
#include "server/route.h"

struct hub;

struct hub *hub_new(struct worker *worker);
void hub_free(struct hub *hub);
void hub_tick(struct hub *hub);  /* ends polls and calls that timed out */
void hub_turn(struct hub *hub);  /* sends what was batched for nodes */
void hub_drain(struct hub *hub); /* server shutdown: sockets close with 1012, polls are answered */
/* A hint to every node on this loop. */
void hub_broadcast(struct hub *hub, struct str text);
/* The tokens changed: disconnects nodes whose token is no longer valid, and ends their polls. */
void hub_recheck(struct hub *hub);

/* sched_hooks.send */
bool hub_send(struct sched_loop *from, struct send_op *send);
/* sched_hooks.stop: a cancel message, if the node has a WebSocket. Any loop. */
void hub_stop(struct sched_loop *from, struct str node_id, uint64_t job, int attempt,
              const char *reason);
/* sched_hooks.linked */
void hub_linked(struct sched_loop *from, struct node *node, const struct store_live *said,
                bool away);
/* The node left: closes its socket, empties its box. */
void hub_drop(struct server *server, struct node *node);
/* Upgrades a request of a node; consumes it. */
void hub_accept(struct call *call);
/* Answers a poll with what is in the box, or when a job arrives, or after wait_ms. */
void hub_poll(struct call *call, struct node *node, int64_t wait_ms, size_t max);

/* Which instance a node is connected to, published in a shared store. */

struct linking {
    struct store_op op;
    struct worker *worker;
    struct node *node;
    void (*done)(struct linking *linking); /* on the worker's loop, whatever the outcome */
};

/* `done` is set. Only for a shared store. */
void links_publish(struct worker *worker, struct linking *linking, struct node *node,
                   enum store_link_kind kind, uint64_t incarnation);
/* The same, without waiting for the outcome. */
void links_note(struct worker *worker, struct node *node, enum store_link_kind kind,
                uint64_t incarnation);

/* A poll under way; the request's loop owns `call`, the node's home loop the rest. */
struct poll {
    struct msg msg;
    struct poll *next;
    uint64_t number; /* identifies it, even when it may be freed */
    struct call *call;
    struct node *node;
    int64_t until_ms; /* sched_awake_ms */
    size_t max;
    struct buf answer;
};

/* One WebSocket of a node. */
struct socket {
    struct hub *hub;
    struct ws *ws;
    uint64_t incarnation;
    struct token *token;       /* which node it may speak for; owned; NULL: there were no tokens */
    struct node *node;         /* NULL until its hello is accepted */
    bool greeted;              /* a hello is in progress or accepted */
    bool welcomed;             /* the node got its welcome, and reads jobs from now on */
    int calls;                 /* its `call` messages not answered yet */
    struct buf early;          /* to send after the welcome, see sched/frame.h */
    bool takes_jobs;           /* accepts several jobs in one frame, */
    bool takes_accepted;       /* and one receipt for several messages */
    struct receipts *receipts; /* of its messages; NULL: none yet */
    struct buf jobs;           /* separated by commas, see hub_ws.c */
    int job_count;
    bool due; /* in hub->due */
    LIST_ENTRY(socket) due_link;
};

struct hub {
    struct worker *worker;
    struct idmap boxes;   /* node number + 1 -> struct box * */
    struct slab slab;     /* of struct box */
    struct wheel looks;   /* when a box is due to be looked at, by mono_ms */
    struct idmap sockets; /* incarnation -> struct socket * */
    struct idmap rpcs;    /* id -> struct rpc *, not answered yet */
    uint64_t last_rpc;
    bool unpublished; /* some sockets are, see hub_tick */
    int64_t next_publish_ms;
    struct buf frame;               /* scratch */
    LIST_HEAD(, socket_call) calls; /* in progress, see hub_ws.c, */
    LIST_HEAD(, socket_call) spare; /* and for reuse */
    int spare_count;
    LIST_HEAD(, socket) due; /* have something to send at the end of this turn */
};

uint64_t hub_link(int loop, uint64_t incarnation);
uint64_t hub_link_incarnation(uint64_t link);
int hub_link_loop(uint64_t link);
void hub_close_link(struct server *server, uint64_t link); /* 4001, from any loop */
/* Ends a send and answers it; from any loop. */
void hub_sent(struct send_op *send, bool ok, const char *reason);
/* Like hub_stop, for a node connected here. */
void hub_stop_here(struct sched_loop *from, struct str node_id, uint64_t job, int attempt,
                   const char *reason);
/* Moves the jobs in a node's box to the instance it polls now, or (0) to its socket here. Any
 * loop. */
void hub_move_box(struct server *server, struct node *node, uint32_t instance);

#endif
