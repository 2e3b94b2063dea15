/* Links and sends; for each node that polls, a box of its jobs, on its home loop, with the polls
 * waiting for it to fill; and, in a shared store, which instance a node is connected to: until the
 * store has answered, its record of the node's connection counts as older than ours. The WebSocket
 * conversation itself is in hub_ws.c. */
#include "server/hub.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/metrics.h"
#include "model/trace.h"
#include "server/callback.h"
#include "server/guard.h"
#include "server/hub_ws.h"
#include "server/peers.h"
#include "server/rpc.h"

enum { HUB_CLOSE_TOKEN = 4003 }; /* the token it connected with is no longer valid */

/* A job waiting for its node to poll; its text follows. */
struct boxed {
    int64_t until_ms;    /* sched_awake_ms: when its reservation ends, */
    int64_t deadline_ms; /* the same in store time, for the instance that takes the box over */
    size_t len;
};

struct box {
    struct hub *hub;
    struct node *node;
    struct wheel_item look;
    struct buf jobs;        /* one after the other: struct boxed, text, padding */
    size_t taken;           /* bytes of `jobs` already taken */
    int64_t first_until_ms; /* of the first one; INT64_MAX: there is none */
    struct poll *polls;
    int64_t used_ms; /* sched_awake_ms of the last job put in or the last poll */
};

static void hub_send_over(struct send_op *send, bool ok, const char *reason);
static void deliver_msg(struct msg *msg);
static void hub_post_job(struct server *server, const struct node *node, struct str message);

/* --- boxes and polls --- */

enum {
    BOX_KEEP_BYTES = 65536, /* an empty box keeps no more than this */
    BOX_IDLE_MS = 60000,    /* an idle box is freed after this time */
    BOX_LOOK_MS = 10000,    /* a box is looked at this often, and when a poll's wait is over */
};

static void box_free(struct box *box)
{
    struct hub *hub = box->hub;

    buf_free(&box->jobs);
    while (box->polls) { /* the polls' requests end with their connections */
        struct poll *poll = box->polls;

        box->polls = poll->next;
        free(poll);
    }
    slab_drop(&hub->slab, box);
}

/* The loop that owns a node's box. */
static struct worker *hub_home(struct server *server, const struct node *node)
{
    return &server->workers[node->number % (uint32_t)server->loop_count];
}

/* Looks at the box at this moment (sched_awake_ms), if not before. */
static void box_look_by(struct box *box, int64_t until_ms)
{
    const struct worker *worker = box->hub->worker;
    int64_t left_ms = until_ms - sched_awake_ms(worker->sched);
    int64_t due_ms = worker->loop.mono_ms + (left_ms > 0 ? left_ms : 0);

    if (!box->look.due_ms || due_ms < box->look.due_ms)
        wheel_set(&box->hub->looks, &box->look, due_ms);
}

static struct box *box_of(struct hub *hub, struct node *node)
{
    /* number + 1: an idmap key is never 0 */
    struct box *box = idmap_get(&hub->boxes, node->number + 1);

    assert(hub_home(hub->worker->server, node) == hub->worker);
    if (!box) {
        box = slab_new(&hub->slab);
        box->hub = hub;
        box->node = node;
        box->first_until_ms = INT64_MAX;
        idmap_put(&hub->boxes, node->number + 1, box);
        box_look_by(box, sched_awake_ms(hub->worker->sched) + BOX_LOOK_MS);
    }
    box->used_ms = sched_awake_ms(hub->worker->sched);
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
    assert(box_first(box));
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
    box->first_until_ms = box_first(box) ? box_first(box)->until_ms : INT64_MAX;
}

/* Drops jobs whose reservation ended: their ACK would be refused. */
static void box_expire(struct box *box, int64_t now_ms)
{
    while (box->first_until_ms <= now_ms)
        box_take(box);
}

static void poll_answered(struct msg *msg)
{
    struct poll *poll = container_of(msg, struct poll, msg);
    struct problem why;

    assert(poll->answer.len > 0);
    if (guard_still(poll->call, &why))
        call_problem(poll->call, &why);
    else
        call_body(poll->call, 200, buf_view(&poll->answer));
    buf_free(&poll->answer);
    free(poll);
}

