/* Writing JSON: commas, escapes, and numbers that read back the same. */
#include "../unit.h"

#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"

static struct buf out;
static struct jsonw w;

static int start(void **state)
{
    buf_clear(&out);
    w = jsonw_to(&out);
    return 0;
}

static int end(void **state)
{
    buf_free(&out);
    return 0;
}

static void test_commas_at_every_level(void **state)
{
    jsonw_obj(&w);
    jsonw_kint(&w, "a", -1);
    jsonw_kstr(&w, "b", STR("x"));
    jsonw_kstr(&w, "none", STR_NONE);
    jsonw_kstr(&w, "empty", STR(""));
    jsonw_key(&w, "arr");
    jsonw_arr(&w);
    jsonw_arr(&w);
    jsonw_end_arr(&w);
    jsonw_obj(&w);
    jsonw_end_obj(&w);
    jsonw_bool(&w, true);
    jsonw_null(&w);
    jsonw_raw(&w, STR("[1]"));
    jsonw_raw(&w, STR_NONE);
    jsonw_obj(&w);
    jsonw_kbool(&w, "c", false);
    jsonw_end_obj(&w);
    jsonw_end_arr(&w);
    jsonw_knull(&w, "d");
    jsonw_kraw(&w, "e", STR("{}"));
    jsonw_kdouble(&w, "f", 0.5);
    jsonw_key_str(&w, STR("g\"\n"));
    jsonw_int(&w, 7);
    jsonw_end_obj(&w);
    assert_str(
        buf_view(&out),
        "{\"a\":-1,\"b\":\"x\",\"none\":null,\"empty\":\"\",\"arr\":[[],{},true,null,[1],null,"
        "{\"c\":false}],\"d\":null,\"e\":{},\"f\":0.5,\"g\\\"\\n\":7}");
}

static void test_strings(void **state)
{
    static const struct {
        struct str text;
        const char *json;
    } rows[] = {
        {STR(""), "\"\""},
        {STR("plain"), "\"plain\""},
        {STR("\"\\/\b\f\n\r\t"), "\"\\\"\\\\/\\b\\f\\n\\r\\t\""},
        {STR("\0\x01\x0b\x1f\x7f"), "\"\\u0000\\u0001\\u000b\\u001f\\u007f\""},
        {STR("\xe4\xb8\xad\xf0\x9f\x98\x80"), "\"\xe4\xb8\xad\xf0\x9f\x98\x80\""},
        {STR("a\xff"
             "b"),
         "\"a\xef\xbf\xbd"
         "b\""},
        {STR("\xe4\xb8"), "\"\xef\xbf\xbd\xef\xbf\xbd\""},
        {STR("\xed\xa0\x80"), "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
        {STR("</script>"), "\"</script>\""},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        buf_clear(&out);
        json_quote(&out, rows[i].text);
        assert_str(buf_view(&out), rows[i].json);
    }
}

static void write_double(double value)
{
    start(NULL);
    jsonw_double(&w, value);
    buf_char(&out, '\0');
}

static void test_doubles_are_short(void **state)
{
    static const struct {
        double value;
        const char *text;
    } rows[] = {{0, "0"},
                {-0.0, "-0"},
                {1, "1"},
                {-17, "-17"},
                {0.1, "0.1"},
                {0.1 + 0.2, "0.30000000000000004"},
                {100, "100"},
                {1.0 / 3, "0.3333333333333333"},
                {2.0 / 3, "0.6666666666666666"},
                {5e-324, "5e-324"},
                {1.7976931348623157e308, "1.7976931348623157e308"},
                {2.2250738585072014e-308, "2.2250738585072014e-308"},
                {0x1p+398, "6.455624695217272e119"},
                {-0x1p+544, "-5.758609657015292e163"},
                {1e15, "1e15"},
                {1e21, "1e21"},
                {1e-7, "1e-7"},
                {123456789012345678.0, "1.2345678901234568e17"},
                {9007199254740993.0, "9007199254740992"},
                {999999999999999, "999999999999999"},
                {NAN, "null"},
                {INFINITY, "null"},
                {-INFINITY, "null"}};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        write_double(rows[i].value);
        assert_string_equal(out.at, rows[i].text);
    }
}

/* Any bits: the text is valid JSON and reads back as the same double. */
static void test_doubles_read_back(void **state)
{
    struct arena arena = {0};
    struct rnd rnd;

    rnd_seed(&rnd, 5);
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = rnd_next(&rnd);
        const struct json *value;
        double real, again = 0;

        if (i < 2098) /* each power of two, where the gap below is half the gap above */
            real = ldexp(1, i - 1074);
        else
            memcpy(&real, &bits, sizeof real);
        if (!isfinite(real))
            continue;
        write_double(real);
        assert_int_equal(json_parse(str_of(out.at), &arena, &value, NULL), ERR_OK);
        assert_true(json_double(value, &again));
        assert_true(again == real);
        arena_reset(&arena);
    }
    arena_free(&arena);
}

static void key_outside_an_object(void)
{
    jsonw_arr(&w);
    jsonw_key(&w, "a");
}

static void value_without_a_key(void)
{
    jsonw_obj(&w);
    jsonw_int(&w, 1);
}

static void two_keys_in_a_row(void)
{
    jsonw_obj(&w);
    jsonw_key(&w, "a");
    jsonw_key(&w, "b");
}

static void key_without_its_value(void)
{
    jsonw_obj(&w);
    jsonw_key(&w, "a");
    jsonw_end_obj(&w);
}

static void wrong_bracket(void)
{
    jsonw_obj(&w);
    jsonw_end_arr(&w);
}

static void one_bracket_too_many(void)
{
    jsonw_arr(&w);
    jsonw_end_arr(&w);
    jsonw_end_arr(&w);
}

static void two_values(void)
{
    jsonw_int(&w, 1);
    jsonw_int(&w, 2);
}

/* A call that would write invalid JSON aborts; tested in a child process. */
static void test_misuse_aborts(void **state)
{
    static void (*const mistakes[])(void) = {
        key_outside_an_object, value_without_a_key,  two_keys_in_a_row, key_without_its_value,
        wrong_bracket,         one_bracket_too_many, two_values,
    };

    for (size_t i = 0; i < COUNT_OF(mistakes); i++) {
        pid_t pid = fork();
        int status = 0;

        if (pid == 0) {
            signal(SIGABRT, SIG_DFL);
            close(STDERR_FILENO);
            start(NULL);
            mistakes[i]();
            _exit(0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
            fail_msg("mistake %zu went through", i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_commas_at_every_level, start, end),
        cmocka_unit_test_setup_teardown(test_strings, start, end),
        cmocka_unit_test_setup_teardown(test_doubles_are_short, start, end),
        cmocka_unit_test_setup_teardown(test_doubles_read_back, start, end),
        cmocka_unit_test_setup_teardown(test_misuse_aborts, start, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
