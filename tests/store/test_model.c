/* Hundreds of thousands of random calls, each compared with the model: the answer, the state of the
 * job, and after each round what every node holds. */
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
    ROUND = 128, /* calls in flight at once; they reach the store in this order */
    ROUNDS = 1200,
    HOLD_MS = 15000,
    STOP_GRACE_MS = 1000,
    REFUSALS_MAX = MODEL_ENDED - 8,
    LANES = 5,
    LANE_MAX = 3,
    ALL_MAX = 6,
    SHOWN_MAX = 8,
    ATTEMPTS_MAX = 5, /* a FAIL that holds a key may add attempts */
    VRAM_SMALL = 8000,
    VRAM_LARGE = 16000,
};

static const char *const names[MODEL_NODES] = {"n0", "n1", "n2", "n3", "n4", "n5"};

enum { RESOURCES_ROOM = 96 };

struct call {
    struct store_op op;
    /* Outside the arena, which belongs to the store while a call is in flight. */
    char resources[RESOURCES_ROOM];
    struct model_job *job;
    struct model_answer want;
    enum job_state want_state; /* of a job that exists afterwards, and where it waits */
    uint64_t want_lane;
    int64_t want_until_ms;
    bool has_job;
    unsigned want_gpus;
    size_t shown_count; /* what LANE or LANES must answer */
    size_t waiting;
    struct store_lane shown[SHOWN_MAX];
    bool more;
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
    int64_t waited;    /* WAITs that put a job into a lane */
    int64_t refused;   /* by a full lane */
    int64_t timed_out; /* in a lane */
    int64_t from_lane; /* reserved out of a lane */
    int64_t limited[LIMIT_WHY_COUNT];
    int64_t short_of; /* refused only for lack of resources */
    int64_t freed;
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
    return (op->verb == STORE_ACK || op->verb == STORE_FINISH) && op->u.settle.duplicate;
}

/* Compares the answer of LANE or LANES. */
static void compare_shown(const struct call *call)
{
    const struct store_op *op = &call->op;
    bool is_lane = op->verb == STORE_LANE;

    assert_int_equal(is_lane ? op->u.lane.count : op->u.lanes.count, call->shown_count);
    if (is_lane)
        assert_int_equal(op->u.lane.waiting, call->waiting);
    else
        assert_int_equal(op->u.lanes.more, call->more);
    for (size_t i = 0; i < call->shown_count; i++) {
        const struct store_lane *want = &call->shown[i];

        if (is_lane) {
            assert_int_equal(op->u.lane.items[i].head.id, want->first);
            assert_int_equal(op->u.lane.items[i].head.priority, want->priority);
            assert_true(str_is(op->u.lane.items[i].spec, "{}"));
        } else {
            assert_true(op->u.lanes.items[i].lane == want->lane);
            assert_int_equal(op->u.lanes.items[i].count, want->count);
            assert_int_equal(op->u.lanes.items[i].first, want->first);
            assert_int_equal(op->u.lanes.items[i].priority, want->priority);
        }
    }
}

static unsigned freed_of(const struct store_op *op)
{
    unsigned freed = 0;

    for (int i = 0; i < op->u.settle.freed_count; i++)
        for (int key = 0; key < MODEL_KEYS; key++)
            if (op->u.settle.freed[i] == str_hash(str_of(model_keys[key])))
                freed |= 1u << key;
    return freed;
}

static void compare_keys(const struct store_op *op, const struct model_answer *want)
{
    if (op->verb == STORE_RESERVE) {
        assert_int_equal(op->u.put.block.why, want->why);
        playing->limited[want->why]++;
        for (size_t i = 0; op->err == ERR_ALL_FULL && i < op->u.put.candidate_count; i++)
            playing->short_of += op->u.put.candidates[i].why == LEASE_RESOURCES;
    }
    if (op->verb == STORE_FINISH && op->err != ERR_NOT_FOUND) {
        assert_int_equal(freed_of(op), want->freed);
        playing->freed += op->u.settle.freed_count;
    }
    if (op->verb == STORE_PUT || op->verb == STORE_WAIT) {
        enum limit_why why = op->verb == STORE_PUT ? op->u.put.block.why : op->u.wait.block.why;

        assert_int_equal(why, op->err == ERR_LIMITED ? LIMIT_QUEUE : LIMIT_OK);
        playing->limited[LIMIT_QUEUE] += op->err == ERR_LIMITED;
    }
}

