/* Reading values out of JSON, its limits, and the error messages. */
#include "../unit.h"

#include <float.h>
#include <string.h>
#include <time.h>

#include "base/json.h"

static const struct json *parse(struct str text, struct arena *arena)
{
    const struct json *root = NULL;
    struct problem why = {0};

    if (json_parse(text, arena, &root, &why) != ERR_OK)
        fail_msg(STR_FMT ": %s", STR_ARG(text), why.detail);
    return root;
}

static void test_ints_are_exact(void **state)
{
    static const struct {
        const char *text;
        bool ok;
        int64_t value;
    } rows[] = {
        {"0", true, 0},
        {"-0", true, 0},
        {"9223372036854775807", true, INT64_MAX},
        {"-9223372036854775808", true, INT64_MIN},
        {"9223372036854775808", false, 0},
        {"-9223372036854775809", false, 0},
        {"9007199254740993", true, 9007199254740993}, /* a double would be ...992 */
        {"9223372036854775807.0", true, INT64_MAX},
        {"922337203685477580.7e1", true, INT64_MAX},
        {"-9223372036854775808e0", true, INT64_MIN},
        {"92233720368547758070e-1", true, INT64_MAX},
        {"9223372036854775808.0", false, 0},
        {"1.0", true, 1},
        {"1e3", true, 1000},
        {"1E+3", true, 1000},
        {"1.5e1", true, 15},
        {"1500e-2", true, 15},
        {"1501e-2", false, 0},
        {"1.5", false, 0},
        {"1e18", true, 1000000000000000000},
        {"9e18", true, 9000000000000000000},
        {"1e19", false, 0},
        {"0e999999999999999999999", true, 0},
        {"0.000e-99999999999999999", true, 0},
        {"1e999999999999999999999", false, 0},
        {"1e-999999999999999999999", false, 0},
        {"10000000000000000000000000000000e-31", true, 1},
        {"0.00000000000000000000000000000001e32", true, 1},
        {"100.00", true, 100},
        {"0.1e1", true, 1},
        {"\"1\"", false, 0},
        {"true", false, 0},
        {"null", false, 0},
    };
    struct arena arena = {0};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        int64_t value = 42;

        if (json_int(parse(str_of(rows[i].text), &arena), &value) != rows[i].ok)
            fail_msg("%s", rows[i].text);
        if (value != (rows[i].ok ? rows[i].value : 42))
            fail_msg("%s is %lld", rows[i].text, (long long)value);
    }
    arena_free(&arena);
}

static void test_doubles(void **state)
{
    static const struct {
        const char *text;
        bool ok;
        double value;
    } rows[] = {
        {"0.1", true, 0.1},
        {"1e308", true, 1e308},
        {"1.7976931348623157e308", true, DBL_MAX},
        {"1e309", false, 0},
        {"-1e999", false, 0},
        {"1e-999", true, 0},
        {"3", true, 3},
        {"0.1000000000000000055511151231257827021181583404541015625000000000000000000000001", true,
         0.1000000000000000055511151231257827},
        {"\"0.1\"", false, 0}};
    struct arena arena = {0};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        double value = 42;

        if (json_double(parse(str_of(rows[i].text), &arena), &value) != rows[i].ok)
            fail_msg("%s", rows[i].text);
        assert_true(value == (rows[i].ok ? rows[i].value : 42));
    }
    arena_free(&arena);
}

static void test_walk(void **state)
{
    struct arena arena = {0};
    const struct json *root =
        parse(STR(" {\"a\" : [1, {\"x\":[]} ,\"t\\n\"], \"b\":{\"c\":true}, \"d\":null} "), &arena);
    const struct json *key = json_first(root);
    const struct json *element;
    bool flag = false;

    assert_int_equal(json_type(root), JSON_OBJ);
    assert_int_equal(root->count, 3);
    assert_true(json_str_is(key, "a"));
    element = json_first(key + 1);
    assert_str(json_raw(element), "1");
    element = json_next(element);
    assert_str(json_raw(element), "{\"x\":[]}");
    assert_null(json_first(json_get(element, "x")));
    element = json_next(element);
    assert_str(json_raw(element), "\"t\\n\"");
    assert_str(json_str(element, &arena), "t\n");
    key = json_next(key + 1);
    assert_str(json_str(key, &arena), "b");
    assert_str(json_raw(key + 1), "{\"c\":true}");
    assert_true(json_bool(json_get(key + 1, "c"), &flag));
    assert_true(flag);
    assert_true(json_is_null(json_get(root, "d")));
    assert_non_null(json_get(root, "d"));
    assert_null(json_get(root, "e"));
    assert_str(json_raw(root),
               "{\"a\" : [1, {\"x\":[]} ,\"t\\n\"], \"b\":{\"c\":true}, \"d\":null}");
    arena_free(&arena);
}

