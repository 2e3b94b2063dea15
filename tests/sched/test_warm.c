/* `prefers`: which node gets a job, and how many loads it saves (a shorter run of bench_warm's
 * simulation). */
#include "rig.h"

#include "base/metrics.h"
#include "sched/candidates.h"
#include "sched/explain.h"
#include "sched/node_sync.h"
#include "sched/warm_index.h"
#include "warm_sim.h"

#include <stdio.h>

static void register_node(struct rig *rig, const char *id, int max, const char *loaded)
{
    char text[256];

    snprintf(text, sizeof text,
             "{\"node_id\":\"%s\",\"max_concurrent_jobs\":%d,\"allowed_types\":[\"*\"],"
             "\"semantic_langs\":[\"en\"],\"nmt_pairs\":[[\"en\",\"zh\"]],\"loaded\":%s}",
             id, max, loaded);
    assert_int_equal(rig_register(rig, text), ERR_OK);
}

static const char *place(struct rig *rig, const char *json)
{
    return rig_last_sent(rig, rig_place(rig, json))->node;
}

#define WISH "{\"type\":\"dev\",\"prefers\":[\"whisper-v3\"]}"

/* One of ten by chance; the warm one every time. */
static void test_a_warm_node_is_first(void **state)
{
    struct rig *rig = *state;

    for (int i = 0; i < 10; i++) {
        char id[8];

        snprintf(id, sizeof id, "n%d", i);
        register_node(rig, id, 4, i == 7 ? "[\"llama\",\"whisper-v3\"]" : "[\"llama\"]");
    }
    assert_string_equal(place(rig, WISH), "n7");
    assert_int_equal(metric_value(METRIC_DISPATCH_WARM, "warm"), 1);
    /* The warm node is fuller than the idle ones now, so a cold one is chosen. */
    assert_string_not_equal(place(rig, WISH), "n7");
    assert_int_equal(metric_value(METRIC_DISPATCH_WARM, "warm"), 1);
    assert_int_equal(metric_value(METRIC_DISPATCH_WARM, "cold"), 1);
    assert_non_null(place(rig, "{\"type\":\"dev\"}")); /* without a preference it is not counted */
    assert_int_equal(metric_value(METRIC_DISPATCH_WARM, NULL), 2);
}

static void test_face_to_face_prefers_too(void **state)
{
    struct rig *rig = *state;
    struct dispatch *dispatch;

    register_node(rig, "n1", 4, "[]");
    register_node(rig, "n2", 4, "[\"whisper-v3\"]");
    register_node(rig, "n3", 4, "[]");
    dispatch = rig_f2f(rig, "{\"session_id\":\"s\",\"src_lang\":\"en\",\"tgt_lang\":\"zh\","
                            "\"prefers\":[\"whisper-v3\"]}");
    assert_int_equal(rig_run(rig, dispatch), ERR_OK);
    assert_string_equal(rig_last_sent(rig, dispatch->job)->node, "n2");
}

/* A heartbeat can change what is loaded, without a change of the node or a new snapshot. */
static void test_a_heartbeat_changes_what_is_loaded(void **state)
{
    struct rig *rig = *state;

    register_node(rig, "n1", 4, "[]");
    register_node(rig, "n2", 4, "[\"whisper-v3\"]");
    int64_t version = rig_loop(rig, 0)->snapshot->version;
    size_t puts = rig->calls[STORE_NODE_PUT];
    assert_int_equal(rig_beat(rig, "{\"node_id\":\"n1\",\"loaded\":[\"whisper-v3\"]}"), BEAT_TAKEN);
    assert_int_equal(rig_beat(rig, "{\"node_id\":\"n2\",\"loaded\":[]}"), BEAT_TAKEN);
    assert_int_equal(rig_loop(rig, 0)->snapshot->version, version);
    assert_int_equal(rig->calls[STORE_NODE_PUT], puts);
    assert_string_equal(place(rig, WISH), "n1");
    /* A heartbeat without `loaded` changes nothing. */
    assert_int_equal(rig_beat(rig, "{\"node_id\":\"n1\"}"), BEAT_TAKEN);
    uint32_t mark = warm_mark(STR("whisper-v3"));
    assert_int_equal(warm_index_has(rig_node(rig, "n1"), &mark, 1), 1);
    assert_int_equal(warm_index_has(rig_node(rig, "n2"), &mark, 1), 0);
}

