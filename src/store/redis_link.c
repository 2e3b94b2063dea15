/* Connections with deadlines: the socket never blocks, poll() waits. To find the store's keys,
 * Sentinels and clusters are asked and redirections followed. All our keys share one hash tag and
 * so one slot: at any time only one master of a cluster is used, with others to take over. */
#include "store/redis_link.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/str.h"

/* What to do about an error reply: it is the answer, or it was handled and the command must be sent
 * again. *reply may become the answer of another server. */
enum redis_turn { REDIS_TAKE, REDIS_AGAIN, REDIS_BROKEN };

/* --- a connection --- */

enum { WORDS_MAX = 16, LOOK_MIN_MS = 5, LOOK_MAX_MS = 160 };

void redis_link_init(struct redis_link *link, const struct redis_target *target)
{
    *link = (struct redis_link){.target = target};
    rnd_seed_os(&link->rnd);
}

void redis_link_close(struct redis_link *link)
{
    if (link->context)
        redisFree(link->context);
    link->context = NULL;
}

bool redis_link_fail(struct redis_link *link, const char *what, const char *detail)
{
    snprintf(link->why, sizeof link->why, "%s%s%.100s", what, detail && *detail ? ": " : "",
             detail ? detail : "");
    return false;
}

bool redis_is_error(const redisReply *reply, const char *begins)
{
    return reply && reply->type == REDIS_REPLY_ERROR &&
           (!begins || strncmp(reply->str, begins, strlen(begins)) == 0);
}

struct str redis_text(const redisReply *reply)
{
    if (!reply || (reply->type != REDIS_REPLY_STRING && reply->type != REDIS_REPLY_STATUS))
        return STR_NONE;
    return (struct str){.at = reply->str, .len = (size_t)reply->len};
}

/* False: the deadline passed, or poll() failed. Data that has already arrived is accepted however
 * late we look: it may be us who were stopped. */
static bool wait_for(int fd, short events, int64_t deadline_ms)
{
    struct pollfd poll_fd = {.fd = fd, .events = events};

    for (;;) {
        int64_t left_ms = deadline_ms - clock_mono_ms();
        int got = poll(&poll_fd, 1, left_ms < 0 ? 0 : left_ms < 60000 ? (int)left_ms : 60000);

        if (got > 0)
            return true;
        if (left_ms <= 0 || (got < 0 && errno != EINTR))
            return false;
    }
}

static redisContext *redis_dial(struct redis_link *link, const struct redis_addr *to,
                                int64_t deadline_ms)
{
    redisContext *context = redisConnectNonBlock(to->host, to->port);
    socklen_t size = sizeof(int);
    int failed = 0;

    if (!context || context->err) {
        redis_link_fail(link, "cannot connect", context ? context->errstr : "no memory");
        if (context)
            redisFree(context);
        return NULL;
    }
    fcntl(context->fd, F_SETFD, FD_CLOEXEC);
    if (!wait_for(context->fd, POLLOUT, deadline_ms))
        failed = ETIMEDOUT;
    else if (getsockopt(context->fd, SOL_SOCKET, SO_ERROR, &failed, &size))
        failed = errno;
    if (!failed)
        return context;
    redis_link_fail(link, "cannot connect", strerrordesc_np(failed));
    redisFree(context);
    return NULL;
}

static bool flush(struct redis_link *link, redisContext *context, int64_t deadline_ms)
{
    int done = 0;

    while (!done) {
        if (redisBufferWrite(context, &done) != REDIS_OK)
            return redis_link_fail(link, "cannot send", context->errstr);
        if (!done && !wait_for(context->fd, POLLOUT, deadline_ms))
            return redis_link_fail(link, "no answer in time", NULL);
    }
    return true;
}

