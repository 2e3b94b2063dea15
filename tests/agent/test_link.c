/* The agent's connection: hello, heartbeats, messages, and reconnecting. */
#include "agent/identity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/link.h"
#include "base/log.h"
#include "fake_server.h"
#include "io/tls.h"
#include "unit.h"

struct line {
    struct loop loop;
    struct fake_server server;
    struct link *link;
    struct link_config config;
    char urls[2][96];
    const char *url_list[2];
    int ups, downs, lefts, messages, answers;
    int64_t sent_ms; /* when the heartbeat that was answered last was sent */
    struct buf last; /* last message */
    FILE *log;
};

static void on_describe(struct link *link, struct jsonw *w)
{
    struct line *line = link->user;

    jsonw_kint(w, "ups", line->ups);
}

static void on_up(struct link *link)
{
    struct line *line = link->user;

    line->ups++;
    assert_true(link->up);
}

static void on_down(struct link *link)
{
    struct line *line = link->user;

    line->downs++;
    assert_false(link->up);
    assert_false(link_send(link, STR("{}")));
}

static void on_message(struct link *link, struct str msg, const struct json *body)
{
    struct line *line = link->user;

    line->messages++;
    buf_clear(&line->last);
    buf_str(&line->last, json_raw(body));
}

static void on_left(struct link *link)
{
    ((struct line *)link->user)->lefts++;
}

static void on_answered(struct link *link, int64_t sent_boot_ms, const struct json *body)
{
    struct line *line = link->user;

    line->answers++;
    line->sent_ms = sent_boot_ms;
}

static const struct link_handler handler = {.describe = on_describe,
                                            .up = on_up,
                                            .down = on_down,
                                            .left = on_left,
                                            .answered = on_answered,
                                            .message = on_message};

static void url_set(struct line *line, size_t at, int port)
{
    snprintf(line->urls[at], sizeof line->urls[at], "ws://127.0.0.1:%d/v1/node/connect", port);
    line->url_list[at] = line->urls[at];
    if (line->config.url_count <= at)
        line->config.url_count = at + 1;
}

static int setup(void **state)
{
    struct line *line = calloc(1, sizeof *line);

    if (loop_init(&line->loop, 0) != ERR_OK)
        return -1;
    fake_server_open(&line->server);
    line->config =
        (struct link_config){.urls = line->url_list, .node_id = STR("n1"), .heartbeat_ms = 60000};
    url_set(line, 0, fake_server_port(&line->server));
    line->log = tmpfile();
    log_setup(LOG_INFO, LOG_LOGFMT, fileno(line->log));
    *state = line;
    return 0;
}

static void dial(struct line *line)
{
    line->link = link_new(&line->loop, &line->config, &handler, line);
}

static int teardown(void **state)
{
    struct line *line = *state;
    int ups = line->ups, downs = line->downs;

    link_free(line->link);
    loop_done(&line->loop);
    if (line->ups != ups || line->downs != downs)
        return -1; /* a freed link must not call its handler */
    fake_server_done(&line->server);
    log_setup(LOG_ERROR, LOG_LOGFMT, STDERR_FILENO);
    fclose(line->log);
    buf_free(&line->last);
    free(line);
    return 0;
}

static struct str log_text(struct line *line)
{
    static char text[65536];
    ssize_t got = pread(fileno(line->log), text, sizeof text, 0);

    return (struct str){.at = text, .len = got > 0 ? (size_t)got : 0};
}

static void test_hello(void **state)
{
    struct line *line = *state;
    struct access access = {.token = STR("s3cret")};

    line->config.access = &access;
    line->server.heartbeat_ms = 4321;
    dial(line);
    assert_int_equal(line->ups, 0);
    await_both(&line->server, &line->loop, line->ups == 1);
    assert_str(buf_view(&line->server.hello),
               "{\"msg\":\"hello\",\"id\":-1,\"protocol\":1,\"node_id\":\"n1\",\"ups\":0}");
    assert_string_equal(line->server.authorization, "Bearer s3cret");
    assert_int_equal(line->link->heartbeat_ms, 4321);
    assert_has(log_text(line), "event=agent.connected");
    assert_null(memmem(log_text(line).at, log_text(line).len, "s3cret", 6));
}

