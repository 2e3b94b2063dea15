/* YAML as JSON: types, line numbers, and what is refused. */
#include "../unit.h"

#include <string.h>

#include "base/json.h"
#include "base/schema.h"
#include "base/yaml.h"

static const struct {
    const char *yaml, *json;
} rows[] = {
    {"", "null"},
    {"# only a comment\n", "null"},
    {"---\n", "null"},
    {"---\na: 1\n...\n", "{\"a\":1}"},
    {"a: 1\nb: x y\nc: \"5\"\nd: '6'\n", "{\"a\":1,\"b\":\"x y\",\"c\":\"5\",\"d\":\"6\"}"},
    {"{\"json\": [1, 2.5e3, true, null, \"\\u00e9\"]}",
     "{\"json\":[1,2.5e3,true,null,\"\xc3\xa9\"]}"},
    {"- a\n- [b, c]\n- {d: e}\n- \n- ~\n", "[\"a\",[\"b\",\"c\"],{\"d\":\"e\"},null,null]"},
    {"a:\n  b:\n    - c: 1\n      d: 2\n", "{\"a\":{\"b\":[{\"c\":1,\"d\":2}]}}"},
    {"[true, false, null, ~]", "[true,false,null,null]"},
    {"[True, yes, no, on, off, y, n, NULL]",
     "[\"True\",\"yes\",\"no\",\"on\",\"off\",\"y\",\"n\",\"NULL\"]"},
    {"[0, -1, 010, 0x10, 0o7, 1_000, +1, .5, 5., 1e3, .inf, 12:30, 2024-01-01]",
     "[0,-1,\"010\",\"0x10\",\"0o7\",\"1_000\",\"+1\",\".5\",\"5.\",1e3,\".inf\",\"12:30\","
     "\"2024-01-01\"]"},
    {"9223372036854775808", "9223372036854775808"},
    {"true: 1\nnull: 2\n3: 4\n", "{\"true\":1,\"null\":2,\"3\":4}"},
    {"a: |\n  x\n  y\nb: >\n  x\n  y\n", "{\"a\":\"x\\ny\\n\",\"b\":\"x y\\n\"}"},
    {"a: \"\\0\\x01\\\"\"", "{\"a\":\"\\u0000\\u0001\\\"\"}"},
    {"a: http://x/#y # not y\n", "{\"a\":\"http://x/#y\"}"},
    {"<<: 1", "{\"<<\":1}"},
};

static void test_values(void **state)
{
    struct arena arena = {0};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct problem why = {0};
        struct str json;

        if (yaml_to_json(str_of(rows[i].yaml), &arena, &json, &why) != ERR_OK)
            fail_msg("%s: %s", rows[i].yaml, why.detail);
        assert_str(json, rows[i].json);
    }
    arena_free(&arena);
}

static const struct {
    const char *yaml;
    int line;
    const char *detail; /* NULL: libyaml's own message */
} refused[] = {
    {"a: 1\nb: &x 2\n", 2, "Line 2: anchors are not read here; write the value out."},
    {"a: *x\n", 1, "Line 1: aliases are not read here; write the value out."},
    {"a: &x [*x]\n", 1, "Line 1: anchors are not read here; write the value out."},
    {"&x a: 1\n", 1, "Line 1: anchors are not read here; write the value out."},
    {"a: !!str 5\n", 1, "Line 1: tags are not read here; put quotes around a text."},
    {"a: !x {}\n", 1, "Line 1: tags are not read here; put quotes around a text."},
    {"!!str a: 5\n", 1, "Line 1: tags are not read here; put quotes around a text."},
    {"a: 1\n\na: 2\n", 3, "Line 3: the key \"a\" stands here for the second time."},
    {"x:\n  a: 1\n  \"\\x61\": 2\n", 3, "Line 3: the key \"a\" stands here for the second time."},
    {"{a: 1, a: 2}", 1, "Line 1: the key \"a\" stands here for the second time."},
    {"a: 1\n---\nb: 2\n", 2, "Line 2: a second document starts here."},
    {"? [a]\n: 1\n", 1, "Line 1: a key must be a plain name."},
    {"? {a: 1}\n: 1\n", 1, "Line 1: a key must be a plain name."},
    {": 1\n", 1, NULL},
    {"? \n: 1\n", 1, "Line 1: a key must be a plain name."},
    {"\"a\\nb\": 1\n", 1, "Line 1: a key must be a plain name."},
    {"a: 1\nb: [1, 2\n", 3, NULL},
    {"a: 1\n b: 2\n", 2, NULL},
    {"a: \"x\n", 2, NULL},
    {"a: b: c\n", 1, NULL},
    {"\ta: 1\n", 1, NULL},
    {"a: \xff\n", 1, NULL},
    {"a: @x\n", 1, NULL},
};

