/* What nodes report: registrations, heartbeats that leave fields out, what counts as a change, bad
 * input. */
#include "rig.h"

#include "store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct desk_of {
    struct arena arena;
    struct node node;
};

static int setup(void **state)
{
    *state = calloc(1, sizeof(struct desk_of));
    return 0;
}

static int teardown(void **state)
{
    struct desk_of *own = *state;

    arena_free(&own->arena);
    free(own);
    return 0;
}

static enum err read(struct desk_of *own, const char *json, struct node_report *report,
                     struct problem *why)
{
    const struct json *root;

    *why = (struct problem){0};
    if (json_parse(str_of(json), &own->arena, &root, why))
        fail_msg("%s: %s", json, why->detail);
    return node_report_read(root, STR_NONE, NULL, &own->arena, report, why);
}

static struct node_report must_read(struct desk_of *own, const char *json)
{
    struct node_report report = {0};
    struct problem why;

    if (read(own, json, &report, &why))
        fail_msg("%s: %s", json, why.detail);
    return report;
}

static struct facts *make(struct desk_of *own, const char *json, const struct facts *before)
{
    struct node_report report = must_read(own, json);
    struct facts *facts = NULL;
    struct problem why = {0};

    if (node_report_facts(&report, before, &facts, &why))
        fail_msg("%s: %s", json, why.detail);
    return facts;
}

/* The first error in any part of a heartbeat. */
static enum err refuse(struct desk_of *own, const char *json, struct problem *why)
{
    struct node_report report;
    struct node_report_load load;
    struct facts *facts;
    struct store_run *runs;
    size_t count;
    enum err err = read(own, json, &report, why);

    if (!err)
        err = node_report_load(&report, &load, why);
    if (!err)
        err = node_report_runs(&report, &own->arena, &runs, &count, why);
    if (!err)
        err = node_report_facts(&report, NULL, &facts, why);
    if (!err)
        facts_unref(facts);
    return err;
}

