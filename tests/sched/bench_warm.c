/* bench_warm [JOBS]: how many cold loads `prefers` leaves, and how long jobs wait then: 40 models
 * by Zipf's law, 20 nodes with room for four each, slots in use for 60 % of the time by
 * least_loaded, a load costs 20 service times; five seeds each. */
#include "../unit.h"

#include "warm_sim.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    static const int slots[] = {1, 2, 4, 8};

    printf(
        "slots seed  cold: alone prefers ratio  p99 wait: alone prefers  in use: alone prefers\n");
    for (size_t s = 0; s < COUNT_OF(slots); s++)
        for (uint64_t seed = 1; seed <= 5; seed++) {
            struct warm_sim sim = {.seed = seed,
                                   .nodes = 20,
                                   .slots = slots[s],
                                   .models = 40,
                                   .room = 4,
                                   .jobs = argc > 1 ? atoi(argv[1]) : 100000,
                                   .load = 0.6,
                                   .load_cost = 20};
            struct warm_sim_result alone = warm_sim_run(&sim);
            sim.prefers = true;
            struct warm_sim_result warm = warm_sim_run(&sim);

            printf("%5d %4d %12d %7d %5.3f %16.3f %7.3f %14.2f %7.2f\n", slots[s], (int)seed,
                   alone.cold, warm.cold, (double)warm.cold / alone.cold, alone.wait_p99,
                   warm.wait_p99, alone.use, warm.use);
        }
    return 0;
}
