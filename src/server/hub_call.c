/* Routes called over a node's WebSocket: the same handlers, answered by a frame. */
#include <assert.h>
#include <stdlib.h>

#include "server/hub_private.h"

/* An agent has a handful. Each holds its message, and may make us ask others. */
enum { SOCKET_CALLS_MAX = 64 };

/* Lives until its answer, which may come after the socket went. */
struct socket_call {
    struct call call;
    struct socket_call *next, **prev; /* in hub->calls */
    struct hub *hub;
    uint64_t incarnation;
    struct arena arena;
    bool wants_reply;
    int64_t id;
};

static void call_over(struct socket_call *own)
{
    struct socket *socket = idmap_get(&own->hub->sockets, own->incarnation);

    if (socket)
        socket->calls--;
    *own->prev = own->next;
    if (own->next)
        own->next->prev = own->prev;
    arena_free(&own->arena);
    free(own);
}

void hub_calls_free(struct hub *hub)
{
    while (hub->calls)
        call_over(hub->calls);
}

/* The body of a good answer is a member; a problem's members stand in the reply itself, as in every
 * other reply. */
static void answer(struct call *call, const struct http_reply *reply)
{
    struct socket_call *own = container_of(call, struct socket_call, call);
    struct socket *socket = idmap_get(&own->hub->sockets, own->incarnation);
    struct buf *frame = &own->hub->frame;
    bool ok = reply->status < 300;

    assert(reply->body.len >= 2 && reply->body.at[0] == '{');
    if (socket && (own->wants_reply || !ok)) {
        buf_clear(frame);
        buf_str(frame, STR("{\"msg\":\"reply\",\"re\":"));
        if (own->wants_reply)
            buf_int(frame, own->id);
        else
            buf_str(frame, STR("null"));
        buf_str(frame, ok ? STR(",\"ok\":true,\"body\":") : STR(","));
        buf_add(frame, reply->body.at + !ok, reply->body.len - !ok);
        if (ok)
            buf_char(frame, '}');
        ws_send(socket->ws, buf_view(frame));
    }
    call_over(own);
}

/* False: there is no such route for a node. */
static bool find_route(struct call *call, const struct json *message, struct arena *arena)
{
    struct str path = json_str(json_get(message, "path"), arena);
    bool get = json_str_is(json_get(message, "method"), "GET"), known;

    call->route = route_find(get ? HTTP_M_GET : HTTP_M_POST, path, arena, call->params, &known);
    return call->route && call->route->socket;
}

void hub_call(struct socket *socket, const struct json *message, struct arena *arena)
{
    struct socket_call *own = calloc(1, sizeof *own);
    const struct json *body = json_get(message, "body");
    struct call *call = &own->call;

    assert(own && socket->node);
    own->hub = socket->hub;
    own->next = own->hub->calls;
    own->prev = &own->hub->calls;
    if (own->next)
        own->next->prev = &own->next;
    own->hub->calls = own;
    own->incarnation = socket->incarnation;
    own->arena = *arena; /* the message lives on in it */
    *arena = (struct arena){0};
    own->wants_reply = json_int(json_get(message, "id"), &own->id);
    *call = (struct call){.worker = socket->hub->worker,
                          .arena = &own->arena,
                          .answer = answer,
                          .node_id = socket->node->id};
    if (socket->token) /* the socket may go before the answer */
        call->token =
            token_put(arena_alloc(call->arena, token_bytes(socket->token)), socket->token);
    if (socket->calls++ >= SOCKET_CALLS_MAX) {
        call_error(call, ERR_BUSY, "", "%d calls of this connection wait for their answers.",
                   SOCKET_CALLS_MAX);
        return;
    }
    if (!find_route(call, message, &own->arena)) {
        call_error(call, ERR_NOT_FOUND, "path", "There is no such route for a node here.");
        return;
    }
    if (json_is_null(body))
        json_parse(STR("{}"), &own->arena, &body, NULL);
    call->body = body;
    if (json_type(body) != JSON_OBJ)
        call_error(call, ERR_BAD_FIELD, "body", "body must be an object.");
    else
        call->route->handle(call);
}

void hub_tell_all(struct hub *hub, struct str text)
{
    struct socket *socket;

    for (size_t i = 0; (socket = idmap_next(&hub->sockets, &i));)
        if (socket->node)
            ws_send(socket->ws, text);
}
