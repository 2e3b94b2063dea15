/* Jobs that wait: in which order, for how long, and never while a slot is free. */
#include "rig.h"

#include "base/metrics.h"
#include "sched/queue.h"
#include "sched/sched.h"

#include <stdio.h>
#include <string.h>

#define WAITS     "{\"type\":\"t\",\"queue_ms\":60000}"
#define WAITS_FOR "{\"type\":\"t\",\"queue_ms\":600000,\"max_attempts\":9"

static int64_t depth(struct rig *rig)
{
    return atomic_load(&rig->sched.queue_depth);
}

static bool is_placed(struct rig *rig, uint64_t job)
{
    return rig_job(rig, job).state == JOB_DISPATCHED;
}

/* Frees a slot: ACK and DONE of the job that has it. */
static void finish(struct rig *rig, uint64_t job)
{
    struct store_head head = rig_job(rig, job);

    assert_int_equal(rig_settle(rig, SETTLE_ACK, job, head.attempt, head.node, NULL), ERR_OK);
    assert_int_equal(rig_settle(rig, SETTLE_DONE, job, head.attempt, head.node, NULL), ERR_OK);
}

/* Time passes with heartbeats, without which nodes would be stale. */
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
        int place; /* its turn to get the slot */
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

/* Every way in which a slot can become free. */
static void nobody_waits_while_a_slot_is_free(void **state)
{
    struct rig *rig = *state;
    uint64_t job;

    job = rig_wait_in_queue(rig, WAITS); /* no node takes its type yet */
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
    rig_admin(rig, "n2", NODE_ADMIN_NONE); /* the drain ends */
    assert_true(is_placed(rig, job));
    rig_settle(rig, SETTLE_CANCEL, job, 0, NULL, "CANCELLED");
    job = rig_wait_in_queue(rig, WAITS);
    rig_beat(rig, "{\"node_id\":\"n2\",\"level\":\"critical\"}");
    finish(rig, job);
    job = rig_wait_in_queue(rig, WAITS);
    assert_false(is_placed(rig, job));
    rig_beat(rig, "{\"node_id\":\"n2\",\"level\":\"normal\"}"); /* its machine recovered */
    rig_tick(rig, 100);
    assert_true(is_placed(rig, job));
    assert_int_equal(depth(rig), 0);
}

/* A wrong view of a node on a loop is corrected within a second or two. */
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

/* A slot is seen to be free a moment before its node is offered: a lane that looks by itself in
 * between leaves it to one with a better priority. */
static void what_is_not_offered_yet_is_for_the_better_one(void **state)
{
    struct lease_node room = {.health = NODE_READY, .max = 1, .epoch = 1};
    struct rig *rig = *state;

    rig_worker(rig, "n1", 1);
    struct node *node = (struct node *)rig_node(rig, "n1");
    counts_full(node);
    uint64_t best =
        rig_wait_in_queue(rig, "{\"type\":\"review\",\"queue_ms\":600000,\"priority\":6}");
    uint64_t last = rig_wait_in_queue(rig, "{\"type\":\"dev\",\"queue_ms\":600000,\"priority\":4}");
    counts_take(node, &room, NULL, 0, true); /* as a read of all counters would */
    uint64_t late = rig_wait_in_queue(rig, "{\"type\":\"dev\",\"queue_ms\":600000,\"priority\":5}");
    assert_true(is_placed(rig, best));
    finish(rig, best);
    assert_true(is_placed(rig, late));
    finish(rig, late);
    assert_true(is_placed(rig, last));
}

/* Sixty nodes, one of them with room: it is found although a sample would miss it. */
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

/* --- a job that cannot use a slot does not block another of its lane --- */

static void a_job_that_may_not_go_there_holds_up_nobody(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 1);
    rig_worker(rig, "n2", 0);
    /* The job failed on n1 and n2 is full, so it waits for n2. */
    uint64_t first = rig_wait_in_queue(rig, WAITS_FOR ",\"priority\":9}");
    rig_settle(rig, SETTLE_ACK, first, 1, "n1", NULL);
    uint64_t second = rig_wait_in_queue(rig, WAITS_FOR "}");
    rig_settle(rig, SETTLE_FAIL, first, 1, "n1", "BROKEN");
    assert_int_equal(rig_job(rig, first).state, JOB_RETRYING);
    assert_true(is_placed(rig, second)); /* n1 is free, and this job has not failed there */
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

/* The node refuses with NODE_OVERLOADED: the job waits, and asks it again after some time. */
static void a_refused_job_asks_again_but_not_at_once(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    uint64_t job = rig_wait_in_queue(rig, WAITS);
    assert_int_equal(rig_settle(rig, SETTLE_FAIL, job, 1, "n1", "NODE_OVERLOADED"), ERR_OK);
    assert_int_equal(rig_sends_of(rig, job), 1); /* no tight loop */
    assert_int_equal(rig_job(rig, job).state, JOB_SELECTING);
    for (int i = 0; i < 5; i++)
        rig_tick(rig, 100);
    assert_int_equal(rig_sends_of(rig, job), 1);
    rig_pass(rig, rig->config.heartbeat_ms);
    assert_int_equal(rig_sends_of(rig, job), 2);
    assert_true(is_placed(rig, job));
    assert_int_equal(rig_job(rig, job).attempt, 1);
}

/* The node cannot be reached for a long time: the job keeps trying, in bounded memory. */
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

/* A refusal does not extend the wait: queue_ms counts from the creation. */
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

/* The reported waiting time does not include time on a node. */
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
}

static void a_timeout_waits_for_the_store(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 0);
    uint64_t job = rig_wait_in_queue(rig, "{\"type\":\"t\",\"queue_ms\":3000}");
    rig->refuse = ERR_STORE_DOWN;
    rig_pass(rig, 4000);
    rig->refuse = ERR_OK;
    assert_int_equal(rig_job(rig, job).state, JOB_NEW);
    rig_tick(rig, 200);
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
    rig_worker(rig, "n1", 5);
    rig_pass(rig, 5000);
    assert_int_equal(rig_sends_of(rig, job), 0);
}

/* A cancel arrives just while the job is being placed, in either order. */
static void a_cancel_that_meets_a_placement(void **state)
{
    struct rig *rig = *state;

    for (int order = 0; order < 2; order++) {
        rig_worker(rig, "n1", 0);
        uint64_t job = rig_wait_in_queue(rig, WAITS);
        rig->keep = STORE_RESERVE;
        rig_worker(rig, "n1", 1); /* the reserve is under way */
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
    }
}

/* --- no instance owns a waiting job --- */

static void a_waiting_job_costs_nothing(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 0);
    uint64_t job = rig_wait_in_queue(rig, WAITS_FOR "}");
    pass(rig, 60000);
    rig->wall_ms -= 3600000; /* the clock is set back by an hour: terms keep their length */
    rig_tick(rig, 0);
    pass(rig, 30000);
    assert_int_equal(rig->calls[STORE_LANE], 0); /* its lane is not read again */
    rig_worker(rig, "n1", 1);
    assert_true(is_placed(rig, job));
}

