/* The HTTP server over real sockets: exchanges, late replies, limits, streams, many connections.
 * Malformed bytes are in test_http_raw.c. */
#include "io/http.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../unit.h"
#include "frames.h"
#include "peer.h"
#include "site.h"

#define H "Host: a\r\n"

static struct peer_reply reply; /* too large for the stack */

/* --- exchanges on one connection --- */

static void ask(struct peer *peer, const char *request, const char *want_body)
{
    peer_send(peer, str_of(request));
    assert_true(peer_reply(peer, &reply, false));
    assert_int_equal(reply.status, 200);
    assert_string_equal(reply.body, want_body);
}

static void test_what_a_handler_sees(void **state)
{
    static struct site site;
    struct peer peer;

    site = (struct site){0};
    site_start(&site);
    peer_dial(&peer, site_port(&site));
    ask(&peer, "GET /a%20b?x=%20 HTTP/1.1\r\n" H "\r\n", "GET /a%20b x=%20 ");
    ask(&peer, "PUT http://h:1/p?q HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\nhi", "PUT /p q hi");
    ask(&peer, "PATCH http://h?q HTTP/1.1\r\n" H "\r\n", "PATCH / q ");
    ask(&peer,
        "POST /c HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n"
        "5\r\nhello\r\n6;x\r\n world\r\n0\r\nT: v\r\n\r\n",
        "POST /c  hello world");
    assert_true(peer_reply_has(&reply, "X-Content-Type-Options: nosniff"));
    assert_non_null(strstr(reply.head, "\r\nDate: "));
    assert_null(strstr(reply.head, "\r\nConnection: "));
    peer_close(&peer);
    site_stop(&site);
}

static void test_head_has_no_body(void **state)
{
    static struct site site;
    struct peer peer;

    site = (struct site){0};
    site_start(&site);
    peer_dial(&peer, site_port(&site));
    peer_send(&peer, STR("HEAD /echo HTTP/1.1\r\n" H "\r\nHEAD /none HTTP/1.1\r\n" H "\r\n"
                         "HEAD /stream HTTP/1.1\r\n" H "\r\n"));
    assert_true(peer_reply(&peer, &reply, true));
    assert_int_equal(reply.status, 200);
    assert_true(peer_reply_has(&reply, "Content-Length: 12"));
    assert_true(peer_reply(&peer, &reply, true));
    assert_int_equal(reply.status, 404);
    assert_true(peer_reply(&peer, &reply, true));
    assert_true(peer_reply_has(&reply, "Content-Type: text/event-stream"));
    assert_true(peer_ended(&peer));
    peer_close(&peer);
    site_stop(&site);
}

static void test_expect_continue(void **state)
{
    static struct site site;
    struct peer peer;

    site = (struct site){0};
    site_start(&site);
    peer_dial(&peer, site_port(&site));
    peer_send(&peer,
              STR("POST /echo HTTP/1.1\r\n" H "Content-Length: 2\r\nExpect: 100-continue\r\n\r\n"));
    assert_true(peer_reply(&peer, &reply, true));
    assert_int_equal(reply.status, 100);
    peer_send(&peer, STR("hi"));
    assert_true(peer_reply(&peer, &reply, false));
    assert_string_equal(reply.body, "POST /echo  hi");
    /* A client that sends its body at once gets no 100 Continue. */
    peer_send(&peer, STR("POST /echo HTTP/1.1\r\n" H
                         "Content-Length: 2\r\nExpect: 100-Continue\r\n\r\nho"));
    assert_true(peer_reply(&peer, &reply, false));
    assert_string_equal(reply.body, "POST /echo  ho");
    peer_close(&peer);
    site_stop(&site);
}

static void test_http_1_0_keeps_alive_on_request(void **state)
{
    static struct site site;
    struct peer peer;

    site = (struct site){0};
    site_start(&site);
    peer_dial(&peer, site_port(&site));
    ask(&peer, "GET /a HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", "GET /a  ");
    assert_true(peer_reply_has(&reply, "Connection: keep-alive"));
    ask(&peer, "GET /b HTTP/1.0\r\n\r\n", "GET /b  ");
    assert_true(peer_reply_has(&reply, "Connection: close"));
    assert_true(peer_ended(&peer));
    peer_close(&peer);
    site_stop(&site);
}

