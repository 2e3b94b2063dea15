/* The store's rules, implemented a second time. Nothing here calls job_step or lease_*. */
#include "model.h"

#include <assert.h>

enum { GRACE_MS = 15000, AWAY_MS = 5000 };

static int64_t graced(const struct model *model, int64_t until_ms)
{
    bool is_short = until_ms > model->grace_from_ms && until_ms < model->grace_until_ms;

    return is_short ? model->grace_until_ms : until_ms;
}

bool model_alive(const struct model *model, const struct model_job *job)
{
    return job->kind != LEASE_NONE && model->now_ms < job->until_ms;
}

static bool orphaned(const struct model *model, const struct model_job *job)
{
    return job->kind != LEASE_NONE && !job->lapsed && job->epoch != model->nodes[job->node].epoch;
}

const char *const model_keys[MODEL_KEYS] = {"account:a", "account:b", "tenant:c"};

const struct model_demand model_demands[MODEL_DEMANDS] = {
    {"", 1, .keys = {-1, -1}},
    {"2 0 0  ", 2, .keys = {-1, -1}},
    {"1 0 0 cpu=1000,mem_mb=300 ", 1, 1000, 300, .keys = {-1, -1}},
    {"1 0 0 cpu=700 account:a", 1, 700, .keys = {0, -1}},
    {"1 0 0  account:b,tenant:c", 1, .keys = {1, 2}},
    {"2 0 5000 mem_mb=100 tenant:c", 2, 0, 100, 0, 5000, {2, -1}},
    {"1 1 0  account:a,account:b", 1, 0, 0, 1, 0, {0, 1}},
    {"1 1 10000  ", 1, 0, 0, 1, 10000, {-1, -1}},
    {"3 2 0 cpu=100 tenant:c,account:a", 3, 100, 0, 2, 0, {2, 0}},
    {"1 0 9000  account:b", 1, 0, 0, 0, 9000, {1, -1}},
};

static const struct model_demand *demand_of(const struct model_job *job)
{
    return &model_demands[job->demand];
}

static bool has_key(const struct model_job *job, int key)
{
    return demand_of(job)->keys[0] == key || demand_of(job)->keys[1] == key;
}

/* Does the job take anything of this node? */
static bool is_on(const struct model *model, const struct model_job *job, int node)
{
    return job->id && job->kind != LEASE_NONE && job->node == node && model_alive(model, job) &&
           !orphaned(model, job);
}

int32_t model_cpu_left(const struct model *model, int node)
{
    int32_t left = model->nodes[node].cpu;

    for (size_t i = 0; i < model->job_count; i++)
        if (is_on(model, &model->jobs[i], node))
            left -= demand_of(&model->jobs[i])->cpu;
    return left;
}

int32_t model_mem_left(const struct model *model, int node)
{
    int32_t left = model->nodes[node].mem_mb;

    for (size_t i = 0; i < model->job_count; i++)
        if (is_on(model, &model->jobs[i], node))
            left -= demand_of(&model->jobs[i])->mem_mb;
    return left;
}

int32_t model_gpu_left(const struct model *model, int node, int gpu)
{
    int32_t left = model->nodes[node].vram_mb[gpu];

    for (size_t i = 0; i < model->job_count; i++) {
        const struct model_job *job = &model->jobs[i];

        if (!is_on(model, job, node) || !(job->gpus >> gpu & 1))
            continue;
        if (demand_of(job)->gpus)
            return INT32_MIN;
        left -= demand_of(job)->vram_mb;
    }
    return left;
}

/* Chooses GPUs: whole ones beginning with the smaller, or for a share the one that is left with
 * least. */
static bool gpus_fit(const struct model *model, int node, const struct model_demand *demand,
                     unsigned *ret_gpus)
{
    int best = -1, count = 0;

    *ret_gpus = 0;
    if (!demand->gpus && !demand->vram_mb)
        return true;
    for (int i = 0; i < MODEL_GPUS; i++) { /* the second GPU is the larger */
        int32_t left = model_gpu_left(model, node, i);
        int32_t all = model->nodes[node].vram_mb[i];

        if (demand->gpus && count < demand->gpus && left == all && left >= demand->vram_mb) {
            *ret_gpus |= 1u << i;
            count++;
        }
        if (!demand->gpus && left >= demand->vram_mb &&
            (best < 0 || left < model_gpu_left(model, node, best)))
            best = i;
    }
    if (best >= 0)
        *ret_gpus = 1u << best;
    return demand->gpus ? count == demand->gpus : best >= 0;
}

