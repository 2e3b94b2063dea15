/* Submitting: jobs are placed, wait or are refused; and what happens to a job that is refused
 * late. */
#include "rig.h"

#include "sched/submit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fixture {
    struct rig *rig;
    struct quota *quota; /* of the client; NULL: none */
};

static int setup(void **state)
{
    struct fixture *own = calloc(1, sizeof *own);

    own->rig = rig_new();
    rig_open(own->rig);
    *state = own;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *own = *state;

    rig_free(own->rig);
    free(own);
    return 0;
}

static void submitted(struct submit *submit)
{
    assert_null(submit->user); /* answered once */
    submit->user = submit;
}

static struct submit *prepare(struct fixture *own, const char *json)
{
    struct spec_author author = {.name = own->quota ? STR("ci") : STR_NONE,
                                 .view = token_view(NULL)};
    const struct json *root;
    struct spec spec;
    struct problem why;

    assert_int_equal(json_parse(str_of(json), &own->rig->arena, &root, &why), ERR_OK);
    assert_int_equal(spec_read(false, root, &author, &own->rig->arena, &spec, &why), ERR_OK);
    struct submit *submit = submit_new(rig_loop(own->rig, 0), &own->rig->arena, &spec, own->quota);
    submit->done = submitted;
    return submit;
}

static struct submit *start(struct fixture *own, const char *json)
{
    struct submit *submit = prepare(own, json);

    submit_start(submit);
    rig_quiet(own->rig);
    assert_ptr_equal(submit->user, submit);
    return submit;
}

#define TASK  "{\"type\":\"t\"}"
#define WAITS "{\"type\":\"t\",\"queue_ms\":60000}"

static int64_t depth(const struct fixture *own)
{
    return atomic_load(&own->rig->sched.queue_depth);
}

static void placed_waiting_or_refused(void **state)
{
    struct fixture *own = *state;

    assert_int_equal(start(own, WAITS)->err, ERR_NO_CAPABLE_NODE); /* no node takes the type */
    rig_worker(own->rig, "n1", 1);
    struct submit *submit = start(own, WAITS);
    assert_int_equal(submit->err, ERR_OK);
    assert_false(submit->queued);
    assert_string_equal(submit->dispatch->head.node, "n1");
    assert_int_equal(start(own, TASK)->err, ERR_ALL_FULL);
    submit = start(own, WAITS);
    assert_int_equal(submit->err, ERR_OK);
    assert_true(submit->queued);
    assert_int_equal(rig_job(own->rig, submit->dispatch->job).state, JOB_NEW);
    assert_int_equal(rig_noted(own->rig, submit->dispatch->job, "queued"), 1);
    assert_int_equal(depth(own), 1);
}

/* Waiting only makes sense if some node fits, whether or not other jobs wait. */
static void what_nobody_can_do_is_refused_also_while_others_wait(void **state)
{
    struct fixture *own = *state;

    rig_worker(own->rig, "n1", 0);
    start(own, WAITS);
    assert_int_equal(depth(own), 1);
    assert_int_equal(
        start(own, "{\"type\":\"t\",\"queue_ms\":60000,\"requires\":\"gpu=yes\"}")->err,
        ERR_NO_CAPABLE_NODE);
    assert_int_equal(depth(own), 1);
}

static void who_may_wait_does_not_overtake(void **state)
{
    struct fixture *own = *state;

    rig_worker(own->rig, "n1", 0);
    struct submit *first = start(own, WAITS);
    rig_worker(own->rig, "n2", 0);
    struct submit *second = start(own, WAITS);
    assert_true(second->queued);
    rig_worker(own->rig, "n1", 1);
    assert_int_equal(rig_job(own->rig, first->dispatch->job).state, JOB_DISPATCHED);
    assert_int_equal(rig_job(own->rig, second->dispatch->job).state, JOB_NEW);
}

static void a_full_queue_refuses(void **state)
{
    struct fixture *own = *state;

    own->rig->sched.config.queue_max = 2;
    rig_worker(own->rig, "n1", 0);
    start(own, WAITS);
    struct submit *second = start(own, WAITS);
    struct submit *third = start(own, WAITS);
    assert_int_equal(third->err, ERR_QUEUE_FULL);
    assert_int_equal(rig_job(own->rig, third->dispatch->job).id, 0);
    assert_int_equal(depth(own), 2);
    /* Another lane, with a limit of its own. */
    start(own, "{\"type\":\"other\",\"queue_ms\":60000}");
    assert_int_equal(depth(own), 3);
    rig_settle(own->rig, SETTLE_CANCEL, second->dispatch->job, 0, NULL, "CANCELLED");
    assert_int_equal(start(own, WAITS)->err, ERR_OK);
}

