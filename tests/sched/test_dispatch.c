/* One job on its way to a node: which nodes are asked, what is answered, and what must never
 * happen. */
#include "rig.h"

#include "base/metrics.h"
#include "sched/sched.h"

#include <stdio.h>
#include <string.h>

#define TALK  "{\"src_lang\":\"en\",\"tgt_lang\":\"zh\"}"
#define TASK  "{\"type\":\"t\"}"
#define WAITS "{\"type\":\"t\",\"queue_ms\":60000}"

static uint32_t whys_of(const struct dispatch *dispatch)
{
    uint32_t sum = 0;

    for (int i = 0; i < WHY_COUNT; i++)
        sum += dispatch->whys[i];
    return sum;
}

/* --- the answers --- */

static void answers_of_an_f2f_dispatch(void **state)
{
    static const struct {
        const char *json;
        enum err err;
        const char *detail;
    } rows[] = {
        {TALK, ERR_OK, ""},
        {"{\"src_lang\":\"zh\",\"tgt_lang\":\"en\"}", ERR_NO_CAPABLE_NODE,
         "No node supports semantic(zh) + nmt(zh->en)."},
        {"{\"src_lang\":\"en\",\"tgt_lang\":\"zh\",\"options\":{\"require_tts\":true}}",
         ERR_NO_CAPABLE_NODE, "No node supports semantic(en) + nmt(en->zh) + tts(zh)."},
        {"{\"src_lang\":\"en\",\"tgt_lang\":\"zh\",\"options\":{\"preferred_node_id\":\"n1\"}}",
         ERR_OK, ""},
        {"{\"src_lang\":\"en\",\"tgt_lang\":\"zh\",\"options\":{\"preferred_node_id\":\"nobody\"}}",
         ERR_PREFERRED_NOT_CAPABLE, "The preferred node nobody cannot do this work."},
        {"{\"src_lang\":\"en\",\"tgt_lang\":\"zh\",\"options\":{\"preferred_node_id\":\"deaf\"}}",
         ERR_PREFERRED_NOT_CAPABLE, "The preferred node deaf cannot do this work."},
        {"{\"src_lang\":\"en\",\"tgt_lang\":\"zh\",\"options\":{\"preferred_node_id\":\"full\","
         "\"strict\":true}}",
         ERR_PREFERRED_UNAVAILABLE, "The preferred node full has no room, and strict was asked."},
        {"{\"src_lang\":\"en\",\"tgt_lang\":\"zh\",\"options\":{\"preferred_node_id\":\"full\"}}",
         ERR_OK, ""},
    };
    struct rig *rig = *state;

    rig_worker(rig, "n1", 100);
    rig_worker(rig, "full", 0);
    rig_register(rig, "{\"node_id\":\"deaf\",\"allowed_types\":[\"t\"]}");
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct dispatch *dispatch = rig_f2f(rig, rows[i].json);
        enum err err = rig_run(rig, dispatch);

        if (err != rows[i].err || (err && strcmp(dispatch->why.detail, rows[i].detail) != 0))
            fail_msg("%s: %s, \"%s\"", rows[i].json, err_name(err), dispatch->why.detail);
        if (!err)
            assert_str(str_of(dispatch->head.node), "n1");
        else
            assert_int_equal(rig_job(rig, dispatch->job).id, 0); /* no record was left behind */
    }
}

static void placed_means_sent_and_on_disk(void **state)
{
    struct rig *rig = *state;
    struct dispatch *dispatch;

    rig_worker(rig, "n1", 2);
    dispatch = rig_task(rig, "{\"type\":\"t\",\"payload\":{\"a\":1}}");
    assert_int_equal(rig_run(rig, dispatch), ERR_OK);
    assert_int_equal(rig_job(rig, dispatch->job).state, JOB_DISPATCHED);
    assert_int_equal(dispatch->head.attempt, 1);
    assert_string_equal(dispatch->head.node, "n1");
    assert_non_null(strstr(rig_last_sent(rig, dispatch->job)->message, "\"payload\":{\"a\":1}"));
    assert_int_equal(rig_noted(rig, dispatch->job, "dispatched"), 1);
    assert_int_equal(counts_of(rig_node(rig, "n1")).reserved, 1);
    assert_int_equal(atomic_load(&rig_node(rig, "n1")->pending), 0);
}

