/* Which figures raise the level, how slowly it changes, and what may start at each level. */
#include "model/level.h"

#include "../unit.h"
#include "base/clock.h"

#define PCT(p) ((int64_t)((p)*10000 + 0.5))

static struct level_figures figures(double mem_free, double cpu, double swap)
{
    return (struct level_figures){.ppm = {[LEVEL_MEMORY] = PCT(mem_free),
                                          [LEVEL_CPU] = PCT(cpu),
                                          [LEVEL_SWAP] = PCT(swap),
                                          [LEVEL_PRESSURE] = LEVEL_UNKNOWN,
                                          [LEVEL_DISK] = LEVEL_UNKNOWN,
                                          [LEVEL_VRAM] = LEVEL_UNKNOWN}};
}

static void test_borders(void **state)
{
    static const struct {
        double mem_free, cpu, swap;
        enum level level;
        enum level_signal by;
    } rows[] = {
        {80, 10, 0, LEVEL_NORMAL, 0},
        {80, 59.9999, 0, LEVEL_NORMAL, 0},
        {80, 60, 0, LEVEL_WARNING, LEVEL_CPU},
        {80, 80, 0, LEVEL_WARNING, LEVEL_CPU},
        {80, 80.0001, 0, LEVEL_DANGER, LEVEL_CPU},
        {80, 90, 0, LEVEL_DANGER, LEVEL_CPU},
        {80, 90.0001, 0, LEVEL_CRITICAL, LEVEL_CPU},
        {80, 6400, 0, LEVEL_CRITICAL, LEVEL_CPU},
        {30.0001, 0, 0, LEVEL_NORMAL, 0},
        {30, 0, 0, LEVEL_WARNING, LEVEL_MEMORY},
        {20, 0, 0, LEVEL_WARNING, LEVEL_MEMORY},
        {19.9999, 0, 0, LEVEL_DANGER, LEVEL_MEMORY},
        {10, 0, 0, LEVEL_DANGER, LEVEL_MEMORY},
        {9.9999, 0, 0, LEVEL_CRITICAL, LEVEL_MEMORY},
        {0, 0, 0, LEVEL_CRITICAL, LEVEL_MEMORY},
        {80, 0, 29.9999, LEVEL_NORMAL, 0},
        {80, 0, 30, LEVEL_WARNING, LEVEL_SWAP},
        {80, 0, 50, LEVEL_WARNING, LEVEL_SWAP},
        {80, 0, 70, LEVEL_DANGER, LEVEL_SWAP},
        {80, 0, 100, LEVEL_CRITICAL, LEVEL_SWAP},
        {5, 99, 99, LEVEL_CRITICAL, LEVEL_MEMORY}, /* the cause that kills soonest is named */
        {25, 85, 40, LEVEL_DANGER, LEVEL_CPU},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct level_figures seen = figures(rows[i].mem_free, rows[i].cpu, rows[i].swap);
        struct level_verdict verdict = level_of(&seen, &level_defaults);

        assert_int_equal(verdict.level, rows[i].level);
        if (verdict.level != LEVEL_NORMAL)
            assert_int_equal(verdict.by, rows[i].by);
    }
}

static void test_names(void **state)
{
    static const char *const rows[LEVEL_COUNT] = {[LEVEL_NORMAL] = "normal",
                                                  [LEVEL_WARNING] = "warning",
                                                  [LEVEL_DANGER] = "danger",
                                                  [LEVEL_CRITICAL] = "critical"};

    for (int i = 0; i < LEVEL_COUNT; i++)
        assert_string_equal(level_name((enum level)i), rows[i]);
    assert_string_equal(level_signal_name(LEVEL_MEMORY), "memory");
    assert_string_equal(level_signal_name(LEVEL_PRESSURE), "pressure");
    assert_string_equal(level_signal_name(LEVEL_DISK), "disk");
    assert_string_equal(level_signal_name(LEVEL_VRAM), "vram");
}

static void test_unknown_figures_do_not_trip(void **state)
{
    struct level_figures nothing;
    struct level_state level = {0};

    for (int i = 0; i < LEVEL_SIGNAL_COUNT; i++)
        nothing.ppm[i] = LEVEL_UNKNOWN;
    assert_int_equal(level_of(&nothing, &level_defaults).level, LEVEL_NORMAL);
    for (int i = 0; i < 10; i++)
        assert_false(level_step(&level, &level_defaults, &nothing, i * 1000));
    assert_int_equal(level.level, LEVEL_NORMAL);
}

