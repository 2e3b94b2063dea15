#include "site.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../unit.h"
#include "peer.h"

static struct site *site_of(struct http_request *req)
{
    return req->server->owner;
}

static void happened(struct site *site, atomic_int *counter)
{
    (*counter)++;
    sem_post(&site->happened);
}

void site_await(struct site *site, atomic_int *counter, int at_least)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PEER_PATIENCE_S;
    while (*counter < at_least)
        if (sem_timedwait(&site->happened, &until) != 0 && errno == ETIMEDOUT)
            fail_msg("waited in vain: %d of %d", *counter, at_least);
}

/* --- paths --- */

static const char *const method_names[] = {"GET",   "HEAD",   "POST",    "PUT",
                                           "PATCH", "DELETE", "OPTIONS", "OTHER"};

static void do_echo(struct site *site, struct http_request *req)
{
    struct str text =
        arena_fmt(&req->arena, "%s " STR_FMT " " STR_FMT " " STR_FMT, method_names[req->method],
                  STR_ARG(req->path), STR_ARG(req->query), STR_ARG(req->body));

    http_reply(req,
               &(struct http_reply){.status = 200, .content_type = "text/plain", .body = text});
}

static void do_known(struct site *site, struct http_request *req)
{
    http_known(req);
    do_echo(site, req);
}

static void do_refused(struct site *site, struct http_request *req)
{
    http_reply(req, &(struct http_reply){.status = 401, .body = STR("{}")});
}

static void on_gone(struct http_request *req)
{
    struct site *site = site_of(req);

    assert_true(req->gone);
    happened(site, &site->gone);
}

static void do_later(struct site *site, struct http_request *req)
{
    assert_true(site->later < SITE_PENDING_MAX);
    req->on_gone = on_gone;
    site->pending[site->later] = req;
    happened(site, &site->later);
}

static void on_stream_closed(struct http_stream *stream)
{
    struct site *site = stream->user;

    site->stream = NULL;
    happened(site, &site->streams_closed);
}

static void do_stream(struct site *site, struct http_request *req)
{
    site->stream = http_stream(req, "text/event-stream");
    if (!site->stream)
        return;
    site->stream->user = site;
    site->stream->closed = on_stream_closed;
    http_stream_send(site->stream, STR("data: hello\n\n"));
}

static void on_ws_message(struct ws *ws, struct str text)
{
    int64_t number;

    if (str_starts(text, STR("close ")) &&
        str_int((struct str){.at = text.at + 6, .len = text.len - 6}, &number)) {
        ws_close(ws, (int)number, "asked");
    } else if (str_starts(text, STR("push ")) &&
               str_int((struct str){.at = text.at + 5, .len = text.len - 5}, &number)) {
        struct buf big = {0};

        buf_reserve(&big, (size_t)number);
        memset(big.at, 'x', (size_t)number);
        big.len = (size_t)number;
        ws_send(ws, buf_view(&big));
        buf_free(&big);
    } else {
        ws_send(ws, text);
    }
}

static void on_ws_closed(struct ws *ws, int code)
{
    struct site *site = ws->user;

    site->ws = NULL;
    site->ws_code = code;
    happened(site, &site->ws_closed);
}

static void on_ws_written(struct ws *ws)
{
    struct site *site = ws->user;

    happened(site, &site->ws_written);
}

static const struct ws_handler ws_echo = {
    .message = on_ws_message, .closed = on_ws_closed, .written = on_ws_written};

static void do_ws(struct site *site, struct http_request *req)
{
    if (!ws_wanted(req)) {
        http_reply(req, &(struct http_reply){.status = 426, .body = STR("{}")});
        return;
    }
    site->ws = ws_accept(req, &ws_echo, &site->ws_limits, site);
    happened(site, &site->ws_opened);
}

static void do_moved(struct site *site, struct http_request *req)
{
    const struct http_header headers[] = {{STR("Location"), STR("/echo\r\nInjected: yes")}};

    http_reply(req, &(struct http_reply){
                        .status = 302, .headers = headers, .header_count = COUNT_OF(headers)});
}

static const struct {
    const char *path;
    void (*run)(struct site *site, struct http_request *req);
} paths[] = {
    {"/later", do_later}, {"/stream", do_stream}, {"/ws", do_ws},
    {"/moved", do_moved}, {"/known", do_known},   {"/refused", do_refused},
};