static void bad_input_names_its_field(void **state)
{
    static const struct {
        const char *json;
        const char *field;
    } rows[] = {
        {"{}", "node_id"},
        {"{\"node_id\":\"\"}", "node_id"},
        {"{\"node_id\":\"a b\"}", "node_id"},
        {"{\"node_id\":\"a/b\"}", "node_id"},
        {"{\"node_id\":\"a\\nb\"}", "node_id"},
        {"{\"node_id\":5}", "node_id"},
        {"{\"node_id\":\"n\",\"health\":\"fine\"}", "health"},
        {"{\"node_id\":\"n\",\"health\":\"unknown\"}", "health"},
        {"{\"node_id\":\"n\",\"health\":\"registering\"}", "health"},
        {"{\"node_id\":\"n\",\"health\":2}", "health"},
        {"{\"node_id\":\"n\",\"semantic_langs\":\"en\"}", "semantic_langs"},
        {"{\"node_id\":\"n\",\"semantic_langs\":[1]}", "semantic_langs"},
        {"{\"node_id\":\"n\",\"semantic_langs\":[\"e n\"]}", "semantic_langs"},
        {"{\"node_id\":\"n\",\"semantic_langs\":[\"type\"]}", "semantic_langs"},
        {"{\"node_id\":\"n\",\"nmt_pairs\":\"all\"}", "nmt_pairs"},
        {"{\"node_id\":\"n\",\"nmt_pairs\":[[\"en\"]]}", "nmt_pairs"},
        {"{\"node_id\":\"n\",\"nmt_pairs\":[[\"en\",\"zh\",\"fr\"]]}", "nmt_pairs"},
        {"{\"node_id\":\"n\",\"nmt_pairs\":[[\"en\",5]]}", "nmt_pairs"},
        {"{\"node_id\":\"n\",\"nmt_pairs\":[\"en->zh\"]}", "nmt_pairs"},
        {"{\"node_id\":\"n\",\"tts_langs\":{}}", "tts_langs"},
        {"{\"node_id\":\"n\",\"allowed_types\":\"dev\"}", "allowed_types"},
        {"{\"node_id\":\"n\",\"allowed_types\":[\"a b\"]}", "allowed_types"},
        {"{\"node_id\":\"n\",\"allowed_types\":[\"\"]}", "allowed_types"},
        {"{\"node_id\":\"n\",\"allowed_types\":[null]}", "allowed_types"},
        {"{\"node_id\":\"n\",\"capability_by_type\":[]}", "capability_by_type"},
        {"{\"node_id\":\"n\",\"capability_by_type\":{\"asr\":1}}", "capability_by_type"},
        {"{\"node_id\":\"n\",\"labels\":[]}", "labels"},
        {"{\"node_id\":\"n\",\"labels\":{\"a\":1}}", "labels"},
        {"{\"node_id\":\"n\",\"max_concurrent_jobs\":-1}", "max_concurrent_jobs"},
        {"{\"node_id\":\"n\",\"max_concurrent_jobs\":1000001}", "max_concurrent_jobs"},
        {"{\"node_id\":\"n\",\"max_concurrent_jobs\":1.5}", "max_concurrent_jobs"},
        {"{\"node_id\":\"n\",\"max_concurrent_jobs\":\"4\"}", "max_concurrent_jobs"},
        {"{\"node_id\":\"n\",\"max\":-1}", "max"},
        {"{\"node_id\":\"n\",\"reserved_slots\":-1}", "reserved_slots"},
        {"{\"node_id\":\"n\",\"priority\":1001}", "priority"},
        {"{\"node_id\":\"n\",\"level\":\"hot\"}", "level"},
        {"{\"node_id\":\"n\",\"usage\":[]}", "usage"},
        {"{\"node_id\":\"n\",\"usage\":{\"mem_total_gb\":\"x\"}}", "mem_total_gb"},
        {"{\"node_id\":\"n\",\"usage\":{\"cpu_load\":1e300}}", "cpu_load"},
        {"{\"node_id\":\"n\",\"usage\":{\"cpu_pct\":-1}}", "cpu_pct"},
        {"{\"node_id\":\"n\",\"usage\":{\"slots_max\":9223372036854775807}}", "slots_max"},
        {"{\"node_id\":\"n\",\"usage\":{\"slots_max\":1.5}}", "slots_max"},
        {"{\"node_id\":\"n\",\"usage\":{\"tripped\":{}}}", "tripped"},
        {"{\"node_id\":\"n\",\"usage\":{\"clamps\":\"x\"}}", "clamps"},
        {"{\"node_id\":\"n\",\"usage\":{\"clamps\":[1]}}", "clamps"},
        {"{\"node_id\":\"n\",\"usage\":{\"clamps\":[{\"value\":\"x\"}]}}", "value"},
        {"{\"node_id\":\"n\",\"usage\":{\"clamps\":[{\"name\":{}}]}}", "name"},
        {"{\"node_id\":\"n\",\"current_load\":0.5}", "current_load"},
        {"{\"node_id\":\"n\",\"current_load\":{\"cpu\":\"high\"}}", "current_load"},
        {"{\"node_id\":\"n\",\"current_load\":{\"cpu\":-0.1}}", "current_load"},
        {"{\"node_id\":\"n\",\"running_jobs\":{}}", "running_jobs"},
        {"{\"node_id\":\"n\",\"running_jobs\":[\"j1\"]}", "running_jobs"},
        {"{\"node_id\":\"n\",\"running_jobs\":[{\"job_id\":\"x\",\"attempt_id\":1}]}",
         "running_jobs"},
        {"{\"node_id\":\"n\",\"running_jobs\":[{\"job_id\":\"j0000000000001\"}]}", "running_jobs"},
        {"{\"node_id\":\"n\",\"running_jobs\":[{\"job_id\":\"j0000000000001\",\"attempt_id\":0}]}",
         "running_jobs"},
        {"{\"node_id\":\"n\",\"running_jobs\":[{\"job_id\":\"j0000000000001\",\"attempt_id\":10}]}",
         "running_jobs"},
    };
    struct desk_of *own = *state;

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct problem why;

        if (refuse(own, rows[i].json, &why) != ERR_BAD_FIELD ||
            strcmp(why.field, rows[i].field) != 0 || !strstr(why.detail, rows[i].field))
            fail_msg("%s: field \"%s\", \"%s\"", rows[i].json, why.field, why.detail);
    }
}

