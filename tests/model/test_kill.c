/* Which tasks an emergency ends, in what order and at what pace. */
#include "model/kill.h"

#include "../unit.h"
#include "base/clock.h"

#define T(name, kind, points, kib)                                                                 \
    {                                                                                              \
        .id = {.at = (name), .len = sizeof(name) - 1},                                             \
        .type = {.at = (kind), .len = sizeof(kind) - 1}, .score = (points), .memory_kib = (kib),   \
        .swap_kib = KILL_UNKNOWN, .cpu_ppm = KILL_UNKNOWN                                          \
    }
/* A task with this priority, and what killing it frees: KiB of memory, millionths of CPU. */
#define P(name, level, kib, ppm)                                                                   \
    {                                                                                              \
        .id = {.at = (name), .len = sizeof(name) - 1}, .type = {.at = "task", .len = 4},           \
        .priority = (level), .score = (level)*1000, .memory_kib = (kib), .cpu_ppm = (ppm)          \
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
            {3, -5000, 3000}, /* the clock was set back */
        };

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_int_equal(kill_score(rows[i].priority, rows[i].age_ms), rows[i].score);
}

/* Checks the order in which a machine that stays critical ends these tasks, one at a time. */
static void check_order(const struct kill_rules *rules, enum level_signal by, int64_t wanted,
                        struct kill_task *tasks, size_t count, const char *const *order)
{
    struct kill_state state = {0};
    struct kill_task *picked[16];
    struct kill_sample sample = {
        .level = LEVEL_CRITICAL, .by = by, .mem_free_kib = 1000, .wanted = wanted};
    struct kill_rules hasty = *rules;

    hasty.samples = 1;
    for (; *order; order++, sample.now_ms += 100000) {
        size_t some = kill_step(&state, &hasty, &sample, tasks, count, picked);

        if (some != 1)
            fail_msg("%zu at once where %s is next", some, *order);
        assert_str(picked[0]->id, *order);
    }
    assert_int_equal(kill_step(&state, &hasty, &sample, tasks, count, picked), 0);
    assert_true(state.unresolved);
}

/* Without sizes: by age, with those just started last, then by id. */
static void test_order_without_sizes(void **state)
{
    struct kill_task tasks[] = {
        T("f", "talk", 900, KILL_UNKNOWN), T("e", "research", 50, KILL_UNKNOWN),
        T("d", "talk", 50, KILL_UNKNOWN),  T("f2f", "f2f", 0, KILL_UNKNOWN),
        T("a", "talk", 1, KILL_UNKNOWN),   T("b", "dev", 2, KILL_UNKNOWN),
    };
    static const char *const order[] = {"b", "d", "e", "f", "a", NULL};

    tasks[4].young = true; /* the lowest score, but just started */
    check_order(&kill_defaults, LEVEL_MEMORY, 100, tasks, COUNT_OF(tasks), order);
}

static void test_priority_then_size(void **state)
{
    struct kill_task tasks[] = {
        P("small", 3, 200, 0),  P("large", 3, 900, 0), P("low", 1, 150, 0),
        P("high", 7, 5000, 0),  P("copy", 3, 9000, 0), P("unknown", 3, KILL_UNKNOWN, 0),
        P("daemon", 0, 300, 0),
    };
    static const char *const order[] = {"daemon",  "low",  "large", "small",
                                        "unknown", "copy", "high",  NULL};

    tasks[4].deployment = tasks[6].deployment = true;
    tasks[1].young = true; /* grew that large in its first minute */
    check_order(&kill_defaults, LEVEL_MEMORY, 1000, tasks, COUNT_OF(tasks), order);
}

/* Tasks of lower priority that free next to nothing are skipped; the one that uses the memory is
 * ended. */
static void test_who_gives_nothing_back_is_passed_over(void **state)
{
    struct kill_task tasks[] = {
        P("a", 0, 2 * MIB, 0), P("b", 1, 2 * MIB, 0), P("c", 2, 2 * MIB, 0),
        P("d", 5, 2 * MIB, 0), P("e", 5, 2 * MIB, 0), P("hog", 5, 3000 * MIB, 0),
    };
    static const char *const order[] = {"hog", NULL};

    check_order(&kill_defaults, LEVEL_MEMORY, 120 * MIB, tasks, COUNT_OF(tasks), order);
}

