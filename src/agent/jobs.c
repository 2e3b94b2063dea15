/* How a job goes from state to state. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/jobs_private.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "model/lease.h"
#include "model/trace.h"

#define REASON_CANCELLED  "CANCELLED"
#define REASON_DROPPED    "DROPPED"
#define REASON_EMERGENCY  "EMERGENCY"
#define REASON_OVERLOADED "NODE_OVERLOADED"
#define REASON_TYPE       "TYPE_NOT_ALLOWED"
#define REASON_START      "START_FAILED"

enum {
    REASON_BYTES = 48,
    STOP_REASON_MAX = 31,
    FENCE_STEPS = 60, /* a fence moves by at least this part of its lease */
};

static void job_log(const struct agent_job *job, enum log_level level, const char *event,
                    const char *reason)
{
    log_event(level, event, KC("job_id", job->job_id), KS("node_id", job->jobs->node_id),
              KI("attempt_id", job->attempt), KS("type", job->type), KC("reason", reason),
              TRACE_KV(job->traceparent));
}

static void job_forget(struct agent_job *job)
{
    struct run *run = job->run;

    job->run = NULL;
    if (run)
        run_forget(run);
    jobs_leave(job);
}

static bool too_much_is_kept(const struct jobs *jobs)
{
    return jobs->counts[JOBS_KEPT] > (size_t)jobs->config->runs_kept ||
           jobs->kept_bytes > jobs->config->runs_kept_bytes;
}

/* The oldest go first. */
static void trim_kept(struct jobs *jobs)
{
    for (struct agent_job *job = jobs->first, *next; job && too_much_is_kept(jobs); job = next) {
        next = job->next;
        if (job->state == JOBS_KEPT)
            job_forget(job);
    }
}

void jobs_trim(struct jobs *jobs)
{
    int64_t before_ms = jobs->loop->wall_ms - jobs->config->runs_kept_ms;

    trim_kept(jobs); /* the settings may have changed */
    for (struct agent_job *job = jobs->first, *next; job; job = next) {
        next = job->next;
        if (job->state == JOBS_KEPT && job->run->exit.ended_ms < before_ms)
            job_forget(job);
    }
}

/* --- the end --- */

static void report(struct agent_job *job, const char *reason, struct str result)
{
    bool done = !reason[0];

    assert(job->state == JOBS_RUNNING || job->state == JOBS_KEPT);
    assert(!job->dropped && job->run);
    jobs_set_state(job, JOBS_REPORTING);
    job_log(job, LOG_INFO, done ? "job.done" : "job.failed", done ? "ok" : reason);
    if (job->note)
        outbox_drop(job->note);
    job->note = outbox_put(job->jobs->outbox, done ? OUTBOX_DONE : OUTBOX_FAIL, str_of(job->job_id),
                           job->attempt, done ? STR_NONE : str_of(reason), result,
                           job->command && !job->run->unstarted, job);
}

static void report_run(struct agent_job *job)
{
    struct buf result = {0};
    char reason[REASON_BYTES];

    assert(job->run && job->run->state == RUN_ENDED);
    jobs_reason(&job->run->exit, reason, sizeof reason);
    jobs_result_write(job, &result);
    report(job, reason, buf_view(&result));
    buf_free(&result);
}

/* It ended before it could be started: the record is all there is of its run. */
static void report_unrun(struct agent_job *job, const char *reason, const char *detail)
{
    struct run_exit exit = {.exit_code = -1, .signal = -1, .ended_ms = job->jobs->loop->wall_ms};
    struct buf meta = {0};

    assert(!job->run);
    str_copy(str_of(reason), exit.reason, sizeof exit.reason);
    snprintf(exit.detail, sizeof exit.detail, "%s", detail);
    jobs_meta_write(job, &meta);
    job->run = runs_record(job->jobs->runs,
                           &(struct run_spec){.handler = &jobs_run_handler,
                                              .key = str_of(job->key),
                                              .meta = buf_view(&meta)},
                           job, &exit);
    buf_free(&meta);
    job->jobs->handler->over(job);
    report_run(job);
}

static void on_started(struct run *run)
{
    struct agent_job *job = run->user;

    assert(job->run == run && job->state == JOBS_RUNNING);
    job_log(job, LOG_INFO, "job.started", "acked");
    job->jobs->handler->started(job);
}

static void on_ended(struct run *run)
{
    struct agent_job *job = run->user;

    assert(job->run == run && job->state == JOBS_RUNNING);
    job->jobs->handler->over(job);
    if (job->dropped) {
        job_log(job, LOG_INFO, "job.dropped", run->exit.reason);
        if (job->note)
            outbox_drop(job->note);
        job->note = NULL;
        job_forget(job);
    } else {
        report_run(job);
    }
}

