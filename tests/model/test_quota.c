/* Quotas: what is one, how it is shown, and what a rate lets through. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/quota.h"

static void texts(void **state)
{
    static const struct {
        const char *text;
        const char *shown; /* NULL: refused */
    } table[] = {
        {"rate=10/s,waiting=1000,bytes=64MiB", "rate=10/s,waiting=1000,bytes=64MiB"},
        {"bytes=65536,rate=600/m", "rate=600/m,bytes=64KiB"},
        {"waiting=1", "waiting=1"},
        {"rate=1000000/h", "rate=1000000/h"},
        {"bytes=1000", "bytes=1000"},
        {"bytes=1024GiB", "bytes=1024GiB"},
        {"bytes=1025GiB", NULL},
        {"bytes=9223372036854775807GiB", NULL},
        {"bytes=64MB", NULL},
        {"bytes=MiB", NULL},
        {"bytes=", NULL},
        {"bytes", NULL},
        {"", NULL},
        {",", NULL},
        {"waiting=0", NULL},
        {"waiting=-1", NULL},
        {"waiting=1,", NULL},
        {"waiting=1,waiting=2", NULL},
        {"waiting=100000001", NULL},
        {"rate=10", NULL},
        {"rate=10/", NULL},
        {"rate=10/d", NULL},
        {"rate=/s", NULL},
        {"rate=0/s", NULL},
        {"rate=1000001/s", NULL},
        {"jobs=5", NULL},
    };

    for (size_t i = 0; i < COUNT_OF(table); i++) {
        struct quota quota = {.waiting = 7}, again;
        char text[QUOTA_TEXT_MAX + 1];
        struct problem why = {0};
        enum err err = quota_parse(str_of(table[i].text), &quota, &why);

        if (!table[i].shown) {
            if (err != ERR_BAD_FIELD || quota.waiting != 7)
                fail_msg("\"%s\" is taken for a quota", table[i].text);
            continue;
        }
        if (err)
            fail_msg("%s: %s", table[i].text, why.detail);
        quota_text(&quota, text);
        assert_string_equal(text, table[i].shown);
        assert_int_equal(quota_parse(str_of(text), &again, &why), ERR_OK);
        assert_memory_equal(&again, &quota, sizeof quota);
    }
}

/* As many at once as in a span, then one with each share of it; never more in any span than two. */
static void a_rate(void **state)
{
    struct quota quota = {.rate = 10, .rate_ms = 1000};
    quota_meter meter = 0;
    int64_t now_ms = 5000000, wait_ms = 0;

    for (int i = 0; i < 10; i++)
        assert_true(quota_take(&quota, &meter, now_ms, &wait_ms));
    assert_false(quota_take(&quota, &meter, now_ms, &wait_ms));
    assert_int_equal(wait_ms, 100);
    assert_false(
        quota_take(&quota, &meter, now_ms + 99, &wait_ms)); /* a refusal counts for nothing */
    assert_int_equal(wait_ms, 1);
    assert_true(quota_take(&quota, &meter, now_ms + 100, &wait_ms));
    assert_false(quota_take(&quota, &meter, now_ms + 100, &wait_ms));
    for (int ms = 101, taken = 0; ms <= 10100; ms++) {
        taken += quota_take(&quota, &meter, now_ms + ms, &wait_ms);
        assert_in_range(taken, ms / 100 - 1, ms / 100);
    }
    now_ms += 3600000; /* what was not used is not saved up */
    for (int i = 0; i < 10; i++)
        assert_true(quota_take(&quota, &meter, now_ms, &wait_ms));
    assert_false(quota_take(&quota, &meter, now_ms, &wait_ms));
}

/* The slowest and the fastest there are. */
static void rates_at_their_bounds(void **state)
{
    struct quota slow = {.rate = 1, .rate_ms = 3600000}, fast = {.rate = 1000000, .rate_ms = 1000};
    quota_meter meter = 0, other = 0;
    int64_t wait_ms;
    int taken = 0;

    assert_true(quota_take(&slow, &meter, 1, &wait_ms));
    assert_false(quota_take(&slow, &meter, 2, &wait_ms));
    assert_int_equal(wait_ms, 3599999);
    assert_true(quota_take(&slow, &meter, 3600001, &wait_ms));
    while (quota_take(&fast, &other, 1, &wait_ms))
        taken++;
    assert_int_equal(taken, 1000000);
    assert_int_equal(wait_ms, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts), cmocka_unit_test(a_rate),
                                       cmocka_unit_test(rates_at_their_bounds)};

    return cmocka_run_group_tests_name("model/quota", tests, NULL, NULL);
}
