/* `embedded:` - the store thread takes its whole inbox as one batch: applies it to the ledger,
 * which writes through to the journal, commits once (one fsync for all), then answers. What queued
 * up meanwhile is the next batch; there is no timer. The helper thread reads and makes checkpoints.
 *
 * A commit that fails answers its whole batch, see journal_commit(); memory is thrown away and both
 * connections are closed; then memory is built anew by the same code that starts up. Until that
 * works every new op is refused at the door. */
#include "store/embedded.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "store/front.h"
#include "store/journal.h"
#include "store/purge.h"
#include "store/reader.h"

#include <assert.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

enum {
    IDLE_MS = 1000,
    PURGE_IDLE_MS = 100, /* between two rounds while there is more to purge */
    PURGE_IDLE_ROWS = 256,
    PURGE_BATCH_ROWS = 16, /* and two for each new row, so that it catches up under any load */
    AUDIT_MS = 10000,
    REVIVE_MIN_MS = 100,
    REVIVE_MAX_MS = 1000,
    FAILURES_LOCAL_ONLY = 10,
    CLOCK_SET_MS = 1000, /* the wall clock went so far from ours: somebody set it */
    /* Pages of 4 KiB. The helper copies each time the WAL grew by so many; at the bound the store
     * thread copies the small rest itself between two batches, after which the WAL starts over. */
    WAL_COPY_PAGES = 2048,
    WAL_RESTART_PAGES = 8192,
    WAL_REST_PAGES = 512, /* so little may be left for the store thread */
    WAL_PASSES = 3,
};

struct embedded {
    struct store store;
    struct storefile file;
    struct front front;
    int64_t (*test_clock)(void); /* NULL: see store_now() */
    struct lease_terms terms;
    int64_t retention_ms;
    int64_t retention_jobs_max;
    struct breaker_rules breaker;

    /* Any thread. */
    _Atomic bool check_always;
    _Atomic(const char *) fault_what;
    _Atomic int fault_code;
    _Atomic int fault_sys;

    /* The store thread's. */
    struct journal journal;
    struct ledger ledger;
    struct purge purge;
    uint64_t order;    /* of the last op applied */
    int failures;      /* in a row */
    int64_t revive_ms; /* clock_mono_ms: when to try again */
    int64_t audit_ms;
    int64_t purge_ms;
    bool copying; /* the helper was asked to and has not reported yet */
    int copy_at_pages;
    bool stopping;
    sem_t reader_closed;

    /* The helper's. */
    struct reader reader;
    bool helper_stopping;

    /* How the two threads talk: each is under way at most once. */
    struct msg stop;
    struct msg copied;
    struct msg helper_stop;
    struct msg copy_wal;
    struct msg close_reader;
};

static struct embedded *of(struct store *store)
{
    return container_of(store, struct embedded, store);
}

/* The wall clock's time, but as even as the monotonic clock: it does not follow a clock that is set
 * before the leases do. */
static int64_t store_now(const struct embedded *self)
{
    return self->test_clock ? self->test_clock()
                            : clock_mono_ms() +
                                  atomic_load_explicit(&self->store.ahead_ms, memory_order_relaxed);
}

static bool take_late(const struct embedded *self, struct store_op *op)
{
    int64_t now_ms = self->test_clock ? self->test_clock() : clock_mono_ms();

    if (!op->not_after_ms || now_ms <= op->not_after_ms)
        return false;
    op->err = ERR_TOO_LATE;
    op->head.id = 0;
    return true;
}

/* How far somebody has set the wall clock, or how long the machine slept; 0: neither. From now on
 * the store's time is that of the wall again. */
static int64_t take_clock_step(struct embedded *self)
{
    int64_t ahead_ms = atomic_load_explicit(&self->store.ahead_ms, memory_order_relaxed);
    int64_t step_ms = self->test_clock ? 0 : clock_wall_ahead_ms() - ahead_ms;

    if (step_ms >= -CLOCK_SET_MS && step_ms <= CLOCK_SET_MS)
        return 0;
    atomic_store_explicit(&self->store.ahead_ms, ahead_ms + step_ms, memory_order_relaxed);
    return step_ms;
}

static struct msg *embedded_send(struct store *store, struct msg *ops)
{
    return front_send(&of(store)->front, ops);
}

