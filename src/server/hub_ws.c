/* The conversation with a node over its WebSocket: hello, heartbeats, what becomes of its jobs, and
 * routes called over it: the same handlers, answered by a frame. A message is handled in a context
 * of its own, because its answer may come after the socket went. */
#include "server/hub_ws.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "sched/registry.h"
#include "sched/settle.h"
#include "server/api.h"
#include "server/api_node.h"
#include "server/callback.h"
#include "server/hub.h"
#include "server/peers.h"
#include "server/rpc.h"

static void renewed(struct renew *renew);

/* --- routes --- */

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

/* The body of a good answer is a member; a problem's members are in the reply itself, as in every
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

/* A `call` message of a node: runs the route it names. Takes what is in `arena`, where the message
 * is. */
static void hub_call(struct socket *socket, const struct json *message, struct arena *arena)
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

/* --- what is sent together --- */

/* What a node is told together, if its hello asked for it: the jobs of one turn in one frame, and
 * one receipt for all its messages that were accepted in a row. It leaves at the end of the turn in
 * which it came up, so nobody waits for it. */

enum { JOBS_BYTES_MAX = 65536 }; /* of a frame with several: readers have bounds */

enum receipt_state { RECEIPT_OPEN, RECEIPT_ACCEPTED, RECEIPT_ANSWERED };

struct receipt {
    int64_t id;
    enum receipt_state state;
    bool ack;
    int64_t lease_ms;
    int64_t stop_grace_ms;
};

/* In the order in which they came, which is that of their ids. */
struct receipts {
    struct buf list; /* struct receipt */
    size_t told;     /* bytes of it that are done with */
    int64_t last_id;
};

static void is_due(struct socket *socket)
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
        return false; /* the ordinary way knows what to do */
    if (socket->job_count++)
        buf_char(&socket->jobs, ',');
    buf_str(&socket->jobs, message);
    is_due(socket);
    return true;
}

void hub_batch_flush_jobs(struct socket *socket)
{
    struct buf *frame = &socket->hub->frame;
    struct buf own = {0};

    if (socket->job_count == 0)
        return;
    own = *frame; /* whoever is about to send something has it there */
    *frame = (struct buf){0};
    if (socket->job_count == 1) {
        buf_str(frame, STR("{\"msg\":\"job\","));
        buf_add(frame, socket->jobs.at + 1, socket->jobs.len - 1);
    } else {
        buf_str(frame, STR("{\"msg\":\"jobs\",\"jobs\":["));
        buf_str(frame, buf_view(&socket->jobs));
        buf_str(frame, STR("]}"));
    }
    ws_send(socket->ws, buf_view(frame));
    buf_free(frame);
    *frame = own;
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
    size_t from = receipts->told / sizeof *list, to = receipts->list.len / sizeof *list;

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
    is_due(socket);
}

void hub_batch_answered(struct socket *socket, int64_t id)
{
    find(socket->receipts, id)->state = RECEIPT_ANSWERED;
    is_due(socket);
}

/* `ack`: one of those it is about that is an ACK; NULL: none is. */
static void say_accepted(struct socket *socket, int64_t upto, const struct receipt *ack)
{
    struct buf *frame = &socket->hub->frame;

    buf_clear(frame);
    buf_str(frame, STR("{\"msg\":\"accepted\",\"upto\":"));
    buf_int(frame, upto);
    if (ack && ack->lease_ms)
        buf_fmt(frame, ",\"lease_ms\":%" PRId64, ack->lease_ms);
    if (ack && ack->stop_grace_ms)
        buf_fmt(frame, ",\"stop_grace_ms\":%" PRId64, ack->stop_grace_ms);
    buf_char(frame, '}');
    ws_send(socket->ws, buf_view(frame));
}