static void lists_have_bounds(void **state)
{
    static const struct {
        const char *field;
        const char *item;
        int max;
    } rows[] = {
        {"semantic_langs", "\"l%d\"", NODE_REPORT_LANGS_MAX},
        {"tts_langs", "\"l%d\"", NODE_REPORT_LANGS_MAX},
        {"nmt_pairs", "[\"a\",\"l%d\"]", NODE_REPORT_PAIRS_MAX},
        {"allowed_types", "\"t%d\"", NODE_REPORT_TYPES_MAX},
        {"running_jobs", "{\"job_id\":\"j0000000000001\",\"attempt_id\":1}", NODE_REPORT_RUNS_MAX}};
    struct desk_of *own = *state;

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        for (int more = 0; more < 2; more++) {
            struct buf buf = {0};
            struct problem why;

            buf_fmt(&buf, "{\"node_id\":\"n\",\"%s\":[", rows[i].field);
            for (int item = 0; item < rows[i].max + more; item++) {
                char text[64];

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
                snprintf(text, sizeof text, rows[i].item, item);
#pragma GCC diagnostic pop
                buf_fmt(&buf, "%s%s", item ? "," : "", text);
            }
            buf_add(&buf, "]}", 3);
            assert_int_equal(refuse(own, buf.at, &why), more ? ERR_BAD_FIELD : ERR_OK);
            buf_free(&buf);
        }
}

static void what_is_absent_has_a_default(void **state)
{
    struct desk_of *own = *state;
    struct node_report report = must_read(own, "{\"node_id\":\"n\",\"unknown\":1,\"labels\":null}");
    struct facts *facts = make(own, "{\"node_id\":\"n\"}", NULL);

    assert_int_equal(report.health, NODE_HEALTH_NONE);
    assert_int_equal(report.level, -1);
    assert_false(report.registers);
    assert_int_equal(facts->max_concurrent_jobs, 4);
    assert_int_equal(facts->pool.type_count, 0);
    assert_int_equal(facts->reserved_slots, 0);
    assert_str(facts->labels, "{}");
    assert_null(facts->endpoint.at);
    facts_unref(facts);
    report = must_read(own, "{\"node_id\":\"n\",\"max_concurrent_jobs\":1}");
    assert_true(report.registers);
    report = must_read(own, "{\"node_id\":\"n\",\"semantic_langs\":[]}");
    assert_true(report.registers);
}

static void capabilities_follow_from_the_lists(void **state)
{
    static const struct {
        const char *rest;
        const char *caps; /* asr nmt tts tone semantic */
    } rows[] = {
        {"", "-----"},
        {",\"semantic_langs\":[\"en\"]", "----s"},
        {",\"nmt_pairs\":\"any\"", "-n---"},
        {",\"nmt_pairs\":[]", "-----"},
        {",\"tts_langs\":[\"en\"],\"capability_by_type\":{\"tts\":false,\"asr\":true}", "a----"},
        {",\"capability_by_type\":{\"tone\":true,\"nmt\":null}", "---o-"},
        {",\"capability_by_type\":{\"semantic\":true}", "----s"},
    };
    struct desk_of *own = *state;

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct str json = arena_fmt(&own->arena, "{\"node_id\":\"n\"%s}", rows[i].rest);
        struct facts *facts = make(own, json.at, NULL);
        const struct pool_facts *pool = &facts->pool;
        char got[] = {pool->asr ? 'a' : '-',  pool->nmt ? 'n' : '-',      pool->tts ? 't' : '-',
                      pool->tone ? 'o' : '-', pool->semantic ? 's' : '-', '\0'};

        if (strcmp(got, rows[i].caps) != 0)
            fail_msg("%s: %s", rows[i].rest, got);
        facts_unref(facts);
    }
}