static void compare(struct store_op *op)
{
    struct call *call = container_of(op, struct call, op);

    playing->answered++;
    if (op->verb == STORE_LANE || op->verb == STORE_LANES)
        compare_shown(call);
    if (op->err != call->want.err || is_duplicate(op) != call->want.duplicate)
        fail_msg("verb %d outcome %d job %llu attempt %d: %s%s, not %s%s", op->verb,
                 op->verb == STORE_FINISH ? (int)op->u.settle.outcome : -1,
                 (unsigned long long)op->job, op->attempt, err_name(op->err),
                 is_duplicate(op) ? " (duplicate)" : "", err_name(call->want.err),
                 call->want.duplicate ? " (duplicate)" : "");
    compare_keys(op, &call->want);
    if (call->has_job) {
        assert_int_equal(op->head.id, op->job);
        assert_true(op->head.gpus == call->want_gpus);
        assert_string_equal(job_state_name(op->head.state), job_state_name(call->want_state));
        assert_true(op->head.lane == call->want_lane);
        if (call->want_lane)
            assert_int_equal(op->head.due_ms, call->want_until_ms);
    }
    if (op->verb == STORE_RESERVE && !op->err && !op->u.put.duplicate) {
        assert_string_equal(op->head.node, names[call->want.chosen]);
        playing->taken++;
    }
    if (op->verb == STORE_FINISH && !op->err)
        playing->ended += op->u.settle.ended_lease;
}

/* Now and then replaces a job that is over by a new one. */
static struct model_job *pick(struct play *play)
{
    struct model_job *job = &play->model.jobs[below(play, JOBS)];

    if (job->id && (job->state == JOB_DONE || job->state == JOB_FAILED) &&
        job->kind == LEASE_NONE && !job->given_up && below(play, 4) == 0)
        *job = (struct model_job){.node = -1};
    if (!job->id) {
        job->max_attempts = 1 + (int)below(play, 3);
        job->timeout_ms = below(play, 3) ? 0 : 20000;
        job->demand = below(play, 2) ? 0 : (int)below(play, MODEL_DEMANDS);
    }
    return job;
}

static uint64_t id_of(struct play *play, const struct model_job *job)
{
    return job->id ? job->id : play->next_id++;
}

/* Mostly the attempt that fits now, sometimes another. */
static int some_attempt(struct play *play, const struct model_job *job)
{
    return below(play, 8) ? job->attempt : 1 + (int)below(play, 3);
}

static int some_node(struct play *play, const struct model_job *job)
{
    return job->node >= 0 && below(play, 8) ? job->node : (int)below(play, MODEL_NODES);
}

static uint64_t some_lane(struct play *play)
{
    static const uint64_t lanes[LANES] = {1, 2, 77, UINT64_C(1) << 63, UINT64_MAX};

    return lanes[below(play, LANES)];
}

static struct model_wait some_wait(struct play *play)
{
    return (struct model_wait){.lane = some_lane(play),
                               .priority = (int)below(play, 3),
                               .until_ms = play->model.now_ms + below(play, 4 * HOLD_MS),
                               .lane_max = below(play, 4) ? LANE_MAX : 0,
                               .all_max = below(play, 2) ? ALL_MAX : 0,
                               .keys = below(play, 2) != 0};
}

static void call_put(struct play *play, struct call *call)
{
    struct model_wait wait = below(play, 4) ? some_wait(play) : (struct model_wait){0};
    struct model_job *job = call->job;
    struct store_op *op = &call->op;

    op->verb = STORE_PUT;
    op->job = id_of(play, job);
    op->attempt = 1;
    op->u.put.spec = STR("{}");
    op->u.put.demand = str_of(model_demands[job->demand].text);
    op->u.put.max_attempts = job->max_attempts;
    op->u.put.timeout_ms = job->timeout_ms;
    op->u.put.owner = 1;
    op->u.put.hold_ms = HOLD_MS;
    op->u.put.lane = wait.lane;
    op->u.put.priority = wait.priority;
    op->u.put.wait_ms = wait.until_ms - play->model.now_ms;
    op->u.put.bounds.lane_max = wait.lane_max;
    op->u.put.bounds.all_max = wait.all_max;
    op->u.put.bounds.keys = wait.keys;
    call->want = model_put(&play->model, job, op->job, HOLD_MS, &wait);
    play->refused += call->want.err == ERR_QUEUE_FULL || call->want.err == ERR_QUEUES_FULL;
}

