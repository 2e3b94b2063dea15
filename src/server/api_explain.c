/* Why: of a job, of a request that is only tried, for people and programs. What was decided stands
 * in the loops' books; what would be decided now is asked of the rules. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "model/level.h"
#include "sched/explain.h"
#include "server/api.h"
#include "server/explain_peers.h"
#include "server/explain_write.h"

enum { NODES_DEFAULT = 1000, NODES_MAX = 10000, RECORDS_MAX = 64 };

/* GET of a job's explanation: our books, its record, the other instances, the breakers of now. */
struct why_call {
    struct call *call;
    struct explain_ask ask;
    struct store_op op;       /* JOB_GET */
    struct store_op breakers; /* BREAKERS */
    struct peers_round round;
    int64_t limit;
    struct submit *submit; /* of a dry run */
};

static struct why_call *why_call(struct call *call)
{
    struct why_call *own = arena_new(call->arena, struct why_call);

    own->call = call;
    own->limit = NODES_DEFAULT;
    return own;
}

static void send_breakers(struct why_call *own, store_done *done)
{
    own->breakers = (struct store_op){.verb = STORE_BREAKERS,
                                      .reply_to = &own->call->worker->loop.inbox,
                                      .done = done,
                                      .not_after_ms = sched_not_after(own->call->worker->sched),
                                      .arena = own->call->arena};
    sched_send(own->call->worker->sched, &own->breakers);
}

/* A dispatch of what the job is about, as its next attempt would be. */
static struct dispatch *dispatch_of(struct why_call *own)
{
    const struct store_record *record = &own->op.record;
    struct dispatch *dispatch = dispatch_new(own->call->arena);

    dispatch->loop = own->call->worker->sched;
    if (spec_stored(record->spec, own->call->arena, &dispatch->spec, NULL))
        return NULL; /* nobody of us wrote it */
    dispatch->job = own->op.head.id;
    dispatch->attempt = own->op.head.attempt;
    dispatch->attempt += own->op.head.state == JOB_RETRYING;
    dispatch->max_attempts = own->op.head.max_attempts;
    dispatch->history = record->history;
    return dispatch;
}

static struct explain_style style_of(const struct why_call *own, const struct spec *spec)
{
    const struct sched_loop *loop = own->call->worker->sched;
    const struct store_op *op = &own->breakers;

    return (struct explain_style){.snapshot = loop->snapshot,
                                  .sched = loop->sched,
                                  .spec = spec,
                                  .breakers = op->err ? NULL : op->u.breakers.items,
                                  .breaker_count = op->err ? 0 : op->u.breakers.count,
                                  .limit = (size_t)own->limit};
}

static void write_now(struct jsonw *w, struct why_call *own, struct dispatch *dispatch)
{
    struct explain_style style = style_of(own, &dispatch->spec);
    const struct explain *now =
        explain_now(dispatch, style.breakers, style.breaker_count, (size_t)own->limit);

    style.why = dispatch->err ? &dispatch->why : NULL;
    style.node_id = dispatch->node ? dispatch->node->id : STR_NONE;
    explain_write(w, now, &style);
}

/* Whether it makes sense to ask what would happen now. */
static bool has_now(const struct why_call *own)
{
    return !own->op.err && own->op.head.state != JOB_DONE && own->op.head.state != JOB_ACKED &&
           own->op.head.state != JOB_DISPATCHED && own->call->worker->sched->snapshot;
}

struct decision {
    int64_t at_ms;
    struct str json;
};

static int by_time(const void *a, const void *b)
{
    const struct decision *left = a, *right = b;

    return (left->at_ms > right->at_ms) - (left->at_ms < right->at_ms);
}

/* Takes a JSON array apart; what another instance says may be anything. */
static size_t add_decisions(struct decision *list, size_t count, struct str text,
                            struct arena *arena)
{
    const struct json *root, *item;

    if (json_parse(text, arena, &root, NULL) || json_type(root) != JSON_ARR)
        return count;
    item = json_first(root);
    for (uint32_t i = 0; i < root->count && count < RECORDS_MAX; i++, item = json_next(item)) {
        list[count] = (struct decision){.json = json_raw(item)};
        count += json_int(json_get(item, "at_ms"), &list[count].at_ms);
    }
    return count;
}

/* Ours and those of other instances, oldest first. */
static void write_decisions(struct jsonw *w, struct why_call *own, const struct spec *spec)
{
    struct decision list[RECORDS_MAX];
    struct arena *arena = own->call->arena;
    struct explain_style style = style_of(own, spec);
    struct str ours = explain_decisions(&own->ask.found, &style, arena);
    size_t count = add_decisions(list, 0, ours, arena);

    for (size_t i = 0; i < own->round.count; i++)
        count = add_decisions(list, count, own->round.texts[i], arena);
    qsort(list, count, sizeof *list, by_time);
    jsonw_key(w, "decisions");
    jsonw_arr(w);
    for (size_t i = 0; i < count; i++)
        jsonw_raw(w, list[i].json);
    jsonw_end_arr(w);
}

static void write_job(struct jsonw *w, const struct why_call *own)
{
    const struct store_head *head = &own->op.head;
    bool known = !own->op.err;
    char id[JOB_ID_TEXT + 1];

    job_id_text(own->ask.job, id);
    jsonw_kstr(w, "job_id", str_of(id));
    jsonw_kstr(w, "state", known ? str_of(job_state_name(head->state)) : STR_NONE);
    jsonw_kstr(w, "reason", known && head->reason[0] ? str_of(head->reason) : STR_NONE);
    jsonw_kstr(w, "node_id", known && head->node[0] ? str_of(head->node) : STR_NONE);
    if (known)
        jsonw_kint(w, "attempt_id", head->attempt);
    else
        jsonw_knull(w, "attempt_id");
    jsonw_kraw(w, "attempts",
               known && own->op.record.history.len ? own->op.record.history : STR("[]"));
}

