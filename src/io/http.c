/* The server's side of a connection: bytes become requests, one at a time, within the limits. The
 * answers are written in http_reply.c. */
#include "io/http.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "io/http_private.h"

const struct http_limits http_limits_default = {
    .net = {.connections_max = 20000,
            .connections_unknown_percent = 50,
            .connections_per_peer_max = 512,
            .write_queue_bytes_max = 4 * 1024 * 1024,
            .write_queues_bytes_max = 16 * 1024 * 1024,
            .header_timeout_ms = 10000,
            .body_timeout_ms = 30000,
            .idle_timeout_ms = 75000},
    .header_bytes_max = 16 * 1024,
    .header_count_max = 100,
    .uri_bytes_max = 8 * 1024,
    .body_bytes_max = 1024 * 1024,
    .bodies_bytes_max = 256 * 1024 * 1024,
    .requests_per_connection_max = 0,
};

/* --- from bytes to a request --- */

static void ask_handler(struct http_conn *conn)
{
    struct http_private *p = conn->req;

    assert(p && !p->answerable && http_body_done(&conn->body));
    conn->state = HTTP_WAIT;
    net_conn_deadline(conn->net, 0);
    p->answerable = true;
    conn->srv->server->callbacks->request(&p->req);
}

static void refuse(struct http_private *p, enum err err, const char *detail)
{
    struct problem why;

    problem_set(&why, err, "", "%s", detail && *detail ? detail : err_title(err));
    http_refuse(p, &why);
}

bool http_conn_leave_body(struct http_conn *conn)
{
    if (http_body_done(&conn->body))
        return true;
    if (!conn->skippable)
        return false;
    conn->state = HTTP_SKIP;
    conn->skipped = 0;
    net_conn_deadline(conn->net,
                      conn->net->loop->mono_ms + conn->srv->server->limits->net.body_timeout_ms);
    return true;
}

/* May they, and how much? False: answered already. */
static bool ask_head(struct http_private *p)
{
    const struct http_server *server = p->req.server;
    int64_t max = server->limits->body_bytes_max;

    p->answerable = true;
    if (server->callbacks->head && !server->callbacks->head(&p->req, &max))
        return false;
    p->answerable = false;
    assert(max >= 0);
    p->body_bytes_max = max < server->limits->body_bytes_max ? max : server->limits->body_bytes_max;
    return true;
}

/* So much of its body, all in all: is there room for it? */
static enum err admit_body(struct http_private *p, int64_t bytes, struct problem *why)
{
    if (bytes > p->body_bytes_max)
        return problem_set(why, ERR_TOO_LARGE, "", "The body may have %lld bytes here.",
                           (long long)p->body_bytes_max);
    if (!http_request_reserve(p, bytes > 0 ? (size_t)bytes : 0))
        return problem_set(why, ERR_BUSY, "",
                           "The bodies of all requests together are too large now "
                           "(bodies_bytes_max); try again.");
    return ERR_OK;
}

/* The head is whole: everything that can be refused without the body is. `rest` is what came behind
 * it; returns how much of that belongs to the request and was used. */
static size_t begin_request(struct http_conn *conn, struct str text, struct str rest)
{
    struct http_server_private *srv = conn->srv;
    struct http_head head = {.headers = srv->headers,
                             .header_max = (size_t)srv->server->limits->header_count_max};
    struct http_private *p = http_request_new(conn);
    enum err err = http_head_request(&head, text);
    struct problem why;

    if (!err && head.target.len > (size_t)srv->server->limits->uri_bytes_max)
        err = ERR_URI_TOO_LONG;
    if (err) {
        p->req.method = head.method;
        refuse(p, err, head.detail);
        return 0;
    }
    http_request_keep(p, &head, text);
    if (head.chunked)
        http_body_chunked(&conn->body);
    else
        http_body_sized(&conn->body, head.content_length > 0 ? (uint64_t)head.content_length : 0);
    conn->skippable = head.content_length <= HTTP_SKIP_BYTES_MAX && !head.expect_continue;
    conn->requests++;
    err = http_request_check(&p->req, &why);
    if (!err && !ask_head(p))
        return 0;
    if (!err)
        err = admit_body(p, head.content_length, &why);
    if (err) {
        http_refuse(p, &why);
        return 0;
    }
    if (http_body_done(&conn->body)) {
        ask_handler(conn);
        return 0;
    }
    if (!head.chunked && rest.len >= (size_t)head.content_length) {
        p->req.body = arena_str(&p->req.arena,
                                (struct str){.at = rest.at, .len = (size_t)head.content_length});
        http_body_sized(&conn->body, 0); /* it is here already */
        ask_handler(conn);
        return (size_t)head.content_length;
    }
    conn->state = HTTP_BODY;
    net_conn_deadline(conn->net,
                      conn->net->loop->mono_ms + srv->server->limits->net.body_timeout_ms);
    if (head.expect_continue && rest.len == 0)
        net_write(conn->net, STR("HTTP/1.1 100 Continue\r\n\r\n"));
    return 0;
}

