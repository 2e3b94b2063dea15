/* Deployments: examples for getLostAddresses, buildDeploymentCounts, pickCandidateDeployment and
 * claimDeployment. */
#include "model/deploy.h"

#include <stdio.h>
#include <string.h>

#include "../unit.h"

static struct arena scratch;

static int teardown(void **state)
{
    arena_free(&scratch);
    return 0;
}

static struct names names_of(const char *const *list)
{
    struct names names;

    names_init(&names, 16, &scratch);
    for (; *list; list++)
        names_add(&names, str_of(*list));
    return names;
}
#define NAMES(...) names_of((const char *const[]){__VA_ARGS__, NULL})

static struct deploy_row row(const char *id, const char *address)
{
    return (struct deploy_row){.id = str_of(id),
                               .address = str_of(address),
                               .type = DEPLOY_DEPLOYMENT,
                               .enabled = true,
                               .updated_at = STR("2025-01-01"),
                               .created_at = STR("2025-01-01")};
}

static void test_identifies_lost_addresses_when_a_node_unit_disappears(void **state)
{
    struct deploy_row rows[] = {row("d1", "addr1"), row("d2", "addr2"), row("d3", "addr3")};
    struct names online = NAMES("addr1", "addr3"), lost;

    deploy_absent_owners(rows, COUNT_OF(rows), &online, &scratch, &lost);
    assert_int_equal(lost.count, 1);
    assert_true(str_is(lost.at[0], "addr2"));
}

static void test_counts_deployments_per_address_and_ignores_empty_ones(void **state)
{
    struct deploy_row rows[] = {row("d1", "addr1"), row("d2", "addr1"), row("d3", "addr2"),
                                row("d4", ""), row("d5", "elsewhere")};
    struct names online = NAMES("addr1", "addr2", "addr3");
    int64_t counts[3];

    deploy_counts(rows, COUNT_OF(rows), &online, counts);
    assert_int_equal(counts[0], 2);
    assert_int_equal(counts[1], 1);
    assert_int_equal(counts[2], 0);
}

static void test_candidates_by_updated_at_created_at_id(void **state)
{
    static const struct {
        const char *id, *updated, *created;
    } given[] = {{"d5", "2025-01-02", "2025-01-01"},
                 {"d4", "2025-01-01", "2025-01-02"},
                 {"d2", "2025-01-01", "2025-01-01"},
                 {"d1", "2025-01-01", "2025-01-01"}};
    static const char *const wanted[] = {"d1", "d2", "d4", "d5"};
    struct deploy_row rows[4];
    const struct deploy_row *order[4];
    struct names none = NAMES("nobody");

    for (size_t i = 0; i < 4; i++) {
        rows[i] = row(given[i].id, "");
        rows[i].updated_at = str_of(given[i].updated);
        rows[i].created_at = str_of(given[i].created);
    }
    assert_int_equal(deploy_candidates(rows, 4, &none, DEPLOY_SEED, order), 4);
    for (size_t i = 0; i < 4; i++)
        assert_true(str_is(order[i]->id, wanted[i]));
}

/* Rows of a lost node come first; those of an online node are never taken. */
static void test_lost_first_then_unassigned_and_nobody_is_robbed(void **state)
{
    struct deploy_row rows[] = {row("free", ""), row("lost", "x"), row("busy", "n1")};
    struct names lost = NAMES("x"), none = NAMES("y");
    const struct deploy_row *order[3];

    assert_int_equal(deploy_candidates(rows, 3, &lost, DEPLOY_HARDENED, order), 1);
    assert_true(str_is(order[0]->id, "lost"));
    assert_int_equal(deploy_candidates(rows, 3, &none, DEPLOY_HARDENED, order), 1);
    assert_true(str_is(order[0]->id, "free"));
    assert_int_equal(deploy_candidates(rows, 3, &lost, DEPLOY_SEED, order), 1);
    assert_true(str_is(order[0]->id, "free"));
}

