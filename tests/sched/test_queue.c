/* Jobs that wait: in which order, for how long, and never while a slot is free. */
#include "rig.h"

#include "base/metrics.h"
#include "sched/counts.h"

#include <stdio.h>
#include <string.h>

#define WAITS     "{\"type\":\"t\",\"queue_ms\":60000}"
#define WAITS_FOR "{\"type\":\"t\",\"queue_ms\":600000,\"max_attempts\":9"

static int64_t depth(struct rig *rig)
{
    return atomic_load(&rig->sched.queue_depth);
}

static int32_t lane(struct rig *rig, struct str type)
{
    return atomic_load(&rig->sched.lanes[str_hash(type) % SCHED_LANES]);
}

static bool is_placed(struct rig *rig, uint64_t job)
{
    return rig_job(rig, job).state == JOB_DISPATCHED;
}

/* A slot becomes free: the job that has it ends. */
static void finish(struct rig *rig, uint64_t job)
{
    struct store_head head = rig_job(rig, job);

    assert_int_equal(rig_settle(rig, SETTLE_ACK, job, head.attempt, head.node, NULL), ERR_OK);
    assert_int_equal(rig_settle(rig, SETTLE_DONE, job, head.attempt, head.node, NULL), ERR_OK);
}

/* The sign of life without which a node is stale. */
static void pass(struct rig *rig, int64_t ms)
{
    for (; ms > 0; ms -= 1000) {
        rig_pass(rig, ms < 1000 ? ms : 1000);
        rig_beat(rig, "{\"node_id\":\"n1\"}");
        rig_beat(rig, "{\"node_id\":\"n2\"}");
    }
}

static void higher_priority_then_older_first(void **state)
{
    static const struct {
        int priority;
        int place; /* in which it gets the slot */
    } rows[] = {{5, 3}, {9, 1}, {5, 4}, {0, 5}, {9, 2}};
    struct rig *rig = *state;
    uint64_t jobs[COUNT_OF(rows)];

    rig_worker(rig, "n1", 1);
    uint64_t current = rig_place(rig, "{\"type\":\"t\"}");
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char json[96];

        snprintf(json, sizeof json, "{\"type\":\"t\",\"queue_ms\":60000,\"priority\":%d}",
                 rows[i].priority);
        jobs[i] = rig_wait_in_queue(rig, json);
    }
    for (int place = 1; place <= (int)COUNT_OF(rows); place++) {
        finish(rig, current);
        for (size_t i = 0; i < COUNT_OF(rows); i++)
            if (rows[i].place == place) {
                if (!is_placed(rig, jobs[i]))
                    fail_msg("job %zu (priority %d) did not come as number %d", i, rows[i].priority,
                             place);
                current = jobs[i];
            }
    }
    assert_int_equal(depth(rig), 0);
    assert_int_equal(lane(rig, STR("t")), 0);
}

static void a_pool_without_room_holds_up_no_other(void **state)
{
    struct rig *rig = *state;

    rig_register(rig, "{\"node_id\":\"n1\",\"allowed_types\":[\"a\"],\"max_concurrent_jobs\":0}");
    rig_register(rig, "{\"node_id\":\"n2\",\"allowed_types\":[\"b\"],\"max_concurrent_jobs\":1}");
    uint64_t first = rig_wait_in_queue(rig, "{\"type\":\"a\",\"queue_ms\":60000,\"priority\":9}");
    uint64_t second = rig_wait_in_queue(rig, "{\"type\":\"b\",\"queue_ms\":60000,\"priority\":0}");
    assert_true(is_placed(rig, second));
    assert_int_equal(rig_job(rig, first).state, JOB_NEW);
}

