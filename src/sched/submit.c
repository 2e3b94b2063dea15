/* Submitting: a dispatch, then the way into a lane of the queue. If a job is refused but the store
 * has it, or may have it, it is ended before its client is refused, or by the keeper. */
#include "sched/submit.h"

#include <assert.h>

#include "base/metrics.h"
#include "sched/candidates.h"
#include "sched/keeper.h"
#include "sched/settle.h"

struct submit *submit_new(struct sched_loop *loop, struct arena *arena, const struct spec *spec,
                          const struct quota *quota)
{
    struct submit *submit = arena_new(arena, struct submit);
    struct dispatch *dispatch = dispatch_new(arena);

    submit->dispatch = dispatch;
    if (quota)
        submit->quota = *quota;
    dispatch->loop = loop;
    dispatch->spec = *spec;
    dispatch->job = job_id_next(*loop->wall_ms, store_number(loop->sched->store));
    dispatch->attempt = 1;
    dispatch->max_attempts =
        (int)(spec->max_attempts != FIELD_OFF ? spec->max_attempts
                                              : loop->sched->config.max_attempts);
    return submit;
}

static void submit_over(struct submit *submit, enum err err)
{
    assert(submit->done && (!err || submit->why.err == err) && !(err && submit->queued));
    submit->err = err;
    submit->done(submit);
}

/* The job is in its lane now. */
static void finish_queued(struct submit *submit, struct store_record *record)
{
    struct dispatch *dispatch = submit->dispatch;
    struct sched *sched = dispatch->loop->sched;
    struct settle_note note = {.head = &dispatch->head, .event = "queued"};

    assert(record->head.id == dispatch->job && record->head.lane);
    record->spec = dispatch->spec.json;
    record->idem = dispatch->idem;
    record->fingerprint = dispatch->fingerprint;
    keeper_continue(sched->keeper, record);
    sched->hooks->noted(dispatch->loop, &note);
    submit->queued = true;
    submit_over(submit, ERR_OK);
}

/* The store did not accept it. If the store may have it all the same, the keeper ends it; since
 * this process may die first, the client is told that the job may run. */
static void submit_failed(struct submit *submit, enum err err)
{
    struct dispatch *dispatch = submit->dispatch;

    if (store_is_away(err) && (dispatch->exists || err == ERR_UNKNOWN)) {
        keeper_abandon(dispatch->loop->sched->keeper, dispatch->job, dispatch->spec.json);
        err = ERR_UNKNOWN;
    }
    err = dispatch_refuse(dispatch, err);
    submit->why = dispatch->why;
    submit_over(submit, err);
}

static struct store_bounds bounds_of(const struct submit *submit)
{
    const struct sched_config *config = &submit->dispatch->loop->sched->config;
    struct store_bounds bounds = {.lane_max = config->queue_max,
                                  .all_max = config->queue_total_max,
                                  .account = spec_account(&submit->dispatch->spec),
                                  .keys = true};

    bounds.account.jobs_max = submit->quota.waiting;
    bounds.account.bytes_max = submit->quota.bytes;
    return bounds;
}

/* Does one of the bounds keep it from waiting? Then submit->why says which. */
static bool is_out_of_bounds(struct submit *submit, const struct store_op *op)
{
    struct store_bounds bounds = bounds_of(submit);
    enum err err = op->err;

    if (err == ERR_LIMITED) {
        submit->dispatch->block = op->verb == STORE_PUT ? op->u.put.block : op->u.wait.block;
        metric_add_label(METRIC_LIMITED, limit_why_name(submit->dispatch->block.why), 1);
        dispatch_refuse(submit->dispatch, err);
        submit->why = submit->dispatch->why;
    } else if (err == ERR_QUEUE_FULL)
        problem_set(&submit->why, ERR_QUEUE_FULL, "",
                    "%lld jobs that ask for the same wait already (queue_max).",
                    (long long)bounds.lane_max);
    else if (err == ERR_QUEUES_FULL)
        problem_set(&submit->why, ERR_QUEUE_FULL, "",
                    "%lld jobs wait already, whatever they ask for (queue_total_max).",
                    (long long)bounds.all_max);
    else if (err == ERR_QUOTA_WAITING)
        problem_set(&submit->why, ERR_QUOTA, "quota.waiting",
                    "%lld jobs of the token " STR_FMT " wait already (its quota waiting=%lld).",
                    (long long)bounds.account.jobs_max, STR_ARG(bounds.account.name),
                    (long long)bounds.account.jobs_max);
    else if (err == ERR_QUOTA_BYTES)
        problem_set(&submit->why, ERR_QUOTA, "quota.bytes",
                    "With the %lld bytes of this job those of the token " STR_FMT
                    " that wait would have more than %lld (its quota bytes=).",
                    (long long)bounds.account.bytes, STR_ARG(bounds.account.name),
                    (long long)bounds.account.bytes_max);
    else
        return false;
    metric_add_label(METRIC_DISPATCH, err_name(submit->why.err), 1);
    return true;
}

static void abandoned(struct store_op *op)
{
    struct submit *submit = container_of(op, struct dispatch, op)->user;

    if (store_is_away(op->err)) {
        submit_failed(submit, op->err);
        return;
    }
    if (!op->err)
        settle_applied(submit->dispatch->loop, op, NULL);
    submit_over(submit, submit->why.err);
}