static bool has_room(const struct model *model, int node, const struct model_demand *demand,
                     unsigned *ret_gpus)
{
    *ret_gpus = 0;
    if (!demand->cpu && !demand->mem_mb && !demand->gpus && !demand->vram_mb)
        return true;
    return model->nodes[node].has_resources &&
           (!demand->cpu || model_cpu_left(model, node) >= demand->cpu) &&
           (!demand->mem_mb || model_mem_left(model, node) >= demand->mem_mb) &&
           gpus_fit(model, node, demand, ret_gpus);
}

int model_key_in_flight(const struct model *model, int key)
{
    int count = 0;

    for (size_t i = 0; i < model->job_count; i++) {
        const struct model_job *job = &model->jobs[i];

        count += job->id && job->kind != LEASE_NONE && has_key(job, key) && !job->lapsed &&
                 (model_alive(model, job) || orphaned(model, job));
    }
    return count;
}

int model_key_waiting(const struct model *model, int key)
{
    int count = 0;

    for (size_t i = 0; i < model->job_count; i++)
        count += model->jobs[i].id && model->jobs[i].lane && has_key(&model->jobs[i], key);
    return count;
}

int model_key_started(const struct model *model, int key)
{
    const struct model_key *from = &model->keys[key];
    int count = 0;

    for (int i = 0; i < from->start_count; i++)
        count += model->now_ms - from->starts[i] < from->limit.rate_ms;
    return count;
}

static enum limit_why key_blocks(const struct model *model, int key)
{
    const struct model_key *from = &model->keys[key];

    if (from->hold_ms > model->now_ms)
        return LIMIT_HELD;
    if (from->limit.concurrency >= 0 && model_key_in_flight(model, key) >= from->limit.concurrency)
        return LIMIT_CONCURRENCY;
    if (from->limit.rate >= 0 && model_key_started(model, key) >= from->limit.rate)
        return LIMIT_RATE;
    return LIMIT_OK;
}

static void note_start(struct model *model, int key)
{
    struct model_key *into = &model->keys[key];
    int kept = 0;

    if (into->limit.rate < 0)
        return;
    for (int i = 0; i < into->start_count; i++)
        if (model->now_ms - into->starts[i] < into->limit.rate_ms)
            into->starts[kept++] = into->starts[i];
    assert(kept < MODEL_STARTS);
    into->starts[kept++] = model->now_ms;
    into->start_count = kept;
}

static void undo_start(struct model *model, int key, int64_t at_ms)
{
    struct model_key *from = &model->keys[key];

    for (int i = 0; i < from->start_count; i++)
        if (from->starts[i] == at_ms) {
            from->starts[i] = from->starts[--from->start_count];
            return;
        }
}

int model_count(const struct model *model, int node, enum lease_kind kind)
{
    int count = 0;

    for (size_t i = 0; i < model->job_count; i++) {
        const struct model_job *job = &model->jobs[i];

        if (job->kind == kind && is_on(model, job, node))
            count += demand_of(job)->slots;
    }
    return count;
}

static bool waiting(const struct model_job *job)
{
    return job->state == JOB_NEW || job->state == JOB_SELECTING || job->state == JOB_RETRYING;
}

static bool on_node(const struct model_job *job)
{
    return job->state == JOB_DISPATCHED || job->state == JOB_ACKED;
}

static bool final(const struct model_job *job)
{
    return job->state == JOB_DONE || job->state == JOB_FAILED;
}

static struct model_answer answer(enum err err)
{
    return (struct model_answer){.err = err, .chosen = -1};
}

static struct model_answer duplicate(void)
{
    return (struct model_answer){.duplicate = true, .chosen = -1};
}

static void create(struct model_job *job, uint64_t id)
{
    int max_attempts = job->max_attempts;
    int64_t timeout_ms = job->timeout_ms;
    int demand = job->demand;

    *job = (struct model_job){.id = id,
                              .demand = demand,
                              .state = JOB_NEW,
                              .attempt = 1,
                              .max_attempts = max_attempts,
                              .timeout_ms = timeout_ms,
                              .node = -1};
}

