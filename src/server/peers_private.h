/* What peers.c and peers_job.c share. All of it is the keeper's. */
#ifndef SERVER_PEERS_PRIVATE_H
#define SERVER_PEERS_PRIVATE_H

#include "sched/frame.h"
#include "server/hub_private.h"
#include "server/peers.h"

enum { PEERS_MAX = 64, PEERS_NAME_TEXT = STORE_NAME_TEXT };

/* What one turn has for one instance. */
struct parcel {
    struct store_op op;
    struct peers *peers;
    struct parcel *next;
    struct buf frames;
    struct buf seqs; /* uint64_t each: what fails when nobody takes it */
};

struct wish {
    uint32_t name;
    unsigned bits;
    int64_t heard_ms;
};

struct peers {
    struct worker *keeper;
    struct store_ear ear;
    struct parcel *open; /* of this turn */
    struct idmap sends;  /* seq -> struct handing * */
    struct idmap asks;   /* seq -> struct asking * */
    uint64_t last_seq;
    struct wish wishes[PEERS_MAX];
    _Atomic unsigned wanted; /* of all others together */
    unsigned wished;         /* what we last told */
    int64_t wished_ms;
    int64_t needed_ms[3]; /* when each bit was last needed here */
    struct msg wish_msg;
    _Atomic bool wish_posted;
};

/* The parcel for an instance; 0: for all. */
struct parcel *peers_parcel(struct peers *peers, uint32_t to);
uint32_t peers_name(const struct peers *peers);
bool peers_name_read(struct str text, uint32_t *ret_name);

/* peers_job.c: what is on its way. */
void peers_fail(struct peers *peers, uint64_t seq, const char *reason);
void peers_jobs_tick(struct peers *peers);
void peers_jobs_free(struct peers *peers);
/* What was heard, without its first word. */
void peers_hear_job(struct peers *peers, struct str rest);
void peers_hear_sent(struct peers *peers, struct str rest);
void peers_hear_cancel(struct peers *peers, struct str rest);
void peers_hear_ask(struct peers *peers, struct str rest);
void peers_hear_answer(struct peers *peers, struct str rest);

#endif
