/* Jobs: records, lists, callbacks, sessions, deadlines. */
#include "contract.h"

#include <stdio.h>
#include <string.h>

static void test_not_after(void **state)
{
    struct rig *rig = *state;
    struct store_op op = contract_reserve(1, "n1");

    op.not_after_ms = rig_now_ms() - 1;
    assert_int_equal(rig_call(rig, &op), ERR_TOO_LATE);
    assert_int_equal(rig_counts(rig, "n1").reserved, 0);
    assert_int_equal(rig_get(rig, 1), ERR_NOT_FOUND);
    op = contract_reserve(1, "n1");
    op.not_after_ms = rig_now_ms();
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    op = (struct store_op){.verb = STORE_JOB_GET, .job = 1, .not_after_ms = rig_now_ms() - 1};
    assert_int_equal(rig_call(rig, &op), ERR_TOO_LATE);
}

static void test_what_the_candidates_said(void **state)
{
    struct rig *rig = *state;
    const struct store_candidate *candidates = rig->op.u.put.candidates;

    rig_node(rig, "full", 1, NODE_READY);
    rig_node(rig, "none", 0, NODE_READY);
    assert_int_equal(rig_reserve(rig, 1, 1, "full"), ERR_OK);
    assert_int_equal(rig_reserve(rig, 2, 1, "n3 nowhere none full"), ERR_ALL_FULL);
    assert_int_equal(rig->op.u.put.chosen, -1);
    assert_int_equal(candidates[0].why, LEASE_NOT_READY);
    assert_int_equal(candidates[1].why, LEASE_NOT_READY);
    assert_int_equal(candidates[2].why, LEASE_NO_CAPACITY);
    assert_int_equal(candidates[3].why, LEASE_FULL);
    assert_true(candidates[3].tried);
    assert_int_equal(rig_reserve(rig, 2, 1, "full n1 n2"), ERR_OK);
    assert_int_equal(rig->op.u.put.chosen, 1);
    assert_int_equal(candidates[1].why, LEASE_OK);
    assert_false(candidates[2].tried);
    assert_int_equal(rig->op.counts.reserved, 1);
    assert_int_equal(rig->op.head.due_ms, rig_now_ms() + RIG_TTL_MS);
    assert_int_equal(rig->op.head.lease, LEASE_RESERVED);
}

static void test_record_of_a_whole_life(void **state)
{
    struct rig *rig = *state;
    struct store_head *head = &rig->op.record.head;
    int64_t start = rig_now_ms();
    char want[1024];

    assert_int_equal(rig_reserve(rig, 1, 1, "n1"), ERR_OK);
    rig_pass(rig, 10);
    assert_int_equal(rig_commit(rig, 1, 1, "n1"), ERR_OK);
    rig_pass(rig, 10);
    assert_int_equal(rig_finish(rig, STORE_FAIL, 1, 1, "n1", "MODEL_\"LOAD\"_FAILED"), ERR_OK);
    /* The job goes on, so the answer carries its record. */
    assert_int_equal(head->state, JOB_RETRYING);
    assert_true(str_is(rig->op.record.spec, "{\"type\":\"talk\",\"session_id\":\"s1\"}"));
    assert_int_equal(rig->op.head.due_ms, rig_now_ms() + 15000);
    assert_int_equal(rig_reserve(rig, 1, 2, "n2"), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_DONE, 1, 2, "n2", "ignored"), ERR_OK);
    assert_true(rig->op.u.settle.ended_lease);
    assert_null(rig->op.record.spec.at);

    assert_int_equal(rig_get(rig, 1), ERR_OK);
    assert_int_equal(head->state, JOB_DONE);
    assert_int_equal(head->attempt, 2);
    assert_int_equal(head->max_attempts, 2);
    assert_int_equal(head->lease, LEASE_NONE);
    assert_string_equal(head->node, "n2");
    assert_string_equal(head->reason, "");
    assert_int_equal(head->created_ms, start);
    assert_int_equal(head->dispatched_ms, start + 20);
    assert_int_equal(head->acked_ms, 0);
    assert_int_equal(head->ended_ms, start + 20);
    assert_int_equal(head->updated_ms, start + 20);
    assert_int_equal(head->due_ms, 0);
    assert_true(str_is(rig->op.record.result, "{\"ok\":1}"));
    snprintf(
        want, sizeof want,
        "[{\"attempt_id\":1,\"node_id\":\"n1\",\"outcome\":\"fail\",\"reason\":\"MODEL_\\\"LOAD"
        "\\\"_FAILED\",\"dispatched_ms\":%lld,\"acked_ms\":%lld,\"ended_ms\":%lld},"
        "{\"attempt_id\":2,\"node_id\":\"n2\",\"outcome\":\"done\",\"reason\":null,"
        "\"dispatched_ms\":%lld,\"acked_ms\":null,\"ended_ms\":%lld}]",
        (long long)start, (long long)start + 10, (long long)start + 20, (long long)start + 20,
        (long long)start + 20);
    assert_string_equal(arena_cstr(&rig->arena, rig->op.record.history), want);
}

