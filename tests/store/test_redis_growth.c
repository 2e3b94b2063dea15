/* No call's work grows with the number of jobs: the library counts commands, their arguments and
 * their answers (`meta.work`), at 10, 1,000 and 10,000 active jobs. STORE_JOBS sets the largest
 * number. A heartbeat lists its runs, so that part grows, but it reads and writes none of their
 * records. */
#include "contract.h"
#include "redis_rig.h"

#include "store/redis_wire.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    JOBS_DEFAULT = 10000,
    WORK_MAX = 16000, /* a walk over the largest number would be at least twice this */
    SLOTS = 1000000,
    DUES = 64,
    LANE = 77,
    LACKS = 3,
    RENEW_WORK = 400,  /* besides the runs, each of which is one question and one answer */
    RENEW_RECORDS = 8, /* of the runs that a list lacked, or has again */
};

static struct redis_server server;

static void work_begin(void)
{
    redis_say(server.port, "HSET sched:{f}:meta work 0 asked 0 records 0");
}

static long work_of(const char *name)
{
    return strtol(redis_say(server.port, "HGET sched:{f}:meta %s", name), NULL, 10);
}

static void work_end(long jobs, const char *what)
{
    long work = work_of("work");

    print_message("%ld jobs, %s: %ld\n", jobs, what, work);
    if (work > WORK_MAX)
        fail_msg("%ld jobs, %s: one call's work is %ld", jobs, what, work);
}

static void sweep(struct rig *rig)
{
    struct store_due due[DUES];

    rig_due(rig, due, DUES);
}

/* A quarter of the jobs waits in a lane, a quarter is held, half run on one node. */
static void fill(struct rig *rig, long jobs)
{
    assert_int_equal(rig_node(rig, "n1", SLOTS, NODE_READY), ERR_OK);
    for (long i = 1; i <= jobs; i++) {
        uint64_t job = (uint64_t)i;

        if (i % 2) {
            assert_int_equal(i % 4 == 1 ? rig_put(rig, job) : rig_put_lane(rig, job, LANE, i % 10),
                             ERR_OK);
            continue;
        }
        assert_int_equal(rig_reserve(rig, job, 1, "n1"), ERR_OK);
        assert_int_equal(rig_commit(rig, job, 1, "n1"), ERR_OK);
    }
}

static void play(long jobs)
{
    static char url[64];
    struct rig rig;
    struct store_op lost = {.verb = STORE_NODE_PUT, .node = STR("n1")};
    uint64_t job = (uint64_t)jobs;

    redis_say(server.port, "FLUSHALL");
    snprintf(url, sizeof url, "redis://127.0.0.1:%d/0", server.port);
    rig_init(&rig);
    rig.config.url = url;
    rig.config.timeout_ms = 20000;
    rig_open(&rig);
    fill(&rig, jobs);

    work_begin();
    rig_jump(6000);
    assert_int_equal(rig_reserve(&rig, ++job, 1, "n1"), ERR_OK);
    work_end(jobs, "after a pause");

    work_begin();
    rig_jump(-60000);
    assert_int_equal(rig_reserve(&rig, ++job, 1, "n1"), ERR_OK);
    work_end(jobs, "the clock is set back");

    work_begin();
    rig_close(&rig);
    work_end(jobs, "an instance leaves");
    work_begin();
    rig_open(&rig);
    work_end(jobs, "the first instance");

    work_begin();
    sweep(&rig);
    work_end(jobs, "DUE");

    work_begin();
    lost.u.node_put = (typeof(lost.u.node_put)){
        .own = NODE_READY, .health = NODE_READY, .max = -1, .new_epoch = true};
    assert_int_equal(rig_call(&rig, &lost), ERR_OK);
    assert_int_equal(lost.counts.running, 0);
    for (int i = 0; i < 4; i++)
        sweep(&rig);
    work_end(jobs, "a new epoch");

    work_begin();
    assert_int_equal(rig_put_lane(&rig, ++job, LANE, 9), ERR_OK);
    assert_int_equal(rig_reserve(&rig, job, 1, "n1"), ERR_OK);
    work_end(jobs, "into a lane and out of it");

    work_begin();
    for (int i = 0; i < 8; i++) { /* all holds and leases run out */
        rig_jump(4000);
        sweep(&rig);
    }
    work_end(jobs, "time passes");
    rig_done(&rig);
}

/* The leases of the listed runs are asked for; if the list lacks some, all leases of the node are
 * read. The last `strangers` runs of the list are unknown jobs. */
