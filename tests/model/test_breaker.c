/* The breaker's life, its single probe, what is stored, and whose failures count. */
#include "model/breaker.h"

#include "../unit.h"
#include "base/clock.h"

static const struct breaker_rules rules = {.threshold = 3, .cooldown_ms = 1000, .probe_ms = 500};

enum op { FAIL, OK, ALLOWED, REFUSED, RENEW, ENDED, RESET, TRY };

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
        {9, FAIL, BREAKER_OPEN, 4, 0}, /* begun before it opened: counted, no event */
        {10, OK, BREAKER_OPEN, 4, 0},  /* likewise; only a probe closes it */
        {1006, REFUSED, BREAKER_OPEN, 4, 0},
        {1007, ALLOWED, BREAKER_HALF_OPEN, 4, 0},
        {1008, REFUSED, BREAKER_HALF_OPEN, 4, 0}, /* one probe */
        {1506, REFUSED, BREAKER_HALF_OPEN, 4, 0},
        {1507, ALLOWED, BREAKER_HALF_OPEN, 4, 0}, /* nobody heard of it again */
        {1900, RENEW, BREAKER_HALF_OPEN, 4, 0},
        {2200, REFUSED, BREAKER_HALF_OPEN, 4, 0},
        {2300, ENDED, BREAKER_HALF_OPEN, 4, 0}, /* cancelled: it told nothing */
        {2300, ALLOWED, BREAKER_HALF_OPEN, 4, 0},
        {2301, FAIL, BREAKER_OPEN, 5, BREAKER_PROBE_FAILED},
        {3300, REFUSED, BREAKER_OPEN, 5, 0},
        {3301, FAIL, BREAKER_OPEN, 6, BREAKER_PROBE_FAILED}, /* without a look before it */
        {4301, FAIL, BREAKER_OPEN, 6, BREAKER_PROBE_FAILED}, /* capped */
        {5301, ALLOWED, BREAKER_HALF_OPEN, 6, 0},
        {5302, OK, BREAKER_CLOSED, 0, BREAKER_RECOVERED},
        {5303, FAIL, BREAKER_CLOSED, 1, 0},
        {5304, RESET, BREAKER_CLOSED, 0, 0},
        {5305, RENEW, BREAKER_CLOSED, 0, 0},
        {5306, TRY, BREAKER_CLOSED, 0, 0},
        {5307, FAIL, BREAKER_CLOSED, 1, 0},
        {5308, FAIL, BREAKER_CLOSED, 2, 0},
        {5309, FAIL, BREAKER_OPEN, 3, BREAKER_TRIPPED},
        {5310, TRY, BREAKER_HALF_OPEN, 3, 0}, /* its pause is not waited for */
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
        else if (rows[i].op == RENEW)
            breaker_probe_renew(&breaker, &rules, now_ms);
        else if (rows[i].op == ENDED)
            breaker_probe_ended(&breaker);
        else if (rows[i].op == RESET)
            breaker_reset(&breaker);
        else if (rows[i].op == TRY)
            breaker_try(&breaker);
        else {
            assert_int_equal(breaker_passes(&breaker, &rules, now_ms), rows[i].op == ALLOWED);
            assert_int_equal(breaker_allowed(&breaker, &rules, now_ms), rows[i].op == ALLOWED);
        }
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

/* A look for a filter or a page must not use up the probe. */
static void test_passes_changes_nothing(void **state)
{
    struct breaker breaker = {.state = BREAKER_OPEN, .failures = 3, .opened_ms = 1};

    for (int i = 0; i < 3; i++)
        assert_true(breaker_passes(&breaker, &rules, 5000));
    assert_int_equal(breaker.state, BREAKER_OPEN);
    assert_true(breaker_allowed(&breaker, &rules, 5000));
    assert_false(breaker_passes(&breaker, &rules, 5000));
}

/* Every throttle has a way back, also when the clock is set back by a year. */
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
    assert_true(breaker_allowed(&breaker, &rules, 10)); /* the probe's lease too */
}

static struct breaker stored_and_read(const struct breaker *breaker)
{
    struct arena arena = {0};
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);
    const struct json *json;
    struct breaker read = {0};

    breaker_write(breaker, &w);
    assert_int_equal(json_parse(buf_view(&buf), &arena, &json, NULL), ERR_OK);
    assert_true(breaker_read(json, &read));
    arena_free(&arena);
    buf_free(&buf);
    return read;
}

