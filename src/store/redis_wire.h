/* Encodes ops as arguments of the function library and decodes its answers. The other end is
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
    /* WIRE_RENEW_MAX: runs a call renews or sets apart individually for a heartbeat, see
     * lua/node.lua. WIRE_RUNS_MAX: runs that heartbeats may list in one call; a further heartbeat
     * waits for the next call. */
    WIRE_RENEW_MAX = 256,
    WIRE_RUNS_MAX = 1024,
    WIRE_OWED_MAX = 2048,        /* leases that are written later, see lua/unit.lua */
    WIRE_BYTES_MAX = 256 * 1024, /* a batch this large takes no further op */
    WIRE_HEAD_KNOWN = 43,        /* bytes of the head known when a batch begins */
    WIRE_COLUMNS = 6,            /* argument index of the columns; their rests are the next one */
    /* Index of the first answer; before it: now, order, generation, open breakers, restored leases,
     * offset of now ahead of the steady clock. */
    WIRE_ANSWERS = 6,
    WIRE_TIDIED = 6,          /* values a tidy answers before its repairs by rule */
    WIRE_RESULT_MAX = 256,    /* results up to this size are part of the record */
    WIRE_INSTANCE_MS = 15000, /* an instance silent for this long is gone */
    WIRE_FULL = 2,            /* value of `full` in the state: no new work is accepted */
    WIRE_LANE = 8,            /* bytes of a lane's number */
    WIRE_ANSWER_MARK = 64,    /* added to the first byte of a record in a verb's answer */
};

static_assert((int)FORMAT_NEWEST < (int)WIRE_ANSWER_MARK, "a record begins with its format");

/* Errors of the verbs, in the order of their numbers in the library. */
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

/* The largest time in the library; later times mean forever. */
#define WIRE_FOREVER INT64_C(99999999999999)

/* Sent in place of an unreadable text: the verb refuses it. */
#define WIRE_UNREADABLE "?"

/* Arguments; their texts are borrowed. */
struct wire_list {
    const char **texts;
    size_t *lens;
    size_t count;
    size_t cap;
};

struct wire {
    struct arena arena; /* for texts created here */
    struct columns columns;
    struct wire_list args;   /* of the call: the head, then the rows' texts */
    struct wire_list others; /* ops that are not rows; appended at the end */
    size_t begun;            /* number of head arguments */
    size_t bytes;
    char head[67]; /* packed head of the batch; its last bytes are filled in when the batch is
                      complete */
    int ops;
    size_t runs; /* listed by heartbeats */
};

struct wire_head {
    const char *function;
    int64_t now_ms;         /* used only by a library for tests */
    int64_t late_ms;        /* store time after which the call changes nothing; 0: no bound */
    const char *instance;   /* its name */
    const char *generation; /* the name for a new generation, if the store turns out to be empty */
    const char *known;      /* the last known generation; "": none yet */
    unsigned number;        /* of the instance that sends the ops; 0: for the store's own calls */
    int64_t retention_ms;
    int64_t breaker_threshold;
    int64_t breaker_cooldown_ms;
    bool moved; /* another server took over recently: leases that nodes report and it lacks are
                   restored */
};

/* Clamps a number to the library's range. */
int64_t wire_bounded(int64_t value);
/* Encodes a lane as in records: eight bytes, little-endian. */
void wire_lane(uint64_t lane, char *ret_bytes);
void wire_begin(struct wire *wire, const struct wire_head *head);
/* `not_after_ms` in store time. */
void wire_op(struct wire *wire, const struct store_op *op, int64_t not_after_ms);
/* The store's own calls: an instance arrives, stays, tidies up, leaves. The first two send the
 * newest format it could write and answer its number, if possible the one it has (0: none); the
 * last one takes and answers where to continue. */
void wire_arrive(struct wire *wire, const char *version, int format,
                 const struct lease_terms *terms);
void wire_stay(struct wire *wire, const char *version, int format, unsigned number);
void wire_tidy(struct wire *wire, bool whole, int64_t jobs_max); /* not whole: only purges */
void wire_leave(struct wire *wire, unsigned number, int64_t from);
unsigned wire_number(const redisReply *answer); /* 0: no number is free */
int64_t wire_more(const redisReply *answer);    /* 0: leaving is complete */
struct redis_args
wire_args(struct wire *wire); /* the complete batch; valid until the next wire_begin */
void wire_free(struct wire *wire);

/* Decodes the answer at *at and advances *at. False: not in this version's format. */
bool wire_answer(struct store_op *op, const redisReply *reply, size_t *at);
/* A job as stored. Long texts and the history of several attempts are stored separately. */
struct wire_job {
    struct str result; /* at == NULL: none, or stored outside */
    bool done_once;    /* its only attempt was its last, see wire_history */
    bool has_key;      /* it came with an Idempotency-Key */
    struct str demand; /* its demand; empty: one slot */
};
/* Does not set the head's id. Terms are stored on the store's steady clock; `offset_ms` is how far
 * the store's time is ahead of it. */
bool wire_job_read(struct str packed, int64_t offset_ms, struct store_head *ret_head,
                   struct wire_job *ret_job);
/* The attempts of a job whose record contains them. */
struct str wire_history(const struct store_head *head, struct arena *arena);
struct wire_node {
    struct lease_node counts;
    enum node_health own;
    enum node_admin admin;
    bool known;
    int64_t registered_ms;
    int64_t version;
};
/* Read from `meta.state`. */
struct wire_state {
    int64_t now_ms;    /* of the last call */
    uint64_t order;    /* of its last answer */
    int64_t version;   /* of the nodes: number of changes published */
    int64_t offset_ms; /* of its time ahead of the steady clock */
};
bool wire_state_read(struct str state, struct wire_state *ret_state);
bool wire_node_read(struct str packed, struct wire_node *ret_node);
/* Read from `keys`, as written by lua/limit.lua. Times are on the steady clock; the reason is
 * borrowed. */
struct wire_key {
    int32_t in_flight, waiting;
    int32_t starts; /* those in its window, and possibly some that have left it */
    int64_t last_start_ms;
    int64_t hold_until_ms; /* 0: it is not held */
    struct str reason;
};
bool wire_key_read(struct str packed, struct wire_key *ret_key);
/* Read from `r`: a node's declared resources, borrowed, and those free. False: it has none. */
bool wire_resources_read(struct str packed, struct str *ret_declared,
                         struct resources_left *ret_left);

#endif
