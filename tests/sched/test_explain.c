/* Why a job went where it did: every node has exactly one reason, memory is bounded, and asking
 * changes nothing. */
#include "rig.h"

#include "sched/explain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TALK "{\"src_lang\":\"en\",\"tgt_lang\":\"zh\"}"
#define TASK "{\"type\":\"t\"}"

static void on_found(struct explain_ask *ask)
{
    ask->from = NULL;
}

/* Everything the loops have about a job; the caller frees it. */
static struct buf found(struct rig *rig, uint64_t job)
{
    struct explain_ask ask = {.from = rig_loop(rig, 1), .job = job, .done = on_found};

    explain_find(&ask);
    rig_quiet(rig);
    assert_null(ask.from);
    return ask.found;
}

static uint32_t sum(const struct explain *explain)
{
    uint32_t all = 0;

    for (int i = 0; i < EXPLAIN_COUNT; i++)
        all += explain->counts[i];
    return all;
}

/* The counts match the list, and no node is listed twice. */
static void check(const struct explain *explain)
{
    uint32_t listed[EXPLAIN_COUNT] = {0};

    assert_int_equal(sum(explain), explain->nodes);
    for (uint32_t i = 0; i < explain->node_count; i++) {
        listed[explain->list[i].look.why]++;
        for (uint32_t j = 0; j < i; j++)
            assert_true(explain->list[i].look.hash != explain->list[j].look.hash);
    }
    for (int i = 0; i < EXPLAIN_COUNT; i++)
        assert_true(listed[i] <= explain->counts[i]);
}

static const struct explain_node *of(const struct explain *explain, const char *id)
{
    for (uint32_t i = 0; i < explain->node_count; i++)
        if (explain->list[i].look.hash == str_hash(str_of(id)))
            return &explain->list[i];
    fail_msg("%s is not in the explanation", id);
    return NULL;
}

static const char *why_of(const struct explain *explain, const char *id)
{
    return explain_why_name(of(explain, id)->look.why);
}

/* A node of each kind. */
static void fleet(struct rig *rig)
{
    rig_worker(rig, "idle", 4);
    rig_worker(rig, "none", 0);
    rig_worker(rig, "drained", 2);
    rig_admin(rig, "drained", NODE_ADMIN_DRAINING);
    rig_worker(rig, "hot", 2);
    rig_beat(rig, "{\"node_id\":\"hot\",\"level\":\"danger\"}");
    rig_worker(rig, "deaf", 2);
    rig->unreachable = STR("deaf");
    rig_register(rig, "{\"node_id\":\"other\",\"allowed_types\":[\"u\"]}");
}

static void a_placed_job(void **state)
{
    struct rig *rig = *state;
    struct dispatch *dispatch;
    size_t at = 0;

    fleet(rig);
    rig->unreachable = STR_NONE;
    dispatch = rig_task(rig, TASK);
    assert_int_equal(rig_run(rig, dispatch), ERR_OK);
    struct buf all = found(rig, dispatch->job);
    const struct explain *explain = explain_next(&all, &at);
    assert_non_null(explain);
    assert_null(explain_next(&all, &at));
    check(explain);
    assert_int_equal(explain->nodes, 6);
    assert_int_equal(explain->members, 5);
    assert_int_equal(explain->version, rig_loop(rig, 0)->snapshot->version);
    assert_string_equal(why_of(explain, dispatch->head.node), "CHOSEN");
    assert_string_equal(why_of(explain, "drained"), "NOT_READY");
    assert_string_equal(why_of(explain, "hot"), "LEVEL");
    assert_int_equal(of(explain, "hot")->look.level, 2);
    assert_int_equal(explain->counts[EXPLAIN_NOT_CAPABLE], 1);
    buf_free(&all);
}

static void a_refused_job(void **state)
{
    struct rig *rig = *state;
    struct dispatch *dispatch;
    size_t at = 0;

    fleet(rig);
    for (int i = 0; i < 4; i++)
        rig_place(rig, TASK); /* fills "idle"; each send to "deaf" fails */
    dispatch = rig_task(rig, TASK);
    assert_int_equal(rig_run(rig, dispatch), ERR_ALL_FULL);
    struct buf all = found(rig, dispatch->job);
    const struct explain *explain = explain_next(&all, &at);
    check(explain);
    assert_int_equal(explain->err, ERR_ALL_FULL);
    assert_string_equal(why_of(explain, "idle"), "FULL");
    assert_string_equal(why_of(explain, "none"), "NO_CAPACITY");
    assert_string_equal(why_of(explain, "deaf"), "SEND_FAILED");
    assert_int_equal(of(explain, "idle")->look.load, 4);
    assert_int_equal(of(explain, "idle")->look.max, 4);
    /* The names of nodes stay after the nodes have left. */
    rig_drop(rig, "idle");
    const struct explain_node *idle = of(explain, "idle");
    assert_str(explain_text(explain, idle->name), "idle");
    assert_str(explain_text(explain, explain->tgt), "t");
    buf_free(&all);
}

