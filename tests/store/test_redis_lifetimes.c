/* How long things live in Redis: accepted jobs stay until they have ended; ended ones are removed
 * when they are too old, too many, or take room that is needed; and no key becomes large. */
#include "contract.h"
#include "redis_rig.h"

#include "base/clock.h"
#include "base/mem.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HOUR_MS = 3600000, PATIENCE_MS = 60000, FLIGHT = 256 };

#define FIRST_MS INT64_C(1790000000000) /* the time in the first ids made here */

static int setup(void **state)
{
    struct redis_fixture *fixture = mem_new(struct redis_fixture);
    struct rig *rig = &fixture->rig;

    *state = fixture;
    redis_server_start(&fixture->server);
    rig_init(rig);
    snprintf(fixture->url, sizeof fixture->url, "redis://127.0.0.1:%d/0", fixture->server.port);
    rig->config.url = fixture->url;
    rig->config.timeout_ms = 20000; /* a slow machine must not make a test fail */
    rig->config.retention_ms = HOUR_MS;
    rig_open(rig);
    return rig_node(rig, "n1", 1000000, NODE_READY);
}

static void limit_jobs(struct rig *rig, int64_t jobs_max)
{
    rig_close(rig);
    rig->config.retention_jobs_max = jobs_max;
    rig_open(rig);
}

/* Runs a script, which may read all keys, and returns its number. */
static int64_t ask(struct redis_fixture *fixture, const char *script)
{
    const char *words[] = {"EVAL", script, "0"};

    return atoll(redis_say_words(fixture->server.port, COUNT_OF(words), words));
}

static int64_t kept(struct redis_fixture *fixture)
{
    return ask(fixture, "local n = 0 for _, key in ipairs(redis.call('KEYS', 'sched:{f}:j:*')) do "
                        "for _, id in ipairs(redis.call('HKEYS', key)) do "
                        "if #id == 14 then n = n + 1 end end end return n");
}

static int64_t calls_of(struct redis_fixture *fixture, const char *command)
{
    char name[64];
    const char *info = redis_say(fixture->server.port, "INFO commandstats");
    const char *found;

    snprintf(name, sizeof name, "cmdstat_%s:calls=", command);
    found = strstr(info, name);
    return found ? atoll(found + strlen(name)) : 0;
}

/* The purge removes a part at a time, in calls of the store's own. Waits until so many jobs are
 * left. */
static void wait_kept(struct redis_fixture *fixture, int64_t want)
{
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;

    while (kept(fixture) != want && clock_mono_ms() < end_ms)
        sched_yield();
    assert_int_equal(kept(fixture), want);
}

struct flight {
    struct store_op op;
    int *under_way;
    enum err allowed; /* besides ERR_OK */
};

static void landed(struct store_op *op)
{
    struct flight *flight = container_of(op, struct flight, op);

    if (op->err && op->err != flight->allowed)
        abort();
    --*flight->under_way;
}

/* Sends all ops at once; returns how many were refused with the error allowed. */
static size_t send_all(struct rig *rig, struct flight *flights, size_t count, enum err allowed)
{
    int under_way = (int)count;
    size_t refused = 0;

    for (size_t i = 0; i < count; i++) {
        flights[i].under_way = &under_way;
        flights[i].allowed = allowed;
        flights[i].op.done = landed;
        flights[i].op.reply_to = &rig->work_queue.inbox;
        assert_int_equal(store_send(rig->store, &flights[i].op), ERR_OK);
    }
    while (under_way > 0) {
        work_queue_wait(&rig->work_queue, 1000);
        inbox_run(&rig->work_queue.inbox);
    }
    for (size_t i = 0; i < count; i++)
        refused += flights[i].op.err != ERR_OK;
    return refused;
}

/* Takes up to FLIGHT jobs through their whole life, one step of all at a time. Returns how many
 * were refused. */