static void refuse_head(struct http_conn *conn, enum err err, const char *detail)
{
    refuse(http_request_new(conn), err, detail);
}

static size_t step_head(struct http_conn *conn, struct str bytes)
{
    const struct http_limits *limits = conn->srv->server->limits;
    enum http_scan_result result;
    size_t len = 0;

    assert(!conn->req && bytes.len > 0);
    if (conn->scan.at == 0) {
        conn->begun_us = clock_mono_us();
        net_conn_deadline(conn->net, conn->net->loop->mono_ms + limits->net.header_timeout_ms);
        if (bytes.at[0] == '\r' && !conn->blank) { /* some old clients send a line behind a body */
            if (bytes.len == 1)
                return 0;
            conn->blank = bytes.at[1] == '\n';
            if (conn->blank)
                return 2;
        }
    }
    result = http_scan(&conn->scan, bytes, &len);
    if (result == HTTP_SCAN_BAD) {
        refuse_head(conn, ERR_BAD_REQUEST, "A line does not end in CR LF.");
    } else if (result == HTTP_SCAN_MORE ? bytes.len > (size_t)limits->header_bytes_max
                                        : len > (size_t)limits->header_bytes_max) {
        size_t first = conn->scan.first ? conn->scan.first : bytes.len;

        if (first > (size_t)limits->uri_bytes_max)
            refuse_head(conn, ERR_URI_TOO_LONG, "The request line is too long.");
        else
            refuse_head(conn, ERR_HEADERS, "The headers are too large.");
    } else if (result == HTTP_SCAN_WHOLE) {
        conn->scan = (struct http_scan){0};
        conn->blank = false;
        len += begin_request(conn, (struct str){.at = bytes.at, .len = len},
                             (struct str){.at = bytes.at + len, .len = bytes.len - len});
        return len;
    }
    return 0; /* more must come, or the connection closes */
}

static size_t step_body(struct http_conn *conn, struct str bytes)
{
    struct http_private *p = conn->req;
    struct problem why;
    struct str piece;
    size_t used = 0;
    enum err err = http_body_read(&conn->body, bytes, &used, &piece);

    if (err)
        problem_set(&why, err, "", "The chunks of the body are malformed.");
    else
        err = admit_body(p, (int64_t)(p->body.len + piece.len), &why);
    if (err) {
        p->keep_alive = false;
        http_refuse(p, &why);
        return used;
    }
    buf_str(&p->body, piece);
    if (http_body_done(&conn->body)) {
        if (p->body.len > 0)
            p->req.body = buf_view(&p->body);
        ask_handler(conn);
    }
    return used;
}

static size_t step_skip(struct http_conn *conn, struct str bytes)
{
    struct str piece;
    size_t used = 0;
    enum err err = http_body_read(&conn->body, bytes, &used, &piece);

    conn->skipped += (int64_t)used;
    if (err || conn->skipped > 2 * HTTP_SKIP_BYTES_MAX) {
        net_close_after(conn->net);
    } else if (http_body_done(&conn->body)) {
        conn->state = HTTP_HEAD;
        http_conn_replied(conn, true);
    }
    return used;
}

