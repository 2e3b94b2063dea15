/* Events: created on the loop where they happen, numbered and kept by the keeper, passed to each
 * loop that has streams. A reader that is too slow is dropped by the stream's own limit.
 *
 * An id is "INSTANCE-NUMBER". Numbers start at the server's start time in microseconds, so those of
 * an earlier run are smaller. A reader that reconnects with an id at or above `floor` is sent what
 * it missed; any other gets a `gap` and must read the state again. */
#include "server/events.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/metrics.h"
#include "server/api.h"
#include "server/members.h"
#include "server/peers.h"

struct events {
    struct worker *worker;
    LIST_HEAD(, stream) streams;
    _Atomic int count;
    int64_t next_alive_ms;
    struct thinned *thinned;
    int64_t next_thin_ms;
    /* only the keeper's */
    int64_t seq;                 /* of the last event */
    int64_t floor;               /* a reader that has seen this event can be sent all later ones */
    STAILQ_HEAD(, frame) frames; /* in order */
    size_t kept_bytes;
    int64_t listened_ms; /* when there was last a listener, monotonic */
    /* shared by all loops, in the keeper's struct */
    _Atomic bool armed;        /* events are created, even if there is no listener just now */
    _Atomic bool lost;         /* an event was dropped since the last one that was numbered */
    _Atomic int64_t in_flight; /* bytes */
};

/* The thinned events for the readers of one namespace, or for those who see all namespaces. */
struct thinned {
    struct thinned *next;
    int readers;
    struct str listed; /* its namespace; at == NULL: all */
    char namespace[NAMESPACE_MAX + 1];
    struct latest latest;
};

struct stream {
    struct events *events;
    struct http_stream *http; /* NULL: closed while joining */
    struct token *token;      /* owned; NULL: there were no tokens */
    LIST_ENTRY(stream) link;
    bool live;               /* the keeper has answered: further events are new to it */
    bool host;               /* wants only the member list */
    struct thinned *thinned; /* wants only the latest event of each job at intervals; NULL: all */
    struct str listed;       /* namespace whose jobs it sees, in `token`; at == NULL: all */
    int64_t from;            /* number of the last event covered when it joined */
};

/* --- thinned streams --- */

/* The latest event of each job, found by an open hash that is never more than a quarter full. */

void latest_add(struct latest *latest, struct frame *frame)
{
    uint16_t *place = NULL; /* of the job, or the free one where it belongs */

    assert(latest->count <= LATEST_FRAMES);
    if (frame->job) {
        /* Ids differ in their low and middle bits, and both must affect the place. */
        size_t at = (size_t)((frame->job * 0x9e3779b97f4a7c15u) >> 40) & (LATEST_PLACES - 1);

        while (latest->places[at] && latest->frames[latest->places[at] - 1]->job != frame->job)
            at = (at + 1) & (LATEST_PLACES - 1);
        place = &latest->places[at];
    }
    if (place && *place) {
        struct frame **old = &latest->frames[*place - 1];

        assert((*old)->seq < frame->seq);
        frame_unref(*old);
        *old = frame;
    } else if (latest->count < LATEST_FRAMES) {
        latest->frames[latest->count++] = frame;
        if (place)
            *place = (uint16_t)latest->count;
    } else {
        latest->skipped++;
        return;
    }
    atomic_fetch_add(&frame->refs, 1);
}

static int by_seq(const void *a, const void *b)
{
    const struct frame *const *left = a, *const *right = b;

    return ((*left)->seq > (*right)->seq) - ((*left)->seq < (*right)->seq);
}

void latest_sort(struct latest *latest)
{
    qsort(latest->frames, latest->count, sizeof latest->frames[0], by_seq);
}

void latest_clear(struct latest *latest)
{
    for (size_t i = 0; i < latest->count; i++)
        frame_unref(latest->frames[i]);
    latest->count = 0;
    latest->skipped = 0;
    memset(latest->places, 0, sizeof latest->places);
}

/* --- streams --- */

enum {
    KEEP_ALIVE_MS = 15000,
    RESUME_MS = 60000,                /* events are kept this long after the last reader left */
    IN_FLIGHT_BYTES = 8 * 1024 * 1024 /* in inboxes; more are dropped, and reported as a gap */
};

#define HOST_EVENT "HostEvent" /* event name for changes of the member list */

