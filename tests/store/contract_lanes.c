/* The queue: jobs that wait in lanes, their order, how long they wait, and how they leave. */
#include "contract.h"

#include <stdio.h>
#include <string.h>

enum { HOLD_MS = 15000, SHOWN_MAX = 64 };

static struct store_op put_op(uint64_t job, uint64_t lane, int priority)
{
    struct store_op op = contract_reserve(job, "n1");

    op.verb = STORE_PUT;
    op.u.put.owner = 1;
    op.u.put.lane = lane;
    op.u.put.priority = priority;
    op.u.put.wait_ms = RIG_WAIT_MS;
    return op;
}

static enum err wait_lane(struct rig *rig, uint64_t job, int attempt, uint64_t lane, int priority)
{
    rig->op = (struct store_op){.verb = STORE_WAIT, .job = job, .attempt = attempt};
    rig->op.u.wait.lane = lane;
    rig->op.u.wait.priority = priority;
    rig->op.u.wait.wait_ms = RIG_WAIT_MS;
    return rig_call(rig, &rig->op);
}

static enum err time_out(struct rig *rig, uint64_t job)
{
    return rig_finish(rig, STORE_QUEUE_TIMEOUT, job, 0, NULL, NULL);
}

/* The first `max` jobs of the lane are `want` ("3 1 2"), and `waiting` jobs are in it. */
static void expect_first(struct rig *rig, uint64_t lane, size_t max, const char *want,
                         int64_t waiting)
{
    const struct store_op *op = &rig->op;
    char got[512] = "";

    assert_int_equal(rig_lane(rig, lane, max), ERR_OK);
    for (size_t i = 0; i < op->u.lane.count; i++) {
        const struct store_record *record = &op->u.lane.items[i];

        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%d", i ? " " : "",
                 (int)record->head.id);
        assert_int_equal(record->head.lane, lane);
        assert_int_equal(record->head.lease, LEASE_NONE);
        assert_true(record->spec.len > 0);
    }
    assert_string_equal(got, want);
    assert_int_equal(op->u.lane.waiting, waiting);
}

static void expect_lane(struct rig *rig, uint64_t lane, const char *want)
{
    int64_t count = *want != '\0';

    for (const char *at = want; *at; at++)
        count += *at == ' ';
    expect_first(rig, lane, SHOWN_MAX, want, count);
}

/* The higher priority comes first, then the older job, in whatever order they were put. */
static void test_order_of_a_lane(void **state)
{
    static const struct {
        uint64_t job;
        int priority;
    } rows[] = {{5, 0}, {3, 9}, {8, 5}, {1, 0}, {7, 9}, {2, 5}, {6, 0}, {4, 9}};
    struct rig *rig = *state;

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_int_equal(rig_put_lane(rig, rows[i].job, 77, rows[i].priority), ERR_OK);
    expect_lane(rig, 77, "3 4 7 2 8 1 5 6");
    expect_lane(rig, 77, "3 4 7 2 8 1 5 6"); /* reading changes nothing */
    expect_first(rig, 77, 3, "3 4 7", 8);
    expect_first(rig, 77, 0, "", 8);
    expect_lane(rig, 78, "");
    /* One job leaves from the middle, and one comes back to it. */
    assert_int_equal(rig_reserve(rig, 2, 1, "n1"), ERR_OK);
    expect_lane(rig, 77, "3 4 7 8 1 5 6");
    assert_int_equal(rig_finish(rig, STORE_SEND_FAILED, 2, 1, "n1", NULL), ERR_OK);
    assert_int_equal(wait_lane(rig, 2, 1, 77, 5), ERR_OK);
    expect_lane(rig, 77, "3 4 7 2 8 1 5 6");
}