/* Fills the answer from the box and sends it back to the request's loop. */
static void poll_answer(struct box *box, struct poll *poll, int64_t now_ms)
{
    struct jsonw w = jsonw_to(&poll->answer);
    struct boxed *boxed;

    assert(!poll->answer.len && (!box || box->node == poll->node));
    if (box)
        box_expire(box, now_ms);
    jsonw_obj(&w);
    jsonw_karr(&w, "jobs");
    for (size_t i = 0; box && i < poll->max && (boxed = box_first(box)); i++) {
        jsonw_raw(&w, (struct str){.at = (char *)(boxed + 1), .len = boxed->len});
        box_take(box);
    }
    jsonw_end_arr(&w);
    jsonw_end_obj(&w);
    poll->msg.run = poll_answered;
    inbox_post(&poll->call->worker->loop.inbox, &poll->msg);
}

/* May the poll still receive jobs? If not, it must not take any from the box: they would be
 * lost. */
static bool poll_may(const struct hub *hub, const struct poll *poll)
{
    const struct worker *worker = hub->worker;

    return auth_still(worker->auth, poll->call->token, SCOPE_NODE, worker->loop.wall_ms);
}

/* Tells the other instances that the node polls here. */
static void tell_polled(struct hub *hub, struct node *node)
{
    atomic_store(&node->polled, true);
    links_note(hub->worker, node, STORE_LINK_POLL, 0);
}

/* On its home loop. */
static void hub_box_add(struct hub *hub, struct send_op *send)
{
    struct box *box = box_of(hub, send->node);
    struct boxed head = {.until_ms = sched_from_store_ms(hub->worker->sched, send->deadline_ms),
                         .deadline_ms = send->deadline_ms,
                         .len = send->message.len};
    int64_t now_ms = sched_awake_ms(hub->worker->sched);
    size_t bytes = boxed_bytes(head.len);

    assert(send->message.len > 2 && send->message.at[0] == '{');
    box_expire(box, now_ms);
    if (!box_first(box))
        box->first_until_ms = head.until_ms;
    buf_reserve(&box->jobs, bytes);
    memcpy(box->jobs.at + box->jobs.len, &head, sizeof head);
    memcpy(box->jobs.at + box->jobs.len + sizeof head, send->message.at, send->message.len);
    box->jobs.len += bytes;
    while (box->polls && box_first(box)) {
        struct poll *poll = box->polls;

        box->polls = poll->next;
        poll_answer(poll_may(hub, poll) ? box : NULL, poll, now_ms);
    }
    hub_send_over(send, true, NULL);
}

static void poll_arrived(struct msg *msg)
{
    struct poll *poll = container_of(msg, struct poll, msg);
    struct server *server = poll->call->worker->server;
    struct hub *hub = hub_home(server, poll->node)->hub;
    struct box *box = box_of(hub, poll->node);
    int64_t now_ms = sched_awake_ms(hub->worker->sched);

    if (peers_shared(server) &&
        (!atomic_load(&poll->node->polled) || atomic_load(&poll->node->instance)))
        tell_polled(hub, poll->node);
    box_expire(box, now_ms);
    if (!poll_may(hub, poll)) { /* the tokens changed while it was on its way */
        poll_answer(NULL, poll, now_ms);
        return;
    }
    if (box_first(box) || poll->until_ms <= now_ms || atomic_load(&server->draining)) {
        poll_answer(box, poll, now_ms);
        return;
    }
    struct poll **end = &box->polls;
    while (*end)
        end = &(*end)->next;
    *end = poll;
    box_look_by(box, poll->until_ms);
}

/* Tells the node's home loop that a poll's peer left. */
struct hangup {
    struct msg msg;
    struct hub *home;
    struct node *node;
    uint64_t number;
};

