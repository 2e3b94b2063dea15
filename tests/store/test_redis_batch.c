/* Batches that the store itself does not make, though the function library accepts them, without
 * calls of the store in between. */
#include "redis_rig.h"

#include "../unit.h"

#include "base/clock.h"
#include "store/redis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALL_MS = 10000 };

static struct redis_server server;
static struct redis_session session;
static struct store_config config = {.now_ms = rig_now_ms, .timeout_ms = CALL_MS};

static void begin(void)
{
    redis_session_begin(&session, &config, 0);
}

/* Sends the batch; `last`, if given, gets the answer to its last op. */
static void call(struct store_op *last)
{
    redisReply *reply = redis_session_call(&session, clock_mono_ms() + CALL_MS);
    size_t at;

    if (!reply)
        fail_msg("%s", session.link.why);
    at = reply->elements - 1;
    if (reply->element[at]->type == REDIS_REPLY_STRING &&
        reply->element[at]->str[0] < WIRE_ANSWER_MARK)
        at--; /* two texts: the counters of the node, and this one, the record */
    if (last)
        assert_true(wire_answer(last, reply, &at));
    freeReplyObject(reply);
}

static void put_node_of(struct str id, int max)
{
    struct store_op op = {.verb = STORE_NODE_PUT, .node = id};

    op.u.node_put.own = op.u.node_put.health = NODE_READY;
    op.u.node_put.max = max;
    op.u.node_put.facts = STR("{}");
    begin();
    wire_op(&session.wire, &op, 0);
    call(NULL);
}

static void put_node(struct str id)
{
    put_node_of(id, 4);
}

static int setup(void **state)
{
    static struct redis_target target;
    struct problem why = {0};
    char url[64];

    snprintf(url, sizeof url, "redis://127.0.0.1:%d/0", server.port);
    if (redis_url_parse(url, &target, &why))
        return 1;
    redis_say(server.port, "FLUSHALL");
    redis_session_init(&session, &target, &config);
    put_node(STR("n1"));
    return 0;
}

static int teardown(void **state)
{
    redis_session_free(&session);
    return 0;
}

static void reserve_on(uint64_t job, struct str node, struct str type)
{
    struct store_op op = {.verb = STORE_RESERVE, .job = job, .attempt = 1};

    op.u.put.fresh = true;
    op.u.put.spec = STR("{}");
    op.u.put.type = type;
    op.u.put.max_attempts = 1;
    op.u.put.ttl_ms = RIG_TTL_MS;
    op.u.put.candidates[op.u.put.candidate_count++].node = node;
    wire_op(&session.wire, &op, 0);
}

static void reserve(uint64_t job)
{
    reserve_on(job, STR("n1"), STR_NONE);
}

static void commit(struct store_op *op, uint64_t job, int64_t ttl_ms)
{
    *op = (struct store_op){.verb = STORE_ACK, .job = job, .attempt = 1, .node = STR("n1")};
    op->u.settle.terms = (struct lease_terms){ttl_ms, ttl_ms};
    wire_op(&session.wire, op, 0);
}

static void done(struct store_op *op, uint64_t job, struct str result)
{
    *op = (struct store_op){.verb = STORE_FINISH, .job = job, .attempt = 1, .node = STR("n1")};
    op->u.settle.outcome = STORE_DONE;
    op->u.settle.result = result;
    wire_op(&session.wire, op, 0);
}

static void cancel(struct store_op *op, uint64_t job)
{
    *op = (struct store_op){.verb = STORE_FINISH, .job = job};
    op->u.settle.outcome = STORE_CANCEL;
    wire_op(&session.wire, op, 0);
}

/* When the first instance arrives, the library goes through all unfinished jobs, and writes the
 * part of the wheel that is still in memory. A job reserved later in the batch must get onto the
 * wheel as well, or its lease would never run out. */
static void test_arrives_between_reserves(void **state)
{
    const char *listed;
    char list[64];
    char id[JOB_ID_TEXT + 1];

    begin();
    reserve(1);
    wire_arrive(&session.wire, "1", FORMAT_NEWEST, &lease_terms_default);
    reserve(2);
    call(NULL);
    snprintf(list, sizeof list, "%s", redis_say(server.port, "KEYS sched:{f}:w:*"));
    list[strcspn(list, "\n")] = '\0';
    listed = redis_say(server.port, "LRANGE %s 0 -1", list);
    for (uint64_t job = 1; job <= 2; job++) {
        job_id_text(job, id);
        assert_non_null(strstr(listed, id));
    }
}

