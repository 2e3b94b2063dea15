/* Limits: rules and which is closest, the sliding window compared with a plain list, and what a key
 * lets through. */
#include "model/limit.h"

#include <stdlib.h>
#include <string.h>

#include "../unit.h"
#include "base/clock.h"
#include "base/mem.h"

static void test_patterns(void **state)
{
    static const struct {
        const char *pattern;
        bool ok;
    } rows[] = {{"a", true},      {"tenant:acme", true}, {"tenant:*", true}, {"*", true},
                {"", false},      {"a b", false},        {"a*b", false},     {"**", false},
                {".a*", false},   {"a/b", true},         {"a/*", true},      {"a/b*", true},
                {"a/b/*", false}, {"/*", false}};
    static const struct {
        const char *pattern, *key;
        bool match;
    } matches[] = {{"a", "a", true},   {"a", "ab", false}, {"a*", "a", true},  {"a*", "ab", true},
                   {"a*", "b", false}, {"*", "any", true}, {"ab*", "a", false}};

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (limit_is_pattern(str_of(rows[i].pattern)) != rows[i].ok)
            fail_msg("\"%s\"", rows[i].pattern);
    for (size_t i = 0; i < COUNT_OF(matches); i++)
        assert_int_equal(limit_matches(str_of(matches[i].pattern), str_of(matches[i].key)),
                         matches[i].match);
    assert_true(limit_is_closer(STR("ab"), STR("abc*")));
    assert_false(limit_is_closer(STR("abc*"), STR("ab")));
    assert_true(limit_is_closer(STR("abc*"), STR("ab*")));
    assert_true(limit_is_closer(STR("a*"), STR("*")));
}

static void test_rates(void **state)
{
    static const struct {
        const char *text, *again; /* NULL: refused */
        int64_t rate_ms;
    } rows[] = {{"60/1m", "60/1m", 60000},
                {"60/m", "60/1m", 60000},
                {"5/s", "5/1s", 1000},
                {"1/90s", "1/90s", 90000},
                {"1/24h", "1/1d", 86400000},
                {"1/d", "1/1d", 86400000},
                {"7/250ms", "7/250ms", 250},
                {"7/ms", "7/1ms", 1},
                {"1000000/1h", "1000000/1h", 3600000},
                {"7/1000", "7/1s", 1000},
                {"0/1m", NULL, 0},
                {"-1/1m", NULL, 0},
                {"1000001/1m", NULL, 0},
                {"60", NULL, 0},
                {"60/", NULL, 0},
                {"60/0s", NULL, 0},
                {"60/25h", NULL, 0},
                {"60/2d", NULL, 0},
                {"60/x", NULL, 0},
                {"/1m", NULL, 0},
                {"60/1m/1", NULL, 0}};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct limit limit = limit_none;
        struct buf text = {0};

        if (limit_rate_parse(str_of(rows[i].text), &limit) != (rows[i].again != NULL))
            fail_msg("%s", rows[i].text);
        if (!rows[i].again)
            continue;
        assert_int_equal(limit.rate_ms, rows[i].rate_ms);
        limit_rate_text(&limit, &text);
        assert_str(buf_view(&text), rows[i].again);
        buf_free(&text);
    }
}

static void test_no_texts(void **state)
{
    static const char *const rows[] = {
        "",
        "1",
        "1 -1 0 -1",
        "1 -1 0 -1 1 1",
        "x -1 0 -1 1",
        "-2 -1 0 -1 1",
        "1 0 0 -1 1",
        "1 5 0 -1 1",
        "1 5 -1 -1 1",
        "1 -1 0 -2 1",
        "1 -1 0 -1 0",
        "1 -1 0 -1 1001",
        "1 -1 0 -1 1 ",
        "1 1000001 1 -1 1",
        "1 1 86400001 -1 1",
    };
    struct limit limit;

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (limit_parse(str_of(rows[i]), &limit))
            fail_msg("\"%s\" is read", rows[i]);
}

