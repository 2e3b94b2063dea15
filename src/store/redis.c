/* `redis:`, `redis-sentinel:`, `redis-cluster:` - the store thread takes its whole inbox, sends it
 * as calls of one function (at most WIRE_OPS_MAX ops each), and answers. What queued up meanwhile
 * is the next batch; there is no timer. Two readers have a thread and a connection each: one for
 * what takes a single call, one for lists.
 *
 * A call that fails answers its batch: ERR_UNKNOWN when it had left and may have been run,
 * ERR_STORE_DOWN when it had not. What is queued behind it is answered ERR_STORE_DOWN, and every
 * new op is refused at the door until a call works again. Nothing is decided here. */
#include "store/redis.h"

#include "base/mem.h"
#include "base/metrics.h"
#include "model/cache.h"
#include "store/op_queue.h"
#include "store/redis_listen.h"
#include "store/redis_read.h"
#include "store/redis_session.h"

#include <assert.h>
#include <inttypes.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    IDLE_MS = 1000,
    TIDY_MS = 1000,
    TIDY_SOON_MS = 20,     /* likewise, while there is much to purge or to rewrite */
    OPEN_MS = 10000,       /* the first connection may take so long */
    REVIVE_CALL_MS = 1000, /* and a later one, while nobody waits for it */
    REVIVE_MIN_MS = 50,
    REVIVE_MAX_MS = 250, /* it is back within a second after Redis is */
    /* A number is used so long after the call that renewed it was sent; the library gives it to
     * nobody else for half as long again. */
    NUMBER_MS = WIRE_INSTANCE_MS * 2 / 3,
};

struct reader {
    struct redis *redis;
    struct desk *desk; /* of the front */
    struct redis_link link;
    bool stopping;
    struct msg stop;
};

struct redis {
    struct store store;
    struct store_config config; /* url, data_dir and version are not kept */
    char version[STORE_VERSION_MAX + 1];
    int format; /* the newest we would write */
    struct redis_target target;
    struct front front;

    /* Any thread. */
    struct textbox detail;
    _Atomic bool untold;       /* see redis_session.h */
    _Atomic unsigned moves;    /* likewise */
    _Atomic int64_t offset_ms; /* likewise */
    _Atomic bool full;

    /* The store thread's. */
    struct redis_session session;
    struct degrade degrade;
    int64_t revive_ms; /* clock_mono_ms: when to try again */
    int64_t pause_ms;
    int64_t tidy_ms;
    int64_t purge_ms; /* not before tidy_ms unless there is more to purge */
    bool arrived;
    bool stopping;
    struct problem *why; /* of the opening; then NULL */
    enum err opened;
    sem_t is_open;

    struct reader single; /* its own thread's, each */
    struct reader lists;
    struct redis_ears ears; /* its own thread's; it has the generation, for all to see */

    struct msg stop;
};

static struct redis *of(struct store *store)
{
    return container_of(store, struct redis, store);
}

static struct msg *redis_send(struct store *store, struct msg *ops)
{
    return front_send(&of(store)->front, ops);
}

static void note_error(struct redis *self, const char *why)
{
    front_count_error(&self->front);
    textbox_put(&self->detail, why);
}

static void redis_status(struct store *store, struct store_status *ret_status)
{
    struct redis *self = of(store);
    char generation[TEXTBOX_SIZE];

    front_status(&self->front, ret_status);
    static_assert(sizeof ret_status->detail == TEXTBOX_SIZE, "it is copied as a whole");
    textbox_get(&self->detail, ret_status->detail);
    if (atomic_load_explicit(&self->untold, memory_order_relaxed))
        ret_status->warning = "Redis does not tell its maxmemory-policy (CONFIG GET): make sure "
                              "that it is noeviction";
    ret_status->moves = atomic_load_explicit(&self->moves, memory_order_relaxed);
    ret_status->full = atomic_load_explicit(&self->full, memory_order_relaxed);
    ret_status->deaf = atomic_load_explicit(&self->ears.deaf, memory_order_relaxed);
    textbox_get(&self->ears.generation, generation);
    str_copy(str_of(generation), ret_status->generation, sizeof ret_status->generation);
}

