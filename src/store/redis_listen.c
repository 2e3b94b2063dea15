/* Subscribed: to changes of nodes, to new first jobs of lanes, to what is for all instances, and to
 * what is for us. */
#include "store/redis_listen.h"

#include "base/mem.h"

#include <assert.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EARS_NODES REDIS_KEY "ev"
#define EARS_LANES REDIS_KEY "first"
#define EARS_ALL   REDIS_KEY "all"

enum {
    EARS_OPEN_MS = 1000,
    EARS_LOOK_MS = 100,    /* how soon a stop is noticed */
    EARS_PING_MS = 1000,   /* silent so long: is anybody there? */
    EARS_SILENT_MS = 3000, /* nobody is */
    EARS_PAUSE_MIN_MS = 20,
    EARS_PAUSE_MAX_MS = 500,
};

void redis_ears_init(struct redis_ears *ears, const struct redis_target *target,
                     const char *instance, const struct store *store)
{
    *ears = (struct redis_ears){.deaf = true, .store = store};
    redis_link_init(&ears->link, target);
    snprintf(ears->inbox, sizeof ears->inbox, REDIS_KEY "i:%s", instance);
}

uint64_t redis_addr_mark(const struct redis_addr *at)
{
    return str_hash(str_of(at->host)) * 31 + (uint64_t)at->port;
}

/* On the listener's thread. */
static void heard(struct msg *msg)
{
    struct store_word *word = container_of(msg, struct store_word, msg);

    word->ear->hear(word->ear, word);
    free(word);
}

static void post(struct redis_ears *ears, const struct store_word *what)
{
    struct store_word *word = mem_zeroed(1, sizeof *word + what->text.len);

    *word = *what;
    word->text.at = memcpy(word + 1, what->text.len ? what->text.at : "", what->text.len);
    word->msg.run = heard;
    word->ear = ears->ear;
    inbox_post(ears->ear->inbox, &word->msg);
}

/* "GENERATION REST". Another one is another database's, or of a store that was emptied. */
static bool is_ours(const struct redis_ears *ears, struct str *text)
{
    char generation[TEXTBOX_SIZE];

    textbox_get(&ears->generation, generation);
    return str_is(str_cut(text, ' '), generation);
}

/* "VERSION TIME NODE NODE ..." */
static void hear_nodes(struct redis_ears *ears, struct str text)
{
    struct store_word word = {.kind = STORE_WORD_NODES};
    int64_t then_ms;

    if (!is_ours(ears, &text) || !str_int(str_cut(&text, ' '), &word.seq) ||
        !str_int(str_cut(&text, ' '), &then_ms))
        return;
    word.age_ms = clock_mono_ms() - store_mono_ms(ears->store, then_ms);
    word.text = text;
    post(ears, &word);
}

/* "INSTANCE LANE PRIORITY JOB", as lua/lane.lua writes it: the job by its name. Whoever put it
 * there was answered. */
static void hear_lane(struct redis_ears *ears, struct str text)
{
    struct store_word word = {.kind = STORE_WORD_LANE};
    struct str lane, priority;
    uint64_t job;
    char own[STORE_NAME_TEXT + 1];
    char digits[64];

    snprintf(own, sizeof own, "%08x", (unsigned)ears->store->name);
    if (!is_ours(ears, &text) || str_is(str_cut(&text, ' '), own))
        return;
    lane = str_cut(&text, ' ');
    priority = str_cut(&text, ' ');
    if (lane.len != 16 || priority.len != 1 || !job_id_parse(text, &job))
        return;
    snprintf(digits, sizeof digits, STR_FMT " " STR_FMT " %" PRIx64, STR_ARG(lane),
             STR_ARG(priority), job);
    word.text = str_of(digits);
    post(ears, &word);
}

/* {"message", channel, text}; all else only shows that somebody is there. */
static void take(struct redis_ears *ears, const redisReply *reply)
{
    struct str channel, text;

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3 ||
        !str_is(redis_text(reply->element[0]), "message"))
        return;
    channel = redis_text(reply->element[1]);
    text = redis_text(reply->element[2]);
    if (!text.len || atomic_load(&ears->stopping))
        return;
    if (str_is(channel, EARS_NODES))
        hear_nodes(ears, text);
    else if (str_is(channel, EARS_LANES))
        hear_lane(ears, text);
    else if (!str_is(channel, EARS_ALL) || is_ours(ears, &text))
        post(ears, &(struct store_word){.kind = STORE_WORD_TOLD, .text = text});
}