/* Every way in which a slot can come to be free. */
static void nobody_waits_while_a_slot_is_free(void **state)
{
    struct rig *rig = *state;
    uint64_t job;

    job = rig_wait_in_queue(rig, WAITS); /* nobody takes its type yet */
    rig_worker(rig, "n1", 1);            /* a node comes */
    assert_true(is_placed(rig, job));
    job = rig_wait_in_queue(rig, WAITS);
    rig_worker(rig, "n1", 2); /* a larger max */
    assert_true(is_placed(rig, job));
    job = rig_wait_in_queue(rig, WAITS);
    rig_worker(rig, "n2", 1);
    assert_true(is_placed(rig, job));
    rig_admin(rig, "n2", NODE_ADMIN_DRAINING);
    finish(rig, job);
    job = rig_wait_in_queue(rig, WAITS);
    assert_false(is_placed(rig, job));
    rig_admin(rig, "n2", NODE_ADMIN_NONE); /* undrained */
    assert_true(is_placed(rig, job));
    rig_settle(rig, SETTLE_CANCEL, job, 0, NULL, "CANCELLED");
    job = rig_wait_in_queue(rig, WAITS);
    rig_beat(rig, "{\"node_id\":\"n2\",\"level\":\"critical\"}");
    finish(rig, job);
    job = rig_wait_in_queue(rig, WAITS);
    assert_false(is_placed(rig, job));
    rig_beat(rig, "{\"node_id\":\"n2\",\"level\":\"normal\"}"); /* its machine is well again */
    rig_tick(rig, 100);
    assert_true(is_placed(rig, job));
    assert_int_equal(depth(rig), 0);
}

/* What this loop believes of a node may be wrong, for a second at most. */
static void a_wrong_view_heals(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 1);
    counts_full((struct node *)rig_node(rig, "n1"));
    uint64_t job = rig_wait_in_queue(rig, WAITS);
    assert_false(is_placed(rig, job));
    rig_pass(rig, 2000);
    assert_true(is_placed(rig, job));
}

/* A thousand nodes, one of them with room: it is found although a sample would miss it. */
static void the_one_free_slot_is_found(void **state)
{
    struct rig *rig = *state;

    for (int i = 0; i < 60; i++) {
        char id[8];

        snprintf(id, sizeof id, "n%02d", i);
        rig_worker(rig, id, i == 41);
    }
    assert_true(is_placed(rig, rig_wait_in_queue(rig, WAITS)));
}

/* --- what one job cannot take, another of its lane may --- */

static void a_job_that_may_not_go_there_holds_up_nobody(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 1);
    rig_worker(rig, "n2", 0);
    /* It failed on n1; n2 is full: it waits for n2. */
    uint64_t first = rig_wait_in_queue(rig, WAITS_FOR ",\"priority\":9}");
    rig_settle(rig, SETTLE_ACK, first, 1, "n1", NULL);
    uint64_t second = rig_wait_in_queue(rig, WAITS_FOR "}");
    rig_settle(rig, SETTLE_FAIL, first, 1, "n1", "BROKEN");
    assert_int_equal(rig_job(rig, first).state, JOB_RETRYING);
    assert_true(is_placed(rig, second)); /* n1 is free, and nothing speaks against it */
    uint64_t strict = rig_wait_in_queue(
        rig,
        WAITS_FOR ",\"priority\":9,\"options\":{\"preferred_node_id\":\"n2\",\"strict\":true}}");
    finish(rig, second);
    uint64_t third = rig_wait_in_queue(rig, WAITS_FOR "}");
    assert_true(is_placed(rig, third));
    assert_int_equal(rig_job(rig, strict).state, JOB_NEW);
    rig_worker(rig, "n2", 2);
    assert_true(is_placed(rig, first));
    assert_true(is_placed(rig, strict));
    assert_int_equal(depth(rig), 0);
}

static void reserved_slots_are_seen_by_interactive_jobs(void **state)
{
    struct rig *rig = *state;

    rig_register(rig, "{\"node_id\":\"n1\",\"allowed_types\":[\"t\"],\"max_concurrent_jobs\":1,"
                      "\"reserved_slots\":1}");
    uint64_t other = rig_wait_in_queue(rig, WAITS_FOR ",\"priority\":9}");
    uint64_t person = rig_wait_in_queue(rig, WAITS_FOR ",\"interactive\":true}");
    assert_false(is_placed(rig, other));
    assert_true(is_placed(rig, person));
}

/* --- refusals --- */

