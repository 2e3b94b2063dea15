/* Checks tokens against limits, and makes audit entries from requests and their answers. Refused
 * calls are counted in a table that is emptied at the end of each window: no row expires by itself.
 */
#include "server/guard.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "server/auth.h"

/* --- refused calls --- */

struct refusal {
    uint64_t caller; /* 0: several */
    int64_t noted;
    struct audit_entry
        more; /* the first call that was only counted; its `count` covers all of them */
};

struct refusals {
    int64_t since_ms; /* monotonic: when the window began */
    size_t count;
    struct refusal callers[REFUSALS_CALLERS_MAX];
};

struct refusals *refusals_new(void)
{
    return mem_new(struct refusals);
}

void refusals_note(struct worker *worker, uint64_t caller, int64_t max,
                   const struct audit_entry *entry)
{
    struct refusals *refusals = worker->refusals;
    struct refusal *refusal = refusals->callers;

    assert(caller != 0 && entry->kind == AUDIT_REFUSED && entry->count == 1);
    if (!refusals->count)
        refusals->since_ms = worker->loop.mono_ms;
    while (refusal < refusals->callers + refusals->count && refusal->caller != caller)
        refusal++;
    if (refusal == refusals->callers + REFUSALS_CALLERS_MAX)
        (--refusal)->caller = 0; /* the last row is for all others */
    else if (refusal == refusals->callers + refusals->count)
        refusals->callers[refusals->count++] = (struct refusal){.caller = caller};
    if (refusal->noted < max) {
        refusal->noted++;
        audit_note(worker, entry);
    } else if (refusal->more.count++ == 0) {
        refusal->more = *entry;
    }
}

void refusals_flush(struct worker *worker)
{
    struct refusals *refusals = worker->refusals;

    for (size_t i = 0; i < refusals->count; i++) {
        struct refusal *refusal = &refusals->callers[i];

        if (refusal->caller == 0)
            refusal->more.who[0] = refusal->more.peer[0] = 0;
        if (refusal->more.count > 0)
            audit_note(worker, &refusal->more);
    }
    refusals->count = 0;
}

void refusals_tick(struct worker *worker)
{
    if (worker->loop.mono_ms - worker->refusals->since_ms >= REFUSALS_WINDOW_MS)
        refusals_flush(worker);
}

/* --- before and after a handler --- */

enum { REQUEST_ID_MAX = 64 };

enum err guard_identify(struct call *call, struct problem *why)
{
    struct worker *worker = call->worker;
    const struct settings *settings = worker->server->settings;
    int64_t max = settings->login_failures_max, now_ms = worker->loop.mono_ms;
    uint64_t peer = call->req->peer_id ? call->req->peer_id : 1;
    struct str bearer = auth_bearer(call->req);
    enum err err;

    call->auth_number = worker->auth_number;
    if (call->route->scope == SCOPE_UNSET)
        return problem_set(why, ERR_FORBIDDEN, "", "Nobody may call this route.");
    if (bearer.at)
        proxy_warn_clear(call);
    if (!worker->auth->tokens.count) {
        http_known(call->req); /* only this machine can call, and needs no token */
        return ERR_OK;
    }
    if (call->route->scope == SCOPE_NONE)
        return ERR_OK;
    err = auth_check(worker->auth, call->req, call->route->scope, worker->loop.wall_ms,
                     &call->token, why);
    if (err != ERR_UNAUTHORIZED) {
        struct namespace_view view = call_view(call);

        http_known(call->req);
        if (err || !call->route->shared || namespace_sees_sums(&view))
            return err;
        /* A team's operator may act on its own jobs, but not on what all namespaces share. */
        return problem_set(why, ERR_FORBIDDEN, "Authorization",
                           "The token is of the namespace " STR_FMT
                           ": what all namespaces share is not its to change or to see.",
                           STR_ARG(view.namespace));
    }
    /* Many callers may share one address: a valid token is never limited. */
    if (bearer.at && !logins_may(worker->logins, peer, max, now_ms)) {
        metric_add_label(METRIC_LOGINS, "limited", 1);
        return problem_set(why, ERR_RATE_LIMIT, "Authorization",
                           "Too many wrong tokens came from this address; try again later.");
    }
    metric_add_label(METRIC_LOGINS, bearer.at ? "refused" : "missing", 1);
    if (bearer.at && logins_failed(worker->logins, peer, max, now_ms))
        log_event(LOG_WARN, "login.limited", KC("peer", call->req->peer));
    return err;
}

