/* The lanes in which jobs wait, by number, and each with its jobs in order. A lane is there while a
 * job is in it. */
#ifndef STORE_LANES_H
#define STORE_LANES_H

#include <stdint.h>

#include "base/heap.h"
#include "base/map.h"
#include "base/tree.h"

struct lane {
    uint64_t number;
    struct heap jobs; /* key: priority, negated; tie: id */
    struct tree_node by_number;
};

struct lanes {
    struct tree by_number;
    size_t count;
    size_t job_count; /* in all of them */
};

void lanes_init(struct lanes *lanes);
struct lane *lanes_find(const struct lanes *lanes, uint64_t number);  /* NULL: nobody waits there */
struct lane *lanes_after(const struct lanes *lanes, uint64_t number); /* the next larger, or NULL */
/* `job` has its key and tie. */
void lanes_enter(struct lanes *lanes, uint64_t number, struct heap_node *job);
void lanes_leave(struct lanes *lanes, uint64_t number, struct heap_node *job);
void lanes_free(struct lanes *lanes);
/* For tests: aborts if anything is out of order. */
void lanes_check(const struct lanes *lanes);

/* Who has how much waiting: jobs and their bytes, by the name of an account. One is there while a
 * job of it waits. */

struct account {
    struct str name; /* in `text` */
    int64_t jobs;
    int64_t bytes;
    char text[];
};

struct accounts {
    struct map by_name;
};
void accounts_free(struct accounts *accounts);

#endif
