/* How attempts and jobs end. Any message may come late, twice or never. */
#include "base/metrics.h"

#include <stdio.h>
#include <string.h>

#include "rig.h"
#include "sched/sched.h"
#include "sched/tally.h"
#include "store/store.h"

#define TASK "{\"type\":\"t\"}"

static void assert_free(struct rig *rig, const char *node)
{
    struct lease_node counts = rig_counts(rig, node);

    assert_int_equal(counts.reserved, 0);
    assert_int_equal(counts.running, 0);
    assert_int_equal(counts_load(rig_node(rig, node)), 0); /* the loops know too */
}

static void from_dispatched_to_done(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    uint64_t job = rig_place(rig, TASK);
    assert_int_equal(rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL), ERR_OK);
    assert_int_equal(counts_of(rig_node(rig, "n1")).running, 1);
    assert_int_equal(counts_of(rig_node(rig, "n1")).reserved, 0);
    assert_int_equal(rig_settle(rig, SETTLE_DONE, job, 1, "n1", NULL), ERR_OK);
    assert_int_equal(rig_job(rig, job).state, JOB_DONE);
    assert_int_equal(rig_noted(rig, job, "acked"), 1);
    assert_int_equal(rig_noted(rig, job, "done"), 1);
    assert_free(rig, "n1");
    assert_int_equal(atomic_load(&rig_node(rig, "n1")->ring_at), 1);
}

/* Each message comes twice: the second gets the same answer and changes nothing. */
static void the_same_message_again_moves_nothing(void **state)
{
    static const struct {
        enum settle_kind kind;
        const char *reason;
    } ends[] = {{SETTLE_DONE, NULL}, {SETTLE_FAIL, "BROKEN"}, {SETTLE_FAIL, "NODE_OVERLOADED"}};
    struct rig *rig = *state;

    rig_worker(rig, "n1", 9);
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        uint64_t job = rig_place(rig, "{\"type\":\"t\",\"max_attempts\":1}");

        for (int twice = 0; twice < 2; twice++)
            assert_int_equal(rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL), ERR_OK);
        assert_int_equal(rig_counts(rig, "n1").running, 1);
        size_t notes = 0;
        for (int twice = 0; twice < 2; twice++) {
            assert_int_equal(rig_settle(rig, ends[i].kind, job, 1, "n1", ends[i].reason), ERR_OK);
            assert_free(rig, "n1");
            notes = notes ? notes : rig->note_count;
        }
        assert_int_equal(rig->note_count, notes); /* hooks were called once */
    }
}

static void words_that_are_not_the_leaseholders_change_nothing(void **state)
{
    static const struct {
        enum settle_kind kind;
        int attempt;
        const char *node;
    } rows[] = {
        {SETTLE_ACK, 1, "n2"},  {SETTLE_DONE, 1, "n2"}, {SETTLE_FAIL, 1, "n2"},
        {SETTLE_ACK, 2, "n1"},  {SETTLE_DONE, 2, "n1"}, {SETTLE_FAIL, 2, "n1"},
        {SETTLE_DONE, 1, "n3"},
    };
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    uint64_t job = rig_place(rig, TASK);
    rig_worker(rig, "n2", 2);
    rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (rig_settle(rig, rows[i].kind, job, rows[i].attempt, rows[i].node, "x") != ERR_STALE)
            fail_msg("row %zu", i);
        assert_int_equal(rig_job(rig, job).state, JOB_ACKED);
        assert_int_equal(rig_counts(rig, "n1").running, 1);
    }
    assert_int_equal(rig_settle(rig, SETTLE_DONE, job + 1, 1, "n1", NULL), ERR_NOT_FOUND);
    assert_int_equal(rig_settle(rig, SETTLE_DONE, job, 1, "n1", NULL), ERR_OK);
    /* Contradicts the DONE. */
    assert_int_equal(rig_settle(rig, SETTLE_FAIL, job, 1, "n1", "x"), ERR_STALE);
}