/* An op that names a job before it is made, by mistake or a guess, does not hide it. */
static void test_spoken_of_before_it_is_made(void **state)
{
    struct store_op early;
    struct store_op last;

    begin();
    commit(&early, 3, RIG_RUN_MS);
    reserve(3);
    cancel(&last, 3);
    call(&last);
    assert_int_equal(last.err, ERR_OK);
    assert_int_equal(last.head.state, JOB_FAILED);
}

/* An ACK makes a term shorter: the lease is due at the end of the new term, not of the old one. */
static void test_a_shorter_term(void **state)
{
    enum { TTL_MS = 1000 };
    struct store_due due[4];
    struct store_op op;

    begin();
    reserve(4);
    commit(&op, 4, TTL_MS);
    call(NULL);
    rig_jump(TTL_MS);
    op = (struct store_op){.verb = STORE_DUE};
    op.u.due.items = due;
    op.u.due.max = COUNT_OF(due);
    begin();
    wire_op(&session.wire, &op, 0);
    call(&op);
    assert_int_equal(op.u.due.count, 1);
    assert_int_equal(due[0].id, 4);
}

enum { ALIKE = 4 };

static void run_those_that_are_alike(void)
{
    struct store_op op;

    redis_say(server.port, "HSET sched:{f}:meta rules 0");
    begin();
    for (uint64_t job = 1; job <= ALIKE; job++)
        reserve(job);
    call(NULL);
    begin();
    for (uint64_t job = 1; job <= ALIKE; job++)
        commit(&op, job, RIG_RUN_MS);
    call(&op);
    assert_int_equal(op.err, ERR_OK);
    assert_int_equal(op.head.state, JOB_ACKED);
    assert_int_equal(op.counts.running, ALIKE);
    begin();
    for (uint64_t job = 1; job <= ALIKE; job++)
        done(&op, job, STR("1"));
    call(&op);
    assert_int_equal(op.err, ERR_OK);
    assert_int_equal(op.head.state, JOB_DONE);
    assert_int_equal(op.counts.running, 0);
    assert_string_equal(redis_say(server.port, "HGET sched:{f}:meta rules"), "1");
}

/* For jobs that are alike the rule is asked once in a batch, and its result applied to each. */
static void test_those_that_are_alike(void **state)
{
    run_those_that_are_alike();
}

/* The same while another node has a failure in its breaker; on that node each job is judged
 * separately. */
static void test_those_that_are_alike_beside_a_breaker(void **state)
{
    struct store_op op = {.verb = STORE_FINISH, .job = ALIKE + 1, .attempt = 1, .node = STR("n2")};

    config.breaker_threshold = 3;
    config.breaker_cooldown_ms = CALL_MS;
    put_node(STR("n2"));
    begin();
    reserve_on(op.job, STR("n2"), STR("type"));
    call(NULL);
    op.u.settle.outcome = STORE_FAIL;
    op.u.settle.reason = STR("broken");
    begin();
    wire_op(&session.wire, &op, 0);
    call(&op);
    assert_int_equal(op.err, ERR_OK);
    assert_string_equal(redis_say(server.port, "HLEN sched:{f}:breakers"), "1");
    run_those_that_are_alike();
    redis_say(server.port, "HSET sched:{f}:meta rules 0");
    begin();
    reserve_on(ALIKE + 2, STR("n2"), STR("type"));
    reserve_on(ALIKE + 3, STR("n2"), STR("type"));
    call(NULL);
    assert_string_equal(redis_say(server.port, "HGET sched:{f}:meta rules"), "2");
    config.breaker_threshold = 0;
}