redisReply *redis_receive(struct redis_link *link, redisContext *context, int64_t deadline_ms)
{
    void *reply = NULL;

    for (;;) {
        if (redisGetReplyFromReader(context, &reply) != REDIS_OK) {
            redis_link_fail(link, "no Redis is there", context->errstr);
            return NULL;
        }
        if (reply)
            return reply;
        if (!wait_for(context->fd, POLLIN, deadline_ms)) {
            redis_link_fail(link, "no answer in time", NULL);
            return NULL;
        }
        if (redisBufferRead(context) != REDIS_OK) {
            redis_link_fail(link, "the connection is gone", context->errstr);
            return NULL;
        }
    }
}

/* Sends one command and receives its reply, without following redirections. */
static redisReply *redis_exchange(struct redis_link *link, redisContext *context,
                                  const struct redis_args *args, int64_t deadline_ms)
{
    if (redisAppendCommandArgv(context, args->count, args->texts, args->lens) != REDIS_OK ||
        !flush(link, context, deadline_ms))
        return NULL;
    link->left = true;
    return redis_receive(link, context, deadline_ms);
}

/* The same, with the words of the command. */
static redisReply *ask_at(struct redis_link *link, redisContext *context, int count,
                          const char **words, int64_t deadline_ms)
{
    struct redis_args args = {.count = count, .texts = words};

    return redis_exchange(link, context, &args, deadline_ms);
}

/* True: the command was answered, and not with an error. */
static bool accepted(struct redis_link *link, redisContext *context, int count, const char **words,
                     const char *what, int64_t deadline_ms)
{
    redisReply *reply = ask_at(link, context, count, words, deadline_ms);
    bool ok = reply && reply->type != REDIS_REPLY_ERROR;

    if (reply && !ok)
        redis_link_fail(link, what, reply->str);
    freeReplyObject(reply);
    return ok;
}

static bool redis_login(struct redis_link *link, redisContext *context, int64_t deadline_ms)
{
    const struct redis_target *target = link->target;
    const char *with_user[] = {"AUTH", target->user, target->password};
    const char *without[] = {"AUTH", target->password};
    char db[16];
    const char *select[] = {"SELECT", db};

    if (*target->password &&
        !accepted(link, context, *target->user ? 3 : 2, *target->user ? with_user : without,
                  "it refuses the login", deadline_ms))
        return false;
    if (target->db == 0)
        return true;
    snprintf(db, sizeof db, "%d", target->db);
    return accepted(link, context, 2, select, "it has no such database", deadline_ms);
}

/* --- where the keys are --- */

enum { PAUSE_MS = 5, PAUSE_JITTER_MS = 20 };

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
    freeReplyObject(key);
    freeReplyObject(slots);
    return ok;
}

/* Finds the master. */
static bool redis_route_find(struct redis_link *link, struct redis_addr *ret_addr,
                             int64_t deadline_ms)
{
    const struct redis_target *target = link->target;
    size_t first = rnd_below(&link->rnd, (uint32_t)target->count);

    assert(target->count > 0);
    if (target->kind == REDIS_SINGLE) {
        *ret_addr = target->addrs[0];
        return true;
    }
    for (size_t i = 0; i < target->count; i++) {
        /* A server that hangs must not use up the time of the others. */
        int64_t now_ms = clock_mono_ms();
        int64_t share_ms = (deadline_ms - now_ms) / (int64_t)(target->count - i);

        const struct redis_addr *asked = &target->addrs[(first + i) % target->count];
        redisContext *context = redis_dial(link, asked, now_ms + share_ms);
        bool ok;

        if (!context)
            continue;
        /* We do not log in to Sentinels, only to the servers they name. */
        if (target->kind == REDIS_SENTINEL)
            ok = ask_sentinel(link, context, asked, ret_addr, now_ms + share_ms);
        else
            ok = redis_login(link, context, now_ms + share_ms) &&
                 ask_cluster(link, context, asked, ret_addr, now_ms + share_ms);
        redisFree(context);
        if (ok)
            return true;
    }
    return false;
}

/* "MOVED 1234 host:port" */
static bool read_redirection(struct redis_link *link, const char *text, struct redis_addr *ret_addr)
{
    struct str place = str_of(text);

    str_cut(&place, ' ');
    str_cut(&place, ' ');
    for (size_t i = place.len; i > 0; i--)
        if (place.at[i - 1] == ':')
            return read_addr(link, (struct str){place.at, i - 1},
                             (struct str){place.at + i, place.len - i}, &link->at, ret_addr);
    return redis_link_fail(link, "a redirection cannot be read", text);
}