/* The store thread. */

/* `began_ms` is what the call's deadline was counted from: by another clock, or a finer one, a call
 * that ran into its deadline could look as if it had not. */
static void go_down(struct redis *self, int64_t began_ms)
{
    int64_t took_ms = clock_mono_ms() - began_ms;

    assert(took_ms >= 0);
    /* Who gave up did not see how long it would have taken: that counts as too long. */
    if (took_ms >= self->session.timeout_ms && took_ms <= DEGRADE_SLOW_MS)
        took_ms = DEGRADE_SLOW_MS + 1;
    degrade_error(&self->degrade, took_ms);
    front_set_up(&self->front, false);
    note_error(self, self->session.link.why);
    front_set_mode(&self->front, (enum store_mode)self->degrade.mode);
    /* Never at once: a try takes up to REVIVE_CALL_MS, and what came in before the door was shut is
     * answered first. */
    self->pause_ms = self->pause_ms ? self->pause_ms * 2 : REVIVE_MIN_MS;
    if (self->pause_ms > REVIVE_MAX_MS)
        self->pause_ms = REVIVE_MAX_MS;
    self->revive_ms = clock_mono_ms() + self->pause_ms;
}

static void take_news(struct redis *self)
{
    struct redis_session *session = &self->session;

    front_count_batch(&self->front);
    metric_set(METRIC_BREAKERS_OPEN, session->open_breakers);
    if (session->lost > 0)
        metric_add(METRIC_LOST_LEASES, session->lost);
    textbox_put(&self->ears.generation, session->generation);
    atomic_store_explicit(&self->offset_ms, session->offset_ms, memory_order_relaxed);
    atomic_store_explicit(&self->store.ahead_ms, session->store_ms - session->mono_ms,
                          memory_order_relaxed);
    atomic_store_explicit(&self->ears.master, redis_addr_mark(&session->link.at),
                          memory_order_relaxed);
    if (session->emptied)
        note_error(self, "Redis came back empty: all nodes, jobs and leases are gone");
    session->emptied = false;
}

/* The answer to our first op, when that asked for a number. */
static void take_number(struct redis *self, const redisReply *answer, int64_t sent_ms)
{
    unsigned number = wire_number(answer);

    if (!number)
        return;
    atomic_store_explicit(&self->store.number, number, memory_order_relaxed);
    atomic_store_explicit(&self->store.number_until_ms, sent_ms + NUMBER_MS, memory_order_relaxed);
}

/* What a tidying call found: counts it put right, whether there is more to rewrite, more to purge,
 * and how near to its maxmemory Redis is. */
static void take_tidied(struct redis *self, const redisReply *answer)
{
    int64_t soon_ms = clock_mono_ms() + TIDY_SOON_MS;

    if (answer->type != REDIS_REPLY_ARRAY || answer->elements != 7)
        return;
    if (answer->element[3]->integer > 0)
        front_count_repairs(&self->front, answer->element[3]->integer);
    if (answer->element[4]->integer > 0)
        self->tidy_ms = soon_ms;
    self->purge_ms = answer->element[5]->integer > 0 ? soon_ms : INT64_MAX;
    atomic_store_explicit(&self->full, answer->element[6]->integer == WIRE_FULL,
                          memory_order_relaxed);
}

/* One call of our own; its ops answer nothing that matters but our number and what was tidied. */
static bool call_own(struct redis *self, int64_t deadline_ms)
{
    int64_t sent_ms = clock_mono_ms();
    redisReply *reply = redis_session_call(&self->session, deadline_ms);

    if (!reply)
        return false;
    take_news(self);
    take_number(self, reply->element[WIRE_ANSWERS], sent_ms);
    if (reply->elements > WIRE_ANSWERS + 1)
        take_tidied(self, reply->element[reply->elements - 1]);
    freeReplyObject(reply);
    return true;
}

/* We are there, or still there: the first time it takes back what an earlier life of us held. */
static void begin_own(struct redis *self)
{
    redis_session_begin(&self->session, &self->config, 0);
    if (self->arrived)
        wire_stay(&self->session.wire, self->version, self->format,
                  store_number_is_ours(&self->store) ? store_number(&self->store) : 0);
    else
        wire_arrive(&self->session.wire, self->version, self->format, &self->config.terms);
}