/* A page of a lane is bounded in bytes too, but always has at least one job. */
static void test_large_jobs_of_a_lane(void **state)
{
    enum { JOBS = 12, SMALL = 100, LARGE = 10000, LARGEST = 100000 };
    static const struct {
        size_t bytes_max;
        size_t count;
    } rows[] = {{1, 1},
                {LARGE, 1},
                {SMALL + LARGE + 50, 2},
                {LARGEST, 2},
                {SMALL + LARGE + LARGEST + 50, 3},
                {10 << 20, JOBS},
                {0, JOBS}};
    static char text[LARGEST];
    struct rig *rig = *state;

    memset(text, ' ', sizeof text);
    text[0] = '{';
    for (uint64_t job = 1; job <= JOBS; job++) {
        struct store_op op = put_op(job, 77, 0);
        size_t len = job == 2 ? LARGE : job == 3 ? LARGEST : SMALL;

        text[len - 1] = '}';
        op.u.put.spec = (struct str){.at = text, .len = len};
        assert_int_equal(rig_call(rig, &op), ERR_OK);
        text[len - 1] = ' ';
    }
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct store_op op = {.verb = STORE_LANE, .arena = &rig->arena};

        op.u.lane.lane = 77;
        op.u.lane.max = SHOWN_MAX;
        op.u.lane.bytes_max = rows[i].bytes_max;
        assert_int_equal(rig_call(rig, &op), ERR_OK);
        assert_int_equal(op.u.lane.count, rows[i].count);
        assert_int_equal(op.u.lane.waiting, JOBS);
        for (size_t k = 0; k < op.u.lane.count; k++)
            assert_int_equal(op.u.lane.items[k].head.id, k + 1);
    }
}

static void test_what_a_lane_tells_of_a_job(void **state)
{
    struct rig *rig = *state;
    struct store_op op = put_op(1, 77, 4);
    const struct store_record *record;

    op.u.put.idem = STR("key");
    op.u.put.fingerprint = 5;
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_int_equal(op.head.state, JOB_NEW);
    assert_int_equal(op.head.lane, 77);
    assert_int_equal(op.head.priority, 4);
    assert_int_equal(op.head.due_ms, rig_now_ms() + RIG_WAIT_MS);
    expect_lane(rig, 77, "1");
    record = &rig->op.u.lane.items[0];
    assert_int_equal(record->head.state, JOB_NEW);
    assert_int_equal(record->head.attempt, 1);
    assert_int_equal(record->head.priority, 4);
    assert_int_equal(record->head.due_ms, rig_now_ms() + RIG_WAIT_MS);
    assert_true(str_eq(record->spec, op.u.put.spec));
    assert_true(str_is(record->history, "[]"));
    assert_true(str_is(record->idem, "key"));
    assert_int_equal(record->fingerprint, 5);
    assert_int_equal(rig_get(rig, 1), ERR_OK);
    assert_int_equal(rig->op.head.lane, 77);
    assert_int_equal(rig->op.head.priority, 4);
    assert_int_equal(rig->op.head.due_ms, rig_now_ms() + RIG_WAIT_MS);
    /* A request with the same key gets the first answer. */
    op = put_op(2, 77, 4);
    op.u.put.idem = STR("key");
    op.u.put.fingerprint = 5;
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_true(op.u.put.duplicate);
    assert_int_equal(op.head.id, 1);
    assert_int_equal(op.head.lane, 0);
    assert_int_equal(op.head.due_ms, 0);
    expect_lane(rig, 77, "1");
}

static void test_lanes_by_number(void **state)
{
    static const uint64_t numbers[] = {40, 7, UINT64_MAX, 1, UINT64_C(1) << 63, 8, 41};
    static const uint64_t sorted[] = {1, 7, 8, 40, 41, UINT64_C(1) << 63, UINT64_MAX};
    struct rig *rig = *state;
    struct store_op op = {.verb = STORE_LANES};
    size_t seen = 0;

    op.u.lanes.max = 3;
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_int_equal(op.u.lanes.count, 0);
    assert_false(op.u.lanes.more);
    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        for (uint64_t k = 0; k <= i; k++)
            assert_int_equal(rig_put_lane(rig, 100 * (i + 1) + k, numbers[i], k == 2 ? 3 : 1),
                             ERR_OK);
    do {
        op = (struct store_op){.verb = STORE_LANES};
        op.u.lanes.max = 3;
        op.u.lanes.after = seen ? sorted[seen - 1] : 0;
        assert_int_equal(rig_call(rig, &op), ERR_OK);
        assert_int_equal(op.u.lanes.count, seen < 6 ? 3 : 1);
        for (size_t i = 0; i < op.u.lanes.count; i++, seen++) {
            const struct store_lane *lane = &op.u.lanes.items[i];
            size_t row = 0;

            while (numbers[row] != sorted[seen])
                row++;
            assert_true(lane->lane == sorted[seen]);
            assert_int_equal(lane->count, row + 1);
            assert_int_equal(lane->first, 100 * (row + 1) + (row >= 2 ? 2 : 0));
            assert_int_equal(lane->priority, row >= 2 ? 3 : 1);
        }
        assert_int_equal(op.u.lanes.more, seen < COUNT_OF(sorted));
    } while (op.u.lanes.more);
    assert_int_equal(seen, COUNT_OF(sorted));
    /* A lane is removed with its last job. */
    assert_int_equal(rig_finish(rig, STORE_CANCEL, 100, 0, NULL, NULL), ERR_OK);
    op = (struct store_op){.verb = STORE_LANES};
    op.u.lanes.max = SHOWN_MAX;
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_int_equal(op.u.lanes.count, COUNT_OF(sorted) - 1);
    for (size_t i = 0; i < op.u.lanes.count; i++)
        assert_int_not_equal(op.u.lanes.items[i].lane, 40);
}

