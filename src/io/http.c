/* The server side of a connection: parses bytes into requests, one at a time, within the limits;
 * replies are assembled in place in the connection's write buffer, so that an ordinary one costs
 * two copies and no allocation. Streams are replies without an end. */
#include "io/http.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "io/http_parse.h"
#include "io/net.h"

enum {
    HTTP_HELD_BYTES_MAX =
        64 * 1024, /* pipelined bytes held while a reply is pending; then reading stops */
    HTTP_SKIP_BYTES_MAX = 64 * 1024, /* of a refused body; a longer one closes the connection */
    HTTP_SPARE_REQUESTS = 256,       /* kept with their memory for reuse */
    HTTP_DATE_BYTES = 96,
};

enum http_state {
    HTTP_HEAD,   /* idle, or in the middle of a head */
    HTTP_BODY,   /* reading the body of conn->req */
    HTTP_WAIT,   /* conn->req is with its handler */
    HTTP_SKIP,   /* a refused request's body is thrown away */
    HTTP_STREAM, /* open until either side closes; input is ignored */
    HTTP_TAKEN,  /* another handler owns the connection */
};

struct http_conn {
    struct net_conn *net;
    struct http_server_private *srv;
    struct http_private *req;   /* being read or answered; NULL: none */
    struct http_stream *stream; /* HTTP_STREAM */
    struct buf held;            /* the start of a head, or pipelined bytes */
    struct http_scan scan;      /* of the head being received */
    struct http_body body;
    int64_t begun_us; /* of the head being received */
    int64_t requests;
    int64_t skipped; /* bytes of a refused body so far */
    enum http_state state;
    bool skippable; /* a refused body may be skipped: it is short and certain to arrive */
    bool busy;      /* inside consume(): a reply need not resume reading */
    bool blank;     /* the one empty line before a request was seen */
    LIST_ENTRY(http_conn) link;
};

struct http_private {
    struct http_request req; /* first: the two are one piece of memory */
    struct http_conn *conn;  /* NULL: the peer is gone */
    struct buf body;         /* a body that did not arrive with its head */
    int64_t body_bytes_max;
    int64_t body_reserved; /* of bodies_bytes_max */
    bool keep_alive;
    bool upgrade;
    bool answerable; /* the handler has it, or http refuses it */
    int minor;
    LIST_ENTRY(http_private) link;
};

LIST_HEAD(http_conn_list, http_conn);
LIST_HEAD(http_request_list, http_private);

struct http_server_private {
    struct loop_part part;
    struct http_server *server;
    struct http_conn_list conns;
    struct http_request_list requests; /* not answered yet */
    struct http_request_list spare;
    int spare_count;
    struct http_header *headers; /* header_count_max, for the head being read */
    char date[HTTP_DATE_BYTES];  /* the Date lines of all replies within this second */
    size_t date_len;
    int64_t date_s;
    bool draining;
};

static void http_request_release(struct http_private *p);
static void http_conn_replied(struct http_conn *conn, bool keep_alive);
static void http_refuse(struct http_private *p, const struct problem *why);

/* --- the memory of a request --- */

/* Requests are reused and filled with one copy; and what handlers read from a request. */

static struct http_private *http_request_new(struct http_conn *conn)
{
    struct http_server_private *srv = conn->srv;
    struct http_private *p = LIST_FIRST(&srv->spare);
    struct arena arena = {0};

    if (p) {
        LIST_REMOVE(p, link);
        srv->spare_count--;
        arena = p->req.arena;
    } else {
        p = mem_alloc(sizeof *p);
    }
    *p = (struct http_private){.conn = conn};
    p->req = (struct http_request){.server = srv->server,
                                   .loop = conn->net->loop,
                                   .method = HTTP_M_OTHER,
                                   .path = STR(""),
                                   .query = STR(""),
                                   .body = STR(""),
                                   .peer = conn->net->peer,
                                   .peer_id = conn->net->peer_id,
                                   .peer_name = conn->net->peer_name,
                                   .arena = arena,
                                   .begun_us = conn->begun_us,
                                   .priv = p};
    LIST_INSERT_HEAD(&srv->requests, p, link);
    assert(!conn->req);
    conn->req = p;
    return p;
}