static void note_fault(struct embedded *self, const struct fault *fault)
{
    front_count_error(&self->front);
    atomic_store_explicit(&self->fault_what, fault->what, memory_order_relaxed);
    atomic_store_explicit(&self->fault_code, fault->code, memory_order_relaxed);
    atomic_store_explicit(&self->fault_sys, fault->sys, memory_order_relaxed);
}

static void embedded_status(struct store *store, struct store_status *ret_status)
{
    struct embedded *self = of(store);
    struct fault fault = {.what = atomic_load_explicit(&self->fault_what, memory_order_relaxed),
                          .code = atomic_load_explicit(&self->fault_code, memory_order_relaxed),
                          .sys = atomic_load_explicit(&self->fault_sys, memory_order_relaxed)};

    front_status(&self->front, ret_status);
    fault_text(&fault, ret_status->detail, sizeof ret_status->detail);
}

static void wait_reader_closed(struct embedded *self)
{
    inbox_post(&self->front.helper.inbox, &self->close_reader);
    while (sem_wait(&self->reader_closed))
        ;
}

/* Both connections are closed. The anchor stays, so that what was refused stays refused, unless the
 * file itself cannot be trusted. */
static void throw_away(struct embedded *self)
{
    int code = self->journal.fault.code & 0xff;

    wait_reader_closed(self);
    if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB)
        storefile_lift_anchor(&self->file);
    ledger_free(&self->ledger);
    journal_close(&self->journal);
}

static void go_down(struct embedded *self)
{
    front_set_up(&self->front, false);
    self->failures++;
    note_fault(self, &self->journal.fault);
    front_set_mode(&self->front,
                   self->failures < FAILURES_LOCAL_ONLY ? STORE_L2_ONLY : STORE_LOCAL_ONLY);
}

/* Opens the file and builds memory from it: at the start, and after every failure. */
static bool bring_up(struct embedded *self)
{
    struct ledger_config config = {.journal = &self->journal,
                                   .now_ms = store_now(self),
                                   .terms = self->terms,
                                   .retention_ms = self->retention_ms,
                                   .breaker = self->breaker};

    if (!journal_open(&self->journal, &self->file))
        return false;
    if (!ledger_load(&self->ledger, &config)) {
        journal_close(&self->journal);
        return false;
    }
    /* A file that opens may still take no writes: only one that worked makes us well again. */
    if ((self->failures && !journal_probe(&self->journal)) ||
        !storefile_anchor(&self->file, &self->journal.fault)) {
        ledger_free(&self->ledger);
        journal_close(&self->journal);
        return false;
    }
    purge_init(&self->purge, self->retention_ms, self->retention_jobs_max);
    self->copy_at_pages = WAL_COPY_PAGES;
    self->audit_ms = clock_mono_ms() + AUDIT_MS;
    self->purge_ms = 0;
    self->failures = 0;
    front_set_mode(&self->front, STORE_NORMAL);
    metric_set(METRIC_BREAKERS_OPEN, self->ledger.breakers.open_count);
    front_set_up(&self->front, true);
    return true;
}

static void revive(struct embedded *self)
{
    int64_t wait_ms = REVIVE_MIN_MS;

    if (clock_mono_ms() < self->revive_ms)
        return;
    wait_reader_closed(self); /* it may have read meanwhile */
    if (bring_up(self))
        return;
    go_down(self);
    for (int i = 1; i < self->failures && wait_ms < REVIVE_MAX_MS; i++)
        wait_ms *= 2;
    self->revive_ms = clock_mono_ms() + (wait_ms < REVIVE_MAX_MS ? wait_ms : REVIVE_MAX_MS);
}

static void run_batch(struct embedded *self, struct msg *batch)
{
    int64_t step_ms = take_clock_step(self);
    int64_t now_ms = store_now(self);

    if (step_ms)
        ledger_clock_set(&self->ledger, step_ms);
    ledger_begin(&self->ledger, now_ms);
    for (struct msg *msg = batch; msg; msg = msg->next) {
        struct store_op *op = container_of(msg, struct store_op, msg);

        op->order = ++self->order;
        if (!take_late(self, op))
            ledger_apply(&self->ledger, op, now_ms);
    }
    if (self->journal.writing)
        purge_step(&self->purge, &self->journal, self->ledger.active_count, now_ms,
                   PURGE_BATCH_ROWS + 2 * self->journal.added);
    enum err err = journal_commit(&self->journal);
    if (err) {
        go_down(self); /* first, so that nobody sends more */
        front_answer(&self->front, batch, err);
        throw_away(self);
        return;
    }
    if (atomic_load_explicit(&self->check_always, memory_order_relaxed))
        ledger_check(&self->ledger);
    front_count_batch(&self->front);
    metric_set(METRIC_BREAKERS_OPEN, self->ledger.breakers.open_count);
    front_answer(&self->front, batch, ERR_OK);
}

