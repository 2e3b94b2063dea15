/* The states of a breaker, its single probe, and whose failures count. */
#include "model/breaker.h"

#include "../unit.h"
#include "base/clock.h"

static const struct breaker_rules rules = {.threshold = 3, .cooldown_ms = 1000, .probe_ms = 500};

enum op { FAIL, OK, ALLOWED, REFUSED, ENDED, RESET, TRY };

static void test_stories(void **state)
{
    static const struct {
        int64_t at_ms;
        enum op op;
        enum breaker_state state;
        int failures;
        enum breaker_event event;
    } rows[] = {
        {0, ALLOWED, BREAKER_CLOSED, 0, 0},
        {1, FAIL, BREAKER_CLOSED, 1, 0},
        {2, FAIL, BREAKER_CLOSED, 2, 0},
        {3, OK, BREAKER_CLOSED, 0, 0},
        {4, FAIL, BREAKER_CLOSED, 1, 0},
        {5, FAIL, BREAKER_CLOSED, 2, 0},
        {6, ALLOWED, BREAKER_CLOSED, 2, 0},
        {7, FAIL, BREAKER_OPEN, 3, BREAKER_TRIPPED},
        {8, REFUSED, BREAKER_OPEN, 3, 0},
        {9, FAIL, BREAKER_OPEN, 4, 0}, /* began before it opened: counted, no event */
        {10, OK, BREAKER_OPEN, 4, 0},  /* likewise; only a probe closes it */
        {1006, REFUSED, BREAKER_OPEN, 4, 0},
        {1007, ALLOWED, BREAKER_HALF_OPEN, 4, 0},
        {1008, REFUSED, BREAKER_HALF_OPEN, 4, 0}, /* one probe */
        {1506, REFUSED, BREAKER_HALF_OPEN, 4, 0},
        {1507, ALLOWED, BREAKER_HALF_OPEN, 4, 0}, /* the first probe's time is over */
        {1900, REFUSED, BREAKER_HALF_OPEN, 4, 0},
        {1950, ENDED, BREAKER_HALF_OPEN, 4, 0}, /* cancelled: no verdict */
        {2300, ALLOWED, BREAKER_HALF_OPEN, 4, 0},
        {2301, FAIL, BREAKER_OPEN, 5, BREAKER_PROBE_FAILED},
        {3300, REFUSED, BREAKER_OPEN, 5, 0},
        {3301, FAIL, BREAKER_OPEN, 6, BREAKER_PROBE_FAILED}, /* without a check before it */
        {4301, FAIL, BREAKER_OPEN, 6, BREAKER_PROBE_FAILED}, /* the cooldown is capped */
        {5301, ALLOWED, BREAKER_HALF_OPEN, 6, 0},
        {5302, OK, BREAKER_CLOSED, 0, BREAKER_RECOVERED},
        {5303, FAIL, BREAKER_CLOSED, 1, 0},
        {5304, RESET, BREAKER_CLOSED, 0, 0},
        {5306, TRY, BREAKER_CLOSED, 0, 0},
        {5307, FAIL, BREAKER_CLOSED, 1, 0},
        {5308, FAIL, BREAKER_CLOSED, 2, 0},
        {5309, FAIL, BREAKER_OPEN, 3, BREAKER_TRIPPED},
        {5310, TRY, BREAKER_HALF_OPEN, 3, 0}, /* skips the rest of the cooldown */
        {5311, ALLOWED, BREAKER_HALF_OPEN, 3, 0},
        {5312, TRY, BREAKER_HALF_OPEN, 3, 0},
        {5313, REFUSED, BREAKER_HALF_OPEN, 3, 0}, /* still one probe */
        {5314, FAIL, BREAKER_OPEN, 4, BREAKER_PROBE_FAILED},
    };
    struct breaker breaker = {0};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        int64_t now_ms = rows[i].at_ms;
        enum breaker_event event = BREAKER_NO_EVENT;

        if (rows[i].op == FAIL)
            event = breaker_fail(&breaker, &rules, now_ms);
        else if (rows[i].op == OK)
            event = breaker_ok(&breaker, &rules, now_ms);
        else if (rows[i].op == ENDED)
            breaker_probe_ended(&breaker);
        else if (rows[i].op == RESET)
            breaker_reset(&breaker);
        else if (rows[i].op == TRY)
            breaker_try(&breaker);
        else
            assert_int_equal(breaker_allowed(&breaker, &rules, now_ms), rows[i].op == ALLOWED);
        assert_int_equal(event, rows[i].event);
        assert_int_equal(breaker_state(&breaker, &rules, now_ms), rows[i].state);
        assert_int_equal(breaker.failures, rows[i].failures);
    }
}

