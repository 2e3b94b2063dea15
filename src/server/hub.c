/* Links and sends. The WebSocket conversation itself is in hub_ws.c, boxes and polls in hub_box.c.
 */
#include "server/hub.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/metrics.h"
#include "model/trace.h"
#include "server/hub_private.h"
#include "server/links.h"
#include "server/rpc.h"
#include "server/urls.h"

/* A link: kind, loop and incarnation in one word, so that reading it needs no lock. */
#define LINK_SOCKET     (1ull << 63)
#define LINK_LOOP_SHIFT 54

uint64_t hub_link(int loop, uint64_t incarnation)
{
    assert(loop >= 0 && loop < 256 && incarnation < 1ull << LINK_LOOP_SHIFT);
    return LINK_SOCKET | (uint64_t)loop << LINK_LOOP_SHIFT | incarnation;
}

int hub_link_loop(uint64_t link)
{
    return (int)(link >> LINK_LOOP_SHIFT & 0xff);
}

uint64_t hub_link_incarnation(uint64_t link)
{
    return link & ((1ull << LINK_LOOP_SHIFT) - 1);
}

struct hub *hub_new(struct worker *worker)
{
    struct hub *hub = calloc(1, sizeof *hub);

    assert(hub);
    hub->worker = worker;
    return hub;
}

void hub_free(struct hub *hub)
{
    if (!hub)
        return;
    hub_boxes_free(hub);
    hub_calls_free(hub);
    idmap_free(&hub->sockets);
    idmap_free(&hub->rpcs);
    hub_ws_free(hub);
    free(hub);
}

int64_t hub_connections(const struct hub *hub)
{
    return (int64_t)hub->sockets.count;
}

void hub_send_over(struct send_op *send, bool ok, const char *reason)
{
    assert(ok == !reason);
    send->ok = ok;
    send->reason = reason;
}

/* Back to where the send came from. */
static void sent_msg(struct msg *msg)
{
    struct send_op *send = container_of(msg, struct send_op, msg);

    send->done(send);
}

static void answer_send(struct send_op *send)
{
    assert(send->reply_to && (send->ok || send->reason));
    send->msg.run = sent_msg;
    inbox_post(send->reply_to, &send->msg);
}

void hub_sent(struct send_op *send, bool ok, const char *reason)
{
    hub_send_over(send, ok, reason);
    answer_send(send);
}

/* The message is an object: the envelope goes in front of its first member. */
static void write_job(struct buf *frame, struct str message)
{
    assert(message.len > 2 && message.at[0] == '{');
    buf_str(frame, STR("{\"msg\":\"job\","));
    buf_add(frame, message.at + 1, message.len - 1);
}

static void socket_send(struct hub *hub, struct send_op *send, uint64_t link)
{
    struct socket *socket = idmap_get(&hub->sockets, hub_link_incarnation(link));
    struct buf *frame = &hub->frame;

    if (!socket) {
        hub_send_over(send, false, "NOT_CONNECTED");
        return;
    }
    bool ok = hub_batch_job(socket, send->message);
    if (!ok) {
        buf_clear(frame);
        write_job(frame, send->message);
        ok = hub_socket_send(socket, buf_view(frame));
    }
    hub_send_over(send, ok, ok ? NULL : "SLOW_OR_CLOSING");
}

static void deliver_msg(struct msg *msg);

/* On the loop it was sent to, where the node's socket or box was a moment ago. False: the node is
 * connected elsewhere by now, the job follows it. */
static bool deliver_here(struct hub *hub, struct send_op *send)
{
    struct server *server = hub->worker->server;
    uint64_t link = atomic_load(&send->node->link);

    /* It would not look into a box. */
    if (!link && (send->via || (send->handed && atomic_load(&send->node->left_ms))))
        hub_send_over(send, false, "NOT_CONNECTED");
    else if (!link)
        hub_box_add(hub, send);
    else if (hub_link_loop(link) == hub->worker->loop.index)
        socket_send(hub, send, link);
    else {
        send->via = link;
        send->to = &server->workers[hub_link_loop(link)];
        send->msg.run = deliver_msg;
        inbox_post(&server->workers[hub_link_loop(link)].loop.inbox, &send->msg);
        return false;
    }
    return true;
}

