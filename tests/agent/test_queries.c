/* Every call is answered once: by the server, by its deadline, or by the end of the connection. */
#include "agent/queries.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"

struct site {
    struct loop loop;
    struct queries *queries;
    bool link;
    struct buf sent; /* the last text */
    struct arena arena;
};

struct one {
    struct query query;
    struct site *site;
    int answers;
    char said[256];
    bool again; /* ask once more when answered */
};

static bool on_send(struct queries *queries, struct str text)
{
    struct site *site = queries_user(queries);

    buf_clear(&site->sent);
    buf_str(&site->sent, text);
    return site->link;
}

static void on_done(struct query *query)
{
    struct one *one = container_of(query, struct one, query);
    struct str raw = query->reply ? json_raw(query->reply) : STR("");

    one->answers++;
    str_copy(raw, one->said, sizeof one->said);
    if (one->again) {
        one->again = false;
        queries_send(one->site->queries, query);
    }
}

static void ask(struct site *site, struct one *one)
{
    *one = (struct one){.site = site, .again = one->again};
    one->query = (struct query){
        .path = "/v1/x", .body = STR("{\"a\":1}"), .timeout_ms = 1000, .done = on_done};
    queries_send(site->queries, &one->query);
}

static bool reply(struct site *site, int64_t id, const char *rest)
{
    const struct json *body;
    char text[256];

    snprintf(text, sizeof text, "{\"msg\":\"reply\",\"re\":%lld,%s}", (long long)id, rest);
    assert_int_equal(json_parse(arena_str(&site->arena, str_of(text)), &site->arena, &body, NULL),
                     ERR_OK);
    return queries_reply(site->queries, body);
}

static void tick(struct site *site, int64_t ms)
{
    site->loop.mono_ms += ms;
    for (struct loop_part *part = site->loop.parts; part; part = part->next)
        if (part->tick)
            part->tick(part);
}

static int setup(void **state)
{
    struct site *site = calloc(1, sizeof *site);

    assert_int_equal(loop_init(&site->loop, 0), ERR_OK);
    site->queries = queries_new(&site->loop, on_send, site);
    site->link = true;
    *state = site;
    return 0;
}

static int teardown(void **state)
{
    struct site *site = *state;

    queries_free(site->queries);
    loop_done(&site->loop);
    buf_free(&site->sent);
    arena_free(&site->arena);
    free(site);
    return 0;
}

static void test_answers(void **state)
{
    struct site *site = *state;
    struct one a = {0}, b = {0};
    char want[128];

    ask(site, &a);
    snprintf(want, sizeof want,
             "{\"msg\":\"call\",\"id\":%lld,\"path\":\"/v1/x\",\"body\":{\"a\":1}}",
             (long long)a.query.id);
    assert_str(buf_view(&site->sent), want);
    ask(site, &b);
    assert_true(a.query.id > QUERIES_ID_FIRST && a.query.id != b.query.id);
    assert_true(reply(site, b.query.id, "\"ok\":true,\"body\":{\"b\":2}"));
    assert_int_equal(b.answers, 1);
    assert_int_equal(b.query.err, ERR_OK);
    assert_string_equal(b.said, "{\"b\":2}");
    assert_int_equal(a.answers, 0);
    assert_true(reply(site, a.query.id, "\"status\":409,\"error\":\"CONFLICT\",\"reason\":\"x\""));
    assert_int_equal(a.query.err, ERR_CONFLICT);
    assert_non_null(strstr(a.said, "\"reason\""));
    assert_false(reply(site, 5, "\"ok\":true")); /* the outbox' */
}

static void test_deadline(void **state)
{
    struct site *site = *state;
    struct one one = {0};
    int64_t id;

    ask(site, &one);
    id = one.query.id;
    tick(site, 999);
    assert_int_equal(one.answers, 0);
    tick(site, 1);
    assert_int_equal(one.answers, 1);
    assert_int_equal(one.query.err, ERR_TIMEOUT);
    assert_true(reply(site, id, "\"ok\":true,\"body\":{}")); /* too late: nobody is told */
    assert_int_equal(one.answers, 1);
}

static void test_no_connection(void **state)
{
    struct site *site = *state;
    struct one one = {0};

    site->link = false;
    ask(site, &one);
    assert_int_equal(one.answers, 0); /* never inside the call */
    tick(site, 0);
    assert_int_equal(one.answers, 1);
    assert_int_equal(one.query.err, ERR_CLOSED);
}

static void test_the_connection_ends(void **state)
{
    struct site *site = *state;
    struct one ones[3] = {{.again = true}, {.again = false}, {.again = true}};

    for (int i = 0; i < 3; i++)
        ask(site, &ones[i]);
    queries_down(site->queries);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ones[i].answers, 1); /* what they asked meanwhile is still under way */
        assert_int_equal(ones[i].query.id != 0, i != 1);
    }
    tick(site, 1000);
    assert_int_equal(ones[0].answers, 2);
    assert_int_equal(ones[1].answers, 1);
}

#define QUERY_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {QUERY_TEST(test_answers), QUERY_TEST(test_deadline),
                                       QUERY_TEST(test_no_connection),
                                       QUERY_TEST(test_the_connection_ends)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