/* A job that differs from the others is judged separately: it is refused, and the others go on. */
static void test_one_that_is_not(void **state)
{
    struct store_op op;
    struct store_op other;

    begin();
    reserve(1);
    reserve(2);
    commit(&op, 1, RIG_RUN_MS);
    commit(&op, 2, RIG_RUN_MS);
    done(&op, 1, STR_NONE);
    done(&op, 1, STR_NONE);
    call(&op);
    assert_int_equal(op.err, ERR_OK);
    assert_true(op.u.settle.duplicate);
    begin();
    other = (struct store_op){.verb = STORE_FINISH, .job = 2, .attempt = 2, .node = STR("n1")};
    wire_op(&session.wire, &other, 0);
    call(&other);
    assert_int_equal(other.err, ERR_STALE);
    begin();
    done(&op, 2, STR_NONE);
    call(&op);
    assert_int_equal(op.err, ERR_OK);
    assert_int_equal(op.head.state, JOB_DONE);
    assert_int_equal(op.counts.running, 0);
}

/* An ACK or DONE of another attempt, or an ACK of another send, comes in the same call as alike
 * jobs: it does not get their result. */
static void test_another_attempt_beside_those_that_are_alike(void **state)
{
    struct store_op op;

    begin();
    for (uint64_t job = 1; job <= 4; job++)
        reserve(job);
    call(NULL);

    begin();
    commit(&op, 1, RIG_RUN_MS);
    op = (struct store_op){.verb = STORE_ACK, .job = 2, .attempt = 2, .node = STR("n1")};
    op.u.settle.terms = (struct lease_terms){RIG_RUN_MS, RIG_RUN_MS};
    wire_op(&session.wire, &op, 0);
    call(&op);
    assert_int_equal(op.err, ERR_STALE);
    assert_int_equal(op.head.state, JOB_DISPATCHED);

    begin();
    for (uint64_t job = 3; job <= 4; job++) {
        op = (struct store_op){.verb = STORE_ACK, .job = job, .attempt = 1, .node = STR("n1")};
        op.u.settle.terms = (struct lease_terms){RIG_RUN_MS, RIG_RUN_MS};
        op.u.settle.send_id = rig_now_ms() - (job == 4);
        wire_op(&session.wire, &op, 0);
    }
    call(&op);
    assert_int_equal(op.err, ERR_STALE);
    assert_int_equal(op.head.state, JOB_DISPATCHED);
    assert_int_equal(op.counts.running, 2);

    begin();
    commit(&op, 2, RIG_RUN_MS);
    commit(&op, 4, RIG_RUN_MS);
    call(&op);
    assert_int_equal(op.err, ERR_OK);
    begin();
    done(&op, 2, STR_NONE);
    op = (struct store_op){.verb = STORE_FINISH, .job = 4, .attempt = 2, .node = STR("n1")};
    op.u.settle.outcome = STORE_DONE;
    wire_op(&session.wire, &op, 0);
    call(&op);
    assert_int_equal(op.err, ERR_STALE);
    assert_int_equal(op.head.state, JOB_ACKED);
    assert_int_equal(op.counts.running, 3);
}

/* A batch leaves the time of its call to the next. A pause is the time between two calls, so many
 * small steps are no pause; otherwise leases would be prolonged. */
static void test_small_steps_are_no_pause(void **state)
{
    enum { TTL_MS = 20000, STEP_MS = 2000 };
    int64_t due_ms = rig_now_ms() + TTL_MS;
    struct store_op op;

    begin();
    reserve(10);
    commit(&op, 10, TTL_MS);
    call(NULL);
    for (uint64_t job = 11; job <= 13; job++) {
        rig_jump(STEP_MS);
        begin();
        reserve(job);
        call(NULL);
    }
    begin();
    commit(&op, 10, TTL_MS);
    call(&op);
    assert_true(op.u.settle.duplicate);
    assert_int_equal(op.head.due_ms, due_ms);
}

/* After Redis was emptied, nothing that the library remembered is used. */
static void test_nothing_is_left_of_what_was_emptied(void **state)
{
    struct store_op op;

    begin();
    reserve(20);
    call(NULL);
    redis_say(server.port, "FLUSHALL");
    begin();
    cancel(&op, 20);
    call(&op);
    assert_int_equal(op.err, ERR_NOT_FOUND);
    assert_true(session.emptied);
}

/* Another master took over that has the reservation but not its ACK: the node that lists the job is
 * believed. */