/* The job after `last` in this lane; NULL: the first one. */
static const struct model_job *next_in_lane(const struct model *model, uint64_t lane,
                                            const struct model_job *last)
{
    const struct model_job *best = NULL;

    for (size_t i = 0; i < model->job_count; i++) {
        const struct model_job *job = &model->jobs[i];

        if (job->lane != lane ||
            (last && (job->priority > last->priority ||
                      (job->priority == last->priority && job->id <= last->id))))
            continue;
        if (!best || job->priority > best->priority ||
            (job->priority == best->priority && job->id < best->id))
            best = job;
    }
    return best;
}

size_t model_lane(const struct model *model, uint64_t lane, size_t max,
                  const struct model_job **ret_jobs)
{
    const struct model_job *job = NULL;
    size_t count = 0;

    for (size_t i = 0; i < model->job_count; i++)
        count += model->jobs[i].lane == lane;
    for (size_t i = 0; i < max && i < count; i++)
        ret_jobs[i] = job = next_in_lane(model, lane, job);
    return count;
}

uint64_t model_lane_after(const struct model *model, uint64_t lane)
{
    uint64_t next = 0;

    for (size_t i = 0; i < model->job_count; i++)
        if (model->jobs[i].lane > lane && (!next || model->jobs[i].lane < next))
            next = model->jobs[i].lane;
    return next;
}

static enum err refusal(const struct model *model, const struct model_job *job, uint64_t from,
                        const struct model_wait *wait)
{
    size_t all = 0;

    if (from != wait->lane && wait->lane_max &&
        model_lane(model, wait->lane, 0, NULL) >= (size_t)wait->lane_max)
        return ERR_QUEUE_FULL;
    for (size_t i = 0; i < model->job_count; i++)
        all += model->jobs[i].lane != 0;
    if (!from && wait->all_max && all >= (size_t)wait->all_max)
        return ERR_QUEUES_FULL;
    for (int i = 0; !from && wait->keys && i < 2; i++) {
        int key = demand_of(job)->keys[i];

        if (key >= 0 && model->keys[key].limit.queue >= 0 &&
            model_key_waiting(model, key) >= model->keys[key].limit.queue)
            return ERR_LIMITED;
    }
    return ERR_OK;
}

static void enter(struct model_job *job, const struct model_wait *wait)
{
    job->lane = wait->lane;
    job->priority = wait->priority;
    job->hold_ms = wait->until_ms;
}

struct model_answer model_put(struct model *model, struct model_job *job, uint64_t id,
                              int64_t hold_ms, const struct model_wait *lane)
{
    if (job->id)
        return duplicate();
    if (lane->lane && refusal(model, job, 0, lane))
        return answer(refusal(model, job, 0, lane));
    create(job, id);
    job->hold_ms = model->now_ms + hold_ms;
    if (lane->lane)
        enter(job, lane);
    return answer(ERR_OK);
}

struct model_answer model_wait(struct model *model, struct model_job *job, int attempt,
                               const struct model_wait *lane)
{
    if (!job->id)
        return answer(ERR_NOT_FOUND);
    if (!waiting(job) || attempt != job->attempt + (job->state == JOB_RETRYING))
        return answer(ERR_STALE);
    if (refusal(model, job, job->lane, lane))
        return answer(refusal(model, job, job->lane, lane));
    enter(job, lane);
    return answer(ERR_OK);
}

/* Taking a slot clears the leases that ran out before. */
static void forget_lapsed(struct model *model)
{
    for (size_t i = 0; i < model->job_count; i++) {
        struct model_job *job = &model->jobs[i];

        if (job->id && job->lapsed) {
            job->kind = LEASE_NONE;
            job->lapsed = false;
            job->given_up = true;
        }
    }
}