typedef enum redis_turn turn_rule(struct redis_link *link, const struct redis_args *args,
                                  redisReply **reply, int64_t deadline_ms);

static enum redis_turn wait_and_again(struct redis_link *link, const struct redis_args *args,
                                      redisReply **reply, int64_t deadline_ms)
{
    int64_t pause_ms = PAUSE_MS + rnd_below(&link->rnd, PAUSE_JITTER_MS);

    if (clock_mono_ms() + pause_ms >= deadline_ms)
        return REDIS_TAKE; /* the refusal is the answer */
    poll(NULL, 0, (int)pause_ms);
    return REDIS_AGAIN;
}

/* The server is no longer the master, or cannot tell: find the master again. */
static enum redis_turn find_and_again(struct redis_link *link, const struct redis_args *args,
                                      redisReply **reply, int64_t deadline_ms)
{
    enum redis_turn turn = wait_and_again(link, args, reply, deadline_ms);

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

/* Sends this one command to the other server; ASKING and the command go out together. */
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
        return wait_and_again(link, args, reply, deadline_ms);
    }
    redisAppendCommandArgv(context, 1, &word, NULL);
    first = redis_exchange(link, context, args, deadline_ms);
    if (first)
        second = redis_receive(link, context, deadline_ms);
    freeReplyObject(first);
    redisFree(context);
    if (!second)
        return REDIS_BROKEN; /* whether it was executed there is unknown */
    freeReplyObject(*reply);
    *reply = second;
    return redis_is_error(second, "TRYAGAIN") || redis_is_error(second, "MOVED") ||
                   redis_is_error(second, "ASK")
               ? wait_and_again(link, args, reply, deadline_ms)
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

static enum redis_turn redis_route_turn(struct redis_link *link, const struct redis_args *args,
                                        redisReply **reply, int64_t deadline_ms)
{
    for (size_t i = 0; i < COUNT_OF(turns); i++)
        if (redis_is_error(*reply, turns[i].begins))
            return turns[i].rule(link, args, reply, deadline_ms);
    return REDIS_TAKE;
}

/* --- calls --- */

/* A master answers ROLE with "master"; if we may not ask, assume it is one. */
static bool is_master(struct redis_link *link, redisContext *context, int64_t deadline_ms)
{
    const char *words[] = {"ROLE"};
    redisReply *reply = ask_at(link, context, 1, words, deadline_ms);
    bool ok;

    if (!reply)
        return false;
    ok = reply->type != REDIS_REPLY_ARRAY || reply->elements == 0 ||
         str_is(redis_text(reply->element[0]), "master");
    freeReplyObject(reply);
    return ok || redis_link_fail(link, "it is a replica, not a master", NULL);
}

/* Reads "run_id:0123..."; if we may not ask, uses the address. False: the connection was lost. */
static bool learn_master(struct redis_link *link, redisContext *context,
                         const struct redis_addr *at, int64_t deadline_ms)
{
    static const char name[] = "run_id:";
    const char *words[] = {"INFO", "server"};
    redisReply *reply = ask_at(link, context, 2, words, deadline_ms);
    struct str info = redis_text(reply);
    const char *found = info.len ? memmem(info.at, info.len, name, sizeof name - 1) : NULL;

    if (!reply)
        return false;
    if (found)
        snprintf(link->master, sizeof link->master, "%.*s",
                 (int)strcspn(found + sizeof name - 1, "\r\n"), found + sizeof name - 1);
    else
        snprintf(link->master, sizeof link->master, "%.40s:%d", at->host, at->port);
    freeReplyObject(reply);
    return true;
}

