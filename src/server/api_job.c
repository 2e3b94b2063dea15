/* Jobs: reports from nodes; showing, listing and cancelling; and, per loop, the requests that wait
 * for a job. */
#include "server/api_job.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "sched/spec.h"
#include "server/api.h"
#include "server/guard.h"
#include "server/hub.h"
#include "server/peers.h"

/* GET of one job, at once or when it has ended. */
struct show {
    struct call *call;
    struct store_op op;
    struct waiter *waiter; /* set while the request may wait */
    uint64_t job;
    bool last;   /* answer with whatever state the job is in */
    bool busy;   /* a read is under way */
    bool reread; /* the job ended or the wait timed out during that read */
};

struct waiter {
    struct waiter *next;      /* for the same job */
    struct waiter *next_over; /* in the list of expired waiters that end_waits() works through */
    struct call *call;
    uint64_t job;
    int64_t until_ms;
    int64_t look_ms;
    void (*ready)(struct call *call);
    void (*look)(struct call *call);
};

static void show_read(struct show *show);

/* --- waiting --- */

enum {
    LOOK_EVERY_MS = 1000,
    WAKE_RESULT_MAX = 4096, /* a larger result is read from the store */
};

struct waiters {
    struct worker *worker;
    struct idmap by_job;   /* -> struct waiter *, linked */
    struct idmap watches;  /* -> struct watch *, linked; no time limit, never walked */
    _Atomic int64_t count; /* waiters and watches together */
};

struct wake {
    struct msg msg;
    struct waiters *waiters;
    uint64_t job;
    bool has_end;
    struct store_record end;
    char result[]; /* the result of `end` */
};

struct waiters *waiters_new(struct worker *worker)
{
    struct waiters *waiters = mem_new(struct waiters);

    waiters->worker = worker;
    return waiters;
}

void waiters_free(struct waiters *waiters)
{
    struct waiter *waiter;

    if (!waiters)
        return;
    for (size_t i = 0; (waiter = idmap_next(&waiters->by_job, &i));)
        while (waiter) {
            struct waiter *next = waiter->next;

            free(waiter);
            waiter = next;
        }
    idmap_free(&waiters->by_job);
    idmap_free(&waiters->watches);
    free(waiters);
}

static void one_more(struct waiters *waiters)
{
    if (atomic_fetch_add(&waiters->count, 1) == 0)
        peers_send_interest(waiters->worker->server);
}

struct waiter *waiters_add(struct waiters *waiters, struct call *call, uint64_t job,
                           int64_t wait_ms, void (*ready)(struct call *call),
                           void (*look)(struct call *call))
{
    struct waiter *waiter = mem_new(struct waiter);

    assert(ready);
    *waiter = (struct waiter){.next = idmap_get(&waiters->by_job, job),
                              .call = call,
                              .job = job,
                              .until_ms = waiters->worker->loop.mono_ms + wait_ms,
                              .look_ms = waiters->worker->loop.mono_ms + LOOK_EVERY_MS,
                              .ready = ready,
                              .look = look};
    idmap_put(&waiters->by_job, job, waiter);
    one_more(waiters);
    return waiter;
}

void waiters_del(struct waiters *waiters, struct waiter *waiter)
{
    struct waiter *first = idmap_get(&waiters->by_job, waiter->job);
    struct waiter **at = &first;

    while (*at && *at != waiter)
        at = &(*at)->next;
    assert(*at);
    *at = waiter->next;
    if (first)
        idmap_put(&waiters->by_job, waiter->job, first);
    else
        idmap_del(&waiters->by_job, waiter->job);
    atomic_fetch_sub(&waiters->count, 1);
    free(waiter);
}

void waiters_watch(struct waiters *waiters, struct watch *watch)
{
    assert(watch->job && watch->ended);
    watch->next = idmap_get(&waiters->watches, watch->job);
    idmap_put(&waiters->watches, watch->job, watch);
    one_more(waiters);
}