static void nobody_can(void **state)
{
    struct rig *rig = *state;
    struct dispatch *dispatch;
    size_t at = 0;

    fleet(rig);
    dispatch = rig_task(rig, "{\"type\":\"unheard\"}");
    rig_drop(rig, "idle");
    assert_int_equal(rig_run(rig, rig_f2f(rig, "{\"src_lang\":\"fr\",\"tgt_lang\":\"zh\"}")),
                     ERR_NO_CAPABLE_NODE);
    dispatch = rig_f2f(rig, "{\"src_lang\":\"fr\",\"tgt_lang\":\"zh\"}");
    assert_int_equal(rig_run(rig, dispatch), ERR_NO_CAPABLE_NODE);
    struct buf all = found(rig, dispatch->job);
    const struct explain *explain = explain_next(&all, &at);
    check(explain);
    assert_int_equal(explain->counts[EXPLAIN_NOT_CAPABLE], explain->nodes);
    buf_free(&all);
}

static void a_preferred_node(void **state)
{
    static const struct {
        const char *node;
        bool strict;
        const char *preferred, *idle, *other;
    } rows[] = {
        {"idle", false, "CHOSEN", "CHOSEN", "NOT_PREFERRED"},
        {"none", false, "NO_CAPACITY", "CHOSEN", NULL},
        {"none", true, "NO_CAPACITY", "NOT_PREFERRED", "NOT_PREFERRED"},
        {"drained", false, "NOT_READY", "CHOSEN", NULL},
        {"other", false, NULL, "NOT_PREFERRED", "NOT_PREFERRED"},
    };
    struct rig *rig = *state;

    rig_worker(rig, "idle", 100);
    rig_worker(rig, "none", 0);
    rig_worker(rig, "drained", 2);
    rig_admin(rig, "drained", NODE_ADMIN_DRAINING);
    rig_register(rig, "{\"node_id\":\"other\",\"allowed_types\":[\"u\"]}");
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char json[256];
        size_t at = 0;

        snprintf(json, sizeof json,
                 "{\"src_lang\":\"en\",\"tgt_lang\":\"zh\",\"options\":{\"preferred_node_id\":"
                 "\"%s\",\"strict\":%s}}",
                 rows[i].node, rows[i].strict ? "true" : "false");
        struct dispatch *dispatch = rig_f2f(rig, json);
        rig_run(rig, dispatch);
        struct buf all = found(rig, dispatch->job);
        const struct explain *explain = explain_next(&all, &at);
        check(explain);
        if (rows[i].preferred)
            assert_string_equal(why_of(explain, rows[i].node), rows[i].preferred);
        if (strcmp(rows[i].idle, "NOT_PREFERRED") == 0)
            assert_true(explain->counts[EXPLAIN_NOT_PREFERRED] > 0);
        else
            assert_string_equal(why_of(explain, "idle"), rows[i].idle);
        buf_free(&all);
        /* A dry run gives the same reasons. */
        struct dispatch *again = rig_f2f(rig, json);
        again->done = NULL;
        const struct explain *now = explain_now(again, NULL, 0, 100);
        check(now);
        assert_int_equal(now->err, dispatch->err);
        if (!now->err)
            assert_str(again->node->id, dispatch->head.node);
    }
}

