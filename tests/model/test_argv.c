/* Words for a process, and JSON that is refused. */
#include "model/argv.h"

#include <stdio.h>
#include <string.h>

#include "../unit.h"

typedef bool reader(const struct json *json, struct arena *arena, struct strs *ret_words);

static const struct {
    reader *read;
    const char *json, *words; /* words separated by '|'; NULL: refused */
} rows[] = {
    {argv_list, "null", ""},
    {argv_list, "[]", ""},
    {argv_list, "[\"a b\",\"\",1,2.5]", "a b||1|2.5"},
    {argv_list, "[\"a\\nb\"]", "a\nb"},
    {argv_list, "\"a\"", NULL},
    {argv_list, "[true]", NULL},
    {argv_list, "[[\"a\"]]", NULL},
    {argv_list, "[\"a\\u0000b\"]", NULL},
    {argv_env, "null", ""},
    {argv_env, "{}", ""},
    {argv_env, "{\"A\":\"x=y\",\"b_1\":2,\"C\":true}", "A=x=y|b_1=2|C=true"},
    {argv_env, "{\"A\":\"\"}", "A="},
    {argv_env, "[\"A=1\"]", NULL},
    {argv_env, "{\"1A\":\"x\",\"spring.datasource.url\":\"y\",\"MY-VAR\":\"z\"}",
     "1A=x|spring.datasource.url=y|MY-VAR=z"},
    {argv_env, "{\"A=B\":\"x\"}", NULL},
    {argv_env, "{\"A\\u0000\":\"x\"}", NULL},
    {argv_env, "{\"\":\"x\"}", NULL},
    {argv_env, "{\"A B\":\"x\"}", "A B=x"},
    {argv_env, "{\"A\":null}", NULL},
    {argv_env, "{\"A\":[1]}", NULL},
    {argv_env, "{\"A\":\"\\u0000\"}", NULL},
    {argv_command, "\"echo $A | wc\"", "/bin/sh|-c|echo $A | wc"},
    {argv_command, "[\"ls\",\"-l\",\"a b\"]", "ls|-l|a b"},
    {argv_command, "null", NULL},
    {argv_command, "\"\"", NULL},
    {argv_command, "[]", NULL},
    {argv_command, "[\"\"]", NULL},
    {argv_command, "[\"ls\",1]", NULL},
    {argv_command, "{\"a\":1}", NULL},
    {argv_command, "7", NULL},
    {argv_secrets, "null", ""},
    {argv_secrets, "[]", ""},
    {argv_secrets, "[\"api-key\",\"db.pass\"]", "api-key|db.pass"},
    {argv_secrets, "{\"API_KEY\":\"api-key\",\"_b1\":\"x\"}", "API_KEY=api-key|_b1=x"},
    {argv_secrets, "[\"../token\"]", NULL},
    {argv_secrets, "[\".hidden\"]", NULL},
    {argv_secrets, "[\"a/b\"]", NULL},
    {argv_secrets, "[\"\"]", NULL},
    {argv_secrets, "[7]", NULL},
    {argv_secrets, "\"api-key\"", NULL},
    {argv_secrets, "{\"A\":\"../x\"}", NULL},
    {argv_secrets, "{\"A=B\":\"x\"}", NULL},
    {argv_secrets, "{\"1A\":\"x\"}", NULL},
    {argv_secrets, "{\"\":\"x\"}", NULL},
    {argv_secrets, "{\"BERTH_JOB_ID\":\"x\"}", NULL},
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