static void every_refusal_says_why(void **state)
{
    struct rig *rig = *state;
    struct dispatch *dispatch;

    rig_worker(rig, "full", 0);
    rig_worker(rig, "drained", 2);
    rig_admin(rig, "drained", NODE_ADMIN_DRAINING);
    rig_worker(rig, "deaf", 2);
    rig_worker(rig, "hot", 2);
    rig_beat(rig, "{\"node_id\":\"hot\",\"level\":\"danger\"}");
    rig->unreachable = STR("deaf");
    dispatch = rig_task(rig, TASK);
    assert_int_equal(rig_run(rig, dispatch), ERR_ALL_FULL);
    assert_int_equal(dispatch->whys[WHY_NO_CAPACITY], 1);
    assert_int_equal(dispatch->whys[WHY_NOT_READY], 1);
    assert_int_equal(dispatch->whys[WHY_SEND_FAILED], 1);
    assert_int_equal(dispatch->whys[WHY_LEVEL], 1);
    assert_int_equal(whys_of(dispatch), 4);
    dispatch = rig_task(rig, "{\"type\":\"t\",\"requires\":\"gpu=yes\"}");
    assert_int_equal(rig_run(rig, dispatch), ERR_NO_CAPABLE_NODE);
    assert_string_equal(dispatch->why.detail, "No node takes tasks of type t with gpu=yes.");
    assert_int_equal(rig_run(rig, rig_task(rig, "{\"type\":\"t\"}")), ERR_ALL_FULL);
}

static void at_level_warning_only_high_priority_is_taken(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 9);
    rig_beat(rig, "{\"node_id\":\"n1\",\"level\":\"warning\"}");
    assert_int_equal(rig_run(rig, rig_task(rig, "{\"type\":\"t\",\"priority\":6}")), ERR_ALL_FULL);
    assert_int_equal(rig_run(rig, rig_task(rig, "{\"type\":\"t\",\"priority\":7}")), ERR_OK);
    assert_int_equal(rig_run(rig, rig_f2f(rig, TALK)), ERR_OK); /* priority 7 */
    rig_beat(rig, "{\"node_id\":\"n1\",\"level\":\"critical\"}");
    assert_int_equal(rig_run(rig, rig_task(rig, "{\"type\":\"t\",\"priority\":9}")), ERR_ALL_FULL);
}

/* --- what must never happen --- */

static void a_node_never_gets_more_than_its_max(void **state)
{
    enum { JOBS = 60 };
    struct rig *rig = *state;
    struct dispatch *jobs[JOBS];
    int placed = 0;

    rig_worker(rig, "n1", 7);
    rig_worker(rig, "n2", 5);
    for (int i = 0; i < JOBS; i++) { /* all at once, from both loops */
        jobs[i] = rig_task(rig, TASK);
        jobs[i]->loop = rig_loop(rig, i % RIG_LOOPS);
        dispatch_start(jobs[i]);
    }
    rig_quiet(rig);
    for (int i = 0; i < JOBS; i++) {
        assert_true(rig_over(jobs[i]));
        placed += jobs[i]->err == ERR_OK;
    }
    assert_int_equal(placed, 12); /* none was refused while there was room */
    assert_int_equal(rig_counts(rig, "n1").reserved, 7);
    assert_int_equal(rig_counts(rig, "n2").reserved, 5);
    assert_int_equal(atomic_load(&rig_node(rig, "n1")->pending), 0);
    assert_int_equal(atomic_load(&rig_node(rig, "n2")->pending), 0);
}