static void test_pressure_tightens_and_never_loosens(void **state)
{
    static const struct {
        double pressure;
        enum level alone;
    } rows[] = {
        {0, LEVEL_NORMAL},    {9.9, LEVEL_NORMAL}, {10, LEVEL_WARNING},   {25, LEVEL_WARNING},
        {25.1, LEVEL_DANGER}, {40, LEVEL_DANGER},  {100, LEVEL_CRITICAL},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        for (int free = 0; free <= 100; free++) {
            struct level_figures without = figures(free, 0, 0), with = without;
            enum level level;

            with.ppm[LEVEL_PRESSURE] = PCT(rows[i].pressure);
            level = level_of(&without, &level_defaults).level;
            assert_int_equal(level_of(&with, &level_defaults).level,
                             level > rows[i].alone ? level : rows[i].alone);
        }
    }
}

static void test_a_full_disk_takes_no_work_and_kills_nobody(void **state)
{
    static const struct {
        double free;
        enum level level;
    } rows[] = {
        {100, LEVEL_NORMAL}, {5.0001, LEVEL_NORMAL}, {5, LEVEL_WARNING},
        {2, LEVEL_WARNING},  {1.9999, LEVEL_DANGER}, {0, LEVEL_DANGER},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct level_figures seen = figures(80, 0, 0);
        struct level_verdict verdict;

        seen.ppm[LEVEL_DISK] = PCT(rows[i].free);
        verdict = level_of(&seen, &level_defaults);
        assert_int_equal(verdict.level, rows[i].level);
        if (verdict.level != LEVEL_NORMAL)
            assert_int_equal(verdict.by, LEVEL_DISK);
    }
}

static void test_admits(void **state)
{
    for (int priority = 0; priority <= 9; priority++) {
        assert_true(level_admits(LEVEL_NORMAL, priority, 7));
        assert_int_equal(level_admits(LEVEL_WARNING, priority, 7), priority >= 7);
        assert_false(level_admits(LEVEL_DANGER, priority, 7));
        assert_false(level_admits(LEVEL_CRITICAL, priority, 7));
    }
}

static bool step(struct level_state *level, struct level_figures seen, int64_t at_s)
{
    return level_step(level, &level_defaults, &seen, at_s * 1000);
}

static void test_the_first_sample_counts(void **state)
{
    struct level_state level = {0};

    assert_true(step(&level, figures(15, 95, 0), 100));
    assert_int_equal(level.level, LEVEL_DANGER);
    assert_int_equal(level.by, LEVEL_MEMORY);
    assert_int_equal(level.changed_ms, 100000);
    assert_int_equal(level_gate(&level), LEVEL_CRITICAL); /* the CPU counts for new work at once */
}

/* A single busy sample at the start, such as the end of a compiler run, does not raise the
 * level. */
static void test_a_busy_first_sample_is_not_held(void **state)
{
    struct level_state level = {0};

    assert_false(step(&level, figures(80, 100, 0), 100));
    assert_int_equal(level.level, LEVEL_NORMAL);
    assert_int_equal(level_gate(&level), LEVEL_CRITICAL);
    assert_false(step(&level, figures(80, 40, 0), 101));
    assert_int_equal(level_gate(&level), LEVEL_NORMAL);

    level = (struct level_state){0}; /* if it continues it is noticed as later */
    assert_false(step(&level, figures(80, 100, 0), 100));
    assert_false(step(&level, figures(80, 100, 0), 101));
    assert_true(step(&level, figures(80, 100, 0), 102));
    assert_int_equal(level.level, LEVEL_CRITICAL);
    assert_int_equal(level.by, LEVEL_CPU);
}

static void test_three_in_a_row_raise(void **state)
{
    struct level_state level = {0};

    step(&level, figures(80, 10, 0), 0);
    assert_false(step(&level, figures(80, 95, 0), 1));
    assert_false(step(&level, figures(80, 95, 0), 2));
    assert_int_equal(level_gate(&level), LEVEL_CRITICAL); /* new work already waits */
    assert_false(step(&level, figures(80, 10, 0), 3));    /* interrupted */
    assert_int_equal(level_gate(&level), LEVEL_NORMAL);
    assert_false(step(&level, figures(80, 95, 0), 4));
    assert_false(step(&level, figures(80, 65, 0), 5)); /* warning has lasted three samples, */
    assert_true(step(&level, figures(80, 85, 0), 6));  /* danger and critical have not */
    assert_int_equal(level.level, LEVEL_WARNING);
    assert_int_equal(level_gate(&level), LEVEL_DANGER);
}