static void job_answer(struct why_call *own)
{
    struct call *call = own->call;
    struct dispatch *dispatch = own->op.err ? NULL : dispatch_of(own);
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);

    jsonw_obj(&w);
    write_job(&w, own);
    write_decisions(&w, own, dispatch ? &dispatch->spec : NULL);
    if (dispatch && has_now(own)) {
        jsonw_key(&w, "now");
        write_now(&w, own, dispatch);
    } else {
        jsonw_knull(&w, "now");
    }
    jsonw_end_obj(&w);
    buf_free(&own->ask.found);
    call_json(call, 200, &buf);
    buf_free(&buf);
}

static void job_breakers(struct store_op *op)
{
    job_answer(container_of(op, struct why_call, breakers));
}

static void job_told(struct peers_round *round)
{
    struct why_call *own = container_of(round, struct why_call, round);
    const struct store_op *op = &own->op;
    char id[JOB_ID_TEXT + 1];

    if (op->err && !own->ask.found.len && !round->count) {
        buf_free(&own->ask.found);
        job_id_text(own->ask.job, id);
        if (op->err == ERR_NOT_FOUND)
            call_error(own->call, ERR_NOT_FOUND, "job_id",
                       "There is no job \"%s\", and nothing is kept of one that was refused.", id);
        else
            call_error(own->call, op->err, "", "%s.", err_title(op->err));
        return;
    }
    send_breakers(own, job_breakers);
}

static void job_read(struct store_op *op)
{
    struct why_call *own = container_of(op, struct why_call, op);
    struct namespace_view view = call_view(own->call);

    call_hide_job(own->call, op);
    explain_keep(&own->ask.found, namespace_listed(&view));
    own->round = (struct peers_round){
        .worker = own->call->worker, .arena = own->call->arena, .done = job_told};
    explain_round_start(&own->round, own->ask.job, op->err ? STR_NONE : op->record.spec,
                        namespace_listed(&view), (size_t)own->limit);
}

static void job_found(struct explain_ask *ask)
{
    struct why_call *own = container_of(ask, struct why_call, ask);

    own->op = (struct store_op){.verb = STORE_JOB_GET,
                                .reply_to = &own->call->worker->loop.inbox,
                                .done = job_read,
                                .job = ask->job,
                                .arena = own->call->arena};
    sched_send(own->call->worker->sched, &own->op);
}

void api_job_explain(struct call *call)
{
    struct why_call *own = why_call(call);

    own->ask.from = call->worker->sched;
    own->ask.done = job_found;
    if (call_job_id(call, call->params[0], &own->ask.job) &&
        call_query_int(call, "limit", 1, NODES_MAX, &own->limit))
        explain_find(&own->ask);
}

/* 200 placed, 202 waits, or the status of the refusal. */
static int would_status(const struct dispatch *dispatch, bool waits)
{
    return waits ? 202 : dispatch->err ? err_http(dispatch->err) : 200;
}

static void write_would(struct jsonw *w, const struct dispatch *dispatch, bool waits)
{
    jsonw_kbool(w, "dry_run", true);
    jsonw_kint(w, "status", would_status(dispatch, waits));
    jsonw_kstr(w, "outcome",
               waits           ? STR("WAITS")
               : dispatch->err ? str_of(err_name(dispatch->err))
                               : STR("PLACED"));
    jsonw_kstr(w, "detail",
               waits && !dispatch->err ? STR("Others wait already: the queue decides who is next.")
                                       : str_of(dispatch->err ? dispatch->why.detail : NULL));
    jsonw_kstr(w, "node_id", dispatch->node && !waits ? dispatch->node->id : STR_NONE);
}

static void tell_would(struct why_call *own)
{
    struct dispatch *dispatch = own->submit->dispatch;
    struct sched *sched = dispatch->loop->sched;
    struct buf would = {0}, buf = {0};
    struct jsonw inner = jsonw_to(&would), w = jsonw_to(&buf);

    write_now(&inner, own, dispatch); /* first: it decides */
    bool others = atomic_load(&sched->queue_depth) > 0 && dispatch->err != ERR_NO_CAPABLE_NODE;
    bool waits = dispatch->spec.queue_ms > 0 && (others || dispatch->err == ERR_ALL_FULL);
    jsonw_obj(&w);
    write_would(&w, dispatch, waits);
    jsonw_kint(&w, "waiting", atomic_load(&sched->queue_depth));
    jsonw_kraw(&w, "now", buf_view(&would));
    jsonw_end_obj(&w);
    call_json(own->call, 200, &buf);
    buf_free(&would);
    buf_free(&buf);
}

static void dry_answer(struct store_op *op)
{
    struct why_call *own = container_of(op, struct why_call, breakers);

    if (op->err) /* where nothing can be read nothing can be written: a job would fare the same */
        call_error(own->call, ERR_STORE_DOWN, "",
                   "The store cannot be reached: every job is refused now.");
    else
        tell_would(own);
}

void explain_dry_run(struct call *call, struct submit *submit)
{
    struct why_call *own = why_call(call);

    own->submit = submit;
    if (!call_query_int(call, "limit", 1, NODES_MAX, &own->limit))
        return;
    if (!call->worker->sched->snapshot)
        call_error(call, ERR_STORE_DOWN, "",
                   "The server is starting: its nodes are not loaded yet.");
    else
        send_breakers(own, dry_answer);
}