static void http_request_free(struct http_private *p)
{
    struct http_server_private *srv = p->req.server->priv;

    if (p->conn) {
        assert(p->conn->req == p);
        p->conn->req = NULL;
    }
    LIST_REMOVE(p, link);
    http_request_release(p);
    buf_free(&p->body);
    if (srv->spare_count < HTTP_SPARE_REQUESTS) {
        arena_reset(&p->req.arena);
        LIST_INSERT_HEAD(&srv->spare, p, link);
        srv->spare_count++;
        return;
    }
    arena_free(&p->req.arena);
    free(p);
}

/* Moves a slice of the text that was read to the same place in its copy; other slices point to
 * constants. */
static struct str moved(struct str slice, struct str text, const char *copy)
{
    if (slice.at >= text.at && slice.at + slice.len <= text.at + text.len)
        slice.at = copy + (slice.at - text.at);
    return slice;
}

/* The read buffer is reused before the reply, so all that the request needs is copied at once. */
static void http_request_keep(struct http_private *p, const struct http_head *head, struct str text)
{
    struct http_request *req = &p->req;
    size_t bytes = head->header_count * sizeof(struct http_header);
    struct http_header *headers = arena_raw(&req->arena, bytes);
    char *copy = arena_raw(&req->arena, text.len);

    memcpy(copy, text.at, text.len);
    for (size_t i = 0; i < head->header_count; i++) {
        headers[i].name = moved(head->headers[i].name, text, copy);
        headers[i].value = moved(head->headers[i].value, text, copy);
    }
    req->headers = headers;
    req->header_count = head->header_count;
    req->method = head->method;
    req->path = moved(head->path, text, copy);
    req->query = moved(head->query, text, copy);
    req->begun_us = p->conn->begun_us;
    p->keep_alive = head->keep_alive;
    p->upgrade = head->upgrade;
    p->minor = head->minor;
}

/* False: not percent-encoded UTF-8, or contains a NUL. The encoded text is ASCII, see
 * http_parse.c. */
static bool decode(struct str encoded, bool plus_is_blank, struct arena *arena,
                   struct str *ret_text)
{
    char *decoded = arena_raw(arena, encoded.len + 1);
    size_t len;

    if (!http_percent_decode(encoded, plus_is_blank, decoded, &len))
        return false;
    decoded[len] = '\0';
    *ret_text = (struct str){.at = decoded, .len = len};
    return !memchr(decoded, '\0', len) && str_is_utf8(*ret_text);
}

struct str http_path_part(struct str part, struct arena *arena)
{
    struct str text;

    if (!part.len || !memchr(part.at, '%', part.len))
        return part;
    return decode(part, false, arena, &text) ? text : part;
}

/* Do the path and the query values decode to text? */
static enum err http_request_check(struct http_request *req, struct problem *why)
{
    struct str rest = req->query, text;

    if (memchr(req->path.at, '%', req->path.len) && !decode(req->path, false, &req->arena, &text))
        return problem_set(why, ERR_BAD_REQUEST, "",
                           "The path is not valid percent-encoded UTF-8.");
    while (rest.len > 0) {
        struct str value = str_cut(&rest, '&');
        struct str key = str_cut(&value, '=');

        if (value.len > 0 && memchr(value.at, '%', value.len) &&
            !decode(value, true, &req->arena, &text))
            return problem_set(why, ERR_BAD_FIELD, arena_cstr(&req->arena, key),
                               STR_FMT " must be percent-encoded UTF-8 text without NUL.",
                               STR_ARG(key));
    }
    return ERR_OK;
}

/* --- all bodies together --- */

static _Atomic int64_t bodies_bytes; /* of all loops: they share the process's memory */