/* The limit of a tenth, from both sides. */
static void test_a_tenth_of_what_is_wanted(void **state)
{
    struct kill_task less[] = {P("a", 0, 99, 0), P("b", 5, 100, 0)};
    struct kill_task enough[] = {P("a", 0, 100, 0), P("b", 5, 101, 0)};
    static const char *const first_b[] = {"b", NULL}, *const both[] = {"a", "b", NULL};

    check_order(&kill_defaults, LEVEL_MEMORY, 1000, less, COUNT_OF(less), first_b);
    check_order(&kill_defaults, LEVEL_MEMORY, 1000, enough, COUNT_OF(enough), both);
}

/* No single task is the cause: the largest is ended first, whatever its priority, as long as that
 * helps at all. */
static void test_many_small_ones(void **state)
{
    struct kill_task tasks[] = {P("a", 0, 10, 0), P("b", 5, 60, 0), P("c", 5, 70, 0),
                                P("d", 9, 20, 0)};
    /* Without c the others together are less than a tenth. */
    static const char *const order[] = {"c", NULL};

    check_order(&kill_defaults, LEVEL_MEMORY, 1000, tasks, COUNT_OF(tasks), order);
}

static void test_in_one_decision_no_small_ones_join(void **state)
{
    struct kill_task tasks[] = {P("a", 0, 50, 0), P("b", 5, 60, 0), P("c", 5, 400, 0)};
    struct kill_sample sample = {.level = LEVEL_CRITICAL, .missing = 900, .wanted = 1000};
    struct kill_task *picked[3];
    struct kill_state fresh = {0};

    assert_int_equal(kill_step(&fresh, &kill_defaults, &sample, tasks, 3, picked), 1);
    assert_str(picked[0]->id, "c");
}

static void test_cpu_takes_from_who_computes(void **state)
{
    struct kill_task tasks[] = {
        P("idle", 0, 9000, 0),   P("one", 5, 1, 450000), P("two", 5, 1, 500000),
        P("little", 3, 1, 5000), P("f2f", 9, 1, 40000),  P("low", 2, 1, 20000),
    };
    static const char *const order[] = {"low", "two", "one", NULL};

    tasks[4].type = STR("f2f"); /* a type that may not be ended would get the CPU of the others */
    check_order(&kill_defaults, LEVEL_CPU, 130000, tasks, COUNT_OF(tasks), order);
}

/* Ending the last task that computes would free CPU for nobody. */
static void test_the_last_that_computes_stays(void **state)
{
    struct kill_task tasks[] = {P("idle", 0, 1, 0), P("one", 5, 1, 500000), P("two", 5, 1, 500000)};
    static const char *const order[] = {"one", NULL};

    check_order(&kill_defaults, LEVEL_CPU, 130000, tasks, COUNT_OF(tasks), order);
}

static void test_swap_takes_from_who_is_in_it(void **state)
{
    struct kill_task tasks[] = {P("resident", 0, 9000, 0), P("swapped", 5, 500, 0)};
    static const char *const order[] = {"swapped", NULL};

    tasks[1].swap_kib = 400;
    check_order(&kill_defaults, LEVEL_SWAP, 1000, tasks, COUNT_OF(tasks), order);
}

static bool may_end(const struct kill_rules *rules, struct str type)
{
    struct kill_task task = {.id = STR("1"), .type = type, .memory_kib = KILL_UNKNOWN};
    struct kill_sample sample = {.level = LEVEL_CRITICAL, .by = LEVEL_MEMORY};
    struct kill_state state = {0};
    struct kill_task *picked[1];

    return kill_step(&state, rules, &sample, &task, 1, picked) == 1;
}