static size_t live(struct rig *rig, const uint64_t *ids, size_t count, size_t spec_bytes)
{
    static struct flight flights[FLIGHT];
    static char spec[8192];
    struct store_candidate n1 = {.node = STR("n1"), .hash = str_hash(STR("n1"))};
    size_t refused;

    assert_true(count <= FLIGHT && spec_bytes <= sizeof spec);
    memset(spec, ' ', sizeof spec);
    for (size_t i = 0; i < count; i++) {
        struct store_op *op = &flights[i].op;

        *op = (struct store_op){.verb = STORE_RESERVE, .job = ids[i], .attempt = 1};
        op->u.put.spec = (struct str){spec, spec_bytes};
        op->u.put.max_attempts = 1;
        op->u.put.ttl_ms = RIG_TTL_MS;
        op->u.put.candidate_count = 1;
        op->u.put.candidates[0] = n1;
    }
    refused = send_all(rig, flights, count, ERR_STORE_FULL);
    for (size_t i = 0; i < count; i++) {
        flights[i].op =
            (struct store_op){.verb = STORE_ACK, .job = ids[i], .attempt = 1, .node = STR("n1")};
        flights[i].op.u.settle.terms = (struct lease_terms){RIG_RUN_MS, RIG_F2F_MS};
    }
    send_all(rig, flights, count, ERR_NOT_FOUND);
    for (size_t i = 0; i < count; i++) {
        flights[i].op =
            (struct store_op){.verb = STORE_FINISH, .job = ids[i], .attempt = 1, .node = STR("n1")};
        flights[i].op.u.settle.outcome = STORE_DONE;
    }
    send_all(rig, flights, count, ERR_NOT_FOUND);
    return refused;
}

/* The smallest id of this millisecond. */
static uint64_t first_id(int64_t wall_ms)
{
    return (uint64_t)(wall_ms - INT64_C(1704067200000)) << 22;
}

/* Makes `total` jobs, `per_ms` of them in each millisecond. */
static size_t live_many(struct rig *rig, size_t total, size_t per_ms, size_t spec_bytes)
{
    static size_t made; /* later calls continue the ids */
    uint64_t ids[FLIGHT];
    size_t refused = 0;

    for (size_t at = 0; at < total; at += FLIGHT) {
        size_t count = total - at < FLIGHT ? total - at : FLIGHT;

        for (size_t i = 0; i < count; i++, made++)
            ids[i] = first_id(FIRST_MS + (int64_t)(made / per_ms)) + made % per_ms;
        refused += live(rig, ids, count, spec_bytes);
    }
    return refused;
}

static enum err put_keyed(struct rig *rig, uint64_t job, const char *key)
{
    rig->op = (struct store_op){.verb = STORE_PUT, .job = job, .attempt = 1};
    rig->op.u.put.spec = STR("{}");
    rig->op.u.put.max_attempts = 1;
    rig->op.u.put.hold_ms = RIG_RUN_MS;
    rig->op.u.put.idem = str_of(key);
    rig->op.u.put.fingerprint = 7;
    return rig_call(rig, &rig->op);
}

/* All servers are away for three retentions: accepted jobs are still there. Redis' own clock does
 * not move with the test's, so the test also checks that no key of a job has a time to live. */
static void test_accepted_jobs_do_not_expire(void **state)
{
    struct redis_fixture *fixture = *state;
    struct rig *rig = &fixture->rig;

    assert_int_equal(rig_put(rig, 1), ERR_OK);
    assert_int_equal(rig_reserve(rig, 2, 1, "n1"), ERR_OK);
    assert_int_equal(rig_reserve(rig, 3, 1, "n1"), ERR_OK);
    assert_int_equal(rig_commit(rig, 3, 1, "n1"), ERR_OK);
    assert_int_equal(put_keyed(rig, 4, "key"), ERR_OK);
    assert_int_equal(rig_reserve(rig, 5, 1, "n1"), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_DONE, 5, 1, "n1", NULL), ERR_OK);
    assert_int_equal(ask(fixture, "local n = 0 for _, key in ipairs(redis.call('KEYS', '*')) do "
                                  "if redis.call('PTTL', key) ~= -1 then n = n + 1 end end "
                                  "return n"),
                     0);
    rig_close(rig);
    rig_jump(3 * HOUR_MS);
    rig_open(rig);
    wait_kept(fixture, 4); /* the ended one is too old */
    for (uint64_t job = 1; job <= 4; job++) {
        assert_int_equal(rig_get(rig, job), ERR_OK);
        assert_false(job_state_final(rig->op.head.state));
    }
    assert_int_equal(rig_get(rig, 5), ERR_NOT_FOUND);
    assert_int_equal(rig_counts(rig, "n1").running, 1);
    assert_int_equal(rig_repairs(rig), 0);
}

