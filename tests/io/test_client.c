/* The HTTP client against our own server, and which URLs it may call. */
#include "io/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../unit.h"
#include "hand.h"
#include "peer.h"
#include "site.h"

/* One call, and how often its callback ran. */
struct caller {
    struct client_call call;
    char url[128];
    int done;
    int pieces;
    bool stop_at_piece;
};

static void on_done(struct client_call *call)
{
    container_of(call, struct caller, call)->done++;
}

static bool on_piece(struct client_call *call, struct str bytes)
{
    struct caller *caller = container_of(call, struct caller, call);

    assert_int_equal(call->status, 200);
    caller->pieces++;
    return !caller->stop_at_piece;
}

static void prepare(struct caller *caller, const char *method, int port, const char *path)
{
    *caller = (struct caller){.call = {.method = method,
                                       .timeout_ms = PEER_PATIENCE_S * 1000,
                                       .reply_bytes_max = 1000,
                                       .done = on_done}};
    snprintf(caller->url, sizeof caller->url, "http://127.0.0.1:%d%s", port, path);
    caller->call.url = caller->url;
}

static void call(struct loop *loop, struct client *client, struct caller *caller)
{
    assert_int_equal(client_send(client, &caller->call), ERR_OK);
    assert_int_equal(caller->done, 0);
    hand_run(loop, &caller->done);
    assert_int_equal(caller->done, 1);
}

static void test_calls(void **state)
{
    static const struct {
        const char *method, *path, *body;
        int64_t timeout_ms, reply_bytes_max;
        enum err err;
        int status;
        const char *reply; /* NULL: not checked */
    } rows[] = {
        {"GET", "/a?b=c", NULL, 5000, 1000, ERR_OK, 200, "GET /a b=c "},
        {"POST", "/a", "hello", 5000, 1000, ERR_OK, 200, "POST /a  hello"},
        {"POST", "/a", NULL, 5000, 1000, ERR_OK, 200, "POST /a  "},
        {"PUT", "/a", "x", 5000, 1000, ERR_OK, 200, "PUT /a  x"},
        {"DELETE", "/a", NULL, 5000, 1000, ERR_OK, 200, "DELETE /a  "},
        {"HEAD", "/a", NULL, 5000, 1000, ERR_OK, 200, ""},
        {"GET", "/none", NULL, 5000, 1000, ERR_OK, 404, NULL},
        {"GET", "/moved", NULL, 5000, 1000, ERR_OK, 302, ""}, /* not followed */
        /* The path is sent as it was checked. */
        {"GET", "/a/../b", NULL, 5000, 1000, ERR_OK, 200, "GET /a/../b  "},
        {"POST", "/a", "0123456789", 5000, 19, ERR_OK, 200, "POST /a  0123456789"},
        {"POST", "/a", "0123456789", 5000, 18, ERR_TOO_LARGE, 200, NULL},
        {"GET", "/later", NULL, 50, 1000, ERR_TIMEOUT, 0, NULL},
        {"GET", "/a", NULL, 5000, 1000, ERR_OK, 200, "GET /a  "},
    };
    static struct site site;
    struct client *client;
    struct caller caller;
    struct loop loop;

    setenv("http_proxy", "http://127.0.0.1:1", 1); /* proxies must not be used */
    site = (struct site){0};
    site_start(&site);
    assert_int_equal(loop_init(&loop, 0), ERR_OK);
    assert_int_equal(client_new(&loop, 4, &client), ERR_OK);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        prepare(&caller, rows[i].method, site_port(&site), rows[i].path);
        caller.call.body = str_of(rows[i].body);
        caller.call.timeout_ms = rows[i].timeout_ms;
        caller.call.reply_bytes_max = rows[i].reply_bytes_max;
        call(&loop, client, &caller);
        if (caller.call.err != rows[i].err || caller.call.status != rows[i].status)
            fail_msg("row %zu: %s, status %d", i, err_name(caller.call.err), caller.call.status);
        if (rows[i].reply)
            assert_str(buf_view(&caller.call.reply), rows[i].reply);
        buf_free(&caller.call.reply);
    }
    client_free(client);
    loop_done(&loop);
    site_stop(&site);
    unsetenv("http_proxy");
}

