/* Deployment routes for operators: creating, changing and deleting specs; their history; and the
 * two orders only a person can give (release copies from a node, continue although half of the
 * nodes are gone). Also passes requests to the database and returns the answers, and converts a
 * spec between the request body (read by model/deploy.h) and its columns. */
#include "server/api_deploy.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "model/deploy.h"
#include "model/level.h"
#include "model/selector.h"
#include "sched/shared_text.h"
#include "server/api.h"
#include "server/hub.h"
#include "server/messages.h"
#include "server/rpc.h"

/* --- to the database and back --- */

/* On the SQL thread. */
static void changed(void *user, int64_t news)
{
    struct server *server = user;

    assert(news > 0);
    atomic_store(&server->deploy_news, news);
}

enum err deploy_open(struct server *server, struct problem *why)
{
    const struct settings *settings = server->settings;
    struct arena arena = {0};
    struct deploys_config config = {.url = arena_cstr(&arena, settings->database),
                                    .data_dir = arena_cstr(&arena, settings->data_dir),
                                    .timeout_ms = settings->database_timeout_ms,
                                    .changed = changed,
                                    .user = server};
    enum err err = ERR_OK;

    if (!settings->database.len)
        config.url = "sqlite:";
    if (settings->database.len || str_starts(settings->store, STR("embedded:")))
        err = deploys_open(&config, &server->deploys, why);
    arena_free(&arena);
    return err;
}

void deploy_tick(struct worker *worker)
{
    int64_t news = atomic_load(&worker->server->deploy_news);

    if (news == worker->told_news)
        return;
    worker->told_news = news;
    hub_broadcast(worker->hub, STR("{\"msg\":\"deployments_changed\"}"));
}

void deploy_watch(struct server *server)
{
    struct deploys_status status;

    if (!server->deploys)
        return;
    deploys_status(server->deploys, &status);
    if (status.may_forget && !server->database_forgets)
        log_event(LOG_WARN, "database.may_forget",
                  KC("reason", "it has replicas and waits for none (synchronous_standby_names)"));
    server->database_forgets = status.may_forget;
    if (status.up != server->database_down)
        return; /* no change since it was logged */
    server->database_down = !status.up;
    if (status.up)
        log_event(LOG_INFO, "database.up", KI("errors", status.errors));
    else
        log_event(LOG_WARN, "database.down", KC("reason", status.detail));
}

static void failed(struct deploy_call *own)
{
    const struct deploys_op *op = &own->op;
    struct call *call = own->call;
    struct str id = call->params[0].at ? call->params[0] : op->id; /* as the caller named it */

    if (op->err == ERR_NOT_FOUND)
        call_error(call, op->err, "id", "There is no deployment \"" STR_FMT "\".", STR_ARG(id));
    else if (op->err == ERR_PRECONDITION && op->found)
        call_error(call, op->err, "If-Match", "It is in version %lld now.",
                   (long long)op->row.version);
    else if (op->err == ERR_PRECONDITION)
        call_error(call, op->err, "If-Match", "There is no deployment \"" STR_FMT "\".",
                   STR_ARG(id));
    else if (op->err == ERR_BAD_REQUEST)
        call_error(call, op->err, "", "The database takes no such value (" STR_FMT ").",
                   STR_ARG(op->detail));
    else
        call_error(call, op->err, "", "%s.",
                   op->err == ERR_STORE_DOWN ? "The database cannot be reached"
                                             : err_title(op->err));
}

static void answered(struct deploys_op *op)
{
    struct deploy_call *own = container_of(op, struct deploy_call, op);

    assert(op->arena == own->call->arena);
    if (op->err == ERR_INTERNAL)
        log_event(LOG_ERROR, "database.refused", KC("route", own->call->route->path),
                  KS("reason", op->detail));
    if (op->err && op->err != ERR_CONFLICT)
        failed(own);
    else
        own->answer(own);
}

struct deploy_call *deploy_call(struct call *call, enum deploys_verb verb,
                                void (*answer)(struct deploy_call *own))
{
    struct deploy_call *own = arena_new(call->arena, struct deploy_call);

    assert(verb < DEPLOYS_VERB_COUNT && answer);
    own->call = call;
    own->answer = answer;
    own->op = (struct deploys_op){.verb = verb,
                                  .reply_to = &call->worker->loop.inbox,
                                  .done = answered,
                                  .arena = call->arena};
    return own;
}

