/* The conversation with a client over its WebSocket. Each message costs one credit and is answered
 * once, which returns the credit: that limits what a connection has in progress. A client that does
 * not read gets neither credit nor ends until what is queued for it has been sent: that limits what
 * waits to be sent.
 *
 * A job whose end is to be sent is followed: first its end is watched for (api_job.h), then the job
 * is read, so that no end is missed. An end is read from the store when it can be sent, and is kept
 * nowhere else. */
#include "server/submit_socket.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "base/map.h"
#include "base/mem.h"
#include "sched/frame.h"
#include "server/api.h"
#include "server/api_job.h"
#include "server/guard.h"
#include "server/peers.h"

enum {
    PROTOCOL = 1,
    ANSWER_BYTES = 2048,   /* no answer is longer */
    ENVELOPE_BYTES = 1024, /* of a message, besides its job */
    READS_MAX = 64,        /* ended jobs being read for one connection */
    SPARE_MAX = 1024,      /* messages kept for the next ones */
    LOOK_EVERY_MS = 1000,
    LOOKS_PER_TICK = 64,
    MISSING_MS = 15000, /* how long a shared store may take to recover a lost job */
};

/* Where a followed job is listed. */
enum follow_list { FOLLOW_NONE, FOLLOW_LOOKS, FOLLOW_ENDS };

/* A job whose end is to be sent to a connection. */
struct follow {
    struct watch watch;
    struct submit_socket *socket;
    TAILQ_ENTRY(follow) link;
    enum follow_list list;
    bool has_id;
    bool answered; /* its submission or attach was answered; nothing about it is sent before */
    bool over;     /* it ended, and is no longer watched */
    bool reading;
    int64_t id; /* of the message that asked for it */
    int64_t looked_ms;
    int64_t missing_ms; /* since when the store lacks it; 0: it has it */
};

TAILQ_HEAD(follows, follow);

struct submit_socket {
    struct submit_sockets *all;
    struct ws *ws;
    uint64_t number;
    const struct route *route;
    struct token *token; /* owned; NULL: there were no tokens */
    struct ws_limits limits;
    int64_t credit; /* messages it may send now */
    int64_t owed;   /* credit it gets back when it has caught up reading */
    int64_t open;   /* messages not answered yet */
    int reads;      /* ended jobs being read */
    bool draining;
    struct idmap by_job; /* -> struct follow * */
    struct follows ends; /* jobs whose end is to be sent */
    struct buf late;     /* answers waiting for a slow reader, see sched/frame.h */
    size_t wanted;       /* bytes of an end that did not fit; 0: none */
};

/* One message. Lives until its answer, which may come after the socket has closed. */
struct exchange {
    struct call call;
    TAILQ_ENTRY(exchange) link;
    struct submit_sockets *all;
    uint64_t number; /* of the socket */
    struct arena arena;
    bool has_id;
    int64_t id;
    int64_t bytes;      /* counted against bodies_bytes_max */
    uint64_t begun;     /* the job begun for it and followed; 0: none */
    struct store_op op; /* of an attach, which fills it in */
};

TAILQ_HEAD(exchanges, exchange);

/* A read of a followed job. */
struct reading {
    struct store_op op;
    struct reading *next;
    struct submit_sockets *all;
    uint64_t number;
    struct arena arena;
    bool end; /* counted in socket->reads; false: only a look */
};

struct submit_sockets {
    struct worker *worker;
    struct idmap sockets; /* number -> struct submit_socket * */
    uint64_t last_number;
    size_t followed;
    struct slab slab;     /* struct follow: one comes and goes with every job */
    struct follows looks; /* jobs to look at again, least recently looked at first */
    struct exchanges open;
    struct exchanges spare;
    int spare_count;
    struct reading *spare_reads;
    struct buf frame; /* scratch */
};

static void send_ends(struct submit_socket *socket);

int64_t submit_socket_credit(int64_t queue_bytes_max)
{
    int64_t fit = queue_bytes_max / 2 / ANSWER_BYTES;

    return fit < 1 ? 1 : fit < SUBMIT_CREDIT_MAX ? fit : SUBMIT_CREDIT_MAX;
}

/* --- sending --- */

/* If so, what can wait is not sent: ends, and credit for more answers. */
static bool is_behind(const struct submit_socket *socket)
{
    size_t max = (size_t)socket->limits.queue_bytes_max;
    size_t room = max > socket->wanted ? max - socket->wanted : 0;

    return ws_is_behind(socket->ws, room < max / 4 ? room : max / 4);
}

