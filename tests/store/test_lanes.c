/* The lanes compared with a plain list. */
#include "base/clock.h"

#include "store/lanes.h"

/* cmocka.h needs these first */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { JOBS = 200, STEPS = 30000 };

/* The smallest lane number above `after` that has a job; 0: none. */
static uint64_t next_number(const uint64_t *lane_of, uint64_t after)
{
    uint64_t next = 0;

    for (int i = 0; i < JOBS; i++)
        if (lane_of[i] > after && (!next || lane_of[i] < next))
            next = lane_of[i];
    return next;
}

static void test_lanes_come_and_go(void **state)
{
    struct heap_node jobs[JOBS] = {0};
    uint64_t lane_of[JOBS] = {0};
    struct lanes lanes;
    struct rnd rnd;

    lanes_init(&lanes);
    rnd_seed(&rnd, 6);
    for (int step = 0; step < STEPS; step++) {
        unsigned at = rnd_below(&rnd, JOBS);
        uint64_t after = rnd_below(&rnd, 60);
        const struct lane *found = lanes_after(&lanes, after);

        assert_true((found ? found->number : 0) == next_number(lane_of, after));
        if (lane_of[at]) {
            lanes_leave(&lanes, lane_of[at], &jobs[at]);
            lane_of[at] = 0;
            continue;
        }
        lane_of[at] = 1 + rnd_below(&rnd, 60);
        jobs[at] = (struct heap_node){.key = rnd_below(&rnd, 3), .tie = at};
        lanes_enter(&lanes, lane_of[at], &jobs[at]);
        if (step % 16 == 0)
            lanes_check(&lanes);
    }
    lanes_check(&lanes);
    lanes_free(&lanes);
    assert_null(lanes_after(&lanes, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lanes_come_and_go),
    };

    return cmocka_run_group_tests_name("store/lanes", tests, NULL, NULL);
}