bool redis_link_open(struct redis_link *link, int64_t deadline_ms)
{
    struct redis_addr to = link->at;
    redisContext *context;

    if (link->context)
        return true;
    if (!link->moved && !redis_route_find(link, &to, deadline_ms))
        return false;
    link->moved = false; /* if this address fails, ask again */
    context = redis_dial(link, &to, deadline_ms);
    if (!context)
        return false;
    if (!redis_login(link, context, deadline_ms) || !is_master(link, context, deadline_ms) ||
        !learn_master(link, context, &to, deadline_ms)) {
        redisFree(context);
        return false;
    }
    link->at = to;
    link->context = context;
    return true;
}

/* No reply is due, so anything readable is the end of the connection: detected before a command is
 * sent in vain. */
static bool has_ended(const redisContext *context)
{
    struct pollfd poll_fd = {.fd = context->fd, .events = POLLIN};

    return poll(&poll_fd, 1, 0) > 0;
}

redisReply *redis_link_call(struct redis_link *link, const struct redis_args *args,
                            int64_t deadline_ms)
{
    redisReply *reply = NULL;
    uint32_t pause_ms = LOOK_MIN_MS;

    assert(args->count > 0);
    for (enum redis_turn turn = REDIS_AGAIN; turn == REDIS_AGAIN;) {
        if (link->context && has_ended(link->context))
            redis_link_close(link);
        bool is_open = redis_link_open(link, deadline_ms);
        link->left = false; /* commands sent to find the server do not count */
        if (!is_open) {
            /* Keep looking for the server while there is time, with pauses: each lookup asks all
             * servers, which may be busy. */
            if (clock_mono_ms() + pause_ms >= deadline_ms || link->target->kind == REDIS_SINGLE)
                return NULL;
            poll(NULL, 0, (int)(pause_ms + rnd_below(&link->rnd, pause_ms)));
            pause_ms = pause_ms * 2 < LOOK_MAX_MS ? pause_ms * 2 : LOOK_MAX_MS;
            continue;
        }
        /* What the caller knows is from another server: it must find out before it goes on. */
        if (*link->bound && strcmp(link->bound, link->master) != 0) {
            redis_link_fail(link, "another server took over", link->master);
            return NULL;
        }
        reply = redis_exchange(link, link->context, args, deadline_ms);
        if (!reply) {
            redis_link_close(link);
            return NULL;
        }
        if (reply->type != REDIS_REPLY_ERROR)
            return reply;
        turn = redis_route_turn(link, args, &reply, deadline_ms);
        if (turn == REDIS_TAKE)
            return reply;
        freeReplyObject(reply);
        if (turn == REDIS_BROKEN) {
            redis_link_close(link);
            return NULL;
        }
    }
    return NULL;
}

redisReply *redis_link_ask(struct redis_link *link, int64_t deadline_ms, ...)
{
    const char *words[WORDS_MAX];
    struct redis_args args = {.texts = words};
    va_list list;

    va_start(list, deadline_ms);
    while ((words[args.count] = va_arg(list, const char *))) {
        args.count++;
        assert(args.count < WORDS_MAX);
    }
    va_end(list);
    return redis_link_call(link, &args, deadline_ms);
}

static void free_replies(redisReply **replies, size_t count)
{
    for (size_t i = 0; i < count; i++)
        freeReplyObject(replies[i]);
}

/* Makes the calls one by one, retrying until the server is found. */
static bool call_each(struct redis_link *link, const struct redis_args *args, size_t count,
                      int64_t timeout_ms, redisReply **ret_replies)
{
    for (size_t i = 0; i < count; i++) {
        ret_replies[i] = redis_link_call(link, &args[i], clock_mono_ms() + timeout_ms);
        if (!ret_replies[i]) {
            free_replies(ret_replies, i);
            return false;
        }
    }
    return true;
}

static bool exchange_all(struct redis_link *link, const struct redis_args *args, size_t count,
                         int64_t timeout_ms, redisReply **ret_replies)
{
    int64_t deadline_ms = clock_mono_ms() + timeout_ms;

    for (size_t i = 0; i < count; i++)
        if (redisAppendCommandArgv(link->context, args[i].count, args[i].texts, args[i].lens) !=
            REDIS_OK)
            return redis_link_fail(link, "cannot send", link->context->errstr);
    if (!flush(link, link->context, deadline_ms))
        return false;
    for (size_t i = 0; i < count; i++) {
        ret_replies[i] = redis_receive(link, link->context, deadline_ms);
        if (!ret_replies[i]) {
            free_replies(ret_replies, i);
            return false;
        }
        deadline_ms = clock_mono_ms() + timeout_ms;
    }
    return true;
}