/* Answers must be sent, but must not be the reason to drop a slow reader: there are at most as many
 * as it has credit. */
static void send_or_queue(struct submit_socket *socket, struct str text)
{
    size_t max = (size_t)socket->limits.queue_bytes_max;

    assert(text.len < max);
    if (!socket->late.len && !ws_is_behind(socket->ws, max - text.len)) {
        ws_send(socket->ws, text);
        return;
    }
    size_t begun = frame_begin(&socket->late);
    buf_str(&socket->late, text);
    frame_end(&socket->late, begun);
}

static void end_drained(struct submit_socket *socket)
{
    if (socket->draining && socket->open == 0 && !socket->late.len)
        ws_close(socket->ws, 1012, "the server restarts");
}

/* {"msg":"placed","id":7 */
static struct jsonw begin(struct submit_sockets *all, const char *msg, bool has_id, int64_t id)
{
    struct jsonw w = jsonw_to(&all->frame);

    buf_clear(&all->frame);
    jsonw_obj(&w);
    jsonw_kstr(&w, "msg", str_of(msg));
    write_int_or_null(&w, "id", has_id, id);
    return w;
}

/* An answer returns its message's credit and the credit owed, or none; it states the amount unless
 * that is one. */
static void give_credit(struct submit_socket *socket, struct jsonw *w)
{
    int64_t back = is_behind(socket) ? 0 : 1 + socket->owed;

    if (back != 1)
        jsonw_kint(w, "credit", back);
    socket->owed += 1 - back;
    socket->credit += back;
    socket->open--;
    assert(socket->open >= 0 && socket->owed >= 0);
}

static void on_written(struct ws *ws)
{
    struct submit_socket *socket = ws->user;
    struct buf late = socket->late, *frame = &socket->all->frame;
    struct str rest = buf_view(&late), text;

    socket->late = (struct buf){0};
    while (frame_next(&rest, &text))
        send_or_queue(socket, text);
    buf_free(&late);
    if (socket->late.len || is_behind(socket))
        return;
    if (socket->owed > 0) {
        struct jsonw w = jsonw_to(frame);

        buf_clear(frame);
        jsonw_obj(&w);
        jsonw_kstr(&w, "msg", STR("credit"));
        jsonw_kint(&w, "n", socket->owed);
        jsonw_end_obj(&w);
        socket->credit += socket->owed;
        socket->owed = 0;
        send_or_queue(socket, buf_view(frame));
    }
    send_ends(socket);
    end_drained(socket);
}

/* --- followed jobs --- */

static void follow_place(struct follow *follow, enum follow_list list)
{
    struct submit_socket *socket = follow->socket;
    struct follows *const lists[] = {
        [FOLLOW_LOOKS] = &socket->all->looks, [FOLLOW_ENDS] = &socket->ends};

    if (follow->list != FOLLOW_NONE)
        TAILQ_REMOVE(lists[follow->list], follow, link);
    follow->list = list;
    if (list != FOLLOW_NONE)
        TAILQ_INSERT_TAIL(lists[list], follow, link);
}

static void follow_ended(struct watch *watch, const struct store_record *end);

static struct follow *follow_new(struct submit_socket *socket, uint64_t job,
                                 const struct exchange *own)
{
    struct submit_sockets *all = socket->all;
    struct follow *follow = slab_new(&all->slab);

    assert(!idmap_get(&socket->by_job, job));
    follow->watch = (struct watch){.job = job, .ended = follow_ended};
    follow->socket = socket;
    follow->has_id = own->has_id;
    follow->id = own->id;
    follow->looked_ms = all->worker->loop.mono_ms;
    idmap_put(&socket->by_job, job, follow);
    all->followed++;
    waiters_watch(all->worker->waiters, &follow->watch);
    if (peers_shared(all->worker->server))
        follow_place(follow, FOLLOW_LOOKS);
    return follow;
}

/* Leaves socket->by_job to the caller. */
static void follow_free(struct follow *follow)
{
    struct submit_sockets *all = follow->socket->all;

    follow_place(follow, FOLLOW_NONE);
    if (!follow->over)
        waiters_unwatch(all->worker->waiters, &follow->watch);
    assert(all->followed > 0);
    all->followed--;
    slab_drop(&all->slab, follow);
}