/* Clients make lanes by naming types, so the bound is on all lanes together. */
static void test_all_lanes_are_full(void **state)
{
    struct rig *rig = *state;
    struct store_op op;

    for (uint64_t job = 1; job <= 3; job++) {
        op = put_op(job, 70 + job, 0);
        op.u.put.bounds.all_max = 3;
        assert_int_equal(rig_call(rig, &op), ERR_OK);
    }
    op = put_op(4, 99, 9);
    op.u.put.bounds.all_max = 3;
    assert_int_equal(rig_call(rig, &op), ERR_QUEUES_FULL);
    assert_int_equal(rig_get(rig, 4), ERR_NOT_FOUND);

    op = (struct store_op){.verb = STORE_WAIT, .job = 3, .attempt = 1};
    op.u.wait.lane = 71; /* moving from one lane to another adds no waiting job */
    op.u.wait.wait_ms = RIG_WAIT_MS;
    op.u.wait.bounds.all_max = 3;
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    expect_lane(rig, 71, "1 3");
    assert_int_equal(rig_put(rig, 5), ERR_OK); /* held, not in a lane */
    op.job = 5;
    assert_int_equal(rig_call(rig, &op), ERR_QUEUES_FULL);
    assert_int_equal(rig_reserve(rig, 2, 1, "n1"), ERR_OK);
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_CANCEL, 1, 0, NULL, NULL), ERR_OK);
    op = put_op(6, 99, 9);
    op.u.put.bounds.all_max = 3;
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    op = put_op(7, 99, 9); /* no bound given */
    assert_int_equal(rig_call(rig, &op), ERR_OK);
}

static struct store_op put_for(uint64_t job, const char *account, int64_t jobs_max,
                               int64_t bytes_max)
{
    struct store_op op = put_op(job, 70 + job, 0);

    op.u.put.spec = STR("{\"type\":\"dev\",\"submitted_by\":\"ci\"}");
    if (*account == 'o')
        op.u.put.spec = STR("{\"type\":\"dev\",\"submitted_by\":\"ops\"}");
    op.u.put.bounds.account = (struct store_account){.name = str_of(account),
                                                     .bytes = (int64_t)op.u.put.spec.len,
                                                     .jobs_max = jobs_max,
                                                     .bytes_max = bytes_max};
    return op;
}

/* The bounds of an account count its waiting jobs in all lanes, also after a restart. */
static void test_an_account_has_bounds(void **state)
{
    struct rig *rig = *state;
    struct store_op op = put_for(1, "ci", 2, 0);
    int64_t bytes = op.u.put.bounds.account.bytes;

    assert_int_equal(rig_call(rig, &op), ERR_OK);
    op = put_for(2, "ci", 0, 2 * bytes - 1);
    assert_int_equal(rig_call(rig, &op), ERR_QUOTA_BYTES);
    op = put_for(2, "ci", 2, 2 * bytes);
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    contract_reopen(rig);
    op = put_for(3, "ci", 2, 0);
    assert_int_equal(rig_call(rig, &op), ERR_QUOTA_WAITING);
    op = put_for(3, "ci", 0, 3 * bytes - 1);
    assert_int_equal(rig_call(rig, &op), ERR_QUOTA_BYTES);
    assert_int_equal(rig_get(rig, 3), ERR_NOT_FOUND);
    op = put_for(4, "ops", 1, 0);
    assert_int_equal(rig_call(rig, &op), ERR_OK);

    assert_int_equal(rig_reserve(rig, 1, 1, "n1"), ERR_OK); /* job 1 no longer waits */
    op = put_for(3, "ci", 2, 2 * bytes);
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    /* Job 1 waits again: a job that was accepted is never refused later. */
    assert_int_equal(rig_finish(rig, STORE_SEND_FAILED, 1, 1, "n1", NULL), ERR_OK);
    op = (struct store_op){.verb = STORE_WAIT, .job = 1, .attempt = 1};
    op.u.wait.lane = 71;
    op.u.wait.wait_ms = RIG_WAIT_MS;
    op.u.wait.bounds.account = (struct store_account){.name = STR("ci"), .bytes = bytes};
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    op = put_for(5, "ci", 3, 0);
    assert_int_equal(rig_call(rig, &op), ERR_QUOTA_WAITING);
    op = put_for(5, "ci", 4, 4 * bytes);
    assert_int_equal(rig_call(rig, &op), ERR_OK);
}