/* Mostly a job that is held. */
static void call_wait(struct play *play, struct call *call)
{
    struct model_wait wait = some_wait(play);
    struct store_op *op = &call->op;

    for (int i = 0; i < 8 && (call->job->state == JOB_ACKED || call->job->lane); i++)
        call->job = pick(play);
    op->verb = STORE_WAIT;
    op->job = id_of(play, call->job);
    op->attempt = below(play, 10) ? call->job->attempt + (call->job->state == JOB_RETRYING)
                                  : 1 + (int)below(play, 3);
    op->u.wait.lane = wait.lane;
    op->u.wait.priority = wait.priority;
    op->u.wait.wait_ms = wait.until_ms - play->model.now_ms;
    op->u.wait.bounds.lane_max = wait.lane_max;
    op->u.wait.bounds.all_max = wait.all_max;
    op->u.wait.bounds.keys = wait.keys;
    call->want = model_wait(&play->model, call->job, op->attempt, &wait);
    play->waited += call->want.err == ERR_OK;
    play->refused += call->want.err == ERR_QUEUE_FULL || call->want.err == ERR_QUEUES_FULL;
}

static void call_lane(struct play *play, struct call *call)
{
    const struct model_job *jobs[SHOWN_MAX];
    struct store_op *op = &call->op;

    op->verb = STORE_LANE;
    op->u.lane.lane = some_lane(play);
    op->u.lane.max = below(play, SHOWN_MAX + 1);
    call->waiting = model_lane(&play->model, op->u.lane.lane, op->u.lane.max, jobs);
    call->shown_count = call->waiting < op->u.lane.max ? call->waiting : op->u.lane.max;
    for (size_t i = 0; i < call->shown_count; i++)
        call->shown[i] = (struct store_lane){.first = jobs[i]->id, .priority = jobs[i]->priority};
}

static void call_lanes(struct play *play, struct call *call)
{
    struct store_op *op = &call->op;
    uint64_t lane = below(play, 2) ? 0 : some_lane(play);

    op->verb = STORE_LANES;
    op->u.lanes.after = lane;
    op->u.lanes.max = 1 + below(play, LANES);
    while ((lane = model_lane_after(&play->model, lane)) && call->shown_count < op->u.lanes.max) {
        const struct model_job *first;
        size_t count = model_lane(&play->model, lane, 1, &first);

        call->shown[call->shown_count++] = (struct store_lane){
            .lane = lane, .count = (int64_t)count, .first = first->id, .priority = first->priority};
    }
    call->more = lane != 0;
}

static void call_reserve(struct play *play, struct call *call)
{
    struct model_job *job = call->job;
    struct store_op *op = &call->op;
    bool in_lane = job->lane != 0;
    int attempt = job->id ? job->attempt + (job->state == JOB_RETRYING) : 1;
    int candidates[STORE_CANDIDATES_MAX];

    op->verb = STORE_RESERVE;
    op->job = id_of(play, job);
    op->attempt = below(play, 10) ? attempt : 1 + (int)below(play, 3);
    op->u.put.spec = STR("{}");
    op->u.put.demand = str_of(model_demands[job->demand].text);
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
    play->from_lane += in_lane && !job->lane;
}

static void call_commit(struct play *play, struct call *call)
{
    struct model_job *job = call->job;
    struct store_op *op = &call->op;
    int node = some_node(play, job);

    op->verb = STORE_ACK;
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
    struct store_op *op = &call->op;
    struct model_job *job;
    enum store_outcome outcome = often[below(play, COUNT_OF(often))];
    bool by_node = outcome <= STORE_SEND_FAILED;
    int hold_key = -1;
    int node;

    for (int i = 0; i < 8 && outcome == STORE_QUEUE_TIMEOUT && !call->job->lane; i++)
        call->job = pick(play);
    job = call->job;
    node = some_node(play, job);
    if (job->ended_count >= REFUSALS_MAX &&
        (outcome == STORE_REFUSED || outcome == STORE_SEND_FAILED))
        outcome = STORE_DONE; /* the history of attempts is bounded, in the model too */
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
    if (outcome == STORE_FAIL && job->max_attempts < ATTEMPTS_MAX && below(play, 4) == 0)
        hold_key = model_demands[job->demand].keys[below(play, 2)];
    if (hold_key >= 0) {
        op->u.settle.hold_key = str_of(model_keys[hold_key]);
        op->u.settle.hold_key_ms = 1 + below(play, HOLD_MS);
    }
    call->want =
        model_finish(&play->model, job, outcome, op->attempt, node, op->u.settle.candidates_left,
                     HOLD_MS, hold_key, op->u.settle.hold_key_ms);
    play->timed_out += outcome == STORE_QUEUE_TIMEOUT && !call->want.err && !call->want.duplicate;
}

