/* Claim policies and cycles: buildSnapshots and both pickEligible, choosing a policy by environment
 * variables, and what a cycle decides. */
#include "model/claim.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../unit.h"

static struct arena arena;

static int teardown(void **state)
{
    arena_free(&arena);
    return 0;
}

static struct claim_context context = {.weights = {0.5, 0.5}};

static const struct claim_policy *policy(const char *name)
{
    return claim_policy_by_name(str_of(name));
}

static void test_build_snapshots(void **state)
{
    struct claim_node node = {.deployments = 3,
                              .usage_known = true,
                              .usage = {.cpu_percent = 30, .memory_mb = 1024},
                              .memory_total_mb = 4096};
    static const struct {
        const char *policy;
        double value;
    } rows[] = {{"deployment_count", 3}, {"resource_usage", 15.5}, {"resource_fraction", 0.275}};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct claim_snapshot snapshot;

        claim_snapshots(policy(rows[i].policy), &node, 1, &context, &snapshot);
        assert_true(snapshot.known && fabs(snapshot.value - rows[i].value) < 1e-12);
    }
}

/* Missing usage has the value 0, and is marked as unknown. */
static void test_missing_usage_is_value_zero_and_unknown(void **state)
{
    struct claim_node node = {.deployments = 3};
    struct claim_snapshot snapshot = {.value = 9, .known = true};

    claim_snapshots(policy("resource_usage"), &node, 1, &context, &snapshot);
    assert_true(snapshot.value == 0 && !snapshot.known);
    node.usage_known = true; /* its amount of memory is still unknown */
    claim_snapshots(policy("resource_fraction"), &node, 1, &context, &snapshot);
    assert_false(snapshot.known);
}

static void test_deployment_count_picks_the_minimum_set(void **state)
{
    struct claim_snapshot snapshots[] = {{2, true}, {1, true}, {1, true}};
    bool eligible[3];

    assert_int_equal(claim_eligible(snapshots, 3, false, eligible), 2);
    assert_true(!eligible[0] && eligible[1] && eligible[2]);
}

static void test_resource_usage_picks_the_lowest_score(void **state)
{
    struct claim_snapshot snapshots[] = {{45.2, true}, {22.1, true}};
    bool eligible[2];

    assert_int_equal(claim_eligible(snapshots, 2, false, eligible), 1);
    assert_true(!eligible[0] && eligible[1]);
}

/* A node that reports nothing is never the favourite, unless that is configured. */
static void test_the_unknown_is_not_the_favourite(void **state)
{
    struct claim_snapshot snapshots[] = {{45.2, true}, {0, false}};
    bool eligible[2];

    claim_eligible(snapshots, 2, false, eligible);
    assert_true(eligible[0] && !eligible[1]);
    claim_eligible(snapshots, 2, true, eligible);
    assert_true(!eligible[0] && eligible[1]);
    snapshots[0].known = false;
    claim_eligible(snapshots, 2, false, eligible);
    assert_true(eligible[0] && eligible[1]);
}

static void test_environment_switches_the_policy(void **state)
{
    static const struct {
        const char *text, *policy;
    } rows[] = {{NULL, "deployment_count"},
                {"", "deployment_count"},
                {"resource_usage", "resource_usage"},
                {"RESOURCE_USAGE", "resource_usage"},
                {"none", "none"},
                {"resource_fraction", "resource_fraction"},
                {"fastest", "deployment_count"}};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct claim_env env = {.policy = str_of(rows[i].text)};
        struct claim_config config;

        claim_config_read(&env, &config);
        assert_string_equal(config.policy->name, rows[i].policy);
        assert_true(config.interval_ms == 5000);
    }
}

static void test_environment_sets_interval_and_weights(void **state)
{
    struct claim_env env = {
        .interval_ms = STR("250"), .cpu_weight = STR("3"), .memory_weight = STR("x")};
    struct claim_config config;

    claim_config_read(&env, &config);
    assert_true(config.interval_ms == 250 && config.weights.cpu == 3 &&
                config.weights.memory == 0.5);
}

