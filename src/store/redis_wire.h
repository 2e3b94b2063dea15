/* Ops as arguments of the function library, and its answers as answers of ops. The other end is
 * lua/batch.lua. */
#ifndef STORE_REDIS_WIRE_H
#define STORE_REDIS_WIRE_H

#include <assert.h>

#include "base/mem.h"
#include "store/redis_columns.h"
#include "store/redis_link.h"
#include "store/store.h"

enum {
    WIRE_OPS_MAX = 256,
    /* Runs that a call renews, or sets apart, one by one for a heartbeat, see lua/node.lua; and
     * runs that heartbeats list in a call, before another waits for the next. */
    WIRE_RENEW_MAX = 256,
    WIRE_RUNS_MAX = 1024,
    WIRE_OWED_MAX = 2048,        /* leases that are written later, see lua/unit.lua */
    WIRE_BYTES_MAX = 256 * 1024, /* no further op joins a batch that has so many */
    WIRE_HEAD_KNOWN = 43,        /* of the head when a batch begins */
    WIRE_COLUMNS = 6,            /* which argument they are; their rests are the next */
    /* Where they begin: now, order, generation, open breakers, taken back, how far that now is
     * ahead of the steady clock. */
    WIRE_ANSWERS = 6,
    WIRE_TIDIED = 6,          /* what a tidying answers before what it put right, by rule */
    WIRE_RESULT_MAX = 256,    /* results up to this are part of the record */
    WIRE_INSTANCE_MS = 15000, /* an instance that did not call for so long is gone */
    WIRE_FULL = 2,            /* `full` of the state: no new work is taken */
    WIRE_LANE = 8,            /* bytes of a lane's number */
    WIRE_ANSWER_MARK = 64,    /* what the first byte of a verb's answer is above that of a record */
};

static_assert((int)FORMAT_NEWEST < (int)WIRE_ANSWER_MARK, "a record begins with its format");

/* The errors verbs answer, by the number they have there. */
#define WIRE_ERRORS(ROW)                                                                           \
    ROW(OK)                                                                                        \
    ROW(NOT_FOUND)                                                                                 \
    ROW(STALE)                                                                                     \
    ROW(ALL_FULL)                                                                                  \
    ROW(IDEMPOTENCY)                                                                               \
    ROW(TOO_LATE)                                                                                  \
    ROW(BAD_FIELD)                                                                                 \
    ROW(STORE_FULL)                                                                                \
    ROW(QUEUE_FULL)                                                                                \
    ROW(CONFLICT)                                                                                  \
    ROW(QUEUES_FULL)                                                                               \
    ROW(QUOTA_WAITING)                                                                             \
    ROW(QUOTA_BYTES)                                                                               \
    ROW(LIMITED)

#define WIRE_ERROR_NUMBER(name) WIRE_ERR_##name,
enum { WIRE_ERRORS(WIRE_ERROR_NUMBER) WIRE_ERROR_COUNT };

/* The longest time the library knows; later than that is for ever. */
#define WIRE_FOREVER INT64_C(99999999999999)

/* Sent for a text that cannot be read: the verb refuses it. */
#define WIRE_UNREADABLE "?"

/* Arguments; their texts are borrowed. */
struct wire_list {
    const char **texts;
    size_t *lens;
    size_t count;
    size_t cap;
};

struct wire {
    struct arena arena; /* of the texts made here */
    struct columns columns;
    struct wire_list args;   /* of the call: the head, then the texts of the rows */
    struct wire_list others; /* what is no row; appended at the end */
    size_t begun;            /* how many arguments are the head */
    size_t bytes;
    char head[67]; /* of the batch, packed; the rest is what is known when it is complete */
    int ops;
    size_t runs; /* that heartbeats list */
};

struct wire_head {
    const char *function;
    int64_t now_ms;         /* only a library for tests looks at it */
    int64_t late_ms;        /* store time after which nothing changes any more; 0: no bound */
    const char *instance;   /* its name */
    const char *generation; /* the name of a new one, if the store turns out to be empty */
    const char *known;      /* the generation of before; "": none yet */
    unsigned number;        /* the instance's, in whose name ops are; 0: of our own calls */
    int64_t retention_ms;
    int64_t breaker_threshold;
    int64_t breaker_cooldown_ms;
    bool moved; /* another server took over a while ago: what nodes hold and it does not know is
                   taken back */
};

/* A number as the library knows it. */
int64_t wire_bounded(int64_t value);
/* A lane as records have it: its bytes, little end first. */
void wire_lane(uint64_t lane, char *ret_bytes);
void wire_begin(struct wire *wire, const struct wire_head *head);
/* `not_after_ms` in store time. */
void wire_op(struct wire *wire, const struct store_op *op, int64_t not_after_ms);
/* Our own: an instance arrives, is still there, tidies up, leaves. The first two tell the newest
 * format it would write and answer its number, if it can be the one it has (0: none); the last one
 * from where to go on. */
void wire_arrive(struct wire *wire, const char *version, int format,
                 const struct lease_terms *terms);
void wire_stay(struct wire *wire, const char *version, int format, unsigned number);
void wire_tidy(struct wire *wire, bool whole, int64_t jobs_max); /* not whole: only purges */
void wire_leave(struct wire *wire, unsigned number, int64_t from);
unsigned wire_number(const redisReply *answer); /* 0: none is left */
int64_t wire_more(const redisReply *answer);    /* 0: it has left */
struct redis_args wire_args(struct wire *wire); /* complete; valid until the next wire_begin */
void wire_free(struct wire *wire);

/* Takes the answer at *at and leaves *at behind it. False: it is not what this version writes. */
bool wire_answer(struct store_op *op, const redisReply *reply, size_t *at);
/* A job as it is kept. What is long, or tells of several attempts, is beside it. */
struct wire_job {
    struct str result; /* at == NULL: none, or outside */
    bool done_once;    /* its only attempt was its last, see wire_history */
    bool has_key;      /* it came with an Idempotency-Key */
    struct str demand; /* what it takes; empty: one slot */
};
/* The head's id is left alone. Terms are kept by the store's steady clock: `offset_ms` is how far
 * its time is ahead of that. */
bool wire_job_read(struct str packed, int64_t offset_ms, struct store_head *ret_head,
                   struct wire_job *ret_job);
/* The attempts of a job that has them in its record. */
struct str wire_history(const struct store_head *head, struct arena *arena);
struct wire_node {
    struct lease_node counts;
    enum node_health own;
    enum node_admin admin;
    bool known;
    int64_t registered_ms;
    int64_t version;
};
/* Out of `meta.state`. */
struct wire_state {
    int64_t now_ms;    /* of the last call */
    uint64_t order;    /* of its last answer */
    int64_t version;   /* of the nodes: how many changes were told */
    int64_t offset_ms; /* of its time before the steady clock */
};
bool wire_state_read(struct str state, struct wire_state *ret_state);
bool wire_node_read(struct str packed, struct wire_node *ret_node);
/* Out of `keys`, as lua/limit.lua writes it. Moments are by the steady clock; the reason is
 * borrowed.
 */
struct wire_key {
    int32_t in_flight, waiting;
    int32_t starts; /* those in its window, and perhaps some that have left it */
    int64_t last_start_ms;
    int64_t hold_until_ms; /* 0: it is not held */
    struct str reason;
};
bool wire_key_read(struct str packed, struct wire_key *ret_key);
/* Out of `r`: what a node declares, borrowed, and what is left of it. False: it has nothing. */
bool wire_resources_read(struct str packed, struct str *ret_declared,
                         struct resources_left *ret_left);

#endif
