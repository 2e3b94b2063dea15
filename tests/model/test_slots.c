/* The formula with exact numbers, and every clamp after it. */
#include "model/slots.h"

#include <string.h>

#include "../unit.h"
#include "base/clock.h"

#define GIB INT64_C(1048576) /* in KiB */

static struct slots_input us_input(void)
{
    return (struct slots_input){.cores_milli = 8000,
                                .load_1m_centi = 0,
                                .mem_total_kib = 15 * GIB,
                                .mem_free_kib = 15 * GIB,
                                .level = LEVEL_NORMAL};
}

static struct slots_rules us_rules(void)
{
    struct slots_rules rules = slots_defaults;

    rules.max_slots = 5;
    return rules;
}

static const struct slots_clamp *clamp_of(const struct slots *slots, enum slots_step step)
{
    for (size_t i = 0; i < slots->count; i++)
        if (slots->chain[i].step == step)
            return &slots->chain[i];
    return NULL;
}

static void test_formula(void **state)
{
    static const struct {
        int64_t cores_milli, load_centi, free_kib;
        int64_t cpu, mem, raw, safe, slots;
    } rows[] = {
        {8000, 600, 11 * GIB, 1, 6, 1, 0, 0},
        {4000, 50, 62 * GIB / 10, 2, 2, 2, 1, 1},
        {8000, 0, 15 * GIB, 6, 8, 6, 5, 5},
        {8000, 440, 11 * GIB, 3, 6, 3, 2, 2}, /* 3.6 / 1.2 is 3 */
        {8000, 441, 11 * GIB, 2, 6, 2, 1, 1},
        {32000, 2360, 64 * GIB, 7, 41, 7, 6, 5}, /* 8.4 / 1.2 is 7 */
        {8000, 930, 11 * GIB, 0, 6, 0, 0, 0},
        {8000, 0, GIB, 6, 0, 0, 0, 0},
        {8000, 0, 7 * GIB / 2, 6, 1, 1, 0, 0},
        {8000, 0, 5 * GIB, 6, 2, 2, 1, 1},
        {8000, 0, 5 * GIB - 1, 6, 1, 1, 0, 0},
        {1500, 0, 16 * GIB, 1, 9, 1, 0, 0}, /* a quota of 1.5 cores */
        {2400, 0, 16 * GIB, 2, 9, 2, 1, 1},
        {2399, 0, 16 * GIB, 1, 9, 1, 0, 0},
        {0, 0, 0, 0, 0, 0, 0, 0},
        {1024000, 0, 16384 * GIB, 853, 10921, 853, 852, 5},
    };
    struct slots_rules rules = us_rules();

    rules.slots_min = 0; /* the formula alone */
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct slots_input input = us_input();
        struct slots slots;

        input.cores_milli = rows[i].cores_milli;
        input.load_1m_centi = rows[i].load_centi;
        input.mem_free_kib = rows[i].free_kib;
        slots_compute(&slots, &rules, &input);
        assert_int_equal(slots.cpu_allowed, rows[i].cpu);
        assert_int_equal(slots.mem_allowed, rows[i].mem);
        assert_int_equal(slots.raw, rows[i].raw);
        assert_int_equal(slots.safe, rows[i].safe);
        assert_int_equal(slots.formula, rows[i].slots);
        assert_int_equal(slots.additional, rows[i].slots);
    }
}

