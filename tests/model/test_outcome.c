/* The order of a dispatch's answers. */
#include "model/outcome.h"

#include "../base/unit.h"

static void test_first_phase(void **state)
{
    static const struct {
        struct outcome_start start;
        enum outcome_phase phase;
        enum err err;
    } rows[] = {
        /* store, preferred: given, in the pool; strict; members */
        {{true, false, false, false, 3}, OUTCOME_WALK, ERR_OK},
        {{true, false, false, true, 1}, OUTCOME_WALK, ERR_OK},
        {{true, true, true, false, 1}, OUTCOME_PREFERRED, ERR_OK},
        {{true, true, true, true, 5}, OUTCOME_PREFERRED, ERR_OK},
        {{true, false, false, false, 0}, OUTCOME_REFUSED, ERR_NO_CAPABLE_NODE},
        {{true, true, false, false, 3}, OUTCOME_REFUSED, ERR_PREFERRED_NOT_CAPABLE},
        {{true, true, false, true, 3}, OUTCOME_REFUSED, ERR_PREFERRED_NOT_CAPABLE},
        {{true, true, false, false, 0}, OUTCOME_REFUSED, ERR_PREFERRED_NOT_CAPABLE},
        {{false, false, false, false, 3}, OUTCOME_REFUSED, ERR_STORE_DOWN},
        {{false, true, false, true, 0}, OUTCOME_REFUSED, ERR_STORE_DOWN},
        {{false, true, true, false, 2}, OUTCOME_REFUSED, ERR_STORE_DOWN},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct outcome outcome;

        outcome_begin(&outcome, &rows[i].start);
        assert_int_equal(outcome.phase, rows[i].phase);
        assert_int_equal(outcome.err, rows[i].err);
    }
}

static void test_preferred_failed(void **state)
{
    static const struct {
        bool strict;
        size_t others;
        enum outcome_phase phase;
        enum err err;
    } rows[] = {
        {false, 1, OUTCOME_WALK, ERR_OK},
        {false, 0, OUTCOME_REFUSED, ERR_ALL_FULL},
        {true, 1, OUTCOME_REFUSED, ERR_PREFERRED_UNAVAILABLE},
        {true, 0, OUTCOME_REFUSED, ERR_PREFERRED_UNAVAILABLE},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct outcome_start start = {.store_up = true,
                                      .preferred_given = true,
                                      .preferred_in_pool = true,
                                      .strict = rows[i].strict,
                                      .pool_count = rows[i].others + 1};
        struct outcome outcome;

        outcome_begin(&outcome, &start);
        outcome_preferred_failed(&outcome, rows[i].others);
        assert_int_equal(outcome.phase, rows[i].phase);
        assert_int_equal(outcome.err, rows[i].err);
    }
}

static void test_ends(void **state)
{
    struct outcome_start start = {.store_up = true, .pool_count = 2};
    struct outcome outcome;

    outcome_begin(&outcome, &start);
    outcome_placed(&outcome);
    assert_int_equal(outcome.phase, OUTCOME_PLACED);
    assert_int_equal(outcome.err, ERR_OK);

    outcome_begin(&outcome, &start);
    outcome_exhausted(&outcome);
    assert_int_equal(outcome.phase, OUTCOME_REFUSED);
    assert_int_equal(outcome.err, ERR_ALL_FULL);

    outcome_begin(&outcome, &start);
    outcome_store_failed(&outcome); /* in the middle of the walk: fail closed */
    assert_int_equal(outcome.phase, OUTCOME_REFUSED);
    assert_int_equal(outcome.err, ERR_STORE_DOWN);

    start.preferred_given = start.preferred_in_pool = true;
    outcome_begin(&outcome, &start);
    outcome_placed(&outcome);
    assert_int_equal(outcome.phase, OUTCOME_PLACED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_phase),
        cmocka_unit_test(test_preferred_failed),
        cmocka_unit_test(test_ends),
    };

    return cmocka_run_group_tests_name("outcome", tests, NULL, NULL);
}