const struct run_handler jobs_run_handler = {.started = on_started, .ended = on_ended};

/* It is not ours any more. One with a fence may be running elsewhere already: it gets no grace. */
static void drop(struct agent_job *job)
{
    assert(job->state == JOBS_RUNNING && job->run);
    job->dropped = job->stopping = true;
    run_stop(job->run, REASON_DROPPED, run_deadline_ms(job->run) ? 0 : -1);
}

/* --- the fence --- */

/* A renewal that was granted moves it; one that has passed stays: its shim is ending the run. Moves
 * too small to matter are left out, because each is a file and heartbeats may come in bursts. */
static void move_fence(struct agent_job *job, int64_t sent_boot_ms, int64_t lease_ms)
{
    int64_t old_ms = run_deadline_ms(job->run), new_ms = fence_stop_ms(sent_boot_ms, lease_ms);

    if (clock_lease_ms() < old_ms && new_ms - old_ms >= lease_ms / FENCE_STEPS)
        run_deadline(job->run, new_ms);
}

void jobs_renewed(struct jobs *jobs, int64_t sent_boot_ms, const struct json *reply)
{
    struct lease_terms terms = {0};

    json_int(json_get(reply, "running_lease_ms"), &terms.task_ms);
    json_int(json_get(reply, "f2f_lease_ms"), &terms.f2f_ms);
    if (terms.task_ms <= 0 || terms.f2f_ms <= 0)
        return; /* the heartbeat was taken, but the store could not be asked */
    for (struct agent_job *job = jobs->first; job; job = job->next)
        if (job->state == JOBS_RUNNING && !job->dropped && sent_boot_ms >= job->listed_ms &&
            run_deadline_ms(job->run))
            move_fence(job, sent_boot_ms, lease_term_ms(&terms, job->type));
}

/* --- the beginning --- */

static void start(struct agent_job *job)
{
    struct problem why;
    enum err err;

    assert(job->state == JOBS_ACKING && job->message && !job->run);
    jobs_set_state(job, JOBS_RUNNING);
    job->listed_ms = clock_lease_ms();
    if (job->cancelled) {
        report_unrun(job, REASON_CANCELLED, "It was cancelled before it began.");
        return;
    }
    err = jobs_start(job, &why);
    job->message = NULL;
    arena_free(&job->order);
    if (err)
        report_unrun(job, REASON_START, why.detail);
}

static void ack_settled(struct agent_job *job, enum outbox_verdict verdict)
{
    if (verdict != OUTBOX_REFUSED) {
        start(job);
        return;
    }
    job_log(job, LOG_WARN, "job.dropped", "its ACK was refused");
    job->jobs->handler->over(job);
    jobs_leave(job);
}

static void outcome_settled(struct agent_job *job, enum outbox_verdict verdict)
{
    struct jobs *jobs = job->jobs;

    assert(job->run && job->run->state == RUN_ENDED);
    if (verdict == OUTBOX_REFUSED)
        job_log(job, LOG_WARN, "job.outcome_refused", "the attempt is over for the server");
    jobs_set_state(job, JOBS_KEPT);
    if (job->run->unstarted) /* there is no output to read */
        job_forget(job);
    trim_kept(jobs);
}

static void on_settled(struct outbox_note *note, enum outbox_verdict verdict)
{
    struct agent_job *job = note->user;

    if (!job) /* a refusal, or an outcome whose run is gone */
        return;
    assert(job->note == note);
    job->note = NULL;
    if (job->state == JOBS_ACKING) {
        job->lease_ms = note->lease_ms;
        job->timeout_grace_ms = note->stop_grace_ms;
    }
    if (job->state == JOBS_ACKING)
        ack_settled(job, verdict);
    else if (job->state == JOBS_REPORTING)
        outcome_settled(job, verdict);
    else if (job->state == JOBS_RUNNING && verdict == OUTBOX_REFUSED)
        drop(job); /* it was sent to us twice, and is not ours any more */
}

static bool on_send(struct outbox *outbox, struct str text)
{
    struct jobs *jobs = outbox_user(outbox);

    return jobs->handler->send(jobs, text);
}

static const struct outbox_handler outbox_handler = {.send = on_send, .settled = on_settled};

static void refuse(struct jobs *jobs, const struct jobs_order *order, const char *reason,
                   struct str detail)
{
    log_event(LOG_WARN, "job.refused", KS("job_id", order->job_id), KS("node_id", jobs->node_id),
              KI("attempt_id", order->attempt), KS("type", order->type), KC("reason", reason),
              KS("detail", detail));
    outbox_put(jobs->outbox, OUTBOX_FAIL, order->job_id, (int)order->attempt, str_of(reason),
               STR_NONE, false, NULL);
}