void waiters_unwatch(struct waiters *waiters, struct watch *watch)
{
    struct watch *first = idmap_get(&waiters->watches, watch->job);
    struct watch **at = &first;

    while (*at && *at != watch)
        at = &(*at)->next;
    assert(*at);
    *at = watch->next;
    if (first)
        idmap_put(&waiters->watches, watch->job, first);
    else
        idmap_del(&waiters->watches, watch->job);
    atomic_fetch_sub(&waiters->count, 1);
}

static void wake_here(struct waiters *waiters, uint64_t job, const struct store_record *end)
{
    struct waiter *waiter = idmap_del(&waiters->by_job, job);
    struct watch *watch = idmap_del(&waiters->watches, job);

    while (watch) {
        struct watch *next = watch->next;

        atomic_fetch_sub(&waiters->count, 1);
        watch->ended(watch, end);
        watch = next;
    }
    while (waiter) {
        struct waiter *next = waiter->next;

        atomic_fetch_sub(&waiters->count, 1);
        waiter->ready(waiter->call);
        free(waiter);
        waiter = next;
    }
}

static void wake_posted(struct msg *msg)
{
    struct wake *wake = container_of(msg, struct wake, msg);

    wake_here(wake->waiters, wake->job, wake->has_end ? &wake->end : NULL);
    free(wake);
}

void waiters_wake(struct server *server, const struct worker *here, uint64_t job,
                  const struct store_record *end)
{
    bool whole = end && end->result.len <= WAKE_RESULT_MAX;

    assert(job);
    for (int i = 0; i < server->loop_count; i++) {
        struct waiters *waiters = server->workers[i].waiters;

        if (atomic_load(&waiters->count) == 0)
            continue;
        if (&server->workers[i] == here) {
            wake_here(waiters, job, end);
            continue;
        }
        struct wake *wake = mem_alloc(sizeof *wake + (whole ? end->result.len : 0));
        wake->msg.run = wake_posted;
        wake->waiters = waiters;
        wake->job = job;
        wake->has_end = whole;
        if (whole)
            wake->end = *end;
        if (whole && end->result.at) {
            memcpy(wake->result, end->result.at, end->result.len);
            wake->end.result.at = wake->result;
        }
        inbox_post(&server->workers[i].loop.inbox, &wake->msg);
    }
}

static void end_waits(struct waiters *waiters, int64_t now_ms, bool recheck)
{
    const struct worker *worker = waiters->worker;
    struct waiter *waiter, *over = NULL;

    /* Collect first, end afterwards: the map must not change during the walk. */
    for (size_t i = 0; (waiter = idmap_next(&waiters->by_job, &i));)
        for (; waiter; waiter = waiter->next)
            if (waiter->until_ms <= now_ms || waiter->call->req->gone ||
                (recheck && !auth_still(worker->auth, waiter->call->token,
                                        waiter->call->route->scope, worker->loop.wall_ms))) {
                waiter->next_over = over;
                over = waiter;
            }
    while ((waiter = over)) {
        struct call *call = waiter->call;
        void (*ready)(struct call *) = waiter->ready;

        over = waiter->next_over;
        waiters_del(waiters, waiter);
        ready(call);
    }
}

bool waiters_wait(const struct server *server)
{
    for (int i = 0; i < server->loop_count; i++)
        if (atomic_load_explicit(&server->workers[i].waiters->count, memory_order_relaxed) > 0)
            return true;
    return false;
}

void waiters_tick(struct waiters *waiters)
{
    int64_t now_ms = waiters->worker->loop.mono_ms;
    bool shared = peers_shared(waiters->worker->server);
    struct waiter *waiter;

    /* The other instances' messages may get lost. */
    for (size_t i = 0; shared && (waiter = idmap_next(&waiters->by_job, &i));)
        for (; waiter; waiter = waiter->next)
            if (waiter->look_ms <= now_ms) {
                waiter->look_ms = now_ms + LOOK_EVERY_MS;
                waiter->look(waiter->call); /* answers later: the map does not change */
            }
    end_waits(waiters, now_ms, false);
}

