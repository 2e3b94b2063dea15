/* Resources and keys in Redis: values changed by hand are corrected, notices say which keys may
 * start jobs again, and no call's work grows with their number. */
#include "contract.h"
#include "redis_rig.h"

#include "base/clock.h"
#include "base/mem.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PATIENCE_MS = 20000,
    CALL_MS = 5000,
    SLOTS = 1000000,
    KEYS_DEFAULT = 4000,
    WORK_MAX = 400,         /* of a call for one job, whatever there is */
    AUDIT_WORK_MAX = 20000, /* of an audit, which looks at some hundred of each */
};

#define STOCK "cpu=8000/8000,licences=9/9,mem_mb=16000/16000 0=24000/24000,1=24000/24000"
#define NEEDY "2 0 6000 cpu=500,licences=1,mem_mb=1000 tenant:acme,account:api-1"

static int setup(void **state)
{
    struct redis_fixture *fixture = mem_new(struct redis_fixture);

    *state = fixture;
    return redis_fixture_open(fixture, CALL_MS, SLOTS);
}

static enum err stock(struct rig *rig, const char *resources)
{
    struct store_op op = {.verb = STORE_NODE_PUT, .node = STR("n1")};

    op.u.node_put.own = op.u.node_put.health = NODE_READY;
    op.u.node_put.max = -1;
    op.u.node_put.resources = str_of(resources);
    rig->op = op;
    return rig_call(rig, &rig->op);
}

static enum err set(struct rig *rig, const char *pattern, const char *limit)
{
    struct store_op op = {.verb = STORE_LIMIT_SET};

    op.u.limit.pattern = str_of(pattern);
    assert_true(limit_parse(str_of(limit), &op.u.limit.limit));
    rig->op = op;
    return rig_call(rig, &rig->op);
}

static enum err put(struct rig *rig, enum store_verb verb, uint64_t job, const char *demand)
{
    struct store_op op = {.verb = verb, .job = job, .attempt = 1};

    op.u.put.spec = STR("{}");
    op.u.put.demand = str_of(demand);
    op.u.put.max_attempts = 2;
    op.u.put.owner = rig_owner(rig);
    op.u.put.ttl_ms = 600000;
    if (verb == STORE_PUT) {
        op.u.put.lane = 7;
        op.u.put.wait_ms = 600000;
        op.u.put.bounds.keys = true;
    } else {
        op.u.put.candidate_count = 1;
        op.u.put.candidates[0] =
            (struct store_candidate){.node = STR("n1"), .hash = str_hash(STR("n1"))};
    }
    rig->op = op;
    return rig_call(rig, &rig->op);
}

static struct store_limit_key look(struct rig *rig, const char *key)
{
    struct store_op op = {.verb = STORE_LIMITS, .arena = &rig->arena};

    arena_reset(&rig->arena);
    op.u.limits.prefix = str_of(key);
    op.u.limits.max = 1;
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    return op.u.limits.key_count ? op.u.limits.keys[0] : (struct store_limit_key){0};
}

static struct resources_left left(struct rig *rig)
{
    struct store_op op = {.verb = STORE_COUNTS, .arena = &rig->arena};

    arena_reset(&rig->arena);
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_int_equal(op.u.nodes.count, 1);
    return op.u.nodes.items[0].left;
}

/* Makes this change in Redis, with the library's memory dropped, until the audit has found this
 * rule broken. */
static void spoil(struct redis_fixture *fixture, enum store_rule rule, int count,
                  const char **words)
{
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;

    while (rig_repairs_of(&fixture->rig, rule) == 0) {
        assert_true(clock_mono_ms() < end_ms);
        redis_say(fixture->server.port, "FUNCTION FLUSH");
        redis_say_words(fixture->server.port, count, words);
        rig_pass(&fixture->rig, 100);
        poll(NULL, 0, 50);
    }
}

