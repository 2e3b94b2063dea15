/* `redis:`, `redis-sentinel:`, `redis-cluster:` - the store thread takes its whole inbox, sends it
 * as calls of one function (at most WIRE_OPS_MAX ops each), and answers. What queued up meanwhile
 * is the next batch; there is no timer. Two readers each have a thread and a connection: one for
 * reads of a single call, one for lists.
 *
 * A failed call answers its batch with ERR_UNKNOWN if it was sent and may have been executed, else
 * ERR_STORE_DOWN. Ops queued after it get ERR_STORE_DOWN, and every new op is refused at once until
 * a call works again. No decisions are made here.
 *
 * The function library's name contains its newest format and a hash of its text: different builds
 * never share functions, so old and new instances work side by side during an upgrade. */
#include "store/redis.h"

#include <assert.h>
#include <inttypes.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/metrics.h"
#include "model/cache.h"
#include "store/op_queue.h"
#include "store/record.h"
#include "store/redis_listen.h"
#include "store/redis_lua.h"
#include "store/redis_read.h"
#include "store/redis_wire.h"
#include "store/store.h"

struct reader {
    struct redis *redis;
    struct work_queue *work_queue; /* of the op queue */
    struct redis_link link;
};

struct redis {
    struct store store;
    struct store_config config; /* url, data_dir and version are not valid after the open */
    char version[STORE_VERSION_MAX + 1];
    int format; /* the newest we would write */
    struct redis_target target;
    struct op_queue op_queue;

    /* Any thread. */
    struct status_text detail;
    _Atomic bool policy_unknown; /* see redis.h */
    _Atomic unsigned moves;      /* likewise */
    _Atomic int64_t offset_ms;   /* likewise */
    _Atomic bool full;

    /* The store thread's. */
    struct redis_session session;
    struct degrade degrade;
    int64_t revive_ms; /* clock_mono_ms: when to try again */
    int64_t pause_ms;
    int64_t tidy_ms;
    int64_t purge_ms; /* not before tidy_ms unless there is more to purge */
    bool arrived;
    struct problem *why; /* while opening; then NULL */
    enum err opened;
    sem_t is_open;

    struct reader single; /* its own thread's, each */
    struct reader lists;
    struct redis_listen
        subscriber; /* its own thread's; it publishes the generation to all threads */
};

/* --- a connection with our library --- */

enum { VERSION_MIN = 7, TIMEOUT_DEFAULT_MS = 80 };

void redis_session_init(struct redis_session *session, const struct redis_target *target,
                        const struct store_config *config)
{
    uint32_t mark = 2166136261u;

    /* FNV-1a: unlike str_hash() the same in every process; otherwise each start would leave a
     * library behind. */
    for (const char *at = redis_lua; *at; at++)
        mark = (mark ^ (unsigned char)*at) * 16777619u;
    *session = (struct redis_session){
        .test_clock = config->now_ms,
        .timeout_ms = config->timeout_ms > 0 ? config->timeout_ms : TIMEOUT_DEFAULT_MS,
    };
    redis_link_init(&session->link, target);
    while (!session->name)
        session->name = (uint32_t)rnd_next(&session->link.rnd);
    snprintf(session->instance, sizeof session->instance, "%08" PRIx32, session->name);
    snprintf(session->library, sizeof session->library, "berth_v%d_%08" PRIx32 "%s", FORMAT_NEWEST,
             mark, config->now_ms ? "_test" : "");
    snprintf(session->function, sizeof session->function, "%s_batch", session->library);
}

void redis_session_free(struct redis_session *session)
{
    redis_link_close(&session->link);
    wire_free(&session->wire);
}

/* Loading a library that already exists counts as success. */
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

    /* After timeout_ms the sender is told that no answer came: from then on the call must not be
     * applied any more. */
    if (!session->test_clock && session->store_ms)
        head.late_ms = session->store_ms + (now_ms - session->mono_ms) + session->timeout_ms + 1;
    if (!*session->next_generation)
        snprintf(session->next_generation, sizeof session->next_generation, "%016" PRIx64,
                 rnd_next(&session->link.rnd));
    wire_begin(&session->wire, &head);
}

