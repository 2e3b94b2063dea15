/* Connecting, hello and heartbeats, and RPCs to the server over the connection. Each hello and
 * heartbeat has its own negative id, so that a reply shows when its message was sent; calls use
 * positive ids. */
#include "agent/link.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "agent/identity.h"
#include "base/log.h"
#include "base/mem.h"
#include "io/http.h"

enum {
    LINK_MESSAGE_BYTES_MAX = 16 << 20, /* a job with its payload; the server's limit is lower */
    LINK_QUEUE_BYTES_MAX = 64 << 20,
    HEARTBEAT_MS_MIN = 100,
    HEARTBEAT_MS_MAX = 3600 * 1000,
    GREETING_PING_MS = 1000, /* short, so that the settings in a welcome apply soon */
};

static void on_redial(uv_timer_t *timer);

/* --- calls --- */

static void finish(struct link_calls *calls, struct link_call *call, enum err err,
                   const struct json *reply)
{
    TAILQ_REMOVE(&calls->sent, call, entry);
    call->id = 0;
    call->err = err;
    call->reply = reply;
    call->done(call);
}

/* Ends the calls whose deadline has passed. `done` may send new ones, which are not due yet. */
static void on_tick(struct loop_part *part)
{
    struct link_calls *calls = container_of(part, struct link_calls, part);
    struct link_call *call = TAILQ_FIRST(&calls->sent);

    while (call) {
        struct link_call *next = TAILQ_NEXT(call, entry);

        if (calls->loop->mono_ms >= call->late_ms) {
            finish(calls, call, call->err ? call->err : ERR_TIMEOUT, NULL);
            next = TAILQ_FIRST(&calls->sent); /* `done` may have changed the list */
        }
        call = next;
    }
}

void link_part_left(struct loop_part *part)
{
    assert(!"a part is still there");
}

struct link_calls *link_calls_new(struct loop *loop,
                                  bool (*send)(struct link_calls *calls, struct str text),
                                  void *user)
{
    struct link_calls *calls = mem_new(struct link_calls);

    calls->loop = loop;
    calls->send = send;
    calls->user = user;
    calls->id = LINK_CALLS_ID_FIRST;
    TAILQ_INIT(&calls->sent);
    calls->part = (struct loop_part){.tick = on_tick, .free = link_part_left};
    loop_add_part(loop, &calls->part);
    return calls;
}

void link_calls_send(struct link_calls *calls, struct link_call *call)
{
    struct jsonw w = jsonw_to(&calls->text);

    assert(call->done && call->path && !call->id && call->timeout_ms > 0);
    call->id = ++calls->id;
    call->err = ERR_OK;
    call->reply = NULL;
    call->late_ms = calls->loop->mono_ms + call->timeout_ms;
    TAILQ_INSERT_TAIL(&calls->sent, call, entry);
    buf_clear(&calls->text);
    jsonw_obj(&w);
    jsonw_kstr(&w, "msg", STR("call"));
    jsonw_kint(&w, "id", call->id);
    jsonw_kstr(&w, "path", str_of(call->path));
    jsonw_kraw(&w, "body", call->body.at ? call->body : STR("{}"));
    jsonw_end_obj(&w);
    if (!calls->send(calls, buf_view(&calls->text))) {
        call->err = ERR_CLOSED; /* the next tick calls `done`; it is never called in here */
        call->late_ms = calls->loop->mono_ms;
    }
}

static enum err refusal(const struct json *body)
{
    struct arena arena = {0};
    struct str name = json_str(json_get(body, "error"), &arena);
    int64_t status = 500;
    enum err err;

    json_int(json_get(body, "status"), &status);
    err = err_by_name(name.at ? arena_cstr(&arena, name) : "", (int)status);
    arena_free(&arena);
    return err ? err : ERR_INTERNAL;
}

bool link_calls_reply(struct link_calls *calls, const struct json *body)
{
    struct link_call *call = TAILQ_FIRST(&calls->sent);
    bool ok = false;
    int64_t id;

    if (!json_int(json_get(body, "re"), &id) || id <= LINK_CALLS_ID_FIRST)
        return false;
    while (call && call->id != id)
        call = TAILQ_NEXT(call, entry);
    json_bool(json_get(body, "ok"), &ok);
    if (call) /* otherwise it had timed out */
        finish(calls, call, ok ? ERR_OK : refusal(body), ok ? json_get(body, "body") : body);
    return true;
}