static void test_claim_is_a_compare_and_set(void **state)
{
    static const struct {
        const char *address, *observed;
        int64_t generation;
        bool lost, enabled;
        enum deploy_type type;
        bool claimed;
    } rows[] = {
        {"", "", 3, false, true, DEPLOY_DEPLOYMENT, true},
        {"", "", 2, false, true, DEPLOY_DEPLOYMENT, false}, /* an old generation */
        {"", "x", 3, true, true, DEPLOY_DEPLOYMENT, false}, /* no longer its owner */
        {"x", "", 3, false, true, DEPLOY_DEPLOYMENT, false},
        {"x", "x", 3, true, true, DEPLOY_DEPLOYMENT, true},
        {"x", "x", 3, false, true, DEPLOY_DEPLOYMENT, false}, /* the owner is online */
        {"", "", 3, false, false, DEPLOY_DEPLOYMENT, false},
        {"", "", 3, false, true, DEPLOY_DAEMON, false},
        {"", "", 3, false, true, DEPLOY_OTHER, false},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct deploy_row one = row("d", rows[i].address);
        struct deploy_claim claim = {.by = STR("me"),
                                     .observed = str_of(rows[i].observed),
                                     .generation = rows[i].generation,
                                     .owner_lost = rows[i].lost};

        one.generation = 3;
        one.enabled = rows[i].enabled;
        one.type = rows[i].type;
        assert_int_equal(deploy_claim(&one, &claim), rows[i].claimed);
        assert_int_equal(one.generation, rows[i].claimed ? 4 : 3);
        assert_true(str_is(one.address, rows[i].claimed ? "me" : rows[i].address));
    }
}

/* The second of two claims on the same observation fails. */
static void test_one_claim_and_only_one(void **state)
{
    struct deploy_row one = row("d", "");
    struct deploy_claim a = {.by = STR("a"), .observed = STR("")};
    struct deploy_claim b = {.by = STR("b"), .observed = STR("")};

    assert_true(deploy_claim(&one, &a));
    assert_false(deploy_claim(&one, &b));
    assert_false(deploy_claim(&one, &a));
    assert_true(str_is(one.address, "a"));
}

static void test_release_is_idempotent(void **state)
{
    struct deploy_row one = row("d", "x");
    struct names lost = NAMES("x");

    assert_true(deploy_release(&one, &lost));
    assert_false(deploy_release(&one, &lost));
    assert_int_equal(one.address.len, 0);
    assert_int_equal(one.generation, 1);
}

/* --- deploy spec --- */

/* Which specs are valid; each refusal names the field. */

static enum err read_spec(const char *text, struct arena *arena, struct deploy_spec *ret_spec,
                          struct problem *why)
{
    const struct json *json;

    assert_int_equal(json_parse(arena_str(arena, str_of(text)), arena, &json, NULL), ERR_OK);
    return deploy_spec_read(json, true, arena, ret_spec, why);
}

static void test_all(void **state)
{
    struct arena arena = {0};
    struct deploy_spec spec;
    struct problem why = {0};

    if (read_spec("{\"id\":\"web\",\"type\":\"daemon\",\"command\":\"node\","
                  "\"args\":[\"a.js\",8080],\"env\":{\"A\":\"1\",\"spring.datasource.url\":\"x=y\","
                  "\"MY-VAR\":2},\"package_name\":\"@x/y\",\"package_version\":\"1.2\","
                  "\"selector\":\"a=b\",\"health\":{\"http\":\"http://127.0.0.1:8080/up\","
                  "\"interval_ms\":\"2s\"},\"limits\":{\"memory_mb\":64,\"pids\":9,\"disk_mb\":7,"
                  "\"cpu_percent\":50},\"restart\":{\"min_ms\":5,\"max_ms\":10},"
                  "\"stop_grace_ms\":1,\"enabled\":false,\"copies\":[]}",
                  &arena, &spec, &why))
        fail_msg("%s", why.detail);
    assert_string_equal(deploy_spec_types[spec.type], "daemon");
    assert_int_equal(spec.command.count, 3);
    assert_true(str_is(spec.command.at[0], "node") && str_is(spec.command.at[2], "8080"));
    assert_false(spec.shell || spec.enabled);
    assert_true(str_is(spec.env.at[0], "A=1"));
    assert_true(str_is(spec.env.at[1], "spring.datasource.url=x=y"));
    assert_true(str_is(spec.env.at[2], "MY-VAR=2"));
    assert_int_equal(spec.health.failures, FIELD_OFF);
    deploy_spec_defaults(&spec, &arena);
    assert_int_equal(spec.health.interval_ms, 2000);
    assert_int_equal(spec.health.failures, 3);
    assert_true(deploy_spec_checked(&spec));
    assert_int_equal(spec.limits.memory_mb, 64);
    assert_int_equal(spec.limits.pids, 9);
    assert_int_equal(spec.limits.disk_mb, 7);
    assert_int_equal(spec.restart.max_ms, 10);
    assert_int_equal(spec.stop_grace_ms, 1);
    arena_free(&arena);
}