/* Even if this loop's view of the node is outdated. */
static void nothing_is_placed_on_a_node_that_drains(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 5);
    rig_admin(rig, "n1", NODE_ADMIN_CORDONED);
    assert_int_equal(rig_run(rig, rig_task(rig, TASK)), ERR_ALL_FULL);
    /* Makes the view outdated. */
    atomic_store(&((struct node *)rig_node(rig, "n1"))->health, NODE_READY);
    struct dispatch *dispatch = rig_task(rig, TASK);
    assert_int_equal(rig_run(rig, dispatch), ERR_ALL_FULL);
    assert_int_equal(dispatch->whys[WHY_NOT_READY], 1);
    assert_int_equal(rig->sent_count, 0);
}

static void reserved_slots_are_for_interactive_jobs(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(rig_register(rig, "{\"node_id\":\"n1\",\"allowed_types\":[\"t\"],"
                                       "\"max_concurrent_jobs\":3,\"reserved_slots\":1}"),
                     ERR_OK);
    rig_place(rig, TASK);
    rig_place(rig, TASK);
    assert_int_equal(rig_run(rig, rig_task(rig, TASK)), ERR_ALL_FULL);
    rig_place(rig, "{\"type\":\"t\",\"interactive\":true}");
    assert_int_equal(rig_run(rig, rig_task(rig, "{\"type\":\"t\",\"interactive\":true}")),
                     ERR_ALL_FULL);
}

/* A selector applies to the preferred node as to any other. */
static void a_preferred_node_must_have_the_labels(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 5);
    rig_register(rig,
                 "{\"node_id\":\"n2\",\"allowed_types\":[\"t\"],\"labels\":{\"gpu\":\"yes\"}}");
    struct dispatch *dispatch = rig_task(rig, "{\"type\":\"t\",\"requires\":\"gpu=yes\","
                                              "\"options\":{\"preferred_node_id\":\"n1\"}}");
    assert_int_equal(rig_run(rig, dispatch), ERR_PREFERRED_NOT_CAPABLE);
    assert_int_equal(rig->sent_count, 0);
    dispatch = rig_task(rig, "{\"type\":\"t\",\"requires\":\"gpu=yes\","
                             "\"options\":{\"preferred_node_id\":\"n2\"}}");
    assert_int_equal(rig_run(rig, dispatch), ERR_OK);
}

/* So do silence and the level of its machine. */
static void a_preferred_node_must_be_there(void **state)
{
    static const char json[] = "{\"src_lang\":\"en\",\"tgt_lang\":\"zh\",\"options\":"
                               "{\"preferred_node_id\":\"n1\",\"strict\":true}}";
    struct rig *rig = *state;

    rig_worker(rig, "n1", 5);
    rig_worker(rig, "n2", 5);
    rig_beat(rig, "{\"node_id\":\"n1\",\"level\":\"critical\"}");
    assert_int_equal(rig_run(rig, rig_f2f(rig, json)), ERR_PREFERRED_UNAVAILABLE);
    rig_beat(rig, "{\"node_id\":\"n1\",\"level\":\"normal\"}");
    assert_int_equal(rig_run(rig, rig_f2f(rig, json)), ERR_OK);
    rig_pass(rig, 16000);
    struct dispatch *late = rig_f2f(rig, json);
    assert_int_equal(rig_run(rig, late), ERR_PREFERRED_UNAVAILABLE);
    assert_int_equal(rig_sends_of(rig, late->job), 0);
}

/* The preferred node refuses the job: it goes elsewhere, and not back to that node again and
 * again. */
static void a_preferred_node_that_refuses_is_not_asked_again(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 5);
    rig_worker(rig, "n2", 5);
    for (int strict = 0; strict < 2; strict++) {
        struct dispatch *dispatch =
            rig_f2f(rig, strict ? "{\"src_lang\":\"en\",\"tgt_lang\":\"zh\",\"options\":"
                                  "{\"preferred_node_id\":\"n1\",\"strict\":true}}"
                                : "{\"src_lang\":\"en\",\"tgt_lang\":\"zh\",\"options\":"
                                  "{\"preferred_node_id\":\"n1\"}}");
        assert_int_equal(rig_run(rig, dispatch), ERR_OK);
        assert_int_equal(rig_settle(rig, SETTLE_FAIL, dispatch->job, 1, "n1", "NODE_OVERLOADED"),
                         ERR_OK);
        struct store_head head = rig_job(rig, dispatch->job);
        assert_int_equal(rig_sends_of(rig, dispatch->job), strict ? 1 : 2);
        assert_int_equal(head.state, strict ? JOB_FAILED : JOB_DISPATCHED);
        assert_string_equal(head.node, strict ? "" : "n2");
        assert_int_equal(head.attempt, 1);
    }
}

