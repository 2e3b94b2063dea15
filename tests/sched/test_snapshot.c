/* Snapshots: which nodes are in which pool, what changes between two versions, and who owns the
 * memory. */
#include "rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct table {
    struct node_table *members;
    struct snapshot *snapshot;
    struct arena arena;
};

static int setup(void **state)
{
    struct table *table = calloc(1, sizeof *table);

    table->members = node_table_new(NULL, 0);
    *state = table;
    return 0;
}

static int teardown(void **state)
{
    struct table *table = *state;

    snapshot_free(table->snapshot);
    node_table_free(table->members);
    arena_free(&table->arena);
    free(table);
    return 0;
}

static struct facts *facts_of(struct table *table, const char *json)
{
    const struct json *root;
    struct node_report report;
    struct facts *facts = NULL;
    struct problem why = {0};

    if (json_parse(str_of(json), &table->arena, &root, &why) ||
        node_report_read(root, STR_NONE, NULL, &table->arena, &report, &why) ||
        node_report_facts(&report, NULL, &facts, &why))
        fail_msg("%s: %s", json, why.detail);
    return facts;
}

static void put(struct table *table, const char *id, const char *rest)
{
    struct str json = arena_fmt(&table->arena, "{\"node_id\":\"%s\"%s}", id, rest);

    node_table_put(table->members, str_of(id), facts_of(table, json.at));
}

static void publish(struct table *table)
{
    struct snapshot *before = table->snapshot;

    table->snapshot = node_table_publish(table->members);
    snapshot_free(before);
}

static int by_id(const void *a, const void *b)
{
    return str_cmp(*(const struct str *)a, *(const struct str *)b);
}

/* `want` is "a b c": the members of the pool. Each is there once, in the order of node numbers. */
static void assert_pool(struct table *table, const char *id, unsigned wants, const char *want)
{
    struct str rest = str_of(id), src = str_cut(&rest, ':');
    const struct snap_pool *pool = snapshot_pool(table->snapshot, src, rest);
    struct buf got = {0};

    uint32_t count = pool ? pool->counts[wants] : 0;
    struct str *ids = arena_array(&table->arena, struct str, count + 1);

    for (uint32_t i = 0; i < count; i++) {
        assert_true(i == 0 || pool->members[wants][i] > pool->members[wants][i - 1]);
        ids[i] = snapshot_numbered(table->snapshot, pool->members[wants][i])->node->id;
    }
    qsort(ids, count, sizeof *ids, by_id);
    for (uint32_t i = 0; i < count; i++) {
        buf_str(&got, got.len ? STR(" ") : STR(""));
        buf_str(&got, ids[i]);
    }
    if (!str_is(buf_view(&got), want))
        fail_msg("pool %s (wants %u) is \"" STR_FMT "\", not \"%s\"", id, wants,
                 STR_ARG(buf_view(&got)), want);
    buf_free(&got);
}

#define EN_ZH ",\"semantic_langs\":[\"en\"],\"nmt_pairs\":[[\"en\",\"zh\"]]"