static void test_who_may_be_ended(void **state)
{
    struct str listed[] = {STR("research"), STR("talk")};
    struct str all[] = {STR("*")};
    struct kill_rules rules = kill_defaults;

    assert_true(may_end(&rules, STR("task")));
    assert_true(may_end(&rules, STR("deployment")));
    assert_false(may_end(&rules, STR("f2f")));
    rules.types = (struct strs){.at = listed, .count = 2};
    assert_true(may_end(&rules, STR("research")));
    assert_false(may_end(&rules, STR("task")));
    assert_false(may_end(&rules, STR("deployment")));
    rules.protected = rules.types;
    assert_false(may_end(&rules, STR("research"))); /* in both lists: never */
    rules = kill_defaults;
    rules.protected = (struct strs){.at = all, .count = 1};
    assert_false(may_end(&rules, STR("task")));
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
                                 .by = LEVEL_MEMORY,
                                 .mem_free_kib = free_kib,
                                 .missing = missing_kib,
                                 .wanted = missing_kib,
                                 .now_ms = at_ms};

    return kill_step(&drill->state, &kill_defaults, &sample, drill->tasks, drill->count,
                     drill->picked);
}

static size_t cpu_at(struct drill *drill, int64_t at_ms, enum level level)
{
    struct kill_sample sample = {
        .level = level, .by = LEVEL_CPU, .mem_free_kib = 1000, .now_ms = at_ms};

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
    assert_int_equal(memory_at(&drill, 1000, 100 * MIB, 500 * MIB), 0); /* waits for the effect */
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
    struct kill_task tasks[] = {P("a", 1, 100, 0), P("b", 2, KILL_UNKNOWN, 0), P("c", 3, 500, 0)};
    struct drill drill = {.tasks = tasks, .count = 3};

    assert_int_equal(memory_at(&drill, 0, 0, 300), 2);
    assert_false(tasks[2].doomed);
}

/* The pause after a decision ends early if memory keeps falling fast. */
static void test_memory_that_keeps_falling_is_not_waited_for(void **state)
{
    struct kill_task tasks[] = {T("a", "talk", 1, 100), T("b", "talk", 2, 100)};
    struct drill drill = {.tasks = tasks, .count = 2};

    assert_int_equal(memory_at(&drill, 0, 1000, 50), 1);
    assert_int_equal(memory_at(&drill, 1000, 750, 300), 0); /* by a quarter */
    assert_int_equal(memory_at(&drill, 2000, 749, 301), 1);
}

/* Memory may rise in between: a fall is measured from the highest value. */
static void test_memory_that_rose_and_falls(void **state)
{
    struct kill_task tasks[] = {T("a", "talk", 1, 900), T("b", "talk", 2, 900)};
    struct drill drill = {.tasks = tasks, .count = 2};

    assert_int_equal(memory_at(&drill, 0, 400, 600), 1);
    tasks[0].memory_kib = 400; /* about to end */
    assert_int_equal(memory_at(&drill, 1000, 800, 200), 0);
    assert_int_equal(memory_at(&drill, 2000, 600, 400), 0);
    assert_int_equal(memory_at(&drill, 3000, 599, 401), 1);
}

/* A large process takes a while to end, and free memory may fall further meanwhile. */
static void test_those_that_are_ending_are_waited_for(void **state)
{
    struct kill_task tasks[] = {P("hog", 5, 3000, 0), P("other", 5, 500, 0)};
    struct drill drill = {.tasks = tasks, .count = 2};

    assert_int_equal(memory_at(&drill, 0, 400, 600), 1);
    assert_str(drill.picked[0]->id, "hog");
    assert_int_equal(memory_at(&drill, 1000, 50, 950), 0);
    tasks[0].memory_kib = 900; /* what it still frees is not enough */
    assert_int_equal(memory_at(&drill, 2000, 50, 950), 1);
}

static void test_pressure_waits_for_its_average(void **state)
{
    struct kill_task tasks[] = {P("a", 5, 3000, 0), P("b", 5, 3000, 0)};
    struct kill_sample sample = {.level = LEVEL_CRITICAL, .by = LEVEL_PRESSURE, .wanted = 1000};
    struct kill_task *picked[2];
    struct kill_state fresh = {0};

    for (; sample.now_ms < 30000; sample.now_ms += 1000) {
        size_t some = kill_step(&fresh, &kill_defaults, &sample, tasks, 2, picked);

        assert_int_equal(some, sample.now_ms == 2000 || sample.now_ms == 17000);
    }
}