typedef void claim_planner(const struct claim_view *view, struct arena *arena,
                           struct claim_plan *ret_plan);

/* One cycle of node `me`, with a view of these nodes and rows. */
static struct claim_plan plan_by(claim_planner *planner, const char *policy_name, const char *me,
                                 struct claim_node *nodes, size_t node_count,
                                 struct deploy_row *rows, size_t row_count)
{
    struct names online, lost;
    int64_t counts[8];
    struct claim_plan got;

    names_init(&online, node_count, &arena);
    for (size_t i = 0; i < node_count; i++)
        names_add(&online, nodes[i].id);
    deploy_absent_owners(rows, row_count, &online, &arena, &lost);
    deploy_counts(rows, row_count, &online, counts);
    for (size_t i = 0; i < node_count; i++)
        nodes[i].deployments = counts[i];
    struct claim_view view = {.me = str_of(me),
                              .policy = policy(policy_name),
                              .context = context,
                              .nodes = nodes,
                              .node_count = node_count,
                              .rows = rows,
                              .row_count = row_count,
                              .lost = &lost};
    planner(&view, &arena, &got);
    return got;
}

static struct claim_plan plan(const char *me, struct claim_node *nodes, size_t node_count,
                              struct deploy_row *rows, size_t row_count)
{
    return plan_by(claim_plan, "deployment_count", me, nodes, node_count, rows, row_count);
}

static struct claim_plan share(const char *me, struct claim_node *nodes, size_t node_count,
                               struct deploy_row *rows, size_t row_count)
{
    return plan_by(claim_share, "deployment_count", me, nodes, node_count, rows, row_count);
}

static struct deploy_row row(const char *id, const char *address, const char *selector)
{
    return (struct deploy_row){.id = str_of(id),
                               .address = str_of(address),
                               .selector = str_of(selector),
                               .type = DEPLOY_DEPLOYMENT,
                               .enabled = true};
}

/* A node that takes nothing does not count; otherwise nobody would take what it leaves. */
static void test_a_node_that_takes_nothing_does_not_block_the_others(void **state)
{
    struct claim_node nodes[] = {{.id = STR("a"), .takes = true}, {.id = STR("b"), .takes = false}};
    struct deploy_row rows[] = {row("1", "a", ""), row("2", "", "")};

    assert_int_equal(plan("a", nodes, 2, rows, 2).skip, CLAIM_GO);
    assert_int_equal(plan("b", nodes, 2, rows, 2).skip, CLAIM_NOT_ELIGIBLE);
    nodes[1].takes = true;
    assert_int_equal(plan("a", nodes, 2, rows, 2).skip, CLAIM_NOT_ELIGIBLE);
}

static const char *const copy_ids[] = {"web", "web#1", "web#2", "x"};

static void copy_rows(const char *const owners[], struct deploy_row rows[])
{
    for (size_t i = 0; i < COUNT_OF(copy_ids); i++)
        rows[i] = row(copy_ids[i], owners[i], "");
}

/* Copies of one deployment go to different nodes while there are any, whatever else those own;
 * after that evenly. All nodes compute the same. */
