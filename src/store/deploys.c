/* The SQL thread: takes ops in the order they came, one transaction each, and answers. While the
 * database is away it answers that at once, and tries to get it back. */
#include "store/deploys.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "store/deploys_private.h"
#include "store/desk.h"

enum {
    LOOK_MS = 1000, /* how often the version is looked at: another instance may have changed it */
    RETRY_MS = 500, /* between two tries to connect */
    IN_FLIGHT_DEFAULT = 4096,
};

struct deploys {
    struct desk desk;
    struct msg stop;
    bool stopping; /* the thread's */
    struct sql *sql;
    struct deploys_config config;
    int64_t told_news;
    int64_t next_look_ms;
    _Atomic bool up;
    _Atomic int64_t in_flight;
    _Atomic int64_t errors;
    pthread_mutex_t detail_lock; /* never on a request's path: a status is read by people */
    char detail[SQL_DETAIL_MAX];
};

static const struct {
    deploys_verb *run;
    bool writes;
} verbs[DEPLOYS_VERB_COUNT] = {
    [DEPLOYS_LIST] = {deploys_list, false},        [DEPLOYS_GET] = {deploys_get, false},
    [DEPLOYS_PUT] = {deploys_put, true},           [DEPLOYS_ENABLE] = {deploys_enable, true},
    [DEPLOYS_RESTART] = {deploys_restart, true},   [DEPLOYS_DELETE] = {deploys_delete, true},
    [DEPLOYS_HISTORY] = {deploys_history, false},  [DEPLOYS_RELEASE] = {deploys_release, true},
    [DEPLOYS_APPROVE] = {deploys_approve, true},   [DEPLOYS_DRAIN] = {deploys_drain, true},
    [DEPLOYS_VIEW] = {deploys_view, false},        [DEPLOYS_RENEW] = {deploys_renew, true},
    [DEPLOYS_CLAIM] = {deploys_claim, true},       [DEPLOYS_YIELD] = {deploys_yield, true},
    [DEPLOYS_STATUS] = {deploys_set_status, true},
};

static void set_detail(struct deploys *deploys, const char *detail)
{
    pthread_mutex_lock(&deploys->detail_lock);
    snprintf(deploys->detail, sizeof deploys->detail, "%s", detail);
    pthread_mutex_unlock(&deploys->detail_lock);
}

/* Every try counts, also our own: while it is away callers are refused before they get here, and a
 * counter that stands still would look like a database that is well. */
static void went_down(struct deploys *deploys)
{
    metric_add_label(METRIC_SQL, "error", 1);
    atomic_store(&deploys->up, false);
    atomic_fetch_add(&deploys->errors, 1);
    set_detail(deploys, deploys->sql->detail);
}

/* Connected, and its tables are ours. *ret_newer: they are of a newer berth, which may mean
 * anything. */
static bool bring_up(struct deploys *deploys, bool *ret_newer)
{
    *ret_newer = false;
    if (!sql_connect(deploys->sql) || !deploys_migrate(deploys->sql, ret_newer)) {
        went_down(deploys);
        return false;
    }
    if (*ret_newer) {
        sql_failed(deploys->sql, "use the database", "it was written by a newer berth");
        went_down(deploys);
        return false;
    }
    atomic_store(&deploys->up, true);
    return true;
}

static void tell_news(struct deploys *deploys, int64_t news)
{
    if (news == deploys->told_news || news == 0)
        return;
    deploys->told_news = news;
    if (deploys->config.changed)
        deploys->config.changed(deploys->config.user, news);
}

/* An op that refuses something has read, and perhaps locked, but changed nothing. */
static bool run_verb(struct deploys *deploys, struct deploys_op *op)
{
    struct work work = {.sql = deploys->sql, .op = op};
    bool ok;

    if (!verbs[op->verb].writes)
        return verbs[op->verb].run(&work);
    ok = sql_begin(deploys->sql) && verbs[op->verb].run(&work);
    if (ok && !op->err)
        return sql_commit(deploys->sql);
    sql_rollback(deploys->sql);
    return ok;
}

static void answered(struct msg *msg)
{
    struct deploys_op *op = container_of(msg, struct deploys_op, msg);

    op->done(op);
}

static void answer(struct deploys *deploys, struct deploys_op *op)
{
    int64_t before = atomic_fetch_sub(&deploys->in_flight, 1);

    assert(before > 0 && !deploys->sql->in_transaction);
    op->msg.run = answered;
    inbox_post(op->reply_to, &op->msg);
}

static void run_op(struct deploys *deploys, struct deploys_op *op)
{
    int64_t news;

    assert(op->owner == deploys && verbs[op->verb].run);
    op->err = ERR_OK;
    op->news = 0;
    if (!atomic_load(&deploys->up) || (op->until_mono_ms && clock_mono_ms() > op->until_mono_ms)) {
        op->err = ERR_STORE_DOWN;
        metric_add_label(METRIC_SQL, "error", 1);
    } else if (!run_verb(deploys, op)) {
        op->err = ERR_STORE_DOWN;
        went_down(deploys);
    } else {
        metric_add_label(METRIC_SQL, "ok", 1);
    }
    news = op->err ? 0 : op->news;
    answer(deploys, op);
    tell_news(deploys, news);
}

