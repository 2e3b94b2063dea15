/* The table in pages, its version, and which leases are good. */
#include "agent/claimer.h"

#include <string.h>

#include "unit.h"

static struct str take(struct deploy_table *deploy_table, const char *reply, struct arena *arena)
{
    struct arena own = {0};
    char *text = arena_cstr(&own, str_of(reply));
    const struct json *json;
    struct str cursor;

    assert_int_equal(json_parse(str_of(text), &own, &json, NULL), ERR_OK);
    deploy_table_take(deploy_table, json, arena, &cursor);
    cursor = arena_str(arena, cursor);
    memset(text, 'x', strlen(text)); /* no pointer into the reply may be kept */
    arena_free(&own);
    return cursor;
}

static void begin(struct deploy_table *deploy_table, const char *want)
{
    struct buf text = {0};
    struct jsonw w = jsonw_to(&text);

    jsonw_obj(&w);
    deploy_table_write(deploy_table, &w);
    jsonw_end_obj(&w);
    assert_str(buf_view(&text), want);
    buf_free(&text);
}

static void test_pages(void **state)
{
    struct deploy_table deploy_table;
    struct arena arena = {0};

    deploy_table_init(&deploy_table);
    begin(&deploy_table, "{}");
    assert_str(
        take(&deploy_table,
             "{\"version\":4,\"mode\":\"hardened\",\"now_ms\":9,\"next_cursor\":\"c1\",\"rows\":[{"
             "\"id\":"
             "\"a\",\"type\":\"deployment\",\"enabled\":true,\"address\":\"n1\",\"generation\":3,"
             "\"updated_at\":\"2\",\"created_at\":\"1\"}],\"leases\":[{\"address\":\"n1\",\"left_"
             "ms\":5},"
             "{\"address\":\"n2\",\"left_ms\":-1,\"goodbye\":true}],\"failures\":[{\"id\":\"a\","
             "\"address\":\"n2\"},{\"id\":\"a\",\"address\":\"n3\"},{\"id\":\"x\",\"address\":"
             "\"n1\"}]}",
             &arena),
        "c1");
    assert_int_equal(deploy_table.version, -1); /* half a table has no version */
    assert_str(
        take(&deploy_table,
             "{\"version\":5,\"next_cursor\":null,\"rows\":[{\"id\":\"b\",\"type\":\"daemon\"}]}",
             &arena),
        "");
    assert_int_equal(deploy_table.version, 4); /* no newer than its first page */
    assert_int_equal(deploy_table.row_count, 2);
    assert_true(str_is(deploy_table.rows[0].id, "a") && deploy_table.rows[0].enabled);
    assert_int_equal(deploy_table.rows[0].generation, 3);
    assert_int_equal(deploy_table.rows[1].type, DEPLOY_DAEMON);
    assert_str(deploy_table.rows[1].address, "");
    assert_int_equal(deploy_table.rows[0].failed_count, 2);
    assert_str(deploy_table.rows[0].failed_on[0], "n2");
    assert_str(deploy_table.rows[0].failed_on[1], "n3");
    assert_int_equal(deploy_table.rows[1].failed_count, 0);
    assert_true(deploy_table_goodbye(&deploy_table, STR("n2")));
    assert_false(deploy_table_goodbye(&deploy_table, STR("n1")) ||
                 deploy_table_goodbye(&deploy_table, STR("n3")));
    assert_int_equal(deploy_table_left_ms(&deploy_table, STR("n1")), 5);
    assert_int_equal(deploy_table_left_ms(&deploy_table, STR("n2")), -1);
    assert_int_equal(deploy_table_left_ms(&deploy_table, STR("n3")), -1);
    begin(&deploy_table, "{\"if_version\":4,\"delta\":true}");
    take(&deploy_table,
         "{\"version\":4,\"unchanged\":true,\"mode\":\"seed\",\"now_ms\":9,\"approved_until_ms\":"
         "10}",
         &arena);
    assert_int_equal(deploy_table.row_count, 2);
    assert_int_equal(deploy_table.mode, DEPLOY_SEED);
    assert_true(deploy_table.approved);
    assert_int_equal(deploy_table.rows[0].failed_count, 0); /* cleared */
    assert_int_equal(deploy_table_left_ms(&deploy_table, STR("n1")),
                     -1); /* unknown: the server decides */
    begin(&deploy_table, "{\"if_version\":4,\"delta\":true}");
    take(&deploy_table, "{\"version\":5,\"now_ms\":9,\"approved_until_ms\":9,\"rows\":[]}", &arena);
    assert_int_equal(deploy_table.row_count, 0);
    assert_false(deploy_table.approved);
    deploy_table_done(&deploy_table);
    arena_free(&arena);
}