/* Many more jobs than a window holds: all are placed, in order. */
static void very_many_wait_in_one_lane(void **state)
{
    enum { JOBS = 1200, SLOTS = 7 };
    struct rig *rig = *state;
    uint64_t jobs[JOBS];

    rig_worker(rig, "n1", 0);
    for (int i = 0; i < JOBS; i++)
        jobs[i] = rig_wait_in_queue(rig, WAITS_FOR "}");
    assert_int_equal(depth(rig), JOBS);
    pass(rig, 10000);
    assert_int_equal(depth(rig), JOBS);
    size_t reads = rig->calls[STORE_LANE];
    rig_worker(rig, "n1", SLOTS);
    for (int i = 0; i < JOBS; i++) {
        if (!is_placed(rig, jobs[i]))
            fail_msg("job %d does not run", i);
        if (i + SLOTS < JOBS)
            assert_false(is_placed(rig, jobs[i + SLOTS]));
        finish(rig, jobs[i]);
    }
    assert_int_equal(depth(rig), 0);
    assert_true(rig->calls[STORE_LANE] - reads <= JOBS / 32);
}

/* Jobs at the front that no node can take delay only jobs behind the window. */
static void particular_jobs_hold_up_no_other(void **state)
{
    enum { PARTICULAR = 40, JOBS = 100 };
    struct rig *rig = *state;
    uint64_t jobs[JOBS];

    rig_worker(rig, "n1", 0);
    rig_worker(rig, "n2", 0);
    for (int i = 0; i < PARTICULAR; i++)
        rig_wait_in_queue(rig, WAITS_FOR ",\"priority\":9,\"options\":{\"preferred_node_id\":"
                                         "\"n2\",\"strict\":true}}");
    for (int i = 0; i < JOBS; i++)
        jobs[i] = rig_wait_in_queue(rig, WAITS_FOR "}");
    rig_worker(rig, "n1", 1);
    for (int i = 0; i < JOBS; i++) {
        assert_true(is_placed(rig, jobs[i]));
        finish(rig, jobs[i]);
    }
    assert_int_equal(depth(rig), PARTICULAR);
}

/* A restarted or new instance reads what waits. */
static void what_waits_is_found_after_a_restart(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 0);
    uint64_t low = rig_wait_in_queue(rig, WAITS_FOR ",\"priority\":1}");
    uint64_t high = rig_wait_in_queue(rig, WAITS_FOR ",\"interactive\":true,\"priority\":9}");
    rig_restart(rig);
    rig_tick(rig, 100);
    assert_int_equal(depth(rig), 2);
    rig_worker(rig, "n1", 1);
    assert_true(is_placed(rig, high));
    assert_false(is_placed(rig, low));
}

/* A notice of the store is enough: the job is placed without waiting for the next read of the
 * lanes. */
static void a_word_of_a_lane_is_enough(void **state)
{
    struct rig *rig = *state;
    char text[64];

    rig_worker(rig, "n1", 1);
    rig_tick(rig, 100);
    uint64_t job = rig_put_waiting(rig, WAITS_FOR ",\"priority\":4}");
    struct store_head head = rig_job(rig, job);
    snprintf(text, sizeof text, "%llx %x %llx", (unsigned long long)head.lane, head.priority,
             (unsigned long long)job);
    struct store_notice word = {.kind = STORE_NOTICE_LANE, .text = str_of(text)};
    keeper_notice(rig->sched.keeper, &word);
    rig_quiet(rig);
    assert_true(is_placed(rig, job));
    assert_int_equal(depth(rig), 0);
    keeper_notice(rig->sched.keeper, &word); /* the same notice again, late */
    rig_quiet(rig);
    assert_int_equal(depth(rig), 0);
    word.text = STR("x y z");
    keeper_notice(rig->sched.keeper, &word);
    rig_quiet(rig);
    assert_int_equal(depth(rig), 0);
}

/* --- two instances --- */

static void beat_both(struct rig *rig)
{
    rig_beat(rig, "{\"node_id\":\"n1\"}");
    rig_beat(rig->peer, "{\"node_id\":\"n1\"}");
}

static size_t sends(const struct rig *rig, uint64_t job)
{
    return rig_sends_of(rig, job) + rig_sends_of(rig->peer, job);
}

/* Priority, then age, whichever instance put the job and whichever sees the free slot. */
static void the_order_is_that_of_the_store(void **state)
{
    static const struct {
        int at, priority, place;
    } rows[] = {{0, 0, 4}, {1, 9, 0}, {0, 9, 1}, {1, 5, 3}, {0, 6, 2}, {1, 0, 5}};
    struct rig *rig = *state, *other = rig_new();
    uint64_t jobs[COUNT_OF(rows)];

    rig_join(other, rig);
    rig_worker(rig, "n1", 1);
    rig_tick(rig, 1000);
    rig_tick(rig, 1000); /* the other instance has loaded n1 */
    assert_non_null(rig_node(other, "n1"));
    uint64_t current = rig_place(rig, "{\"type\":\"t\"}");
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char json[96];

        snprintf(json, sizeof json, "{\"type\":\"t\",\"queue_ms\":600000,\"priority\":%d}",
                 rows[i].priority);
        rig->wall_ms++; /* ids contain their time */
        other->wall_ms++;
        jobs[i] = rig_wait_in_queue(rows[i].at ? other : rig, json);
    }
    rig_tick(rig, 1000);
    beat_both(rig);
    assert_int_equal(depth(rig), COUNT_OF(rows));
    assert_int_equal(depth(other), COUNT_OF(rows));
    for (int place = 0; place < (int)COUNT_OF(rows); place++) {
        finish(place % 2 ? other : rig, current);
        rig_tick(rig, 100);
        for (size_t i = 0; i < COUNT_OF(rows); i++)
            if (rows[i].place == place) {
                if (!is_placed(rig, jobs[i]))
                    fail_msg("job %zu (priority %d) did not come as number %d", i, rows[i].priority,
                             place);
                current = jobs[i];
            }
        assert_int_equal(sends(rig, current), 1);
    }
    rig_tick(rig, 1000);
    assert_int_equal(depth(rig), 0);
    assert_int_equal(depth(other), 0);
    rig_leave(other);
}

/* Both instances see room at the same moment: no job is sent twice, and none waits while there is
 * room. */
static void two_that_try_the_same_place_it_once(void **state)
{
    enum { JOBS = 100 };
    struct rig *rig = *state, *other = rig_new();
    uint64_t jobs[JOBS];

    rig_join(other, rig);
    rig_worker(rig, "n1", 0);
    rig_tick(rig, 1000);
    rig_tick(rig, 1000);
    for (int i = 0; i < JOBS; i++)
        jobs[i] = rig_wait_in_queue(i % 2 ? other : rig, WAITS_FOR "}");
    rig_tick(rig, 1000);
    rig_worker(rig, "n1", JOBS);
    for (int i = 0; i < 4; i++) {
        rig_tick(rig, 1000);
        beat_both(rig);
    }
    for (int i = 0; i < JOBS; i++)
        assert_int_equal(sends(rig, jobs[i]), 1);
    assert_int_equal(rig_counts(rig, "n1").reserved, JOBS);
    assert_int_equal(depth(rig) + depth(other), 0);
    rig_leave(other);
}