/* A call that changes something must work before we are well again, and we need a number. */
static bool bring_up(struct redis *self, int64_t deadline_ms)
{
    redis_session_release(&self->session); /* whoever is the master now */
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
    front_set_mode(&self->front, STORE_NORMAL);
    front_set_up(&self->front, true);
    return true;
}

/* After a stop of this whole process our number may be another's: nothing is sent before we know.
 */
static bool has_number(struct redis *self)
{
    int64_t began_ms = clock_mono_ms();

    if (store_number_is_ours(&self->store) || bring_up(self, began_ms + self->session.timeout_ms))
        return true;
    go_down(self, began_ms);
    return false;
}

static void revive(struct redis *self)
{
    int64_t began_ms = clock_mono_ms();

    if (began_ms >= self->revive_ms && !bring_up(self, began_ms + REVIVE_CALL_MS))
        go_down(self, began_ms);
}

/* The first ops of a list as one call; what is behind them is returned. */
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
            self->purge_ms = 0; /* there may be something that can go */
    }
    return true;
}

/* A heartbeat that is too much for one call goes on in the next: others are served between them. */
static bool is_begun(const struct msg *msg)
{
    const struct store_op *op = container_of(msg, struct store_op, msg);

    return op->verb == STORE_RENEW && !op->err && op->u.renew.more;
}

/* Takes those out of a batch that go on in the next call; `rest` follows them. */
static struct msg *cut_begun(struct msg **batch, struct msg *rest)
{
    struct msg *begun = NULL, **end = &begun;

