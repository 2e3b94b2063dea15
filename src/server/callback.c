/* Delivers callbacks: lists the pending ones, posts each, marks it done; failed ones wait longer
 * each time. Only the time of the next attempt is in memory; the store holds everything else. The
 * settings list which URLs may be called. Without a list only services of this machine may be,
 * which its users can reach anyway, and with tokens none, since callers may then be remote. */
#include "server/callback.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "server/api.h"
#include "server/peers.h"

struct callbacks {
    struct worker *keeper;
    struct idmap known; /* job -> struct delivery * */
    int busy;           /* deliveries being posted */
    struct store_op list_op;
    struct arena arena;
    bool listing;
    struct delivery *over; /* ended while it was listed: the list may still show them */
    uint64_t after;        /* where the next page of the listing starts */
    int64_t next_look_ms;
    struct msg kick;
    _Atomic bool kicked;
};

static void kicked(struct msg *msg);

/* --- URLs --- */

static const struct {
    const char *field, *setting;
    size_t offset; /* of the setting */
} uses[] = {
    [URL_ENDPOINT] = {"endpoint", "endpoint_urls", offsetof(struct settings, endpoint_urls)},
    [URL_CALLBACK] = {"callback_url", "callback_urls", offsetof(struct settings, callback_urls)},
};

bool urls_allowed(struct server *server, enum url_use use, struct str url)
{
    static const struct str loopback = STR("loopback");
    const struct settings *settings = server->settings;
    const struct strs *list;

    assert(use < COUNT_OF(uses));
    list = (const struct strs *)((const char *)settings + uses[use].offset);
    if (!list->count)
        list = &settings->allow_urls;
    if (!list->count && !server->guarded)
        return client_url_allowed(url, &loopback, 1);
    return client_url_allowed(url, list->at, list->count);
}

enum err urls_check(struct server *server, enum url_use use, struct str url, struct problem *why)
{
    if (!url.len || urls_allowed(server, use, url))
        return ERR_OK;
    return problem_set(why, ERR_BAD_FIELD, uses[use].field,
                       "%s is not among the URLs this server may call (setting %s, or allow_urls "
                       "for all; with tokens there are none by default).",
                       uses[use].field, uses[use].setting);
}

/* --- callbacks --- */

enum {
    BATCH = 64,
    KNOWN_MAX = 10000, /* in memory; the others wait in the store */
    BUSY_MAX = 128,    /* posts at a time: more would wait for a connection and time out */
    LOOK_EVERY_MS = 2000,
    BACKOFF_MAX_MS = 60000,
    TIMEOUT_MS = 10000,
};

/* One pending callback this process knows of. */
struct delivery {
    struct callbacks *callbacks;
    uint64_t job;
    int tries;
    int64_t next_ms;
    bool busy;
    struct delivery *next_over;
    char *url;
    struct buf body;
    struct client_call call;
    struct store_op op;
};

struct callbacks *callbacks_new(struct worker *keeper)
{
    struct callbacks *callbacks = mem_new(struct callbacks);

    callbacks->keeper = keeper;
    callbacks->kick.run = kicked;
    return callbacks;
}

static void delivery_free(struct delivery *delivery)
{
    buf_free(&delivery->body);
    buf_free(&delivery->call.reply);
    free(delivery->url);
    free(delivery);
}

void callbacks_free(struct callbacks *callbacks)
{
    struct delivery *delivery;

    if (!callbacks)
        return;
    for (size_t i = 0; (delivery = idmap_next(&callbacks->known, &i));)
        delivery_free(delivery);
    idmap_free(&callbacks->known);
    arena_free(&callbacks->arena);
    free(callbacks);
}

static void forget(struct delivery *delivery)
{
    idmap_del(&delivery->callbacks->known, delivery->job);
    delivery_free(delivery);
}

