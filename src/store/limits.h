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
#include "model/demand.h"
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

/* The demands of jobs in memory, each distinct text stored once and reference counted. Most jobs
 * need one slot and nothing else: they have no such struct. */
struct limits_demand {
    struct demand demand; /* its names point into `text` */
    bool has_needs;       /* more than slots and keys */
    uint32_t refs;
    struct limits_key *keys[DEMAND_KEYS_MAX];
    struct str text; /* points into `bytes` */
    char bytes[];
};

struct limits {
    struct store_limit *rules; /* sorted by pattern; owns the patterns */
    size_t rule_count;
    int64_t version; /* +1 with every change of a rule; never 0 */
    struct map keys;
    struct tree by_name;
    struct chain dirty;
    struct chain idle;  /* least recently checked first */
    struct map demands; /* of struct limits_demand, by text */
};

void limits_init(struct limits *limits);
void limits_free(struct limits *limits);
/* From the file, before the jobs. */
void limits_load(struct limits *limits, struct journal *journal);

/* Adds or drops a job's reference to a demand. False: it cannot be parsed, see demand_parse().
 * *ret_demand or `demand` NULL: demand_plain. */
bool limits_use_demand(struct limits *limits, struct str text, struct limits_demand **ret_demand);
void limits_unuse_demand(struct limits *limits, struct limits_demand *demand);

/* May one more job start, or wait? */
struct limit_block limits_check(struct limits *limits, struct limits_key *key, int64_t steady_ms);
struct limit_block limits_check_queue(struct limits *limits, struct limits_key *key);
/* Records a start, or undoes one recorded for at_ms. */
void limits_start(struct limits *limits, struct limits_key *key, int64_t steady_ms);
void limits_undo(struct limits *limits, struct limits_key *key, int64_t at_ms);
/* Adds or removes the lease of a job. */
void limits_take(struct limits *limits, struct limits_key *key, uint64_t job);
void limits_give(struct limits_key *key, uint64_t job);
/* Nothing may start before until_ms; 0: ends the hold. */
void limits_hold(struct limits *limits, struct limits_key *key, int64_t until_ms,
                 struct str reason);

/* Writes the changed keys to their rows: once per batch, before it is committed. */
void limits_write(struct limits *limits, struct journal *journal);
/* Deletes some keys that no job has and that have no state left. */
void limits_tidy(struct limits *limits, struct journal *journal, int64_t steady_ms);
void limits_verify(const struct limits *limits); /* see ledger_check */

#endif
