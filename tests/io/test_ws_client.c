/* The client's role, against our own server and against faulty servers. */
#include "io/ws.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../unit.h"
#include "frames.h"
#include "hand.h"
#include "io/tls.h"
#include "peer.h"
#include "site.h"

/* The events of one client. */
struct caller {
    struct loop loop;
    struct ws *ws;
    int opened;
    int closed;
    int code;
    int status;
    const char *error;
    int messages;
    struct buf last;
};

static void on_opened(struct ws *ws)
{
    struct caller *caller = ws->user;

    caller->opened++;
}

static void on_message(struct ws *ws, struct str text)
{
    struct caller *caller = ws->user;

    caller->messages++;
    buf_clear(&caller->last);
    buf_str(&caller->last, text);
}

static void on_closed(struct ws *ws, int code)
{
    struct caller *caller = ws->user;

    caller->closed++;
    caller->code = code;
    caller->status = ws->status;
    caller->error = ws->error;
    caller->ws = NULL;
}

static const struct ws_handler handler = {
    .opened = on_opened, .message = on_message, .closed = on_closed};

static void call(struct caller *caller, const char *host, int port, const char *path)
{
    static const struct ws_limits limits = {
        .message_bytes_max = 400000, .queue_bytes_max = 400000, .ping_ms = 15000};
    const struct http_header headers[] = {{STR("Authorization"), STR("Bearer secret")}};
    struct problem why = {.detail = ""};
    char url[256];

    *caller = (struct caller){0};
    assert_int_equal(loop_init(&caller->loop, 0), ERR_OK);
    snprintf(url, sizeof url, "ws://%s:%d%s", host, port, path);
    if (ws_connect(&caller->loop, url, headers, COUNT_OF(headers), NULL, &handler, &limits, caller,
                   &caller->ws, &why) != ERR_OK)
        fail_msg("%s", why.detail);
    assert_int_equal(caller->opened + caller->closed, 0);
}

static void hang_up(struct caller *caller)
{
    loop_done(&caller->loop);
    assert_int_equal(caller->closed, 1);
    buf_free(&caller->last);
}

static void test_round_trip(void **state)
{
    static struct site site;
    struct caller caller;
    int all = 0;

    site = (struct site){0};
    site_start(&site);
    call(&caller, "127.0.0.1", site_port(&site), "/ws");
    hand_run(&caller.loop, &caller.opened);
    assert_true(ws_send(caller.ws, STR("one")));
    assert_true(ws_send(caller.ws, STR("push 300000")));
    while (!all) {
        caller.messages = 0;
        hand_run(&caller.loop, &caller.messages);
        all = caller.last.len == 300000;
    }
    ws_close(caller.ws, 1000, "done");
    assert_false(ws_send(caller.ws, STR("too late")));
    hand_run(&caller.loop, &caller.closed);
    assert_int_equal(caller.code, 1000);
    assert_null(caller.error);
    site_await(&site, &site.ws_closed, 1);
    assert_int_equal(site.ws_code, 1000);
    hang_up(&caller);
    site_stop(&site);
}

/* The name also has an IPv6 address, where nothing listens: the next address is tried. */
static void test_by_name(void **state)
{
    static struct site site;
    struct caller caller;

    site = (struct site){0};
    site_start(&site);
    call(&caller, "localhost", site_port(&site), "/ws");
    hand_run(&caller.loop, &caller.opened);
    hang_up(&caller); /* the loop ends while connected */
    assert_int_equal(caller.code, 1006);
    site_await(&site, &site.ws_closed, 1);
    site_stop(&site);
}

static void test_the_server_closes(void **state)
{
    static struct site site;
    struct caller caller;

    site = (struct site){0};
    site_start(&site);
    call(&caller, "127.0.0.1", site_port(&site), "/ws");
    hand_run(&caller.loop, &caller.opened);
    assert_true(ws_send(caller.ws, STR("close 4002")));
    hand_run(&caller.loop, &caller.closed);
    assert_int_equal(caller.code, 4002);
    hang_up(&caller);
    site_stop(&site);
}

static void test_not_a_websocket(void **state)
{
    static struct site site;
    struct caller caller;

    site = (struct site){0};
    site_start(&site);
    call(&caller, "127.0.0.1", site_port(&site), "/none");
    hand_run(&caller.loop, &caller.closed);
    assert_int_equal(caller.opened, 0);
    assert_int_equal(caller.status, 404);
    assert_non_null(caller.error);
    hang_up(&caller);
    site_stop(&site);
}

static void test_nobody_there(void **state)
{
    static struct site site;
    struct caller caller;
    int port;

    site = (struct site){0};
    site_start(&site);
    port = site_port(&site);
    site_stop(&site);
    call(&caller, "127.0.0.1", port, "/ws");
    hand_run(&caller.loop, &caller.closed);
    assert_int_equal(caller.code, 1006);
    assert_string_equal(caller.error, "connection refused");
    hang_up(&caller);
    call(&caller, "127.0.0.1", port, "/ws");
    ws_close(caller.ws, 1000, ""); /* before any event */
    hand_run(&caller.loop, &caller.closed);
    assert_int_equal(caller.opened, 0);
    hang_up(&caller);
}

