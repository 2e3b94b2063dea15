/* Two threads, each with a connection of its own: one writes, so that a lease never waits behind
 * somebody who reads the whole table; the other reads. Each takes ops in the order they came, and
 * answers. While the database is away it answers that at once, and tries to get it back. */
#include "store/deploys.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "store/deploys_private.h"
#include "store/desk.h"

enum {
    LOOK_MS = 1000,   /* how often the version is looked at: another instance may have changed it */
    RETRY_MS = 500,   /* between two tries to connect */
    FORGET_MS = 5000, /* between two looks for what nodes left that are gone */
    IN_FLIGHT_DEFAULT = 4096,
    RENEWALS_MAX = 256, /* in one transaction */
    OTHERS_MS = 20,     /* for all other ops, then it is the turn of renewals that came meanwhile */
};

enum lane_name { LANE_WRITE, LANE_READ, LANE_COUNT };

struct lane {
    struct deploys *deploys;
    struct desk desk;
    struct msg stop;
    bool stopping; /* the thread's */
    struct sql *sql;
    int64_t next_look_ms;
    struct deploys_op *renewals[RENEWALS_MAX]; /* that came together */
    size_t renewal_count;
    struct msg *first, *last; /* of the other ops, linked by next */
    _Atomic bool up;
};

struct deploys {
    struct lane lanes[LANE_COUNT];
    struct deploys_config config;
    int64_t told_news;          /* the writing thread's */
    struct deploys_facts facts; /* the reading thread's */
    struct deploys_table table; /* likewise */
    _Atomic bool facts_old;     /* something was written since they were read */
    _Atomic int64_t in_flight;
    _Atomic int64_t errors;
    pthread_mutex_t detail_lock; /* never on a request's path: a status is read by people */
    char detail[SQL_DETAIL_MAX];
    bool stopped;
};

/* In a transaction from its beginning; lazy: only when it comes to write. */
enum how { READS, LAZY, WRITES };

static const struct {
    deploys_verb *run;
    enum how how;
} verbs[DEPLOYS_VERB_COUNT] = {
    [DEPLOYS_LIST] = {deploys_list, READS},        [DEPLOYS_GET] = {deploys_get, READS},
    [DEPLOYS_PUT] = {deploys_put, WRITES},         [DEPLOYS_ENABLE] = {deploys_enable, WRITES},
    [DEPLOYS_RESTART] = {deploys_restart, WRITES}, [DEPLOYS_DELETE] = {deploys_delete, WRITES},
    [DEPLOYS_HISTORY] = {deploys_history, READS},  [DEPLOYS_RELEASE] = {deploys_release, WRITES},
    [DEPLOYS_APPROVE] = {deploys_approve, WRITES}, [DEPLOYS_DRAIN] = {deploys_drain, WRITES},
    [DEPLOYS_VIEW] = {deploys_view, READS},        [DEPLOYS_RENEW] = {deploys_renew, LAZY},
    [DEPLOYS_CLAIM] = {deploys_claim, WRITES},     [DEPLOYS_YIELD] = {deploys_yield, WRITES},
    [DEPLOYS_STATUS] = {deploys_set_status, LAZY},
};

static struct lane *lane_of(struct deploys *deploys, enum deploys_verb verb)
{
    return &deploys->lanes[verbs[verb].how == READS ? LANE_READ : LANE_WRITE];
}

static void set_detail(struct deploys *deploys, const char *detail)
{
    pthread_mutex_lock(&deploys->detail_lock);
    snprintf(deploys->detail, sizeof deploys->detail, "%s", detail);
    pthread_mutex_unlock(&deploys->detail_lock);
}

/* Every try counts, also our own: while it is away callers are refused before they get here, and a
 * counter that stands still would look like a database that is well. */
static void went_down(struct lane *lane)
{
    metric_add_label(METRIC_SQL, "error", 1);
    atomic_store(&lane->up, false);
    atomic_fetch_add(&lane->deploys->errors, 1);
    set_detail(lane->deploys, lane->sql->detail);
}

/* A statement failed. While the connection is good that is the caller's own affair: it is undone,
 * and nobody else's call suffers from it. */
static enum err failed(struct lane *lane)
{
    if (lane->sql->connected) {
        metric_add_label(METRIC_SQL, "refused", 1);
        return lane->sql->err;
    }
    went_down(lane);
    return ERR_STORE_DOWN;
}

/* Connected, and its tables are ours. *ret_newer: they are of a newer berth, which may mean
 * anything. */