/* Both instances sweep: the time-out is reported once. */
static void a_time_out_is_told_once(void **state)
{
    struct rig *rig = *state, *other = rig_new();

    rig_join(other, rig);
    rig_worker(rig, "n1", 0);
    rig_tick(rig, 1000);
    uint64_t job = rig_wait_in_queue(other, "{\"type\":\"t\",\"queue_ms\":3000}");
    for (int i = 0; i < 5; i++)
        rig_tick(rig, 1000);
    assert_string_equal(rig_job(rig, job).reason, "QUEUE_TIMEOUT");
    assert_int_equal(rig_noted(rig, job, "failed") + rig_noted(other, job, "failed"), 1);
    assert_int_equal(depth(rig) + depth(other), 0);
    rig_leave(other);
}

/* An instance dies: jobs that it put wait as before, and the other instance places them. */
static void an_instance_that_dies_costs_nothing(void **state)
{
    struct rig *rig = *state, *other = rig_new();

    rig_join(other, rig);
    rig_worker(rig, "n1", 0);
    rig_tick(rig, 1000);
    uint64_t job = rig_wait_in_queue(other, WAITS_FOR "}");
    rig_leave(other);
    rig_tick(rig, 1000);
    rig_worker(rig, "n1", 1);
    assert_true(is_placed(rig, job));
}

/* --- a store that lost the last puts --- */

/* The store reports that another server took over; returns how many jobs are put again. Jobs that
 * it still has are not changed by that. */
static size_t put_again(struct rig *rig)
{
    size_t before = rig->calls[STORE_PUT];

    rig->moves++;
    rig_tick(rig, 100);
    return rig->calls[STORE_PUT] - before;
}

static void what_was_put_lately_is_put_again(void **state)
{
    struct rig *rig = *state;

    rig->turnstile.name = 1; /* a shared store */
    rig_worker(rig, "n1", 1);
    uint64_t placed = rig_wait_in_queue(rig, WAITS_FOR "}");
    assert_int_equal(rig_settle(rig, SETTLE_ACK, placed, 1, "n1", NULL), ERR_OK);
    uint64_t cancelled = rig_wait_in_queue(rig, WAITS_FOR "}");
    rig_settle(rig, SETTLE_CANCEL, cancelled, 0, NULL, "CANCELLED");
    uint64_t ours = rig_wait_in_queue(rig, WAITS_FOR "}");
    rig_put_waiting(rig, WAITS_FOR "}"); /* put by another instance */
    assert_int_equal(put_again(rig), 1);
    assert_int_equal(rig_job(rig, ours).state, JOB_NEW);
    assert_int_equal(put_again(rig), 1);
    rig->refuse = ERR_STORE_DOWN; /* time without a store does not count: no job times out */
    rig_pass(rig, 3000);
    rig->refuse = ERR_OK;
    rig_pass(rig, 9000);
    assert_int_equal(put_again(rig), 1);
    rig_pass(rig, 2000);
    assert_int_equal(put_again(rig), 0); /* their state is not known any more */
}

/* Another instance placed the job, and its node's ACK came here. */
static void what_began_is_not_put_again(void **state)
{
    struct rig *rig = *state, *other = rig_new();

    rig_join(other, rig);
    rig_worker(other, "n1", 0);
    rig_tick(rig, 1000);
    uint64_t job = rig_wait_in_queue(rig, WAITS_FOR "}");
    rig_tick(rig, 1000);
    rig->refuse = ERR_STORE_DOWN; /* this instance does not see the change */
    rig_worker(other, "n1", 1);
    rig->refuse = ERR_OK;
    assert_int_equal(rig_sends_of(other, job), 1);
    assert_int_equal(rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL), ERR_OK);
    assert_int_equal(put_again(rig), 0);
    rig_leave(other);
}

/* Only the newest puts are kept, up to a limit. */
static void very_many_are_put_again_up_to_a_bound(void **state)
{
    enum { JOBS = 4200, KEPT = 4096 };
    struct rig *rig = *state;
    size_t puts = 0;

    rig->turnstile.name = 1;
    for (int i = 0; i < JOBS; i++)
        rig_wait_in_queue(rig, WAITS_FOR "}");
    puts = put_again(rig);
    assert_in_range(puts, 1, KEPT / 4); /* not all in one tick */
    for (int i = 0; i < 40; i++) {
        size_t before = rig->calls[STORE_PUT];

        rig_tick(rig, 100);
        puts += rig->calls[STORE_PUT] - before;
    }
    assert_int_equal(puts, KEPT);
    assert_int_equal(depth(rig), JOBS);
}

static void a_store_of_our_own_has_what_it_took(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 0);
    rig_wait_in_queue(rig, WAITS_FOR "}");
    assert_int_equal(put_again(rig), 0);
}

/* --- work that does not grow --- */

struct looks {
    uint64_t members, lanes;
};

static struct looks looks_of(struct rig *rig)
{
    return (struct looks){.members = rig_keeper(rig)->looked,
                          .lanes = queue_lane_looks(keeper_queue(rig->sched.keeper))};
}

/* The counts at the start of a measurement. */
static struct looks looks_begin(struct rig *rig)
{
    rig_tick(rig, 1000);
    return looks_of(rig);
}

static void assert_looks(struct rig *rig, struct looks before, uint64_t members, uint64_t lanes)
{
    struct looks now = looks_of(rig);

    if (now.members - before.members > members || now.lanes - before.lanes > lanes)
        fail_msg("looked at %d members and %d lanes", (int)(now.members - before.members),
                 (int)(now.lanes - before.lanes));
}

/* A slot becomes free among many full nodes, also while more jobs are being read: the full nodes
 * are not looked at. */
static void full_nodes_are_not_looked_at(void **state)
{
    enum { NODES = 400, JOBS = 300 };
    struct rig *rig = *state;
    uint64_t running[NODES], waiting[JOBS];

    for (int i = 0; i < NODES; i++) {
        char id[8], json[96];

        snprintf(id, sizeof id, "n%03d", i);
        snprintf(json, sizeof json, "{\"type\":\"t\",\"options\":{\"preferred_node_id\":\"%s\"}}",
                 id);
        rig_worker(rig, id, 1);
        running[i] = rig_place(rig, json);
        rig_settle(rig, SETTLE_ACK, running[i], 1, id, NULL);
    }
    for (int i = 0; i < JOBS; i++)
        waiting[i] = rig_wait_in_queue(rig, WAITS_FOR "}");
    struct looks before = looks_begin(rig);
    for (int i = 0; i < JOBS; i++) {
        rig_settle(rig, SETTLE_DONE, running[i], 1, rig_job(rig, running[i]).node, NULL);
        assert_true(is_placed(rig, waiting[i]));
    }
    assert_looks(rig, before, 2 * JOBS, 4 * JOBS);
}

/* Many types wait for one node: the slot goes to the best lane, and the others are not looked
 * at. */
static void other_lanes_are_not_looked_at(void **state)
{
    enum { LANES = 400, JOBS = 60 };
    struct rig *rig = *state;
    uint64_t jobs[LANES];

    rig_worker(rig, "n1", 1);
    uint64_t current = rig_place(rig, "{\"type\":\"t\"}");
    for (int i = 0; i < LANES; i++) {
        char json[96];

        snprintf(json, sizeof json, "{\"type\":\"t%d\",\"queue_ms\":600000,\"priority\":%d}", i,
                 i % 10);
        jobs[i] = rig_wait_in_queue(rig, json);
    }
    struct looks before = looks_begin(rig);
    for (int i = 0; i < JOBS; i++) {
        int best = i < LANES / 10 ? 10 * i + 9 : 10 * (i - LANES / 10) + 8;

        finish(rig, current);
        assert_true(is_placed(rig, jobs[best]));
        current = jobs[best];
    }
    assert_looks(rig, before, 2 * JOBS, 4 * JOBS);
    rig_settle(rig, SETTLE_ACK, current, 1, "n1", NULL);
    before = looks_begin(rig);
    pass(rig, 5000); /* nothing has room: a few lanes are tried in every tick */
    assert_looks(rig, before, LANES / 4, LANES / 4);
}