static void of_a_large_pool_a_sample_is_seen(void **state)
{
    struct rig *rig = *state;
    size_t at = 0;

    for (int i = 0; i < 60; i++) {
        char id[16];

        snprintf(id, sizeof id, "n%d", i);
        rig_worker(rig, id, 1);
    }
    struct dispatch *dispatch = rig_f2f(rig, TALK);
    assert_int_equal(rig_run(rig, dispatch), ERR_OK);
    struct buf all = found(rig, dispatch->job);
    const struct explain *explain = explain_next(&all, &at);
    check(explain);
    assert_int_equal(explain->counts[EXPLAIN_CHOSEN], 1);
    assert_int_equal(explain->counts[EXPLAIN_BEHIND], 19);
    assert_int_equal(explain->counts[EXPLAIN_NOT_SAMPLED], 40);
    buf_free(&all);
    /* A dry run judges all members, but lists only so many. */
    dispatch = rig_f2f(rig, TALK);
    dispatch->done = NULL;
    explain = explain_now(dispatch, NULL, 0, 7);
    check(explain);
    assert_int_equal(explain->node_count, 7);
    assert_int_equal(explain->list[0].look.why, EXPLAIN_CHOSEN);
    assert_int_equal(explain->counts[EXPLAIN_BEHIND], 58);
    assert_int_equal(explain->counts[WHY_FULL], 1);
}

static void a_retry_leaves_one_record_each(void **state)
{
    struct rig *rig = *state;
    const struct explain *explain;
    size_t at = 0, count = 0;

    rig_worker(rig, "a", 4);
    rig_worker(rig, "b", 4);
    uint64_t job = rig_place(rig, "{\"type\":\"t\",\"max_attempts\":2}");
    char first[NODE_ID_MAX + 1];
    strcpy(first, rig_job(rig, job).node);
    rig_settle(rig, SETTLE_ACK, job, 1, first, NULL);
    rig_settle(rig, SETTLE_FAIL, job, 1, first, "EXIT_1");
    struct buf all = found(rig, job);
    while ((explain = explain_next(&all, &at))) {
        check(explain);
        count++;
        if (explain->attempt == 2)
            assert_string_equal(why_of(explain, first), "TRIED_BEFORE");
    }
    assert_int_equal(count, 2);
    buf_free(&all);
}

static void what_waits_is_written_now_and_then(void **state)
{
    struct rig *rig = *state;
    const struct explain *explain;
    size_t at = 0, count = 0;

    rig_worker(rig, "none", 0);
    uint64_t job = rig_wait_in_queue(rig, "{\"type\":\"t\",\"queue_ms\":600000}");
    for (int i = 0; i < 250; i++) {
        rig_tick(rig, 100);
        rig_beat(rig, "{\"node_id\":\"none\"}");
    }
    struct buf all = found(rig, job);
    while ((explain = explain_next(&all, &at))) {
        check(explain);
        assert_true(explain->waits);
        count++;
    }
    assert_in_range(count, 2, 4); /* of some 250 tries in 25 s */
    buf_free(&all);
}

/* Thousands of placed jobs push out one another, but no refused one, and memory does not grow. */
static void what_is_placed_pushes_out_nothing_else(void **state)
{
    struct rig *rig = *state;
    size_t at = 0;
    uint64_t first = 0, last = 0;

    rig_worker(rig, "none", 0);
    struct dispatch *refused = rig_task(rig, TASK);
    assert_int_equal(rig_run(rig, refused), ERR_ALL_FULL);
    rig_worker(rig, "big", 100000);
    for (int i = 0; i < 3000; i++) {
        last = rig_place(rig, TASK);
        first = first ? first : last;
        if (rig->sent_count > RIG_SENDS / 2)
            rig->sent_count = 0;
        rig->note_count = 0;
    }
    struct buf all = found(rig, refused->job);
    assert_non_null(explain_next(&all, &at));
    buf_free(&all);
    all = found(rig, first);
    assert_int_equal(all.len, 0);
    buf_free(&all);
    all = found(rig, last);
    assert_true(all.len > 0);
    buf_free(&all);
}