/* Answers without jobs: any it took would be lost. */
static void poll_hung_up(struct msg *msg)
{
    struct hangup *hangup = container_of(msg, struct hangup, msg);
    struct box *box = idmap_get(&hangup->home->boxes, hangup->node->number + 1);

    for (struct poll **at = box ? &box->polls : NULL; at && *at; at = &(*at)->next)
        if ((*at)->number == hangup->number) {
            struct poll *poll = *at;

            *at = poll->next;
            poll_answer(NULL, poll, sched_awake_ms(hangup->home->worker->sched));
            break;
        }
    free(hangup);
}

/* On the request's loop. The poll exists until its answer has come back to this loop. */
static void poll_gone(struct http_request *req)
{
    const struct poll *poll = req->user;
    struct hangup *hangup = mem_new(struct hangup);

    assert(req->gone && poll->call->req == req);
    *hangup = (struct hangup){.msg = {.run = poll_hung_up},
                              .home = hub_home(poll->call->worker->server, poll->node)->hub,
                              .node = poll->node,
                              .number = poll->number};
    inbox_post(&hangup->home->worker->loop.inbox, &hangup->msg);
}

void hub_poll(struct call *call, struct node *node, int64_t wait_ms, size_t max)
{
    static _Atomic uint64_t last_number;
    struct poll *poll = mem_new(struct poll);

    assert(max > 0);
    poll->number = atomic_fetch_add(&last_number, 1) + 1;
    poll->call = call;
    poll->node = node;
    poll->max = max;
    poll->until_ms = sched_awake_ms(call->worker->sched) + wait_ms;
    poll->msg.run = poll_arrived;
    call->req->user = poll;
    call->req->on_gone = poll_gone;
    inbox_post(&hub_home(call->worker->server, node)->loop.inbox, &poll->msg);
}

/* A node no longer polls here: it polls another instance, or has a socket. */
struct move {
    struct msg msg;
    struct hub *home;
    struct node *node;
    uint32_t instance; /* 0: its socket is ours */
};

static void box_moves(struct msg *msg)
{
    struct move *move = container_of(msg, struct move, msg);
    struct server *server = move->home->worker->server;
    struct box *box = idmap_get(&move->home->boxes, move->node->number + 1);
    struct buf frames = {0};
    struct boxed *boxed;

    atomic_store(&move->node->polled, false);
    if (box) {
        box_expire(box, sched_awake_ms(move->home->worker->sched));
        for (; (boxed = box_first(box)); box_take(box)) {
            struct str job = {.at = (char *)(boxed + 1), .len = boxed->len};

            if (move->instance)
                peers_write_job(&frames, 0, store_name(server->store), move->node->id,
                                boxed->deadline_ms, 0, job);
            else
                hub_post_job(server, move->node, job);
        }
    }
    if (frames.len)
        peers_pass(server, move->instance, buf_view(&frames));
    buf_free(&frames);
    free(move);
}

static void post_move(struct server *server, struct node *node, uint32_t instance,
                      void (*run)(struct msg *msg))
{
    struct move *move = mem_new(struct move);

    *move = (struct move){.msg = {.run = run},
                          .home = hub_home(server, node)->hub,
                          .node = node,
                          .instance = instance};
    inbox_post(&move->home->worker->loop.inbox, &move->msg);
}

void hub_move_box(struct server *server, struct node *node, uint32_t instance)
{
    post_move(server, node, instance, box_moves);
}

/* The store does not know, or has forgotten, that the node polls here: report it again now if a
 * poll is waiting, else at the next poll. */
static void polls_forgotten(struct msg *msg)
{
    struct move *move = container_of(msg, struct move, msg);
    struct box *box = idmap_get(&move->home->boxes, move->node->number + 1);

    if (box && box->polls)
        tell_polled(move->home, move->node);
    else
        atomic_store(&move->node->polled, false);
    free(move);
}

/* Answers, without jobs, the polls whose wait is over; with `recheck` also those whose token is no
 * longer valid. */
static void end_polls(struct hub *hub, struct box *box, int64_t now_ms, bool recheck)
{
    struct poll **at = &box->polls;

    while (*at) {
        struct poll *poll = *at;

        if (poll->until_ms > now_ms && !(recheck && !poll_may(hub, poll))) {
            at = &poll->next;
            continue;
        }
        *at = poll->next;
        poll_answer(NULL, poll, now_ms);
    }
}