static void test_a_full_lane(void **state)
{
    struct rig *rig = *state;
    struct store_op op;

    for (uint64_t job = 1; job <= 2; job++) {
        op = put_op(job, 77, 0);
        op.u.put.bounds.lane_max = 2;
        assert_int_equal(rig_call(rig, &op), ERR_OK);
    }
    op = put_op(3, 77, 9);
    op.u.put.bounds.lane_max = 2;
    op.u.put.idem = STR("key");
    assert_int_equal(rig_call(rig, &op), ERR_QUEUE_FULL);
    assert_int_equal(op.head.id, 0);
    assert_int_equal(rig_get(rig, 3), ERR_NOT_FOUND);
    expect_lane(rig, 77, "1 2");
    op = put_op(4, 78, 9); /* another lane has room, and the key is free */
    op.u.put.bounds.lane_max = 2;
    op.u.put.idem = STR("key");
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_false(op.u.put.duplicate);
    op = put_op(2, 77, 0); /* repeated: the job is there already */
    op.u.put.bounds.lane_max = 2;
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_true(op.u.put.duplicate);

    assert_int_equal(rig_put(rig, 5), ERR_OK); /* held, not in a lane */
    op = (struct store_op){.verb = STORE_WAIT, .job = 5, .attempt = 1};
    op.u.wait.lane = 77;
    op.u.wait.wait_ms = RIG_WAIT_MS;
    op.u.wait.bounds.lane_max = 2;
    assert_int_equal(rig_call(rig, &op), ERR_QUEUE_FULL);
    assert_int_equal(op.head.state, JOB_NEW);
    assert_int_equal(op.head.lane, 0);
    assert_int_equal(op.head.due_ms, rig_now_ms() + HOLD_MS);
    op.job = 2; /* in the lane already: it stays */
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    expect_lane(rig, 77, "1 2");
    assert_int_equal(rig_reserve(rig, 1, 1, "n1"), ERR_OK);
    op.job = 5;
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    expect_lane(rig, 77, "2 5");
}

static void test_reserve_takes_it_out(void **state)
{
    struct rig *rig = *state;
    int64_t due_ms;

    assert_int_equal(rig_put_lane(rig, 1, 77, 3), ERR_OK);
    due_ms = rig->op.head.due_ms;
    rig_pass(rig, 10);
    assert_int_equal(rig_reserve(rig, 1, 1, "n3"), ERR_ALL_FULL);
    assert_int_equal(rig->op.head.lane, 77);
    assert_int_equal(rig->op.head.due_ms, due_ms);
    expect_lane(rig, 77, "1");
    rig->op = contract_reserve(1, "n1");
    rig->op.u.put.owner = 5;
    assert_int_equal(rig_call(rig, &rig->op), ERR_OK);
    assert_int_equal(rig->op.head.state, JOB_DISPATCHED);
    assert_int_equal(rig->op.head.lane, 0);
    assert_int_equal(rig->op.head.priority, 0);
    assert_int_equal(rig->op.head.owner, 5); /* may take the reservation back */
    assert_int_equal(rig->op.head.due_ms, rig_now_ms() + RIG_TTL_MS);
    expect_lane(rig, 77, "");
    assert_int_equal(rig_get(rig, 1), ERR_OK);
    assert_int_equal(rig->op.head.lane, 0);
    assert_int_equal(rig->op.head.owner, 5);
    /* An earlier owner can no longer take it back. */
    assert_int_equal(rig_finish(rig, STORE_SEND_FAILED, 1, 1, NULL, NULL), ERR_STALE);
}