/* Converts `not_after_ms` (clock_mono_ms) to store time. */
static int64_t redis_session_bound(const struct redis_session *session, int64_t not_after_ms)
{
    int64_t bound_ms;

    if (!not_after_ms || session->test_clock || !session->store_ms)
        return not_after_ms;
    bound_ms = session->store_ms + (not_after_ms - session->mono_ms);
    return bound_ms > 0 ? bound_ms : 1;
}

/* Nothing was done: the call was too late, or its number belongs to another instance. */
static bool is_late(const redisReply *reply)
{
    return reply->type == REDIS_REPLY_ARRAY && reply->elements == 2;
}

static bool is_missing(const redisReply *reply)
{
    return redis_is_error(reply, "ERR Function not found") || redis_is_error(reply, "NOSCRIPT");
}

/* What every batch returns besides its answers. */
static void take_session_news(struct redis_session *session, const redisReply *reply,
                              int64_t sent_ms)
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

/* After a successful call: binds to this server until the master is looked up again. */
static void redis_session_bind(struct redis_session *session)
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

/* Redis refused the call before the function began. Any other error may have occurred in the middle
 * of it. */
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
        if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 3 &&
            str_is(redis_text(reply->element[1]), "FORMAT")) { /* we cannot read its records */
            format_explain(redis_text(reply->element[2]), session->link.why,
                           sizeof session->link.why);
        } else if (!is_whole(session, reply)) {
            session->unknown = !is_refusal(reply);
            redis_link_fail(&session->link, "a call is refused",
                            reply->type == REDIS_REPLY_ERROR ? reply->str
                                                             : "not an answer of ours");
        } else {
            take_session_news(session, reply, sent_ms);
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

/* A managed Redis may not report its policy; then it cannot be checked. */
static enum err check_eviction(struct redis_session *session, int64_t deadline_ms,
                               struct problem *why)
{
    redisReply *reply =
        redis_link_ask(&session->link, deadline_ms, "CONFIG", "GET", "maxmemory-policy", NULL);
    enum err err = ERR_OK;

    session->policy_unknown = !reply || reply->type != REDIS_REPLY_ARRAY || reply->elements != 2;
    if (!session->policy_unknown && !str_is(redis_text(reply->element[1]), "noeviction"))
        err = problem_set(why, ERR_BAD_CONFIG, "store",
                          "Redis may throw leases away: its maxmemory-policy is %.40s. Set it to "
                          "noeviction.",
                          reply->element[1]->str);
    freeReplyObject(reply);
    return err;
}

/* Is this Redis usable? `why` says why not. */
static enum err redis_session_check(struct redis_session *session, int64_t deadline_ms,
                                    struct problem *why)
{
    static const char name[] = "redis_version:"; /* "redis_version:7.0.15" */
    redisReply *reply;
    struct str info;
    const char *at;
    int major;

    if (!redis_link_open(&session->link, deadline_ms))
        return problem_set(why, ERR_IO, "store", "The store in Redis cannot be reached: %s.",
                           session->link.why);
    reply = redis_link_ask(&session->link, deadline_ms, "INFO", "server", NULL);
    if (!reply)
        return problem_set(why, ERR_IO, "store", "Redis does not answer: %s.", session->link.why);
    info = redis_text(reply);
    at = memmem(info.at, info.len, name, sizeof name - 1);
    major = at ? atoi(at + sizeof name - 1) : 0;
    freeReplyObject(reply);
    if (major && major < VERSION_MIN)
        return problem_set(why, ERR_BAD_CONFIG, "store",
                           "The store needs Redis %d or newer, this one is of version %d.",
                           VERSION_MIN, major);
    return check_eviction(session, deadline_ms, why);
}

/* --- batches --- */

enum {
    IDLE_MS = 1000,
    TIDY_MS = 1000,
    TIDY_SOON_MS = 20,     /* while there is much to purge or rewrite */
    OPEN_MS = 10000,       /* time limit of the first connection */
    REVIVE_CALL_MS = 1000, /* and of later ones, while no op waits for them */
    REVIVE_MIN_MS = 50,
    REVIVE_MAX_MS = 250, /* it is back within a second after Redis is */
    /* How long a number is used after the call that renewed it was sent; the library does not give
     * it to another instance for half as long again. */
    NUMBER_MS = WIRE_INSTANCE_MS * 2 / 3,
};

static struct redis *of(struct store *store)
{
    return container_of(store, struct redis, store);
}

static struct msg *redis_send(struct store *store, struct msg *ops)
{
    return op_queue_send(&of(store)->op_queue, ops);
}

static void note_error(struct redis *self, const char *why)
{
    op_queue_count_error(&self->op_queue);
    status_text_put(&self->detail, why);
}

static void redis_status(struct store *store, struct store_status *ret_status)
{
    struct redis *self = of(store);
    char generation[STATUS_TEXT_SIZE];

    op_queue_status(&self->op_queue, ret_status);
    static_assert(sizeof ret_status->detail == STATUS_TEXT_SIZE, "it is copied as a whole");
    status_text_get(&self->detail, ret_status->detail);
    if (atomic_load_explicit(&self->policy_unknown, memory_order_relaxed))
        ret_status->warning = "Redis does not tell its maxmemory-policy (CONFIG GET): make sure "
                              "that it is noeviction";
    ret_status->moves = atomic_load_explicit(&self->moves, memory_order_relaxed);
    ret_status->full = atomic_load_explicit(&self->full, memory_order_relaxed);
    ret_status->deaf = atomic_load_explicit(&self->subscriber.deaf, memory_order_relaxed);
    status_text_get(&self->subscriber.generation, generation);
    str_copy(str_of(generation), ret_status->generation, sizeof ret_status->generation);
}

/* The store thread. */

/* `began_ms` is the time the call's deadline was computed from: with another or a finer clock, a
 * call that hit its deadline could seem not to have. */
static void go_down(struct redis *self, int64_t began_ms)
{
    int64_t took_ms = clock_mono_ms() - began_ms;

    assert(took_ms >= 0);
    /* A call that was given up would have taken an unknown time, so it counts as too slow. */
    if (took_ms >= self->session.timeout_ms && took_ms <= DEGRADE_SLOW_MS)
        took_ms = DEGRADE_SLOW_MS + 1;
    degrade_error(&self->degrade, took_ms);
    op_queue_set_up(&self->op_queue, false);
    note_error(self, self->session.link.why);
    op_queue_set_mode(&self->op_queue, (enum store_mode)self->degrade.mode);
    /* Not immediately: an attempt takes up to REVIVE_CALL_MS, and ops that came before new ones
     * were refused are answered first. */
    self->pause_ms = self->pause_ms ? self->pause_ms * 2 : REVIVE_MIN_MS;
    if (self->pause_ms > REVIVE_MAX_MS)
        self->pause_ms = REVIVE_MAX_MS;
    self->revive_ms = clock_mono_ms() + self->pause_ms;
}

static void take_news(struct redis *self)
{
    struct redis_session *session = &self->session;

    op_queue_count_batch(&self->op_queue);
    metric_set(METRIC_BREAKERS_OPEN, session->open_breakers);
    if (session->lost > 0)
        metric_add(METRIC_LOST_LEASES, session->lost);
    status_text_put(&self->subscriber.generation, session->generation);
    atomic_store_explicit(&self->offset_ms, session->offset_ms, memory_order_relaxed);
    atomic_store_explicit(&self->store.ahead_ms, session->store_ms - session->mono_ms,
                          memory_order_relaxed);
    atomic_store_explicit(&self->subscriber.master, redis_addr_mark(&session->link.at),
                          memory_order_relaxed);
    if (session->emptied)
        note_error(self, "Redis came back empty: all nodes, jobs and leases are gone");
    session->emptied = false;
}

/* The result of a tidy call: whether there is more to rewrite or purge, how near Redis is to its
 * maxmemory, and the repairs by rule. */
static void take_tidied(struct redis *self, const redisReply *answer)
{
    int64_t soon_ms = clock_mono_ms() + TIDY_SOON_MS;

    if (answer->type != REDIS_REPLY_ARRAY || answer->elements != WIRE_TIDIED + STORE_RULES)
        return;
    if (answer->element[3]->integer > 0)
        self->tidy_ms = soon_ms;
    self->purge_ms = answer->element[4]->integer > 0 ? soon_ms : INT64_MAX;
    atomic_store_explicit(&self->full, answer->element[5]->integer == WIRE_FULL,
                          memory_order_relaxed);
    for (int i = 0; i < STORE_RULES; i++)
        if (answer->element[WIRE_TIDIED + i]->integer > 0)
            op_queue_count_repairs(&self->op_queue, (enum store_rule)i,
                                   answer->element[WIRE_TIDIED + i]->integer);
}

/* Makes one of the store's own calls; only our number and the tidy results matter in its
 * answers. */
static bool call_own(struct redis *self, int64_t deadline_ms)
{
    int64_t sent_ms = clock_mono_ms();
    redisReply *reply = redis_session_call(&self->session, deadline_ms);
    unsigned number;

    if (!reply)
        return false;
    take_news(self);
    number = wire_number(reply->element[WIRE_ANSWERS]); /* if the first op asked for one */
    if (number) {
        atomic_store_explicit(&self->store.number, number, memory_order_relaxed);
        atomic_store_explicit(&self->store.number_until_ms, sent_ms + NUMBER_MS,
                              memory_order_relaxed);
    }
    if (reply->elements > WIRE_ANSWERS + 1)
        take_tidied(self, reply->element[reply->elements - 1]);
    freeReplyObject(reply);
    return true;
}

/* Arrive or stay: arriving takes back what an earlier process with our number held. */
static void begin_own(struct redis *self)
{
    redis_session_begin(&self->session, &self->config, 0);
    if (self->arrived)
        wire_stay(&self->session.wire, self->version, self->format,
                  store_number_is_ours(&self->store) ? store_number(&self->store) : 0);
    else
        wire_arrive(&self->session.wire, self->version, self->format, &self->config.terms);
}

/* We are up only after a call that writes has worked and we have a number. */
static bool bring_up(struct redis *self, int64_t deadline_ms)
{
    self->session.link.bound[0] = '\0'; /* any current master will do */
    begin_own(self);
    if (!call_own(self, deadline_ms))
        return false;
    redis_session_bind(&self->session);
    atomic_store_explicit(&self->moves, self->session.moves, memory_order_relaxed);
    if (!store_number_is_ours(&self->store))
        return redis_link_fail(&self->session.link, "there are too many instances", NULL);
    self->arrived = true;
    self->pause_ms = 0;
    degrade_success(&self->degrade);
    op_queue_set_mode(&self->op_queue, STORE_NORMAL);
    op_queue_set_up(&self->op_queue, true);
    return true;
}

/* After this process was stopped, another instance may have our number: nothing is sent until we
 * know. */
static bool has_number(struct redis *self)
{
    int64_t began_ms = clock_mono_ms();

    if (store_number_is_ours(&self->store) || bring_up(self, began_ms + self->session.timeout_ms))
        return true;
    go_down(self, began_ms);
    return false;
}

/* Cuts the first ops off a list for one call; returns the rest. */
static struct msg *cut_batch(struct redis *self, struct msg *batch)
{
    struct wire *wire = &self->session.wire;
    struct msg *last = NULL;

    redis_session_begin(&self->session, &self->config, store_number(&self->store));
    for (struct msg *msg = batch; msg; last = msg, msg = msg->next) {
        struct store_op *op = container_of(msg, struct store_op, msg);

        if (wire->ops >= WIRE_OPS_MAX || (wire->ops && wire->bytes >= WIRE_BYTES_MAX) ||
            (op->verb == STORE_RENEW && wire->runs >= WIRE_RUNS_MAX))
            break;
        wire_op(wire, op, redis_session_bound(&self->session, op->not_after_ms));
    }
    assert(last);
    batch = last->next;
    last->next = NULL;
    return batch;
}

static bool read_answers(struct redis *self, struct msg *batch, const redisReply *reply)
{
    size_t at = WIRE_ANSWERS;
    uint64_t order = self->session.order;

    for (struct msg *msg = batch; msg; msg = msg->next) {
        struct store_op *op = container_of(msg, struct store_op, msg);

        op->order = ++order;
        if (!wire_answer(op, reply, &at))
            return redis_link_fail(&self->session.link, "an answer cannot be read", NULL);
        if (op->err == ERR_STORE_FULL)
            self->purge_ms = 0; /* something may be ready to purge */
    }
    return true;
}

/* Takes out of a batch the ops that continue in the next call, followed by `rest`. These are
 * heartbeats too large for one call: other ops are served between their parts. */
static struct msg *cut_begun(struct msg **batch, struct msg *rest)
{
    struct msg *begun = NULL, **end = &begun;

    while (*batch) {
        struct msg *msg = *batch;
        const struct store_op *op = container_of(msg, struct store_op, msg);

        if (op->verb != STORE_RENEW || op->err || !op->u.renew.more) {
            batch = &msg->next;
            continue;
        }
        *batch = msg->next;
        *end = msg;
        end = &msg->next;
    }
    *end = rest;
    return begun;
}

/* Refuses ops of which nothing, or only a part, was done. */
static void refuse(struct redis *self, struct msg *ops)
{
    struct msg *begun = cut_begun(&ops, NULL);

    op_queue_answer(&self->op_queue, begun, ERR_UNKNOWN);
    op_queue_answer(&self->op_queue, ops, ERR_STORE_DOWN);
}

/* Answers the batch, even if it failed. Returns the ops that continue in the next call, then
 * `rest`. */
static struct msg *run_batch(struct redis *self, struct msg *batch, struct msg *rest)
{
    int64_t began_ms = clock_mono_ms();
    redisReply *reply = redis_session_call(&self->session, began_ms + self->session.timeout_ms);
    bool ok = reply && read_answers(self, batch, reply);
    bool may_have_run = reply || self->session.unknown;

    freeReplyObject(reply);
    if (!ok) {
        go_down(self, began_ms); /* first, so that no more ops are sent */
        if (may_have_run)
            op_queue_answer(&self->op_queue, batch, ERR_UNKNOWN);
        else
            refuse(self, batch);
        return rest;
    }
    take_news(self);
    degrade_success(&self->degrade);
    rest = cut_begun(&batch, rest);
    op_queue_answer(&self->op_queue, batch, ERR_OK);
    return rest;
}

static void tidy(struct redis *self)
{
    int64_t began_ms = clock_mono_ms();
    bool whole = began_ms >= self->tidy_ms;

    if (!whole && began_ms < self->purge_ms)
        return;
    if (whole)
        self->tidy_ms = began_ms + TIDY_MS;
    self->purge_ms = INT64_MAX;
    begin_own(self);
    wire_tidy(&self->session.wire, whole, self->config.retention_jobs_max);
    if (!call_own(self, began_ms + self->session.timeout_ms))
        go_down(self, began_ms);
}

static int64_t time_to_wait(const struct redis *self)
{
    int64_t tidy_ms = self->tidy_ms < self->purge_ms ? self->tidy_ms : self->purge_ms;
    int64_t left_ms =
        (op_queue_is_up(&self->op_queue) ? tidy_ms : self->revive_ms) - clock_mono_ms();

    return left_ms < 0 ? 0 : left_ms < IDLE_MS ? left_ms : IDLE_MS;
}

/* Releases what we hold, a part per call: others are served in between. */
static void leave(struct redis *self)
{
    int64_t from = 0, more;

    if (!op_queue_is_up(&self->op_queue))
        return;
    do {
        redisReply *reply;

        redis_session_begin(&self->session, &self->config, 0);
        wire_leave(&self->session.wire, store_number(&self->store), from);
        reply = redis_session_call(&self->session, clock_mono_ms() + self->session.timeout_ms);
        more = reply ? wire_more(reply->element[WIRE_ANSWERS]) : 0;
        freeReplyObject(reply);
        from = more > from ? more : 0;
    } while (from);
}

static void *store_thread(void *arg)
{
    struct redis *self = arg;
    int64_t deadline_ms = clock_mono_ms() + OPEN_MS;

    metrics_thread();
    self->opened = redis_session_check(&self->session, deadline_ms, self->why);
    atomic_store_explicit(&self->policy_unknown, self->session.policy_unknown,
                          memory_order_relaxed);
    if (!self->opened && !bring_up(self, deadline_ms))
        self->opened = problem_set(self->why, ERR_IO, "store", "The store in Redis fails: %s.",
                                   self->session.link.why);
    self->why = NULL;
    self->op_queue.work_queue.stopping = self->opened != ERR_OK;
    sem_post(&self->is_open);
    while (!self->op_queue.work_queue.stopping ||
           atomic_load(&self->op_queue.work_queue.inbox.head)) {
        struct msg *own;
        struct msg *batch;

        work_queue_wait(&self->op_queue.work_queue, time_to_wait(self));
        batch = op_queue_take(&self->op_queue.work_queue, &own);
        op_queue_run_own(own);
        while (batch && op_queue_is_up(&self->op_queue) && has_number(self)) {
            struct msg *rest = cut_batch(self, batch);

            batch = run_batch(self, batch, rest);
        }
        refuse(self, batch);
        if (op_queue_is_up(&self->op_queue)) {
            tidy(self);
        } else if (!self->op_queue.work_queue.stopping) {
            int64_t began_ms = clock_mono_ms();

            if (began_ms >= self->revive_ms && !bring_up(self, began_ms + REVIVE_CALL_MS))
                go_down(self, began_ms);
        }
    }
    leave(self);
    return NULL;
}

/* The readers. */

static bool read_once(struct reader *reader, struct store_op *const *ops, size_t count)
{
    int64_t timeout_ms = reader->redis->session.timeout_ms;
    int64_t offset_ms = atomic_load_explicit(&reader->redis->offset_ms, memory_order_relaxed);
    bool ok = count == 1 ? redis_read_run(&reader->link, ops[0], timeout_ms, offset_ms)
                         : redis_read_jobs(&reader->link, ops, count, timeout_ms, offset_ms);

    if (!ok)
        redis_link_close(&reader->link);
    return ok;
}

/* Runs a list made by cut_reads(). */
static bool read_ops(struct reader *reader, struct msg *list)
{
    struct redis *self = reader->redis;
    int64_t deadline_ms = clock_mono_ms() + self->session.timeout_ms;
    int64_t now_ms;
    struct store_op *ops[REDIS_READ_JOBS_MAX];
    size_t count = 0;

    for (; list; list = list->next) {
        struct store_op *op = container_of(list, struct store_op, msg);

        now_ms = self->config.now_ms ? self->config.now_ms() : clock_mono_ms();
        if (op->not_after_ms && now_ms > op->not_after_ms) {
            op->err = ERR_TOO_LATE;
            op->head.id = 0;
        } else {
            ops[count++] = op;
        }
    }
    /* A connection from before Redis went away is found to be dead only when it is used. */
    bool known = reader->link.context != NULL;
    if (count == 0 || read_once(reader, ops, count))
        return true;
    if (known && clock_mono_ms() < deadline_ms && read_once(reader, ops, count))
        return true;
    note_error(self, reader->link.why);
    return false;
}

static bool is_job_get(const struct msg *msg)
{
    return container_of(msg, const struct store_op, msg)->verb == STORE_JOB_GET;
}

/* Cuts off the first op and those after it that fit into the same round trip; returns the rest. */
static struct msg *cut_reads(struct msg *list)
{
    struct msg *rest;

    for (int count = 1;
         count < REDIS_READ_JOBS_MAX && is_job_get(list) && list->next && is_job_get(list->next);
         count++)
        list = list->next;
    rest = list->next;
    list->next = NULL;
    return rest;
}

static void *reader_thread(void *arg)
{
    struct reader *reader = arg;
    struct op_queue *op_queue = &reader->redis->op_queue;

    metrics_thread();
    while (!reader->work_queue->stopping || atomic_load(&reader->work_queue->inbox.head)) {
        struct msg *own;
        struct msg *ops;
        bool ok = true;

        work_queue_wait(reader->work_queue, IDLE_MS);
        ops = op_queue_take(reader->work_queue, &own);
        op_queue_run_own(own);
        for (struct msg *rest; ops && ok; ops = rest) {
            rest = cut_reads(ops);
            ok = op_queue_is_up(op_queue) && read_ops(reader, ops);
            op_queue_answer(op_queue, ops, ok ? ERR_OK : ERR_STORE_DOWN);
        }
        /* Ops queued after a failed one need not wait as long. */
        op_queue_answer(op_queue, ops, ERR_STORE_DOWN);
    }
    return NULL;
}

static void reader_init(struct reader *reader, struct redis *self, struct work_queue *work_queue)
{
    *reader = (struct reader){.redis = self, .work_queue = work_queue};
    redis_link_init(&reader->link, &self->target);
}

/* Opening and closing. */

static void redis_free(struct store *store)
{
    struct redis *self = of(store);

    redis_session_free(&self->session);
    redis_link_close(&self->single.link);
    redis_link_close(&self->lists.link);
    redis_listen_stop(&self->subscriber);
    sem_destroy(&self->is_open);
    explicit_bzero(&self->target, sizeof self->target);
    free(self);
}

static bool start_readers(struct redis *self)
{
    if (!work_queue_start(&self->op_queue.reader, "berth-reader", reader_thread, &self->single))
        return false;
    if (work_queue_start(&self->op_queue.lists, "berth-lists", reader_thread, &self->lists))
        return true;
    work_queue_stop(&self->op_queue.reader);
    return false;
}

static enum err redis_open(const struct store_config *config, struct store **ret_store,
                           struct problem *why)
{
    static const struct store_backend *const backends[] = {
        [REDIS_SINGLE] = &redis_backend,
        [REDIS_SENTINEL] = &redis_sentinel_backend,
        [REDIS_CLUSTER] = &redis_cluster_backend,
    };
    struct redis_target target;
    struct redis *self;
    enum err err;

    if (config->format && (config->format < FORMAT_OLDEST || config->format > FORMAT_NEWEST))
        return problem_set(why, ERR_BAD_CONFIG, "store_format",
                           "This berth writes no format %d into Redis, but %d to %d.",
                           config->format, FORMAT_OLDEST, FORMAT_NEWEST);
    err = redis_url_parse(config->url, &target, why);
    if (err)
        return err;
    self = mem_aligned(_Alignof(struct redis), sizeof *self);
    self->store.backend = backends[target.kind];
    self->config = *config;
    self->config.url = self->config.data_dir = self->config.version = NULL;
    if (config->terms.task_ms <= 0)
        self->config.terms = lease_terms_default;
    self->target = target;
    explicit_bzero(&target, sizeof target);
    redis_session_init(&self->session, &self->target, config);
    reader_init(&self->single, self, &self->op_queue.reader);
    reader_init(&self->lists, self, &self->op_queue.lists);
    redis_listen_init(&self->subscriber, &self->target, self->session.instance, &self->store);
    self->store.name = self->session.name;
    str_copy(str_of(config->version ? config->version : "unknown"), self->version,
             sizeof self->version);
    self->format = config->format ? config->format : FORMAT_NEWEST;
    op_queue_init(&self->op_queue, redis_read_answers, config->in_flight_max);
    self->op_queue.is_long = redis_read_is_long;
    sem_init(&self->is_open, 0, 0);
    self->why = why;
    if (!work_queue_start(&self->op_queue.work_queue, "berth-store", store_thread, self)) {
        redis_free(&self->store);
        return problem_set(why, ERR_IO, "", "No thread for the store can be started.");
    }
    while (sem_wait(&self->is_open))
        ;
    err = self->opened;
    if (!err && !start_readers(self)) {
        inbox_post(&self->op_queue.work_queue.inbox, &self->op_queue.work_queue.stop);
        err = problem_set(why, ERR_IO, "", "No thread for the store can be started.");
    }
    if (err) {
        work_queue_join(&self->op_queue.work_queue);
        redis_free(&self->store);
        return err;
    }
    *ret_store = &self->store;
    return ERR_OK;
}

static void redis_listen(struct store *store, struct store_listener *listener)
{
    struct redis *self = of(store);

    if (!listener)
        redis_listen_stop(&self->subscriber);
    /* Without it there are no notices from others; the reads once a second are enough to go on. */
    else if (!redis_listen_start(&self->subscriber, listener))
        note_error(self, "no thread can be started to listen to other instances");
}

static void redis_stop(struct store *store)
{
    struct redis *self = of(store);

    work_queue_stop(&self->op_queue.reader);
    work_queue_stop(&self->op_queue.lists);
    work_queue_stop(&self->op_queue.work_queue);
    assert(atomic_load(&self->op_queue.in_flight) == 0);
}

static enum err open_tls(const struct store_config *config, struct store **ret_store,
                         struct problem *why)
{
    return problem_set(why, ERR_BAD_CONFIG, "store",
                       "rediss:// is not possible: this build's Redis client has no TLS. Use "
                       "redis:// through a tunnel or on a trusted network.");
}

#define REDIS_BACKEND(name)                                                                        \
    {                                                                                              \
        .scheme = name, .open = redis_open, .send = redis_send, .status = redis_status,            \
        .listen = redis_listen, .stop = redis_stop, .free = redis_free                             \
    }
const struct store_backend redis_backend = REDIS_BACKEND("redis");
const struct store_backend redis_sentinel_backend = REDIS_BACKEND("redis-sentinel");
const struct store_backend redis_cluster_backend = REDIS_BACKEND("redis-cluster");
const struct store_backend rediss_backend = {
    .scheme = "rediss",
    .open = open_tls,
};
