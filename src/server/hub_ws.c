/* The conversation with a node over its WebSocket: hello, heartbeats, and what becomes of its jobs.
 * A message is handled in a context of its own, because its answer may come after the socket went.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "sched/registry.h"
#include "server/hub_private.h"
#include "server/links.h"
#include "server/renew.h"
#include "server/rpc.h"
#include "server/urls.h"

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

static void renewed(struct renew *renew);

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