static void test_least(void **state)
{
    struct arena arena = {0};
    struct deploy_spec spec;

    assert_int_equal(read_spec("{\"command\":\"sleep 1\"}", &arena, &spec, NULL), ERR_OK);
    deploy_spec_defaults(&spec, &arena);
    assert_false(deploy_spec_checked(&spec));
    assert_true(spec.enabled && spec.shell);
    assert_string_equal(deploy_spec_types[spec.type], "deployment");
    assert_int_equal(spec.command.count, 3);
    assert_int_equal(spec.stop_grace_ms, 10000);
    assert_int_equal(spec.limits.memory_mb, 0);
    assert_int_equal(spec.restart.min_ms, 0);
    assert_int_equal(spec.env.count, 0);
    arena_free(&arena);
}

/* The words of the process, separated by '|'. */
static void test_commands(void **state)
{
    static const struct {
        const char *spec, *command, *args;
        bool shell;
    } rows[] = {
        {"{\"command\":\"a b\"}", "/bin/sh|-c|a b", "", true},
        {"{\"command\":\"a b\",\"args\":[]}", "/bin/sh|-c|a b", "", true},
        {"{\"command\":\"a b\",\"args\":[\"c\"]}", "a b|c", "", false},
        {"{\"command\":[\"/path with space/app\"]}", "/path with space/app", "", false},
        {"{\"command\":[\"a\",\"b\"],\"args\":[\"c\"]}", "a|b|c", "", false},
        {"{\"package_name\":\"p\",\"args\":[\"c\"]}", "", "c", false},
        {"{\"package_name\":\"p\",\"command\":\"\"}", "", "", false},
        {"{\"package_name\":\"p\",\"command\":\"x\"}", "/bin/sh|-c|x", "", true},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct arena arena = {0};
        struct deploy_spec spec;
        char words[2][128] = {"", ""};

        assert_int_equal(read_spec(rows[i].spec, &arena, &spec, NULL), ERR_OK);
        for (int j = 0; j < 2; j++) {
            struct strs list = j ? spec.args : spec.command;

            for (size_t k = 0; k < list.count; k++)
                snprintf(words[j] + strlen(words[j]), sizeof words[j] - strlen(words[j]),
                         "%s" STR_FMT, k ? "|" : "", STR_ARG(list.at[k]));
        }
        assert_string_equal(words[0], rows[i].command);
        assert_string_equal(words[1], rows[i].args);
        assert_int_equal(spec.shell, rows[i].shell);
        arena_free(&arena);
    }
}