static void test_copies_are_spread(void **state)
{
    static const struct {
        size_t node_count;
        bool old_c;            /* c is an agent that does not know indexes */
        const char *owners[4]; /* "": unowned */
        const char *claims[3]; /* by a, b, c */
    } rows[] = {
        {3, false, {"", "", "", "a"}, {"web#2 ", "web ", "web#1 "}},
        {3, false, {"a", "", "", ""}, {"x ", "web#1 ", "web#2 "}},
        {3, false, {"a", "gone", "c", ""}, {"x ", "web#1 ", ""}},
        {3, false, {"a", "a", "", "b"}, {"", "", "web#2 "}},
        {2, false, {"", "", "", "b"}, {"web web#2 ", "web#1 "}},
        {1, false, {"", "", "", "a"}, {"web web#1 web#2 "}},
        {3, true, {"", "", "", ""}, {"web web#2 ", "web#1 ", "x "}},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        for (size_t me = 0; me < rows[i].node_count; me++) {
            struct claim_node nodes[] = {
                {.id = STR("a"), .takes = true, .indexed = true},
                {.id = STR("b"), .takes = true, .indexed = true},
                {.id = STR("c"), .takes = true, .indexed = !rows[i].old_c}};
            struct deploy_row all[COUNT_OF(copy_ids)];
            struct claim_plan got;
            char text[64] = "";

            copy_rows(rows[i].owners, all);
            got = share((const char *[]){"a", "b", "c"}[me], nodes, rows[i].node_count, all,
                        COUNT_OF(all));
            for (size_t k = 0; k < got.count; k++) {
                size_t len = strlen(text);

                snprintf(text + len, sizeof text - len, STR_FMT " ", STR_ARG(got.order[k]->id));
            }
            assert_string_equal(text, rows[i].claims[me]);
        }
}

/* The least loaded node takes one row, though it may take several; after that the next node is
 * first. */
static void test_copies_are_spread_one_by_one(void **state)
{
    struct claim_node nodes[] = {{.id = STR("a"), .takes = true, .indexed = true},
                                 {.id = STR("b"), .takes = true, .indexed = true}};
    struct deploy_row rows[COUNT_OF(copy_ids)];
    struct claim_plan got;

    copy_rows((const char *const[]){"", "", "", "b"}, rows);
    rows[3].enabled = false;
    got = plan("a", nodes, 2, rows, COUNT_OF(rows));
    assert_int_equal(got.count, 1);
    assert_true(str_is(got.order[0]->id, "web"));
    rows[0].address = STR("a");
    assert_int_equal(plan("a", nodes, 2, rows, COUNT_OF(rows)).skip, CLAIM_NOT_ELIGIBLE);
    assert_true(str_is(plan("b", nodes, 2, rows, COUNT_OF(rows)).order[0]->id, "web#1"));
}

/* Rows with a selector are shared out separately: the least loaded node that matches takes the
 * row. */
static void test_selectors_do_not_starve(void **state)
{
    const struct json *gpu = NULL;
    struct claim_node nodes[] = {{.id = STR("a"), .takes = true}, {.id = STR("b"), .takes = true}};
    struct deploy_row rows[] = {row("1", "b", ""), row("2", "", "gpu=yes"), row("3", "", "")};

    assert_int_equal(json_parse(STR("{\"gpu\":\"yes\"}"), &arena, &gpu, NULL), ERR_OK);
    nodes[1].labels = gpu;
    struct claim_plan b = plan("b", nodes, 2, rows, 3); /* b has more, but alone has a gpu */
    assert_int_equal(b.skip, CLAIM_GO);
    assert_int_equal(b.count, 1);
    assert_true(str_is(b.order[0]->id, "2"));
    struct claim_plan a = plan("a", nodes, 2, rows, 3);
    assert_int_equal(a.count, 1);
    assert_true(str_is(a.order[0]->id, "3"));
}

/* Other selectors follow the same rule; an unknown node has no label, and lacks none either. */
static void test_selectors_of_every_kind(void **state)
{
    static const struct {
        const char *selector, *taker; /* NULL: none */
    } cases[] = {
        {"!gpu", "a"},         {"gpu in (yes,maybe)", "b"}, {"name != a", "b"},
        {"cores >= 10", "b"},  {"cores < 10", NULL},        {"gpu notin (yes)", "a"},
        {"no selector", NULL}, {"gpu=yes,", NULL},
    };
    struct claim_node nodes[] = {{.id = STR("a"), .takes = true},
                                 {.id = STR("b"), .takes = true},
                                 {.id = STR("c"), .takes = true}};

    assert_int_equal(json_parse(STR("{}"), &arena, &nodes[0].labels, NULL), ERR_OK);
    assert_int_equal(
        json_parse(STR("{\"gpu\":\"yes\",\"cores\":\"16\"}"), &arena, &nodes[1].labels, NULL),
        ERR_OK);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct deploy_row rows[] = {row("1", "", cases[i].selector)};

        for (size_t n = 0; n < COUNT_OF(nodes); n++) {
            const char *me = nodes[n].id.at;
            bool mine = cases[i].taker && str_is(nodes[n].id, cases[i].taker);

            if ((plan(me, nodes, 3, rows, 1).count == 1) != mine ||
                (share(me, nodes, 3, rows, 1).count == 1) != mine)
                fail_msg("%s: %s", cases[i].selector, me);
        }
    }
}