/* --- sends that fail --- */

static void a_failed_send_goes_to_the_next_in_the_same_attempt(void **state)
{
    struct rig *rig = *state;
    struct dispatch *dispatch;

    for (int i = 0; i < 6; i++) {
        char id[8];

        snprintf(id, sizeof id, "n%d", i);
        rig_worker(rig, id, 3);
    }
    rig->reach = RIG_KEEP;
    dispatch = rig_task(rig, TASK);
    dispatch_start(dispatch);
    for (size_t i = 0; i < 5; i++) {
        rig_quiet(rig);
        rig_answer(rig, i, false);
    }
    rig_quiet(rig);
    rig_answer(rig, 5, true);
    rig_quiet(rig);
    assert_true(rig_over(dispatch));
    assert_int_equal(dispatch->err, ERR_OK);
    assert_int_equal(dispatch->head.attempt, 1);
    for (size_t i = 0; i < 6; i++)
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(rig->sent[i].node, rig->sent[j].node);
    for (int i = 0; i < 6; i++) {
        char id[8];

        snprintf(id, sizeof id, "n%d", i);
        assert_int_equal(rig_counts(rig, id).reserved,
                         strcmp(id, rig->sent[5].node) == 0); /* the others got their slot back */
    }
}

static void when_nobody_can_be_reached_the_job_ends_and_is_told(void **state)
{
    struct rig *rig = *state;
    struct dispatch *dispatch;

    rig_worker(rig, "n1", 3);
    rig_worker(rig, "n2", 3);
    rig->reach = RIG_FAIL;
    dispatch = rig_f2f(rig, TALK);
    int64_t failed = metric_value(METRIC_JOBS, "FAILED");
    assert_int_equal(rig_run(rig, dispatch), ERR_ALL_FULL);
    assert_int_equal(dispatch->whys[WHY_SEND_FAILED], 2);
    assert_int_equal(rig_job(rig, dispatch->job).state, JOB_FAILED);
    assert_int_equal(rig_noted(rig, dispatch->job, "failed"), 1);
    assert_int_equal(metric_value(METRIC_JOBS, "FAILED"), failed + 1);
    rig_pass(rig, 60000);
    assert_int_equal(rig_sends_of(rig, dispatch->job), 2);
    assert_int_equal(rig_counts(rig, "n1").reserved + rig_counts(rig, "n2").reserved, 0);
}

/* --- a client that was refused must never see its job run --- */

static void assert_never_runs(struct rig *rig, uint64_t job)
{
    size_t sends = rig_sends_of(rig, job);

    rig->reach = RIG_OK;
    rig->unreachable = STR_NONE;
    rig->refuse = ERR_OK;
    for (int i = 0; i < 12; i++) {
        rig_pass(rig, 5000);
        rig_beat(rig, "{\"node_id\":\"n1\"}");
        rig_beat(rig, "{\"node_id\":\"n2\"}");
    }
    assert_int_equal(rig_sends_of(rig, job), sends);
    enum job_state end = rig_job(rig, job).state;
    if (rig_job(rig, job).id && end != JOB_FAILED)
        fail_msg("a refused job is %s", job_state_name(end));
    assert_int_equal(atomic_load(&rig->sched.queue_depth), 0);
}

/* The record has the outcome that the client was given. */
static void assert_ended_as_unknown(struct rig *rig, const struct dispatch *dispatch)
{
    assert_true(rig_over(dispatch));
    assert_int_equal(dispatch->err, ERR_UNKNOWN);
    assert_never_runs(rig, dispatch->job);
    assert_string_equal(rig_job(rig, dispatch->job).reason, err_name(ERR_UNKNOWN));
}