static void audit(struct embedded *self, int64_t mono_ms)
{
    int repairs = ledger_audit(&self->ledger);

    self->audit_ms = mono_ms + AUDIT_MS;
    if (repairs)
        front_count_repairs(&self->front, repairs);
}

/* Rows that are too old go also when nothing else is written. */
static void purge(struct embedded *self, int64_t mono_ms)
{
    int64_t now_ms = store_now(self);
    bool more = purge_step(&self->purge, &self->journal, self->ledger.active_count, now_ms,
                           PURGE_IDLE_ROWS);

    self->purge_ms = mono_ms + (more ? PURGE_IDLE_MS : IDLE_MS);
    ledger_tidy(&self->ledger, now_ms);
    if (!journal_commit(&self->journal))
        return;
    go_down(self);
    throw_away(self);
}

/* What nobody waits for, between two batches. */
static void do_chores(struct embedded *self)
{
    int64_t mono_ms = clock_mono_ms();

    if (self->journal.wal_pages >= self->copy_at_pages && !self->copying) {
        self->copying = true;
        inbox_post(&self->front.helper.inbox, &self->copy_wal);
    }
    if (mono_ms >= self->audit_ms)
        audit(self, mono_ms);
    if (mono_ms >= self->purge_ms)
        purge(self, mono_ms);
}

static int64_t time_to_wait(const struct embedded *self)
{
    int64_t left_ms =
        (front_is_up(&self->front) ? self->purge_ms : self->revive_ms) - clock_mono_ms();

    return left_ms < 0 ? 0 : left_ms < IDLE_MS ? left_ms : IDLE_MS;
}

static void *store_thread(void *arg)
{
    struct embedded *self = arg;

    metrics_thread();
    while (!self->stopping || atomic_load(&self->front.desk.inbox.head)) {
        struct msg *own;
        struct msg *batch;

        desk_wait(&self->front.desk, time_to_wait(self));
        batch = front_take(&self->front.desk, &own);
        if (!front_is_up(&self->front))
            front_answer(&self->front, batch, ERR_STORE_DOWN);
        else if (batch)
            run_batch(self, batch);
        front_run_own(own);
        if (front_is_up(&self->front))
            do_chores(self);
        else if (!self->stopping)
            revive(self);
    }
    return NULL;
}

/* The helper copied what it could. While much is written it never gets all of it, so at the bound
 * the store thread copies the rest, which is little by now: with nobody writing meanwhile the WAL
 * then starts over instead of growing. */
static void wal_copied(struct msg *msg)
{
    struct embedded *self = container_of(msg, struct embedded, copied);

    self->copying = false;
    if (!front_is_up(&self->front))
        return;
    self->copy_at_pages = self->journal.wal_pages + WAL_COPY_PAGES;
    if (self->journal.wal_pages >= WAL_RESTART_PAGES && journal_checkpoint(&self->journal))
        self->copy_at_pages = WAL_COPY_PAGES;
}

static void stop_store(struct msg *msg)
{
    container_of(msg, struct embedded, stop)->stopping = true;
}

/* The helper thread. */

static void *helper_thread(void *arg)
{
    struct embedded *self = arg;

    metrics_thread();
    while (!self->helper_stopping || atomic_load(&self->front.helper.inbox.head)) {
        struct msg *own;
        struct msg *ops;

        desk_wait(&self->front.helper, IDLE_MS);
        ops = front_take(&self->front.helper, &own);
        for (struct msg *next; ops; ops = next) {
            struct store_op *op = container_of(ops, struct store_op, msg);

            next = ops->next;
            ops->next = NULL;
            if (!take_late(self, op))
                reader_run(&self->reader, op);
            if (op->err == ERR_STORE_DOWN && front_is_up(&self->front))
                note_fault(self, &self->reader.fault);
            front_answer(&self->front, ops, op->err == ERR_STORE_DOWN ? ERR_STORE_DOWN : ERR_OK);
        }
        front_run_own(own);
    }
    return NULL;
}