/* A cancelled job stops in the millisecond in which its run ends, with the reason of the cancel: it
 * must not look like a job that ended twice. */
static void test_a_cancelled_run_stops(void **state)
{
    static const enum store_outcome stops[] = {STORE_DONE, STORE_FAIL, STORE_EXPIRE};
    struct rig *rig = *state;

    for (uint64_t i = 0; i < COUNT_OF(stops); i++) {
        const char *node = stops[i] == STORE_EXPIRE ? NULL : "n1";

        assert_int_equal(rig_reserve(rig, i + 1, 1, "n1"), ERR_OK);
        assert_int_equal(rig_commit(rig, i + 1, 1, "n1"), ERR_OK);
        assert_int_equal(rig_finish(rig, STORE_CANCEL, i + 1, 0, NULL, NULL), ERR_OK);
        assert_false(rig->op.u.settle.stopped || rig->op.u.settle.ended_lease);
        if (!node)
            rig_pass(rig, RIG_RUN_MS);
        assert_int_equal(rig_finish(rig, stops[i], i + 1, 1, node, "CANCELLED"), ERR_OK);
        assert_true(rig->op.u.settle.stopped && rig->op.u.settle.ended_lease);
        assert_string_equal(rig->op.head.reason, "CANCELLED");
        /* The history keeps the outcome of the attempt, if its node reported one. */
        assert_int_equal(rig_get(rig, i + 1), ERR_OK);
        if (stops[i] == STORE_DONE)
            assert_true(str_is(rig->op.record.result, "{\"ok\":1}"));
        else
            assert_int_equal(rig->op.record.result.len, 0);
    }
    assert_int_equal(rig_reserve(rig, 9, 1, "n1"), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_FAIL, 9, 1, "n1", "CANCELLED"), ERR_OK);
    assert_false(rig->op.u.settle.stopped);
}

static enum err commit_send(struct rig *rig, uint64_t job, int64_t send_id)
{
    rig->op = (struct store_op){.verb = STORE_ACK, .job = job, .attempt = 1, .node = STR("n1")};
    rig->op.u.settle.terms = (struct lease_terms){RIG_RUN_MS, RIG_F2F_MS};
    rig->op.u.settle.send_id = send_id;
    return rig_call(rig, &rig->op);
}

