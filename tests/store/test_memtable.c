/* Reads while some rows are in store.db, some only in the journal, and some in both but newer in
 * the journal: a job reads as it was last answered, and lists have every job once. */
#include "contract.h"

#include "base/clock.h"
#include "store/embedded.h"

#include <sched.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

enum { JOBS = 400, STEPS = 4000, PATIENCE_MS = 20000, SPEC_BULKY = 3000 };

/* The last answer about each job. */
struct known {
    bool there;
    bool has_result;
    struct store_head head;
};

struct world {
    struct rig rig;
    struct rnd rnd;
    sqlite3 *db; /* its lock keeps store.db unchanged */
    bool locked;
    struct known jobs[JOBS];
    char spec[SPEC_BULKY];
};

/* Ids have gaps, so there are unused ids between any two. */
static uint64_t id_of(size_t at)
{
    return 10 * (at + 1);
}

static void exec(struct world *world, const char *sql)
{
    assert_int_equal(sqlite3_exec(world->db, sql, NULL, NULL, NULL), SQLITE_OK);
}

static int64_t in_file(struct world *world, uint64_t id)
{
    sqlite3_stmt *stmt;
    int64_t state = -1;

    assert_int_equal(
        sqlite3_prepare_v2(world->db, "SELECT state FROM job WHERE id = ?1", -1, &stmt, NULL),
        SQLITE_OK);
    sqlite3_bind_int64(stmt, 1, (int64_t)id);
    if (sqlite3_step(stmt) == SQLITE_ROW)
        state = sqlite3_column_int(stmt, 0);
    sqlite3_finalize(stmt);
    return state;
}

static void toggle(struct world *world)
{
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;
    struct known *known = &world->jobs[rnd_below(&world->rnd, JOBS)];

    exec(world, world->locked ? "ROLLBACK" : "BEGIN IMMEDIATE");
    world->locked = !world->locked;
    if (world->locked)
        return;
    /* Waits until store.db has the state of this job. */
    while (known->there && in_file(world, known->head.id) != known->head.state &&
           clock_mono_ms() < end_ms)
        sched_yield();
    assert_true(!known->there || in_file(world, known->head.id) == known->head.state);
}

static void put(struct world *world, size_t at)
{
    struct store_op op = {.verb = STORE_PUT, .job = id_of(at), .attempt = 1};

    op.u.put.spec = (struct str){.at = world->spec, .len = at % 5 ? 200 : SPEC_BULKY};
    op.u.put.max_attempts = 2;
    op.u.put.callback = at % 3 == 0;
    op.u.put.hold_ms = RIG_WAIT_MS;
    assert_int_equal(rig_call(&world->rig, &op), ERR_OK);
    world->jobs[at] = (struct known){.there = true, .head = op.head};
}

static void call(struct world *world, struct known *known, enum err err)
{
    assert_int_equal(err, ERR_OK);
    known->head = world->rig.op.head;
}

/* One step in a job's life. */
static void go_on(struct world *world, size_t at)
{
    struct rig *rig = &world->rig;
    struct known *known = &world->jobs[at];
    const struct store_head *head = &known->head;

    if (!known->there) {
        put(world, at);
    } else if (head->state == JOB_NEW || head->state == JOB_RETRYING) {
        call(world, known,
             rig_reserve(rig, head->id, head->attempt + (head->state != JOB_NEW), "n1"));
    } else if (head->state == JOB_DISPATCHED) {
        call(world, known, rig_commit(rig, head->id, head->attempt, "n1"));
    } else if (head->state == JOB_ACKED && rnd_below(&world->rnd, 3) == 0) {
        call(world, known, rig_finish(rig, STORE_FAIL, head->id, head->attempt, "n1", "FAILED"));
    } else if (head->state == JOB_ACKED) {
        call(world, known, rig_finish(rig, STORE_DONE, head->id, head->attempt, "n1", NULL));
        known->has_result = true;
    } else if (head->callback == CALLBACK_PENDING) {
        rig->op = (struct store_op){.verb = STORE_CALLBACK_DONE, .job = head->id};
        call(world, known, rig_call(rig, &rig->op));
    }
}