static void renew(struct rig *rig, struct store_run *runs, long count, long strangers,
                  const char *what, bool reads_all)
{
    struct store_op op = {.verb = STORE_RENEW, .node = STR("n1")};
    long work, records;

    op.u.renew.runs = runs;
    op.u.renew.count = (size_t)count;
    op.u.renew.terms = (struct lease_terms){RIG_RUN_MS, RIG_F2F_MS};
    rig_jump(100);
    work_begin();
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    work = work_of("asked") - (reads_all ? 4 : 2) * count;
    records = work_of("records");
    print_message("%ld runs, RENEW, %s: %ld besides the list, %ld records\n", count, what, work,
                  records);
    for (long i = 0; runs && i < count; i++)
        assert_int_equal(runs[i].unknown, i >= count - strangers);
    if (work > RENEW_WORK || records > RENEW_RECORDS)
        fail_msg("%ld runs, RENEW, %s: %ld besides the list, %ld records", count, what, work,
                 records);
}

/* A very different list is settled in several calls, each of which reads and writes only a part of
 * the records. */
static void renew_in_parts(struct rig *rig, struct store_run *runs, long count, const char *what)
{
    struct store_op op = {.verb = STORE_RENEW, .node = STR("n1")};
    long records;

    op.u.renew.runs = runs;
    op.u.renew.count = (size_t)count;
    op.u.renew.terms = (struct lease_terms){RIG_RUN_MS, RIG_F2F_MS};
    rig_jump(100);
    work_begin();
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    records = work_of("records");
    print_message("%ld runs, RENEW, %s: at most %ld records in a call\n", count, what, records);
    for (long i = 0; i < count; i++)
        assert_false(runs[i].unknown);
    if (records > 2 * WIRE_RENEW_MAX)
        fail_msg("%ld runs, RENEW, %s: %ld records in a call", count, what, records);
}

/* The first heartbeat finds leases of the node that are not written yet: of at most so many
 * jobs. */
static void renew_owed(struct rig *rig, struct store_run *runs, long count)
{
    struct store_op op = {.verb = STORE_RENEW, .node = STR("n1")};
    long work;

    op.u.renew.runs = runs;
    op.u.renew.count = (size_t)count;
    op.u.renew.terms = (struct lease_terms){RIG_RUN_MS, RIG_F2F_MS};
    rig_jump(100);
    work_begin();
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    work = work_of("asked") - 2 * count;
    print_message("%ld runs, RENEW, the first: %ld besides the list\n", count, work);
    for (long i = 0; i < count; i++)
        assert_false(runs[i].unknown);
    if (work > RENEW_WORK + 2 * WIRE_OWED_MAX)
        fail_msg("%ld runs, RENEW, the first: %ld besides the list", count, work);
}

static void play_renew(long count)
{
    static char url[64];
    struct rig rig;
    struct store_run *runs = calloc((size_t)count + LACKS, sizeof *runs);

    redis_say(server.port, "FLUSHALL");
    snprintf(url, sizeof url, "redis://127.0.0.1:%d/0", server.port);
    rig_init(&rig);
    rig.config.url = url;
    rig.config.timeout_ms = 20000;
    rig_open(&rig);
    assert_int_equal(rig_node(&rig, "n1", SLOTS, NODE_READY), ERR_OK);
    for (long i = 0; i < count + LACKS; i++) {
        runs[i] = (struct store_run){.id = (uint64_t)i + 1, .attempt = 1};
        if (i >= count)
            continue;
        assert_int_equal(rig_reserve(&rig, runs[i].id, 1, "n1"), ERR_OK);
        assert_int_equal(rig_commit(&rig, runs[i].id, 1, "n1"), ERR_OK);
    }
    renew_owed(&rig, runs, count);
    renew(&rig, runs, count, 0, "all of them", false);
    renew(&rig, runs, count + LACKS, LACKS, "and some that nobody knows", false);
    renew(&rig, runs, count - LACKS, 0, "some are missing", true);
    renew(&rig, runs, count, 0, "they are back", false);
    renew(&rig, runs, count, 0, "all of them again", false);
    renew(&rig, NULL, 0, 0, "without a list", false);
    renew_in_parts(&rig, runs, count / 2, "half of them");
    renew_in_parts(&rig, runs, count / 3, "a third of them, or two thirds of those");
    renew_in_parts(&rig, runs, count / 8, "a few");
    renew_in_parts(&rig, runs, count, "they are back");
    renew(&rig, runs, count, 0, "all of them at last", false);
    rig_done(&rig);
    free(runs);
}

static void test_no_heartbeat_grows(void **state)
{
    const char *given = getenv("STORE_JOBS");

    play_renew(10);
    play_renew(1000);
    play_renew(given ? strtol(given, NULL, 10) : JOBS_DEFAULT);
}

static void test_no_call_grows(void **state)
{
    const char *given = getenv("STORE_JOBS");
    long most = given ? strtol(given, NULL, 10) : JOBS_DEFAULT;

    play(10);
    play(1000);
    play(most);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_call_grows),
                                       cmocka_unit_test(test_no_heartbeat_grows)};
    int failed;

    redis_server_start(&server);
    failed = cmocka_run_group_tests_name("store/redis_growth", tests, NULL, NULL);
    redis_server_remove(&server);
    return failed;
}
