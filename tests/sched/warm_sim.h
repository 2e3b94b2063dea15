/* Simulates a fleet whose nodes hold a few models each and drop the least recently used, with jobs
 * that prefer one model each. The scheduler's own rules choose the node (candidates.c, the warm
 * index, the policy); time is simulated. */
#ifndef TESTS_SCHED_WARM_SIM_H
#define TESTS_SCHED_WARM_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct warm_sim {
    uint64_t seed;
    int nodes, slots; /* slots of each node */
    int models;       /* requested by Zipf's law with exponent 1 */
    int room;         /* models that fit on a node */
    int jobs;
    double load;      /* share of slots in use with the policy alone, loads included */
    double load_cost; /* cost of a cold load, in mean service times */
    bool loads_aside; /* a load holds no slot: only the job waits for it */
    bool prefers;     /* false: the policy alone (least_loaded) */
};

struct warm_sim_result {
    int cold;         /* jobs that had to load their model */
    double wait_p99;  /* waiting for a slot, in mean service times */
    double start_p99; /* until work began: slot, then model */
    double use;       /* mean share of slots in use */
    int fuller;       /* jobs sent to a node more than half fuller than others that had room */
};

struct warm_sim_result warm_sim_run(const struct warm_sim *sim);

#endif