/* One attempt was sent to the same node twice: only an ACK that names the last send counts. */
static void test_an_ack_names_its_send(void **state)
{
    struct rig *rig = *state;

    rig_node(rig, "n1", 9, NODE_READY);
    for (uint64_t job = 1; job <= 2; job++) {
        int64_t first_ms = rig_now_ms() - 1;
        int64_t last_ms;

        assert_int_equal(rig_reserve(rig, job, 1, "n1"), ERR_OK);
        last_ms = rig->op.head.dispatched_ms;
        if (job == 2) { /* given back, then reserved on the same node again */
            first_ms = last_ms;
            assert_int_equal(rig_finish(rig, STORE_SEND_FAILED, job, 1, "n1", NULL), ERR_OK);
            rig_pass(rig, 10);
            assert_int_equal(rig_reserve(rig, job, 1, "n1"), ERR_OK);
            last_ms = rig->op.head.dispatched_ms;
        }
        assert_true(first_ms < last_ms);
        assert_int_equal(commit_send(rig, job, first_ms), ERR_STALE);
        assert_int_equal(rig->op.head.state, JOB_DISPATCHED);
        assert_int_equal(commit_send(rig, job, last_ms), ERR_OK);
        assert_false(rig->op.u.settle.duplicate);
        assert_int_equal(rig->op.head.state, JOB_ACKED);
        assert_int_equal(commit_send(rig, job, first_ms), ERR_STALE);
        assert_int_equal(commit_send(rig, job, last_ms), ERR_OK);
        assert_true(rig->op.u.settle.duplicate);
        assert_int_equal(commit_send(rig, job, 0), ERR_OK); /* an ACK may name no send */
        assert_true(rig->op.u.settle.duplicate);
    }
    assert_int_equal(rig_counts(rig, "n1").running, 2);
}

/* The owner of a reserve that was not answered can take the reservation back; nobody else can. */
static void test_only_who_reserved_takes_back(void **state)
{
    struct rig *rig = *state;

    rig->op = contract_reserve(1, "n1");
    rig->op.u.put.owner = 2;
    assert_int_equal(rig_call(rig, &rig->op), ERR_OK);
    assert_int_equal(rig->op.head.owner, 2);
    assert_int_equal(rig_finish(rig, STORE_SEND_FAILED, 1, 1, NULL, NULL), ERR_STALE);
    assert_int_equal(rig_counts(rig, "n1").reserved, 1);
    rig->op = (struct store_op){.verb = STORE_FINISH, .job = 1, .attempt = 1};
    rig->op.u.settle.outcome = STORE_SEND_FAILED;
    rig->op.u.settle.owner = 2;
    rig->op.u.settle.candidates_left = true;
    assert_int_equal(rig_call(rig, &rig->op), ERR_OK);
    assert_int_equal(rig->op.head.state, JOB_SELECTING);
    assert_int_equal(rig_counts(rig, "n1").reserved, 0);
}

static void test_reasons(void **state)
{
    struct rig *rig = *state;

    rig_node(rig, "n1", 9, NODE_READY);
    rig_reserve(rig, 1, 1, "n1");
    rig_pass(rig, RIG_TTL_MS);
    rig_finish(rig, STORE_EXPIRE, 1, 1, NULL, NULL);
    assert_string_equal(rig->op.head.reason, "ACK_TIMEOUT");
    rig_reserve(rig, 2, 1, "n1");
    rig_commit(rig, 2, 1, "n1");
    rig_pass(rig, RIG_RUN_MS);
    rig_finish(rig, STORE_EXPIRE, 2, 1, NULL, NULL);
    assert_string_equal(rig->op.head.reason, "NODE_LOST");
    rig_put(rig, 3);
    rig_finish(rig, STORE_CANCEL, 3, 0, NULL, NULL);
    assert_string_equal(rig->op.head.reason, "CANCELLED");
    rig_put(rig, 4);
    rig_finish(rig, STORE_CANCEL, 4, 0, NULL, "tired of it");
    assert_string_equal(rig->op.head.reason, "tired of it");
    rig_put(rig, 6);
    rig_finish(rig, STORE_NO_CANDIDATE, 6, 0, NULL, "NO_CAPABLE_NODE");
    assert_string_equal(rig->op.head.reason, "NO_CAPABLE_NODE");
    rig_reserve(rig, 7, 1, "n1");
    rig_finish(rig, STORE_REFUSED, 7, 1, "n1", "NODE_OVERLOADED");
    assert_string_equal(rig->op.head.reason, "NODE_OVERLOADED");
    rig_reserve(rig, 7, 1, "n1");
    assert_string_equal(rig->op.head.reason, "");
}