static void test_absent_reads_as_null(void **state)
{
    struct arena arena = {0};
    const struct json *num = parse(STR("7"), &arena);
    bool flag;
    int64_t value;
    double real;

    assert_int_equal(json_type(NULL), JSON_NULL);
    assert_true(json_is_null(NULL));
    assert_null(json_first(NULL));
    assert_null(json_first(num));
    assert_null(json_get(NULL, "x"));
    assert_null(json_get(num, "x"));
    assert_null(json_get(parse(STR("[\"x\",1]"), &arena), "x"));
    assert_null(json_str(NULL, &arena).at);
    assert_null(json_str(num, &arena).at);
    assert_false(json_str_is(NULL, ""));
    assert_false(json_int(NULL, &value));
    assert_false(json_double(NULL, &real));
    assert_false(json_bool(num, &flag));
    assert_str(json_raw(NULL), "null");
    assert_int_equal(json_type(num), JSON_NUM);
    arena_free(&arena);
}

/* Plain strings are not copied; only escapes make a copy. */
static void test_strings_are_copied_only_when_escaped(void **state)
{
    struct arena arena = {0};
    struct str text = STR("[\"plain \xe4\xb8\xad\",\"\\u4e2d\\ud83d\\ude00\\/\\u0000.\"]");
    const struct json *plain = json_first(parse(text, &arena));
    const struct json *escaped = json_next(plain);

    assert_ptr_equal(json_str(plain, &arena).at, text.at + 2);
    assert_true(str_eq(json_str(escaped, &arena), STR("\xe4\xb8\xad\xf0\x9f\x98\x80/\0.")));
    assert_true(json_str_is(plain, "plain \xe4\xb8\xad"));
    assert_false(json_str_is(plain, "plain"));
    assert_false(json_str_is(escaped, "\xe4\xb8\xad\xf0\x9f\x98\x80/")); /* a NUL follows */
    arena_free(&arena);
}

static void test_escaped_keys_are_found(void **state)
{
    struct arena arena = {0};
    const struct json *root = parse(STR("{\"n\\u006fde_id\":1,\"node_idx\":2,\"n\":3}"), &arena);

    assert_str(json_raw(json_get(root, "node_id")), "1");
    assert_str(json_raw(json_get(root, "node_idx")), "2");
    assert_str(json_raw(json_get(root, "n")), "3");
    assert_null(json_get(root, "no"));
    arena_free(&arena);
}

static void test_is_number(void **state)
{
    assert_true(json_is_number(STR("-12.5e-3")));
    assert_true(json_is_number(STR("0")));
    assert_false(json_is_number(STR("010")));
    assert_false(json_is_number(STR("1 ")));
    assert_false(json_is_number(STR("")));
    assert_false(json_is_number(STR_NONE));
}

static void test_messages_name_the_place(void **state)
{
    static const struct {
        const char *text, *detail;
    } rows[] = {
        {"", "Byte 0: expected a value."},
        {"{\"a\":tru}", "Byte 5: expected a value."},
        {"{\"a\" 1}", "Byte 5: expected ':' behind a key."},
        {"[1 2]", "Byte 3: expected ',' or ']'."},
        {"{\"a\":1", "Byte 6: expected ',' or '}'."},
        {"{a:1}", "Byte 1: expected a key in double quotes."},
        {"[\"abc", "Byte 5: expected the closing quote of a string."},
        {"[\"a\tc\"]", "Byte 3: expected an escape instead of a control character."},
        {"\"\xff\"", "Byte 1: expected valid UTF-8."},
        {"\"\\ud800\"", "Byte 1: expected a pair of surrogates."},
        {"01", "Byte 0: expected a number."},
        {"1 1", "Byte 2: expected nothing behind the value."},
        {"{\"ab\":1,\"c\":2,\"ab\":3}",
         "Byte 14: expected a key that the object does not have yet."},
    };
    struct arena arena = {0};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const struct json *root = (const struct json *)&rows;
        struct problem why = {0};

        assert_int_equal(json_parse(str_of(rows[i].text), &arena, &root, &why), ERR_BAD_JSON);
        assert_string_equal(why.detail, rows[i].detail);
        assert_ptr_equal(root, &rows); /* untouched */
    }
    assert_int_equal(json_parse(STR("x"), &arena, &(const struct json *){NULL}, NULL),
                     ERR_BAD_JSON);
    arena_free(&arena);
}

