/* The resource score. */
#include "model/score.h"

#include <math.h>

#include "../base/unit.h"

static void test_rows(void **state)
{
    static const struct {
        struct score_usage usage;
        struct score_weights weights;
        double score;
    } rows[] = {
        {{30, 1024}, {0.5, 0.5}, 15.5}, {{0, 0}, {0.5, 0.5}, 0},     {{150, 0}, {0.5, 0.5}, 75},
        {{40, 4096}, {1, 0}, 40},       {{40, 4096}, {0, 1}, 4},     {{20, 2048}, {3, 1}, 15.5},
        {{30, 1024}, {0, 0}, 15.5},     {{30, 1024}, {-1, 0}, 15.5}, {{30, 1024}, {0.1, 0.1}, 15.5},
        {{30, 1024}, {NAN, 1}, 15.5},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        double score = score_resource(&rows[i].usage, &rows[i].weights);

        assert_true(fabs(score - rows[i].score) < 1e-12);
    }
}

static void test_unknown_is_the_seeds_zero(void **state)
{
    assert_true(score_resource(NULL, &score_defaults) == 0);
}

/* Less of either is never a worse score. */
static void test_smaller_is_better(void **state)
{
    for (int cpu = 0; cpu < 200; cpu += 7)
        for (int mb = 0; mb < 4096; mb += 333) {
            struct score_usage usage = {cpu, mb}, more = {cpu + 1, mb + 1};

            assert_true(score_resource(&usage, &score_defaults) <
                        score_resource(&more, &score_defaults));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_unknown_is_the_seeds_zero),
        cmocka_unit_test(test_smaller_is_better),
    };

    return cmocka_run_group_tests_name("score", tests, NULL, NULL);
}