static void marked(struct store_op *op)
{
    struct delivery *delivery = container_of(op, struct delivery, op);
    struct callbacks *callbacks = delivery->callbacks;

    assert(delivery->busy && op->job == delivery->job);
    if (store_is_away(op->err)) {
        delivery->busy = false; /* will be delivered again: at least once */
        delivery->next_ms = callbacks->keeper->loop.mono_ms + LOOK_EVERY_MS;
    } else if (callbacks->listing) {
        delivery->next_over = callbacks->over;
        callbacks->over = delivery;
    } else {
        forget(delivery);
    }
}

/* How long to wait after `tries` attempts. */
static int64_t pause_after(const struct delivery *delivery, int tries)
{
    const struct settings *settings = delivery->callbacks->keeper->server->settings;
    int64_t pause_ms = settings->callback_retry_ms << (tries < 16 ? tries - 1 : 15);

    assert(tries > 0);
    return pause_ms < BACKOFF_MAX_MS ? pause_ms : BACKOFF_MAX_MS;
}

static void delivered(struct client_call *call)
{
    struct delivery *delivery = container_of(call, struct delivery, call);
    const struct settings *settings = delivery->callbacks->keeper->server->settings;
    bool ok = !call->err && call->status >= 200 && call->status < 300;
    char id[JOB_ID_TEXT + 1];

    assert(delivery->busy && delivery->callbacks->busy > 0);
    delivery->callbacks->busy--;
    buf_free(&call->reply);
    job_id_text(delivery->job, id);
    metric_add_label(METRIC_CALLBACK, ok ? "ok" : "failed", 1);
    delivery->tries++;
    if (ok || delivery->tries >= settings->callback_tries_max) {
        if (!ok)
            log_event(LOG_ERROR, "callback.given_up", KC("job_id", id),
                      KI("tries", delivery->tries));
        assert(delivery->busy);
        delivery->op = (struct store_op){.verb = STORE_CALLBACK_DONE,
                                         .reply_to = &delivery->callbacks->keeper->loop.inbox,
                                         .done = marked,
                                         .job = delivery->job};
        delivery->op.u.callback.given_up = !ok;
        sched_send(delivery->callbacks->keeper->sched, &delivery->op);
        return;
    }
    delivery->busy = false;
    delivery->next_ms =
        delivery->callbacks->keeper->loop.mono_ms + pause_after(delivery, delivery->tries);
    log_event(LOG_WARN, "callback.failed", KC("job_id", id), KI("tries", delivery->tries),
              KI("status", call->status), KC("reason", err_name(call->err)));
}

static void post(struct delivery *delivery)
{
    struct callbacks *callbacks = delivery->callbacks;

    delivery->call = (struct client_call){.method = "POST",
                                          .url = delivery->url,
                                          .body = buf_view(&delivery->body),
                                          .content_type = "application/json",
                                          .timeout_ms = TIMEOUT_MS,
                                          .reply_bytes_max = 65536,
                                          .done = delivered};
    /* It may have been accepted under other settings: the current ones decide. */
    if (!urls_allowed(callbacks->keeper->server, URL_CALLBACK, str_of(delivery->url)))
        delivery->call.err = ERR_FORBIDDEN;
    else if (client_send(callbacks->keeper->client, &delivery->call))
        delivery->call.err = ERR_IO;
    else
        return;
    delivered(&delivery->call);
}

static void claimed(struct store_op *op)
{
    struct delivery *delivery = container_of(op, struct delivery, op);
    struct callbacks *callbacks = delivery->callbacks;

    assert(delivery->busy && callbacks->busy > 0);
    if (!op->err) {
        post(delivery);
        return;
    }
    /* Another instance has claimed or delivered it: if that one dies, the list shows the job again.
     */
    callbacks->busy--;
    forget(delivery);
}

/* In a shared store the instance that claimed the callback delivers it. The claim lasts until the
 * next attempt plus the time that attempt may take; then any instance may claim it. */