static void test_members(void **state)
{
    struct limit limit = limit_none;
    struct buf text = {0};
    struct jsonw w = jsonw_to(&text);

    jsonw_obj(&w);
    limit_write_members(&limit, &w);
    jsonw_end_obj(&w);
    assert_str(buf_view(&text), "{\"concurrency\":null,\"rate\":null,\"queue\":null,\"weight\":1}");
    buf_clear(&text);
    limit = (struct limit){3, 60, 60000, 0, 2};
    w = jsonw_to(&text);
    jsonw_obj(&w);
    limit_write_members(&limit, &w);
    jsonw_end_obj(&w);
    assert_str(buf_view(&text), "{\"concurrency\":3,\"rate\":\"60/1m\",\"queue\":0,\"weight\":2}");
    buf_free(&text);
}

/* Compared with a plain list: never more than `rate` starts in any window, exactly that many for
 * small rates, and the waiting time returned is exact. */
static void play_window(int32_t rate, int64_t rate_ms, uint64_t seed)
{
    enum { STEPS = 20000, KEPT = 1 << 15 };
    struct limit limit = {LIMIT_NONE, rate, rate_ms, LIMIT_NONE, 1};
    struct limit_window window = {0};
    int64_t *starts = mem_array(int64_t, KEPT);
    int64_t now_ms = 1000000, step_ms = rate > LIMIT_STEPS ? rate_ms / LIMIT_STEPS : 0;
    size_t count = 0, first = 0;
    int blocked = 0;
    struct rnd rnd;

    rnd_seed(&rnd, seed);
    for (int i = 0; i < STEPS; i++) {
        int64_t wait_ms = limit_window_wait_ms(&window, &limit, now_ms);

        while (first < count && now_ms - starts[first] >= rate_ms)
            first++;
        if (!step_ms)
            assert_int_equal(wait_ms == 0, count - first < (size_t)rate);
        if (wait_ms == 0) {
            assert_true(count - first < (size_t)rate);
            limit_window_add(&window, &limit, now_ms);
            starts[count++] = now_ms;
            if (rnd_below(&rnd, 8) == 0) { /* taken back */
                limit_window_undo(&window, &limit, now_ms);
                count--;
            }
        } else {
            blocked++;
            if (!step_ms)
                assert_int_equal(wait_ms, starts[count - (size_t)rate] + rate_ms - now_ms);
            else
                assert_true(wait_ms <= rate_ms + step_ms);
        }
        if (rnd_below(&rnd, 50) == 0) { /* written as text and read again */
            struct limit_window again;
            struct buf text = {0};

            limit_window_write(&window, &text);
            assert_true(limit_window_parse(buf_view(&text), &again));
            assert_int_equal(again.total, window.total);
            limit_window_free(&window);
            window = again;
            buf_free(&text);
        }
        assert_true(window.count <= LIMIT_STEPS + 2);
        now_ms += rnd_below(&rnd, (uint32_t)(rate_ms / rate + 1));
    }
    assert_true(blocked > STEPS / 100);
    limit_window_free(&window);
    free(starts);
}

static void test_window(void **state)
{
    play_window(1, 1000, 1);
    play_window(7, 60000, 2);
    play_window(100, 1000, 3);
    play_window(1000, 60000, 4);
    play_window(5000, 60000, 5);
}

