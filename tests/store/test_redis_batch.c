/* Batches as the store itself does not make them, though the function library takes any. */
#include "redis_rig.h"

#include "../base/unit.h"

#include "base/clock.h"
#include "store/redis_session.h"

#include <stdio.h>
#include <string.h>

enum { CALL_MS = 10000 };

static struct redis_server server;
static struct redis_session session;
static struct store_config config = {.now_ms = rig_now_ms, .timeout_ms = CALL_MS};

static void begin(void)
{
    redis_session_begin(&session, &config);
}

/* The answer to the last op of the batch becomes that of `last`, if it is given. */
static void call(struct store_op *last)
{
    redisReply *reply = redis_session_call(&session, clock_mono_ms() + CALL_MS);
    size_t at;

    if (!reply)
        fail_msg("%s", session.link.why);
    at = reply->elements - 1;
    if (last)
        assert_true(wire_answer(last, reply, &at));
    freeReplyObject(reply);
}

static void put_node(const char *node)
{
    struct store_op op = {.verb = STORE_NODE_PUT, .node = str_of(node)};

    op.u.node_put.own = op.u.node_put.health = NODE_READY;
    op.u.node_put.max = 4;
    op.u.node_put.facts = STR("{}");
    wire_op(&session.wire, &op, 0);
}

static void reserve(uint64_t job, const char *node)
{
    struct store_op op = {.verb = STORE_RESERVE, .job = job, .attempt = 1};

    op.u.put.fresh = true;
    op.u.put.spec = STR("{}");
    op.u.put.max_attempts = 1;
    op.u.put.ttl_ms = RIG_TTL_MS;
    op.u.put.candidates[op.u.put.candidate_count++].node = str_of(node);
    wire_op(&session.wire, &op, 0);
}

/* The first of all instances looks at every job that is not over, and writes for that what stands
 * on the wheel so far. What comes behind it gets there as well, or its lease would never run out.
 */
static void test_arrives_between_reserves(void **state)
{
    const char *listed;
    char list[64];
    char id[JOB_ID_TEXT + 1];

    begin();
    put_node("n1");
    call(NULL);
    begin();
    reserve(1, "n1");
    wire_arrive(&session.wire, "1", RIG_RUN_MS);
    reserve(2, "n1");
    call(NULL);
    snprintf(list, sizeof list, "%s", redis_say(server.port, "KEYS sched:{f}:w:*"));
    list[strcspn(list, "\n")] = '\0';
    listed = redis_say(server.port, "LRANGE %s 0 -1", list);
    for (uint64_t job = 1; job <= 2; job++) {
        job_id_text(job, id);
        assert_non_null(strstr(listed, id));
    }
}

/* Whoever speaks of a job before it is made, by mistake or by guess, does not hide it. */
static void test_spoken_of_before_it_is_made(void **state)
{
    struct store_op early = {.verb = STORE_COMMIT, .job = 3, .attempt = 1, .node = STR("n2")};
    struct store_op cancel = {.verb = STORE_FINISH, .job = 3};

    cancel.u.settle.outcome = STORE_CANCEL;
    begin();
    put_node("n2");
    call(NULL);
    begin();
    wire_op(&session.wire, &early, 0);
    reserve(3, "n2");
    wire_op(&session.wire, &cancel, 0);
    call(&cancel);
    assert_int_equal(cancel.err, ERR_OK);
    assert_int_equal(cancel.head.state, JOB_FAILED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arrives_between_reserves),
        cmocka_unit_test(test_spoken_of_before_it_is_made),
    };
    struct redis_target target;
    struct problem why = {0};
    char url[64];
    int failed;

    redis_server_start(&server);
    snprintf(url, sizeof url, "redis://127.0.0.1:%d/0", server.port);
    if (redis_url_parse(url, &target, &why))
        return 1;
    redis_session_init(&session, &target, &config);
    failed = cmocka_run_group_tests_name("store/redis_batch", tests, NULL, NULL);
    redis_session_free(&session);
    redis_server_remove(&server);
    return failed;
}