static bool bring_up(struct lane *lane, bool *ret_newer)
{
    struct deploys_schema schema;
    char why[160];

    *ret_newer = false;
    if (!sql_connect(lane->sql) || !deploys_migrate(lane->sql, &schema)) {
        went_down(lane);
        return false;
    }
    *ret_newer = !deploys_schema_is_ours(&schema);
    if (*ret_newer) {
        snprintf(why, sizeof why,
                 "it was written by a newer berth (its tables have format %" PRId64
                 ", this one knows up to %" PRId64 "): use that release",
                 schema.version, schema.known);
        sql_failed(lane->sql, "use the database", why);
        went_down(lane);
        return false;
    }
    if (!deploys_follow_clock(lane->sql)) {
        went_down(lane);
        return false;
    }
    atomic_store(&lane->up, true);
    return true;
}

static void tell_news(struct deploys *deploys, int64_t news)
{
    if (news == 0 || news == deploys->told_news) /* which is the writing thread's */
        return;
    deploys->told_news = news;
    if (deploys->config.changed)
        deploys->config.changed(deploys->config.user, news);
}

/* Ends the transaction, if it came to one. */
static bool finish(struct work *work, bool ok)
{
    if (!work->sql->in_transaction)
        return ok;
    if (ok && !work->op->err) {
        ok = sql_commit(work->sql);
        atomic_store(&work->op->owner->facts_old, true); /* a mere renewal is no transaction */
        return ok;
    }
    sql_rollback(work->sql);
    return ok;
}

static bool follow_clock(struct lane *lane)
{
    int64_t before_ms = lane->sql->ahead_ms;

    if (!deploys_follow_clock(lane->sql))
        return false;
    if (lane->sql->ahead_ms != before_ms)
        atomic_store(&lane->deploys->facts_old, true);
    return true;
}

/* An op that refuses something has read, and perhaps locked, but changed nothing. */
static bool run_verb(struct lane *lane, struct deploys_op *op)
{
    struct deploys *deploys = lane->deploys;
    struct work work = {
        .sql = lane->sql, .op = op, .facts = &deploys->facts, .table = &deploys->table};

    if (!follow_clock(lane))
        return false;
    if (op->verb == DEPLOYS_VIEW && !op->u.view.after.len) /* other pages have none */
        work.facts_old = atomic_exchange(&deploys->facts_old, false);
    bool ok = finish(&work, (verbs[op->verb].how != WRITES || work_begin(&work)) &&
                                verbs[op->verb].run(&work));
    if (!ok && work.facts_old)
        atomic_store(&deploys->facts_old, true); /* still */
    return ok;
}

static void answered(struct msg *msg)
{
    struct deploys_op *op = container_of(msg, struct deploys_op, msg);

    op->done(op);
}

static void answer(struct lane *lane, struct deploys_op *op)
{
    int64_t before = atomic_fetch_sub(&lane->deploys->in_flight, 1);

    assert(before > 0 && !lane->sql->in_transaction);
    op->msg.run = answered;
    inbox_post(op->reply_to, &op->msg);
}

/* It came too late, or there is no database: nothing is done. */
static bool is_refused(struct lane *lane, struct deploys_op *op)
{
    if (atomic_load(&lane->up) && (!op->until_mono_ms || clock_mono_ms() <= op->until_mono_ms))
        return false;
    op->err = ERR_STORE_DOWN;
    metric_add_label(METRIC_SQL, "error", 1);
    return true;
}

static void run_op(struct lane *lane, struct deploys_op *op)
{
    int64_t news;

    op->err = ERR_OK;
    op->news = 0;
    if (is_refused(lane, op)) {
    } else if (!run_verb(lane, op)) {
        op->err = failed(lane);
        op->detail = arena_str(op->arena, str_of(lane->sql->detail));
    } else {
        metric_add_label(METRIC_SQL, "ok", 1);
    }
    news = op->err || verbs[op->verb].how == READS ? 0 : op->news;
    answer(lane, op);
    tell_news(lane->deploys, news);
}

/* Renewals that came together are one transaction: a disk that takes 10 ms for each would keep up
 * with a hundred nodes. What takes more than prolonging a good lease is done one by one behind it;
 * so are all when the database refused one of them, which is undone for all.
 */
static bool renew_together(struct lane *lane, bool done[RENEWALS_MAX])
{
    for (size_t i = 0; i < lane->renewal_count; i++) {
        struct work work = {.sql = lane->sql, .op = lane->renewals[i]};

        if (!deploys_renew_good(&work, &done[i]))
            return false;
    }
    return true;
}