#define WHOLE                                                                                      \
    "{\"node_id\":\"n\",\"health\":\"ready\",\"semantic_langs\":[\"EN\",\"zh-TW\"],"               \
    "\"nmt_pairs\":[[\"en\",\"zh\"]],\"tts_langs\":[\"zh\"],\"allowed_types\":[\"dev\",\"*\"],"    \
    "\"capability_by_type\":{\"asr\":true},\"labels\":{\"gpu\":\"yes\"},"                          \
    "\"max_concurrent_jobs\":7,\"endpoint\":\"http://127.0.0.1:9/x\",\"agent_version\":\"1.2\","   \
    "\"name\":\"us \\u4e2d\",\"role\":\"main\",\"reserved_slots\":2,\"priority\":5}"

static void assert_same_facts(const struct facts *a, const struct facts *b)
{
    if (!str_eq(a->json, b->json))
        fail_msg("\n" STR_FMT "\n" STR_FMT, STR_ARG(a->json), STR_ARG(b->json));
    assert_true(str_eq(a->endpoint, b->endpoint) && str_eq(a->name, b->name));
    assert_int_equal(a->max_concurrent_jobs, b->max_concurrent_jobs);
    assert_int_equal(a->reserved_slots, b->reserved_slots);
    assert_int_equal(a->priority, b->priority);
}

/* Facts read back from the store are the same, also after a second time. */
static void facts_survive_the_store(void **state)
{
    struct desk_of *own = *state;
    struct facts *facts = make(own, WHOLE, NULL), *again = NULL;
    struct problem why = {0};

    assert_str(facts->pool.semantic_langs[1], "zh-tw");
    assert_int_equal(node_report_stored(facts->json, NULL, &again, &why), ERR_OK);
    assert_same_facts(facts, again);
    facts_unref(again);
    facts_unref(facts);
    assert_int_equal(node_report_stored(STR("{\"node_id\":5}"), NULL, &again, &why), ERR_BAD_FIELD);
    assert_int_equal(node_report_stored(STR("not json"), NULL, &again, &why), ERR_BAD_JSON);
}

static void a_heartbeat_keeps_what_it_leaves_out(void **state)
{
    struct desk_of *own = *state;
    struct facts *before = make(own, WHOLE, NULL);
    struct facts *same = make(own, "{\"node_id\":\"n\"}", before);
    struct facts *less = make(own,
                              "{\"node_id\":\"n\",\"endpoint\":\"\",\"labels\":{},"
                              "\"allowed_types\":[],\"max_concurrent_jobs\":0}",
                              before);

    assert_same_facts(before, same);
    assert_true(same->pool.asr);
    assert_null(less->endpoint.at); /* an empty value removes it */
    assert_str(less->labels, "{}");
    assert_int_equal(less->pool.type_count, 0);
    assert_int_equal(less->max_concurrent_jobs, 0);
    assert_str(less->role, "main");
    facts_unref(less);
    facts_unref(same);
    /* New lists without capabilities derive the capabilities again. */
    struct facts *lists = make(own, "{\"node_id\":\"n\",\"tts_langs\":[]}", before);
    assert_false(lists->pool.tts);
    assert_false(lists->pool.asr);
    facts_unref(lists);
    facts_unref(before);
}

static bool news(struct desk_of *own, const char *json)
{
    struct node_report report = must_read(own, json);

    return node_report_is_news(&report, &own->node);
}