static void test_refused(void **state)
{
    static const struct {
        const char *spec, *field;
    } rows[] = {
        {"{}", "command"},
        {"null", ""},
        {"{\"command\":\"\"}", "command"},
        {"{\"command\":[]}", "command"},
        {"{\"command\":[\"\"],\"package_name\":\"p\"}", "command"},
        {"{\"command\":7}", "command"},
        {"{\"command\":\"a\\u0000b\"}", "command"},
        {"{\"command\":[\"a\",\"\\u0000\"]}", "command"},
        {"{\"command\":\"a\",\"args\":[\"\\u0000\"]}", "args"},
        {"{\"command\":\"a\",\"env\":{\"A\":\"\\u0000\"}}", "env"},
        {"{\"command\":\"a\",\"env\":{\"\\u0000\":\"A\"}}", "env"},
        {"{\"command\":\"a\",\"package_name\":\"\\u0000\"}", "package_name"},
        {"{\"command\":\"a\",\"package_version\":\"1\\u0000\"}", "package_version"},
        {"{\"command\":\"a\",\"selector\":\"a=b\\u0000\"}", "selector"},
        {"{\"command\":\"a\",\"health\":{\"command\":[\"a\",\"\\u0000\"]}}", "health.command"},
        {"{\"command\":\"a\",\"health\":{\"http\":\"http://127.0.0.1/\\u0000\"}}", "health.http"},
        {"{\"command\":\"a\",\"args\":\"b\"}", "args"},
        {"{\"command\":\"a\",\"zebra\":1}", "zebra"},
        {"{\"command\":\"a\",\"env\":[\"A=1\"]}", "env"},
        {"{\"command\":\"a\",\"env\":{\"A=B\":\"1\"}}", "env"},
        {"{\"command\":\"a\",\"env\":{\"\":\"1\"}}", "env"},
        {"{\"command\":\"a\",\"env\":{\"A\":null}}", "env"},
        {"{\"command\":\"a\",\"type\":\"cron\"}", "type"},
        {"{\"command\":\"a\",\"selector\":\"a=b,\"}", "selector"},
        {"{\"command\":\"a\",\"health\":{\"http\":\"http://example.com/\"}}", "health.http"},
        {"{\"command\":\"a\",\"health\":{\"http\":\"https://127.0.0.1/\"}}", "health.http"},
        {"{\"command\":\"a\",\"health\":{\"http\":\"http://127.0.0.1:*/\"}}", "health.http"},
        {"{\"command\":\"a\",\"health\":{\"command\":5}}", "health.command"},
        {"{\"command\":\"a\",\"health\":{\"command\":\"\"}}", "health.command"},
        {"{\"command\":\"a\",\"health\":{\"command\":\"x\",\"http\":\"http://127.0.0.1/\"}}",
         "health"},
        {"{\"command\":\"a\",\"health\":{\"failures\":2}}", "health"},
        {"{\"command\":\"a\",\"health\":{\"command\":\"x\",\"interval_ms\":50}}",
         "health.interval_ms"},
        {"{\"command\":\"a\",\"health\":{\"command\":\"x\",\"timeout_ms\":20}}",
         "health.timeout_ms"},
        {"{\"command\":\"a\",\"health\":{\"command\":\"x\",\"failures\":5000}}", "health.failures"},
        {"{\"command\":\"a\",\"limits\":{\"memory_mb\":-1}}", "limits.memory_mb"},
        {"{\"command\":\"a\",\"limits\":{\"pids\":0}}", "limits.pids"},
        {"{\"command\":\"a\",\"limits\":{\"disk_mb\":0}}", "limits.disk_mb"},
        {"{\"command\":\"a\",\"restart\":{\"min_ms\":9,\"max_ms\":8}}", "restart.max_ms"},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct arena arena = {0};
        struct deploy_spec spec;
        struct problem why = {0};

        if (read_spec(rows[i].spec, &arena, &spec, &why) != ERR_BAD_FIELD)
            fail_msg("%s", rows[i].spec);
        assert_string_equal(why.field, rows[i].field);
        assert_non_null(strchr(why.detail, '.'));
        arena_free(&arena);
    }
}