/* Old jobs that are still needed do not keep others from being removed. */
static void test_one_long_job_keeps_no_other(void **state)
{
    struct redis_fixture *fixture = *state;
    struct rig *rig = &fixture->rig;
    struct store_op op = {.verb = STORE_RESERVE, .job = 1, .attempt = 1};

    op.u.put.spec = STR("{}");
    op.u.put.max_attempts = 1;
    op.u.put.callback = true;
    op.u.put.ttl_ms = RIG_TTL_MS;
    op.u.put.candidate_count = 1;
    op.u.put.candidates[0] =
        (struct store_candidate){.node = STR("n1"), .hash = str_hash(STR("n1"))};
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_DONE, 1, 1, "n1", NULL), ERR_OK);
    assert_int_equal(rig_put(rig, 2), ERR_OK);
    for (uint64_t job = 3; job <= 40; job++) {
        assert_int_equal(rig_reserve(rig, job, 1, "n1"), ERR_OK);
        assert_int_equal(rig_finish(rig, STORE_FAIL, job, 1, "n1", "X"), ERR_OK);
        assert_int_equal(rig_finish(rig, STORE_CANCEL, job, 0, NULL, NULL), ERR_OK);
    }
    rig_jump(HOUR_MS + 1000);
    wait_kept(fixture, 2); /* one with a pending callback, one that waits */
    assert_int_equal(rig_get(rig, 1), ERR_OK);
    assert_int_equal(rig_get(rig, 2), ERR_OK);
    /* They are removed, with everything that belongs to them, once nothing needs them. */
    op = (struct store_op){.verb = STORE_CALLBACK_DONE, .job = 1};
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_CANCEL, 2, 0, NULL, NULL), ERR_OK);
    rig_jump(HOUR_MS + 1000);
    wait_kept(fixture, 0);
    assert_int_equal(ask(fixture, "return #redis.call('KEYS', 'sched:{f}:[jlk]:*')"), 0);
}

/* Waiting jobs of many ages, with ended ones between them. */
static void test_waiting_jobs_are_in_nobodys_way(void **state)
{
    enum { WAITING = 80, MAX = 10 };
    struct redis_fixture *fixture = *state;
    struct rig *rig = &fixture->rig;

    for (int i = 0; i < WAITING; i++) {
        uint64_t job = first_id(FIRST_MS + (int64_t)i * 300000);
        uint64_t others[] = {job + 1, job + 2};

        assert_int_equal(rig_put(rig, job), ERR_OK);
        assert_int_equal(live(rig, others, 2, 10), 0);
    }
    limit_jobs(rig, MAX);
    wait_kept(fixture, WAITING + MAX);
    for (int i = 0; i < WAITING; i++)
        assert_int_equal(rig_get(rig, first_id(FIRST_MS + (int64_t)i * 300000)), ERR_OK);
    /* The removed ones left nothing in the lists. */
    struct store_op op = {.verb = STORE_JOB_LIST};
    size_t listed = 0;
    do {
        op.u.list.max = 50;
        op.u.list.before = op.u.list.next;
        assert_int_equal(rig_call(rig, &op), ERR_OK);
        listed += op.u.list.count;
    } while (op.u.list.next);
    assert_int_equal(listed, WAITING + MAX);
    assert_int_equal(ask(fixture, "local n = 0 for _, key in ipairs(redis.call('KEYS', "
                                  "'sched:{f}:l:*')) do for _, ids in ipairs(redis.call('ZRANGE', "
                                  "key, 0, -1)) do n = n + #ids / 14 end end return n"),
                     WAITING + MAX);
}