/* --- late replies --- */

static void test_pipelined_answers_keep_their_order(void **state)
{
    static struct site site;
    struct peer peer;
    struct peer other;

    site = (struct site){0};
    site_start(&site);
    peer_dial(&peer, site_port(&site));
    peer_dial(&other, site_port(&site));
    peer_send(&peer, STR("POST /later HTTP/1.1\r\n" H "Content-Length: 1\r\n\r\n1"
                         "GET /echo HTTP/1.1\r\n" H "\r\n"
                         "GET /later HTTP/1.1\r\n" H "\r\n"));
    site_await(&site, &site.later, 1);
    peer_send(&other, STR("GET /later HTTP/1.1\r\n" H "\r\n"));
    site_await(&site, &site.later, 2);
    assert_int_equal(site.asked, 2); /* the second request of `peer` is not parsed yet */
    site_answer(&site, 1, "other");
    assert_true(peer_reply(&other, &reply, false));
    assert_string_equal(reply.body, "other");
    site_answer(&site, 0, "first");
    site_await(&site, &site.later, 3);
    site_answer(&site, 2, "third");
    assert_true(peer_reply(&peer, &reply, false));
    assert_string_equal(reply.body, "first");
    assert_true(peer_reply(&peer, &reply, false));
    assert_string_equal(reply.body, "GET /echo  ");
    assert_true(peer_reply(&peer, &reply, false));
    assert_string_equal(reply.body, "third");
    peer_close(&peer);
    peer_close(&other);
    site_stop(&site);
}

static struct peer waiting[3];

static bool has_reply(const struct peer *peer, int timeout_ms)
{
    struct pollfd watched = {.fd = peer->fd, .events = POLLIN};

    return poll(&watched, 1, timeout_ms) > 0;
}

static void answer_in_one_turn(struct site *site, int index)
{
    struct http_reply answer = {.status = 200, .body = STR("now"), .at_once = true};

    http_reply(site->pending[0], &answer);
    assert_true(has_reply(&waiting[0], 10000));
    answer.at_once = false;
    http_reply(site->pending[1], &answer);
    answer.at_once = true;
    http_reply(site->pending[2], &answer);
    assert_false(has_reply(&waiting[1], 0));
    assert_false(has_reply(&waiting[2], 0)); /* the other one comes first */
}

static void test_a_reply_at_once_does_not_wait_for_the_turn(void **state)
{
    static struct site site;

    site = (struct site){0};
    site_start(&site);
    for (int i = 0; i < 3; i++) {
        peer_dial(&waiting[i], site_port(&site));
        peer_send(&waiting[i], STR("GET /later HTTP/1.1\r\n" H "\r\n"));
        site_await(&site, &site.later, i + 1);
    }
    site_do(&site, answer_in_one_turn, 0);
    for (int i = 0; i < 3; i++) {
        assert_true(peer_reply(&waiting[i], &reply, false));
        assert_string_equal(reply.body, "now");
        peer_close(&waiting[i]);
    }
    site_stop(&site);
}

static void test_a_long_pipeline_is_held_back(void **state)
{
    static struct site site;
    struct buf flood = {0};
    struct peer peer;

    site = (struct site){0};
    site_start(&site);
    peer_dial(&peer, site_port(&site));
    peer_send(&peer, STR("GET /later HTTP/1.1\r\n" H "\r\n"));
    site_await(&site, &site.later, 1);
    for (int i = 0; i < 20000; i++) /* 600 kB: more than is buffered, and more than one read */
        buf_str(&flood, STR("GET /echo HTTP/1.1\r\n" H "\r\n"));
    /* As much as the server and the socket buffers take before it stops reading. */
    assert_true(send(peer.fd, flood.at, flood.len, MSG_NOSIGNAL | MSG_DONTWAIT) > 0);
    assert_int_equal(site.asked, 1);
    site_answer(&site, 0, "first");
    assert_true(peer_reply(&peer, &reply, false));
    assert_string_equal(reply.body, "first");
    for (int i = 0; i < 100; i++) {
        assert_true(peer_reply(&peer, &reply, false));
        assert_string_equal(reply.body, "GET /echo  ");
    }
    peer_reset(&peer);
    buf_free(&flood);
    site_stop(&site);
}