/* Heartbeats follow the interval in the welcome. */
static void test_heartbeats(void **state)
{
    struct line *line = *state;

    line->server.heartbeat_ms = 100;
    dial(line);
    await_both(&line->server, &line->loop, line->server.beats == 3);
    assert_str(buf_view(&line->server.beat),
               "{\"msg\":\"heartbeat\",\"id\":-4,\"protocol\":1,\"node_id\":\"n1\",\"ups\":1}");
    assert_int_equal(line->messages, 0); /* replies to heartbeats stay in the link */
}

/* An answer says which heartbeat it is for, whatever the order of answers. */
static void test_answers(void **state)
{
    struct line *line = *state;
    int64_t dialled_ms = clock_lease_ms(), hello_ms, beat_ms;

    line->server.heartbeat_ms = 3600000;
    dial(line);
    await_both(&line->server, &line->loop, line->ups == 1);
    hello_ms = clock_lease_ms();
    while (clock_lease_ms() == hello_ms)
        ;
    link_beat(line->link);
    await_both(&line->server, &line->loop, line->server.beats == 1);
    fake_server_say(&line->server, "{\"msg\":\"reply\",\"re\":-2,\"ok\":true}");
    await_both(&line->server, &line->loop, line->answers == 1);
    beat_ms = line->sent_ms;
    assert_true(beat_ms > hello_ms && beat_ms <= clock_lease_ms());
    fake_server_say(&line->server, "{\"msg\":\"reply\",\"re\":-1,\"ok\":true}");
    await_both(&line->server, &line->loop, line->answers == 2);
    assert_true(line->sent_ms >= dialled_ms && line->sent_ms <= hello_ms);
    /* Not for a heartbeat that was never sent, nor for one that was refused. */
    fake_server_say(&line->server, "{\"msg\":\"reply\",\"re\":-3,\"ok\":true}");
    fake_server_say(&line->server, "{\"msg\":\"reply\",\"re\":0,\"ok\":true}");
    fake_server_say(&line->server,
                    "{\"msg\":\"reply\",\"re\":-2,\"status\":503,\"detail\":\"not now\"}");
    fake_server_say(&line->server, "{\"msg\":\"what\"}");
    await_both(&line->server, &line->loop, line->messages == 1);
    assert_int_equal(line->answers, 2);
}

/* A change is sent at once, without waiting for the next heartbeat; several in one turn make one
 * heartbeat. */
static void test_beat_at_once(void **state)
{
    struct line *line = *state;

    line->server.heartbeat_ms = 3600000;
    dial(line);
    link_beat(line->link); /* not connected: hello will have it */
    await_both(&line->server, &line->loop, line->ups == 1);
    link_beat(line->link);
    link_beat(line->link);
    await_both(&line->server, &line->loop, line->server.beats == 1);
    link_beat(line->link);
    await_both(&line->server, &line->loop, line->server.beats == 2);
}

static void test_messages(void **state)
{
    struct line *line = *state;

    dial(line);
    await_both(&line->server, &line->loop, line->ups == 1);
    fake_server_say(&line->server, "{\"msg\":\"job\",\"job_id\":\"j1\"}");
    await_both(&line->server, &line->loop, line->messages == 1);
    assert_str(buf_view(&line->last), "{\"msg\":\"job\",\"job_id\":\"j1\"}");
    fake_server_say(&line->server, "{\"msg\":\"reply\",\"re\":1,\"ok\":true}");
    await_both(&line->server, &line->loop, line->messages == 2);
    /* A second welcome is ignored. */
    fake_server_say(&line->server, "{\"msg\":\"welcome\",\"heartbeat_ms\":1}");
    fake_server_say(&line->server, "{\"msg\":\"what\"}");
    await_both(&line->server, &line->loop, line->messages == 3);
    assert_int_equal(line->ups, 1);
    assert_true(link_send(line->link, STR("{\"msg\":\"ack\"}")));
    await_both(&line->server, &line->loop, line->server.others == 1);
    assert_str(buf_view(&line->server.other), "{\"msg\":\"ack\"}");
}

/* Messages before the welcome are ignored. */
static void test_nothing_before_welcome(void **state)
{
    struct line *line = *state;

    line->server.welcome = false;
    dial(line);
    await_both(&line->server, &line->loop, line->server.hellos == 1);
    fake_server_say(&line->server, "{\"msg\":\"job\",\"job_id\":\"j1\"}");
    fake_server_say(&line->server, "{\"msg\":\"welcome\",\"heartbeat_ms\":1000}");
    await_both(&line->server, &line->loop, line->ups == 1);
    assert_int_equal(line->messages, 0);
}

