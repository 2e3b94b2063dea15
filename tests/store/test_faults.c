/* The disk fails, fills up or is locked, or has files of another release: the embedded store
 * refuses calls at once, loses nothing it answered OK, and recovers by itself. */
#include "contract.h"

#include "base/clock.h"
#include "base/digest.h"
#include "base/mem.h"
#include "faultvfs.h"
#include "store/embedded.h"
#include "store/logfile.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATIENCE_MS = 20000, LANE = 77, LIFE = 12 };

static int setup(void **state)
{
    struct rig *rig = mem_new(struct rig);

    faultvfs_clear();
    faultvfs_only("journal.log"); /* the file that commits wait for */
    rig_init(rig);
    rig_open(rig);
    embedded_check_always(rig->store);
    *state = rig;
    return rig_node(rig, "n1", 100000, NODE_READY);
}

static int teardown(void **state)
{
    struct rig *rig = *state;

    faultvfs_clear();
    rig_done(rig);
    free(rig);
    return 0;
}

static enum store_mode mode(struct rig *rig)
{
    struct store_status status;

    store_status(rig->store, &status);
    return status.mode;
}

/* Asks until the store is in this mode; bounded, in case it never is. */
static void wait_for_mode(struct rig *rig, enum store_mode want)
{
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;

    while (mode(rig) != want && clock_mono_ms() < end_ms)
        sched_yield();
    if (mode(rig) != want) {
        struct store_status status;

        store_status(rig->store, &status);
        fail_msg("%s, not %s: %s", store_mode_name(status.mode), store_mode_name(want),
                 status.detail);
    }
}

static void wait_for_hits(int want)
{
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;

    while (faultvfs_hits() < want && clock_mono_ms() < end_ms)
        sched_yield();
    assert_true(faultvfs_hits() >= want);
}