void deploy_send(struct deploy_call *own)
{
    struct server *server = own->call->worker->server;
    const struct settings *settings = atomic_load(&server->settings);

    if (!server->deploys) {
        call_error(own->call, ERR_NO_DATABASE, "",
                   "Several instances may share this store, so deployments need a database they "
                   "share as well: --database postgresql://...");
        return;
    }
    own->op.until_mono_ms = own->call->worker->loop.mono_ms + settings->database_timeout_ms;
    enum err err = deploys_send(server->deploys, &own->op);
    if (err) { /* otherwise the database owns the op until it answers */
        own->op.err = err;
        failed(own);
    }
}

/* --- specs and rows --- */

/* A key in `options`: the command was sent as a list of one word. Any other list is recognized by
 * its args. */
#define OPTION_EXEC "exec"

static struct str text_of(struct buf *buf, struct arena *arena)
{
    struct str text = arena_str(arena, buf_view(buf));

    buf_free(buf);
    return text;
}

static struct str or_empty(struct str text)
{
    return text.at ? text : STR("");
}

/* The body of a PUT. */
static enum err deploy_body_read(const struct json *body, struct str id, struct arena *arena,
                                 struct deploys_spec *ret_spec, struct problem *why)
{
    struct deploy_spec in;
    struct buf buf = {0};

    if (!str_is_name(id, DEPLOY_ID_MAX))
        return problem_set(why, ERR_BAD_FIELD, "id",
                           "id must be 1 to %d letters, digits or ._:@-, not starting with a dot.",
                           DEPLOY_ID_MAX);
    enum err err = deploy_spec_read(body, true, arena, &in, why);
    if (err)
        return err;
    if (in.id.at && !str_eq(in.id, id))
        return problem_set(why, ERR_BAD_FIELD, "id", "id must be the path's, " STR_FMT ".",
                           STR_ARG(id));
    *ret_spec = (struct deploys_spec){
        .id = id,
        .type = deploy_type_by_name(str_of(deploy_spec_types[in.type])),
        .package_name = or_empty(in.package_name),
        .package_version = or_empty(in.package_version),
        .command = STR(""),
        .selector = or_empty(in.selector),
        .enabled = in.enabled,
        .count = in.count == FIELD_OFF ? 0 : in.count,
        .max_unavailable = in.max_unavailable == FIELD_OFF ? 0 : in.max_unavailable,
        .update_timeout_ms = in.update_timeout_ms == FIELD_OFF ? 0 : in.update_timeout_ms,
    };
    struct jsonw w = jsonw_to(&buf);
    jsonw_obj(&w);
    for (size_t i = 0; i < in.env.count; i++) {
        struct str value = in.env.at[i], name = str_cut(&value, '=');

        jsonw_key_str(&w, name);
        jsonw_str(&w, or_empty(value));
    }
    jsonw_end_obj(&w);
    ret_spec->env = text_of(&buf, arena);
    w = jsonw_to(&buf);
    jsonw_obj(&w);
    if (in.command.count == 1)
        jsonw_kbool(&w, OPTION_EXEC, true);
    deploy_spec_write_options(&in, &w);
    jsonw_end_obj(&w);
    ret_spec->options = text_of(&buf, arena);
    struct strs args = in.args;
    if (in.shell) {
        ret_spec->command = in.command.at[in.command.count - 1];
    } else if (in.command.count > 0) {
        ret_spec->command = in.command.at[0];
        args = (struct strs){.at = in.command.at + 1, .count = in.command.count - 1};
    }
    w = jsonw_to(&buf);
    jsonw_arr(&w);
    for (size_t i = 0; i < args.count; i++)
        jsonw_str(&w, args.at[i]);
    jsonw_end_arr(&w);
    ret_spec->args = text_of(&buf, arena);
    assert(ret_spec->type != DEPLOY_OTHER && ret_spec->command.at && ret_spec->args.at);
    return ERR_OK;
}

/* Other programs can write rows, so a column may hold anything: invalid JSON is shown as null. */
static void kjson(struct jsonw *w, const char *name, struct str text, struct arena *arena)
{
    const struct json *value;

    if (json_parse(text, arena, &value, NULL))
        jsonw_knull(w, name);
    else
        jsonw_kraw(w, name, text);
}

