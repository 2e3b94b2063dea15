/* The other instances on the same store: jobs for nodes connected to them, questions to such nodes,
 * and job events for waiting requests and event readers. Everything goes through the keeper, which
 * packs all messages of one turn for one instance into one. Unused without a shared store. Messages
 * may get lost: each kind has its own fallback. */
#ifndef SERVER_PEERS_H
#define SERVER_PEERS_H

#include "server/rpc.h"

struct peers;

struct peers *peers_new(struct worker *keeper); /* NULL: the store is not shared */
void peers_free(struct peers *peers);
void peers_start(struct peers *peers); /* starts receiving; before the loops run */
void peers_stop(struct peers *peers);  /* stops receiving; while the keeper still runs */
/* The threads have ended: returns jobs forwarded to other instances to their senders. */
void peers_end_sends(struct peers *peers);
/* The keeper's turn and tick. */
void peers_turn(struct peers *peers);
void peers_tick(struct peers *peers);

/* Any loop. */
bool peers_shared(const struct server *server);
void peers_send(struct server *server, struct send_op *send, uint32_t instance);
void peers_query(struct server *server, struct rpc *rpc, struct str node_id, uint32_t instance);
void peers_cancel(struct server *server, uint32_t instance, struct str node_id, uint64_t job,
                  int attempt, const char *reason);
/* Frames sent unchanged to one instance: jobs out of a box. */
void peers_pass(struct server *server, uint32_t instance, struct str frames);
void peers_write_job(struct buf *frames, uint64_t seq, uint32_t from, struct str node_id,
                     int64_t deadline_ms, int64_t hops, struct str message);

/* What an instance wants to receive, as bits. Ours are sent when they change. */
enum { PEERS_ENDS = 1, PEERS_EVENTS = 2, PEERS_ROOM = 4 };
bool peers_want(const struct server *server, unsigned what);
void peers_send_interest(
    struct server *server); /* a request began to wait here, or an event reader joined */
void peers_ended(struct server *server, uint64_t job);
void peers_event(struct server *server, uint64_t job, struct str namespace,
                 struct str text); /* keeper: JSON */
void peers_room(struct server *server, struct str node_id, const struct lease_node *counts,
                uint64_t order);

/* A question to all other instances on the same store, about state that each keeps for itself.
 * Instances that do not answer in time are left out. */

struct peers_round {
    struct worker *worker;
    struct arena *arena;
    const char *method; /* see peers.c */
    struct str params;
    void (*done)(struct peers_round *round); /* on the worker's loop */
    /* answer */
    struct str *texts; /* the answers that are not empty, in the arena */
    size_t count;
    size_t asked, answered; /* instances */
    /* private */
    struct store_op op;
    struct peers_question *questions;
    size_t open;
};

void peers_round_start(
    struct peers_round *round); /* calls done() at once when there is no other instance */

enum { PEERS_MAX = 64, PEERS_NAME_TEXT = STORE_NAME_TEXT };

struct interest {
    uint32_t name;
    unsigned bits;
    int64_t heard_ms;
};

struct peers {
    struct worker *keeper;
    struct store_listener listener;
    struct batch *open;   /* of this turn */
    struct idmap sends;   /* seq -> struct forward * */
    struct idmap queries; /* seq -> struct query * */
    uint64_t last_seq;
    struct interest interests[PEERS_MAX];
    _Atomic unsigned wanted; /* bits of all other instances together */
    unsigned sent_bits;      /* the bits we last sent */
    int64_t sent_ms;
    int64_t needed_ms[3]; /* when each bit was last needed here */
    struct msg interest_msg;
    _Atomic bool interest_posted;
};

#endif
