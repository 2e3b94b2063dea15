/* Idempotency-Keys: what a second request with the same key gets, and when a key is free again. */
#include "contract.h"

static enum err reserve_keyed(struct rig *rig, uint64_t job, const char *node, const char *key,
                              uint64_t fingerprint)
{
    rig->op = contract_reserve(job, node);
    rig->op.u.put.idem = str_of(key);
    rig->op.u.put.fingerprint = fingerprint;
    rig->op.u.put.owner = 1;
    return rig_call(rig, &rig->op);
}

static enum err put_keyed(struct rig *rig, uint64_t job, const char *key, uint64_t fingerprint)
{
    rig->op = contract_reserve(job, "n1");
    rig->op.verb = STORE_PUT;
    rig->op.u.put.idem = str_of(key);
    rig->op.u.put.fingerprint = fingerprint;
    rig->op.u.put.hold_ms = RIG_RUN_MS;
    return rig_call(rig, &rig->op);
}

static void assert_first_answer(const struct store_op *op, uint64_t job, enum job_state state,
                                const char *node)
{
    assert_int_equal(op->err, ERR_OK);
    assert_true(op->u.put.duplicate);
    assert_int_equal(op->head.id, job);
    assert_int_equal(op->head.state, state);
    assert_int_equal(op->head.attempt, 1);
    assert_string_equal(op->head.node, node);
}

static void test_key_gives_the_first_answer(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(reserve_keyed(rig, 1, "n1", "k", 77), ERR_OK);
    assert_false(rig->op.u.put.duplicate);
    reserve_keyed(rig, 2, "n2", "k", 77);
    assert_first_answer(&rig->op, 1, JOB_DISPATCHED, "n1");
    assert_int_equal(rig_counts(rig, "n2").reserved, 0);

    /* Whatever state the job is in, and after a restart. */
    assert_int_equal(rig_finish(rig, STORE_FAIL, 1, 1, "n1", "X"), ERR_OK);
    assert_int_equal(rig_reserve(rig, 1, 2, "n2"), ERR_OK);
    reserve_keyed(rig, 3, "n2", "k", 77);
    assert_first_answer(&rig->op, 1, JOB_DISPATCHED, "n1");
    assert_int_equal(rig_finish(rig, STORE_DONE, 1, 2, "n2", NULL), ERR_OK);
    contract_reopen(rig);
    reserve_keyed(rig, 4, "n2", "k", 77);
    assert_first_answer(&rig->op, 1, JOB_DISPATCHED, "n1");
    assert_int_equal(rig_get(rig, 4), ERR_NOT_FOUND);
}

static void test_key_with_another_body_is_refused(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(reserve_keyed(rig, 1, "n1", "k", 77), ERR_OK);
    assert_int_equal(reserve_keyed(rig, 2, "n1", "k", 78), ERR_IDEMPOTENCY);
    assert_int_equal(rig_counts(rig, "n1").reserved, 1);
    assert_int_equal(reserve_keyed(rig, 2, "n1", "k2", 78), ERR_OK);
}

static void test_key_of_a_job_that_was_put(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(put_keyed(rig, 1, "k", 0), ERR_OK);
    assert_int_equal(rig_reserve(rig, 1, 1, "n1"), ERR_OK);
    reserve_keyed(rig, 2, "n1", "k", 0);
    assert_first_answer(&rig->op, 1, JOB_NEW, "");
}

/* A reserve that no candidate took does not use up its key. */
static void test_key_of_a_refused_reserve_is_free(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(reserve_keyed(rig, 1, "n3", "k", 77), ERR_ALL_FULL);
    assert_int_equal(reserve_keyed(rig, 2, "n1", "k", 78), ERR_OK);
    assert_false(rig->op.u.put.duplicate);
}

/* If a send failed and the next candidate took the job in the same attempt, that node is what the
 * client was answered, so a repeat gets it too. */
static void test_key_after_a_failed_send(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(reserve_keyed(rig, 1, "n1", "k", 77), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_SEND_FAILED, 1, 1, "n1", NULL), ERR_OK);
    assert_int_equal(reserve_keyed(rig, 1, "n2", "k", 77), ERR_OK);
    assert_false(rig->op.u.put.duplicate);
    reserve_keyed(rig, 2, "n1", "k", 77);
    assert_first_answer(&rig->op, 1, JOB_DISPATCHED, "n2");
}