/* What is used of a node is corrected to what its leases hold. */
static void test_wrong_sums_are_put_right(void **state)
{
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;
    struct redis_fixture *fixture = *state;
    struct rig *rig = &fixture->rig;
    static const char script[] = "return redis.call('HSET', KEYS[1], 'n1', ARGV[1] .. "
                                 "'\\0cpu=7,x=1\\0cpu=7')";
    const char *words[] = {"EVAL", script, "1", "sched:{f}:r", STOCK};

    assert_int_equal(stock(rig, STOCK), ERR_OK);
    assert_int_equal(put(rig, STORE_RESERVE, 1, NEEDY), ERR_OK);
    assert_int_equal(rig->op.head.gpus, 1);
    assert_int_equal(rig->op.left.left[0], 7500);
    assert_int_equal(put(rig, STORE_RESERVE, 2, NEEDY), ERR_OK);
    assert_int_equal(rig_commit(rig, 2, 1, "n1"), ERR_OK);
    assert_int_equal(rig->op.counts.running, 2);
    spoil(fixture, STORE_RULE_RESOURCES, COUNT_OF(words), words);
    assert_int_equal(rig_repairs(rig), rig_repairs_of(rig, STORE_RULE_RESOURCES));
    while (left(rig).left[0] != 7000) /* it may have been changed once more */
        assert_true(clock_mono_ms() < end_ms);
    assert_int_equal(left(rig).left[1], 7);
    assert_int_equal(left(rig).gpu_left[0], 12000);
    assert_int_equal(rig_finish(rig, STORE_DONE, 2, 1, "n1", NULL), ERR_OK);
    assert_int_equal(rig->op.left.left[0], 7500);
    assert_int_equal(rig_counts(rig, "n1").reserved, 2);
    assert_int_equal(rig_counts(rig, "n1").running, 0);
}

/* The counts of a key are corrected to those of its leases and of its jobs in lanes. */
static void test_wrong_counts_of_keys_are_put_right(void **state)
{
    static const char script[] =
        "local key = redis.call('HGET', KEYS[1], 'tenant:acme') return redis.call('HSET', KEYS[1], "
        "'tenant:acme', struct.pack('<i4i4', 5, 3) .. key:sub(9))";
    const char *words[] = {"EVAL", script, "1", "sched:{f}:keys"};
    struct redis_fixture *fixture = *state;
    struct rig *rig = &fixture->rig;
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;

    assert_int_equal(put(rig, STORE_RESERVE, 1, "1 0 0  tenant:acme"), ERR_OK);
    assert_int_equal(put(rig, STORE_PUT, 2, "1 0 0  tenant:acme"), ERR_OK);
    spoil(fixture, STORE_RULE_KEY_LEASES, COUNT_OF(words), words);
    spoil(fixture, STORE_RULE_KEY_WAITING, COUNT_OF(words), words);
    assert_int_equal(rig_repairs(rig), rig_repairs_of(rig, STORE_RULE_KEY_LEASES) +
                                           rig_repairs_of(rig, STORE_RULE_KEY_WAITING));
    while (look(rig, "tenant:acme").in_flight != 1 || look(rig, "tenant:acme").waiting != 1)
        assert_true(clock_mono_ms() < end_ms);
    assert_int_equal(rig_finish(rig, STORE_SEND_FAILED, 1, 1, "n1", NULL), ERR_OK);
    assert_int_equal(look(rig, "tenant:acme").in_flight, 0);
    assert_int_equal(put(rig, STORE_RESERVE, 2, ""), ERR_OK);
    assert_int_equal(look(rig, "tenant:acme").in_flight, 1);
    assert_int_equal(look(rig, "tenant:acme").waiting, 0);
}

