/* Answers: assembled in place in the connection's write buffer, so that an ordinary reply costs two
 * copies and no allocation. Streams are answers without an end. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "io/http_private.h"

static const struct {
    int status;
    const char *reason;
} reasons[] = {
    {200, "OK"},
    {201, "Created"},
    {202, "Accepted"},
    {204, "No Content"},
    {301, "Moved Permanently"},
    {302, "Found"},
    {303, "See Other"},
    {304, "Not Modified"},
    {307, "Temporary Redirect"},
    {308, "Permanent Redirect"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {403, "Forbidden"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {406, "Not Acceptable"},
    {408, "Request Timeout"},
    {409, "Conflict"},
    {410, "Gone"},
    {412, "Precondition Failed"},
    {413, "Content Too Large"},
    {414, "URI Too Long"},
    {415, "Unsupported Media Type"},
    {417, "Expectation Failed"},
    {422, "Unprocessable Content"},
    {426, "Upgrade Required"},
    {429, "Too Many Requests"},
    {431, "Request Header Fields Too Large"},
    {500, "Internal Server Error"},
    {501, "Not Implemented"},
    {502, "Bad Gateway"},
    {503, "Service Unavailable"},
    {504, "Gateway Timeout"},
    {505, "HTTP Version Not Supported"},
};

static struct str reason_of(int status)
{
    for (size_t i = 0; i < COUNT_OF(reasons); i++)
        if (reasons[i].status == status)
            return str_of(reasons[i].reason);
    return STR("Unknown");
}

/* Rewritten once a second; every answer ends its status line with it. */
struct str http_date_lines(struct http_server_private *srv)
{
    int64_t now_s = srv->server->loop->wall_ms / 1000;

    if (srv->date_s != now_s) {
        time_t now = (time_t)now_s;
        struct tm parts;

        gmtime_r(&now, &parts);
        srv->date_len = strftime(srv->date, sizeof srv->date,
                                 "\r\nDate: %a, %d %b %Y %H:%M:%S GMT\r\n"
                                 "X-Content-Type-Options: nosniff\r\n",
                                 &parts);
        assert(srv->date_len > 0);
        srv->date_s = now_s;
    }
    return (struct str){.at = srv->date, .len = srv->date_len};
}

/* A value may carry what a client sent: a line end in it must not become one of ours. */
static void put_value(struct buf *out, struct str value)
{
    for (size_t i = 0; i < value.len; i++) {
        unsigned char c = (unsigned char)value.at[i];

        buf_char(out, c < 0x20 || c == 0x7f ? ' ' : (char)c);
    }
}

static size_t headers_size(const struct http_header *headers, size_t count)
{
    size_t size = 0;

    for (size_t i = 0; i < count; i++)
        size += headers[i].name.len + headers[i].value.len + 4;
    return size;
}

static void put_headers(struct buf *out, const struct http_header *headers, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        buf_str(out, headers[i].name);
        buf_str(out, STR(": "));
        put_value(out, headers[i].value);
        buf_str(out, STR("\r\n"));
    }
}

static void put_status(struct buf *out, struct http_server_private *srv, int status)
{
    assert(status >= 200 && status <= 599);
    buf_str(out, STR("HTTP/1.1 "));
    buf_int(out, status);
    buf_char(out, ' ');
    buf_str(out, reason_of(status));
    buf_str(out, http_date_lines(srv));
}

static void put_connection(struct buf *out, const struct http_private *p, bool keep_alive)
{
    if (!keep_alive)
        buf_str(out, STR("Connection: close\r\n"));
    else if (p->minor == 0)
        buf_str(out, STR("Connection: keep-alive\r\n"));
}