/* The node says NODE_OVERLOADED: the job waits, and asks it again when some time has passed. */
static void a_refused_job_asks_again_but_not_at_once(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    uint64_t job = rig_wait_in_queue(rig, WAITS);
    assert_int_equal(rig_settle(rig, SETTLE_FAIL, job, 1, "n1", "NODE_OVERLOADED"), ERR_OK);
    assert_int_equal(rig_sends_of(rig, job), 1); /* not in a circle */
    assert_int_equal(rig_job(rig, job).state, JOB_SELECTING);
    for (int i = 0; i < 5; i++)
        rig_tick(rig, 100);
    assert_int_equal(rig_sends_of(rig, job), 1);
    rig_pass(rig, rig->config.heartbeat_ms);
    assert_int_equal(rig_sends_of(rig, job), 2);
    assert_true(is_placed(rig, job));
    assert_int_equal(rig_job(rig, job).attempt, 1);
}

/* It cannot be reached for a long time: the job goes on asking, in bounded memory. */
static void a_job_outlives_a_node_that_cannot_be_reached(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    rig->reach = RIG_FAIL;
    uint64_t job = rig_wait_in_queue(rig, WAITS_FOR "}");
    for (int i = 0; i < 40; i++)
        pass(rig, 1000);
    size_t sends = rig_sends_of(rig, job);
    assert_true(sends >= 5 && sends <= 10);
    assert_int_equal(rig_counts(rig, "n1").reserved, 0);
    rig->reach = RIG_OK;
    for (int i = 0; i < 6 && !is_placed(rig, job); i++)
        pass(rig, 1000);
    assert_true(is_placed(rig, job));
}

/* To be refused gives no more time: queue_ms counts from the creation. */
static void refusals_do_not_prolong_the_wait(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    uint64_t job = rig_wait_in_queue(rig, "{\"type\":\"t\",\"queue_ms\":12000}");
    for (int i = 0; i < 20 && rig_job(rig, job).state != JOB_FAILED; i++) {
        if (is_placed(rig, job))
            rig_settle(rig, SETTLE_FAIL, job, 1, "n1", "NODE_OVERLOADED");
        pass(rig, 1000);
    }
    assert_string_equal(rig_job(rig, job).reason, "QUEUE_TIMEOUT");
    assert_true(rig->wall_ms - RIG_START_MS <= 14000);
}

/* What is told of the wait: time on a node is none. */
static void a_second_attempt_waits_from_the_end_of_the_first(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 1);
    rig_worker(rig, "n2", 0);
    uint64_t job = rig_wait_in_queue(rig, WAITS_FOR "}");
    rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL);
    for (int i = 0; i < 60; i++) {
        pass(rig, 1000);
        rig_renew(rig, "n1");
    }
    assert_int_equal(metric_value(METRIC_QUEUE_OLDEST, NULL), 0);
    rig_settle(rig, SETTLE_FAIL, job, 1, "n1", "BROKEN");
    assert_int_equal(rig_job(rig, job).state, JOB_RETRYING);
    pass(rig, 5000);
    assert_in_range(metric_value(METRIC_QUEUE_OLDEST, NULL), 4000, 5000);
    uint64_t second = rig_wait_in_queue(rig, WAITS_FOR ",\"requires\":\"zone=x\"}");
    pass(rig, 10000);
    assert_int_equal(rig_job(rig, second).state, JOB_NEW);
    assert_in_range(metric_value(METRIC_QUEUE_OLDEST, NULL), 14000, 15000);
}

/* --- ends --- */

static void who_waited_long_enough_fails(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 0);
    uint64_t job = rig_wait_in_queue(rig, "{\"type\":\"t\",\"queue_ms\":3000}");
    uint64_t other = rig_wait_in_queue(rig, WAITS);
    rig_pass(rig, 2900);
    assert_int_equal(rig_job(rig, job).state, JOB_NEW);
    rig_tick(rig, 200);
    assert_int_equal(rig_job(rig, job).state, JOB_FAILED);
    assert_string_equal(rig_job(rig, job).reason, "QUEUE_TIMEOUT");
    assert_int_equal(rig_noted(rig, job, "failed"), 1);
    assert_int_equal(rig_job(rig, other).state, JOB_NEW);
    assert_int_equal(depth(rig), 1);
    assert_int_equal(lane(rig, STR("t")), 1);
}