/* A node is not even compared with lanes of types that it does not take. */
static void a_node_is_offered_to_lanes_of_its_types(void **state)
{
    enum { LANES = 300, JOBS = 40 };
    struct rig *rig = *state;
    uint64_t jobs[JOBS];

    rig_worker(rig, "n1", 0);
    rig_register(rig, "{\"node_id\":\"n2\",\"allowed_types\":[\"a\"],\"max_concurrent_jobs\":1}");
    uint64_t current = rig_place(rig, "{\"type\":\"a\"}");
    for (int i = 0; i < LANES; i++) {
        char json[96];

        snprintf(json, sizeof json, "{\"type\":\"t%d\",\"queue_ms\":600000,\"priority\":9}", i);
        rig_wait_in_queue(rig, json);
    }
    for (int i = 0; i < JOBS; i++)
        jobs[i] = rig_wait_in_queue(rig, "{\"type\":\"a\",\"queue_ms\":600000}");
    struct looks before = looks_begin(rig);
    for (int i = 0; i < JOBS; i++) {
        finish(rig, current);
        assert_true(is_placed(rig, jobs[i]));
        current = jobs[i];
    }
    assert_looks(rig, before, 2 * JOBS, 4 * JOBS);
}

/* Lanes of the node's types whose labels it lacks are skipped, each once. */
static void a_node_passes_over_lanes_it_does_not_fit(void **state)
{
    enum { LANES = 200 };
    struct rig *rig = *state;

    rig_register(rig, "{\"node_id\":\"n1\",\"allowed_types\":[\"*\"],\"max_concurrent_jobs\":0,"
                      "\"labels\":{\"zone\":\"x\"}}");
    rig_worker(rig, "n2", 1);
    uint64_t current = rig_place(rig, "{\"type\":\"t\"}");
    for (int i = 0; i < LANES; i++) {
        char json[128];

        snprintf(json, sizeof json,
                 "{\"type\":\"t%d\",\"queue_ms\":600000,\"priority\":9,\"requires\":\"zone=x\"}",
                 i);
        rig_wait_in_queue(rig, json);
    }
    uint64_t job = rig_wait_in_queue(rig, WAITS_FOR "}");
    struct looks before = looks_begin(rig);
    finish(rig, current);
    assert_true(is_placed(rig, job));
    assert_looks(rig, before, 4, LANES + 8);
}

/* --- counters --- */

/* Clients can name any number of selectors: nothing of them is kept once their jobs are gone. */
static void selectors_leave_nothing_behind(void **state)
{
    struct rig *rig = *state;

    rig_tick(rig, 100); /* the first read of the lanes */
    for (int i = 0; i < 300; i++) {
        char json[96];

        snprintf(json, sizeof json, "{\"type\":\"t%d\",\"queue_ms\":60000,\"requires\":\"k%d=v\"}",
                 i, i);
        uint64_t job = rig_wait_in_queue(rig, json);
        rig_settle(rig, SETTLE_CANCEL, job, 0, NULL, "CANCELLED");
    }
    assert_int_equal(depth(rig), 0);
    size_t reads = rig->calls[STORE_LANE];
    rig_pass(rig, 3000);
    assert_int_equal(rig->calls[STORE_LANE], reads); /* no lane is known any more */
}

/* A job that becomes known in two ways is counted once. */
static void a_job_that_comes_twice_is_counted_once(void **state)
{
    struct rig *rig = *state;
    struct str spec = STR("{\"type\":\"t\",\"priority\":5,\"queue_ms\":60000}");

    rig_worker(rig, "n1", 0);
    uint64_t job = rig_wait_in_queue(rig, WAITS);
    struct store_record again = {.head = rig_job(rig, job), .spec = spec};
    keeper_continue(rig->sched.keeper, &again);
    keeper_continue(rig->sched.keeper, &again);
    rig_quiet(rig);
    assert_int_equal(depth(rig), 1);
    rig_settle(rig, SETTLE_CANCEL, job, 0, NULL, "CANCELLED");
    assert_int_equal(depth(rig), 0);
}

/* A try that finds no room is not counted as the outcome of a dispatch. */
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

/* A face-to-face job never waits, but its retry survives a short absence of the store. */
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

/* The store reserved but the answer was lost: the job is still sent, in time and once. */
static void a_reserve_whose_answer_was_lost_is_carried_on(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 0);
    uint64_t job = rig_wait_in_queue(rig, WAITS);
    rig->lose = STORE_RESERVE;
    rig_worker(rig, "n1", 1);
    assert_int_equal(rig_job(rig, job).state, JOB_DISPATCHED);
    assert_int_equal(rig_sends_of(rig, job), 0);
    rig_tick(rig, 100); /* again, and the answer is lost again */
    assert_int_equal(rig_sends_of(rig, job), 0);
    rig->lose = STORE_VERB_COUNT;
    rig_tick(rig, 100);
    assert_int_equal(rig_sends_of(rig, job), 1);
    assert_int_equal(rig_last_sent(rig, job)->attempt, 1);
    assert_int_equal(depth(rig), 0);
    assert_int_equal(rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL), ERR_OK);
    assert_int_equal(rig_counts(rig, "n1").running, 1);
    rig_pass(rig, 10000);
    assert_int_equal(rig_sends_of(rig, job), 1);
}

/* The send failed, and giving the slot back was lost or never left: the job is not sent there
 * again, the slot comes back, and no attempt is used up. */
static void a_release_whose_answer_was_lost_is_repeated(void **state)
{
    struct rig *rig = *state;

    for (int lost = 0; lost < 2; lost++) {
        char name[] = {'n', (char)('1' + lost), '\0'};

        rig_worker(rig, name, 0);
        uint64_t job = rig_wait_in_queue(rig, WAITS);
        rig->reach = RIG_KEEP;
        rig_worker(rig, name, 1);
        assert_int_equal(rig_sends_of(rig, job), 1);
        rig->lose = lost ? STORE_FINISH : STORE_VERB_COUNT;
        rig->refuse = lost ? ERR_OK : ERR_STORE_DOWN;
        rig->reach = RIG_OK;
        rig_answer(rig, rig->sent_count - 1, false);
        rig_quiet(rig);
        rig->lose = STORE_VERB_COUNT;
        rig->refuse = ERR_OK;
        rig_tick(rig, 100);
        assert_int_equal(rig_counts(rig, name).reserved, 0);
        assert_int_equal(rig_job(rig, job).attempt, 1);
        assert_int_equal(rig_sends_of(rig, job), 1);
        rig_settle(rig, SETTLE_CANCEL, job, 0, NULL, "CANCELLED");
        rig_worker(rig, name, 0);
    }
}

/* The process ends between the commit and its answer; a repeat with the key is answered with the
 * job. The job is sent, in its only attempt. */