/* Only the names. */
static void env_names_write(struct jsonw *w, struct str text, struct arena *arena)
{
    const struct json *env;

    if (json_parse(text, arena, &env, NULL) || json_type(env) != JSON_OBJ) {
        jsonw_knull(w, "env");
        return;
    }
    jsonw_kobj(w, "env");
    for (const struct json *key = json_keys(env); key; key = json_after(env, key)) {
        jsonw_key_str(w, json_str(key, arena));
        jsonw_raw(w, STR("null"));
    }
    jsonw_end_obj(w);
}

void deploy_body_write(struct jsonw *w, const struct deploys_spec *spec, bool secrets,
                       struct arena *arena)
{
    const struct json *options = NULL;
    bool exec = false;

    if (json_parse(spec->options, arena, &options, NULL))
        options = NULL;
    jsonw_kstr(w, "package_name", spec->package_name);
    jsonw_kstr(w, "package_version", spec->package_version);
    json_bool(json_get(options, OPTION_EXEC), &exec);
    jsonw_key(w, "command");
    if (exec)
        jsonw_arr(w);
    jsonw_str(w, spec->command);
    if (exec)
        jsonw_end_arr(w);
    kjson(w, "args", spec->args, arena);
    if (secrets)
        kjson(w, "env", spec->env, arena);
    else
        env_names_write(w, spec->env, arena);
    jsonw_kstr(w, "selector", spec->selector);
    for (const struct json *key = json_keys(options); key; key = json_after(options, key)) {
        if (json_str_is(key, OPTION_EXEC))
            continue;
        jsonw_key_str(w, json_str(key, arena));
        jsonw_raw(w, json_raw(key + 1));
    }
}

/* Writes the whole row as an object; `op` is the op it answers, NULL in a list. */
static void deploy_row_write(struct jsonw *w, const struct deploys_row *row,
                             const struct deploys_op *op, bool secrets, struct arena *arena)
{
    jsonw_obj(w);
    jsonw_kstr(w, "id", row->spec.id);
    jsonw_kstr(w, "type", str_of(deploy_type_name(row->spec.type)));
    deploy_body_write(w, &row->spec, secrets, arena);
    jsonw_kbool(w, "enabled", row->spec.enabled);
    if (row->spec.count > 1 || row->spec.max_unavailable > 1) {
        jsonw_kint(w, "count", row->spec.count);
        jsonw_kint(w, "max_unavailable", row->spec.max_unavailable);
    }
    if (row->spec.update_timeout_ms != DEPLOY_UPDATE_TIMEOUT_MS)
        jsonw_kint(w, "update_timeout_ms", row->spec.update_timeout_ms);
    jsonw_kstr(w, "address", row->owner);
    jsonw_kint(w, "generation", row->generation);
    jsonw_kint(w, "version", row->version);
    jsonw_kstr(w, "ended", row->ended.len ? row->ended : STR_NONE);
    jsonw_kstr(w, "created_at", row->created_at);
    jsonw_kstr(w, "updated_at", row->updated_at);
    if (row->rollout != ROLLOUT_NONE) {
        jsonw_kobj(w, "update");
        jsonw_kstr(w, "state", str_of(rollout_state_name(row->rollout)));
        jsonw_kint(w, "good_version", row->good_version);
        jsonw_kstr(w, "reason", row->rollout_reason.len ? row->rollout_reason : STR_NONE);
        jsonw_end_obj(w);
    }
    if (!op) {
        jsonw_kstr(w, "state", row->state);
        write_int_or_null(w, "copy_version", row->state.at, row->copy_version);
        if (row->spec.count > 1)
            jsonw_kint(w, "ready", row->ready);
    } else if (op->verb == DEPLOYS_GET) {
        jsonw_karr(w, "copies");
        for (size_t i = 0; i < op->copy_count; i++)
            schema_write(row->spec.count > 1 ? &indexed_copy_schema : &copy_schema, &op->copies[i],
                         w);
        jsonw_end_arr(w);
        jsonw_karr(w, "failed_on");
        for (size_t i = 0; i < op->failure_count; i++)
            schema_write(&failed_on_schema, &op->failures[i], w);
        jsonw_end_arr(w);
    } else {
        jsonw_kbool(w, "changed", op->u.put.changed);
    }
    jsonw_end_obj(w);
}

/* --- routes --- */