static void a_failure_goes_to_another_node(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    rig_worker(rig, "n2", 2);
    uint64_t job = rig_place(rig, TASK);
    char first[NODE_ID_MAX + 1];
    strcpy(first, rig_last_sent(rig, job)->node);
    rig_settle(rig, SETTLE_ACK, job, 1, first, NULL);
    int64_t retries = metric_value(METRIC_RETRIES, NULL);
    assert_int_equal(rig_settle(rig, SETTLE_FAIL, job, 1, first, "BROKEN"), ERR_OK);
    assert_int_equal(metric_value(METRIC_RETRIES, NULL), retries + 1);
    struct store_head head = rig_job(rig, job);
    assert_int_equal(head.state, JOB_DISPATCHED);
    assert_int_equal(head.attempt, 2);
    assert_string_not_equal(head.node, first);
    assert_int_equal(rig_noted(rig, job, "retrying"), 1);
    /* The last attempt: its failure ends the job. */
    rig_settle(rig, SETTLE_ACK, job, 2, head.node, NULL);
    assert_int_equal(rig_settle(rig, SETTLE_FAIL, job, 2, head.node, "BROKEN"), ERR_OK);
    assert_int_equal(rig_job(rig, job).state, JOB_FAILED);
    assert_int_equal(metric_value(METRIC_RETRIES, NULL), retries + 1);
    assert_free(rig, "n1");
    assert_free(rig, "n2");
    assert_int_equal(rig_settle(rig, SETTLE_DONE, job, 1, first, NULL), ERR_STALE);
}

/* Even if the pool changed meanwhile: n1 and n2 failed the job, n2 has left, n3 has come. */
static void a_retry_never_goes_back_while_the_pool_has_another(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 9);
    uint64_t job = rig_place(rig, "{\"type\":\"t\",\"max_attempts\":9}");
    rig_worker(rig, "n2", 9);
    rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL);
    rig_settle(rig, SETTLE_FAIL, job, 1, "n1", "BROKEN");
    assert_string_equal(rig_job(rig, job).node, "n2");
    rig_settle(rig, SETTLE_ACK, job, 2, "n2", NULL);
    rig_drop(rig, "n2");
    rig_worker(rig, "n3", 9);
    for (int i = 0; i < 3; i++) /* n1 has fewer jobs */
        rig_place(rig, "{\"type\":\"t\",\"options\":{\"preferred_node_id\":\"n3\"}}");
    rig_settle(rig, SETTLE_FAIL, job, 2, "n2", "BROKEN");
    assert_string_equal(rig_job(rig, job).node, "n3");
    assert_int_equal(rig_job(rig, job).attempt, 3);
}

/* Of two nodes only one has the labels: it is the whole pool of this job. */
static void a_retry_goes_to_the_same_node_if_no_other_can_do_it(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 9);
    rig_register(rig,
                 "{\"node_id\":\"gpu\",\"allowed_types\":[\"t\"],\"labels\":{\"gpu\":\"yes\"}}");
    uint64_t job = rig_place(rig, "{\"type\":\"t\",\"requires\":\"gpu=yes\"}");
    rig_settle(rig, SETTLE_ACK, job, 1, "gpu", NULL);
    rig_settle(rig, SETTLE_FAIL, job, 1, "gpu", "BROKEN");
    assert_int_equal(rig_job(rig, job).attempt, 2);
    assert_string_equal(rig_job(rig, job).node, "gpu");
    assert_int_equal(rig_job(rig, job).state, JOB_DISPATCHED);
}

static void a_refusal_is_no_attempt(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    uint64_t job = rig_place(rig, TASK);
    rig_worker(rig, "n2", 2);
    int64_t refused = metric_value(METRIC_NODE_OVERLOAD, NULL);
    assert_int_equal(rig_settle(rig, SETTLE_FAIL, job, 1, "n1", "NODE_OVERLOADED"), ERR_OK);
    assert_int_equal(rig_job(rig, job).attempt, 1);
    assert_string_equal(rig_job(rig, job).node, "n2");
    assert_int_equal(metric_value(METRIC_NODE_OVERLOAD, NULL), refused + 1);
    assert_free(rig, "n1");
    /* After the ACK the same message is a failure. */
    rig_settle(rig, SETTLE_ACK, job, 1, "n2", NULL);
    assert_int_equal(rig_settle(rig, SETTLE_FAIL, job, 1, "n2", "NODE_OVERLOADED"), ERR_OK);
    assert_int_equal(rig_job(rig, job).attempt, 2);
    assert_string_equal(rig_job(rig, job).node, "n1");
}