static void nodes_stand_in_the_pools_they_declare(void **state)
{
    struct table *table = *state;

    put(table, "c", EN_ZH);
    put(table, "a", EN_ZH ",\"tts_langs\":[\"zh\"]");
    put(table, "b", EN_ZH ",\"tts_langs\":[\"zh\"],\"capability_by_type\":{\"asr\":true}");
    put(table, "no-semantic", ",\"nmt_pairs\":[[\"en\",\"zh\"]]");
    put(table, "other-src", ",\"semantic_langs\":[\"fr\"],\"nmt_pairs\":[[\"en\",\"zh\"]]");
    put(table, "said-no", EN_ZH ",\"capability_by_type\":{\"semantic\":false}");
    put(table, "d", ",\"semantic_langs\":[\"en\",\"fr\"],\"nmt_pairs\":\"any\"");
    put(table, "t1", ",\"allowed_types\":[\"dev\"]");
    put(table, "t2", ",\"allowed_types\":[\"*\"]");
    publish(table);
    assert_pool(table, "en:zh", 0, "a b c d");
    assert_pool(table, "en:zh", POOL_WANT_TTS, "a b");
    assert_pool(table, "en:zh", POOL_WANT_TTS | POOL_WANT_ASR, "b");
    assert_pool(table, "en:zh", POOL_WANT_ASR, "b");
    assert_pool(table, "zh:en", 0, ""); /* pairs are directed: none has zh->en */
    assert_pool(table, "type:dev", 0, "t1 t2");
    assert_pool(table, "type:*", 0, "t2");
    assert_ptr_equal(snapshot_type_pool(table->snapshot, STR("talk")),
                     snapshot_pool(table->snapshot, STR("type"), STR("*")));
    assert_int_equal(table->snapshot->count, 9);
    assert_true(node_table_del(table->members, STR("t2")));
    publish(table);
    /* No node takes the type any more. */
    assert_null(snapshot_type_pool(table->snapshot, STR("talk")));
    assert_pool(table, "type:dev", 0, "t1");
    assert_null(snapshot_node(table->snapshot, STR("t2")));
    assert_false(node_table_del(table->members, STR("t2")));
}

static void any_joins_what_the_configuration_lists(void **state)
{
    struct table *table = *state;
    const struct pool_pair pairs[] = {{STR("ja"), STR("ko")}};

    node_table_free(table->members);
    table->members = node_table_new(pairs, 1);
    put(table, "x", ",\"semantic_langs\":[\"ja\"],\"nmt_pairs\":\"any\"");
    publish(table);
    assert_pool(table, "ja:ko", 0, "x");
    put(table, "y", ",\"semantic_langs\":[\"ja\"],\"nmt_pairs\":[[\"ja\",\"en\"]]");
    publish(table);
    assert_pool(table, "ja:en", 0, "x y"); /* the pair was listed later */
}

/* A node that declares something twice is one candidate, not two. */
static void a_node_stands_in_a_pool_once(void **state)
{
    struct table *table = *state;

    put(table, "a",
        ",\"semantic_langs\":[\"en\",\"EN\"],\"nmt_pairs\":[[\"en\",\"zh\"],[\"EN\",\"zh\"]],"
        "\"allowed_types\":[\"dev\",\"dev\",\"*\",\"*\"]");
    put(table, "b", ",\"allowed_types\":[\"dev\",\"talk\",\"dev\"]");
    publish(table);
    assert_pool(table, "en:zh", 0, "a");
    assert_pool(table, "type:dev", 0, "a b");
    assert_pool(table, "type:*", 0, "a");
}

static void a_pools_version_is_that_of_its_last_change(void **state)
{
    struct table *table = *state;

    put(table, "a", EN_ZH);
    put(table, "t", ",\"allowed_types\":[\"dev\"]");
    publish(table);
    int64_t first = table->snapshot->version;
    put(table, "b", EN_ZH);
    publish(table);
    assert_int_equal(table->snapshot->version, first + 1);
    assert_int_equal(snapshot_pool(table->snapshot, STR("en"), STR("zh"))->version, first + 1);
    assert_int_equal(snapshot_pool(table->snapshot, STR("type"), STR("dev"))->version, first);
    put(table, "b", EN_ZH ",\"labels\":{\"x\":\"y\"}"); /* same pools, other facts */
    publish(table);
    assert_int_equal(snapshot_pool(table->snapshot, STR("en"), STR("zh"))->version, first + 1);
    put(table, "b", EN_ZH ",\"tts_langs\":[\"zh\"]"); /* more capabilities in the same pool */
    publish(table);
    assert_int_equal(snapshot_pool(table->snapshot, STR("en"), STR("zh"))->version, first + 3);
}

/* A snapshot that a loop still reads stays complete, whatever changes come after it. */
static void an_old_version_stays_as_it_was(void **state)
{
    struct table *table = *state;

    put(table, "a", EN_ZH ",\"endpoint\":\"http://127.0.0.1:1/\"");
    publish(table);
    struct snapshot *old = table->snapshot;
    const struct snap_node *member = snapshot_node(old, STR("a"));
    table->snapshot = NULL;
    put(table, "a", ",\"allowed_types\":[\"dev\"]");
    publish(table);
    node_table_del(table->members, STR("a"));
    publish(table);
    assert_str(member->facts->endpoint, "http://127.0.0.1:1/");
    assert_int_equal(snapshot_pool(old, STR("en"), STR("zh"))->counts[0], 1);
    assert_ptr_equal(member->node, node_table_node(table->members, STR("a")));
    snapshot_free(old);
}