/* The library lost its memory: what is held still counts, and is given back. */
static void test_library_that_forgot(void **state)
{
    struct redis_fixture *fixture = *state;
    struct rig *rig = &fixture->rig;

    assert_int_equal(stock(rig, STOCK), ERR_OK);
    assert_int_equal(set(rig, "tenant:*", "1 -1 0 -1 1"), ERR_OK);
    assert_int_equal(put(rig, STORE_RESERVE, 1, NEEDY), ERR_OK);
    redis_say(fixture->server.port, "FUNCTION FLUSH");
    assert_int_equal(put(rig, STORE_RESERVE, 2, NEEDY), ERR_LIMITED);
    assert_int_equal(rig->op.u.put.block.why, LIMIT_CONCURRENCY);
    assert_int_equal(rig_commit(rig, 1, 1, "n1"), ERR_OK);
    redis_say(fixture->server.port, "FUNCTION FLUSH");
    assert_int_equal(rig_finish(rig, STORE_DONE, 1, 1, "n1", NULL), ERR_OK);
    assert_int_equal(rig->op.left.left[0], 8000);
    assert_int_equal(put(rig, STORE_RESERVE, 2, NEEDY), ERR_OK);
    assert_int_equal(rig_repairs(rig), 0);
}

struct notices {
    struct store_listener listener;
    char freed[64];
    int rules, gaps;
};

static void on_notice(struct store_listener *listener, const struct store_notice *notice)
{
    struct notices *notices = container_of(listener, struct notices, listener);

    if (notice->kind == STORE_NOTICE_KEY)
        str_copy(notice->text, notices->freed, sizeof notices->freed);
    notices->rules += notice->kind == STORE_NOTICE_LIMITS;
    notices->gaps += notice->kind == STORE_NOTICE_GAP;
}

static void await_notice(struct rig *rig, const int *of)
{
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;

    while (!*of) {
        assert_true(clock_mono_ms() < end_ms);
        work_queue_wait(&rig->work_queue, 10);
        inbox_run(&rig->work_queue.inbox);
    }
}

static void await_freed(struct rig *rig, struct notices *notices, const char *keys)
{
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;

    while (strcmp(notices->freed, keys) != 0) {
        assert_true(clock_mono_ms() < end_ms);
        work_queue_wait(&rig->work_queue, 10);
        inbox_run(&rig->work_queue.inbox);
    }
    notices->freed[0] = '\0';
}

/* No notice is sent for a key that has no waiting jobs, or that still lets none start. */
static void test_notices(void **state)
{
    struct redis_fixture *fixture = *state;
    struct rig *rig = &fixture->rig;
    struct notices notices = {.listener = {.inbox = &rig->work_queue.inbox, .notify = on_notice}};
    struct store_op let_go = {.verb = STORE_LIMIT_HOLD};

    store_listen(rig->store, &notices.listener);
    await_notice(rig, &notices.gaps);
    assert_int_equal(set(rig, "a", "1 -1 0 -1 1"), ERR_OK);
    await_notice(rig, &notices.rules);
    assert_int_equal(put(rig, STORE_RESERVE, 1, "1 0 0  a,b"), ERR_OK);
    assert_int_equal(put(rig, STORE_RESERVE, 2, "1 0 0  b"), ERR_OK);
    assert_int_equal(put(rig, STORE_PUT, 3, "1 0 0  a"), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_SEND_FAILED, 2, 1, "n1", NULL), ERR_OK);
    assert_int_equal(rig->op.u.settle.freed_count, 0);
    assert_int_equal(rig_finish(rig, STORE_SEND_FAILED, 1, 1, "n1", NULL), ERR_OK);
    assert_int_equal(rig->op.u.settle.freed_count, 1);
    assert_true(rig->op.u.settle.freed[0] == str_hash(STR("a")));
    await_freed(rig, &notices, "a"); /* and no notice about b before it */
    let_go.u.limit.pattern = STR("a");
    let_go.u.limit.hold_ms = 60000;
    assert_int_equal(rig_call(rig, &let_go), ERR_OK);
    let_go.u.limit.hold_ms = 0;
    assert_int_equal(rig_call(rig, &let_go), ERR_OK);
    await_freed(rig, &notices, "a");
    store_listen(rig->store, NULL);
    inbox_run(&rig->work_queue.inbox);
}

/* --- what a call does --- */

static struct redis_server server;