/* The only node refuses: the job ends, instead of being sent to it for ever. */
static void the_only_nodes_refusal_ends_the_job(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    for (int attempt = 1; attempt <= 2; attempt++) {
        uint64_t job = rig_place(rig, TASK);

        if (attempt == 2) { /* a retry on the same node, as the pool has no other */
            rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL);
            rig_settle(rig, SETTLE_FAIL, job, 1, "n1", "BROKEN");
        }
        size_t sends = rig_sends_of(rig, job);
        assert_int_equal(sends, attempt);
        rig_settle(rig, SETTLE_FAIL, job, attempt, "n1", "NODE_OVERLOADED");
        /* The node that just refused is not asked again. */
        assert_int_equal(rig_sends_of(rig, job), sends);
        assert_int_equal(rig_job(rig, job).state, JOB_FAILED);
        assert_int_equal(rig_noted(rig, job, "failed"), 1);
        assert_free(rig, "n1");
    }
}

static void a_late_ack_is_refused(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    uint64_t job = rig_place(rig, "{\"type\":\"t\",\"max_attempts\":1}");
    int64_t late = metric_value(METRIC_ACK_LATE, NULL);
    rig_pass(rig, 5001);
    assert_int_equal(rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL), ERR_STALE);
    assert_int_equal(metric_value(METRIC_ACK_LATE, NULL), late + 1);
    assert_free(rig, "n1");
}

/* A cancel ends the job at once; its slot stays taken until the node reports that the run stopped.
 * The end is reported and counted once, not again when the run stops. */
static void a_cancel_ends_the_job_and_is_counted_once(void **state)
{
    struct rig *rig = *state;
    static const enum settle_kind words[] = {SETTLE_DONE, SETTLE_FAIL};

    rig_worker(rig, "n1", 2);
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        uint64_t job = rig_place(rig, TASK);
        int64_t failed = metric_value(METRIC_JOBS, "FAILED");

        rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL);
        assert_int_equal(rig_settle(rig, SETTLE_CANCEL, job, 0, NULL, "CANCELLED"), ERR_OK);
        assert_int_equal(rig_job(rig, job).state, JOB_FAILED);
        assert_int_equal(rig_counts(rig, "n1").running, 1);
        rig->wall_ms += 10;
        rig_tick(rig, 0);
        assert_int_equal(rig_settle(rig, words[i], job, 1, "n1", "stopped"), ERR_OK);
        assert_free(rig, "n1");
        assert_string_equal(rig_job(rig, job).reason, "CANCELLED");
        assert_int_equal(rig_noted(rig, job, "failed"), 1);
        assert_int_equal(metric_value(METRIC_JOBS, "FAILED"), failed + 1);
    }
}

static void a_cancelled_reservation_is_free_at_once(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 1);
    uint64_t job = rig_place(rig, TASK);
    assert_int_equal(rig_settle(rig, SETTLE_CANCEL, job, 0, NULL, "CANCELLED"), ERR_OK);
    assert_free(rig, "n1");
    assert_int_equal(rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL), ERR_STALE);
    rig_place(rig, TASK);
}

static void a_store_that_is_away_is_told_as_such(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    uint64_t job = rig_place(rig, TASK);
    rig->refuse = ERR_STORE_DOWN;
    assert_int_equal(rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL), ERR_STORE_DOWN);
    rig->refuse = ERR_OK;
    /* The node sends it again. */
    assert_int_equal(rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL), ERR_OK);
}

/* Runs that their node or its kernel had to end are counted by reason; a plain failure is not. */
static void kills_are_counted_by_reason(void **state)
{
    static const struct {
        const char *reason, *label;
    } rows[] = {{"EMERGENCY", "emergency"},   {"OOM", "oom"},
                {"DISK_LIMIT", "disk_limit"}, {"TIMEOUT", "timeout"},
                {"RUN_TIMEOUT", "timeout"},   {"BROKEN", NULL}};
    struct rig *rig = *state;

    rig_worker(rig, "n1", 9);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        int64_t all = metric_value(METRIC_KILLS, NULL);
        int64_t alike = rows[i].label ? metric_value(METRIC_KILLS, rows[i].label) : 0;
        uint64_t job = rig_place(rig, "{\"type\":\"t\",\"max_attempts\":1}");

        rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL);
        for (int twice = 0; twice < 2; twice++) /* a repeat counts once */
            rig_settle(rig, SETTLE_FAIL, job, 1, "n1", rows[i].reason);
        assert_int_equal(metric_value(METRIC_KILLS, NULL), all + (rows[i].label != NULL));
        if (rows[i].label)
            assert_int_equal(metric_value(METRIC_KILLS, rows[i].label), alike + 1);
    }
}

