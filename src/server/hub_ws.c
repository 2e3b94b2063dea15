/* The conversation with a node over its WebSocket. A message is a call of a route, run by the same
 * handler as a request and answered by a frame. The route is found by the message's `msg`, or named
 * in the message itself (`call`). Only sockets have the rest of this file: hello and welcome, and
 * batching. */
#include "server/hub_ws.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/spare.h"
#include "sched/frame.h"
#include "sched/registry.h"
#include "server/api.h"
#include "server/peers.h"
#include "server/rpc.h"

/* --- calls --- */

enum {
    SOCKET_CALLS_MAX = 64, /* of `call` messages: each may make us ask others; an agent needs few */
    SPARE_MAX = 1024,
};

/* A message from a node, as a call. Lives until its answer, which may come after the socket has
 * closed. Reused with its arena, so a message costs no allocation. */
struct socket_call {
    struct call call;
    LIST_ENTRY(socket_call) link; /* in hub->calls or hub->spare */
    struct hub *hub;
    uint64_t incarnation;
    struct arena arena;
    bool wants_reply;
    int64_t id;    /* of the node's message */
    bool expected; /* hub_batch_expect() */
    bool named;    /* a `call`: it names its route, and the answer is a member of the reply */
};

/* The socket the message came from; NULL: it has closed. */
static struct socket *socket_of(const struct socket_call *own)
{
    return idmap_get(&own->hub->sockets, own->incarnation);
}

static void socket_call_over(struct socket_call *own)
{
    struct hub *hub = own->hub;
    struct socket *socket = own->named ? socket_of(own) : NULL;

    assert(hub->spare_count >= 0 && hub->spare_count <= SPARE_MAX);
    if (socket)
        socket->calls--;
    LIST_REMOVE(own, link);
    if (hub->spare_count == SPARE_MAX) { /* after a flood: free the memory */
        arena_free(&own->arena);
        free(own);
        return;
    }
    arena_reset(&own->arena);
    LIST_INSERT_HEAD(&hub->spare, own, link);
    hub->spare_count++;
}

void hub_calls_free(struct hub *hub)
{
    struct socket_call *own;

    while ((own = LIST_FIRST(&hub->calls)))
        socket_call_over(own); /* nobody will answer it any more */
    while ((own = LIST_FIRST(&hub->spare))) {
        LIST_REMOVE(own, link);
        arena_free(&own->arena);
        free(own);
    }
    buf_free(&hub->frame);
}

/* The members of the body become members of the reply; for a `call` that succeeded, the whole body
 * becomes its `body`. */
static void answer(struct call *call, const struct http_reply *reply)
{
    struct socket_call *own = container_of(call, struct socket_call, call);
    struct socket *socket = socket_of(own);
    struct buf *frame = &own->hub->frame;
    bool ok = reply->status < 300, whole = ok && own->named;

    assert(reply->body.len > (whole ? 1 : 2) && reply->body.at[0] == '{');
    if (socket && (own->wants_reply || !ok)) {
        buf_clear(frame);
        buf_str(frame, STR("{\"msg\":\"reply\",\"re\":"));
        if (own->wants_reply)
            buf_int(frame, own->id);
        else
            buf_str(frame, STR("null"));
        buf_str(frame, whole ? STR(",\"ok\":true,\"body\":") : STR(","));
        buf_add(frame, reply->body.at + !whole, reply->body.len - !whole);
        if (whole)
            buf_char(frame, '}');
        ws_send(socket->ws, buf_view(frame));
    }
    if (socket && own->expected)
        hub_batch_answered(socket, own->id);
    socket_call_over(own);
}

static void push(struct call *call, struct str frame)
{
    struct socket *socket = socket_of(container_of(call, struct socket_call, call));

    if (socket)
        ws_send(socket->ws, frame);
}

/* Instead of a reply: one receipt covers this message and others accepted in a row. */
static bool accepted(struct call *call, bool ack, int64_t lease_ms, int64_t stop_grace_ms)
{
    struct socket_call *own = container_of(call, struct socket_call, call);
    struct socket *socket = socket_of(own);

    assert(own->expected);
    if (!socket)
        return false;
    hub_batch_accept(socket, own->id, ack, lease_ms, stop_grace_ms);
    socket_call_over(own);
    return true;
}