static void write_reply(struct http_private *p, const struct http_reply *reply, bool keep_alive)
{
    const char *type = reply->content_type ? reply->content_type : "application/json";
    bool bodiless = reply->status == 204 || reply->status == 304;
    size_t size = 512 + headers_size(reply->headers, reply->header_count) + reply->body.len;
    struct buf *out = net_room(p->conn->net, size);

    if (!out)
        return;
    put_status(out, p->conn->srv, reply->status);
    if (!bodiless) {
        buf_str(out, STR("Content-Type: "));
        buf_str(out, str_of(type));
        buf_str(out, STR("\r\nContent-Length: "));
        buf_int(out, (int64_t)reply->body.len);
        buf_str(out, STR("\r\n"));
    }
    put_connection(out, p, keep_alive);
    put_headers(out, reply->headers, reply->header_count);
    buf_str(out, STR("\r\n"));
    if (!bodiless && p->req.method != HTTP_M_HEAD)
        buf_str(out, reply->body);
}

static bool stays_open(const struct http_private *p)
{
    int64_t max = p->req.server->limits->requests_per_connection_max;

    return p->keep_alive && !p->conn->srv->draining && (max == 0 || p->conn->requests < max);
}

void http_reply(struct http_request *req, const struct http_reply *reply)
{
    struct http_private *p = req->priv;
    struct http_conn *conn = p->conn;
    bool keep_alive = false;

    assert(p->answerable); /* exactly one reply, and only where one is asked for */
    if (conn && !conn->net->closing) {
        keep_alive = reply->status != 401 && stays_open(p) && http_conn_leave_body(conn);
        write_reply(p, reply, keep_alive);
    }
    p->answerable = false;
    http_request_free(p);
    if (conn)
        http_conn_replied(conn, keep_alive);
}

void http_refuse(struct http_private *p, const struct problem *why)
{
    const struct http_callbacks *callbacks = p->req.server->callbacks;
    struct http_header retry = {.name = STR("Retry-After"), .value = STR("1")};
    int status = err_http(why->err);
    struct buf body = {0};

    assert(status >= 400 && why->detail[0] && !p->answerable);
    if (callbacks->problem)
        callbacks->problem(&p->req, why, &body);
    else
        buf_fmt(&body, "{\"error\":\"%s\",\"detail\":\"%s\"}", err_name(why->err),
                err_title(why->err));
    p->answerable = true;
    http_reply(&p->req, &(struct http_reply){.status = status,
                                             .content_type = "application/problem+json",
                                             .body = buf_view(&body),
                                             .headers = &retry,
                                             .header_count = status == 503});
    buf_free(&body);
}

/* --- streams --- */

struct http_stream *http_stream(struct http_request *req, const char *content_type)
{
    struct http_private *p = req->priv;
    struct http_conn *conn = p->conn;
    struct http_stream *stream = NULL;
    struct buf *out;

    assert(p->answerable);
    if (conn && (out = net_room(conn->net, 512 + strlen(content_type)))) {
        put_status(out, conn->srv, 200);
        buf_str(out, STR("Content-Type: "));
        buf_str(out, str_of(content_type));
        buf_str(out, STR("\r\nCache-Control: no-store\r\nX-Accel-Buffering: no\r\n"
                         "Connection: close\r\n\r\n"));
        if (req->method == HTTP_M_HEAD) {
            net_close_after(conn->net);
        } else {
            stream = mem_new(struct http_stream);
            stream->conn = conn->net;
            conn->stream = stream;
            conn->state = HTTP_STREAM;
            if (!conn->busy)
                buf_free(&conn->held); /* pipelined behind a stream: never read */
            net_read_resume(conn->net);
        }
    }
    http_request_free(p);
    return stream;
}

bool http_stream_send(struct http_stream *stream, struct str bytes)
{
    struct buf *out = net_room(stream->conn, bytes.len);

    if (!out)
        return false;
    buf_str(out, bytes);
    return true;
}

void http_stream_close(struct http_stream *stream)
{
    net_close_after(stream->conn);
}

void http_stream_closed(struct http_stream *stream)
{
    if (stream->closed)
        stream->closed(stream);
    free(stream);
}