/* A lease is not renewed past the time-out of its job. */
static void test_time_out_bounds_the_lease(void **state)
{
    struct rig *rig = *state;
    struct store_op op = contract_reserve(1, "n1");
    struct store_op renew = {.verb = STORE_RENEW, .node = STR("n1")};

    op.u.put.timeout_ms = 60000;
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_int_equal(rig_commit(rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(rig->op.head.due_ms, rig_now_ms() + RIG_RUN_MS);
    renew.u.renew.terms = (struct lease_terms){RIG_RUN_MS, RIG_F2F_MS};
    for (int i = 0; i < 6; i++) {
        rig_pass(rig, 10000);
        assert_int_equal(rig_call(rig, &renew), ERR_OK);
    }
    assert_int_equal(rig_finish(rig, STORE_EXPIRE, 1, 1, NULL, NULL), ERR_STALE);
    rig_pass(rig, 1000); /* the grace period for stopping */
    assert_int_equal(rig_finish(rig, STORE_EXPIRE, 1, 1, NULL, NULL), ERR_OK);
    assert_string_equal(rig->op.head.reason, "RUN_TIMEOUT");
}

static void test_long_texts(void **state)
{
    static char reason[500];
    struct rig *rig = *state;
    static char spec[300000];
    struct store_op op = contract_reserve(1, "n1");

    memset(reason, 'r', sizeof reason - 1);
    memset(spec, ' ', sizeof spec);
    spec[0] = '{';
    spec[sizeof spec - 1] = '}';
    op.u.put.spec = (struct str){spec, sizeof spec};
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_int_equal(rig_commit(rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_FAIL, 1, 1, "n1", reason), ERR_OK);
    assert_int_equal(strlen(rig->op.head.reason), STORE_REASON_MAX);
    assert_true(str_eq(rig->op.record.spec, op.u.put.spec));
    contract_reopen(rig);
    assert_int_equal(rig_get(rig, 1), ERR_OK);
    assert_true(str_eq(rig->op.record.spec, op.u.put.spec));
}

/* Refusals do not use up attempts, so their list could grow for ever. */
static void test_history_is_bounded(void **state)
{
    struct rig *rig = *state;

    for (int i = 0; i < 60; i++) {
        assert_int_equal(rig_reserve(rig, 1, 1, "n1"), ERR_OK);
        assert_int_equal(rig_finish(rig, STORE_REFUSED, 1, 1, "n1", "NODE_OVERLOADED"), ERR_OK);
    }
    assert_int_equal(rig_get(rig, 1), ERR_OK);
    assert_true(rig->op.record.history.len <= STORE_HISTORY_MAX);
    assert_true(rig->op.record.history.len > STORE_HISTORY_MAX / 2);
    assert_true(str_starts(rig->op.record.history, STR("[{\"attempt_id\":1,\"node_id\":\"n1\"")));
    assert_memory_equal(rig->op.record.history.at + rig->op.record.history.len - 2, "}]", 2);
}

static size_t list(struct rig *rig, struct store_op op)
{
    op.verb = STORE_JOB_LIST;
    if (!op.u.list.max)
        op.u.list.max = 100;
    rig->op = op;
    assert_int_equal(rig_call(rig, &rig->op), ERR_OK);
    return rig->op.u.list.count;
}

static void test_list(void **state)
{
    struct rig *rig = *state;
    struct store_op op = {0};

    assert_int_equal(list(rig, op), 0);
    for (uint64_t job = 1; job <= 4; job++)
        assert_int_equal(rig_reserve(rig, job, 1, "n1 n2"), ERR_OK);
    op = contract_reserve(5, "n3");
    op.verb = STORE_PUT;
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    rig_finish(rig, STORE_DONE, 1, 1, "n1", NULL);

    op = (struct store_op){0};
    assert_int_equal(list(rig, op), 5);
    for (uint64_t i = 0; i < 5; i++)
        assert_int_equal(rig->op.u.list.items[i].head.id, 5 - i);
    assert_int_equal(rig->op.u.list.next, 0);
    assert_true(str_is(rig->op.u.list.items[4].result, "{\"ok\":1}"));

    /* By pages of two. */
    op.u.list.max = 2;
    for (uint64_t newest = 5; newest > 1; newest -= 2) {
        assert_int_equal(list(rig, op), 2);
        assert_int_equal(rig->op.u.list.items[0].head.id, newest);
        op.u.list.before = rig->op.u.list.next;
        assert_int_equal(op.u.list.before, newest - 1);
    }
    assert_int_equal(list(rig, op), 1);
    assert_int_equal(rig->op.u.list.next, 0);

    op = (struct store_op){.u.list.bytes_max = 1}; /* a page ends with the record that reaches it */
    for (uint64_t newest = 5; newest > 0; newest--) {
        assert_int_equal(list(rig, op), 1);
        assert_int_equal(rig->op.u.list.items[0].head.id, newest);
        assert_int_equal(rig->op.u.list.bytes, store_record_bytes(&rig->op.u.list.items[0]));
        op.u.list.before = rig->op.u.list.next;
        if (newest > 1) /* after the last record a store may not yet know that there are no more */
            assert_int_equal(op.u.list.before, newest);
    }
    op = (struct store_op){.u.list.bytes_max = 1 << 20};
    assert_int_equal(list(rig, op), 5);

    op = (struct store_op){.u.list.states = 1u << JOB_DONE};
    assert_int_equal(list(rig, op), 1);
    op = (struct store_op){.u.list.states = 1u << JOB_DISPATCHED | 1u << JOB_NEW};
    assert_int_equal(list(rig, op), 4);
    op = (struct store_op){.u.list.node_id = STR("n2")};
    assert_int_equal(list(rig, op), 2);
    op = (struct store_op){.u.list.type = STR("f2f")};
    assert_int_equal(list(rig, op), 1);
    op = (struct store_op){.u.list.session = STR("s1"), .u.list.node_id = STR("n1")};
    assert_int_equal(list(rig, op), 2);
    op = (struct store_op){.u.list.session = STR("s1"), .u.list.type = STR("f2f")};
    assert_int_equal(list(rig, op), 0);
}

/* A page holds jobs of one namespace only, and the next page goes on where it ended. */
static void test_list_of_a_namespace(void **state)
{
    static const char *const types[] = {"work",     "maps/work",  "ml/work",
                                        "maps/f2f", "mapss/work", "maps/work"};
    static const struct {
        const char *namespace, *type;
        uint64_t ids[4];
    } rows[] = {
        {"maps", NULL, {6, 4, 2}}, {"default", NULL, {1}},        {"ml", NULL, {3}},
        {"none", NULL, {0}},       {"maps", "maps/work", {6, 2}}, {"maps", "ml/work", {0}},
    };
    struct rig *rig = *state;
    char spec[64];

    for (size_t i = 0; i < COUNT_OF(types); i++) {
        struct store_op op = contract_reserve(i + 1, "n3");

        snprintf(spec, sizeof spec, "{\"type\":\"%s\"}", types[i]);
        op.verb = STORE_PUT;
        op.u.put.spec = str_of(spec);
        op.u.put.type = str_of(types[i]);
        assert_int_equal(rig_call(rig, &op), ERR_OK);
        assert_string_equal(op.head.type, types[i]);
    }
    contract_reopen(rig);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct store_op op = {.u.list.max = 1};
        size_t seen = 0;

        op.u.list.namespace = str_of(rows[i].namespace);
        op.u.list.type = str_of(rows[i].type);
        do {
            if (list(rig, op) == 1)
                assert_int_equal(rig->op.u.list.items[0].head.id, rows[i].ids[seen++]);
            op.u.list.before = rig->op.u.list.next;
        } while (op.u.list.before);
        assert_int_equal(rows[i].ids[seen], 0);
    }
}

/* A face-to-face type has the shorter lease in every namespace. */
static void test_f2f_of_a_namespace(void **state)
{
    static const struct {
        const char *type;
        int64_t lease_ms;
    } rows[] = {{"maps/f2f", RIG_F2F_MS},
                {"f2f", RIG_F2F_MS},
                {"maps/work", RIG_RUN_MS},
                {"f2f/work", RIG_RUN_MS},
                {"maps/xf2f", RIG_RUN_MS}};
    struct rig *rig = *state;
    struct store_op renew = {.verb = STORE_RENEW, .node = STR("n1")};

    renew.u.renew.terms = (struct lease_terms){RIG_RUN_MS, RIG_F2F_MS};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct store_op op = contract_reserve(i + 1, "n1");

        op.u.put.type = str_of(rows[i].type);
        assert_int_equal(rig_call(rig, &op), ERR_OK);
        rig->op =
            (struct store_op){.verb = STORE_ACK, .job = i + 1, .attempt = 1, .node = STR("n1")};
        rig->op.u.settle.terms = (struct lease_terms){RIG_RUN_MS, RIG_F2F_MS};
        assert_int_equal(rig_call(rig, &rig->op), ERR_OK);
        assert_int_equal(rig->op.head.due_ms, rig_now_ms() + rows[i].lease_ms);
        rig_pass(rig, 1000);
        assert_int_equal(rig_call(rig, &renew), ERR_OK);
        assert_int_equal(rig_get(rig, i + 1), ERR_OK);
        assert_int_equal(rig_finish(rig, STORE_DONE, i + 1, 1, "n1", NULL), ERR_OK);
    }
}