void link_calls_down(struct link_calls *calls)
{
    struct link_call *last = TAILQ_LAST(&calls->sent, link_call_list);
    bool more = last != NULL;

    while (more) { /* calls sent by `done` are not included */
        more = TAILQ_FIRST(&calls->sent) != last;
        finish(calls, TAILQ_FIRST(&calls->sent), ERR_CLOSED, NULL);
    }
}

void link_calls_free(struct link_calls *calls)
{
    if (!calls)
        return;
    loop_remove_part(calls->loop, &calls->part);
    buf_free(&calls->text);
    free(calls);
}

/* --- growing pauses --- */

int64_t backoff_bound_ms(int64_t times, int64_t min_ms, int64_t max_ms)
{
    int64_t bound_ms = min_ms;

    assert(times >= 0 && min_ms > 0 && max_ms <= INT64_MAX / 2);
    for (; times > 0 && bound_ms < max_ms; times--)
        bound_ms *= 2;
    return bound_ms < max_ms ? bound_ms : max_ms;
}

int64_t backoff_ms(int64_t failures, int64_t min_ms, int64_t max_ms, struct rnd *rnd)
{
    int64_t bound_ms = backoff_bound_ms(failures - 1, min_ms, max_ms);

    assert(failures > 0 && bound_ms < UINT32_MAX);
    return bound_ms - rnd_below(rnd, (uint32_t)(bound_ms / 2 + 1));
}

/* --- sending --- */

static void send_facts(struct link *link, const char *msg)
{
    struct jsonw w = jsonw_to(&link->text);

    assert(link->ws);
    buf_clear(&link->text);
    jsonw_obj(&w);
    jsonw_kstr(&w, "msg", str_of(msg));
    jsonw_kint(&w, "id", -++link->beats);
    jsonw_kint(&w, "protocol", LINK_PROTOCOL);
    jsonw_kstr(&w, "node_id", link->config->node_id);
    link->handler->describe(link, &w);
    jsonw_end_obj(&w);
    /* Taken before the server can have received it, and after the state it lists. */
    link->sent_ms[link->beats % LINK_BEATS_OPEN] = clock_lease_ms();
    ws_send(link->ws, buf_view(&link->text));
}

static void beat(struct link *link)
{
    link->beat_due = false;
    if (!link->up)
        return;
    send_facts(link, "heartbeat");
    uv_timer_again(&link->beat);
}

static void on_beat(uv_timer_t *timer)
{
    struct link *link = timer->data;

    loop_enter(link->loop);
    beat(link);
}

static void on_turn(struct loop_part *part)
{
    struct link *link = container_of(part, struct link, part);

    if (link->beat_due)
        beat(link);
}

void link_beat(struct link *link)
{
    link->beat_due = link->up;
}

bool link_send(struct link *link, struct str text)
{
    return link->up && ws_send(link->ws, text);
}

/* --- receiving --- */

static void set_heartbeat(struct link *link, int64_t ms)
{
    ms = ms < HEARTBEAT_MS_MIN ? HEARTBEAT_MS_MIN : ms > HEARTBEAT_MS_MAX ? HEARTBEAT_MS_MAX : ms;
    link->heartbeat_ms = ms;
}

static void on_welcome(struct link *link, const struct json *body)
{
    int64_t heartbeat_ms = link->heartbeat_ms, incarnation = 0;

    if (link->up)
        return;
    json_int(json_get(body, "heartbeat_ms"), &heartbeat_ms);
    json_int(json_get(body, "incarnation"), &incarnation);
    set_heartbeat(link, heartbeat_ms);
    /* Ping after half of the allowed silence; after the other half without a sign of life the
     * connection is dead. */
    link->limits.ping_ms = link->heartbeat_ms * LINK_SILENCE_BEATS / 2;
    uv_timer_stop(&link->welcome);
    link->up = true;
    link->failures = 0;
    uv_timer_start(&link->beat, on_beat, (uint64_t)link->heartbeat_ms,
                   (uint64_t)link->heartbeat_ms);
    log_event(LOG_INFO, "agent.connected", KS("node_id", link->config->node_id),
              KC("server", link->config->urls[link->url]), KI("incarnation", incarnation),
              KI("heartbeat_ms", link->heartbeat_ms));
    link->handler->up(link);
}

/* If a hello is refused, the reason comes first, then the connection is closed. */
static void on_own_reply(struct link *link, const struct json *body)
{
    struct str detail = json_str(json_get(body, "detail"), &link->arena);
    int64_t id;

    if (!detail.at) {
        if (link->up && json_int(json_get(body, "re"), &id) && id < 0 && -id <= link->beats &&
            -id > link->beats - LINK_BEATS_OPEN)
            link->handler->answered(link, link->sent_ms[-id % LINK_BEATS_OPEN], body);
        return;
    }
    if (!link->up) {
        if (detail.len >= sizeof link->refusal)
            detail.len = sizeof link->refusal - 1;
        str_copy(detail, link->refusal, sizeof link->refusal);
        return;
    }
    log_event(LOG_WARN, "agent.heartbeat_refused", KS("node_id", link->config->node_id),
              KS("reason", detail));
}

