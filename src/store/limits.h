/* Limits by key: the operators' rules, and the state of every key that a job in memory has, that is
 * held, or that had a start within its window. model/limit.h decides what a key lets through. Rules
 * are written as they change, keys once per batch.
 *
 * Times are on the steady clock: the store's time less the journal's wait_shift_ms. So a pause or a
 * clock step does not change any of them. */
#ifndef STORE_LIMITS_H
#define STORE_LIMITS_H

#include "base/map.h"
#include "base/tree.h"
#include "store/chain.h"
#include "store/store.h"

struct journal;

struct limits_key {
    struct limit_key state;
    struct limit limit;   /* of its rule, as cached; limits_rule() checks whether it is current */
    int64_t version;      /* of the rules when it was looked up */
    int32_t rule;         /* index of its rule; -1: none applies */
    uint32_t refs;        /* demands that use it */
    bool written;         /* it has a row */
    struct chain dirty;   /* its row is out of date */
    struct chain idle;    /* no job in memory has it */
    struct buf reason;    /* reason for its hold */
    uint8_t holder_count; /* see struct store_limit_key */
    uint64_t holders[LIMIT_HOLDERS];
    struct tree_node by_name;
    struct str name;      /* points into `text` */
    int32_t recount;      /* leases, used by ledger_audit() */
    int32_t lane_recount; /* jobs in lanes, used by ledger_walk() */
    char text[];
};

struct limits {
    struct store_limit *rules; /* by pattern, which it owns */
    size_t rule_count;
    int64_t version; /* +1 with every change of a rule; never 0 */
    struct map keys;
    struct tree by_name;
    struct chain dirty;
    struct chain idle; /* looked at longest ago first */
};

void limits_init(struct limits *limits);
void limits_free(struct limits *limits);
/* From the file, before the jobs. */
void limits_load(struct limits *limits, struct journal *journal);

/* A demand names it; made if nobody did before. */
struct limits_key *limits_use(struct limits *limits, struct str name);
void limits_unuse(struct limits *limits, struct limits_key *key);

/* May one more start, or wait? */
struct limit_block limits_check(struct limits *limits, struct limits_key *key, int64_t steady_ms);
struct limit_block limits_check_queue(struct limits *limits, struct limits_key *key);
/* One started; or did not after all, which was to start at that moment. */
void limits_start(struct limits *limits, struct limits_key *key, int64_t steady_ms);
void limits_undo(struct limits *limits, struct limits_key *key, int64_t at_ms);
/* A job has a lease, or has it no longer. */
void limits_take(struct limits *limits, struct limits_key *key, uint64_t job);
void limits_give(struct limits_key *key, uint64_t job);
/* Nothing starts before that moment; 0: from now on anything may. */
void limits_hold(struct limits *limits, struct limits_key *key, int64_t until_ms,
                 struct str reason);

/* LIMIT_SET, LIMIT_HOLD and LIMITS. */
enum err limits_set(struct limits *limits, struct journal *journal, const struct store_op *op);
enum err limits_hold_key(struct limits *limits, const struct store_op *op, int64_t steady_ms);
void limits_list(struct limits *limits, struct store_op *op, int64_t steady_ms);

/* The rows of keys become what memory says: once a batch, before it is committed. */
void limits_write(struct limits *limits, struct journal *journal);
/* Forgets keys that no job has and of which nothing is left to know, some at a time. */
void limits_tidy(struct limits *limits, struct journal *journal, int64_t steady_ms);
void limits_verify(const struct limits *limits); /* see ledger_check */

#endif