static void follow_over(struct follow *follow)
{
    idmap_del(&follow->socket->by_job, follow->watch.job);
    follow_free(follow);
}

static bool follows_full(const struct submit_socket *socket)
{
    return socket->by_job.count >= SUBMIT_FOLLOWED_MAX ||
           socket->all->followed >= SUBMIT_FOLLOWED_LOOP_MAX;
}

/* `record` NULL: the store no longer has the job. */
static void reply_ended(struct follow *follow, const struct store_record *record)
{
    static const struct store_head gone;
    const struct store_head *head = record ? &record->head : &gone;
    struct submit_socket *socket = follow->socket;
    struct jsonw w = begin(socket->all, "ended", follow->has_id, follow->id);
    const char *reason = record ? head->reason : err_name(ERR_NOT_FOUND);

    write_job_id(&w, follow->watch.job);
    jsonw_kstr(&w, "state", record ? str_of(job_state_name(head->state)) : STR_NONE);
    jsonw_kstr(&w, "node_id", head->node[0] ? str_of(head->node) : STR_NONE);
    jsonw_kint(&w, "attempt_id", head->attempt);
    jsonw_kstr(&w, "reason", reason[0] ? str_of(reason) : STR_NONE);
    jsonw_kint(&w, "created_ms", head->created_ms);
    jsonw_kint(&w, "ended_ms", head->ended_ms);
    jsonw_kraw(&w, "result", record ? record->result : STR_NONE);
    jsonw_end_obj(&w);
    if (!ws_takes(socket->ws, socket->all->frame.len)) { /* a long result */
        socket->wanted = socket->all->frame.len;
        follow_place(follow, FOLLOW_ENDS);
        return;
    }
    socket->wanted = 0;
    ws_send(socket->ws, buf_view(&socket->all->frame));
    follow_over(follow);
}

/* The job ended: sends the end now, or has it read again and sent once the reader has caught up. */
static void send_end(struct follow *follow, const struct store_record *record)
{
    if (!follow->over)
        waiters_unwatch(follow->socket->all->worker->waiters, &follow->watch);
    follow->over = true;
    if (!follow->socket->late.len && !is_behind(follow->socket))
        reply_ended(follow, record);
    else
        follow_place(follow, FOLLOW_ENDS);
}

static void follow_ended(struct watch *watch, const struct store_record *end)
{
    struct follow *follow = container_of(watch, struct follow, watch);

    follow->over = true;
    if (!follow->answered)
        return;
    if (end && TAILQ_EMPTY(&follow->socket->ends)) { /* else earlier ends go first */
        send_end(follow, end);
        return;
    }
    follow_place(follow, FOLLOW_ENDS);
    send_ends(follow->socket);
}

static void read_done(struct follow *follow, const struct store_op *op)
{
    struct worker *worker = follow->socket->all->worker;
    bool shared = peers_shared(worker->server);
    int64_t now_ms = worker->loop.mono_ms;

    follow->reading = false;
    if (op->err == ERR_NOT_FOUND) {
        if (!follow->missing_ms)
            follow->missing_ms = now_ms;
        if (!shared || now_ms - follow->missing_ms >= MISSING_MS)
            send_end(follow, NULL);
        else
            follow_place(follow, FOLLOW_LOOKS);
        return;
    }
    if (!op->err)
        follow->missing_ms = 0;
    if (!op->err && job_state_final(op->head.state))
        send_end(follow, &op->record);
    else /* the tick tries again */
        follow_place(follow, follow->over        ? FOLLOW_ENDS
                             : op->err || shared ? FOLLOW_LOOKS
                                                 : FOLLOW_NONE);
}

static void on_read(struct store_op *op)
{
    struct reading *reading = container_of(op, struct reading, op);
    struct submit_sockets *all = reading->all;
    struct submit_socket *socket = idmap_get(&all->sockets, reading->number);
    struct follow *follow = socket ? idmap_get(&socket->by_job, op->job) : NULL;

    if (socket && reading->end)
        socket->reads--;
    if (follow && follow->answered)
        read_done(follow, op);
    if (socket && !op->err && job_state_final(op->head.state))
        send_ends(socket);
    arena_reset(&reading->arena);
    reading->next = all->spare_reads;
    all->spare_reads = reading;
}