static void a_process_that_ends_before_the_answer_uses_up_no_attempt(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 1);
    struct dispatch *dispatch =
        rig_f2f(rig, "{\"src_lang\":\"en\",\"tgt_lang\":\"zh\",\"max_attempts\":1}");
    dispatch->idem = STR("key");
    rig->keep = STORE_FINISH; /* the abandon does not get out either */
    rig->lose = STORE_RESERVE;
    assert_int_equal(rig_run(rig, dispatch), ERR_UNKNOWN);
    rig->lose = STORE_VERB_COUNT;
    assert_int_equal(rig->kept_count, 1);
    rig->kept_count = 0;
    rig->keep = STORE_VERB_COUNT;
    rig->kept[0]->err = ERR_STORE_DOWN;
    rig->kept[0]->done(rig->kept[0]);
    uint64_t job = dispatch->job;
    rig->wall_ms++;
    rig_restart(rig);
    rig_worker(rig, "n1", 1);
    struct dispatch *again =
        rig_f2f(rig, "{\"src_lang\":\"en\",\"tgt_lang\":\"zh\",\"max_attempts\":1}");
    again->idem = STR("key");
    assert_int_equal(rig_run(rig, again), ERR_OK);
    assert_true(again->duplicate);
    assert_int_equal(again->head.id, job);
    rig_pass(rig, 7000);
    assert_int_equal(rig_sends_of(rig, job), 1);
    assert_int_equal(rig_last_sent(rig, job)->attempt, 1);
    assert_int_equal(rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL), ERR_OK);
}

/* Of the calls kept back, those that abandon a job are lost; the others are sent. */
static void lose_abandons(struct rig *rig)
{
    size_t count = rig->kept_count;

    rig->kept_count = 0;
    for (size_t i = 0; i < count; i++) {
        struct store_op *op = rig->kept[i];

        if (op->u.settle.outcome != STORE_ABANDON) {
            rig->kept[rig->kept_count++] = op;
            continue;
        }
        op->err = ERR_STORE_DOWN;
        op->done(op);
    }
    rig_let_go(rig);
    rig->keep = STORE_FINISH;
    rig_quiet(rig);
}

/* The client was told OUTCOME_UNKNOWN, and the abandon does not get through before the reservation
 * runs out. The sweep does get through, but cannot know that no node was asked for an ACK. A repeat
 * with the key was answered with the job, so it is sent, in its only attempt. */
static void the_sweep_leaves_what_is_abandoned_to_the_queue(void **state)
{
    struct rig *rig = *state;
    const char *body = "{\"src_lang\":\"en\",\"tgt_lang\":\"zh\",\"max_attempts\":1}";

    rig_worker(rig, "n1", 1);
    struct dispatch *dispatch = rig_f2f(rig, body);
    uint64_t job = dispatch->job;
    dispatch->idem = STR("key");
    rig->lose = STORE_RESERVE;
    rig->keep = STORE_FINISH;
    assert_int_equal(rig_run(rig, dispatch), ERR_UNKNOWN);
    rig->lose = STORE_VERB_COUNT;
    struct dispatch *again = rig_f2f(rig, body);
    again->idem = STR("key");
    assert_int_equal(rig_run(rig, again), ERR_OK);
    assert_true(again->duplicate);
    assert_int_equal(again->head.id, job);
    for (int i = 0; i < 8; i++) {
        lose_abandons(rig);
        rig_tick(rig, 1000);
    }
    lose_abandons(rig);
    assert_int_equal(rig_job(rig, job).state, JOB_DISPATCHED);
    assert_int_equal(rig_sends_of(rig, job), 0);
    rig->keep = STORE_VERB_COUNT;
    rig_tick(rig, 1000);
    assert_int_equal(rig_sends_of(rig, job), 1);
    assert_int_equal(rig_last_sent(rig, job)->attempt, 1);
    assert_int_equal(rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL), ERR_OK);
    assert_int_equal(depth(rig), 0);
}

/* The job's time to wait is over, and the answer that ended it is lost. */
static void a_time_out_whose_answer_was_lost_is_found_out(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 0);
    uint64_t job = rig_wait_in_queue(rig, "{\"type\":\"t\",\"queue_ms\":1000}");
    rig->lose = STORE_FINISH;
    rig_pass(rig, 2000);
    assert_int_equal(rig_job(rig, job).state, JOB_FAILED);
    rig->lose = STORE_VERB_COUNT;
    rig_tick(rig, 1000); /* reads all lanes */
    assert_int_equal(depth(rig), 0);
}

/* A node refused the job, and the answer to the WAIT that put it back is lost. */
static void a_wait_whose_answer_was_lost_is_repeated(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 1);
    uint64_t job = rig_wait_in_queue(rig, WAITS);
    rig->lose = STORE_WAIT;
    rig_settle(rig, SETTLE_FAIL, job, 1, "n1", "NODE_OVERLOADED");
    assert_true(rig_job(rig, job).lane != 0);
    rig->lose = STORE_VERB_COUNT;
    rig_tick(rig, 100);
    rig_tick(rig, 1000);
    assert_int_equal(depth(rig), 1);
    assert_int_equal(rig_sends_of(rig, job), 1);
    rig_worker(rig, "n2", 1);
    assert_int_equal(rig_sends_of(rig, job), 2);
    assert_int_equal(depth(rig), 0);
}

static void ignored(struct store_op *op)
{
    assert_int_equal(op->err, ERR_OK);
}

/* The call that takes back a lost reserve overtakes it: the reserve then takes effect, and its ACK
 * would be awaited in vain. */
static void a_reserve_that_is_overtaken_is_taken_back(void **state)
{
    struct rig *rig = *state;
    struct store_op late;

    rig_worker(rig, "n1", 0);
    uint64_t job = rig_wait_in_queue(rig, "{\"type\":\"t\",\"queue_ms\":60000,\"max_attempts\":1}");
    rig->keep = STORE_RESERVE;
    rig_worker(rig, "n1", 1);
    assert_int_equal(rig->kept_count, 1);
    late = *rig->kept[0]; /* stays under way */
    late.reply_to = rig_keeper(rig)->inbox;
    late.done = ignored;
    rig->kept_count = 0;
    rig->kept[0]->err = ERR_UNKNOWN;
    rig->kept[0]->done(rig->kept[0]);
    rig_tick(rig, 100);
    assert_int_equal(rig->calls[STORE_FINISH], 1);
    assert_int_equal(rig_job(rig, job).state, JOB_NEW);
    assert_int_equal(rig->kept_count, 0); /* no second reserve that would find this one */
    rig->keep = STORE_VERB_COUNT;
    sched_send(rig_keeper(rig), &late);
    rig_quiet(rig);
    assert_int_equal(rig_job(rig, job).state, JOB_DISPATCHED);
    rig_tick(rig, 100);
    assert_int_equal(rig_sends_of(rig, job), 1);
    assert_int_equal(rig_last_sent(rig, job)->attempt, 1);
    assert_int_equal(rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL), ERR_OK);
    assert_int_equal(depth(rig), 0);
}