/* Leases and failures are sent again only when they change; their time runs on meanwhile. */
static void test_facts_are_kept(void **state)
{
    struct deploy_table deploy_table;
    struct arena arena = {0};

    (void)state;
    deploy_table_init(&deploy_table);
    begin(&deploy_table, "{}");
    take(&deploy_table,
         "{\"version\":4,\"now_ms\":1000,\"facts\":77,\"next_cursor\":null,\"rows\":[{\"id\":\"a\","
         "\"type\":\"deployment\"}],\"leases\":[{\"address\":\"n1\",\"left_ms\":500}],"
         "\"failures\":[{\"id\":\"a\",\"address\":\"n2\"}]}",
         &arena);
    assert_int_equal(deploy_table_left_ms(&deploy_table, STR("n1")), 500);
    begin(&deploy_table, "{\"if_version\":4,\"delta\":true,\"if_facts\":77}");
    take(&deploy_table,
         "{\"version\":5,\"now_ms\":1200,\"facts\":77,\"next_cursor\":null,\"rows\":[{\"id\":\"a\","
         "\"type\":\"deployment\"}]}",
         &arena);
    assert_int_equal(deploy_table_left_ms(&deploy_table, STR("n1")), 300);
    assert_int_equal(deploy_table.rows[0].failed_count, 1);
    assert_str(deploy_table.rows[0].failed_on[0], "n2");
    begin(&deploy_table, "{\"if_version\":5,\"delta\":true,\"if_facts\":77}");
    take(&deploy_table,
         "{\"version\":5,\"now_ms\":1300,\"facts\":78,\"next_cursor\":null,\"unchanged\":true,"
         "\"leases\":[],\"failures\":[]}",
         &arena);
    assert_int_equal(deploy_table_left_ms(&deploy_table, STR("n1")), -1);
    assert_int_equal(deploy_table.rows[0].failed_count, 0);
    deploy_table_forget(&deploy_table);
    begin(&deploy_table, "{}");
    deploy_table_done(&deploy_table);
    arena_free(&arena);
}

static void row_ids(const struct deploy_table *deploy_table, struct buf *out)
{
    buf_clear(out);
    for (size_t i = 0; i < deploy_table->row_count; i++)
        buf_fmt(out, STR_FMT "%lld ", STR_ARG(deploy_table->rows[i].id),
                (long long)deploy_table->rows[i].generation);
}

/* A delta: new rows, changed ones, removed ones, and one removed and made again. */
static void test_delta(void **state)
{
    struct deploy_table deploy_table;
    struct arena arena = {0};
    struct buf ids = {0};

    (void)state;
    deploy_table_init(&deploy_table);
    begin(&deploy_table, "{}");
    take(&deploy_table,
         "{\"version\":4,\"now_ms\":9,\"next_cursor\":null,\"rows\":[{\"id\":\"b\",\"generation\":"
         "1},"
         "{\"id\":\"c\",\"generation\":1},{\"id\":\"d\",\"generation\":1},{\"id\":\"e\","
         "\"generation\":1}]}",
         &arena);
    begin(&deploy_table, "{\"if_version\":4,\"delta\":true}");
    take(&deploy_table,
         "{\"version\":6,\"now_ms\":9,\"next_cursor\":null,\"delta\":true,\"rows\":[{\"id\":\"a\","
         "\"generation\":2},{\"id\":\"c\",\"generation\":2},{\"id\":\"e\",\"generation\":2}],"
         "\"gone\":[\"b\",\"e\",\"x\"]}",
         &arena);
    row_ids(&deploy_table, &ids);
    assert_str(buf_view(&ids), "a2 c2 d1 e2 ");
    assert_int_equal(deploy_table.version, 6);
    take(&deploy_table,
         "{\"version\":7,\"now_ms\":9,\"next_cursor\":null,\"delta\":true,\"rows\":[],\"gone\":["
         "\"a\","
         "\"e\"]}",
         &arena);
    row_ids(&deploy_table, &ids);
    assert_str(buf_view(&ids), "c2 d1 ");
    take(&deploy_table,
         "{\"version\":8,\"now_ms\":9,\"next_cursor\":null,\"delta\":true,\"rows\":[{\"id\":\"z\","
         "\"generation\":3}],\"gone\":[]}",
         &arena);
    row_ids(&deploy_table, &ids);
    assert_str(buf_view(&ids), "c2 d1 z3 ");
    deploy_table_done(&deploy_table);
    buf_free(&ids);
    arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pages),
                                       cmocka_unit_test(test_facts_are_kept),
                                       cmocka_unit_test(test_delta)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