struct model_answer model_reserve(struct model *model, struct model_job *job, uint64_t id,
                                  int attempt, const int *candidates, int count)
{
    if (!job->id && attempt != 1)
        return answer(ERR_NOT_FOUND);
    if (job->id && on_node(job) && attempt == job->attempt)
        return duplicate();
    if (job->id && (!waiting(job) || attempt != job->attempt + (job->state == JOB_RETRYING)))
        return answer(ERR_STALE);
    for (int i = 0; i < 2; i++) {
        int key = demand_of(job)->keys[i];

        if (key >= 0 && key_blocks(model, key) != LIMIT_OK)
            return (struct model_answer){
                .err = ERR_LIMITED, .chosen = -1, .why = key_blocks(model, key)};
    }
    for (int i = 0; i < count; i++) {
        const struct model_node *node = &model->nodes[candidates[i]];
        unsigned gpus;

        if (model_count(model, candidates[i], LEASE_RESERVED) +
                model_count(model, candidates[i], LEASE_RUNNING) + demand_of(job)->slots >
            node->max)
            continue;
        if (!has_room(model, candidates[i], demand_of(job), &gpus))
            continue;
        forget_lapsed(model);
        if (!job->id)
            create(job, id);
        job->state = JOB_DISPATCHED;
        job->attempt = attempt;
        job->lane = 0;
        job->node = candidates[i];
        job->kind = LEASE_RESERVED;
        job->reserved_ms = model->now_ms;
        job->epoch = node->epoch;
        job->until_ms = model->now_ms + MODEL_TTL_MS;
        job->run_until_ms = 0;
        job->gpus = gpus;
        job->started_ms = model->now_ms;
        for (int k = 0; k < 2; k++)
            if (demand_of(job)->keys[k] >= 0)
                note_start(model, demand_of(job)->keys[k]);
        return (struct model_answer){.chosen = candidates[i]};
    }
    return answer(ERR_ALL_FULL);
}

struct model_answer model_commit(struct model *model, struct model_job *job, int attempt, int node,
                                 int64_t stop_grace_ms)
{
    bool here = on_node(job) && attempt == job->attempt && node == job->node;

    if (!job->id)
        return answer(ERR_NOT_FOUND);
    if (!here || !model_alive(model, job))
        return answer(ERR_STALE);
    if (orphaned(model, job))
        return answer(ERR_STALE);
    if (job->state == JOB_ACKED)
        return duplicate();
    job->state = JOB_ACKED;
    job->kind = LEASE_RUNNING;
    job->until_ms = model->now_ms + MODEL_RUN_MS;
    if (job->timeout_ms) {
        job->run_until_ms = model->now_ms + job->timeout_ms + stop_grace_ms;
        if (job->until_ms > job->run_until_ms)
            job->until_ms = job->run_until_ms;
    }
    job->until_ms = graced(model, job->until_ms);
    job->run_until_written_ms = job->run_until_ms;
    return answer(ERR_OK);
}

static void end_attempt(struct model_job *job, enum job_event how)
{
    assert(job->ended_count < MODEL_ENDED);
    job->ended[job->ended_count].attempt = job->attempt;
    job->ended[job->ended_count].node = job->node;
    job->ended[job->ended_count++].how = how;
    job->kind = LEASE_NONE;
    job->lapsed = false;
    job->given_up = false;
}

static bool ended_so(const struct model_job *job, int attempt, int node, enum job_event how)
{
    for (int i = 0; i < job->ended_count; i++)
        if (job->ended[i].attempt == attempt && job->ended[i].how == how &&
            (node < 0 || job->ended[i].node == node))
            return true;
    return false;
}

static void wait_again(struct model *model, struct model_job *job, enum job_state state,
                       int64_t hold_ms)
{
    job->state = state;
    job->lane = 0;
    job->hold_ms = model->now_ms + hold_ms;
    if (state != JOB_SELECTING)
        return;
    job->node = -1;
    job->gpus = 0;
}

static void retry_or_fail(struct model *model, struct model_job *job, enum store_outcome outcome,
                          int64_t hold_ms)
{
    if (job->attempt < job->max_attempts) {
        wait_again(model, job, JOB_RETRYING, hold_ms);
    } else {
        job->state = JOB_FAILED;
        job->ended_by = outcome;
    }
}

static struct model_answer finish_by_node(struct model *model, struct model_job *job,
                                          enum store_outcome outcome, int attempt, int node,
                                          bool left, int64_t hold_ms)
{
    static const enum job_event events[] = {[STORE_DONE] = JOB_EV_DONE,
                                            [STORE_FAIL] = JOB_EV_FAIL,
                                            [STORE_REFUSED] = JOB_EV_REFUSED,
                                            [STORE_SEND_FAILED] = JOB_EV_SEND_FAILED};
    enum job_event how = events[outcome];
    bool here = attempt == job->attempt && node == job->node && model_alive(model, job);
    bool gives_up = outcome == STORE_REFUSED || outcome == STORE_SEND_FAILED;

    if (here && final(job) && !gives_up) {
        end_attempt(job, how); /* the end of a run that was cancelled */
        return answer(ERR_OK);
    }
    if (!here || final(job) || (gives_up && job->state != JOB_DISPATCHED))
        return ended_so(job, attempt, node, how) ? duplicate() : answer(ERR_STALE);
    end_attempt(job, how);
    if (outcome == STORE_FAIL) {
        retry_or_fail(model, job, outcome, hold_ms);
    } else if (gives_up && left) {
        wait_again(model, job, JOB_SELECTING, hold_ms);
    } else {
        job->state = outcome == STORE_DONE ? JOB_DONE : JOB_FAILED;
        job->ended_by = outcome;
    }
    return answer(ERR_OK);
}