static void test_refused(void **state)
{
    struct arena arena = {0};

    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        struct problem why = {0};
        struct str json = STR("untouched");

        if (yaml_to_json(str_of(refused[i].yaml), &arena, &json, &why) != ERR_BAD_CONFIG)
            fail_msg("%s: %s", refused[i].yaml, why.detail);
        if (why.line != refused[i].line)
            fail_msg("%s: %s", refused[i].yaml, why.detail);
        assert_true(str_starts(str_of(why.detail), STR("Line ")));
        if (refused[i].detail)
            assert_string_equal(why.detail, refused[i].detail);
        assert_str(json, "untouched");
        assert_int_equal(yaml_to_json(str_of(refused[i].yaml), &arena, &json, NULL),
                         ERR_BAD_CONFIG);
    }
    arena_free(&arena);
}

/* The line of each token, in the order in which json_parse makes them. */
static void test_lines(void **state)
{
    static const int want[] = {2, 2, 2, 3, 4, 4, 4, 4, 5, 7, 7, 7, 8};
    struct arena arena = {0};
    const struct json *root;
    const int *lines;
    struct str json;

    assert_int_equal(yaml_read(STR("# top\na: 1\nb:\n  c: [x,\n      y]\n\nd: {e:\n f}\n"), &arena,
                               &json, &lines, NULL),
                     ERR_OK);
    assert_int_equal(json_parse(json, &arena, &root, NULL), ERR_OK);
    assert_str(json, "{\"a\":1,\"b\":{\"c\":[\"x\",\"y\"]},\"d\":{\"e\":\"f\"}}");
    assert_int_equal(root->span, COUNT_OF(want));
    assert_memory_equal(lines, want, sizeof want);
    arena_free(&arena);
}

static enum err read_deep(int depth, bool block)
{
    struct arena arena = {0};
    struct buf text = {0};
    struct str json;
    const struct json *root;
    enum err err;

    for (int i = 0; i < depth; i++)
        buf_str(&text, block ? STR("- ") : STR("["));
    for (int i = 0; i < depth && !block; i++)
        buf_char(&text, ']');
    err = yaml_to_json(buf_view(&text), &arena, &json, NULL);
    if (!err)
        assert_int_equal(json_parse(json, &arena, &root, NULL), ERR_OK);
    buf_free(&text);
    arena_free(&arena);
    return err;
}

static void test_limits(void **state)
{
    struct arena arena = {0};
    struct buf text = {0};
    struct str json;

    assert_int_equal(read_deep(YAML_DEPTH_MAX, false), ERR_OK);
    assert_int_equal(read_deep(YAML_DEPTH_MAX, true), ERR_OK);
    assert_int_equal(read_deep(YAML_DEPTH_MAX + 1, false), ERR_BAD_CONFIG);
    assert_int_equal(read_deep(YAML_DEPTH_MAX + 1, true), ERR_BAD_CONFIG);
    assert_int_equal(read_deep(100000, false), ERR_BAD_CONFIG);
    assert_int_equal(read_deep(100000, true), ERR_BAD_CONFIG);

    buf_str(&text, STR("# "));
    while (text.len < YAML_BYTES_MAX)
        buf_char(&text, 'x');
    assert_int_equal(yaml_to_json(buf_view(&text), &arena, &json, NULL), ERR_OK);
    buf_char(&text, 'x');
    assert_int_equal(yaml_to_json(buf_view(&text), &arena, &json, NULL), ERR_TOO_LARGE);
    buf_free(&text);
    arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_limits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
