/* Where the store's keys are: Sentinels and clusters are asked, redirections followed. All our keys
 * share one hash tag and so one slot: a cluster is one master at a time, with others to take over.
 */
#include "store/redis_link.h"

#include <assert.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

enum { PAUSE_MS = 5, PAUSE_JITTER_MS = 20 };

static redisReply *ask_at(struct redis_link *link, redisContext *context, int count,
                          const char **words, int64_t deadline_ms)
{
    struct redis_args args = {.count = count, .texts = words};

    return redis_exchange(link, context, &args, deadline_ms);
}

static bool read_addr(struct redis_link *link, struct str host, struct str port,
                      const struct redis_addr *asked, struct redis_addr *ret_addr)
{
    int64_t number;

    /* A server that does not know its own address leaves it out: it is where we asked. */
    if (host.len == 0 || str_is(host, "?"))
        host = str_of(asked->host);
    if (!str_int(port, &number) || number < 1 || number > 65535)
        return redis_link_fail(link, "the address of the master cannot be read", NULL);
    ret_addr->port = (int)number;
    return str_copy(host, ret_addr->host, sizeof ret_addr->host) ||
           redis_link_fail(link, "the address of the master cannot be read", NULL);
}

static bool ask_sentinel(struct redis_link *link, redisContext *context,
                         const struct redis_addr *asked, struct redis_addr *ret_addr,
                         int64_t deadline_ms)
{
    const char *words[] = {"SENTINEL", "get-master-addr-by-name", link->target->master};
    redisReply *reply = ask_at(link, context, 3, words, deadline_ms);
    bool ok = false;

    if (reply && reply->type == REDIS_REPLY_ARRAY && reply->elements == 2)
        ok = read_addr(link, redis_text(reply->element[0]), redis_text(reply->element[1]), asked,
                       ret_addr);
    else if (reply)
        redis_link_fail(link, "the Sentinel knows no such master",
                        reply->type == REDIS_REPLY_ERROR ? reply->str : link->target->master);
    if (reply)
        freeReplyObject(reply);
    return ok;
}

static bool read_slots(struct redis_link *link, const redisReply *slots, int64_t slot,
                       const struct redis_addr *asked, struct redis_addr *ret_addr)
{
    for (size_t i = 0; i < slots->elements; i++) {
        const redisReply *range = slots->element[i];
        const redisReply *master;
        char port[16];

        if (range->type != REDIS_REPLY_ARRAY || range->elements < 3 ||
            range->element[0]->integer > slot || range->element[1]->integer < slot)
            continue;
        master = range->element[2];
        if (master->type != REDIS_REPLY_ARRAY || master->elements < 2)
            continue;
        snprintf(port, sizeof port, "%lld", master->element[1]->integer);
        return read_addr(link, redis_text(master->element[0]), str_of(port), asked, ret_addr);
    }
    return redis_link_fail(link, "no cluster node owns the slot of the store", NULL);
}

static bool ask_cluster(struct redis_link *link, redisContext *context,
                        const struct redis_addr *asked, struct redis_addr *ret_addr,
                        int64_t deadline_ms)
{
    const char *key_words[] = {"CLUSTER", "KEYSLOT", REDIS_KEY "n"};
    const char *slot_words[] = {"CLUSTER", "SLOTS"};
    redisReply *key = ask_at(link, context, 3, key_words, deadline_ms);
    redisReply *slots = key ? ask_at(link, context, 2, slot_words, deadline_ms) : NULL;
    bool ok = false;

    if (slots && slots->type == REDIS_REPLY_ARRAY && key->type == REDIS_REPLY_INTEGER)
        ok = read_slots(link, slots, key->integer, asked, ret_addr);
    else if (slots)
        redis_link_fail(link, "it is not a cluster",
                        slots->type == REDIS_REPLY_ERROR ? slots->str : NULL);
    if (key)
        freeReplyObject(key);
    if (slots)
        freeReplyObject(slots);
    return ok;
}

/* A login at a Sentinel is its own affair: only the servers behind it are logged in to. */
static bool ask_one(struct redis_link *link, const struct redis_addr *asked,
                    struct redis_addr *ret_addr, int64_t deadline_ms)
{
    redisContext *context = redis_dial(link, asked, deadline_ms);
    bool ok;

    if (!context)
        return false;
    if (link->target->kind == REDIS_SENTINEL)
        ok = ask_sentinel(link, context, asked, ret_addr, deadline_ms);
    else
        ok = redis_login(link, context, deadline_ms) &&
             ask_cluster(link, context, asked, ret_addr, deadline_ms);
    redisFree(context);
    return ok;
}