static void follow_read(struct follow *follow, bool end)
{
    struct submit_sockets *all = follow->socket->all;
    struct reading *reading = all->spare_reads;

    if (reading)
        all->spare_reads = reading->next;
    else
        reading = mem_new(struct reading);
    reading->all = all;
    reading->number = follow->socket->number;
    reading->end = end;
    reading->op = (struct store_op){.verb = STORE_JOB_GET,
                                    .reply_to = &all->worker->loop.inbox,
                                    .done = on_read,
                                    .job = follow->watch.job,
                                    .arena = &reading->arena};
    follow->reading = true;
    follow->looked_ms = all->worker->loop.mono_ms;
    sched_send(all->worker->sched, &reading->op);
}

/* Starts on as many ends as can be sent. */
static void send_ends(struct submit_socket *socket)
{
    struct follow *follow;

    while (socket->reads < READS_MAX && (follow = TAILQ_FIRST(&socket->ends)) &&
           !is_behind(socket)) {
        follow_place(follow, FOLLOW_NONE);
        socket->reads++;
        follow_read(follow, true);
    }
}

/* --- messages --- */

static void exchange_over(struct exchange *own)
{
    struct submit_sockets *all = own->all;

    TAILQ_REMOVE(&all->open, own, link);
    if (own->bytes)
        http_bodies_give(own->bytes);
    if (all->spare_count == SPARE_MAX) { /* after a flood: free the memory */
        arena_free(&own->arena);
        free(own);
        return;
    }
    arena_reset(&own->arena);
    TAILQ_INSERT_HEAD(&all->spare, own, link);
    all->spare_count++;
}

static const struct http_header *header_of(const struct http_reply *reply, const char *name)
{
    for (size_t i = 0; i < reply->header_count; i++)
        if (str_is(reply->headers[i].name, name))
            return &reply->headers[i];
    return NULL;
}

/* `msg` and a member replace the HTTP status and header; the rest of the body is the same. */
static void reply_answer(struct submit_socket *socket, const struct exchange *own,
                         const struct http_reply *reply)
{
    struct buf *frame = &socket->all->frame;
    const char *msg = reply->status >= 400   ? "refused"
                      : reply->status == 202 ? "waiting"
                                             : "placed";
    struct jsonw w = begin(socket->all, msg, own->has_id, own->id);
    const struct http_header *retry = header_of(reply, "Retry-After");

    assert(reply->body.len > 2 && reply->body.at[0] == '{');
    give_credit(socket, &w);
    if (retry)
        jsonw_kraw(&w, "retry_after_s", retry->value);
    buf_char(frame, ',');
    buf_add(frame, reply->body.at + 1, reply->body.len - 1);
    send_or_queue(socket, buf_view(frame));
}

/* Its message was answered: from now on its end may be sent. */
static void follow_begin(struct follow *follow)
{
    follow->answered = true;
    if (!follow->over)
        return;
    follow_place(follow, FOLLOW_ENDS);
    send_ends(follow->socket);
}

/* `job` 0: it was refused. Not the job begun: the key was known, and this is the earlier job. */
static void follow_answered(struct submit_socket *socket, const struct exchange *own, uint64_t job)
{
    struct follow *begun = idmap_get(&socket->by_job, own->begun);
    struct follow *follow;

    if (begun && job != own->begun && !begun->answered) /* else it was answered for its key */
        follow_over(begun);
    if (!job)
        return;
    follow = job == own->begun ? begun : idmap_get(&socket->by_job, job);
    if (follow) {
        follow_begin(follow);
        return;
    }
    follow = follow_new(socket, job, own);
    follow->answered = true;
    follow_read(follow, false); /* it may have ended long ago */
}

static void answer(struct call *call, const struct http_reply *reply)
{
    struct exchange *own = container_of(call, struct exchange, call);
    struct submit_socket *socket = idmap_get(&own->all->sockets, own->number);

    if (socket) {
        reply_answer(socket, own, reply);
        if (own->begun)
            follow_answered(socket, own, reply->status < 400 ? call->job : 0);
        end_drained(socket);
    }
    exchange_over(own);
}

/* --- submit --- */

static void begun(struct call *call, uint64_t job)
{
    struct exchange *own = container_of(call, struct exchange, call);
    struct submit_socket *socket = idmap_get(&own->all->sockets, own->number);

    own->begun = job;
    if (!idmap_get(&socket->by_job, job)) /* else somebody guessed its id and attached to it */
        follow_new(socket, job, own);
}