/* The queue does not wait longer than the lost reserve could still arrive. */
static void a_reserve_that_never_came_is_made_again(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 0);
    uint64_t job = rig_wait_in_queue(rig, WAITS);
    rig->keep = STORE_RESERVE;
    rig_worker(rig, "n1", 1);
    assert_int_equal(rig->kept_count, 1);
    rig->kept_count = 0;
    rig->keep = STORE_VERB_COUNT;
    rig->kept[0]->err = ERR_UNKNOWN;
    rig->kept[0]->done(rig->kept[0]);
    rig_pass(rig, 2 * rig->config.store_timeout_ms - 1000);
    assert_int_equal(rig_sends_of(rig, job), 0);
    rig_pass(rig, 1000);
    assert_int_equal(rig_sends_of(rig, job), 1);
    assert_int_equal(rig_last_sent(rig, job)->attempt, 1);
    assert_int_equal(depth(rig), 0);
}

/* --- large jobs --- */

/* A window is bounded in bytes, so only a few jobs of a lane of large ones are known. They are
 * still placed in order, none is left, and the lane is not read in a tight loop. */
static void large_jobs_wait_in_the_store(void **state)
{
    enum { JOBS = 30, BYTES = 100000 };
    struct rig *rig = *state;
    uint64_t jobs[JOBS + 1];
    char *json = arena_raw(&rig->arena, BYTES + 200);

    int len = snprintf(json, 200, WAITS_FOR ",\"payload\":\"");
    memset(json + len, 'x', BYTES);
    memcpy(json + len + BYTES, "\"}", 3);
    rig_worker(rig, "n1", 0);
    for (size_t i = 0; i < JOBS; i++)
        jobs[i] = i % 2 ? rig_put_waiting(rig, json) : rig_wait_in_queue(rig, json);
    jobs[JOBS] = rig_wait_in_queue(rig, WAITS_FOR "}");
    rig_tick(rig, 1000);
    assert_int_equal(depth(rig), JOBS + 1);
    size_t reads = rig->calls[STORE_LANE];
    for (int i = 0; i < 10; i++)
        rig_tick(rig, 1000);
    assert_true(rig->calls[STORE_LANE] - reads <= 10); /* no more reads than that */
    assert_in_range(queue_bytes(keeper_queue(rig->sched.keeper)), BYTES, 4 * BYTES);
    rig_worker(rig, "n1", 1);
    for (size_t i = 0; i < COUNT_OF(jobs); i++) {
        assert_true(is_placed(rig, jobs[i]));
        finish(rig, jobs[i]);
    }
    assert_true(rig->calls[STORE_LANE] - reads <= 2 * JOBS);
    assert_int_equal(depth(rig), 0);
    assert_int_equal(queue_bytes(keeper_queue(rig->sched.keeper)), 0);
}

/* --- records of a later release --- */

/* Unreadable records are in front of all others, more of them than a window holds. */
static void what_cannot_be_read_holds_up_nobody(void **state)
{
    enum { UNREADABLE = 200, JOBS = 100 };
    struct rig *rig = *state;
    uint64_t unreadable[UNREADABLE], jobs[JOBS];

    rig_worker(rig, "n1", 0);
    for (size_t i = 0; i < UNREADABLE; i++)
        unreadable[i] =
            rig_put_unreadable(rig, "{\"type\":\"t\",\"queue_ms\":60000,\"priority\":9}", 0);
    for (size_t i = 0; i < JOBS; i++)
        jobs[i] = rig_put_waiting(rig, WAITS_FOR "}");
    rig_tick(rig, 1000);
    rig_worker(rig, "n1", 1);
    size_t reads = rig->calls[STORE_LANE];
    for (size_t i = 0; i < JOBS; i++) {
        assert_true(is_placed(rig, jobs[i]));
        finish(rig, jobs[i]);
    }
    assert_true(rig->calls[STORE_LANE] - reads <= 10);
    reads = rig->calls[STORE_LANE];
    pass(rig, 20000);
    assert_true(rig->calls[STORE_LANE] - reads <= 20); /* no tight loop */
    for (size_t i = 0; i < UNREADABLE; i++)
        assert_int_equal(rig_job(rig, unreadable[i]).state, JOB_NEW);
    pass(rig, 40000);
    for (size_t i = 0; i < UNREADABLE; i++)
        assert_string_equal(rig_job(rig, unreadable[i]).reason, "QUEUE_TIMEOUT");
    rig_tick(rig, 1000);
    assert_int_equal(depth(rig), 0);
}

/* The instance that held these jobs has died. They end like any other, and the sweep of other jobs
 * is not delayed by them. */
static void what_is_held_and_cannot_be_read_ends(void **state)
{
    enum { UNREADABLE = 300 };
    struct rig *rig = *state;
    uint64_t unreadable[UNREADABLE];

    for (size_t i = 0; i < UNREADABLE; i++)
        unreadable[i] = rig_put_unreadable(rig, WAITS, 1000);
    rig_worker(rig, "n1", 1);
    uint64_t lost = rig_place(rig, "{\"type\":\"t\",\"max_attempts\":1}");
    size_t looks = rig->calls[STORE_JOB_GET];
    pass(rig, rig->config.reservation_ttl_ms + 2000);
    assert_string_equal(rig_job(rig, lost).reason, "ACK_TIMEOUT");
    assert_true(rig->calls[STORE_JOB_GET] - looks <= UNREADABLE);
    for (size_t i = 0; i < UNREADABLE; i++)
        assert_int_equal(rig_job(rig, unreadable[i]).state, JOB_NEW);
    pass(rig, 60000);
    for (size_t i = 0; i < UNREADABLE; i++)
        assert_string_equal(rig_job(rig, unreadable[i]).reason, "QUEUE_TIMEOUT");
    rig_tick(rig, 1000);
    assert_int_equal(depth(rig), 0);
}

/* --- keys: limits and turns --- */

#define KEYED(key) "{\"type\":\"t\",\"queue_ms\":600000,\"keys\":[\"" key "\"]}"

/* The job that was placed last, if it still has its slot; 0: none. */
static uint64_t running(struct rig *rig)
{
    const struct rig_sent *last = rig->sent_count ? &rig->sent[rig->sent_count - 1] : NULL;

    return last && is_placed(rig, last->job) ? last->job : 0;
}

static bool has_key(struct rig *rig, const char *key)
{
    const struct rig_sent *last = &rig->sent[rig->sent_count - 1];
    char text[96];

    snprintf(text, sizeof text, "\"%s\"", key);
    return strstr(last->message, text) != NULL;
}

/* Ends `jobs` jobs one after the other as they run; returns how many of them had this key. */
static size_t count_of(struct rig *rig, size_t jobs, const char *key)
{
    size_t count = 0;

    for (size_t i = 0; i < jobs; i++) {
        uint64_t job = running(rig);

        assert_true(job);
        count += has_key(rig, key);
        finish(rig, job);
    }
    return count;
}

static void a_hundred_thousand_delay_another_by_one(void **state)
{
    enum { JOBS = 100000 };
    struct rig *rig = *state;

    rig_put_many(rig, KEYED("tenant:a"), JOBS);
    rig_worker(rig, "n1", 1);
    pass(rig, 2000);
    count_of(rig, 100, "tenant:a");
    assert_true(has_key(rig, "tenant:a"));
    uint64_t other = rig_wait_in_queue(rig, KEYED("tenant:b"));
    assert_false(is_placed(rig, other));
    finish(rig, running(rig));
    assert_true(is_placed(rig, other));
    finish(rig, other);
    assert_true(running(rig) && has_key(rig, "tenant:a")); /* and tenant:a goes on */
    /* Jobs without keys share as one more key. */
    uint64_t plain = rig_wait_in_queue(rig, WAITS);
    finish(rig, running(rig));
    if (!is_placed(rig, plain))
        finish(rig, running(rig));
    assert_true(is_placed(rig, plain));
    assert_in_range(depth(rig), JOBS - 110, JOBS);
}

