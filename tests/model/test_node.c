/* Health by name, the watch, the health that a reserve sees, the score, and which socket a close
 * evicts. */
#include "base/clock.h"

#include <math.h>

#include "../unit.h"
#include "model/node.h"

static void test_health_names(void **state)
{
    for (int health = NODE_HEALTH_NONE + 1; health < NODE_HEALTH_COUNT; health++)
        assert_int_equal(node_health_by_name(str_of(node_health_name((enum node_health)health))),
                         health);
    assert_string_equal(node_health_name(NODE_READY), "ready");
    assert_string_equal(node_health_name(NODE_HEALTH_NONE), "unknown");
    assert_int_equal(node_health_by_name(STR("unknown")), NODE_HEALTH_NONE);
    assert_int_equal(node_health_by_name(STR("READY")), NODE_HEALTH_NONE);
    assert_int_equal(node_health_by_name(STR("ready ")), NODE_HEALTH_NONE);
    assert_int_equal(node_health_by_name(STR("")), NODE_HEALTH_NONE);
    assert_int_equal(node_health_by_name(STR_NONE), NODE_HEALTH_NONE);
}

static void test_a_registration_counts_with_the_default_rules(void **state)
{
    struct node_watch watch;

    node_watch_init(&watch, 1000);
    assert_int_equal(watch.status, NODE_REGISTERING);
    node_watch_heartbeat(&watch, &node_watch_defaults, true, 1000);
    assert_int_equal(watch.status, NODE_READY);
    node_watch_scan(&watch, &node_watch_defaults, 46000);
    assert_int_equal(watch.status, NODE_READY);
    node_watch_scan(&watch, &node_watch_defaults, 46001);
    assert_int_equal(watch.status, NODE_OFFLINE);
    node_watch_scan(&watch, &node_watch_defaults, 99999);
    assert_int_equal(watch.status, NODE_OFFLINE);
}

static void test_good_ones_in_a_row(void **state)
{
    struct node_watch_rules rules = node_watch_defaults;
    struct node_watch watch;

    rules.health_check_count = 3;
    node_watch_init(&watch, 0);
    for (int i = 0; i < 50; i++) { /* two good, one bad, for ever: never ready */
        node_watch_heartbeat(&watch, &rules, i % 3 != 2, i);
        assert_int_equal(watch.status, NODE_REGISTERING);
    }
    for (int i = 0; i < 3; i++)
        node_watch_heartbeat(&watch, &rules, true, 50 + i);
    assert_int_equal(watch.status, NODE_READY);
}

static void test_back_from_silence_is_a_new_registration(void **state)
{
    struct node_watch watch;

    node_watch_init(&watch, 0);
    node_watch_scan(&watch, &node_watch_defaults, 200000);
    assert_int_equal(watch.status, NODE_OFFLINE);
    node_watch_heartbeat(&watch, &node_watch_defaults, false, 300000);
    assert_int_equal(watch.status, NODE_OFFLINE);
    node_watch_heartbeat(&watch, &node_watch_defaults, true, 300001);
    assert_int_equal(watch.status, NODE_REGISTERING);
    node_watch_heartbeat(&watch, &node_watch_defaults, false, 340000);
    node_watch_scan(&watch, &node_watch_defaults, 360001); /* exactly at the end of its warm-up */
    assert_int_equal(watch.status, NODE_REGISTERING);
    node_watch_scan(&watch, &node_watch_defaults, 360002);
    assert_int_equal(watch.status, NODE_DEGRADED);
    node_watch_heartbeat(&watch, &node_watch_defaults, true, 360003);
    assert_int_equal(watch.status, NODE_READY);
}

static void test_ready_never_counts_bad_ones_that_are_not_in_a_row(void **state)
{
    struct node_watch watch;

    node_watch_init(&watch, 0);
    node_watch_heartbeat(&watch, &node_watch_defaults, true, 0);
    for (int i = 0; i < 50; i++) {
        node_watch_heartbeat(&watch, &node_watch_defaults, i % 3 == 0, i);
        assert_int_equal(watch.status, NODE_READY);
    }
}