/* The store goes away after the send failed and the reservation was given back. */
static void refused_between_two_candidates(void **state)
{
    struct rig *rig = *state;
    struct dispatch *dispatch;

    rig_worker(rig, "n1", 3);
    rig_worker(rig, "n2", 3);
    rig->reach = RIG_KEEP;
    dispatch = rig_f2f(rig, TALK);
    dispatch_start(dispatch);
    rig_quiet(rig);
    rig->keep = STORE_FINISH;
    rig_answer(rig, 0, false);
    rig_quiet(rig);
    rig->refuse = ERR_STORE_DOWN; /* for the next reserve */
    rig_let_go(rig);
    rig_quiet(rig);
    assert_ended_as_unknown(rig, dispatch);
}

/* The store goes away before the reservation could be given back. */
static void refused_while_giving_back(void **state)
{
    struct rig *rig = *state;
    struct dispatch *dispatch;

    rig_worker(rig, "n1", 3);
    rig_worker(rig, "n2", 3);
    rig->reach = RIG_KEEP;
    dispatch = rig_f2f(rig, TALK);
    dispatch_start(dispatch);
    rig_quiet(rig);
    rig->refuse = ERR_STORE_DOWN;
    rig_answer(rig, 0, false);
    rig_quiet(rig);
    assert_ended_as_unknown(rig, dispatch);
}

/* All candidates were asked, and the end of the job could not be written. */
static void refused_while_giving_up(void **state)
{
    struct rig *rig = *state;
    struct dispatch *dispatch;

    rig_worker(rig, "n1", 3);
    rig_worker(rig, "n2", 0);
    rig->reach = RIG_KEEP;
    dispatch = rig_f2f(rig, "{\"src_lang\":\"en\",\"tgt_lang\":\"zh\",\"options\":"
                            "{\"preferred_node_id\":\"n1\"}}");
    dispatch_start(dispatch);
    rig_quiet(rig);
    rig->keep = STORE_RESERVE; /* n2 is next */
    rig_answer(rig, 0, false);
    rig_quiet(rig);
    assert_int_equal(rig->kept_count, 1);
    rig_let_go(rig);
    rig->refuse = ERR_STORE_DOWN;
    rig_quiet(rig);
    assert_int_equal(rig_job(rig, dispatch->job).state, JOB_SELECTING);
    assert_ended_as_unknown(rig, dispatch);
}

/* A strict preference is refused although the task may wait, and then it must not wait in the
 * store. */
static void refused_although_it_may_wait(void **state)
{
    struct rig *rig = *state;
    struct dispatch *dispatch;

    rig_worker(rig, "n1", 3);
    rig_worker(rig, "n2", 3);
    rig->unreachable = STR("n1");
    dispatch = rig_task(rig, "{\"type\":\"t\",\"queue_ms\":60000,\"options\":"
                             "{\"preferred_node_id\":\"n1\",\"strict\":true}}");
    assert_int_equal(rig_run(rig, dispatch), ERR_PREFERRED_UNAVAILABLE);
    assert_never_runs(rig, dispatch->job);
}

/* The push took longer than the reservation, and the sweep moved the job on meanwhile: the client
 * must not be told that it was refused. */
static void a_job_the_sweep_moved_on_is_not_refused(void **state)
{
    struct rig *rig = *state;
    struct dispatch *dispatch;

    rig_worker(rig, "n1", 3);
    rig_worker(rig, "n2", 3);
    rig->reach = RIG_KEEP;
    dispatch = rig_f2f(rig, TALK);
    dispatch_start(dispatch);
    rig_quiet(rig);
    rig->reach = RIG_OK;
    rig_pass(rig, 6000);
    assert_int_equal(rig_job(rig, dispatch->job).attempt, 2); /* on the other node */
    rig_answer(rig, 0, false);
    rig_quiet(rig);
    assert_true(rig_over(dispatch));
    assert_int_equal(dispatch->err, ERR_OK);
    assert_int_equal(dispatch->head.attempt, 2);
    assert_string_equal(dispatch->head.node, rig->sent[1].node);
}

