/* Deployments for operators: specs come, change and go; what happened to them; and the two words
 * only a person can say (take it from that node, go on although half of the nodes are gone). */
#include <assert.h>
#include <stdio.h>

#include "base/log.h"
#include "server/api.h"
#include "server/deploy.h"
#include "server/rpc.h"

enum {
    LIST_DEFAULT = 100,
    IDS_MAX = 1000,
    APPROVE_DEFAULT_MS = 600000,
    DAY_MS = 86400000,
    LOG_DEFAULT = 65536,
    LOG_MAX = 1 << 20,
};

/* The deployment of the path. */
static struct str named(struct call *call)
{
    struct namespace_view view = call_view(call);

    return namespace_wanted(&view, call->params[0], call->arena);
}

static struct str etag_of(struct call *call, const struct deploys_row *row)
{
    return arena_fmt(call->arena, "\"%lld\"", (long long)row->version);
}

/* Passwords that stand in the environment of a deployment are for those who may write it. */
static bool sees_secrets(const struct call *call)
{
    return !call->token || call->token->scopes & 1u << SCOPE_DEPLOY;
}

static void answer_row(struct deploy_call *own)
{
    struct deploys_op *op = &own->op;
    struct http_header etag = {.name = STR("ETag"), .value = etag_of(own->call, &op->row)};
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);
    bool created = op->verb == DEPLOYS_PUT && op->u.put.created;

    assert(op->found);
    op->row.spec.id = call_shown(own->call, op->row.spec.id);
    deploy_row_write(&w, &op->row, op, sees_secrets(own->call), own->call->arena);
    struct http_reply reply = {
        .status = created ? 201 : 200, .body = buf_view(&buf), .headers = &etag, .header_count = 1};
    call_reply(own->call, &reply);
    buf_free(&buf);
}

void api_deploy_show(struct call *call)
{
    struct deploy_call *own = deploy_call(call, DEPLOYS_GET, answer_row);

    own->op.id = named(call);
    deploy_send(own);
}

static void answer_list(struct deploy_call *own)
{
    const struct deploys_op *op = &own->op;
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);

    jsonw_obj(&w);
    jsonw_key(&w, "deployments");
    jsonw_arr(&w);
    for (size_t i = 0; i < op->u.list.count; i++) {
        struct deploys_row *row = &op->u.list.items[i];

        row->spec.id = call_shown(own->call, row->spec.id);
        deploy_row_write(&w, row, NULL, sees_secrets(own->call), own->call->arena);
    }
    jsonw_end_arr(&w);
    assert(!op->u.list.more || op->u.list.count > 0);
    jsonw_kstr(&w, "next_cursor",
               op->u.list.more ? op->u.list.items[op->u.list.count - 1].spec.id : STR_NONE);
    jsonw_kint(&w, "version", op->version);
    jsonw_end_obj(&w);
    call_json(own->call, 200, &buf);
    buf_free(&buf);
}

void api_deploy_list(struct call *call)
{
    struct deploy_call *own = deploy_call(call, DEPLOYS_LIST, answer_list);
    struct str type = http_query(call->req, "type");
    struct namespace_view view = call_view(call);
    int64_t limit = LIST_DEFAULT;
    bool enabled = true;

    if (type.at && deploy_type_by_name(type) == DEPLOY_OTHER) {
        call_error(call, ERR_BAD_FIELD, "type", "type must be deployment or daemon.");
        return;
    }
    if (!call_query_int(call, "limit", 1, DEPLOYS_PAGE_MAX, &limit) ||
        !call_query_bool(call, "enabled", &enabled))
        return;
    own->op.u.list.type = type;
    own->op.u.list.address = http_query(call->req, "address");
    own->op.u.list.package_name = http_query(call->req, "package_name");
    own->op.u.list.enabled = http_query(call->req, "enabled").at ? enabled : -1;
    own->op.u.list.namespace = namespace_listed(&view);
    own->op.u.list.after = namespace_wanted(&view, http_query(call->req, "cursor"), call->arena);
    own->op.u.list.max = (size_t)limit;
    deploy_send(own);
}

/* If-Match: "3", or *; If-None-Match: *. */
static bool read_match(struct call *call, int64_t *ret_version)
{
    struct str match = str_trim(http_header_get(call->req, "If-Match"));
    struct str none = str_trim(http_header_get(call->req, "If-None-Match"));

    *ret_version = DEPLOYS_ANY;
    if (none.len) {
        *ret_version = 0;
        if (str_is(none, "*") && !match.len)
            return true;
        call_error(call, ERR_BAD_FIELD, "If-None-Match", "If-None-Match must be *, and alone.");
        return false;
    }
    if (!match.len)
        return true;
    if (str_is(match, "*")) {
        *ret_version = DEPLOYS_EXISTING;
        return true;
    }
    if (match.len >= 2 && match.at[0] == '"' && match.at[match.len - 1] == '"')
        match = (struct str){.at = match.at + 1, .len = match.len - 2};
    if (str_int(match, ret_version) && *ret_version > 0)
        return true;
    call_error(call, ERR_BAD_FIELD, "If-Match", "If-Match must be a version, like \"3\", or *.");
    return false;
}