/* All in front of the first that is open. A word ends where ACKs have other terms. */
static void tell_accepted(struct socket *socket)
{
    struct receipts *receipts = socket->receipts;
    const struct receipt *ack = NULL, *last = NULL;

    for (; receipts->told < receipts->list.len; receipts->told += sizeof *last) {
        const struct receipt *next =
            (const struct receipt *)(const void *)(receipts->list.at + receipts->told);

        if (next->state == RECEIPT_OPEN)
            break;
        if (next->state == RECEIPT_ANSWERED)
            continue;
        if (next->ack && ack &&
            (next->lease_ms != ack->lease_ms || next->stop_grace_ms != ack->stop_grace_ms)) {
            say_accepted(socket, last->id, ack);
            ack = NULL;
        }
        ack = next->ack ? next : ack;
        last = next;
    }
    if (last)
        say_accepted(socket, last->id, ack);
    if (receipts->told > receipts->list.len / 2) {
        buf_drop(&receipts->list, receipts->told);
        receipts->told = 0;
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
            tell_accepted(socket);
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

enum { HUB_PROTOCOL = 1, SPARE_MAX = 1024 };

/* One message of a node on its way through the scheduler. */
struct wscall {
    struct hub *hub;
    uint64_t incarnation;
    struct arena arena;
    const struct json *body;
    bool wants_reply;
    bool expected; /* hub_batch_expect() */
    int64_t id;    /* of the node's message */
    struct wscall *next;
    struct change change;
    struct settle settle;
    struct renew renew;
    struct linking linking;
};

static _Atomic uint64_t last_incarnation;

static struct wscall *wscall_new(struct socket *socket)
{
    struct hub *hub = socket->hub;
    struct wscall *call = hub->spare;

    if (call) {
        hub->spare = call->next;
        hub->spare_count--;
    } else {
        call = calloc(1, sizeof *call);
    }
    assert(call && hub->spare_count >= 0);
    call->hub = hub;
    call->incarnation = socket->incarnation;
    call->expected = false;
    return call;
}

static void wscall_over(struct wscall *call)
{
    struct hub *hub = call->hub;

    assert(hub->spare_count >= 0 && hub->spare_count <= SPARE_MAX);
    if (hub->spare_count == SPARE_MAX) { /* after a flood: the memory goes back */
        arena_free(&call->arena);
        free(call);
        return;
    }
    arena_reset(&call->arena);
    call->next = hub->spare;
    hub->spare = call;
    hub->spare_count++;
}

void hub_ws_free(struct hub *hub)
{
    struct wscall *call;

    while ((call = hub->spare)) {
        hub->spare = call->next;
        arena_free(&call->arena);
        free(call);
    }
    buf_free(&hub->frame);
}

/* The socket the message came by, if it is still there. */
static struct socket *socket_of(const struct wscall *call)
{
    return idmap_get(&call->hub->sockets, call->incarnation);
}

/* The beginning of a good answer, for send_ok() to end. */
static struct buf *begin_ok(struct wscall *call)
{
    struct buf *frame = &call->hub->frame;

    buf_clear(frame);
    buf_str(frame, STR("{\"msg\":\"reply\",\"re\":"));
    buf_int(frame, call->id);
    buf_str(frame, STR(",\"ok\":true"));
    return frame;
}

static void send_ok(struct wscall *call)
{
    struct socket *socket = socket_of(call);
    struct buf *frame = &call->hub->frame;

    buf_char(frame, '}');
    if (call->wants_reply && socket)
        ws_send(socket->ws, buf_view(frame));
    if (call->expected && socket)
        hub_batch_answered(socket, call->id);
    wscall_over(call);
}

static void reply_ok(struct wscall *call)
{
    begin_ok(call);
    send_ok(call);
}

/* attempt > 0: the job's current one, told with a 409. */
static void reply_problem(struct wscall *call, const struct problem *why, int attempt)
{
    struct socket *socket = socket_of(call);
    struct buf *frame = &call->hub->frame;

    if (socket) {
        struct jsonw w = jsonw_to(frame);

        buf_clear(frame);
        jsonw_obj(&w);
        jsonw_kstr(&w, "msg", STR("reply"));
        jsonw_key(&w, "re");
        if (call->wants_reply)
            jsonw_int(&w, call->id);
        else
            jsonw_null(&w);
        problem_write(&w, why);
        if (attempt > 0)
            jsonw_kint(&w, "attempt_id", attempt);
        jsonw_end_obj(&w);
        ws_send(socket->ws, buf_view(frame));
        if (call->expected)
            hub_batch_answered(socket, call->id);
    }
    wscall_over(call);
}

/* The newest connection is the one that counts, whichever hello was done with first. False: a newer
 * one is there already. */
static bool take_link(const struct wscall *call, const struct socket *socket, struct node *node)
{
    struct worker *worker = call->hub->worker;
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

/* As often as its leases need. */
static int64_t heartbeat_ms(const struct sched_config *config)
{
    int64_t every_ms = lease_renew_every_ms(&config->leases);

    return config->heartbeat_ms < every_ms ? config->heartbeat_ms : every_ms;
}

bool hub_socket_send(struct socket *socket, struct str text)
{
    if (socket->welcomed) {
        hub_batch_flush_jobs(socket); /* it may be about one of them */
        return ws_send(socket->ws, text);
    }
    buf_add(&socket->early, &text.len, sizeof text.len);
    buf_str(&socket->early, text);
    return true;
}

/* Jobs may be sent to a node from the moment it is known, which is before its welcome. */
static void send_early(struct socket *socket)
{
    struct buf early = socket->early;
    struct str text;

    assert(!socket->welcomed);
    socket->welcomed = true;
    socket->early = (struct buf){0};
    for (size_t at = 0; at < early.len; at += text.len) {
        memcpy(&text.len, early.at + at, sizeof text.len);
        at += sizeof text.len;
        text.at = early.at + at;
        ws_send(socket->ws, text);
    }
    buf_free(&early);
}

static void say_welcome(struct wscall *call, struct node *node)
{
    struct socket *socket = socket_of(call);
    struct worker *worker = call->hub->worker;
    struct buf *frame = &call->hub->frame;

    if (!socket) {
        wscall_over(call);
        return;
    }
    struct jsonw w = jsonw_to(frame);
    buf_clear(frame);
    jsonw_obj(&w);
    jsonw_kstr(&w, "msg", STR("welcome"));
    jsonw_kint(&w, "protocol", HUB_PROTOCOL);
    jsonw_kstr(&w, "node_id", node->id);
    jsonw_kint(&w, "incarnation", (int64_t)socket->incarnation);
    jsonw_kint(&w, "heartbeat_ms", heartbeat_ms(&worker->server->settings->sched));
    jsonw_end_obj(&w);
    ws_send(socket->ws, buf_view(frame));
    send_early(socket);
    if (!renew_start(&call->renew, node, renewed))
        reply_ok(call);
}

/* Other instances can hand it jobs from now on. Should the store not have taken it, the keeper
 * notices and tells it again. */
static void link_told(struct linking *linking)
{
    say_welcome(container_of(linking, struct wscall, linking), linking->node);
}

/* hello: the node is (now) known. */
static void welcome(struct wscall *call, struct node *node)
{
    struct socket *socket = socket_of(call);
    struct worker *worker = call->hub->worker;

    assert(node);
    if (!socket) {
        wscall_over(call);
        return;
    }
    if (!take_link(call, socket, node)) {
        ws_close(socket->ws, 4001, "replaced");
        wscall_over(call);
        return;
    }
    socket->node = node;
    registry_alive(worker->sched, node);   /* the old one's close may have come in between */
    hub_move_box(worker->server, node, 0); /* it was there to be chosen before it had this link */
    if (!peers_shared(worker->server)) {
        say_welcome(call, node);
        return;
    }
    call->linking.done = link_told;
    links_tell(worker, &call->linking, node, STORE_LINK_SOCKET, socket->incarnation);
}

/* 1008 keeps an agent away for a while: saying the same again would not help. A store that is away
 * for a moment is no such reason. */
static void refuse_hello(struct wscall *call, const struct problem *why)
{
    struct socket *socket = socket_of(call);
    int code = err_http(why->err) >= 500 ? 1013 : 1008; /* `why` may go with the call */

    reply_problem(call, why, 0);
    if (socket)
        ws_close(socket->ws, code, "hello refused");
}

static void hello_registered(struct change *change)
{
    struct wscall *call = container_of(change, struct wscall, change);

    assert(change->err || change->node);
    if (change->err)
        refuse_hello(call, &change->why);
    else
        welcome(call, change->node);
}

static void on_hello(struct wscall *call)
{
    struct worker *worker = call->hub->worker;
    struct node_report report;
    struct node_report_load load;
    struct problem why;
    int64_t protocol = HUB_PROTOCOL;

    if (!json_is_null(json_get(call->body, "protocol")) &&
        (!json_int(json_get(call->body, "protocol"), &protocol) || protocol != HUB_PROTOCOL)) {
        problem_set(&why, ERR_BAD_FIELD, "protocol", "protocol must be %d.", HUB_PROTOCOL);
        refuse_hello(call, &why);
        return;
    }
    if (node_report_read(call->body, STR_NONE, &worker->sched->sched->config.node_rules,
                         &call->arena, &report, &why) ||
        node_report_load(&report, &load, &why) ||
        urls_check(worker->server, URL_ENDPOINT, report.endpoint, &why) ||
        renew_read(&report, worker, &call->arena, &call->renew, &why)) {
        refuse_hello(call, &why);
        return;
    }
    struct socket *socket = socket_of(call);
    json_bool(json_get(call->body, "takes_jobs"), &socket->takes_jobs);
    json_bool(json_get(call->body, "takes_accepted"), &socket->takes_accepted);
    if (!auth_speaks_for(socket->token, report.node_id)) {
        problem_set(&why, ERR_FORBIDDEN, "node_id", "The token is for the node " STR_FMT ".",
                    STR_ARG(socket->token->node_id));
        refuse_hello(call, &why);
        return;
    }
    bool without_runs = registry_came_back_empty(worker->sched, &report);
    if (registry_heartbeat(worker->sched, &report, &load) == BEAT_TAKEN && !without_runs) {
        welcome(call, snapshot_node(worker->sched->snapshot, report.node_id)->node);
        return;
    }
    if (registry_prepare(worker->sched, &report, &call->change, &why)) {
        refuse_hello(call, &why);
        return;
    }
    call->change.without_runs = without_runs;
    call->change.done = hello_registered;
    registry_send(worker->sched, &call->change);
}

/* Runs the node listed that are not its own any more: it should end them. Not so when the store
 * does not know the node: one that was emptied has forgotten everybody, and the node is about to
 * come again with all it runs. Only an answer with the terms of the leases says that the others
 * were renewed, and it comes behind the drops: what was not dropped by then goes on. */
static void renewed(struct renew *renew)
{
    struct wscall *call = container_of(renew, struct wscall, renew);
    struct socket *socket = socket_of(call);
    struct buf *frame = &call->hub->frame;

    for (size_t i = 0; socket && !renew->op.err && i < renew->count; i++) {
        char id[JOB_ID_TEXT + 1];

        if (!renew->runs[i].unknown)
            continue;
        struct jsonw w = jsonw_to(frame);
        buf_clear(frame);
        job_id_text(renew->runs[i].id, id);
        jsonw_obj(&w);
        jsonw_kstr(&w, "msg", STR("drop"));
        jsonw_kstr(&w, "job_id", str_of(id));
        jsonw_kint(&w, "attempt_id", renew->runs[i].attempt);
        jsonw_end_obj(&w);
        ws_send(socket->ws, buf_view(frame));
    }
    begin_ok(call);
    if (!renew->op.err)
        buf_fmt(frame, ",\"running_lease_ms\":%" PRId64 ",\"f2f_lease_ms\":%" PRId64,
                renew->op.u.renew.terms.task_ms, renew->op.u.renew.terms.f2f_ms);
    send_ok(call);
}

static void beat_registered(struct change *change)
{
    struct wscall *call = container_of(change, struct wscall, change);

    if (change->err)
        reply_problem(call, &change->why, 0);
    else if (!renew_start(&call->renew, change->node, renewed))
        reply_ok(call);
}

static void on_heartbeat(struct wscall *call, struct socket *socket)
{
    struct worker *worker = call->hub->worker;
    struct node_report report;
    struct node_report_load load;
    struct problem why;

    assert(socket->node);
    if (node_report_read(call->body, socket->node->id, &worker->sched->sched->config.node_rules,
                         &call->arena, &report, &why) ||
        node_report_load(&report, &load, &why) ||
        renew_read(&report, worker, &call->arena, &call->renew, &why)) {
        atomic_fetch_add(&socket->node->bad_heartbeats, 1);
        reply_problem(call, &why, 0);
        return;
    }
    metric_add(METRIC_HEARTBEATS, 1);
    enum registry_beat beat = registry_heartbeat(worker->sched, &report, &load);
    if (beat == BEAT_TAKEN) {
        if (!renew_start(&call->renew, socket->node, renewed))
            reply_ok(call);
        return;
    }
    if (beat == BEAT_UNKNOWN && !node_report_registers(&report)) {
        /* It left, or was forgotten, and its connection is about to close: a heartbeat alone would
         * make a node of it that can do nothing. */
        problem_set(&why, ERR_NOT_FOUND, "node_id", "There is no node \"" STR_FMT "\" any more.",
                    STR_ARG(socket->node->id));
        reply_problem(call, &why, 0);
        return;
    }
    if (beat == BEAT_MAX) {
        registry_prepare_max(&report, socket->node, &call->change);
    } else if (registry_prepare(worker->sched, &report, &call->change, &why)) {
        reply_problem(call, &why, 0);
        return;
    }
    call->change.done = beat_registered;
    registry_send(worker->sched, &call->change);
}

static void accepted(struct wscall *call, const struct settle *settle)
{
    struct socket *socket = socket_of(call);
    bool ack = settle->kind == SETTLE_ACK;
    /* When it may begin elsewhere: by then the node must have ended it. */
    int64_t lease_ms = ack && settle->head.attempt < settle->head.max_attempts
                           ? lease_term_ms(&settle->op.u.settle.terms, str_of(settle->head.type))
                           : 0;
    int64_t grace_ms =
        lease_ms && settle->head.timeout_ms > 0 ? settle->op.u.settle.stop_grace_ms : 0;
    struct buf *frame;

    if (call->expected && socket && !settle->duplicate) {
        hub_batch_accept(socket, call->id, ack, lease_ms, grace_ms);
        wscall_over(call);
        return;
    }
    frame = begin_ok(call);
    if (settle->duplicate)
        buf_str(frame, STR(",\"duplicate\":true"));
    if (lease_ms)
        buf_fmt(frame, ",\"lease_ms\":%" PRId64, lease_ms);
    if (grace_ms)
        buf_fmt(frame, ",\"stop_grace_ms\":%" PRId64, grace_ms);
    send_ok(call);
}

static void settled(struct settle *settle)
{
    struct wscall *call = container_of(settle, struct wscall, settle);
    struct problem why;

    assert(settle->node.at);
    if (!settle->err) {
        accepted(call, settle);
        return;
    }
    settle_problem(settle, &why);
    reply_problem(call, &why, settle->err == ERR_STALE ? settle->head.attempt : 0);
}

static void on_job(struct wscall *call, struct socket *socket, enum settle_kind kind)
{
    struct worker *worker = call->hub->worker;
    struct message message;
    struct problem why;

    assert(socket->node);
    call->expected =
        call->wants_reply && socket->takes_accepted && hub_batch_expect(socket, call->id);
    if (message_read(call->body, kind, worker->server->settings->result_bytes_max, &call->arena,
                     &message, &why)) {
        reply_problem(call, &why, 0);
        return;
    }
    if (kind == SETTLE_DONE && !message.ok)
        kind = SETTLE_FAIL;
    call->settle = (struct settle){.loop = worker->sched,
                                   .arena = &call->arena,
                                   .kind = kind,
                                   .job = message.job,
                                   .attempt = (int)message.attempt,
                                   .send_id = message.send_id,
                                   .node = socket->node->id, /* who it is, not who it says */
                                   .reason = message.reason,
                                   .result = message.result,
                                   .command = message.command,
                                   .done = settled};
    settle_start(&call->settle);
}

static void on_known(struct wscall *call, struct socket *socket, struct str word)
{
    static const struct {
        const char *word;
        enum settle_kind kind;
    } rows[] = {{"ack", SETTLE_ACK}, {"done", SETTLE_DONE}, {"fail", SETTLE_FAIL}};
    struct problem why;

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (str_is(word, rows[i].word)) {
            on_job(call, socket, rows[i].kind);
            return;
        }
    if (str_is(word, "rpc_reply")) {
        rpc_reply(call->hub, call->incarnation, call->body, &call->arena);
        wscall_over(call);
        return;
    }
    if (str_is(word, "call")) {
        hub_call(socket, call->body, &call->arena);
        wscall_over(call);
        return;
    }
    if (str_is(word, "heartbeat") || str_is(word, "UpdateTerminalInfo")) {
        on_heartbeat(call, socket);
        return;
    }
    problem_set(&why, ERR_BAD_FIELD, "msg", "msg must be heartbeat, ack, done, fail or call.");
    reply_problem(call, &why, 0);
}

static void on_message(struct ws *ws, struct str text)
{
    struct socket *socket = ws->user;
    struct wscall *call = wscall_new(socket);
    struct problem why;

    /* The text is the socket's read buffer: what outlives this call must be ours. */
    enum err err = json_parse_body(arena_str(&call->arena, text), &call->arena, &call->body, &why);
    if (!err && json_type(call->body) != JSON_OBJ)
        err = problem_set(&why, ERR_BAD_JSON, "", "A message must be a JSON object.");
    call->wants_reply = !err && json_int(json_get(call->body, "id"), &call->id);
    if (err) {
        reply_problem(call, &why, 0);
        return;
    }
    struct str word = json_str(json_get(call->body, "msg"), &call->arena);
    if (socket->node) {
        on_known(call, socket, word);
    } else if (str_is(word, "hello") && !socket->greeted) {
        socket->greeted = true;
        on_hello(call);
    } else {
        problem_set(&why, ERR_CONFLICT, "msg", "The first message must be hello, once.");
        refuse_hello(call, &why);
    }
}

static void on_closed(struct ws *ws, int code)
{
    struct socket *socket = ws->user;
    struct hub *hub = socket->hub;
    uint64_t link = hub_link(hub->worker->loop.index, socket->incarnation);

    assert(socket->ws == ws && idmap_get(&hub->sockets, socket->incarnation) == socket);
    idmap_del(&hub->sockets, socket->incarnation);
    rpc_gone(hub, socket->incarnation);
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

static const struct ws_handler handler = {.message = on_message, .closed = on_closed};

void hub_accept(struct call *call)
{
    struct hub *hub = call->worker->hub;
    struct socket *socket = calloc(1, sizeof *socket);

    assert(socket);
    socket->hub = hub;
    if (call->token)
        socket->token = token_put(mem_alloc(token_bytes(call->token)), call->token);
    socket->incarnation = atomic_fetch_add(&last_incarnation, 1) + 1;
    idmap_put(&hub->sockets, socket->incarnation, socket);
    socket->ws = ws_accept(call->req, &handler, &call->worker->server->settings->ws, socket);
    if (!socket->ws) {
        idmap_del(&hub->sockets, socket->incarnation);
        free(socket->token);
        free(socket);
    }
}