/* Slots in use, reserved, capped and fixed, and what a heartbeat sends. */
static void test_clamps(void **state)
{
    static const struct {
        int64_t load_centi, in_use, max_slots, jobs, reserved, fixed;
        enum level level;
        int64_t additional, noninteractive, to_send;
    } rows[] = {
        {0, 0, 5, SLOTS_NONE, 0, SLOTS_NONE, LEVEL_NORMAL, 5, 5, 5},
        {0, 3, 5, SLOTS_NONE, 0, SLOTS_NONE, LEVEL_NORMAL, 2, 2, 5},
        {440, 2, 5, SLOTS_NONE, 0, SLOTS_NONE, LEVEL_NORMAL, 2, 2, 4},
        {440, 5, 5, SLOTS_NONE, 0, SLOTS_NONE, LEVEL_NORMAL, 0, 0, 5},
        {0, 7, 5, SLOTS_NONE, 0, SLOTS_NONE, LEVEL_NORMAL, 0, 0, 7}, /* the cap was lowered */
        {0, 0, 5, SLOTS_NONE, 1, SLOTS_NONE, LEVEL_NORMAL, 5, 4, 5},
        {0, 4, 5, SLOTS_NONE, 1, SLOTS_NONE, LEVEL_NORMAL, 1, 0, 5},
        {0, 4, 5, SLOTS_NONE, 3, SLOTS_NONE, LEVEL_NORMAL, 1, 0, 5},
        {0, 0, 5, 3, 0, SLOTS_NONE, LEVEL_NORMAL, 3, 3, 3},
        {0, 2, 5, 3, 0, SLOTS_NONE, LEVEL_NORMAL, 1, 1, 3},
        {0, 4, 5, 3, 0, SLOTS_NONE, LEVEL_NORMAL, 0, 0, 3},
        {0, 2, 5, SLOTS_NONE, 1, SLOTS_NONE, LEVEL_WARNING, 3, 2, 5},
        {0, 2, 5, SLOTS_NONE, 0, SLOTS_NONE, LEVEL_DANGER, 0, 0, 2},
        {0, 2, 5, SLOTS_NONE, 0, SLOTS_NONE, LEVEL_CRITICAL, 0, 0, 2},
        {800, 0, 5, SLOTS_NONE, 0, 4, LEVEL_NORMAL, 4, 4, 4}, /* whatever the load */
        {800, 3, 5, SLOTS_NONE, 0, 4, LEVEL_NORMAL, 1, 1, 4},
        {0, 4, 9, SLOTS_NONE, 0, 4, LEVEL_NORMAL, 0, 0, 4},
        {0, 1, 9, 2, 0, 4, LEVEL_NORMAL, 1, 1, 2},
        {0, 1, 9, SLOTS_NONE, 0, 4, LEVEL_DANGER, 0, 0, 1}, /* the level still applies */
        {0, 0, 0, SLOTS_NONE, 0, SLOTS_NONE, LEVEL_NORMAL, 0, 0, 0},
        {0, 0, SLOTS_NONE, SLOTS_NONE, 0, SLOTS_NONE, LEVEL_NORMAL, 5, 5, 5},
        /* The load average lags. */
        {0, 5, SLOTS_NONE, SLOTS_NONE, 0, SLOTS_NONE, LEVEL_NORMAL, 0, 0, 5},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct slots_rules rules = slots_defaults;
        struct slots_input input = us_input();
        struct slots slots;

        rules.max_slots = rows[i].max_slots;
        rules.max_concurrent_jobs = rows[i].jobs;
        rules.reserved_slots = rows[i].reserved;
        rules.slots_fixed = rows[i].fixed;
        input.load_1m_centi = rows[i].load_centi;
        input.in_use = rows[i].in_use;
        input.level = rows[i].level;
        slots_compute(&slots, &rules, &input);
        assert_int_equal(slots.additional, rows[i].additional);
        assert_int_equal(slots.additional_noninteractive, rows[i].noninteractive);
        assert_int_equal(slots.max_to_send, rows[i].to_send);
    }
}

static void test_chain_tells_a_person(void **state)
{
    struct slots_rules rules = us_rules();
    struct slots_input input = us_input();
    struct slots slots;

    input.load_1m_centi = 620;
    input.mem_free_kib = 11 * GIB;
    input.in_use = 5;
    rules.reserved_slots = 1;
    slots_compute(&slots, &rules, &input);
    assert_string_equal(clamp_of(&slots, SLOTS_CPU)->reason, "(8.00 cores - load 6.20) / 1.20");
    assert_int_equal(clamp_of(&slots, SLOTS_CPU)->value, 1);
    assert_string_equal(clamp_of(&slots, SLOTS_MEMORY)->reason, "(11.00 GB free - 2.00) / 1.50");
    assert_string_equal(clamp_of(&slots, SLOTS_BUFFER)->reason, "less 1 (safety_buffer)");
    assert_true(clamp_of(&slots, SLOTS_BUFFER)->bites);
    assert_string_equal(clamp_of(&slots, SLOTS_MAX)->reason, "at most 5 (max_slots)");
    assert_string_equal(clamp_of(&slots, SLOTS_IN_USE)->reason, "5 of 5 in use");
    assert_string_equal(clamp_of(&slots, SLOTS_LEVEL)->reason, "normal: everything may start");
    assert_null(clamp_of(&slots, SLOTS_FIXED)); /* does not apply */
    assert_null(clamp_of(&slots, SLOTS_JOBS));
    for (size_t i = 1; i < slots.count; i++)
        assert_true(slots.chain[i].step > slots.chain[i - 1].step);
    for (int i = 0; i < SLOTS_STEP_COUNT; i++)
        assert_true(strlen(slots_step_name((enum slots_step)i)) > 0);
}

