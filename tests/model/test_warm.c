#include "../unit.h"

#include "base/json.h"
#include "model/warm.h"

static void test_lists_of_names(void **state)
{
    static const struct {
        const char *json;
        int count; /* -1: refused */
    } rows[] = {
        {"null", 0},
        {"[]", 0},
        {"[\"whisper-v3\"]", 1},
        {"[\"meta-llama/Llama-3:8b\",\"b\"]", 2},
        {"[\"a\",\"a\"]", 1},
        {"[\"a\",\"b\",\"c\"]", 3},
        {"[\"a\",\"b\",\"c\",\"d\"]", -1}, /* more than three */
        {"\"a\"", -1},
        {"{\"a\":true}", -1},
        {"[7]", -1},
        {"[\"\"]", -1},
        {"[\"a b\"]", -1},
        {"[\"a\\n\"]", -1},
        {"[\"a\\\"\"]", -1},
        {"[\"\xc3\xa9\"]", -1},
        {"[\"0123456789012345678901234567890123456789012345678901234567890123\"]", 1},
        {"[\"01234567890123456789012345678901234567890123456789012345678901234\"]", -1},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct arena arena = {0};
        const struct json *list;
        struct strs names;

        assert_int_equal(json_parse(str_of(rows[i].json), &arena, &list, NULL), ERR_OK);
        assert_int_equal(warm_names(list, 3, &arena, &names), rows[i].count >= 0);
        if (rows[i].count >= 0)
            assert_int_equal(names.count, rows[i].count);
        arena_free(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lists_of_names)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