enum {
    LIST_DEFAULT = 100,
    IDS_MAX = 1000,
    APPROVE_DEFAULT_MS = 600000,
    DAY_MS = 86400000,
    LOG_DEFAULT = 65536,
    LOG_MAX = 1 << 20,
};

/* The environment of a deployment may hold passwords: only callers who may write it see the
 * values. */
static bool sees_secrets(const struct call *call)
{
    return !call->token || call->token->scopes & 1u << SCOPE_DEPLOY;
}

static void answer_row(struct deploy_call *own)
{
    struct deploys_op *op = &own->op;
    struct str etag = arena_fmt(own->call->arena, "\"%lld\"", (long long)op->row.version);
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);
    bool created = op->verb == DEPLOYS_PUT && op->u.put.created;

    assert(op->found);
    op->row.spec.id = call_shown(own->call, op->row.spec.id);
    deploy_row_write(&w, &op->row, op, sees_secrets(own->call), own->call->arena);
    etag_reply(own->call, created ? 201 : 200, buf_view(&buf), etag);
    buf_free(&buf);
}

/* Sends an op for the deployment in the path, or for one of its copies ("web#1"). */
static void send_named(struct deploy_call *own)
{
    struct namespace_view view = call_view(own->call);

    own->op.id = namespace_wanted(&view, own->call->params[0], own->call->arena);
    deploy_send(own);
}

void api_deploy_show(struct call *call)
{
    send_named(deploy_call(call, DEPLOYS_GET, answer_row));
}

static void answer_list(struct deploy_call *own)
{
    const struct deploys_op *op = &own->op;
    struct jsonw w = call_begin(own->call);

    jsonw_karr(&w, "deployments");
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
    call_end(own->call, 200, &w);
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
    own->op.u.list.owner = http_query(call->req, "address");
    own->op.u.list.package_name = http_query(call->req, "package_name");
    own->op.u.list.enabled = http_query(call->req, "enabled").at ? enabled : -1;
    own->op.u.list.namespace = namespace_listed(&view);
    own->op.u.list.after = namespace_wanted(&view, http_query(call->req, "cursor"), call->arena);
    own->op.u.list.max = (size_t)limit;
    deploy_send(own);
}

/* Reads `If-Match: "3"` or `*`, and `If-None-Match: *`. */
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
                  KI("version", own->op.row.version), KS("node_id", own->op.row.owner));
}

static void was_put(struct deploy_call *own)
{
    log_change(own, own->op.u.put.created ? "deployment.created" : "deployment.changed");
    answer_row(own);
}