/* --- the store --- */

static void a_store_that_is_away_refuses_at_once(void **state)
{
    struct rig *rig = *state;
    struct dispatch *dispatch;

    rig_worker(rig, "n1", 3);
    rig->refuse = ERR_STORE_DOWN;
    dispatch = rig_f2f(rig, TALK);
    assert_int_equal(rig_run(rig, dispatch), ERR_STORE_DOWN);
    rig->refuse = ERR_BUSY;
    assert_int_equal(rig_run(rig, rig_f2f(rig, TALK)), ERR_BUSY);
    assert_int_equal(atomic_load(&rig_node(rig, "n1")->pending), 0);
    assert_never_runs(rig, dispatch->job);
}

static void a_call_that_arrives_late_starts_nothing(void **state)
{
    struct rig *rig = *state;
    struct dispatch *dispatch;

    rig_worker(rig, "n1", 3);
    rig->keep = STORE_RESERVE;
    dispatch = rig_f2f(rig, TALK);
    dispatch_start(dispatch);
    rig_quiet(rig);
    rig_tick(rig, rig->config.store_timeout_ms + 1);
    rig_let_go(rig);
    rig_quiet(rig);
    assert_true(rig_over(dispatch));
    assert_int_equal(dispatch->err, ERR_STORE_DOWN);
    assert_int_equal(rig->sent_count, 0);
    assert_int_equal(rig_job(rig, dispatch->job).id, 0);
}

static void ignored(struct store_op *op)
{
    assert_int_equal(op->err, ERR_OK);
}

/* An answer of the store is lost, whichever call of the dispatch it belongs to: the client is never
 * told that nothing was started, and the job does not run unless another client was answered with
 * it. */
static void a_lost_answer_is_not_a_refusal(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 3);
    rig->lose = STORE_RESERVE;
    struct dispatch *dispatch = rig_f2f(rig, TALK);
    assert_int_equal(rig_run(rig, dispatch), ERR_UNKNOWN);
    assert_non_null(strstr(dispatch->why.detail, "may have been accepted"));
    rig->lose = STORE_VERB_COUNT;
    rig_tick(rig, 100);
    assert_int_equal(rig_job(rig, dispatch->job).state, JOB_FAILED);
    assert_int_equal(rig_counts(rig, "n1").reserved, 0);
    assert_never_runs(rig, dispatch->job);
}

/* The answer to the abandon is lost too, several times. */
static void a_lost_abandon_is_repeated(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 3);
    rig->lose = STORE_RESERVE;
    struct dispatch *dispatch = rig_f2f(rig, TALK);
    rig->keep = STORE_FINISH;
    assert_int_equal(rig_run(rig, dispatch), ERR_UNKNOWN);
    for (int i = 0; i < 3; i++) { /* the call does not even arrive */
        assert_int_equal(rig->kept_count, 1);
        rig->kept[0]->err = i == 1 ? ERR_STORE_DOWN : ERR_UNKNOWN;
        rig->kept_count = 0;
        rig->kept[0]->done(rig->kept[0]);
        rig_tick(rig, 100);
    }
    rig_let_go(rig);
    rig->lose = STORE_FINISH; /* the call arrives, but its answer is lost */
    rig_tick(rig, 100);
    rig->lose = STORE_VERB_COUNT;
    rig_tick(rig, 100);
    assert_int_equal(rig_job(rig, dispatch->job).state, JOB_FAILED);
    assert_never_runs(rig, dispatch->job);
}

