/* The outcomes of work over a period: by node and type how jobs and their attempts ended, how long
 * they waited and ran, and the resources they used meanwhile, which are also counted by key; by
 * node how loaded its machine was; and which refusals there were and why. A job counts once, where
 * it ended; each of its attempts where it ran. Bounded: what has no room for a separate row counts
 * as "other". Each tally belongs to one thread; loops pass theirs to the keeper, which keeps one
 * per hour. */
#ifndef SCHED_TALLY_H
#define SCHED_TALLY_H

#include "base/err.h"
#include "base/map.h"
#include "base/mem.h"
#include "model/level.h"
#include "sched/sched.h"

enum {
    TALLY_BUCKETS = 56, /* of times: up to 1 ms, then two per doubling, to more than a day */
    TALLY_WORKS_MAX = 2048,
    TALLY_KEYS_MAX = 8192, /* keys x types */
    TALLY_OTHERS_MAX = 64, /* names of resources in one row */
    TALLY_MACHINES_MAX = 16384,
    TALLY_REFUSALS_MAX = 4096,
};

/* A histogram of times, small enough to have two in every row. */
struct tally_times {
    uint32_t counts[TALLY_BUCKETS];
};

void tally_time(struct tally_times *times, int64_t ms);
/* The time in ms that `percent` of them do not exceed; -1 when there are none. Off by at most a
 * fifth. */
int64_t tally_percentile(const struct tally_times *times, int percent);

enum tally_count {
    /* jobs, by how they ended */
    TALLY_DONE,
    TALLY_FAILED, /* whichever side was at fault */
    TALLY_CANCELLED,
    /* attempts that ended, whatever became of their job */
    TALLY_ATTEMPTS,
    TALLY_RETRIED,   /* failed while the job had further attempts left */
    TALLY_FAILOVERS, /* of those: because the node was silent, not because the work failed */
    TALLY_KILLS,     /* ended to save the machine, at a time or disk limit, or by the kernel */
    TALLY_BREAKERS,  /* a breaker opened */
    TALLY_COUNTS
};
const char *tally_count_name(enum tally_count count);

/* What attempts used while they ran, from the ACK to the end: an amount x milliseconds. Each sum
 * saturates at the largest number. */
enum tally_amount {
    TALLY_RUN_MS,
    TALLY_SLOTS,
    TALLY_CPU, /* 1/1000 of a core */
    TALLY_MEM_MB,
    TALLY_GPUS,    /* whole ones */
    TALLY_VRAM_MB, /* of shared GPUs */
    TALLY_AMOUNTS
};

struct tally_other { /* a resource named by an operator */
    struct tally_other *next;
    struct str name;
    int64_t amount_ms;
};

struct tally_usage {
    int64_t runs; /* attempts that began */
    int64_t amount_ms[TALLY_AMOUNTS];
    struct tally_other *others; /* in the arena; beyond TALLY_OTHERS_MAX not counted */
};

struct tally_key {
    struct str key; /* with its namespace, like the type; "other": there were too many */
    struct str type;
    struct tally_usage usage;
};

struct tally_work {
    struct str node; /* "-": jobs that ended without ever having been on a node */
    struct str type;
    uint32_t counts[TALLY_COUNTS];
    struct tally_times wait; /* of first attempts: from the submission until it was sent */
    struct tally_times run;  /* of all that began: from the ACK to the end */
    struct tally_usage keyless, keyed; /* of jobs without keys, and of jobs with keys */
};

/* Milliseconds by level; the entries after the levels are for time at no known level. */
enum { TALLY_UNMEASURED = LEVEL_COUNT, TALLY_OFFLINE, TALLY_LEVELS };
const char *tally_level_name(int level); /* "normal"..., "unmeasured", "offline" */

struct tally_machine {
    struct str node;
    int64_t level_ms[TALLY_LEVELS];
    int64_t used_ms; /* slots in use x time */
    int64_t max_ms;  /* slots it had x time */
};