/* A dry run reserves nothing, sends nothing and notifies nobody. */
static void asking_changes_nothing(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 1);
    size_t sent = rig->sent_count, notes = rig->note_count;
    size_t reserves = rig->calls[STORE_RESERVE];
    struct dispatch *dispatch = rig_task(rig, TASK);
    dispatch->done = NULL;
    const struct explain *now = explain_now(dispatch, NULL, 0, 100);
    rig_quiet(rig);
    assert_int_equal(now->err, ERR_OK);
    assert_str(dispatch->node->id, "n1");
    assert_int_equal(rig->sent_count, sent);
    assert_int_equal(rig->note_count, notes);
    assert_int_equal(rig->calls[STORE_RESERVE], reserves);
    assert_int_equal(atomic_load(&rig_node(rig, "n1")->pending), 0);
    assert_int_equal(rig_job(rig, dispatch->job).id, 0);
    /* A dry run respects a breaker that the store reported. */
    struct store_breaker shut = {
        .node = STR("n1"), .type = STR("t"), .breaker = {.state = BREAKER_OPEN, .failures = 3}};
    dispatch = rig_task(rig, TASK);
    dispatch->done = NULL;
    now = explain_now(dispatch, &shut, 1, 100);
    assert_int_equal(now->err, ERR_OK); /* the last node of a pool still gets one job at a time */
    assert_string_equal(why_of(now, "n1"), "CHOSEN");
    shut.breaker.state = BREAKER_HALF_OPEN;
    shut.breaker.probe_until_ms = INT64_MAX;
    dispatch = rig_task(rig, TASK);
    dispatch->done = NULL;
    now = explain_now(dispatch, &shut, 1, 100);
    assert_int_equal(now->err, ERR_ALL_FULL);
    assert_string_equal(why_of(now, "n1"), "BREAKER_OPEN");
    assert_non_null(strstr(dispatch->why.detail, "keeps failing"));
}

/* For a job that was refused or removed, only the explain record knows its namespace. */
static void whose_it_was(void **state)
{
    static const struct {
        const char *json, *owner;
        bool f2f;
    } rows[] = {
        {TASK, "default", false},
        {"{\"type\":\"maps/t\"}", "maps", false},
        {"{\"type\":\"maps/nobody\"}", "maps", false},
        {"{\"type\":\"nobody\"}", "default", false},
        {TALK, "default", true},
    };
    static const char *const spaces[] = {"default", "maps", "ml"};
    struct rig *rig = *state;

    rig_worker(rig, "n1", 10);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct dispatch *dispatch = (rows[i].f2f ? rig_f2f : rig_task)(rig, rows[i].json);

        rig_run(rig, dispatch);
        for (size_t s = 0; s < COUNT_OF(spaces); s++) {
            struct buf all = found(rig, dispatch->job);
            size_t len = all.len;

            assert_true(len > 0);
            explain_keep(&all, STR_NONE);
            assert_int_equal(all.len, len);
            explain_keep(&all, str_of(spaces[s]));
            assert_int_equal(all.len, strcmp(spaces[s], rows[i].owner) == 0 ? len : 0);
            buf_free(&all);
        }
    }
}

/* A node that is reserved for another namespace has a reason of its own. */
static void kept_for_others(void **state)
{
    struct rig *rig = *state;
    struct node_rule rule = {.pattern = STR("gpu-*")};
    struct arena arena = {0};
    struct problem why;
    size_t at = 0;

    assert_int_equal(json_parse(STR("{\"namespaces\":[\"maps\"]}"), &arena, &rule.facts, &why),
                     ERR_OK);
    rig->sched.config.node_rules =
        (struct node_rules){.rows = &rule, .count = 1, .namespaces = true};
    rig_worker(rig, "gpu-1", 4);
    struct dispatch *dispatch = rig_task(rig, TASK);
    assert_int_equal(rig_run(rig, dispatch), ERR_NO_CAPABLE_NODE);
    struct buf all = found(rig, dispatch->job);
    check(explain_next(&all, &at));
    assert_string_equal(why_of((const struct explain *)all.at, "gpu-1"), "NAMESPACE");
    buf_free(&all);
    dispatch = rig_task(rig, "{\"type\":\"maps/t\"}");
    assert_int_equal(rig_run(rig, dispatch), ERR_OK);
    assert_string_equal(dispatch->head.node, "gpu-1");
    rig_worker(rig, "all", 4);
    dispatch = rig_task(rig, TASK);
    assert_int_equal(rig_run(rig, dispatch), ERR_OK);
    assert_string_equal(dispatch->head.node, "all");
    rig->sched.config.node_rules = (struct node_rules){0};
    arena_free(&arena);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_placed_job),
        TEST(a_refused_job),
        TEST(nobody_can),
        TEST(a_preferred_node),
        TEST(of_a_large_pool_a_sample_is_seen),
        TEST(a_retry_leaves_one_record_each),
        TEST(what_waits_is_written_now_and_then),
        TEST(what_is_placed_pushes_out_nothing_else),
        TEST(asking_changes_nothing),
        TEST(whose_it_was),
        TEST(kept_for_others),
    };

    return cmocka_run_group_tests_name("sched/explain", tests, NULL, NULL);
}