/* Ends polls, drops jobs not fetched in time, and frees a box that is no longer used. */
static void box_looked(struct wheel_item *look)
{
    struct box *box = container_of(look, struct box, look);
    struct hub *hub = box->hub;
    int64_t now_ms = sched_awake_ms(hub->worker->sched);

    end_polls(hub, box, now_ms, false);
    box_expire(box, now_ms);
    if (!box->polls && !box_first(box) && now_ms - box->used_ms > BOX_IDLE_MS) {
        idmap_del(&hub->boxes, box->node->number + 1);
        box_free(box);
        return;
    }
    box_look_by(box, now_ms + BOX_LOOK_MS);
    for (const struct poll *poll = box->polls; poll; poll = poll->next)
        box_look_by(box, poll->until_ms);
}

/* --- sending --- */

/* A link packs kind, loop and incarnation into one integer, so that reading it needs no lock. */
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
    struct hub *hub = mem_new(struct hub);

    hub->worker = worker;
    hub->slab = (struct slab){.size = sizeof(struct box), .is_random = true};
    wheel_init(&hub->looks, worker->loop.mono_ms, box_looked);
    return hub;
}

void hub_free(struct hub *hub)
{
    struct box *box;

    if (!hub)
        return;
    for (size_t i = 0; (box = idmap_next(&hub->boxes, &i));)
        box_free(box);
    slab_free(&hub->slab);
    idmap_free(&hub->boxes);
    hub_calls_free(hub);
    idmap_free(&hub->sockets);
    idmap_free(&hub->rpcs);
    free(hub);
}

/* Sets the outcome of a send; the code that delivered it sends the answer. */
static void hub_send_over(struct send_op *send, bool ok, const char *reason)
{
    assert(ok == !reason);
    send->ok = ok;
    send->reason = reason;
}

/* Back on the sender's loop. */
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

/* On the loop it was sent to, where the node's socket or box was a moment ago. False: the node has
 * connected elsewhere meanwhile, and the send was passed on. */
static bool deliver_here(struct hub *hub, struct send_op *send)
{
    struct server *server = hub->worker->server;
    uint64_t link = atomic_load(&send->node->link);

    /* The node does not poll: it would never look into a box. */
    if (!link && (send->via || (send->forwarded && atomic_load(&send->node->disconnected_ms))))
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

static void push_over(struct client_call *call)
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
}

static void pushed(struct client_call *call)
{
    struct send_op *send = container_of(call, struct push, call)->send;

    push_over(call);
    send->done(send);
}

/* True: already over. */
static bool push_job(struct worker *worker, struct send_op *send)
{
    /* The endpoint may have been registered under other settings: only the current ones count. */
    if (!urls_allowed(worker->server, URL_ENDPOINT, send->endpoint)) {
        hub_send_over(send, false, "URL_NOT_ALLOWED");
        return true;
    }
    struct push *push = mem_new(struct push);
    push->send = send;
    push->url = mem_cstr(send->endpoint);
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
        return false;
    push->call.err = ERR_IO;
    push_over(&push->call);
    return true;
}

bool hub_send(struct sched_loop *from, struct send_op *send)
{
    struct server *server = container_of(from->sched, struct server, sched);
    struct worker *worker = &server->workers[from->index];
    uint64_t link = atomic_load(&send->node->link);
    uint32_t instance = link || send->forwarded ? 0 : atomic_load(&send->node->instance);
    struct worker *to = link ? &server->workers[hub_link_loop(link)] : hub_home(server, send->node);

    if (instance) {
        peers_send(server, send, instance);
        return false;
    }
    if (!link && send->endpoint.at)
        return push_job(worker, send);
    send->via = link;
    send->to = to;
    if (to == worker)
        return deliver_here(worker->hub, send);
    send->msg.run = deliver_msg;
    inbox_post(&to->loop.inbox, &send->msg);
    return false;
}

enum link_msg_kind {
    LINK_MSG_FRAME,
    LINK_MSG_REPLACED,
    LINK_MSG_DEREGISTERED
}; /* the last two close it */

