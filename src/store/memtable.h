/* The memtable: every row that the journal has and store.db does not have yet, or not like this, as
 * the newest change left it. Who looks for a row looks here first; what is not here is in
 * store.db. Rows leave when store.db has been brought so far. The store thread's. */
#ifndef STORE_MEMTABLE_H
#define STORE_MEMTABLE_H

#include "base/map.h"
#include "base/mem.h"
#include "base/tree.h"
#include "store/chain.h"
#include "store/change.h"

struct memjob {
    struct tree_node by_callback; /* whose callback is pending, or was */
    struct tree_node by_id;       /* all; beside row.head.id, which it is ordered by */
    struct change_job row;        /* owns its texts; parts: all that is known of it here */
    unsigned batch_parts;         /* which of them go into the batch that is being made */
    bool changed;                 /* it is in the list of that batch */
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

/* Texts of up to so many bytes, each class twice the one before; longer ones are the heap's. */
enum { MEMTABLE_TEXT_MIN = 64, MEMTABLE_TEXT_CLASSES = 5 };

struct memtable {
    struct idmap jobs;
    struct slab slab;
    struct slab texts[MEMTABLE_TEXT_CLASSES];
    struct tree by_id;
    struct tree by_callback;
    struct map keys;                /* Idempotency-Key -> memjob that is new here and has it */
    struct map sides;               /* kind and name -> memside */
    struct chain order, side_order; /* changed longest ago first */
    struct memjob *changed, **changed_end;
    struct memside *side_changed, **side_changed_end;
    int64_t bytes; /* of all rows, about */
};

void memtable_init(struct memtable *table);
void memtable_free(struct memtable *table);

/* A change of a row; texts are copied. */
void memtable_put(struct memtable *table, const struct change *change);
struct memjob *memtable_job(const struct memtable *table, uint64_t id); /* NULL: not here */
struct memjob *memtable_key(const struct memtable *table, struct str idem);
/* The last change of anything but a job or a breaker, put or deleted; false: none here. Borrowed
 * until the next change of it. */
bool memtable_side(const struct memtable *table, enum change_kind kind, struct str name,
                   struct change *ret_change);
bool memtable_breaker(const struct memtable *table, struct str node, struct str type);
/* One after the other, of this kind or deleted: `for (size_t at = 0; ...;)`. */
bool memtable_side_next(const struct memtable *table, enum change_kind kind, size_t *at,
                        struct change *ret_change);

/* What changed since the last call is batch `seq`, and written behind what `to` has, if there is
 * one. */
void memtable_seal(struct memtable *table, uint64_t seq, struct buf *to);
/* store.db has everything up to `seq`: frees up to `budget` rows that nobody changed since. True:
 * there are more. */
bool memtable_release(struct memtable *table, uint64_t seq, int budget);

/* Reads. A head as it is answered: times to wait end `wait_shift_ms` later than rows say. */
struct store_head memtable_head(const struct memjob *job, int64_t wait_shift_ms);
/* The record, as far as it is known here, copied into the arena. */
void memtable_record(const struct memjob *job, int64_t wait_shift_ms, struct arena *arena,
                     struct store_record *ret_record);

struct memread_row {
    uint64_t id;
    struct store_record *record; /* NULL: it does not fit what is asked for */
    bool whole;                  /* else its spec is in store.db */
    bool has_result;             /* else that is there, too */
};

/* What a read has to know beside what store.db tells; in the arena of its op. */
struct memread {
    int64_t wait_shift_ms;
    struct memread_row *rows; /* in the order of the read */
    size_t count;
    uint64_t end; /* ids beyond it were not looked at; 0: all were */
};

/* For JOB_GET, JOB_LIST and CALLBACKS. */
struct memread *memtable_read(const struct memtable *table, const struct store_op *op,
                              int64_t wait_shift_ms);

#endif