static void test_an_ack_that_was_lost_with_its_master(void **state)
{
    struct store_run run = {.id = 30, .attempt = 1};
    struct store_op op = {.verb = STORE_RENEW, .node = STR("n1")};

    begin();
    reserve(30);
    call(NULL);
    session.moved_until_ms = clock_mono_ms() + CALL_MS;
    op.u.renew.runs = &run;
    op.u.renew.count = 1;
    op.u.renew.terms = (struct lease_terms){RIG_TTL_MS, RIG_TTL_MS};
    begin();
    wire_op(&session.wire, &op, 0);
    call(&op);
    assert_int_equal(op.err, ERR_OK);
    assert_false(run.unknown);
    begin();
    commit(&op, 30, RIG_TTL_MS);
    call(&op);
    assert_true(op.u.settle.duplicate);
}

static long number_of(const char *command, const char *key)
{
    return strtol(redis_say(server.port, "%s sched:{f}:%s", command, key), NULL, 10);
}

/* Which jobs hold a slot of a node is written to Redis only when it is needed, and is not lost when
 * the library loses its memory before that. */
static void test_leases_that_are_not_written_yet(void **state)
{
    struct store_run run = {.id = 40, .attempt = 1};
    struct store_op renew = {.verb = STORE_RENEW, .node = STR("n1")};
    struct store_op op;

    begin();
    reserve(40);
    reserve(41);
    call(NULL);
    begin();
    commit(&op, 40, RIG_RUN_MS);
    call(&op);
    assert_int_equal(op.err, ERR_OK);
    assert_int_equal(number_of("EXISTS", "h:n1"), 0);
    redis_say(server.port, "FUNCTION FLUSH");
    renew.u.renew.runs = &run;
    renew.u.renew.count = 1;
    renew.u.renew.terms = (struct lease_terms){RIG_RUN_MS, RIG_RUN_MS};
    begin();
    wire_op(&session.wire, &renew, 0);
    call(&renew);
    assert_int_equal(renew.err, ERR_OK);
    assert_false(run.unknown);
    assert_int_equal(number_of("HLEN", "h:n1"), 2);
    begin();
    done(&op, 40, STR_NONE);
    call(&op);
    assert_int_equal(op.err, ERR_OK);
    assert_int_equal(number_of("HLEN", "h:n1"), 1);
}

/* A lease that ended before it was needed is never written. */
static void test_leases_that_need_not_be_written(void **state)
{
    struct store_op op;

    begin();
    reserve(50);
    call(NULL);
    begin();
    commit(&op, 50, RIG_RUN_MS);
    call(&op);
    begin();
    done(&op, 50, STR_NONE);
    call(&op);
    assert_int_equal(op.err, ERR_OK);
    assert_int_equal(number_of("EXISTS", "owed"), 1);
    begin();
    wire_tidy(&session.wire, true, 0);
    call(NULL);
    assert_int_equal(number_of("EXISTS", "h:n1"), 0);
    assert_int_equal(number_of("EXISTS", "owed"), 0);
}

/* Runs the audit and returns the number of repairs. */
static long long audit(void)
{
    redisReply *reply;
    const redisReply *tidied;
    long long repairs = 0;

    begin();
    wire_tidy(&session.wire, true, 0);
    reply = redis_session_call(&session, clock_mono_ms() + CALL_MS);
    if (!reply)
        fail_msg("%s", session.link.why);
    tidied = reply->element[reply->elements - 1];
    assert_int_equal(tidied->elements, WIRE_TIDIED + STORE_RULES);
    for (int i = 0; i < STORE_RULES; i++)
        repairs += tidied->element[WIRE_TIDIED + i]->integer;
    freeReplyObject(reply);
    return repairs;
}

/* Leases two jobs, one of which runs; neither lease is written to Redis yet. */
static void lease_two(uint64_t first)
{
    struct store_op op;

    begin();
    reserve(first);
    reserve(first + 1);
    call(NULL);
    begin();
    commit(&op, first, RIG_RUN_MS);
    call(&op);
    assert_int_equal(op.err, ERR_OK);
}

/* The audit counts leases that are not written yet as well as those that are in the node's list. */
static void test_audit_of_leases_that_are_not_written_yet(void **state)
{
    lease_two(70);
    assert_int_equal(number_of("EXISTS", "h:n1"), 0);
    assert_int_equal(audit(), 0);
    assert_int_equal(number_of("HLEN", "h:n1"), 2);
    lease_two(72);
    assert_int_equal(number_of("HLEN", "h:n1"), 2);
    redis_say(server.port, "FUNCTION FLUSH");
    assert_int_equal(audit(), 0);
    assert_int_equal(number_of("HLEN", "h:n1"), 4);
}