/* Clients choose types freely, so all lanes together have a limit, and so has each token. */
static void other_bounds_refuse(void **state)
{
    struct fixture *own = *state;
    struct quota quota = {.waiting = 2};
    char text[64];
    struct submit *submit = NULL;

    rig_worker(own->rig, "n1", 0);
    own->rig->sched.config.queue_total_max = 5;
    own->quota = &quota;
    for (int i = 0; i < 8; i++) {
        if (i == 3)
            own->quota = NULL;
        snprintf(text, sizeof text, "{\"type\":\"t%d\",\"queue_ms\":60000}", i);
        submit = start(own, text);
        assert_int_equal(submit->err, i == 2 ? ERR_QUOTA : i < 6 ? ERR_OK : ERR_QUEUE_FULL);
        if (i == 2)
            assert_string_equal(submit->why.field, "quota.waiting");
    }
    assert_non_null(strstr(submit->why.detail, "queue_total_max"));
    assert_int_equal(depth(own), 5);
}

static void bound_one(struct fixture *own)
{
    own->rig->sched.config.queue_max = 1;
}

static void bound_all(struct fixture *own)
{
    own->rig->sched.config.queue_total_max = 1;
}

static void bound_token(struct fixture *own)
{
    static struct quota quota = {.bytes = 1};

    own->quota = &quota;
}

/* The job is in the store because its send failed; then the queue was full: it must not run
 * later. */
static void never_runs_refused(struct fixture *own, enum err err)
{
    rig_worker(own->rig, "n1", 1);
    own->rig->reach = RIG_KEEP;
    struct submit *submit = prepare(own, WAITS);
    submit_start(submit); /* no job waits yet, so it is sent */
    rig_quiet(own->rig);
    uint64_t other =
        rig_wait_in_queue(own->rig, WAITS); /* put by another instance, which knows of no room */
    rig_answer(own->rig, 0, false);
    rig_quiet(own->rig);
    assert_int_equal(submit->err, err);
    assert_string_equal(rig_job(own->rig, submit->dispatch->job).reason, err_name(err));
    own->rig->reach = RIG_OK;
    rig_settle(own->rig, SETTLE_CANCEL, other, 0, NULL, "CANCELLED");
    for (int i = 0; i < 10; i++) {
        rig_pass(own->rig, 3000);
        rig_beat(own->rig, "{\"node_id\":\"n1\"}");
    }
    assert_int_equal(rig_sends_of(own->rig, submit->dispatch->job), 1);
    assert_int_equal(rig_job(own->rig, submit->dispatch->job).state, JOB_FAILED);
    assert_int_equal(depth(own), 0);
}

static void refused_by_a_bound_it_never_runs(void **state)
{
    static const struct {
        void (*set)(struct fixture *own);
        enum err err;
    } rows[] = {{bound_one, ERR_QUEUE_FULL}, {bound_all, ERR_QUEUE_FULL}, {bound_token, ERR_QUOTA}};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        assert_int_equal(teardown(state), 0);
        assert_int_equal(setup(state), 0);
        rows[i].set(*state);
        never_runs_refused(*state, rows[i].err);
    }
}

/* The limit counts waiting jobs in the store, whichever instance put them. */
static void the_bound_is_over_all_instances(void **state)
{
    struct fixture *own = *state;

    own->rig->sched.config.queue_max = 2;
    rig_worker(own->rig, "n1", 0);
    rig_put_waiting(own->rig, WAITS);
    rig_put_waiting(own->rig, WAITS);
    struct submit *submit = start(own, WAITS);
    assert_int_equal(submit->err, ERR_QUEUE_FULL);
    assert_int_equal(rig_job(own->rig, submit->dispatch->job).id, 0);
}

/* The job's send failed and it goes into its lane; the answer to that WAIT is lost, or the WAIT
 * comes too late. */
static void the_way_into_a_lane_may_be_lost_or_late(void **state)
{
    struct fixture *own = *state;

    for (int late = 0; late < 2; late++) {
        rig_worker(own->rig, late ? "n2" : "n1", 1);
        own->rig->reach = RIG_FAIL;
        own->rig->lose = late ? STORE_VERB_COUNT : STORE_WAIT;
        own->rig->keep = late ? STORE_WAIT : STORE_VERB_COUNT;
        struct submit *submit = prepare(own, WAITS);
        submit_start(submit);
        rig_quiet(own->rig);
        own->rig->lose = STORE_VERB_COUNT;
        if (late) {
            assert_int_equal(own->rig->kept_count, 1);
            rig_settle(own->rig, SETTLE_CANCEL, submit->dispatch->job, 0, NULL, "CANCELLED");
            rig_let_go(own->rig);
        }
        rig_tick(own->rig, 1000);
        assert_ptr_equal(submit->user, submit);
        assert_int_equal(submit->err, late ? ERR_ALL_FULL : ERR_UNKNOWN);
        assert_int_equal(rig_job(own->rig, submit->dispatch->job).state, JOB_FAILED);
        assert_int_equal(depth(own), 0);
        own->rig->reach = RIG_OK;
        rig_drop(own->rig, late ? "n2" : "n1");
    }
}

