/* Which row a node id falls to. */
#include "model/node_rules.h"

#include "../base/unit.h"

static const struct json *parse(struct arena *arena, const char *text)
{
    const struct json *json;

    assert_int_equal(json_parse(str_of(text), arena, &json, NULL), ERR_OK);
    return json;
}

static void patterns(void **state)
{
    static const struct {
        const char *pattern, *id;
        bool fits;
    } rows[] = {{"gpu-*", "gpu-1", true},
                {"gpu-*", "gpu-", true},
                {"gpu-*", "gpu", false},
                {"gpu-*", "xgpu-1", false},
                {"us", "us", true},
                {"us", "us2", false},
                {"us", "u", false},
                {"*", "anything", true},
                {"*.eu", "n1.eu", true},
                {"*.eu", "n1.eu.us", false},
                {"a*b*c", "abc", true},
                {"a*b*c", "axbxbxc", true},
                {"a*b*c", "axbxbx", false},
                {"a**c", "ac", true},
                {"*aab", "aaaab", true},
                {"n?", "n1", false},
                {"", "n1", false},
                {"gpu.1", "gpux1", false},
                {"*-*-*-x", "a-b-c-d", false},
                {"*-*-*-x", "a-b-c-x", true}};
    struct arena arena = {0};
    const struct json *facts = parse(&arena, "{\"labels\":{}}");

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct node_rule row = {.pattern = str_of(rows[i].pattern), .facts = facts};
        struct node_rules rules = {.rows = &row, .count = 1};

        if ((node_rules_find(&rules, str_of(rows[i].id)) != NULL) != rows[i].fits)
            fail_msg("%s: %s", rows[i].pattern, rows[i].id);
    }
    arena_free(&arena);
}

static void the_first_row_counts(void **state)
{
    struct arena arena = {0};
    const struct node_rule rows[] = {
        {.pattern = STR("gpu-*"), .facts = parse(&arena, "{\"labels\":{\"gpu\":\"yes\"}}")},
        {.pattern = STR("gpu-9"), .facts = parse(&arena, "{}")},
        {.pattern = STR("*"), .facts = parse(&arena, "{\"allowed_types\":[]}")},
    };
    const struct node_rules rules = {.rows = rows, .count = COUNT_OF(rows)}, none = {0};

    assert_ptr_equal(node_rules_find(&rules, STR("gpu-9")), rows[0].facts);
    assert_ptr_equal(node_rules_find(&rules, STR("cpu-9")), rows[2].facts);
    assert_null(node_rules_find(&none, STR("gpu-9")));
    assert_true(node_rules_fix(&rules, STR("gpu-9"), "labels"));
    assert_false(node_rules_fix(&rules, STR("gpu-9"), "allowed_types"));
    assert_false(node_rules_fix(&none, STR("gpu-9"), "labels"));
    arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns),
        cmocka_unit_test(the_first_row_counts),
    };

    return cmocka_run_group_tests_name("model/node_rules", tests, NULL, NULL);
}