/* An event on its way to the keeper. */
struct event {
    struct msg msg;
    struct server *server;
    bool ours; /* it happened at this instance: others may want it too */
    const char *name;
    uint64_t job;                      /* 0: not of a job */
    char namespace[NAMESPACE_MAX + 1]; /* of the job */
    size_t len;
    char text[];
};

/* A frame on its way to a loop. */
struct hop {
    struct msg msg;
    struct worker *to;
    struct frame *frame;
};

/* A reader on its way to the keeper, and back. */
struct join {
    struct msg msg;
    struct server *server;
    struct stream *stream;
    bool resumes;
    const char *listed; /* a copy: the stream may be gone; NULL: all */
    char namespace[NAMESPACE_MAX + 1];
    int64_t last; /* the number it has seen; < 0: not an id of ours */
    int64_t upto; /* number of the last event covered by `reply` */
    struct buf reply;
};

static struct events *kept(const struct server *server)
{
    return server->workers[server->loop_count].events;
}

struct events *events_new(struct worker *worker)
{
    struct events *events = mem_new(struct events);

    events->worker = worker;
    STAILQ_INIT(&events->frames);
    events->seq = events->floor = clock_wall_ms() * 1000;
    return events;
}

void frame_unref(struct frame *frame)
{
    if (atomic_fetch_sub(&frame->refs, 1) == 1)
        free(frame);
}

static void drop_first(struct events *events)
{
    struct frame *frame = STAILQ_FIRST(&events->frames);

    assert(frame && frame->seq > events->floor);
    events->floor = frame->seq;
    STAILQ_REMOVE_HEAD(&events->frames, link);
    events->kept_bytes -= frame->len;
    frame_unref(frame);
}

/* Earlier events can no longer be replayed. */
static void break_off(struct events *events)
{
    while (!STAILQ_EMPTY(&events->frames))
        drop_first(events);
    events->floor = ++events->seq;
}

void events_free(struct events *events)
{
    if (!events)
        return;
    assert(LIST_EMPTY(&events->streams));
    while (!STAILQ_EMPTY(&events->frames))
        drop_first(events);
    assert(!events->thinned);
    free(events);
}

bool events_wanted(const struct server *server)
{
    return events_has_readers(server) || peers_want(server, PEERS_EVENTS);
}

bool events_has_readers(const struct server *server)
{
    return atomic_load_explicit(&kept(server)->armed, memory_order_relaxed);
}

static struct thinned *thinned_join(struct events *events, struct str listed)
{
    struct thinned *thinned = events->thinned;

    while (thinned && !str_eq(thinned->listed, listed))
        thinned = thinned->next;
    if (!thinned) {
        thinned = mem_new(struct thinned);
        str_copy(listed, thinned->namespace, sizeof thinned->namespace);
        thinned->listed = listed.at ? str_of(thinned->namespace) : STR_NONE;
        thinned->next = events->thinned;
        events->thinned = thinned;
    }
    thinned->readers++;
    return thinned;
}

static void thinned_leave(struct events *events, struct thinned *thinned)
{
    struct thinned **at = &events->thinned;

    if (!thinned || --thinned->readers > 0)
        return;
    while (*at != thinned)
        at = &(*at)->next;
    *at = thinned->next;
    latest_clear(&thinned->latest);
    free(thinned);
}

/* May readers of the namespace `listed` see this event? */
static bool is_listed(struct str listed, const struct frame *frame)
{
    return !frame->job || !listed.at || str_is(listed, frame->namespace);
}

static void stream_closed(struct http_stream *http)
{
    struct stream *stream = http->user;

    LIST_REMOVE(stream, link);
    atomic_fetch_sub(&stream->events->count, 1);
    thinned_leave(stream->events, stream->thinned);
    stream->thinned = NULL;
    free(stream->token);
    stream->token = NULL;
    stream->http = NULL;
    if (stream->live)
        free(stream); /* else its join frees it */
}

static bool fits_in_flight(struct events *keeper, size_t bytes)
{
    int64_t before = atomic_fetch_add(&keeper->in_flight, (int64_t)bytes);

    if (before + (int64_t)bytes <= IN_FLIGHT_BYTES)
        return true;
    atomic_fetch_sub(&keeper->in_flight, (int64_t)bytes);
    atomic_store(&keeper->lost, true);
    metric_add(METRIC_EVENTS_DROPPED, 1);
    return false;
}