/* The address of a node never changes, so pointers to it stay valid. */
static void a_node_that_comes_back_is_the_same(void **state)
{
    struct table *table = *state;
    struct node *node = node_table_put(table->members, STR("a"), facts_new());

    assert_int_equal(atomic_load(&node->level), -1);
    node_table_del(table->members, STR("a"));
    for (int i = 0; i < 200; i++) {
        char id[16];

        snprintf(id, sizeof id, "n%d", i);
        put(table, id, EN_ZH);
    }
    assert_ptr_equal(node_table_put(table->members, STR("a"), facts_new()), node);
    assert_int_equal(table->members->by_id.count, 201);
}

/* Nodes with ever new names (containers, say) come and go for months. */
static void nodes_that_left_long_ago_leave_no_memory(void **state)
{
    enum { HOURS = 50, PER_HOUR = 40 };
    struct table *table = *state;
    struct node *kept = node_table_put(table->members, STR("kept"), facts_new());

    for (int i = 0; i < HOURS * PER_HOUR; i++) {
        char id[16], last[16];

        table->members->now_ms += 3600000 / PER_HOUR;
        snprintf(id, sizeof id, "c%d", i);
        snprintf(last, sizeof last, "c%d", i - 1);
        struct node *node = node_table_put(table->members, str_of(id), facts_new());
        assert_str(node->id, id);
        assert_int_equal(atomic_load(&node->level), -1);
        assert_ptr_not_equal(node, kept);
        node_table_del(table->members, str_of(last));
        atomic_store(&node->level, 3); /* must not show in the next node */
        assert_ptr_equal(node_table_node(table->members, str_of(id)), node);
        publish(table);
    }
    assert_true(table->members->nodes.count <= 4 * PER_HOUR);
    /* No two nodes share a number. */
    bool seen[4 * PER_HOUR] = {false};
    struct node *node;
    for (size_t i = 0; (node = map_next(&table->members->nodes, &i));) {
        assert_false(seen[node->number]);
        seen[node->number] = true;
    }
    /* A node that came back in time is the same struct, and is not reused later. */
    node_table_del(table->members, STR("kept"));
    assert_ptr_equal(node_table_put(table->members, STR("kept"), facts_new()), kept);
    table->members->now_ms += 10 * 3600000;
    for (int i = 0; i < 4 * PER_HOUR; i++) {
        char id[16];

        snprintf(id, sizeof id, "d%d", i);
        assert_ptr_not_equal(node_table_put(table->members, str_of(id), facts_new()), kept);
    }
}

/* A node that has a connection or a reserve under way is still in use, so its struct is not
 * reused. */
static void a_node_in_use_is_not_given_away(void **state)
{
    struct table *table = *state;
    struct node *linked = node_table_put(table->members, STR("a"), facts_new());
    struct node *asked = node_table_put(table->members, STR("b"), facts_new());

    atomic_store(&linked->link, 1);
    atomic_store(&asked->pending, 1);
    node_table_del(table->members, STR("a"));
    node_table_del(table->members, STR("b"));
    publish(table);
    table->members->now_ms += 10 * 3600000;
    for (int i = 0; i < 10; i++) {
        char id[16];

        snprintf(id, sizeof id, "c%d", i);
        struct node *node = node_table_put(table->members, str_of(id), facts_new());
        assert_true(node != linked && node != asked);
    }
    atomic_store(&linked->link, 0);
    bool reused = false;
    for (int i = 10; i < 20; i++) {
        char id[16];

        snprintf(id, sizeof id, "c%d", i);
        reused |= node_table_put(table->members, str_of(id), facts_new()) == linked;
    }
    assert_true(reused);
}