/* Usable amounts: anything up to what the node declares. The first node declares nothing. */
static struct str some_resources(struct play *play, char to[RESOURCES_ROOM], int at)
{
    struct model_node *node = &play->model.nodes[at];
    int32_t all = 1000 * (at + 1);

    if (at == 0)
        return STR("");
    node->has_resources = true;
    node->cpu = below(play, 2) ? all : (int32_t)below(play, (unsigned)all + 1);
    node->mem_mb = below(play, 2) ? all / 2 : (int32_t)below(play, (unsigned)all / 2 + 1);
    node->vram_mb[0] = VRAM_SMALL;
    node->vram_mb[1] = VRAM_LARGE;
    snprintf(to, RESOURCES_ROOM, "cpu=%d/%d,mem_mb=%d/%d 0=%d/%d,3=%d/%d", all, node->cpu, all / 2,
             node->mem_mb, VRAM_SMALL, VRAM_SMALL, VRAM_LARGE, VRAM_LARGE);
    return str_of(to);
}

/* Rates keep their first value; the contract tests changes of them. */
static void call_limit(struct play *play, struct call *call)
{
    int at = (int)below(play, MODEL_KEYS);
    struct model_key *key = &play->model.keys[at];
    struct store_op *op = &call->op;

    op->u.limit.pattern = str_of(model_keys[at]);
    if (below(play, 2)) {
        op->verb = STORE_LIMIT_HOLD;
        op->u.limit.hold_ms = below(play, 2) ? 0 : 1 + below(play, 6000);
        key->hold_ms = op->u.limit.hold_ms ? play->model.now_ms + op->u.limit.hold_ms : 0;
        return;
    }
    op->verb = STORE_LIMIT_SET;
    key->limit.concurrency = below(play, 3) ? 1 + (int32_t)below(play, 4) : LIMIT_NONE;
    key->limit.queue = below(play, 2) ? (int32_t)below(play, 4) : LIMIT_NONE;
    op->u.limit.limit = key->limit;
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
    if (below(play, 4) == 0)
        op->u.node_put.resources = some_resources(play, call->resources, at);
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
    call->op.reply_to = &play->rig.work_queue.inbox;
    call->op.done = compare;
    call->op.arena = &play->rig.arena;
    if (dice < 30)
        call_reserve(play, call);
    else if (dice < 47)
        call_commit(play, call);
    else if (dice < 80)
        call_finish(play, call);
    else if (dice < 85)
        call_put(play, call);
    else if (dice < 91)
        call_wait(play, call);
    else if (dice < 93)
        call_lane(play, call);
    else if (dice < 95)
        call_lanes(play, call);
    else if (dice < 96)
        call_limit(play, call);
    else
        call_node(play, call);
    call->has_job = dice < 91 && call->job->id == call->op.job && call->op.job != 0;
    call->want_state = call->job->state;
    /* The second GPU has the id 3. */
    call->want_gpus = (call->job->gpus & 1) | (call->job->gpus & 2) << 2;
    call->want_lane = call->job->lane;
    call->want_until_ms = call->job->hold_ms;
}

/* The counters match the model and never exceed max. */
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

static void check_resources(struct play *play)
{
    struct store_op op = {.verb = STORE_COUNTS};

    assert_int_equal(rig_call(&play->rig, &op), ERR_OK);
    for (size_t i = 0; i < op.u.nodes.count; i++) {
        const struct resources_left *left = &op.u.nodes.items[i].left;
        int node = op.u.nodes.items[i].id.at[1] - '0';

        assert_int_equal(left->count, play->model.nodes[node].has_resources ? 2 : 0);
        if (!left->count)
            continue;
        assert_int_equal(left->left[0], model_cpu_left(&play->model, node));
        assert_int_equal(left->left[1], model_mem_left(&play->model, node));
        for (int gpu = 0; gpu < MODEL_GPUS; gpu++) {
            assert_int_equal(left->gpu_left[gpu], model_gpu_left(&play->model, node, gpu));
            assert_true(left->gpu_left[gpu] >= 0 || left->gpu_left[gpu] == RESOURCES_LEFT_WHOLE);
        }
    }
}