bool redis_link_call_all(struct redis_link *link, const struct redis_args *args, size_t count,
                         int64_t timeout_ms, redisReply **ret_replies)
{
    size_t first = link->context && !has_ended(link->context) ? 0 : 1; /* the first call connects */
    bool is_open;

    assert(count > 0 && !*link->bound);
    if (!call_each(link, args, first, timeout_ms, ret_replies))
        return false;
    is_open = link->context != NULL;
    if (is_open &&
        !exchange_all(link, args + first, count - first, timeout_ms, ret_replies + first)) {
        free_replies(ret_replies, first);
        redis_link_close(link);
        return false;
    }
    for (size_t i = first; i < count; i++)
        if (!is_open || ret_replies[i]->type == REDIS_REPLY_ERROR) {
            /* The server moved or does not answer now. Repeat all in order: earlier reads must not
             * be newer than later ones. */
            free_replies(ret_replies, is_open ? count : first);
            return call_each(link, args, count, timeout_ms, ret_replies);
        }
    return true;
}

/* --- store URLs --- */

static const struct scheme {
    const char *name;
    enum redis_kind kind;
    int port; /* default port */
    const char *shape;
} schemes[] = {
    {"redis", REDIS_SINGLE, 6379, "redis://[user[:password]@]host:port/db"},
    {"redis-sentinel", REDIS_SENTINEL, 26379, "redis-sentinel://host:port,host:port/master"},
    {"redis-cluster", REDIS_CLUSTER, 6379, "redis-cluster://host:port,host:port"},
};

/* Copies and decodes %XX escapes; false if it does not fit or is malformed. */
static bool decode(struct str from, char *to, size_t size)
{
    size_t len = 0;

    for (size_t i = 0; i < from.len; i++) {
        char c = from.at[i];

        if (c == '%') {
            int high = i + 2 < from.len ? str_hex_digit(from.at[i + 1]) : -1;
            int low = i + 2 < from.len ? str_hex_digit(from.at[i + 2]) : -1;

            if (high < 0 || low < 0)
                return false;
            c = (char)(high * 16 + low);
            i += 2;
        }
        if (len + 1 >= size || c == '\0')
            return false;
        to[len++] = c;
    }
    to[len] = '\0';
    return true;
}

/* "host:port", "[::1]:6379"; `port` is the default. */
static bool redis_addr_parse(struct str text, int port, struct redis_addr *ret_addr)
{
    struct str host = text;
    struct str rest = STR_NONE;
    int64_t value = port;

    if (text.len && text.at[0] == '[') {
        rest = (struct str){text.at + 1, text.len - 1};
        host = str_cut(&rest, ']');
        if (!rest.at || (rest.len && rest.at[0] != ':'))
            return false;
        rest = rest.len ? (struct str){rest.at + 1, rest.len - 1} : STR_NONE;
    } else {
        rest = text;
        host = str_cut(&rest, ':');
    }
    if (rest.at && (!str_int(rest, &value) || value < 1 || value > 65535))
        return false;
    ret_addr->port = (int)value;
    return host.len > 0 && str_copy(host, ret_addr->host, sizeof ret_addr->host);
}

static enum err fail(struct problem *why, const struct scheme *scheme, const char *what)
{
    return problem_set(why, ERR_BAD_CONFIG, "store", "%s; a store URL looks like %s.", what,
                       scheme->shape);
}