/* A preference is not a requirement: the only node with room gets the job. */
static void test_nobody_waits_for_a_warm_node(void **state)
{
    struct rig *rig = *state;

    register_node(rig, "warm", 1, "[\"whisper-v3\"]");
    register_node(rig, "cold", 1, "[]");
    assert_string_equal(place(rig, WISH), "warm");
    assert_string_equal(place(rig, WISH), "cold");
}

/* A sample of 20 out of 300 nodes would usually miss the warm one. */
static void test_the_one_warm_node_of_many_is_found(void **state)
{
    enum { NODES = 300 };
    struct rig *rig = *state;

    for (int i = 0; i < NODES; i++) {
        char id[8];

        snprintf(id, sizeof id, "n%d", i);
        register_node(rig, id, 4, i == 123 ? "[\"whisper-v3\"]" : "[]");
    }
    for (int i = 0; i < 20; i++) {
        struct dispatch *dispatch = rig_task(rig, WISH);
        uint64_t looked = rig_loop(rig, 0)->looked;

        candidates_choose(dispatch, candidates_pool(dispatch));
        assert_true(str_is(((struct node *)dispatch->list[0].node)->id, "n123"));
        assert_int_equal(dispatch->list[0].warm, 1);
        assert_true(rig_loop(rig, 0)->looked - looked <= 21); /* not all members were looked at */
        for (size_t a = 0; a < dispatch->count; a++)
            for (size_t b = 0; b < a; b++)
                assert_ptr_not_equal(dispatch->list[a].node, dispatch->list[b].node);
    }
}

/* Also when a selector makes dispatch look at all members, and more fit than are kept. */
static void test_the_one_warm_node_survives_a_scan(void **state)
{
    enum { NODES = 300 };
    struct rig *rig = *state;

    for (int i = 0; i < NODES; i++) {
        char id[8];

        snprintf(id, sizeof id, "n%d", i);
        register_node(rig, id, 4, i == 123 ? "[\"whisper-v3\"]" : "[]");
    }
    for (int i = 0; i < 20; i++) {
        struct dispatch *dispatch = rig_task(
            rig, "{\"type\":\"dev\",\"prefers\":[\"whisper-v3\"],\"requires\":\"name != x\"}");

        candidates_choose(dispatch, candidates_pool(dispatch));
        assert_int_equal(dispatch->count, rig->config.sample_k);
        assert_true(str_is(((struct node *)dispatch->list[0].node)->id, "n123"));
        for (size_t a = 0; a < dispatch->count; a++)
            for (size_t b = 0; b < a; b++)
                assert_ptr_not_equal(dispatch->list[a].node, dispatch->list[b].node);
    }
}

static const struct node *first_of_many(struct rig *rig, int running_warm)
{
    enum { NODES = 100, WARM = 12 };
    static uint64_t order = 1u << 20;
    struct dispatch *dispatch;

    for (int i = 0; i < NODES; i++) {
        struct lease_node counts = {
            .health = NODE_READY, .max = 8, .running = i < WARM ? running_warm : 4};
        char id[8];

        snprintf(id, sizeof id, "n%03d", i);
        if (!rig_node(rig, id))
            register_node(rig, id, 8, i < WARM ? "[\"whisper-v3\"]" : "[]");
        counts_take((struct node *)rig_node(rig, id), &counts, NULL, ++order, false);
    }
    dispatch = rig_task(rig, WISH);
    candidates_choose(dispatch, candidates_pool(dispatch));
    return dispatch->list[0].node;
}

/* Half of the candidates are warm, and fuller than the rest: they are compared with the whole
 * fleet. */
static void test_warm_nodes_are_compared_with_the_fleet(void **state)
{
    struct rig *rig = *state;
    uint32_t mark = warm_mark(STR("whisper-v3"));

    for (int i = 0; i < 20; i++) {
        assert_int_equal(warm_index_has(first_of_many(rig, 6), &mark, 1), 1); /* half fuller */
        assert_int_equal(warm_index_has(first_of_many(rig, 7), &mark, 1), 0); /* more than that */
    }
}