static void take(struct jobs *jobs, const struct jobs_order *order, const char *key,
                 const struct json *body)
{
    struct agent_job *job = jobs_new_job(jobs, JOBS_ACKING);
    enum err err;

    str_copy(str_of(key), job->key, sizeof job->key);
    str_copy(order->job_id, job->job_id, sizeof job->job_id);
    job->attempt = (int)order->attempt;
    job->priority = order->priority;
    job->command = !json_is_null(order->command);
    job->received_ms = jobs->loop->wall_ms;
    job->since_ms = jobs->loop->mono_ms;
    job->taken_ms = clock_lease_ms();
    job->type = arena_str(&job->arena, order->type);
    if (order->title.at)
        job->title = arena_str(&job->arena, order->title);
    if (order->traceparent.at)
        job->traceparent = arena_str(&job->arena, trace_parent(order->traceparent));
    err = json_parse(arena_str(&job->order, json_raw(body)), &job->order, &job->message, NULL);
    assert(!err);
    jobs_enter(job);
    jobs->handler->began(job);
    job->note = outbox_put(jobs->outbox, OUTBOX_ACK, order->job_id, job->attempt, STR_NONE,
                           STR_NONE, false, job);
}

/* The same attempt again: said once more is what is known of it. */
static void again(struct agent_job *job)
{
    job_log(job, LOG_WARN, "job.again", "the server sent this attempt before");
    if (job->state == JOBS_RUNNING && !job->note)
        job->note = outbox_put(job->jobs->outbox, OUTBOX_ACK, str_of(job->job_id), job->attempt,
                               STR_NONE, STR_NONE, false, job);
    else if (job->state == JOBS_KEPT)
        report_run(job);
}

/* NULL: it may come in; else the reason, and what a person reads about it. */
static const char *refusal(struct jobs *jobs, const struct jobs_order *order, struct buf *detail)
{
    const char *unfit = jobs_order_unfit(jobs->config, order);

    if (unfit) {
        buf_str(detail, str_of(unfit));
        return REASON_TYPE;
    }
    if (jobs->count - jobs->counts[JOBS_KEPT] >= CONFIG_JOBS_MAX) {
        buf_str(detail, STR("Too many outcomes wait for the server."));
        return REASON_OVERLOADED;
    }
    return jobs->handler->refuses(jobs, order->type, order->priority, order->interactive, detail);
}

void jobs_job(struct jobs *jobs, const struct json *body)
{
    struct arena arena = {0};
    struct buf detail = {0};
    struct jobs_order order;
    char key[JOBS_KEY_MAX];
    struct agent_job *job;
    struct problem why = {.detail = "The id is too long."};
    const char *reason;

    if (jobs_order_read(body, &arena, &order, &why) || !jobs_key(order.job_id, order.attempt, key))
        log_event(LOG_ERROR, "job.unreadable", KS("node_id", jobs->node_id),
                  KC("reason", why.detail));
    else if ((job = map_get(&jobs->by_key, str_of(key))))
        again(job);
    else if ((reason = refusal(jobs, &order, &detail)))
        refuse(jobs, &order, reason, buf_view(&detail));
    else
        take(jobs, &order, key, body);
    buf_free(&detail);
    arena_free(&arena);
}

/* --- other words of the server --- */

static struct agent_job *find_named(struct jobs *jobs, const struct json *body, struct arena *arena)
{
    struct str id = json_str(json_get(body, "job_id"), arena);
    char key[JOBS_KEY_MAX];
    int64_t attempt;

    if (!id.at || !json_int(json_get(body, "attempt_id"), &attempt) || !jobs_key(id, attempt, key))
        return NULL;
    return map_get(&jobs->by_key, str_of(key));
}

void jobs_cancel(struct jobs *jobs, const struct json *body)
{
    struct arena arena = {0};
    struct agent_job *job = find_named(jobs, body, &arena);
    struct str reason = json_str(json_get(body, "reason"), &arena);
    char words[STOP_REASON_MAX + 1] = REASON_CANCELLED;

    if (str_is_id(reason, STOP_REASON_MAX))
        str_copy(reason, words, sizeof words);
    if (job && job->state == JOBS_ACKING)
        job->cancelled = true;
    if (job && job->state == JOBS_RUNNING) {
        job->stopping = true;
        run_stop(job->run, words, -1);
    }
    if (job)
        job_log(job, LOG_INFO, "job.cancel", words);
    arena_free(&arena);
}