void waiters_recheck(struct waiters *waiters)
{
    end_waits(waiters, waiters->worker->loop.mono_ms, true);
}

void waiters_drain(struct waiters *waiters)
{
    end_waits(waiters, INT64_MAX, false);
}

/* --- routes --- */

enum { LIST_DEFAULT = 50, LIST_MAX = 1000, LIST_BYTES_MAX = 1024 * 1024 };

/* A key of the job to hold: until a time, or for a duration. */
struct hold_fields {
    struct str key, reason;
    int64_t until_ms, for_ms;
};

struct message_fields {
    struct str job_id, node_id, status, reason;
    int64_t attempt_id, send_id;
    bool command;
    const struct json *result;
    struct hold_fields hold;
};

static const struct field hold_fields[] = {
    FIELD_ROW(hold_fields, key, STR, .max = DEMAND_KEY_MAX, .flags = FIELD_REQUIRED),
    FIELD_ROW(hold_fields, until_ms, INT, .max = INT64_C(1) << 47,
              .help = "ms since 1970; this or for_ms"),
    FIELD_ROW(hold_fields, for_ms, MS, .max = LIMIT_HOLD_MS_MAX),
    FIELD_ROW(hold_fields, reason, STR, .max = LIMIT_REASON_MAX,
              .help = "why it is held; stands for the reason of the FAIL where that has none"),
};

#define ROW(member, kind, ...) FIELD_ROW(message_fields, member, kind, __VA_ARGS__)
static const struct field fields[] = {
    ROW(job_id, STR, .max = 64, .flags = FIELD_REQUIRED),
    ROW(attempt_id, INT, .min = 1, .max = JOB_ATTEMPTS_MAX, .flags = FIELD_REQUIRED),
    ROW(send_id, INT, .min = 1, .max = INT64_C(1) << 47, .help = "of the message it is about; ACK"),
    ROW(node_id, ID, .max = NODE_ID_MAX, .flags = FIELD_SENDER),
    ROW(status, STR, .max = 64),
    ROW(reason, STR, .max = 1024),
    ROW(command, BOOL, .help = "what ended is a command that came with the job: moves no breaker"),
    ROW(result, JSON, .help = "any JSON"),
    ROW(hold, OBJ, .fields = hold_fields, .field_count = COUNT_OF(hold_fields),
        .help = "FAIL: the job ran into a bound of this key of its own; nothing with the key "
                "starts before, and the attempt does not count"),
};
const struct schema job_report_schema = {
    .what = "the message", .fields = fields, .count = COUNT_OF(fields)};

/* At most `max` bytes of the text, in whole characters. */
static struct str cut_text(struct str text, size_t max)
{
    if (text.len <= max)
        return text;
    text.len = max;
    while (text.len > 0 && ((unsigned char)text.at[text.len] & 0xc0) == 0x80)
        text.len--;
    return text;
}

/* Reads which key to hold and for how long from now. */
static enum err read_hold(struct call *call, const struct hold_fields *hold, enum settle_kind kind,
                          struct settle *settle, struct problem *why)
{
    int64_t for_ms = hold->until_ms ? hold->until_ms - call->worker->loop.wall_ms : hold->for_ms;

    if (!hold->key.at)
        return ERR_OK;
    if (kind != SETTLE_FAIL)
        return problem_set(why, ERR_BAD_FIELD, "hold", "hold is for a FAIL.");
    if (!hold->until_ms == !hold->for_ms)
        return problem_set(why, ERR_BAD_FIELD, "hold", "hold has until_ms or for_ms.");
    if (!demand_is_key(hold->key))
        return problem_set(why, ERR_BAD_FIELD, "hold", "hold.key must be a key of the job's.");
    settle->hold_key = hold->key;
    settle->hold_reason = cut_text(hold->reason, LIMIT_REASON_MAX);
    settle->hold_key_ms = for_ms < 1                   ? 1 /* already over */
                          : for_ms > LIMIT_HOLD_MS_MAX ? LIMIT_HOLD_MS_MAX
                                                       : for_ms;
    return ERR_OK;
}