static void check_keys(struct play *play)
{
    struct store_op op = {.verb = STORE_LIMITS};
    int listed = 0;

    op.u.limits.max = 2 * MODEL_KEYS;
    assert_int_equal(rig_call(&play->rig, &op), ERR_OK);
    for (int key = 0; key < MODEL_KEYS; key++) {
        int64_t hold_ms = play->model.keys[key].hold_ms - play->model.now_ms;
        struct store_limit_key shown = {0};

        for (size_t i = 0; i < op.u.limits.key_count; i++)
            if (str_is(op.u.limits.keys[i].key, model_keys[key]))
                shown = op.u.limits.keys[i];
        listed += shown.key.at != NULL;
        assert_int_equal(shown.in_flight, model_key_in_flight(&play->model, key));
        assert_int_equal(shown.waiting, model_key_waiting(&play->model, key));
        assert_int_equal(shown.hold_ms, hold_ms > 0 ? hold_ms : 0);
        assert_int_equal(shown.started, play->model.keys[key].limit.rate == LIMIT_NONE
                                            ? 0
                                            : model_key_started(&play->model, key));
    }
    assert_int_equal(op.u.limits.key_count, listed);
}

static void play_round(struct play *play)
{
    static struct store_due due[JOBS + 1];

    /* Clears expired leases, so that the counters show only live ones, as the model's do. */
    rig_due(&play->rig, due, COUNT_OF(due));
    model_lapse(&play->model);
    play->sent = play->answered = 0;
    for (; play->sent < ROUND; play->sent++) {
        make_call(play, &play->calls[play->sent]);
        assert_int_equal(store_send(play->rig.store, &play->calls[play->sent].op), ERR_OK);
    }
    while (play->answered < play->sent) {
        work_queue_wait(&play->rig.work_queue, 1000);
        inbox_run(&play->rig.work_queue.inbox);
    }
    check_counts(play);
    check_resources(play);
    check_keys(play);
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

/* Everything is given back once no more messages come. */
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
            enum store_outcome outcome = due[k].lane ? STORE_QUEUE_TIMEOUT
                                         : waits     ? STORE_CANCEL
                                                     : STORE_EXPIRE;

            assert_int_equal(
                rig_finish(&play->rig, outcome, due[k].id, waits ? 0 : due[k].attempt, NULL, NULL),
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
    char resources[RESOURCES_ROOM];

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
        play.rig.op.u.node_put.resources = some_resources(&play, resources, i);
        assert_int_equal(rig_call(&play.rig, &play.rig.op), ERR_OK);
    }
    for (int i = 0; i < MODEL_KEYS; i++) {
        struct store_op op = {.verb = STORE_LIMIT_SET};

        play.model.keys[i].limit = limit_none;
        if (i == 1) {
            play.model.keys[i].limit.rate = 5;
            play.model.keys[i].limit.rate_ms = 10000;
        }
        op.u.limit.pattern = str_of(model_keys[i]);
        op.u.limit.limit = play.model.keys[i].limit;
        assert_int_equal(rig_call(&play.rig, &op), ERR_OK);
    }
    for (int i = 0; i < ROUNDS; i++) {
        play_round(&play);
        pass(&play);
        if (!restarts || i % 25)
            continue;
        rig_counts(&play.rig, names[0]); /* ends the pause before the store is closed */
        rig_close(&play.rig);
        model_restart(&play.model);
        open_play(&play);
    }
    wind_down(&play);
    assert_true(play.taken > ROUNDS);
    assert_true(play.waited > ROUNDS / 4 && play.timed_out > ROUNDS / 40);
    assert_true(play.from_lane > ROUNDS / 4 && play.refused > ROUNDS / 40);
    for (int why = LIMIT_OK; why < LIMIT_WHY_COUNT; why++)
        assert_true(play.limited[why] > ROUNDS / 40);
    assert_true(play.short_of > ROUNDS / 40 && play.freed > ROUNDS / 40);
    /* Every reservation ended exactly once. A restart forgets which ends were answered. */
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
