/* A dump of a store in Redis: reads only, page by page. */
#include "store/dump.h"
#include "store/redis_read.h"
#include "store/redis_wire.h"

#include "base/clock.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { DUMP_MS = 30000 /* for each answer */, PAGE = 500 };

struct dump {
    struct redis_link link;
    struct arena arena;
    struct jsonw *w;
    size_t max;
    size_t left_out;   /* jobs and sessions there was no room for, at least */
    int64_t offset_ms; /* of the store's time before its steady clock */
};

static void write_nodes(struct dump *dump, const struct store_op *op)
{
    jsonw_key(dump->w, "nodes");
    jsonw_arr(dump->w);
    for (size_t i = 0; i < op->u.nodes.count; i++)
        dump_node(dump->w, &op->u.nodes.items[i]);
    jsonw_end_arr(dump->w);
}

static bool dump_nodes(struct dump *dump)
{
    struct store_op op = {.verb = STORE_NODES, .arena = &dump->arena};

    if (!redis_read_run(&dump->link, &op, DUMP_MS, dump->offset_ms))
        return false;
    write_nodes(dump, &op);
    return true;
}

static bool read_offset(struct dump *dump)
{
    struct redis_read read = {.link = &dump->link, .timeout_ms = DUMP_MS};
    redisReply *reply = redis_link_ask(&dump->link, redis_read_due_ms(&read), "HMGET",
                                       REDIS_KEY "meta", "state", "format", NULL);
    struct wire_state state;
    bool ok = reply && redis_read_state(&read, reply, &state);

    if (ok)
        dump->offset_ms = state.offset_ms;
    if (reply)
        freeReplyObject(reply);
    return ok;
}

/* Newest first. The leases among them are what dump_job leaves out. */
static bool dump_jobs(struct dump *dump)
{
    struct store_op op = {.verb = STORE_JOB_LIST, .arena = &dump->arena};
    struct store_head *heads = arena_array(&dump->arena, struct store_head, dump->max);
    size_t count = 0;
    uint64_t before = 0;

    do {
        op.u.list.max = dump->max - count < PAGE ? dump->max - count : PAGE;
        op.u.list.before = before;
        if (!redis_read_run(&dump->link, &op, DUMP_MS, dump->offset_ms))
            return false;
        for (size_t i = 0; i < op.u.list.count; i++)
            heads[count++] = op.u.list.items[i].head;
        before = op.u.list.next;
    } while (before && count < dump->max);
    dump->left_out += before != 0;
    jsonw_key(dump->w, "leases");
    jsonw_arr(dump->w);
    for (size_t i = 0; i < count; i++)
        if (heads[i].lease != LEASE_NONE)
            dump_lease(dump->w, &heads[i]);
    jsonw_end_arr(dump->w);
    jsonw_key(dump->w, "jobs");
    jsonw_arr(dump->w);
    for (size_t i = 0; i < count; i++)
        dump_job(dump->w, &heads[i]);
    jsonw_end_arr(dump->w);
    return true;
}

static void write_session(struct dump *dump, struct str key)
{
    struct store_op op = {.verb = STORE_SESSION_GET, .arena = &dump->arena};

    op.u.session.key = key;
    if (!redis_read_run(&dump->link, &op, DUMP_MS, dump->offset_ms) || op.err)
        return;
    jsonw_obj(dump->w);
    jsonw_kstr(dump->w, "session_id", key);
    jsonw_kstr(dump->w, "preferred_pool", op.u.session.preferred_pool);
    jsonw_kstr(dump->w, "lang_pair", op.u.session.lang_pair);
    jsonw_kint(dump->w, "version", op.u.session.version);
    jsonw_kint(dump->w, "updated_ms", op.u.session.updated_ms);
    jsonw_end_obj(dump->w);
}

