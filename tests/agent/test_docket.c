/* The table in pages, its version, and whose lease is good. */
#include "agent/docket.h"

#include <string.h>

#include "unit.h"

static struct str take(struct docket *docket, const char *reply, struct arena *arena)
{
    const struct json *json;
    struct str cursor;

    assert_int_equal(json_parse(str_of(reply), arena, &json, NULL), ERR_OK);
    docket_take(docket, json, arena, &cursor);
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
             "{\"version\":4,\"next_cursor\":null,\"rows\":[{\"id\":\"b\",\"type\":\"daemon\"}]}",
             &arena),
        "");
    assert_int_equal(docket.version, 4);
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
    begin(&docket, "{\"if_version\":4}");
    take(&docket,
         "{\"version\":4,\"unchanged\":true,\"mode\":\"seed\",\"now_ms\":9,\"approved_until_ms\":"
         "10}",
         &arena);
    assert_int_equal(docket.row_count, 2);
    assert_int_equal(docket.mode, DEPLOY_SEED);
    assert_true(docket.approved);
    assert_int_equal(docket.rows[0].failed_count, 0);         /* forgotten */
    assert_int_equal(docket_left_ms(&docket, STR("n1")), -1); /* the server decides then */
    begin(&docket, "{\"if_version\":4}");
    take(&docket, "{\"version\":5,\"now_ms\":9,\"approved_until_ms\":9,\"rows\":[]}", &arena);
    assert_int_equal(docket.row_count, 0);
    assert_false(docket.approved);
    docket_done(&docket);
    arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pages)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
