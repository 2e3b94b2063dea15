/* The library's name holds its newest format and a number made from its text: two builds that
 * differ never share functions, so old and new instances work side by side during an upgrade. */
#include "store/redis_session.h"

#include "store/format.h"
#include "store/redis_lua.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION_MIN = 7, TIMEOUT_DEFAULT_MS = 80 };

/* FNV-1a: unlike str_hash the same in every process, or each start would leave a library behind. */
static uint32_t mark_of(const char *text)
{
    uint32_t mark = 2166136261u;

    for (; *text; text++)
        mark = (mark ^ (unsigned char)*text) * 16777619u;
    return mark;
}

void redis_session_init(struct redis_session *session, const struct redis_target *target,
                        const struct store_config *config)
{
    *session = (struct redis_session){
        .test_clock = config->now_ms,
        .timeout_ms = config->timeout_ms > 0 ? config->timeout_ms : TIMEOUT_DEFAULT_MS,
    };
    redis_link_init(&session->link, target);
    while (!session->name)
        session->name = (uint32_t)rnd_next(&session->link.rnd);
    snprintf(session->instance, sizeof session->instance, "%08" PRIx32, session->name);
    snprintf(session->library, sizeof session->library, "berth_v%d_%08" PRIx32 "%s", FORMAT_NEWEST,
             mark_of(redis_lua), config->now_ms ? "_test" : "");
    snprintf(session->function, sizeof session->function, "%s_batch", session->library);
}

void redis_session_free(struct redis_session *session)
{
    redis_link_close(&session->link);
    wire_free(&session->wire);
}

/* Whoever asks for a library that is there already has what they want. */
static bool load_library(struct redis_session *session, int64_t deadline_ms)
{
    struct buf text = {0};
    const char *words[] = {"FUNCTION", "LOAD", NULL};
    size_t lens[] = {8, 4, 0};
    redisReply *reply;
    bool ok;

    buf_fmt(&text, "#!lua name=%s\nlocal LIBRARY, TEST_CLOCK = '%s', %s\n", session->library,
            session->library, session->test_clock ? "true" : "false");
    buf_str(&text, str_of(redis_lua));
    words[2] = text.at;
    lens[2] = text.len;
    reply = redis_link_call(&session->link,
                            &(struct redis_args){.count = 3, .texts = words, .lens = lens},
                            deadline_ms);
    buf_free(&text);
    ok = reply && (reply->type != REDIS_REPLY_ERROR || strstr(reply->str, "already exists"));
    if (reply && !ok)
        redis_link_fail(&session->link, "the function library is refused", reply->str);
    if (reply)
        freeReplyObject(reply);
    return ok;
}

void redis_session_begin(struct redis_session *session, const struct store_config *config,
                         unsigned number)
{
    int64_t now_ms = clock_mono_ms();
    struct wire_head head = {
        .function = session->function,
        .now_ms = session->test_clock ? session->test_clock() : 0,
        .instance = session->instance,
        .generation = session->next_generation,
        .known = session->generation,
        .number = number,
        .retention_ms = config->retention_ms,
        .breaker_threshold = config->breaker_threshold,
        .breaker_cooldown_ms = config->breaker_cooldown_ms,
        .moved = now_ms < session->moved_until_ms,
    };

    /* Whoever waits for the answer is told after timeout_ms that it did not come: from then on it
     * must not become true any more. */
    if (!session->test_clock && session->store_ms)
        head.late_ms = session->store_ms + (now_ms - session->mono_ms) + session->timeout_ms + 1;
    if (!*session->next_generation)
        snprintf(session->next_generation, sizeof session->next_generation, "%016" PRIx64,
                 rnd_next(&session->link.rnd));
    wire_begin(&session->wire, &head);
}

int64_t redis_session_bound(const struct redis_session *session, int64_t not_after_ms)
{
    int64_t bound_ms;

    if (!not_after_ms || session->test_clock || !session->store_ms)
        return not_after_ms;
    bound_ms = session->store_ms + (not_after_ms - session->mono_ms);
    return bound_ms > 0 ? bound_ms : 1;
}

/* Nothing was done: it came too late, or is in the name of another. */
static bool is_late(const redisReply *reply)
{
    return reply->type == REDIS_REPLY_ARRAY && reply->elements == 2;
}

/* Likewise: its records are not for us. */
static bool is_refused(const redisReply *reply)
{
    return reply->type == REDIS_REPLY_ARRAY && reply->elements == 3 &&
           str_is(redis_text(reply->element[1]), "FORMAT");
}

static bool is_missing(const redisReply *reply)
{
    return redis_is_error(reply, "ERR Function not found") || redis_is_error(reply, "NOSCRIPT");
}

/* What every batch tells beside its answers. */
static void take_news(struct redis_session *session, const redisReply *reply, int64_t sent_ms)
{
    session->store_ms = reply->element[0]->integer;
    session->mono_ms = sent_ms;
    if (is_late(reply))
        return;
    session->order = (uint64_t)reply->element[1]->integer;
    session->open_breakers = reply->element[3]->integer;
    session->lost = reply->element[4]->integer;
    session->offset_ms = reply->element[5]->integer;
    if (*session->generation && !str_is(redis_text(reply->element[2]), session->generation))
        session->emptied = true;
    str_copy(redis_text(reply->element[2]), session->generation, sizeof session->generation);
    session->next_generation[0] = '\0';
}