/* A message to a socket, sent to its loop. */
struct link_msg {
    struct msg msg;
    struct server *server;
    uint64_t link;
    enum link_msg_kind kind;
    size_t len; /* of the frame */
    char text[];
};

static void link_msg_posted(struct msg *msg)
{
    struct link_msg *link_msg = container_of(msg, struct link_msg, msg);
    struct hub *hub = link_msg->server->workers[hub_link_loop(link_msg->link)].hub;
    struct socket *socket = idmap_get(&hub->sockets, hub_link_incarnation(link_msg->link));

    if (socket && link_msg->kind == LINK_MSG_FRAME)
        hub_socket_send(socket, (struct str){.at = link_msg->text, .len = link_msg->len});
    else if (socket) {
        bool replaced = link_msg->kind == LINK_MSG_REPLACED;
        bool emptied = clock_mono_ms() < atomic_load(&link_msg->server->sched.recovering_until_ms);

        hub_batch_flush_jobs(socket); /* nothing may be sent after the close */
        /* 4001 keeps an agent away for a while, but a node that an emptied store forgot should
         * return. */
        if (emptied && !replaced)
            ws_close(socket->ws, 1012, "the store was emptied");
        else
            ws_close(socket->ws, 4001, replaced ? "replaced" : "deregistered");
    }
    free(link_msg);
}

static void post_to_link(struct server *server, uint64_t link, enum link_msg_kind kind,
                         struct str text)
{
    struct link_msg *link_msg = mem_zeroed(1, sizeof *link_msg + text.len);

    assert(link);
    link_msg->msg.run = link_msg_posted;
    link_msg->server = server;
    link_msg->link = link;
    link_msg->kind = kind;
    link_msg->len = text.len;
    if (text.len)
        memcpy(link_msg->text, text.at, text.len);
    inbox_post(&server->workers[hub_link_loop(link)].loop.inbox, &link_msg->msg);
}

static void hub_post_job(struct server *server, const struct node *node, struct str message)
{
    uint64_t link = atomic_load(&node->link);
    struct buf frame = {0};

    if (!link) /* it disconnected again: let the reservation run out */
        return;
    write_job(&frame, message);
    post_to_link(server, link, LINK_MSG_FRAME, buf_view(&frame));
    buf_free(&frame);
}

void hub_stop(struct sched_loop *from, struct str node_id, uint64_t job, int attempt,
              const char *reason)
{
    struct server *server = container_of(from->sched, struct server, sched);
    const struct snap_node *known = snapshot_node(from->snapshot, node_id);
    uint32_t instance =
        known && !atomic_load(&known->node->link) ? atomic_load(&known->node->instance) : 0;

    if (instance)
        peers_cancel(server, instance, node_id, job, attempt, reason);
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

    if (!link)
        return;
    jsonw_obj(&w);
    jsonw_kstr(&w, "msg", STR("cancel"));
    write_job_id(&w, job);
    jsonw_kint(&w, "attempt_id", attempt);
    jsonw_kstr(&w, "reason", str_of(reason));
    jsonw_end_obj(&w);
    post_to_link(server, link, LINK_MSG_FRAME, buf_view(&buf));
    buf_free(&buf);
}

void hub_close_link(struct server *server, uint64_t link)
{
    post_to_link(server, link, LINK_MSG_REPLACED, STR_NONE);
}

void hub_drop(struct server *server, struct node *node)
{
    uint64_t link = atomic_exchange(&node->link, 0);

    if (link)
        post_to_link(server, link, LINK_MSG_DEREGISTERED, STR_NONE);
}

void hub_drain(struct hub *hub)
{
    struct socket *socket;
    struct box *box;

    for (size_t i = 0; (socket = idmap_next(&hub->sockets, &i));) {
        hub_batch_flush_jobs(socket);
        ws_close(socket->ws, 1012, "the server restarts"); /* closes later: the map stays */
    }
    for (size_t i = 0; (box = idmap_next(&hub->boxes, &i));)
        end_polls(hub, box, INT64_MAX, false);
}