/* Every prefix of a valid text, in memory that ends right after it, so that the sanitiser catches a
 * read beyond the end. */
static void test_never_reads_beyond_the_end(void **state)
{
    static const char text[] = "{\"a\\u00e9\\ud83d\\ude00\xe4\xb8\xad\":[-1.5e+3,true,false,null]}";
    struct arena arena = {0};
    const struct json *root;

    for (size_t len = 0; len < sizeof text; len++) {
        char *copy = test_malloc(len + 1);
        char *end = copy + 1; /* gives length 0 an address, too */

        memcpy(end, text, len);
        assert_int_equal(json_parse((struct str){end, len}, &arena, &root, NULL),
                         len == sizeof text - 1 ? ERR_OK : ERR_BAD_JSON);
        test_free(copy);
        arena_reset(&arena);
    }
    arena_free(&arena);
}

static int64_t thread_cpu_ns(void)
{
    struct timespec time;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static int64_t cpu_of_object(int keys)
{
    struct buf text = {0};
    struct arena arena = {0};
    int64_t begun;

    buf_char(&text, '{');
    for (int i = 0; i < keys; i++)
        buf_fmt(&text, "%s\"k%07d\":0", i ? "," : "", i);
    buf_char(&text, '}');
    begun = thread_cpu_ns();
    parse(buf_view(&text), &arena);
    begun = thread_cpu_ns() - begun;
    arena_free(&arena);
    buf_free(&text);
    return begun;
}

/* If all keys were compared, ten times as many would take a hundred times as long. */
static void test_many_keys_are_not_quadratic(void **state)
{
    assert_true(cpu_of_object(80000) < 50 * cpu_of_object(8000));
}

static void test_deep_and_wide(void **state)
{
    struct arena arena = {0};
    struct buf text = {0};
    const struct json *root;

    for (int i = 0; i < 1000000; i++)
        buf_char(&text, '[');
    assert_int_equal(json_parse(buf_view(&text), &arena, &root, NULL), ERR_BAD_JSON);
    for (int body = 0; body < 2; body++)
        for (int over = 0; over < 2; over++) {
            int depth = (body ? JSON_DEPTH_BODY : JSON_DEPTH_MAX) + over;

            buf_clear(&text);
            for (int i = 0; i < depth; i++)
                buf_char(&text, '[');
            for (int i = 0; i < depth; i++)
                buf_char(&text, ']');
            assert_int_equal(
                (body ? json_parse_body : json_parse)(buf_view(&text), &arena, &root, NULL),
                over ? ERR_BAD_JSON : ERR_OK);
        }
    buf_clear(&text);
    buf_char(&text, '[');
    for (int i = 0; i < 100000; i++)
        buf_str(&text, STR("[],"));
    buf_str(&text, STR("0]"));
    root = parse(buf_view(&text), &arena);
    assert_int_equal(root->count, 100001);
    assert_int_equal(root->span, 100002);
    buf_free(&text);
    arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ints_are_exact),
        cmocka_unit_test(test_doubles),
        cmocka_unit_test(test_walk),
        cmocka_unit_test(test_absent_reads_as_null),
        cmocka_unit_test(test_strings_are_copied_only_when_escaped),
        cmocka_unit_test(test_escaped_keys_are_found),
        cmocka_unit_test(test_is_number),
        cmocka_unit_test(test_messages_name_the_place),
        cmocka_unit_test(test_never_reads_beyond_the_end),
        cmocka_unit_test(test_many_keys_are_not_quadratic),
        cmocka_unit_test(test_deep_and_wide),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