static void only_what_changed_is_news(void **state)
{
    struct desk_of *own = *state;
    struct node_report report = must_read(own, WHOLE);

    atomic_store(&own->node.own, NODE_READY);
    assert_true(node_report_is_news(&report, &own->node)); /* nothing is known yet */
    node_report_remember(&report, &own->node);
    assert_false(node_report_is_news(&report, &own->node));
    assert_false(news(own, "{\"node_id\":\"n\"}"));
    assert_false(news(own, "{\"node_id\":\"n\",\"health\":\"ready\",\"max_concurrent_jobs\":7}"));
    assert_false(news(own, "{\"node_id\":\"n\",\"current_load\":{\"cpu\":0.5},\"max\":3,"
                           "\"level\":\"warning\",\"usage\":{},\"running_jobs\":[]}"));
    assert_true(news(own, "{\"node_id\":\"n\",\"health\":\"draining\"}"));
    assert_true(news(own, "{\"node_id\":\"n\",\"max_concurrent_jobs\":8}"));
    assert_true(news(own, "{\"node_id\":\"n\",\"labels\":{\"gpu\":\"no\"}}"));
    assert_true(news(own, "{\"node_id\":\"n\",\"endpoint\":\"\"}"));
    assert_true(news(own, "{\"node_id\":\"n\",\"priority\":6}"));
    assert_true(news(own, "{\"node_id\":\"n\",\"reserved_slots\":0}"));
    assert_true(news(own, "{\"node_id\":\"n\",\"nmt_pairs\":\"any\"}"));
}

/* `asr: true` was sent, then a report with lists alone removed it: sending it again is a change. */
static void capabilities_said_again_are_news_once_they_were_lost(void **state)
{
    struct desk_of *own = *state;
    struct node_report report = must_read(own, WHOLE);

    atomic_store(&own->node.own, NODE_READY);
    node_report_remember(&report, &own->node);
    report = must_read(own, "{\"node_id\":\"n\",\"tts_langs\":[\"fr\"]}");
    node_report_remember(&report, &own->node);
    assert_true(news(own, "{\"node_id\":\"n\",\"capability_by_type\":{\"asr\":true}}"));
}

static void loads_are_shares(void **state)
{
    static const struct {
        const char *load;
        int32_t cpu, gpu, mem;
    } rows[] = {
        {"null", -1, -1, -1},
        {"{}", -1, -1, -1},
        {"{\"cpu\":0,\"gpu\":1,\"mem\":0.5}", 0, 1000, 500},
        {"{\"cpu\":0.0004,\"gpu\":null}", 0, -1, -1},
        {"{\"cpu\":0.9996}", 1000, -1, -1},
        {"{\"cpu\":3.5,\"mem\":1e2}", 1000, -1, 1000},
    };
    struct desk_of *own = *state;

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct str json =
            arena_fmt(&own->arena, "{\"node_id\":\"n\",\"current_load\":%s}", rows[i].load);
        struct node_report report = must_read(own, json.at);
        struct node_report_load load;
        struct problem why;

        assert_int_equal(node_report_load(&report, &load, &why), ERR_OK);
        if (load.cpu_pm != rows[i].cpu || load.gpu_pm != rows[i].gpu || load.mem_pm != rows[i].mem)
            fail_msg("%s: %d %d %d", rows[i].load, load.cpu_pm, load.gpu_pm, load.mem_pm);
    }
}

/* No list means that all runs are still there, an empty one that none is. */
static void no_list_is_not_an_empty_list(void **state)
{
    struct desk_of *own = *state;
    struct node_report none = must_read(own, "{\"node_id\":\"n\"}");
    struct node_report empty = must_read(own, "{\"node_id\":\"n\",\"running_jobs\":[]}");
    struct store_run *runs;
    size_t count;
    struct problem why;

    assert_int_equal(node_report_runs(&none, &own->arena, &runs, &count, &why), ERR_OK);
    assert_null(runs);
    assert_int_equal(node_report_runs(&empty, &own->arena, &runs, &count, &why), ERR_OK);
    assert_non_null(runs);
    assert_int_equal(count, 0);
}