static void test_stored_and_read(void **state)
{
    static const struct breaker rows[] = {
        {.state = BREAKER_CLOSED},
        {.state = BREAKER_CLOSED, .failures = 2},
        {.state = BREAKER_OPEN, .failures = 3, .opened_ms = 1700000000000},
        {.state = BREAKER_HALF_OPEN, .failures = 6, .opened_ms = 1, .probe_until_ms = 99},
        {.state = BREAKER_OPEN, .failures = INT32_MAX, .opened_ms = INT64_MAX},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct breaker read = stored_and_read(&rows[i]);

        assert_int_equal(read.state, rows[i].state);
        assert_int_equal(read.failures, rows[i].failures);
        assert_int_equal(read.opened_ms, rows[i].opened_ms);
        assert_int_equal(read.probe_until_ms, rows[i].probe_until_ms);
    }
}

static void test_reads_nothing_else(void **state)
{
    static const char *const rows[] = {
        "null",
        "{}",
        "[]",
        "{\"state\":\"open\",\"failures\":0,\"opened_ms\":0,\"probe_until_ms\":0}",
        "{\"state\":\"OPEN\",\"failures\":-1,\"opened_ms\":0,\"probe_until_ms\":0}",
        "{\"state\":\"OPEN\",\"failures\":2147483648,\"opened_ms\":0,\"probe_until_ms\":0}",
        "{\"state\":\"OPEN\",\"failures\":1.5,\"opened_ms\":0,\"probe_until_ms\":0}",
        "{\"state\":\"OPEN\",\"failures\":1,\"probe_until_ms\":0}",
        "{\"state\":1,\"failures\":1,\"opened_ms\":0,\"probe_until_ms\":0}",
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct arena arena = {0};
        const struct json *json;
        struct breaker breaker = {.failures = 77};

        assert_int_equal(json_parse(str_of(rows[i]), &arena, &json, NULL), ERR_OK);
        assert_false(breaker_read(json, &breaker));
        assert_int_equal(breaker.failures, 77);
        arena_free(&arena);
    }
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
        {"TASK_ERROR", false},
        {"something_new", false},
    };
    static const struct {
        const char *reason, *class;
    } reasons[] = {
        {"EXITED", "task_error"},
        {"SIGNALLED", "task_error"},
        {"OOM", "task_error"},
        {"DISK_LIMIT", "task_error"},
        {"START_FAILED", "task_error"},
        {"TIMEOUT", "executor_timeout"},
        {"CANCELLED", "cancelled"},
        {"EMERGENCY", "emergency_degradation"},
        {"NODE_OVERLOADED", "refused"},
        {"EXIT_3", "task_error"},
        {"SIGNAL_SEGV", "task_error"},
        {"RUN_TIMEOUT", "executor_timeout"},
        {"SHIM_LOST", "lost"},
        {"NODE_LOST", "lost"},
        {"MODEL_LOAD_FAILED", "MODEL_LOAD_FAILED"},
        {"rate_limit", "rate_limit"},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_int_equal(breaker_counts(str_of(rows[i].class)), rows[i].counts);
    assert_false(breaker_counts(STR_NONE));
    for (size_t i = 0; i < COUNT_OF(reasons); i++)
        assert_str(breaker_class(str_of(reasons[i].reason)), reasons[i].class);
}

/* What a node says of a run that failed: only what somebody else is known to have caused is not
 * the executor's. */
static void test_blame(void **state)
{
    static const struct {
        const char *reason;
        bool blames;
    } rows[] = {
        {"EXIT_1", true},
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

/* On any path, restarts included: never two probes out at a time, and calm always brings it back.
 */
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
            } else if (dice == 5) {
                breaker = stored_and_read(&breaker);
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
        cmocka_unit_test(test_stories),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_passes_changes_nothing),
        cmocka_unit_test(test_clock_set_back),
        cmocka_unit_test(test_stored_and_read),
        cmocka_unit_test(test_reads_nothing_else),
        cmocka_unit_test(test_attribution),
        cmocka_unit_test(test_blame),
        cmocka_unit_test(test_one_probe_on_any_path),
    };

    return cmocka_run_group_tests_name("breaker", tests, NULL, NULL);
}
