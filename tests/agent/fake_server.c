#include "fake_server.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "unit.h"

static void keep(struct buf *to, struct str text)
{
    buf_clear(to);
    buf_str(to, text);
}

static void on_message(struct ws *ws, struct str text)
{
    struct fake_server *server = ws->user;
    struct arena arena = {0};
    const struct json *root;
    struct str msg;

    assert_int_equal(json_parse(text, &arena, &root, NULL), ERR_OK);
    msg = json_str(json_get(root, "msg"), &arena);
    if (str_is(msg, "hello")) {
        char welcome[128];

        server->hellos++;
        keep(&server->hello, text);
        snprintf(welcome, sizeof welcome,
                 "{\"msg\":\"welcome\",\"protocol\":1,\"node_id\":\"n1\",\"incarnation\":7,"
                 "\"heartbeat_ms\":%lld}",
                 (long long)server->heartbeat_ms);
        if (server->welcome)
            fake_server_say(server, welcome);
    } else if (str_is(msg, "heartbeat")) {
        server->beats++;
        keep(&server->beat, text);
        fake_server_say(server, "{\"msg\":\"reply\",\"re\":0,\"ok\":true}");
    } else {
        server->others++;
        keep(&server->other, text);
    }
    arena_free(&arena);
}

static void on_closed(struct ws *ws, int code)
{
    struct fake_server *server = ws->user;

    server->closes++;
    server->code = code;
    if (server->ws == ws)
        server->ws = NULL;
}

static const struct ws_handler ws_handler = {.message = on_message, .closed = on_closed};

static void on_request(struct http_request *req)
{
    struct fake_server *server = req->server->owner;
    struct str bearer = http_header_get(req, "authorization");

    assert_true(ws_wanted(req));
    assert_true(str_is(req->path, "/v1/node/connect"));
    str_copy(bearer.at ? bearer : STR(""), server->authorization, sizeof server->authorization);
    server->connects++;
    if (server->refuse)
        http_reply(req, &(struct http_reply){.status = server->refuse, .body = STR("{}")});
    else
        server->ws = ws_accept(req, &ws_handler, &ws_limits_default, server);
}

static bool on_head(struct http_request *req, int64_t *ret_body_bytes_max)
{
    *ret_body_bytes_max = 0;
    return true;
}

static void write_problem(struct http_request *req, const struct problem *why, struct buf *ret_body)
{
    buf_str(ret_body, STR("{}"));
}

static const struct http_callbacks callbacks = {
    .head = on_head, .request = on_request, .problem = write_problem};

void fake_server_open(struct fake_server *server)
{
    struct problem why;

    *server = (struct fake_server){.welcome = true, .heartbeat_ms = 5000};
    assert_int_equal(loop_init(&server->loop, 1), ERR_OK);
    server->http = (struct http_server){.loop = &server->loop,
                                        .limits = &http_limits_default,
                                        .callbacks = &callbacks,
                                        .owner = server};
    if (http_serve(&server->http, "127.0.0.1:0", &why) != ERR_OK)
        fail_msg("%s", why.detail);
}

void fake_server_turn(struct fake_server *server, struct loop *other)
{
    uv_loop_t *loops[] = {&server->loop.uv, &other->uv};
    struct pollfd fds[2];
    int wait_ms = LOOP_TICK_MS;

    for (int i = 0; i < 2; i++) {
        int timeout;

        uv_run(loops[i], UV_RUN_NOWAIT);
        uv_update_time(loops[i]);
        timeout = uv_backend_timeout(loops[i]);
        wait_ms = timeout >= 0 && timeout < wait_ms ? timeout : wait_ms;
        fds[i] = (struct pollfd){.fd = uv_backend_fd(loops[i]), .events = POLLIN};
    }
    poll(fds, 2, wait_ms);
}

int fake_server_port(const struct fake_server *server)
{
    return http_port(&server->http);
}

void fake_server_say(struct fake_server *server, const char *text)
{
    assert_non_null(server->ws);
    assert_true(ws_send(server->ws, str_of(text)));
}

void fake_server_stop(struct fake_server *server)
{
    net_listener_close(server->http.listener);
}

void fake_server_done(struct fake_server *server)
{
    loop_done(&server->loop);
    buf_free(&server->hello);
    buf_free(&server->beat);
    buf_free(&server->other);
}