/* Reads a node's report about a job as a settle of this kind; the caller fills in the node and
 * where the answer goes. A DONE with a status other than ok is a FAIL. */
static enum err read_message(struct call *call, enum settle_kind kind, struct settle *ret_settle,
                             struct str *ret_node_id, struct problem *why)
{
    int64_t result_bytes_max = call->worker->server->settings->result_bytes_max;
    struct message_fields in = {0};
    enum err err = schema_read(&job_report_schema, call->body, &in, call->arena, why);

    if (err)
        return err;
    if (kind == SETTLE_DONE && !job_status_ok(in.status))
        kind = SETTLE_FAIL;
    if (kind == SETTLE_FAIL && !in.reason.at)
        in.reason = in.hold.reason.len ? in.hold.reason : STR("FAILED");
    memset(ret_settle, 0, offsetof(struct settle, head));
    ret_settle->loop = call->worker->sched;
    ret_settle->arena = call->arena;
    ret_settle->kind = kind;
    ret_settle->attempt = (int)in.attempt_id;
    ret_settle->send_id = in.send_id;
    ret_settle->reason = cut_text(in.reason, STORE_REASON_MAX);
    ret_settle->command = in.command;
    err = read_hold(call, &in.hold, kind, ret_settle, why);
    if (err)
        return err;
    if (!job_id_parse(in.job_id, &ret_settle->job))
        return problem_set(why, ERR_NOT_FOUND, "job_id", "There is no job \"" STR_FMT "\".",
                           STR_ARG(in.job_id));
    if (!json_is_null(in.result))
        ret_settle->result = json_raw(in.result);
    if ((int64_t)ret_settle->result.len > result_bytes_max)
        return problem_set(why, ERR_TOO_LARGE, "result",
                           "result must be at most %lld bytes of JSON.",
                           (long long)result_bytes_max);
    *ret_node_id = in.node_id;
    return ERR_OK;
}

static void settle_refused(struct call *call, const struct settle *settle)
{
    struct problem why;
    struct buf buf = {0};
    char id[JOB_ID_TEXT + 1];

    assert(settle->err);
    job_id_text(settle->job, id);
    if (settle->err == ERR_STALE)
        problem_set(&why, ERR_STALE, "attempt_id",
                    "Attempt %d on this node is over: job %s is %s in attempt %d.", settle->attempt,
                    id, job_state_name(settle->head.state), settle->head.attempt);
    else if (settle->err == ERR_NOT_FOUND)
        problem_set(&why, ERR_NOT_FOUND, "job_id", "There is no job \"%s\".", id);
    else if (settle->err == ERR_BAD_FIELD)
        problem_set(&why, ERR_BAD_FIELD, "hold", "" STR_FMT " is not a key of job %s.",
                    STR_ARG(settle->hold_key), id);
    else
        problem_set(&why, settle->err, "", "%s.", err_title(settle->err));
    struct jsonw w = call_problem_begin(&buf, &why);
    if (settle->head.id)
        jsonw_kint(&w, "attempt_id", settle->head.attempt);
    if (settle->head.id && call->req) { /* a frame has only the attempt */
        jsonw_kstr(&w, "state", str_of(job_state_name(settle->head.state)));
        jsonw_kstr(&w, "node_id", settle->head.node[0] ? str_of(settle->head.node) : STR_NONE);
    }
    call_problem_end(call, &w, &why);
}