/* The abandon overtakes the call that makes the job. */
static void an_abandon_waits_for_what_is_still_on_its_way(void **state)
{
    struct rig *rig = *state;
    struct store_op late;

    rig->sched.config.store_timeout_ms =
        600000; /* a call may take this long, by the machine's own clock */
    rig_worker(rig, "n1", 3);
    rig->keep = STORE_RESERVE;
    struct dispatch *dispatch = rig_f2f(rig, TALK);
    dispatch_start(dispatch);
    rig_quiet(rig);
    assert_int_equal(rig->kept_count, 1);
    late = *rig->kept[0]; /* stays under way */
    late.reply_to = rig_loop(rig, 0)->inbox;
    rig->kept[0]->err = ERR_UNKNOWN;
    rig->kept_count = 0;
    rig->keep = STORE_VERB_COUNT;
    rig->kept[0]->done(rig->kept[0]);
    rig_tick(rig, 100);
    assert_int_equal(rig_job(rig, dispatch->job).id, 0);
    late.done = ignored;
    sched_send(rig_loop(rig, 0), &late);
    rig_quiet(rig);
    assert_int_equal(rig_job(rig, dispatch->job).state, JOB_DISPATCHED);
    rig_pass(rig, 1000);
    assert_int_equal(rig_job(rig, dispatch->job).state, JOB_FAILED);
    assert_never_runs(rig, dispatch->job);
}

/* The call that would make the job never arrives: the abandon ends after the last moment at which
 * it could. */
static void an_abandon_ends_when_nothing_can_come_any_more(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 3);
    rig->keep = STORE_RESERVE;
    struct dispatch *dispatch = rig_f2f(rig, TALK);
    dispatch_start(dispatch);
    rig_quiet(rig);
    assert_int_equal(rig->kept_count, 1);
    rig->kept[0]->err = ERR_UNKNOWN;
    rig->kept_count = 0;
    rig->keep = STORE_VERB_COUNT;
    rig->kept[0]->done(rig->kept[0]);
    rig_pass(rig, 2 * rig->config.store_timeout_ms - 1000);
    assert_int_equal(atomic_load(&rig->sched.queue_depth), 1);
    rig_pass(rig, 2000);
    assert_int_equal(atomic_load(&rig->sched.queue_depth), 0);
    assert_int_equal(rig_job(rig, dispatch->job).id, 0);
}

static void a_key_gives_the_first_answer_again(void **state)
{
    struct rig *rig = *state;
    struct dispatch *first = NULL;

    rig_worker(rig, "n1", 3);
    for (int i = 0; i < 3; i++) {
        struct dispatch *dispatch = rig_f2f(rig, TALK);

        dispatch->idem = STR("key");
        dispatch->fingerprint = i == 2 ? 8 : 7;
        assert_int_equal(rig_run(rig, dispatch), i == 2 ? ERR_IDEMPOTENCY : ERR_OK);
        first = first ? first : dispatch;
        assert_int_equal(dispatch->duplicate, i == 1);
        if (i == 1)
            assert_int_equal(dispatch->head.id, first->job);
    }
    assert_int_equal(rig->sent_count, 1);
    assert_int_equal(rig_counts(rig, "n1").reserved, 1);
}

/* --- who is asked --- */

static void equal_idle_nodes_share_evenly(void **state)
{
    enum { NODES = 10, JOBS = 400 };
    struct rig *rig = *state;
    int got[NODES] = {0}, again = 0, last = -1;

    for (int i = 0; i < NODES; i++) {
        char id[8];

        snprintf(id, sizeof id, "n%d", i);
        rig_worker(rig, id, 100);
    }
    for (int i = 0; i < JOBS; i++) {
        uint64_t job = rig_place(rig, TASK);
        int node = rig_last_sent(rig, job)->node[1] - '0';

        rig_settle(rig, SETTLE_ACK, job, 1, rig_last_sent(rig, job)->node, NULL);
        rig_settle(rig, SETTLE_DONE, job, 1, rig_last_sent(rig, job)->node, NULL);
        got[node]++;
        again += node == last;
        last = node;
    }
    for (int i = 0; i < NODES; i++)
        if (got[i] < JOBS / NODES / 2 || got[i] > JOBS / NODES * 3 / 2)
            fail_msg("n%d got %d of %d", i, got[i], JOBS);
    assert_true(again <= JOBS / 5);
}