static bool is_whole(const struct redis_session *session, const redisReply *reply)
{
    size_t want = WIRE_ANSWERS + (size_t)session->wire.ops;

    if (reply->type != REDIS_REPLY_ARRAY || (!is_late(reply) && reply->elements < want))
        return false;
    return reply->element[0]->type == REDIS_REPLY_INTEGER &&
           (is_late(reply) || (reply->element[1]->type == REDIS_REPLY_INTEGER &&
                               reply->element[2]->type == REDIS_REPLY_STRING &&
                               reply->element[3]->type == REDIS_REPLY_INTEGER &&
                               reply->element[4]->type == REDIS_REPLY_INTEGER &&
                               reply->element[5]->type == REDIS_REPLY_INTEGER));
}

void redis_session_release(struct redis_session *session)
{
    session->link.bound[0] = '\0';
}

void redis_session_bind(struct redis_session *session)
{
    assert(session->link.master[0]);
    static_assert(sizeof session->master == sizeof session->link.bound, "it is copied as a whole");
    if (*session->master && strcmp(session->master, session->link.master) != 0) {
        session->moves++;
        session->moved_until_ms = clock_mono_ms() + REDIS_MOVED_MS;
    }
    memcpy(session->master, session->link.master, sizeof session->master);
    memcpy(session->link.bound, session->master, sizeof session->master);
}

/* Redis said no before the function began. Any other error may have come in the middle of it. */
static bool is_refusal(const redisReply *reply)
{
    static const char *const refusals[] = {
        "OOM ",       "READONLY",   "MISCONF", "NOAUTH", "LOADING",     "BUSY ",
        "MASTERDOWN", "NOREPLICAS", "MOVED ",  "ASK ",   "CLUSTERDOWN", "TRYAGAIN",
    };

    for (size_t i = 0; i < COUNT_OF(refusals); i++)
        if (redis_is_error(reply, refusals[i]))
            return true;
    return is_missing(reply);
}

redisReply *redis_session_call(struct redis_session *session, int64_t deadline_ms)
{
    struct redis_args args = wire_args(&session->wire);

    session->unknown = false;
    for (int again = 0;; again++) {
        int64_t sent_ms = clock_mono_ms();
        redisReply *reply = redis_link_call(&session->link, &args, deadline_ms);

        if (!reply) {
            session->unknown = session->link.left;
            return NULL;
        }
        if (again == 0 && is_missing(reply)) {
            freeReplyObject(reply);
            if (!load_library(session, deadline_ms))
                return NULL;
            continue;
        }
        if (is_refused(reply)) {
            format_explain(redis_text(reply->element[2]), session->link.why,
                           sizeof session->link.why);
        } else if (!is_whole(session, reply)) {
            session->unknown = !is_refusal(reply);
            redis_link_fail(&session->link, "a call is refused",
                            reply->type == REDIS_REPLY_ERROR ? reply->str
                                                             : "not an answer of ours");
        } else {
            take_news(session, reply, sent_ms);
            if (!is_late(reply))
                return reply;
            redis_link_fail(&session->link,
                            str_is(redis_text(reply->element[1]), "NUMBER")
                                ? "our number is another's since Redis was emptied"
                                : "a call came too late",
                            NULL);
        }
        freeReplyObject(reply);
        return NULL;
    }
}

/* "redis_version:7.0.15" */
static int major_version(struct str info)
{
    static const char name[] = "redis_version:";
    const char *at = memmem(info.at, info.len, name, sizeof name - 1);

    return at ? atoi(at + sizeof name - 1) : 0;
}

static enum err check_version(struct redis_session *session, int64_t deadline_ms,
                              struct problem *why)
{
    redisReply *reply = redis_link_ask(&session->link, deadline_ms, "INFO", "server", NULL);
    int major = reply ? major_version(redis_text(reply)) : 0;

    if (reply)
        freeReplyObject(reply);
    if (!reply)
        return problem_set(why, ERR_IO, "store", "Redis does not answer: %s.", session->link.why);
    if (major && major < VERSION_MIN)
        return problem_set(why, ERR_BAD_CONFIG, "store",
                           "The store needs Redis %d or newer, this one is of version %d.",
                           VERSION_MIN, major);
    return ERR_OK;
}

/* A managed Redis may not tell; then nobody can say that it is wrong. */
static enum err check_eviction(struct redis_session *session, int64_t deadline_ms,
                               struct problem *why)
{
    redisReply *reply =
        redis_link_ask(&session->link, deadline_ms, "CONFIG", "GET", "maxmemory-policy", NULL);
    enum err err = ERR_OK;

    session->untold = !reply || reply->type != REDIS_REPLY_ARRAY || reply->elements != 2;
    if (!session->untold && !str_is(redis_text(reply->element[1]), "noeviction"))
        err = problem_set(why, ERR_BAD_CONFIG, "store",
                          "Redis may throw leases away: its maxmemory-policy is %.40s. Set it to "
                          "noeviction.",
                          reply->element[1]->str);
    if (reply)
        freeReplyObject(reply);
    return err;
}

enum err redis_session_check(struct redis_session *session, int64_t deadline_ms,
                             struct problem *why)
{
    enum err err;

    if (!redis_link_open(&session->link, deadline_ms))
        return problem_set(why, ERR_IO, "store", "The store in Redis cannot be reached: %s.",
                           session->link.why);
    err = check_version(session, deadline_ms, why);
    return err ? err : check_eviction(session, deadline_ms, why);
}
