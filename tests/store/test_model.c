/* Hundreds of thousands of random calls, each compared with the model: what is answered, where the
 * job stands, and after each round what every node carries. */
#include "contract.h"

#include "base/clock.h"
#include "base/mem.h"
#include "model.h"
#include "store/embedded.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    JOBS = 96,
    ROUND = 128, /* calls under way at once; they reach the store in this order */
    ROUNDS = 1200,
    HOLD_MS = 15000,
    STOP_GRACE_MS = 1000,
    REFUSALS_MAX = MODEL_ENDED - 8,
};

static const char *const names[MODEL_NODES] = {"n0", "n1", "n2", "n3", "n4", "n5"};

struct call {
    struct store_op op;
    struct model_job *job;
    struct model_answer want;
    enum job_state want_state; /* of a job that exists afterwards */
    bool has_job;
};

struct play {
    struct rig rig;
    struct model model;
    struct rnd rnd;
    uint64_t next_id;
    struct call *calls;
    int sent;
    int answered;
    int64_t taken; /* leases */
    int64_t ended;
};

static struct play *playing;

static unsigned below(struct play *play, unsigned bound)
{
    return rnd_below(&play->rnd, bound);
}

static bool is_duplicate(const struct store_op *op)
{
    if (op->verb == STORE_RESERVE || op->verb == STORE_PUT)
        return op->u.put.duplicate;
    return (op->verb == STORE_COMMIT || op->verb == STORE_FINISH) && op->u.settle.duplicate;
}

static void compare(struct store_op *op)
{
    struct call *call = container_of(op, struct call, op);

    playing->answered++;
    if (op->err != call->want.err || is_duplicate(op) != call->want.duplicate)
        fail_msg("verb %d outcome %d job %llu attempt %d: %s%s, not %s%s", op->verb,
                 op->verb == STORE_FINISH ? (int)op->u.settle.outcome : -1,
                 (unsigned long long)op->job, op->attempt, err_name(op->err),
                 is_duplicate(op) ? " (duplicate)" : "", err_name(call->want.err),
                 call->want.duplicate ? " (duplicate)" : "");
    if (call->has_job) {
        assert_int_equal(op->head.id, op->job);
        assert_string_equal(job_state_name(op->head.state), job_state_name(call->want_state));
    }
    if (op->verb == STORE_RESERVE && !op->err && !op->u.put.duplicate) {
        assert_string_equal(op->head.node, names[call->want.chosen]);
        playing->taken++;
    }
    if (op->verb == STORE_FINISH && !op->err)
        playing->ended += op->u.settle.ended_lease;
}

/* A job that is over makes room for a new one now and then. */
static struct model_job *pick(struct play *play)
{
    struct model_job *job = &play->model.jobs[below(play, JOBS)];

    if (job->id && (job->state == JOB_DONE || job->state == JOB_FAILED) &&
        job->kind == LEASE_NONE && !job->given_up && below(play, 4) == 0)
        *job = (struct model_job){.node = -1};
    if (!job->id) {
        job->max_attempts = 1 + (int)below(play, 3);
        job->timeout_ms = below(play, 3) ? 0 : 20000;
    }
    return job;
}

static uint64_t id_of(struct play *play, const struct model_job *job)
{
    return job->id ? job->id : play->next_id++;
}

/* Mostly what would fit now, sometimes anything. */
static int some_attempt(struct play *play, const struct model_job *job)
{
    return below(play, 8) ? job->attempt : 1 + (int)below(play, 3);
}

static int some_node(struct play *play, const struct model_job *job)
{
    return job->node >= 0 && below(play, 8) ? job->node : (int)below(play, MODEL_NODES);
}

static void call_put(struct play *play, struct call *call)
{
    struct model_job *job = call->job;
    struct store_op *op = &call->op;

    op->verb = STORE_PUT;
    op->job = id_of(play, job);
    op->attempt = 1;
    op->u.put.spec = STR("{}");
    op->u.put.max_attempts = job->max_attempts;
    op->u.put.timeout_ms = job->timeout_ms;
    op->u.put.owner = 1;
    op->u.put.hold_ms = HOLD_MS;
    call->want = model_put(&play->model, job, op->job, HOLD_MS);
}