static void test_effective(void **state)
{
    static const struct {
        enum node_health own, watch;
        enum node_admin admin;
        enum node_health effective;
    } rows[] = {
        {NODE_READY, NODE_READY, NODE_ADMIN_NONE, NODE_READY},
        {NODE_READY, NODE_REGISTERING, NODE_ADMIN_NONE, NODE_READY}, /* takes effect at once */
        {NODE_READY, NODE_DEGRADED, NODE_ADMIN_NONE, NODE_DEGRADED},
        {NODE_READY, NODE_OFFLINE, NODE_ADMIN_NONE, NODE_OFFLINE},
        {NODE_DEGRADED, NODE_READY, NODE_ADMIN_NONE, NODE_DEGRADED},
        {NODE_DRAINING, NODE_DEGRADED, NODE_ADMIN_NONE, NODE_DRAINING},
        {NODE_OFFLINE, NODE_READY, NODE_ADMIN_NONE, NODE_OFFLINE},
        {NODE_READY, NODE_READY, NODE_ADMIN_CORDONED, NODE_DRAINING},
        {NODE_READY, NODE_READY, NODE_ADMIN_DRAINING, NODE_DRAINING},
        {NODE_DEGRADED, NODE_DEGRADED, NODE_ADMIN_DRAINING, NODE_DRAINING},
        {NODE_READY, NODE_OFFLINE, NODE_ADMIN_DRAINING, NODE_OFFLINE},
        {NODE_HEALTH_NONE, NODE_READY, NODE_ADMIN_NONE, NODE_HEALTH_NONE},
        {NODE_HEALTH_NONE, NODE_OFFLINE, NODE_ADMIN_DRAINING, NODE_HEALTH_NONE},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_int_equal(node_effective(rows[i].own, rows[i].watch, rows[i].admin),
                         rows[i].effective);
}

/* The result is ready only if the node says so and nothing objects. */
static void test_nobody_is_made_ready(void **state)
{
    for (int own = 0; own < NODE_HEALTH_COUNT; own++)
        for (int watch = 0; watch < NODE_HEALTH_COUNT; watch++)
            for (int admin = NODE_ADMIN_NONE; admin <= NODE_ADMIN_DRAINING; admin++) {
                enum node_health health = node_effective(
                    (enum node_health)own, (enum node_health)watch, (enum node_admin)admin);
                bool objected =
                    admin != NODE_ADMIN_NONE || watch == NODE_DEGRADED || watch == NODE_OFFLINE;

                if (own != NODE_READY || objected)
                    assert_int_not_equal(health, NODE_READY);
                else
                    assert_int_equal(health, NODE_READY);
            }
}

static void test_score_rows(void **state)
{
    static const struct {
        struct node_figures in;
        int score;
    } rows[] = {
        /* scale; cpu, gpu, mem, fail in 1/1000; p95, target in ms */
        {{1000, 0, 0, 0, 0, 0, 1000}, 100},
        {{1000, 0, -1, 0, 0, 0, 1000}, 100},
        {{1000, 1000, 1000, 1000, 1000, 1000, 1000}, 0},
        {{1000, 1000, -1, 1000, 1000, 1000, 1000}, 0},
        {{1000, 330, 520, 0, 0, 0, 1000}, 83},
        {{1000, 500, 500, 500, 500, 500, 1000}, 50},
        {{1000, 40, 0, 0, 0, 0, 1000}, 99},
        {{1000, 41, 0, 0, 0, 0, 1000}, 98},
        {{1000, 680, -1, 0, 0, 0, 1000}, 80},
        {{1000, 0, 0, 0, 0, 1, 3}, 95},
        {{1000, 0, 0, 0, 0, INT64_MAX, 1}, 85},
        {{1000, 0, 0, 0, 0, 1, INT64_MAX}, 99},
        {{1000, 9000, 0, -5, 0, -7, 1000}, 75},
        {{1000, 0, 0, 0, 0, 0, 0}, 100}, /* without a target no latency is fine, */
        {{1000, 0, 0, 0, 0, 1, 0}, 85},  /* and any is too long */
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_int_equal(node_score(&rows[i].in), rows[i].score);
}

/* Random percentages, compared with plain integer arithmetic. */
static void test_score_of_fractions_is_exact(void **state)
{
    struct rnd rnd;

    rnd_seed(&rnd, 2);
    for (int i = 0; i < 100000; i++) {
        struct node_figures in = {.scale = 100,
                                  .cpu = rnd_below(&rnd, 101),
                                  .gpu = rnd_below(&rnd, 101),
                                  .mem = rnd_below(&rnd, 101),
                                  .fail = rnd_below(&rnd, 101),
                                  .p95 = rnd_below(&rnd, 101),
                                  .target = 100};
        int64_t lost = 25 * in.cpu + 20 * in.mem + 25 * in.fail + 15 * in.p95;

        assert_int_equal(node_score(&in), (10000 - lost - 15 * in.gpu) / 100);
        in.gpu = -1;
        assert_int_equal(node_score(&in), (8500 - lost) / 85);
    }
}

static void test_closing(void **state)
{
    assert_true(node_close_evicts(2, 2));
    assert_false(node_close_evicts(2, 1));
    assert_false(node_close_evicts(1, 2));
}

/* --- node rules --- */

/* Which rule applies to a node id. */

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
    assert_non_null(node_rules_get(&rules, STR("gpu-9"), "labels"));
    assert_null(node_rules_get(&rules, STR("gpu-9"), "allowed_types"));
    assert_null(node_rules_get(&none, STR("gpu-9"), "labels"));
    arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_health_names),
        cmocka_unit_test(test_a_registration_counts_with_the_default_rules),
        cmocka_unit_test(test_good_ones_in_a_row),
        cmocka_unit_test(test_back_from_silence_is_a_new_registration),
        cmocka_unit_test(test_ready_never_counts_bad_ones_that_are_not_in_a_row),
        cmocka_unit_test(test_effective),
        cmocka_unit_test(test_nobody_is_made_ready),
        cmocka_unit_test(test_score_rows),
        cmocka_unit_test(test_score_of_fractions_is_exact),
        cmocka_unit_test(test_closing),
        cmocka_unit_test(patterns),
        cmocka_unit_test(the_first_row_counts),
    };

    return cmocka_run_group_tests_name("node", tests, NULL, NULL);
}