static void test_names(void **state)
{
    assert_string_equal(breaker_state_name(BREAKER_CLOSED), "CLOSED");
    assert_string_equal(breaker_state_name(BREAKER_OPEN), "OPEN");
    assert_string_equal(breaker_state_name(BREAKER_HALF_OPEN), "HALF_OPEN");
    assert_null(breaker_event_name(BREAKER_NO_EVENT));
    assert_string_equal(breaker_event_name(BREAKER_TRIPPED),
                        "circuit_open:failure_threshold_reached");
    assert_string_equal(breaker_event_name(BREAKER_PROBE_FAILED),
                        "circuit_open:half_open_probe_failed");
    assert_string_equal(breaker_event_name(BREAKER_RECOVERED), "circuit_closed");
}

/* A throttled type gets through again, even if the clock is set back by a year. */
static void test_clock_set_back(void **state)
{
    int64_t year_ms = INT64_C(365) * 86400000;
    struct breaker breaker = {0};

    for (int i = 0; i < 3; i++)
        breaker_fail(&breaker, &rules, year_ms);
    assert_false(breaker_allowed(&breaker, &rules, 0));
    assert_true(breaker_allowed(&breaker, &rules, 1000));

    breaker = (struct breaker){.state = BREAKER_OPEN, .failures = 3, .opened_ms = year_ms};
    assert_true(breaker_allowed(&breaker, &rules, year_ms + 1000));
    assert_true(breaker_allowed(&breaker, &rules, 10)); /* the probe's time, too */
}

static void test_attribution(void **state)
{
    static const struct {
        const char *class;
        bool counts;
    } rows[] = {
        {"task_error", true},
        {"executor_timeout", true},
        {"rate_limit", false},
        {"network", false},
        {"billing_cap", false},
        {"auth", false},
        {"other_executor", false},
        {"emergency_degradation", false},
        {"cancelled", false},
        {"refused", false},
        {"", false},
        {"TASK_ERROR", true},
        {"something_new", false},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_int_equal(breaker_counts(str_of(rows[i].class)), rows[i].counts);
    assert_false(breaker_counts(STR_NONE));
}

/* Which reasons of a failed run count against the executor: all except those known to be caused by
 * something else. */
static void test_blame(void **state)
{
    static const struct {
        const char *reason;
        bool blames;
    } rows[] = {
        {"EXITED", true},
        {"EXIT_1", true},
        {"SIGNALLED", true},
        {"SIGNAL_KILL", true},
        {"OOM", true},
        {"DISK_LIMIT", true},
        {"START_FAILED", true},
        {"TIMEOUT", true},
        {"RUN_TIMEOUT", true},
        {"FAILED", true},
        {"MODEL_LOAD_FAILED", true},
        {"", true},
        {"CANCELLED", false},
        {"EMERGENCY", false},
        {"NODE_OVERLOADED", false},
        {"TYPE_NOT_ALLOWED", false},
        {"SHIM_LOST", false},
        {"NODE_LOST", false},
        {"DEADLINE", false},
        {"rate_limit", false},
        {"RATE_LIMIT", false},
        {"task_error", true},
        {"executor_timeout", true},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_int_equal(breaker_blames(str_of(rows[i].reason)), rows[i].blames);
}

/* On any path there are never two probes at a time, and it always recovers when failures stop. */
static void test_one_probe_on_any_path(void **state)
{
    struct rnd rnd;

    rnd_seed(&rnd, 13);
    for (int run = 0; run < 500; run++) {
        struct breaker breaker = {0};
        int64_t now_ms = 0, probe_ends_ms = -1;

        for (int i = 0; i < 200; i++) {
            uint32_t dice = rnd_below(&rnd, 10);

            now_ms += rnd_below(&rnd, 400);
            if (dice < 4) {
                breaker_fail(&breaker, &rules, now_ms);
                probe_ends_ms = -1;
            } else if (dice == 4) {
                breaker_ok(&breaker, &rules, now_ms);
            } else if (breaker_allowed(&breaker, &rules, now_ms) &&
                       breaker.state == BREAKER_HALF_OPEN) {
                assert_true(now_ms >= probe_ends_ms);
                probe_ends_ms = now_ms + rules.probe_ms;
            }
            if (breaker_state(&breaker, &rules, now_ms) != BREAKER_HALF_OPEN)
                probe_ends_ms = -1;
        }
        now_ms += rules.cooldown_ms + rules.probe_ms;
        assert_true(breaker_allowed(&breaker, &rules, now_ms));
        breaker_ok(&breaker, &rules, now_ms);
        assert_int_equal(breaker.state, BREAKER_CLOSED);
        assert_int_equal(breaker.failures, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stories),        cmocka_unit_test(test_names),
        cmocka_unit_test(test_clock_set_back), cmocka_unit_test(test_attribution),
        cmocka_unit_test(test_blame),          cmocka_unit_test(test_one_probe_on_any_path),
    };

    return cmocka_run_group_tests_name("breaker", tests, NULL, NULL);
}