static size_t step_nothing(struct http_conn *conn, struct str bytes)
{
    return 0;
}

static size_t step_ignore(struct http_conn *conn, struct str bytes)
{
    return bytes.len;
}

static size_t (*const steps[])(struct http_conn *conn, struct str bytes) = {
    [HTTP_HEAD] = step_head, [HTTP_BODY] = step_body,     [HTTP_WAIT] = step_nothing,
    [HTTP_SKIP] = step_skip, [HTTP_STREAM] = step_ignore, [HTTP_TAKEN] = step_nothing,
};

/* Reads as far as it can; returns how many bytes are done with. */
static size_t consume(struct http_conn *conn, struct str bytes)
{
    size_t used = 0;

    assert(!conn->busy);
    conn->busy = true;
    while (used < bytes.len && !conn->net->closing) {
        size_t len =
            steps[conn->state](conn, (struct str){.at = bytes.at + used, .len = bytes.len - used});

        if (len == 0)
            break;
        used += len;
    }
    conn->busy = false;
    return used;
}

static void conn_free(struct http_conn *conn)
{
    LIST_REMOVE(conn, link);
    buf_free(&conn->held);
    free(conn);
}

static void hold_back(struct http_conn *conn)
{
    if (conn->held.len == 0)
        buf_free(&conn->held); /* an idle connection shall cost little */
    if (conn->held.len >= HTTP_HELD_BYTES_MAX && conn->state == HTTP_WAIT)
        net_read_pause(conn->net);
    else
        net_read_resume(conn->net);
}

static void on_data(struct net_conn *net, struct str bytes)
{
    struct http_conn *conn = net->user;
    bool held = conn->held.len > 0;
    size_t used;

    if (held) {
        buf_str(&conn->held, bytes);
        bytes = buf_view(&conn->held);
    }
    used = consume(conn, bytes);
    if (conn->state == HTTP_TAKEN) {
        net_unread(net, (struct str){.at = bytes.at + used, .len = bytes.len - used});
        conn_free(conn);
        return;
    }
    if (net->closing)
        return;
    if (held)
        buf_drop(&conn->held, used);
    else
        buf_add(&conn->held, bytes.at + used, bytes.len - used);
    if (held || conn->held.len > 0)
        hold_back(conn);
}

/* The reply is out: what was pipelined behind its request is next. */
static void go_on(struct http_conn *conn)
{
    size_t used = consume(conn, buf_view(&conn->held));

    assert(used <= conn->held.len);
    if (conn->state == HTTP_TAKEN) {
        buf_drop(&conn->held, used);
        net_unread(conn->net, buf_view(&conn->held));
        conn_free(conn);
        return;
    }
    if (conn->net->closing)
        return;
    buf_drop(&conn->held, used);
    hold_back(conn);
}

void http_conn_replied(struct http_conn *conn, bool keep_alive)
{
    assert(!conn->req);
    if (conn->net->closing)
        return;
    if (!keep_alive) {
        net_close_after(conn->net);
        return;
    }
    if (conn->state == HTTP_SKIP)
        return; /* the refused body comes first */
    conn->state = HTTP_HEAD;
    net_conn_deadline(conn->net,
                      conn->net->loop->mono_ms + conn->srv->server->limits->net.idle_timeout_ms);
    if (!conn->busy && conn->held.len > 0)
        go_on(conn);
}

struct net_conn *http_take(struct http_request *req, const struct net_handler *handler, void *user)
{
    struct http_private *p = req->priv;
    struct http_conn *conn = p->conn;
    struct net_conn *net = conn->net;

    assert(conn->state == HTTP_WAIT && !net->closing);
    http_request_free(p);
    conn->state = HTTP_TAKEN;
    net->handler = handler;
    net->user = user;
    if (!conn->busy) {
        net_unread(net, buf_view(&conn->held));
        conn_free(conn);
    }
    net_read_resume(net);
    return net;
}

/* --- the connection's life --- */

