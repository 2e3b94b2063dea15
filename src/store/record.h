/* The records in Redis: what is in each, one row a field, in this order. The reader here and
 * all that the function library knows of them (lua/tables.c makes it) come from these rows, so they
 * cannot disagree. A record begins with its format, a byte; numbers follow, little end first and
 * nothing between, then texts, each with a zero behind it, and then one text without: the result of
 * a job; of a node the stamps of epochs that are over.
 *
 *   ROW(name, kind, part, since, plain)
 *
 * `since`: the first format that has it. `plain`: what it is if nobody says, and in a record of an
 * older format; GIVEN: it is always said. `part`: what lua/columns.lua takes out of a record, and
 * puts in again, as one piece. What changes with every step of a job is in its head.
 */
#ifndef STORE_RECORD_H
#define STORE_RECORD_H

#include "base/str.h"

/* What this build reads and writes, of these records and of all others in Redis: whoever lays one
 * of them out anew raises it. A test builds a program with one format more. */
#ifdef RECORD_NEXT
#include RECORD_NEXT
#else
enum { FORMAT_OLDEST = 3, FORMAT_NEWEST = 3 };
#define JOB_RECORD_NEXT(ROW)
#define NODE_RECORD_NEXT(ROW)
#define STATE_RECORD_NEXT(ROW)
#endif

#define JOB_RECORD(ROW)                                                                            \
    ROW(state, U8, head, 3, GIVEN)                                                                 \
    ROW(lease, U8, head, 3, GIVEN)                                                                 \
    ROW(attempt, U8, head, 3, GIVEN)                                                               \
    ROW(ran_out, U8, head, 3, 0) /* the lease that ran out and was not settled yet */              \
    ROW(probe, BOOL, head, 3, 0)                                                                   \
    ROW(apart, BOOL, head, 3, 0)   /* its node's stamp does not renew it, see lua/lease.lua */     \
    ROW(place, U8, head, 3, GIVEN) /* on the wheel, ..., see lua/wheel.lua */                      \
    ROW(told, U8, head, 3, GIVEN)  /* where its ended attempts are */                              \
    ROW(callback, U8, head, 3, GIVEN)                                                              \
    ROW(timed, U8, head, 3, GIVEN) /* it has a time-out */                                         \
    ROW(due, TIME, head, 3, GIVEN)                                                                 \
    ROW(updated, TIME, head, 3, GIVEN)                                                             \
    JOB_RECORD_NEXT(ROW)                                                                           \
    ROW(ended, TIME, head, 3, GIVEN)                                                               \
    ROW(acked, TIME, head, 3, GIVEN)                                                               \
    ROW(run_until, TIME, head, 3, GIVEN)                                                           \
    ROW(filed, TIME, head, 3, GIVEN) /* where on the wheel */                                      \
    ROW(created, TIME, head, 3, GIVEN)                                                             \
    ROW(dispatched, TIME, head, 3, GIVEN)                                                          \
    ROW(pause, U8, head, 3, 0) /* the number of the last one when it was reserved */               \
    ROW(epoch, U32, about, 3, GIVEN)                                                               \
    ROW(timeout, TIME, about, 3, GIVEN)                                                            \
    ROW(owner, U32, about, 3, GIVEN)                                                               \
    ROW(max, U8, about, 3, GIVEN)                                                                  \
    ROW(keyed, BOOL, about, 3, 0)                                                                  \
    ROW(has_key, BOOL, about, 3, 0)    /* it came with an Idempotency-Key, which goes with it */   \
    ROW(outside, U8, about, 3, 0)      /* its result is beside the record */                       \
    ROW(priority, U8, about, 3, 0)     /* in its lane */                                           \
    ROW(lane, U64, about, 3, 0)        /* in which it waits; 0: it does not, or is held */         \
    ROW(counted, U8, about, 3, 0)      /* by the audit of its keys, see lua/limit.lua */           \
    ROW(demand, TEXT, texts, 3, GIVEN) /* what it takes, and its keys, see demand_write() */       \
    ROW(node, TEXT, texts, 3, GIVEN)                                                               \
    ROW(type, TEXT, texts, 3, GIVEN)                                                               \
    ROW(reason, TEXT, texts, 3, GIVEN)                                                             \
    ROW(gpus, TEXT, texts, 3, GIVEN) /* their ids, a comma between two */

