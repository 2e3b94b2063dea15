/* The lanes of waiting jobs, by number, each with its jobs in order. A lane exists while it has a
 * job. */
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
    size_t job_count; /* in all lanes */
};

void lanes_init(struct lanes *lanes);
struct lane *lanes_find(const struct lanes *lanes, uint64_t number);  /* NULL: no job waits there */
struct lane *lanes_after(const struct lanes *lanes, uint64_t number); /* the next larger, or NULL */
/* The caller has set the key and tie of `job`. */
void lanes_enter(struct lanes *lanes, uint64_t number, struct heap_node *job);
void lanes_leave(struct lanes *lanes, uint64_t number, struct heap_node *job);
void lanes_free(struct lanes *lanes);
/* For tests: aborts if anything is out of order. */
void lanes_check(const struct lanes *lanes);

/* Waiting jobs and their bytes, by account name. An account exists while it has a waiting job. */

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
