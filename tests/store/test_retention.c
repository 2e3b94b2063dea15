/* Everything that grows is bounded: ended jobs, sessions, the WAL, and the memory of a restart. */
#include "contract.h"

#include "base/clock.h"
#include "base/mem.h"
#include "store/embedded.h"

#include <sched.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { HOUR_MS = 3600000, PATIENCE_MS = 20000 };

struct fixture {
    struct rig rig;
    sqlite3 *db; /* the test's own connection */
};

static int setup(void **state)
{
    struct fixture *fixture = mem_new(struct fixture);
    char path[128];

    rig_init(&fixture->rig);
    fixture->rig.config.retention_ms = HOUR_MS;
    fixture->rig.config.retention_jobs_max = 200;
    rig_open(&fixture->rig);
    embedded_check_always(fixture->rig.store);
    snprintf(path, sizeof path, "%s/store.db", fixture->rig.dir);
    sqlite3_open_v2(path, &fixture->db, SQLITE_OPEN_READWRITE, NULL);
    *state = fixture;
    return rig_node(&fixture->rig, "n1", 100000, NODE_READY);
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;

    sqlite3_close(fixture->db);
    rig_done(&fixture->rig);
    free(fixture);
    return 0;
}

static int64_t ask(struct fixture *fixture, const char *sql)
{
    sqlite3_stmt *stmt;
    int64_t value = -1;

    assert_int_equal(sqlite3_prepare_v2(fixture->db, sql, -1, &stmt, NULL), SQLITE_OK);
    if (sqlite3_step(stmt) == SQLITE_ROW)
        value = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return value;
}

/* The purge and the flush work a little at a time: asks until the value is reached, or has not
 * changed for a while. */
static void wait_until(struct fixture *fixture, const char *sql, int64_t want)
{
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;
    int64_t value = ask(fixture, sql);

    for (int64_t before = value; value != want && clock_mono_ms() < end_ms; before = value) {
        sched_yield();
        value = ask(fixture, sql);
        if (value != before)
            end_ms = clock_mono_ms() + PATIENCE_MS;
    }
    assert_int_equal(value, want);
}

/* Waits until the store has dropped the flushed row of this job. */
static void wait_gone(struct fixture *fixture, uint64_t job)
{
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;
    enum err err;

    while ((err = rig_get(&fixture->rig, job)) == ERR_OK && clock_mono_ms() < end_ms)
        arena_reset(&fixture->rig.arena);
    assert_int_equal(err, ERR_NOT_FOUND);
}

static void live(struct rig *rig, uint64_t job, bool callback, size_t spec_bytes)
{
    static char spec[8192];
    struct store_op op = {.verb = STORE_RESERVE, .job = job, .attempt = 1};

    memset(spec, ' ', sizeof spec);
    op.u.put.spec = (struct str){spec, spec_bytes};
    op.u.put.max_attempts = 1;
    op.u.put.ttl_ms = RIG_TTL_MS;
    op.u.put.callback = callback;
    op.u.put.candidate_count = 1;
    op.u.put.candidates[0] =
        (struct store_candidate){.node = STR("n1"), .hash = str_hash(STR("n1"))};
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_DONE, job, 1, "n1", NULL), ERR_OK);
}

/* Old jobs are removed with everything that belongs to them; a job that is still needed stays,
 * however old. */