/* The client got an error and nothing ran, so the key may be used again. */
static void test_key_is_free_after_a_send_that_failed_for_good(void **state)
{
    struct rig *rig = *state;
    struct store_op op = {.verb = STORE_FINISH, .job = 1, .attempt = 1, .node = STR("n1")};

    assert_int_equal(reserve_keyed(rig, 1, "n1", "k", 77), ERR_OK);
    op.u.settle.outcome = STORE_SEND_FAILED;
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_int_equal(op.head.state, JOB_FAILED);
    assert_int_equal(reserve_keyed(rig, 2, "n1", "k", 77), ERR_OK);
    assert_false(rig->op.u.put.duplicate);
    assert_int_equal(rig->op.head.id, 2);
}

static enum err abandon(struct rig *rig, uint64_t job)
{
    return rig_finish(rig, STORE_ABANDON, job, 0, NULL, "SCHEDULER_DEPENDENCY_DOWN");
}

/* An abandoned job ends and frees its key, whether it came by RESERVE or PUT: its client was
 * refused. */
static void test_key_of_an_abandoned_job_is_free(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(reserve_keyed(rig, 1, "n1", "k", 77), ERR_OK);
    assert_int_equal(abandon(rig, 1), ERR_OK);
    assert_int_equal(rig->op.head.state, JOB_FAILED);
    assert_string_equal(rig->op.head.reason, "SCHEDULER_DEPENDENCY_DOWN");
    assert_int_equal(abandon(rig, 1), ERR_OK); /* repeated */
    assert_true(rig->op.u.settle.duplicate);
    contract_reopen(rig);
    assert_int_equal(reserve_keyed(rig, 2, "n1", "k", 78), ERR_OK);
    assert_false(rig->op.u.put.duplicate);

    assert_int_equal(put_keyed(rig, 3, "k3", 1), ERR_OK);
    assert_int_equal(abandon(rig, 3), ERR_OK);
    assert_int_equal(put_keyed(rig, 4, "k3", 2), ERR_OK);
    assert_false(rig->op.u.put.duplicate);
    /* The key belongs to another job by now, which keeps it. */
    assert_int_equal(abandon(rig, 3), ERR_OK);
    put_keyed(rig, 5, "k3", 2);
    assert_first_answer(&rig->op, 4, JOB_NEW, "");
}

/* An abandoned job that was reserved but never sent goes on in the same attempt if another request
 * was answered with it. */