/* After the waiting time a start is allowed, and in the end the window is empty. */
static void test_window_passes(void **state)
{
    struct limit limit = {LIMIT_NONE, 2, 1000, LIMIT_NONE, 1};
    struct limit_window window = {0};

    limit_window_add(&window, &limit, 100);
    limit_window_add(&window, &limit, 100);
    assert_int_equal(limit_window_wait_ms(&window, &limit, 100), 1000);
    assert_int_equal(limit_window_wait_ms(&window, &limit, 1099), 1);
    assert_int_equal(limit_window_wait_ms(&window, &limit, 1100), 0);
    assert_int_equal(window.total, 0);
    /* Taking back a start that has left the window, or never was in it, has no effect. */
    limit_window_add(&window, &limit, 1100);
    limit_window_undo(&window, &limit, 100);
    limit_window_undo(&window, &limit, 1101);
    assert_int_equal(window.total, 1);
    limit_window_undo(&window, &limit, 1100);
    limit_window_undo(&window, &limit, 1100);
    assert_int_equal(window.total, 0);
    assert_int_equal(window.count, 0);
    /* Starts taken back again and again, between two that stay. */
    limit_window_add(&window, &limit, 1200);
    for (int i = 0; i < 900; i++) {
        limit_window_add(&window, &limit, 1201 + i);
        if (i % 2)
            limit_window_add(&window, &limit, 1202 + i);
        limit_window_undo(&window, &limit, 1201 + i);
        if (i % 2)
            limit_window_undo(&window, &limit, 1202 + i);
    }
    assert_int_equal(window.count, 1);
    assert_int_equal(window.total, 1);
    limit_window_undo(&window, &limit, 1200);
    /* After the rate is lowered, existing starts still count. */
    for (int i = 0; i < 2; i++)
        limit_window_add(&window, &limit, 2000 + i);
    limit.rate = 1;
    assert_int_equal(limit_window_wait_ms(&window, &limit, 2001), 1000);
    limit.rate = LIMIT_NONE;
    assert_int_equal(limit_window_wait_ms(&window, &limit, 2001), 0);
    assert_int_equal(window.count, 0);
    limit_window_free(&window);
}

static void test_no_windows(void **state)
{
    static const char *const rows[] = {
        "1",   "1 ",       "x 1",   "1 x",          "1 -1",
        "1 0", "1 1 -1 1", "1 1 1", "1 5000000000", "9223372036854775807 1 1 1"};
    struct limit_window window;

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (limit_window_parse(str_of(rows[i]), &window))
            fail_msg("\"%s\" is read", rows[i]);
    assert_true(limit_window_parse(STR(""), &window));
    assert_int_equal(window.count, 0);
}

/* Checked in this order: hold, concurrency, rate. */
static void test_check(void **state)
{
    struct limit limit = {2, 1, 1000, 3, 1};
    struct limit_key key = {.in_flight = 2, .hold_until_ms = 600};
    struct limit_block block;

    limit_window_add(&key.window, &limit, 100);
    block = limit_check(&key, &limit, 500);
    assert_string_equal(limit_why_name(block.why), "hold");
    assert_int_equal(block.retry_ms, 100);
    block = limit_check(&key, &limit, 600);
    assert_string_equal(limit_why_name(block.why), "concurrency");
    assert_true(block.limit == 2 && block.used == 2 && block.retry_ms == 0);
    key.in_flight = 1;
    block = limit_check(&key, &limit, 600);
    assert_string_equal(limit_why_name(block.why), "rate");
    assert_true(block.limit == 1 && block.used == 1 && block.retry_ms == 500);
    assert_int_equal(limit_check(&key, &limit, 1100).why, LIMIT_OK);
    key.waiting = 2;
    assert_int_equal(limit_check_queue(&key, &limit).why, LIMIT_OK);
    key.waiting = 3;
    block = limit_check_queue(&key, &limit);
    assert_string_equal(limit_why_name(block.why), "queue");
    assert_true(block.limit == 3 && block.used == 3);
    assert_int_equal(limit_check_queue(&key, &limit_none).why, LIMIT_OK);
    assert_int_equal(limit_check(&key, &limit_none, 0).why, LIMIT_HELD);
    limit_window_free(&key.window);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_patterns),   cmocka_unit_test(test_rates),
        cmocka_unit_test(test_no_texts),   cmocka_unit_test(test_members),
        cmocka_unit_test(test_window),     cmocka_unit_test(test_window_passes),
        cmocka_unit_test(test_no_windows), cmocka_unit_test(test_check),
    };

    return cmocka_run_group_tests_name("model/limit", tests, NULL, NULL);
}
