/* What a job costs Redis: the parts of bench_redis. */
#ifndef BENCH_REDIS_COST_H
#define BENCH_REDIS_COST_H

#include <stddef.h>
#include <stdint.h>

enum { COST_NODES_MAX = 10000, COST_NODE_SLOTS = 1000 };

struct cost_plan {
    int port;          /* of a Redis that is ours alone: it is emptied */
    int pid;           /* its process: the CPU time of its main thread is what is measured */
    long jobs;         /* in each run */
    long flight;       /* jobs under way at a time */
    int nodes;         /* to choose from */
    size_t spec_bytes; /* of what a job is about */
    const char *spec;
};

/* What one run found. */
struct cost {
    double per_s;
    double redis_us; /* CPU for each job */
    double ops_a_call;
    uint32_t p50_us; /* of a verb; 0: not measured */
    uint32_t p99_us;
};

int64_t cost_redis_ns(const struct cost_plan *plan);
void cost_node_name(int number, char name[16]);

/* The seed's scripts and its job record; and calls of a script that does nothing. */
struct cost seed_lives(const struct cost_plan *plan);
struct cost seed_releases(const struct cost_plan *plan);
struct cost seed_nothing(const struct cost_plan *plan);

#endif
