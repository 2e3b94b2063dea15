/* A Redis that is slow, gone, empty, full, holds other data, or wants a password. */
#include "contract.h"
#include "redis_rig.h"

#include "base/clock.h"
#include "base/mem.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A call may take long on a slow machine; only tests of a time-out use a short one. */
enum { PATIENCE_MS = 60000, CALL_MS = 5000, TIMEOUT_MS = 100, SHORT_MS = 20 };

struct fixture {
    struct redis_server server;
    struct rig rig;
    char url[128];
};

static void start(struct fixture *fixture, const char *login, int db)
{
    redis_server_start(&fixture->server);
    rig_init(&fixture->rig);
    snprintf(fixture->url, sizeof fixture->url, "redis://%s127.0.0.1:%d/%d", login,
             fixture->server.port, db);
    fixture->rig.config.url = fixture->url;
    fixture->rig.config.now_ms = NULL; /* Redis' own clock */
    fixture->rig.ttl_ms = RIG_LONG_TTL_MS;
    fixture->rig.config.timeout_ms = CALL_MS;
}

static int setup(void **state)
{
    struct fixture *fixture = mem_new(struct fixture);

    fixture->server.options[0] = "--appendonly";
    fixture->server.options[1] = "yes";
    fixture->server.options[2] = "--appendfsync";
    fixture->server.options[3] = "always";
    start(fixture, "", 0);
    rig_open(&fixture->rig);
    *state = fixture;
    return rig_node(&fixture->rig, "n1", 100000, NODE_READY);
}

static int bare_setup(void **state)
{
    *state = mem_new(struct fixture);
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;

    if (fixture->rig.store)
        rig_done(&fixture->rig);
    else if (*fixture->rig.dir)
        rig_remove_dir(fixture->rig.dir);
    redis_server_remove(&fixture->server);
    free(fixture);
    return 0;
}

/* Repeats a call until the store is well again. */
static void wait_well(struct fixture *fixture, const char *node)
{
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;

    while (rig_node(&fixture->rig, node, 100000, NODE_READY)) {
        assert_true(store_is_away(fixture->rig.op.err));
        assert_true(clock_mono_ms() < end_ms);
        sched_yield();
    }
}

static const char *first_word(const char *text)
{
    static char word[64];

    str_copy((struct str){text, strcspn(text, " \n")}, word, sizeof word);
    return word;
}

static struct store_status status(struct fixture *fixture)
{
    struct store_status status;

    store_status(fixture->rig.store, &status);
    return status;
}

static void open_with_timeout(struct fixture *fixture, int timeout_ms)
{
    rig_close(&fixture->rig);
    fixture->rig.config.timeout_ms = timeout_ms;
    rig_open(&fixture->rig);
    wait_well(fixture, "n1");
}

/* The call itself timed out, or one of the store's own that it had to wait for. */
static void assert_given_up(enum err err)
{
    assert_true(err == ERR_UNKNOWN || err == ERR_STORE_DOWN);
}

/* No call waits longer than the time-out, and soon none waits at all: a thousand that waited would
 * take minutes. */
static void test_slow_is_down(void **state)
{
    struct fixture *fixture = *state;
    int64_t began_ms;
    int64_t took_ms;

    assert_int_equal(rig_reserve(&fixture->rig, 1, 1, "n1"), ERR_OK);
    open_with_timeout(fixture, TIMEOUT_MS);
    redis_server_signal(&fixture->server, SIGSTOP);
    began_ms = clock_mono_ms();
    assert_given_up(rig_reserve(&fixture->rig, 2, 1, "n1"));
    took_ms = clock_mono_ms() - began_ms;
    assert_true(fixture->rig.op.err == ERR_STORE_DOWN || took_ms >= TIMEOUT_MS / 2);
    assert_int_equal(status(fixture).mode, STORE_L2_ONLY);
    assert_string_equal(status(fixture).detail, "no answer in time");
    began_ms = clock_mono_ms();
    for (uint64_t job = 3; job < 1000; job++)
        assert_int_equal(rig_reserve(&fixture->rig, job, 1, "n1"), ERR_STORE_DOWN);
    assert_int_equal(rig_get(&fixture->rig, 1), ERR_STORE_DOWN);
    /* Each would have waited for a time-out. */
    assert_true(clock_mono_ms() - began_ms < 500 * TIMEOUT_MS);
    while (clock_mono_ms() - began_ms < 200)
        sched_yield();
    redis_server_signal(&fixture->server, SIGCONT);
    wait_well(fixture, "n2");
    open_with_timeout(fixture, CALL_MS); /* slow calls are fine from here on */
    assert_int_equal(status(fixture).mode, STORE_NORMAL);
    /* The call arrived after all, but too late to take effect. */
    assert_int_equal(rig_get(&fixture->rig, 2), ERR_NOT_FOUND);
    assert_int_equal(rig_counts(&fixture->rig, "n1").reserved, 1);
    assert_int_equal(rig_commit(&fixture->rig, 1, 1, "n1"), ERR_OK);
}