static enum err too_many(struct problem *why)
{
    return problem_set(why, ERR_BUSY, "",
                       "Too many jobs of this connection have not ended; submit with "
                       "\"follow\": false, or over another one.");
}

/* The checks of a request, in the same order. */
static enum err check_submit(const struct submit_socket *socket, struct exchange *own,
                             struct problem *why)
{
    struct call *call = &own->call;
    const struct server *server = call->worker->server;
    int64_t bytes = (int64_t)call->text.len, max = server->settings->http.body_bytes_max;
    int64_t counted = bytes > HTTP_BODY_SMALL_BYTES ? bytes - HTTP_BODY_SMALL_BYTES : 0;
    enum err err = guard_count_job(call, guard_meter(call), why);

    if (err)
        return err;
    if (json_type(call->body) != JSON_OBJ)
        return problem_set(why, ERR_BAD_FIELD, "job", "job must be an object.");
    if (bytes > max)
        return problem_set(why, ERR_TOO_LARGE, "job", "A job may have %lld bytes here.",
                           (long long)max);
    if (counted > 0 && !http_bodies_take(counted, &server->limits))
        return problem_set(why, ERR_BUSY, "",
                           "The bodies of all requests together are too large now "
                           "(bodies_bytes_max); try again.");
    own->bytes = counted;
    if (call->begun && follows_full(socket))
        return too_many(why);
    return ERR_OK;
}

static void on_submit(struct submit_socket *socket, struct exchange *own,
                      const struct json *message)
{
    const struct json *key = json_get(message, "idempotency_key");
    const struct json *wants = json_get(message, "follow");
    struct call *call = &own->call;
    struct problem why;
    bool follow = true;

    call->body = json_get(message, "job");
    call->text = json_raw(call->body);
    if (!json_is_null(key) && json_type(key) != JSON_STR) {
        call_error(call, ERR_BAD_FIELD, "idempotency_key", "idempotency_key must be a text.");
        return;
    }
    call->key = json_str(key, &own->arena);
    if (!json_is_null(wants) && !json_bool(wants, &follow)) {
        call_error(call, ERR_BAD_FIELD, "follow", "follow must be true or false.");
        return;
    }
    call->begun = follow ? begun : NULL;
    if (check_submit(socket, own, &why))
        call_problem(call, &why);
    else
        api_dispatch_entry(call);
}

/* --- attach --- */

static void reply_attached(struct submit_socket *socket, const struct exchange *own, uint64_t job,
                           const struct store_head *head)
{
    struct jsonw w = begin(socket->all, "attached", own->has_id, own->id);

    give_credit(socket, &w);
    write_job_id(&w, job);
    if (head)
        jsonw_kstr(&w, "state", str_of(job_state_name(head->state)));
    else
        jsonw_kbool(&w, "duplicate", true);
    jsonw_end_obj(&w);
    send_or_queue(socket, buf_view(&socket->all->frame));
}

/* A caller who may submit but not read sees what it submitted itself. */
static bool may_see(const struct call *call, const struct store_record *record)
{
    const struct json *spec = NULL;

    if (!call->token || call->token->scopes & 1u << SCOPE_READ)
        return true;
    return !json_parse(record->spec, call->arena, &spec, NULL) &&
           str_eq(json_str(json_get(spec, "submitted_by"), call->arena), call->token->name);
}

static void attach_read(struct store_op *op)
{
    struct exchange *own = container_of(op, struct exchange, op);
    struct submit_socket *socket = idmap_get(&own->all->sockets, own->number);
    struct follow *follow = socket ? idmap_get(&socket->by_job, op->job) : NULL;

    call_hide_job(&own->call, op);
    if (!op->err && !may_see(&own->call, &op->record))
        op->err = ERR_NOT_FOUND;
    if (op->err) {
        char id[JOB_ID_TEXT + 1];

        if (follow && !follow->answered) /* else a key led to the same job meanwhile */
            follow_over(follow);
        job_id_text(op->job, id);
        if (op->err == ERR_NOT_FOUND)
            call_error(&own->call, op->err, "job_id", "There is no job \"%s\".", id);
        else
            call_error(&own->call, op->err, "", "%s.", err_title(op->err));
        return;
    }
    if (socket)
        reply_attached(socket, own, op->job, &op->head);
    if (follow)
        follow->answered = true;
    if (follow && job_state_final(op->head.state))
        send_end(follow, &op->record);
    else if (follow)
        follow_begin(follow);
    if (socket)
        end_drained(socket);
    exchange_over(own);
}