/* With 30 s between samples, three would take a minute and a half. */
static void test_two_far_apart_raise(void **state)
{
    struct level_state level = {0};

    step(&level, figures(80, 10, 0), 0);
    assert_false(step(&level, figures(80, 85, 0), 30));
    assert_true(step(&level, figures(80, 85, 0), 60));
    assert_int_equal(level.level, LEVEL_DANGER);
}

/* Rises after three samples or two seconds, whichever comes first, and not a moment sooner. */
static void test_rises_by_count_or_by_time(void **state)
{
    static const struct {
        int64_t at_ms[4]; /* of bad samples */
        int raises;       /* index of the sample that raises it */
    } rows[] = {
        {{1000, 1100, 1200, 1300}, 2}, {{1000, 2000, 2999, 3000}, 2}, {{1000, 2999, 3000, 3001}, 2},
        {{1000, 3000, 3001, 3002}, 1}, {{1000, 2900, 2950, 3000}, 2},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct level_state level = {0};
        struct level_figures bad = figures(80, 85, 0);

        step(&level, figures(80, 10, 0), 0);
        for (int j = 0; j < 4; j++) {
            assert_int_equal(level_step(&level, &level_defaults, &bad, rows[i].at_ms[j]),
                             j == rows[i].raises);
            assert_int_equal(level.changed_ms,
                             j < rows[i].raises ? 0 : rows[i].at_ms[rows[i].raises]);
        }
    }
}

/* While figures stay bad the time counts from the first bad sample, not the last. */
static void test_rises_by_time_alone(void **state)
{
    struct level_rules rules = level_defaults;
    struct level_figures good = figures(80, 10, 0), bad = figures(80, 85, 0);
    struct level_state level = {0};

    rules.rise_samples = 100;
    level_step(&level, &rules, &good, 0);
    for (int64_t at_ms = 1000; at_ms < 3000; at_ms += 100)
        assert_false(level_step(&level, &rules, &bad, at_ms));
    assert_true(level_step(&level, &rules, &bad, 3000));
}

static void test_memory_that_runs_out_counts_at_once(void **state)
{
    struct level_state level = {0};

    step(&level, figures(80, 10, 0), 0);
    assert_false(step(&level, figures(15, 10, 0), 1)); /* danger is not that urgent */
    assert_true(step(&level, figures(9, 10, 0), 2));
    assert_int_equal(level.level, LEVEL_CRITICAL);
    assert_int_equal(level.by, LEVEL_MEMORY);
}

static void test_falls_when_it_stayed_better(void **state)
{
    struct level_state level = {0};
    int64_t at = 0;

    step(&level, figures(5, 10, 0), at++);
    for (; at < 60; at++)
        /* Better for long, but it rose only recently. */
        assert_false(step(&level, figures(50, 10, 0), at));
    assert_true(step(&level, figures(50, 10, 0), at));
    assert_int_equal(level.level, LEVEL_NORMAL); /* in one step */
    assert_int_equal(level.changed_ms, 60000);
}

static void test_a_little_better_is_not_better(void **state)
{
    struct level_state level = {0};
    int64_t at = 0;

    while (at < 3)
        step(&level, figures(80, 61, 0), at++);
    for (; at < 600; at++)
        assert_false(step(&level, figures(80, 57.1, 0), at)); /* it takes 3 % below 60 */
    assert_int_equal(level.level, LEVEL_WARNING);
    for (; at < 609; at++)
        assert_false(step(&level, figures(80, 56.9, 0), at));
    assert_true(step(&level, figures(80, 56.9, 0), at));
    assert_int_equal(level.level, LEVEL_NORMAL);
}

static void test_falls_no_further_than_it_was_calm(void **state)
{
    struct level_state level = {0};
    int64_t at = 0;

    for (; at < 70; at++)
        step(&level, figures(80, 95, 0), at);
    for (; at < 79; at++)
        assert_false(step(&level, figures(80, 70, 0), at));
    assert_true(step(&level, figures(80, 70, 0), at));
    assert_int_equal(level.level, LEVEL_WARNING);
}