/* Counts and limits are what answers carry of a node. Nobody who is not known has a health. */
#define NODE_RECORD(ROW)                                                                           \
    ROW(health, U8, counts, 3, GIVEN)                                                              \
    ROW(reserved, I32, counts, 3, GIVEN)                                                           \
    NODE_RECORD_NEXT(ROW)                                                                          \
    ROW(running, I32, counts, 3, GIVEN)                                                            \
    ROW(max, I32, limits, 3, GIVEN)                                                                \
    ROW(epoch, U32, limits, 3, GIVEN)                                                              \
    ROW(own, U8, facts, 3, GIVEN)                                                                  \
    ROW(admin, U8, facts, 3, GIVEN)                                                                \
    ROW(known, BOOL, facts, 3, GIVEN)                                                              \
    ROW(runs_from, U32, facts, 3, GIVEN) /* runs of this epoch and later ones count */             \
    ROW(registered, I64, facts, 3, GIVEN)                                                          \
    ROW(version, I64, facts, 3, GIVEN)                                                             \
    ROW(wide, I32, facts, 3, GIVEN)        /* slots of its runs beyond one for each */             \
    ROW(stocked, BOOL, facts, 3, GIVEN)    /* it has resources, see lua/needs.lua */               \
    ROW(apart, I32, facts, 3, GIVEN)       /* runs that its stamp does not renew */                \
    ROW(task_until, TIME, facts, 3, GIVEN) /* its stamp: so long it renewed them */                \
    ROW(f2f_until, TIME, facts, 3, GIVEN)  /* and those of face-to-face jobs */

/* `meta.state`: what every call reads and writes. */
#define STATE_RECORD(ROW)                                                                          \
    ROW(now, I64, all, 3, GIVEN)                                                                   \
    ROW(order, I64, all, 3, GIVEN)                                                                 \
    STATE_RECORD_NEXT(ROW)                                                                         \
    ROW(lapse_seq, I64, all, 3, GIVEN)                                                             \
    ROW(version, I64, all, 3, GIVEN)                                                               \
    ROW(gate_count, I64, all, 3, GIVEN)                                                            \
    ROW(open_count, I64, all, 3, GIVEN)                                                            \
    ROW(offset, I64, all, 3, GIVEN) /* of `now` before the steady clock, see lua/lease.lua */      \
    ROW(offset_since, I64, all, 3, GIVEN) /* since then */                                         \
    ROW(pauses, I64, all, 3, GIVEN)       /* of all callers so far, see lua/lease.lua */           \
    ROW(grace_from, I64, all, 3, GIVEN)                                                            \
    ROW(grace_min, I64, all, 3, GIVEN)                                                             \
    ROW(grace_until, I64, all, 3, GIVEN)                                                           \
    ROW(grace_f2f, I64, all, 3, GIVEN)                                                             \
    ROW(wheel_at, I64, all, 3, GIVEN)                                                              \
    ROW(wheel_done, I64, all, 3, GIVEN)                                                            \
    ROW(free_at, I64, all, 3, GIVEN)                                                               \
    ROW(ripe, I64, all, 3, GIVEN)                                                                  \
    ROW(total, I64, all, 3, GIVEN)                                                                 \
    ROW(active, I64, all, 3, GIVEN)                                                                \
    ROW(unlooked, I64, all, 3, GIVEN) /* jobs that came since the memory was looked at */          \
    ROW(full, I64, all, 3, GIVEN)     /* how near Redis is to its maxmemory, see lua/chores.lua */ \
    ROW(recover_until, I64, all, 3, GIVEN)                                                         \
    ROW(limits_version, I64, all, 3, GIVEN) /* of the rules for keys */                            \
    ROW(lease_round, I64, all, 3, GIVEN)    /* of the audit of keys, see lua/limit.lua */          \
    ROW(lane_round, I64, all, 3, GIVEN)                                                            \
    ROW(gen, TEXT, all, 3, GIVEN)                                                                  \
    ROW(span, TEXT, all, 3, GIVEN)      /* the newest that `spans` has */                          \
    ROW(limits_at, TEXT, all, 3, GIVEN) /* which change of those was the last */                   \
    ROW(instance, TEXT, all, 3, GIVEN)  /* who called last */

