/* Connections below HTTP: addresses, back-pressure, the write queue, deadlines. One loop with both
 * ends, run by hand. */
#include "io/net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../unit.h"
#include "base/clock.h"
#include "hand.h"
#include "peer.h"

static const struct net_limits limits = {.connections_max = 10,
                                         .connections_unknown_percent = 100,
                                         .write_queue_bytes_max = 1 << 20,
                                         .header_timeout_ms = 5000,
                                         .body_timeout_ms = 5000,
                                         .idle_timeout_ms = 5000};

/* One end of a connection and its events. */
struct end {
    struct net_conn *conn;
    int opened;
    int closed;
    int enough; /* `got` has `want` bytes */
    size_t want;
    struct buf got;
    int calls;
    char peer[64];
    const char *error;
};

static void on_opened(struct net_conn *conn)
{
    struct end *end = conn->user;

    end->conn = conn;
    end->opened++;
    str_copy(str_of(conn->peer), end->peer, sizeof end->peer);
}

static void on_data(struct net_conn *conn, struct str bytes)
{
    struct end *end = conn->user;

    end->calls++;
    buf_str(&end->got, bytes);
    end->enough = end->got.len >= end->want;
}

static void on_closed(struct net_conn *conn)
{
    struct end *end = conn->user;

    end->conn = NULL;
    end->closed++;
    end->error = conn->error;
}

static const struct net_handler handler = {
    .opened = on_opened, .data = on_data, .closed = on_closed};

struct pair {
    struct loop loop;
    struct net_listener *listener;
    struct end server;
    struct end client;
};

static void pair_open(struct pair *pair, const char *addr, const char *host)
{
    struct problem why = {.detail = ""};
    struct net_conn *conn;

    *pair = (struct pair){0};
    pair->server.want = pair->client.want = SIZE_MAX;
    assert_int_equal(loop_init(&pair->loop, 0), ERR_OK);
    if (net_listen(&pair->loop, addr, &limits, &handler, &pair->server, &pair->listener, &why))
        fail_msg("%s", why.detail);
    assert_int_equal(net_connect(&pair->loop, host, pair->listener->port, NULL, &limits, &handler,
                                 &pair->client, &conn, &why),
                     ERR_OK);
    net_write(conn, STR("early ")); /* before it is connected */
    hand_run(&pair->loop, &pair->client.opened);
    hand_run(&pair->loop, &pair->server.opened);
}

static void pair_close(struct pair *pair)
{
    loop_done(&pair->loop);
    assert_int_equal(pair->server.closed, 1);
    assert_int_equal(pair->client.closed, 1);
    buf_free(&pair->server.got);
    buf_free(&pair->client.got);
}

static void test_both_families(void **state)
{
    static const struct {
        const char *addr, *host, *peer;
    } rows[] = {
        {"127.0.0.1:0", "127.0.0.1", "127.0.0.1:"},
        {"localhost:0", "localhost", "127.0.0.1:"},
        {"[::1]:0", "::1", "[::1]:"},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct pair pair;

        pair_open(&pair, rows[i].addr, rows[i].host);
        assert_int_equal(strncmp(pair.server.peer, rows[i].peer, strlen(rows[i].peer)), 0);
        assert_int_equal(pair.listener->connections, 1);
        net_write(pair.client.conn, STR("and late"));
        pair.server.want = 14;
        hand_run(&pair.loop, &pair.server.enough);
        assert_str(buf_view(&pair.server.got), "early and late");
        pair_close(&pair);
    }
}

static void test_addresses(void **state)
{
    static const struct {
        const char *addr;
        bool loopback;
    } rows[] = {
        {"127.0.0.1:7420", true},
        {"127.9.9.9:1", true},
        {"[::1]:7420", true},
        {"localhost:7420", true},
        {"127.0.0.1", true},
        {"::1", true},
        {"LOCALHOST", true},
        {"0.0.0.0:7420", false},
        {"[::]:7420", false},
        {"10.0.0.1:7420", false},
        {"128.0.0.1", false},
        {"localhost.example:1", false},
        {"", false},
        {"[::ffff:10.0.0.1]:1", false},
    };
    static const char *const bad[] = {
        "",        "127.0.0.1",     ":80",    "127.0.0.1:", "127.0.0.1:x", "1:2:3",       "::1:80",
        "[::1]80", "1.2.3.4:65536", "a.b:80", "[::1:80",    "[]:80",       "127.0.0.1:-1"};
    struct net_listener *listener;
    struct problem why;
    struct loop loop;

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (net_addr_is_loopback(rows[i].addr) != rows[i].loopback)
            fail_msg("%s", rows[i].addr);
    assert_int_equal(loop_init(&loop, 0), ERR_OK);
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        if (net_listen(&loop, bad[i], &limits, &handler, NULL, &listener, &why) != ERR_BAD_FIELD)
            fail_msg("%s", bad[i]);
    assert_int_equal(net_listen(&loop, "192.0.2.1:1", &limits, &handler, NULL, &listener, &why),
                     ERR_IO); /* not an address of this machine */
    assert_non_null(strstr(why.detail, "192.0.2.1:1"));
    loop_done(&loop);
}