static size_t pending(struct rig *rig, uint64_t after)
{
    struct store_op op = {.verb = STORE_CALLBACKS};

    op.u.list.after = after;
    op.u.list.max = 10;
    rig->op = op;
    assert_int_equal(rig_call(rig, &rig->op), ERR_OK);
    return rig->op.u.list.count;
}

static enum err called_back(struct rig *rig, uint64_t job, bool given_up)
{
    rig->op = (struct store_op){.verb = STORE_CALLBACK_DONE, .job = job};
    rig->op.u.callback.given_up = given_up;
    return rig_call(rig, &rig->op);
}

static void test_callbacks(void **state)
{
    struct rig *rig = *state;

    for (uint64_t job = 1; job <= 2; job++) {
        rig->op = contract_reserve(job, "n1");
        rig->op.u.put.callback = true;
        assert_int_equal(rig_call(rig, &rig->op), ERR_OK);
        assert_int_equal(rig->op.head.callback, CALLBACK_WANTED);
    }
    assert_int_equal(pending(rig, 0), 0);
    assert_int_equal(called_back(rig, 1, false), ERR_CONFLICT);
    assert_int_equal(rig_finish(rig, STORE_DONE, 1, 1, "n1", NULL), ERR_OK);
    assert_int_equal(rig->op.head.callback, CALLBACK_PENDING);
    assert_int_equal(rig_finish(rig, STORE_CANCEL, 2, 0, NULL, NULL), ERR_OK);
    contract_reopen(rig);
    assert_int_equal(pending(rig, 0), 2);
    assert_int_equal(rig->op.u.list.items[0].head.id, 1);
    assert_true(str_is(rig->op.u.list.items[0].result, "{\"ok\":1}"));
    assert_int_equal(pending(rig, 1), 1);

    assert_int_equal(called_back(rig, 1, false), ERR_OK);
    assert_int_equal(called_back(rig, 1, false), ERR_OK);
    assert_int_equal(rig->op.head.callback, CALLBACK_SENT);
    assert_int_equal(called_back(rig, 2, true), ERR_OK);
    assert_int_equal(rig->op.head.callback, CALLBACK_GIVEN_UP);
    assert_int_equal(called_back(rig, 3, false), ERR_NOT_FOUND);
    assert_int_equal(pending(rig, 0), 0);
}

