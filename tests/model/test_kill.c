/* Whom an emergency ends, in which order and at which pace. */
#include "model/kill.h"

#include "../base/unit.h"
#include "base/clock.h"

#define T(name, kind, points, kib)                                                                 \
    {                                                                                              \
        .id = {.at = (name), .len = sizeof(name) - 1},                                             \
        .type = {.at = (kind), .len = sizeof(kind) - 1}, .score = (points), .memory_kib = (kib)    \
    }

enum { MIB = 1024 };

static void test_score(void **state)
{
    static const struct {
        int64_t priority, age_ms, score;
    } rows[] =
        {
            {0, 0, 0},         {0, 999, 0},       {0, 1000, 1},          {5, 30000, 5030},
            {5, 998999, 5998}, {5, 999000, 5999}, {5, 9999999999, 5999}, {9, 0, 9000},
            {3, -5000, 3000}, /* a clock that was set back */
        };

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_int_equal(kill_score(rows[i].priority, rows[i].age_ms), rows[i].score);
}

static void test_order(void **state)
{
    struct kill_task tasks[] = {
        T("f", "talk", 900, 1),        T("e", "research", 50, 1), T("d", "talk", 50, 1),
        T("dev", "dev", 0, 1),         T("a", "talk", 1, 1),      T("b", "research", 2, 1),
        T("auto", "automation", 0, 1),
    };
    static const char *const order[] = {"b", "d", "e", "f", "a"};

    tasks[4].young = true; /* the lowest score, but it has just begun */
    for (size_t i = 0; i < COUNT_OF(order); i++) {
        struct kill_task *next = kill_next(&kill_defaults, tasks, COUNT_OF(tasks));

        assert_non_null(next);
        assert_str(next->id, order[i]);
        next->doomed = true;
    }
    assert_null(kill_next(&kill_defaults, tasks, COUNT_OF(tasks)));
}

static void test_killable_types_come_from_the_rules(void **state)
{
    struct kill_task tasks[] = {T("a", "talk", 1, 1), T("b", "dev", 2, 1)};
    struct str dev[] = {STR("dev")};
    struct kill_rules rules = kill_defaults;

    rules.types = (struct strs){.at = dev, .count = 1};
    assert_ptr_equal(kill_next(&rules, tasks, 2), &tasks[1]);
    rules.types.count = 0;
    assert_null(kill_next(&rules, tasks, 2));
    assert_false(kill_may(&kill_defaults, STR("f2f")));
    assert_true(kill_may(&kill_defaults, STR("research")));
}

static void test_missing(void **state)
{
    static const struct {
        int64_t total, free, centi, missing;
    } rows[] = {
        {1000, 100, 1000, 0}, {1000, 99, 1000, 1},  {1000, 0, 1000, 100},
        {1000, 500, 1000, 0}, {1001, 100, 1000, 1}, /* 100 of 1001 is below 10 % */
        {0, 0, 1000, 0},      {1000, 0, 0, 0},      {16777216, 1048576, 1000, 629146},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        int64_t missing = kill_missing_kib(rows[i].total, rows[i].free, rows[i].centi);

        assert_int_equal(missing, rows[i].missing);
        assert_true((rows[i].free + missing) * 10000 >= rows[i].total * rows[i].centi);
    }
}

struct drill {
    struct kill_state state;
    struct kill_task *tasks;
    size_t count;
    struct kill_task *picked[16];
};

static size_t memory_at(struct drill *drill, int64_t at_ms, int64_t free_kib, int64_t missing_kib)
{
    struct kill_sample sample = {.level = LEVEL_CRITICAL,
                                 .memory = true,
                                 .mem_free_kib = free_kib,
                                 .missing_kib = missing_kib,
                                 .now_ms = at_ms};

    return kill_step(&drill->state, &kill_defaults, &sample, drill->tasks, drill->count,
                     drill->picked);
}

static size_t cpu_at(struct drill *drill, int64_t at_ms, enum level level)
{
    struct kill_sample sample = {.level = level, .mem_free_kib = 1000, .now_ms = at_ms};

    return kill_step(&drill->state, &kill_defaults, &sample, drill->tasks, drill->count,
                     drill->picked);
}