static void test_headers_of_the_caller(void **state)
{
    static const char *const headers[] = {"X-One: 1", "Authorization: Bearer t", NULL};
    static struct site site;
    struct client *client;
    struct caller caller;
    struct loop loop;
    int kept = 0;

    site = (struct site){0};
    site_start(&site);
    assert_int_equal(loop_init(&loop, 0), ERR_OK);
    assert_int_equal(client_new(&loop, 4, &client), ERR_OK);
    prepare(&caller, "POST", site_port(&site), "/later");
    caller.call.headers = headers;
    caller.call.content_type = "application/json";
    caller.call.body = STR("{}");
    assert_int_equal(client_send(client, &caller.call), ERR_OK);
    while (!kept) {
        uv_run(&loop.uv, UV_RUN_ONCE);
        kept = site.later;
    }
    assert_str(http_header_get(site.pending[0], "x-one"), "1");
    assert_str(http_header_get(site.pending[0], "AUTHORIZATION"), "Bearer t");
    assert_str(http_header_get(site.pending[0], "content-type"), "application/json");
    assert_null(http_header_get(site.pending[0], "expect").at);
    site_answer(&site, 0, "ok");
    hand_run(&loop, &caller.done);
    assert_str(buf_view(&caller.call.reply), "ok");
    buf_free(&caller.call.reply);
    client_free(client);
    loop_done(&loop);
    site_stop(&site);
}

static void count_connections(struct site *site, int most)
{
    assert_true(http_connections(&site->server) <= most);
}

static void test_connections_are_kept_and_bounded(void **state)
{
    static struct site site;
    struct caller callers[20];
    struct client *client;
    struct loop loop;

    site = (struct site){0};
    site_start(&site);
    assert_int_equal(loop_init(&loop, 0), ERR_OK);
    assert_int_equal(client_new(&loop, 2, &client), ERR_OK);
    for (size_t i = 0; i < COUNT_OF(callers); i++) {
        prepare(&callers[i], "GET", site_port(&site), "/a");
        assert_int_equal(client_send(client, &callers[i].call), ERR_OK);
    }
    for (size_t i = 0; i < COUNT_OF(callers); i++) {
        hand_run(&loop, &callers[i].done);
        assert_int_equal(callers[i].call.status, 200);
        buf_free(&callers[i].call.reply);
    }
    site_do(&site, count_connections, 2);
    client_free(client);
    loop_done(&loop);
    site_stop(&site);
}

static void test_nobody_there(void **state)
{
    static struct site site;
    struct client *client;
    struct caller caller;
    struct loop loop;

    site = (struct site){0};
    site_start(&site);
    prepare(&caller, "GET", site_port(&site), "/");
    site_stop(&site);
    assert_int_equal(loop_init(&loop, 0), ERR_OK);
    assert_int_equal(client_new(&loop, 2, &client), ERR_OK);
    call(&loop, client, &caller);
    assert_int_equal(caller.call.err, ERR_IO);
    caller.call.url = "ftp://127.0.0.1/";
    assert_int_equal(client_send(client, &caller.call), ERR_BAD_FIELD);
    caller.call.url = "not a url";
    assert_int_equal(client_send(client, &caller.call), ERR_BAD_FIELD);
    client_free(client);
    loop_done(&loop);
}

static void test_freed_before_the_answer(void **state)
{
    static struct site site;
    struct caller callers[2];
    struct client *client;
    struct loop loop;

    site = (struct site){0};
    site_start(&site);
    for (int by_loop = 0; by_loop < 2; by_loop++) {
        assert_int_equal(loop_init(&loop, 0), ERR_OK);
        assert_int_equal(client_new(&loop, 2, &client), ERR_OK);
        for (int i = 0; i < 2; i++) {
            prepare(&callers[i], "GET", site_port(&site), "/later");
            assert_int_equal(client_send(client, &callers[i].call), ERR_OK);
        }
        uv_run(&loop.uv, UV_RUN_NOWAIT);
        if (!by_loop)
            client_free(client);
        loop_done(&loop);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(callers[i].done, 1);
            assert_int_equal(callers[i].call.err, ERR_CLOSED);
        }
    }
    site_stop(&site);
}