/* A second and third pass copy what was written during the one before, so that little is left. */
static void copy_wal(struct msg *msg)
{
    struct embedded *self = container_of(msg, struct embedded, copy_wal);
    int pages = 0;
    int copied = 0;

    for (int i = 0; i < WAL_PASSES && (i == 0 || pages - copied > WAL_REST_PAGES); i++)
        if (!reader_checkpoint(&self->reader, &pages, &copied)) {
            note_fault(self, &self->reader.fault);
            break;
        }
    inbox_post(&self->front.desk.inbox, &self->copied);
}

static void close_reader(struct msg *msg)
{
    struct embedded *self = container_of(msg, struct embedded, close_reader);

    reader_close(&self->reader, true);
    sem_post(&self->reader_closed);
}

static void stop_helper(struct msg *msg)
{
    container_of(msg, struct embedded, helper_stop)->helper_stopping = true;
}

/* Opening and closing. */

static void free_all(struct embedded *self)
{
    reader_close(&self->reader, false);
    storefile_lift_anchor(&self->file); /* the journal's goes last and empties the WAL */
    ledger_free(&self->ledger);
    journal_close(&self->journal);
    storefile_release(&self->file);
    sem_destroy(&self->reader_closed);
    free(self);
}

static struct embedded *embedded_new(const struct store_config *config)
{
    struct embedded *self = mem_aligned(_Alignof(struct embedded), sizeof *self);

    self->store.backend = &embedded_backend;
    self->store.number = config->instance;
    self->store.number_until_ms = INT64_MAX;
    self->test_clock = config->now_ms;
    if (!self->test_clock)
        self->store.ahead_ms = clock_wall_ahead_ms();
    self->terms = config->terms.task_ms > 0 ? config->terms : lease_terms_default;
    self->retention_ms = config->retention_ms;
    self->retention_jobs_max = config->retention_jobs_max;
    self->breaker = breaker_defaults;
    self->breaker.threshold = (int32_t)config->breaker_threshold;
    self->breaker.cooldown_ms = config->breaker_cooldown_ms;
    front_init(&self->front, reader_answers, config->in_flight_max);
    self->front.reads_while_down = true; /* from the file */
    sem_init(&self->reader_closed, 0, 0);
    self->stop.run = stop_store;
    self->copied.run = wal_copied;
    self->helper_stop.run = stop_helper;
    self->copy_wal.run = copy_wal;
    self->close_reader.run = close_reader;
    return self;
}

static enum err embedded_open(const struct store_config *config, struct store **ret_store,
                              struct problem *why)
{
    struct embedded *self = embedded_new(config);
    enum err err = storefile_claim(&self->file, config->data_dir, why);
    char detail[160];

    if (err) {
        sem_destroy(&self->reader_closed);
        free(self);
        return err;
    }
    reader_init(&self->reader, &self->file);
    if (!bring_up(self)) {
        fault_text(&self->journal.fault, detail, sizeof detail);
        err = problem_set(why, ERR_IO, "data_dir", "The store file %s cannot be used: %s.",
                          self->file.path, detail);
        free_all(self);
        return err;
    }
    if (!desk_start(&self->front.helper, "berth-reader", helper_thread, self)) {
        free_all(self);
        return problem_set(why, ERR_IO, "", "No thread for the store can be started.");
    }
    if (!desk_start(&self->front.desk, "berth-store", store_thread, self)) {
        front_stop_desk(&self->front.helper, &self->helper_stop);
        free_all(self);
        return problem_set(why, ERR_IO, "", "No thread for the store can be started.");
    }
    *ret_store = &self->store;
    return ERR_OK;
}

static void embedded_stop(struct store *store)
{
    struct embedded *self = of(store);

    front_stop_desk(&self->front.desk, &self->stop); /* it may still need the helper */
    front_stop_desk(&self->front.helper, &self->helper_stop);
    assert(atomic_load(&self->front.in_flight) == 0);
}

static void embedded_free(struct store *store)
{
    free_all(of(store));
}

void embedded_check_always(struct store *store)
{
    atomic_store_explicit(&of(store)->check_always, true, memory_order_relaxed);
}

const struct store_backend embedded_backend = {
    .scheme = "embedded",
    .open = embedded_open,
    .send = embedded_send,
    .status = embedded_status,
    .stop = embedded_stop,
    .free = embedded_free,
};