static void test_the_peer_leaves_before_the_reply(void **state)
{
    static struct site site;
    struct peer peer;

    site = (struct site){0};
    site_start(&site);
    for (int i = 0; i < 2; i++) {
        peer_dial(&peer, site_port(&site));
        peer_send(&peer, STR("POST /later HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\nhi"));
        site_await(&site, &site.later, i + 1);
        if (i == 0)
            peer_close(&peer);
        else
            peer_reset(&peer);
        site_await(&site, &site.gone, i + 1);
        assert_true(site.pending[i]->gone);
        assert_int_equal(strncmp(site.pending[i]->peer, "127.0.0.1:", 10), 0);
        assert_str(site.pending[i]->body, "hi");
        site_answer(&site, i, "nobody hears this");
    }
    assert_int_equal(site.gone, 2);
    site_stop(&site);
}

static void test_a_request_never_answered_goes_with_the_loop(void **state)
{
    static struct site site;
    struct peer peer;

    site = (struct site){0};
    site_start(&site);
    peer_dial(&peer, site_port(&site));
    peer_send(&peer, STR("GET /later HTTP/1.1\r\n" H "\r\n"));
    site_await(&site, &site.later, 1);
    site_stop(&site); /* the address sanitiser reports leaks */
    assert_int_equal(site.gone, 1);
    peer_close(&peer);
}

/* --- limits --- */

static void test_limits_of_the_head(void **state)
{
    static struct site site;
    static char text[20000];
    struct peer peer;

    site = (struct site){
        .limits = {.header_bytes_max = 2000, .uri_bytes_max = 500, .header_count_max = 5}};
    site_start(&site);
    static const struct {
        int uri, value, headers, status;
    } cases[] = {
        {499, 1, 1, 200},   {501, 1, 1, 414},   {3000, 1, 1, 414}, {10, 1900, 1, 200},
        {10, 2000, 1, 431}, {10, 9000, 1, 431}, {10, 1, 4, 200},   {10, 1, 5, 431},
    };

    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct buf raw = {0};

        memset(text, 'x', sizeof text);
        buf_fmt(&raw, "GET /%.*s HTTP/1.1\r\n" H, cases[i].uri - 1, text);
        for (int n = 0; n < cases[i].headers; n++)
            buf_fmt(&raw, "X%d: %.*s\r\n", n, n == 0 ? cases[i].value : 1, text);
        buf_str(&raw, STR("\r\n"));
        peer_dial(&peer, site_port(&site));
        peer_send(&peer, buf_view(&raw));
        assert_true(peer_reply(&peer, &reply, false));
        if (reply.status != cases[i].status)
            fail_msg("case %zu: %d", i, reply.status);
        peer_close(&peer);
        buf_free(&raw);
    }
    /* An endless head or line is refused before it ends. */
    for (int line = 0; line < 2; line++) {
        peer_dial(&peer, site_port(&site));
        peer_send(&peer, line ? STR("GET /") : STR("GET / HTTP/1.1\r\n" H "X: "));
        peer_send(&peer, (struct str){.at = text, .len = 2500});
        assert_true(peer_reply(&peer, &reply, false));
        assert_int_equal(reply.status, line ? 414 : 431);
        assert_true(peer_ended(&peer));
        peer_close(&peer);
    }
    site_stop(&site);
}