static struct model_answer expire(struct model *model, struct model_job *job, int attempt,
                                  int64_t hold_ms)
{
    bool due = !model_alive(model, job) || orphaned(model, job);
    enum job_event how = job->state == JOB_DISPATCHED ? JOB_EV_ACK_TIMEOUT : JOB_EV_RUN_TIMEOUT;

    if (attempt == job->attempt && due && job->state == JOB_DISPATCHED &&
        job->attempt >= job->max_attempts && job->reserved_ms < model->since_ms) {
        end_attempt(job, JOB_EV_SEND_FAILED); /* the job may never have been sent */
        wait_again(model, job, JOB_SELECTING, hold_ms);
        return answer(ERR_OK);
    }
    if (attempt == job->attempt && due && on_node(job)) {
        end_attempt(job, how);
        retry_or_fail(model, job, STORE_EXPIRE, hold_ms);
        return answer(ERR_OK);
    }
    if (attempt == job->attempt && due && final(job) &&
        (job->kind != LEASE_NONE || job->given_up)) {
        end_attempt(job, how);
        return answer(ERR_OK);
    }
    if (ended_so(job, attempt, -1, JOB_EV_ACK_TIMEOUT) ||
        ended_so(job, attempt, -1, JOB_EV_RUN_TIMEOUT))
        return duplicate();
    return answer(ERR_STALE);
}

static struct model_answer end_job(struct model *model, struct model_job *job,
                                   enum store_outcome outcome)
{
    if (final(job))
        return job->state == JOB_FAILED && job->ended_by == (int)outcome ? duplicate()
                                                                         : answer(ERR_STALE);
    if (outcome != STORE_CANCEL && outcome != STORE_ABANDON && !waiting(job))
        return answer(ERR_STALE);
    if (outcome == STORE_QUEUE_TIMEOUT && (!job->lane || job->hold_ms > model->now_ms))
        return answer(ERR_STALE);
    job->lane = 0;
    if (on_node(job) && (job->state == JOB_DISPATCHED || !model_alive(model, job)))
        end_attempt(job, JOB_EV_CANCEL);
    if (outcome == STORE_NO_CANDIDATE && job->state == JOB_RETRYING)
        job->attempt++;
    job->state = JOB_FAILED;
    job->ended_by = outcome;
    job->run_until_written_ms = job->run_until_ms;
    return answer(ERR_OK);
}

/* The keys of an ended attempt for which waiting jobs may start. */
static unsigned freed_keys(const struct model *model, const struct model_job *job)
{
    unsigned freed = 0;

    for (int i = 0; i < 2; i++) {
        int key = demand_of(job)->keys[i];

        if (key >= 0 && model_key_waiting(model, key) > 0 && key_blocks(model, key) == LIMIT_OK)
            freed |= 1u << key;
    }
    return freed;
}

struct model_answer model_finish(struct model *model, struct model_job *job,
                                 enum store_outcome outcome, int attempt, int node, bool left,
                                 int64_t hold_ms, int hold_key, int64_t hold_key_ms)
{
    int ended = job->ended_count, max_attempts = job->max_attempts;
    bool gives_back =
        job->state == JOB_DISPATCHED &&
        (outcome == STORE_REFUSED || outcome == STORE_SEND_FAILED || outcome == STORE_ABANDON);
    bool was_final = final(job);
    struct model_answer got;

    if (!job->id)
        return answer(ERR_NOT_FOUND);
    if (hold_key >= 0 && job->max_attempts < JOB_ATTEMPTS_MAX)
        job->max_attempts++;
    if (outcome == STORE_EXPIRE)
        got = expire(model, job, attempt, hold_ms);
    else if (outcome <= STORE_SEND_FAILED)
        got = finish_by_node(model, job, outcome, attempt, node, left, hold_ms);
    else
        got = end_job(model, job, outcome);
    if (got.err || got.duplicate || was_final)
        job->max_attempts = max_attempts;
    if (job->ended_count == ended)
        return got;
    if (hold_key >= 0 && model->keys[hold_key].hold_ms < model->now_ms + hold_key_ms)
        model->keys[hold_key].hold_ms = model->now_ms + hold_key_ms;
    for (int i = 0; gives_back && i < 2; i++)
        if (demand_of(job)->keys[i] >= 0)
            undo_start(model, demand_of(job)->keys[i], job->started_ms);
    got.freed = freed_keys(model, job);
    return got;
}