static void test_old_jobs_go(void **state)
{
    struct fixture *fixture = *state;
    struct rig *rig = &fixture->rig;

    for (uint64_t job = 1; job <= 50; job++)
        live(rig, job, false, job % 2 ? 10 : 5000);
    live(rig, 51, true, 10); /* its callback is pending */
    assert_int_equal(rig_put(rig, 52), ERR_OK);
    assert_int_equal(rig_reserve(rig, 53, 1, "n1"), ERR_OK); /* cancelled, but still running */
    assert_int_equal(rig_commit(rig, 53, 1, "n1"), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_CANCEL, 53, 0, NULL, NULL), ERR_OK);
    wait_until(fixture, "SELECT count(*) FROM bulk", 25);
    rig_jump(HOUR_MS / 2);
    live(rig, 60, false, 10);
    rig_jump(HOUR_MS / 2 + 1000);
    wait_until(fixture, "SELECT count(*) FROM job", 4);
    assert_int_equal(ask(fixture, "SELECT count(*) FROM bulk"), 0);
    wait_gone(fixture, 50);
    assert_int_equal(rig_get(rig, 51), ERR_OK);
    assert_int_equal(rig_get(rig, 52), ERR_OK);
    assert_int_equal(rig_get(rig, 53), ERR_OK);
    assert_int_equal(rig_get(rig, 60), ERR_OK);
    /* They are removed once nothing needs them. */
    struct store_op op = {.verb = STORE_CALLBACK_DONE, .job = 51};
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_CANCEL, 52, 0, NULL, NULL), ERR_OK);
    rig_jump(HOUR_MS + 1000);
    wait_until(fixture, "SELECT count(*) FROM job WHERE id IN (51, 52, 60)", 0);
}

/* There are never more ended jobs than allowed; the newest are kept, and the count survives a
 * restart. */
static void test_too_many_jobs_go(void **state)
{
    struct fixture *fixture = *state;
    struct rig *rig = &fixture->rig;

    assert_int_equal(rig_put(rig, 1), ERR_OK); /* active: neither counted nor removed */
    for (uint64_t job = 2; job <= 260; job++)
        live(rig, job, false, 10);
    wait_until(fixture, "SELECT min(id) FROM job WHERE id > 1", 61);
    assert_int_equal(ask(fixture, "SELECT count(*) FROM job"), 201);
    rig_close(rig);
    rig_open(rig);
    for (uint64_t job = 261; job <= 300; job++)
        live(rig, job, false, 10);
    wait_until(fixture, "SELECT min(id) FROM job WHERE id > 1", 101);
    assert_int_equal(ask(fixture, "SELECT count(*) FROM job"), 201);
    assert_int_equal(rig_get(rig, 1), ERR_OK);
    assert_int_equal(rig_get(rig, 300), ERR_OK);
    wait_gone(fixture, 100);
}

static void use_session(struct rig *rig, uint64_t job, const char *session)
{
    struct store_op op = {.verb = STORE_PUT, .job = job, .attempt = 1};

    op.u.put.spec = STR("{}");
    op.u.put.max_attempts = 1;
    op.u.put.session = str_of(session);
    op.u.put.pool = STR("en:zh");
    op.u.put.lang_pair = STR("en->zh");
    assert_int_equal(rig_call(rig, &op), ERR_OK);
}

/* A session in use is kept even if it never changes; an unused one is removed. */
static void test_old_sessions_go(void **state)
{
    struct fixture *fixture = *state;
    struct rig *rig = &fixture->rig;

    use_session(rig, 1, "idle");
    use_session(rig, 2, "busy");
    for (uint64_t i = 0; i < 4; i++) {
        rig_jump(HOUR_MS / 2);
        use_session(rig, 3 + i, "busy");
    }
    /* A count of 1 is not enough: until both are flushed, the one row may be the other session. */
    wait_until(fixture, "SELECT sum(CASE id WHEN 'busy' THEN 1 ELSE 10 END) FROM session", 1);
    assert_int_equal(ask(fixture, "SELECT version FROM session WHERE id = 'busy'"), 1);
    use_session(rig, 10, "idle");
    wait_until(fixture, "SELECT count(*) FROM session", 2);
}

struct bulk_put {
    struct store_op op;
    struct rig *rig;
    int *left;
    int *under_way;
    uint64_t *next;
};

static void bulk_answered(struct store_op *op);

static void put_more(struct bulk_put *put)
{
    /* Never written, since the store reads it while others are sent. */
    static const char spec[2000];

    if (*put->left == 0)
        return;
    --*put->left;
    ++*put->under_way;
    put->op = (struct store_op){.verb = STORE_PUT, .job = ++*put->next, .attempt = 1};
    put->op.reply_to = &put->rig->work_queue.inbox;
    put->op.u.put.spec = (struct str){spec, sizeof spec};
    put->op.u.put.max_attempts = 1;
    put->op.done = bulk_answered;
    assert_int_equal(store_send(put->rig->store, &put->op), ERR_OK);
}