static bool dump_sessions(struct dump *dump)
{
    static const char prefix[] = REDIS_KEY "s:";
    char cursor[32] = "0";
    size_t count = 0;

    jsonw_key(dump->w, "sessions");
    jsonw_arr(dump->w);
    do {
        redisReply *reply = redis_link_ask(&dump->link, clock_mono_ms() + DUMP_MS, "SCAN", cursor,
                                           "MATCH", REDIS_KEY "s:*", "COUNT", "1000", NULL);
        bool page = reply && reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 &&
                    reply->element[1]->type == REDIS_REPLY_ARRAY &&
                    str_copy(redis_text(reply->element[0]), cursor, sizeof cursor);

        for (size_t i = 0; page && i < reply->element[1]->elements; i++) {
            struct str key = redis_text(reply->element[1]->element[i]);

            if (count == dump->max || key.len <= sizeof prefix - 1) {
                dump->left_out++;
                continue;
            }
            key.at += sizeof prefix - 1;
            key.len -= sizeof prefix - 1;
            write_session(dump, arena_str(&dump->arena, key));
            count++;
        }
        if (reply)
            freeReplyObject(reply);
        if (!page)
            return redis_link_fail(&dump->link, "list sessions", NULL);
    } while (strcmp(cursor, "0") != 0);
    jsonw_end_arr(dump->w);
    return true;
}

/* "state,failures,opened,changed,probe", under "node|type": as lua/breaker.lua writes it. */
static void write_breaker(struct dump *dump, struct str key, struct str text)
{
    int64_t values[3];
    struct store_breaker breaker = {.node = str_cut(&key, '|'), .type = key};

    for (size_t i = 0; i < COUNT_OF(values); i++)
        if (!str_int(str_cut(&text, ','), &values[i]))
            return;
    if (values[0] < 0 || values[0] >= BREAKER_STATE_COUNT)
        return;
    breaker.breaker.state = (enum breaker_state)values[0];
    breaker.breaker.failures = (int32_t)values[1];
    breaker.breaker.opened_ms = values[2];
    dump_breaker(dump->w, &breaker);
}

/* Few by their nature: BREAKERS_MAX of lua/breaker.lua at most. */
static bool dump_breakers(struct dump *dump)
{
    redisReply *reply = redis_link_ask(&dump->link, clock_mono_ms() + DUMP_MS, "HGETALL",
                                       REDIS_KEY "breakers", NULL);

    if (!reply || reply->type != REDIS_REPLY_ARRAY) {
        if (reply)
            freeReplyObject(reply);
        return redis_link_fail(&dump->link, "read the breakers", NULL);
    }
    jsonw_key(dump->w, "breakers");
    jsonw_arr(dump->w);
    for (size_t i = 0; i + 1 < reply->elements; i += 2)
        write_breaker(dump, redis_text(reply->element[i]), redis_text(reply->element[i + 1]));
    jsonw_end_arr(dump->w);
    freeReplyObject(reply);
    return true;
}

static bool dump_instances(struct dump *dump)
{
    struct store_op op = {.verb = STORE_PEERS, .arena = &dump->arena};

    if (!redis_read_run(&dump->link, &op, DUMP_MS, dump->offset_ms))
        return false;
    jsonw_key(dump->w, "instances");
    jsonw_arr(dump->w);
    for (size_t i = 0; i < op.u.peers.count; i++) {
        const struct store_peer *peer = &op.u.peers.items[i];

        jsonw_obj(dump->w);
        jsonw_kint(dump->w, "number", peer->number);
        jsonw_kstr(dump->w, "version", str_of(peer->version));
        jsonw_kint(dump->w, "silent_ms", peer->silent_ms);
        jsonw_end_obj(dump->w);
    }
    jsonw_end_arr(dump->w);
    return true;
}

enum err dump_redis(const char *url, size_t max, struct jsonw *w, struct problem *why)
{
    struct redis_target target;
    struct dump dump = {.w = w, .max = max};
    enum err err = redis_url_parse(url, &target, why);
    bool ok;

    if (err)
        return err;
    redis_link_init(&dump.link, &target);
    jsonw_obj(w);
    ok = redis_link_open(&dump.link, clock_mono_ms() + DUMP_MS) && read_offset(&dump) &&
         dump_nodes(&dump) && dump_jobs(&dump) && dump_sessions(&dump) && dump_breakers(&dump) &&
         dump_instances(&dump);
    if (ok) {
        jsonw_kbool(w, "more", dump.left_out > 0);
        jsonw_end_obj(w);
    } else {
        err = problem_set(why, ERR_IO, "store", "The store in Redis cannot be read: %s.",
                          dump.link.why);
    }
    redis_link_close(&dump.link);
    arena_free(&dump.arena);
    explicit_bzero(&target, sizeof target);
    return err;
}
