/* The lanes against a plain list, and how deep their tree gets. */
#include "base/clock.h"

#include <stdlib.h>

#include "base/mem.h"
#include "store/lanes.h"

/* cmocka wants these before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { JOBS = 200, STEPS = 30000, MANY = 100000 };

/* Of those in a lane the smallest number above `after`; 0: none. */
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
    struct lanes lanes = {0};
    struct rnd rnd;

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

static size_t depth_of(const struct lane *lane)
{
    size_t left = lane ? depth_of(lane->left) : 0;
    size_t right = lane ? depth_of(lane->right) : 0;

    return lane ? 1 + (left > right ? left : right) : 0;
}

/* Numbers in a row, downwards, far apart: a call looks at a few dozen of them at most. */
static void test_tree_stays_shallow(void **state)
{
    static const uint64_t steps[] = {1, UINT64_MAX, 1000003, UINT64_C(1) << 40};
    struct heap_node *jobs = mem_array(struct heap_node, MANY);

    for (size_t k = 0; k < sizeof steps / sizeof *steps; k++) {
        struct lanes lanes = {0};
        uint64_t number = k == 1 ? UINT64_MAX : 1;

        for (int i = 0; i < MANY; i++, number += steps[k]) {
            jobs[i] = (struct heap_node){.tie = (uint64_t)i};
            lanes_enter(&lanes, number, &jobs[i]);
        }
        assert_int_equal(lanes.count, MANY);
        assert_true(depth_of(lanes.root) < 64);
        lanes_free(&lanes);
    }
    free(jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lanes_come_and_go),
        cmocka_unit_test(test_tree_stays_shallow),
    };

    return cmocka_run_group_tests_name("store/lanes", tests, NULL, NULL);
}
