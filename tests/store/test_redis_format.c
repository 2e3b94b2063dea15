/* A Redis whose records have a format that this build cannot read. */
#include "contract.h"
#include "redis_rig.h"

#include "base/clock.h"
#include "base/mem.h"
#include "store/record.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATIENCE_MS = 20000, CALL_MS = 5000 };

static int setup(void **state)
{
    struct redis_fixture *fixture = mem_new(struct redis_fixture);

    fixture->server.options[0] = "--enable-debug-command";
    fixture->server.options[1] = "yes";
    *state = fixture;
    return redis_fixture_open(fixture, CALL_MS, 4);
}

/* A digest of all keys and their values. */
static void digest(const struct redis_fixture *fixture, char to[64])
{
    str_copy(str_of(redis_say(fixture->server.port, "DEBUG DIGEST")), to, 64);
}

/* Another instance does not start: its error says both numbers and what to do, and it writes
 * nothing. */
static void assert_not_started(struct redis_fixture *fixture, const char *sentence)
{
    struct problem why = {0};
    struct store *store = NULL;
    char before[64], after[64];

    digest(fixture, before);
    assert_int_equal(store_open(&fixture->rig.config, &store, &why), ERR_IO);
    assert_null(store);
    assert_non_null(strstr(why.detail, sentence));
    digest(fixture, after);
    assert_string_equal(before, after);
}

static void test_a_format_that_is_too_new_is_not_used(void **state)
{
    struct redis_fixture *fixture = *state;
    char text[32], sentence[160];

    rig_close(&fixture->rig);
    snprintf(text, sizeof text, "%d %d %d 0", FORMAT_NEWEST, FORMAT_NEWEST, FORMAT_NEWEST + 1);
    redis_set_format(fixture->server.port, text);
    snprintf(sentence, sizeof sentence, "its records have format %d to %d, this berth reads",
             FORMAT_NEWEST, FORMAT_NEWEST + 1);
    assert_not_started(fixture, sentence);
    assert_not_started(fixture, "use the newer release");
    snprintf(text, sizeof text, "%d %d %d 0", FORMAT_NEWEST, FORMAT_NEWEST, FORMAT_NEWEST);
    redis_set_format(fixture->server.port, text);
    rig_open(&fixture->rig);
}

/* Records from before formats had numbers, and numbers that no release writes. */
static void test_records_without_a_number_are_left_alone(void **state)
{
    static const char *const texts[] = {NULL, "", "x", "2 2", "0 0 0 0", "2 2 99999999999 0"};
    struct redis_fixture *fixture = *state;
    char text[32];

    rig_close(&fixture->rig);
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        redis_say(fixture->server.port, "HDEL sched:{f}:meta format");
        if (texts[i])
            redis_set_format(fixture->server.port, texts[i]);
        assert_not_started(fixture, "its records have no format number, this berth reads format");
    }
    snprintf(text, sizeof text, "%d %d %d 0", FORMAT_NEWEST, FORMAT_NEWEST, FORMAT_NEWEST);
    redis_set_format(fixture->server.port, text);
    rig_open(&fixture->rig);
}

/* The format changes while an instance is running: it reads and writes nothing from then on, and
 * goes on when the format is back. */
static void test_an_instance_that_is_left_behind_stops(void **state)
{
    struct redis_fixture *fixture = *state;
    struct rig *rig = &fixture->rig;
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;
    struct store_status status;
    char text[32], before[64], after[64];

    assert_int_equal(rig_reserve(rig, 1, 1, "n1"), ERR_OK);
    snprintf(text, sizeof text, "%d %d %d 0", FORMAT_NEWEST + 1, FORMAT_NEWEST, FORMAT_NEWEST + 1);
    redis_set_format(fixture->server.port, text);
    digest(fixture, before);
    assert_int_equal(rig_commit(rig, 1, 1, "n1"), ERR_STORE_DOWN);
    assert_int_equal(rig_get(rig, 1), ERR_STORE_DOWN);
    store_status(rig->store, &status);
    assert_non_null(strstr(status.detail, "this berth reads format"));
    digest(fixture, after);
    assert_string_equal(before, after);
    snprintf(text, sizeof text, "%d %d %d 0", FORMAT_NEWEST, FORMAT_NEWEST, FORMAT_NEWEST);
    redis_set_format(fixture->server.port, text);
    while (rig_commit(rig, 1, 1, "n1")) {
        assert_int_equal(rig->op.err, ERR_STORE_DOWN);
        assert_true(clock_mono_ms() < end_ms);
        sched_yield();
    }
    assert_int_equal(rig->op.head.state, JOB_ACKED);
}

/* Reads do not pass the store thread, but must not take a record of a later format for a missing
 * one. */
static void test_a_record_of_a_later_format_is_not_missing(void **state)
{
    struct redis_fixture *fixture = *state;
    struct rig *rig = &fixture->rig;
    const char *words[] = {"EVAL", NULL, "0"};
    char script[400];

    snprintf(script, sizeof script,
             "redis.call('HSET', 'sched:{f}:n', 'n9', string.char(%d) .. 'whatever') "
             "local j = redis.call('KEYS', 'sched:{f}:j:*')[1] "
             "for _, name in ipairs(redis.call('HKEYS', j)) do if not name:find(':') then "
             "redis.call('HSET', j, name, string.char(%d) .. 'whatever') end end",
             FORMAT_NEWEST + 1, FORMAT_NEWEST + 1);
    words[1] = script;
    assert_int_equal(rig_put(rig, 1), ERR_OK);
    redis_say_words(fixture->server.port, COUNT_OF(words), words);
    assert_int_equal(rig_get(rig, 1), ERR_STORE_DOWN);
    rig->op = (struct store_op){.verb = STORE_COUNTS, .arena = &rig->arena};
    assert_int_equal(rig_call(rig, &rig->op), ERR_STORE_DOWN);
    redis_say(fixture->server.port, "FLUSHALL"); /* the data is of no use any more */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_format_that_is_too_new_is_not_used, setup,
                                        redis_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_records_without_a_number_are_left_alone, setup,
                                        redis_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_an_instance_that_is_left_behind_stops, setup,
                                        redis_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_a_record_of_a_later_format_is_not_missing, setup,
                                        redis_fixture_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