bool redis_route_find(struct redis_link *link, struct redis_addr *ret_addr, int64_t deadline_ms)
{
    const struct redis_target *target = link->target;
    size_t first = rnd_below(&link->rnd, (uint32_t)target->count);

    assert(target->count > 0);
    if (target->kind == REDIS_SINGLE) {
        *ret_addr = target->addrs[0];
        return true;
    }
    for (size_t i = 0; i < target->count; i++) {
        /* One that hangs must not use up the time of the others. */
        int64_t now_ms = clock_mono_ms();
        int64_t share_ms = (deadline_ms - now_ms) / (int64_t)(target->count - i);

        if (ask_one(link, &target->addrs[(first + i) % target->count], ret_addr, now_ms + share_ms))
            return true;
    }
    return false;
}

/* "MOVED 1234 host:port" */
static bool read_redirection(struct redis_link *link, const char *text, struct redis_addr *ret_addr)
{
    struct str rest = str_of(text);
    struct str place;

    str_cut(&rest, ' ');
    str_cut(&rest, ' ');
    place = rest;
    for (size_t i = place.len; i > 0; i--)
        if (place.at[i - 1] == ':')
            return read_addr(link, (struct str){place.at, i - 1},
                             (struct str){place.at + i, place.len - i}, &link->at, ret_addr);
    return redis_link_fail(link, "a redirection cannot be read", text);
}

typedef enum redis_turn turn_rule(struct redis_link *link, const struct redis_args *args,
                                  redisReply **reply, int64_t deadline_ms);

static enum redis_turn pause_a_little(struct redis_link *link, int64_t deadline_ms)
{
    int64_t pause_ms = PAUSE_MS + rnd_below(&link->rnd, PAUSE_JITTER_MS);

    if (clock_mono_ms() + pause_ms >= deadline_ms)
        return REDIS_TAKE; /* the refusal is the answer */
    poll(NULL, 0, (int)pause_ms);
    return REDIS_AGAIN;
}

static enum redis_turn wait_and_again(struct redis_link *link, const struct redis_args *args,
                                      redisReply **reply, int64_t deadline_ms)
{
    return pause_a_little(link, deadline_ms);
}

/* It is not the master any more, or does not know: look for it anew. */
static enum redis_turn find_and_again(struct redis_link *link, const struct redis_args *args,
                                      redisReply **reply, int64_t deadline_ms)
{
    enum redis_turn turn = pause_a_little(link, deadline_ms);

    redis_link_close(link);
    link->moved = false;
    return turn;
}

static enum redis_turn follow(struct redis_link *link, const struct redis_args *args,
                              redisReply **reply, int64_t deadline_ms)
{
    struct redis_addr to;

    if (!read_redirection(link, (*reply)->str, &to))
        return REDIS_BROKEN;
    if (clock_mono_ms() >= deadline_ms)
        return REDIS_TAKE;
    redis_link_close(link);
    link->at = to;
    link->moved = true;
    return REDIS_AGAIN;
}

/* For this one command the other server is asked; ASKING and the command go out back to back. */
static enum redis_turn ask_there(struct redis_link *link, const struct redis_args *args,
                                 redisReply **reply, int64_t deadline_ms)
{
    const char *word = "ASKING";
    struct redis_addr to;
    redisContext *context;
    redisReply *first;
    redisReply *second = NULL;

    if (!read_redirection(link, (*reply)->str, &to))
        return REDIS_BROKEN;
    context = redis_dial(link, &to, deadline_ms);
    if (!context || !redis_login(link, context, deadline_ms)) {
        if (context)
            redisFree(context);
        return pause_a_little(link, deadline_ms);
    }
    redisAppendCommandArgv(context, 1, &word, NULL);
    first = redis_exchange(link, context, args, deadline_ms);
    if (first)
        second = redis_receive(link, context, deadline_ms);
    if (first)
        freeReplyObject(first);
    redisFree(context);
    if (!second)
        return REDIS_BROKEN; /* whether it was run there is unknown */
    freeReplyObject(*reply);
    *reply = second;
    return redis_is_error(second, "TRYAGAIN") || redis_is_error(second, "MOVED") ||
                   redis_is_error(second, "ASK")
               ? pause_a_little(link, deadline_ms)
               : REDIS_TAKE;
}

static const struct {
    const char *begins;
    turn_rule *rule;
} turns[] = {
    {"MOVED ", follow},           {"ASK ", ask_there},
    {"TRYAGAIN", wait_and_again}, {"LOADING", wait_and_again},
    {"BUSY ", wait_and_again},    {"CLUSTERDOWN", find_and_again},
    {"READONLY", find_and_again}, {"MASTERDOWN", find_and_again},
};

enum redis_turn redis_route_turn(struct redis_link *link, const struct redis_args *args,
                                 redisReply **reply, int64_t deadline_ms)
{
    for (size_t i = 0; i < COUNT_OF(turns); i++)
        if (redis_is_error(*reply, turns[i].begins))
            return turns[i].rule(link, args, reply, deadline_ms);
    return REDIS_TAKE;
}