static void pass_on(struct msg *msg)
{
    struct hop *hop = container_of(msg, struct hop, msg);
    struct frame *frame = hop->frame;
    struct stream *next;

    for (struct stream *stream = LIST_FIRST(&hop->to->events->streams); stream; stream = next) {
        next = LIST_NEXT(stream, link); /* a slow one may close now */
        if (stream->live && !stream->thinned && (frame->host || !stream->host) &&
            is_listed(stream->listed, frame) &&
            !http_stream_send(stream->http, (struct str){.at = frame->text, .len = frame->len}))
            metric_add(METRIC_EVENTS_DROPPED, 1);
    }
    for (struct thinned *at = hop->to->events->thinned; at && !frame->host; at = at->next)
        if (is_listed(at->listed, frame))
            latest_add(&at->latest, frame);
    atomic_fetch_sub(&kept(hop->to->server)->in_flight, (int64_t)frame->len);
    frame_unref(frame);
    free(hop);
}

/* Sends an event to every loop that has streams, and keeps it for replay. */
static void publish(struct server *server, const char *name, uint64_t job, const char *namespace,
                    struct str data)
{
    struct events *events = kept(server);
    char head[96];
    int64_t seq = ++events->seq;
    int used =
        snprintf(head, sizeof head, "id: %x-%lld\nevent: %s\ndata: ", store_name(server->store),
                 (long long)seq, name);
    struct frame *frame = mem_alloc(sizeof *frame + (size_t)used + data.len + 2);

    assert(used > 0 && (size_t)used < sizeof head);
    frame->seq = seq;
    frame->host = strcmp(name, HOST_EVENT) == 0;
    frame->job = job;
    memcpy(frame->namespace, namespace, strlen(namespace) + 1);
    frame->len = (size_t)used + data.len + 2;
    memcpy(frame->text, head, (size_t)used);
    memcpy(frame->text + used, data.at, data.len);
    json_one_line(frame->text + used, data.len); /* it may contain text from a node */
    memcpy(frame->text + used + data.len, "\n\n", 2);
    atomic_store(&frame->refs, 1);
    for (int i = 0; i < server->loop_count; i++) {
        struct worker *to = &server->workers[i];

        if (atomic_load(&to->events->count) == 0 || !fits_in_flight(events, frame->len))
            continue;
        struct hop *hop = mem_new(struct hop);
        *hop = (struct hop){.msg = {.run = pass_on}, .to = to, .frame = frame};
        atomic_fetch_add(&frame->refs, 1);
        inbox_post(&to->loop.inbox, &hop->msg);
    }
    STAILQ_INSERT_TAIL(&events->frames, frame, link);
    events->kept_bytes += frame->len;
    while (events->kept_bytes > (size_t)server->settings->events_replay_bytes)
        drop_first(events);
}

/* Readers missed something: send them a gap before any further event. */
static void publish_lost(struct server *server)
{
    if (!atomic_exchange(&kept(server)->lost, false))
        return;
    break_off(kept(server));
    publish(server, "gap", 0, "", STR("{\"reason\":\"overload\"}"));
}

static void number(struct msg *msg)
{
    struct event *event = container_of(msg, struct event, msg);
    struct server *server = event->server;
    struct str text = {.at = event->text, .len = event->len};

    if (event->ours && peers_want(server, PEERS_EVENTS))
        peers_event(server, event->job, str_of(event->namespace), text);
    if (events_has_readers(server)) {
        publish_lost(server);
        publish(server, event->name, event->job, event->namespace, text);
    }
    atomic_fetch_sub(&kept(server)->in_flight, (int64_t)event->len);
    free(event);
}

static void emit(struct server *server, const char *name, uint64_t job, struct str namespace,
                 struct str text, bool ours)
{
    assert(name && text.len > 0);
    if (!fits_in_flight(kept(server), text.len))
        return;
    struct event *event = mem_alloc(sizeof *event + text.len);
    event->msg.run = number;
    event->server = server;
    event->ours = ours;
    event->name = name;
    event->job = job;
    str_copy(namespace, event->namespace, sizeof event->namespace);
    event->len = text.len;
    memcpy(event->text, text.at, text.len);
    inbox_post(&server_keeper(server)->loop.inbox, &event->msg);
}