static void settle_answer(struct settle *settle)
{
    struct call *call = settle->user;
    int64_t lease_ms = 0;

    if (settle->err) {
        settle_refused(call, settle);
        return;
    }
    /* When an acknowledged attempt may start elsewhere: its node must have ended it by then. Only
     * nodes with a connection are sent this. */
    if (!call->req && settle->kind == SETTLE_ACK &&
        settle->head.attempt < settle->head.max_attempts)
        lease_ms = lease_term_ms(&settle->op.u.settle.terms, str_of(settle->head.type));
    int64_t grace_ms =
        lease_ms && settle->head.timeout_ms > 0 ? settle->op.u.settle.stop_grace_ms : 0;
    if (call->accepted && !settle->duplicate &&
        call->accepted(call, settle->kind == SETTLE_ACK, lease_ms, grace_ms))
        return;
    struct buf *buf = call_buf(call);
    buf_str(buf, STR("{\"ok\":true"));
    if (settle->duplicate)
        buf_str(buf, STR(",\"duplicate\":true"));
    if (lease_ms) {
        buf_str(buf, STR(",\"lease_ms\":"));
        buf_int(buf, lease_ms);
    }
    if (grace_ms) {
        buf_str(buf, STR(",\"stop_grace_ms\":"));
        buf_int(buf, grace_ms);
    }
    buf_char(buf, '}');
    call_body(call, 200, buf_view(buf));
}

static void node_message(struct call *call, enum settle_kind kind)
{
    struct settle *settle = arena_raw(call->arena, sizeof *settle);
    struct str node_id;
    struct problem why;

    if (read_message(call, kind, settle, &node_id, &why)) {
        call_problem(call, &why);
        return;
    }
    if (call->node_id.at) {
        node_id = call->node_id; /* the socket's node, whatever the message says */
    } else if (!node_id.at) {
        call_error(call, ERR_BAD_FIELD, "node_id", "node_id is required.");
        return;
    } else if (!call_speaks_for(call, node_id)) {
        return;
    }
    settle->node = node_id;
    settle->from = call->node;
    settle->done = settle_answer;
    settle->user = call;
    settle_start(settle);
}

void api_job_ack(struct call *call)
{
    node_message(call, SETTLE_ACK);
}

void api_job_done(struct call *call)
{
    node_message(call, SETTLE_DONE);
}

void api_job_fail(struct call *call)
{
    node_message(call, SETTLE_FAIL);
}

void job_write(struct jsonw *w, const struct store_record *record,
               const struct namespace_view *view, struct arena *arena)
{
    static const char *const callbacks[] = {[CALLBACK_WANTED] = "wanted",
                                            [CALLBACK_PENDING] = "pending",
                                            [CALLBACK_SENT] = "sent",
                                            [CALLBACK_GIVEN_UP] = "given_up"};
    const struct store_head *head = &record->head;
    const struct json *spec = NULL;
    enum err err = json_parse(record->spec, arena, &spec, NULL);

    assert(!err); /* we wrote it ourselves */
    (void)err;
    jsonw_obj(w);
    write_job_id(w, head->id);
    jsonw_kstr(w, "state", str_of(job_state_name(head->state)));
    jsonw_kstr(w, "status", str_of(job_status_name(head->state)));
    jsonw_kint(w, "attempt_id", head->attempt);
    jsonw_kint(w, "max_attempts", head->max_attempts);
    jsonw_kstr(w, "node_id", head->node[0] ? str_of(head->node) : STR_NONE);
    jsonw_kstr(w, "type", namespace_shown(view, json_str(json_get(spec, "type"), arena)));
    for (size_t i = 0; i < spec_schema.count; i++)
        if (spec_schema.fields[i].flags & SPEC_SHOWN)
            write_member(w, spec_schema.fields[i].name, spec);
    jsonw_kstr(w, "reason", head->reason[0] ? str_of(head->reason) : STR_NONE);
    jsonw_kint(w, "created_ms", head->created_ms);
    jsonw_kint(w, "updated_ms", head->updated_ms);
    const char *const times[] = {"dispatched_ms", "acked_ms", "ended_ms"};
    const int64_t values[] = {head->dispatched_ms, head->acked_ms, head->ended_ms};
    for (size_t i = 0; i < COUNT_OF(times); i++)
        write_int_or_null(w, times[i], values[i], values[i]);
    for (size_t i = 0; i < spec_schema.count; i++)
        if ((spec_schema.fields[i].flags & SPEC_SHOWN_SET) &&
            !json_is_null(json_get(spec, spec_schema.fields[i].name)))
            write_member(w, spec_schema.fields[i].name, spec);
    if (head->callback != CALLBACK_NONE)
        jsonw_kstr(w, "callback", str_of(callbacks[head->callback]));
    if (head->gpus) {
        struct buf gpus = {0};

        spec_gpus_write(head->gpus, &gpus);
        jsonw_kraw(w, "gpus", buf_view(&gpus));
        buf_free(&gpus);
    }
    jsonw_kraw(w, "attempts", record->history.len ? record->history : STR("[]"));
    jsonw_kraw(w, "result", record->result);
    jsonw_end_obj(w);
}