quota_meter *guard_meter(const struct call *call)
{
    return call->token && call->token->quota.rate ? auth_meter(call->worker->auth, call->token)
                                                  : NULL;
}

enum err guard_count_job(struct call *call, quota_meter *meter, struct problem *why)
{
    struct quota rate = {0};
    char text[QUOTA_TEXT_MAX + 1];
    int64_t wait_ms;

    if (call->job_counted) {
        call->job_counted = false; /* it was counted when the head arrived */
        return ERR_OK;
    }
    if (!meter || quota_take(&call->token->quota, meter, call->worker->loop.mono_ms, &wait_ms))
        return ERR_OK;
    rate.rate = call->token->quota.rate;
    rate.rate_ms = call->token->quota.rate_ms;
    quota_text(&rate, text);
    call->retry_after_s = (wait_ms + 999) / 1000;
    metric_add_label(METRIC_DISPATCH, err_name(ERR_QUOTA), 1);
    return problem_set(why, ERR_QUOTA, "quota.rate",
                       "The token " STR_FMT " submits too fast (its quota %s): the next job may "
                       "come in %lld ms.",
                       STR_ARG(call->token->name), text, (long long)wait_ms);
}

enum err guard_submit(struct call *call, struct problem *why)
{
    enum err err;

    if (!call->route->submits)
        return ERR_OK;
    err = guard_count_job(call, guard_meter(call), why);
    call->job_counted = !err;
    return err;
}

enum err guard_still(const struct call *call, struct problem *why)
{
    const struct worker *worker = call->worker;

    if (call->auth_number == worker->auth_number || call->route->scope == SCOPE_NONE ||
        auth_still(worker->auth, call->token, call->route->scope, worker->loop.wall_ms))
        return ERR_OK;
    return problem_set(why, ERR_UNAUTHORIZED, "Authorization",
                       "The token is not valid any more, or no more good for this.");
}

bool guard_audited(const struct route *route)
{
    return (route->scope == SCOPE_DEPLOY || route->scope == SCOPE_OPERATE ||
            route->scope == SCOPE_ADMIN) &&
           route->method != HTTP_M_GET;
}

/* The segments of the path without its version and its parameters. */
void guard_action(const struct route *route, char *to, size_t size)
{
    /* For a route whose path ends in a noun. */
    static const char *const verbs[] = {[HTTP_M_GET] = "read",
                                        [HTTP_M_POST] = "create",
                                        [HTTP_M_PUT] = "put",
                                        [HTTP_M_PATCH] = "change",
                                        [HTTP_M_DELETE] = "delete"};
    struct str rest = str_of(route->path), segment;
    size_t used = 0;
    int segments = 0;

    assert(size > 0 && route->method < COUNT_OF(verbs) && verbs[route->method]);
    to[0] = 0;
    str_cut(&rest, '/');
    while (rest.at) {
        segment = str_cut(&rest, '/');
        if (segment.at[0] == '{' || str_is(segment, "v1"))
            continue;
        used += (size_t)snprintf(to + used, size - used, "%s" STR_FMT, used ? "." : "",
                                 STR_ARG(segment));
        assert(used < size);
        segments++;
    }
    if (segments < 2)
        snprintf(to + used, size - used, ".%s", verbs[route->method]);
}

/* As much of the text as fits, up to the first character that could break a line: the caller chose
 * it. */
static void copy_text(struct str text, char *to, size_t size)
{
    size_t len = 0;

    while (len < text.len) {
        struct str rest = {.at = text.at + len, .len = text.len - len};
        size_t more = str_utf8_len(rest);

        if (more == 0 || len + more >= size ||
            !str_is_text((struct str){.at = rest.at, .len = more}))
            break;
        len += more;
    }
    memcpy(to, text.at ? text.at : "", len);
    to[len] = 0;
}