static enum err use_session(struct rig *rig, uint64_t job, const char *pool, const char *pair)
{
    rig->op = contract_reserve(job, "n1");
    rig->op.u.put.session = STR("s1");
    rig->op.u.put.pool = str_of(pool);
    rig->op.u.put.lang_pair = str_of(pair);
    return rig_call(rig, &rig->op);
}

static enum err session(struct rig *rig, const char *key)
{
    rig->op = (struct store_op){.verb = STORE_SESSION_GET};
    rig->op.u.session.key = str_of(key);
    return rig_call(rig, &rig->op);
}

static void test_sessions(void **state)
{
    struct rig *rig = *state;
    int64_t start = rig_now_ms();

    rig_node(rig, "n1", 3, NODE_READY);
    assert_int_equal(session(rig, "s1"), ERR_NOT_FOUND);
    assert_int_equal(use_session(rig, 1, "en:zh", "en->zh"), ERR_OK);
    rig_pass(rig, 1000);
    assert_int_equal(use_session(rig, 2, "en:zh", "en->zh"), ERR_OK);
    assert_int_equal(session(rig, "s1"), ERR_OK);
    assert_true(str_is(rig->op.u.session.preferred_pool, "en:zh"));
    assert_true(str_is(rig->op.u.session.lang_pair, "en->zh"));
    assert_int_equal(rig->op.u.session.version, 1);
    assert_int_equal(rig->op.u.session.updated_ms, start);
    assert_int_equal(use_session(rig, 3, "zh:en", "zh->en"), ERR_OK);
    assert_int_equal(use_session(rig, 4, "de:en", "de->en"), ERR_ALL_FULL);
    contract_reopen(rig);
    assert_int_equal(session(rig, "s1"), ERR_OK);
    assert_true(str_is(rig->op.u.session.preferred_pool, "zh:en"));
    assert_int_equal(rig->op.u.session.version, 2);
    assert_int_equal(rig->op.u.session.updated_ms, start + 1000);
}