static void on_attach(struct submit_socket *socket, struct exchange *own,
                      const struct json *message)
{
    struct call *call = &own->call;
    struct problem why;
    uint64_t job;

    if (!call_job_id(call, json_str(json_get(message, "job_id"), &own->arena), &job))
        return;
    if (idmap_get(&socket->by_job, job)) {
        reply_attached(socket, own, job, NULL);
        exchange_over(own);
        return;
    }
    if (follows_full(socket)) {
        too_many(&why);
        call_problem(call, &why);
        return;
    }
    follow_new(socket, job, own); /* follow, then read: an end in between is not missed */
    own->op = call_op(call, STORE_JOB_GET, attach_read);
    own->op.job = job;
    sched_send(call->worker->sched, &own->op);
}

/* --- the socket --- */

static void handle(struct submit_socket *socket, struct exchange *own, struct str text)
{
    struct call *call = &own->call;
    const struct json *message;
    struct problem why;

    /* The text is in the socket's read buffer: copy what outlives this call. */
    enum err err = json_parse_body(arena_str(&own->arena, text), &own->arena, &message, &why);
    if (!err && json_type(message) != JSON_OBJ)
        err = problem_set(&why, ERR_BAD_JSON, "", "A message must be a JSON object.");
    if (err) {
        call_problem(call, &why);
        return;
    }
    own->has_id = json_int(json_get(message, "id"), &own->id);
    if (socket->draining)
        call_error(call, ERR_BUSY, "", "The server is about to stop.");
    else if (json_str_is(json_get(message, "msg"), "submit"))
        on_submit(socket, own, message);
    else if (json_str_is(json_get(message, "msg"), "attach"))
        on_attach(socket, own, message);
    else
        call_error(call, ERR_BAD_FIELD, "msg", "msg must be submit or attach.");
}

static void on_message(struct ws *ws, struct str text)
{
    struct submit_socket *socket = ws->user;
    struct submit_sockets *all = socket->all;
    struct worker *worker = all->worker;
    struct exchange *own = TAILQ_FIRST(&all->spare);

    if (socket->token && token_expired(socket->token, worker->loop.wall_ms)) {
        ws_close(ws, SUBMIT_CLOSE_TOKEN, "the token is not valid any more");
        return;
    }
    if (socket->credit == 0) {
        ws_close(ws, SUBMIT_CLOSE_CREDIT, "no credit: wait for answers before you send more");
        return;
    }
    socket->credit--;
    socket->open++;
    if (own) {
        TAILQ_REMOVE(&all->spare, own, link);
        all->spare_count--;
    } else {
        own = mem_new(struct exchange);
    }
    own->all = all;
    own->number = socket->number;
    own->has_id = false;
    own->id = own->bytes = 0;
    own->begun = 0;
    TAILQ_INSERT_TAIL(&all->open, own, link);
    own->call = (struct call){.worker = worker,
                              .arena = &own->arena,
                              .route = socket->route,
                              .answer = answer,
                              .auth_number = worker->auth_number};
    if (socket->token) /* the socket may close before the answer */
        own->call.token =
            token_put(arena_alloc(&own->arena, token_bytes(socket->token)), socket->token);
    handle(socket, own, text);
}

static void socket_free(struct submit_socket *socket)
{
    struct follow *follow;

    idmap_del(&socket->all->sockets, socket->number);
    for (size_t i = 0; (follow = idmap_next(&socket->by_job, &i));)
        follow_free(follow);
    idmap_free(&socket->by_job);
    buf_free(&socket->late);
    free(socket->token);
    free(socket);
}

static void on_closed(struct ws *ws, int code)
{
    socket_free(ws->user);
}