static void the_least_loaded_is_asked_first(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 10);
    for (int i = 0; i < 3; i++)
        rig_place(rig, TASK);
    rig_worker(rig, "n2", 10);
    for (int i = 0; i < 3; i++)
        assert_string_equal(rig_last_sent(rig, rig_place(rig, TASK))->node, "n2");
}

/* The only free slot is outside the sample: a task that may wait looks at all members and finds
 * it. */
static void who_may_wait_looks_beyond_the_sample(void **state)
{
    struct rig *rig = *state;

    rig->sched.config.sample_k = 2;
    for (int i = 0; i < 30; i++) {
        char id[8];

        snprintf(id, sizeof id, "n%02d", i);
        rig_worker(rig, id, i == 17);
    }
    struct dispatch *dispatch = rig_task(rig, WAITS);
    assert_int_equal(rig_run(rig, dispatch), ERR_OK);
    assert_string_equal(dispatch->head.node, "n17");
}

/* The selector matches one node, which this loop believes to be full: it is asked anyway, since the
 * store knows better. */
static void a_believed_full_node_is_asked_all_the_same(void **state)
{
    struct rig *rig = *state;

    rig_register(rig, "{\"node_id\":\"n1\",\"allowed_types\":[\"t\"],\"labels\":{\"gpu\":\"yes\"},"
                      "\"max_concurrent_jobs\":1}");
    counts_full((struct node *)rig_node(rig, "n1"));
    assert_int_equal(rig_run(rig, rig_task(rig, "{\"type\":\"t\",\"requires\":\"gpu=yes\"}")),
                     ERR_OK);
}

static void before_the_nodes_are_loaded_nothing_is_dispatched(void **state)
{
    struct rig *rig = *state;
    struct dispatch *dispatch = rig_task(rig, TASK);
    const struct snapshot *snapshot = rig_loop(rig, 0)->snapshot;

    rig_loop(rig, 0)->snapshot = NULL;
    assert_int_equal(rig_run(rig, dispatch), ERR_STORE_DOWN);
    rig_loop(rig, 0)->snapshot = snapshot;
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, rig_setup, rig_teardown)
    const struct CMUnitTest tests[] = {
        ROW(answers_of_an_f2f_dispatch),
        ROW(placed_means_sent_and_on_disk),
        ROW(every_refusal_says_why),
        ROW(at_level_warning_only_high_priority_is_taken),
        ROW(a_node_never_gets_more_than_its_max),
        ROW(nothing_is_placed_on_a_node_that_drains),
        ROW(reserved_slots_are_for_interactive_jobs),
        ROW(a_preferred_node_must_have_the_labels),
        ROW(a_preferred_node_must_be_there),
        ROW(a_preferred_node_that_refuses_is_not_asked_again),
        ROW(a_failed_send_goes_to_the_next_in_the_same_attempt),
        ROW(when_nobody_can_be_reached_the_job_ends_and_is_told),
        ROW(refused_between_two_candidates),
        ROW(refused_while_giving_back),
        ROW(refused_while_giving_up),
        ROW(refused_although_it_may_wait),
        ROW(a_job_the_sweep_moved_on_is_not_refused),
        ROW(a_store_that_is_away_refuses_at_once),
        ROW(a_call_that_arrives_late_starts_nothing),
        ROW(a_lost_answer_is_not_a_refusal),
        ROW(a_lost_abandon_is_repeated),
        ROW(an_abandon_waits_for_what_is_still_on_its_way),
        ROW(an_abandon_ends_when_nothing_can_come_any_more),
        ROW(a_key_gives_the_first_answer_again),
        ROW(equal_idle_nodes_share_evenly),
        ROW(the_least_loaded_is_asked_first),
        ROW(who_may_wait_looks_beyond_the_sample),
        ROW(a_believed_full_node_is_asked_all_the_same),
        ROW(before_the_nodes_are_loaded_nothing_is_dispatched),
    };

    return cmocka_run_group_tests_name("sched/dispatch", tests, NULL, NULL);
}
