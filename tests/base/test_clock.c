/* Clocks go forward; random numbers are even and repeatable. */
#include "../unit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

static void test_clocks(void **state)
{
    int64_t last_us = clock_mono_us();
    int64_t wall_s = (int64_t)time(NULL);

    for (int i = 0; i < 10000; i++) {
        int64_t now_us = clock_mono_us();

        assert_true(now_us >= last_us);
        last_us = now_us;
    }
    assert_true(clock_mono_ms() >= last_us / 1000);
    assert_in_range(clock_wall_ms() / 1000, wall_s, wall_s + 10);
}

/* Every day from 1970 to 2110, and the extremes. */
static void test_iso(void **state)
{
    char text[CLOCK_ISO_BYTES];
    char want[CLOCK_ISO_BYTES];

    for (int64_t ms = 0; ms < (int64_t)140 * 366 * 86400000; ms += 86400000 - 1234567) {
        time_t sec = (time_t)(ms / 1000);
        struct tm tm;

        gmtime_r(&sec, &tm);
        strftime(want, sizeof want, "%Y-%m-%dT%H:%M:%S", &tm);
        sprintf(want + 19, ".%03dZ", (int)(ms % 1000));
        clock_iso(ms, text);
        assert_string_equal(text, want);
    }
    clock_iso(0, text);
    assert_string_equal(text, "1970-01-01T00:00:00.000Z");
    clock_iso(253402300799999, text);
    assert_string_equal(text, "9999-12-31T23:59:59.999Z");
}

static void test_a_seed_replays(void **state)
{
    struct rnd a, b, c;
    int same = 0;

    rnd_seed(&a, 7);
    rnd_seed(&b, 7);
    rnd_seed(&c, 8);
    for (int i = 0; i < 1000; i++) {
        uint64_t drawn = rnd_next(&a);

        assert_int_equal(drawn, rnd_next(&b));
        same += drawn == rnd_next(&c);
    }
    assert_int_equal(same, 0);
    rnd_seed(&a, 0); /* any seed works */
    assert_true(rnd_next(&a) != rnd_next(&a));
    rnd_seed_os(&a);
    rnd_seed_os(&b);
    assert_true(memcmp(&a, &b, sizeof a) != 0);
}

/* Chi-squared test over `bound` values, with a fixed seed. */
static void test_dice_are_fair(void **state)
{
    static const uint32_t bounds[] = {2, 3, 6, 7, 20, 100};
    struct rnd rnd;

    rnd_seed(&rnd, 11);
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        uint32_t bound = bounds[i];
        int counts[100] = {0};
        double expected = 100000.0 / bound;
        double chi = 0;

        for (int k = 0; k < 100000; k++) {
            uint32_t face = rnd_below(&rnd, bound);

            assert_in_range(face, 0, bound - 1);
            counts[face]++;
        }
        for (uint32_t face = 0; face < bound; face++)
            chi += (counts[face] - expected) * (counts[face] - expected) / expected;
        assert_true(chi < bound + 5 * sqrt(2.0 * bound)); /* five sigma */
    }
    assert_int_equal(rnd_below(&rnd, 1), 0);
}

/* With a bound of 3/4 of the range, four draws would map to three values: without redrawing, one
 * value in three would come up twice as often. */
static void test_a_large_bound_is_fair(void **state)
{
    int counts[3] = {0};
    struct rnd rnd;

    rnd_seed(&rnd, 12);
    for (int i = 0; i < 30000; i++)
        counts[rnd_below(&rnd, 0xc0000000u) % 3]++;
    for (int i = 0; i < 3; i++)
        assert_in_range(counts[i], 9600, 10400);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clocks),
        cmocka_unit_test(test_iso),
        cmocka_unit_test(test_a_seed_replays),
        cmocka_unit_test(test_dice_are_fair),
        cmocka_unit_test(test_a_large_bound_is_fair),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