static void on_request(struct http_request *req)
{
    struct site *site = site_of(req);

    site->asked++;
    for (size_t i = 0; i < COUNT_OF(paths); i++)
        if (str_is(req->path, paths[i].path)) {
            paths[i].run(site, req);
            return;
        }
    do_echo(site, req);
}

static bool on_head(struct http_request *req, int64_t *ret_body_bytes_max)
{
    *ret_body_bytes_max = str_is(req->path, "/small") ? 10 : 1 << 20;
    if (!str_is(req->path, "/none"))
        return true;
    http_reply(req, &(struct http_reply){.status = 404, .body = STR("No such path.")});
    return false;
}

static void problem(struct http_request *req, const struct problem *why, struct buf *ret_body)
{
    buf_fmt(ret_body, "{\"error\":\"%s\",\"detail\":\"%s\",\"field\":\"%s\"}", err_name(why->err),
            why->detail, why->field);
}

static const struct http_callbacks callbacks = {
    .head = on_head, .request = on_request, .problem = problem};

/* --- start and stop --- */

static void or_default(int64_t *value, int64_t preset)
{
    if (*value == 0)
        *value = preset;
}

void site_open(struct site *site)
{
    struct http_limits *limits = &site->limits;
    const struct http_limits *preset = &http_limits_default;
    struct problem why = {.detail = ""};

    or_default(&limits->net.connections_max, preset->net.connections_max);
    or_default(&limits->net.connections_unknown_percent, preset->net.connections_unknown_percent);
    or_default(&limits->net.write_queue_bytes_max, preset->net.write_queue_bytes_max);
    or_default(&limits->net.header_timeout_ms, preset->net.header_timeout_ms);
    or_default(&limits->net.body_timeout_ms, preset->net.body_timeout_ms);
    or_default(&limits->net.idle_timeout_ms, preset->net.idle_timeout_ms);
    or_default(&limits->header_bytes_max, preset->header_bytes_max);
    or_default(&limits->header_count_max, preset->header_count_max);
    or_default(&limits->uri_bytes_max, preset->uri_bytes_max);
    or_default(&limits->body_bytes_max, preset->body_bytes_max);
    or_default(&limits->bodies_bytes_max, preset->bodies_bytes_max);
    or_default(&site->ws_limits.message_bytes_max, ws_limits_default.message_bytes_max);
    or_default(&site->ws_limits.queue_bytes_max, ws_limits_default.queue_bytes_max);
    or_default(&site->ws_limits.ping_ms, ws_limits_default.ping_ms);
    assert_int_equal(sem_init(&site->happened, 0, 0), 0);
    assert_int_equal(loop_init(&site->loop, 0), ERR_OK);
    site->server = (struct http_server){
        .loop = &site->loop, .limits = limits, .callbacks = &callbacks, .owner = site};
    if (http_serve(&site->server, "127.0.0.1:0", &why) != ERR_OK)
        fail_msg("%s", why.detail);
}

void site_start(struct site *site)
{
    site_open(site);
    assert_int_equal(loop_start(&site->loop), ERR_OK);
}

void site_stop(struct site *site)
{
    loop_stop(&site->loop);
    loop_join(&site->loop);
    loop_done(&site->loop);
    sem_destroy(&site->happened);
}

int site_port(const struct site *site)
{
    return http_port(&site->server);
}

/* --- steps on the loop --- */

struct loop_call {
    struct msg msg;
    struct site *site;
    void (*step)(struct site *site, int arg);
    int arg;
    sem_t done;
};

static void run_loop_call(struct msg *msg)
{
    struct loop_call *call = container_of(msg, struct loop_call, msg);

    call->step(call->site, call->arg);
    sem_post(&call->done);
}

void site_do(struct site *site, void (*step)(struct site *site, int arg), int arg)
{
    struct loop_call call = {.msg.run = run_loop_call, .site = site, .step = step, .arg = arg};

    sem_init(&call.done, 0, 0);
    inbox_post(&site->loop.inbox, &call.msg);
    while (sem_wait(&call.done) != 0)
        ;
    sem_destroy(&call.done);
}

static const char *answer_body;

static void answer(struct site *site, int index)
{
    http_reply(site->pending[index],
               &(struct http_reply){.status = 200, .body = str_of(answer_body)});
    site->pending[index] = NULL;
}

void site_answer(struct site *site, int index, const char *body)
{
    answer_body = body;
    site_do(site, answer, index);
}
