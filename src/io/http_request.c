/* A request's memory: taken from the last ones, filled in one go, and what handlers ask of it. */
#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/http_private.h"

struct http_private *http_request_new(struct http_conn *conn)
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

void http_request_free(struct http_private *p)
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

/* A slice of the text that was read becomes the same slice of its copy; others stand in constants.
 */
static struct str moved(struct str slice, struct str text, const char *copy)
{
    if (slice.at >= text.at && slice.at + slice.len <= text.at + text.len)
        slice.at = copy + (slice.at - text.at);
    return slice;
}

/* The read buffer is used again before the reply: what the request needs is copied in one go. */
void http_request_keep(struct http_private *p, const struct http_head *head, struct str text)
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

/* False: it is not percent-encoded UTF-8, or holds a NUL. What stands there encoded is ASCII, see
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

static enum err check_query(struct http_request *req, struct problem *why)
{
    struct str rest = req->query, text;

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

enum err http_request_check(struct http_request *req, struct problem *why)
{
    struct str text;

    if (memchr(req->path.at, '%', req->path.len) && !decode(req->path, false, &req->arena, &text))
        return problem_set(why, ERR_BAD_REQUEST, "",
                           "The path is not valid percent-encoded UTF-8.");
    return check_query(req, why);
}

/* --- all bodies together --- */

static _Atomic int64_t bodies_bytes; /* of all loops: memory is one */

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

bool http_request_reserve(struct http_private *p, size_t bytes)
{
    int64_t more = (int64_t)bytes - HTTP_BODY_SMALL_BYTES - p->body_reserved;

    if (more <= 0)
        return true;
    if (!http_bodies_take(more, p->req.server->limits))
        return false;
    p->body_reserved += more;
    return true;
}

void http_request_release(struct http_private *p)
{
    if (p->body_reserved > 0)
        http_bodies_give(p->body_reserved);
    p->body_reserved = 0;
}

int64_t http_bodies_bytes(void)
{
    return atomic_load(&bodies_bytes);
}

/* --- what handlers ask --- */

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
    struct str wanted = str_of(name);

    for (size_t i = 0; i < req->header_count; i++)
        if (str_eq_nocase(req->headers[i].name, wanted))
            return req->headers[i].value;
    return STR_NONE;
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