static void deliver_msg(struct msg *msg)
{
    struct send_op *send = container_of(msg, struct send_op, msg);
    struct worker *here = send->to;

    assert(here->hub && send->node);
    if (deliver_here(here->hub, send))
        answer_send(send);
}

/* A push: any 2xx answer means the node has it. */
struct push {
    struct client_call call;
    struct send_op *send;
    char *url;
    char trace[sizeof "traceparent: " + TRACE_PARENT_LEN];
    const char *headers[2]; /* the trace, if there is one */
};

static void pushed(struct client_call *call)
{
    struct push *push = container_of(call, struct push, call);
    struct send_op *send = push->send;
    bool ok = !call->err && call->status >= 200 && call->status < 300;

    assert(send && push->url);
    metric_add_label(METRIC_PUSH, ok ? "ok" : call->err ? err_name(call->err) : "refused", 1);
    hub_send_over(send, ok, ok ? NULL : call->err == ERR_TIMEOUT ? "PUSH_TIMEOUT" : "PUSH_FAILED");
    buf_free(&call->reply);
    free(push->url);
    free(push);
    send->done(send);
}

static void push_job(struct worker *worker, struct send_op *send)
{
    /* Registered under other settings, maybe: what counts is what is allowed now. */
    if (!urls_allowed(worker->server, URL_ENDPOINT, send->endpoint)) {
        hub_send_over(send, false, "URL_NOT_ALLOWED");
        send->done(send);
        return;
    }
    struct push *push = calloc(1, sizeof *push);
    assert(push);
    push->send = send;
    push->url = strndup(send->endpoint.at, send->endpoint.len);
    push->call = (struct client_call){.method = "POST",
                                      .url = push->url,
                                      .body = send->message,
                                      .content_type = "application/json",
                                      .timeout_ms = worker->server->settings->push_timeout_ms,
                                      .reply_bytes_max = 65536,
                                      .done = pushed};
    if (send->traceparent.len) {
        snprintf(push->trace, sizeof push->trace, "traceparent: " STR_FMT,
                 STR_ARG(send->traceparent));
        push->headers[0] = push->trace;
        push->call.headers = push->headers;
    }
    if (client_send(worker->client, &push->call) == ERR_OK)
        return;
    push->call.err = ERR_IO;
    pushed(&push->call);
}

void hub_send(struct sched_loop *from, struct send_op *send)
{
    struct server *server = container_of(from->sched, struct server, sched);
    struct worker *worker = &server->workers[from->index];
    uint64_t link = atomic_load(&send->node->link);
    uint32_t holder = link || send->handed ? 0 : atomic_load(&send->node->holder);
    struct worker *to = link ? &server->workers[hub_link_loop(link)] : hub_home(server, send->node);

    if (holder) {
        peers_send(server, send, holder);
        return;
    }
    if (!link && send->endpoint.at) {
        push_job(worker, send);
        return;
    }
    send->via = link;
    send->to = to;
    if (to != worker) {
        send->msg.run = deliver_msg;
        inbox_post(&to->loop.inbox, &send->msg);
    } else if (deliver_here(worker->hub, send)) {
        send->done(send);
    }
}

struct tell {
    struct msg msg;
    struct server *server;
    uint64_t link;
    bool close;
    size_t len;
    char text[];
};

/* 4001 keeps an agent away for a while; one whose node an emptied store forgot shall come again. */
static void close_socket(struct server *server, struct socket *socket, bool replaced)
{
    bool emptied = clock_mono_ms() < atomic_load(&server->sched.recovering_until_ms);

    hub_batch_flush_jobs(socket); /* nothing leaves behind a goodbye */
    if (emptied && !replaced)
        ws_close(socket->ws, 1012, "the store was emptied");
    else
        ws_close(socket->ws, 4001, replaced ? "replaced" : "deregistered");
}