static void test_limits_of_the_body(void **state)
{
    static struct site site;
    static char text[60001];
    struct buf raw = {0};
    struct peer peer;

    site = (struct site){.limits = {.body_bytes_max = 60000}};
    site_start(&site);
    memset(text, 'y', sizeof text);
    peer_dial(&peer, site_port(&site));
    buf_fmt(&raw, "POST /echo HTTP/1.1\r\n" H "Content-Length: 60000\r\n\r\n%.60000s", text);
    peer_send(&peer, buf_view(&raw));
    assert_true(peer_reply(&peer, &reply, false));
    assert_int_equal(reply.status, 200);
    assert_int_equal(reply.body_len, 60000 + strlen("POST /echo  "));
    buf_clear(&raw);
    buf_fmt(&raw, "POST /echo HTTP/1.1\r\n" H "Content-Length: 60001\r\n\r\n%.60001s", text);
    peer_send(&peer, buf_view(&raw));
    assert_true(peer_reply(&peer, &reply, false));
    assert_int_equal(reply.status, 413);
    ask(&peer, "GET /a HTTP/1.1\r\n" H "\r\n", "GET /a  "); /* short enough to be skipped */
    peer_send(&peer, STR("POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\nea61\r\n"));
    peer_send(&peer, (struct str){.at = text, .len = sizeof text});
    assert_true(peer_reply(&peer, &reply, false));
    assert_int_equal(reply.status, 413);
    assert_true(peer_ended(&peer));
    peer_close(&peer);
    buf_free(&raw);
    site_stop(&site);
}

/* A request that is refused by its head is answered at once, without waiting for the body; the
 * connection stays open only if it is certain where the next request begins. */
static void test_refused_by_the_head(void **state)
{
    static struct site site;
    struct peer peer;
    static const struct {
        const char *head, *body; /* NULL: never sent */
        bool stays;
    } rows[] = {
        {"", "", true},
        {"Content-Length: 5\r\n", "hello", true},
        {"Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n", true},
        {"Content-Length: 65537\r\n", NULL, false},
        {"Content-Length: 5\r\nExpect: 100-continue\r\n", NULL, false},
        {"Content-Length: 5\r\nConnection: close\r\n", NULL, false},
    };

    site = (struct site){0};
    site_start(&site);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct buf raw = {0};

        peer_dial(&peer, site_port(&site));
        buf_fmt(&raw, "POST /none HTTP/1.1\r\n" H "%s\r\n", rows[i].head);
        peer_send(&peer, buf_view(&raw));
        assert_true(peer_reply(&peer, &reply, false)); /* the body is not sent yet */
        assert_int_equal(reply.status, 404);
        assert_int_equal(peer_reply_has(&reply, "Connection: close"), !rows[i].stays);
        if (rows[i].stays) {
            peer_send(&peer, str_of(rows[i].body));
            ask(&peer, "GET /a HTTP/1.1\r\n" H "\r\n", "GET /a  ");
        } else {
            assert_true(peer_ended(&peer));
        }
        peer_close(&peer);
        buf_free(&raw);
    }
    assert_int_equal(site.asked, 3); /* the handler was not called for the others */
    site_stop(&site);
}

/* Two bodies of 60000 bytes fit together; a third does not, sized or chunked; a small one always
 * does. When the first request is answered there is room again. */