static bool say(struct redis_ears *ears, int count, const char **words)
{
    redisContext *context = ears->link.context;
    int done = 0;

    if (redisAppendCommandArgv(context, count, words, NULL) != REDIS_OK)
        return false;
    while (!done)
        if (redisBufferWrite(context, &done) != REDIS_OK)
            return false;
    return true;
}

/* Not before the server has confirmed it: what is said from then on is heard. */
static bool subscribe(struct redis_ears *ears)
{
    const char *words[] = {"SUBSCRIBE", EARS_NODES, EARS_LANES, EARS_ALL, ears->inbox};
    int64_t deadline_ms = clock_mono_ms() + EARS_OPEN_MS;

    if (!redis_link_open(&ears->link, deadline_ms) || !say(ears, COUNT_OF(words), words))
        return false;
    for (size_t i = 1; i < COUNT_OF(words); i++) {
        redisReply *reply = redis_receive(&ears->link, ears->link.context, deadline_ms);
        bool ok = reply && reply->type == REDIS_REPLY_ARRAY;

        if (reply)
            freeReplyObject(reply);
        if (!ok)
            return false;
    }
    post(ears, &(struct store_word){.kind = STORE_WORD_GAP});
    return true;
}

/* A store that moved is followed: who publishes there counts who listens there. */
static bool is_right_place(const struct redis_ears *ears)
{
    uint64_t master = atomic_load(&ears->master);

    return master == 0 || master == redis_addr_mark(&ears->link.at);
}

/* Nothing came for a moment. False: nobody is there any more. */
static bool is_there(struct redis_ears *ears, int64_t last_ms, int64_t *pinged_ms)
{
    const char *ping[] = {"PING"};
    int64_t now_ms = clock_mono_ms();

    if (ears->link.context->err || now_ms - last_ms > EARS_SILENT_MS || !is_right_place(ears))
        return false;
    if (now_ms - last_ms < EARS_PING_MS || now_ms - *pinged_ms < EARS_PING_MS)
        return true;
    *pinged_ms = now_ms;
    return say(ears, 1, ping);
}

/* Until the connection is gone. */
static void listen(struct redis_ears *ears)
{
    int64_t last_ms = clock_mono_ms();
    int64_t pinged_ms = last_ms;

    while (!atomic_load(&ears->stopping)) {
        redisReply *reply =
            redis_receive(&ears->link, ears->link.context, clock_mono_ms() + EARS_LOOK_MS);

        if (!reply && !is_there(ears, last_ms, &pinged_ms))
            return;
        if (!reply)
            continue;
        last_ms = clock_mono_ms();
        take(ears, reply);
        freeReplyObject(reply);
    }
}

static void *ears_thread(void *arg)
{
    struct redis_ears *ears = arg;
    int64_t pause_ms = EARS_PAUSE_MIN_MS;

    while (!atomic_load(&ears->stopping)) {
        if (subscribe(ears)) {
            pause_ms = EARS_PAUSE_MIN_MS;
            atomic_store_explicit(&ears->deaf, false, memory_order_relaxed);
            listen(ears);
            atomic_store_explicit(&ears->deaf, true, memory_order_relaxed);
        }
        redis_link_close(&ears->link);
        if (!atomic_load(&ears->stopping))
            poll(NULL, 0, (int)pause_ms);
        pause_ms = pause_ms * 2 < EARS_PAUSE_MAX_MS ? pause_ms * 2 : EARS_PAUSE_MAX_MS;
    }
    return NULL;
}

bool redis_ears_start(struct redis_ears *ears, struct store_ear *ear)
{
    assert(!ears->started);
    ears->ear = ear;
    ears->started = desk_start(&ears->desk, "berth-ears", ears_thread, ears);
    return ears->started;
}

void redis_ears_stop(struct redis_ears *ears)
{
    atomic_store(&ears->stopping, true);
    if (ears->started)
        desk_join(&ears->desk);
    ears->started = false;
    redis_link_close(&ears->link);
}