static void test_abandoned_unsent_goes_on_for_who_was_answered(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(reserve_keyed(rig, 1, "n1", "k", 77), ERR_OK);
    assert_int_equal(reserve_keyed(rig, 2, "n1", "k", 77), ERR_OK);
    assert_first_answer(&rig->op, 1, JOB_DISPATCHED, "n1");
    assert_int_equal(abandon(rig, 1), ERR_OK);
    assert_int_equal(rig->op.head.state, JOB_SELECTING);
    assert_int_equal(rig->op.head.attempt, 1);
    assert_string_equal(rig->op.head.reason, "OUTCOME_UNKNOWN");
    assert_true(rig->op.record.spec.len > 0);
    assert_int_equal(rig_counts(rig, "n1").reserved, 0);
    assert_int_equal(rig_reserve(rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(rig_commit(rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(reserve_keyed(rig, 3, "n1", "k", 77), ERR_OK);
    assert_int_equal(rig->op.head.id, 1); /* the job keeps its key */
}

/* Another request was answered with the job before it was abandoned: it must not end. */
static void test_who_was_answered_keeps_the_job(void **state)
{
    struct rig *rig = *state;
    struct store_op by_another = {.verb = STORE_FINISH, .job = 1};

    assert_int_equal(reserve_keyed(rig, 1, "n1", "k", 77), ERR_OK);
    assert_int_equal(reserve_keyed(rig, 2, "n1", "k", 78), ERR_IDEMPOTENCY);
    reserve_keyed(rig, 2, "n1", "k", 77);
    assert_first_answer(&rig->op, 1, JOB_DISPATCHED, "n1");
    contract_reopen(rig);
    by_another.u.settle.outcome = STORE_ABANDON;
    by_another.u.settle.owner = 2;
    assert_int_equal(rig_call(rig, &by_another), ERR_STALE);
    assert_int_equal(by_another.head.state, JOB_DISPATCHED);
    assert_int_equal(rig_commit(rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(abandon(rig, 1), ERR_STALE);
    assert_int_equal(rig_finish(rig, STORE_DONE, 1, 1, "n1", NULL), ERR_OK);
    assert_int_equal(abandon(rig, 1), ERR_STALE);
    reserve_keyed(rig, 3, "n1", "k", 77);
    assert_first_answer(&rig->op, 1, JOB_DISPATCHED, "n1");
    /* A cancel is an explicit order, so it counts. */
    assert_int_equal(reserve_keyed(rig, 4, "n1", "k4", 77), ERR_OK);
    reserve_keyed(rig, 5, "n1", "k4", 77);
    assert_int_equal(rig_finish(rig, STORE_CANCEL, 4, 0, NULL, NULL), ERR_OK);
}

/* An abandoned job that is held becomes due at once, instead of when its owner's hold lapses. */
static void test_an_answered_job_that_waits_is_due(void **state)
{
    struct rig *rig = *state;
    struct store_due due[4];

    assert_int_equal(reserve_keyed(rig, 1, "n1", "k", 77), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_SEND_FAILED, 1, 1, "n1", NULL), ERR_OK);
    reserve_keyed(rig, 2, "n1", "k", 77);
    assert_first_answer(&rig->op, 1, JOB_DISPATCHED, "n1");
    assert_int_equal(rig_due(rig, due, 4), 0);
    assert_int_equal(abandon(rig, 1), ERR_STALE);
    assert_int_equal(rig_due(rig, due, 4), 1);
    assert_int_equal(due[0].state, JOB_SELECTING);
    assert_int_equal(rig_reserve(rig, 1, 1, "n2"), ERR_OK);
    assert_int_equal(rig_due(rig, due, 4), 0);
}

static void assert_key(const struct store_record *record, const char *key, uint64_t fingerprint)
{
    assert_int_equal(!key, !record->idem.at);
    if (key)
        assert_true(str_is(record->idem, key));
    assert_int_equal(record->fingerprint, fingerprint);
}

/* A record carries the job's key. Without it, an instance that puts the job again into a store that
 * lost it would let the same request make a second job. */
static void test_key_goes_with_the_record(void **state)
{
    const uint64_t large = 0xfedcba9876543210u; /* uses all 64 bits */
    struct rig *rig = *state;
    struct store_op wait = {.verb = STORE_WAIT, .job = 1, .attempt = 1};

    wait.u.wait.lane = 7;
    wait.u.wait.wait_ms = RIG_WAIT_MS;
    assert_int_equal(put_keyed(rig, 1, "key with blanks", large), ERR_OK);
    assert_int_equal(rig_call(rig, &wait), ERR_OK);
    assert_int_equal(rig_lane(rig, 7, 4), ERR_OK);
    assert_int_equal(rig->op.u.lane.count, 1);
    assert_key(&rig->op.u.lane.items[0], "key with blanks", large);
    assert_int_equal(reserve_keyed(rig, 2, "n1", "k2", 5), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_FAIL, 2, 1, "n1", "X"), ERR_OK);
    assert_key(&rig->op.record, "k2", 5);
    assert_int_equal(rig_reserve(rig, 3, 1, "n1"), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_FAIL, 3, 1, "n1", "X"), ERR_OK);
    assert_key(&rig->op.record, NULL, 0);
}

const struct CMUnitTest contract_keys[] = {
    CONTRACT(test_key_gives_the_first_answer),
    CONTRACT(test_key_with_another_body_is_refused),
    CONTRACT(test_key_of_a_job_that_was_put),
    CONTRACT(test_key_of_a_refused_reserve_is_free),
    CONTRACT(test_key_after_a_failed_send),
    CONTRACT(test_key_is_free_after_a_send_that_failed_for_good),
    CONTRACT(test_key_of_an_abandoned_job_is_free),
    CONTRACT(test_who_was_answered_keeps_the_job),
    CONTRACT(test_an_answered_job_that_waits_is_due),
    CONTRACT(test_abandoned_unsent_goes_on_for_who_was_answered),
    CONTRACT(test_key_goes_with_the_record),
};
const size_t contract_keys_count = COUNT_OF(contract_keys);