/* A `call` message: runs the route it names. */
static void on_call(struct socket_call *own, struct socket *socket)
{
    struct call *call = &own->call;
    const struct json *message = call->body;
    struct str path = json_str(json_get(message, "path"), call->arena);
    bool get = json_str_is(json_get(message, "method"), "GET"), known;

    own->named = true;
    if (socket->calls++ >= SOCKET_CALLS_MAX) {
        call_error(call, ERR_BUSY, "", "%d calls of this connection wait for their answers.",
                   SOCKET_CALLS_MAX);
        return;
    }
    call->route =
        route_find(get ? HTTP_M_GET : HTTP_M_POST, path, call->arena, call->params, &known);
    if (!call->route || !call->route->socket) {
        call_error(call, ERR_NOT_FOUND, "path", "There is no such route for a node here.");
        return;
    }
    call->body = json_get(message, "body");
    if (json_is_null(call->body))
        json_parse(STR("{}"), call->arena, &call->body, NULL);
    if (json_type(call->body) != JSON_OBJ)
        call_error(call, ERR_BAD_FIELD, "body", "body must be an object.");
    else
        call->route->handle(call);
}

void hub_broadcast(struct hub *hub, struct str text)
{
    struct socket *socket;

    for (size_t i = 0; (socket = idmap_next(&hub->sockets, &i));)
        if (socket->node)
            ws_send(socket->ws, text);
}

/* --- batching --- */

/* A node whose hello asked for it gets the jobs of one turn in one frame, and one receipt for all
 * its messages accepted in a row. Both are sent at the end of the turn, so nothing waits longer. */

enum { JOBS_BYTES_MAX = 65536 }; /* of a frame with several jobs: readers have limits */

enum receipt_state { RECEIPT_OPEN, RECEIPT_ACCEPTED, RECEIPT_ANSWERED };

struct receipt {
    int64_t id;
    enum receipt_state state;
    bool ack;
    int64_t lease_ms;
    int64_t stop_grace_ms;
};

/* In order of arrival, which is also the order of ids. */
struct receipts {
    struct buf list; /* struct receipt */
    size_t sent;     /* bytes of it already covered */
    int64_t last_id;
};

static void mark_due(struct socket *socket)
{
    if (socket->due)
        return;
    socket->due = true;
    LIST_INSERT_HEAD(&socket->hub->due, socket, due_link);
}

/* --- jobs --- */

bool hub_batch_job(struct socket *socket, struct str message)
{
    if (!socket->takes_jobs || !socket->welcomed)
        return false;
    if (socket->jobs.len + message.len > JOBS_BYTES_MAX)
        hub_batch_flush_jobs(socket);
    if (!ws_takes(socket->ws, socket->jobs.len + message.len))
        return false; /* sending it alone handles this case */
    if (socket->job_count++)
        buf_char(&socket->jobs, ',');
    buf_str(&socket->jobs, message);
    mark_due(socket);
    return true;
}

void hub_batch_flush_jobs(struct socket *socket)
{
    struct buf frame; /* not the hub's: the caller may have its own message in that */

    if (socket->job_count == 0)
        return;
    frame = spare_take();
    if (socket->job_count == 1) {
        buf_str(&frame, STR("{\"msg\":\"job\","));
        buf_add(&frame, socket->jobs.at + 1, socket->jobs.len - 1);
    } else {
        buf_str(&frame, STR("{\"msg\":\"jobs\",\"jobs\":["));
        buf_str(&frame, buf_view(&socket->jobs));
        buf_str(&frame, STR("]}"));
    }
    /* A job begins when its node has it, not when its client has the answer. */
    ws_send_first(socket->ws, buf_view(&frame));
    spare_give(&frame);
    buf_clear(&socket->jobs);
    socket->job_count = 0;
}

/* --- receipts --- */

bool hub_batch_expect(struct socket *socket, int64_t id)
{
    struct receipt receipt = {.id = id};

    if (!socket->receipts) {
        socket->receipts = mem_new(struct receipts);
        socket->receipts->last_id = INT64_MIN;
    }
    if (id <= socket->receipts->last_id)
        return false;
    socket->receipts->last_id = id;
    buf_add(&socket->receipts->list, &receipt, sizeof receipt);
    return true;
}

static struct receipt *find(struct receipts *receipts, int64_t id)
{
    struct receipt *list = (struct receipt *)(void *)receipts->list.at;
    size_t from = receipts->sent / sizeof *list, to = receipts->list.len / sizeof *list;

    while (to - from > 1) {
        size_t middle = from + (to - from) / 2;

        if (list[middle].id <= id)
            from = middle;
        else
            to = middle;
    }
    assert(from < to && list[from].id == id && list[from].state == RECEIPT_OPEN);
    return &list[from];
}

