/* A deployment's row, and rows that cannot be run: each says which field is to blame. */
#include "agent/copy_spec.h"

#include <stdio.h>
#include <string.h>

#include "unit.h"

static enum err read_spec(const char *type, const char *spec, struct arena *arena,
                          struct copy_spec *ret_spec, struct problem *why)
{
    const struct json *row;
    char text[1024];

    snprintf(text, sizeof text,
             "{\"id\":\"web\",\"type\":\"%s\",\"generation\":3,\"version\":2,\"spec\":%s}", type,
             spec);
    assert_int_equal(json_parse(arena_str(arena, str_of(text)), arena, &row, NULL), ERR_OK);
    return copy_spec_read(row, arena, ret_spec, why);
}

static void test_all(void **state)
{
    struct arena arena = {0};
    struct copy_spec spec;
    struct problem why = {0};

    if (read_spec("daemon",
                  "{\"command\":\"node\",\"args\":[\"a.js\",8080],\"env\":{\"A\":\"1\"},"
                  "\"package_name\":\"@x/y\",\"package_version\":\"1.2\",\"selector\":\"a=b\","
                  "\"health\":{\"http\":\"http://127.0.0.1:8080/up\",\"interval_ms\":\"2s\"},"
                  "\"limits\":{\"memory_mb\":64,\"pids\":9,\"cpu_percent\":50},"
                  "\"restart\":{\"min_ms\":5,\"max_ms\":10},\"stop_grace_ms\":1,\"enabled\":true}",
                  &arena, &spec, &why))
        fail_msg("%s", why.detail);
    assert_true(spec.daemon && str_is(spec.id, "web"));
    assert_int_equal(spec.generation, 3);
    assert_int_equal(spec.version, 2);
    assert_int_equal(spec.command.count, 3);
    assert_true(str_is(spec.command.at[0], "node") && str_is(spec.command.at[2], "8080"));
    assert_true(str_is(spec.env.at[0], "A=1"));
    assert_int_equal(spec.health.interval_ms, 2000);
    assert_int_equal(spec.health.failures, 3);
    assert_true(copy_spec_checked(&spec));
    assert_int_equal(spec.limits.memory_mb, 64);
    assert_int_equal(spec.limits.pids, 9);
    assert_int_equal(spec.restart.max_ms, 10);
    assert_int_equal(spec.stop_grace_ms, 1);
    arena_free(&arena);
}

static void test_least(void **state)
{
    struct arena arena = {0};
    struct copy_spec spec;

    assert_int_equal(read_spec("deployment", "{\"command\":\"sleep 1\"}", &arena, &spec, NULL),
                     ERR_OK);
    assert_false(spec.daemon || copy_spec_checked(&spec));
    assert_int_equal(spec.command.count, 3); /* for the shell */
    assert_int_equal(spec.stop_grace_ms, 10000);
    assert_int_equal(spec.env.count, 0);
    arena_free(&arena);
}

static void test_refused(void **state)
{
    static const struct {
        const char *type, *spec, *field;
    } rows[] = {
        {"deployment", "{}", "command"},
        {"deployment", "null", "spec"},
        {"deployment", "{\"command\":7}", "command"},
        {"deployment", "{\"command\":[\"a\"],\"args\":[\"b\"]}", "command"},
        {"deployment", "{\"command\":\"a\",\"args\":\"b\"}", "command"},
        {"deployment", "{\"command\":\"a\",\"env\":[\"A=1\"]}", "env"},
        {"cron", "{\"command\":\"a\"}", "type"},
        {"deployment", "{\"command\":\"a\",\"health\":{\"http\":\"http://example.com/\"}}",
         "health.http"},
        {"deployment", "{\"command\":\"a\",\"health\":{\"command\":5}}", "health.command"},
        {"deployment", "{\"command\":\"a\",\"limits\":{\"memory_mb\":-1}}", "limits.memory_mb"},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct arena arena = {0};
        struct copy_spec spec;
        struct problem why = {0};

        assert_int_equal(read_spec(rows[i].type, rows[i].spec, &arena, &spec, &why), ERR_BAD_FIELD);
        assert_string_equal(why.field, rows[i].field);
        assert_non_null(strchr(why.detail, '.'));
        arena_free(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all), cmocka_unit_test(test_least),
                                       cmocka_unit_test(test_refused)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