static int by_node(const void *a, const void *b)
{
    return str_cmp((*(struct deploys_op *const *)a)->node, (*(struct deploys_op *const *)b)->node);
}

static void run_renewals(struct lane *lane)
{
    bool done[RENEWALS_MAX] = {0}, ok;
    size_t count = 0;

    for (size_t i = 0; i < lane->renewal_count; i++) {
        struct deploys_op *op = lane->renewals[i];

        op->err = ERR_OK;
        op->news = 0;
        if (is_refused(lane, op))
            answer(lane, op);
        else
            lane->renewals[count++] = op;
    }
    lane->renewal_count = 0;
    if (count == 0)
        return;
    qsort(lane->renewals, count, sizeof *lane->renewals, by_node); /* who locks several does so */
    lane->renewal_count = count;
    ok = follow_clock(lane) && sql_begin(lane->sql) && renew_together(lane, done) &&
         sql_commit(lane->sql);
    lane->renewal_count = 0;
    if (!ok) {
        sql_rollback(lane->sql);
        failed(lane);
    }
    for (size_t i = 0; i < count; i++) {
        struct deploys_op *op = lane->renewals[i];

        if (ok ? !done[i] : lane->sql->connected) {
            run_op(lane, op);
            continue;
        }
        op->err = ok ? ERR_OK : ERR_STORE_DOWN;
        metric_add_label(METRIC_SQL, ok ? "ok" : "error", 1);
        answer(lane, op);
    }
}

static void take_op(struct msg *msg)
{
    struct deploys_op *op = container_of(msg, struct deploys_op, msg);
    struct lane *lane = lane_of(op->owner, op->verb);

    if (op->verb == DEPLOYS_RENEW && !op->u.renew.goodbye) {
        if (lane->renewal_count == RENEWALS_MAX)
            run_renewals(lane);
        lane->renewals[lane->renewal_count++] = op;
        return;
    }
    msg->next = NULL;
    *(lane->first ? &lane->last->next : &lane->first) = msg;
    lane->last = msg;
}

/* All that has come. Leases do not wait long behind other ops, however many there are. */
static void run_ops(struct lane *lane)
{
    do {
        inbox_run(&lane->desk.inbox);
        run_renewals(lane);
        for (int64_t until_ms = clock_mono_ms() + OTHERS_MS;
             lane->first && clock_mono_ms() < until_ms;) {
            struct deploys_op *op = container_of(lane->first, struct deploys_op, msg);

            lane->first = lane->first->next;
            run_op(lane, op);
        }
    } while (lane->first);
}

static void stop_thread(struct msg *msg)
{
    container_of(msg, struct lane, stop)->stopping = true;
}

/* The writing thread: somebody else may have changed the table. */
static void look(struct lane *lane)
{
    struct arena arena = {0};
    struct deploys_op op = {.arena = &arena};
    struct work work = {.sql = lane->sql, .op = &op};

    lane->next_look_ms = clock_mono_ms() + LOOK_MS;
    if (follow_clock(lane) && deploys_meta(&work))
        tell_news(lane->deploys, op.news);
    else
        failed(lane);
    arena_free(&arena);
}

/* The reading thread has the time for it. */
static void forget(struct lane *lane)
{
    struct arena arena = {0};
    struct deploys_op op = {.arena = &arena, .owner = lane->deploys};
    struct work work = {.sql = lane->sql, .op = &op};
    bool more = false;

    if (!follow_clock(lane) || !finish(&work, deploys_forget(&work, &more)))
        failed(lane);
    lane->next_look_ms = clock_mono_ms() + (more ? 0 : FORGET_MS);
    arena_free(&arena);
}

static int64_t pause_ms(const struct lane *lane)
{
    int64_t left_ms = lane->next_look_ms - clock_mono_ms();

    return !atomic_load(&lane->up) ? RETRY_MS : left_ms > 0 ? left_ms : 0;
}

static void *sql_thread(void *arg)
{
    struct lane *lane = arg;
    void (*now_and_then)(struct lane *) = lane == &lane->deploys->lanes[LANE_WRITE] ? look : forget;
    bool newer;

    metrics_thread();
    while (!lane->stopping) {
        desk_wait(&lane->desk, pause_ms(lane));
        run_ops(lane);
        if (!atomic_load(&lane->up)) {
            if (bring_up(lane, &newer))
                now_and_then(lane);
            run_ops(lane); /* what came while we tried */
        } else if (clock_mono_ms() >= lane->next_look_ms) {
            now_and_then(lane);
        }
    }
    run_ops(lane);
    return NULL;
}