void events_job(struct server *server, const char *what, const struct store_head *head)
{
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);

    jsonw_obj(&w);
    jsonw_kstr(&w, "what", str_of(what));
    write_job_id(&w, head->id);
    jsonw_kstr(&w, "state", str_of(job_state_name(head->state)));
    jsonw_kstr(&w, "node_id", head->node[0] ? str_of(head->node) : STR_NONE);
    jsonw_kint(&w, "attempt_id", head->attempt);
    jsonw_kstr(&w, "reason", head->reason[0] ? str_of(head->reason) : STR_NONE);
    jsonw_kint(&w, "at_ms", head->updated_ms);
    jsonw_end_obj(&w);
    emit(server, "job", head->id, namespace_of(str_of(head->type)), buf_view(&buf), true);
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
    emit(server, "node", 0, STR(""), buf_view(&buf),
         false); /* each instance notices changes of nodes itself */
    buf_free(&buf);
}

void events_host(struct server *server, struct str data)
{
    if (!events_has_readers(server))
        return;
    publish_lost(server);
    publish(server, HOST_EVENT, 0, "", data);
}

void events_elsewhere(struct server *server, uint64_t job, struct str namespace, struct str text)
{
    emit(server, "job", job, namespace, text, false);
}

/* Back on the stream's loop. Events numbered later are after this message in the inbox. */
static void joined(struct msg *msg)
{
    struct join *join = container_of(msg, struct join, msg);
    struct stream *stream = join->stream;

    stream->live = true;
    stream->from = join->upto;
    if (!stream->http)
        free(stream); /* the reader left meanwhile */
    else
        http_stream_send(stream->http, buf_view(&join->reply));
    buf_free(&join->reply);
    free(join);
}

/* On the keeper: replays the events that the reader has not seen, or sends a gap. */
static void join_keeper(struct msg *msg)
{
    struct join *join = container_of(msg, struct join, msg);
    struct events *events = kept(join->server);
    bool known = join->last >= events->floor && join->last <= events->seq;

    join->upto = events->seq;
    if (!atomic_exchange(&events->armed, true))
        peers_send_interest(join->server);
    events->listened_ms = clock_mono_ms();
    if (join->stream->host) { /* the present member list */
        struct jsonw w = jsonw_to(&join->reply);

        buf_fmt(&join->reply,
                "id: %x-%lld\nevent: " HOST_EVENT "\ndata: ", store_name(join->server->store),
                (long long)events->seq);
        size_t head = join->reply.len;
        members_write_list(join->server->members, &w);
        json_one_line(join->reply.at + head, join->reply.len - head); /* has text from nodes */
        buf_str(&join->reply, STR("\n\n"));
    } else if (join->resumes && !known)
        buf_fmt(&join->reply, "id: %x-%lld\nevent: gap\ndata: {\"reason\":\"%s\"}\n\n",
                store_name(join->server->store), (long long)events->seq,
                join->last < 0 ? "unknown_id" : "too_old");
    else if (!join->resumes)
        buf_fmt(&join->reply, "id: %x-%lld\nevent: hello\ndata: {}\n\n",
                store_name(join->server->store), (long long)events->seq);
    bool replays = join->resumes && known && !join->stream->host;
    struct frame *frame = replays ? STAILQ_FIRST(&events->frames) : NULL;
    for (; frame; frame = STAILQ_NEXT(frame, link))
        if (frame->seq > join->last && is_listed(str_of(join->listed), frame))
            buf_add(&join->reply, frame->text, frame->len);
    if (!join->reply.len)
        buf_str(&join->reply, STR(": resumed\n\n"));
    join->msg.run = joined;
    inbox_post(&join->stream->events->worker->loop.inbox, &join->msg);
}

/* "0-1763245000000000" of this instance; -1: not ours. */
static int64_t read_id(const struct server *server, struct str text)
{
    struct str rest = str_trim(text);
    struct str name = str_cut(&rest, '-');
    char own[STORE_NAME_TEXT + 1];
    int64_t seq;

    snprintf(own, sizeof own, "%x", store_name(server->store));
    if (!str_is(name, own) || !rest.at || !str_int(rest, &seq) || seq < 0)
        return -1;
    return seq;
}

