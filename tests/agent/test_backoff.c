/* Pauses grow, stay within their limits, and vary. */
#include "agent/link.h"

#include "unit.h"

static void test_bound(void **state)
{
    static const struct {
        int64_t times, min_ms, max_ms, bound_ms;
    } rows[] = {
        {0, 100, 1000, 100},  {1, 100, 1000, 200},   {3, 100, 1000, 800},
        {4, 100, 1000, 1000}, {1000, 1, 1000, 1000}, {5, 2000, 1000, 1000},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_int_equal(backoff_bound_ms(rows[i].times, rows[i].min_ms, rows[i].max_ms),
                         rows[i].bound_ms);
}

static void test_pause(void **state)
{
    struct rnd rnd;
    bool differ = false;

    rnd_seed(&rnd, 7);
    for (int failures = 1; failures < 40; failures++) {
        int64_t bound_ms = backoff_bound_ms(failures - 1, 1000, 60000);
        int64_t pause_ms = backoff_ms(failures, 1000, 60000, &rnd);

        assert_true(pause_ms >= bound_ms / 2 && pause_ms <= bound_ms);
        differ = differ || pause_ms != bound_ms;
    }
    assert_true(differ);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bound), cmocka_unit_test(test_pause)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
