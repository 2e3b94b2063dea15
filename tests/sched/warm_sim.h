/* A fleet whose nodes hold a few models each and lose the one they used least lately; jobs that
 * prefer one model each. Simulated time; who gets a job is chosen by the scheduler's own rules
 * (candidates.c, the index of what is loaded, the policy). */
#ifndef TESTS_SCHED_WARM_SIM_H
#define TESTS_SCHED_WARM_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct warm_sim {
    uint64_t seed;
    int nodes, slots; /* of each node */
    int models;       /* asked for by Zipf's law, exponent 1 */
    int room;         /* for models, on each node */
    int jobs;
    double load;      /* share of the slots in use when the policy alone decides, loads included */
    double load_cost; /* of a model that is not there, in mean service times */
    bool loads_aside; /* a load holds no slot: only the job waits for it */
    bool prefers;     /* false: the policy alone (least_loaded) */
};

struct warm_sim_result {
    int cold;         /* jobs that had to load their model */
    double wait_p99;  /* for a slot, in mean service times */
    double start_p99; /* until the work began: the slot, then the model */
    double use;       /* share of the slots in use, on average */
    int fuller;       /* jobs that went to a node more than half fuller than the others while those
                         had room */
};

struct warm_sim_result warm_sim_run(const struct warm_sim *sim);

#endif
