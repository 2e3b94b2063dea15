/* `embedded:` - the store thread takes its whole inbox as one batch: applies it to the ledger,
 * which notes changes in the journal, commits once (one record, one fsync for all), then answers.
 * What queued up meanwhile is the next batch; there is no timer. The flush thread copies the
 * journal into store.db at its own pace; the reader thread reads from there.
 *
 * A failed commit answers its whole batch with the error, see journal_commit(); memory is discarded
 * and the connections are closed; then memory is rebuilt by the startup code. Until that works
 * every new op is refused at once. A failed flush is retried: nothing is lost meanwhile, but when
 * too much is waiting for it, nothing new is accepted. */
#include "store/embedded.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "store/flush.h"
#include "store/journal.h"
#include "store/op_queue.h"
#include "store/reader.h"

#include <assert.h>
#include <linux/ioprio.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    IDLE_MS = 1000,
    FLUSH_DEFAULT_MS = 500,             /* journal records this old are copied into store.db */
    FLUSH_SOON_BYTES = FLUSH_BYTES / 4, /* or when this much is waiting */
    PURGE_IDLE_MS = 100,                /* between two rounds while there is more to purge */
    PURGE_ROWS = 256, /* plus two for each new row, so that it catches up under any load */
    AUDIT_MS = 10000,
    RETRY_MIN_MS = 100,
    RETRY_MAX_MS = 1000,
    FAILURES_LOCAL_ONLY = 10,
    CLOCK_SET_MS = 1000,           /* a wall clock this far from ours has been set */
    JOURNAL_BYTES_MAX = 256 << 20, /* not yet in store.db, in the journal and in memory */
};

struct embedded {
    struct store store;
    struct storefile file;
    struct op_queue op_queue;
    int64_t (*test_clock)(void); /* NULL: see store_now() */
    struct lease_terms terms;
    int64_t retention_ms;
    int64_t retention_jobs_max;
    struct breaker_rules breaker;

    int64_t journal_bytes_max;
    int64_t flush_every_ms;

    /* Any thread. */
    _Atomic bool check_always;
    _Atomic bool full; /* see store_status */
    _Atomic(const char *) fault_what;
    _Atomic int fault_code;
    _Atomic int fault_sys;

    /* The store thread's. */
    struct journal journal;
    struct ledger ledger;
    bool readable;     /* the journal is open and the memtable matches it */
    uint64_t order;    /* of the last op applied */
    int failures;      /* in a row */
    int64_t revive_ms; /* clock_mono_ms: when to try again */
    uint64_t good_seq; /* later batches were reported as failed and must stay so */
    int64_t audit_ms;
    int64_t tidy_ms;
    sem_t thread_closed;

    /* The reader's. */
    struct reader reader;

    /* The flush thread's. */
    struct work_queue flusher;
    struct flush flush;
    int64_t flush_ms; /* clock_mono_ms: of the last flush */
    int64_t purge_ms; /* when the next is due */
    int64_t retry_ms; /* not before, after a failure */
    int flush_failures;
    bool flush_wanted;  /* before the interval is over */
    bool requests_idle; /* its I/O has idle priority */

    /* From the store thread to the flush thread. */
    _Atomic uint64_t committed_seq;
    _Atomic size_t active_count;
    _Atomic bool flush_asked; /* the message flush_soon is in flight */
    /* And back. */
    _Atomic uint64_t flushed_seq;
    _Atomic int64_t flushed_bytes; /* not yet counted by the store thread */
    _Atomic bool flush_told;       /* the message flushed is in flight */

    /* Messages between the threads: each is in flight at most once. */
    struct msg flushed;
    struct msg close_reader;
    struct msg flush_soon;
    struct msg close_flush;
};

static struct embedded *of(struct store *store)
{
    return container_of(store, struct embedded, store);
}

/* Wall-clock time that advances like the monotonic clock: when the clock is set, it follows only
 * together with the leases. */
static int64_t store_now(const struct embedded *self)
{
    return self->test_clock ? self->test_clock()
                            : clock_mono_ms() +
                                  atomic_load_explicit(&self->store.ahead_ms, memory_order_relaxed);
}

