/* Whose turn it is among waiting lanes: the higher priority first; within a priority, lanes take
 * turns by the first key of their jobs, each key in proportion to its weight; within a key the
 * oldest job first. Jobs without keys are treated as one more key.
 *
 * A key that was served is put back by one turn divided by its weight (stride scheduling); a new
 * key starts where the others are. The work of one step does not grow with the number of lanes or
 * keys. Used by the queue only. */
#ifndef SCHED_SHARES_H
#define SCHED_SHARES_H

#include "base/heap.h"
#include "base/map.h"
#include "base/str.h"
#include "store/store.h"

enum { SHARES_PRIORITIES = 10 };

struct share; /* the turns one first key has had */

struct shares {
    struct idmap by_key;             /* str_hash -> struct share *; keys with lanes */
    struct share *plain;             /* of jobs without keys */
    int64_t now[SHARES_PRIORITIES];  /* where the last share was when it was served */
    struct arena arena;              /* the rules, */
    const struct store_limit *rules; /* for their weights, */
    size_t rule_count;
    uint64_t rules_read; /* how often rules were set */
};

/* Lanes in order. */
struct share_order {
    struct heap lines;   /* the lanes of one key and one priority, by its turn */
    struct idmap by_key; /* the same */
    size_t count;        /* of lanes */
};

/* A lane's position in one of them. */
struct share_place {
    struct heap_node node;
    struct share_line *line; /* NULL: in no order */
};

void shares_init(struct shares *shares);
void shares_done(struct shares *shares); /* when no lane is in any order */
/* The share of a first key, at == NULL: of jobs without keys; each enter needs one leave. */
struct share *shares_enter(struct shares *shares, struct str key);
void shares_leave(struct shares *shares, struct share *share);
/* Copies them. Weights are updated when they are next used. */
void shares_set_rules(struct shares *shares, const struct store_limit *rules, size_t count);

/* One turn: taken before it is known whether the try succeeds, then used or given back. */
struct share_turn {
    int64_t from, size; /* 0: none was taken */
};

struct share_turn shares_take_turn(struct shares *shares, struct share *share, int priority);
void shares_use_turn(struct shares *shares, int priority, struct share_turn turn);
void shares_give_back(struct share *share, int priority, struct share_turn turn);

void share_order_done(struct share_order *order); /* when it is empty */
/* Puts a lane whose best job is this one in its position; share NULL: that of jobs without keys. */
void share_order_put(struct shares *shares, struct share_order *order, struct share_place *place,
                     struct share *share, int priority, uint64_t job);
void share_order_del(struct share_place *place);                  /* no-op if it is in no order */
struct share_place *share_order_first(struct share_order *order); /* NULL: it is empty */
/* Some of the first lanes, the first ones of each key; the very first is among them. */
size_t share_order_some(struct share_order *order, size_t max, struct share_place **ret_places);
/* Its position among all, in any order: key, then tie. Only grows while it is in one. */
struct heap_node share_place_key(const struct share_place *place);

#endif
