/* The sweep: what ran out moves on, once, whoever finds it. */
#include "rig.h"

#include "base/metrics.h"
#include "sched/counts.h"
#include "store/store.h"

#include <stdio.h>
#include <string.h>

#define TASK "{\"type\":\"t\"}"

static void beat_all(struct rig *rig, int64_t ms)
{
    for (; ms > 0; ms -= 1000) {
        rig_pass(rig, 1000);
        rig_beat(rig, "{\"node_id\":\"n1\"}");
        rig_beat(rig, "{\"node_id\":\"n2\"}");
    }
}

static void no_ack_means_another_node(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    uint64_t job = rig_place(rig, TASK);
    rig_worker(rig, "n2", 2);
    int64_t timeouts = metric_value(METRIC_ACK_TIMEOUT, NULL);
    beat_all(rig, 4000);
    assert_int_equal(rig_job(rig, job).attempt, 1);
    beat_all(rig, 2000);
    struct store_head head = rig_job(rig, job);
    assert_int_equal(head.attempt, 2);
    assert_string_equal(head.node, "n2");
    assert_int_equal(metric_value(METRIC_ACK_TIMEOUT, NULL), timeouts + 1);
    assert_int_equal(rig_counts(rig, "n1").reserved, 0);
    assert_int_equal(rig->stop_count, 1); /* n1 may have it after all: it is told to stop */
    assert_string_equal(rig->stops[0].node, "n1");
    assert_int_equal(rig->stops[0].attempt, 1);
    beat_all(rig, 6000); /* nobody acks: attempts are used up */
    assert_int_equal(rig_job(rig, job).state, JOB_FAILED);
    assert_string_equal(rig_job(rig, job).reason, "ACK_TIMEOUT");
    assert_int_equal(rig_noted(rig, job, "failed"), 1);
    assert_int_equal(rig_counts(rig, "n2").reserved, 0);
}

/* A long healthy job is never reaped by age. */
static void renewed_leases_are_left_alone(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    uint64_t job = rig_place(rig, TASK);
    rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL);
    for (int i = 0; i < 10; i++) {
        beat_all(rig, 20000);
        rig_renew(rig, "n1");
    }
    assert_int_equal(rig_job(rig, job).state, JOB_ACKED);
    assert_int_equal(rig_job(rig, job).attempt, 1);
    beat_all(rig, 46000); /* no renewal */
    assert_int_equal(rig_job(rig, job).attempt, 2);
}

static void a_job_that_runs_too_long_is_ended(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    uint64_t job = rig_place(rig, "{\"type\":\"t\",\"timeout_ms\":10000,\"max_attempts\":1}");
    rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL);
    beat_all(rig, 24000); /* timeout and stop grace: 25 s */
    assert_int_equal(rig_job(rig, job).state, JOB_ACKED);
    beat_all(rig, 2000);
    assert_int_equal(rig_job(rig, job).state, JOB_FAILED);
    assert_string_equal(rig_job(rig, job).reason, "RUN_TIMEOUT");
    assert_int_equal(rig->stop_count, 1);
    assert_int_equal(counts_load(rig_node(rig, "n1")), 0);
}

static void a_cancelled_jobs_slot_comes_back(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    uint64_t job = rig_place(rig, TASK);
    rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL);
    rig_settle(rig, SETTLE_CANCEL, job, 0, NULL, "CANCELLED");
    int64_t failed = metric_value(METRIC_JOBS, "FAILED");
    assert_int_equal(rig_counts(rig, "n1").running, 1);
    beat_all(rig, 47000); /* its node never says that it stopped */
    assert_int_equal(rig_counts(rig, "n1").running, 0);
    assert_string_equal(rig_job(rig, job).reason, "CANCELLED");
    assert_int_equal(metric_value(METRIC_JOBS, "FAILED"), failed); /* it was counted before */
}

/* More at once than one call takes. */
static void very_many_run_out_at_once(void **state)
{
    enum { JOBS = 700 };
    struct rig *rig = *state;
    struct dispatch *jobs[JOBS];

    rig_worker(rig, "n1", JOBS);
    for (int i = 0; i < JOBS; i++) {
        jobs[i] = rig_task(rig, "{\"type\":\"t\",\"max_attempts\":1}");
        dispatch_start(jobs[i]);
    }
    rig_quiet(rig);
    assert_int_equal(rig_counts(rig, "n1").reserved, JOBS);
    rig_pass(rig, 4999);
    assert_int_equal(rig_counts(rig, "n1").reserved, JOBS);
    rig_tick(rig, 201); /* one tick: the sweep goes on until it is through */
    assert_int_equal(rig_counts(rig, "n1").reserved, 0);
    for (int i = 0; i < JOBS; i += 50)
        assert_int_equal(rig_job(rig, jobs[i]->job).state, JOB_FAILED);
}