void api_deploy_put(struct call *call)
{
    struct deploy_call *own = deploy_call(call, DEPLOYS_PUT, was_put);
    const struct settings *settings = call->worker->server->settings;
    struct problem why;

    if (deploy_body_read(call->body, call->params[0], call->arena, &own->spec, &why) ||
        selector_check(own->spec.selector, (enum selector_form)settings->selectors, "selector",
                       &why)) {
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
    if (read_match(call, &own->op.u.put.if_version))
        send_named(own);
}

void api_deploy_restart(struct call *call)
{
    struct deploy_call *own = deploy_call(call, DEPLOYS_RESTART, was_put);

    if (read_match(call, &own->op.u.put.if_version))
        send_named(own);
}

static void was_scaled(struct deploy_call *own)
{
    if (own->op.err) {
        call_error(own->call, ERR_CONFLICT, "count",
                   "It is a daemon, which runs once on every node.");
        return;
    }
    log_change(own, "deployment.scaled");
    answer_row(own);
}

static const struct field scale_fields[] = {
    FIELD_BOUND("count", INT, 0, 1, DEPLOY_COUNT_MAX, NULL, FIELD_REQUIRED, "copies")};
const struct schema deploy_scale_schema = {
    .what = "the body", .fields = scale_fields, .count = COUNT_OF(scale_fields), .strict = true};

void api_deploy_scale(struct call *call)
{
    struct deploy_call *own = deploy_call(call, DEPLOYS_SCALE, was_scaled);

    if (call_read(call, &deploy_scale_schema, &own->op.u.put.count) &&
        read_match(call, &own->op.u.put.if_version))
        send_named(own);
}

static void was_rolled_back(struct deploy_call *own)
{
    if (own->op.err) {
        if (own->op.u.put.to_version == 0)
            call_error(own->call, ERR_CONFLICT, "to_version",
                       "No version before this one is kept.");
        else
            call_error(own->call, ERR_CONFLICT, "to_version",
                       "Version %lld of it is not kept, or is of another type.",
                       (long long)own->op.u.put.to_version);
        return;
    }
    log_change(own, "deployment.rolled_back");
    answer_row(own);
}

static const struct field rollback_fields[] = {FIELD_BOUND(
    "to_version", INT, 0, 1, INT64_MAX, NULL, 0, "not said: the last one that was another spec")};
const struct schema deploy_rollback_schema = {.what = "the body",
                                              .fields = rollback_fields,
                                              .count = COUNT_OF(rollback_fields),
                                              .strict = true};

void api_deploy_rollback(struct call *call)
{
    struct deploy_call *own = deploy_call(call, DEPLOYS_ROLLBACK, was_rolled_back);

    if ((!call->body || call_read(call, &deploy_rollback_schema, &own->op.u.put.to_version)) &&
        read_match(call, &own->op.u.put.if_version))
        send_named(own);
}

static void was_deleted(struct deploy_call *own)
{
    log_change(own, "deployment.deleted");
    call_ok(own->call);
}

void api_deploy_delete(struct call *call)
{
    struct deploy_call *own = deploy_call(call, DEPLOYS_DELETE, was_deleted);

    if (read_match(call, &own->op.u.put.if_version))
        send_named(own);
}

static void answer_history(struct deploy_call *own)
{
    const struct deploys_op *op = &own->op;
    size_t count = op->u.history.count;
    struct jsonw w = call_begin(own->call);

    jsonw_karr(&w, "history");
    for (size_t i = 0; i < count; i++)
        schema_write(&history_entry_schema, &op->u.history.items[i], &w);
    jsonw_end_arr(&w);
    jsonw_kstr(&w, "next_cursor",
               op->u.history.more ? arena_fmt(own->call->arena, "%lld",
                                              (long long)op->u.history.items[count - 1].seq)
                                  : STR_NONE);
    call_end(own->call, 200, &w);
}

void api_deploy_history(struct call *call)
{
    struct deploy_call *own = deploy_call(call, DEPLOYS_HISTORY, answer_history);
    int64_t limit = LIST_DEFAULT;

    if (!call_query_int(call, "limit", 1, DEPLOYS_PAGE_MAX, &limit) ||
        !call_query_int(call, "cursor", 1, INT64_MAX, &own->op.u.history.before))
        return;
    own->op.u.history.max = (size_t)limit;
    send_named(own);
}

/* --- why a node does not have it --- */

/* The row of a deployment and what is known about where it may run. */
struct explained {
    struct call *call;
    const struct deploys_op *op;
    struct selector selector;
    const struct demand *demand; /* NULL: it needs no resources */
};

/* STR_NONE as the node: counts the copies that are not claimed. */
static int64_t copies_on(const struct deploys_op *op, struct str node_id)
{
    int64_t count = 0;

    if (op->row.spec.type == DEPLOY_DEPLOYMENT && op->row.spec.count <= 1)
        return str_eq(op->row.owner, node_id); /* a node may still report one it gave up */
    for (size_t i = 0; i < op->copy_count; i++)
        count += str_eq(op->copies[i].address, node_id);
    return count;
}

static bool has_tag(const struct snap_node *member, const char *name, const char *value,
                    struct arena *arena)
{
    const struct json *tags;

    return !json_parse(member->facts->tags, arena, &tags, NULL) &&
           json_str_is(json_get(tags, name), value);
}

/* Compares the demand with what the node declares and what it has left. */
static bool has_room(const struct explained *explained, const struct snap_node *member,
                     struct buf *to)
{
    const struct resources *declared = member->facts->resources;
    struct resources_left left;
    struct resources_short lack;

    if (!explained->demand)
        return true;
    if (!declared) {
        buf_str(to, STR("it tells of no resources"));
        return false;
    }
    if (!counts_left(member->node, declared, &left)) {
        buf_str(to, STR("what it has left is not known yet"));
        return false;
    }
    if (resources_left_fit(declared, &left, explained->demand, &lack))
        return true;
    resources_short_text(&lack, to);
    return false;
}

/* The first thing that keeps the node from claiming a copy, checked in the order of the claim
 * rules. */
static const char *why_not(const struct explained *explained, const struct snap_node *member,
                           struct buf *to)
{
    const struct node *node = member->node;
    struct arena *arena = explained->call->arena;
    const struct selector_facts facts = {.id = node->id, .labels = member->facts->label_values};
    const char *admin = node_admin_name(atomic_load(&node->admin));
    int32_t level = atomic_load(&node->level);

    if (copies_on(explained->op, node->id) > 0) {
        buf_str(to, STR("it has it"));
        return "has_it";
    }
    if (atomic_load(&node->health) == NODE_OFFLINE) {
        buf_str(to, STR("it is not here"));
        return "gone";
    }
    if (!has_tag(member, "node_unit", "true", arena)) {
        buf_str(to, STR("it claims no deployments (allow_deployments)"));
        return "claims_none";
    }
    if (!namespace_in(member->facts->namespaces, explained->op->row.spec.id)) {
        buf_str(to, STR("it is kept for other namespaces"));
        return "namespace";
    }
    if (selector_explain(&explained->selector, &facts, to))
        return "selector";
    if (admin) {
        buf_fmt(to, "it is %s", admin);
        return "admin";
    }
    if (level >= LEVEL_DANGER || atomic_load(&node->health) != NODE_READY) {
        buf_fmt(to, "it is at level %s",
                level < 0 ? node_health_name((enum node_health)atomic_load(&node->health))
                          : level_name((enum level)level));
        return "level";
    }
    if (!has_room(explained, member, to))
        return "no_room";
    if (has_tag(member, "node_unit_takes", "false", arena)) {
        buf_str(to, STR("it takes no more (deployments_max, allow_deployments or claim_policy)"));
        return "full";
    }
    for (size_t i = 0; i < explained->op->failure_count; i++)
        if (str_eq(explained->op->failures[i].address, node->id)) {
            buf_fmt(to, "it failed there, so that others come first: " STR_FMT,
                    STR_ARG(explained->op->failures[i].reason));
            return "failed_here";
        }
    buf_str(to, STR("it may claim it"));
    /* The node's own account of its claims. */
    struct shared_text *text = atomic_load(&node->claim);
    const struct json *claim;
    struct buf buf = {0};
    if (text && shared_text_read(text, &buf) && !json_parse(buf_view(&buf), arena, &claim, NULL) &&
        json_type(json_get(claim, "last")) == JSON_STR)
        buf_fmt(to, ", and said last: " STR_FMT, STR_ARG(json_str(json_get(claim, "last"), arena)));
    buf_free(&buf);
    return "may";
}

static void answer_explain(struct deploy_call *own)
{
    struct call *call = own->call;
    const struct snapshot *snapshot = call->worker->sched->snapshot;
    struct explained explained = {.call = call, .op = &own->op};
    struct snap_at at = snapshot_after(snapshot, http_query(call->req, "cursor"));
    const struct snap_node *member, *last = NULL;
    const struct json *options;
    int64_t limit = LIST_DEFAULT, shown = 0;
    struct buf text = {0};

    if (!call_query_int(call, "limit", 1, DEPLOYS_PAGE_MAX, &limit))
        return;
    if (selector_read(own->op.row.spec.selector, "selector", call->arena, &explained.selector,
                      NULL))
        explained.selector = (struct selector){0};
    if (!json_parse(own->op.row.spec.options, call->arena, &options, NULL))
        explained.demand = deploy_demand(json_raw(json_get(options, "needs")), call->arena);
    struct jsonw w = call_begin(call);
    jsonw_kstr(&w, "id", call_shown(call, own->op.row.spec.id));
    jsonw_kint(&w, "unclaimed",
               own->op.row.spec.type == DEPLOY_DEPLOYMENT ? copies_on(&own->op, STR_NONE) : 0);
    jsonw_karr(&w, "nodes");
    for (; shown < limit && (member = snapshot_next(snapshot, &at)); last = member, shown++) {
        buf_clear(&text);
        const char *why = why_not(&explained, member, &text);
        jsonw_obj(&w);
        jsonw_kstr(&w, "node_id", member->node->id);
        jsonw_kint(&w, "copies", copies_on(&own->op, member->node->id));
        jsonw_kbool(&w, "may", strcmp(why, "may") == 0 || strcmp(why, "failed_here") == 0);
        jsonw_kstr(&w, "why", str_of(why));
        jsonw_kstr(&w, "reason", buf_view(&text));
        jsonw_end_obj(&w);
    }
    buf_free(&text);
    jsonw_end_arr(&w);
    jsonw_kstr(&w, "next_cursor",
               shown == limit && last && snapshot_next(snapshot, &at) ? last->node->id : STR_NONE);
    call_end(call, 200, &w);
}

void api_deploy_explain(struct call *call)
{
    send_named(deploy_call(call, DEPLOYS_GET, answer_explain));
}

static void answer_release(struct deploy_call *own)
{
    const struct deploys_op *op = &own->op;

    assert(op->u.release.released && op->u.release.held);
    log_event(LOG_WARN, "deployment.release", KI("released", (int64_t)op->u.release.released_count),
              KI("held", (int64_t)op->u.release.held_count));
    struct jsonw w = call_begin(own->call);
    jsonw_karr(&w, "released");
    for (size_t i = 0; i < op->u.release.released_count; i++)
        jsonw_str(&w, call_shown(own->call, op->u.release.released[i]));
    jsonw_end_arr(&w);
    jsonw_karr(&w, "held");
    for (size_t i = 0; i < op->u.release.held_count; i++) {
        struct deploys_held held = op->u.release.held[i];

        held.id = call_shown(own->call, held.id);
        schema_write(&held_schema, &held, &w);
    }
    jsonw_end_arr(&w);
    call_end(own->call, 200, &w);
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
        own->op.u.release.node = address;
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
    log_event(LOG_WARN, "deployment.approved", KI("until_ms", own->op.u.until.until_ms));
    struct jsonw w = call_begin(own->call);
    jsonw_kint(&w, "approved_until_ms", own->op.u.until.until_ms);
    call_end(own->call, 200, &w);
}

static const struct field approve_fields[] = {{.name = "for_ms", .type = FIELD_MS, .max = DAY_MS}};
const struct schema deploy_approve_schema = {
    .what = "the body", .fields = approve_fields, .count = COUNT_OF(approve_fields)};

void api_deploy_approve(struct call *call)
{
    struct deploy_call *own = deploy_call(call, DEPLOYS_APPROVE, answer_approve);

    own->op.u.until.for_ms = APPROVE_DEFAULT_MS;
    if (call_read(call, &deploy_approve_schema, &own->op.u.until.for_ms))
        deploy_send(own);
}

void service_write(struct jsonw *w, const struct deploys_service *service)
{
    jsonw_kint(w, "index", deploy_index(service->id));
    jsonw_kstr(w, "node", service->node);
    jsonw_kstr(w, "address", service->address.len ? service->address : STR_NONE);
    write_int_or_null(w, "port", service->port, service->port);
    jsonw_kraw(w, "healthy", service->healthy);
}

static void answer_service(struct deploy_call *own)
{
    const struct deploys_op *op = &own->op;
    struct jsonw w = call_begin(own->call);

    jsonw_kstr(&w, "name", call_shown(own->call, op->id));
    jsonw_karr(&w, "copies");
    for (size_t i = 0; i < op->u.services.count; i++) {
        jsonw_obj(&w);
        service_write(&w, &op->u.services.items[i]);
        jsonw_kint(&w, "version", op->u.services.items[i].version);
        jsonw_end_obj(&w);
    }
    jsonw_end_arr(&w);
    call_end(own->call, 200, &w);
}

void api_service_show(struct call *call)
{
    send_named(deploy_call(call, DEPLOYS_SERVICES, answer_service));
}

/* The output of a copy is on its node: look the node up in the table, then ask it over its
 * socket. */
struct logs_call {
    struct call *call;
    struct rpc rpc;
};

static void logs_done(struct rpc *rpc)
{
    rpc_answer(container_of(rpc, struct logs_call, rpc)->call, rpc, ERR_NOT_FOUND);
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
        address = own->op.row.owner.len    ? own->op.row.owner
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
    *logs = (struct logs_call){.call = call,
                               .rpc = {.from = call->worker,
                                       .params = arena_str(call->arena, buf_view(&params)),
                                       .done = logs_done}};
    buf_free(&params);
    snprintf(logs->rpc.method, sizeof logs->rpc.method, "Deployment/Logs");
    rpc_send(&logs->rpc, known->node);
}

void api_deploy_logs(struct call *call)
{
    send_named(deploy_call(call, DEPLOYS_GET, logs_found));
}