static bool refuse_if_late(const struct embedded *self, struct store_op *op)
{
    int64_t now_ms = self->test_clock ? self->test_clock() : clock_mono_ms();

    if (!op->not_after_ms || now_ms <= op->not_after_ms)
        return false;
    op->err = ERR_TOO_LATE;
    op->head.id = 0;
    return true;
}

static struct msg *embedded_send(struct store *store, struct msg *ops)
{
    return op_queue_send(&of(store)->op_queue, ops);
}

static void note_fault(struct embedded *self, const struct fault *fault)
{
    op_queue_count_error(&self->op_queue);
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

    op_queue_status(&self->op_queue, ret_status);
    ret_status->full = atomic_load_explicit(&self->full, memory_order_relaxed);
    fault_text(&fault, ret_status->detail, sizeof ret_status->detail);
}

/* Closes the other threads' connections before ours are closed or opened. */
static void wait_others_closed(struct embedded *self)
{
    inbox_post(&self->op_queue.reader.inbox, &self->close_reader);
    inbox_post(&self->flusher.inbox, &self->close_flush);
    for (int i = 0; i < 2; i++)
        while (sem_wait(&self->thread_closed))
            ;
}

/* Discards memory; all connections must be closed. */
static void throw_away(struct embedded *self)
{
    wait_others_closed(self);
    self->good_seq = self->journal.seq;
    self->readable = false;
    ledger_free(&self->ledger);
    journal_close(&self->journal);
}

static void go_down(struct embedded *self)
{
    op_queue_set_up(&self->op_queue, false);
    self->failures++;
    note_fault(self, &self->journal.fault);
    op_queue_set_mode(&self->op_queue,
                      self->failures < FAILURES_LOCAL_ONLY ? STORE_L2_ONLY : STORE_LOCAL_ONLY);
}

/* Limits how far store.db may lag: beyond that nothing new is accepted until it has caught up. */
static void update_full(struct embedded *self)
{
    int64_t bytes = self->journal.bytes + self->journal.rows.bytes;
    bool full = atomic_load_explicit(&self->full, memory_order_relaxed);

    if (full ? bytes < self->journal_bytes_max / 4 * 3 : bytes >= self->journal_bytes_max)
        atomic_store_explicit(&self->full, !full, memory_order_relaxed);
}

/* Tells the flush thread what was committed. */
static void note_commit(struct embedded *self)
{
    atomic_store(&self->committed_seq, self->journal.seq);
    atomic_store_explicit(&self->active_count, self->ledger.active_count, memory_order_relaxed);
    update_full(self);
    if (self->journal.bytes >= FLUSH_SOON_BYTES && !atomic_exchange(&self->flush_asked, true))
        inbox_post(&self->flusher.inbox, &self->flush_soon);
}

/* Opens the files and builds memory from them: at the start, and after every failure. */
static bool bring_up(struct embedded *self)
{
    struct ledger_config config = {.journal = &self->journal,
                                   .now_ms = store_now(self),
                                   .terms = self->terms,
                                   .retention_ms = self->retention_ms,
                                   .breaker = self->breaker};

    if (!journal_open(&self->journal, &self->file, self->good_seq))
        return false;
    self->readable = true;
    /* A file that opens may still reject writes: we are up only after a successful write. Until
     * then its contents can be read. */
    if (!journal_settle(&self->journal) || !ledger_load(&self->ledger, &config) ||
        (self->failures && !journal_probe(&self->journal))) {
        ledger_free(&self->ledger);
        return false;
    }
    atomic_store(&self->flushed_seq, self->journal.flushed_seq);
    atomic_store(&self->flushed_bytes, 0);
    note_commit(self);
    self->audit_ms = clock_mono_ms() + AUDIT_MS;
    self->tidy_ms = 0;
    self->failures = 0;
    metric_set(METRIC_BREAKERS_OPEN, self->ledger.breakers.open_count);
    op_queue_set_up(&self->op_queue, true);
    op_queue_set_mode(&self->op_queue, STORE_NORMAL); /* last: callers that see it may send */
    return true;
}

static int64_t retry_after_ms(int failures)
{
    int64_t wait_ms = RETRY_MIN_MS;

    for (int i = 1; i < failures && wait_ms < RETRY_MAX_MS; i++)
        wait_ms *= 2;
    return wait_ms < RETRY_MAX_MS ? wait_ms : RETRY_MAX_MS;
}