static void test_memory_takes_what_is_missing_at_once(void **state)
{
    struct kill_task tasks[] = {
        T("a", "talk", 1, 300 * MIB),
        T("b", "talk", 2, 300 * MIB),
        T("c", "talk", 3, 300 * MIB),
    };
    struct drill drill = {.tasks = tasks, .count = COUNT_OF(tasks)};

    assert_int_equal(memory_at(&drill, 0, 100 * MIB, 500 * MIB), 2);
    assert_str(drill.picked[0]->id, "a");
    assert_str(drill.picked[1]->id, "b");
    assert_false(tasks[2].doomed);
    assert_int_equal(memory_at(&drill, 1000, 100 * MIB, 500 * MIB), 0); /* it settles */
    assert_int_equal(memory_at(&drill, 4999, 100 * MIB, 500 * MIB), 0);
    assert_int_equal(memory_at(&drill, 5000, 300 * MIB, 300 * MIB), 1);
    assert_str(drill.picked[0]->id, "c");
    assert_false(drill.state.unresolved);
}

static void test_exactly_enough_is_enough(void **state)
{
    struct kill_task tasks[] = {T("a", "talk", 1, 300), T("b", "talk", 2, 300)};
    struct drill drill = {.tasks = tasks, .count = 2};

    assert_int_equal(memory_at(&drill, 0, 0, 300), 1);
}

static void test_unknown_size_counts_as_enough(void **state)
{
    struct kill_task tasks[] = {T("a", "talk", 1, 10), T("b", "talk", 2, KILL_UNKNOWN),
                                T("c", "talk", 3, 500)};
    struct drill drill = {.tasks = tasks, .count = 3};

    assert_int_equal(memory_at(&drill, 0, 0, 300), 2);
    assert_false(tasks[2].doomed);
}

/* The peace after a decision does not outlive the machine: a ramp that goes on is met again. */
static void test_memory_that_keeps_falling_is_not_waited_for(void **state)
{
    struct kill_task tasks[] = {T("a", "talk", 1, 100), T("b", "talk", 2, 100)};
    struct drill drill = {.tasks = tasks, .count = 2};

    assert_int_equal(memory_at(&drill, 0, 1000, 50), 1);
    assert_int_equal(memory_at(&drill, 1000, 750, 300), 0); /* by a quarter */
    assert_int_equal(memory_at(&drill, 2000, 749, 301), 1);
}

/* It may rise again meanwhile: what counts is the most there was. */
static void test_memory_that_rose_and_falls(void **state)
{
    struct kill_task tasks[] = {T("a", "talk", 1, 900), T("b", "talk", 2, 900)};
    struct drill drill = {.tasks = tasks, .count = 2};

    assert_int_equal(memory_at(&drill, 0, 400, 600), 1);
    assert_int_equal(memory_at(&drill, 1000, 800, 200), 0);
    assert_int_equal(memory_at(&drill, 2000, 600, 400), 0);
    assert_int_equal(memory_at(&drill, 3000, 599, 401), 1);
}

/* Noise around the bound ends nobody in the peace; a new ramp does. */
static void test_peace_outlasts_a_short_recovery(void **state)
{
    struct kill_task tasks[] = {T("a", "talk", 1, 900), T("b", "talk", 2, 900)};
    struct drill drill = {.tasks = tasks, .count = 2};

    assert_int_equal(memory_at(&drill, 0, 200, 800), 1);
    assert_int_equal(cpu_at(&drill, 1000, LEVEL_DANGER), 0);
    assert_int_equal(memory_at(&drill, 2000, 990, 10), 0);
    assert_int_equal(memory_at(&drill, 3000, 750, 250), 0);
    assert_int_equal(memory_at(&drill, 4000, 749, 251), 1);

    tasks[0].doomed = tasks[1].doomed = false;
    drill.state = (struct kill_state){0};
    assert_int_equal(memory_at(&drill, 10000, 200, 800), 1);
    assert_int_equal(cpu_at(&drill, 11000, LEVEL_DANGER), 0);
    assert_int_equal(memory_at(&drill, 14999, 990, 10), 0);
    assert_int_equal(memory_at(&drill, 15000, 990, 10), 1);
}