/* Rows that only one node may have are not dealt to another, and the other way round. */
static void test_nodes_that_are_kept_for_some(void **state)
{
    const struct json *maps = NULL, *others = NULL;
    struct claim_node nodes[] = {{.id = STR("a"), .takes = true}, {.id = STR("b"), .takes = true}};
    struct deploy_row rows[] = {row("maps/1", "", ""), row("2", "", ""),    row("maps/3", "", ""),
                                row("maps/4", "", ""), row("ml/5", "", ""), row("none/6", "", "")};

    assert_int_equal(json_parse(STR("[\"maps\"]"), &arena, &maps, NULL), ERR_OK);
    assert_int_equal(json_parse(STR("[\"default\",\"ml\"]"), &arena, &others, NULL), ERR_OK);
    nodes[0].namespaces = maps;
    nodes[1].namespaces = others;
    struct claim_plan a = share("a", nodes, 2, rows, 6), b = share("b", nodes, 2, rows, 6);
    assert_int_equal(a.count, 3);
    assert_int_equal(b.count, 2);
    for (size_t i = 0; i < a.count; i++)
        assert_true(str_starts(a.order[i]->id, STR("maps/")));
    assert_int_equal(plan("a", nodes, 2, rows, 6).count, 3);
    assert_int_equal(plan("b", nodes, 2, rows, 6).count, 2);
    struct claim_view view = {.me = STR("a"), .nodes = nodes, .node_count = 2};
    assert_false(claim_elsewhere(&view, &rows[0]));
    assert_true(claim_elsewhere(&view, &rows[1]));
}

/* 200 rows, three nodes of which one has 20 already: every row is dealt to exactly one node, and
 * then all own the same number. */
static void test_shares_are_disjoint_and_level(void **state)
{
    enum { NEW = 200, OLD = 20 };
    struct claim_node nodes[] = {{.id = STR("a"), .takes = true},
                                 {.id = STR("b"), .takes = true},
                                 {.id = STR("c"), .takes = true}};
    struct deploy_row rows[NEW + OLD];
    bool dealt[NEW + OLD] = {0};
    size_t total = 0;

    for (size_t i = 0; i < NEW + OLD; i++)
        rows[i] = row(arena_fmt(&arena, "d%03d", (int)i).at, i < NEW ? "" : "b", "");
    for (size_t n = 0; n < 3; n++) {
        struct claim_plan got = share(nodes[n].id.at, nodes, 3, rows, NEW + OLD);

        assert_in_range(got.count + (n == 1 ? OLD : 0), 73, 74);
        for (size_t i = 0; i < got.count; i++) {
            size_t place = (size_t)(got.order[i] - rows);

            assert_true(place < NEW && !dealt[place]);
            dealt[place] = true;
        }
        total += got.count;
    }
    assert_int_equal(total, NEW);
}

/* A share respects selectors and `takes`. Rows of a lost node come first, and do not prevent taking
 * unowned rows. */