static void revive(struct embedded *self)
{
    if (clock_mono_ms() < self->revive_ms)
        return;
    wait_others_closed(self); /* the reader may have read meanwhile */
    self->readable = false;
    journal_close(&self->journal);
    if (bring_up(self))
        return;
    go_down(self);
    self->revive_ms = clock_mono_ms() + retry_after_ms(self->failures);
}

/* Reads that the memtable has completely are answered here, all others by the reader, which is
 * given what store.db lacks. Between two batches everything in the memtable is on disk. */
static bool answer_from_memory(struct embedded *self, struct store_op *op)
{
    const struct memjob *job;
    struct change change;

    op->err = ERR_OK;
    op->head.id = 0;
    assert(op->arena);
    if (op->verb == STORE_JOB_GET && (job = memtable_job(&self->journal.rows, op->job)) &&
        job->row.parts & CHANGE_NEW) {
        memtable_record(job, self->journal.wait_shift_ms, op->arena, &op->record);
        op->head = op->record.head;
        return true;
    }
    if (op->verb != STORE_SESSION_GET) {
        op->recent = memtable_read(&self->journal.rows, op, self->journal.wait_shift_ms);
        return false;
    }
    change = (struct change){.kind = CHANGE_SESSION, .u.session.id = op->u.session.key};
    if (!memtable_side(&self->journal.rows, &change, &change))
        return false;
    op->u.session.preferred_pool = arena_str(op->arena, change.u.session.pool);
    op->u.session.lang_pair = arena_str(op->arena, change.u.session.lang_pair);
    op->u.session.version = change.u.session.version;
    op->u.session.updated_ms = change.u.session.updated_ms;
    return true;
}

/* Takes the reads out of the batch, and returns what is left of it. */
static struct msg *serve_reads(struct embedded *self, struct msg *batch)
{
    struct mail handed_on = {0};
    struct msg *writes = NULL, *answered = NULL;
    struct msg **last_write = &writes, **last_answered = &answered;

    for (struct msg *next; batch; batch = next) {
        struct store_op *op = container_of(batch, struct store_op, msg);

        next = batch->next;
        if (!reader_answers(op->verb)) {
            *last_write = batch;
            last_write = &batch->next;
        } else if (self->readable && !refuse_if_late(self, op) && !answer_from_memory(self, op)) {
            mail_add(&handed_on, batch);
        } else {
            if (!self->readable)
                op->err = ERR_STORE_DOWN;
            *last_answered = batch;
            last_answered = &batch->next;
        }
    }
    *last_write = *last_answered = NULL;
    inbox_post_all(&self->op_queue.reader.inbox, &handed_on);
    if (answered)
        op_queue_answer(&self->op_queue, answered, self->readable ? ERR_OK : ERR_STORE_DOWN);
    return writes;
}

/* store.db lags: no new jobs are accepted; with twice that lag nothing is accepted at all. */
static bool refuse_when_full(const struct embedded *self, struct store_op *op)
{
    bool makes_job = op->verb == STORE_PUT || (op->verb == STORE_RESERVE && op->u.put.spec.at);

    if (!atomic_load_explicit(&self->full, memory_order_relaxed))
        return false;
    if (!makes_job &&
        (op->verb == STORE_RENEW || op_queue_only_looks(op->verb) ||
         self->journal.bytes + self->journal.rows.bytes < 2 * self->journal_bytes_max))
        return false;
    op->err = ERR_STORE_FULL;
    op->head.id = 0;
    return true;
}

