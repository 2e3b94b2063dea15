/* Submitting work: one job, one task that may wait, or a batch. */
#include <assert.h>

#include "model/selector.h"
#include "sched/submit.h"
#include "server/api.h"
#include "server/callback.h"
#include "server/guard.h"

enum { IDEM_MAX = 255 };

/* Hash of the body for Idempotency-Key (FNV-1a): the same in every process and at any time. */
static uint64_t fingerprint(struct str text)
{
    uint64_t hash = 1469598103934665603ull;

    for (size_t i = 0; i < text.len; i++)
        hash = (hash ^ (unsigned char)text.at[i]) * 1099511628211ull;
    return hash;
}

static struct str name_of(const struct token *token)
{
    return token ? token->name : STR_NONE;
}

/* Also checks the spec of a job that is run again: the rules may have changed since. */
static enum err check_spec(const struct worker *worker, const struct spec *spec,
                           struct problem *why)
{
    enum selector_form form = (enum selector_form)worker->server->settings->selectors;
    enum err err = urls_check(worker->server, URL_CALLBACK, spec->callback_url, why);

    return err ? err : selector_check(spec->requires, form, "requires", why);
}

enum err api_dispatch_read(struct worker *worker, const struct token *by, struct arena *arena,
                           const struct json *body, bool f2f, struct submit **ret_submit,
                           struct problem *why)
{
    struct spec_author author = {.name = name_of(by),
                                 .view = token_view(by),
                                 .types = &worker->server->settings->type_defaults};
    struct spec spec;
    enum err err = spec_read(f2f, body, &author, arena, &spec, why);

    if (!err)
        err = check_spec(worker, &spec, why);
    if (err)
        return err;
    *ret_submit = submit_new(worker->sched, arena, &spec, by ? &by->quota : NULL);
    return ERR_OK;
}

/* Writes job_id, node_id and attempt_id. */
static void submit_write(struct jsonw *w, const struct submit *submit)
{
    const struct store_head *head = &submit->dispatch->head;

    assert(!submit->err && head->id);
    write_job_id(w, head->id);
    jsonw_kstr(w, "node_id", head->node[0] ? str_of(head->node) : STR_NONE);
    jsonw_kint(w, "attempt_id", head->attempt);
    if (submit->queued)
        jsonw_kstr(w, "state", str_of(job_state_name(head->state)));
    if (submit->dispatch->duplicate)
        jsonw_kbool(w, "duplicate", true);
}

static bool shows_whys(enum err err)
{
    return err == ERR_ALL_FULL || err == ERR_PREFERRED_UNAVAILABLE || err == ERR_QUEUE_FULL ||
           err == ERR_QUOTA;
}

/* What a refusal has besides the problem: the reasons, and the id of its explanation. */
static void refusal_write(struct jsonw *w, const struct submit *submit, const struct call *call)
{
    const struct dispatch *dispatch = submit->dispatch;
    enum err err = submit->err;
    char id[JOB_ID_TEXT + 1];

    if (shows_whys(err)) {
        jsonw_key(w, "reasons"); /* how many candidates each reason ruled out */
        jsonw_obj(w);
        for (int i = 0; i < WHY_COUNT; i++)
            if (dispatch->whys[i])
                jsonw_kint(w, dispatch_why_name((enum dispatch_why)i), dispatch->whys[i]);
        jsonw_end_obj(w);
    }
    if (err == ERR_LIMITED) {
        jsonw_kstr(w, "key", call_shown(call, dispatch_limited_key(dispatch)));
        jsonw_kstr(w, "why", str_of(limit_why_name(dispatch->block.why)));
        jsonw_kint(w, "limit", dispatch->block.limit);
        jsonw_kint(w, "used", dispatch->block.used);
    }
    if (!shows_whys(err) && err != ERR_LIMITED && err != ERR_NO_CAPABLE_NODE &&
        err != ERR_PREFERRED_NOT_CAPABLE && err != ERR_UNKNOWN)
        return;
    job_id_text(dispatch->job, id);
    jsonw_kstr(w, "job_id", str_of(id));
    jsonw_kstr(w, "explain", arena_fmt(dispatch->arena, "/v1/jobs/%s/explain", id));
}