/* Two loops listen on one port, as in the server. */
static void test_a_port_can_be_shared(void **state)
{
    struct net_listener *first;
    struct net_listener *second;
    struct problem why;
    struct loop loop;
    char addr[32];

    assert_int_equal(loop_init(&loop, 0), ERR_OK);
    assert_int_equal(net_listen(&loop, "127.0.0.1:0", &limits, &handler, NULL, &first, &why),
                     ERR_OK);
    snprintf(addr, sizeof addr, "127.0.0.1:%d", first->port);
    assert_int_equal(net_listen(&loop, addr, &limits, &handler, NULL, &second, &why), ERR_OK);
    net_listener_close(first);
    loop_done(&loop);
}

static void test_writes_of_one_turn_leave_together(void **state)
{
    struct pair pair;

    pair_open(&pair, "127.0.0.1:0", "127.0.0.1");
    pair.server.want = 6;
    hand_run(&pair.loop, &pair.server.enough);
    buf_clear(&pair.server.got);
    pair.server.calls = pair.server.enough = 0;
    pair.server.want = 1000;
    for (int i = 0; i < 500; i++)
        net_write(pair.client.conn, STR("xy"));
    assert_int_equal(net_write_queued(pair.client.conn), 1000);
    hand_run(&pair.loop, &pair.server.enough);
    assert_int_equal(pair.server.calls, 1);
    assert_int_equal(net_write_queued(pair.client.conn), 0);
    pair_close(&pair);
}

static void fill(struct net_conn *conn, size_t len)
{
    char *bytes = calloc(1, len);

    net_write(conn, (struct str){.at = bytes, .len = len});
    free(bytes);
}

/* One side stops reading: the queue fills, and nothing is lost when it goes on. */
static void test_back_pressure(void **state)
{
    const size_t size = 16 << 20; /* more than the kernel buffers for one connection */
    struct pair pair;

    pair_open(&pair, "127.0.0.1:0", "127.0.0.1");
    pair.server.want = 6;
    hand_run(&pair.loop, &pair.server.enough);
    buf_clear(&pair.server.got);
    net_read_pause(pair.server.conn);
    pair.server.enough = 0;
    fill(pair.client.conn, size);
    for (int i = 0; i < 20; i++)
        uv_run(&pair.loop.uv, UV_RUN_NOWAIT);
    assert_true(net_write_queued(pair.client.conn) > 0);
    assert_int_equal(pair.server.got.len, 0);
    net_read_resume(pair.server.conn);
    pair.server.want = size;
    hand_run(&pair.loop, &pair.server.enough);
    assert_int_equal(pair.server.got.len, size);
    pair_close(&pair);
}

static void test_a_slow_reader_is_dropped(void **state)
{
    struct pair pair;

    pair_open(&pair, "127.0.0.1:0", "127.0.0.1");
    net_read_pause(pair.server.conn);
    fill(pair.client.conn, 16 << 20); /* a single write may have any size */
    uv_run(&pair.loop.uv, UV_RUN_NOWAIT);
    assert_false(pair.client.conn->closing);
    fill(pair.client.conn, 1); /* the next one finds the queue over its limit */
    assert_true(pair.client.conn->closing);
    hand_run(&pair.loop, &pair.client.closed);
    assert_string_equal(pair.client.error, "the peer reads too slowly");
    pair_close(&pair);
}

static void test_close_after_sends_everything(void **state)
{
    const size_t size = 8 << 20;
    struct pair pair;

    pair_open(&pair, "127.0.0.1:0", "127.0.0.1");
    fill(pair.client.conn, size);
    net_close_after(pair.client.conn);
    net_write(pair.client.conn, STR("not this"));
    hand_run(&pair.loop, &pair.server.closed);
    assert_int_equal(pair.server.got.len, 6 + size);
    hand_run(&pair.loop, &pair.client.closed);
    assert_null(pair.client.error);
    pair_close(&pair);
}

static void test_deadline(void **state)
{
    struct pair pair;

    pair_open(&pair, "127.0.0.1:0", "127.0.0.1");
    net_conn_deadline(pair.client.conn, pair.loop.mono_ms + 10);
    net_conn_deadline(pair.client.conn, 0);
    net_conn_deadline(pair.server.conn, pair.loop.mono_ms + 20);
    hand_run(&pair.loop, &pair.server.closed); /* closed, as it has no `expired` callback */
    assert_string_equal(pair.server.error, "timed out");
    hand_run(&pair.loop, &pair.client.closed); /* its peer sees the close */
    assert_null(pair.client.error);
    pair_close(&pair);
}

static void test_unread(void **state)
{
    struct pair pair;

    pair_open(&pair, "127.0.0.1:0", "127.0.0.1");
    pair.server.want = 6;
    hand_run(&pair.loop, &pair.server.enough);
    buf_clear(&pair.server.got);
    pair.server.enough = 0;
    pair.server.want = 8;
    net_unread(pair.server.conn, STR("once"));
    net_unread(pair.server.conn, STR("more"));
    assert_int_equal(pair.server.got.len, 0); /* not from inside the call */
    hand_run(&pair.loop, &pair.server.enough);
    assert_str(buf_view(&pair.server.got), "oncemore");
    pair_close(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_families),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_a_port_can_be_shared),
        cmocka_unit_test(test_writes_of_one_turn_leave_together),
        cmocka_unit_test(test_back_pressure),
        cmocka_unit_test(test_a_slow_reader_is_dropped),
        cmocka_unit_test(test_close_after_sends_everything),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_unread),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