static void run_batch(struct embedded *self, struct msg *batch)
{
    int64_t ahead_ms = atomic_load_explicit(&self->store.ahead_ms, memory_order_relaxed);
    int64_t step_ms = self->test_clock ? 0 : clock_wall_ahead_ms() - ahead_ms;
    bool was_set = step_ms < -CLOCK_SET_MS || step_ms > CLOCK_SET_MS;
    int64_t now_ms;

    /* The wall clock was set, or the machine slept: the store's time becomes the wall clock's
     * again, and the leases are shifted with it. */
    if (was_set)
        atomic_store_explicit(&self->store.ahead_ms, ahead_ms + step_ms, memory_order_relaxed);
    now_ms = store_now(self);
    if (was_set)
        ledger_clock_set(&self->ledger, step_ms);
    ledger_begin(&self->ledger, now_ms);
    for (struct msg *msg = batch; msg; msg = msg->next) {
        struct store_op *op = container_of(msg, struct store_op, msg);

        op->order = ++self->order;
        if (!refuse_if_late(self, op) && !refuse_when_full(self, op))
            ledger_apply(&self->ledger, op, now_ms);
    }
    ledger_end(&self->ledger);
    enum err err = journal_commit(&self->journal);
    if (err) {
        go_down(self); /* first, so that no more ops are sent */
        op_queue_answer(&self->op_queue, batch, err);
        throw_away(self);
        return;
    }
    if (atomic_load_explicit(&self->check_always, memory_order_relaxed))
        ledger_check(&self->ledger);
    op_queue_count_batch(&self->op_queue);
    metric_set(METRIC_BREAKERS_OPEN, self->ledger.breakers.open_count);
    op_queue_answer(&self->op_queue, batch, ERR_OK);
    note_commit(self);
}

/* Background work between two batches. True: there is more to do. */
static bool do_chores(struct embedded *self)
{
    int64_t mono_ms = clock_mono_ms();
    bool more = journal_release(&self->journal);

    more |= ledger_walk(&self->ledger);
    update_full(self);
    if (mono_ms >= self->audit_ms) {
        self->audit_ms = mono_ms + AUDIT_MS;
        ledger_audit(&self->ledger);
    }
    for (int i = 0; i < STORE_RULES; i++)
        if (self->ledger.repairs[i]) {
            op_queue_count_repairs(&self->op_queue, (enum store_rule)i, self->ledger.repairs[i]);
            self->ledger.repairs[i] = 0;
        }
    if (mono_ms < self->tidy_ms)
        return more;
    self->tidy_ms = mono_ms + IDLE_MS;
    ledger_tidy(&self->ledger, store_now(self));
    if (!journal_commit(&self->journal)) {
        note_commit(self);
    } else {
        go_down(self);
        throw_away(self);
    }
    return more;
}

static int64_t time_to_wait(const struct embedded *self)
{
    int64_t left_ms =
        (op_queue_is_up(&self->op_queue) ? self->tidy_ms : self->revive_ms) - clock_mono_ms();

    return left_ms < 0 ? 0 : left_ms < IDLE_MS ? left_ms : IDLE_MS;
}

static void *store_thread(void *arg)
{
    struct embedded *self = arg;
    bool more = false;

    metrics_thread();
    while (!self->op_queue.work_queue.stopping ||
           atomic_load(&self->op_queue.work_queue.inbox.head)) {
        struct msg *own;
        struct msg *batch;

        work_queue_wait(&self->op_queue.work_queue, more ? 0 : time_to_wait(self));
        batch = serve_reads(self, op_queue_take(&self->op_queue.work_queue, &own));
        if (!op_queue_is_up(&self->op_queue))
            op_queue_answer(&self->op_queue, batch, ERR_STORE_DOWN);
        else if (batch)
            run_batch(self, batch);
        op_queue_run_own(own);
        more = op_queue_is_up(&self->op_queue) && do_chores(self);
        if (!op_queue_is_up(&self->op_queue) && !self->op_queue.work_queue.stopping)
            revive(self);
    }
    return NULL;
}

/* store.db has more of the journal now. */
static void take_flushed(struct msg *msg)
{
    struct embedded *self = container_of(msg, struct embedded, flushed);

    atomic_store(&self->flush_told, false);
    if (!op_queue_is_up(&self->op_queue))
        return;
    journal_flushed(&self->journal, atomic_load(&self->flushed_seq),
                    atomic_exchange(&self->flushed_bytes, 0));
}

/* The reader thread. */