/* Tasks started since the sample are not in its figures: the same room is not given away twice. */
static void test_pending(void **state)
{
    static const struct {
        int64_t in_use, pending, fixed, additional, to_send;
    } rows[] = {
        {0, 0, SLOTS_NONE, 5, 5},  {2, 2, SLOTS_NONE, 3, 5}, {5, 5, SLOTS_NONE, 0, 5},
        {7, 2, SLOTS_NONE, 3, 10}, {9, 6, SLOTS_NONE, 0, 9}, {2, 2, 4, 2, 4}, /* last: fixed */
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct slots_rules rules = slots_defaults;
        struct slots_input input = us_input();
        struct slots slots;

        rules.max_slots = 20;
        rules.slots_fixed = rows[i].fixed;
        input.in_use = rows[i].in_use;
        input.pending = rows[i].pending;
        slots_compute(&slots, &rules, &input);
        assert_int_equal(slots.formula, 5); /* no clamp changes the formula's value */
        assert_int_equal(slots.additional, rows[i].additional);
        assert_int_equal(slots.max_to_send, rows[i].to_send);
        assert_int_equal(clamp_of(&slots, SLOTS_PENDING) != NULL,
                         rows[i].pending > 0 && rows[i].fixed == SLOTS_NONE);
    }
}

static void test_longest_reasons_fit(void **state)
{
    struct slots_rules rules = us_rules();
    struct slots_input input = us_input();
    struct slots slots;

    rules.max_concurrent_jobs = rules.max_slots = rules.reserved_slots = 1000000000;
    rules.slots_fixed = SLOTS_NONE;
    input.cores_milli = input.load_1m_centi = 1000000000;
    input.mem_free_kib = INT64_MAX / 1000;
    input.in_use = 1000000000;
    slots_compute(&slots, &rules, &input);
    for (size_t i = 0; i < slots.count; i++)
        assert_true(strlen(slots.chain[i].reason) < sizeof slots.chain[i].reason - 1);
}

/* An unknown figure gives no room, unless the number of slots is fixed. */
static void test_unknown_is_no_room(void **state)
{
    struct slots_rules rules = us_rules();
    struct slots_input input = us_input();
    struct slots slots;

    input.load_1m_centi = SLOTS_UNKNOWN;
    slots_compute(&slots, &rules, &input);
    assert_int_equal(slots.additional, 0);
    assert_string_equal(clamp_of(&slots, SLOTS_CPU)->reason, "cores or load are not known");
    assert_true(clamp_of(&slots, SLOTS_CPU)->bites);

    input = us_input();
    input.mem_free_kib = SLOTS_UNKNOWN;
    slots_compute(&slots, &rules, &input);
    assert_int_equal(slots.additional, 0);
    assert_string_equal(clamp_of(&slots, SLOTS_MEMORY)->reason, "free memory is not known");
    assert_true(clamp_of(&slots, SLOTS_MEMORY)->bites);

    input = us_input();
    input.mem_total_kib = SLOTS_UNKNOWN; /* so what it carries when idle is unknown */
    rules.max_slots = SLOTS_NONE;
    slots_compute(&slots, &rules, &input);
    assert_int_equal(slots.max, 0);
    input = us_input();
    input.mem_free_kib = SLOTS_UNKNOWN;

    input.cores_milli = input.mem_total_kib = SLOTS_UNKNOWN;
    rules.max_slots = SLOTS_NONE;
    slots_compute(&slots, &rules, &input);
    assert_int_equal(slots.additional, 0);
    rules.slots_fixed = 4;
    slots_compute(&slots, &rules, &input);
    assert_int_equal(slots.additional, 4);
}

/* A small machine carries one job at a time, up to the configured limits. */
static void test_an_idle_machine_carries_one(void **state)
{
    static const struct {
        int64_t in_use, slots_min, max_slots, jobs, fixed, reserved;
        enum level level;
        int64_t additional, others, max;
    } rows[] = {
        {0, 1, SLOTS_NONE, SLOTS_NONE, SLOTS_NONE, 0, LEVEL_NORMAL, 1, 1, 1},
        {1, 1, SLOTS_NONE, SLOTS_NONE, SLOTS_NONE, 0, LEVEL_NORMAL, 0, 0, 1},
        {5, 1, SLOTS_NONE, SLOTS_NONE, SLOTS_NONE, 0, LEVEL_NORMAL, 0, 0, 1},
        {1, 3, SLOTS_NONE, SLOTS_NONE, SLOTS_NONE, 0, LEVEL_NORMAL, 2, 2, 3},
        {0, 0, SLOTS_NONE, SLOTS_NONE, SLOTS_NONE, 0, LEVEL_NORMAL, 0, 0, 0},
        {0, 1, SLOTS_NONE, SLOTS_NONE, SLOTS_NONE, 0, LEVEL_WARNING, 0, 0, 1},
        {0, 1, SLOTS_NONE, SLOTS_NONE, SLOTS_NONE, 0, LEVEL_CRITICAL, 0, 0, 1},
        {0, 1, 0, SLOTS_NONE, SLOTS_NONE, 0, LEVEL_NORMAL, 0, 0, 0},
        {0, 1, SLOTS_NONE, 0, SLOTS_NONE, 0, LEVEL_NORMAL, 0, 0, 0},
        {0, 1, SLOTS_NONE, SLOTS_NONE, 0, 0, LEVEL_NORMAL, 0, 0, 0},
        {0, 1, SLOTS_NONE, SLOTS_NONE, SLOTS_NONE, 1, LEVEL_NORMAL, 1, 0, 1},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct slots_rules rules = slots_defaults;
        struct slots_input input = {.cores_milli = 2000,
                                    .load_1m_centi = 10,
                                    .mem_total_kib = 4 * GIB,
                                    .mem_free_kib = 3 * GIB,
                                    .in_use = rows[i].in_use,
                                    .level = rows[i].level};
        struct slots slots;

        rules.slots_min = rows[i].slots_min;
        rules.max_slots = rows[i].max_slots;
        rules.max_concurrent_jobs = rows[i].jobs;
        rules.slots_fixed = rows[i].fixed;
        rules.reserved_slots = rows[i].reserved;
        slots_compute(&slots, &rules, &input);
        assert_int_equal(slots.formula, 0);
        assert_int_equal(slots.additional, rows[i].additional);
        assert_int_equal(slots.additional_noninteractive, rows[i].others);
        assert_int_equal(slots.max, rows[i].max);
        if (i == 1) {
            assert_true(clamp_of(&slots, SLOTS_MIN)->bites);
            assert_string_equal(clamp_of(&slots, SLOTS_MIN)->reason,
                                "at least 1 at level normal (slots_min), 1 in use");
        }
    }
}