/* When the epoch of the node ends, such leases are due at once. */
static void test_epoch_of_leases_that_are_not_written_yet(void **state)
{
    struct store_op put = {.verb = STORE_NODE_PUT, .node = STR("n1")};
    struct store_op due = {.verb = STORE_DUE};
    struct store_due items[4];

    lease_two(80);
    assert_int_equal(number_of("EXISTS", "h:n1"), 0);
    put.u.node_put.health = NODE_OFFLINE;
    put.u.node_put.max = -1;
    put.u.node_put.new_epoch = true;
    begin();
    wire_op(&session.wire, &put, 0);
    call(&put);
    assert_int_equal(put.err, ERR_OK);
    assert_int_equal(put.counts.reserved, 0);
    assert_int_equal(put.counts.running, 0);
    due.u.due.items = items;
    due.u.due.max = COUNT_OF(items);
    begin();
    wire_op(&session.wire, &due, 0);
    call(&due);
    assert_int_equal(due.u.due.count, 2);
    assert_int_equal(items[0].id, 80);
    assert_int_equal(items[1].id, 81);
    assert_int_equal(audit(), 0);
}

/* A node that is dropped and comes back still has them. */
static void test_drop_of_leases_that_are_not_written_yet(void **state)
{
    struct store_op drop = {.verb = STORE_NODE_DROP, .node = STR("n1")};
    struct store_op op;

    lease_two(90);
    assert_int_equal(number_of("EXISTS", "h:n1"), 0);
    begin();
    wire_op(&session.wire, &drop, 0);
    call(&drop);
    assert_int_equal(drop.err, ERR_OK);
    assert_int_equal(audit(), 0);
    put_node(STR("n1"));
    begin();
    done(&op, 90, STR_NONE);
    call(&op);
    assert_int_equal(op.err, ERR_OK);
    assert_int_equal(op.counts.reserved, 1);
    assert_int_equal(op.counts.running, 0);
    assert_int_equal(audit(), 0);
}

enum {
    MANY = 5000,       /* leases of one node: 20 parts of an audit */
    TOGETHER = 250,    /* begin in one call */
    AUDIT_CALLS = 48,  /* more than two rounds of the audit */
    COMING = 4,        /* leases that begin between two of them */
    AUDIT_WORK = 1500, /* commands, arguments and answers of one call, which asks for 256 records */
};

static struct {
    /* By job: 'r' reserved, 'a' acknowledged, '-' over. */
    char state[MANY + 2 * AUDIT_CALLS * COMING];
    uint64_t count;
    int reserved, running;
} many;

static void many_reserve(int count)
{
    begin();
    for (int i = 0; i < count; i++) {
        many.state[many.count++] = 'r';
        reserve(many.count);
    }
    call(NULL);
    many.reserved += count;
}

static void many_commit(uint64_t job, int64_t ttl_ms)
{
    struct store_op op;

    begin();
    commit(&op, job, ttl_ms);
    call(&op);
    assert_int_equal(op.err, ERR_OK);
    many.state[job - 1] = 'a';
    many.reserved--;
    many.running++;
}

static void many_end(uint64_t job)
{
    struct store_op op;

    begin();
    if (many.state[job - 1] == 'a')
        done(&op, job, STR_NONE);
    else
        cancel(&op, job);
    call(&op);
    assert_int_equal(op.err, ERR_OK);
    *(many.state[job - 1] == 'a' ? &many.running : &many.reserved) -= 1;
    many.state[job - 1] = '-';
}

/* Leases begin, end, and are acknowledged for a long, a short or hardly any time, wherever the
 * audit is. */
static void many_change(int round)
{
    static const int64_t ttls[] = {4 * RIG_RUN_MS, RIG_RUN_MS, 1};

    many_reserve(COMING);
    for (uint64_t job = 1 + (uint64_t)round; job <= many.count; job += 97) {
        if (many.state[job - 1] == 'r' && job % 5)
            many_commit(job, ttls[job % COUNT_OF(ttls)]);
        else if (many.state[job - 1] != '-')
            many_end(job);
    }
}

static void many_counts(int reserved, int running)
{
    struct store_op op;

    begin();
    done(&op, 1, STR_NONE); /* the answer does not matter, only its counters */
    call(&op);
    assert_int_equal(op.counts.reserved, reserved);
    assert_int_equal(op.counts.running, running);
}

