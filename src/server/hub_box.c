/* Jobs for nodes that ask for them: a box for each such node, on its home loop, and the polls that
 * wait for something to be in it. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "server/guard.h"
#include "server/hub_private.h"
#include "server/links.h"

enum {
    BOX_KEEP_BYTES = 65536, /* an empty box keeps no more than this */
    BOX_IDLE_MS = 60000,    /* and goes when nobody has needed it for so long */
};

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

/* The loop on which a node's box stands. */
struct worker *hub_home(struct server *server, const struct node *node)
{
    return &server->workers[node->number % (uint32_t)server->loop_count];
}

static struct box *box_of(struct hub *hub, struct node *node)
{
    /* number + 1: an idmap key is never 0 */
    struct box *box = idmap_get(&hub->boxes, node->number + 1);

    assert(hub_home(hub->worker->server, node) == hub->worker);
    if (!box) {
        box = calloc(1, sizeof *box);
        assert(box);
        box->node = node;
        idmap_put(&hub->boxes, node->number + 1, box);
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
}

/* Those whose reservation ended are worth nothing to the node: its ACK would be refused. */
static void box_expire(struct box *box, int64_t now_ms)
{
    struct boxed *boxed;

    while ((boxed = box_first(box)) && boxed->until_ms <= now_ms)
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
        call_json(poll->call, 200, &poll->answer);
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

/* May it still be given jobs? One that may not takes none along: they would be lost. */
static bool poll_may(const struct hub *hub, const struct poll *poll)
{
    const struct worker *worker = hub->worker;

    return auth_still(worker->auth, poll->call->token, SCOPE_NODE, worker->loop.wall_ms);
}

void hub_box_add(struct hub *hub, struct send_op *send)
{
    struct box *box = box_of(hub, send->node);
    struct boxed head = {.until_ms = sched_from_store_ms(hub->worker->sched, send->deadline_ms),
                         .deadline_ms = send->deadline_ms,
                         .len = send->message.len};
    int64_t now_ms = sched_awake_ms(hub->worker->sched);
    size_t bytes = boxed_bytes(head.len);

    assert(send->message.len > 2 && send->message.at[0] == '{');
    box_expire(box, now_ms);
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

    if (peers_shared(server) && (!box->ours || atomic_load(&poll->node->holder))) {
        box->ours = true;
        links_note(hub->worker, poll->node, STORE_LINK_POLL, 0);
    }
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
}

/* A poll whose peer left, on its way to the node's home. */
struct hangup {
    struct msg msg;
    struct hub *home;
    struct node *node;
    uint64_t number;
};

/* Answered empty-handed: what it took along would be lost. */
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

/* On the request's loop. The poll is there until its answer has come back here. */
static void poll_gone(struct http_request *req)
{
    const struct poll *poll = req->user;
    struct hangup *hangup = calloc(1, sizeof *hangup);

    assert(req->gone && poll->call->req == req);
    assert(hangup);
    *hangup = (struct hangup){.msg = {.run = poll_hung_up},
                              .home = hub_home(poll->call->worker->server, poll->node)->hub,
                              .node = poll->node,
                              .number = poll->number};
    inbox_post(&hangup->home->worker->loop.inbox, &hangup->msg);
}

void hub_poll(struct call *call, struct node *node, int64_t wait_ms, size_t max)
{
    static _Atomic uint64_t last_number;
    struct poll *poll = calloc(1, sizeof *poll);

    assert(poll && max > 0);
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

/* A node does not ask here for its jobs any more: it asks another instance, or has a socket. */
struct move {
    struct msg msg;
    struct hub *home;
    struct node *node;
    uint32_t holder; /* 0: its socket is ours */
};

static void box_moves(struct msg *msg)
{
    struct move *move = container_of(msg, struct move, msg);
    struct server *server = move->home->worker->server;
    struct box *box = idmap_get(&move->home->boxes, move->node->number + 1);
    struct buf frames = {0};
    struct boxed *boxed;

    if (box && box->node == move->node) {
        box->ours = false;
        box_expire(box, sched_awake_ms(move->home->worker->sched));
        for (; (boxed = box_first(box)); box_take(box)) {
            struct str job = {.at = (char *)(boxed + 1), .len = boxed->len};

            if (move->holder)
                peers_write_job(&frames, 0, store_name(server->store), move->node->id,
                                boxed->deadline_ms, job);
            else
                hub_tell_job(server, move->node, job);
        }
    }
    if (frames.len)
        peers_pass(server, move->holder, buf_view(&frames));
    buf_free(&frames);
    free(move);
}

void hub_move_box(struct server *server, struct node *node, uint32_t holder)
{
    struct move *move = calloc(1, sizeof *move);

    assert(move);
    *move = (struct move){.msg = {.run = box_moves},
                          .home = hub_home(server, node)->hub,
                          .node = node,
                          .holder = holder};
    inbox_post(&move->home->worker->loop.inbox, &move->msg);
}

/* Answers, empty-handed, those whose wait is over; with `recheck` also those whose token is. */
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

/* Jobs nobody fetched in time go; so does one box that nobody needs any more. */
void hub_boxes_tick(struct hub *hub)
{
    int64_t now_ms = sched_awake_ms(hub->worker->sched);
    struct box *box, *idle = NULL;

    for (size_t i = 0; (box = idmap_next(&hub->boxes, &i));) {
        end_polls(hub, box, now_ms, false);
        box_expire(box, now_ms);
        if (!box->polls && !box_first(box) && now_ms - box->used_ms > BOX_IDLE_MS)
            idle = box;
    }
    if (!idle)
        return;
    idmap_del(&hub->boxes, idle->node->number + 1);
    box_free(idle);
}

void hub_boxes_drain(struct hub *hub)
{
    struct box *box;

    for (size_t i = 0; (box = idmap_next(&hub->boxes, &i));)
        end_polls(hub, box, INT64_MAX, false);
}

void hub_boxes_recheck(struct hub *hub)
{
    struct box *box;

    for (size_t i = 0; (box = idmap_next(&hub->boxes, &i));)
        end_polls(hub, box, sched_awake_ms(hub->worker->sched), true);
}

void hub_boxes_free(struct hub *hub)
{
    struct box *box;

    for (size_t i = 0; (box = idmap_next(&hub->boxes, &i));)
        box_free(box);
    idmap_free(&hub->boxes);
}
