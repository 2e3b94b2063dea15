/* Failed logins of an address: how many are allowed, and for how long they count. */
#include "../unit.h"

#include "server/auth.h"

#include <stdlib.h>

enum { MAX = 6, MINUTE_MS = 60000 }; /* one failure expires every 10 s */

static int setup(void **state)
{
    *state = calloc(1, sizeof(struct logins));
    return 0;
}

static int teardown(void **state)
{
    free(*state);
    return 0;
}

static void fail_times(struct logins *logins, uint64_t peer, int times, int64_t now_ms)
{
    for (int i = 0; i < times; i++)
        logins_failed(logins, peer, MAX, now_ms);
}

static void the_limit_and_its_end(void **state)
{
    struct logins *logins = *state;
    int reported = 0;

    for (int i = 0; i < MAX; i++) {
        assert_true(logins_may(logins, 7, MAX, 1000));
        reported += logins_failed(logins, 7, MAX, 1000);
    }
    assert_int_equal(reported, 1);
    assert_false(logins_may(logins, 7, MAX, 1000));
    assert_false(logins_may(logins, 7, MAX, 1000 + 9999));
    assert_true(logins_may(logins, 7, MAX, 1000 + 10000));
    assert_false(logins_failed(logins, 7, MAX, 1000 + 10000)); /* reported already */
    assert_false(logins_may(logins, 7, MAX, 1000 + 10001));
    assert_true(logins_may(logins, 7, MAX, 1000 + 10000 + MINUTE_MS));
    assert_true(logins_may(logins, 8, MAX, 1000)); /* another address */
}

/* Attempts while shut do not keep an address shut for ever. */
static void questions_do_not_stop_the_clock(void **state)
{
    struct logins *logins = *state;
    int64_t now_ms = 1000;

    fail_times(logins, 7, MAX, now_ms);
    while (!logins_may(logins, 7, MAX, now_ms))
        now_ms++;
    assert_in_range(now_ms - 1000, 10000, 10100);
}

static void no_limit(void **state)
{
    struct logins *logins = *state;

    for (int i = 0; i < 1000; i++)
        assert_false(logins_failed(logins, 7, 0, 1000));
    assert_true(logins_may(logins, 7, 0, 1000));
}

/* With many addresses the table does not grow, and one over its limit is kept rather than one
 * without failures. */
static void many_addresses(void **state)
{
    struct logins *logins = *state;
    int still = 0;

    for (uint64_t peer = 1; peer <= 100; peer++)
        fail_times(logins, peer, MAX, 1000);
    for (uint64_t peer = 1000; peer < 20000; peer++) {
        fail_times(logins, peer, 1, 2000 - MINUTE_MS);
        assert_true(logins_may(logins, peer, MAX, 2000)); /* the failure has expired */
    }
    for (uint64_t peer = 1; peer <= 100; peer++)
        still += !logins_may(logins, peer, MAX, 2000);
    assert_int_equal(still, 100);
    for (uint64_t peer = 100000; peer < 200000; peer++)
        fail_times(logins, peer, 1, 3000);
    assert_true(logins_may(logins, 150000, MAX, 3000));
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        ROW(the_limit_and_its_end),
        ROW(questions_do_not_stop_the_clock),
        ROW(no_limit),
        ROW(many_addresses),
    };

    return cmocka_run_group_tests_name("server/logins", tests, NULL, NULL);
}
