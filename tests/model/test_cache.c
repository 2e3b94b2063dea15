/* How errors and their latency change the mode. */
#include "model/cache.h"

#include "../unit.h"

/* 'e': an error after 10 ms, 's': one after 101 ms, 'b': one after 100 ms (not slow yet), '+': a
 * success. */
static void test_rows(void **state)
{
    static const struct {
        const char *steps;
        enum degrade_mode mode;
    } rows[] = {
        {"", DEGRADE_NORMAL},
        {"ee", DEGRADE_NORMAL},
        {"eee", DEGRADE_L2_ONLY},
        {"s", DEGRADE_L2_ONLY},
        {"b", DEGRADE_NORMAL},
        {"ee+ee", DEGRADE_NORMAL},
        {"s+", DEGRADE_NORMAL},
        {"se", DEGRADE_L2_ONLY},
        {"eeeeeeeee", DEGRADE_L2_ONLY},
        {"eeeeeeeeee", DEGRADE_LOCAL_ONLY},
        {"eeeeeeeeees", DEGRADE_LOCAL_ONLY},
        {"eeeeeeeeee+", DEGRADE_NORMAL},
        {"eeeeeeeeee+ee", DEGRADE_NORMAL},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct degrade degrade = {0};

        for (const char *step = rows[i].steps; *step; step++) {
            if (*step == '+')
                degrade_success(&degrade);
            else
                degrade_error(&degrade, *step == 's' ? 101 : *step == 'b' ? 100 : 10);
        }
        assert_int_equal(degrade.mode, rows[i].mode);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows)};

    return cmocka_run_group_tests_name("model/cache", tests, NULL, NULL);
}
