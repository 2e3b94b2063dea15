/* The verbs that come with every job (PUT, RESERVE, COMMIT, FINISH), as columns: all codes, all
 * ids, and so on, one behind the other. lua/columns.lua takes each with one call, which costs Redis
 * a fraction of taking every op apart. What many rows have in common, their terms, is sent once;
 * what is needed only when a row turns out to be out of the ordinary is in a text of its own. */
#ifndef STORE_REDIS_COLUMNS_H
#define STORE_REDIS_COLUMNS_H

#include "store/store.h"

enum { COLUMN_COUNT = 6, COLUMN_TEXTS_MAX = 6, COLUMN_BUCKET = 6, COLUMN_TERMS_MAX = 255 };

struct columns {
    struct buf of[COLUMN_COUNT];
    struct buf rests;
    struct buf packed;
    size_t terms; /* how many */
    size_t ops;   /* of the batch: each has a code */
    size_t rows;  /* those that are here */
    /* The first time after which one of those that may be fast may not begin; 0: there is none. */
    int64_t early_ms;
    char bucket[COLUMN_BUCKET]; /* of the last row: the first characters of its job's id */
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