static void tell_msg(struct msg *msg)
{
    struct tell *tell = container_of(msg, struct tell, msg);
    struct hub *hub = tell->server->workers[hub_link_loop(tell->link)].hub;
    struct socket *socket = idmap_get(&hub->sockets, hub_link_incarnation(tell->link));

    if (socket && tell->close)
        close_socket(tell->server, socket, tell->len > 0);
    else if (socket)
        hub_socket_send(socket, (struct str){.at = tell->text, .len = tell->len});
    free(tell);
}

static void tell_link(struct server *server, uint64_t link, bool close, struct str text)
{
    struct tell *tell = calloc(1, sizeof *tell + text.len);

    assert(tell && link);
    tell->msg.run = tell_msg;
    tell->server = server;
    tell->link = link;
    tell->close = close;
    tell->len = text.len;
    if (text.len)
        memcpy(tell->text, text.at, text.len);
    inbox_post(&server->workers[hub_link_loop(link)].loop.inbox, &tell->msg);
}

void hub_tell_job(struct server *server, const struct node *node, struct str message)
{
    uint64_t link = atomic_load(&node->link);
    struct buf frame = {0};

    if (!link) /* it went again: the reservation runs out */
        return;
    write_job(&frame, message);
    tell_link(server, link, false, buf_view(&frame));
    buf_free(&frame);
}

void hub_stop(struct sched_loop *from, struct str node_id, uint64_t job, int attempt,
              const char *reason)
{
    struct server *server = container_of(from->sched, struct server, sched);
    const struct snap_node *known = snapshot_node(from->snapshot, node_id);
    uint32_t holder =
        known && !atomic_load(&known->node->link) ? atomic_load(&known->node->holder) : 0;

    if (holder)
        peers_cancel(server, holder, node_id, job, attempt, reason);
    else
        hub_stop_here(from, node_id, job, attempt, reason);
}

void hub_stop_here(struct sched_loop *from, struct str node_id, uint64_t job, int attempt,
                   const char *reason)
{
    struct server *server = container_of(from->sched, struct server, sched);
    const struct snap_node *known = snapshot_node(from->snapshot, node_id);
    uint64_t link = known ? atomic_load(&known->node->link) : 0;
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);
    char id[JOB_ID_TEXT + 1];

    if (!link)
        return;
    job_id_text(job, id);
    jsonw_obj(&w);
    jsonw_kstr(&w, "msg", STR("cancel"));
    jsonw_kstr(&w, "job_id", str_of(id));
    jsonw_kint(&w, "attempt_id", attempt);
    jsonw_kstr(&w, "reason", str_of(reason));
    jsonw_end_obj(&w);
    tell_link(server, link, false, buf_view(&buf));
    buf_free(&buf);
}

void hub_close_link(struct server *server, uint64_t link)
{
    tell_link(server, link, true, STR("replaced"));
}

void hub_drop(struct server *server, struct node *node)
{
    uint64_t link = atomic_exchange(&node->link, 0);

    if (link)
        tell_link(server, link, true, STR_NONE);
}

void hub_drain(struct hub *hub)
{
    struct socket *socket;

    for (size_t i = 0; (socket = idmap_next(&hub->sockets, &i));) {
        hub_batch_flush_jobs(socket);
        ws_close(socket->ws, 1012, "the server restarts"); /* its end comes later: the map stays */
    }
    hub_boxes_drain(hub);
}

void hub_recheck(struct hub *hub)
{
    struct worker *worker = hub->worker;
    struct socket *socket;

    for (size_t i = 0; (socket = idmap_next(&hub->sockets, &i));)
        if (!auth_still(worker->auth, socket->token, SCOPE_NODE, worker->loop.wall_ms))
            ws_close(socket->ws, HUB_CLOSE_TOKEN, "the token is not valid any more");
    hub_boxes_recheck(hub);
}

void hub_tick(struct hub *hub)
{
    rpc_tick(hub);
    links_tick(hub);
    hub_boxes_tick(hub);
}