void hub_batch_accept(struct socket *socket, int64_t id, bool ack, int64_t lease_ms,
                      int64_t stop_grace_ms)
{
    struct receipt *receipt = find(socket->receipts, id);

    *receipt = (struct receipt){.id = id,
                                .state = RECEIPT_ACCEPTED,
                                .ack = ack,
                                .lease_ms = lease_ms,
                                .stop_grace_ms = stop_grace_ms};
    mark_due(socket);
}

void hub_batch_answered(struct socket *socket, int64_t id)
{
    find(socket->receipts, id)->state = RECEIPT_ANSWERED;
    mark_due(socket);
}

/* `ack`: an ACK among the messages it covers; NULL: there is none. */
static void send_receipt(struct socket *socket, int64_t upto, const struct receipt *ack)
{
    struct buf *frame = &socket->hub->frame;

    buf_clear(frame);
    buf_str(frame, STR("{\"msg\":\"accepted\",\"upto\":"));
    buf_int(frame, upto);
    if (ack && ack->lease_ms) {
        buf_str(frame, STR(",\"lease_ms\":"));
        buf_int(frame, ack->lease_ms);
    }
    if (ack && ack->stop_grace_ms) {
        buf_str(frame, STR(",\"stop_grace_ms\":"));
        buf_int(frame, ack->stop_grace_ms);
    }
    buf_char(frame, '}');
    ws_send(socket->ws, buf_view(frame));
}

/* Covers everything before the first open one. A receipt covers only ACKs with the same terms. */
static void send_receipts(struct socket *socket)
{
    struct receipts *receipts = socket->receipts;
    const struct receipt *ack = NULL, *last = NULL;

    for (; receipts->sent < receipts->list.len; receipts->sent += sizeof *last) {
        const struct receipt *next =
            (const struct receipt *)(const void *)(receipts->list.at + receipts->sent);

        if (next->state == RECEIPT_OPEN)
            break;
        if (next->state == RECEIPT_ANSWERED)
            continue;
        if (next->ack && ack &&
            (next->lease_ms != ack->lease_ms || next->stop_grace_ms != ack->stop_grace_ms)) {
            send_receipt(socket, last->id, ack);
            ack = NULL;
        }
        ack = next->ack ? next : ack;
        last = next;
    }
    if (last)
        send_receipt(socket, last->id, ack);
    if (receipts->sent > receipts->list.len / 2) {
        buf_drop(&receipts->list, receipts->sent);
        receipts->sent = 0;
    }
}

void hub_turn(struct hub *hub)
{
    struct socket *socket;

    while ((socket = LIST_FIRST(&hub->due))) {
        LIST_REMOVE(socket, due_link);
        socket->due = false;
        hub_batch_flush_jobs(socket);
        if (socket->receipts)
            send_receipts(socket);
    }
}

void hub_batch_free(struct socket *socket)
{
    if (socket->due)
        LIST_REMOVE(socket, due_link);
    buf_free(&socket->jobs);
    if (socket->receipts)
        buf_free(&socket->receipts->list);
    free(socket->receipts);
}

/* --- messages --- */

enum { HUB_PROTOCOL = 1 };

static _Atomic uint64_t last_incarnation;

/* The newest connection counts, whichever hello finished first. False: a newer one is already
 * there. */
static bool take_link(const struct socket *socket, struct node *node)
{
    struct worker *worker = socket->hub->worker;
    uint64_t link = hub_link(worker->loop.index, socket->incarnation);
    uint64_t old = atomic_load(&node->link);

    do
        if (hub_link_incarnation(old) > socket->incarnation)
            return false;
    while (!atomic_compare_exchange_weak(&node->link, &old, link));
    if (old && old != link)
        hub_close_link(worker->server, old);
    return true;
}

bool hub_socket_send(struct socket *socket, struct str text)
{
    if (socket->welcomed) {
        hub_batch_flush_jobs(socket); /* the text may be about one of these jobs */
        return ws_send_first(socket->ws, text);
    }
    size_t begun = frame_begin(&socket->early);
    buf_str(&socket->early, text);
    frame_end(&socket->early, begun);
    return true;
}

/* A hello whose node is registered, until its welcome is sent. */
struct welcome {
    struct call *call;
    struct linking linking;
    void (*done)(struct call *call, struct node *node);
};