static void test_limit_of_all_bodies(void **state)
{
    enum { BODY = 60000, COUNTED = BODY - HTTP_BODY_SMALL_BYTES };
    static struct site site;
    static char text[BODY];
    struct peer held[2], peer;
    static const char *const framings[] = {"Content-Length: 60000\r\n",
                                           "Transfer-Encoding: chunked\r\n"};
    struct buf raw = {0};

    site = (struct site){.limits = {.bodies_bytes_max = 2 * COUNTED}};
    site_start(&site);
    memset(text, 'y', sizeof text);
    for (int i = 0; i < 2; i++) { /* one is being read, one processed */
        peer_dial(&held[i], site_port(&site));
        peer_send(&held[i], STR("POST /later HTTP/1.1\r\n" H "Content-Length: 60000\r\n"
                                "Expect: 100-continue\r\n\r\n"));
        assert_true(peer_await(&held[i], strlen("HTTP/1.1 100 Continue\r\n\r\n")));
        buf_clear(&held[i].in);
    }
    peer_send(&held[0], (struct str){.at = text, .len = BODY});
    site_await(&site, &site.later, 1);
    assert_int_equal(http_bodies_bytes(), 2 * COUNTED);
    for (size_t i = 0; i < COUNT_OF(framings); i++) {
        peer_dial(&peer, site_port(&site));
        buf_clear(&raw);
        buf_fmt(&raw, "POST /echo HTTP/1.1\r\n" H "%s\r\n", framings[i]);
        peer_send(&peer, buf_view(&raw));
        if (i == 1) {
            peer_send(&peer, STR("ea60\r\n"));
            peer_send(&peer, (struct str){.at = text, .len = BODY});
        }
        assert_true(peer_reply(&peer, &reply, false));
        assert_int_equal(reply.status, 503);
        assert_true(peer_reply_has(&reply, "Retry-After: 1"));
        assert_non_null(strstr(reply.body, "bodies_bytes_max"));
        peer_close(&peer);
    }
    peer_dial(&peer, site_port(&site));
    peer_send(&peer, STR("POST /echo HTTP/1.1\r\n" H "Content-Length: 16384\r\n\r\n"));
    peer_send(&peer, (struct str){.at = text, .len = 16384});
    assert_true(peer_reply(&peer, &reply, false));
    assert_int_equal(reply.status, 200);
    site_answer(&site, 0, "done");
    assert_true(peer_reply(&held[0], &reply, false));
    assert_int_equal(http_bodies_bytes(), COUNTED);
    peer_send(&peer, STR("POST /echo HTTP/1.1\r\n" H "Content-Length: 60000\r\n\r\n"));
    peer_send(&peer, (struct str){.at = text, .len = BODY});
    assert_true(peer_reply(&peer, &reply, false));
    assert_int_equal(reply.status, 200);
    peer_close(&held[1]); /* in the middle of its body */
    peer_close(&held[0]);
    peer_close(&peer);
    buf_free(&raw);
    site_stop(&site);
    assert_int_equal(http_bodies_bytes(), 0);
}

static void test_values_of_a_query_are_text(void **state)
{
    static struct site site;
    static const struct {
        const char *query;
        int status;
        const char *field;
    } rows[] = {
        {"a=%c3%bc&b=x+y&c", 200, ""},
        {"", 200, ""},
        {"a=%ff", 400, "a"},
        {"a=1&b=%ed%a0%80", 400, "b"},
        {"cursor=x%00y&b=1", 400, "cursor"},
        {"b=%c3", 400, "b"},
        {"b=%zz", 400, "b"},
        {"b=%4", 400, "b"},
    };
    struct peer peer;

    site = (struct site){0};
    site_start(&site);
    peer_dial(&peer, site_port(&site));
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct buf raw = {0};
        char field[40];

        buf_fmt(&raw, "GET /echo?%s HTTP/1.1\r\n" H "\r\n", rows[i].query);
        peer_send(&peer, buf_view(&raw));
        assert_true(peer_reply(&peer, &reply, false));
        assert_int_equal(reply.status, rows[i].status);
        snprintf(field, sizeof field, "\"field\":\"%s\"", rows[i].field);
        assert_true(reply.status == 200 || strstr(reply.body, field));
        buf_free(&raw);
    }
    peer_close(&peer);
    site_stop(&site);
}

static void test_deadlines(void **state)
{
    static struct site site;
    static const struct {
        const char *raw;
        int status; /* 0: closed without a reply */
    } cases[] = {
        {"", 0},
        {"GET / HTTP/1.1\r\nHo", 408},
        {"POST /echo HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhel", 408},
        {"POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n5\r\nhe", 408},
        {"POST /none HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhel", 404},
        {"GET /echo HTTP/1.1\r\n" H "\r\n", 200},
    };
    struct peer peers[COUNT_OF(cases)];

    site = (struct site){
        .limits.net = {.header_timeout_ms = 200, .body_timeout_ms = 200, .idle_timeout_ms = 200}};
    site_start(&site);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        peer_dial(&peers[i], site_port(&site));
        peer_send(&peers[i], str_of(cases[i].raw));
    }
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        if (cases[i].status) {
            assert_true(peer_reply(&peers[i], &reply, false));
            assert_int_equal(reply.status, cases[i].status);
        }
        assert_true(peer_ended(&peers[i]));
        peer_close(&peers[i]);
    }
    site_stop(&site);
}