static void call_reserve(struct play *play, struct call *call)
{
    struct model_job *job = call->job;
    struct store_op *op = &call->op;
    int attempt = job->id ? job->attempt + (job->state == JOB_RETRYING) : 1;
    int candidates[STORE_CANDIDATES_MAX];

    op->verb = STORE_RESERVE;
    op->job = id_of(play, job);
    op->attempt = below(play, 10) ? attempt : 1 + (int)below(play, 3);
    op->u.put.spec = STR("{}");
    op->u.put.max_attempts = job->max_attempts;
    op->u.put.timeout_ms = job->timeout_ms;
    op->u.put.owner = 1;
    op->u.put.ttl_ms = MODEL_TTL_MS;
    op->u.put.candidate_count = 1 + below(play, 3);
    for (size_t i = 0; i < op->u.put.candidate_count; i++) {
        candidates[i] = (int)below(play, MODEL_NODES);
        op->u.put.candidates[i].node = str_of(names[candidates[i]]);
        op->u.put.candidates[i].hash = str_hash(str_of(names[candidates[i]]));
    }
    call->want = model_reserve(&play->model, job, op->job, op->attempt, candidates,
                               (int)op->u.put.candidate_count);
}

static void call_commit(struct play *play, struct call *call)
{
    struct model_job *job = call->job;
    struct store_op *op = &call->op;
    int node = some_node(play, job);

    op->verb = STORE_COMMIT;
    op->job = id_of(play, job);
    op->attempt = some_attempt(play, job);
    op->node = str_of(names[node]);
    op->u.settle.terms = (struct lease_terms){MODEL_RUN_MS, MODEL_RUN_MS};
    op->u.settle.stop_grace_ms = STOP_GRACE_MS;
    call->want = model_commit(&play->model, job, op->attempt, node, STOP_GRACE_MS);
}

static void call_finish(struct play *play, struct call *call)
{
    static const enum store_outcome often[] = {
        STORE_DONE,    STORE_DONE,          STORE_DONE,         STORE_FAIL,
        STORE_FAIL,    STORE_EXPIRE,        STORE_EXPIRE,       STORE_EXPIRE,
        STORE_REFUSED, STORE_SEND_FAILED,   STORE_CANCEL,       STORE_EXPIRE,
        STORE_DONE,    STORE_QUEUE_TIMEOUT, STORE_NO_CANDIDATE, STORE_ABANDON,
    };
    struct model_job *job = call->job;
    struct store_op *op = &call->op;
    enum store_outcome outcome = often[below(play, COUNT_OF(often))];
    bool by_node = outcome <= STORE_SEND_FAILED;
    int node = some_node(play, job);

    if (job->ended_count >= REFUSALS_MAX &&
        (outcome == STORE_REFUSED || outcome == STORE_SEND_FAILED))
        outcome = STORE_DONE; /* the list of ended attempts is bounded, the model's too */
    op->verb = STORE_FINISH;
    op->job = id_of(play, job);
    op->attempt = by_node || outcome == STORE_EXPIRE ? some_attempt(play, job) : 0;
    if (op->attempt == 0 && outcome == STORE_EXPIRE)
        op->attempt = 1;
    op->node = by_node ? str_of(names[node]) : STR_NONE;
    op->u.settle.outcome = outcome;
    op->u.settle.candidates_left = below(play, 4) != 0;
    op->u.settle.owner = 1;
    op->u.settle.hold_ms = HOLD_MS;
    call->want = model_finish(&play->model, job, outcome, op->attempt, node,
                              op->u.settle.candidates_left, HOLD_MS);
}

static void call_adopt(struct play *play, struct call *call)
{
    struct store_op *op = &call->op;

    op->verb = STORE_ADOPT;
    op->job = id_of(play, call->job);
    op->u.hold.owner = 1 + below(play, 3);
    op->u.hold.hold_ms = HOLD_MS;
    call->want = model_adopt(&play->model, call->job, op->u.hold.owner, HOLD_MS);
}

static void call_node(struct play *play, struct call *call)
{
    int at = (int)below(play, MODEL_NODES);
    struct model_node *node = &play->model.nodes[at];
    struct store_op *op = &call->op;

    op->node = str_of(names[at]);
    if (below(play, 4)) {
        op->verb = STORE_RENEW;
        op->u.renew.terms = (struct lease_terms){MODEL_RUN_MS, MODEL_RUN_MS};
        model_renew(&play->model, at);
        return;
    }
    op->verb = STORE_NODE_PUT;
    op->u.node_put.own = op->u.node_put.health = NODE_READY;
    op->u.node_put.max = node->max;
    if (below(play, 8) == 0) {
        op->u.node_put.new_epoch = true;
        op->u.node_put.keeps_runs = below(play, 2) == 0;
        model_new_epoch(&play->model, at, op->u.node_put.keeps_runs);
    }
}

static void make_call(struct play *play, struct call *call)
{
    unsigned dice = below(play, 100);

    *call = (struct call){.job = pick(play), .want = {.chosen = -1}};
    call->op.reply_to = &play->rig.desk.inbox;
    call->op.done = compare;
    call->op.arena = &play->rig.arena;
    if (dice < 30)
        call_reserve(play, call);
    else if (dice < 50)
        call_commit(play, call);
    else if (dice < 88)
        call_finish(play, call);
    else if (dice < 92)
        call_put(play, call);
    else if (dice < 95)
        call_adopt(play, call);
    else
        call_node(play, call);
    call->has_job = dice < 95 && call->job->id == call->op.job && call->op.job != 0;
    call->want_state = call->job->state;
}