static long work_of(const char *name)
{
    return strtol(redis_say(server.port, "HGET sched:{f}:meta %s", name), NULL, 10);
}

static void work_begin(void)
{
    redis_say(server.port, "HSET sched:{f}:meta work 0 asked 0 records 0");
}

static void work_end(long count, const char *what, const char *of, long most)
{
    long work = work_of(of);

    print_message("%ld keys, rules and leases, %s: %ld\n", count, what, work);
    if (work > most)
        fail_msg("%ld keys, rules and leases, %s: one call's work is %ld", count, what, work);
}

static void one_job(struct rig *rig, uint64_t job, const char *demand)
{
    assert_int_equal(put(rig, STORE_PUT, job, demand), ERR_OK);
    assert_int_equal(put(rig, STORE_RESERVE, job, ""), ERR_OK);
    assert_int_equal(rig_commit(rig, job, 1, "n1"), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_DONE, job, 1, "n1", NULL), ERR_OK);
}

/* Waits for three audits, each of which leaves its cursor. */
static void await_audits(struct rig *rig)
{
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;

    for (int i = 0; i < 3; i++) {
        redis_say(server.port, "HDEL sched:{f}:meta keys_at");
        while (strcmp(redis_say(server.port, "HEXISTS sched:{f}:meta keys_at"), "1") != 0) {
            assert_true(clock_mono_ms() < end_ms);
            rig_pass(rig, 100);
        }
    }
}

static void play(long count)
{
    static char url[64];
    struct rig rig;
    char text[80];
    uint64_t job = 0;

    redis_say(server.port, "FLUSHALL");
    snprintf(url, sizeof url, "redis://127.0.0.1:%d/0", server.port);
    rig_init(&rig);
    rig.config.url = url;
    rig.config.timeout_ms = 20000;
    rig_open(&rig);
    assert_int_equal(rig_node(&rig, "n1", SLOTS, NODE_READY), ERR_OK);
    assert_int_equal(stock(&rig, "cpu=1000000000/1000000000 "), ERR_OK);
    for (long i = 0; i < count; i++) {
        snprintf(text, sizeof text, "tenant:%ld*", i);
        if (i < LIMIT_RULES_MAX - 2)
            assert_int_equal(set(&rig, text, "-1 1000000 60000 -1 1"), ERR_OK);
        snprintf(text, sizeof text, "1 0 0 cpu=1 tenant:%ld,all", i);
        assert_int_equal(put(&rig, i % 2 ? STORE_PUT : STORE_RESERVE, ++job, text), ERR_OK);
    }
    assert_int_equal(set(&rig, "all", "-1 1000 60000 -1 1"), ERR_OK);
    work_begin();
    one_job(&rig, ++job, "1 0 0 cpu=1 tenant:1,all");
    work_end(count, "a job", "asked", WORK_MAX);
    work_begin();
    assert_int_equal(set(&rig, "tenant:*", "-1 1000 60000 -1 1"), ERR_OK);
    one_job(&rig, ++job, "1 0 0 cpu=1 tenant:1,all");
    work_end(count, "a rule, and a job", "asked", WORK_MAX);
    work_begin();
    await_audits(&rig);
    work_end(count, "an audit", "work", AUDIT_WORK_MAX);
    assert_int_equal(rig_repairs(&rig), 0);
    rig_done(&rig);
}

static void test_no_call_grows(void **state)
{
    const char *given = getenv("STORE_JOBS");

    play(10);
    play(given ? strtol(given, NULL, 10) : KEYS_DEFAULT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_wrong_sums_are_put_right, setup,
                                        redis_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_wrong_counts_of_keys_are_put_right, setup,
                                        redis_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_library_that_forgot, setup, redis_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_notices, setup, redis_fixture_teardown),
        cmocka_unit_test(test_no_call_grows),
    };
    int failed;

    redis_server_start(&server);
    failed = cmocka_run_group_tests_name("store/redis limits", tests, NULL, NULL);
    redis_server_remove(&server);
    return failed;
}
