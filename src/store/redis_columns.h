/* The verbs that come with every job (PUT, RESERVE, COMMIT, FINISH), as columns: all codes, all
 * ids, and so on, one after the other. lua/columns.lua takes each with one call, which costs Redis
 * a fraction of taking every op apart. What many rows have in common, their terms, is sent once;
 * what is needed only when a row turns out to be out of the ordinary is in a text of its own. */
#ifndef STORE_REDIS_COLUMNS_H
#define STORE_REDIS_COLUMNS_H

#include "store/record.h"
#include "store/store.h"

enum { COLUMN_COUNT = 6, COLUMN_TEXTS_MAX = 7, COLUMN_TERMS_MAX = 255 };

/* A code: the verb, and what is true of the row. */
enum {
    COLUMN_PUT = 1,
    COLUMN_RESERVE = 2,
    COLUMN_COMMIT = 3,
    COLUMN_FINISH = 4,
    COLUMN_FAST = 8,          /* nothing about it is out of the ordinary */
    COLUMN_OTHER_BUCKET = 16, /* than the row before */
    COLUMN_MORE_TEXT = 32,    /* a session, a send, a result */
    COLUMN_FRESH = 64,        /* its job cannot be there yet */
};

/* How numbers that belong together are packed, in the words of Lua's struct, which takes them
 * apart: B is a byte, a letter with a digit a number of so many, little end first and nothing
 * between. */
#define COLUMN_PUT_TERM                                                                            \
    "<i8Bi8I4B" /* how long it is reserved, callback, time-out, owner, attempts; then its type,    \
                   and if it has a demand a zero and that */
#define COLUMN_COMMIT_TERM                                                                         \
    "<i8i8i8"              /* its lease, that of a face-to-face job, the grace of a stop */
#define COLUMN_BOUND "<i8" /* not after */
#define COLUMN_SEND  "<i6" /* the send_id an ACK names */
/* Rests: of a put whether it is the last candidate, has a spec, a key, a demand; attempt, hold, the
 * term. */
#define COLUMN_PUT_REST "<BBBBi4i8i8Bi8I4i4i8"
#define COLUMN_COUNT_REST                                                                          \
    "<i4B"                     /* slots that stay free on the first candidate, how many there are */
#define COLUMN_NODE_REST "<i4" /* likewise, of a further one, whose name follows */
/* Of a PUT: priority, how long it waits; how many may be in its lane, and in all; what it counts
 * for, how many jobs and bytes of its account may wait; whether its keys bound it. The lane is
 * before it, eight bytes, the name of the account behind it. */
#define COLUMN_WAIT_REST   "<Bi8i8i8i8i8i8B"
#define COLUMN_COMMIT_REST "<Bi4i8i8i8i8"
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
    /* The first time after which one of those that may be fast may not begin; 0: there is none. */
    int64_t early_ms;
    char bucket[RECORD_BUCKET]; /* of the last row: the first characters of its job's id */
};

/* What goes along with a row as it is, in this order. */
struct column_texts {
    struct str items[COLUMN_TEXTS_MAX];
    size_t count;
};

void columns_begin(struct columns *columns);
/* `not_after_ms` in store time. Texts are borrowed from the op or made in the arena. */
struct column_texts columns_add(struct columns *columns, const struct store_op *op,
                                int64_t not_after_ms, struct arena *arena);
void columns_skip(struct columns *columns);       /* an op of another kind */
struct str columns_pack(struct columns *columns); /* all but the rests */
void columns_free(struct columns *columns);

#endif