struct tally_refusal {
    struct str node; /* "" = no node was considered */
    struct str type, reason;
    uint64_t count;
};

struct tally {
    struct arena arena; /* all rows and keys */
    struct map works, keys, machines, refusals;
};

struct tally *tally_new(void);
void tally_free(struct tally *tally); /* NULL is fine */
bool tally_is_empty(const struct tally *tally);

/* The row, created if needed. */
struct tally_work *tally_work(struct tally *tally, struct str node, struct str type);
struct tally_key *tally_key(struct tally *tally, struct str key, struct str type);
struct tally_machine *tally_machine(struct tally *tally, struct str node);
/* Adds up; memory that `to` needs is from the arena. */
void tally_usage_add(struct tally_usage *to, const struct tally_usage *more, struct arena *arena);
void tally_refuse(struct tally *tally, struct str node, struct str type, struct str reason,
                  uint64_t count);
void tally_merge(struct tally *tally, const struct tally *more);
/* Merges a tally of another instance: counts are added, but all instances observe the same
 * machines, so for each machine the longest observation counts. */
void tally_merge_other(struct tally *tally, const struct tally *other);

/* One row per line, JSON; only non-zero values. Reading adds to the existing rows; a line in
 * another format is an error and changes nothing. */
void tally_save(const struct tally *tally, struct buf *text);
enum err tally_load(struct tally *tally, struct str line);

/* Tallies of the last hours, on the keeper's thread. At most HOURS_MAX of them, HOURS_WORKS_MAX
 * rows of work and HOURS_KEYS_MAX of keys: with very many nodes or keys the oldest are dropped
 * sooner, but a whole day always fits. */

enum {
    HOURS_MAX = 7 * 24,
    HOURS_WORKS_MAX = 25 * TALLY_WORKS_MAX,
    HOURS_KEYS_MAX = 25 * TALLY_KEYS_MAX,
    HOUR_MS = 3600000
};

struct hour {
    int64_t number;      /* hours since 1970 */
    struct tally *tally; /* NULL: nothing happened */
    bool unsaved;
};

struct hours {
    struct hour ring[HOURS_MAX]; /* by number */
    size_t works, keys;          /* in all of them, when last counted */
};

void hours_free(struct hours *hours); /* frees the contents */
/* The tally of the hour that contains `ms`; NULL: too old to be kept. Marks it unsaved. */
struct tally *hours_at(struct hours *hours, int64_t ms);
/* Everything from `since_ms` to `until_ms`, by whole hours; the caller frees it. */
struct tally *hours_sum(const struct hours *hours, int64_t since_ms, int64_t until_ms);
/* Drops what is too old at `now_ms` or exceeds the limits. */
void hours_tidy(struct hours *hours, int64_t now_ms);

/* Where tallies come from: attempts that end, dispatches that are refused, machines that are
 * sampled. */

/* Why a run was ended from outside, by the reason it ended with; NULL: it was not. */
const char *tally_kill_name(struct str reason);
/* A FINISH that counted. ended: the job ended with it; false when only an attempt ended, or when a
 * job cancelled earlier finally stops. */
void tally_note_end(struct sched_loop *loop, const struct store_op *op, bool ended);
/* An accepted job found no node for another attempt and has failed. */
void tally_note_unplaced(struct sched_loop *loop, const struct store_head *head);
void tally_note_refusal(struct sched_loop *loop, struct str node, struct str type,
                        const char *reason);
/* A node's state during the last `ms`. */
void tally_note_machine(struct tally *tally, const struct node *node, int64_t ms);
/* Makes this loop's counts available to the keeper; call it now and then. */
void tally_tick(struct sched_loop *loop);
/* On the keeper's thread, or when the others have ended: takes what all loops made available. NULL:
 * discards it. */
void tally_collect(struct sched *sched, struct tally *into);

#endif