static void test_every_end_takes_it_out(void **state)
{
    static const enum store_outcome ends[] = {STORE_CANCEL, STORE_NO_CANDIDATE, STORE_ABANDON,
                                              STORE_QUEUE_TIMEOUT};
    struct rig *rig = *state;

    for (uint64_t i = 0; i < COUNT_OF(ends); i++) {
        assert_int_equal(rig_put_lane(rig, i + 1, 77, 3), ERR_OK);
        rig_pass(rig, RIG_WAIT_MS);
        expect_first(rig, 77, 0, "", 1);
        assert_int_equal(rig_finish(rig, ends[i], i + 1, 0, NULL, NULL), ERR_OK);
        assert_int_equal(rig->op.head.state, JOB_FAILED);
        assert_int_equal(rig->op.head.lane, 0);
        assert_int_equal(rig->op.head.due_ms, 0);
        expect_lane(rig, 77, "");
    }
    assert_int_equal(rig_get(rig, COUNT_OF(ends)), ERR_OK);
    assert_string_equal(rig->op.head.reason, "QUEUE_TIMEOUT");
}

/* Only a job that is in a lane and due can time out. */
static void test_time_to_wait(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(rig_put(rig, 1), ERR_OK); /* held: it may be on its way to a node */
    rig_pass(rig, HOLD_MS);
    assert_int_equal(time_out(rig, 1), ERR_STALE);
    assert_int_equal(rig->op.head.state, JOB_NEW);
    assert_int_equal(wait_lane(rig, 1, 1, 77, 0), ERR_OK);
    rig_pass(rig, RIG_WAIT_MS - 1);
    assert_int_equal(time_out(rig, 1), ERR_STALE);
    expect_lane(rig, 77, "1");
    rig_pass(rig, 1);
    assert_int_equal(rig_reserve(rig, 1, 1, "n1"), ERR_OK); /* reserved just before the time-out */
    assert_int_equal(time_out(rig, 1), ERR_STALE);
    assert_int_equal(rig_finish(rig, STORE_FAIL, 1, 1, "n1", "X"), ERR_OK);
    assert_int_equal(time_out(rig, 1), ERR_STALE);
    assert_int_equal(wait_lane(rig, 1, 2, 77, 0), ERR_OK);
    assert_int_equal(time_out(rig, 1), ERR_STALE);
    rig_pass(rig, RIG_WAIT_MS);
    assert_int_equal(time_out(rig, 1), ERR_OK);
    assert_int_equal(rig->op.head.state, JOB_FAILED);
    assert_string_equal(rig->op.head.reason, "QUEUE_TIMEOUT");
    assert_int_equal(time_out(rig, 1), ERR_OK);
    assert_true(rig->op.u.settle.duplicate);
    assert_int_equal(time_out(rig, 2), ERR_NOT_FOUND);
}