/* A send failed, and the job may not wait: it ends before its client is refused. */
static void abandon(struct submit *submit)
{
    struct dispatch *dispatch = submit->dispatch;
    struct store_op *op = &dispatch->op;

    assert(dispatch->exists && submit->why.err);
    *op = (struct store_op){
        .verb = STORE_FINISH, .done = abandoned, .job = dispatch->job, .arena = dispatch->arena};
    op->u.settle.outcome = STORE_ABANDON;
    op->u.settle.reason = str_of(err_name(submit->why.err));
    sched_send(dispatch->loop, op);
}

static void put_answered(struct store_op *op)
{
    struct dispatch *dispatch = container_of(op, struct dispatch, op);
    struct submit *submit = dispatch->user;
    struct store_record record = {.head = op->head};

    dispatch->head = op->head;
    if (is_out_of_bounds(submit, op)) {
        submit_over(submit, submit->why.err);
    } else if (op->err) {
        submit_failed(submit, op->err);
    } else if (op->u.put.duplicate) {
        dispatch->duplicate = true;
        submit->queued = op->head.state == JOB_NEW;
        submit_over(submit, ERR_OK);
    } else {
        finish_queued(submit, &record);
    }
}

static void waited(struct store_op *op)
{
    struct dispatch *dispatch = container_of(op, struct dispatch, op);
    struct submit *submit = dispatch->user;
    struct store_record record = {.head = op->head, .history = dispatch->record.history};

    if (is_out_of_bounds(submit, op)) {
        abandon(submit);
    } else if (op->err == ERR_STALE) {
        /* It was moved on by something else, as can happen while it is being sent: its current
         * state is the answer. */
        bool failed = op->head.state == JOB_FAILED;

        dispatch->head = op->head;
        if (failed)
            dispatch_refuse(dispatch, ERR_ALL_FULL);
        submit->why = dispatch->why;
        submit->queued = !failed && sched_is_waiting(op->head.state);
        submit_over(submit, failed ? ERR_ALL_FULL : ERR_OK);
    } else if (op->err) {
        submit_failed(submit, op->err);
    } else {
        dispatch->head = op->head;
        finish_queued(submit, &record);
    }
}

/* Stores it as a waiting job, if its lane has room. */
static void enqueue(struct submit *submit)
{
    struct dispatch *dispatch = submit->dispatch;
    const struct spec *spec = &dispatch->spec;
    struct store_op *op = &dispatch->op;

    assert(spec->queue_ms > 0 && !submit->queued);
    *op = (struct store_op){.verb = dispatch->exists ? STORE_WAIT : STORE_PUT,
                            .done = dispatch->exists ? waited : put_answered,
                            .not_after_ms = sched_not_after(dispatch->loop),
                            .job = dispatch->job,
                            .attempt = dispatch->attempt,
                            .arena = dispatch->arena};
    if (dispatch->exists) { /* its send failed, so the store has it already */
        assert(dispatch->record.head.id == dispatch->job);
        op->u.wait.lane = spec_lane(spec);
        op->u.wait.priority = (int)spec->priority;
        op->u.wait.wait_ms = spec->queue_ms;
        op->u.wait.bounds = bounds_of(submit);
    } else {
        op->u.put.spec = spec->json;
        op->u.put.type = spec->type;
        op->u.put.demand = spec->demand_text;
        op->u.put.idem = dispatch->idem;
        op->u.put.fingerprint = dispatch->fingerprint;
        op->u.put.max_attempts = dispatch->max_attempts;
        op->u.put.timeout_ms = spec->timeout_ms;
        op->u.put.callback = spec->callback_url.at != NULL;
        op->u.put.owner = store_number(dispatch->loop->sched->store);
        op->u.put.lane = spec_lane(spec);
        op->u.put.priority = (int)spec->priority;
        op->u.put.wait_ms = spec->queue_ms;
        op->u.put.bounds = bounds_of(submit);
    }
    sched_send(dispatch->loop, op);
}

static void dispatched(struct dispatch *dispatch)
{
    struct submit *submit = dispatch->user;
    bool later = dispatch->err == ERR_ALL_FULL || dispatch->err == ERR_LIMITED;

    if (later && dispatch->spec.queue_ms > 0 && !dispatch->ended) {
        enqueue(submit);
        return;
    }
    if (dispatch->err)
        submit->why = dispatch->why;
    /* It may have been moved on by something else: then it has been on a node, or waits for one. A
     * repeated key gets the first answer. */
    submit->queued = !dispatch->err && sched_is_waiting(dispatch->head.state);
    submit_over(submit, dispatch->err);
}

void submit_start(struct submit *submit)
{
    struct dispatch *dispatch = submit->dispatch;
    bool others_wait =
        atomic_load_explicit(&dispatch->loop->sched->queue_depth, memory_order_relaxed) > 0;

    dispatch->done = dispatched;
    dispatch->user = submit;
    /* The id was just made with our instance number. If this process was stopped for so long that
     * another one has the number now, the id may be another job's. */
    if (!store_number_is_ours(dispatch->loop->sched->store)) {
        submit_over(submit, problem_set(&submit->why, ERR_STORE_DOWN, "",
                                        "This instance was away for too long and is about to "
                                        "begin anew; nothing was started."));
        return;
    }
    /* A job that may wait does not overtake waiting jobs, whatever their type and whichever
     * instance put them there: the queue decides which is next. */
    if (dispatch->spec.queue_ms > 0 && others_wait && candidates_some_fit(dispatch))
        enqueue(submit);
    else
        dispatch_start(dispatch);
}