static void deliver(struct delivery *delivery)
{
    struct callbacks *callbacks = delivery->callbacks;

    assert(!delivery->busy);
    delivery->busy = true;
    callbacks->busy++;
    if (!peers_shared(callbacks->keeper->server)) {
        post(delivery);
        return;
    }
    delivery->op = (struct store_op){.verb = STORE_CLAIM,
                                     .reply_to = &callbacks->keeper->loop.inbox,
                                     .done = claimed,
                                     .job = delivery->job};
    delivery->op.u.callback.hold_ms =
        2 * TIMEOUT_MS + pause_after(delivery, delivery->tries + 1) + LOOK_EVERY_MS;
    sched_send(callbacks->keeper->sched, &delivery->op);
}

static void listed(struct store_op *op)
{
    struct callbacks *callbacks = container_of(op, struct callbacks, list_op);

    assert(callbacks->listing && (op->err || op->u.list.count <= BATCH));
    callbacks->listing = false;
    for (size_t i = 0; !op->err && i < op->u.list.count; i++) {
        const struct store_record *record = &op->u.list.items[i];
        struct namespace_view owner = {.namespace = namespace_of(str_of(record->head.type))};
        const struct json *spec;

        assert(job_state_final(record->head.state));
        if (idmap_get(&callbacks->known, record->head.id) || callbacks->known.count >= KNOWN_MAX ||
            json_parse(record->spec, &callbacks->arena, &spec, NULL))
            continue;
        struct str url = json_str(json_get(spec, "callback_url"), &callbacks->arena);
        struct delivery *delivery = mem_new(struct delivery);
        struct jsonw w = jsonw_to(&delivery->body);
        delivery->callbacks = callbacks;
        delivery->job = record->head.id;
        delivery->url = mem_cstr(url);
        job_write(&w, record, &owner, &callbacks->arena);
        idmap_put(&callbacks->known, delivery->job, delivery);
        if (callbacks->busy < BUSY_MAX)
            deliver(delivery); /* else at a tick */
    }
    for (struct delivery *delivery; (delivery = callbacks->over);) {
        callbacks->over = delivery->next_over;
        forget(delivery);
    }
    if (op->err)
        return;
    /* A full page: there may be more after it. */
    callbacks->after = op->u.list.count == BATCH ? op->u.list.items[BATCH - 1].head.id : 0;
    if (callbacks->after)
        callbacks->next_look_ms = 0;
}

static void look(struct callbacks *callbacks)
{
    if (callbacks->listing)
        return;
    arena_reset(&callbacks->arena);
    callbacks->list_op = (struct store_op){.verb = STORE_CALLBACKS,
                                           .reply_to = &callbacks->keeper->loop.inbox,
                                           .done = listed,
                                           .arena = &callbacks->arena};
    callbacks->list_op.u.list.max = BATCH;
    callbacks->list_op.u.list.after = callbacks->after;
    callbacks->listing = true;
    sched_send(callbacks->keeper->sched, &callbacks->list_op);
}

static void kicked(struct msg *msg)
{
    struct callbacks *callbacks = container_of(msg, struct callbacks, kick);

    atomic_store(&callbacks->kicked, false);
    callbacks->next_look_ms = 0;
    look(callbacks);
}

void callbacks_kick(struct callbacks *callbacks)
{
    if (!atomic_exchange(&callbacks->kicked, true))
        inbox_post(&callbacks->keeper->loop.inbox, &callbacks->kick);
}

void callbacks_tick(struct callbacks *callbacks)
{
    int64_t now_ms = callbacks->keeper->loop.mono_ms;
    struct delivery *delivery;

    /* Deliveries end by a message, later, so the map does not change in this loop. */
    for (size_t i = 0;
         callbacks->busy < BUSY_MAX && (delivery = idmap_next(&callbacks->known, &i));)
        if (!delivery->busy && delivery->next_ms <= now_ms)
            deliver(delivery);
    if (now_ms >= callbacks->next_look_ms) {
        callbacks->next_look_ms = now_ms + LOOK_EVERY_MS;
        look(callbacks);
    }
}