/* Invalidates cached copies of a session that was written. Only a job that is placed at once writes
 * its session. */
static void note_session(const struct submit *submit, struct worker *worker)
{
    struct str session = spec_session(&submit->dispatch->spec, submit->dispatch->arena);

    if (session.at && !submit->err)
        session_written(&worker->server->session_marks, session);
}

static void answer(struct submit *submit)
{
    struct call *call = submit->user;

    note_session(submit, call->worker);
    if (call->req) /* for its line in the log */
        job_id_text(submit->dispatch->job, call->job_id);
    call->attempt = submit->dispatch->attempt;
    if (submit->dispatch->node)
        call->about_node = submit->dispatch->node->id;
    if (submit->err) {
        struct buf refusal = {0};

        if (submit->err == ERR_LIMITED)
            call->retry_after_s = (submit->dispatch->block.retry_ms + 999) / 1000;
        struct jsonw w = call_problem_begin(&refusal, &submit->why);

        refusal_write(&w, submit, call);
        call_problem_end(call, &w, &submit->why);
        return;
    }
    struct jsonw w = call_begin(call);
    call->job = submit->dispatch->head.id;
    submit_write(&w, submit);
    call_end(call, submit->queued ? 202 : 200, &w);
}

static void dispatch_one(struct call *call, bool f2f)
{
    /* 1 to 255 visible characters; in a frame the key is sent beside the job. */
    struct str sent = call->req ? call_header(call, "Idempotency-Key") : call->key;
    struct str key = str_trim(sent);
    struct submit *submit;
    struct problem why;
    bool dry = false;

    if (!call_query_bool(call, "dry_run", &dry))
        return;
    if (api_dispatch_read(call->worker, call->token, call->arena, call->body, f2f, &submit, &why)) {
        call_problem(call, &why);
        return;
    }
    spec_set_trace(&submit->dispatch->spec, call_header(call, "traceparent"), call->arena);
    if (sent.at) {
        bool good = key.len > 0 && key.len <= IDEM_MAX;

        for (size_t i = 0; good && i < key.len; i++)
            good = key.at[i] > ' ' && key.at[i] <= '~';
        if (!good) {
            call_error(call, ERR_BAD_FIELD, "Idempotency-Key",
                       "Idempotency-Key must be 1 to %d visible characters.", IDEM_MAX);
            return;
        }
        /* Tokens of one namespace share its keys: a retry may use another token. */
        submit->dispatch->idem =
            namespace_key(namespace_of(submit->dispatch->spec.type), key, call->arena);
        submit->dispatch->fingerprint = fingerprint(call->req ? call->req->body : call->text);
    }
    if (dry) {
        explain_dry_run(call, submit);
        return;
    }
    submit->done = answer;
    submit->user = call;
    if (call->begun)
        call->begun(call, submit->dispatch->job);
    submit_start(submit);
}

void api_dispatch_f2f(struct call *call)
{
    dispatch_one(call, true);
}

void api_dispatch_task(struct call *call)
{
    dispatch_one(call, false);
}

static bool is_f2f(const struct json *job)
{
    const struct json *type = json_get(job, "type");

    return json_is_null(type) || json_str_is(type, "f2f");
}

void api_dispatch_entry(struct call *call)
{
    dispatch_one(call, is_f2f(call->body));
}

/* A batch: each job has an arena of its own, because all are under way at once. */
struct batch {
    struct call *call;
    size_t count;
    size_t open;
    quota_meter *meter; /* used while they are started */
    struct entry *entries;
};

struct entry {
    struct batch *batch;
    struct arena arena;
    struct submit *submit; /* NULL: refused before it started */
    struct problem why;
};