static void names_that_are_too_long_find_nothing(void **state)
{
    struct table *table = *state;
    char name[2 * POOL_ID_MAX];
    struct str text = {.at = name, .len = sizeof name};

    memset(name, 'a', sizeof name);
    put(table, "a", EN_ZH);
    publish(table);
    assert_null(snapshot_pool(table->snapshot, text, text));
    assert_null(snapshot_type_pool(table->snapshot, text));
    assert_null(snapshot_node(table->snapshot, text));
    assert_null(snapshot_node(NULL, STR("a")));
    assert_null(snapshot_pool(NULL, STR("en"), STR("zh")));
    assert_false(snapshot_is_member(table->snapshot, NULL, NULL, 0));
}

/* Nodes with the largest number of pairs allowed. */
static void the_largest_nodes_stand_in_all_their_pools(void **state)
{
    struct table *table = *state;
    struct buf buf = {0};

    buf_str(&buf, STR("{\"node_id\":\"big\",\"semantic_langs\":["));
    for (int i = 0; i < 64; i++)
        buf_fmt(&buf, "%s\"s%d\"", i ? "," : "", i);
    buf_str(&buf, STR("],\"nmt_pairs\":["));
    for (int i = 0; i < NODE_REPORT_PAIRS_MAX; i++)
        buf_fmt(&buf, "%s[\"s%d\",\"t%d\"]", i ? "," : "", i % 64, i / 64);
    buf_str(&buf, STR("]}"));
    buf_char(&buf, '\0');
    for (int i = 0; i < 5; i++) {
        char id[16];

        snprintf(id, sizeof id, "big%d", i);
        node_table_put(table->members, str_of(id), facts_of(table, buf.at));
    }
    publish(table);
    assert_int_equal(table->snapshot->pool_count, NODE_REPORT_PAIRS_MAX);
    buf_free(&buf);
}

/* A node whose removal is not published yet is still in the last snapshot, so its struct is not
 * reused. */
static void a_node_that_is_still_listed_is_not_given_away(void **state)
{
    struct table *table = *state;

    put(table, "a", EN_ZH);
    publish(table);
    node_table_del(table->members, STR("a"));
    table->members->now_ms += 10 * 3600000;
    put(table, "b", EN_ZH);
    assert_str(snapshot_node(table->snapshot, STR("a"))->node->id, "a");
    publish(table);
    assert_null(snapshot_node(table->snapshot, STR("a")));
    assert_pool(table, "en:zh", 0, "b");
}

/* The cost of one change does not grow with the number of nodes: a chunk of nodes, a run of names,
 * the tables of both, and the pools that were joined or left. */
static void a_change_copies_a_chunk_and_its_pools(void **state)
{
    enum { FEW = 100, MANY = 10000, OWN = 50 };
    static const int counts[] = {FEW, MANY};
    struct table *table = *state;
    int number = 0;

    for (size_t c = 0; c < COUNT_OF(counts); c++) {
        size_t places = 3 * (size_t)counts[c] / SNAP_CHUNK + 4;
        char id[16];

        for (; number < counts[c]; number++) {
            snprintf(id, sizeof id, "n%d", number);
            put(table, id,
                number < OWN ? ",\"allowed_types\":[\"own\"]" : ",\"allowed_types\":[\"all\"]");
        }
        publish(table);
        const struct snap_pool *all = snapshot_pool(table->snapshot, STR("type"), STR("all"));
        assert_int_equal(all->counts[0], counts[c] - OWN);
        /* Other facts: no pool is copied. */
        put(table, "n7", ",\"allowed_types\":[\"own\"],\"labels\":{\"x\":\"y\"}");
        publish(table);
        assert_in_range(table->members->copied, 1, SNAP_CHUNK + places);
        put(table, "n7", ",\"allowed_types\":[\"own\"]");
        publish(table);
        assert_in_range(table->members->copied, 1, SNAP_CHUNK + places);
        /* A new node joins the small pool and leaves again: the large pool is not copied. */
        put(table, "new", ",\"allowed_types\":[\"own\"]");
        publish(table);
        assert_in_range(table->members->copied, 1, 2 * SNAP_CHUNK + 2 * SNAP_RUN + OWN + places);
        node_table_del(table->members, STR("new"));
        publish(table);
        assert_in_range(table->members->copied, 1, 2 * SNAP_CHUNK + 2 * SNAP_RUN + OWN + places);
        assert_ptr_equal(snapshot_pool(table->snapshot, STR("type"), STR("all")), all);
        /* A new node joins the large pool, which is copied once for each set of capabilities. */
        put(table, "new", ",\"allowed_types\":[\"all\"]");
        publish(table);
        assert_in_range(table->members->copied, counts[c] - OWN,
                        2 * SNAP_CHUNK + 2 * SNAP_RUN + (size_t)counts[c] + places);
        node_table_del(table->members, STR("new"));
        publish(table);
    }
}