static void a_timeout_waits_for_the_store(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 0);
    uint64_t job = rig_wait_in_queue(rig, "{\"type\":\"t\",\"queue_ms\":3000}");
    rig->refuse = ERR_STORE_DOWN;
    rig_pass(rig, 10000);
    rig->refuse = ERR_OK;
    assert_int_equal(rig_job(rig, job).state, JOB_NEW);
    rig_tick(rig, 100);
    assert_int_equal(rig_job(rig, job).state, JOB_FAILED);
    assert_int_equal(depth(rig), 0);
}

static void a_cancelled_job_leaves_the_queue(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 0);
    uint64_t job = rig_wait_in_queue(rig, WAITS);
    assert_int_equal(rig_settle(rig, SETTLE_CANCEL, job, 0, NULL, "CANCELLED"), ERR_OK);
    assert_int_equal(depth(rig), 0);
    assert_int_equal(lane(rig, STR("t")), 0);
    rig_worker(rig, "n1", 5);
    rig_pass(rig, 5000);
    assert_int_equal(rig_sends_of(rig, job), 0);
}

/* Cancelled at the very moment it is being placed, in every order of the two. */
static void a_cancel_that_meets_a_placement(void **state)
{
    struct rig *rig = *state;

    for (int order = 0; order < 2; order++) {
        rig_worker(rig, "n1", 0);
        uint64_t job = rig_wait_in_queue(rig, WAITS);
        rig->keep = STORE_RESERVE;
        rig_worker(rig, "n1", 1); /* the reserve is on its way */
        assert_int_equal(rig->kept_count, 1);
        if (order == 0)
            rig_let_go(rig);
        rig->keep = STORE_VERB_COUNT;
        rig_settle(rig, SETTLE_CANCEL, job, 0, NULL, "CANCELLED");
        if (order == 1)
            rig_let_go(rig);
        rig_quiet(rig);
        assert_int_equal(rig_job(rig, job).state, JOB_FAILED);
        assert_int_equal(rig_counts(rig, "n1").reserved, 0);
        assert_int_equal(depth(rig), 0);
        assert_int_equal(lane(rig, STR("t")), 0);
    }
}

/* --- holds --- */

/* A hold that lapsed would be found by the sweep, and the job adopted. */
static void a_waiting_job_stays_ours(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 0);
    uint64_t job = rig_wait_in_queue(rig, WAITS_FOR "}");
    pass(rig, 60000);
    assert_int_equal(rig->calls[STORE_ADOPT], 0);
    rig->wall_ms -= 3600000; /* the clock is set back by an hour: terms keep their length */
    rig_tick(rig, 0);
    pass(rig, 30000);
    assert_int_equal(rig->calls[STORE_ADOPT], 0);
    assert_int_equal(rig_job(rig, job).owner, store_number(&rig->turnstile));
    rig_worker(rig, "n1", 1);
    assert_true(is_placed(rig, job));
}

static void very_many_are_held(void **state)
{
    enum { JOBS = 1200 };
    struct rig *rig = *state;

    for (int i = 0; i < JOBS; i++)
        rig_wait_in_queue(rig, WAITS_FOR "}");
    assert_int_equal(depth(rig), JOBS);
    rig_pass(rig, 25000);
    assert_int_equal(rig->calls[STORE_ADOPT], 0);
    assert_true(rig->calls[STORE_HOLD] >= 3 * 4);
}

/* --- counters --- */

/* What a client names has no end: nothing of it is kept once its jobs are gone. */
static void selectors_leave_nothing_behind(void **state)
{
    struct rig *rig = *state;

    for (int i = 0; i < 300; i++) {
        char json[96];

        snprintf(json, sizeof json, "{\"type\":\"t%d\",\"queue_ms\":60000,\"requires\":\"k%d=v\"}",
                 i, i);
        uint64_t job = rig_wait_in_queue(rig, json);
        rig_settle(rig, SETTLE_CANCEL, job, 0, NULL, "CANCELLED");
    }
    assert_int_equal(depth(rig), 0);
    for (size_t i = 0; i < SCHED_LANES; i++)
        assert_int_equal(atomic_load(&rig->sched.lanes[i]), 0);
}

