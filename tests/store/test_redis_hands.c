/* Records in Redis that somebody wrote or deleted by hand. */
#include "contract.h"
#include "redis_rig.h"

#include "base/clock.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATIENCE_MS = 20000, CALL_MS = 5000, NODES = 200 };

static int setup(void **state)
{
    struct redis_fixture *fixture = mem_new(struct redis_fixture);

    *state = fixture;
    return redis_fixture_open(fixture, CALL_MS, 4);
}

/* Counters that do not match the leases are found and corrected. */
static void test_wrong_counters_are_put_right(void **state)
{
    static const char script[] =
        "local node = redis.call('HGET', KEYS[1], 'n1') return redis.call('HSET', KEYS[1], 'n1', "
        "node:sub(1, 2) .. struct.pack('<i4i4', 7, 9) .. node:sub(11))";
    const char *words[] = {"EVAL", script, "1", "sched:{f}:n"};
    struct redis_fixture *fixture = *state;
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;
    int running;

    assert_int_equal(rig_reserve(&fixture->rig, 1, 1, "n1"), ERR_OK);
    redis_say_words(fixture->server.port, COUNT_OF(words), words);
    running = rig_counts(&fixture->rig, "n1").running;
    assert_true(running == 9 || running == 0); /* unless an audit came in between */
    while (rig_repairs(&fixture->rig) == 0)
        assert_true(clock_mono_ms() < end_ms);
    assert_int_equal(rig_repairs(&fixture->rig), 2);
    assert_int_equal(rig_repairs_of(&fixture->rig, STORE_RULE_SLOTS), 2);
    assert_int_equal(rig_counts(&fixture->rig, "n1").reserved, 1);
    assert_int_equal(rig_counts(&fixture->rig, "n1").running, 0);
}