static void turns_follow_the_weights(void **state)
{
    struct rig *rig = *state;

    rig_limit(rig, "tenant:*", "-1 -1 0 -1 1");
    rig_limit(rig, "tenant:b", "-1 -1 0 -1 3");
    rig_put_many(rig, KEYED("tenant:a"), 300);
    rig_put_many(rig, KEYED("tenant:b"), 300);
    rig_put_many(rig, "{\"type\":\"t\",\"queue_ms\":600000}", 300);
    rig_worker(rig, "n1", 1);
    pass(rig, 3000);
    count_of(rig, 20, "tenant:a");
    assert_in_range(count_of(rig, 100, "tenant:b"), 59, 61); /* weights of a, b and none: 1, 3, 1 */
    assert_in_range(count_of(rig, 100, "tenant:a"), 19, 21);
    rig_limit(rig, "tenant:b", "-1 -1 0 -1 1");
    pass(rig, 2000); /* until the rules are read again */
    count_of(rig, 10, "tenant:a");
    assert_in_range(count_of(rig, 60, "tenant:b"), 19, 21);
}

/* Turns count within a priority: the higher priority is first, even if its key has had the most
 * turns. */
static void priority_is_before_turns(void **state)
{
    struct rig *rig = *state;

    rig_put_many(rig, KEYED("tenant:a"), 50);
    rig_worker(rig, "n1", 1);
    pass(rig, 2000);
    count_of(rig, 10, "tenant:a");
    uint64_t low = rig_wait_in_queue(
        rig, "{\"type\":\"t\",\"queue_ms\":600000,\"keys\":[\"b\"],\"priority\":4}");
    uint64_t high = rig_wait_in_queue(
        rig, "{\"type\":\"t\",\"queue_ms\":600000,\"keys\":[\"tenant:a\"],\"priority\":6}");
    finish(rig, running(rig));
    assert_true(is_placed(rig, high));
    finish(rig, high);
    assert_true(has_key(rig, "tenant:a"));
    count_of(rig, 38, "tenant:a");
    assert_false(is_placed(rig, low));
    finish(rig, running(rig));
    assert_true(is_placed(rig, low));
}

static void a_key_at_its_limit_holds_up_nobody_else(void **state)
{
    enum { OTHERS = 40 };
    struct rig *rig = *state;
    uint64_t first[3], others[OTHERS];

    rig_limit(rig, "a", "2 -1 0 -1 1");
    rig_worker(rig, "n1", 8);
    for (size_t i = 0; i < COUNT_OF(first); i++)
        first[i] = rig_wait_in_queue(rig, "{\"type\":\"t\",\"queue_ms\":600000,\"priority\":9,"
                                          "\"keys\":[\"a\"]}");
    assert_true(is_placed(rig, first[0]) && is_placed(rig, first[1]));
    assert_false(is_placed(rig, first[2]));
    for (size_t i = 0; i < OTHERS; i++) {
        char json[128];

        snprintf(json, sizeof json, "{\"type\":\"t\",\"queue_ms\":600000,\"keys\":[\"other:%zu\"]}",
                 i % 7);
        others[i] = rig_wait_in_queue(rig, json);
        if (!is_placed(rig, others[i]))
            fail_msg("job %zu waits, though there is room", i);
        finish(rig, others[i]);
    }
    /* The lane does not try again and again. */
    size_t reserves = rig->calls[STORE_RESERVE];
    for (int i = 0; i < 10; i++)
        rig_tick(rig, 100);
    assert_true(rig->calls[STORE_RESERVE] - reserves <= 2);
    reserves = rig->calls[STORE_RESERVE];
    finish(rig, first[0]);
    assert_true(is_placed(rig, first[2])); /* at once: the answer to the DONE named the key */
    assert_true(rig->calls[STORE_RESERVE] - reserves <= 2);
}

/* Many lanes wait for one key: when a job of the key ends, one lane starts one, in turns, and few
 * reserves are tried. */
static void one_lane_is_woken_at_a_time(void **state)
{
    enum { LANES = 60, JOBS = 120 };
    struct rig *rig = *state;
    size_t most = 0;

    rig_limit(rig, "account", "1 -1 0 -1 1");
    rig_worker(rig, "n1", 8);
    uint64_t first = rig_wait_in_queue(rig, KEYED("account"));
    for (int i = 0; i < JOBS; i++) {
        char json[160];

        snprintf(json, sizeof json,
                 "{\"type\":\"t\",\"queue_ms\":600000,\"keys\":[\"tenant:%d\",\"account\"]}",
                 i % LANES);
        rig_wait_in_queue(rig, json);
    }
    assert_true(running(rig) == first);
    for (int i = 0; i < JOBS; i++) {
        size_t reserves = rig->calls[STORE_RESERVE];

        finish(rig, running(rig));
        if (!running(rig))
            fail_msg("no job runs after %d", i);
        reserves = rig->calls[STORE_RESERVE] - reserves;
        most = reserves > most ? reserves : most;
    }
    assert_true(most <= 4);
    finish(rig, running(rig));
    assert_int_equal(depth(rig), 0);
}

/* Every way in which a key gets room. */
static void who_waits_for_a_key_is_woken(void **state)
{
    struct rig *rig = *state;
    uint64_t job;

    rig_limit(rig, "k", "1 -1 0 -1 1");
    rig_worker(rig, "n1", 8);
    uint64_t first = rig_wait_in_queue(rig, KEYED("k"));
    job = rig_wait_in_queue(rig, KEYED("k"));
    assert_false(is_placed(rig, job));
    finish(rig, first); /* by the answer to the end of a job */
    assert_true(is_placed(rig, job));
    first = job;
    job = rig_wait_in_queue(rig, KEYED("k"));
    rig_settle(rig, SETTLE_ACK, first, 1, "n1", NULL);
    /* Ended by another instance: by its notice. */
    rig_finish_behind(rig, STORE_DONE, first, 1, "n1");
    struct store_notice word = {.kind = STORE_NOTICE_KEY, .text = STR("x k")};
    keeper_notice(rig->sched.keeper, &word);
    rig_quiet(rig);
    keeper_turn(rig->sched.keeper);
    rig_quiet(rig);
    assert_true(is_placed(rig, job));
    first = job;
    job = rig_wait_in_queue(rig, KEYED("k"));
    rig_limit(rig, "k", "2 -1 0 -1 1"); /* by another rule */
    keeper_limits_changed(rig->sched.keeper);
    rig_tick(rig, 100);
    assert_true(is_placed(rig, job));
    finish(rig, job);
    finish(rig, first);
    rig_hold(rig, "k", 3000); /* by the end of a hold */
    job = rig_wait_in_queue(rig, KEYED("k"));
    pass(rig, 2000);
    assert_false(is_placed(rig, job));
    pass(rig, 1500);
    assert_true(is_placed(rig, job));
    finish(rig, job);
    rig_hold(rig, "k", 600000); /* by a released hold, without a notice */
    job = rig_wait_in_queue(rig, KEYED("k"));
    pass(rig, 2000);
    rig_hold(rig, "k", 0);
    pass(rig, 5500);
    assert_true(is_placed(rig, job));
    finish(rig, job);
    assert_int_equal(depth(rig), 0);
}