void jobs_drop(struct jobs *jobs, const struct json *body)
{
    struct arena arena = {0};
    struct agent_job *job = find_named(jobs, body, &arena);

    /* One that is being reported gets its own answer. */
    if (job && job->state == JOBS_RUNNING && !job->dropped) {
        job_log(job, LOG_WARN, "job.drop", "it is not this node's any more");
        drop(job);
    }
    arena_free(&arena);
}

void jobs_reply(struct jobs *jobs, const struct json *body)
{
    outbox_reply(jobs->outbox, body);
}

void jobs_kill(struct agent_job *job, struct str evidence, int64_t grace_ms)
{
    assert(job->state == JOBS_RUNNING && job->run && evidence.len > 0);
    if (!job->evidence.at && !job->stopping)
        jobs_evidence_keep(job, evidence);
    job->stopping = true;
    run_stop(job->run, REASON_EMERGENCY, grace_ms);
}

void jobs_end(struct jobs *jobs)
{
    for (struct agent_job *job = jobs->first; job; job = job->next) {
        if (job->state == JOBS_ACKING)
            job->cancelled = true;
        if (job->state != JOBS_RUNNING)
            continue;
        job->stopping = true;
        run_stop(job->run, REASON_CANCELLED, -1);
    }
}

size_t jobs_untold(const struct jobs *jobs)
{
    return outbox_count(jobs->outbox);
}

void jobs_up(struct jobs *jobs)
{
    outbox_up(jobs->outbox);
}

void jobs_down(struct jobs *jobs)
{
    outbox_down(jobs->outbox);
}

/* --- what was left --- */

/* Ended, and perhaps told: an earlier version wrote that down elsewhere too. */
static void adopt_ended(struct agent_job *job)
{
    struct outbox_note *note = NULL;

    assert(job->run->state == RUN_ENDED && !job->note);
    while ((note = outbox_next(job->jobs->outbox, note)))
        if (note->old && note->attempt == job->attempt && strcmp(note->job_id, job->job_id) == 0)
            break;
    if (job->dropped) {
        job_forget(job);
    } else if (jobs_settled_marked(job)) {
        jobs_set_state(job, JOBS_KEPT); /* a note that is left is answered without us */
        trim_kept(job->jobs);
    } else if (note) {
        note->user = job;
        job->note = note;
        jobs_set_state(job, JOBS_REPORTING);
    } else {
        report_run(job);
    }
}

void jobs_adopt(struct jobs *jobs, struct run *run)
{
    struct agent_job *job = jobs_new_job(jobs, JOBS_RUNNING);
    int64_t age_ms = jobs->loop->wall_ms - run->started_ms;

    if (!jobs_meta_read(run->meta, job) || !jobs_key(str_of(job->job_id), job->attempt, job->key) ||
        !str_is(run->key, job->key)) {
        log_event(LOG_ERROR, "run.strange", KS("node_id", jobs->node_id), KS("run", run->key),
                  KC("reason", "nobody knows what it is for"));
        job->dropped = true; /* like one that the server does not want */
        str_copy(run->key, job->key, sizeof job->key);
    }
    run->handler = &jobs_run_handler;
    run->user = job;
    job->run = run;
    jobs_evidence_find(job);
    job->since_ms = jobs->loop->mono_ms - (age_ms > 0 ? age_ms : 0);
    jobs_enter(job);
    if (run->state == RUN_ENDED) {
        adopt_ended(job);
        return;
    }
    job_log(job, LOG_INFO, "job.adopted", "it runs on");
    jobs->handler->began(job);
    job->stopping = run->state == RUN_STOPPING;
    if (job->dropped)
        drop(job);
}

struct jobs *jobs_new(struct loop *loop, const struct jobs_config *config,
                      const struct jobs_handler *handler, void *user)
{
    struct jobs *jobs = mem_new(struct jobs);
    struct buf path = {0};

    assert(handler->send && handler->refuses && handler->began && handler->over);
    jobs->loop = loop;
    jobs->config = config->config;
    jobs->handler = handler;
    jobs->user = user;
    jobs->node_id = config->node_id;
    jobs->runs = config->runs;
    jobs->outbox = outbox_new(loop, &outbox_handler, jobs);
    buf_fmt(&path, "%s/outbox", config->data_dir);
    buf_char(&path, 0);
    outbox_take_old(jobs->outbox, path.at);
    buf_free(&path);
    return jobs;
}

void jobs_free(struct jobs *jobs)
{
    struct agent_job *job, *next;

    if (!jobs)
        return;
    for (job = jobs->first; job; job = job->next)
        if (job->state == JOBS_KEPT)
            jobs_settled_mark(job);
    outbox_free(jobs->outbox);
    for (job = jobs->first; job; job = next) {
        next = job->next;
        jobs_delete(job);
    }
    map_free(&jobs->by_key);
    free(jobs);
}