/* Around one threshold, at any rhythm, the level changes at most twice a minute. */
static void test_two_changes_a_minute_at_a_border(void **state)
{
    static const struct {
        double low, high;
    } waves[] = {{59, 61}, {50, 70}, {75, 85}, {79.9, 80.1}, {85, 95}, {89, 91}};

    for (size_t wave = 0; wave < COUNT_OF(waves); wave++) {
        for (int half = 1; half <= 120; half++) {
            int64_t changes[4000];
            struct level_state level = {0};
            size_t count = 0;

            step(&level, figures(80, waves[wave].low, 0), 0);
            for (int at = 1; at < 2000; at++) {
                bool high = at / half % 2 == 1;

                if (step(&level, figures(80, high ? waves[wave].high : waves[wave].low, 0), at))
                    changes[count++] = at;
            }
            for (size_t i = 2; i < count; i++)
                assert_true(changes[i] - changes[i - 2] >= 60);
        }
    }
}

/* The same for memory, which becomes critical at once. */
static void test_two_changes_a_minute_where_memory_is_critical(void **state)
{
    struct rnd rnd;

    rnd_seed(&rnd, 3);
    for (int run = 0; run < 50; run++) {
        struct level_state level = {0};
        int64_t before[2] = {-1000, -1000};

        step(&level, figures(11, 0, 0), 0);
        for (int at = 1; at < 2000; at++) {
            if (!step(&level, figures(rnd_below(&rnd, 40) ? 14 : 9, 0, 0), at))
                continue;
            assert_true(at - before[0] >= 60);
            before[0] = before[1];
            before[1] = at;
        }
    }
}

/* Critical figures always stop new work at once, and calm ones always bring it back. */
static void test_never_open_in_danger_and_always_back(void **state)
{
    struct rnd rnd;

    rnd_seed(&rnd, 7);
    for (int run = 0; run < 200; run++) {
        struct level_state level = {0};
        int64_t at = 0;

        for (; at < 300; at++) {
            struct level_figures seen =
                figures(rnd_below(&rnd, 101), rnd_below(&rnd, 130), rnd_below(&rnd, 101));

            step(&level, seen, at);
            assert_true(level_gate(&level) >= level_of(&seen, &level_defaults).level);
            assert_true(level_gate(&level) >= level.level);
        }
        for (int64_t end = at + 71; at < end; at++)
            step(&level, figures(90, 5, 0), at);
        assert_int_equal(level.level, LEVEL_NORMAL);
        assert_true(level_admits(level_gate(&level), 0, 7));
    }
}

/* With the margin of the others a disk with 6 % free would stay at warning for ever. */
static void test_a_disk_has_a_margin_of_its_own(void **state)
{
    static const struct {
        double free;
        enum level later;
    } rows[] = {{5.4, LEVEL_WARNING}, {5.6, LEVEL_NORMAL}};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct level_state level = {0};
        struct level_figures seen = figures(80, 0, 0);

        seen.ppm[LEVEL_DISK] = PCT(4);
        step(&level, seen, 0);
        assert_int_equal(level.level, LEVEL_WARNING);
        seen.ppm[LEVEL_DISK] = PCT(rows[i].free);
        for (int at = 1; at < 80; at++)
            step(&level, seen, at);
        assert_int_equal(level.level, rows[i].later);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_borders),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_unknown_figures_do_not_trip),
        cmocka_unit_test(test_pressure_tightens_and_never_loosens),
        cmocka_unit_test(test_a_full_disk_takes_no_work_and_kills_nobody),
        cmocka_unit_test(test_a_disk_has_a_margin_of_its_own),
        cmocka_unit_test(test_admits),
        cmocka_unit_test(test_the_first_sample_counts),
        cmocka_unit_test(test_a_busy_first_sample_is_not_held),
        cmocka_unit_test(test_three_in_a_row_raise),
        cmocka_unit_test(test_two_far_apart_raise),
        cmocka_unit_test(test_rises_by_count_or_by_time),
        cmocka_unit_test(test_rises_by_time_alone),
        cmocka_unit_test(test_memory_that_runs_out_counts_at_once),
        cmocka_unit_test(test_falls_when_it_stayed_better),
        cmocka_unit_test(test_a_little_better_is_not_better),
        cmocka_unit_test(test_falls_no_further_than_it_was_calm),
        cmocka_unit_test(test_two_changes_a_minute_at_a_border),
        cmocka_unit_test(test_two_changes_a_minute_where_memory_is_critical),
        cmocka_unit_test(test_never_open_in_danger_and_always_back),
    };

    return cmocka_run_group_tests_name("level", tests, NULL, NULL);
}