uint64_t guard_caller(const struct call *call)
{
    uint64_t caller = call->token ? str_hash(call->token->name) : call->req->peer_id;

    return caller ? caller : 1;
}

static struct audit_entry entry_of(struct call *call, enum audit_kind kind, int status,
                                   const char *result)
{
    static const char *const members[] = {"node_id", "name", "job_id"};
    struct audit_entry entry = {
        .at_ms = call->worker->loop.wall_ms, .kind = kind, .count = 1, .status = status};
    struct str target = call->target.at ? call->target : call->params[0];

    for (size_t i = 0; !target.at && i < COUNT_OF(members); i++)
        target = json_str(json_get(call->body, members[i]), call->arena);

    guard_action(call->route, entry.action, sizeof entry.action);
    copy_text(call->token ? call->token->name : STR(""), entry.who, sizeof entry.who);
    copy_text(str_of(call->req->peer), entry.peer, sizeof entry.peer);
    copy_text(target, entry.target, sizeof entry.target);
    copy_text(call_request_id(call), entry.request_id, sizeof entry.request_id);
    copy_text(str_of(result), entry.result, sizeof entry.result);
    if (entry.kind == AUDIT_CHANGE && call->route->body) /* a refused call must not cost a digest */
        digest_sha256_hex(call->req->body, entry.body_sha256);
    return entry;
}

struct recorded {
    struct audit_record record;
    struct call *call;
};

static void recorded(struct audit_request *request)
{
    struct call *call = container_of(request, struct recorded, record.request)->call;
    struct problem why;

    if (request->error)
        call_error(call, ERR_AUDIT, "",
                   "Nothing was done: the audit, which is required, cannot be written (%s).",
                   strerror(request->error));
    else if (guard_still(call, &why))
        call_problem(call, &why);
    else
        call->route->handle(call);
}

void guard_handle(struct call *call)
{
    struct recorded *own;

    if (!guard_audited(call->route) ||
        call->worker->server->settings->audit != SETTINGS_AUDIT_REQUIRED) {
        call->route->handle(call);
        return;
    }
    own = arena_new(call->arena, struct recorded);
    own->call = call;
    own->record = (struct audit_record){.request = {.from = call->worker, .done = recorded},
                                        .entry = entry_of(call, AUDIT_CHANGE, 0, "asked")};
    audit_write(&own->record);
}

void guard_audit(struct call *call, int status)
{
    /* A call that failed because the audit could not be written changed nothing, although the error
     * is the server's. */
    enum audit_kind kind = call->err == ERR_AUDIT ? AUDIT_REFUSED : audit_kind_of(status);

    if (!call->route)
        return;
    /* Calls with an invalid token are noted on every route. */
    bool wrong_token = !call->token &&
                       (call->err == ERR_UNAUTHORIZED || call->err == ERR_RATE_LIMIT) &&
                       auth_bearer(call->req).at;
    if (!guard_audited(call->route) && !wrong_token)
        return;
    struct audit_entry entry = entry_of(call, kind, status, call->err ? err_name(call->err) : "ok");
    if (entry.kind == AUDIT_REFUSED)
        refusals_note(call->worker, guard_caller(call),
                      call->worker->server->settings->audit_refused_max, &entry);
    else
        audit_note(call->worker, &entry);
}

struct str call_request_id(struct call *call)
{
    struct str given = http_header_get(call->req, "X-Request-Id");
    static _Thread_local struct rnd rnd;
    static _Thread_local bool seeded;

    if (call->request_id.at)
        return call->request_id;
    if (!seeded)
        rnd_seed_os(&rnd);
    seeded = true;
    call->request_id = str_is_id(given, REQUEST_ID_MAX)
                           ? given
                           : arena_fmt(call->arena, "r%016" PRIx64, rnd_next(&rnd));
    return call->request_id;
}
