/* Subscribes to changes of nodes, new first jobs of lanes, keys under which a job may start,
 * changes of rules, messages to all instances, and messages to us. */
#include "store/redis_listen.h"

#include "base/mem.h"

#include <assert.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LISTEN_NODES REDIS_KEY "ev"
#define LISTEN_LANES REDIS_KEY "first"
#define LISTEN_KEYS  REDIS_KEY "freed"
#define LISTEN_RULES REDIS_KEY "rules"
#define LISTEN_ALL   REDIS_KEY "all"

enum {
    LISTEN_OPEN_MS = 1000,
    LISTEN_LOOK_MS = 100,    /* how soon a stop is noticed */
    LISTEN_PING_MS = 1000,   /* after this much silence, send a ping */
    LISTEN_SILENT_MS = 3000, /* then the connection is dead */
    LISTEN_PAUSE_MIN_MS = 20,
    LISTEN_PAUSE_MAX_MS = 500,
};

void redis_listen_init(struct redis_listen *subscriber, const struct redis_target *target,
                       const char *instance, const struct store *store)
{
    *subscriber = (struct redis_listen){.deaf = true, .store = store};
    redis_link_init(&subscriber->link, target);
    snprintf(subscriber->inbox, sizeof subscriber->inbox, REDIS_KEY "i:%s", instance);
}

uint64_t redis_addr_mark(const struct redis_addr *at)
{
    return str_hash(str_of(at->host)) * 31 + (uint64_t)at->port;
}

/* On the listener's thread. */
static void delivered(struct msg *msg)
{
    struct store_notice *notice = container_of(msg, struct store_notice, msg);

    notice->listener->notify(notice->listener, notice);
    free(notice);
}

static void post(struct redis_listen *subscriber, const struct store_notice *what)
{
    struct store_notice *notice = mem_zeroed(1, sizeof *notice + what->text.len);

    *notice = *what;
    notice->text.at = memcpy(notice + 1, what->text.len ? what->text.at : "", what->text.len);
    notice->msg.run = delivered;
    notice->listener = subscriber->listener;
    inbox_post(subscriber->listener->inbox, &notice->msg);
}

/* "GENERATION REST". A different generation is from another database or from before the store was
 * emptied. */
static bool is_ours(const struct redis_listen *subscriber, struct str *text)
{
    char generation[STATUS_TEXT_SIZE];

    status_text_get(&subscriber->generation, generation);
    return str_is(str_cut(text, ' '), generation);
}

/* "VERSION TIME NODE NODE ..." */
static void take_nodes(struct redis_listen *subscriber, struct str text)
{
    struct store_notice notice = {.kind = STORE_NOTICE_NODES};
    int64_t then_ms;

    if (!is_ours(subscriber, &text) || !str_int(str_cut(&text, ' '), &notice.seq) ||
        !str_int(str_cut(&text, ' '), &then_ms))
        return;
    notice.age_ms = clock_mono_ms() - store_mono_ms(subscriber->store, then_ms);
    notice.text = text;
    post(subscriber, &notice);
}

/* "INSTANCE LANE PRIORITY JOB", as written by lua/lane.lua. Our own are skipped: the verb's answer
 * has told us. */
static void take_lane(struct redis_listen *subscriber, struct str text)
{
    struct store_notice notice = {.kind = STORE_NOTICE_LANE};
    struct str lane, priority;
    uint64_t job;
    char own[STORE_NAME_TEXT + 1];
    char digits[64];

    snprintf(own, sizeof own, "%08x", (unsigned)subscriber->store->name);
    if (!is_ours(subscriber, &text) || str_is(str_cut(&text, ' '), own))
        return;
    lane = str_cut(&text, ' ');
    priority = str_cut(&text, ' ');
    if (lane.len != 16 || priority.len != 1 || !job_id_parse(text, &job))
        return;
    snprintf(digits, sizeof digits, STR_FMT " " STR_FMT " %" PRIx64, STR_ARG(lane),
             STR_ARG(priority), job);
    notice.text = str_of(digits);
    post(subscriber, &notice);
}

/* Passes the text on unchanged. */
static void take_own(struct redis_listen *subscriber, enum store_notice_kind kind, struct str text)
{
    if (is_ours(subscriber, &text))
        post(subscriber, &(struct store_notice){.kind = kind, .text = text});
}