static void on_message(struct ws *ws, struct str text)
{
    struct link *link = ws->user;
    const struct json *body, *re;
    struct problem why;
    struct str msg;
    int64_t id;

    arena_reset(&link->arena);
    /* The text is in the socket's read buffer, which sending may move. */
    if (json_parse(arena_str(&link->arena, text), &link->arena, &body, &why) != ERR_OK ||
        json_type(body) != JSON_OBJ) {
        log_event(LOG_ERROR, "agent.bad_message", KS("node_id", link->config->node_id),
                  KC("reason", "The server sent something that is not a JSON object."));
        ws_close(ws, 1007, "not a JSON object");
        return;
    }
    msg = json_str(json_get(body, "msg"), &link->arena);
    re = json_get(body, "re");
    if (str_is(msg, "welcome"))
        on_welcome(link, body);
    else if (str_is(msg, "reply") && (json_is_null(re) || (json_int(re, &id) && id <= 0)))
        on_own_reply(link, body); /* to hello or a heartbeat */
    else if (link->up)
        link->handler->message(link, msg, body);
}

/* --- connecting and disconnecting --- */

static void on_welcome_late(uv_timer_t *timer)
{
    struct link *link = timer->data;

    loop_enter(link->loop);
    if (link->ws)
        ws_close(link->ws, 1002, "no welcome");
}

static void on_opened(struct ws *ws)
{
    struct link *link = ws->user;

    assert(link->ws == ws && !link->up);
    link->refusal[0] = 0;
    uv_timer_start(
        &link->welcome, on_welcome_late,
        (uint64_t)(link->config->welcome_ms ? link->config->welcome_ms : LINK_WELCOME_MS), 0);
    send_facts(link, "hello");
}

int64_t link_pause_ms(int failures, size_t urls, int64_t heartbeat_ms, struct rnd *rnd)
{
    int64_t most_ms = 2 * heartbeat_ms < LINK_RETRY_MAX_MS ? 2 * heartbeat_ms : LINK_RETRY_MAX_MS;

    assert(urls > 0 && failures >= 0 && heartbeat_ms > 0);
    /* A round over all URLs counts once: the next server may well be up. */
    return 1 + rnd_below(rnd, (uint32_t)backoff_bound_ms(failures / (int64_t)urls,
                                                         LINK_RETRY_MIN_MS, most_ms));
}

static int64_t pause_ms_of(struct link *link)
{
    return link_pause_ms(link->failures, link->config->url_count, link->heartbeat_ms, &link->rnd);
}

static const char *why_closed(const struct link *link, const struct ws *ws, int code)
{
    static const struct {
        int code;
        const char *text;
    } rows[] = {{1001, "the server stops"},
                {1012, "the server restarts"},
                {1008, "the server refused the hello"},
                {1013, "too much was waiting"},
                {4001, "another agent with this node id has connected, or it was deregistered"}};

    if (link->refusal[0])
        return link->refusal;
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (rows[i].code == code)
            return rows[i].text;
    if (ws->status == 401 || ws->status == 403)
        return "the server does not accept the token";
    return ws->error ? ws->error : "the connection was closed";
}

static void redial_later(struct link *link, int64_t pause_ms)
{
    assert(!link->ws && !link->up && pause_ms > 0);
    link->url = (link->url + 1) % link->config->url_count;
    uv_timer_start(&link->redial, on_redial, (uint64_t)pause_ms, 0);
}