static void test_due(void **state)
{
    struct rig *rig = *state;
    struct store_due due[8];

    rig_put(rig, 1);
    rig_reserve(rig, 2, 1, "n1");
    rig_reserve(rig, 3, 1, "n1");
    rig_commit(rig, 3, 1, "n1");
    assert_int_equal(rig_due(rig, due, 8), 0);
    rig_pass(rig, RIG_TTL_MS);
    assert_int_equal(rig_due(rig, due, 8), 1);
    assert_int_equal(due[0].id, 2);
    assert_int_equal(due[0].attempt, 1);
    assert_int_equal(due[0].state, JOB_DISPATCHED);
    assert_string_equal(due[0].node, "n1");
    rig_pass(rig, 10000);
    assert_int_equal(rig_due(rig, due, 8), 2); /* now also job 1, whose hold is over */
    assert_int_equal(rig_due(rig, due, 1), 1);
    rig_pass(rig, 30000);
    assert_int_equal(rig_due(rig, due, 8), 3);
    assert_int_equal(due[1].id, 3); /* leases come first */
    assert_int_equal(due[1].state, JOB_ACKED);
    assert_int_equal(due[2].id, 1);
    /* Jobs stay due until somebody settles them. */
    assert_int_equal(rig_finish(rig, STORE_EXPIRE, 2, 1, NULL, NULL), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_EXPIRE, 3, 1, NULL, NULL), ERR_OK);
    assert_int_equal(rig_due(rig, due, 8), 1);
    assert_int_equal(rig_finish(rig, STORE_CANCEL, 1, 0, NULL, NULL), ERR_OK);
    assert_int_equal(rig_due(rig, due, 8), 0);
}

/* Hundreds of waiting jobs are overdue and unsettled: DUE still returns leases that ran out later
 * before them, and the slots of those leases are free. */
static void test_leases_before_jobs_that_wait(void **state)
{
    enum { WAITS = 400, LEASES = 2, HOLD_MS = 15000 };
    struct rig *rig = *state;
    struct store_due due[LEASES + 1];

    assert_int_equal(rig_node(rig, "n9", LEASES, NODE_READY), ERR_OK);
    for (uint64_t job = 1; job <= WAITS; job++)
        assert_int_equal(rig_put(rig, job), ERR_OK);
    rig_pass(rig, HOLD_MS - RIG_TTL_MS + 1000);
    for (uint64_t job = WAITS + 1; job <= WAITS + LEASES; job++)
        assert_int_equal(rig_reserve(rig, job, 1, "n9"), ERR_OK);
    rig_jump(RIG_TTL_MS - 500);
    assert_int_equal(rig_due(rig, due, 1), 1); /* a job that waited */
    assert_int_equal(due[0].id, 1);
    rig_jump(1000);
    assert_int_equal(rig_reserve(rig, WAITS + LEASES + 1, 1, "n9"), ERR_OK);
    assert_int_equal(rig_due(rig, due, COUNT_OF(due)), COUNT_OF(due));
    for (int i = 0; i < LEASES; i++) {
        assert_int_equal(due[i].id, WAITS + 1 + i);
        assert_int_equal(due[i].lease, LEASE_RESERVED);
    }
    assert_int_equal(due[LEASES].id, 1);
    assert_int_equal(due[LEASES].lease, LEASE_NONE);
}