static void *reader_thread(void *arg)
{
    struct embedded *self = arg;

    metrics_thread();
    while (!self->op_queue.reader.stopping || atomic_load(&self->op_queue.reader.inbox.head)) {
        struct msg *own;
        struct msg *ops;

        work_queue_wait(&self->op_queue.reader, IDLE_MS);
        ops = op_queue_take(&self->op_queue.reader, &own);
        for (struct msg *next; ops; ops = next) {
            struct store_op *op = container_of(ops, struct store_op, msg);

            next = ops->next;
            ops->next = NULL;
            if (!refuse_if_late(self, op))
                reader_run(&self->reader, op);
            if (op->err == ERR_STORE_DOWN && op_queue_is_up(&self->op_queue))
                note_fault(self, &self->reader.fault);
            op_queue_answer(&self->op_queue, ops,
                            op->err == ERR_STORE_DOWN ? ERR_STORE_DOWN : ERR_OK);
        }
        op_queue_run_own(own);
    }
    return NULL;
}

static void close_reader(struct msg *msg)
{
    struct embedded *self = container_of(msg, struct embedded, close_reader);

    reader_close(&self->reader, true);
    sem_post(&self->thread_closed);
}

/* The flush thread. */

/* True: it succeeded. */
static bool flush_once(struct embedded *self)
{
    int64_t mono_ms = clock_mono_ms();
    bool idle = !self->flush_wanted, purge_more;

    /* Callers wait for commits but not for flushes, so flush I/O gets idle priority. With a large
     * backlog it gets normal priority, or a disk kept busy by others would stop us eventually. A
     * kernel without I/O priorities for this disk refuses this or ignores it. */
    if (idle != self->requests_idle) {
        self->requests_idle = idle;
        syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, /* the calling thread */
                IOPRIO_PRIO_VALUE(idle ? IOPRIO_CLASS_IDLE : IOPRIO_CLASS_NONE, 0));
    }
    self->flush_ms = mono_ms;
    self->flush_wanted = false;
    if (!flush_step(&self->flush, atomic_load(&self->committed_seq),
                    atomic_load_explicit(&self->active_count, memory_order_relaxed),
                    store_now(self), PURGE_ROWS, &purge_more)) {
        note_fault(self, &self->flush.fault);
        self->retry_ms = mono_ms + retry_after_ms(++self->flush_failures);
        return false;
    }
    self->flush_failures = 0;
    self->purge_ms = mono_ms + (purge_more ? PURGE_IDLE_MS : IDLE_MS);
    /* The bytes first: whoever sees the new number then also sees them. */
    atomic_fetch_add(&self->flushed_bytes, self->flush.bytes);
    atomic_store(&self->flushed_seq, self->flush.seq);
    return true;
}

static bool flush_is_due(const struct embedded *self, int64_t mono_ms)
{
    bool behind = atomic_load(&self->committed_seq) != atomic_load(&self->flushed_seq);

    if (mono_ms < self->retry_ms || !op_queue_is_up(&self->op_queue))
        return false;
    return (behind && (self->flush_wanted || mono_ms - self->flush_ms >= self->flush_every_ms)) ||
           mono_ms >= self->purge_ms;
}

static int64_t time_to_flush(const struct embedded *self)
{
    int64_t until_ms = self->flush_ms + self->flush_every_ms;
    int64_t left_ms;

    if (self->purge_ms < until_ms)
        until_ms = self->purge_ms;
    if (until_ms < self->retry_ms)
        until_ms = self->retry_ms;
    left_ms = until_ms - clock_mono_ms();
    /* Commits are announced only once FLUSH_SOON_BYTES wait, so it checks periodically. */
    return left_ms > 0 && left_ms < self->flush_every_ms ? left_ms : self->flush_every_ms;
}

static void *flush_thread(void *arg)
{
    struct embedded *self = arg;

    metrics_thread();
    while (!self->flusher.stopping) {
        work_queue_wait(&self->flusher, time_to_flush(self));
        inbox_run(&self->flusher.inbox);
        if (!flush_is_due(self, clock_mono_ms()) || !flush_once(self))
            continue;
        if (!atomic_exchange(&self->flush_told, true))
            inbox_post(&self->op_queue.work_queue.inbox, &self->flushed);
    }
    /* The store thread has ended: copy what remains, so that store.db is complete. */
    while (op_queue_is_up(&self->op_queue) &&
           atomic_load(&self->committed_seq) != atomic_load(&self->flushed_seq) && flush_once(self))
        ;
    return NULL;
}

static void ask_flush(struct msg *msg)
{
    struct embedded *self = container_of(msg, struct embedded, flush_soon);

    atomic_store(&self->flush_asked, false); /* from here on it may be posted again */
    self->flush_wanted = true;
}

