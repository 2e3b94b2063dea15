/* The error table: each row complete, names found again, problems filled. */
#include "../unit.h"

#include <string.h>

#include "base/err.h"

static void test_every_row_is_complete(void **state)
{
    for (int i = ERR_OK; i < ERR_COUNT; i++) {
        enum err err = (enum err)i;

        assert_true(strlen(err_name(err)) > 0);
        assert_true(strlen(err_title(err)) > 0);
        assert_in_range(err_http(err), 200, 599);
        assert_in_range(err_exit(err), 0, 6);
        assert_int_equal(err_exit(err) == 0, err == ERR_OK);
        assert_int_equal(err_http(err) == 200, err == ERR_OK);
    }
}

static void test_names_are_found_again(void **state)
{
    for (int i = ERR_OK + 1; i < ERR_COUNT; i++) {
        enum err err = (enum err)i;
        enum err found = err_by_name(err_name(err), err_http(err));

        assert_string_equal(err_name(found), err_name(err));
        assert_int_equal(err_http(found), err_http(err));
    }
    assert_int_equal(err_by_name("NEVER_HEARD_OF", 404), ERR_NOT_FOUND);
    assert_int_equal(err_by_name("NEVER_HEARD_OF", 299), ERR_INTERNAL);
}

static void test_problem_is_filled(void **state)
{
    struct problem why = {.line = 9};

    assert_int_equal(problem_set(&why, ERR_BAD_FIELD, "max", "max is %d.", 12), ERR_BAD_FIELD);
    assert_int_equal(why.err, ERR_BAD_FIELD);
    assert_int_equal(why.line, 0);
    assert_string_equal(why.field, "max");
    assert_string_equal(why.detail, "max is 12.");
    assert_int_equal(problem_set(NULL, ERR_BUSY, NULL, "nobody asks"), ERR_BUSY);
}

static void test_a_long_problem_is_cut(void **state)
{
    char text[1000];
    struct problem why;

    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    problem_set(&why, ERR_BAD_FIELD, text, "%s", text);
    assert_int_equal(strlen(why.field), sizeof why.field - 1);
    assert_int_equal(strlen(why.detail), sizeof why.detail - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_row_is_complete),
        cmocka_unit_test(test_names_are_found_again),
        cmocka_unit_test(test_problem_is_filled),
        cmocka_unit_test(test_a_long_problem_is_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