    while (*batch) {
        struct msg *msg = *batch;

        if (!is_begun(msg)) {
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

/* Nothing was done of them, or only a part. */
static void refuse(struct redis *self, struct msg *ops)
{
    struct msg *begun = cut_begun(&ops, NULL);

    front_answer(&self->front, begun, ERR_UNKNOWN);
    front_answer(&self->front, ops, ERR_STORE_DOWN);
}

/* Answers the batch, also when it failed. Returns what goes on in the next call, then `rest`. */
static struct msg *run_batch(struct redis *self, struct msg *batch, struct msg *rest)
{
    int64_t began_ms = clock_mono_ms();
    redisReply *reply = redis_session_call(&self->session, began_ms + self->session.timeout_ms);
    bool ok = reply && read_answers(self, batch, reply);
    bool may_have_run = reply || self->session.unknown;

    if (reply)
        freeReplyObject(reply);
    if (!ok) {
        go_down(self, began_ms); /* first, so that nobody sends more */
        if (may_have_run)
            front_answer(&self->front, batch, ERR_UNKNOWN);
        else
            refuse(self, batch);
        return rest;
    }
    take_news(self);
    degrade_success(&self->degrade);
    rest = cut_begun(&batch, rest);
    front_answer(&self->front, batch, ERR_OK);
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
    int64_t left_ms = (front_is_up(&self->front) ? tidy_ms : self->revive_ms) - clock_mono_ms();

    return left_ms < 0 ? 0 : left_ms < IDLE_MS ? left_ms : IDLE_MS;
}

static void open_first(struct redis *self)
{
    int64_t deadline_ms = clock_mono_ms() + OPEN_MS;

    self->opened = redis_session_check(&self->session, deadline_ms, self->why);
    atomic_store_explicit(&self->untold, self->session.untold, memory_order_relaxed);
    if (!self->opened && !bring_up(self, deadline_ms))
        self->opened = problem_set(self->why, ERR_IO, "store", "The store in Redis fails: %s.",
                                   self->session.link.why);
    self->why = NULL;
    self->stopping = self->opened != ERR_OK;
    sem_post(&self->is_open);
}

/* What we hold is let go, some in each call: others are served between them. */
static int64_t leave_from(struct redis *self, int64_t from)
{
    redisReply *reply;
    int64_t more;

    redis_session_begin(&self->session, &self->config, 0);
    wire_leave(&self->session.wire, store_number(&self->store), from);
    reply = redis_session_call(&self->session, clock_mono_ms() + self->session.timeout_ms);
    if (!reply)
        return 0;
    more = wire_more(reply->element[WIRE_ANSWERS]);
    freeReplyObject(reply);
    return more > from ? more : 0;
}

static void leave(struct redis *self)
{
    int64_t from = 0;

    if (!front_is_up(&self->front))
        return;
    do {
        from = leave_from(self, from);
    } while (from);
}

static void *store_thread(void *arg)
{
    struct redis *self = arg;

    metrics_thread();
    open_first(self);
    while (!self->stopping || atomic_load(&self->front.desk.inbox.head)) {
        struct msg *own;
        struct msg *batch;

        desk_wait(&self->front.desk, time_to_wait(self));
        batch = front_take(&self->front.desk, &own);
        front_run_own(own);
        while (batch && front_is_up(&self->front) && has_number(self)) {
            struct msg *rest = cut_batch(self, batch);

            batch = run_batch(self, batch, rest);
        }
        refuse(self, batch);
        if (front_is_up(&self->front))
            tidy(self);
        else if (!self->stopping)
            revive(self);
    }
    leave(self);
    return NULL;
}

static void stop_store(struct msg *msg)
{
    container_of(msg, struct redis, stop)->stopping = true;
}

/* The readers. */

static bool is_too_late(const struct redis *self, const struct store_op *op)
{
    int64_t now_ms = self->config.now_ms ? self->config.now_ms() : clock_mono_ms();

    return op->not_after_ms && now_ms > op->not_after_ms;
}

static bool read_one(struct reader *reader, struct store_op *op)
{
    struct redis *self = reader->redis;
    int64_t timeout_ms = self->session.timeout_ms;
    int64_t deadline_ms = clock_mono_ms() + timeout_ms;
    int64_t offset_ms = atomic_load_explicit(&self->offset_ms, memory_order_relaxed);

    if (is_too_late(self, op)) {
        op->err = ERR_TOO_LATE;
        op->head.id = 0;
        return true;
    }
    /* A connection of before Redis went away is only found out to be dead when it is used. */
    bool known = reader->link.context != NULL;
    if (redis_read_run(&reader->link, op, timeout_ms, offset_ms))
        return true;
    redis_link_close(&reader->link);
    if (known && clock_mono_ms() < deadline_ms &&
        redis_read_run(&reader->link, op, timeout_ms, offset_ms))
        return true;
    redis_link_close(&reader->link);
    note_error(self, reader->link.why);
    return false;
}

static void *reader_thread(void *arg)
{
    struct reader *reader = arg;
    struct front *front = &reader->redis->front;

    metrics_thread();
    while (!reader->stopping || atomic_load(&reader->desk->inbox.head)) {
        struct msg *own;
        struct msg *ops;
        bool ok = true;

        desk_wait(reader->desk, IDLE_MS);
        ops = front_take(reader->desk, &own);
        front_run_own(own);
        for (struct msg *next; ops && ok; ops = next) {
            struct store_op *op = container_of(ops, struct store_op, msg);

            next = ops->next;
            ops->next = NULL;
            ok = front_is_up(front) && read_one(reader, op);
            front_answer(front, ops, ok ? ERR_OK : ERR_STORE_DOWN);
        }
        /* What stood behind one that failed need not wait as long. */
        front_answer(front, ops, ERR_STORE_DOWN);
    }
    return NULL;
}

static void stop_reader(struct msg *msg)
{
    container_of(msg, struct reader, stop)->stopping = true;
}

static void reader_init(struct reader *reader, struct redis *self, struct desk *desk)
{
    *reader = (struct reader){.redis = self, .desk = desk, .stop.run = stop_reader};
    redis_link_init(&reader->link, &self->target);
}

/* Opening and closing. */

static void free_all(struct redis *self)
{
    redis_session_free(&self->session);
    redis_link_close(&self->single.link);
    redis_link_close(&self->lists.link);
    redis_ears_stop(&self->ears);
    sem_destroy(&self->is_open);
    explicit_bzero(&self->target, sizeof self->target);
    free(self);
}

static struct redis *redis_new(const struct store_config *config, const struct redis_target *target,
                               const struct store_backend *backend)
{
    struct redis *self = mem_aligned(_Alignof(struct redis), sizeof *self);

    self->store.backend = backend;
    self->config = *config;
    self->config.url = self->config.data_dir = self->config.version = NULL;
    if (config->terms.task_ms <= 0)
        self->config.terms = lease_terms_default;
    self->target = *target;
    redis_session_init(&self->session, &self->target, config);
    reader_init(&self->single, self, &self->front.helper);
    reader_init(&self->lists, self, &self->front.lists);
    redis_ears_init(&self->ears, &self->target, self->session.instance, &self->store);
    self->store.name = self->session.name;
    str_copy(str_of(config->version ? config->version : "unknown"), self->version,
             sizeof self->version);
    self->format = config->format ? config->format : FORMAT_NEWEST;
    front_init(&self->front, redis_read_answers, config->in_flight_max);
    self->front.is_long = redis_read_is_long;
    sem_init(&self->is_open, 0, 0);
    self->stop.run = stop_store;
    return self;
}

static bool start_readers(struct redis *self)
{
    if (!desk_start(&self->front.helper, "berth-reader", reader_thread, &self->single))
        return false;
    if (desk_start(&self->front.lists, "berth-lists", reader_thread, &self->lists))
        return true;
    front_stop_desk(&self->front.helper, &self->single.stop);
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
    self = redis_new(config, &target, backends[target.kind]);
    explicit_bzero(&target, sizeof target);
    self->why = why;
    if (!desk_start(&self->front.desk, "berth-store", store_thread, self)) {
        free_all(self);
        return problem_set(why, ERR_IO, "", "No thread for the store can be started.");
    }
    while (sem_wait(&self->is_open))
        ;
    err = self->opened;
    if (!err && !start_readers(self)) {
        inbox_post(&self->front.desk.inbox, &self->stop);
        err = problem_set(why, ERR_IO, "", "No thread for the store can be started.");
    }
    if (err) {
        desk_join(&self->front.desk);
        free_all(self);
        return err;
    }
    *ret_store = &self->store;
    return ERR_OK;
}

static void redis_listen(struct store *store, struct store_ear *ear)
{
    struct redis *self = of(store);

    if (!ear)
        redis_ears_stop(&self->ears);
    /* Without it others are not heard; what is read once a second is enough to go on. */
    else if (!redis_ears_start(&self->ears, ear))
        note_error(self, "no thread can be started to listen to other instances");
}

static void redis_stop(struct store *store)
{
    struct redis *self = of(store);

    front_stop_desk(&self->front.helper, &self->single.stop);
    front_stop_desk(&self->front.lists, &self->lists.stop);
    front_stop_desk(&self->front.desk, &self->stop);
    assert(atomic_load(&self->front.in_flight) == 0);
}

static void redis_free(struct store *store)
{
    free_all(of(store));
}

static enum err open_tls(const struct store_config *config, struct store **ret_store,
                         struct problem *why)
{
    return problem_set(why, ERR_BAD_CONFIG, "store",
                       "rediss:// is not possible: this build's Redis client has no TLS. Use "
                       "redis:// through a tunnel or on a trusted network.");
}

const struct store_backend redis_backend = {
    .scheme = "redis",
    .open = redis_open,
    .send = redis_send,
    .status = redis_status,
    .listen = redis_listen,
    .stop = redis_stop,
    .free = redis_free,
};
const struct store_backend redis_sentinel_backend = {
    .scheme = "redis-sentinel",
    .open = redis_open,
    .send = redis_send,
    .status = redis_status,
    .listen = redis_listen,
    .stop = redis_stop,
    .free = redis_free,
};
const struct store_backend redis_cluster_backend = {
    .scheme = "redis-cluster",
    .open = redis_open,
    .send = redis_send,
    .status = redis_status,
    .listen = redis_listen,
    .stop = redis_stop,
    .free = redis_free,
};
const struct store_backend rediss_backend = {
    .scheme = "rediss",
    .open = open_tls,
};