static void show_ready(struct call *call)
{
    struct show *show = call->req->user;

    assert(show && show->call == call && show->waiter);
    show->waiter = NULL; /* used up */
    show->last = true;
    show->reread = show->busy;
    if (!show->busy)
        show_read(show);
}

/* Another instance may have ended the job. */
static void show_look(struct call *call)
{
    struct show *show = call->req->user;

    if (!show->busy)
        show_read(show);
}

static void show_answer(struct show *show)
{
    const struct store_op *op = &show->op;
    struct call *call = show->call;
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);
    struct problem why;

    if (show->waiter)
        waiters_del(call->worker->waiters, show->waiter);
    if (guard_still(call, &why)) {
        call_problem(call, &why);
        return;
    }
    if (op->err) {
        char id[JOB_ID_TEXT + 1];

        job_id_text(show->job, id);
        if (op->err == ERR_NOT_FOUND)
            call_error(call, ERR_NOT_FOUND, "job_id", "There is no job \"%s\".", id);
        else
            call_error(call, op->err, "", "%s.", err_title(op->err));
        return;
    }
    struct namespace_view view = call_view(call);
    job_write(&w, &op->record, &view, call->arena);
    /* Every change to a job changes one of these. */
    etag_json(call, &buf,
              arena_fmt(call->arena, "\"%d-%s-%lld-%d\"", op->head.attempt,
                        job_state_name(op->head.state), (long long)op->head.updated_ms,
                        op->head.callback));
    buf_free(&buf);
}

static void show_got(struct store_op *op)
{
    struct show *show = container_of(op, struct show, op);

    assert(show->busy && op->job == show->job);
    show->busy = false;
    call_hide_job(show->call, op);
    bool over = op->err || job_state_final(op->head.state);
    if (!over && show->waiter)
        return; /* show_ready() runs when the job ends or the time is up */
    if (!over && show->reread)
        show_read(show);
    else
        show_answer(show);
}

static void show_read(struct show *show)
{
    assert(!show->busy && show->job);
    show->reread = false;
    show->op = call_op(show->call, STORE_JOB_GET, show_got);
    show->op.job = show->job;
    show->busy = true;
    sched_send(show->call->worker->sched, &show->op);
}

void api_job_show(struct call *call)
{
    struct show *show = arena_new(call->arena, struct show);
    int64_t wait_ms = 0;

    show->call = call;
    call->req->user = show;
    if (!call_job_id(call, call->params[0], &show->job) ||
        !call_query_ms(call, "wait", call->worker->server->settings->poll_wait_max_ms, &wait_ms))
        return;
    /* Wait first, then read, so that an end in between is not missed. */
    if (wait_ms > 0)
        show->waiter =
            waiters_add(call->worker->waiters, call, show->job, wait_ms, show_ready, show_look);
    show_read(show);
}

struct list {
    struct call *call;
    struct store_op op;
};

static void listed(struct store_op *op)
{
    struct list *list = container_of(op, struct list, op);
    struct call *call = list->call;
    struct namespace_view view = call_view(call);
    char cursor[JOB_ID_TEXT + 1];

    assert(op->err || op->u.list.count <= op->u.list.max);
    if (op->err) {
        call_error(call, op->err, "", "%s.", err_title(op->err));
        return;
    }
    struct jsonw w = call_begin(call);
    jsonw_karr(&w, "jobs");
    for (size_t i = 0; i < op->u.list.count; i++)
        job_write(&w, &op->u.list.items[i], &view, call->arena);
    jsonw_end_arr(&w);
    job_id_text(op->u.list.next, cursor);
    jsonw_kstr(&w, "next_cursor", op->u.list.next ? str_of(cursor) : STR_NONE);
    call_end(call, 200, &w);
}