/* No node can be reached just now, but the job may wait. */
static void a_failed_send_may_wait_in_the_store(void **state)
{
    struct fixture *own = *state;

    rig_worker(own->rig, "n1", 1);
    own->rig->reach = RIG_FAIL;
    struct submit *submit = start(own, WAITS);
    assert_int_equal(submit->err, ERR_OK);
    assert_true(submit->queued);
    assert_int_equal(depth(own), 1);
    own->rig->reach = RIG_OK;
    rig_pass(own->rig, 6000);
    assert_int_equal(rig_job(own->rig, submit->dispatch->job).state, JOB_DISPATCHED);
    assert_int_equal(rig_job(own->rig, submit->dispatch->job).attempt, 1);
    assert_int_equal(depth(own), 0);
}

/* Cancelled while it was being sent, and the send failed: the job neither waits nor runs. */
static void cancelled_on_its_way_it_does_not_wait(void **state)
{
    struct fixture *own = *state;

    rig_worker(own->rig, "n1", 1);
    own->rig->reach = RIG_KEEP;
    struct submit *submit = prepare(own, WAITS);
    submit_start(submit);
    rig_quiet(own->rig);
    rig_settle(own->rig, SETTLE_CANCEL, submit->dispatch->job, 0, NULL, "CANCELLED");
    rig_answer(own->rig, 0, false);
    rig_quiet(own->rig);
    assert_ptr_equal(submit->user, submit);
    assert_int_equal(submit->err, ERR_ALL_FULL);
    assert_int_equal(depth(own), 0);
    assert_int_equal(rig_job(own->rig, submit->dispatch->job).state, JOB_FAILED);
}

/* The node finished the job before its push was answered with an error. */
static void done_on_its_way_it_is_placed(void **state)
{
    struct fixture *own = *state;

    rig_worker(own->rig, "n1", 1);
    own->rig->reach = RIG_KEEP;
    struct submit *submit = prepare(own, WAITS);
    submit_start(submit);
    rig_quiet(own->rig);
    rig_settle(own->rig, SETTLE_ACK, submit->dispatch->job, 1, "n1", NULL);
    rig_settle(own->rig, SETTLE_DONE, submit->dispatch->job, 1, "n1", NULL);
    rig_answer(own->rig, 0, false);
    rig_quiet(own->rig);
    assert_int_equal(submit->err, ERR_OK);
    assert_false(submit->queued);
    assert_int_equal(depth(own), 0);
}

static void a_key_answers_a_waiting_job_again(void **state)
{
    struct fixture *own = *state;
    uint64_t first = 0;

    rig_worker(own->rig, "n1", 0);
    for (int i = 0; i < 3; i++) {
        struct submit *submit = prepare(own, WAITS);

        submit->dispatch->idem = STR("key");
        submit->dispatch->fingerprint = i == 2;
        submit_start(submit);
        rig_quiet(own->rig);
        assert_int_equal(submit->err, i == 2 ? ERR_IDEMPOTENCY : ERR_OK);
        first = first ? first : submit->dispatch->head.id;
        if (i == 1) {
            assert_true(submit->queued && submit->dispatch->duplicate);
            assert_int_equal(submit->dispatch->head.id, first);
        }
        assert_int_equal(depth(own), 1); /* the duplicates are not counted */
    }
}

static void a_store_that_is_away_leaves_no_count_behind(void **state)
{
    struct fixture *own = *state;

    rig_worker(own->rig, "n1", 0);
    start(own, WAITS);
    own->rig->refuse = ERR_STORE_DOWN;
    assert_int_equal(start(own, WAITS)->err, ERR_STORE_DOWN);
    own->rig->refuse = ERR_OK;
    assert_int_equal(depth(own), 1);
}

/* The job was stored but the answer was lost: the client is told that it may run, and it does
 * not. */
static void a_lost_put_is_told_as_unknown(void **state)
{
    struct fixture *own = *state;

    rig_worker(own->rig, "n1", 0);
    start(own, WAITS);
    own->rig->lose = STORE_PUT;
    struct submit *submit = start(own, WAITS);
    assert_int_equal(submit->err, ERR_UNKNOWN);
    assert_non_null(strstr(submit->why.detail, "may have been accepted"));
    own->rig->lose = STORE_VERB_COUNT;
    rig_tick(own->rig, 100);
    assert_int_equal(rig_job(own->rig, submit->dispatch->job).state, JOB_FAILED);
    assert_int_equal(depth(own), 1);
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        ROW(placed_waiting_or_refused),
        ROW(what_nobody_can_do_is_refused_also_while_others_wait),
        ROW(who_may_wait_does_not_overtake),
        ROW(a_full_queue_refuses),
        ROW(other_bounds_refuse),
        ROW(refused_by_a_bound_it_never_runs),
        ROW(the_bound_is_over_all_instances),
        ROW(the_way_into_a_lane_may_be_lost_or_late),
        ROW(a_failed_send_may_wait_in_the_store),
        ROW(cancelled_on_its_way_it_does_not_wait),
        ROW(done_on_its_way_it_is_placed),
        ROW(a_key_answers_a_waiting_job_again),
        ROW(a_store_that_is_away_leaves_no_count_behind),
        ROW(a_lost_put_is_told_as_unknown),
    };

    return cmocka_run_group_tests_name("sched/submit", tests, NULL, NULL);
}