/* The purge keeps up with new jobs: while there are too many, purges follow each other without
 * waiting for the next round of chores, each of which reads the nodes once. The number of rounds
 * depends on time, but each would be the only call that purges. */
static void test_purge_keeps_up(void **state)
{
    enum { MAX = 200, JOBS = 20000 };
    struct redis_fixture *fixture = *state;
    struct rig *rig = &fixture->rig;
    int64_t calls, rounds;

    assert_int_equal(live_many(rig, JOBS, 20, 10), 0);
    limit_jobs(rig, MAX);
    calls = calls_of(fixture, "fcall");
    rounds = calls_of(fixture, "hscan");
    wait_kept(fixture, MAX);
    /* Counted first: a round is a call that has begun. */
    rounds = calls_of(fixture, "hscan") - rounds;
    calls = calls_of(fixture, "fcall") - calls;
    print_message("%d rounds of chores in %d calls\n", (int)rounds, (int)calls);
    assert_true(calls > rounds + 2);
    assert_int_equal(live_many(rig, JOBS / 4, 20, 10), 0);
    wait_kept(fixture, MAX);
    rig_jump(HOUR_MS + 1000);
    wait_kept(fixture, 0);
}

/* No key becomes large even at 20 000 jobs a second, for three spans of ids. */
static void test_no_key_is_large(void **state)
{
    enum { JOBS = 16384 };
    struct redis_fixture *fixture = *state;

    assert_int_equal(live_many(&fixture->rig, JOBS, 20, 100), 0);
    assert_int_equal(kept(fixture), JOBS);
    assert_true(ask(fixture, "local most = 0 for _, key in ipairs(redis.call('KEYS', '*')) do "
                             "most = math.max(most, redis.call('MEMORY', 'USAGE', key, 'SAMPLES', "
                             "20)) end return most") < 4 << 20);
    assert_true(ask(fixture, "local most = 0 for _, key in ipairs(redis.call('KEYS', "
                             "'sched:{f}:j:*')) do most = math.max(most, redis.call('HLEN', key)) "
                             "end return most") <= 2 * 20 * 256);
}

/* An Idempotency-Key lives exactly as long as its job. */
static void test_key_lives_with_its_job(void **state)
{
    struct redis_fixture *fixture = *state;
    struct rig *rig = &fixture->rig;

    assert_int_equal(put_keyed(rig, 1, "key"), ERR_OK);
    rig_jump(3 * HOUR_MS);
    assert_int_equal(put_keyed(rig, 2, "key"), ERR_OK);
    assert_true(rig->op.u.put.duplicate);
    assert_int_equal(rig->op.head.id, 1);
    assert_int_equal(rig_finish(rig, STORE_CANCEL, 1, 0, NULL, NULL), ERR_OK);
    rig_jump(HOUR_MS - 1000);
    assert_int_equal(put_keyed(rig, 3, "key"), ERR_OK);
    assert_true(rig->op.u.put.duplicate);
    assert_int_equal(ask(fixture, "return redis.call('PTTL', 'sched:{f}:k:key')"), -1);
    rig_jump(2000);
    wait_kept(fixture, 0);
    assert_int_equal(ask(fixture, "return redis.call('EXISTS', 'sched:{f}:k:key')"), 0);
    assert_int_equal(put_keyed(rig, 4, "key"), ERR_OK);
    assert_false(rig->op.u.put.duplicate);
}

static int64_t used_bytes(struct redis_fixture *fixture)
{
    const char *info = redis_say(fixture->server.port, "INFO memory");

    return atoll(strstr(info, "used_memory:") + strlen("used_memory:"));
}

