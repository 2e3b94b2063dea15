/* Whose turn it is among lanes that wait: the higher priority first; within one, lanes take turns
 * by the first key of their jobs, each key as often as its weight says; within one key the oldest
 * job first. Jobs without keys are like those of one more key.
 *
 * A key that was served is put back by as much as its weight makes of one turn (stride scheduling);
 * one that comes new begins where the others are. What is done in one step does not grow with the
 * number of lanes or keys. The queue's alone. */
#ifndef SCHED_SHARES_H
#define SCHED_SHARES_H

#include "base/heap.h"
#include "base/map.h"
#include "base/str.h"
#include "store/store.h"

enum { SHARES_PRIORITIES = 10 };

struct share; /* what one first key has had */

struct shares {
    struct idmap by_key;             /* str_hash -> struct share *; those with lanes */
    struct share *plain;             /* of jobs without keys */
    int64_t now[SHARES_PRIORITIES];  /* where the last one was when it was served */
    struct arena arena;              /* the rules, */
    const struct store_limit *rules; /* for their weights, */
    size_t rule_count;
    uint64_t rules_read; /* so often */
};

/* Lanes in order. */
struct share_order {
    struct heap lines;   /* the lanes of one key and one priority, by its turn */
    struct idmap by_key; /* the same */
    size_t count;        /* of lanes */
};

/* A lane's place in one of them. */
struct share_place {
    struct heap_node node;
    struct share_line *line; /* NULL: in no order */
};

void shares_init(struct shares *shares);
void shares_done(struct shares *shares); /* when no lane is in any order */
/* The share of a first key, at == NULL: of none; each enter is left once. */
struct share *shares_enter(struct shares *shares, struct str key);
void shares_leave(struct shares *shares, struct share *share);
/* Copies them. Weights follow when they are used. */
void shares_set_rules(struct shares *shares, const struct store_limit *rules, size_t count);

/* One turn: taken before it is known whether it comes to anything, then used or given back. */
struct share_turn {
    int64_t from, size; /* 0: none was taken */
};

struct share_turn shares_take_turn(struct shares *shares, struct share *share, int priority);
void shares_use_turn(struct shares *shares, int priority, struct share_turn turn);
void shares_give_back(struct share *share, int priority, struct share_turn turn);

void share_order_done(struct share_order *order); /* when it is empty */
/* Puts a lane whose best job is this one in its place; share NULL: that of no key. */
void share_order_put(struct shares *shares, struct share_order *order, struct share_place *place,
                     struct share *share, int priority, uint64_t job);
void share_order_del(struct share_place *place);                  /* in no order: nothing happens */
struct share_place *share_order_first(struct share_order *order); /* NULL: it is empty */
/* Some of the first, of each key the first ones; the very first is among them. */
size_t share_order_some(struct share_order *order, size_t max, struct share_place **ret_places);
/* Its place among all, in whatever order: key, then tie. Only grows while it is in one. */
struct heap_node share_place_key(const struct share_place *place);

#endif