/* The counters are what the model counts, and never above max. */
static void check_counts(struct play *play)
{
    for (int i = 0; i < MODEL_NODES; i++) {
        struct lease_node counts = rig_counts(&play->rig, names[i]);

        assert_int_equal(counts.reserved, model_count(&play->model, i, LEASE_RESERVED));
        assert_int_equal(counts.running, model_count(&play->model, i, LEASE_RUNNING));
        assert_true(counts.reserved + counts.running <= counts.max);
        assert_int_equal(counts.epoch, play->model.nodes[i].epoch);
    }
}

static void play_round(struct play *play)
{
    static struct store_due due[JOBS + 1];

    /* So that the counters show what ran out; the model counts what is alive. */
    rig_due(&play->rig, due, COUNT_OF(due));
    model_lapse(&play->model);
    play->sent = play->answered = 0;
    for (; play->sent < ROUND; play->sent++) {
        make_call(play, &play->calls[play->sent]);
        assert_int_equal(store_send(play->rig.store, &play->calls[play->sent].op), ERR_OK);
    }
    while (play->answered < play->sent) {
        desk_wait(&play->rig.desk, 1000);
        inbox_run(&play->rig.desk.inbox);
    }
    check_counts(play);
    arena_reset(&play->rig.arena);
}

static void pass(struct play *play)
{
    unsigned dice = below(play, 100);
    int64_t ms = dice < 60 ? below(play, 400) : dice < 98 ? below(play, 5001) : below(play, 70000);

    rig_jump(ms);
    model_pass(&play->model, ms);
}

static void open_play(struct play *play)
{
    rig_open(&play->rig);
    embedded_check_always(play->rig.store);
}

/* Everything is given back once nobody says anything any more. */
static void wind_down(struct play *play)
{
    static struct store_due due[JOBS + 1];

    for (int i = 0; i < 40; i++) {
        size_t count;

        rig_pass(&play->rig, 4000);
        count = rig_due(&play->rig, due, COUNT_OF(due));
        for (size_t k = 0; k < count; k++) {
            bool waits = due[k].lease == LEASE_NONE && due[k].state != JOB_ACKED &&
                         due[k].state != JOB_DISPATCHED;

            assert_int_equal(rig_finish(&play->rig, waits ? STORE_CANCEL : STORE_EXPIRE, due[k].id,
                                        waits ? 0 : due[k].attempt, NULL, NULL),
                             ERR_OK);
            play->ended += play->rig.op.u.settle.ended_lease;
        }
    }
    for (int i = 0; i < MODEL_NODES; i++) {
        assert_int_equal(rig_counts(&play->rig, names[i]).reserved, 0);
        assert_int_equal(rig_counts(&play->rig, names[i]).running, 0);
    }
}

static void play_all(uint64_t seed, bool restarts)
{
    struct play play = {.next_id = 1};

    playing = &play;
    print_message("seed %llu\n", (unsigned long long)seed);
    rnd_seed(&play.rnd, seed);
    rig_init(&play.rig);
    open_play(&play);
    play.calls = mem_array(struct call, ROUND);
    play.model = (struct model){
        .jobs = mem_array(struct model_job, JOBS), .job_count = JOBS, .now_ms = rig_now_ms()};
    for (int i = 0; i < MODEL_NODES; i++) {
        play.model.nodes[i] = (struct model_node){.max = 1 + i, .epoch = 1};
        assert_int_equal(rig_node(&play.rig, names[i], 1 + i, NODE_READY), ERR_OK);
    }
    for (int i = 0; i < ROUNDS; i++) {
        play_round(&play);
        pass(&play);
        if (!restarts || i % 25)
            continue;
        rig_close(&play.rig);
        model_restart(&play.model);
        open_play(&play);
    }
    wind_down(&play);
    assert_true(play.taken > ROUNDS);
    /* Every reservation ended exactly once. A restart forgets who was told of an end. */
    if (!restarts)
        assert_int_equal(play.taken, play.ended);
    assert_int_equal(rig_repairs(&play.rig), 0);
    free(play.calls);
    free(play.model.jobs);
    rig_done(&play.rig);
}

static uint64_t seed_given(uint64_t otherwise)
{
    const char *text = getenv("STORE_SEED");

    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void test_random_calls(void **state)
{
    play_all(seed_given(1), false);
}

static void test_random_calls_with_restarts(void **state)
{
    play_all(seed_given(2), true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_calls),
        cmocka_unit_test(test_random_calls_with_restarts),
    };

    return cmocka_run_group_tests_name("store/model", tests, NULL, NULL);
}