/* What all loops together noted of a node. */
struct noted {
    int64_t counts[TALLY_COUNTS], waits, runs;
};

static struct noted noted_of(struct rig *rig, const char *node)
{
    struct noted noted = {0};

    for (int i = 0; i <= RIG_LOOPS; i++) {
        const struct tally_work *work =
            tally_work(rig->sched.loops[i].tally, str_of(node), STR("t"));

        for (int k = 0; k < TALLY_COUNTS; k++)
            noted.counts[k] += work->counts[k];
        for (int k = 0; k < TALLY_BUCKETS; k++) {
            noted.waits += work->wait.counts[k];
            noted.runs += work->run.counts[k];
        }
    }
    return noted;
}

/* Usage is noted at the end of every lease: of runs that failed, that were cancelled, and that were
 * lost with their node. */
static void what_attempts_used_is_noted(void **state)
{
    static const char job_text[] =
        "{\"type\":\"t\",\"max_attempts\":1,\"needs\":{\"slots\":2},\"keys\":[\"tenant:acme\"]}";
    struct rig *rig = *state;
    int64_t runs = 0, slot_ms = 0, run_ms = 0;

    rig_worker(rig, "n1", 9);
    for (int i = 0; i < 3; i++) {
        uint64_t job = rig_place(rig, job_text);

        rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL);
        rig_pass(rig, 700);
        if (i == 1)
            rig_settle(rig, SETTLE_CANCEL, job, 0, NULL, NULL);
        rig_settle(rig, i == 0 ? SETTLE_DONE : SETTLE_FAIL, job, 1, "n1", i == 0 ? NULL : "X");
    }
    for (int i = 0; i <= RIG_LOOPS; i++) {
        const struct tally_usage *usage =
            &tally_key(rig->sched.loops[i].tally, STR("tenant:acme"), STR("t"))->usage;

        runs += usage->runs;
        run_ms += usage->amount_ms[TALLY_RUN_MS];
        slot_ms += usage->amount_ms[TALLY_SLOTS];
    }
    assert_int_equal(runs, 3);
    assert_int_equal(run_ms, 2100);
    assert_int_equal(slot_ms, 4200);
}

/* For the report: a failure that is retried elsewhere, and a node that never answers. How long a
 * job waited is noted once, by its first attempt. */
static void what_became_of_attempts_is_noted(void **state)
{
    struct rig *rig = *state;
    struct noted noted;

    rig_worker(rig, "n1", 9);
    uint64_t job = rig_place(rig, TASK);
    rig_worker(rig, "n2", 9);
    rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL);
    rig_settle(rig, SETTLE_FAIL, job, 1, "n1", "BROKEN");
    rig_settle(rig, SETTLE_ACK, job, 2, "n2", NULL);
    rig_settle(rig, SETTLE_DONE, job, 2, "n2", NULL);
    noted = noted_of(rig, "n1");
    assert_int_equal(noted.counts[TALLY_ATTEMPTS], 1);
    assert_int_equal(noted.counts[TALLY_RETRIED], 1);
    assert_int_equal(noted.counts[TALLY_FAILOVERS], 0); /* it reported the failure itself */
    assert_int_equal(noted.counts[TALLY_DONE], 0);
    assert_int_equal(noted.waits, 1);
    assert_int_equal(noted.runs, 1);
    noted = noted_of(rig, "n2");
    assert_int_equal(noted.counts[TALLY_ATTEMPTS], 1);
    assert_int_equal(noted.counts[TALLY_RETRIED], 0);
    assert_int_equal(noted.counts[TALLY_DONE], 1);
    assert_int_equal(noted.waits, 0);
    assert_int_equal(noted.runs, 1);
    job = rig_place(rig, "{\"type\":\"t\",\"options\":{\"preferred_node_id\":\"n1\"}}");
    rig_pass(rig, 5500); /* no ACK */
    assert_int_equal(rig_job(rig, job).attempt, 2);
    noted = noted_of(rig, "n1");
    assert_int_equal(noted.counts[TALLY_ATTEMPTS], 2);
    assert_int_equal(noted.counts[TALLY_RETRIED], 2);
    assert_int_equal(noted.counts[TALLY_FAILOVERS], 1);
    assert_int_equal(noted.waits, 2);
    assert_int_equal(noted.runs, 1); /* it never began */
}