struct look {
    struct store_op op;
    struct arena arena;
    size_t *open;
    bool *all;
};

static void looked(struct store_op *op)
{
    struct look *look = container_of(op, struct look, op);

    if (--*look->open == 0)
        *look->all = true;
}

/* Each of many concurrent reads gets its own answer, also those of missing jobs and those that come
 * too late. An ended job reads exactly as it was answered to the FINISH that ended it. */
static void test_many_looks_at_once(void **state)
{
    enum { LOOKS = 100, LATE = 7, MISSING = 30 };
    static struct look looks[LOOKS];
    struct store_head ends[LOOKS];
    struct rig *rig = *state;
    size_t open = LOOKS;
    bool all = false;

    for (uint64_t i = 0; i < LOOKS; i++) {
        uint64_t job = i + 1;

        if (i != MISSING) {
            assert_int_equal(rig_reserve(rig, job, 1, "n1"), ERR_OK);
            assert_int_equal(rig_finish(rig, i % 3 ? STORE_DONE : STORE_CANCEL, job, 1, "n1", NULL),
                             ERR_OK);
            ends[i] = rig->op.head;
        }
        looks[i] = (struct look){.open = &open, .all = &all};
        looks[i].op = (struct store_op){.verb = STORE_JOB_GET,
                                        .job = job,
                                        .reply_to = &rig->work_queue.inbox,
                                        .done = looked,
                                        .arena = &looks[i].arena};
        if (i == LATE)
            looks[i].op.not_after_ms = 1;
        if (i > 0)
            looks[i - 1].op.msg.next = &looks[i].op.msg;
    }
    assert_null(store_send_all(rig->store, &looks[0].op.msg));
    rig_wait(rig, &all);
    for (size_t i = 0; i < LOOKS; i++) {
        const struct store_op *op = &looks[i].op;

        assert_int_equal(op->err, i == LATE ? ERR_TOO_LATE : i == MISSING ? ERR_NOT_FOUND : ERR_OK);
        assert_int_equal(op->head.id, op->err ? 0 : i + 1);
        if (!op->err) {
            assert_string_equal(op->head.node, ends[i].node);
            assert_string_equal(op->head.reason, ends[i].reason);
            assert_int_equal(op->head.state, ends[i].state);
            assert_int_equal(op->head.attempt, ends[i].attempt);
            assert_int_equal(op->head.created_ms, ends[i].created_ms);
            assert_int_equal(op->head.ended_ms, ends[i].ended_ms);
            assert_int_equal(op->record.result.len > 0, op->head.state == JOB_DONE);
        }
        arena_free(&looks[i].arena);
    }
}

const struct CMUnitTest contract_jobs[] = {
    CONTRACT(test_many_looks_at_once),
    CONTRACT(test_not_after),
    CONTRACT(test_what_the_candidates_said),
    CONTRACT(test_record_of_a_whole_life),
    CONTRACT(test_a_cancelled_run_stops),
    CONTRACT(test_an_ack_names_its_send),
    CONTRACT(test_only_who_reserved_takes_back),
    CONTRACT(test_reasons),
    CONTRACT(test_time_out_bounds_the_lease),
    CONTRACT(test_list_of_a_namespace),
    CONTRACT(test_f2f_of_a_namespace),
    CONTRACT(test_long_texts),
    CONTRACT(test_history_is_bounded),
    CONTRACT(test_list),
    CONTRACT(test_callbacks),
    CONTRACT(test_sessions),
    CONTRACT(test_due),
    CONTRACT(test_leases_before_jobs_that_wait),
};
const size_t contract_jobs_count = COUNT_OF(contract_jobs);
