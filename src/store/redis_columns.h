/* The verbs every job needs (PUT, RESERVE, COMMIT, FINISH), encoded as columns: all codes, all ids,
 * and so on. lua/columns.lua takes each column with one call, which costs Redis a fraction of
 * decoding every op. What many rows share, their terms, is sent once; what is needed only for
 * unusual rows is in a separate text, the rest. */
#ifndef STORE_REDIS_COLUMNS_H
#define STORE_REDIS_COLUMNS_H

#include "store/record.h"
#include "store/store.h"

enum { COLUMN_COUNT = 6, COLUMN_TEXTS_MAX = 7, COLUMN_TERMS_MAX = 255 };

/* A code: the verb and flags of the row. */
enum {
    COLUMN_PUT = 1,
    COLUMN_RESERVE = 2,
    COLUMN_ACK = 3,
    COLUMN_FINISH = 4,
    COLUMN_FAST = 8,          /* an ordinary row */
    COLUMN_OTHER_BUCKET = 16, /* not the bucket of the row before */
    COLUMN_MORE_TEXT = 32,    /* a session, a send, a result */
    COLUMN_FRESH = 64,        /* its job cannot exist yet */
};

/* How groups of numbers are packed, as format strings of Lua's struct, which unpacks them: B is a
 * byte, a letter with a digit an integer of that many bytes, little-endian and packed. */
#define COLUMN_PUT_TERM                                                                            \
    "<i8Bi8I4B" /* how long it is reserved, callback, time-out, owner, attempts; then its type,    \
                   and if it has a demand a zero and that */
#define COLUMN_ACK_TERM "<i8i8i8" /* its lease, that of a face-to-face job, the grace of a stop */
#define COLUMN_BOUND    "<i8"     /* not after */
#define COLUMN_SEND     "<i6"     /* the send_id of an ACK */
/* Rests: of a put whether it is the last candidate, has a spec, a key, a demand; attempt, hold, the
 * term. */
#define COLUMN_PUT_REST "<BBBBi4i8i8Bi8I4i4i8"
#define COLUMN_COUNT_REST                                                                          \
    "<i4B"                     /* slots to keep free on the first candidate, number of candidates */
#define COLUMN_NODE_REST "<i4" /* slots to keep free on another candidate, whose name follows */
/* Of a PUT: priority, wait_ms; limits of its lane and of all lanes; its bytes, its account's limits
 * of jobs and bytes; whether its keys' limits apply. The eight bytes of the lane come before it,
 * the account name after it. */
#define COLUMN_WAIT_REST "<Bi8i8i8i8i8i8B"
#define COLUMN_ACK_REST  "<Bi4i8i8i8i8"
/* From a node, attempt, not after, outcome, has a reason, candidates are left, the record is
 * wanted, it speaks of its executor, owner, hold, whether a key is held, and for how long. */
#define COLUMN_FINISH_REST "<Bi4i8BBBBBI4i8Bi8"

struct columns {
    struct buf of[COLUMN_COUNT];
    struct buf rests;
    struct buf packed;
    size_t terms; /* how many */
    size_t ops;   /* of the batch: each has a code */
    size_t rows;  /* those that are here */
    /* The earliest not_after among the fast rows; 0: none. */
    int64_t early_ms;
    char bucket[RECORD_BUCKET]; /* of the last row: the first characters of its job's id */
};

/* Texts sent unpacked with a row, in this order. */
struct column_texts {
    struct str items[COLUMN_TEXTS_MAX];
    size_t count;
};

void columns_begin(struct columns *columns);
/* `not_after_ms` in store time. Texts are borrowed from the op or allocated in the arena. */
struct column_texts columns_add(struct columns *columns, const struct store_op *op,
                                int64_t not_after_ms, struct arena *arena);
void columns_skip(struct columns *columns);       /* an op that is not sent as a row */
struct str columns_pack(struct columns *columns); /* everything but the rests */
void columns_free(struct columns *columns);

#endif