static void test_a_pending_reply_has_no_deadline(void **state)
{
    static struct site site;
    struct peer pending;
    struct peer idle;

    site = (struct site){
        .limits.net = {.header_timeout_ms = 200, .body_timeout_ms = 200, .idle_timeout_ms = 200}};
    site_start(&site);
    peer_dial(&pending, site_port(&site));
    peer_send(&pending, STR("GET /later HTTP/1.1\r\n" H "\r\n"));
    site_await(&site, &site.later, 1);
    for (int i = 0; i < 3; i++) { /* three deadlines of other connections pass */
        peer_dial(&idle, site_port(&site));
        assert_true(peer_ended(&idle));
        peer_close(&idle);
    }
    site_answer(&site, 0, "patience");
    assert_true(peer_reply(&pending, &reply, false));
    assert_string_equal(reply.body, "patience");
    peer_close(&pending);
    site_stop(&site);
}

static void test_requests_per_connection(void **state)
{
    static struct site site;
    struct peer peer;

    site = (struct site){.limits.requests_per_connection_max = 2};
    site_start(&site);
    peer_dial(&peer, site_port(&site));
    ask(&peer, "GET /a HTTP/1.1\r\n" H "\r\n", "GET /a  ");
    ask(&peer, "GET /b HTTP/1.1\r\n" H "\r\n", "GET /b  ");
    assert_true(peer_reply_has(&reply, "Connection: close"));
    assert_true(peer_ended(&peer));
    peer_close(&peer);
    site_stop(&site);
}

/* --- streams --- */

static void send_events(struct site *site, int count)
{
    static char event[10000];

    memset(event, 'e', sizeof event);
    for (int i = 0; i < count && site->stream; i++)
        if (!http_stream_send(site->stream, (struct str){.at = event, .len = sizeof event}))
            break;
}

static void close_stream(struct site *site, int unused)
{
    http_stream_close(site->stream);
}

static void test_a_stream_is_read_to_its_end(void **state)
{
    static struct site site;
    struct peer peer;

    site = (struct site){0};
    site_start(&site);
    peer_dial(&peer, site_port(&site));
    peer_send(&peer, STR("GET /stream HTTP/1.1\r\n" H "\r\nignored"));
    assert_true(peer_reply(&peer, &reply, true));
    assert_true(peer_reply_has(&reply, "Content-Type: text/event-stream"));
    assert_true(peer_await(&peer, 13));
    assert_memory_equal(peer.in.at, "data: hello\n\n", 13);
    site_do(&site, send_events, 50);
    site_do(&site, close_stream, 0);
    assert_true(peer_await(&peer, 13 + 500000));
    buf_clear(&peer.in);
    assert_true(peer_ended(&peer));
    site_await(&site, &site.streams_closed, 1);
    peer_close(&peer);
    site_stop(&site);
}

static void test_a_slow_reader_is_dropped(void **state)
{
    static struct site site;
    struct peer peer;

    site = (struct site){.limits.net.write_queue_bytes_max = 100000};
    site_start(&site);
    peer_dial(&peer, site_port(&site));
    peer_send(&peer, STR("GET /stream HTTP/1.1\r\n" H "\r\n"));
    assert_true(peer_reply(&peer, &reply, true));
    site_do(&site, send_events, 2000); /* 20 MB: more than any socket buffer takes */
    site_await(&site, &site.streams_closed, 1);
    peer_close(&peer);
    site_stop(&site);
}

/* --- many connections --- */

static void ask_known(struct peer *peer)
{
    ask(peer, "GET /known HTTP/1.1\r\n" H "\r\n", "GET /known  ");
}