/* Puts new jobs until one is answered so; returns its id. */
static uint64_t put_until(struct rig *rig, uint64_t job, enum err want)
{
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;

    while (rig_put(rig, ++job) != want && clock_mono_ms() < end_ms)
        sched_yield();
    assert_int_equal(rig->op.err, want);
    return job;
}

/* Above its maxmemory Redis takes no new work; everything else goes on. */
static void test_full_refuses_only_new_work(void **state)
{
    struct redis_fixture *fixture = *state;
    struct rig *rig = &fixture->rig;
    struct store_op renew = {.verb = STORE_RENEW, .node = STR("n1")};
    uint64_t job;

    for (uint64_t id = 1; id <= 5; id++)
        assert_int_equal(rig_reserve(rig, id, 1, "n1"), ERR_OK);
    assert_int_equal(live_many(rig, 500, 20, 4000), 0);
    assert_int_equal(rig_commit(rig, 1, 1, "n1"), ERR_OK);
    redis_say(fixture->server.port, "CONFIG SET maxmemory 1mb");
    assert_true(used_bytes(fixture) > 1 << 20);
    job = put_until(rig, 100, ERR_STORE_FULL);
    assert_int_equal(rig_get(rig, job), ERR_NOT_FOUND);
    assert_int_equal(rig_reserve(rig, job, 1, "n1"), ERR_STORE_FULL);
    assert_int_equal(rig_node(rig, "n2", 1, NODE_READY), ERR_STORE_FULL);

    assert_int_equal(rig_node(rig, "n1", 99, NODE_READY), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_DONE, 1, 1, "n1", NULL), ERR_OK);
    assert_int_equal(rig_commit(rig, 2, 1, "n1"), ERR_OK);
    renew.u.renew.terms = (struct lease_terms){RIG_RUN_MS, RIG_F2F_MS};
    assert_int_equal(rig_call(rig, &renew), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_FAIL, 2, 1, "n1", "X"), ERR_OK);
    assert_int_equal(rig_reserve(rig, 2, 2, "n1"), ERR_OK); /* a job that was accepted before */
    assert_int_equal(rig_finish(rig, STORE_CANCEL, 3, 0, NULL, NULL), ERR_OK);

    /* Ended jobs are removed for room, however recent they are. */
    wait_kept(fixture, (int64_t)(job - 100 - 1) + 3);
    assert_int_equal(rig_get(rig, 1), ERR_NOT_FOUND);
    redis_say(fixture->server.port, "CONFIG SET maxmemory 64mb");
    put_until(rig, job, ERR_OK);
    assert_int_equal(rig_node(rig, "n2", 1, NODE_READY), ERR_OK);
}

/* Under load Redis fills up. Ended jobs are removed meanwhile, so some work is still accepted, and
 * when the load is over there is room again. */
static void test_comes_back_from_maxmemory(void **state)
{
    struct redis_fixture *fixture = *state;
    struct rig *rig = &fixture->rig;
    int64_t max = used_bytes(fixture) + (4 << 20);
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;
    size_t refused;

    redis_say(fixture->server.port, "CONFIG SET maxmemory %lld", (long long)max);
    refused = live_many(rig, 20000, 20, 4000);
    print_message("%zu of 20000 refused\n", refused);
    assert_true(refused < 20000);
    put_until(rig, 100, ERR_OK);
    while (used_bytes(fixture) >= max)
        assert_true(clock_mono_ms() < end_ms);
    assert_true(kept(fixture) > 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, redis_fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_accepted_jobs_do_not_expire),
        TEST(test_one_long_job_keeps_no_other),
        TEST(test_waiting_jobs_are_in_nobodys_way),
        TEST(test_purge_keeps_up),
        TEST(test_no_key_is_large),
        TEST(test_key_lives_with_its_job),
        TEST(test_full_refuses_only_new_work),
        TEST(test_comes_back_from_maxmemory),
    };

    return cmocka_run_group_tests_name("store/redis_lifetimes", tests, NULL, NULL);
}