/* {"message", channel, text}; anything else only shows that the connection is alive. */
static void take(struct redis_listen *subscriber, const redisReply *reply)
{
    struct str channel, text;

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3 ||
        !str_is(redis_text(reply->element[0]), "message"))
        return;
    channel = redis_text(reply->element[1]);
    text = redis_text(reply->element[2]);
    if (!text.len || atomic_load(&subscriber->stopping))
        return;
    if (str_is(channel, LISTEN_NODES))
        take_nodes(subscriber, text);
    else if (str_is(channel, LISTEN_LANES))
        take_lane(subscriber, text);
    else if (str_is(channel, LISTEN_KEYS))
        take_own(subscriber, STORE_NOTICE_KEY, text);
    else if (str_is(channel, LISTEN_RULES))
        take_own(subscriber, STORE_NOTICE_LIMITS, text);
    else if (!str_is(channel, LISTEN_ALL) || is_ours(subscriber, &text))
        post(subscriber, &(struct store_notice){.kind = STORE_NOTICE_MESSAGE, .text = text});
}

static bool send_command(struct redis_listen *subscriber, int count, const char **args)
{
    redisContext *context = subscriber->link.context;
    int done = 0;

    if (redisAppendCommandArgv(context, count, args, NULL) != REDIS_OK)
        return false;
    while (!done)
        if (redisBufferWrite(context, &done) != REDIS_OK)
            return false;
    return true;
}

/* Waits until the server has confirmed: from then on no message is missed. */
static bool subscribe(struct redis_listen *subscriber)
{
    const char *args[] = {"SUBSCRIBE",  LISTEN_NODES, LISTEN_LANES,     LISTEN_KEYS,
                          LISTEN_RULES, LISTEN_ALL,   subscriber->inbox};
    int64_t deadline_ms = clock_mono_ms() + LISTEN_OPEN_MS;

    if (!redis_link_open(&subscriber->link, deadline_ms) ||
        !send_command(subscriber, COUNT_OF(args), args))
        return false;
    for (size_t i = 1; i < COUNT_OF(args); i++) {
        redisReply *reply = redis_receive(&subscriber->link, subscriber->link.context, deadline_ms);
        bool ok = reply && reply->type == REDIS_REPLY_ARRAY;

        freeReplyObject(reply);
        if (!ok)
            return false;
    }
    post(subscriber, &(struct store_notice){.kind = STORE_NOTICE_GAP});
    return true;
}

/* Called after a moment of silence. False: the connection is dead. */
static bool is_there(struct redis_listen *subscriber, int64_t last_ms, int64_t *pinged_ms)
{
    const char *ping[] = {"PING"};
    int64_t now_ms = clock_mono_ms();
    uint64_t master = atomic_load(&subscriber->master);

    /* If the store moved, reconnect to its new server: publishers there count the subscribers
     * there. */
    if (subscriber->link.context->err || now_ms - last_ms > LISTEN_SILENT_MS ||
        (master != 0 && master != redis_addr_mark(&subscriber->link.at)))
        return false;
    if (now_ms - last_ms < LISTEN_PING_MS || now_ms - *pinged_ms < LISTEN_PING_MS)
        return true;
    *pinged_ms = now_ms;
    return send_command(subscriber, 1, ping);
}

/* Receives until the connection is lost. */
static void listen(struct redis_listen *subscriber)
{
    int64_t last_ms = clock_mono_ms();
    int64_t pinged_ms = last_ms;

    while (!atomic_load(&subscriber->stopping)) {
        redisReply *reply = redis_receive(&subscriber->link, subscriber->link.context,
                                          clock_mono_ms() + LISTEN_LOOK_MS);

        if (!reply && !is_there(subscriber, last_ms, &pinged_ms))
            return;
        if (!reply)
            continue;
        last_ms = clock_mono_ms();
        take(subscriber, reply);
        freeReplyObject(reply);
    }
}

static void *listen_thread(void *arg)
{
    struct redis_listen *subscriber = arg;
    int64_t pause_ms = LISTEN_PAUSE_MIN_MS;

    while (!atomic_load(&subscriber->stopping)) {
        if (subscribe(subscriber)) {
            pause_ms = LISTEN_PAUSE_MIN_MS;
            atomic_store_explicit(&subscriber->deaf, false, memory_order_relaxed);
            listen(subscriber);
            atomic_store_explicit(&subscriber->deaf, true, memory_order_relaxed);
        }
        redis_link_close(&subscriber->link);
        if (!atomic_load(&subscriber->stopping))
            poll(NULL, 0, (int)pause_ms);
        pause_ms = pause_ms * 2 < LISTEN_PAUSE_MAX_MS ? pause_ms * 2 : LISTEN_PAUSE_MAX_MS;
    }
    return NULL;
}

bool redis_listen_start(struct redis_listen *subscriber, struct store_listener *listener)
{
    assert(!subscriber->started);
    subscriber->listener = listener;
    subscriber->started =
        work_queue_start(&subscriber->work_queue, "berth-listen", listen_thread, subscriber);
    return subscriber->started;
}

void redis_listen_stop(struct redis_listen *subscriber)
{
    atomic_store(&subscriber->stopping, true);
    if (subscriber->started)
        work_queue_join(&subscriber->work_queue);
    subscriber->started = false;
    redis_link_close(&subscriber->link);
}