/* All connections are known: none is closed, and the next one gets a refusal. */
static void test_over_the_cap(void **state)
{
    static struct site site;
    struct peer peers[3];

    site = (struct site){.limits.net.connections_max = 2};
    site_start(&site);
    for (int i = 0; i < 2; i++) {
        peer_dial(&peers[i], site_port(&site));
        ask_known(&peers[i]);
    }
    peer_dial(&peers[2], site_port(&site));
    peer_send(&peers[2], STR("GET /a HTTP/1.1\r\n" H "\r\n"));
    assert_true(peer_reply(&peers[2], &reply, false));
    assert_int_equal(reply.status, 503);
    assert_true(peer_reply_has(&reply, "Retry-After: 1"));
    assert_true(peer_ended(&peers[2]));
    peer_close(&peers[2]);
    peer_send(&peers[0], STR("GET /a HTTP/1.1\r\n" H "Connection: close\r\n\r\n"));
    assert_true(peer_reply(&peers[0], &reply, false));
    assert_true(peer_ended(&peers[0]));
    peer_close(&peers[0]);
    do { /* its place is free once the server has noticed the close */
        peer_dial(&peers[2], site_port(&site));
        peer_send(&peers[2], STR("GET /a HTTP/1.1\r\n" H "\r\n"));
        assert_true(peer_reply(&peers[2], &reply, false));
        if (reply.status == 503)
            peer_close(&peers[2]);
    } while (reply.status == 503);
    assert_int_equal(reply.status, 200);
    peer_close(&peers[1]);
    peer_close(&peers[2]);
    site_stop(&site);
}

/* Whichever limit is reached, the connection that has been unknown for longest is closed, even if
 * it was answered; known and new connections stay. */
static void test_the_unknown_make_room(void **state)
{
    static const struct net_limits rows[] = {
        {.connections_max = 3, .connections_unknown_percent = 100},
        {.connections_max = 10, .connections_unknown_percent = 20},
        {.connections_max = 10, .connections_unknown_percent = 100, .connections_per_peer_max = 2},
    };
    static struct site site;
    struct peer known, next, unknown[5];

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        site = (struct site){.limits.net = rows[i]};
        site_start(&site);
        peer_dial(&known, site_port(&site));
        ask_known(&known);
        peer_dial(&unknown[0], site_port(&site));
        ask(&unknown[0], "GET /a HTTP/1.1\r\n" H "\r\n", "GET /a  ");
        for (int k = 1; k < 5; k++) {
            peer_dial(&unknown[k], site_port(&site));
            if (k > 1) {
                assert_true(peer_ended(&unknown[k - 2]));
                peer_close(&unknown[k - 2]);
            }
        }
        peer_dial(&next, site_port(&site)); /* replaces the older of two unknown ones */
        ask_known(&next);
        assert_true(peer_ended(&unknown[3]));
        ask(&unknown[4], "GET /b HTTP/1.1\r\n" H "\r\n", "GET /b  ");
        ask_known(&known);
        peer_close(&unknown[3]);
        peer_close(&unknown[4]);
        peer_close(&next);
        peer_close(&known);
        site_stop(&site);
    }
}

static void test_401_ends_its_connection(void **state)
{
    static struct site site;
    struct peer peer;

    site = (struct site){0};
    site_start(&site);
    peer_dial(&peer, site_port(&site));
    peer_send(&peer, STR("GET /refused HTTP/1.1\r\n" H "\r\n"));
    assert_true(peer_reply(&peer, &reply, false));
    assert_int_equal(reply.status, 401);
    assert_true(peer_reply_has(&reply, "Connection: close"));
    assert_true(peer_ended(&peer));
    peer_close(&peer);
    site_stop(&site);
}