/* Words longer than Linux passes to a program, and too many of them. */
static void test_too_long(void **state)
{
    for (int i = 0; i < 3; i++) {
        struct arena arena = {0};
        struct buf text = {0};
        struct deploy_spec spec;
        struct problem why = {0};

        buf_fmt(&text, "{\"command\":[\"a\"],\"%s", i == 2 ? "env\":{\"A\":\"" : "args\":[\"");
        for (int n = 0; n < (i == 1 ? 257 : 131071); n++)
            buf_str(&text, i == 1 ? STR("x\",\"") : STR("x"));
        buf_str(&text, i == 2 ? STR("\"}}") : STR("\"]}"));
        buf_char(&text, 0);
        enum err err = read_spec(text.at, &arena, &spec, &why);
        assert_int_equal(err, i == 0 ? ERR_OK : ERR_BAD_FIELD); /* 0: just short enough */
        buf_free(&text);
        arena_free(&arena);
    }
}

static void test_options_are_what_was_said(void **state)
{
    struct arena arena = {0};
    struct deploy_spec spec;
    struct buf text = {0};
    struct jsonw w = jsonw_to(&text);

    assert_int_equal(
        read_spec("{\"command\":\"a\",\"limits\":{},\"secrets\":[\"k\"],\"stop_grace_ms\":\"2s\","
                  "\"health\":{\"command\":[\"x\"],\"failures\":2}}",
                  &arena, &spec, NULL),
        ERR_OK);
    jsonw_obj(&w);
    deploy_spec_write_options(&spec, &w);
    jsonw_end_obj(&w);
    buf_char(&text, 0);
    assert_string_equal(text.at,
                        "{\"health\":{\"command\":[\"x\"],\"failures\":2},\"stop_grace_ms\":2000,"
                        "\"secrets\":[\"k\"]}");
    buf_free(&text);
    arena_free(&arena);
}

static void test_a_text_with_a_port(void **state)
{
    struct arena own = {0};

    assert_true(str_is(deploy_with_port(STR("http://127.0.0.1:$BERTH_PORT/up"), 21007, &own),
                       "http://127.0.0.1:21007/up"));
    assert_true(str_is(deploy_with_port(STR("http://127.0.0.1:8080/"), 21007, &own),
                       "http://127.0.0.1:8080/"));
    arena_free(&own);
}

static void test_ids_of_copies(void **state)
{
    static const struct {
        const char *id, *name;
        int64_t index;
        bool valid;
    } rows[] = {
        {"web", "web", 0, true},
        {"web#1", "web", 1, true},
        {"maps/web#12", "maps/web", 12, true},
        {"web#999", "web", 999, true},
        {"web#1000", "web", 1000, false},
        {"web#0", "web", 0, false},
        {"web#01", "web", 1, false},
        {"web#", "web", 0, false},
        {"web#1#2", "web", 0, false},
        {"#1", "", 1, false},
        {"web#+1", "web", 1, false},
        {"", "", 0, false},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        assert_true(str_is(deploy_name(str_of(rows[i].id)), rows[i].name));
        if (rows[i].valid)
            assert_int_equal(deploy_index(str_of(rows[i].id)), rows[i].index);
        assert_int_equal(deploy_id_valid(str_of(rows[i].id)), rows[i].valid);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids_of_copies),
        cmocka_unit_test(test_a_text_with_a_port),
        cmocka_unit_test(test_identifies_lost_addresses_when_a_node_unit_disappears),
        cmocka_unit_test(test_counts_deployments_per_address_and_ignores_empty_ones),
        cmocka_unit_test(test_candidates_by_updated_at_created_at_id),
        cmocka_unit_test(test_lost_first_then_unassigned_and_nobody_is_robbed),
        cmocka_unit_test(test_claim_is_a_compare_and_set),
        cmocka_unit_test(test_one_claim_and_only_one),
        cmocka_unit_test(test_release_is_idempotent),
        cmocka_unit_test(test_all),
        cmocka_unit_test(test_least),
        cmocka_unit_test(test_commands),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_options_are_what_was_said),
    };

    return cmocka_run_group_tests_name("deploy", tests, NULL, teardown);
}