static void test_a_share_keeps_to_the_rules(void **state)
{
    const struct json *gpu = NULL;
    struct claim_node nodes[] = {{.id = STR("a"), .takes = true},
                                 {.id = STR("b"), .takes = true},
                                 {.id = STR("full"), .takes = false}};
    struct deploy_row rows[] = {row("1", "", ""), row("2", "gone", "gpu=yes"), row("3", "", ""),
                                row("4", "", "gpu=no")};

    assert_int_equal(json_parse(STR("{\"gpu\":\"yes\"}"), &arena, &gpu, NULL), ERR_OK);
    nodes[1].labels = gpu;
    struct claim_plan b = share("b", nodes, 3, rows, 4);
    assert_int_equal(b.count, 1);
    assert_true(str_is(b.order[0]->id, "2"));
    struct claim_plan a = share("a", nodes, 3, rows, 4);
    assert_int_equal(a.count, 2); /* one evens out the counts, the other goes to a by name */
    assert_true(str_is(a.order[0]->id, "1"));
    assert_int_equal(share("full", nodes, 3, rows, 4).skip, CLAIM_NOT_ELIGIBLE);
    assert_int_equal(share("a", nodes, 3, rows, 0).skip, CLAIM_NO_CANDIDATE);
    assert_int_equal(share("a", nodes, 0, rows, 4).skip, CLAIM_NO_ACTIVE_NODES);
}

/* Usage after a claim cannot be predicted, so nothing is dealt: the least loaded node takes its
 * part, and is measured again. */
static void test_a_share_by_usage(void **state)
{
    struct claim_node nodes[] = {
        {.id = STR("a"), .takes = true, .usage_known = true, .usage.cpu_percent = 5},
        {.id = STR("b"), .takes = true, .usage_known = true, .usage.cpu_percent = 50},
        {.id = STR("c"), .takes = true}};
    struct deploy_row rows[10];

    for (size_t i = 0; i < 10; i++)
        rows[i] = row(arena_fmt(&arena, "d%d", (int)i).at, "", "");
    assert_int_equal(plan_by(claim_share, "resource_usage", "a", nodes, 3, rows, 10).count, 4);
    assert_int_equal(plan_by(claim_share, "resource_usage", "b", nodes, 3, rows, 10).skip,
                     CLAIM_NOT_ELIGIBLE);
}

/* A node on which a deployment failed takes it only if no other node can. */
static void test_who_failed_it_comes_last(void **state)
{
    static const struct str both[] = {STR("a"), STR("b")};
    struct claim_node nodes[] = {{.id = STR("a"), .takes = true}, {.id = STR("b"), .takes = true}};
    struct deploy_row rows[] = {row("1", "", ""), row("2", "b", "")};
    struct claim_view view = {.me = STR("a"), .nodes = nodes, .node_count = 2};

    rows[0].failed_on = both;
    rows[0].failed_count = 1; /* on a, which has less */
    assert_int_equal(plan("a", nodes, 2, rows, 2).skip, CLAIM_NOT_ELIGIBLE);
    assert_int_equal(share("a", nodes, 2, rows, 2).skip, CLAIM_NOT_ELIGIBLE);
    assert_int_equal(plan("b", nodes, 2, rows, 2).count, 1);
    assert_int_equal(share("b", nodes, 2, rows, 2).count, 1);
    assert_true(claim_elsewhere(&view, &rows[0]));
    nodes[1].takes = false;
    assert_int_equal(plan("a", nodes, 2, rows, 2).count, 1);
    assert_int_equal(share("a", nodes, 2, rows, 2).count, 1);
    assert_false(claim_elsewhere(&view, &rows[0]));
    nodes[1].takes = true;
    rows[0].failed_count = 2; /* failed everywhere: as if nowhere */
    assert_int_equal(plan("a", nodes, 2, rows, 2).count, 1);
    assert_int_equal(share("a", nodes, 2, rows, 2).count, 1);
    assert_false(claim_elsewhere(&view, &rows[0]));
}

