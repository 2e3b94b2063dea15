/* What hub.c and hub_ws.c share. */
#ifndef SERVER_HUB_PRIVATE_H
#define SERVER_HUB_PRIVATE_H

#include <sys/queue.h>

#include "server/api.h"
#include "server/hub.h"

enum { HUB_CLOSE_TOKEN = 4003 }; /* the token that let it in is not good any more */

/* A job that waits for its node to poll; its text follows. */
struct boxed {
    int64_t until_ms;    /* sched_awake_ms: then its reservation ends, */
    int64_t deadline_ms; /* and in store time, for whoever takes the box over */
    size_t len;
};

/* A poll under way; the request's loop owns `call`, the node's home loop the rest. */
struct poll {
    struct msg msg;
    struct poll *next;
    uint64_t number; /* its name, also when it may be gone */
    struct call *call;
    struct node *node;
    int64_t until_ms; /* sched_awake_ms */
    size_t max;
    struct buf answer;
};

struct box {
    struct node *node;
    struct buf jobs; /* one behind the other: struct boxed, text, padding */
    size_t taken;    /* bytes of `jobs` that are gone */
    struct poll *polls;
    bool ours;       /* other instances know that it is asked for here */
    int64_t used_ms; /* sched_awake_ms when somebody last put something in, or asked */
};

/* One WebSocket of a node. */
struct socket {
    struct hub *hub;
    struct ws *ws;
    uint64_t incarnation;
    struct token *token;       /* whom it may speak for; owned; NULL: there were no tokens */
    struct node *node;         /* NULL until its hello was taken */
    bool greeted;              /* a hello is under way or taken */
    bool welcomed;             /* and it was told so: a node listens from then on */
    int calls;                 /* of hub_call, not answered yet */
    struct buf early;          /* frames to send behind the welcome, each behind its length */
    bool takes_jobs;           /* it asked for several jobs in one frame, */
    bool takes_accepted;       /* and for one word on several messages */
    struct receipts *receipts; /* of those; NULL: none yet */
    struct buf jobs;           /* with a comma between, see hub_batch.c */
    int job_count;
    bool due; /* in hub->due */
    LIST_ENTRY(socket) due_link;
};

struct hub {
    struct worker *worker;
    struct idmap boxes;   /* node number + 1 -> struct box * */
    struct idmap sockets; /* incarnation -> struct socket * */
    struct idmap rpcs;    /* id -> struct rpc *, asked and not answered yet */
    uint64_t last_rpc;
    bool untold; /* see links_tick */
    int64_t next_tell_ms;
    struct buf frame;     /* scratch */
    struct wscall *spare; /* message contexts to use again */
    int spare_count;
    struct socket_call *calls; /* under way, see hub_call.c */
    LIST_HEAD(, socket) due;   /* have something to say at the end of this turn */
};

uint64_t hub_link(int loop, uint64_t incarnation);
uint64_t hub_link_incarnation(uint64_t link);
int hub_link_loop(uint64_t link);
void hub_close_link(struct server *server, uint64_t link); /* 4001, from any loop */
/* What the node did not ask for. */
bool hub_socket_send(struct socket *socket, struct str text);
void hub_ws_free(struct hub *hub);
/* A `call` message of a node: runs the route it names. Takes what is in `arena`, where the message
 * stands. */
void hub_call(struct socket *socket, const struct json *message, struct arena *arena);
void hub_calls_free(struct hub *hub); /* nobody answers them any more */
/* What leaves at the end of a turn, for nodes that asked for it (hub_batch.c). A job; false: the
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
struct worker *hub_home(struct server *server, const struct node *node); /* where its box stands */
void hub_box_add(struct hub *hub, struct send_op *send);                 /* on its home loop */
void hub_boxes_tick(struct hub *hub);
void hub_boxes_drain(struct hub *hub);
void hub_boxes_recheck(struct hub *hub);
void hub_boxes_free(struct hub *hub);
/* What became of a send; then whoever delivers it answers it. */
void hub_send_over(struct send_op *send, bool ok, const char *reason);
/* Both at once, from any loop. */
void hub_sent(struct send_op *send, bool ok, const char *reason);
/* As hub_stop, of a node that is connected here. */
void hub_stop_here(struct sched_loop *from, struct str node_id, uint64_t job, int attempt,
                   const char *reason);
/* Jobs that wait for a node to ask go to the instance it asks now, or (0) to its socket here. Any
 * loop. */
void hub_move_box(struct server *server, struct node *node, uint32_t holder);
void hub_tell_job(struct server *server, const struct node *node, struct str message);

#endif