static void close_flush(struct msg *msg)
{
    struct embedded *self = container_of(msg, struct embedded, close_flush);

    flush_close(&self->flush, true);
    sem_post(&self->thread_closed);
}

/* Opening and closing. */

static void embedded_free(struct store *store)
{
    struct embedded *self = of(store);

    reader_close(&self->reader, false);
    flush_close(&self->flush, false);
    ledger_free(&self->ledger);
    journal_close(&self->journal);
    storefile_release(&self->file);
    sem_destroy(&self->thread_closed);
    free(self);
}

/* The store thread last: it needs the others. */
static bool start_threads(struct embedded *self)
{
    if (!work_queue_start(&self->op_queue.reader, "berth-reader", reader_thread, self))
        return false;
    if (!work_queue_start(&self->flusher, "berth-flush", flush_thread, self)) {
        work_queue_stop(&self->op_queue.reader);
        return false;
    }
    if (work_queue_start(&self->op_queue.work_queue, "berth-store", store_thread, self))
        return true;
    work_queue_stop(&self->flusher);
    work_queue_stop(&self->op_queue.reader);
    return false;
}

static enum err embedded_open(const struct store_config *config, struct store **ret_store,
                              struct problem *why)
{
    struct embedded *self = mem_aligned(_Alignof(struct embedded), sizeof *self);
    enum err err;
    char detail[160];

    self->store.backend = &embedded_backend;
    self->store.number = config->instance;
    self->store.number_until_ms = INT64_MAX;
    self->good_seq = UINT64_MAX;
    self->test_clock = config->now_ms;
    if (!self->test_clock)
        self->store.ahead_ms = clock_wall_ahead_ms();
    self->terms = config->terms.task_ms > 0 ? config->terms : lease_terms_default;
    self->retention_ms = config->retention_ms;
    self->retention_jobs_max = config->retention_jobs_max;
    self->breaker = breaker_defaults;
    self->breaker.threshold = (int32_t)config->breaker_threshold;
    self->breaker.cooldown_ms = config->breaker_cooldown_ms;
    op_queue_init(&self->op_queue, reader_answers, config->in_flight_max);
    self->op_queue.reads_while_down = true; /* from the files */
    self->op_queue.reads_pass_store_thread = true;
    self->journal_bytes_max =
        config->journal_bytes_max > 0 ? config->journal_bytes_max : JOURNAL_BYTES_MAX;
    self->flush_every_ms = config->flush_ms > 0 ? config->flush_ms : FLUSH_DEFAULT_MS;
    work_queue_init(&self->flusher);
    sem_init(&self->thread_closed, 0, 0);
    self->flushed.run = take_flushed;
    self->close_reader.run = close_reader;
    self->flush_soon.run = ask_flush;
    self->close_flush.run = close_flush;
    err = storefile_claim(&self->file, config->data_dir, why);
    if (err) {
        sem_destroy(&self->thread_closed);
        free(self);
        return err;
    }
    reader_init(&self->reader, &self->file);
    flush_init(&self->flush, &self->file, self->retention_ms, self->retention_jobs_max);
    if (!bring_up(self)) {
        fault_text(&self->journal.fault, detail, sizeof detail);
        err = problem_set(why, ERR_IO, "data_dir", "The store file %s cannot be used: %s.",
                          self->file.path, detail);
        embedded_free(&self->store);
        return err;
    }
    if (!start_threads(self)) {
        embedded_free(&self->store);
        return problem_set(why, ERR_IO, "", "No thread for the store can be started.");
    }
    *ret_store = &self->store;
    return ERR_OK;
}

static void embedded_stop(struct store *store)
{
    struct embedded *self = of(store);

    work_queue_stop(&self->op_queue.work_queue); /* it may still need the others */
    work_queue_stop(&self->flusher);
    work_queue_stop(&self->op_queue.reader);
    if (op_queue_is_up(&self->op_queue)) {
        journal_flushed(&self->journal, atomic_load(&self->flushed_seq),
                        atomic_exchange(&self->flushed_bytes, 0));
        journal_retire(&self->journal);
    }
    assert(atomic_load(&self->op_queue.in_flight) == 0);
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