/* A node with many leases is audited in parts, and the counters stay right while leases come and go
 * in between. Wrong counters are corrected, and no call does more than its part. */
static void test_audit_of_many_leases(void **state)
{
    static const char script[] =
        "local node = redis.call('HGET', KEYS[1], 'n1') local a, b = struct.unpack('<i4i4', node, "
        "3) redis.call('HSET', KEYS[1], 'n1', node:sub(1, 2) .. struct.pack('<i4i4', a + 7, b - 9) "
        ".. node:sub(11))";
    const char *words[] = {"EVAL", script, "1", "sched:{f}:n"};
    struct store_op renew = {.verb = STORE_RENEW, .node = STR("n1")};
    long long repairs = 0;
    long work;

    memset(&many, 0, sizeof many);
    put_node_of(STR("n1"), 2 * MANY);
    while (many.count < MANY)
        many_reserve(TOGETHER);
    for (uint64_t job = 1; job <= MANY; job += 2)
        many_commit(job, RIG_RUN_MS);
    renew.u.renew.terms = (struct lease_terms){2 * RIG_RUN_MS, 2 * RIG_RUN_MS};
    begin();
    wire_op(&session.wire, &renew, 0);
    call(&renew);
    assert_int_equal(renew.err, ERR_OK);
    assert_int_equal(audit(), 0); /* leases that are not written yet are written now */
    redis_say(server.port, "HSET sched:{f}:meta work 0");
    for (int i = 0; i < AUDIT_CALLS; i++) {
        many_change(i);
        assert_int_equal(audit(), 0);
    }
    many_counts(many.reserved, many.running);

    redis_say_words(server.port, COUNT_OF(words), words);
    many_counts(many.reserved + 7, many.running - 9);
    for (int i = 0; i < AUDIT_CALLS; i++) {
        many_change(AUDIT_CALLS + i);
        repairs += audit();
    }
    assert_int_equal(repairs, 2);
    many_counts(many.reserved, many.running);
    work = strtol(redis_say(server.port, "HGET sched:{f}:meta work"), NULL, 10);
    print_message("%d leases: one call's work is %ld\n", MANY, work);
    assert_in_range(work, 1, AUDIT_WORK);
}

/* A small hash of nodes is a hash table in Redis too, also after a restart has loaded it as a
 * listpack. */
static void test_nodes_are_a_table(void **state)
{
    static const char reload[] = "redis.call('RESTORE', KEYS[1], 0, redis.call('DUMP', KEYS[1]), "
                                 "'REPLACE')";

    assert_string_equal(redis_say(server.port, "OBJECT ENCODING sched:{f}:n"), "hashtable");
    redis_say(server.port, "EVAL %s 1 sched:{f}:n", reload);
    assert_string_equal(redis_say(server.port, "OBJECT ENCODING sched:{f}:n"), "listpack");
    redis_say(server.port, "FUNCTION FLUSH");
    begin();
    reserve(60);
    call(NULL);
    assert_string_equal(redis_say(server.port, "OBJECT ENCODING sched:{f}:n"), "hashtable");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_arrives_between_reserves),
        TEST(test_an_ack_that_was_lost_with_its_master),
        TEST(test_leases_that_are_not_written_yet),
        TEST(test_leases_that_need_not_be_written),
        TEST(test_audit_of_leases_that_are_not_written_yet),
        TEST(test_epoch_of_leases_that_are_not_written_yet),
        TEST(test_drop_of_leases_that_are_not_written_yet),
        TEST(test_audit_of_many_leases),
        TEST(test_nodes_are_a_table),
        TEST(test_spoken_of_before_it_is_made),
        TEST(test_a_shorter_term),
        TEST(test_those_that_are_alike),
        TEST(test_one_that_is_not),
        TEST(test_another_attempt_beside_those_that_are_alike),
        TEST(test_those_that_are_alike_beside_a_breaker),
        TEST(test_small_steps_are_no_pause),
        TEST(test_nothing_is_left_of_what_was_emptied),
    };
    int failed;

    redis_server_start(&server);
    failed = cmocka_run_group_tests_name("store/redis_batch", tests, NULL, NULL);
    redis_server_remove(&server);
    return failed;
}