static void bulk_answered(struct store_op *op)
{
    struct bulk_put *put = container_of(op, struct bulk_put, op);

    if (op->err)
        abort();
    --*put->under_way;
    put_more(put);
}

static int64_t wal_bytes(struct rig *rig)
{
    struct stat info;
    char path[128];

    snprintf(path, sizeof path, "%s/store.db-wal", rig->dir);
    return stat(path, &info) ? 0 : (int64_t)info.st_size;
}

/* Under constant load the WAL starts over again and again instead of growing: three times its limit
 * is written. */
static void test_wal_is_bounded(void **state)
{
    enum { FLIGHT = 64, PUTS = 50000 };
    static struct bulk_put puts[FLIGHT];
    struct fixture *fixture = *state;
    struct rig *rig = &fixture->rig;
    /* Fewer where only the code is checked, as under a sanitiser. */
    const char *given = getenv("STORE_OPS");
    const int count = given && atoi(given) < PUTS ? atoi(given) : PUTS;
    int left = count;
    int under_way = 0;
    uint64_t next = 0;
    int64_t largest = 0;

    for (int i = 0; i < FLIGHT; i++) {
        puts[i] =
            (struct bulk_put){.rig = rig, .left = &left, .under_way = &under_way, .next = &next};
        put_more(&puts[i]);
    }
    while (under_way > 0) {
        work_queue_wait(&rig->work_queue, 1000);
        inbox_run(&rig->work_queue.inbox);
        if (wal_bytes(rig) > largest)
            largest = wal_bytes(rig);
    }
    print_message("largest WAL: %lld MiB\n", (long long)largest >> 20);
    assert_true(largest < 96 << 20);
    wait_until(fixture, "SELECT count(*) FROM job", count);
}

/* A restart reads only rows from the floor on; active jobs keep the floor down. */
static void test_floor_keeps_active_jobs(void **state)
{
    struct fixture *fixture = *state;
    struct rig *rig = &fixture->rig;
    char sql[128];

    assert_int_equal(rig_put(rig, 100), ERR_OK);
    for (uint64_t job = 200; job < 210; job++)
        live(rig, job, false, 10);
    rig_close(rig);
    /* The floor is where an audit left it; then a job with an older id arrives, and the floor moves
     * down to it. */
    assert_int_equal(sqlite3_exec(fixture->db, "UPDATE meta SET floor = 100", NULL, NULL, NULL),
                     SQLITE_OK);
    rig_open(rig);
    assert_int_equal(rig_put(rig, 50), ERR_OK);
    wait_until(fixture, "SELECT floor FROM meta", 50);
    rig_close(rig);
    rig_open(rig);
    struct store_due due[4];
    assert_int_equal(rig_due(rig, due, 4), 2); /* both are in memory, and nobody holds them now */
    struct store_op op = {.verb = STORE_JOB_LIST};
    op.u.list.states = 1u << JOB_NEW;
    op.u.list.max = 10;
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_int_equal(op.u.list.count, 2);
    snprintf(sql, sizeof sql, "SELECT count(*) FROM job");
    assert_int_equal(ask(fixture, sql), 12);
}

/* Ids made after a restart are larger than any id in the store. */
static void test_ids_go_on(void **state)
{
    struct fixture *fixture = *state;
    struct rig *rig = &fixture->rig;
    uint64_t ahead = job_id_next(clock_wall_ms() + 10 * (int64_t)HOUR_MS, 1);

    assert_int_equal(rig_put(rig, ahead), ERR_OK);
    rig_close(rig);
    rig_open(rig);
    assert_true(job_id_next(clock_wall_ms(), 1) > ahead);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_old_jobs_go),    TEST(test_too_many_jobs_go), TEST(test_old_sessions_go),
        TEST(test_wal_is_bounded), TEST(test_ids_go_on),        TEST(test_floor_keeps_active_jobs),
    };

    return cmocka_run_group_tests_name("store/retention", tests, NULL, NULL);
}