static void send_welcome(struct welcome *welcome, struct node *node)
{
    struct socket_call *own = container_of(welcome->call, struct socket_call, call);
    struct socket *socket = socket_of(own);
    struct buf *frame = &own->hub->frame;
    const struct sched_config *config = &own->call.worker->server->settings->sched;
    int64_t renew_ms = lease_renew_every_ms(&config->leases); /* as often as the leases need */

    if (!socket) {
        socket_call_over(own);
        return;
    }
    assert(!socket->welcomed);
    struct jsonw w = jsonw_to(frame);
    buf_clear(frame);
    jsonw_obj(&w);
    jsonw_kstr(&w, "msg", STR("welcome"));
    jsonw_kint(&w, "protocol", HUB_PROTOCOL);
    jsonw_kstr(&w, "node_id", node->id);
    jsonw_kint(&w, "incarnation", (int64_t)socket->incarnation);
    jsonw_kint(&w, "heartbeat_ms",
               config->heartbeat_ms < renew_ms ? config->heartbeat_ms : renew_ms);
    jsonw_end_obj(&w);
    ws_send(socket->ws, buf_view(frame));
    /* A node may be sent jobs once it is known, which is before its welcome: send them now. */
    struct buf early = socket->early;
    struct str rest = buf_view(&early), text;
    socket->welcomed = true;
    socket->early = (struct buf){0};
    while (frame_next(&rest, &text))
        ws_send(socket->ws, text);
    buf_free(&early);
    welcome->done(welcome->call, node);
}

/* From now on other instances can send it jobs. If the store did not take the link, the keeper
 * notices and publishes it again. */
static void link_published(struct linking *linking)
{
    send_welcome(container_of(linking, struct welcome, linking), linking->node);
}

void hub_welcome(struct call *call, struct node *node,
                 void (*done)(struct call *call, struct node *node))
{
    struct socket_call *own = container_of(call, struct socket_call, call);
    struct welcome *welcome = arena_new(call->arena, struct welcome);
    struct socket *socket = socket_of(own);
    struct worker *worker = call->worker;

    assert(node && done && !call->req);
    if (!socket) {
        socket_call_over(own);
        return;
    }
    if (!take_link(socket, node)) {
        ws_close(socket->ws, 4001, "replaced");
        socket_call_over(own);
        return;
    }
    socket->node = node;
    registry_alive(worker->sched, node);   /* the old socket may have closed in between */
    hub_move_box(worker->server, node, 0); /* jobs were boxed before it had this link */
    welcome->call = call;
    welcome->done = done;
    if (!peers_shared(worker->server)) {
        send_welcome(welcome, node);
        return;
    }
    welcome->linking.done = link_published;
    links_publish(worker, &welcome->linking, node, STORE_LINK_SOCKET, socket->incarnation);
}

/* A refused hello closes the connection. 1008 keeps an agent away for a while, because repeating
 * the hello would not help. A store that is unavailable for a moment does not justify that. */
static void answer_hello(struct call *call, const struct http_reply *reply)
{
    struct socket *socket = socket_of(container_of(call, struct socket_call, call));
    int status = reply->status; /* the reply may be freed with the call */

    answer(call, reply);
    if (socket && status >= 400)
        ws_close(socket->ws, status >= 500 ? 1013 : 1008, "hello refused");
}

static void on_hello(struct socket_call *own, struct socket *socket, struct str word)
{
    struct call *call = &own->call;
    const struct json *protocol = json_get(call->body, "protocol");
    int64_t number = HUB_PROTOCOL;

    call->answer = answer_hello;
    if (!str_is(word, "hello") || socket->greeted) {
        call_error(call, ERR_CONFLICT, "msg", "The first message must be hello, once.");
        return;
    }
    socket->greeted = true;
    /* We stalled, the node gave up on this connection, and it may have connected elsewhere since:
     * its list of runs is outdated, and would take from it what it runs now. */
    if (ws_peer_left(socket->ws)) {
        call_error(call, ERR_CONFLICT, "msg",
                   "The connection was closed before its hello was read.");
        return;
    }
    if (!json_is_null(protocol) && (!json_int(protocol, &number) || number != HUB_PROTOCOL)) {
        call_error(call, ERR_BAD_FIELD, "protocol", "protocol must be %d.", HUB_PROTOCOL);
        return;
    }
    json_bool(json_get(call->body, "takes_jobs"), &socket->takes_jobs);
    json_bool(json_get(call->body, "takes_accepted"), &socket->takes_accepted);
    call->route = route_of_message(word);
    call->route->handle(call);
}

