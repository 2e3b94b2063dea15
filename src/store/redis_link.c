/* Connections with deadlines: the socket never blocks, poll() waits. */
#include "store/redis_link.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

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

/* False: the time is over, or poll itself failed. What is there already is taken, however late we
 * look: it may be we who were stopped. */
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

redisContext *redis_dial(struct redis_link *link, const struct redis_addr *to, int64_t deadline_ms)
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

redisReply *redis_exchange(struct redis_link *link, redisContext *context,
                           const struct redis_args *args, int64_t deadline_ms)
{
    if (redisAppendCommandArgv(context, args->count, args->texts, args->lens) != REDIS_OK ||
        !flush(link, context, deadline_ms))
        return NULL;
    link->left = true;
    return redis_receive(link, context, deadline_ms);
}

/* True: the command was answered, and not with an error. */
static bool accepted(struct redis_link *link, redisContext *context, const struct redis_args *args,
                     const char *what, int64_t deadline_ms)
{
    redisReply *reply = redis_exchange(link, context, args, deadline_ms);
    bool ok = reply && reply->type != REDIS_REPLY_ERROR;

    if (reply && !ok)
        redis_link_fail(link, what, reply->str);
    if (reply)
        freeReplyObject(reply);
    return ok;
}

bool redis_login(struct redis_link *link, redisContext *context, int64_t deadline_ms)
{
    const struct redis_target *target = link->target;
    const char *with_user[] = {"AUTH", target->user, target->password};
    const char *without[] = {"AUTH", target->password};
    struct redis_args args = {.count = *target->user ? 3 : 2,
                              .texts = *target->user ? with_user : without};
    char db[16];
    const char *select[] = {"SELECT", db};

    if (*target->password && !accepted(link, context, &args, "it refuses the login", deadline_ms))
        return false;
    if (target->db == 0)
        return true;
    snprintf(db, sizeof db, "%d", target->db);
    args = (struct redis_args){.count = 2, .texts = select};
    return accepted(link, context, &args, "it has no such database", deadline_ms);
}

/* A master answers ROLE with "master"; who may not ask is believed. */
static bool is_master(struct redis_link *link, redisContext *context, int64_t deadline_ms)
{
    const char *words[] = {"ROLE"};
    struct redis_args args = {.count = 1, .texts = words};
    redisReply *reply = redis_exchange(link, context, &args, deadline_ms);
    bool ok;

    if (!reply)
        return false;
    ok = reply->type != REDIS_REPLY_ARRAY || reply->elements == 0 ||
         str_is(redis_text(reply->element[0]), "master");
    freeReplyObject(reply);
    return ok || redis_link_fail(link, "it is a replica, not a master", NULL);
}

/* "run_id:0123...": who may not ask knows it by its address. False: it went away. */
static bool learn_master(struct redis_link *link, redisContext *context,
                         const struct redis_addr *at, int64_t deadline_ms)
{
    static const char name[] = "run_id:";
    const char *words[] = {"INFO", "server"};
    struct redis_args args = {.count = 2, .texts = words};
    redisReply *reply = redis_exchange(link, context, &args, deadline_ms);
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

bool redis_connect(struct redis_link *link, const struct redis_addr *to, int64_t deadline_ms)
{
    redisContext *context = redis_dial(link, to, deadline_ms);

    redis_link_close(link);
    if (!context)
        return false;
    if (!redis_login(link, context, deadline_ms) || !is_master(link, context, deadline_ms) ||
        !learn_master(link, context, to, deadline_ms)) {
        redisFree(context);
        return false;
    }
    link->at = *to;
    link->context = context;
    return true;
}

bool redis_link_open(struct redis_link *link, int64_t deadline_ms)
{
    struct redis_addr to = link->at;

    if (link->context)
        return true;
    if (!link->moved && !redis_route_find(link, &to, deadline_ms))
        return false;
    link->moved = false; /* if it is not there, ask again */
    return redis_connect(link, &to, deadline_ms);
}

/* Nothing was asked, so whatever is there to be read is its end: found out before a command leaves
 * in vain. */
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
        link->left = false; /* what was said to find the server is not the command */
        if (!is_open) {
            /* Whoever was moved here is found again, as long as there is time; each look asks all
             * servers, who may have enough to do. */
            if (clock_mono_ms() + pause_ms >= deadline_ms || link->target->kind == REDIS_SINGLE)
                return NULL;
            poll(NULL, 0, (int)(pause_ms + rnd_below(&link->rnd, pause_ms)));
            pause_ms = pause_ms * 2 < LOOK_MAX_MS ? pause_ms * 2 : LOOK_MAX_MS;
            continue;
        }
        /* What is known here was learnt from another: the caller must know before it goes on. */
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
        if (reply)
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

/* One after the other, as often as it takes to find the server. */
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
    size_t first = link->context && !has_ended(link->context) ? 0 : 1; /* that one connects */
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
            /* It moved, or does not answer now. All again in their order: what is to be read first
             * must not be younger than the rest. */
            free_replies(ret_replies, is_open ? count : first);
            return call_each(link, args, count, timeout_ms, ret_replies);
        }
    return true;
}