static void test_skips_in_their_order(void **state)
{
    struct claim_node nodes[] = {{.id = STR("a"), .takes = true}};
    struct deploy_row rows[] = {row("1", "a", "")};
    static const char *const names[] = {"claim",        "no_active_nodes", "policy_disabled",
                                        "not_eligible", "no_candidate",    "claim_conflict"};

    assert_int_equal(plan("a", nodes, 0, rows, 1).skip, CLAIM_NO_ACTIVE_NODES);
    assert_int_equal(plan("a", nodes, 1, rows, 1).skip, CLAIM_NO_CANDIDATE);
    assert_int_equal(plan("z", nodes, 1, rows, 1).skip, CLAIM_NOT_ELIGIBLE);
    for (size_t i = 0; i < COUNT_OF(names); i++)
        assert_string_equal(claim_skip_name((enum claim_skip)i), names[i]);
}

static void test_mass_loss_is_more_than_half(void **state)
{
    static const struct {
        size_t online, lost;
        bool mass;
    } rows[] = {{1, 0, false}, {1, 1, false}, {1, 2, true},
                {4, 6, true},  {5, 5, false}, {0, 1, true}};

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_int_equal(claim_mass_loss(rows[i].online, rows[i].lost), rows[i].mass);
}

/* --- score --- */

/* The resource score. */

static void test_rows(void **state)
{
    static const struct {
        struct score_usage usage;
        struct score_weights weights;
        double score;
    } rows[] = {
        {{30, 1024}, {0.5, 0.5}, 15.5}, {{0, 0}, {0.5, 0.5}, 0},     {{150, 0}, {0.5, 0.5}, 75},
        {{40, 4096}, {1, 0}, 40},       {{40, 4096}, {0, 1}, 4},     {{20, 2048}, {3, 1}, 15.5},
        {{30, 1024}, {0, 0}, 15.5},     {{30, 1024}, {-1, 0}, 15.5}, {{30, 1024}, {0.1, 0.1}, 15.5},
        {{30, 1024}, {NAN, 1}, 15.5},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        double score = score_resource(&rows[i].usage, &rows[i].weights);

        assert_true(fabs(score - rows[i].score) < 1e-12);
    }
}

/* Less of either always gives a better score. */
static void test_smaller_is_better(void **state)
{
    for (int cpu = 0; cpu < 200; cpu += 7)
        for (int mb = 0; mb < 4096; mb += 333) {
            struct score_usage usage = {cpu, mb}, more = {cpu + 1, mb + 1};

            assert_true(score_resource(&usage, &score_defaults) <
                        score_resource(&more, &score_defaults));
        }
}

/* --- what rows need --- */

static struct resources with_licences(int32_t licences)
{
    struct resources resources = {0};

    assert_true(resources_declare(&resources, STR("licences"), 9));
    resources.items[0].usable = licences;
    return resources;
}

static struct deploy_row needy(const char *id, const char *address, const char *needs)
{
    struct deploy_row one = row(id, address, "");

    one.demand = deploy_demand(str_of(needs), &arena);
    assert_non_null(one.demand);
    return one;
}

static const char *claimed(struct claim_plan got)
{
    static char text[64];
    size_t len = 0;

    text[0] = 0;
    for (size_t i = 0; i < got.count; i++)
        len +=
            (size_t)snprintf(text + len, sizeof text - len, STR_FMT " ", STR_ARG(got.order[i]->id));
    return text;
}