static void take_op(struct msg *msg)
{
    struct deploys_op *op = container_of(msg, struct deploys_op, msg);

    run_op(op->owner, op);
}

static void stop_thread(struct msg *msg)
{
    container_of(msg, struct deploys, stop)->stopping = true;
}

/* Somebody else may have changed the table. */
static void look(struct deploys *deploys)
{
    struct arena arena = {0};
    struct deploys_op op = {.arena = &arena};
    struct work work = {.sql = deploys->sql, .op = &op};

    deploys->next_look_ms = clock_mono_ms() + LOOK_MS;
    if (deploys_meta(&work))
        tell_news(deploys, op.news);
    else
        went_down(deploys);
    arena_free(&arena);
}

static void *sql_thread(void *arg)
{
    struct deploys *deploys = arg;
    bool newer;

    metrics_thread();
    while (!deploys->stopping) {
        desk_wait(&deploys->desk, atomic_load(&deploys->up) ? LOOK_MS : RETRY_MS);
        inbox_run(&deploys->desk.inbox);
        if (!atomic_load(&deploys->up)) {
            if (bring_up(deploys, &newer))
                look(deploys);
            inbox_run(&deploys->desk.inbox); /* what came while we tried */
        } else if (clock_mono_ms() >= deploys->next_look_ms) {
            look(deploys);
        }
    }
    inbox_run(&deploys->desk.inbox);
    return NULL;
}

static enum err start(struct deploys *deploys, struct problem *why)
{
    bool newer;

    if (!bring_up(deploys, &newer) &&
        (newer || deploys->sql->driver->dialect == SQL_LITE)) /* a file does not come back */
        return problem_set(why, ERR_IO, "database", "The database cannot be used: %s.",
                           deploys->sql->detail);
    if (!desk_start(&deploys->desk, "berth-sql", sql_thread, deploys))
        return problem_set(why, ERR_IO, "", "No thread for the database can be started.");
    return ERR_OK;
}

static void free_all(struct deploys *deploys)
{
    sql_free(deploys->sql);
    pthread_mutex_destroy(&deploys->detail_lock);
    free(deploys);
}

enum err deploys_open(const struct deploys_config *config, struct deploys **ret_deploys,
                      struct problem *why)
{
    struct deploys *deploys = mem_aligned(_Alignof(struct deploys), sizeof *deploys);
    struct sql_config sql = {.url = config->url,
                             .data_dir = config->data_dir,
                             .timeout_ms = config->timeout_ms,
                             .now_ms = config->now_ms};
    enum err err;

    deploys->config = *config;
    if (deploys->config.in_flight_max <= 0)
        deploys->config.in_flight_max = IN_FLIGHT_DEFAULT;
    desk_init(&deploys->desk);
    deploys->stop.run = stop_thread;
    pthread_mutex_init(&deploys->detail_lock, NULL);
    err = sql_open(&sql, &deploys->sql, why);
    if (!err)
        err = start(deploys, why);
    if (err) {
        free_all(deploys);
        return err;
    }
    *ret_deploys = deploys;
    return ERR_OK;
}

enum err deploys_send(struct deploys *deploys, struct deploys_op *op)
{
    assert(op->done && op->reply_to && op->arena && op->verb < DEPLOYS_VERB_COUNT);
    if (!atomic_load(&deploys->up))
        return ERR_STORE_DOWN;
    if (atomic_fetch_add(&deploys->in_flight, 1) >= deploys->config.in_flight_max) {
        atomic_fetch_sub(&deploys->in_flight, 1);
        return ERR_BUSY;
    }
    op->owner = deploys;
    op->msg.run = take_op;
    inbox_post(&deploys->desk.inbox, &op->msg);
    return ERR_OK;
}

void deploys_status(struct deploys *deploys, struct deploys_status *ret_status)
{
    *ret_status = (struct deploys_status){.up = atomic_load(&deploys->up),
                                          .errors = atomic_load(&deploys->errors)};
    pthread_mutex_lock(&deploys->detail_lock);
    snprintf(ret_status->detail, sizeof ret_status->detail, "%s", deploys->detail);
    pthread_mutex_unlock(&deploys->detail_lock);
}

void deploys_stop(struct deploys *deploys)
{
    if (!deploys || deploys->stopping)
        return;
    inbox_post(&deploys->desk.inbox, &deploys->stop);
    desk_join(&deploys->desk);
    assert(atomic_load(&deploys->in_flight) == 0 && deploys->stopping);
    atomic_store(&deploys->up, false);
}

void deploys_close(struct deploys *deploys)
{
    deploys_stop(deploys);
    if (deploys)
        free_all(deploys);
}
