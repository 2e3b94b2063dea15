/* Events: made on the loop where they happen, numbered by the keeper, copied to each loop that has
 * streams. A reader that is too slow is dropped by the stream's own bound. */
#include "server/events.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/metrics.h"

enum { KEEP_ALIVE_MS = 15000 };

struct stream {
    struct events *events;
    struct http_stream *http;
    struct stream *next, **prev;
};

struct events {
    struct worker *worker;
    struct stream *streams;
    _Atomic int count;
    int64_t next_alive_ms;
    int64_t seq; /* the keeper's: number of the last event */
};

/* One event on its way: to the keeper, then (a copy each) to the loops. */
struct event {
    struct msg msg;
    struct server *server;
    struct worker *to;
    int64_t seq;
    const char *name;
    size_t len;
    char text[];
};

struct events *events_new(struct worker *worker)
{
    struct events *events = calloc(1, sizeof *events);

    assert(events);
    events->worker = worker;
    return events;
}

void events_free(struct events *events)
{
    if (!events)
        return;
    assert(!events->streams);
    free(events);
}

bool events_wanted(const struct server *server)
{
    for (int i = 0; i < server->loop_count; i++)
        if (atomic_load_explicit(&server->workers[i].events->count, memory_order_relaxed) > 0)
            return true;
    return false;
}

static void stream_closed(struct http_stream *http)
{
    struct stream *stream = http->user;

    assert(*stream->prev == stream);
    *stream->prev = stream->next;
    if (stream->next)
        stream->next->prev = stream->prev;
    atomic_fetch_sub(&stream->events->count, 1);
    free(stream);
}

static void pass_on(struct msg *msg)
{
    struct event *event = container_of(msg, struct event, msg);
    struct buf buf = {0};
    struct stream *next;

    assert(event->to && event->seq > 0);
    buf_fmt(&buf, "id: %lld\nevent: %s\ndata: ", (long long)event->seq, event->name);
    buf_add(&buf, event->text, event->len);
    buf_str(&buf, STR("\n\n"));
    for (struct stream *stream = event->to->events->streams; stream; stream = next) {
        next = stream->next; /* a slow one may close now */
        if (!http_stream_send(stream->http, buf_view(&buf)))
            metric_add(METRIC_EVENTS_DROPPED, 1);
    }
    buf_free(&buf);
    free(event);
}

static void number(struct msg *msg)
{
    struct event *event = container_of(msg, struct event, msg);
    struct server *server = event->server;
    int64_t seq = ++server_keeper(server)->events->seq;

    for (int i = 0; i < server->loop_count; i++) {
        if (atomic_load(&server->workers[i].events->count) == 0)
            continue;
        struct event *copy = malloc(sizeof *copy + event->len);
        assert(copy);
        memcpy(copy, event, sizeof *copy + event->len);
        copy->msg = (struct msg){.run = pass_on};
        copy->to = &server->workers[i];
        copy->seq = seq;
        inbox_post(&copy->to->loop.inbox, &copy->msg);
    }
    free(event);
}

static void emit(struct server *server, const char *name, const struct buf *text)
{
    struct event *event = calloc(1, sizeof *event + text->len);

    assert(name && text->len > 0);
    assert(event);
    event->msg.run = number;
    event->server = server;
    event->name = name;
    event->len = text->len;
    memcpy(event->text, text->at, text->len);
    inbox_post(&server_keeper(server)->loop.inbox, &event->msg);
}

void events_job(struct server *server, const char *what, const struct store_head *head)
{
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);
    char id[JOB_ID_TEXT + 1];

    job_id_text(head->id, id);
    jsonw_obj(&w);
    jsonw_kstr(&w, "what", str_of(what));
    jsonw_kstr(&w, "job_id", str_of(id));
    jsonw_kstr(&w, "state", str_of(job_state_name(head->state)));
    jsonw_kstr(&w, "node_id", head->node[0] ? str_of(head->node) : STR_NONE);
    jsonw_kint(&w, "attempt_id", head->attempt);
    jsonw_kstr(&w, "reason", head->reason[0] ? str_of(head->reason) : STR_NONE);
    jsonw_kint(&w, "at_ms", head->updated_ms);
    jsonw_end_obj(&w);
    emit(server, "job", &buf);
    buf_free(&buf);
}

void events_node(struct server *server, const char *what, struct str node_id)
{
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);

    jsonw_obj(&w);
    jsonw_kstr(&w, "what", str_of(what));
    jsonw_kstr(&w, "node_id", node_id);
    jsonw_end_obj(&w);
    emit(server, "node", &buf);
    buf_free(&buf);
}

void events_subscribe(struct call *call)
{
    struct events *events = call->worker->events;
    struct str last = http_header_get(call->req, "Last-Event-ID");
    struct http_stream *http = http_stream(call->req, "text/event-stream");

    if (!http)
        return;
    struct stream *stream = calloc(1, sizeof *stream);
    assert(stream);
    *stream = (struct stream){
        .events = events, .http = http, .next = events->streams, .prev = &events->streams};
    if (stream->next)
        stream->next->prev = &stream->next;
    events->streams = stream;
    http->user = stream;
    http->closed = stream_closed;
    atomic_fetch_add(&events->count, 1);
    /* What happened while nobody listened is not kept: who resumes must read the state again. */
    http_stream_send(http,
                     last.at ? STR("event: gap\ndata: {}\n\n") : STR("event: hello\ndata: {}\n\n"));
}

void events_tick(struct events *events)
{
    struct stream *next;

    if (events->worker->loop.mono_ms < events->next_alive_ms)
        return;
    events->next_alive_ms = events->worker->loop.mono_ms + KEEP_ALIVE_MS;
    for (struct stream *stream = events->streams; stream; stream = next) {
        next = stream->next;
        http_stream_send(stream->http, STR(": alive\n\n"));
    }
}

void events_drain(struct events *events)
{
    struct stream *next;

    for (struct stream *stream = events->streams; stream; stream = next) {
        next = stream->next;
        http_stream_close(stream->http);
    }
}