void hub_recheck(struct hub *hub)
{
    struct worker *worker = hub->worker;
    struct socket *socket;
    struct box *box;

    for (size_t i = 0; (socket = idmap_next(&hub->sockets, &i));)
        if (!auth_still(worker->auth, socket->token, SCOPE_NODE, worker->loop.wall_ms))
            ws_close(socket->ws, HUB_CLOSE_TOKEN, "the token is not valid any more");
    for (size_t i = 0; (box = idmap_next(&hub->boxes, &i));)
        end_polls(hub, box, sched_awake_ms(hub->worker->sched), true);
}

/* --- which instance has a node's connection --- */

enum { PUBLISH_AGAIN_MS = 500 };

static void published(struct store_op *op)
{
    struct linking *linking = container_of(op, struct linking, op);
    bool answered = !op->err || op->err == ERR_STALE || op->err == ERR_CONFLICT;

    assert(op->verb == STORE_LINK && linking->node);
    /* Without an answer the link may be stored or not: the next read of the store will show. But a
     * socket is published again until confirmed, or the connection before it would count. */
    if (answered || op->u.link.kind != STORE_LINK_SOCKET || !linking->worker->serves)
        atomic_store(&linking->node->link_order, answered ? op->order : 0);
    else
        linking->worker->hub->unpublished = true;
    if (!op->err)
        atomic_store(&linking->node->instance, 0);
    linking->done(linking);
}

void links_publish(struct worker *worker, struct linking *linking, struct node *node,
                   enum store_link_kind kind, uint64_t incarnation)
{
    assert(peers_shared(worker->server) && linking->done);
    linking->worker = worker;
    linking->node = node;
    linking->op = (struct store_op){
        .verb = STORE_LINK, .reply_to = &worker->loop.inbox, .done = published, .node = node->id};
    linking->op.u.link.kind = kind;
    linking->op.u.link.incarnation = incarnation;
    atomic_store(&node->link_order, UINT64_MAX);
    sched_send(worker->sched, &linking->op);
}

static void noted(struct linking *linking)
{
    free(linking);
}

void links_note(struct worker *worker, struct node *node, enum store_link_kind kind,
                uint64_t incarnation)
{
    struct linking *linking;

    if (!peers_shared(worker->server))
        return;
    linking = mem_new(struct linking);
    linking->done = noted;
    links_publish(worker, linking, node, kind, incarnation);
}

void hub_tick(struct hub *hub)
{
    struct socket *socket;

    rpc_end(hub, 0);
    if (hub->unpublished && hub->worker->loop.mono_ms >= hub->next_publish_ms) {
        /* Publish again the sockets of this loop that the store has not confirmed. */
        hub->unpublished = false;
        hub->next_publish_ms = hub->worker->loop.mono_ms + PUBLISH_AGAIN_MS;
        for (size_t i = 0; (socket = idmap_next(&hub->sockets, &i));)
            if (socket->node && atomic_load(&socket->node->link_order) == UINT64_MAX &&
                hub_link_incarnation(atomic_load(&socket->node->link)) == socket->incarnation)
                links_note(hub->worker, socket->node, STORE_LINK_SOCKET, socket->incarnation);
    }
    wheel_run(&hub->looks, hub->worker->loop.mono_ms);
}

/* On the keeper. Closes our socket of a node that has connected elsewhere, and moves the jobs in
 * our box to where it polls now. Reports again what the store does not know: our socket or its end,
 * or that the node polls here. */
void hub_linked(struct sched_loop *from, struct node *node, const struct store_live *said,
                bool away)
{
    struct server *server = container_of(from->sched, struct server, sched);
    struct worker *keeper = server_keeper(server);
    uint64_t link = atomic_load(&node->link);

    assert(!away || (said->instance && said->instance != store_name(server->store)));
    if (away && link)
        hub_close_link(server, link);
    if (away)
        hub_move_box(server, node, said->instance);
    else if (link)
        links_note(keeper, node, STORE_LINK_SOCKET, hub_link_incarnation(link));
    else if (said->kind == STORE_LINK_SOCKET && said->instance == store_name(server->store))
        links_note(keeper, node, STORE_LINK_LEFT, said->incarnation);
    else
        post_move(server, node, 0, polls_forgotten);
}