static void any_word_is_a_sign_of_life(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    uint64_t job = rig_place(rig, TASK);
    rig_pass(rig, 2000);
    rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL);
    assert_int_equal(atomic_load(&rig_node(rig, "n1")->heartbeat_ms), rig->mono_ms);
}

/* A push endpoint refuses by /v1/job/fail before it answers the push itself. */
static void a_refusal_that_overtakes_its_sends_answer_is_heeded(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    uint64_t job = rig_place(rig, TASK);
    rig_worker(rig, "n2", 2);
    rig_worker(rig, "n3", 2);
    rig_settle(rig, SETTLE_ACK, job, 1, "n1", NULL);
    rig->reach = RIG_KEEP;
    rig_settle(rig, SETTLE_FAIL, job, 1, "n1", "BROKEN"); /* the keeper sends attempt 2 */
    size_t at = rig->sent_count - 1;
    rig_settle(rig, SETTLE_FAIL, job, 2, rig->sent[at].node, "NODE_OVERLOADED");
    rig->reach = RIG_OK;
    rig_answer(rig, at, true);
    rig_quiet(rig);
    struct store_head head = rig_job(rig, job);
    assert_int_equal(head.state, JOB_DISPATCHED); /* at once, not when a hold lapses */
    assert_string_not_equal(head.node, rig->sent[at].node);
    assert_string_not_equal(head.node, "n1");
    assert_int_equal(atomic_load(&rig->sched.queue_depth), 0);
}

/* The store took a FAIL but its answer was lost: the repeat is a duplicate, and the job goes on
 * from there. */
static void a_failure_nobody_heard_of_is_carried_on(void **state)
{
    static const char *const reasons[] = {"BROKEN", "NODE_OVERLOADED"};
    struct rig *rig = *state;

    rig_worker(rig, "n1", 1);
    rig_worker(rig, "n2", 1);
    for (size_t i = 0; i < COUNT_OF(reasons); i++) {
        uint64_t job = rig_place(rig, "{\"type\":\"t\"}");
        char node[NODE_ID_MAX + 1];

        strcpy(node, rig_last_sent(rig, job)->node);
        rig->lose = STORE_FINISH;
        assert_int_equal(rig_settle(rig, SETTLE_FAIL, job, 1, node, reasons[i]), ERR_UNKNOWN);
        rig->lose = STORE_VERB_COUNT;
        rig_tick(rig, 100);
        assert_int_equal(rig_sends_of(rig, job), 1);
        assert_int_equal(rig_settle(rig, SETTLE_FAIL, job, 1, node, reasons[i]), ERR_OK);
        rig_tick(rig, 100);
        assert_int_equal(rig_sends_of(rig, job), 2);
        assert_int_equal(rig_last_sent(rig, job)->attempt, i ? 1 : 2);
        assert_int_equal(rig_settle(rig, SETTLE_FAIL, job, 1, node, reasons[i]), ERR_OK);
        rig_tick(rig, 100);
        assert_int_equal(rig_sends_of(rig, job), 2); /* the job is held: nothing is sent twice */
        rig_settle(rig, SETTLE_DONE, job, i ? 1 : 2, rig_last_sent(rig, job)->node, NULL);
    }
}

/* --- sweep --- */

/* The sweep: every lease that ran out is settled once, whoever finds it. */

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
    int64_t expired = metric_value(METRIC_LEASE_EXPIRED, "reserved");
    beat_all(rig, 4000);
    assert_int_equal(rig_job(rig, job).attempt, 1);
    beat_all(rig, 2000);
    struct store_head head = rig_job(rig, job);
    assert_int_equal(head.attempt, 2);
    assert_string_equal(head.node, "n2");
    assert_int_equal(metric_value(METRIC_ACK_TIMEOUT, NULL), timeouts + 1);
    assert_int_equal(metric_value(METRIC_LEASE_EXPIRED, "reserved"), expired + 1);
    assert_int_equal(rig_counts(rig, "n1").reserved, 0);
    /* Node n1 may have got the job after all, so it is told to stop. */
    assert_int_equal(rig->stop_count, 1);
    assert_string_equal(rig->stops[0].node, "n1");
    assert_int_equal(rig->stops[0].attempt, 1);
    beat_all(rig, 6000); /* no ACK either: the attempts are used up */
    assert_int_equal(rig_job(rig, job).state, JOB_FAILED);
    assert_string_equal(rig_job(rig, job).reason, "ACK_TIMEOUT");
    assert_int_equal(rig_noted(rig, job, "failed"), 1);
    assert_int_equal(rig_counts(rig, "n2").reserved, 0);
}