static void test_out_of_descriptors(void **state)
{
    static struct site site;
    struct rlimit before;
    struct rlimit tight;
    struct peer peer;
    struct peer refused;
    int hoard[64];
    int count = 0;

    site = (struct site){0};
    site_start(&site);
    peer_dial(&peer, site_port(&site));
    ask_known(&peer);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    tight = before;
    tight.rlim_cur = 64;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
    refused.fd = socket(AF_INET, SOCK_STREAM, 0); /* while a descriptor is left */
    while (count < 64 && (hoard[count] = dup(0)) >= 0)
        count++;
    close(refused.fd);
    peer_dial(&refused, site_port(&site)); /* takes the last descriptor, so accept() fails */
    assert_true(peer_ended(&refused));     /* accepted with the spare descriptor and closed */
    ask(&peer, "GET /b HTTP/1.1\r\n" H "\r\n", "GET /b  "); /* the loop does not spin */
    peer_close(&refused);
    while (count > 0)
        close(hoard[--count]);
    setrlimit(RLIMIT_NOFILE, &before);
    peer_dial(&refused, site_port(&site));
    ask(&refused, "GET /c HTTP/1.1\r\n" H "\r\n", "GET /c  ");
    peer_close(&refused);
    peer_close(&peer);
    site_stop(&site);
}

static void drain(struct site *site, int unused)
{
    http_drain(&site->server);
}

static void check_connections(struct site *site, int count)
{
    assert_int_equal(http_connections(&site->server), count);
}

static void check_open_socket(struct site *site, int least)
{
    assert_true(http_connections(&site->server) >= least && site->ws_closed == 0);
}

static void test_drain(void **state)
{
    static struct site site;
    struct peer idle;
    struct peer busy;
    struct peer socket;

    site = (struct site){0};
    site_start(&site);
    peer_dial(&idle, site_port(&site));
    ask(&idle, "GET /a HTTP/1.1\r\n" H "\r\n", "GET /a  ");
    peer_dial(&busy, site_port(&site));
    peer_send(&busy, STR("GET /later HTTP/1.1\r\n" H "\r\n"));
    site_await(&site, &site.later, 1);
    frame_open(&socket, site_port(&site));
    site_do(&site, check_connections, 3);
    site_do(&site, drain, 0);
    site_do(&site, drain, 0); /* a second call does nothing */
    assert_true(peer_ended(&idle));
    site_answer(&site, 0, "last words");
    assert_true(peer_reply(&busy, &reply, false));
    assert_string_equal(reply.body, "last words");
    assert_true(peer_reply_has(&reply, "Connection: close"));
    assert_true(peer_ended(&busy));
    peer_close(&idle);
    peer_close(&busy);
    site_await(&site, &site.ws_opened, 1);
    site_do(&site, check_open_socket, 1); /* the drain does not close WebSockets */
    peer_close(&socket);
    site_stop(&site);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_a_handler_sees),
        cmocka_unit_test(test_head_has_no_body),
        cmocka_unit_test(test_expect_continue),
        cmocka_unit_test(test_http_1_0_keeps_alive_on_request),
        cmocka_unit_test(test_pipelined_answers_keep_their_order),
        cmocka_unit_test(test_a_reply_at_once_does_not_wait_for_the_turn),
        cmocka_unit_test(test_a_long_pipeline_is_held_back),
        cmocka_unit_test(test_the_peer_leaves_before_the_reply),
        cmocka_unit_test(test_a_request_never_answered_goes_with_the_loop),
        cmocka_unit_test(test_limits_of_the_head),
        cmocka_unit_test(test_limits_of_the_body),
        cmocka_unit_test(test_refused_by_the_head),
        cmocka_unit_test(test_limit_of_all_bodies),
        cmocka_unit_test(test_values_of_a_query_are_text),
        cmocka_unit_test(test_deadlines),
        cmocka_unit_test(test_a_pending_reply_has_no_deadline),
        cmocka_unit_test(test_requests_per_connection),
        cmocka_unit_test(test_a_stream_is_read_to_its_end),
        cmocka_unit_test(test_a_slow_reader_is_dropped),
        cmocka_unit_test(test_over_the_cap),
        cmocka_unit_test(test_the_unknown_make_room),
        cmocka_unit_test(test_401_ends_its_connection),
        cmocka_unit_test(test_out_of_descriptors),
        cmocka_unit_test(test_drain),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