static enum err read_login(struct str *rest, struct redis_target *target,
                           const struct scheme *scheme, struct problem *why)
{
    const char *at = rest->len ? memrchr(rest->at, '@', rest->len) : NULL;
    struct str login, user;

    if (!at) /* the last '@': a password may contain one */
        return ERR_OK;
    login = (struct str){rest->at, (size_t)(at - rest->at)};
    *rest = (struct str){at + 1, rest->len - login.len - 1};
    user = str_cut(&login, ':');
    if (!decode(user, target->user, sizeof target->user) ||
        !decode(login, target->password, sizeof target->password))
        return fail(why, scheme, "The user or the password of the store URL cannot be read");
    return ERR_OK;
}

static enum err read_addrs(struct str list, struct redis_target *target,
                           const struct scheme *scheme, struct problem *why)
{
    while (list.at) {
        struct str one = str_cut(&list, ',');

        if (target->count == REDIS_ADDRS_MAX)
            return fail(why, scheme, "The store URL names too many hosts");
        if (!redis_addr_parse(one, scheme->port, &target->addrs[target->count]))
            return fail(why, scheme, "The store URL names no host, or one with a wrong port");
        target->count++;
    }
    if (target->kind == REDIS_SINGLE && target->count > 1)
        return fail(why, scheme, "redis:// names one host");
    return ERR_OK;
}

/* What follows the hosts: a database number, or the master's name and optionally a number. */
static enum err read_path(struct str path, struct redis_target *target, const struct scheme *scheme,
                          struct problem *why)
{
    int64_t db = 0;

    if (target->kind == REDIS_SENTINEL) {
        struct str name = path.at ? str_cut(&path, '/') : STR_NONE;

        if (name.len == 0 || !decode(name, target->master, sizeof target->master))
            return fail(why, scheme, "The store URL must name the master the Sentinels watch");
    }
    if (path.len && (!str_int(path, &db) || db < 0 || db > 65535))
        return fail(why, scheme, "The database of the store URL is no number");
    if (db && target->kind == REDIS_CLUSTER)
        return fail(why, scheme, "A Redis Cluster has no database but 0");
    target->db = (int)db;
    return ERR_OK;
}

static enum err read_password(struct redis_target *target, struct problem *why)
{
    const char *text = getenv("BERTH_STORE_PASSWORD");
    const char *path = getenv("BERTH_STORE_PASSWORD_FILE");
    FILE *file;
    bool ok;

    if (*target->password)
        return ERR_OK;
    if (text && !str_copy(str_of(text), target->password, sizeof target->password))
        return problem_set(why, ERR_BAD_CONFIG, "store", "BERTH_STORE_PASSWORD is too long.");
    if (text || !path)
        return ERR_OK;
    file = fopen(path, "re");
    ok = file && fgets(target->password, sizeof target->password, file);
    if (file)
        fclose(file);
    if (!ok)
        return problem_set(why, ERR_BAD_CONFIG, "store",
                           "The password of the store cannot be read from %s.", path);
    target->password[strcspn(target->password, "\r\n")] = '\0';
    return ERR_OK;
}

enum err redis_url_parse(const char *url, struct redis_target *ret_target, struct problem *why)
{
    struct str rest = str_of(url);
    struct str name = str_cut(&rest, ':');
    struct redis_target target = {0};
    const struct scheme *scheme = NULL;
    struct str hosts;
    enum err err;

    for (size_t i = 0; i < COUNT_OF(schemes); i++)
        if (str_is(name, schemes[i].name))
            scheme = &schemes[i];
    assert(scheme);
    target.kind = scheme->kind;
    if (!rest.at || !str_starts(rest, STR("//")))
        return fail(why, scheme, "The store URL is not complete");
    rest = (struct str){rest.at + 2, rest.len - 2};
    err = read_login(&rest, &target, scheme, why);
    if (!err) {
        hosts = str_cut(&rest, '/');
        err = read_addrs(hosts, &target, scheme, why);
    }
    if (!err)
        err = read_path(rest, &target, scheme, why);
    if (!err)
        err = read_password(&target, why);
    if (!err && *target.user && !*target.password)
        err = fail(why, scheme, "A user needs a password, here or in BERTH_STORE_PASSWORD");
    if (!err)
        *ret_target = target;
    return err;
}