static void log_change(const struct deploy_call *own, const char *what)
{
    if (own->op.u.put.changed)
        log_event(LOG_INFO, what, KS("deployment_id", own->op.id),
                  KI("version", own->op.row.version), KS("node_id", own->op.row.address));
}

static void was_put(struct deploy_call *own)
{
    log_change(own, own->op.u.put.created ? "deployment.created" : "deployment.changed");
    answer_row(own);
}

void api_deploy_put(struct call *call)
{
    struct deploy_call *own = deploy_call(call, DEPLOYS_PUT, was_put);
    struct problem why;

    if (deploy_body_read(call->body, call->params[0], call->arena, &own->spec, &why)) {
        call_problem(call, &why);
        return;
    }
    if (!call_name(call, "id", call->params[0], DEPLOY_ID_MAX, &own->spec.id))
        return;
    own->op.id = own->spec.id;
    own->op.u.put.spec = &own->spec;
    if (read_match(call, &own->op.u.put.if_version))
        deploy_send(own);
}

void api_deploy_patch(struct call *call)
{
    struct deploy_call *own = deploy_call(call, DEPLOYS_ENABLE, was_put);

    if (!json_bool(json_get(call->body, "enabled"), &own->op.u.put.enabled) ||
        call->body->count != 1) {
        call_error(call, ERR_BAD_FIELD, "enabled",
                   "enabled must be true or false, and alone: everything else is for PUT.");
        return;
    }
    own->op.id = named(call);
    if (read_match(call, &own->op.u.put.if_version))
        deploy_send(own);
}

void api_deploy_restart(struct call *call)
{
    struct deploy_call *own = deploy_call(call, DEPLOYS_RESTART, was_put);

    own->op.id = named(call);
    if (read_match(call, &own->op.u.put.if_version))
        deploy_send(own);
}

static void was_deleted(struct deploy_call *own)
{
    log_change(own, "deployment.deleted");
    call_ok(own->call);
}

void api_deploy_delete(struct call *call)
{
    struct deploy_call *own = deploy_call(call, DEPLOYS_DELETE, was_deleted);

    own->op.id = named(call);
    if (read_match(call, &own->op.u.put.if_version))
        deploy_send(own);
}

static void answer_history(struct deploy_call *own)
{
    const struct deploys_op *op = &own->op;
    size_t count = op->u.history.count;
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);

    jsonw_obj(&w);
    jsonw_key(&w, "history");
    jsonw_arr(&w);
    for (size_t i = 0; i < count; i++) {
        const struct deploys_event *event = &op->u.history.items[i];

        jsonw_obj(&w);
        jsonw_kint(&w, "seq", event->seq);
        jsonw_kint(&w, "at_ms", event->at_ms);
        jsonw_kstr(&w, "what", event->what);
        jsonw_kstr(&w, "address", event->address);
        jsonw_kint(&w, "generation", event->generation);
        jsonw_kint(&w, "version", event->version);
        jsonw_kstr(&w, "detail", event->detail);
        jsonw_end_obj(&w);
    }
    jsonw_end_arr(&w);
    jsonw_kstr(&w, "next_cursor",
               op->u.history.more ? arena_fmt(own->call->arena, "%lld",
                                              (long long)op->u.history.items[count - 1].seq)
                                  : STR_NONE);
    jsonw_end_obj(&w);
    call_json(own->call, 200, &buf);
    buf_free(&buf);
}

void api_deploy_history(struct call *call)
{
    struct deploy_call *own = deploy_call(call, DEPLOYS_HISTORY, answer_history);
    int64_t limit = LIST_DEFAULT;

    own->op.id = named(call);
    if (!call_query_int(call, "limit", 1, DEPLOYS_PAGE_MAX, &limit) ||
        !call_query_int(call, "cursor", 1, INT64_MAX, &own->op.u.history.before))
        return;
    own->op.u.history.max = (size_t)limit;
    deploy_send(own);
}

static void answer_release(struct deploy_call *own)
{
    const struct deploys_op *op = &own->op;
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);

    assert(op->u.release.released && op->u.release.held);
    log_event(LOG_WARN, "deployment.release", KI("released", (int64_t)op->u.release.released_count),
              KI("held", (int64_t)op->u.release.held_count));
    jsonw_obj(&w);
    jsonw_key(&w, "released");
    jsonw_arr(&w);
    for (size_t i = 0; i < op->u.release.released_count; i++)
        jsonw_str(&w, call_shown(own->call, op->u.release.released[i]));
    jsonw_end_arr(&w);
    jsonw_key(&w, "held");
    jsonw_arr(&w);
    for (size_t i = 0; i < op->u.release.held_count; i++) {
        jsonw_obj(&w);
        jsonw_kstr(&w, "id", call_shown(own->call, op->u.release.held[i].id));
        jsonw_kstr(&w, "address", op->u.release.held[i].address);
        jsonw_kint(&w, "left_ms", op->u.release.held[i].left_ms);
        jsonw_end_obj(&w);
    }
    jsonw_end_arr(&w);
    jsonw_end_obj(&w);
    call_json(own->call, 200, &buf);
    buf_free(&buf);
}