static void test_no_welcome(void **state)
{
    struct line *line = *state;

    line->server.welcome = false;
    line->config.welcome_ms = 50;
    dial(line);
    await_both(&line->server, &line->loop, line->server.hellos == 2);
    assert_int_equal(line->ups, 0);
    assert_int_equal(line->downs, 0);
}

static void test_comes_back(void **state)
{
    struct line *line = *state;

    dial(line);
    for (int i = 1; i <= 3; i++) {
        await_both(&line->server, &line->loop, line->ups == i);
        ws_close(line->server.ws, 1001, "restart");
        await_both(&line->server, &line->loop, line->downs == i);
        assert_true((int64_t)uv_timer_get_due_in(&line->link->redial) <= LINK_RETRY_MIN_MS);
    }
    assert_has(log_text(line), "the server stops");
}

/* The server learns why the agent leaves, and the agent does not reconnect. */
static void test_goodbye(void **state)
{
    struct line *line = *state;

    dial(line);
    assert_false(link_leave(line->link)); /* not connected */
    await_both(&line->server, &line->loop, line->ups == 1);
    assert_true(link_leave(line->link));
    assert_false(link_leave(line->link));
    await_both(&line->server, &line->loop, line->lefts == 1);
    assert_int_equal(line->server.code, 1000);
    assert_int_equal(line->downs, 0);
    assert_int_equal(line->server.connects, 1);
}

/* The pause before reconnecting depends on the close code. */
static void test_pauses(void **state)
{
    static const struct {
        int code;
        int64_t min, max;
    } rows[] = {{1001, 0, LINK_RETRY_MIN_MS},
                {1012, 0, LINK_RETRY_MIN_MS}, /* restarting: another server is up */
                {1013, 0, LINK_RETRY_MIN_MS},
                {1008, LINK_SLOW_MIN_MS - 1000, LINK_SLOW_MAX_MS},
                {4001, LINK_REPLACED_MIN_MS - 1000, LINK_REPLACED_MAX_MS}};
    struct line *line = *state;

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct link *link = link_new(&line->loop, &line->config, &handler, line);
        int64_t pause;

        line->ups = line->downs = 0;
        await_both(&line->server, &line->loop, line->ups == 1);
        ws_close(line->server.ws, rows[i].code, "go");
        await_both(&line->server, &line->loop, line->downs == 1);
        pause = (int64_t)uv_timer_get_due_in(&link->redial);
        if (pause < rows[i].min || pause > rows[i].max)
            fail_msg("after %d it waits %lld ms", rows[i].code, (long long)pause);
        link_free(link);
    }
    assert_has(log_text(line), "another agent with this node id has connected");
}

/* The log has the server's own sentence for the operator. */
static void test_hello_refused(void **state)
{
    struct line *line = *state;

    line->server.welcome = false;
    dial(line);
    await_both(&line->server, &line->loop, line->server.hellos == 1);
    fake_server_say(&line->server,
                    "{\"msg\":\"reply\",\"re\":0,\"status\":400,\"detail\":\"labels is odd.\"}");
    ws_close(line->server.ws, 1008, "hello refused");
    await_both(&line->server, &line->loop, (int64_t)uv_timer_get_due_in(&line->link->redial) > 0);
    assert_true((int64_t)uv_timer_get_due_in(&line->link->redial) >= LINK_SLOW_MIN_MS - 1000);
    assert_has(log_text(line), "reason=\"labels is odd.\"");
    assert_int_equal(line->downs, 0);
}

static void test_token_refused(void **state)
{
    struct line *line = *state;

    line->server.refuse = 401;
    dial(line);
    await_both(&line->server, &line->loop, (int64_t)uv_timer_get_due_in(&line->link->redial) > 0);
    assert_true((int64_t)uv_timer_get_due_in(&line->link->redial) >= LINK_SLOW_MIN_MS - 1000);
    assert_has(log_text(line), "does not accept the token");
}

/* First one URL is dead, then the other: the agent connects to the one that is up. */
static void test_several_urls(void **state)
{
    struct line *line = *state;
    struct fake_server second;

    fake_server_open(&second);
    url_set(line, 1, fake_server_port(&second));
    fake_server_stop(&line->server);
    uv_run(&line->server.loop.uv, UV_RUN_NOWAIT); /* closes its port */
    dial(line);
    await_both(&second, &line->loop, line->ups == 1);
    assert_int_equal(second.hellos, 1);
    ws_close(second.ws, 1001, "restart");
    await_both(&second, &line->loop, line->ups == 2);
    assert_int_equal(second.hellos, 2);
    link_free(line->link);
    line->link = NULL;
    fake_server_done(&second);
}