static void starts_keep_to_a_rate(void **state)
{
    enum { JOBS = 12 };
    struct rig *rig = *state;
    uint64_t jobs[JOBS];
    size_t started = 0;

    rig_limit(rig, "api:*", "-1 3 10000 -1 1");
    rig_worker(rig, "n1", 100);
    for (int i = 0; i < JOBS; i++)
        jobs[i] = rig_wait_in_queue(rig, KEYED("api:x"));
    for (int seconds = 0; seconds <= 32; seconds++) {
        for (int i = 0; i < JOBS; i++)
            if (jobs[i] && is_placed(rig, jobs[i])) {
                finish(rig, jobs[i]); /* the end of a job gives back no rate */
                jobs[i] = 0;
                started++;
            }
        if (started > (size_t)(3 + seconds / 10 * 3) ||
            (seconds % 10 == 2 && started < (size_t)(3 + seconds / 10 * 3)))
            fail_msg("%zu started after %d s", started, seconds);
        pass(rig, 1000);
    }
    assert_int_equal(started, JOBS);
}

/* Thousands of tenants share one type: a free slot is given away at once, with few looks. */
static void a_lane_for_each_tenant(void **state)
{
    enum { TENANTS = 2000, JOBS = 200 };
    struct rig *rig = *state;
    uint64_t jobs[TENANTS];

    rig_worker(rig, "n1", 1);
    uint64_t current = rig_place(rig, "{\"type\":\"t\"}");
    for (int i = 0; i < TENANTS; i++) {
        char json[128];

        snprintf(json, sizeof json, "{\"type\":\"t\",\"queue_ms\":600000,\"keys\":[\"tenant:%d\"]}",
                 i);
        jobs[i] = rig_wait_in_queue(rig, json);
    }
    struct looks before = looks_begin(rig);
    for (int i = 0; i < JOBS; i++) {
        finish(rig, current);
        if (!is_placed(rig, jobs[i]))
            fail_msg("job %d does not run", i);
        current = jobs[i];
    }
    assert_looks(rig, before, 2 * JOBS, 20 * JOBS);
}

/* A job that needs more than is left waits for its resources alone. */
static void resources_that_come_back_are_given_away(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(rig_register(rig, "{\"node_id\":\"n1\",\"allowed_types\":[\"t\"],"
                                       "\"max_concurrent_jobs\":10,"
                                       "\"resources\":{\"mem_mb\":10000}}"),
                     ERR_OK);
#define MEM(mb) "{\"type\":\"t\",\"queue_ms\":600000,\"needs\":{\"mem_mb\":" mb "}}"
    uint64_t first = rig_wait_in_queue(rig, MEM("6000"));
    uint64_t second = rig_wait_in_queue(rig, MEM("6000"));
    uint64_t small = rig_wait_in_queue(rig, MEM("3000"));
    uint64_t plain = rig_wait_in_queue(rig, WAITS_FOR "}");
    assert_true(is_placed(rig, first) && is_placed(rig, small) && is_placed(rig, plain));
    assert_false(is_placed(rig, second));
    size_t reserves = rig->calls[STORE_RESERVE];
    finish(rig, plain); /* a slot alone does not help */
    assert_int_equal(rig->calls[STORE_RESERVE], reserves);
    finish(rig, first);
    assert_true(is_placed(rig, second));
    uint64_t third = rig_wait_in_queue(rig, MEM("5000"));
    assert_false(is_placed(rig, third));
    finish(rig, small);
    assert_false(is_placed(rig, third));
    finish(rig, second);
    assert_true(is_placed(rig, third));
    /* Other processes on the machine end. */
    rig_beat(rig, "{\"node_id\":\"n1\",\"free\":{\"mem_mb\":1000},\"ours\":{\"mem_mb\":5000}}");
    uint64_t fourth = rig_wait_in_queue(rig, MEM("4000"));
    assert_false(is_placed(rig, fourth));
    rig_beat(rig, "{\"node_id\":\"n1\",\"free\":{\"mem_mb\":5000},\"ours\":{\"mem_mb\":5000}}");
    rig_tick(rig, 100);
    assert_true(is_placed(rig, fourth));
#undef MEM
    assert_int_equal(depth(rig), 0);
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, rig_setup, rig_teardown)
    const struct CMUnitTest tests[] = {
        ROW(higher_priority_then_older_first),
        ROW(a_reserve_whose_answer_was_lost_is_carried_on),
        ROW(a_release_whose_answer_was_lost_is_repeated),
        ROW(a_process_that_ends_before_the_answer_uses_up_no_attempt),
        ROW(a_reserve_that_is_overtaken_is_taken_back),
        ROW(a_reserve_that_never_came_is_made_again),
        ROW(the_sweep_leaves_what_is_abandoned_to_the_queue),
        ROW(a_time_out_whose_answer_was_lost_is_found_out),
        ROW(a_pool_without_room_holds_up_no_other),
        ROW(nobody_waits_while_a_slot_is_free),
        ROW(a_wrong_view_heals),
        ROW(what_is_not_offered_yet_is_for_the_better_one),
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
        ROW(a_waiting_job_costs_nothing),
        ROW(very_many_wait_in_one_lane),
        ROW(particular_jobs_hold_up_no_other),
        ROW(what_waits_is_found_after_a_restart),
        ROW(a_word_of_a_lane_is_enough),
        ROW(the_order_is_that_of_the_store),
        ROW(two_that_try_the_same_place_it_once),
        ROW(a_time_out_is_told_once),
        ROW(an_instance_that_dies_costs_nothing),
        ROW(what_began_is_not_put_again),
        ROW(very_many_are_put_again_up_to_a_bound),
        ROW(what_was_put_lately_is_put_again),
        ROW(a_store_of_our_own_has_what_it_took),
        ROW(a_wait_whose_answer_was_lost_is_repeated),
        ROW(full_nodes_are_not_looked_at),
        ROW(other_lanes_are_not_looked_at),
        ROW(a_node_is_offered_to_lanes_of_its_types),
        ROW(a_node_passes_over_lanes_it_does_not_fit),
        ROW(selectors_leave_nothing_behind),
        ROW(a_job_that_comes_twice_is_counted_once),
        ROW(waiting_is_not_counted_as_refusals),
        ROW(a_retry_outlives_a_short_absence_of_the_store),
        ROW(large_jobs_wait_in_the_store),
        ROW(what_cannot_be_read_holds_up_nobody),
        ROW(what_is_held_and_cannot_be_read_ends),
        ROW(a_hundred_thousand_delay_another_by_one),
        ROW(turns_follow_the_weights),
        ROW(priority_is_before_turns),
        ROW(a_key_at_its_limit_holds_up_nobody_else),
        ROW(one_lane_is_woken_at_a_time),
        ROW(who_waits_for_a_key_is_woken),
        ROW(starts_keep_to_a_rate),
        ROW(a_lane_for_each_tenant),
        ROW(resources_that_come_back_are_given_away),
    };

    return cmocka_run_group_tests_name("sched/queue", tests, NULL, NULL);
}
