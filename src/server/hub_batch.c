/* What a node is told together, if its hello asked for it: the jobs of one turn in one frame, and
 * one word on all its messages that were accepted in a row. It leaves at the end of the turn in
 * which it came up, so nobody waits for it. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/hub_private.h"

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