/* --- the same as a table built from scratch --- */

static const char *const choices[] = {
    EN_ZH,
    EN_ZH ",\"tts_langs\":[\"zh\"]",
    EN_ZH ",\"tts_langs\":[\"zh\"],\"capability_by_type\":{\"asr\":true}",
    ",\"semantic_langs\":[\"en\",\"fr\"],\"nmt_pairs\":\"any\"",
    ",\"semantic_langs\":[\"fr\"],\"nmt_pairs\":[[\"fr\",\"de\"],[\"en\",\"zh\"]]",
    ",\"semantic_langs\":[\"fr\"],\"nmt_pairs\":\"any\",\"allowed_types\":[\"*\"]",
    ",\"allowed_types\":[\"dev\"]",
    ",\"allowed_types\":[\"dev\",\"talk\"],\"labels\":{\"a\":\"b\"}",
    ",\"allowed_types\":[\"*\",\"dev\"]",
    "",
};

static void assert_same(const struct snapshot *got, const struct snapshot *want)
{
    struct snap_at at = {0}, want_at = {0};
    const struct snap_node *node, *want_node;
    const struct snap_pool *pool, *want_pool;

    assert_int_equal(got->count, want->count);
    assert_int_equal(got->pool_count, want->pool_count);
    while ((want_node = snapshot_next(want, &want_at))) {
        node = snapshot_next(got, &at);
        assert_true(str_eq(node->node->id, want_node->node->id));
        assert_ptr_equal(node->facts, want_node->facts);
        assert_ptr_equal(snapshot_node(got, node->node->id), node);
    }
    assert_null(snapshot_next(got, &at));
    at = want_at = (struct snap_at){0};
    while ((want_pool = snapshot_next_pool(want, &want_at))) {
        pool = snapshot_next_pool(got, &at);
        assert_true(str_eq(pool->id, want_pool->id));
        assert_ptr_equal(snapshot_pool(got, want_pool->src, want_pool->tgt), pool);
        for (unsigned wants = 0; wants < POOL_WANTS; wants++) {
            size_t members = 0;

            for (struct snap_at all = {0}; (node = snapshot_next(got, &all));)
                members += snapshot_is_member(got, pool, node, wants);
            assert_int_equal(pool->counts[wants], members);
            assert_int_equal(pool->counts[wants], want_pool->counts[wants]);
            for (uint32_t i = 0; i < pool->counts[wants]; i++) {
                const struct node *member = snapshot_numbered(got, pool->members[wants][i])->node;

                assert_true(snapshot_is_member(got, pool, snapshot_node(got, member->id), wants));
                assert_true(i == 0 || pool->members[wants][i] > pool->members[wants][i - 1]);
            }
        }
    }
    assert_null(snapshot_next_pool(got, &at));
}

/* A new table with the same nodes. */
static struct snapshot *made_anew(const struct table *table, struct node_table **ret_members)
{
    const struct pool_pair pairs[] = {{STR("en"), STR("ja")}};
    struct node_table *members = node_table_new(pairs, 1);
    const struct node_entry *member;

    for (size_t i = 0; (member = map_next(&table->members->by_id, &i));)
        node_table_put(members, member->node->id, facts_ref(member->facts));
    *ret_members = members;
    return node_table_publish(members);
}