static void on_closed(struct ws *ws, int code)
{
    struct link *link = ws->user;
    bool was_up = link->up;
    int64_t pause_ms;

    assert(link->ws == ws);
    link->ws = NULL;
    link->up = link->beat_due = false;
    if (link->freeing)
        return;
    if (link->leaving) {
        uv_timer_stop(&link->redial);
        link->handler->left(link);
        return;
    }
    uv_timer_stop(&link->beat);
    uv_timer_stop(&link->welcome);
    /* The reason why the connection ended decides how soon to try the next one. */
    if (code == 4001)
        pause_ms = LINK_REPLACED_MIN_MS +
                   rnd_below(&link->rnd, LINK_REPLACED_MAX_MS - LINK_REPLACED_MIN_MS);
    else if (code == 1008 || ws->status == 401 || ws->status == 403)
        pause_ms = LINK_SLOW_MIN_MS + rnd_below(&link->rnd, LINK_SLOW_MAX_MS - LINK_SLOW_MIN_MS);
    else
        pause_ms = pause_ms_of(link);
    if (!was_up)
        link->failures++;
    log_event(LOG_WARN, was_up ? "agent.disconnected" : "agent.connect_failed",
              KS("node_id", link->config->node_id), KC("server", link->config->urls[link->url]),
              KI("code", code), KI("status", ws->status), KC("reason", why_closed(link, ws, code)),
              KI("retry_ms", pause_ms));
    link->refusal[0] = 0;
    redial_later(link, pause_ms);
    if (was_up)
        link->handler->down(link);
}

static const struct ws_handler handler = {
    .opened = on_opened, .message = on_message, .closed = on_closed};

static void on_redial(uv_timer_t *timer)
{
    struct link *link = timer->data;
    const struct link_config *config = link->config;
    const char *url = config->urls[link->url];
    struct access *access = config->access;
    struct http_header headers[1];
    size_t header_count = 0;
    struct net_tls *tls = NULL;
    struct problem why;
    struct buf bearer = {0};
    enum err err = ERR_OK;
    int64_t pause_ms;

    loop_enter(link->loop);
    assert(!link->ws && !link->up);
    if (link->freeing || link->loop->stopping)
        return;
    link->limits.ping_ms = GREETING_PING_MS;
    if (access)
        access_refresh(access);
    if (access && access->token.at) {
        buf_fmt(&bearer, "Bearer " STR_FMT, STR_ARG(access->token));
        headers[header_count++] = (struct http_header){STR("Authorization"), buf_view(&bearer)};
    }
    if (access && strncmp(url, "wss:", 4) == 0)
        err = access_tls(access, &tls, &why);
    if (!err)
        err = ws_connect(link->loop, url, headers, header_count, tls, &handler, &link->limits, link,
                         &link->ws, &why);
    net_tls_free(tls); /* the connection holds its own reference */
    if (err) {
        link->failures++;
        pause_ms = pause_ms_of(link);
        log_event(LOG_WARN, "agent.connect_failed", KS("node_id", config->node_id),
                  KC("server", url), KC("reason", why.detail), KI("retry_ms", pause_ms));
        redial_later(link, pause_ms);
    }
    if (bearer.at)
        explicit_bzero(bearer.at, bearer.len);
    buf_free(&bearer);
}

static void free_part(struct loop_part *part)
{
    struct link *link = container_of(part, struct link, part);

    arena_free(&link->arena);
    buf_free(&link->text);
    free(link);
}

struct link *link_new(struct loop *loop, const struct link_config *config,
                      const struct link_handler *link_handler, void *user)
{
    struct link *link = mem_new(struct link);

    assert(config->url_count > 0 && config->node_id.len > 0);
    link->loop = loop;
    link->config = config;
    link->handler = link_handler;
    link->user = user;
    link->limits = (struct ws_limits){.message_bytes_max = LINK_MESSAGE_BYTES_MAX,
                                      .queue_bytes_max = LINK_QUEUE_BYTES_MAX};
    link->part = (struct loop_part){.ready = on_turn, .free = free_part};
    set_heartbeat(link, config->heartbeat_ms);
    rnd_seed_os(&link->rnd);
    uv_timer_init(&loop->uv, &link->redial);
    uv_timer_init(&loop->uv, &link->beat);
    uv_timer_init(&loop->uv, &link->welcome);
    link->redial.data = link->beat.data = link->welcome.data = link;
    loop_add_part(loop, &link->part);
    uv_timer_start(&link->redial, on_redial, 0, 0);
    return link;
}

static void on_leave_late(uv_timer_t *timer)
{
    struct link *link = timer->data;

    if (link->leaving && !link->freeing)
        link->handler->left(link);
}

bool link_leave(struct link *link)
{
    if (!link->up || link->leaving)
        return false;
    link->leaving = true;
    link->up = false;
    uv_timer_stop(&link->beat);
    ws_close(link->ws, 1000, "the agent stops");
    uv_timer_start(&link->redial, on_leave_late, LINK_LEAVE_MS, 0);
    return true;
}

void link_free(struct link *link)
{
    if (!link)
        return;
    link->freeing = true;
    link->up = false;
    uv_timer_stop(&link->redial);
    uv_timer_stop(&link->beat);
    uv_timer_stop(&link->welcome);
    if (link->ws)
        ws_close(link->ws, 1000, "the agent stops");
}