/* A few jobs in different states, which assert_work() checks. */
static void some_work(struct rig *rig)
{
    assert_int_equal(rig_reserve(rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(rig_reserve(rig, 2, 1, "n1"), ERR_OK);
    assert_int_equal(rig_commit(rig, 2, 1, "n1"), ERR_OK);
    assert_int_equal(rig_reserve(rig, 3, 1, "n1"), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_DONE, 3, 1, "n1", NULL), ERR_OK);
    assert_int_equal(rig_put(rig, 4), ERR_OK);
    assert_int_equal(rig_put_lane(rig, 20, LANE, 1), ERR_OK);
    assert_int_equal(rig_put_lane(rig, 21, LANE, 7), ERR_OK);
}

static void assert_work(struct rig *rig)
{
    const enum job_state want[] = {JOB_DISPATCHED, JOB_ACKED, JOB_DONE, JOB_NEW};

    assert_int_equal(rig_lane(rig, LANE, 9), ERR_OK);
    assert_int_equal(rig->op.u.lane.waiting, 2);
    assert_int_equal(rig->op.u.lane.items[0].head.id, 21);
    assert_int_equal(rig->op.u.lane.items[1].head.id, 20);
    for (int i = 0; i < 2; i++)
        assert_int_equal(rig->op.u.lane.items[i].head.due_ms, RIG_START_MS + RIG_WAIT_MS);

    for (uint64_t job = 1; job <= 4; job++) {
        assert_int_equal(rig_get(rig, job), ERR_OK);
        assert_int_equal(rig->op.record.head.state, want[job - 1]);
    }
    assert_int_equal(rig_counts(rig, "n1").reserved, 1);
    assert_int_equal(rig_counts(rig, "n1").running, 1);
}

/* What was written but not synced may be found after a crash, so its sender must not be told that
 * nothing happened. */
static enum err fate_of(enum faultvfs_kind kind)
{
    return kind == FAULT_SYNC ? ERR_UNKNOWN : ERR_STORE_DOWN;
}

/* One commit fails: its op gets the error, memory is rolled back, and the next commit works. */
static void fail_once(void **state, enum faultvfs_kind kind)
{
    struct rig *rig = *state;
    struct store_status status;

    some_work(rig);
    faultvfs_set(kind, 1);
    assert_int_equal(rig_reserve(rig, 5, 1, "n1"), fate_of(kind));
    assert_int_equal(faultvfs_hits(), 1);
    assert_int_equal(rig->op.head.id, 0);
    wait_for_mode(rig, STORE_NORMAL);
    /* Before any read: a flush that begins now would meet a reader, and count another error. */
    store_status(rig->store, &status);
    assert_int_equal(status.errors, 1);
    assert_string_not_equal(status.detail, "");
    assert_work(rig);
    /* It was refused, so it must not run later. */
    assert_int_equal(rig_get(rig, 5), ERR_NOT_FOUND);
    assert_int_equal(rig_reserve(rig, 5, 1, "n1"), ERR_OK);
    assert_false(rig->op.u.put.duplicate);
    assert_int_equal(rig_counts(rig, "n1").reserved, 2);
}

static void test_write_fails_once(void **state)
{
    fail_once(state, FAULT_WRITE);
}

static void test_disk_full_once(void **state)
{
    fail_once(state, FAULT_FULL);
}

static void test_sync_fails_once(void **state)
{
    fail_once(state, FAULT_SYNC);
}

/* A call of this kind fails after 0, 1, 2... successful ones: what was answered OK is there, what
 * was refused is not, and the counters match. */
static void fail_at_every_call(void **state, enum faultvfs_kind kind)
{
    struct rig *rig = *state;
    uint64_t job = 100;

    for (int good = 0; good < 12; good++) {
        faultvfs_clear();
        faultvfs_after(kind, good);
        uint64_t first = job;
        bool accepted[64] = {0};
        for (int i = 0; i < 64 && faultvfs_hits() == 0; i++, job++) {
            /* The refusal may be answered before the mode changes. */
            wait_for_mode(rig, STORE_NORMAL);
            accepted[job - first] = rig_reserve(rig, job, 1, "n1") == ERR_OK;
        }
        assert_int_equal(faultvfs_hits(), 1);
        wait_for_mode(rig, STORE_NORMAL);
        for (uint64_t id = first; id < job; id++)
            assert_int_equal(rig_get(rig, id), accepted[id - first] ? ERR_OK : ERR_NOT_FOUND);
    }
}

static void test_write_fails_anywhere(void **state)
{
    fail_at_every_call(state, FAULT_WRITE);
}

static void test_sync_fails_anywhere(void **state)
{
    fail_at_every_call(state, FAULT_SYNC);
}

/* The disk stays broken: calls are refused at once, the mode gets worse, and the store recovers
 * when the disk does. */
static void stays_broken(void **state, enum faultvfs_kind kind, enum store_mode worst)
{
    struct rig *rig = *state;
    struct store_status status;

    some_work(rig);
    faultvfs_set(kind, -1);
    assert_int_equal(rig_reserve(rig, 5, 1, "n1"), fate_of(kind));
    wait_for_mode(rig, STORE_L2_ONLY);
    assert_int_equal(rig_reserve(rig, 6, 1, "n1"), ERR_STORE_DOWN);
    assert_int_equal(rig_finish(rig, STORE_DONE, 2, 1, "n1", NULL), ERR_STORE_DOWN);
    /* The file can still be read: only changes are refused. */
    assert_int_equal(rig_get(rig, 3), ERR_OK);
    assert_int_equal(rig->op.record.head.state, JOB_DONE);
    assert_int_equal(rig_get(rig, 5), ERR_NOT_FOUND);
    wait_for_mode(rig, worst);
    store_status(rig->store, &status);
    assert_true(status.errors >= (worst == STORE_LOCAL_ONLY ? 10 : 1));
    faultvfs_clear();
    wait_for_mode(rig, STORE_NORMAL);
    assert_work(rig);
    assert_int_equal(rig_finish(rig, STORE_DONE, 2, 1, "n1", NULL), ERR_OK);
}

static void test_writes_stay_broken(void **state)
{
    stays_broken(state, FAULT_WRITE, STORE_L2_ONLY);
}

static void test_disk_stays_full(void **state)
{
    stays_broken(state, FAULT_FULL, STORE_LOCAL_ONLY); /* after ten attempts */
}

static void test_syncs_stay_broken(void **state)
{
    stays_broken(state, FAULT_SYNC, STORE_L2_ONLY);
}

/* The file cannot even be opened again. */
static void test_open_stays_broken(void **state)
{
    struct rig *rig = *state;

    some_work(rig);
    faultvfs_set(FAULT_OPEN, -1);
    faultvfs_set(FAULT_SYNC, 1);
    assert_int_equal(rig_reserve(rig, 5, 1, "n1"), ERR_UNKNOWN);
    wait_for_hits(5);
    assert_int_equal(rig_reserve(rig, 5, 1, "n1"), ERR_STORE_DOWN);
    faultvfs_clear();
    wait_for_mode(rig, STORE_NORMAL);
    assert_work(rig);
}

struct waiting {
    struct store_op op;
    int *left;
    int *down;
};

static void counted(struct store_op *op)
{
    struct waiting *waiting = container_of(op, struct waiting, op);

    --*waiting->left;
    *waiting->down += op->err == ERR_STORE_DOWN || op->err == ERR_UNKNOWN;
}

/* Closing answers the ops under way, even while the disk is broken. */
static void test_close_while_down(void **state)
{
    enum { OPS = 50 };
    struct rig *rig = *state;
    static struct waiting waiting[OPS];
    int left = 0;
    int down = 0;

    faultvfs_set(FAULT_SYNC, -1);
    for (int i = 0; i < OPS; i++) {
        waiting[i] = (struct waiting){.left = &left, .down = &down};
        waiting[i].op = (struct store_op){.verb = STORE_NODE_PUT,
                                          .reply_to = &rig->work_queue.inbox,
                                          .done = counted,
                                          .node = STR("n2")};
        waiting[i].op.u.node_put.facts = STR("{}");
        waiting[i].op.u.node_put.max = i;
        left += store_send(rig->store, &waiting[i].op) == ERR_OK;
    }
    assert_true(left > 0);
    int sent = left;
    rig_close(rig);
    inbox_run(&rig->work_queue.inbox);
    assert_int_equal(left, 0);
    assert_int_equal(down, sent);
    faultvfs_clear();
    rig_open(rig);
    assert_int_equal(rig_counts(rig, "n1").max, 100000);
}

static void change_file(const struct rig *rig, const char *sql, char path[128])
{
    sqlite3 *db;

    snprintf(path, 128, "%s/store.db", rig->dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

/* Queries store.db on a connection of its own. */
static int64_t ask(struct rig *rig, const char *sql)
{
    char path[128];
    sqlite3 *db;
    sqlite3_stmt *stmt;
    int64_t value = -1;

    snprintf(path, sizeof path, "%s/store.db", rig->dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_prepare_v2(db, sql, -1, &stmt, NULL) == SQLITE_OK &&
        sqlite3_step(stmt) == SQLITE_ROW)
        value = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    return value;
}

static void wait_for_row(struct rig *rig, const char *sql, int64_t want)
{
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;
    int64_t value;

    while ((value = ask(rig, sql)) != want && clock_mono_ms() < end_ms)
        sched_yield();
    assert_int_equal(value, want);
}

/* A lock on store.db, so that no flush can write to it. */
static sqlite3 *lock_tables(struct rig *rig)
{
    char path[128];
    sqlite3 *db;

    snprintf(path, sizeof path, "%s/store.db", rig->dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    sqlite3_busy_timeout(db, PATIENCE_MS);
    assert_int_equal(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    return db;
}

static void unlock_tables(sqlite3 *db)
{
    assert_int_equal(sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

/* Another process holds the write lock of store.db: commits go on and can be read, and store.db
 * follows once the lock is released. */
static void test_outside_lock(void **state)
{
    struct rig *rig = *state;
    sqlite3 *db;

    some_work(rig);
    db = lock_tables(rig);
    assert_int_equal(rig_reserve(rig, 5, 1, "n1"), ERR_OK);
    assert_int_equal(mode(rig), STORE_NORMAL);
    assert_int_equal(rig_get(rig, 5), ERR_OK);
    assert_int_equal(ask(rig, "SELECT count(*) FROM job WHERE id = 5"), 0);
    unlock_tables(db);
    wait_for_row(rig, "SELECT count(*) FROM job WHERE id = 5", 1);
    assert_int_equal(rig_finish(rig, STORE_SEND_FAILED, 5, 1, "n1", NULL), ERR_OK);
    assert_work(rig);
}

/* A call on store.db fails, at each position: only the status shows it. */
static void tables_fail_anywhere(void **state, enum faultvfs_kind kind, int calls)
{
    struct rig *rig = *state;
    uint64_t job = 100;
    char sql[80];

    rig_close(rig);
    rig->config.flush_ms = 1;
    rig_open(rig);
    faultvfs_only("store.db");
    for (int good = 0; good < calls; good++, job++) {
        faultvfs_clear();
        faultvfs_after(kind, good);
        for (int i = 0; faultvfs_hits() == 0 && i < 1000; i++, job++) {
            assert_int_equal(rig_reserve(rig, job, 1, "n1"), ERR_OK);
            snprintf(sql, sizeof sql, "SELECT lease FROM job WHERE id = %d", (int)job);
            wait_for_row(rig, sql, LEASE_RESERVED);
            assert_int_equal(rig_finish(rig, STORE_DONE, job, 1, "n1", NULL), ERR_OK);
        }
        assert_int_equal(faultvfs_hits(), 1);
        assert_int_equal(mode(rig), STORE_NORMAL);
        snprintf(sql, sizeof sql, "SELECT count(*) FROM job WHERE state = %d", JOB_DONE);
        wait_for_row(rig, sql, (int64_t)job - 100 - good);
    }
    rig_close(rig);
    rig_open(rig);
    assert_int_equal(rig_get(rig, 100), ERR_OK);
    assert_int_equal(rig_counts(rig, "n1").reserved, 0);
}

static void test_tables_write_fails_anywhere(void **state)
{
    tables_fail_anywhere(state, FAULT_WRITE, 12);
}

static void test_tables_sync_fails_anywhere(void **state)
{
    tables_fail_anywhere(state, FAULT_SYNC, 3);
}

static void test_tables_full_anywhere(void **state)
{
    tables_fail_anywhere(state, FAULT_FULL, 12);
}

/* Jobs are reserved one by one, and every other one ends. */
static void live(struct rig *rig, uint64_t first, enum err errs[LIFE], enum err ends[LIFE])
{
    for (uint64_t i = 0; i < LIFE; i++) {
        wait_for_mode(rig, STORE_NORMAL);
        errs[i] = rig_reserve(rig, first + i, 1, "n1");
        ends[i] = errs[i] || i % 2 ? ERR_STORE_DOWN
                                   : rig_finish(rig, STORE_DONE, first + i, 1, "n1", NULL);
    }
    wait_for_mode(rig, STORE_NORMAL);
}

static void assert_lived(struct rig *rig, uint64_t first, const enum err errs[LIFE],
                         const enum err ends[LIFE])
{
    for (uint64_t i = 0; i < LIFE; i++) {
        enum err err = rig_get(rig, first + i);

        if (!errs[i])
            assert_int_equal(err, ERR_OK);
        else if (errs[i] == ERR_STORE_DOWN)
            assert_int_equal(err, ERR_NOT_FOUND);
        if (!errs[i] && ends[i] != ERR_UNKNOWN)
            assert_int_equal(rig->op.record.head.state, ends[i] ? JOB_DISPATCHED : JOB_DONE);
    }
}

/* A call on either file fails, at each position in a life from open to close: what was accepted is
 * there, and nothing of what was refused. Lives make different numbers of calls, so the test goes
 * on until several have ended before the failure came. */
static void life_fails_anywhere(void **state, enum faultvfs_kind kind)
{
    enum { WELL_MAX = 3 };
    struct rig *rig = *state;
    uint64_t first = 1000;
    int good = 0;

    rig->config.flush_ms = 1;
    faultvfs_only("");
    for (int well = 0; well < WELL_MAX; good++, first += LIFE) {
        struct problem why = {0};
        enum err errs[LIFE], ends[LIFE];

        rig_close(rig);
        faultvfs_after(kind, good);
        while (store_open(&rig->config, &rig->store, &why))
            assert_true(faultvfs_hits() > 0);
        embedded_check_always(rig->store);
        live(rig, first, errs, ends);
        rig_close(rig);
        well += faultvfs_hits() == 0;
        faultvfs_clear();
        rig_open(rig);
        assert_lived(rig, first, errs, ends);
        arena_reset(&rig->arena);
    }
    assert_true(good > LIFE);
}

static void test_life_write_fails_anywhere(void **state)
{
    life_fails_anywhere(state, FAULT_WRITE);
}

static void test_life_full_anywhere(void **state)
{
    life_fails_anywhere(state, FAULT_FULL);
}

static void test_life_sync_fails_anywhere(void **state)
{
    life_fails_anywhere(state, FAULT_SYNC);
}

static bool is_full(struct rig *rig)
{
    struct store_status status;

    store_status(rig->store, &status);
    return status.full;
}

/* store.db cannot be written: at the limit new jobs are refused with the reason, the others go on
 * for a while, and the store recovers by itself. */
static void test_tables_stay_full(void **state)
{
    enum { MAX = 256 << 10 };
    struct rig *rig = *state;
    struct store_status status;
    uint64_t job = 1;
    int changes = 0;
    enum err err;
    int64_t end_ms;

    rig_close(rig);
    rig->config.journal_bytes_max = MAX;
    rig_open(rig);
    faultvfs_only("store.db");
    faultvfs_set(FAULT_FULL, -1);
    while (!(err = rig_reserve(rig, job, 1, "n1")))
        assert_true(++job < MAX);
    assert_int_equal(err, ERR_STORE_FULL);
    wait_for_hits(1);
    assert_true(is_full(rig));
    assert_int_equal(mode(rig), STORE_NORMAL);
    end_ms = clock_mono_ms() + PATIENCE_MS; /* the failure comes first, then the status shows it */
    do
        store_status(rig->store, &status);
    while (!strstr(status.detail, "full") && clock_mono_ms() < end_ms);
    assert_non_null(strstr(status.detail, "full"));
    assert_int_equal(rig_commit(rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(rig_get(rig, job - 1), ERR_OK);
    assert_int_equal(rig_get(rig, job), ERR_NOT_FOUND);
    /* At twice the limit all writes are refused. */
    do
        err = rig_node(rig, "n2", ++changes, NODE_READY);
    while (!err && changes < MAX);
    assert_int_equal(err, ERR_STORE_FULL);
    faultvfs_clear();
    end_ms = clock_mono_ms() + PATIENCE_MS;
    while (is_full(rig) && clock_mono_ms() < end_ms)
        sched_yield();
    assert_int_equal(rig_reserve(rig, job, 1, "n1"), ERR_OK);
    assert_int_equal(rig_counts(rig, "n1").reserved, (int)job - 1);
    rig_close(rig);
    assert_int_equal(ask(rig, "SELECT count(*) FROM job"), (int64_t)job);
    rig_open(rig);
    assert_int_equal(rig_counts(rig, "n1").reserved, (int)job - 1);
    assert_int_equal(rig_counts(rig, "n1").running, 1);
}

static enum err put_bulky(struct rig *rig, uint64_t job, struct str spec)
{
    struct store_op op = {.verb = STORE_PUT, .job = job, .attempt = 1};

    op.u.put.spec = spec;
    op.u.put.max_attempts = 1;
    return rig_call(rig, &op);
}

/* The WAL of store.db cannot be copied back: what was flushed into it counts as flushed, so that
 * the backlog does not seem to grow. */
static void test_a_copy_fails(void **state)
{
    enum { SPEC = 1 << 20, JOBS = 24 }; /* more than the limit of the WAL */
    struct rig *rig = *state;
    struct str spec = {.at = calloc(1, SPEC), .len = SPEC};

    rig_close(rig);
    rig->config.flush_ms = 1;
    rig->config.journal_bytes_max = SPEC + SPEC / 4; /* one job fills it */
    rig_open(rig);
    faultvfs_only("store.db");
    for (uint64_t job = 1; job <= JOBS; job++) {
        int64_t end_ms = clock_mono_ms() + PATIENCE_MS;
        enum err err;

        while ((err = put_bulky(rig, job, spec)) == ERR_STORE_FULL && clock_mono_ms() < end_ms)
            sched_yield();
        assert_int_equal(err, ERR_OK);
        if (job > 1)
            continue;
        wait_for_row(rig, "SELECT max(id) FROM job", 1);
        faultvfs_set(FAULT_COPY, 1);
    }
    assert_int_equal(faultvfs_hits(), 1);
    free((char *)spec.at);
}

/* Leaves the journal of a process that was killed, none of which is in store.db. */
static void leave_a_journal(struct rig *rig)
{
    pid_t child;
    int status;

    rig_close(rig);
    child = fork();
    if (child == 0) {
        rig_open(rig);
        lock_tables(rig);
        for (uint64_t job = 30; job < 34; job++)
            rig_reserve(rig, job, 1, "n1");
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
}

/* The whole of journal.log. */
static struct buf read_journal(struct rig *rig)
{
    struct buf bytes = {0};
    struct stat info;
    char path[128];
    int fd;

    snprintf(path, sizeof path, "%s/journal.log", rig->dir);
    fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &info), 0);
    buf_reserve(&bytes, (size_t)info.st_size);
    assert_int_equal(read(fd, bytes.at, (size_t)info.st_size), info.st_size);
    bytes.len = (size_t)info.st_size;
    close(fd);
    return bytes;
}

static void write_journal(struct rig *rig, struct str bytes)
{
    char path[128];
    int fd;

    snprintf(path, sizeof path, "%s/journal.log", rig->dir);
    fd = open(path, O_WRONLY | O_TRUNC | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes.at, bytes.len), bytes.len);
    close(fd);
}

static void assert_refused(struct rig *rig, const char *word)
{
    struct problem why = {0};

    assert_int_not_equal(store_open(&rig->config, &rig->store, &why), ERR_OK);
    assert_non_null(strstr(why.detail, word));
    rig->store = NULL;
}

/* A bit of the journal flips, or a batch is missing: store_open says so, and uses none of it. */
static void test_a_journal_that_is_not_ours(void **state)
{
    struct rig *rig = *state;
    struct buf bytes;

    leave_a_journal(rig);
    bytes = read_journal(rig);
    assert_int_equal(bytes.len, LOG_AHEAD);
    for (size_t at = 4 * LOG_PAGE; at < bytes.len; at++)
        assert_int_equal(bytes.at[at], 0);
    bytes.len = 4 * LOG_PAGE;
    for (size_t at = 0; at < bytes.len; at += 97) { /* also in the last batch */
        bytes.at[at] ^= 1 << at % 8;
        write_journal(rig, buf_view(&bytes));
        assert_refused(rig, "is not what was written");
        bytes.at[at] ^= 1 << at % 8;
    }
    for (size_t gone = 1; gone < 3; gone++) { /* as if it had never been written */
        char page[LOG_PAGE];

        memcpy(page, bytes.at + gone * LOG_PAGE, LOG_PAGE);
        memset(bytes.at + gone * LOG_PAGE + LOG_SECTOR, 0, LOG_PAGE - LOG_SECTOR);
        write_journal(rig, buf_view(&bytes));
        assert_refused(rig, "is not what was written");
        memcpy(bytes.at + gone * LOG_PAGE, page, LOG_PAGE);
    }
    write_journal(rig, (struct str){bytes.at + LOG_PAGE, bytes.len - LOG_PAGE});
    assert_refused(rig, "do not belong together");
    write_journal(rig, buf_view(&bytes));
    rig_open(rig);
    for (uint64_t job = 30; job < 34; job++)
        assert_int_equal(rig_get(rig, job), ERR_OK);
    assert_int_equal(rig_counts(rig, "n1").reserved, 4);
    buf_free(&bytes);
}

/* Puts the batches of journal.log into a journal.db, as the release before would have left it. */
static void make_old_journal(struct rig *rig)
{
    struct arena arena = {0};
    struct logfile log;
    struct str bytes;
    uint64_t first = (uint64_t)ask(rig, "SELECT journal_seq FROM meta");
    uint64_t last;
    int64_t size;
    char path[128];
    sqlite3 *db;
    sqlite3_stmt *add;

    snprintf(path, sizeof path, "%s/journal.db", rig->dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(
        sqlite3_exec(db,
                     "PRAGMA journal_mode = WAL; CREATE TABLE batch(seq INTEGER PRIMARY KEY,"
                     " sum INT NOT NULL, changes BLOB NOT NULL); PRAGMA user_version = 1",
                     NULL, NULL, NULL),
        SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "INSERT INTO batch VALUES(?1, ?2, ?3)", -1, &add, NULL),
                     SQLITE_OK);
    snprintf(path, sizeof path, "%s/journal.log", rig->dir);
    assert_true(logfile_open(&log, path, false));
    assert_true(logfile_end(&log, first, UINT64_MAX, &last));
    assert_int_equal(last, first + 4);
    for (uint64_t seq = first + 1; seq <= last; seq++) {
        assert_true(logfile_read(&log, seq, &arena, &bytes, &size));
        sqlite3_bind_int64(add, 1, (int64_t)seq);
        sqlite3_bind_int64(add, 2, crc32c(bytes));
        sqlite3_bind_blob(add, 3, bytes.at, (int)bytes.len, SQLITE_TRANSIENT);
        assert_int_equal(sqlite3_step(add), SQLITE_DONE);
        sqlite3_reset(add);
    }
    sqlite3_finalize(add);
    sqlite3_close(db);
    logfile_close(&log);
    arena_free(&arena);
}

static void change_old_journal(struct rig *rig, const char *sql)
{
    char path[128];
    sqlite3 *db;

    snprintf(path, sizeof path, "%s/journal.db", rig->dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

/* The release before was killed: its journal is taken over and removed, even if an earlier takeover
 * was cut off. One that is damaged, or of a later release, is reported. */
static void test_the_journal_of_the_release_before(void **state)
{
    struct rig *rig = *state;
    struct buf bytes;
    char path[128];

    leave_a_journal(rig);
    bytes = read_journal(rig);
    make_old_journal(rig);
    write_journal(rig, (struct str){bytes.at, 0});
    change_old_journal(rig, "CREATE TABLE saved AS SELECT * FROM batch");
    change_old_journal(rig, "UPDATE batch SET changes = substr(changes, 1, length(changes) - 1) || "
                            "x'77' WHERE seq = (SELECT max(seq) FROM batch)");
    assert_refused(rig, "is not what was written");
    change_old_journal(rig, "DELETE FROM batch; INSERT INTO batch SELECT * FROM saved;"
                            "DELETE FROM batch WHERE seq = (SELECT max(seq) - 1 FROM batch)");
    write_journal(rig, (struct str){bytes.at, 0});
    assert_refused(rig, "do not belong together");
    change_old_journal(rig, "DELETE FROM batch; INSERT INTO batch SELECT * FROM saved;"
                            "PRAGMA user_version = 999");
    assert_refused(rig, "newer berth");
    change_old_journal(rig, "PRAGMA user_version = 1");
    write_journal(rig, (struct str){bytes.at, 2 * LOG_PAGE}); /* half of it was taken over */
    rig_open(rig);
    for (uint64_t job = 30; job < 34; job++)
        assert_int_equal(rig_get(rig, job), ERR_OK);
    assert_int_equal(rig_counts(rig, "n1").reserved, 4);
    snprintf(path, sizeof path, "%s/journal.db", rig->dir);
    assert_int_not_equal(access(path, F_OK), 0);
    buf_free(&bytes);
}

/* Removes what the releases before this one do not have. */
#define WITHOUT_NEEDS                                                                              \
    "ALTER TABLE job DROP COLUMN gpus; ALTER TABLE job DROP COLUMN demand;"                        \
    "ALTER TABLE node DROP COLUMN resources; DROP TABLE limit_rule; DROP TABLE limit_key;"

/* The release before does not know the journal: it may use store.db after a clean stop, and only
 * then. */
static void test_the_release_before(void **state)
{
    struct rig *rig = *state;
    char path[128];
    int64_t reads_journal;

    some_work(rig);
    reads_journal = ask(rig, "PRAGMA user_version") / 65536;
    assert_true(reads_journal > 2);
    rig_close(rig);
    assert_int_equal(ask(rig, "PRAGMA user_version") / 65536, 2);
    /* What that release then writes is kept: the journal has nothing newer. */
    change_file(rig, "UPDATE job SET reason = 'BEFORE' WHERE id = 3", path);
    rig_open(rig);
    assert_work(rig);
    assert_int_equal(rig_get(rig, 3), ERR_OK);
    assert_string_equal(rig->op.record.head.reason, "BEFORE");
    rig_close(rig);
    /* Its files are migrated. */
    change_file(
        rig, WITHOUT_NEEDS "ALTER TABLE meta DROP COLUMN journal_seq; PRAGMA user_version = 131074",
        path);
    rig_open(rig);
    assert_work(rig);
    leave_a_journal(rig);
    assert_int_equal(ask(rig, "PRAGMA user_version") / 65536, reads_journal);
    rig_open(rig);
    assert_int_equal(rig_get(rig, 33), ERR_OK);
}

/* A call that changes no row costs no fsync. */
static void test_no_sync_without_a_change(void **state)
{
    struct rig *rig = *state;
    struct store_op renew = {.verb = STORE_RENEW, .node = STR("n1")};
    struct store_due due[4];
    int before;

    some_work(rig);
    before = faultvfs_syncs();
    renew.u.renew.terms = (struct lease_terms){RIG_RUN_MS, RIG_F2F_MS};
    assert_int_equal(rig_call(rig, &renew), ERR_OK);
    rig_pass(rig, 4000);
    assert_int_equal(rig_due(rig, due, 4), 0);
    rig_counts(rig, "n1");
    assert_int_equal(rig_reserve(rig, 9, 1, "nowhere"), ERR_ALL_FULL);
    assert_int_equal(rig_reserve(rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_DONE, 3, 1, "n1", NULL), ERR_OK);
    assert_int_equal(rig_node(rig, "n1", 100000, NODE_READY), ERR_OK);
    assert_int_equal(faultvfs_syncs(), before);
    assert_int_equal(rig_reserve(rig, 10, 1, "n1"), ERR_OK);
    assert_int_equal(faultvfs_syncs(), before + 1);
}

static void test_directory_in_use(void **state)
{
    struct rig *rig = *state;
    struct store *second = NULL;
    struct problem why = {0};
    char want[128];
    struct stat stat_buf;

    assert_int_not_equal(store_open(&rig->config, &second, &why), ERR_OK);
    snprintf(want, sizeof want, "The data directory %s is in use by process %ld.", rig->dir,
             (long)getpid());
    assert_string_equal(why.detail, want);
    assert_null(second);
    /* A missing directory is created with its parents, accessible to this user only. */
    struct store_config config = rig->config;
    char path[128];
    snprintf(path, sizeof path, "%s/a/b", rig->dir);
    config.data_dir = path;
    assert_int_equal(store_open(&config, &second, &why), ERR_OK);
    store_close(second);
    assert_int_equal(stat(path, &stat_buf), 0);
    assert_int_equal(stat_buf.st_mode & 0777, 0700);
    rig_remove_dir(path);
    snprintf(path, sizeof path, "%s/a", rig->dir);
    rig_remove_dir(path);
}

static enum err wait_in_lane(struct rig *rig, uint64_t job)
{
    rig->op = (struct store_op){.verb = STORE_WAIT, .job = job, .attempt = 1};
    rig->op.u.wait.lane = LANE;
    rig->op.u.wait.priority = 3;
    rig->op.u.wait.wait_ms = RIG_WAIT_MS;
    return rig_call(rig, &rig->op);
}

/* A change of a lane is stored completely or not at all. */
static void test_a_lane_after_a_failed_commit(void **state)
{
    struct rig *rig = *state;
    struct store_op full = {.verb = STORE_LANES};

    some_work(rig);
    faultvfs_set(FAULT_WRITE, 1);
    assert_int_equal(wait_in_lane(rig, 4), ERR_STORE_DOWN);
    wait_for_mode(rig, STORE_NORMAL);
    assert_work(rig);
    faultvfs_set(FAULT_WRITE, 1);
    assert_int_equal(rig_reserve(rig, 21, 1, "n1"), ERR_STORE_DOWN);
    wait_for_mode(rig, STORE_NORMAL);
    assert_work(rig);
    faultvfs_set(FAULT_WRITE, 1);
    assert_int_equal(rig_put_lane(rig, 22, LANE + 1, 0), ERR_STORE_DOWN);
    wait_for_mode(rig, STORE_NORMAL);
    assert_work(rig);
    full.u.lanes.max = 9;
    assert_int_equal(rig_call(rig, &full), ERR_OK);
    assert_int_equal(full.u.lanes.count, 1);
    assert_int_equal(wait_in_lane(rig, 4), ERR_OK);
    assert_int_equal(rig_lane(rig, LANE, 9), ERR_OK);
    assert_int_equal(rig->op.u.lane.waiting, 3);
    assert_int_equal(rig->op.u.lane.items[1].head.id, 4);
}

#define WITHOUT_LANES                                                                              \
    "ALTER TABLE job DROP COLUMN lane; ALTER TABLE job DROP COLUMN priority;"                      \
    "ALTER TABLE meta DROP COLUMN wait_shift_ms; ALTER TABLE meta DROP COLUMN journal_seq;"

/* A job that waits in a file of an older release is held by nobody, and may now wait in a lane. */
static void go_on_with(struct rig *rig, const char *change)
{
    struct store_due due[4];
    char path[128];

    assert_int_equal(rig_put(rig, 1), ERR_OK);
    assert_int_equal(rig_reserve(rig, 2, 1, "n1"), ERR_OK);
    rig_close(rig);
    change_file(rig, change, path);
    rig_open(rig);
    embedded_check_always(rig->store);
    assert_int_equal(rig_get(rig, 1), ERR_OK);
    assert_int_equal(rig->op.head.lane, 0);
    assert_int_equal(rig_due(rig, due, 4), 1);
    assert_int_equal(due[0].id, 1);
    assert_int_equal(rig_commit(rig, 2, 1, "n1"), ERR_OK);
    assert_int_equal(wait_in_lane(rig, 1), ERR_OK);
    rig_close(rig);
    rig_open(rig);
    assert_int_equal(rig_lane(rig, LANE, 9), ERR_OK);
    assert_int_equal(rig->op.u.lane.count, 1);
}

static void test_older_file(void **state)
{
    go_on_with(*state, WITHOUT_NEEDS WITHOUT_LANES
               "ALTER TABLE job DROP COLUMN answered; PRAGMA user_version = 1");
}

/* A file from before user_version said who may read it. */
static void test_early_file(void **state)
{
    go_on_with(*state, WITHOUT_NEEDS WITHOUT_LANES "PRAGMA user_version = 2");
}

/* A file as no release writes it: a job on a node that is also in a lane. */
static void test_a_lane_that_cannot_be(void **state)
{
    struct rig *rig = *state;
    char path[128];

    assert_int_equal(rig_reserve(rig, 1, 1, "n1"), ERR_OK);
    rig_close(rig);
    change_file(rig, "UPDATE job SET lane = 77, priority = 3", path);
    rig_open(rig);
    embedded_check_always(rig->store);
    assert_int_equal(rig_lane(rig, LANE, 9), ERR_OK);
    assert_int_equal(rig->op.u.lane.waiting, 0);
    assert_int_equal(rig_commit(rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_DONE, 1, 1, "n1", NULL), ERR_OK);
}

/* A later release added a column to every table and says that this release may use them. */
static void test_back_from_a_newer_release(void **state)
{
    struct rig *rig = *state;
    char path[128];

    assert_int_equal(rig_reserve(rig, 1, 1, "n1"), ERR_OK);
    rig_close(rig);
    change_file(rig,
                "ALTER TABLE job ADD COLUMN more INT; ALTER TABLE bulk ADD COLUMN more INT;"
                "ALTER TABLE node ADD COLUMN more INT; ALTER TABLE breaker ADD COLUMN more INT;"
                "ALTER TABLE session ADD COLUMN more INT; ALTER TABLE meta ADD COLUMN more INT;"
                "CREATE TABLE others(id INTEGER PRIMARY KEY);"
                "PRAGMA user_version = 132071", /* 2 * 65536 + 999 */
                path);
    rig_open(rig);
    assert_int_equal(rig_commit(rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_FAIL, 1, 1, "n1", "FAILED"), ERR_OK);
    assert_int_equal(rig_node(rig, "n2", 4, NODE_READY), ERR_OK);
    assert_int_equal(rig_put(rig, 2), ERR_OK);
    rig_close(rig);
    rig_open(rig);
    assert_int_equal(rig_get(rig, 2), ERR_OK);
    assert_int_equal(rig_counts(rig, "n2").max, 4);
}

static void test_newer_file(void **state)
{
    struct rig *rig = *state;
    struct problem why = {0};
    struct store *store;
    char path[128];

    rig_close(rig);
    change_file(rig, "PRAGMA user_version = 65471463", path); /* 999 * 65536 + 999 */
    assert_int_not_equal(store_open(&rig->config, &store, &why), ERR_OK);
    assert_non_null(strstr(why.detail, "use that release, or a back-up"));
    change_file(rig, "PRAGMA user_version = 999", path);
    assert_int_not_equal(store_open(&rig->config, &store, &why), ERR_OK);
    assert_non_null(strstr(why.detail, "newer berth"));
    assert_non_null(strstr(why.detail, "999"));
    assert_non_null(strstr(why.detail, path));
}

static void test_not_a_database(void **state)
{
    struct rig *rig = *state;
    struct problem why = {0};
    struct store *store;
    char path[128];
    int fd;

    rig_close(rig);
    snprintf(path, sizeof path, "%s/store.db", rig->dir);
    fd = open(path, O_WRONLY | O_TRUNC);
    assert_int_equal(write(fd, "nonsense, and more of it than a header has.........", 50), 50);
    for (int i = 0; i < 100; i++)
        assert_int_equal(write(fd, "nonsense, and more of it than a header has.........", 50), 50);
    close(fd);
    assert_int_not_equal(store_open(&rig->config, &store, &why), ERR_OK);
    assert_non_null(strstr(why.detail, "not a database"));
}

static void test_unknown_kind(void **state)
{
    struct rig *rig = *state;
    struct store_config config = rig->config;
    struct problem why = {0};
    struct store *store;

    config.url = "nosuch://host";
    assert_int_equal(store_open(&config, &store, &why), ERR_BAD_CONFIG);
    assert_non_null(strstr(why.detail, "\"nosuch\""));
    assert_non_null(strstr(why.detail, "embedded:"));
}

static void test_too_much_in_flight(void **state)
{
    struct rig *rig = *state;
    struct waiting waiting[3];
    int left = 0;
    int down = 0;
    enum err errs[3];

    rig_close(rig);
    rig->config.in_flight_max = 2;
    rig_open(rig);
    /* The test does not run its inbox meanwhile, but the store may answer quickly. What matters is
     * that it never takes more than two, and takes more again afterwards. */
    faultvfs_clear();
    for (int i = 0; i < 3; i++) {
        waiting[i] = (struct waiting){.left = &left, .down = &down};
        waiting[i].op =
            (struct store_op){RIG_NOTHING, .reply_to = &rig->work_queue.inbox, .done = counted};
        errs[i] = store_send(rig->store, &waiting[i].op);
        left += errs[i] == ERR_OK;
        assert_true(errs[i] == ERR_OK || errs[i] == ERR_BUSY);
    }
    assert_int_equal(errs[0], ERR_OK);
    assert_int_equal(errs[1], ERR_OK);
    while (left > 0) {
        work_queue_wait(&rig->work_queue, 1000);
        inbox_run(&rig->work_queue.inbox);
    }
    assert_int_equal(rig_counts(rig, "n1").max, 100000);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_write_fails_once),
        TEST(test_disk_full_once),
        TEST(test_sync_fails_once),
        TEST(test_write_fails_anywhere),
        TEST(test_sync_fails_anywhere),
        TEST(test_writes_stay_broken),
        TEST(test_disk_stays_full),
        TEST(test_syncs_stay_broken),
        TEST(test_open_stays_broken),
        TEST(test_close_while_down),
        TEST(test_outside_lock),
        TEST(test_tables_write_fails_anywhere),
        TEST(test_tables_sync_fails_anywhere),
        TEST(test_tables_full_anywhere),
        TEST(test_life_write_fails_anywhere),
        TEST(test_life_full_anywhere),
        TEST(test_life_sync_fails_anywhere),
        TEST(test_tables_stay_full),
        TEST(test_a_copy_fails),
        TEST(test_a_journal_that_is_not_ours),
        TEST(test_the_journal_of_the_release_before),
        TEST(test_the_release_before),
        TEST(test_no_sync_without_a_change),
        TEST(test_directory_in_use),
        TEST(test_a_lane_after_a_failed_commit),
        TEST(test_a_lane_that_cannot_be),
        TEST(test_older_file),
        TEST(test_early_file),
        TEST(test_newer_file),
        TEST(test_back_from_a_newer_release),
        TEST(test_not_a_database),
        TEST(test_unknown_kind),
        TEST(test_too_much_in_flight),
    };

    faultvfs_install();
    return cmocka_run_group_tests_name("store/faults", tests, NULL, NULL);
}
