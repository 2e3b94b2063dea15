/* Links, sends and boxes. The WebSocket conversation itself is in hub_ws.c. */
#include "server/hub.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/metrics.h"
#include "server/hub_private.h"
#include "server/rpc.h"

/* A link: kind, loop and incarnation in one word, so that reading it needs no lock. */
#define LINK_SOCKET     (1ull << 63)
#define LINK_LOOP_SHIFT 54

enum { BOX_KEEP_BYTES = 65536 }; /* an empty box keeps no more than this */

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

static void box_free(struct box *box)
{
    buf_free(&box->jobs);
    while (box->polls) { /* their requests go with the connections */
        struct poll *poll = box->polls;

        box->polls = poll->next;
        free(poll);
    }
    free(box);
}

void hub_free(struct hub *hub)
{
    struct box *box;

    if (!hub)
        return;
    for (size_t i = 0; (box = idmap_next(&hub->boxes, &i));)
        box_free(box);
    idmap_free(&hub->boxes);
    idmap_free(&hub->sockets);
    idmap_free(&hub->rpcs);
    hub_ws_free(hub);
    free(hub);
}

int64_t hub_connections(const struct hub *hub)
{
    return (int64_t)hub->sockets.count;
}

static void send_over(struct send_op *send, bool ok, const char *reason)
{
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
    send->msg.run = sent_msg;
    inbox_post(send->reply_to, &send->msg);
}

static struct box *box_of(struct hub *hub, struct node *node)
{
    /* number + 1: an idmap key is never 0 */
    struct box *box = idmap_get(&hub->boxes, node->number + 1);

    if (box)
        return box;
    box = calloc(1, sizeof *box);
    assert(box);
    box->node = node;
    idmap_put(&hub->boxes, node->number + 1, box);
    return box;
}

static struct boxed *box_first(const struct box *box)
{
    assert(box->taken <= box->jobs.len);
    return box->taken < box->jobs.len ? (struct boxed *)(void *)(box->jobs.at + box->taken) : NULL;
}

/* Entries stay aligned. */
static size_t boxed_bytes(size_t len)
{
    return (sizeof(struct boxed) + len + 15) / 16 * 16;
}

static void box_take(struct box *box)
{
    box->taken += boxed_bytes(box_first(box)->len);
    if (box->taken == box->jobs.len) {
        box->taken = 0;
        if (box->jobs.cap > BOX_KEEP_BYTES)
            buf_free(&box->jobs);
        else
            buf_clear(&box->jobs);
    } else if (box->taken > BOX_KEEP_BYTES && box->taken > box->jobs.len / 2) {
        buf_drop(&box->jobs, box->taken);
        box->taken = 0;
    }
}

/* Those whose reservation ended are worth nothing to the node: its ACK would be refused. */
static void box_expire(struct box *box, int64_t now_ms)
{
    struct boxed *boxed;

    while ((boxed = box_first(box)) && boxed->deadline_ms <= now_ms)
        box_take(box);
}

static void poll_answered(struct msg *msg)
{
    struct poll *poll = container_of(msg, struct poll, msg);

    call_json(poll->call, 200, &poll->answer);
    buf_free(&poll->answer);
    free(poll);
}

/* Fills the answer from the box and sends it back to the request's loop. */
static void poll_answer(struct box *box, struct poll *poll, int64_t now_ms)
{
    struct jsonw w = jsonw_to(&poll->answer);
    struct boxed *boxed;

    if (box)
        box_expire(box, now_ms);
    jsonw_obj(&w);
    jsonw_key(&w, "jobs");
    jsonw_arr(&w);
    for (size_t i = 0; box && i < poll->max && (boxed = box_first(box)); i++) {
        jsonw_raw(&w, (struct str){.at = (char *)(boxed + 1), .len = boxed->len});
        box_take(box);
    }
    jsonw_end_arr(&w);
    jsonw_end_obj(&w);
    poll->msg.run = poll_answered;
    inbox_post(&poll->call->worker->loop.inbox, &poll->msg);
}

static void box_add(struct hub *hub, struct send_op *send)
{
    struct box *box = box_of(hub, send->node);
    struct boxed head = {.deadline_ms = send->deadline_ms, .len = send->message.len};
    int64_t now_ms = hub->worker->loop.wall_ms;
    size_t bytes = boxed_bytes(head.len);

    box_expire(box, now_ms);
    buf_reserve(&box->jobs, bytes);
    memcpy(box->jobs.at + box->jobs.len, &head, sizeof head);
    memcpy(box->jobs.at + box->jobs.len + sizeof head, send->message.at, send->message.len);
    box->jobs.len += bytes;
    if (box->polls) {
        struct poll *poll = box->polls;

        box->polls = poll->next;
        poll_answer(box, poll, now_ms);
    }
    send_over(send, true, NULL);
}

static void socket_send(struct hub *hub, struct send_op *send, uint64_t link)
{
    struct socket *socket = idmap_get(&hub->sockets, hub_link_incarnation(link));
    struct buf *frame = &hub->frame;

    if (!socket) {
        send_over(send, false, "NOT_CONNECTED");
        return;
    }
    /* The message is an object: the envelope goes in front of its first member. */
    assert(send->message.len > 2 && send->message.at[0] == '{');
    buf_clear(frame);
    buf_str(frame, STR("{\"msg\":\"job\","));
    buf_add(frame, send->message.at + 1, send->message.len - 1);
    bool ok = ws_send(socket->ws, buf_view(frame));
    send_over(send, ok, ok ? NULL : "SLOW_OR_CLOSING");
}