static enum err start(struct lane *lane, struct problem *why)
{
    bool newer;

    if (!bring_up(lane, &newer) &&
        (newer || lane->sql->driver->dialect == SQL_LITE)) /* a file does not come back */
        return problem_set(why, ERR_IO, "database", "The database cannot be used: %s.",
                           lane->sql->detail);
    if (!desk_start(&lane->desk, "berth-sql", sql_thread, lane))
        return problem_set(why, ERR_IO, "", "No thread for the database can be started.");
    return ERR_OK;
}

static void free_all(struct deploys *deploys)
{
    for (size_t i = 0; i < LANE_COUNT; i++)
        sql_free(deploys->lanes[i].sql);
    arena_free(&deploys->facts.arena);
    deploys_table_done(&deploys->table);
    pthread_mutex_destroy(&deploys->detail_lock);
    free(deploys);
}

static void stop_lane(struct lane *lane)
{
    inbox_post(&lane->desk.inbox, &lane->stop);
    desk_join(&lane->desk);
    assert(lane->stopping);
    atomic_store(&lane->up, false);
}

enum err deploys_open(const struct deploys_config *config, struct deploys **ret_deploys,
                      struct problem *why)
{
    struct deploys *deploys = mem_aligned(_Alignof(struct deploys), sizeof *deploys);
    struct sql_config sql = {.url = config->url,
                             .data_dir = config->data_dir,
                             .timeout_ms = config->timeout_ms,
                             .now_ms = config->now_ms};
    size_t started = 0;
    enum err err = ERR_OK;

    deploys->config = *config;
    if (deploys->config.in_flight_max <= 0)
        deploys->config.in_flight_max = IN_FLIGHT_DEFAULT;
    pthread_mutex_init(&deploys->detail_lock, NULL);
    for (size_t i = 0; i < LANE_COUNT; i++) {
        deploys->lanes[i].deploys = deploys;
        deploys->lanes[i].stop.run = stop_thread;
        desk_init(&deploys->lanes[i].desk);
    }
    for (; !err && started < LANE_COUNT; started += !err) {
        err = sql_open(&sql, &deploys->lanes[started].sql, why);
        if (!err)
            err = start(&deploys->lanes[started], why);
    }
    if (err) {
        for (size_t i = 0; i < started; i++)
            stop_lane(&deploys->lanes[i]);
        free_all(deploys);
        return err;
    }
    *ret_deploys = deploys;
    return ERR_OK;
}

enum err deploys_send(struct deploys *deploys, struct deploys_op *op)
{
    struct lane *lane;

    assert(op->done && op->reply_to && op->arena && op->verb < DEPLOYS_VERB_COUNT &&
           verbs[op->verb].run);
    lane = lane_of(deploys, op->verb);
    if (!atomic_load(&lane->up))
        return ERR_STORE_DOWN;
    if (atomic_fetch_add(&deploys->in_flight, 1) >= deploys->config.in_flight_max) {
        atomic_fetch_sub(&deploys->in_flight, 1);
        return ERR_BUSY;
    }
    op->owner = deploys;
    op->msg.run = take_op;
    inbox_post(&lane->desk.inbox, &op->msg);
    return ERR_OK;
}

void deploys_status(struct deploys *deploys, struct deploys_status *ret_status)
{
    *ret_status = (struct deploys_status){.up = true, .errors = atomic_load(&deploys->errors)};
    for (size_t i = 0; i < LANE_COUNT; i++)
        ret_status->up = ret_status->up && atomic_load(&deploys->lanes[i].up);
    pthread_mutex_lock(&deploys->detail_lock);
    snprintf(ret_status->detail, sizeof ret_status->detail, "%s", deploys->detail);
    pthread_mutex_unlock(&deploys->detail_lock);
}

void deploys_stop(struct deploys *deploys)
{
    if (!deploys || deploys->stopped)
        return;
    deploys->stopped = true;
    for (size_t i = 0; i < LANE_COUNT; i++)
        stop_lane(&deploys->lanes[i]);
    assert(atomic_load(&deploys->in_flight) == 0);
}

void deploys_close(struct deploys *deploys)
{
    deploys_stop(deploys);
    if (deploys)
        free_all(deploys);
}