bool http_bodies_take(int64_t bytes, const struct http_limits *limits)
{
    assert(bytes >= 0);
    if (atomic_fetch_add(&bodies_bytes, bytes) + bytes <= limits->bodies_bytes_max)
        return true;
    atomic_fetch_sub(&bodies_bytes, bytes);
    return false;
}

void http_bodies_give(int64_t bytes)
{
    atomic_fetch_sub(&bodies_bytes, bytes);
}

/* Releases what admit_body() reserved. */
static void http_request_release(struct http_private *p)
{
    if (p->body_reserved > 0)
        http_bodies_give(p->body_reserved);
    p->body_reserved = 0;
}

int64_t http_bodies_bytes(void)
{
    return atomic_load(&bodies_bytes);
}

/* --- for handlers --- */

void http_known(struct http_request *req)
{
    if (req->priv->conn)
        net_known(req->priv->conn->net);
}

void http_caller(struct http_request *req, const char *peer, uint64_t peer_id)
{
    req->peer = peer;
    req->peer_id = peer_id;
    if (req->priv->conn)
        net_counts_as(req->priv->conn->net, peer_id);
}

struct str http_header_get(const struct http_request *req, const char *name)
{
    return http_header_find(req->headers, req->header_count, name);
}

struct str http_query(struct http_request *req, const char *name)
{
    struct str rest = req->query;

    while (rest.len > 0) {
        struct str value = str_cut(&rest, '&');
        struct str key = str_cut(&value, '=');
        struct str text = STR_NONE;

        if (!str_is(key, name))
            continue;
        if (!decode(value, true, &req->arena, &text))
            assert(!"http_request_check has looked at it");
        return text;
    }
    return STR_NONE;
}

/* --- a connection --- */

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

/* Deals with the part of the body that has not arrived when the request is answered; false: the
 * connection must be closed. */
static bool http_conn_leave_body(struct http_conn *conn)
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

/* Is there room for a body of `bytes` in total? */
static enum err admit_body(struct http_private *p, int64_t bytes, struct problem *why)
{
    if (bytes > p->body_bytes_max)
        return problem_set(why, ERR_TOO_LARGE, "", "The body may have %lld bytes here.",
                           (long long)p->body_bytes_max);
    int64_t more = bytes - HTTP_BODY_SMALL_BYTES - p->body_reserved;
    if (more > 0) {
        if (!http_bodies_take(more, p->req.server->limits))
            return problem_set(why, ERR_BUSY, "",
                               "The bodies of all requests together are too large now "
                               "(bodies_bytes_max); try again.");
        p->body_reserved += more;
    }
    return ERR_OK;
}

/* The head is complete: refuses everything that can be refused without the body. `rest` is what
 * arrived after it; returns how much of that belongs to the request and was used. */