static void test_cpu_takes_one_after_three(void **state)
{
    struct kill_task tasks[] = {T("a", "talk", 1, 1), T("b", "talk", 2, 1), T("c", "talk", 3, 1)};
    struct drill drill = {.tasks = tasks, .count = 3};

    assert_int_equal(cpu_at(&drill, 0, LEVEL_CRITICAL), 0);
    assert_int_equal(cpu_at(&drill, 1000, LEVEL_CRITICAL), 0);
    assert_int_equal(cpu_at(&drill, 2000, LEVEL_DANGER), 0); /* the row is broken */
    assert_int_equal(cpu_at(&drill, 3000, LEVEL_CRITICAL), 0);
    assert_int_equal(cpu_at(&drill, 4000, LEVEL_CRITICAL), 0);
    assert_int_equal(cpu_at(&drill, 5000, LEVEL_CRITICAL), 1);
    assert_int_equal(cpu_at(&drill, 9999, LEVEL_CRITICAL), 0);
    assert_int_equal(cpu_at(&drill, 10000, LEVEL_CRITICAL), 1);
    assert_int_equal(memory_at(&drill, 11000, 5, 1), 1); /* memory does not wait for that peace */
}

static void test_unresolved_and_back(void **state)
{
    struct kill_task tasks[] = {T("a", "dev", 1, 1)};
    struct drill drill = {.tasks = tasks, .count = 1};

    assert_int_equal(memory_at(&drill, 0, 5, 100), 0);
    assert_true(drill.state.unresolved);
    assert_false(tasks[0].doomed);
    assert_int_equal(cpu_at(&drill, 1000, LEVEL_DANGER), 0);
    assert_false(drill.state.unresolved);
}

/* Somebody who becomes killable later is found at the next look, not after a peace nobody earned.
 */
static void test_unresolved_does_not_wait(void **state)
{
    struct kill_task tasks[] = {T("a", "talk", 1, 1)};
    struct drill drill = {.tasks = tasks, .count = 0};

    assert_int_equal(memory_at(&drill, 0, 5, 100), 0);
    drill.count = 1;
    assert_int_equal(memory_at(&drill, 1000, 5, 100), 1);
    assert_false(drill.state.unresolved);
}

/* Below critical nobody is ended, whatever happened before. */
static void test_never_below_critical(void **state)
{
    struct rnd rnd;

    rnd_seed(&rnd, 5);
    for (int run = 0; run < 300; run++) {
        struct kill_task tasks[] = {T("a", "talk", 1, 10),     T("b", "research", 2, 10),
                                    T("c", "dev", 3, 10),      T("d", "talk", 4, 10),
                                    T("e", "research", 5, 10), T("f", "f2f", 0, 10)};
        struct drill drill = {.tasks = tasks, .count = COUNT_OF(tasks)};

        for (int at = 0; at < 60; at++) {
            enum level level = (enum level)rnd_below(&rnd, LEVEL_COUNT);
            size_t some = level == LEVEL_CRITICAL && rnd_below(&rnd, 2)
                              ? memory_at(&drill, at * 1000, 100, rnd_below(&rnd, 30))
                              : cpu_at(&drill, at * 1000, level);

            assert_true(some == 0 || level == LEVEL_CRITICAL);
        }
        assert_false(tasks[2].doomed);
        assert_false(tasks[5].doomed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_score),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_killable_types_come_from_the_rules),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_memory_takes_what_is_missing_at_once),
        cmocka_unit_test(test_exactly_enough_is_enough),
        cmocka_unit_test(test_unknown_size_counts_as_enough),
        cmocka_unit_test(test_memory_that_keeps_falling_is_not_waited_for),
        cmocka_unit_test(test_memory_that_rose_and_falls),
        cmocka_unit_test(test_peace_outlasts_a_short_recovery),
        cmocka_unit_test(test_cpu_takes_one_after_three),
        cmocka_unit_test(test_unresolved_and_back),
        cmocka_unit_test(test_unresolved_does_not_wait),
        cmocka_unit_test(test_never_below_critical),
    };

    return cmocka_run_group_tests_name("kill", tests, NULL, NULL);
}
