/* The memtable: the newest version of every row that is in the journal but not yet, or in an older
 * version, in store.db. Lookups come here first and then go to store.db. Rows leave once store.db
 * has them. Store thread only. */
#ifndef STORE_MEMTABLE_H
#define STORE_MEMTABLE_H

#include "base/map.h"
#include "base/mem.h"
#include "base/tree.h"
#include "store/chain.h"
#include "store/change.h"

struct memjob {
    struct tree_node by_callback; /* jobs whose callback is or was pending */
    struct tree_node by_id;       /* all jobs, ordered by row.head.id, which is next to it */
    struct change_job row;        /* owns its texts; parts: everything known here */
    unsigned batch_parts;         /* the parts that go into the batch being built */
    bool changed;                 /* it is in that batch's list */
    struct memjob *next_changed;
    uint64_t seq;       /* of the last batch that changed it */
    struct chain order; /* of the memtable */
};

/* A node, a breaker, a session, a rule or a key: its last change as bytes. */
struct memside {
    struct str key; /* in `text` */
    struct buf change;
    bool changed;
    struct memside *next_changed;
    uint64_t seq;
    struct chain order;
    char text[];
};

/* Size classes of texts, each twice the one before; longer texts are on the heap. */
enum { MEMTABLE_TEXT_MIN = 64, MEMTABLE_TEXT_CLASSES = 5 };

struct memtable {
    struct idmap jobs;
    struct slab slab;
    struct slab texts[MEMTABLE_TEXT_CLASSES];
    struct tree by_id;
    struct tree by_callback;
    struct map keys;                /* Idempotency-Key -> new memjob with that key */
    struct map sides;               /* kind and name -> memside */
    struct chain order, side_order; /* least recently changed first */
    struct memjob *changed, **changed_end;
    struct memside *side_changed, **side_changed_end;
    int64_t bytes; /* approximate size of all rows */
};

void memtable_init(struct memtable *table);
void memtable_free(struct memtable *table);

/* Applies a change of a row; texts are copied. */
void memtable_put(struct memtable *table, const struct change *change);
struct memjob *memtable_job(const struct memtable *table, uint64_t id); /* NULL: not here */
/* The last change (put or delete) of the row that `like` names, of any kind but a job; false: none
 * here. Borrowed until that row changes again. */
bool memtable_side(const struct memtable *table, const struct change *like,
                   struct change *ret_change);
/* Iterates over changes of this kind, deletions included: `for (size_t at = 0; ...;)`. */
bool memtable_side_next(const struct memtable *table, enum change_kind kind, size_t *at,
                        struct change *ret_change);

/* Marks the changes since the last call as batch `seq`, and appends them to `to` unless it is
 * NULL. */
void memtable_seal(struct memtable *table, uint64_t seq, struct buf *to);
/* store.db has everything up to `seq`: frees up to `budget` rows not changed since. True: there are
 * more. */
bool memtable_release(struct memtable *table, uint64_t seq, int budget);

/* Reads. The head as answered: queue timeouts end `wait_shift_ms` later than stored. */
struct store_head memtable_head(const struct memjob *job, int64_t wait_shift_ms);
/* The record, as far as it is in memory, copied into the arena. */
void memtable_record(const struct memjob *job, int64_t wait_shift_ms, struct arena *arena,
                     struct store_record *ret_record);

struct memread_row {
    uint64_t id;
    struct store_record *record; /* NULL: it does not match the filter */
    bool whole;                  /* false: its spec is in store.db */
    bool has_result;             /* false: its result is in store.db */
};

/* What a read needs in addition to store.db; in the arena of its op. */
struct memread {
    int64_t wait_shift_ms;
    struct memread_row *rows; /* in the order of the read */
    size_t count;
    uint64_t end; /* ids beyond it were not checked; 0: all were */
};

/* For JOB_GET, JOB_LIST and CALLBACKS. */
struct memread *memtable_read(const struct memtable *table, const struct store_op *op,
                              int64_t wait_shift_ms);

#endif