/* Noise around the threshold ends nothing during the pause; another fast fall does. */
static void test_peace_outlasts_a_short_recovery(void **state)
{
    struct kill_task tasks[] = {T("a", "talk", 1, 900), T("b", "talk", 2, 900)};
    struct drill drill = {.tasks = tasks, .count = 2};

    assert_int_equal(memory_at(&drill, 0, 200, 800), 1);
    tasks[0].memory_kib = 0; /* has ended */
    assert_int_equal(cpu_at(&drill, 1000, LEVEL_DANGER), 0);
    assert_int_equal(memory_at(&drill, 2000, 990, 10), 0);
    assert_int_equal(memory_at(&drill, 3000, 750, 250), 0);
    assert_int_equal(memory_at(&drill, 4000, 749, 251), 1);

    tasks[0].memory_kib = 900;
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
    assert_int_equal(cpu_at(&drill, 2000, LEVEL_DANGER), 0); /* not three in a row */
    assert_int_equal(cpu_at(&drill, 3000, LEVEL_CRITICAL), 0);
    assert_int_equal(cpu_at(&drill, 4000, LEVEL_CRITICAL), 0);
    assert_int_equal(cpu_at(&drill, 5000, LEVEL_CRITICAL), 1);
    assert_int_equal(cpu_at(&drill, 9999, LEVEL_CRITICAL), 0);
    assert_int_equal(cpu_at(&drill, 10000, LEVEL_CRITICAL), 1);
    assert_int_equal(memory_at(&drill, 11000, 5, 1), 1); /* memory does not wait for that pause */
}

static void test_unresolved_and_back(void **state)
{
    struct kill_task tasks[] = {T("a", "f2f", 1, 1)};
    struct drill drill = {.tasks = tasks, .count = 1};

    assert_int_equal(memory_at(&drill, 0, 5, 100), 0);
    assert_true(drill.state.unresolved);
    assert_false(tasks[0].doomed);
    assert_int_equal(cpu_at(&drill, 1000, LEVEL_DANGER), 0);
    assert_false(drill.state.unresolved);
}

/* A task that may be ended later is found at the next sample, as no pause began. */
static void test_unresolved_does_not_wait(void **state)
{
    struct kill_task tasks[] = {T("a", "talk", 1, 100)};
    struct drill drill = {.tasks = tasks, .count = 0};

    assert_int_equal(memory_at(&drill, 0, 5, 100), 0);
    drill.count = 1;
    assert_int_equal(memory_at(&drill, 1000, 5, 100), 1);
    assert_false(drill.state.unresolved);
}

/* Nothing is ended below critical, whatever happened before. */
static void test_never_below_critical(void **state)
{
    struct rnd rnd;

    rnd_seed(&rnd, 5);
    for (int run = 0; run < 300; run++) {
        struct kill_task tasks[] = {T("a", "talk", 1, 10),     T("b", "research", 2, 10),
                                    T("c", "f2f", 3, 10),      T("d", "talk", 4, 10),
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
        cmocka_unit_test(test_order_without_sizes),
        cmocka_unit_test(test_priority_then_size),
        cmocka_unit_test(test_who_gives_nothing_back_is_passed_over),
        cmocka_unit_test(test_a_tenth_of_what_is_wanted),
        cmocka_unit_test(test_many_small_ones),
        cmocka_unit_test(test_in_one_decision_no_small_ones_join),
        cmocka_unit_test(test_cpu_takes_from_who_computes),
        cmocka_unit_test(test_the_last_that_computes_stays),
        cmocka_unit_test(test_swap_takes_from_who_is_in_it),
        cmocka_unit_test(test_who_may_be_ended),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_memory_takes_what_is_missing_at_once),
        cmocka_unit_test(test_exactly_enough_is_enough),
        cmocka_unit_test(test_unknown_size_counts_as_enough),
        cmocka_unit_test(test_memory_that_keeps_falling_is_not_waited_for),
        cmocka_unit_test(test_memory_that_rose_and_falls),
        cmocka_unit_test(test_those_that_are_ending_are_waited_for),
        cmocka_unit_test(test_pressure_waits_for_its_average),
        cmocka_unit_test(test_peace_outlasts_a_short_recovery),
        cmocka_unit_test(test_cpu_takes_one_after_three),
        cmocka_unit_test(test_unresolved_and_back),
        cmocka_unit_test(test_unresolved_does_not_wait),
        cmocka_unit_test(test_never_below_critical),
    };

    return cmocka_run_group_tests_name("kill", tests, NULL, NULL);
}