/* A dry run compares with all members, though it keeps only the best candidates. */
static void test_a_dry_run_over_many_nodes(void **state)
{
    enum { NODES = 200 };
    struct rig *rig = *state;
    struct dispatch *dispatch;

    for (int i = 0; i < NODES; i++) {
        struct lease_node counts = {.health = NODE_READY, .max = 8, .running = i % 5 ? 6 : 0};
        char id[8];

        snprintf(id, sizeof id, "n%03d", i);
        register_node(rig, id, 8, i == 3 ? "[\"whisper-v3\"]" : "[]");
        counts_take((struct node *)rig_node(rig, id), &counts, NULL, 1u << 20, false);
    }
    dispatch = rig_task(rig, WISH);
    dispatch->done = NULL;
    explain_now(dispatch, NULL, 0, NODES);
    assert_int_equal(dispatch->err, ERR_OK);
    /* 6 of 8 slots in use, about as many as on all others. */
    assert_true(str_is(dispatch->node->id, "n003"));
}

/* A node that left is not found by what it had loaded; its number may belong to another node by
 * then. */
static void test_who_left_is_not_warm(void **state)
{
    enum { NODES = 40 };
    struct rig *rig = *state;
    struct dispatch *dispatch;

    for (int i = 0; i < NODES; i++) {
        char id[8];

        snprintf(id, sizeof id, "n%d", i);
        register_node(rig, id, 4, i == 5 ? "[\"whisper-v3\"]" : "[]");
    }
    assert_int_equal(rig_drop(rig, "n5"), ERR_OK);
    dispatch = rig_task(rig, WISH);
    candidates_choose(dispatch, candidates_pool(dispatch));
    assert_true(dispatch->count > 0);
    for (size_t i = 0; i < dispatch->count; i++)
        assert_int_equal(dispatch->list[i].warm, 0);
}

/* Other instances learn what is loaded, also that nothing is. */
static void test_other_instances_hear_of_it(void **state)
{
    struct rig *rig = *state;
    uint32_t mark = warm_mark(STR("whisper-v3"));
    static const struct {
        const char *text;
        int has;
    } rows[] = {
        {"n1 -1 -1 -1 -1 \nn1 loaded [\"llama\",\"whisper-v3\"]", 1},
        {"n1 0 1 2 3 {\"cpu_cores\":4}", 1}, /* no `loaded` in it */
        {"n1 loaded 7", 1},                  /* not a list: unchanged */
        {"n1 0 1 2 3 {\"cpu_cores\":4}\nn1 loaded []", 0},
    };

    register_node(rig, "n1", 4, "[]");
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        node_sync_seen(keeper_view(rig->sched.keeper), str_of(rows[i].text));
        assert_int_equal(warm_index_has(rig_node(rig, "n1"), &mark, 1), rows[i].has);
    }
}

/* At most a third of the cold loads remain, no job waits longer, and no node is overfilled for its
 * models. */
static void test_a_third_of_the_cold_loads(void **state)
{
    static const int slots[] = {1, 2, 4, 8};

    for (size_t i = 0; i < COUNT_OF(slots); i++) {
        struct warm_sim sim = {.seed = 1,
                               .nodes = 20,
                               .slots = slots[i],
                               .models = 40,
                               .room = 4,
                               .jobs = 4000,
                               .load = 0.6,
                               .load_cost = 20};
        struct warm_sim_result alone = warm_sim_run(&sim), warm;

        sim.prefers = true;
        warm = warm_sim_run(&sim);
        assert_true(alone.cold > sim.jobs / 2);
        assert_true(alone.use > 0.5 && alone.use < 0.7);
        assert_true(warm.cold * 3 <= alone.cold);
        assert_true(warm.wait_p99 <= alone.wait_p99 * 1.1);
        assert_true(warm.start_p99 <= alone.start_p99 * 1.1);
        assert_int_equal(warm.fuller, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_warm_node_is_first, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_face_to_face_prefers_too, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_a_heartbeat_changes_what_is_loaded, rig_setup,
                                        rig_teardown),
        cmocka_unit_test_setup_teardown(test_nobody_waits_for_a_warm_node, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_the_one_warm_node_of_many_is_found, rig_setup,
                                        rig_teardown),
        cmocka_unit_test_setup_teardown(test_the_one_warm_node_survives_a_scan, rig_setup,
                                        rig_teardown),
        cmocka_unit_test_setup_teardown(test_warm_nodes_are_compared_with_the_fleet, rig_setup,
                                        rig_teardown),
        cmocka_unit_test_setup_teardown(test_a_dry_run_over_many_nodes, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_who_left_is_not_warm, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_other_instances_hear_of_it, rig_setup, rig_teardown),
        cmocka_unit_test(test_a_third_of_the_cold_loads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