/* A call that was given up counts as slow, wherever in a millisecond it began. */
static void test_given_up_is_slow(void **state)
{
    struct fixture *fixture = *state;

    open_with_timeout(fixture, SHORT_MS);
    for (uint64_t i = 1; i <= 20; i++) {
        wait_well(fixture, "n1");
        redis_server_signal(&fixture->server, SIGSTOP);
        while (clock_mono_us() % 1000 < (int64_t)i * 50 - 50)
            ;
        assert_given_up(rig_reserve(&fixture->rig, i, 1, "n1"));
        assert_int_equal(status(fixture).mode, STORE_L2_ONLY);
        redis_server_signal(&fixture->server, SIGCONT);
    }
}

static void test_restart_keeps_what_was_written(void **state)
{
    struct fixture *fixture = *state;
    char generation[24];

    assert_int_equal(rig_reserve(&fixture->rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(rig_commit(&fixture->rig, 1, 1, "n1"), ERR_OK);
    memcpy(generation, status(fixture).generation, sizeof generation);
    assert_int_equal(strlen(generation), 16);
    redis_server_kill(&fixture->server);
    while (rig_reserve(&fixture->rig, 2, 1, "n1") == ERR_OK)
        ;
    for (int64_t end_ms = clock_mono_ms() + PATIENCE_MS;
         status(fixture).mode != STORE_LOCAL_ONLY && clock_mono_ms() < end_ms;)
        sched_yield();
    assert_int_equal(status(fixture).mode, STORE_LOCAL_ONLY);
    redis_server_start(&fixture->server);
    wait_well(fixture, "n2");
    assert_string_equal(status(fixture).generation, generation);
    assert_int_equal(rig_counts(&fixture->rig, "n1").running, 1);
    assert_int_equal(rig_finish(&fixture->rig, STORE_DONE, 1, 1, "n1", NULL), ERR_OK);
}

static void test_empty_is_noticed(void **state)
{
    struct fixture *fixture = *state;
    struct store_run runs[] = {{.id = 7, .attempt = 2}};
    struct store_op renew = {.verb = STORE_RENEW, .node = STR("n1")};
    char generation[24];

    renew.u.renew.runs = runs;
    renew.u.renew.count = 1;
    renew.u.renew.terms = (struct lease_terms){45000, 45000};
    memcpy(generation, status(fixture).generation, sizeof generation);
    redis_say(fixture->server.port, "FLUSHALL");
    assert_int_equal(rig_reserve(&fixture->rig, 1, 1, "n1"), ERR_ALL_FULL);
    assert_int_equal(fixture->rig.op.u.put.candidates[0].why, LEASE_NOT_READY);
    assert_string_not_equal(status(fixture).generation, generation);
    assert_non_null(strstr(status(fixture).detail, "came back empty"));
    /* After it registered again the node gets no job before it has listed its runs, which are taken
     * back. */
    assert_int_equal(rig_node(&fixture->rig, "n1", 2, NODE_READY), ERR_OK);
    assert_true(fixture->rig.op.u.node_put.created);
    assert_int_equal(rig_reserve(&fixture->rig, 1, 1, "n1"), ERR_ALL_FULL);
    assert_int_equal(fixture->rig.op.u.put.candidates[0].why, LEASE_NOT_READY);
    assert_int_equal(rig_call(&fixture->rig, &renew), ERR_OK);
    assert_false(runs[0].unknown);
    assert_int_equal(renew.counts.running, 1);
    assert_int_equal(rig_reserve(&fixture->rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(rig_reserve(&fixture->rig, 2, 1, "n1"), ERR_ALL_FULL);
    assert_int_equal(fixture->rig.op.u.put.candidates[0].why, LEASE_FULL);
    assert_int_equal(rig_finish(&fixture->rig, STORE_DONE, 7, 2, "n1", NULL), ERR_OK);
    assert_int_equal(fixture->rig.op.counts.running, 0);
    assert_int_equal(rig_reserve(&fixture->rig, 2, 1, "n1"), ERR_OK);
}

/* More runs than one call takes: the node gets nothing new before the last of them. */
static void test_many_runs_are_taken_back(void **state)
{
    enum { RUNS = 600 };
    struct fixture *fixture = *state;
    struct rig *rig = &fixture->rig;
    struct store_run runs[RUNS];
    struct store_op renew = {.verb = STORE_RENEW, .node = STR("n1")};

    for (int i = 0; i < RUNS; i++)
        runs[i] = (struct store_run){.id = 100 + (uint64_t)i, .attempt = 1 + i % 3};
    renew.u.renew.runs = runs;
    renew.u.renew.count = RUNS;
    renew.u.renew.terms = (struct lease_terms){45000, 45000};
    redis_say(fixture->server.port, "FLUSHALL");
    assert_int_equal(rig_reserve(rig, 1, 1, "n1"), ERR_ALL_FULL);
    assert_int_equal(rig_node(rig, "n1", RUNS + 1, NODE_READY), ERR_OK);
    assert_int_equal(rig_call(rig, &renew), ERR_OK);
    for (int i = 0; i < RUNS; i++)
        assert_false(runs[i].unknown);
    assert_int_equal(renew.counts.running, RUNS);
    assert_int_equal(rig_reserve(rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(rig_reserve(rig, 2, 1, "n1"), ERR_ALL_FULL);
    assert_int_equal(rig_finish(rig, STORE_DONE, 100 + RUNS - 1, 1 + (RUNS - 1) % 3, "n1", NULL),
                     ERR_OK);
    assert_int_equal(rig->op.counts.running, RUNS - 1);
}

static void test_functions_are_loaded_again(void **state)
{
    struct fixture *fixture = *state;

    redis_say(fixture->server.port, "FUNCTION FLUSH");
    assert_int_equal(rig_reserve(&fixture->rig, 1, 1, "n1"), ERR_OK);
    redis_say(fixture->server.port, "FUNCTION FLUSH");
    assert_int_equal(rig_commit(&fixture->rig, 1, 1, "n1"), ERR_OK);
}

/* A reserve that fails half-way, because the wheel has the wrong type. */
static enum err reserve_half(struct fixture *fixture, uint64_t job)
{
    int port = fixture->server.port;
    enum err err;

    redis_say(port, "RENAME sched:{f}:wheel aside");
    redis_say(port, "SET sched:{f}:wheel x");
    redis_say(port, "DEL %s", first_word(redis_say(port, "KEYS sched:{f}:w:*")));
    err = rig_reserve(&fixture->rig, job, 1, "n1");
    assert_non_null(strstr(status(fixture).detail, "WRONGTYPE"));
    redis_say(port, "DEL sched:{f}:wheel");
    redis_say(port, "RENAME aside sched:{f}:wheel");
    wait_well(fixture, "n2");
    return err;
}

/* A call fails half-way: what the library remembers of a node but did not write is not used. */
static void test_half_a_call_is_not_remembered(void **state)
{
    struct fixture *fixture = *state;
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;
    enum err err;

    assert_int_equal(rig_reserve(&fixture->rig, 1, 1, "n1"), ERR_OK);
    while ((err = reserve_half(fixture, 2)) == ERR_STORE_DOWN)
        assert_true(clock_mono_ms() < end_ms); /* a call of the store's own came first */
    assert_int_equal(err, ERR_UNKNOWN);
    assert_int_equal(rig_reserve(&fixture->rig, 3, 1, "n1"), ERR_OK);
    assert_int_equal(fixture->rig.op.counts.reserved, 2);
}

/* Another function under the name of ours: an answer that makes no sense is refused. */
static const struct {
    enum store_verb verb;
    const char *answer; /* in Lua */
} strange[] = {
    {STORE_RESERVE, "'x'"},
    {STORE_RESERVE, "{}"},
    {STORE_RESERVE, "{0, 'x', 'y'}"},
    {STORE_RESERVE, "string.char(90, 0, 0, 1, 1) .. '00'"}, /* no such error */
    {STORE_RESERVE, "string.char(64, 0, 0, 1, 1)"},         /* too short */
    {STORE_RESERVE, "string.char(64, 0, 0, 1, 1) .. '90'"}, /* no such reason */
    {STORE_RESERVE, "string.char(64, 0, 0, 1, 1) .. '/0'"},
    {STORE_RESERVE, "string.char(64, 0, 0, 1, 200) .. '00'"}, /* more candidates than were sent */
    {STORE_RESERVE, "string.char(64, 0, 0, 9, 1) .. '00'"},   /* none of them was taken */
    {STORE_RESERVE, "string.char(64, 0, 0, 1, 1) .. '01n'"},  /* no counters */
    {STORE_RESERVE, "string.char(64, 0, 0, 1, 1) .. '00j0000000000001'"}, /* no record */
    /* No record here either. */
    {STORE_RESERVE, "string.char(2) .. string.rep('a', 16)"},
    {STORE_DUE, "{99, false, false}"},
    {STORE_DUE, "{0, false, false, 7}"},
    {STORE_DUE, "{0, false, false, 'x000000000000' .. string.rep('a', 9)}"},
    {STORE_DUE, "{0, false, false, 'j0000000000001' .. string.char(1, 99, 1)}"}, /* no such state */
    /* No such lease kind. */
    {STORE_DUE, "{0, false, false, 'j0000000000001' .. string.char(1, 1, 99)}"},
};

static void answer_always(int port, const char *library, const char *answer)
{
    const char *words[] = {"FUNCTION", "LOAD", "REPLACE", NULL};
    struct buf code = {0};

    buf_fmt(&code,
            "#!lua name=%s\nredis.register_function('%s_batch', function(keys, args) return "
            "{1, 1, 'g', 0, 0, %s} end)",
            library, library, answer);
    words[3] = code.at;
    assert_string_equal(redis_say_words(port, 4, words), library);
    buf_free(&code);
}

/* Makes a call that gets this answer. */
static enum err call_strange(struct fixture *fixture, const char *library, size_t i)
{
    int port = fixture->server.port;
    struct store_due items[2];
    struct store_op op = {.verb = strange[i].verb, .job = 1, .attempt = 1};

    if (op.verb == STORE_RESERVE) {
        op.u.put.candidate_count = 1;
        op.u.put.candidates[0].node = STR("n1");
    } else {
        op.u.due.items = items;
        op.u.due.max = COUNT_OF(items);
    }
    wait_well(fixture, "n1");
    answer_always(port, library, strange[i].answer);
    rig_call(&fixture->rig, &op);
    redis_say(port, "FUNCTION FLUSH");
    return op.err;
}

static void test_strange_answers_are_refused(void **state)
{
    struct fixture *fixture = *state;
    const char *library =
        first_word(strstr(redis_say(fixture->server.port, "FUNCTION LIST"), "berth_v"));
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;

    for (size_t i = 0; i < COUNT_OF(strange); i++) {
        enum err want = strange[i].verb == STORE_RESERVE ? ERR_UNKNOWN : ERR_STORE_DOWN, err;

        while ((err = call_strange(fixture, library, i)) == ERR_STORE_DOWN && err != want)
            assert_true(clock_mono_ms() < end_ms); /* a call of the store's own came first */
        if (err != want)
            fail_msg("%s is taken for an answer", strange[i].answer);
    }
}

static void test_cut_connections_are_made_again(void **state)
{
    struct fixture *fixture = *state;

    assert_int_equal(rig_get(&fixture->rig, 1), ERR_NOT_FOUND);
    redis_say(fixture->server.port, "CLIENT KILL TYPE normal SKIPME yes");
    wait_well(fixture, "n2");
    assert_int_equal(rig_get(&fixture->rig, 1), ERR_NOT_FOUND); /* its connection was cut, too */
    assert_int_equal(rig_reserve(&fixture->rig, 1, 1, "n1"), ERR_OK);
}

/* Deadlines are judged by Redis' clock, not by ours. */
static void test_store_time_counts(void **state)
{
    struct fixture *fixture = *state;
    struct store_op op = {.verb = STORE_RESERVE, .job = 1, .attempt = 1};
    struct store_due due[4];
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;

    op.u.put.spec = STR("{}");
    op.u.put.max_attempts = 2;
    op.u.put.ttl_ms = 30;
    op.u.put.candidate_count = 1;
    op.u.put.candidates[0].node = STR("n1");
    op.not_after_ms = clock_mono_ms() + 5000;
    assert_int_equal(rig_call(&fixture->rig, &op), ERR_OK);
    while (rig_due(&fixture->rig, due, 4) == 0)
        assert_true(clock_mono_ms() < end_ms);
    assert_int_equal(due[0].id, 1);
    assert_int_equal(rig_finish(&fixture->rig, STORE_EXPIRE, 1, 1, NULL, NULL), ERR_OK);
    op = (struct store_op){.verb = STORE_PUT, .job = 2, .not_after_ms = clock_mono_ms() - 100};
    assert_int_equal(rig_call(&fixture->rig, &op), ERR_TOO_LATE);
}

/* An instance that starts while another is running takes back only what its own number held. */
static void test_second_instance(void **state)
{
    struct fixture *fixture = *state;
    struct rig *rig = &fixture->rig;
    struct rig other = {.config = rig->config};
    struct store_due due[4];
    int64_t due_ms;

    assert_int_equal(rig_put(rig, 1), ERR_OK);
    assert_int_equal(rig_reserve(rig, 2, 1, "n1"), ERR_OK);
    assert_int_equal(rig_commit(rig, 2, 1, "n1"), ERR_OK);
    due_ms = rig->op.head.due_ms;
    work_queue_init(&other.work_queue);
    other.config.instance = 2;
    other.config.terms = (struct lease_terms){10 * RIG_RUN_MS, 10 * RIG_RUN_MS};
    rig_open(&other);
    assert_int_equal(rig_due(&other, due, 4), 0); /* the first one still holds it */
    assert_int_equal(rig_commit(&other, 2, 1, "n1"), ERR_OK);
    assert_true(other.op.u.settle.duplicate);
    assert_int_equal(other.op.head.due_ms, due_ms);
    rig_close(rig); /* a clean stop: what it held is free at once */
    assert_int_equal(rig_due(&other, due, 4), 1);
    assert_int_equal(due[0].id, 1);
    rig_close(&other);
    arena_free(&other.arena);
    rig_open(rig);
}

/* A session expires by itself; a job and its key only after the job has ended. */
static void test_sessions_expire(void **state)
{
    struct fixture *fixture = *state;
    struct rig *rig = &fixture->rig;
    struct store_op op = {.verb = STORE_RESERVE, .job = 1, .attempt = 1};

    rig_close(rig);
    rig->config.retention_ms = 60000;
    rig_open(rig);
    op.u.put.spec = STR("{}");
    op.u.put.max_attempts = 2;
    op.u.put.ttl_ms = 5000;
    op.u.put.idem = STR("k1");
    op.u.put.session = STR("s1");
    op.u.put.pool = STR("p");
    op.u.put.lang_pair = STR("l");
    op.u.put.candidate_count = 1;
    op.u.put.candidates[0].node = STR("n1");
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_in_range(atol(redis_say(fixture->server.port, "PTTL sched:{f}:s:s1")), 1, 60000);
    assert_string_equal(redis_say(fixture->server.port, "PTTL sched:{f}:j:j0000000"), "-1");
    assert_string_equal(redis_say(fixture->server.port, "PTTL sched:{f}:l:j000000"), "-1");
    assert_string_equal(redis_say(fixture->server.port, "PTTL sched:{f}:k:k1"), "-1");
    assert_string_equal(redis_say(fixture->server.port, "PTTL sched:{f}:n"), "-1");
}

/* All keys have the same hash tag, so they are in one slot. */
static void test_one_hash_tag(void **state)
{
    struct fixture *fixture = *state;
    char *keys;
    char *rest;

    assert_int_equal(rig_reserve(&fixture->rig, 1, 1, "n1"), ERR_OK);
    keys = strdup(redis_say(fixture->server.port, "KEYS *"));
    for (char *key = strtok_r(keys, "\n", &rest); key; key = strtok_r(NULL, "\n", &rest))
        assert_memory_equal(key, "sched:{f}:", 10);
    free(keys);
}

static size_t listed(struct rig *rig)
{
    struct store_op op = {.verb = STORE_JOB_LIST, .u.list.max = 100};

    assert_int_equal(rig_call(rig, &op), ERR_OK);
    return op.u.list.count;
}

static void test_too_many_jobs_go(void **state)
{
    struct fixture *fixture = *state;
    struct rig *rig = &fixture->rig;
    struct store_op called = {.verb = STORE_RESERVE, .job = 1, .attempt = 1};
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;

    called.u.put.spec = STR("{}");
    called.u.put.max_attempts = 1;
    called.u.put.callback = true;
    called.u.put.ttl_ms = RIG_TTL_MS;
    called.u.put.candidates[called.u.put.candidate_count++].node = STR("n1");
    rig_close(rig);
    rig->config.retention_jobs_max = 20;
    rig_open(rig);
    assert_int_equal(rig_call(rig, &called), ERR_OK);
    for (uint64_t job = 1; job <= 60; job++) {
        assert_int_equal(rig_reserve(rig, job, 1, "n1"), ERR_OK);
        if (job % 2 == 0) /* by the fast step of lua/columns.lua; the others take the verb */
            assert_int_equal(rig_commit(rig, job, 1, "n1"), ERR_OK);
        if (job != 5)
            assert_int_equal(rig_finish(rig, STORE_DONE, job, 1, "n1", NULL), ERR_OK);
    }
    while (listed(rig) > 21)
        assert_true(clock_mono_ms() < end_ms);
    assert_int_equal(listed(rig), 21);
    assert_int_equal(rig_get(rig, 60), ERR_OK);
    assert_int_equal(rig_get(rig, 2), ERR_NOT_FOUND);
    assert_int_equal(rig_get(rig, 1), ERR_OK); /* its callback is pending */
    assert_int_equal(rig_get(rig, 5), ERR_OK); /* not ended yet */
    assert_int_equal(rig_finish(rig, STORE_DONE, 5, 1, "n1", NULL), ERR_OK);
}

/* The store refuses to start, with a sentence that says why. */

static void refused(struct rig *rig, const char *url, const char *says)
{
    struct store_config config = rig->config;
    struct problem why = {0};
    struct store *store = NULL;

    config.url = url;
    config.data_dir = "unused";
    assert_int_not_equal(store_open(&config, &store, &why), ERR_OK);
    assert_null(store);
    if (!strstr(why.detail, says))
        fail_msg("%s: \"%s\" does not say \"%s\"", url, why.detail, says);
    assert_null(strstr(why.detail, "secret"));
}

static void test_wrong_urls(void **state)
{
    struct rig rig = {0};

    refused(&rig, "redis:", "not complete");
    refused(&rig, "redis://", "no host");
    refused(&rig, "redis://h:0", "wrong port");
    refused(&rig, "redis://h:70000", "wrong port");
    refused(&rig, "redis://h:1/x", "no number");
    refused(&rig, "redis://h:1/-1", "no number");
    refused(&rig, "redis://a:1,b:2", "one host");
    refused(&rig, "redis://user@h:1", "needs a password");
    refused(&rig, "redis://u:secret%4@h:1", "cannot be read");
    refused(&rig, "redis-sentinel://h:1", "name the master");
    refused(&rig, "redis-cluster://h:1/3", "no database but 0");
    refused(&rig, "rediss://h:1", "no TLS");
    refused(&rig, "memcached://h:1", "no store of the kind");
    refused(&rig, "redis://127.0.0.1:1", "cannot be reached");
}

static void test_login_and_database(void **state)
{
    static const char *const options[] = {"--requirepass", "secret",   "--user", "app",  "on",
                                          ">secret%at",    "~sched:*", "&*",     "+@all"};
    struct fixture *fixture = *state;

    memcpy(fixture->server.options, options, sizeof options);
    start(fixture, "app:secret%25at@", 3);
    refused(&fixture->rig, "redis://127.0.0.1:1", "cannot be reached");
    rig_open(&fixture->rig);
    assert_int_equal(rig_node(&fixture->rig, "n1", 1, NODE_READY), ERR_OK);
    assert_int_equal(rig_get(&fixture->rig, 1), ERR_NOT_FOUND);
    rig_close(&fixture->rig);

    snprintf(fixture->url, sizeof fixture->url, "redis://app:secretwrong@127.0.0.1:%d/3",
             fixture->server.port);
    refused(&fixture->rig, fixture->url, "refuses the login");
    snprintf(fixture->url, sizeof fixture->url, "redis://:secret@127.0.0.1:%d/99",
             fixture->server.port);
    refused(&fixture->rig, fixture->url, "no such database");
    /* With the password from the environment, and into the same database. */
    snprintf(fixture->url, sizeof fixture->url, "redis://127.0.0.1:%d/3", fixture->server.port);
    refused(&fixture->rig, fixture->url, "NOAUTH");
    setenv("BERTH_STORE_PASSWORD", "secret", 1);
    rig_open(&fixture->rig);
    unsetenv("BERTH_STORE_PASSWORD");
    assert_int_equal(rig_reserve(&fixture->rig, 1, 1, "n1"), ERR_OK);
}

static void test_eviction_is_refused(void **state)
{
    struct fixture *fixture = *state;

    fixture->server.options[0] = "--maxmemory-policy";
    fixture->server.options[1] = "allkeys-lru";
    start(fixture, "", 0);
    refused(&fixture->rig, fixture->url, "noeviction");
    redis_say(fixture->server.port, "CONFIG SET maxmemory-policy noeviction");
    rig_open(&fixture->rig);
}

static void test_replica_is_refused(void **state)
{
    struct fixture *fixture = *state;

    fixture->server.options[0] = "--replicaof";
    fixture->server.options[1] = "127.0.0.1";
    fixture->server.options[2] = "1";
    start(fixture, "", 0);
    refused(&fixture->rig, fixture->url, "replica");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define BARE(name) cmocka_unit_test_setup_teardown(name, bare_setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_slow_is_down),
        TEST(test_given_up_is_slow),
        TEST(test_restart_keeps_what_was_written),
        TEST(test_empty_is_noticed),
        TEST(test_many_runs_are_taken_back),
        TEST(test_functions_are_loaded_again),
        TEST(test_half_a_call_is_not_remembered),
        TEST(test_strange_answers_are_refused),
        TEST(test_cut_connections_are_made_again),
        TEST(test_store_time_counts),
        TEST(test_second_instance),
        TEST(test_sessions_expire),
        TEST(test_one_hash_tag),
        TEST(test_too_many_jobs_go),
        cmocka_unit_test(test_wrong_urls),
        BARE(test_login_and_database),
        BARE(test_eviction_is_refused),
        BARE(test_replica_is_refused),
    };

    return cmocka_run_group_tests_name("store/redis_faults", tests, NULL, NULL);
}