static void test_pieces(void **state)
{
    static struct site site;
    struct client *client;
    struct caller caller;
    struct loop loop;

    site = (struct site){0};
    site_start(&site);
    assert_int_equal(loop_init(&loop, 0), ERR_OK);
    assert_int_equal(client_new(&loop, 2, &client), ERR_OK);
    prepare(&caller, "GET", site_port(&site), "/stream");
    caller.call.timeout_ms = 0;
    caller.call.reply_bytes_max = 0;
    caller.call.piece = on_piece;
    caller.stop_at_piece = true;
    call(&loop, client, &caller);
    assert_int_equal(caller.pieces, 1);
    assert_int_equal(caller.call.err, ERR_OK);
    assert_int_equal(caller.call.reply.len, 0);
    site_await(&site, &site.streams_closed, 1);
    /* The body of an error is kept, not passed to piece. */
    prepare(&caller, "GET", site_port(&site), "/none");
    caller.call.piece = on_piece;
    call(&loop, client, &caller);
    assert_int_equal(caller.pieces, 0);
    assert_int_equal(caller.call.status, 404);
    assert_true(caller.call.reply.len > 0);
    buf_free(&caller.call.reply);
    client_free(client);
    loop_done(&loop);
    site_stop(&site);
}

static void test_url_allowed(void **state)
{
    static const struct {
        const char *url, *pattern;
        bool allowed;
    } rows[] = {
        {"http://127.0.0.1:80/x", "loopback", true},
        {"https://127.9.9.9/x", "loopback", true},
        {"http://[::1]:9/x", "loopback", true},
        {"http://LocalHost/x", "loopback", true},
        {"http://128.0.0.1/", "loopback", false},
        {"http://127.1/", "loopback", false}, /* other spellings are not recognised */
        {"http://0177.0.0.1/", "loopback", false},
        {"http://2130706433/", "loopback", false},
        {"http://localhost.example.com/", "loopback", false},
        {"http://127.0.0.1.example.com/", "loopback", false},
        {"http://127.0.0.1@example.com/", "loopback", false},
        {"http://user:pw@127.0.0.1/", "loopback", false},
        {"http://127.0.0.1\\@example.com/", "loopback", false},
        {"http://127.0.0.1/#x", "loopback", false},
        {"ftp://127.0.0.1/", "loopback", false},
        {"file:///etc/passwd", "loopback", false},
        {"gopher://127.0.0.1/", "loopback", false},
        {"http://127.0.0.1:*/", "loopback", false},
        {"http:127.0.0.1/", "loopback", false},
        {"//127.0.0.1/", "loopback", false},
        {"http://127.0.0.1/a\nb", "loopback", false},
        {"", "loopback", false},
        {"http://10.0.0.1:8080/x", "http://10.0.0.1:*", true},
        {"http://10.0.0.1/x", "http://10.0.0.1:*", true},
        {"https://10.0.0.1/x", "http://10.0.0.1:*", false},
        {"http://10.0.0.2/x", "http://10.0.0.1:*", false},
        {"https://hooks.example.com/x/1", "https://hooks.example.com/x/", true},
        {"https://Hooks.Example.com:443/x/1", "https://hooks.example.com/x/", true},
        {"https://hooks.example.com:444/x/1", "https://hooks.example.com/x/", false},
        {"https://hooks.example.com/y", "https://hooks.example.com/x/", false},
        {"https://hooks.example.com/x", "https://hooks.example.com/x", true},
        {"https://hooks.example.com/x?q", "https://hooks.example.com/x", true},
        {"https://hooks.example.com/xy", "https://hooks.example.com/x", false},
        {"https://hooks.example.com/x/../y", "https://hooks.example.com/x/", false},
        {"https://hooks.example.com/x/%2e%2e/y", "https://hooks.example.com/x/", false},
        {"https://hooks.example.com/x/?a=/../", "https://hooks.example.com/x/", true},
        {"https://hooks.example.com/", "https://hooks.example.com", true},
        {"https://hooks.example.com.evil.example/", "https://hooks.example.com", false},
        {"https://hooks.example.com/", "", false},
        {"https://hooks.example.com/", "*", false},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct str patterns[] = {STR("http://never.example"), str_of(rows[i].pattern)};

        if (client_url_allowed(str_of(rows[i].url), patterns, 2) != rows[i].allowed)
            fail_msg("%s by %s", rows[i].url, rows[i].pattern);
    }
    assert_false(client_url_allowed(STR("http://127.0.0.1/"), NULL, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_headers_of_the_caller),
        cmocka_unit_test(test_connections_are_kept_and_bounded),
        cmocka_unit_test(test_nobody_there),
        cmocka_unit_test(test_freed_before_the_answer),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_url_allowed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