/* On the loop where the node's socket or box is. */
static void deliver_here(struct hub *hub, struct send_op *send)
{
    uint64_t link = atomic_load(&send->node->link);

    if (!link)
        box_add(hub, send);
    else if (hub_link_loop(link) == hub->worker->loop.index)
        socket_send(hub, send, link);
    else
        send_over(send, false, "MOVED"); /* reconnected to another loop this instant */
}

static void deliver_msg(struct msg *msg)
{
    struct send_op *send = container_of(msg, struct send_op, msg);
    struct server *server = send->server;
    uint64_t link = atomic_load(&send->node->link);
    int home =
        link ? hub_link_loop(link) : (int)(send->node->number % (uint32_t)server->loop_count);

    deliver_here(server->workers[home].hub, send);
    answer_send(send);
}

/* A push: any 2xx answer means the node has it. */
struct push {
    struct client_call call;
    struct send_op *send;
    char *url;
};

static void pushed(struct client_call *call)
{
    struct push *push = container_of(call, struct push, call);
    struct send_op *send = push->send;
    bool ok = !call->err && call->status >= 200 && call->status < 300;

    metric_add_label(METRIC_PUSH, ok ? "ok" : call->err ? err_name(call->err) : "refused", 1);
    send_over(send, ok, ok ? NULL : call->err == ERR_TIMEOUT ? "PUSH_TIMEOUT" : "PUSH_FAILED");
    buf_free(&call->reply);
    free(push->url);
    free(push);
    send->done(send);
}

static void push_job(struct worker *worker, struct send_op *send)
{
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

    send->server = server;
    if (!link && send->endpoint.at) {
        push_job(worker, send);
        return;
    }
    int home =
        link ? hub_link_loop(link) : (int)(send->node->number % (uint32_t)server->loop_count);
    if (home == from->index) {
        deliver_here(worker->hub, send);
        send->done(send);
        return;
    }
    send->msg.run = deliver_msg;
    inbox_post(&server->workers[home].loop.inbox, &send->msg);
}

struct tell {
    struct msg msg;
    struct server *server;
    uint64_t link;
    bool close;
    size_t len;
    char text[];
};

static void tell_msg(struct msg *msg)
{
    struct tell *tell = container_of(msg, struct tell, msg);
    struct hub *hub = tell->server->workers[hub_link_loop(tell->link)].hub;
    struct socket *socket = idmap_get(&hub->sockets, hub_link_incarnation(tell->link));

    if (socket && tell->close)
        ws_close(socket->ws, 4001, tell->len ? "replaced" : "deregistered");
    else if (socket)
        ws_send(socket->ws, (struct str){.at = tell->text, .len = tell->len});
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

void hub_stop(struct sched_loop *from, struct str node_id, uint64_t job, int attempt,
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

static void poll_arrived(struct msg *msg)
{
    struct poll *poll = container_of(msg, struct poll, msg);
    struct server *server = poll->call->worker->server;
    struct hub *hub = server->workers[poll->node->number % (uint32_t)server->loop_count].hub;
    struct box *box = box_of(hub, poll->node);
    int64_t now_ms = hub->worker->loop.wall_ms;

    box_expire(box, now_ms);
    if (box_first(box) || poll->until_ms <= now_ms) {
        poll_answer(box, poll, now_ms);
        return;
    }
    struct poll **end = &box->polls;
    while (*end)
        end = &(*end)->next;
    *end = poll;
}

void hub_poll(struct call *call, struct node *node, int64_t wait_ms, size_t max)
{
    struct server *server = call->worker->server;
    struct poll *poll = calloc(1, sizeof *poll);

    assert(poll);
    poll->call = call;
    poll->node = node;
    poll->max = max;
    poll->until_ms = call->worker->loop.wall_ms + wait_ms;
    poll->msg.run = poll_arrived;
    inbox_post(&server->workers[node->number % (uint32_t)server->loop_count].loop.inbox,
               &poll->msg);
}

/* Answers, empty-handed, those whose wait is over. */
static void end_polls(struct hub *hub, int64_t now_ms)
{
    struct box *box;

    for (size_t i = 0; (box = idmap_next(&hub->boxes, &i));) {
        struct poll **at = &box->polls;

        while (*at) {
            struct poll *poll = *at;

            /* One whose peer left is answered too, so that it takes no job with it. */
            if (poll->until_ms > now_ms &&
                !(poll->call->worker == hub->worker && poll->call->req->gone)) {
                at = &poll->next;
                continue;
            }
            *at = poll->next;
            poll_answer(NULL, poll, now_ms);
        }
    }
}

void hub_drain(struct hub *hub)
{
    struct socket *socket;

    for (size_t i = 0; (socket = idmap_next(&hub->sockets, &i));)
        ws_close(socket->ws, 1001, "the server stops");
    end_polls(hub, INT64_MAX);
}

void hub_tick(struct hub *hub)
{
    rpc_tick(hub);
    end_polls(hub, hub->worker->loop.wall_ms);
}