/* A job that comes twice (two ways to learn of it) is counted once, under its own type. */
static void a_job_that_comes_twice_is_counted_once(void **state)
{
    struct rig *rig = *state;
    struct str spec = STR("{\"type\":\"t\",\"priority\":5,\"queue_ms\":60000}");

    rig_worker(rig, "n1", 0);
    uint64_t job = rig_wait_in_queue(rig, WAITS);
    struct store_record again = {.head = rig_job(rig, job), .spec = spec};
    sched_queue_enter(&rig->sched, STR("t"));
    keeper_continue(rig->sched.keeper, &again, true);
    keeper_continue(rig->sched.keeper, &again, false);
    rig_quiet(rig);
    assert_int_equal(depth(rig), 1);
    assert_int_equal(lane(rig, STR("t")), 1);
    assert_int_equal(lane(rig, STR_NONE), 0);
    rig_settle(rig, SETTLE_CANCEL, job, 0, NULL, "CANCELLED");
    again.head = rig_job(rig, job); /* it has ended */
    sched_queue_enter(&rig->sched, STR("t"));
    keeper_continue(rig->sched.keeper, &again, true);
    rig_quiet(rig);
    assert_int_equal(depth(rig), 0);
    assert_int_equal(lane(rig, STR("t")), 0);
}

/* Tries that find no room are not outcomes of a dispatch. */
static void waiting_is_not_counted_as_refusals(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 0);
    int64_t refused = metric_value(METRIC_DISPATCH, "ALL_CANDIDATES_FULL_OR_FAILED");
    rig_wait_in_queue(rig, WAITS);
    for (int i = 0; i < 20; i++)
        rig_tick(rig, 100);
    assert_int_equal(metric_value(METRIC_DISPATCH, "ALL_CANDIDATES_FULL_OR_FAILED"), refused);
}

/* Face to face does not wait; a retry of it outlives a store that is away for a moment. */
static void a_retry_outlives_a_short_absence_of_the_store(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    rig_worker(rig, "n2", 2);
    struct dispatch *dispatch = rig_f2f(rig, "{\"src_lang\":\"en\",\"tgt_lang\":\"zh\"}");
    assert_int_equal(rig_run(rig, dispatch), ERR_OK);
    char node[NODE_ID_MAX + 1];
    strcpy(node, dispatch->head.node);
    rig_settle(rig, SETTLE_ACK, dispatch->job, 1, node, NULL);
    rig->keep = STORE_RESERVE;
    rig_settle(rig, SETTLE_FAIL, dispatch->job, 1, node, "BROKEN");
    assert_int_equal(rig->kept_count, 1);
    rig->kept[0]->err = ERR_STORE_DOWN; /* its answer */
    rig->kept[0]->done(rig->kept[0]);
    rig->kept_count = 0;
    rig->keep = STORE_VERB_COUNT;
    rig->refuse = ERR_STORE_DOWN;
    rig_tick(rig, 1000);
    rig->refuse = ERR_OK;
    rig_tick(rig, 1000);
    assert_int_equal(rig_job(rig, dispatch->job).attempt, 2);
    assert_true(is_placed(rig, dispatch->job));
    assert_int_equal(depth(rig), 0);
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, rig_setup, rig_teardown)
    const struct CMUnitTest tests[] = {
        ROW(higher_priority_then_older_first),
        ROW(a_pool_without_room_holds_up_no_other),
        ROW(nobody_waits_while_a_slot_is_free),
        ROW(a_wrong_view_heals),
        ROW(the_one_free_slot_is_found),
        ROW(a_job_that_may_not_go_there_holds_up_nobody),
        ROW(reserved_slots_are_seen_by_interactive_jobs),
        ROW(a_refused_job_asks_again_but_not_at_once),
        ROW(a_job_outlives_a_node_that_cannot_be_reached),
        ROW(refusals_do_not_prolong_the_wait),
        ROW(a_second_attempt_waits_from_the_end_of_the_first),
        ROW(who_waited_long_enough_fails),
        ROW(a_timeout_waits_for_the_store),
        ROW(a_cancelled_job_leaves_the_queue),
        ROW(a_cancel_that_meets_a_placement),
        ROW(a_waiting_job_stays_ours),
        ROW(very_many_are_held),
        ROW(selectors_leave_nothing_behind),
        ROW(a_job_that_comes_twice_is_counted_once),
        ROW(waiting_is_not_counted_as_refusals),
        ROW(a_retry_outlives_a_short_absence_of_the_store),
    };

    return cmocka_run_group_tests_name("sched/queue", tests, NULL, NULL);
}