void api_job_list(struct call *call)
{
    struct list *list = arena_new(call->arena, struct list);
    struct store_op *op = &list->op;
    struct str cursor = http_query(call->req, "cursor");
    struct str states = http_query(call->req, "state"); /* like "DONE,FAILED" */
    struct namespace_view view = call_view(call);
    int64_t limit = LIST_DEFAULT;

    list->call = call;
    *op = call_op(call, STORE_JOB_LIST, listed);
    if (!call_query_int(call, "limit", 1, LIST_MAX, &limit))
        return;
    while (states.len) {
        enum job_state state;

        if (!job_state_by_name(str_cut(&states, ','), &state)) {
            call_error(
                call, ERR_BAD_FIELD, "state",
                "state must be NEW, SELECTING, DISPATCHED, ACKED, RETRYING, DONE or FAILED.");
            return;
        }
        op->u.list.states |= 1u << state;
    }
    if (cursor.at && !job_id_parse(cursor, &op->u.list.before)) {
        call_error(call, ERR_BAD_FIELD, "cursor", "cursor must be a next_cursor of this list.");
        return;
    }
    op->u.list.max = (size_t)limit;
    op->u.list.bytes_max = LIST_BYTES_MAX;
    op->u.list.namespace = namespace_listed(&view);
    op->u.list.type = namespace_wanted(&view, http_query(call->req, "type"), call->arena);
    op->u.list.session = http_query(call->req, "session_id");
    op->u.list.node_id = http_query(call->req, "node_id");
    sched_send(call->worker->sched, op);
}

static void cancelled(struct settle *settle)
{
    struct call *call = settle->user;
    char id[JOB_ID_TEXT + 1];

    assert(settle->kind == SETTLE_CANCEL);
    job_id_text(settle->job, id);
    if (settle->err == ERR_STALE || settle->err == ERR_CONFLICT) {
        call_error(call, ERR_CONFLICT, "job_id", "Job %s is %s already.", id,
                   job_state_name(settle->head.state));
        return;
    }
    if (settle->err) {
        settle_refused(call, settle);
        return;
    }
    /* Tell the node to stop; the slot stays taken until the node reports that it has. */
    if (settle->head.node[0])
        hub_stop(call->worker->sched, str_of(settle->head.node), settle->job, settle->head.attempt,
                 settle->head.reason);
    struct jsonw w = call_begin(call);
    jsonw_kbool(&w, "ok", true);
    jsonw_kstr(&w, "job_id", str_of(id));
    jsonw_kstr(&w, "state", str_of(job_state_name(settle->head.state)));
    if (settle->duplicate)
        jsonw_kbool(&w, "duplicate", true);
    call_end(call, 200, &w);
}

/* Reads the job first to check whose it is, which never changes. */
struct cancel {
    struct call *call;
    struct store_op op;
    struct settle settle;
};

static void cancel_read(struct store_op *op)
{
    struct cancel *cancel = container_of(op, struct cancel, op);

    call_hide_job(cancel->call, op);
    if (!op->err) {
        settle_start(&cancel->settle);
        return;
    }
    cancel->settle.err = op->err;
    cancelled(&cancel->settle);
}

void api_job_cancel(struct call *call)
{
    struct cancel *cancel = arena_new(call->arena, struct cancel);

    cancel->call = call;
    cancel->op = call_op(call, STORE_JOB_GET, cancel_read);
    if (!call_job_id(call, call->params[0], &cancel->op.job))
        return;
    cancel->settle = (struct settle){.loop = call->worker->sched,
                                     .arena = call->arena,
                                     .kind = SETTLE_CANCEL,
                                     .job = cancel->op.job,
                                     .reason = STR("CANCELLED"),
                                     .done = cancelled,
                                     .user = call};
    sched_send(call->worker->sched, &cancel->op);
}