static void subscribe(struct call *call, bool host)
{
    struct events *events = call->worker->events;
    struct server *server = call->worker->server;
    struct str last = http_header_get(call->req, "Last-Event-ID");
    int64_t seen = last.at ? read_id(server, last) : 0;
    int64_t latest = 0;

    if (!call_query_int(call, "thin", 0, 1, &latest))
        return;
    /* The next call frees the request's memory, and the token in it. */
    struct token *token = auth_copy(call->token);
    struct namespace_view view = token_view(token);
    struct http_stream *http = http_stream(call->req, "text/event-stream");
    if (!http) {
        free(token);
        return;
    }
    struct stream *stream = mem_new(struct stream);
    *stream = (struct stream){.events = events,
                              .http = http,
                              .token = token,
                              .host = host,
                              .listed = namespace_listed(&view)};
    if (latest)
        stream->thinned = thinned_join(events, stream->listed);
    LIST_INSERT_HEAD(&events->streams, stream, link);
    http->user = stream;
    http->closed = stream_closed;
    atomic_fetch_add(&events->count, 1);
    struct join *join = mem_new(struct join);
    *join = (struct join){.msg = {.run = join_keeper},
                          .server = server,
                          .stream = stream,
                          .resumes = last.at != NULL,
                          .last = seen};
    if (str_copy(stream->listed, join->namespace, sizeof join->namespace) && stream->listed.at)
        join->listed = join->namespace;
    inbox_post(&server_keeper(server)->loop.inbox, &join->msg);
}

void api_events(struct call *call)
{
    subscribe(call, false);
}

void api_terminal_events(struct call *call)
{
    subscribe(call, true);
}

/* False: the reader is too slow, and its stream is closing. */
static bool send_thinned(const struct stream *stream)
{
    const struct latest *latest = &stream->thinned->latest;
    char more[64];

    for (size_t i = 0; i < latest->count; i++) {
        const struct frame *frame = latest->frames[i];

        if (frame->seq > stream->from &&
            !http_stream_send(stream->http, (struct str){.at = frame->text, .len = frame->len}))
            return false;
    }
    if (!latest->skipped)
        return true;
    snprintf(more, sizeof more, "event: skipped\ndata: {\"events\":%lld}\n\n",
             (long long)latest->skipped);
    return http_stream_send(stream->http, str_of(more));
}

void events_tick(struct events *events)
{
    int64_t now_ms = events->worker->loop.mono_ms;
    struct stream *next;

    if (events->thinned && now_ms >= events->next_thin_ms) {
        events->next_thin_ms = now_ms + LATEST_MS;
        for (struct thinned *at = events->thinned; at; at = at->next)
            latest_sort(&at->latest);
        for (struct stream *stream = LIST_FIRST(&events->streams); stream; stream = next) {
            next = LIST_NEXT(stream, link);
            if (stream->thinned && stream->live && !send_thinned(stream))
                metric_add(METRIC_EVENTS_DROPPED, 1);
        }
        for (struct thinned *at = events->thinned; at; at = at->next)
            latest_clear(&at->latest);
    }
    if (now_ms < events->next_alive_ms)
        return;
    events->next_alive_ms = now_ms + KEEP_ALIVE_MS;
    for (struct stream *stream = LIST_FIRST(&events->streams); stream; stream = next) {
        next = LIST_NEXT(stream, link);
        http_stream_send(stream->http, STR(": alive\n\n"));
    }
}

void events_recheck(struct events *events)
{
    struct worker *worker = events->worker;
    struct stream *next;

    for (struct stream *stream = LIST_FIRST(&events->streams); stream; stream = next) {
        next = LIST_NEXT(stream, link);
        if (!auth_still(worker->auth, stream->token, SCOPE_READ, worker->loop.wall_ms))
            http_stream_close(stream->http);
    }
}

/* Stops creating events a while after the last reader left; a reader that returns gets a gap. */
void events_keeper_tick(struct server *server)
{
    struct events *events = kept(server);
    int64_t now_ms = clock_mono_ms();

    if (!atomic_load(&events->armed))
        return;
    publish_lost(server);
    for (int i = 0; i < server->loop_count; i++)
        if (atomic_load_explicit(&server->workers[i].events->count, memory_order_relaxed) > 0)
            events->listened_ms = now_ms;
    if (now_ms - events->listened_ms < RESUME_MS)
        return;
    atomic_store(&events->armed, false);
    break_off(events);
}

void events_drain(struct events *events)
{
    struct stream *next;

    for (struct stream *stream = LIST_FIRST(&events->streams); stream; stream = next) {
        next = LIST_NEXT(stream, link);
        http_stream_close(stream->http);
    }
}