static void check_record(const struct world *world, const struct store_record *record)
{
    size_t at = (size_t)(record->head.id / 10 - 1);
    const struct known *known = &world->jobs[at];

    assert_true(known->there && record->head.id == id_of(at));
    assert_int_equal(record->head.state, known->head.state);
    assert_int_equal(record->head.attempt, known->head.attempt);
    assert_int_equal(record->head.lease, known->head.lease);
    assert_int_equal(record->head.callback, known->head.callback);
    assert_string_equal(record->head.node, known->head.node);
    assert_int_equal(record->spec.len, at % 5 ? 200 : SPEC_BULKY);
    assert_int_equal(record->result.at != NULL, known->has_result);
    assert_int_equal(record->history.len > 2, known->head.attempt > 1 ||
                                                  known->head.state == JOB_RETRYING ||
                                                  job_state_final(known->head.state));
}

/* A list has every job in these states once, newest first, whatever the page size. */
static void check_list(struct world *world, unsigned states)
{
    struct store_op op = {.verb = STORE_JOB_LIST};
    size_t at = JOBS;

    op.u.list.states = states;
    op.u.list.max = 1 + rnd_below(&world->rnd, 100);
    do {
        op.u.list.before = op.u.list.next;
        assert_int_equal(rig_call(&world->rig, &op), ERR_OK);
        for (size_t i = 0; i < op.u.list.count; i++) {
            do
                assert_true(at-- > 0);
            while (!world->jobs[at].there ||
                   (states && !(states >> world->jobs[at].head.state & 1)));
            assert_int_equal(op.u.list.items[i].head.id, id_of(at));
            check_record(world, &op.u.list.items[i]);
        }
    } while (op.u.list.next);
    while (at-- > 0)
        assert_true(!world->jobs[at].there ||
                    (states && !(states >> world->jobs[at].head.state & 1)));
}

/* Every pending callback is listed once, oldest first. */
static void check_callbacks(struct world *world)
{
    struct store_op op = {.verb = STORE_CALLBACKS};
    size_t at = 0;

    op.u.list.max = 1 + rnd_below(&world->rnd, 20);
    do {
        assert_int_equal(rig_call(&world->rig, &op), ERR_OK);
        for (size_t i = 0; i < op.u.list.count; i++, at++) {
            while (at < JOBS && world->jobs[at].head.callback != CALLBACK_PENDING)
                at++;
            assert_true(at < JOBS);
            assert_int_equal(op.u.list.items[i].head.id, id_of(at));
            check_record(world, &op.u.list.items[i]);
            op.u.list.after = id_of(at);
        }
    } while (op.u.list.count == op.u.list.max);
    for (; at < JOBS; at++)
        assert_true(world->jobs[at].head.callback != CALLBACK_PENDING);
}

static void check_get(struct world *world, size_t at)
{
    enum err err = rig_get(&world->rig, id_of(at));

    assert_int_equal(err, world->jobs[at].there ? ERR_OK : ERR_NOT_FOUND);
    if (!err)
        check_record(world, &world->rig.op.record);
}

static void test_reads_of_both(void **state)
{
    static struct world world;
    char path[128];

    memset(world.spec, ' ', sizeof world.spec);
    rig_init(&world.rig);
    world.rig.ttl_ms = RIG_LONG_TTL_MS;
    rnd_seed(&world.rnd, 11);
    rig_open(&world.rig);
    embedded_check_always(world.rig.store);
    snprintf(path, sizeof path, "%s/store.db", world.rig.dir);
    assert_int_equal(sqlite3_open(path, &world.db), SQLITE_OK);
    sqlite3_busy_timeout(world.db, PATIENCE_MS);
    assert_int_equal(rig_node(&world.rig, "n1", 100000, NODE_READY), ERR_OK);
    for (int i = 0; i < STEPS; i++) {
        go_on(&world, rnd_below(&world.rnd, JOBS));
        check_get(&world, rnd_below(&world.rnd, JOBS));
        if (rnd_below(&world.rnd, 200) == 0)
            toggle(&world);
        if (rnd_below(&world.rnd, 20) == 0)
            check_list(&world, 0);
        if (rnd_below(&world.rnd, 20) == 0)
            check_list(&world, 1u << rnd_below(&world.rnd, JOB_STATE_COUNT));
        if (rnd_below(&world.rnd, 20) == 0)
            check_callbacks(&world);
        arena_reset(&world.rig.arena);
    }
    if (world.locked)
        toggle(&world);
    sqlite3_close(world.db);
    rig_close(&world.rig);
    rig_open(&world.rig);
    check_list(&world, 1u << JOB_DONE);
    check_callbacks(&world);
    rig_done(&world.rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_reads_of_both)};

    return cmocka_run_group_tests_name("store/memtable", tests, NULL, NULL);
}
