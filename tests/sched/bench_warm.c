/* bench_warm [JOBS]: how many cold loads remain with `prefers`, and how long jobs then wait. 40
 * models by Zipf's law, 20 nodes with room for four each, slots in use for 60 % of the time under
 * least_loaded, a load costs 20 service times; five seeds each. First with loads that hold the
 * job's slot, so that a warm model saves slot time; then with loads that hold none. */
#include "../unit.h"

#include "warm_sim.h"

#include <stdio.h>
#include <stdlib.h>

static void compare(struct warm_sim sim)
{
    struct warm_sim_result alone = warm_sim_run(&sim);

    sim.prefers = true;
    struct warm_sim_result warm = warm_sim_run(&sim);
    printf("%5d %5s %4d %8d %7d %5.3f %10.3f %7.3f %8.2f %7.2f\n", sim.slots,
           sim.loads_aside ? "none" : "slot", (int)sim.seed, alone.cold, warm.cold,
           (double)warm.cold / alone.cold, alone.wait_p99, warm.wait_p99, alone.use, warm.use);
}

int main(int argc, char **argv)
{
    static const int slots[] = {1, 2, 4, 8};

    printf("               cold loads               p99 wait          slots in use\n"
           "slots holds seed    alone prefers ratio      alone prefers    alone prefers\n");
    for (size_t i = 0; i < 2 * COUNT_OF(slots); i++)
        for (uint64_t seed = 1; seed <= 5; seed++)
            compare((struct warm_sim){.seed = seed,
                                      .nodes = 20,
                                      .slots = slots[i % COUNT_OF(slots)],
                                      .models = 40,
                                      .room = 4,
                                      .jobs = argc > 1 ? atoi(argv[1]) : 100000,
                                      .load = 0.6,
                                      .load_cost = 20,
                                      .loads_aside = i >= COUNT_OF(slots)});
    return 0;
}