/* Another instance put it, and no word of that came: the next look at the lanes finds it. */
static void a_waiting_job_of_another_instance_is_placed(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 1);
    rig_wait_in_queue(rig, "{\"type\":\"t\",\"queue_ms\":600000,\"requires\":\"zone=x\"}");
    uint64_t job = rig_put_waiting(rig, "{\"type\":\"t\",\"queue_ms\":600000}");
    beat_all(rig, 2000);
    assert_int_equal(rig_job(rig, job).state, JOB_DISPATCHED);
    assert_int_equal(rig_job(rig, job).attempt, 1);
}

/* The instance that settled the end of its attempt died with the job in hand: when its time with it
 * is over, another goes on with it, at once or in its lane. */
static void a_job_in_hand_of_a_dead_instance_goes_on(void **state)
{
    struct rig *rig = *state;

    for (int room = 0; room < 2; room++) {
        rig_worker(rig, "n1", 1);
        uint64_t job = rig_place(rig, "{\"type\":\"t\",\"queue_ms\":600000}");
        rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL);
        rig_worker(rig, "n1", room);
        rig_finish_behind(rig, STORE_FAIL, job, 1, "n1");
        beat_all(rig, 14000);
        assert_int_equal(rig_job(rig, job).state, JOB_RETRYING); /* it may be alive */
        beat_all(rig, 3000);
        assert_int_equal(rig_job(rig, job).state, room ? JOB_DISPATCHED : JOB_RETRYING);
        assert_true((rig_job(rig, job).lane != 0) == !room);
        rig_worker(rig, "n1", 1);
        assert_int_equal(rig_job(rig, job).state, JOB_DISPATCHED);
        assert_int_equal(rig_job(rig, job).attempt, 2);
        rig_settle(rig, SETTLE_ACK, job, 2, "n1", NULL);
        rig_settle(rig, SETTLE_DONE, job, 2, "n1", NULL);
    }
}

/* The process ended with jobs on their way: the next one finds them all. */
static void after_a_restart_everything_goes_on(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 1);
    rig_worker(rig, "n2", 0);
    uint64_t running = rig_place(rig, TASK);
    rig_settle(rig, SETTLE_ACK, running, 1, "n1", NULL);
    uint64_t waits = rig_wait_in_queue(rig, "{\"type\":\"t\",\"queue_ms\":600000}");
    rig_restart(rig);
    assert_int_equal(rig_counts(rig, "n1").running, 1);
    rig_settle(rig, SETTLE_DONE, running, 1, "n1", NULL);
    for (int i = 0; i < 17 && rig_job(rig, waits).state == JOB_NEW; i++)
        beat_all(rig, 1000);
    assert_int_equal(rig_job(rig, waits).state, JOB_DISPATCHED);
    assert_int_equal(rig_settle(rig, SETTLE_ACK, waits, 1, "n1", NULL), ERR_OK);
    assert_int_equal(rig_counts(rig, "n1").running, 1);
    assert_int_equal(atomic_load(&rig->sched.queue_depth), 0);
}

/* The store is away for a while: the sweep waits, and goes on. */
static void a_sweep_outlives_a_store_that_is_away(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    rig_worker(rig, "n2", 0);
    uint64_t job = rig_place(rig, "{\"type\":\"t\",\"max_attempts\":1}");
    rig->keep = STORE_FINISH;
    rig_pass(rig, 5001); /* it has found the job ... */
    rig->keep = STORE_VERB_COUNT;
    rig->refuse = ERR_STORE_DOWN;
    for (int i = 0; i < 3; i++)
        rig_tick(rig, 1000);
    rig->refuse = ERR_OK;
    rig_let_go(rig); /* ... and its call went through at last */
    rig_quiet(rig);
    assert_int_equal(rig_job(rig, job).state, JOB_FAILED);
    uint64_t next = rig_place(rig, "{\"type\":\"t\",\"max_attempts\":1}");
    rig_tick(rig, 4000);
    rig_tick(rig, 2000);
    assert_int_equal(rig_job(rig, next).state, JOB_FAILED); /* it sweeps on */
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, rig_setup, rig_teardown)
    const struct CMUnitTest tests[] = {
        ROW(no_ack_means_another_node),
        ROW(renewed_leases_are_left_alone),
        ROW(a_job_that_runs_too_long_is_ended),
        ROW(a_cancelled_jobs_slot_comes_back),
        ROW(very_many_run_out_at_once),
        ROW(a_waiting_job_of_another_instance_is_placed),
        ROW(a_job_in_hand_of_a_dead_instance_goes_on),
        ROW(after_a_restart_everything_goes_on),
        ROW(a_sweep_outlives_a_store_that_is_away),
    };

    return cmocka_run_group_tests_name("sched/sweep", tests, NULL, NULL);
}