static void test_wait(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(wait_lane(rig, 1, 1, 77, 0), ERR_NOT_FOUND);
    assert_int_equal(rig_put(rig, 1), ERR_OK);
    assert_int_equal(wait_lane(rig, 1, 2, 77, 0), ERR_STALE);
    assert_int_equal(wait_lane(rig, 1, 1, 77, 2), ERR_OK);
    assert_int_equal(rig->op.head.state, JOB_NEW);
    assert_int_equal(rig->op.head.lane, 77);
    assert_int_equal(rig->op.head.priority, 2);
    assert_int_equal(rig->op.head.due_ms, rig_now_ms() + RIG_WAIT_MS);
    assert_int_equal(wait_lane(rig, 1, 1, 77, 2), ERR_OK); /* repeated */
    expect_lane(rig, 77, "1");
    assert_int_equal(wait_lane(rig, 1, 1, 78, 5), ERR_OK); /* a job is in one lane only */
    expect_lane(rig, 77, "");
    expect_lane(rig, 78, "1");

    assert_int_equal(rig_reserve(rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(wait_lane(rig, 1, 1, 77, 0), ERR_STALE);
    assert_int_equal(rig->op.head.state, JOB_DISPATCHED);
    assert_int_equal(rig_finish(rig, STORE_REFUSED, 1, 1, "n1", NULL), ERR_OK);
    assert_int_equal(rig->op.head.lane, 0); /* after the refusal the job is held, in no lane */
    assert_int_equal(rig->op.head.due_ms, rig_now_ms() + HOLD_MS);
    expect_lane(rig, 78, "");
    assert_int_equal(wait_lane(rig, 1, 2, 77, 0), ERR_STALE); /* still attempt 1 */
    assert_int_equal(wait_lane(rig, 1, 1, 77, 0), ERR_OK);
    assert_int_equal(rig->op.head.state, JOB_SELECTING);

    assert_int_equal(rig_reserve(rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(rig_commit(rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(wait_lane(rig, 1, 1, 77, 0), ERR_STALE);
    assert_int_equal(rig_finish(rig, STORE_FAIL, 1, 1, "n1", "X"), ERR_OK);
    assert_int_equal(wait_lane(rig, 1, 1, 77, 0), ERR_STALE);
    assert_int_equal(wait_lane(rig, 1, 2, 77, 0), ERR_OK); /* before its next attempt */
    assert_int_equal(rig->op.head.state, JOB_RETRYING);
    assert_int_equal(rig->op.head.attempt, 1);
    expect_lane(rig, 77, "1");
    assert_int_equal(rig->op.u.lane.items[0].head.attempt, 1);
    assert_string_equal(rig->op.u.lane.items[0].head.node, "n1");
    assert_true(rig->op.u.lane.items[0].history.len > 2);
    assert_int_equal(rig_reserve(rig, 1, 2, "n2"), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_DONE, 1, 2, "n2", NULL), ERR_OK);
    assert_int_equal(wait_lane(rig, 1, 2, 77, 0), ERR_STALE);
    expect_lane(rig, 77, "");
}

static void test_due_tells_the_lane(void **state)
{
    struct rig *rig = *state;
    struct store_due due[4];

    assert_int_equal(rig_put(rig, 1), ERR_OK);
    assert_int_equal(rig_put_lane(rig, 2, UINT64_MAX, 0), ERR_OK);
    rig_pass(rig, HOLD_MS);
    assert_int_equal(rig_due(rig, due, 4), 1);
    assert_int_equal(due[0].id, 1);
    assert_int_equal(due[0].lane, 0);
    assert_int_equal(due[0].lease, LEASE_NONE);
    assert_int_equal(wait_lane(rig, 1, 1, 77, 0), ERR_OK);
    assert_int_equal(rig_due(rig, due, 4), 0);
    rig_pass(rig, RIG_WAIT_MS - HOLD_MS);
    assert_int_equal(rig_due(rig, due, 4), 1);
    assert_int_equal(due[0].id, 2);
    assert_int_equal(due[0].state, JOB_NEW);
    assert_int_equal(due[0].lease, LEASE_NONE);
    assert_true(due[0].lane == UINT64_MAX);
    expect_lane(rig, UINT64_MAX, "2");                     /* until somebody settles it */
    assert_int_equal(wait_lane(rig, 2, 1, 77, 0), ERR_OK); /* it may go on waiting */
    assert_int_equal(rig_due(rig, due, 4), 0);
    expect_lane(rig, 77, "1 2");
}

/* A job is abandoned after another request was answered with it by its key: it does not end, in a
 * lane or held. */
static void test_abandoned_but_answered(void **state)
{
    struct rig *rig = *state;
    struct store_due due[4];

    for (uint64_t job = 1; job <= 2; job++)
        for (uint64_t twice = 0; twice < 2; twice++) {
            rig->op = put_op(job + 10 * twice, job == 1 ? 77 : 0, 0);
            rig->op.u.put.hold_ms = HOLD_MS;
            rig->op.u.put.idem = job == 1 ? STR("k1") : STR("k2");
            assert_int_equal(rig_call(rig, &rig->op), ERR_OK);
            assert_int_equal(rig->op.u.put.duplicate, twice);
        }
    for (uint64_t job = 1; job <= 2; job++)
        assert_int_equal(rig_finish(rig, STORE_ABANDON, job, 0, NULL, NULL), ERR_STALE);
    expect_lane(rig, 77, "1");
    assert_int_equal(rig->op.u.lane.items[0].head.due_ms, rig_now_ms() + RIG_WAIT_MS);
    assert_int_equal(rig_due(rig, due, 4), 1);
    assert_int_equal(due[0].id, 2);
}

static void test_lanes_after_a_restart(void **state)
{
    struct rig *rig = *state;
    int64_t until_ms;

    assert_int_equal(rig_put_lane(rig, 1, UINT64_MAX, 3), ERR_OK);
    assert_int_equal(rig_put_lane(rig, 2, UINT64_MAX, 8), ERR_OK);
    assert_int_equal(rig_put_lane(rig, 3, 77, 3), ERR_OK);
    assert_int_equal(rig_put(rig, 4), ERR_OK);
    assert_int_equal(wait_lane(rig, 4, 1, UINT64_MAX, 5), ERR_OK);
    until_ms = rig->op.head.due_ms;
    assert_int_equal(rig_reserve(rig, 3, 1, "n1"), ERR_OK);
    rig_pass(rig, 1000);
    contract_reopen(rig);
    expect_lane(rig, 77, "");
    expect_lane(rig, UINT64_MAX, "2 4 1");
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(rig->op.u.lane.items[i].head.due_ms, until_ms);
    assert_int_equal(rig->op.u.lane.items[0].head.priority, 8);
    assert_int_equal(rig_reserve(rig, 2, 1, "n1"), ERR_OK);
    expect_lane(rig, UINT64_MAX, "4 1");
}

/* A pause of the store does not count as waiting time, nor as part of a hold. */
static void test_a_pause_does_not_count(void **state)
{
    struct rig *rig = *state;
    struct store_due due[4];
    int64_t until_ms;

    assert_int_equal(rig_put_lane(rig, 1, 77, 0), ERR_OK);
    until_ms = rig->op.head.due_ms + 2 * RIG_WAIT_MS;
    rig_jump(2 * RIG_WAIT_MS);
    assert_int_equal(rig_due(rig, due, 4), 0);
    assert_int_equal(time_out(rig, 1), ERR_STALE);
    expect_lane(rig, 77, "1");
    assert_int_equal(rig->op.u.lane.items[0].head.due_ms, until_ms);
    assert_int_equal(rig_put_lane(rig, 2, 77, 0), ERR_OK); /* waits since the pause */
    assert_int_equal(rig->op.head.due_ms, rig_now_ms() + RIG_WAIT_MS);
    contract_reopen(rig);
    expect_lane(rig, 77, "1 2");
    assert_int_equal(rig->op.u.lane.items[0].head.due_ms, until_ms);
    assert_int_equal(rig->op.u.lane.items[1].head.due_ms, rig_now_ms() + RIG_WAIT_MS);
    rig_pass(rig, until_ms - rig_now_ms());
    assert_int_equal(rig_due(rig, due, 4), 2);
    assert_int_equal(time_out(rig, 1), ERR_OK);
    assert_int_equal(time_out(rig, 2), ERR_OK);
}

/* A WAIT that comes after its not_after changes nothing. */
static void test_wait_comes_too_late(void **state)
{
    struct rig *rig = *state;
    struct store_op op = {.verb = STORE_WAIT, .job = 1, .attempt = 1};

    assert_int_equal(rig_put(rig, 1), ERR_OK);
    op.u.wait.lane = 77;
    op.not_after_ms = rig_now_ms() - 1;
    assert_int_equal(rig_call(rig, &op), ERR_TOO_LATE);
    expect_lane(rig, 77, "");
}

const struct CMUnitTest contract_lanes[] = {
    CONTRACT(test_order_of_a_lane),
    CONTRACT(test_what_a_lane_tells_of_a_job),
    CONTRACT(test_large_jobs_of_a_lane),
    CONTRACT(test_lanes_by_number),
    CONTRACT(test_a_full_lane),
    CONTRACT(test_all_lanes_are_full),
    CONTRACT(test_an_account_has_bounds),
    CONTRACT(test_reserve_takes_it_out),
    CONTRACT(test_every_end_takes_it_out),
    CONTRACT(test_time_to_wait),
    CONTRACT(test_wait),
    CONTRACT(test_due_tells_the_lane),
    CONTRACT(test_abandoned_but_answered),
    CONTRACT(test_lanes_after_a_restart),
    CONTRACT(test_a_pause_does_not_count),
    CONTRACT(test_wait_comes_too_late),
};
const size_t contract_lanes_count = COUNT_OF(contract_lanes);