/* A server that sends a welcome and then falls silent, as behind a firewall that dropped the
 * connection. */
static void mute_data(struct net_conn *conn, struct str bytes)
{
    static const char welcome[] = "{\"msg\":\"welcome\",\"heartbeat_ms\":100}";
    static const char name[] = "Sec-WebSocket-Key: ";
    char accept[32], key[128];
    char head[256];
    const char *at = memmem(bytes.at, bytes.len, name, strlen(name));

    if (!at)
        return;
    snprintf(key, sizeof key, "%.24s258EAFA5-E914-47DA-95CA-C5AB0DC85B11", at + strlen(name));
    tls_sha1_base64(str_of(key), accept);
    snprintf(head, sizeof head,
             "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
             "Sec-WebSocket-Accept: %s\r\n\r\n",
             accept);
    net_write(conn, str_of(head));
    head[0] = (char)0x81;
    head[1] = (char)strlen(welcome);
    net_write(conn, (struct str){.at = head, .len = 2});
    net_write(conn, str_of(welcome));
}

static void mute_opened(struct net_conn *conn)
{
    ++*(int *)conn->user;
}

static void mute_closed(struct net_conn *conn)
{
}

static void test_silence(void **state)
{
    static const struct net_handler mute = {
        .opened = mute_opened, .data = mute_data, .closed = mute_closed};
    struct line *line = *state;
    struct net_listener *listener;
    struct problem why;
    int opened = 0;
    int64_t begun;

    assert_int_equal(net_listen(&line->loop, "127.0.0.1:0", &http_limits_default.net, &mute,
                                &opened, &listener, &why),
                     ERR_OK);
    url_set(line, 0, listener->port);
    dial(line);
    await_both(&line->server, &line->loop, line->ups == 1);
    begun = clock_mono_ms();
    await_both(&line->server, &line->loop, line->downs == 1);
    assert_true(clock_mono_ms() - begun >= 200); /* not at the first missing answer */
    await_both(&line->server, &line->loop, opened == 2);
    assert_has(log_text(line), "the peer is silent");
}

static void test_not_json(void **state)
{
    struct line *line = *state;

    dial(line);
    await_both(&line->server, &line->loop, line->ups == 1);
    fake_server_say(&line->server, "[1]");
    await_both(&line->server, &line->loop, line->downs == 1);
    assert_int_equal(line->messages, 0);
    await_both(&line->server, &line->loop, line->ups == 2);
}

static void test_backoff(void **state)
{
    static const struct {
        int failures;
        size_t urls;
        int64_t heartbeat_ms, most;
    } rows[] = {{0, 1, 5000, 200},   {1, 1, 5000, 400},         {4, 1, 5000, 3200},
                {9, 1, 5000, 10000}, {50, 1, 60000, 10000},     {2, 3, 5000, 200},
                {3, 3, 5000, 400},   {1 << 30, 1, 5000, 10000}, {50, 1, 1000, 2000}};
    struct rnd rnd;

    rnd_seed(&rnd, 1);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        int64_t low = INT64_MAX, high = 0;

        for (int n = 0; n < 1000; n++) {
            int64_t pause =
                link_pause_ms(rows[i].failures, rows[i].urls, rows[i].heartbeat_ms, &rnd);

            low = pause < low ? pause : low;
            high = pause > high ? pause : high;
        }
        /* Full jitter: any pause up to the limit, so that many agents spread out. */
        assert_true(low >= 1 && low < rows[i].most / 20);
        assert_true(high <= rows[i].most && high > rows[i].most * 19 / 20);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_hello),
        TEST(test_heartbeats),
        TEST(test_answers),
        TEST(test_beat_at_once),
        TEST(test_messages),
        TEST(test_no_welcome),
        TEST(test_nothing_before_welcome),
        TEST(test_comes_back),
        TEST(test_goodbye),
        TEST(test_pauses),
        TEST(test_hello_refused),
        TEST(test_token_refused),
        TEST(test_several_urls),
        TEST(test_silence),
        TEST(test_not_json),
        cmocka_unit_test(test_backoff),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