/* Never negative, never above a limit, and the last number of the chain is the result. */
static void test_limits_hold_for_everything(void **state)
{
    struct rnd rnd;

    rnd_seed(&rnd, 11);
    for (int i = 0; i < 100000; i++) {
        struct slots_rules rules = slots_defaults;
        struct slots_input input;
        struct slots slots;

        rules.max_slots = rnd_below(&rnd, 2) ? SLOTS_NONE : (int64_t)rnd_below(&rnd, 20);
        rules.max_concurrent_jobs = rnd_below(&rnd, 2) ? SLOTS_NONE : (int64_t)rnd_below(&rnd, 20);
        rules.slots_fixed = rnd_below(&rnd, 3) ? SLOTS_NONE : (int64_t)rnd_below(&rnd, 20);
        rules.reserved_slots = rnd_below(&rnd, 4);
        rules.safety_buffer = rnd_below(&rnd, 3);
        input = (struct slots_input){
            .cores_milli = rnd_below(&rnd, 64000),
            .load_1m_centi = rnd_below(&rnd, 7000),
            .mem_total_kib = 64 * GIB,
            .mem_free_kib = rnd_below(&rnd, 64) * GIB,
            .in_use = 5 + rnd_below(&rnd, 20),
            .pending = rnd_below(&rnd, 6),
            .level = (enum level)rnd_below(&rnd, LEVEL_COUNT),
        };
        slots_compute(&slots, &rules, &input);
        assert_true(slots.additional >= 0 && slots.additional_noninteractive >= 0);
        assert_true(slots.additional_noninteractive <= slots.additional);
        assert_true(slots.additional == 0 || input.in_use + slots.additional <= slots.max);
        assert_true(input.level < LEVEL_DANGER || slots.additional == 0);
        if (rules.max_concurrent_jobs != SLOTS_NONE)
            assert_true(slots.max_to_send <= rules.max_concurrent_jobs);
        else
            assert_int_equal(slots.max_to_send, input.in_use + slots.additional);
        assert_int_equal(slots.chain[slots.count - 1].value, slots.additional_noninteractive);
        /* Each clamp that took slots away is marked. */
        for (size_t j = SLOTS_BUFFER; j < slots.count; j++)
            assert_int_equal(slots.chain[j].bites,
                             slots.chain[j].step == SLOTS_MIN
                                 ? slots.chain[j].value == 0
                                 : slots.chain[j].value < slots.chain[j - 1].value);
        assert_false(slots.chain[SLOTS_CPU].bites || slots.chain[SLOTS_RAW].bites);
        assert_int_equal(slots.chain[SLOTS_MEMORY].bites, slots.mem_allowed < slots.cpu_allowed);
        assert_int_equal(clamp_of(&slots, SLOTS_LEVEL)->value, slots.additional);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formula),
        cmocka_unit_test(test_clamps),
        cmocka_unit_test(test_an_idle_machine_carries_one),
        cmocka_unit_test(test_chain_tells_a_person),
        cmocka_unit_test(test_pending),
        cmocka_unit_test(test_longest_reasons_fit),
        cmocka_unit_test(test_unknown_is_no_room),
        cmocka_unit_test(test_limits_hold_for_everything),
    };

    return cmocka_run_group_tests_name("slots", tests, NULL, NULL);
}