void submit_socket_accept(struct call *call)
{
    static const struct ws_handler handler = {
        .message = on_message, .closed = on_closed, .written = on_written};
    struct submit_sockets *all = call->worker->submit_sockets;
    const struct settings *settings = call->worker->server->settings;
    struct submit_socket *socket;

    if (!ws_wanted(call->req)) {
        call_error(call, ERR_UPGRADE, "Upgrade",
                   "This route speaks WebSocket: ask for an upgrade, version 13.");
        return;
    }
    socket = mem_new(struct submit_socket);
    socket->all = all;
    socket->number = ++all->last_number;
    socket->route = call->route;
    socket->token = auth_copy(call->token);
    socket->limits = settings->ws;
    socket->limits.message_bytes_max = settings->http.body_bytes_max + ENVELOPE_BYTES;
    if (socket->limits.queue_bytes_max > settings->http.net.write_queue_bytes_max)
        socket->limits.queue_bytes_max = settings->http.net.write_queue_bytes_max;
    socket->limits.counts_behind = true;
    socket->credit = submit_socket_credit(socket->limits.queue_bytes_max);
    socket->draining = call->worker->server->draining;
    TAILQ_INIT(&socket->ends);
    idmap_put(&all->sockets, socket->number, socket);
    socket->ws = ws_accept(call->req, &handler, &socket->limits, socket);
    if (!socket->ws) {
        socket_free(socket);
        return;
    }
    struct jsonw w = jsonw_to(&all->frame);
    buf_clear(&all->frame);
    jsonw_obj(&w);
    jsonw_kstr(&w, "msg", STR("welcome"));
    jsonw_kint(&w, "protocol", PROTOCOL);
    jsonw_kint(&w, "credit", socket->credit);
    jsonw_kint(&w, "job_bytes_max", settings->http.body_bytes_max);
    jsonw_kint(&w, "follow_max", SUBMIT_FOLLOWED_MAX);
    jsonw_end_obj(&w);
    send_or_queue(socket, buf_view(&all->frame));
    end_drained(socket);
}

void submit_sockets_recheck(struct submit_sockets *all)
{
    const struct worker *worker = all->worker;
    struct submit_socket *socket;

    for (size_t i = 0; (socket = idmap_next(&all->sockets, &i));) {
        const struct token *now =
            socket->token ? tokens_find(&worker->auth->tokens, socket->token->name) : NULL;

        if (!auth_still(worker->auth, socket->token, SCOPE_SUBMIT, worker->loop.wall_ms)) {
            ws_close(socket->ws, SUBMIT_CLOSE_TOKEN, "the token is not valid any more");
        } else if (now && strcmp(now->digest, socket->token->digest) == 0) {
            free(socket->token); /* its quota or scopes may have changed */
            socket->token = auth_copy(now);
        }
    }
}

void submit_sockets_drain(struct submit_sockets *all)
{
    struct submit_socket *socket;

    for (size_t i = 0; (socket = idmap_next(&all->sockets, &i));) {
        socket->draining = true;
        end_drained(socket); /* closes later: the map stays */
    }
}

void submit_sockets_tick(struct submit_sockets *all)
{
    int64_t now_ms = all->worker->loop.mono_ms;
    struct submit_socket *socket;
    struct follow *follow;

    /* Messages of other instances may get lost: look again, least recently looked at first. */
    for (int i = 0; i < LOOKS_PER_TICK && (follow = TAILQ_FIRST(&all->looks)); i++) {
        if (follow->looked_ms + LOOK_EVERY_MS > now_ms)
            break;
        follow_place(follow, FOLLOW_LOOKS); /* to the end of the list */
        follow->looked_ms = now_ms;
        if (follow->answered && !follow->reading)
            follow_read(follow, false);
    }
    for (size_t i = 0; (socket = idmap_next(&all->sockets, &i));)
        if (socket->reads == 0)
            send_ends(socket);
}

struct submit_sockets *submit_sockets_new(struct worker *worker)
{
    struct submit_sockets *all = mem_new(struct submit_sockets);

    all->worker = worker;
    all->slab.size = sizeof(struct follow);
    TAILQ_INIT(&all->looks);
    TAILQ_INIT(&all->open);
    TAILQ_INIT(&all->spare);
    return all;
}

static void exchanges_free(struct exchanges *list)
{
    struct exchange *own;

    while ((own = TAILQ_FIRST(list))) {
        TAILQ_REMOVE(list, own, link);
        arena_free(&own->arena);
        free(own);
    }
}

void submit_sockets_free(struct submit_sockets *all)
{
    struct reading *reading;

    if (!all)
        return;
    assert(all->sockets.count == 0 && all->followed == 0);
    exchanges_free(&all->open); /* nobody will answer them any more */
    exchanges_free(&all->spare);
    while ((reading = all->spare_reads)) {
        all->spare_reads = reading->next;
        arena_free(&reading->arena);
        free(reading);
    }
    slab_free(&all->slab);
    idmap_free(&all->sockets);
    buf_free(&all->frame);
    free(all);
}
