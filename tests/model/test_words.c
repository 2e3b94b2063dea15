/* Words for a process, and what is none. */
#include "model/argv.h"

#include <stdio.h>
#include <string.h>

#include "../base/unit.h"

typedef bool reader(const struct json *json, struct arena *arena, struct strs *ret_words);

static const struct {
    reader *read;
    const char *json, *words; /* with '|' between; NULL: refused */
} rows[] = {
    {words_list, "null", ""},
    {words_list, "[]", ""},
    {words_list, "[\"a b\",\"\",1,2.5]", "a b||1|2.5"},
    {words_list, "[\"a\\nb\"]", "a\nb"},
    {words_list, "\"a\"", NULL},
    {words_list, "[true]", NULL},
    {words_list, "[[\"a\"]]", NULL},
    {words_list, "[\"a\\u0000b\"]", NULL},
    {words_env, "null", ""},
    {words_env, "{}", ""},
    {words_env, "{\"A\":\"x=y\",\"b_1\":2,\"C\":true}", "A=x=y|b_1=2|C=true"},
    {words_env, "{\"A\":\"\"}", "A="},
    {words_env, "[\"A=1\"]", NULL},
    {words_env, "{\"1A\":\"x\",\"spring.datasource.url\":\"y\",\"MY-VAR\":\"z\"}",
     "1A=x|spring.datasource.url=y|MY-VAR=z"},
    {words_env, "{\"A=B\":\"x\"}", NULL},
    {words_env, "{\"A\\u0000\":\"x\"}", NULL},
    {words_env, "{\"\":\"x\"}", NULL},
    {words_env, "{\"A B\":\"x\"}", "A B=x"},
    {words_env, "{\"A\":null}", NULL},
    {words_env, "{\"A\":[1]}", NULL},
    {words_env, "{\"A\":\"\\u0000\"}", NULL},
    {words_command, "\"echo $A | wc\"", "/bin/sh|-c|echo $A | wc"},
    {words_command, "[\"ls\",\"-l\",\"a b\"]", "ls|-l|a b"},
    {words_command, "null", NULL},
    {words_command, "\"\"", NULL},
    {words_command, "[]", NULL},
    {words_command, "[\"\"]", NULL},
    {words_command, "[\"ls\",1]", NULL},
    {words_command, "{\"a\":1}", NULL},
    {words_command, "7", NULL},
    {words_secrets, "null", ""},
    {words_secrets, "[]", ""},
    {words_secrets, "[\"api-key\",\"db.pass\"]", "api-key|db.pass"},
    {words_secrets, "{\"API_KEY\":\"api-key\",\"_b1\":\"x\"}", "API_KEY=api-key|_b1=x"},
    {words_secrets, "[\"../token\"]", NULL},
    {words_secrets, "[\".hidden\"]", NULL},
    {words_secrets, "[\"a/b\"]", NULL},
    {words_secrets, "[\"\"]", NULL},
    {words_secrets, "[7]", NULL},
    {words_secrets, "\"api-key\"", NULL},
    {words_secrets, "{\"A\":\"../x\"}", NULL},
    {words_secrets, "{\"A=B\":\"x\"}", NULL},
    {words_secrets, "{\"1A\":\"x\"}", NULL},
    {words_secrets, "{\"\":\"x\"}", NULL},
    {words_secrets, "{\"BERTH_JOB_ID\":\"x\"}", NULL},
};

static void test_rows(void **state)
{
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct arena arena = {0};
        const struct json *json;
        struct strs words = {0};
        char text[128] = "";

        assert_int_equal(json_parse(str_of(rows[i].json), &arena, &json, NULL), ERR_OK);
        if (rows[i].read(json, &arena, &words) != (rows[i].words != NULL))
            fail_msg("row %zu: %s", i, rows[i].json);
        for (size_t j = 0; rows[i].words && j < words.count; j++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s" STR_FMT, j ? "|" : "",
                     STR_ARG(words.at[j]));
        if (rows[i].words)
            assert_string_equal(text, rows[i].words);
        arena_free(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