static void on_opened(struct net_conn *net)
{
    struct http_server *server = net->user;
    struct http_conn *conn = mem_new(struct http_conn);

    conn->net = net;
    conn->srv = server->priv;
    net->user = conn;
    LIST_INSERT_HEAD(&conn->srv->conns, conn, link);
    net_conn_deadline(net, net->loop->mono_ms + server->limits->net.header_timeout_ms);
    if (conn->srv->draining)
        net_close_after(net);
}

static void on_expired(struct net_conn *net)
{
    struct http_conn *conn = net->user;

    assert(conn->state != HTTP_WAIT && conn->state != HTTP_STREAM); /* these may take for ever */
    if (conn->state == HTTP_HEAD && conn->held.len > 0) {
        refuse_head(conn, ERR_REQUEST_TIMEOUT, "The headers did not come in time.");
    } else if (conn->state == HTTP_BODY) {
        conn->req->keep_alive = false;
        refuse(conn->req, ERR_REQUEST_TIMEOUT, "The body did not come in time.");
    } else {
        net_close_after(net); /* idle, or a refused body that does not end */
    }
}

static void on_closed(struct net_conn *net)
{
    struct http_conn *conn = net->user;
    struct http_private *p = conn->req;

    if (conn->stream)
        http_stream_closed(conn->stream);
    if (p && !p->answerable) {
        http_request_free(p); /* no handler saw it */
    } else if (p) {
        p->conn = NULL;
        p->req.peer = arena_cstr(&p->req.arena, str_of(p->req.peer)); /* it may be the socket's */
        if (net->peer_name)
            p->req.peer_name = arena_cstr(&p->req.arena, str_of(net->peer_name));
        p->req.gone = true;
        if (p->req.on_gone)
            p->req.on_gone(&p->req);
    }
    conn_free(conn);
}

#define REFUSAL                                                                                    \
    "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"                  \
    "Content-Length: 0\r\n\r\n"

static const struct net_handler handler = {
    .opened = on_opened,
    .data = on_data,
    .closed = on_closed,
    .expired = on_expired,
    .refusal = {.at = REFUSAL, .len = sizeof REFUSAL - 1},
};

/* --- the server --- */

static void free_part(struct loop_part *part)
{
    struct http_server_private *srv = container_of(part, struct http_server_private, part);
    struct http_private *p;

    assert(LIST_EMPTY(&srv->conns));
    while ((p = LIST_FIRST(&srv->requests))) { /* never answered; nobody is left to do it */
        buf_free(&p->body);
        http_request_release(p);
        LIST_REMOVE(p, link);
        arena_free(&p->req.arena);
        free(p);
    }
    while ((p = LIST_FIRST(&srv->spare))) {
        LIST_REMOVE(p, link);
        arena_free(&p->req.arena);
        free(p);
    }
    free(srv->headers);
    srv->server->priv = NULL;
    free(srv);
}

enum err http_serve(struct http_server *server, const char *addr, struct problem *why)
{
    struct http_server_private *srv;
    enum err err;

    assert(server->loop && server->limits && server->callbacks && server->callbacks->request);
    assert(server->limits->header_count_max > 0 && !server->priv);
    err = net_listen(server->loop, addr, &server->limits->net, &handler, server, &server->listener,
                     why);
    if (err)
        return err;
    srv = mem_new(struct http_server_private);
    srv->part.free = free_part;
    srv->server = server;
    srv->headers = mem_array(struct http_header, (size_t)server->limits->header_count_max);
    srv->date_s = -1;
    LIST_INIT(&srv->conns);
    LIST_INIT(&srv->requests);
    LIST_INIT(&srv->spare);
    server->priv = srv;
    loop_add_part(server->loop, &srv->part);
    return ERR_OK;
}

int http_port(const struct http_server *server)
{
    return net_listener_port(server->listener);
}

void http_drain(struct http_server *server)
{
    struct http_conn *conn;

    if (server->priv->draining)
        return;
    server->priv->draining = true;
    net_listener_close(server->listener);
    LIST_FOREACH(conn, &server->priv->conns, link)
    {
        if (conn->state == HTTP_HEAD && conn->held.len == 0)
            net_close_after(conn->net);
    }
}

int64_t http_connections(const struct http_server *server)
{
    return net_listener_connections(server->listener);
}