/* A job whose lease is renewed is never ended for its age. */
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
    int64_t expired = metric_value(METRIC_LEASE_EXPIRED, "running");
    int64_t lost = metric_value(METRIC_LEASE_LOST, NULL);
    beat_all(rig, 46000); /* no renewal */
    assert_int_equal(rig_job(rig, job).attempt, 2);
    assert_int_equal(metric_value(METRIC_LEASE_EXPIRED, "running"), expired + 1);
    assert_int_equal(metric_value(METRIC_LEASE_LOST, NULL), lost + 1);
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
    beat_all(rig, 47000); /* its node never reports that it stopped */
    assert_int_equal(rig_counts(rig, "n1").running, 0);
    assert_string_equal(rig_job(rig, job).reason, "CANCELLED");
    assert_int_equal(metric_value(METRIC_JOBS, "FAILED"), failed); /* counted at the cancel */
}

/* More leases run out at once than one call takes. */
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
    rig_tick(rig, 201); /* one tick: the sweep goes on until all are settled */
    assert_int_equal(rig_counts(rig, "n1").reserved, 0);
    for (int i = 0; i < JOBS; i += 50)
        assert_int_equal(rig_job(rig, jobs[i]->job).state, JOB_FAILED);
}

/* Another instance put the job and its notice was lost: the next read of the lanes finds it. */
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

/* The instance that held a job after its attempt ended has died: when the hold ends, another takes
 * the job up, and places it or puts it into its lane. */
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
        assert_int_equal(rig_job(rig, job).state, JOB_RETRYING); /* its holder may be alive */
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

/* The process ends with jobs under way: the next one finds them all. */
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

/* The store is away for a while: the sweep waits, then goes on. */
static void a_sweep_outlives_a_store_that_is_away(void **state)
{
    struct rig *rig = *state;

    rig_worker(rig, "n1", 2);
    rig_worker(rig, "n2", 0);
    uint64_t job = rig_place(rig, "{\"type\":\"t\",\"max_attempts\":1}");
    rig->keep = STORE_FINISH;
    rig_pass(rig, 5001); /* the sweep has found the job ... */
    rig->keep = STORE_VERB_COUNT;
    rig->refuse = ERR_STORE_DOWN;
    for (int i = 0; i < 3; i++)
        rig_tick(rig, 1000);
    rig->refuse = ERR_OK;
    rig_let_go(rig); /* ... and its call goes through at last */
    rig_quiet(rig);
    assert_int_equal(rig_job(rig, job).state, JOB_FAILED);
    uint64_t next = rig_place(rig, "{\"type\":\"t\",\"max_attempts\":1}");
    rig_tick(rig, 4000);
    rig_tick(rig, 2000);
    assert_int_equal(rig_job(rig, next).state, JOB_FAILED); /* later jobs are swept too */
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, rig_setup, rig_teardown)

    const struct CMUnitTest tests[] = {
        ROW(from_dispatched_to_done),
        ROW(the_same_message_again_moves_nothing),
        ROW(words_that_are_not_the_leaseholders_change_nothing),
        ROW(a_failure_goes_to_another_node),
        ROW(a_retry_never_goes_back_while_the_pool_has_another),
        ROW(a_retry_goes_to_the_same_node_if_no_other_can_do_it),
        ROW(a_refusal_is_no_attempt),
        ROW(the_only_nodes_refusal_ends_the_job),
        ROW(a_late_ack_is_refused),
        ROW(a_cancel_ends_the_job_and_is_counted_once),
        ROW(a_cancelled_reservation_is_free_at_once),
        ROW(a_store_that_is_away_is_told_as_such),
        ROW(kills_are_counted_by_reason),
        ROW(what_became_of_attempts_is_noted),
        ROW(what_attempts_used_is_noted),
        ROW(any_word_is_a_sign_of_life),
        ROW(a_failure_nobody_heard_of_is_carried_on),
        ROW(a_refusal_that_overtakes_its_sends_answer_is_heeded),
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

    return cmocka_run_group_tests_name("settle", tests, NULL, NULL);
}