/* A lease whose listed attempt differs from its job's record is corrected. */
static void test_a_wrong_lease_is_put_right(void **state)
{
    static const char script[] =
        "local id, value = unpack(redis.call('HGETALL', KEYS[1])) if not id then return 0 end "
        "redis.call('HSET', KEYS[1], id, '\\7' .. value:sub(2)) return 1";
    const char *words[] = {"EVAL", script, "1", "sched:{f}:h:n1"};
    struct redis_fixture *fixture = *state;
    struct rig *rig = &fixture->rig;
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;

    assert_int_equal(rig_reserve(rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(rig_commit(rig, 1, 1, "n1"), ERR_OK);
    while (strcmp(redis_say_words(fixture->server.port, COUNT_OF(words), words), "1") != 0)
        assert_true(clock_mono_ms() < end_ms); /* the lease may not be written yet */
    while (rig_repairs(rig) == 0)
        assert_true(clock_mono_ms() < end_ms);
    assert_int_equal(rig_repairs_of(rig, STORE_RULE_LEASES), 1);
    assert_int_equal(rig_repairs(rig), 1);
}

/* A wrong number of waiting jobs is counted again, lane by lane, while jobs come and go. */
static void test_a_wrong_number_of_waiting_jobs_is_put_right(void **state)
{
    enum { LANES = 20 };
    static const char *const texts[] = {"900000 0 ", "0 0 ", "900000 7 2000000000000000", "x"};
    struct redis_fixture *fixture = *state;
    uint64_t job = 1;

    for (; job <= LANES; job++)
        assert_int_equal(rig_put_lane(&fixture->rig, job, job << 56, 0), ERR_OK);
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        const char *words[] = {"HSET", "sched:{f}:meta", "waiting", texts[i]};
        int64_t end_ms = clock_mono_ms() + PATIENCE_MS;
        const char *text;

        redis_say_words(fixture->server.port, COUNT_OF(words), words);
        do {
            assert_true(clock_mono_ms() < end_ms);
            assert_int_equal(rig_put_lane(&fixture->rig, job, job << 56, 0), ERR_OK);
            assert_int_equal(rig_finish(&fixture->rig, STORE_CANCEL, job++, 0, NULL, NULL), ERR_OK);
            text = redis_say(fixture->server.port, "HGET sched:{f}:meta waiting");
        } while (atoi(text) != LANES);
    }
    /* Not a repair: an older release may have changed the number. */
    assert_int_equal(rig_repairs(&fixture->rig), 0);
}

/* Jobs come and go before and behind the audit while it counts: the number stays right. */
static void test_the_number_of_waiting_jobs_stays_right(void **state)
{
    enum { JOBS = 60, LANES = 200, ROUNDS = 2 };
    struct redis_fixture *fixture = *state;
    int64_t end_ms = clock_mono_ms() + 2 * PATIENCE_MS;
    bool counting = false;
    int rounds = 0;

    for (uint64_t job = 1; rounds < ROUNDS; job++) {
        /* Thirty lanes at a time, soon replaced by others. */
        uint64_t lane = (job / 2 % LANES + 1) << 56;
        ;
        const char *text;

        assert_true(clock_mono_ms() < end_ms);
        assert_int_equal(rig_put_lane(&fixture->rig, job, lane, 0), ERR_OK);
        if (job <= JOBS)
            continue;
        assert_int_equal(rig_finish(&fixture->rig, STORE_CANCEL, job - JOBS, 0, NULL, NULL),
                         ERR_OK);
        text = redis_say(fixture->server.port, "HGET sched:{f}:meta waiting");
        assert_int_equal(atoi(text), JOBS);
        rounds += counting && text[strlen(text) - 1] == ' ';
        counting = text[strlen(text) - 1] != ' ';
    }
}

static enum err put_for_account(struct rig *rig, uint64_t job, uint64_t lane, int64_t jobs_max)
{
    struct store_op op = {.verb = STORE_PUT, .job = job, .attempt = 1};

    op.u.put.spec = STR("{}");
    op.u.put.max_attempts = 1;
    op.u.put.lane = lane;
    op.u.put.wait_ms = RIG_WAIT_MS;
    op.u.put.bounds.account = (struct store_account){
        .name = STR("ci"), .bytes = 5, .jobs_max = jobs_max, .bytes_max = 5 * jobs_max};
    return rig_call(rig, &op);
}

/* Jobs that were deleted by hand do not count for their account for ever. */
static void test_an_account_is_put_right(void **state)
{
    struct redis_fixture *fixture = *state;
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;
    enum err err;

    for (uint64_t job = 1; job <= 3; job++)
        assert_int_equal(put_for_account(&fixture->rig, job, 77, 3), ERR_OK);
    assert_int_equal(put_for_account(&fixture->rig, 4, 78, 3), ERR_QUOTA_WAITING);
    redis_say(fixture->server.port, "DEL sched:{f}:q:000000000000004d sched:{f}:j:j0000000");
    while ((err = put_for_account(&fixture->rig, 4, 78, 1)) == ERR_QUOTA_WAITING)
        assert_true(clock_mono_ms() < end_ms);
    assert_int_equal(err, ERR_OK);
    assert_int_equal(put_for_account(&fixture->rig, 5, 78, 1), ERR_QUOTA_WAITING);
    redis_say(fixture->server.port, "DEL sched:{f}:counted");
    end_ms = clock_mono_ms() + PATIENCE_MS;
    while ((err = put_for_account(&fixture->rig, 5, 78, 1)) == ERR_QUOTA_WAITING)
        assert_true(clock_mono_ms() < end_ms);
    assert_int_equal(err, ERR_OK);
}

/* The audit looks at a part of the nodes in each call, and comes to all of them. */
static void test_every_node_is_looked_at(void **state)
{
    static const char script[] =
        "for _, id in ipairs(redis.call('HKEYS', KEYS[1])) do "
        "local node = redis.call('HGET', KEYS[1], id) redis.call('HSET', KEYS[1], id, "
        "node:sub(1, 2) .. struct.pack('<i4i4', 1, 0) .. node:sub(11)) end";
    const char *words[] = {"EVAL", script, "1", "sched:{f}:n"};
    struct redis_fixture *fixture = *state;
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;
    char name[16];

    redis_say(fixture->server.port,
              "CONFIG SET hash-max-listpack-entries 8"); /* else one call would look at all nodes */
    for (int i = 2; i <= NODES; i++) {
        snprintf(name, sizeof name, "n%d", i);
        assert_int_equal(rig_node(&fixture->rig, name, 4, NODE_READY), ERR_OK);
    }
    redis_say_words(fixture->server.port, COUNT_OF(words), words);
    while (rig_repairs(&fixture->rig) < NODES)
        assert_true(clock_mono_ms() < end_ms);
    for (int i = 1; i <= NODES; i++) {
        snprintf(name, sizeof name, "n%d", i);
        assert_int_equal(rig_counts(&fixture->rig, name).reserved, 0);
    }
}

/* The counter of running jobs may exceed two bytes without spilling into that of reserved ones. */
static void test_a_node_with_very_many_jobs(void **state)
{
    static const char script[] =
        "local node = redis.call('HGET', KEYS[1], 'n1') return redis.call('HSET', KEYS[1], 'n1', "
        "node:sub(1, 2) .. struct.pack('<i4i4i4', 0, 65535, 100000) .. node:sub(15))";
    const char *words[] = {"EVAL", script, "1", "sched:{f}:n"};
    struct redis_fixture *fixture = *state;
    struct rig *rig = &fixture->rig;
    uint64_t job = 0;
    int64_t repairs;

    do { /* again if an audit corrected it in between */
        repairs = rig_repairs(rig);
        assert_int_equal(rig_node(rig, "n1", 4 + (int)job, NODE_READY), ERR_OK);
        redis_say_words(fixture->server.port, COUNT_OF(words), words);
        assert_int_equal(rig_reserve(rig, ++job, 1, "n1"), ERR_OK);
        assert_int_equal(rig_commit(rig, job, 1, "n1"), ERR_OK);
    } while (rig_repairs(rig) != repairs);
    assert_int_equal(rig->op.counts.reserved, 0);
    assert_int_equal(rig->op.counts.running, 65536);
}

/* A node is deleted by hand while it has work: ends of its jobs are accepted, jobs without a slot
 * are swept, and the node may register again. No call fails, and no counter falls below zero. */
static void test_a_deleted_node(void **state)
{
    struct redis_fixture *fixture = *state;
    struct rig *rig = &fixture->rig;
    struct store_due due[4];

    assert_int_equal(rig_reserve(rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(rig_commit(rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(rig_reserve(rig, 2, 1, "n1"), ERR_OK);
    assert_int_equal(rig_reserve(rig, 3, 1, "n1"), ERR_OK);
    redis_say(fixture->server.port, "HDEL sched:{f}:n n1");
    redis_say(fixture->server.port, "FUNCTION FLUSH"); /* also drops what the library remembers */

    assert_int_equal(rig_finish(rig, STORE_DONE, 1, 1, "n1", NULL), ERR_OK);
    assert_int_equal(rig_commit(rig, 2, 1, "n1"), ERR_STALE);
    assert_int_equal(rig_counts(rig, "n1").health, NODE_HEALTH_NONE);
    assert_int_equal(rig_node(rig, "n1", 4, NODE_READY), ERR_OK);
    assert_int_equal(rig_commit(rig, 3, 1, "n1"), ERR_STALE);
    assert_int_equal(rig_reserve(rig, 4, 1, "n1"), ERR_OK);
    assert_int_equal(rig->op.counts.reserved, 1);
    for (uint64_t job = 2; job <= 3; job++)
        assert_int_equal(rig_finish(rig, STORE_EXPIRE, job, 1, "n1", NULL), ERR_OK);
    assert_int_equal(rig_counts(rig, "n1").reserved, 1);
    assert_int_equal(rig_counts(rig, "n1").running, 0);
    assert_int_equal(rig_due(rig, due, COUNT_OF(due)), 0);
}

static int64_t lane_count(struct redis_fixture *fixture)
{
    return strtoll(redis_say(fixture->server.port, "ZCARD sched:{f}:lanes"), NULL, 10);
}

/* Entries of a lane that have no matching record are skipped and removed. */
static void test_strangers_in_a_lane(void **state)
{
    struct redis_fixture *fixture = *state;
    struct rig *rig = &fixture->rig;
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;
    char stranger[JOB_ID_TEXT + 1], held[JOB_ID_TEXT + 1];

    job_id_text(7, stranger);
    job_id_text(2, held);
    assert_int_equal(rig_put_lane(rig, 1, 0x4d, 3), ERR_OK);
    assert_int_equal(rig_put(rig, 2), ERR_OK);
    redis_say(fixture->server.port, "ZADD sched:{f}:q:000000000000004d -9 %s -9 %s", stranger,
              held);
    redis_say(fixture->server.port, "ZADD sched:{f}:q:000000000000004e -9 %s", stranger);
    redis_say(fixture->server.port, "ZADD sched:{f}:lanes 0 000000000000004e 0 000000000000004f");
    assert_int_equal(rig_lane(rig, 0x4d, 64), ERR_OK);
    assert_int_equal(rig->op.u.lane.count, 1);
    assert_int_equal(rig->op.u.lane.items[0].head.id, 1);
    while (rig_repairs(rig) < 3 || lane_count(fixture) > 1)
        assert_true(clock_mono_ms() < end_ms);
    assert_int_equal(rig_repairs(rig), 3);
    assert_int_equal(rig_repairs_of(rig, STORE_RULE_LANES), 3);
    assert_int_equal(rig_lane(rig, 0x4d, 64), ERR_OK);
    assert_int_equal(rig->op.u.lane.count, 1);
    assert_int_equal(rig->op.u.lane.waiting, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_wrong_lease_is_put_right, setup,
                                        redis_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_wrong_counters_are_put_right, setup,
                                        redis_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_every_node_is_looked_at, setup,
                                        redis_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_a_node_with_very_many_jobs, setup,
                                        redis_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_a_deleted_node, setup, redis_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_strangers_in_a_lane, setup, redis_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_a_wrong_number_of_waiting_jobs_is_put_right, setup,
                                        redis_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_the_number_of_waiting_jobs_stays_right, setup,
                                        redis_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_an_account_is_put_right, setup,
                                        redis_fixture_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
