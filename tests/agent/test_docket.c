/* The table in pages, its version, and whose lease is good. */
#include "agent/docket.h"

#include <string.h>

#include "unit.h"

static struct str take(struct docket *docket, const char *reply, struct arena *arena)
{
    struct arena own = {0};
    char *text = arena_cstr(&own, str_of(reply));
    const struct json *json;
    struct str cursor;

    assert_int_equal(json_parse(str_of(text), &own, &json, NULL), ERR_OK);
    docket_take(docket, json, arena, &cursor);
    cursor = arena_str(arena, cursor);
    memset(text, 'x', strlen(text)); /* nothing of it is kept */
    arena_free(&own);
    return cursor;
}

static void begin(struct docket *docket, const char *want)
{
    struct buf text = {0};
    struct jsonw w = jsonw_to(&text);

    jsonw_obj(&w);
    docket_write(docket, &w);
    jsonw_end_obj(&w);
    assert_str(buf_view(&text), want);
    buf_free(&text);
}

static void test_pages(void **state)
{
    struct docket docket;
    struct arena arena = {0};

    docket_init(&docket);
    begin(&docket, "{}");
    assert_str(
        take(&docket,
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
    assert_int_equal(docket.version, -1); /* half of a table is none */
    assert_str(
        take(&docket,
             "{\"version\":5,\"next_cursor\":null,\"rows\":[{\"id\":\"b\",\"type\":\"daemon\"}]}",
             &arena),
        "");
    assert_int_equal(docket.version, 4); /* the first page is not newer than that */
    assert_int_equal(docket.row_count, 2);
    assert_true(str_is(docket.rows[0].id, "a") && docket.rows[0].enabled);
    assert_int_equal(docket.rows[0].generation, 3);
    assert_int_equal(docket.rows[1].type, DEPLOY_DAEMON);
    assert_str(docket.rows[1].address, "");
    assert_int_equal(docket.rows[0].failed_count, 2);
    assert_str(docket.rows[0].failed_on[0], "n2");
    assert_str(docket.rows[0].failed_on[1], "n3");
    assert_int_equal(docket.rows[1].failed_count, 0);
    assert_true(docket_goodbye(&docket, STR("n2")));
    assert_false(docket_goodbye(&docket, STR("n1")) || docket_goodbye(&docket, STR("n3")));
    assert_int_equal(docket_left_ms(&docket, STR("n1")), 5);
    assert_int_equal(docket_left_ms(&docket, STR("n2")), -1);
    assert_int_equal(docket_left_ms(&docket, STR("n3")), -1);
    begin(&docket, "{\"if_version\":4,\"delta\":true}");
    take(&docket,
         "{\"version\":4,\"unchanged\":true,\"mode\":\"seed\",\"now_ms\":9,\"approved_until_ms\":"
         "10}",
         &arena);
    assert_int_equal(docket.row_count, 2);
    assert_int_equal(docket.mode, DEPLOY_SEED);
    assert_true(docket.approved);
    assert_int_equal(docket.rows[0].failed_count, 0);         /* forgotten */
    assert_int_equal(docket_left_ms(&docket, STR("n1")), -1); /* the server decides then */
    begin(&docket, "{\"if_version\":4,\"delta\":true}");
    take(&docket, "{\"version\":5,\"now_ms\":9,\"approved_until_ms\":9,\"rows\":[]}", &arena);
    assert_int_equal(docket.row_count, 0);
    assert_false(docket.approved);
    docket_done(&docket);
    arena_free(&arena);
}

/* Leases and failures come again only when they changed; time goes on meanwhile. */
static void test_facts_are_kept(void **state)
{
    struct docket docket;
    struct arena arena = {0};

    (void)state;
    docket_init(&docket);
    begin(&docket, "{}");
    take(&docket,
         "{\"version\":4,\"now_ms\":1000,\"facts\":77,\"next_cursor\":null,\"rows\":[{\"id\":\"a\","
         "\"type\":\"deployment\"}],\"leases\":[{\"address\":\"n1\",\"left_ms\":500}],"
         "\"failures\":[{\"id\":\"a\",\"address\":\"n2\"}]}",
         &arena);
    assert_int_equal(docket_left_ms(&docket, STR("n1")), 500);
    begin(&docket, "{\"if_version\":4,\"delta\":true,\"if_facts\":77}");
    take(&docket,
         "{\"version\":5,\"now_ms\":1200,\"facts\":77,\"next_cursor\":null,\"rows\":[{\"id\":\"a\","
         "\"type\":\"deployment\"}]}",
         &arena);
    assert_int_equal(docket_left_ms(&docket, STR("n1")), 300);
    assert_int_equal(docket.rows[0].failed_count, 1);
    assert_str(docket.rows[0].failed_on[0], "n2");
    begin(&docket, "{\"if_version\":5,\"delta\":true,\"if_facts\":77}");
    take(&docket,
         "{\"version\":5,\"now_ms\":1300,\"facts\":78,\"next_cursor\":null,\"unchanged\":true,"
         "\"leases\":[],\"failures\":[]}",
         &arena);
    assert_int_equal(docket_left_ms(&docket, STR("n1")), -1);
    assert_int_equal(docket.rows[0].failed_count, 0);
    docket_forget(&docket);
    begin(&docket, "{}");
    docket_done(&docket);
    arena_free(&arena);
}

static void row_ids(const struct docket *docket, struct buf *out)
{
    buf_clear(out);
    for (size_t i = 0; i < docket->row_count; i++)
        buf_fmt(out, STR_FMT "%lld ", STR_ARG(docket->rows[i].id),
                (long long)docket->rows[i].generation);
}

/* Only what changed: rows that are new, others, gone, and gone and made again. */
static void test_delta(void **state)
{
    struct docket docket;
    struct arena arena = {0};
    struct buf ids = {0};

    (void)state;
    docket_init(&docket);
    begin(&docket, "{}");
    take(&docket,
         "{\"version\":4,\"now_ms\":9,\"next_cursor\":null,\"rows\":[{\"id\":\"b\",\"generation\":"
         "1},"
         "{\"id\":\"c\",\"generation\":1},{\"id\":\"d\",\"generation\":1},{\"id\":\"e\","
         "\"generation\":1}]}",
         &arena);
    begin(&docket, "{\"if_version\":4,\"delta\":true}");
    take(&docket,
         "{\"version\":6,\"now_ms\":9,\"next_cursor\":null,\"delta\":true,\"rows\":[{\"id\":\"a\","
         "\"generation\":2},{\"id\":\"c\",\"generation\":2},{\"id\":\"e\",\"generation\":2}],"
         "\"gone\":[\"b\",\"e\",\"x\"]}",
         &arena);
    row_ids(&docket, &ids);
    assert_str(buf_view(&ids), "a2 c2 d1 e2 ");
    assert_int_equal(docket.version, 6);
    take(&docket,
         "{\"version\":7,\"now_ms\":9,\"next_cursor\":null,\"delta\":true,\"rows\":[],\"gone\":["
         "\"a\","
         "\"e\"]}",
         &arena);
    row_ids(&docket, &ids);
    assert_str(buf_view(&ids), "c2 d1 ");
    take(&docket,
         "{\"version\":8,\"now_ms\":9,\"next_cursor\":null,\"delta\":true,\"rows\":[{\"id\":\"z\","
         "\"generation\":3}],\"gone\":[]}",
         &arena);
    row_ids(&docket, &ids);
    assert_str(buf_view(&ids), "c2 d1 z3 ");
    docket_done(&docket);
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