static void changes_come_to_the_same_as_making_all_anew(void **state)
{
    enum { STEPS = 3000, NODES = 700, KEPT = 5 };
    const struct pool_pair pairs[] = {{STR("en"), STR("ja")}};
    struct table *table = *state;
    struct snapshot *old[KEPT] = {NULL};
    struct rnd rnd;

    node_table_free(table->members);
    table->members = node_table_new(pairs, 1);
    rnd_seed(&rnd, 7);
    for (int i = 0; i < STEPS; i++) {
        /* At first many nodes come, at the end most leave. */
        bool goes = rnd_below(&rnd, STEPS) < (uint32_t)(i > STEPS / 2 ? i : i / 4);
        char id[16];

        snprintf(id, sizeof id, "n%u", rnd_below(&rnd, NODES));
        if (goes)
            node_table_del(table->members, str_of(id));
        else
            put(table, id, choices[rnd_below(&rnd, COUNT_OF(choices))]);
        if (rnd_below(&rnd, 4))
            continue; /* several changes share a version */
        struct node_table *other;
        size_t place = rnd_below(&rnd, KEPT);
        snapshot_free(old[place]); /* versions are freed in any order */
        old[place] = table->snapshot;
        table->snapshot = node_table_publish(table->members);
        struct snapshot *want = i % 8 ? NULL : made_anew(table, &other);
        if (want) {
            assert_same(table->snapshot, want);
            snapshot_free(want);
            node_table_free(other);
        }
        arena_reset(&table->arena);
    }
    for (int i = 0; i < KEPT; i++)
        snapshot_free(old[i]);
}

static void a_walk_begins_behind_a_name(void **state)
{
    enum { NODES = 3 * SNAP_RUN };
    struct table *table = *state;
    struct snap_at at = {0};
    const struct snap_node *node;

    publish(table);
    assert_null(snapshot_next(table->snapshot, &at));
    at = snapshot_after(table->snapshot, STR("a"));
    assert_null(snapshot_next(table->snapshot, &at));
    for (int i = 0; i < NODES; i++)
        put(table, arena_fmt(&table->arena, "n%03d", 2 * i).at, EN_ZH);
    publish(table);
    for (int i = 0; i < 2 * NODES; i++) {
        at = snapshot_after(table->snapshot, arena_fmt(&table->arena, "n%03d", i));
        node = snapshot_next(table->snapshot, &at);
        if (i >= 2 * NODES - 2)
            assert_null(node);
        else
            assert_str(node->node->id, arena_fmt(&table->arena, "n%03d", i / 2 * 2 + 2).at);
    }
    at = snapshot_after(table->snapshot, STR("a"));
    assert_str(snapshot_next(table->snapshot, &at)->node->id, "n000");
    at = snapshot_after_pool(table->snapshot, STR("en:zh"));
    assert_null(snapshot_next_pool(table->snapshot, &at));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nodes_stand_in_the_pools_they_declare, setup, teardown),
        cmocka_unit_test_setup_teardown(any_joins_what_the_configuration_lists, setup, teardown),
        cmocka_unit_test_setup_teardown(a_node_stands_in_a_pool_once, setup, teardown),
        cmocka_unit_test_setup_teardown(a_pools_version_is_that_of_its_last_change, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(an_old_version_stays_as_it_was, setup, teardown),
        cmocka_unit_test_setup_teardown(a_node_that_comes_back_is_the_same, setup, teardown),
        cmocka_unit_test_setup_teardown(nodes_that_left_long_ago_leave_no_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(a_node_in_use_is_not_given_away, setup, teardown),
        cmocka_unit_test_setup_teardown(names_that_are_too_long_find_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(the_largest_nodes_stand_in_all_their_pools, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_node_that_is_still_listed_is_not_given_away, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_change_copies_a_chunk_and_its_pools, setup, teardown),
        cmocka_unit_test_setup_teardown(changes_come_to_the_same_as_making_all_anew, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_walk_begins_behind_a_name, setup, teardown),
    };

    return cmocka_run_group_tests_name("sched/snapshot", tests, NULL, NULL);
}