static void on_known(struct socket_call *own, struct socket *socket, struct str word)
{
    struct call *call = &own->call;

    call->route = route_of_message(word);
    if (!call->route && str_is(word, "UpdateTerminalInfo")) /* a heartbeat with only tags */
        call->route = route_of_message(STR("heartbeat"));
    if (call->route && call->route->handle != api_node_register) { /* after the hello */
        own->expected = own->wants_reply && call->route->receipt && socket->takes_accepted &&
                        hub_batch_expect(socket, own->id);
        call->accepted = own->expected ? accepted : NULL;
        call->route->handle(call);
    } else if (str_is(word, "rpc_reply")) {
        rpc_reply(own->hub, own->incarnation, call->body, call->arena);
        socket_call_over(own);
    } else if (str_is(word, "call")) {
        on_call(own, socket);
    } else {
        call_error(call, ERR_BAD_FIELD, "msg", "msg must be heartbeat, ack, done, fail or call.");
    }
}

static void on_message(struct ws *ws, struct str text)
{
    struct socket *socket = ws->user;
    struct hub *hub = socket->hub;
    struct socket_call *own = LIST_FIRST(&hub->spare);
    struct problem why;

    if (own) {
        LIST_REMOVE(own, link);
        hub->spare_count--;
    } else {
        own = mem_new(struct socket_call);
        own->hub = hub;
    }
    assert(hub->spare_count >= 0);
    LIST_INSERT_HEAD(&hub->calls, own, link);
    own->incarnation = socket->incarnation;
    own->wants_reply = own->expected = own->named = false;
    struct call *call = &own->call;
    *call = (struct call){.worker = hub->worker,
                          .arena = &own->arena,
                          .answer = answer,
                          .push = push,
                          .node = socket->node};
    if (socket->node)
        call->node_id = socket->node->id;
    if (socket->token) /* the socket may close before the answer */
        call->token = token_put(arena_raw(&own->arena, token_bytes(socket->token)), socket->token);
    /* The text is in the socket's read buffer: copy what outlives this call. */
    if (json_parse_body(arena_str(call->arena, text), call->arena, &call->body, &why)) {
        call_problem(call, &why);
        return;
    }
    if (json_type(call->body) != JSON_OBJ) {
        call_error(call, ERR_BAD_JSON, "", "A message must be a JSON object.");
        return;
    }
    own->wants_reply = json_int(json_get(call->body, "id"), &own->id);
    struct str word = json_str(json_get(call->body, "msg"), call->arena);
    if (socket->node)
        on_known(own, socket, word);
    else
        on_hello(own, socket, word);
}

static void on_closed(struct ws *ws, int code)
{
    struct socket *socket = ws->user;
    struct hub *hub = socket->hub;
    uint64_t link = hub_link(hub->worker->loop.index, socket->incarnation);

    assert(socket->ws == ws && idmap_get(&hub->sockets, socket->incarnation) == socket);
    idmap_del(&hub->sockets, socket->incarnation);
    rpc_end(hub, socket->incarnation);
    /* A replaced socket's close must not evict the new one. */
    if (socket->node) {
        uint64_t current = atomic_load(&socket->node->link);

        if (node_close_evicts(current, link) &&
            atomic_compare_exchange_strong(&socket->node->link, &current, 0)) {
            registry_left(hub->worker->sched, socket->node, code == 1000);
            links_note(hub->worker, socket->node, STORE_LINK_LEFT, socket->incarnation);
            log_event(LOG_INFO, "node.disconnected", KS("node_id", socket->node->id),
                      KI("code", code));
        }
    }
    free(socket->token);
    buf_free(&socket->early);
    hub_batch_free(socket);
    free(socket);
}

void hub_accept(struct call *call)
{
    static const struct ws_handler handler = {.message = on_message, .closed = on_closed};
    struct hub *hub = call->worker->hub;
    struct socket *socket = mem_new(struct socket);

    socket->hub = hub;
    socket->token = auth_copy(call->token);
    socket->incarnation = atomic_fetch_add(&last_incarnation, 1) + 1;
    idmap_put(&hub->sockets, socket->incarnation, socket);
    socket->ws = ws_accept(call->req, &handler, &call->worker->server->settings->ws, socket);
    if (!socket->ws) {
        idmap_del(&hub->sockets, socket->incarnation);
        free(socket->token);
        free(socket);
        return;
    }
}