static void a_connection_speaks_for_its_node_only(void **state)
{
    struct desk_of *own = *state;
    const struct json *root;
    struct node_report report;
    struct problem why = {0};

    json_parse(STR("{\"node_id\":\"other\"}"), &own->arena, &root, NULL);
    assert_int_equal(node_report_read(root, STR("mine"), NULL, &own->arena, &report, &why),
                     ERR_FORBIDDEN);
    json_parse(STR("{}"), &own->arena, &root, NULL);
    assert_int_equal(node_report_read(root, STR("mine"), NULL, &own->arena, &report, &why), ERR_OK);
    assert_str(report.node_id, "mine");
}

/* A fact that a rule fixes is in every report as if the node had sent it: it is stored once, is no
 * change after that, and does not turn a heartbeat into a registration. */
static void what_a_rule_fixes(void **state)
{
    struct desk_of *own = *state;
    struct node_rule row = {.pattern = STR("n*")};
    const struct node_rules rules = {.rows = &row, .count = 1};
    struct node *node = calloc(1, sizeof *node);
    struct facts *facts, *again;
    const struct json *lie, *beat;
    struct node_report report;
    struct problem why = {0};

    json_parse(STR("{\"labels\":{\"zone\":\"eu\"},\"max_concurrent_jobs\":2}"), &own->arena,
               &row.facts, NULL);
    json_parse(STR("{\"node_id\":\"n1\",\"labels\":{\"zone\":\"us\"},\"role\":\"x\","
                   "\"max_concurrent_jobs\":9}"),
               &own->arena, &lie, NULL);
    json_parse(STR("{\"node_id\":\"n1\"}"), &own->arena, &beat, NULL);
    assert_int_equal(node_report_read(lie, STR_NONE, &rules, &own->arena, &report, &why), ERR_OK);
    assert_true(report.registers && node_report_is_news(&report, node));
    assert_int_equal(node_report_facts(&report, NULL, &facts, &why), ERR_OK);
    assert_str(facts->labels, "{\"zone\":\"eu\"}");
    assert_int_equal(facts->max_concurrent_jobs, 2);
    assert_str(facts->role, "x");
    node_report_remember(&report, node);
    assert_int_equal(node_report_read(beat, STR_NONE, &rules, &own->arena, &report, &why), ERR_OK);
    assert_false(report.registers || node_report_is_news(&report, node));
    assert_int_equal(node_report_read(lie, STR_NONE, &rules, &own->arena, &report, &why), ERR_OK);
    assert_false(node_report_is_news(&report, node));
    assert_int_equal(node_report_read(lie, STR("n1"), NULL, &own->arena, &report, &why), ERR_OK);
    assert_true(node_report_is_news(&report, node));
    facts_unref(facts);
    /* Also in facts that were stored before the rule existed. */
    assert_int_equal(node_report_facts(&report, NULL, &facts, &why), ERR_OK);
    assert_int_equal(node_report_stored(facts->json, &rules, &again, &why), ERR_OK);
    assert_str(again->labels, "{\"zone\":\"eu\"}");
    facts_unref(again);
    facts_unref(facts);
    free(node);
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        ROW(bad_input_names_its_field),
        ROW(lists_have_bounds),
        ROW(what_is_absent_has_a_default),
        ROW(capabilities_follow_from_the_lists),
        ROW(facts_survive_the_store),
        ROW(a_heartbeat_keeps_what_it_leaves_out),
        ROW(only_what_changed_is_news),
        ROW(capabilities_said_again_are_news_once_they_were_lost),
        ROW(loads_are_shares),
        ROW(no_list_is_not_an_empty_list),
        ROW(a_connection_speaks_for_its_node_only),
        ROW(what_a_rule_fixes),
    };

    return cmocka_run_group_tests_name("sched/node_report", tests, NULL, NULL);
}
