/* Every call ends once: with the server's answer, its deadline, or the end of the connection. */
#include "agent/link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"

struct site {
    struct loop loop;
    struct link_calls *link_calls;
    bool link;
    struct buf sent; /* the last text */
    struct arena arena;
};

struct one {
    struct link_call link_call;
    struct site *site;
    int answers;
    char said[256];
    bool again; /* makes another call when answered */
};

static bool on_send(struct link_calls *link_calls, struct str text)
{
    struct site *site = link_calls->user;

    buf_clear(&site->sent);
    buf_str(&site->sent, text);
    return site->link;
}

static void on_done(struct link_call *link_call)
{
    struct one *one = container_of(link_call, struct one, link_call);
    struct str raw = link_call->reply ? json_raw(link_call->reply) : STR("");

    one->answers++;
    str_copy(raw, one->said, sizeof one->said);
    if (one->again) {
        one->again = false;
        link_calls_send(one->site->link_calls, link_call);
    }
}

static void ask(struct site *site, struct one *one)
{
    *one = (struct one){.site = site, .again = one->again};
    one->link_call = (struct link_call){
        .path = "/v1/x", .body = STR("{\"a\":1}"), .timeout_ms = 1000, .done = on_done};
    link_calls_send(site->link_calls, &one->link_call);
}

static bool reply(struct site *site, int64_t id, const char *rest)
{
    const struct json *body;
    char text[256];

    snprintf(text, sizeof text, "{\"msg\":\"reply\",\"re\":%lld,%s}", (long long)id, rest);
    assert_int_equal(json_parse(arena_str(&site->arena, str_of(text)), &site->arena, &body, NULL),
                     ERR_OK);
    return link_calls_reply(site->link_calls, body);
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
    site->link_calls = link_calls_new(&site->loop, on_send, site);
    site->link = true;
    *state = site;
    return 0;
}

static int teardown(void **state)
{
    struct site *site = *state;

    link_calls_free(site->link_calls);
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
             (long long)a.link_call.id);
    assert_str(buf_view(&site->sent), want);
    ask(site, &b);
    assert_true(a.link_call.id > LINK_CALLS_ID_FIRST && a.link_call.id != b.link_call.id);
    assert_true(reply(site, b.link_call.id, "\"ok\":true,\"body\":{\"b\":2}"));
    assert_int_equal(b.answers, 1);
    assert_int_equal(b.link_call.err, ERR_OK);
    assert_string_equal(b.said, "{\"b\":2}");
    assert_int_equal(a.answers, 0);
    assert_true(
        reply(site, a.link_call.id, "\"status\":409,\"error\":\"CONFLICT\",\"reason\":\"x\""));
    assert_int_equal(a.link_call.err, ERR_CONFLICT);
    assert_non_null(strstr(a.said, "\"reason\""));
    assert_false(reply(site, 5, "\"ok\":true")); /* a reply for the outbox */
}

static void test_deadline(void **state)
{
    struct site *site = *state;
    struct one one = {0};
    int64_t id;

    ask(site, &one);
    id = one.link_call.id;
    tick(site, 999);
    assert_int_equal(one.answers, 0);
    tick(site, 1);
    assert_int_equal(one.answers, 1);
    assert_int_equal(one.link_call.err, ERR_TIMEOUT);
    assert_true(reply(site, id, "\"ok\":true,\"body\":{}")); /* too late: no callback */
    assert_int_equal(one.answers, 1);
}

static void test_no_connection(void **state)
{
    struct site *site = *state;
    struct one one = {0};

    site->link = false;
    ask(site, &one);
    assert_int_equal(one.answers, 0); /* never from inside the call */
    tick(site, 0);
    assert_int_equal(one.answers, 1);
    assert_int_equal(one.link_call.err, ERR_CLOSED);
}

static void test_the_connection_ends(void **state)
{
    struct site *site = *state;
    struct one ones[3] = {{.again = true}, {.again = false}, {.again = true}};

    for (int i = 0; i < 3; i++)
        ask(site, &ones[i]);
    link_calls_down(site->link_calls);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ones[i].answers, 1); /* the calls made meanwhile are still open */
        assert_int_equal(ones[i].link_call.id != 0, i != 1);
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