static size_t begin_request(struct http_conn *conn, struct str text, struct str rest)
{
    struct http_server_private *srv = conn->srv;
    struct http_head head = {.headers = srv->headers,
                             .header_max = (size_t)srv->server->limits->header_count_max};
    struct http_private *p = http_request_new(conn);
    int64_t max = srv->server->limits->body_bytes_max;
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
    if (!err) { /* the head callback may accept the request and limit its body */
        p->answerable = true;
        if (srv->server->callbacks->head && !srv->server->callbacks->head(&p->req, &max))
            return 0; /* it has replied already */
        p->answerable = false;
        assert(max >= 0);
        p->body_bytes_max =
            max < srv->server->limits->body_bytes_max ? max : srv->server->limits->body_bytes_max;
        err = admit_body(p, head.content_length, &why);
    }
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
        http_body_sized(&conn->body, 0); /* it is complete already */
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
        if (bytes.at[0] == '\r' && !conn->blank) { /* some old clients send a CR LF after a body */
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
        len += begin_request(conn, (struct str){.at = bytes.at, .len = len}, str_from(bytes, len));
        return len;
    }
    return 0; /* needs more bytes, or the connection is closing */
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

/* Returns how many bytes were used; 0: more are needed first, or a reply. */
static size_t step(struct http_conn *conn, struct str bytes)
{
    switch (conn->state) {
    case HTTP_HEAD:
        return step_head(conn, bytes);
    case HTTP_BODY:
        return step_body(conn, bytes);
    case HTTP_SKIP:
        return step_skip(conn, bytes);
    case HTTP_STREAM:
        return bytes.len;
    default:
        return 0;
    }
}

/* Parses as far as possible; returns how many bytes were used up. */
static size_t consume(struct http_conn *conn, struct str bytes)
{
    size_t used = 0;

    assert(!conn->busy);
    conn->busy = true;
    while (used < bytes.len && !conn->net->closing) {
        size_t len = step(conn, str_from(bytes, used));

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
        buf_free(&conn->held); /* an idle connection should cost little */
    if (conn->held.len >= HTTP_HELD_BYTES_MAX && conn->state == HTTP_WAIT)
        net_read_pause(conn->net);
    else
        net_read_resume(conn->net);
}

/* `held`: they are those in conn->held. */
static void consume_all(struct http_conn *conn, struct str bytes, bool held)
{
    size_t used = consume(conn, bytes);

    assert(used <= bytes.len);
    if (conn->state == HTTP_TAKEN) {
        net_unread(conn->net, str_from(bytes, used));
        conn_free(conn);
        return;
    }
    if (conn->net->closing)
        return;
    if (held)
        buf_drop(&conn->held, used);
    else
        buf_add(&conn->held, bytes.at + used, bytes.len - used);
    if (held || conn->held.len > 0)
        hold_back(conn);
}

static void on_data(struct net_conn *net, struct str bytes)
{
    struct http_conn *conn = net->user;
    bool held = conn->held.len > 0;

    if (held)
        buf_str(&conn->held, bytes);
    consume_all(conn, held ? buf_view(&conn->held) : bytes, held);
}

/* The request is freed already. */
static void http_conn_replied(struct http_conn *conn, bool keep_alive)
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
    if (!conn->busy && conn->held.len > 0) /* pipelined after the request */
        consume_all(conn, buf_view(&conn->held), true);
}

bool http_wants_upgrade(const struct http_request *req)
{
    return req->priv->minor > 0 && req->priv->upgrade;
}

bool http_can_take(struct http_request *req)
{
    assert(req->priv->answerable);
    if (!req->gone && !req->priv->conn->net->closing)
        return true;
    http_request_free(req->priv);
    return false;
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

    assert(conn->state != HTTP_WAIT && conn->state != HTTP_STREAM); /* these have no deadline */
    if (conn->state == HTTP_HEAD && conn->held.len > 0) {
        refuse_head(conn, ERR_REQUEST_TIMEOUT, "The headers did not come in time.");
    } else if (conn->state == HTTP_BODY) {
        conn->req->keep_alive = false;
        refuse(conn->req, ERR_REQUEST_TIMEOUT, "The body did not come in time.");
    } else {
        net_close_after(net); /* idle, or a refused body that is still not complete */
    }
}

static void on_closed(struct net_conn *net)
{
    struct http_conn *conn = net->user;
    struct http_private *p = conn->req;

    if (conn->stream) {
        if (conn->stream->closed)
            conn->stream->closed(conn->stream);
        free(conn->stream);
    }
    if (p && !p->answerable) {
        http_request_free(p); /* no handler saw it */
    } else if (p) {
        p->conn = NULL;
        p->req.peer = arena_cstr(&p->req.arena, str_of(p->req.peer)); /* may be the socket's text */
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

static const struct net_handler http_net_handler = {
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
    while ((p = LIST_FIRST(&srv->requests))) { /* never answered, and no handler is left to do it */
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
    err = net_listen(server->loop, addr, &server->limits->net, &http_net_handler, server,
                     &server->listener, why);
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
    return server->listener->port;
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
    return server->listener->connections;
}

/* --- replies --- */

/* Of those that are sent. */
static const char *const reasons[] = {
    [200] = "OK",
    [201] = "Created",
    [202] = "Accepted",
    [204] = "No Content",
    [304] = "Not Modified",
    [400] = "Bad Request",
    [401] = "Unauthorized",
    [403] = "Forbidden",
    [404] = "Not Found",
    [405] = "Method Not Allowed",
    [408] = "Request Timeout",
    [409] = "Conflict",
    [412] = "Precondition Failed",
    [413] = "Content Too Large",
    [414] = "URI Too Long",
    [417] = "Expectation Failed",
    [422] = "Unprocessable Content",
    [426] = "Upgrade Required",
    [429] = "Too Many Requests",
    [431] = "Request Header Fields Too Large",
    [500] = "Internal Server Error",
    [501] = "Not Implemented",
    [503] = "Service Unavailable",
    [504] = "Gateway Timeout",
    [505] = "HTTP Version Not Supported",
};

/* The status line, Date and the fixed headers. The last two are rewritten once a second. */
static void put_status(struct buf *out, struct http_server_private *srv, int status)
{
    int64_t now_s = srv->server->loop->wall_ms / 1000;
    const char *reason = (size_t)status < COUNT_OF(reasons) ? reasons[status] : NULL;

    assert(status >= 200 && status <= 599);
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
    buf_str(out, STR("HTTP/1.1 "));
    buf_int(out, status);
    buf_char(out, ' ');
    buf_str(out, str_of(reason ? reason : "Unknown"));
    buf_add(out, srv->date, srv->date_len);
}

static void write_reply(struct http_private *p, const struct http_reply *reply, bool keep_alive)
{
    const char *type = reply->content_type ? reply->content_type : "application/json";
    bool bodiless = reply->status == 204 || reply->status == 304;
    size_t size = 512 + reply->body.len;
    struct buf *out;

    for (size_t i = 0; i < reply->header_count; i++)
        size += reply->headers[i].name.len + reply->headers[i].value.len + 4;
    out = net_room(p->conn->net, size);
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
    if (!keep_alive)
        buf_str(out, STR("Connection: close\r\n"));
    else if (p->minor == 0)
        buf_str(out, STR("Connection: keep-alive\r\n"));
    for (size_t i = 0; i < reply->header_count; i++) {
        buf_str(out, reply->headers[i].name);
        buf_str(out, STR(": "));
        /* It may contain client input: a line break must not start a header of its own. */
        for (size_t k = 0; k < reply->headers[i].value.len; k++) {
            unsigned char c = (unsigned char)reply->headers[i].value.at[k];

            buf_char(out, c < 0x20 || c == 0x7f ? ' ' : (char)c);
        }
        buf_str(out, STR("\r\n"));
    }
    buf_str(out, STR("\r\n"));
    if (!bodiless && p->req.method != HTTP_M_HEAD)
        buf_str(out, reply->body);
}

void http_reply(struct http_request *req, const struct http_reply *reply)
{
    struct http_private *p = req->priv;
    struct http_conn *conn = p->conn;
    int64_t max = req->server->limits->requests_per_connection_max;
    bool keep_alive = false;

    assert(p->answerable); /* exactly one reply, and only when one is due */
    if (conn && !conn->net->closing) {
        keep_alive = reply->status != 401 && p->keep_alive && !conn->srv->draining &&
                     (max == 0 || conn->requests < max) && http_conn_leave_body(conn);
        write_reply(p, reply, keep_alive);
    }
    p->answerable = false;
    http_request_free(p);
    if (!conn)
        return;
    if (reply->at_once && !conn->busy) /* else on_read flushes */
        net_flush_alone(conn->net);
    http_conn_replied(conn, keep_alive);
}

static void http_refuse(struct http_private *p, const struct problem *why)
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
                buf_free(&conn->held); /* pipelined after a stream: never read */
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