void model_new_epoch(struct model *model, int node, bool keeps_runs)
{
    uint32_t before = model->nodes[node].epoch++;

    for (size_t i = 0; keeps_runs && i < model->job_count; i++) {
        struct model_job *job = &model->jobs[i];

        if (!job->id || job->node != node || job->kind != LEASE_RUNNING || job->lapsed ||
            job->epoch != before)
            continue;
        job->epoch = model->nodes[node].epoch;
        job->run_until_written_ms = job->run_until_ms;
    }
}

void model_renew(struct model *model, int node)
{
    for (size_t i = 0; i < model->job_count; i++) {
        struct model_job *job = &model->jobs[i];
        int64_t until_ms = model->now_ms + MODEL_RUN_MS;

        if (!job->id || job->kind != LEASE_RUNNING || job->node != node ||
            !model_alive(model, job) || orphaned(model, job))
            continue;
        if (job->run_until_ms && until_ms > job->run_until_ms)
            until_ms = job->run_until_ms;
        until_ms = graced(model, until_ms);
        if (until_ms > job->until_ms)
            job->until_ms = until_ms;
    }
}

/* The store was away: no time passed for its terms, and running leases get a grace period. */
static void freeze(struct model *model, int64_t ms)
{
    for (int i = 0; i < MODEL_KEYS; i++) {
        model->keys[i].hold_ms += ms;
        for (int k = 0; k < model->keys[i].start_count; k++)
            model->keys[i].starts[k] += ms;
    }
    model->since_ms = model->now_ms;
    model->grace_from_ms += ms;
    model->grace_until_ms += ms;
    if (model->now_ms >= model->grace_until_ms)
        model->grace_from_ms = model->now_ms;
    if (model->grace_until_ms < model->now_ms + GRACE_MS)
        model->grace_until_ms = model->now_ms + GRACE_MS;
    for (size_t i = 0; i < model->job_count; i++) {
        struct model_job *job = &model->jobs[i];

        if (!job->id)
            continue;
        job->hold_ms += ms;
        job->until_ms += ms;
        job->started_ms += ms;
        if (job->run_until_ms)
            job->run_until_ms += ms;
        if (job->kind == LEASE_RUNNING)
            job->until_ms = graced(model, job->until_ms);
    }
}

void model_pass(struct model *model, int64_t ms)
{
    model->now_ms += ms;
    if (ms > AWAY_MS)
        freeze(model, ms);
}

void model_lapse(struct model *model)
{
    for (size_t i = 0; i < model->job_count; i++) {
        struct model_job *job = &model->jobs[i];

        if (job->id && job->kind != LEASE_NONE && !model_alive(model, job) && !orphaned(model, job))
            job->lapsed = true;
    }
}

void model_restart(struct model *model)
{
    model->since_ms = model->now_ms;
    model->grace_from_ms = model->grace_until_ms = 0;
    for (size_t i = 0; i < model->job_count; i++) {
        struct model_job *job = &model->jobs[i];

        job->given_up = false;
        job->lapsed = false;
        job->started_ms = job->reserved_ms;
        job->run_until_ms = job->run_until_written_ms;
        if (waiting(job) && !job->lane)
            job->hold_ms = model->now_ms;
        if (job->id && job->kind == LEASE_RESERVED)
            job->until_ms = model->now_ms + MODEL_TTL_MS;
        if (!job->id || job->kind != LEASE_RUNNING)
            continue;
        job->until_ms = model->now_ms + MODEL_RUN_MS;
        if (job->run_until_ms && job->run_until_ms < model->now_ms + GRACE_MS)
            job->run_until_ms = model->now_ms + GRACE_MS;
        if (job->run_until_ms && job->until_ms > job->run_until_ms)
            job->until_ms = job->run_until_ms;
    }
}