void api_deploy_release(struct call *call)
{
    struct deploy_call *own = deploy_call(call, DEPLOYS_RELEASE, answer_release);
    const struct json *ids = json_get(call->body, "ids");
    struct str address = json_str(json_get(call->body, "address"), call->arena);
    struct namespace_view view = call_view(call);

    own->op.u.release.namespace = namespace_listed(&view);
    if ((address.len > 0) == (json_type(ids) == JSON_ARR) ||
        (ids && json_type(ids) == JSON_ARR && ids->count > IDS_MAX)) {
        call_error(call, ERR_BAD_FIELD, "address",
                   "Either address (a node) or ids (a list of at most %d deployments).", IDS_MAX);
        return;
    }
    if (address.len) {
        own->op.u.release.address = address;
    } else {
        struct str *list = arena_array(call->arena, struct str, ids->count + 1);
        const struct json *item = json_first(ids);

        for (uint32_t i = 0; i < ids->count; i++, item = json_next(item))
            list[i] = json_type(item) == JSON_STR
                          ? namespace_wanted(&view, json_str(item, call->arena), call->arena)
                          : STR("");
        own->op.u.release.ids = list;
        own->op.u.release.id_count = ids->count;
    }
    deploy_send(own);
}

static void answer_approve(struct deploy_call *own)
{
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);

    log_event(LOG_WARN, "deployment.approved", KI("until_ms", own->op.u.until.until_ms));
    jsonw_obj(&w);
    jsonw_kint(&w, "approved_until_ms", own->op.u.until.until_ms);
    jsonw_end_obj(&w);
    call_json(own->call, 200, &buf);
    buf_free(&buf);
}

void api_deploy_approve(struct call *call)
{
    static const struct field fields[] = {{.name = "for_ms", .type = FIELD_MS, .max = DAY_MS}};
    static const struct schema schema = {.what = "the body", .fields = fields, .count = 1};
    struct deploy_call *own = deploy_call(call, DEPLOYS_APPROVE, answer_approve);
    int64_t for_ms = APPROVE_DEFAULT_MS;
    struct problem why;

    if (schema_read(&schema, call->body, &for_ms, call->arena, &why)) {
        call_problem(call, &why);
        return;
    }
    own->op.u.until.for_ms = for_ms;
    deploy_send(own);
}

/* What a copy printed is its node's: found in the table, asked over its socket. */
struct logs_call {
    struct deploy_call *own;
    struct rpc rpc;
};

static void logs_done(struct rpc *rpc)
{
    struct call *call = container_of(rpc, struct logs_call, rpc)->own->call;
    struct buf answer = rpc->answer; /* the reply ends the request, and us with it */

    if (rpc->err == ERR_BAD_REQUEST)
        call_error(call, ERR_NOT_FOUND, "", "The node says: " STR_FMT, STR_ARG(buf_view(&answer)));
    else if (rpc->err)
        call_error(call, rpc->err, "", "%s",
                   rpc->err == ERR_TIMEOUT ? "The node did not answer in time."
                                           : "The node has no connection to be asked over.");
    else
        call_json(call, 200, &answer);
    buf_free(&answer);
}

static void logs_found(struct deploy_call *own)
{
    struct call *call = own->call;
    struct logs_call *logs = arena_new(call->arena, struct logs_call);
    struct str address = http_query(call->req, "address");
    int64_t offset = 0, max = LOG_DEFAULT;
    struct buf params = {0};
    struct jsonw w = jsonw_to(&params);

    if (!call_query_int(call, "offset", -1, INT64_MAX, &offset) ||
        !call_query_int(call, "max", 1, LOG_MAX, &max))
        return;
    if (!address.len)
        address = own->op.row.address.len  ? own->op.row.address
                  : own->op.copy_count > 0 ? own->op.copies[0].address
                                           : STR_NONE;
    const struct snap_node *known = snapshot_node(call->worker->sched->snapshot, address);
    if (!known) {
        call_error(call, ERR_NOT_FOUND, "address",
                   address.len ? "Its node is not here." : "No node has it.");
        return;
    }
    jsonw_obj(&w);
    jsonw_kstr(&w, "id", own->op.id);
    jsonw_kint(&w, "offset", offset);
    jsonw_kint(&w, "max", max);
    jsonw_end_obj(&w);
    *logs = (struct logs_call){.own = own,
                               .rpc = {.from = call->worker,
                                       .params = arena_str(call->arena, buf_view(&params)),
                                       .done = logs_done}};
    buf_free(&params);
    snprintf(logs->rpc.method, sizeof logs->rpc.method, "Deployment/Logs");
    rpc_send(&logs->rpc, known->node);
}

void api_deploy_logs(struct call *call)
{
    struct deploy_call *own = deploy_call(call, DEPLOYS_GET, logs_found);

    own->op.id = named(call);
    deploy_send(own);
}