static void test_bad_urls(void **state)
{
    static const char *const urls[] = {"",
                                       "http://127.0.0.1/",
                                       "ws:/127.0.0.1/",
                                       "ws://",
                                       "ws://user@127.0.0.1/",
                                       "ws://127.0.0.1:0/",
                                       "ws://127.0.0.1:99999/",
                                       "ws://127.0.0.1:*/",
                                       "ws://127.0.0.1/a b",
                                       "ws://127.0.0.1/#x",
                                       "ws://[::1/",
                                       "wss://127.0.0.1/"}; /* needs a TLS configuration */
    struct loop loop;
    struct problem why;
    struct ws *ws;

    assert_int_equal(loop_init(&loop, 0), ERR_OK);
    for (size_t i = 0; i < COUNT_OF(urls); i++)
        assert_int_not_equal(ws_connect(&loop, urls[i], NULL, 0, NULL, &handler, &ws_limits_default,
                                        NULL, &ws, &why),
                             ERR_OK);
    loop_done(&loop);
}

/* --- faulty servers --- */

/* Answers one connection with `answer`, in which @ is replaced by the right
 * Sec-WebSocket-Accept. */
struct fake {
    int fd;
    int port;
    struct str answer;
    pthread_t thread;
};

static void *fake_main(void *arg)
{
    struct fake *fake = arg;
    struct peer peer = {.fd = accept(fake->fd, NULL, NULL)};
    char request[4096] = "";
    size_t len = 0;
    char proof[128];
    char accept_key[32];
    const char *key;

    while (len < sizeof request - 1 && !strstr(request, "\r\n\r\n")) {
        ssize_t got = recv(peer.fd, request + len, sizeof request - 1 - len, 0);

        if (got <= 0)
            break;
        len += (size_t)got;
        request[len] = '\0';
    }
    key = strstr(request, "Sec-WebSocket-Key: ");
    snprintf(proof, sizeof proof, "%.24s258EAFA5-E914-47DA-95CA-C5AB0DC85B11", key ? key + 19 : "");
    tls_sha1_base64(str_of(proof), accept_key);
    for (size_t i = 0; i < fake->answer.len; i++)
        peer_send(&peer, fake->answer.at[i] == '@'
                             ? str_of(accept_key)
                             : (struct str){.at = fake->answer.at + i, .len = 1});
    shutdown(peer.fd, SHUT_WR);
    while (recv(peer.fd, request, sizeof request, 0) > 0)
        ;
    close(peer.fd);
    return NULL;
}

static void fake_start(struct fake *fake, struct str answer)
{
    struct sockaddr_in addr = {.sin_family = AF_INET};
    socklen_t len = sizeof addr;

    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    *fake = (struct fake){.fd = socket(AF_INET, SOCK_STREAM, 0), .answer = answer};
    assert_int_equal(bind(fake->fd, (struct sockaddr *)&addr, sizeof addr), 0);
    assert_int_equal(listen(fake->fd, 1), 0);
    getsockname(fake->fd, (struct sockaddr *)&addr, &len);
    fake->port = ntohs(addr.sin_port);
    assert_int_equal(pthread_create(&fake->thread, NULL, fake_main, fake), 0);
}

static void fake_stop(struct fake *fake)
{
    pthread_join(fake->thread, NULL);
    close(fake->fd);
}

#define GOOD                                                                                       \
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"            \
    "Sec-WebSocket-Accept: @\r\n"

static void test_servers_that_get_it_wrong(void **state)
{
    static const struct {
        struct str answer;
        int opened, messages, code;
    } cases[] = {
        {{GOOD "\r\n\x81\x02hi\x88\x02\x03\xe8", sizeof GOOD + 9}, 1, 1, 1000},
        {{GOOD "\r\n\x81\x02hi", sizeof GOOD + 5}, 1, 1, 1006},
        {{GOOD "\r\n\x81\x82\0\0\0\0hi", sizeof GOOD + 9}, 1, 0, 1002}, /* masked */
        {{GOOD "\r\n\x82\x02hi", sizeof GOOD + 5}, 1, 0, 1003},
        {STR(GOOD "Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"), 0, 0, 1006},
        {STR(GOOD "Sec-WebSocket-Protocol: chat\r\n\r\n"), 0, 0, 1006},
        {STR("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
             "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"),
         0, 0, 1006},
        {STR("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"
             "Sec-WebSocket-Accept: @\r\n\r\n"),
         0, 0, 1006},
        {STR("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
             "Sec-WebSocket-Accept: @\r\n\r\n"),
         0, 0, 1006},
        {STR("HTTP/1.1 101 Switching Protocols\nUpgrade: websocket\n\n"), 0, 0, 1006},
        {STR("SSH-2.0-OpenSSH_9.2\r\n\r\n"), 0, 0, 1006},
        {STR("HTTP/1.1 10 \r\n\r\n"), 0, 0, 1006},
        {STR(""), 0, 0, 1006},
    };

    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct caller caller;
        struct fake fake;

        fake_start(&fake, cases[i].answer);
        call(&caller, "127.0.0.1", fake.port, "/");
        hand_run(&caller.loop, &caller.closed);
        if (caller.opened != cases[i].opened || caller.messages != cases[i].messages ||
            caller.code != cases[i].code)
            fail_msg("case %zu: opened %d messages %d code %d", i, caller.opened, caller.messages,
                     caller.code);
        hang_up(&caller);
        fake_stop(&fake);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_by_name),
        cmocka_unit_test(test_the_server_closes),
        cmocka_unit_test(test_not_a_websocket),
        cmocka_unit_test(test_nobody_there),
        cmocka_unit_test(test_bad_urls),
        cmocka_unit_test(test_servers_that_get_it_wrong),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
