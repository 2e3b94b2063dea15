/* Deadlines against a clock that the test sets. */
#include "io/wheel.h"

#include <stdlib.h>

#include "../unit.h"
#include "base/clock.h"

enum { ITEMS = 500 };

struct entry {
    struct wheel_item item;
    int64_t due_ms; /* the deadline that was set; 0: none */
    int64_t fired_at_ms;
    int fired;
};

static struct wheel wheel;
static struct entry entries[ITEMS];
static int64_t now_ms;

static void on_expired(struct wheel_item *item)
{
    struct entry *entry = container_of(item, struct entry, item);

    entry->fired++;
    entry->fired_at_ms = now_ms;
}

static void begin(int64_t at_ms)
{
    now_ms = at_ms;
    wheel_init(&wheel, now_ms, on_expired);
    for (int i = 0; i < ITEMS; i++)
        entries[i] = (struct entry){0};
}

static void set(int i, int64_t due_ms)
{
    entries[i].due_ms = due_ms;
    wheel_set(&wheel, &entries[i].item, due_ms);
}

static void go_to(int64_t to_ms, int64_t step_ms)
{
    while (now_ms < to_ms) {
        now_ms += step_ms;
        wheel_run(&wheel, now_ms);
    }
}

static void test_rows(void **state)
{
    static const struct {
        int64_t first_ms, second_ms; /* set at 0 and, if not -1, at 1000 */
        int64_t least_ms, most_ms;   /* when it fires; -1: never */
    } rows[] = {
        {1, -1, 1, 200},
        {1500, -1, 1500, 1700},
        {1500, 5000, 5000, 5200},     /* moved away */
        {5000, 1500, 1500, 1700},     /* moved nearer */
        {1500, 0, -1, -1},            /* cleared */
        {51000, -1, 51000, 51300},    /* as far as the ring reaches */
        {200000, -1, 200000, 200300}, /* much further than that */
        {200000, 90000, 90000, 90300},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        begin(12345);
        set(0, 12345 + rows[i].first_ms);
        go_to(12345 + 1000, 10);
        if (rows[i].second_ms >= 0)
            set(0, rows[i].second_ms ? 12345 + rows[i].second_ms : 0);
        go_to(12345 + 300000, 10);
        assert_int_equal(entries[0].fired, rows[i].least_ms >= 0);
        if (rows[i].least_ms >= 0 && (entries[0].fired_at_ms - 12345 < rows[i].least_ms ||
                                      entries[0].fired_at_ms - 12345 > rows[i].most_ms))
            fail_msg("row %zu fired after %lld", i, (long long)(entries[0].fired_at_ms - 12345));
    }
}

/* Never early, never twice, never more than a tick late, in any order of setting and clearing. */
static void test_any_order(void **state)
{
    struct rnd rnd;

    rnd_seed(&rnd, 7);
    begin(1000000);
    for (int step = 0; step < 20000; step++) {
        int i = (int)rnd_below(&rnd, ITEMS);

        if (rnd_below(&rnd, 10) == 0) {
            wheel_remove(&entries[i].item);
            entries[i].due_ms = 0;
        } else {
            set(i, rnd_below(&rnd, 5) ? now_ms + 1 + rnd_below(&rnd, 100000) : 0);
        }
        now_ms += rnd_below(&rnd, 50);
        wheel_run(&wheel, now_ms);
        for (int k = 0; k < ITEMS; k++) {
            struct entry *entry = &entries[k];

            if (entry->fired) {
                assert_int_equal(entry->fired, 1);
                assert_true(entry->due_ms > 0 && entry->due_ms <= now_ms);
                entry->fired = 0;
                entry->due_ms = 0;
            }
            assert_true(entry->due_ms == 0 || entry->due_ms > now_ms - 2 * WHEEL_TICK_MS - 50);
        }
    }
}

static void test_a_machine_that_slept(void **state)
{
    begin(1000);
    for (int i = 0; i < ITEMS; i++)
        set(i, 2000 + i * 1000);
    now_ms = 1000 + 24 * 3600 * 1000;
    wheel_run(&wheel, now_ms);
    for (int i = 0; i < ITEMS; i++)
        assert_int_equal(entries[i].fired, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_any_order),
        cmocka_unit_test(test_a_machine_that_slept),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
