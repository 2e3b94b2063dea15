/* Readings of /metrics and the rates between them. */
#include "unit.h"

#include "cli/scrape.h"

static void rows_are_read(void **state)
{
    static const char text[] = "# HELP a what\n# TYPE a counter\n"
                               "a{x=\"1\",y=\"two, three\"} 5\n"
                               "a{x=\"}\"} 6\n"
                               "b 1.5e3\n"
                               "c -2\n"
                               "\n"
                               "broken{ 7\n"
                               "nothing\n"
                               "word five\n"
                               "d 4"; /* no newline at the end */
    struct scrape scrape = {0};

    scrape_read(&scrape, STR(text), 77);
    assert_int_equal(scrape.count, 5);
    assert_int_equal(scrape.at_us, 77);
    assert_true(scrape_find(&scrape, STR("a"), STR("x=\"1\",y=\"two, three\""))->value == 5);
    assert_true(scrape_find(&scrape, STR("a"), STR("x=\"}\""))->value == 6);
    assert_true(scrape_find(&scrape, STR("b"), STR(""))->value == 1500);
    assert_true(scrape_find(&scrape, STR("c"), STR(""))->value == -2);
    assert_true(scrape_find(&scrape, STR("d"), STR(""))->value == 4);
    assert_null(scrape_find(&scrape, STR("a"), STR("")));
    scrape_done(&scrape);
}

static void labels_are_found(void **state)
{
    assert_true(str_is(scrape_label(STR("outcome=\"PLACED\""), "outcome"), "PLACED"));
    assert_true(str_is(scrape_label(STR("layer=\"l1\",result=\"hit\""), "result"), "hit"));
    assert_true(str_is(scrape_label(STR("layer=\"l1\""), "result"), ""));
    assert_true(str_is(scrape_label(STR(""), "result"), ""));
}

static const struct {
    const char *before, *now;
    int64_t before_us, now_us;
    bool known;
    double per_s;
} rates[] = {
    {"a 10\n", "a 30\n", 1000000, 3000000, true, 10},
    {"a 10\n", "a 10\n", 1000000, 2000000, true, 0},
    {"b 1\n", "a 5\n", 1000000, 2000000, true, 5},   /* a label that came up for the first time */
    {"a 10\n", "a 3\n", 1000000, 2000000, false, 0}, /* the server began anew */
    {"", "a 10\n", 0, 2000000, false, 0},            /* nothing to compare with */
    {"a 10\n", "a 30\n", 2000000, 2000000, false, 0},
};

static void rates_are_per_second(void **state)
{
    for (size_t i = 0; i < COUNT_OF(rates); i++) {
        struct scrape before = {0}, now = {0};
        double per_s = -1;
        bool known;

        if (rates[i].before[0])
            scrape_read(&before, str_of(rates[i].before), rates[i].before_us);
        scrape_read(&now, str_of(rates[i].now), rates[i].now_us);
        known = scrape_rate(&now, &before, &now.rows[0], &per_s);
        assert_int_equal(known, rates[i].known);
        assert_true(per_s == (known ? rates[i].per_s : -1));
        scrape_done(&before);
        scrape_done(&now);
    }
}

/* A reading can be taken again in the same place: top does so every second. */
static void a_reading_replaces_the_last(void **state)
{
    struct scrape scrape = {0};

    scrape_read(&scrape, STR("a 1\nb 2\n"), 1);
    scrape_read(&scrape, STR("a 9\n"), 2);
    assert_int_equal(scrape.count, 1);
    assert_true(scrape.rows[0].value == 9);
    scrape_done(&scrape);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_read),
        cmocka_unit_test(labels_are_found),
        cmocka_unit_test(rates_are_per_second),
        cmocka_unit_test(a_reading_replaces_the_last),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