/* A node without room does not block one with room; room for rows already dealt is used up. */
static void test_rows_go_where_there_is_room(void **state)
{
    struct resources two = with_licences(2), five = with_licences(5);
    struct claim_node nodes[] = {{.id = STR("a"), .takes = true, .room = &two},
                                 {.id = STR("b"), .takes = true, .room = &five},
                                 {.id = STR("c"), .takes = true}}; /* its room is unknown */
    struct deploy_row rows[] = {
        needy("1", "", "{\"licences\":3}"), needy("2", "", "{\"licences\":2}"),
        needy("3", "", "{\"licences\":2}"), needy("4", "", "{\"licences\":1}"), row("5", "", "")};

    assert_string_equal(claimed(share("a", nodes, 3, rows, 5)), "2 ");
    assert_string_equal(claimed(share("b", nodes, 3, rows, 5)), "1 3 ");
    assert_string_equal(claimed(share("c", nodes, 3, rows, 5)), "5 ");
    assert_int_equal(share("a", nodes, 3, rows, 1).skip, CLAIM_NO_ROOM);
    assert_int_equal(share("c", nodes, 3, rows, 4).skip, CLAIM_NO_ROOM);
    /* One by one: the first row with room, and all that fit together with it. */
    assert_string_equal(claimed(plan("a", nodes, 3, rows, 4)), "2 ");
    assert_string_equal(claimed(plan("b", nodes, 3, rows, 4)), "1 2 ");
    assert_int_equal(plan("c", nodes, 3, rows, 4).skip, CLAIM_NO_ROOM);
}

/* A lost row that does not fit here does not keep this node from unowned rows. */
static void test_lost_rows_that_do_not_fit(void **state)
{
    struct resources two = with_licences(2);
    struct claim_node nodes[] = {{.id = STR("a"), .takes = true, .room = &two}};
    struct deploy_row rows[] = {needy("big", "gone", "{\"licences\":3}"),
                                needy("fits", "gone", "{\"licences\":2}"), row("free", "", "")};

    assert_string_equal(claimed(plan("a", nodes, 1, rows, 3)), "fits ");
    assert_string_equal(claimed(share("a", nodes, 1, rows, 3)), "fits free ");
    rows[1] = rows[0];
    assert_string_equal(claimed(plan("a", nodes, 1, rows, 3)), "free ");
}

static void test_elsewhere_has_room(void **state)
{
    struct resources two = with_licences(2);
    struct claim_node nodes[] = {{.id = STR("a"), .takes = true},
                                 {.id = STR("b"), .takes = true, .room = &two}};
    struct deploy_row fits = needy("fits", "a", "{\"licences\":2}"),
                      big = needy("big", "a", "{\"licences\":3}");
    struct claim_view view = {.me = STR("a"), .nodes = nodes, .node_count = 2};

    assert_true(claim_elsewhere(&view, &fits));
    assert_false(claim_elsewhere(&view, &big));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_build_snapshots),
        cmocka_unit_test(test_missing_usage_is_value_zero_and_unknown),
        cmocka_unit_test(test_deployment_count_picks_the_minimum_set),
        cmocka_unit_test(test_resource_usage_picks_the_lowest_score),
        cmocka_unit_test(test_the_unknown_is_not_the_favourite),
        cmocka_unit_test(test_environment_switches_the_policy),
        cmocka_unit_test(test_environment_sets_interval_and_weights),
        cmocka_unit_test(test_a_node_that_takes_nothing_does_not_block_the_others),
        cmocka_unit_test(test_copies_are_spread),
        cmocka_unit_test(test_copies_are_spread_one_by_one),
        cmocka_unit_test(test_selectors_do_not_starve),
        cmocka_unit_test(test_selectors_of_every_kind),
        cmocka_unit_test(test_nodes_that_are_kept_for_some),
        cmocka_unit_test(test_shares_are_disjoint_and_level),
        cmocka_unit_test(test_a_share_keeps_to_the_rules),
        cmocka_unit_test(test_a_share_by_usage),
        cmocka_unit_test(test_who_failed_it_comes_last),
        cmocka_unit_test(test_skips_in_their_order),
        cmocka_unit_test(test_mass_loss_is_more_than_half),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_smaller_is_better),
        cmocka_unit_test(test_rows_go_where_there_is_room),
        cmocka_unit_test(test_lost_rows_that_do_not_fit),
        cmocka_unit_test(test_elsewhere_has_room),
    };

    return cmocka_run_group_tests_name("claim", tests, NULL, teardown);
}
