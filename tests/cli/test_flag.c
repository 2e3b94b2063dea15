/* Flags by table: what is read, and what is refused with which message. */
#include "unit.h"

#include "cli/flag.h"

static const struct flag flags[] = {
    {.name = "state", .type = FLAG_LIST, .value = "STATE"},
    {.name = "limit", .type = FLAG_INT, .value = "N", .min = 1, .max = 9},
    {.name = "count", .type = FLAG_INT, .value = "N"},
    {.name = "timeout", .type = FLAG_MS, .value = "DURATION"},
    {.name = "wait", .type = FLAG_MS_MAYBE, .value = "DURATION"},
    {.name = "strict", .type = FLAG_SWITCH},
};
static const struct flag common[] = {
    {.name = "output", .letter = 'o', .type = FLAG_TEXT, .value = "FORMAT"},
};
static const struct flag_set sets[] = {{flags, COUNT_OF(flags)}, {common, COUNT_OF(common)}};

struct good_row {
    const char *line;
    const char *flag; /* the first flag given; NULL: none */
    const char *text;
    int64_t num;
    int args, rest;
};

static const struct good_row good_rows[] = {
    {"", NULL, NULL, 0, 0, 0},
    {"a b", NULL, NULL, 0, 2, 0},
    {"-", NULL, NULL, 0, 1, 0},
    {"--state DONE", "state", "DONE", -1, 0, 0},
    {"--state=DONE x", "state", "DONE", -1, 1, 0},
    {"--state=", "state", "", -1, 0, 0},
    {"--state=a=b", "state", "a=b", -1, 0, 0},
    {"x --limit 3 y", "limit", "3", 3, 2, 0},
    {"--count -5", "count", "-5", -5, 0, 0},
    {"--timeout 2s", "timeout", "2s", 2000, 0, 0},
    {"--timeout=1500", "timeout", "1500", 1500, 0, 0},
    {"--wait", "wait", NULL, -1, 0, 0},
    {"--wait=30s", "wait", "30s", 30000, 0, 0},
    {"--wait 30s", "wait", "30s", 30000, 0, 0},
    {"--wait x", "wait", NULL, -1, 1, 0},
    {"--wait -- ls -l", "wait", NULL, -1, 0, 2},
    {"--strict", "strict", NULL, -1, 0, 0},
    {"-o json", "output", "json", -1, 0, 0},
    {"-ojson", "output", "json", -1, 0, 0},
    {"-o=json", "output", "json", -1, 0, 0},
    {"-- --state x", NULL, NULL, 0, 0, 2},
    {"a --", NULL, NULL, 0, 1, 0},
    {"--state a --state b", "state", "a", -1, 0, 0},
};

static void reads_what_was_typed(void **state)
{
    for (size_t i = 0; i < COUNT_OF(good_rows); i++) {
        const struct good_row *row = &good_rows[i];
        struct arena arena = {0};
        struct words words;
        struct flag_line line;
        struct problem why = {0};

        words_cut(&words, row->line);
        if (flag_parse(sets, COUNT_OF(sets), words.argc, words.argv, &arena, &line, &why))
            fail_msg("%s: %s", row->line, why.detail);
        assert_int_equal(line.arg_count, row->args);
        assert_int_equal(line.rest_count, row->rest);
        if (!row->flag) {
            assert_int_equal(line.given_count, 0);
        } else {
            assert_true(line.given_count > 0);
            assert_string_equal(line.given[0].flag->name, row->flag);
            if (row->text)
                assert_string_equal(line.given[0].text, row->text);
            else
                assert_null(line.given[0].text);
            assert_int_equal(line.given[0].num, row->num);
        }
        arena_free(&arena);
    }
}

static const struct {
    const char *line;
    const char *detail;
} bad_rows[] = {
    {"--sate x", "unknown flag --sate; did you mean --state?"},
    {"--stat=x", "unknown flag --stat=x; did you mean --state?"},
    {"--outptu x", "unknown flag --outptu; did you mean --output?"},
    {"--zzz", "unknown flag --zzz"},
    {"-z", "unknown flag -z"},
    {"--state", "--state needs a value (STATE)"},
    {"--limit x", "--limit takes a whole number, not \"x\""},
    {"--limit 3.5", "--limit takes a whole number, not \"3.5\""},
    {"--limit 0", "--limit must be from 1 to 9, not 0"},
    {"--limit 10", "--limit must be from 1 to 9, not 10"},
    {"--timeout soon", "--timeout takes a time like 30s, 500ms or 2m, not \"soon\""},
    {"--wait=soon", "--wait takes a time like 30s, 500ms or 2m, not \"soon\""},
    {"--strict=1", "--strict takes no value"},
    {"--limit 1 --limit 2", "--limit was given twice"},
};

static void refuses_with_a_sentence(void **state)
{
    for (size_t i = 0; i < COUNT_OF(bad_rows); i++) {
        struct arena arena = {0};
        struct words words;
        struct flag_line line;
        struct problem why = {0};

        words_cut(&words, bad_rows[i].line);
        if (!flag_parse(sets, COUNT_OF(sets), words.argc, words.argv, &arena, &line, &why))
            fail_msg("%s was taken", bad_rows[i].line);
        assert_string_equal(why.detail, bad_rows[i].detail);
        arena_free(&arena);
    }
}

static void nearest_is_near(void **state)
{
    static const char *const names[] = {"ls", "show", "submit", "cancel", "wait"};
    static const struct {
        const char *typed, *want;
    } rows[] = {
        {"lss", "ls"},
        {"sl", "ls"},
        {"list", NULL},
        {"shwo", "show"},
        {"sub", "submit"},
        {"canel", "cancel"},
        {"x", NULL},
        {"", NULL},
        {"wiat", "wait"},
        {"elephant", NULL},
        {"a-word-that-is-much-longer-than-any-flag-there-is", NULL},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const char *got = flag_nearest(rows[i].typed, names, COUNT_OF(names));

        if (!rows[i].want)
            assert_null(got);
        else if (!got || strcmp(got, rows[i].want) != 0)
            fail_msg("%s: got %s, wanted %s", rows[i].typed, got ? got : "none", rows[i].want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_was_typed),
        cmocka_unit_test(refuses_with_a_sentence),
        cmocka_unit_test(nearest_is_near),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