static void batch_answer(struct batch *batch)
{
    assert(batch->open == 0 && batch->count > 0);
    struct jsonw w = call_begin(batch->call);
    jsonw_karr(&w, "results");
    for (size_t i = 0; i < batch->count; i++) {
        const struct submit *submit = batch->entries[i].submit;

        jsonw_obj(&w);
        if (submit && !submit->err) {
            jsonw_kint(&w, "status", submit->queued ? 202 : 200);
            submit_write(&w, submit);
        } else {
            problem_write(&w, submit ? &submit->why : &batch->entries[i].why);
            if (submit)
                refusal_write(&w, submit, batch->call);
        }
        jsonw_end_obj(&w);
        arena_free(&batch->entries[i].arena);
    }
    jsonw_end_arr(&w);
    call_end(batch->call, 200, &w);
}

static void entry_over(struct submit *submit)
{
    struct entry *entry = submit->user;

    assert(entry->submit == submit && entry->batch->open > 0);
    note_session(submit, entry->batch->call->worker);
    if (--entry->batch->open == 0)
        batch_answer(entry->batch);
}

void api_dispatch_batch(struct call *call)
{
    const struct json *jobs = json_get(call->body, "jobs");
    int64_t max = call->worker->server->settings->batch_max;
    struct batch *batch = arena_new(call->arena, struct batch);
    bool dry = false;

    if (!call_query_bool(call, "dry_run", &dry))
        return;
    if (dry) {
        call_error(call, ERR_BAD_FIELD, "dry_run",
                   "dry_run is for one job: POST it to /v1/dispatch/f2f or /v1/dispatch/task.");
        return;
    }
    if (json_type(jobs) != JSON_ARR || jobs->count == 0 || jobs->count > max) {
        call_error(call, ERR_BAD_FIELD, "jobs", "jobs must be a list of 1 to %lld jobs.",
                   (long long)max);
        return;
    }
    *batch = (struct batch){.call = call,
                            .count = jobs->count,
                            .open = 1, /* our own, until all have started */
                            .meter = guard_meter(call),
                            .entries = arena_array(call->arena, struct entry, jobs->count)};
    const struct json *job = json_first(jobs);
    for (size_t i = 0; i < batch->count; i++, job = json_next(job)) {
        struct entry *entry = &batch->entries[i];

        entry->batch = batch;
        if (json_type(job) != JSON_OBJ) {
            problem_set(&entry->why, ERR_BAD_FIELD, "jobs", "jobs must hold objects.");
            continue;
        }
        if (guard_count_job(call, batch->meter, &entry->why) ||
            api_dispatch_read(call->worker, call->token, &entry->arena, job, is_f2f(job),
                              &entry->submit, &entry->why)) {
            entry->submit = NULL;
            continue;
        }
        entry->submit->done = entry_over;
        entry->submit->user = entry;
        batch->open++;
        submit_start(entry->submit);
    }
    if (--batch->open == 0)
        batch_answer(batch);
}

/* Runs the same work again: reads the old job and submits its spec under a new id. */
struct again {
    struct call *call;
    struct store_op op;
};

static void again_read(struct store_op *op)
{
    struct again *again = container_of(op, struct again, op);
    struct call *call = again->call;
    struct spec spec;
    struct problem why;

    if (!call_has_job(call, op))
        return;
    if (!job_state_final(op->head.state)) {
        call_error(call, ERR_CONFLICT, "job_id",
                   "The job is %s: only one that ended is done again.",
                   job_state_name(op->head.state));
        return;
    }
    if (spec_again(op->record.spec, op->job, name_of(call->token), call->arena, &spec, &why) ||
        check_spec(call->worker, &spec, &why)) {
        call_problem(call, &why);
        return;
    }
    struct submit *submit = submit_new(call->worker->sched, call->arena, &spec,
                                       call->token ? &call->token->quota : NULL);
    submit->done = answer;
    submit->user = call;
    submit_start(submit);
}

void api_job_retry(struct call *call)
{
    struct again *again = arena_new(call->arena, struct again);

    again->call = call;
    again->op = call_op(call, STORE_JOB_GET, again_read);
    if (!call_job_id(call, call->params[0], &again->op.job))
        return;
    sched_send(call->worker->sched, &again->op);
}