#define RECORD_JOB_INDEX(name, kind, part, since, plain)   RECORD_JOB_##name,
#define RECORD_NODE_INDEX(name, kind, part, since, plain)  RECORD_NODE_##name,
#define RECORD_STATE_INDEX(name, kind, part, since, plain) RECORD_STATE_##name,

enum { JOB_RECORD(RECORD_JOB_INDEX) RECORD_JOB_COUNT };
enum { NODE_RECORD(RECORD_NODE_INDEX) RECORD_NODE_COUNT };
enum { STATE_RECORD(RECORD_STATE_INDEX) RECORD_STATE_COUNT };
enum { RECORD_FIELDS_MAX = 40 };

enum record_kind {
    RECORD_U8,
    RECORD_BOOL,
    RECORD_U32,
    RECORD_I32,
    RECORD_TIME,
    RECORD_I64,
    RECORD_U64, /* too long for a number of Lua: its eight bytes, as they are */
    RECORD_TEXT
};

struct record_field {
    const char *name;
    enum record_kind kind;
    const char *part;
    int since;
    int64_t plain; /* RECORD_GIVEN */
};

enum {
    RECORD_GIVEN = -1,
    /* The first characters of a job's id: jobs that share them are in one hash, for a quarter of a
     * second, and in one list, for 8 s. So no key becomes large, however many jobs come. */
    RECORD_BUCKET = 8,
    RECORD_SPAN = 7,
    /* `told`: its attempts are a text beside the record; it was done at the first one. */
    RECORD_TOLD_TEXT = 1,
    RECORD_TOLD_DONE = 2,
};

struct record_layout {
    const char *name; /* as the library calls it */
    const char *rest; /* and what is behind its fields; NULL: nothing does */
    const struct record_field *fields;
    size_t count;
};

extern const struct record_layout record_job, record_node, record_state;

/* A record that was read: numbers by their row, texts borrowed from the bytes. */
struct record {
    int64_t numbers[RECORD_FIELDS_MAX];
    struct str texts[RECORD_FIELDS_MAX];
    struct str rest; /* what is behind its fields */
};

size_t record_width(enum record_kind kind); /* 0: a text */
bool record_is_there(const struct record_field *field, int format);
bool record_is_known(struct str bytes); /* is it of a format that is known here? */
/* False: too short, or of a format that is not known here. `up_to`: the fields before this part are
 * all that is there; NULL: all. */
bool record_read(const struct record_layout *layout, struct str bytes, const char *up_to,
                 struct record *ret_record);

/* The format of what is kept in Redis. It is a number: another layout of a record, or another key
 * for the same thing, is another format. `meta.format` tells which one is written and which ones
 * the records there have, and every call looks at it before anything else (lua/batch.lua): who
 * cannot read them all changes nothing and says so. Which one is written is agreed upon by those
 * who are there (lua/instance.lua); what has another one is written again (lua/chores.lua). */

/* `text` is what is in `meta.format`; at == NULL: nothing, in a store that has data. */
bool format_is_readable(struct str text);
/* Why it is not, and what to do: a part of a sentence. */
void format_explain(struct str text, char *to, size_t size);

#endif
