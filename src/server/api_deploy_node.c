/* Deployment routes for nodes, over HTTP or their WebSocket: the lease, the view, claims, and
 * reports about copies. A node may speak only for itself. */
#include <assert.h>
#include <string.h>

#include "base/log.h"
#include "base/metrics.h"
#include "model/selector.h"
#include "server/api.h"
#include "server/api_deploy.h"
#include "server/messages.h"

static const struct settings *settings_of(const struct call *call)
{
    return atomic_load(&call->worker->server->settings);
}

static int64_t body_int(const struct call *call, const char *name, int64_t fallback)
{
    int64_t value;

    return json_int(json_get(call->body, name), &value) ? value : fallback;
}

/* Reads which of the agents using this node name is calling. */
static bool read_instance(struct call *call, struct str *ret_instance)
{
    const struct json *given = json_get(call->body, "instance");

    *ret_instance = json_str(given, call->arena);
    if (json_is_null(given) || str_is_id(*ret_instance, DEPLOY_INSTANCE_MAX))
        return true;
    call_error(call, ERR_BAD_FIELD, "instance", "instance must be a name of at most %d characters.",
               DEPLOY_INSTANCE_MAX);
    return false;
}

static enum node_admin admin_of(const struct call *call, struct str node_id)
{
    const struct snap_node *known = snapshot_node(call->worker->sched->snapshot, node_id);

    return known ? (enum node_admin)atomic_load(&known->node->admin) : NODE_ADMIN_NONE;
}

/* Does the node take work of this deployment's namespace? */
static bool is_admitted(const struct call *call, struct str node_id, struct str id)
{
    return namespace_in(
        node_rules_get(&call->worker->sched->sched->config.node_rules, node_id, "namespaces"), id);
}

/* The labels the node registered, parsed into the call's memory because the node may register
 * others meanwhile. NULL: none. */
static const struct json *label_values(struct call *call, struct str node_id)
{
    const struct snap_node *known = snapshot_node(call->worker->sched->snapshot, node_id);
    struct str text = arena_str(call->arena, known ? known->facts->labels : STR_NONE);
    const struct json *labels;

    return text.len && !json_parse(text, call->arena, &labels, NULL) ? labels : NULL;
}

static void assignment_write(struct jsonw *w, const struct deploys_row *row, struct arena *arena)
{
    jsonw_kstr(w, "id", row->spec.id);
    jsonw_kstr(w, "type", str_of(deploy_type_name(row->spec.type)));
    jsonw_kint(w, "generation", row->generation);
    jsonw_kint(w, "version", row->version);
    jsonw_kstr(w, "ended", row->ended.len ? row->ended : STR_NONE);
    jsonw_kobj(w, "spec");
    deploy_body_write(w, &row->spec, true, arena);
    jsonw_end_obj(w);
}

static void common_write(struct jsonw *w, const struct deploy_call *own)
{
    jsonw_kint(w, "now_ms", own->op.now_ms);
    jsonw_kint(w, "version", own->op.version);
    jsonw_kstr(w, "mode",
               str_of(deploy_mode_name((enum deploy_mode)settings_of(own->call)->claim_mode)));
}

static const char *sentence_of(const char *reason)
{
    static const struct {
        const char *reason, *sentence;
    } rows[] = {
        {"claim_conflict", "The deployment is not (or no longer) as you saw it."},
        {"lease_alive", "The lease of its node has not run out."},
        {"owner_online", "Its node is connected and will renew its lease."},
        {"no_lease", "Your own lease has run out: renew it first."},
        {"mass_loss", "More than half of all nodes are gone: an operator must approve."},
        {"draining", "You are cordoned or draining."},
        {"selector", "Its selector does not match your labels."},
        {"namespace", "You are kept for other namespaces."},
        {"was_daemon", "It was a daemon, and nodes may still run it as one."},
        {"other_instance", "Another agent with this node_id has the lease of the node."},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (strcmp(rows[i].reason, reason) == 0)
            return rows[i].sentence;
    return reason;
}

/* 409 with the reason and the present state. */
static void refuse(struct deploy_call *own, const char *reason)
{
    const struct deploys_op *op = &own->op;
    struct problem why;
    struct buf buf = {0};

    if (op->refusal == DEPLOYS_NO_ROOM)
        problem_set(&why, ERR_CONFLICT, "", "You have less than it needs: " STR_FMT ".",
                    STR_ARG(op->u.claim.lack));
    else
        problem_set(&why, ERR_CONFLICT, "", "%s", sentence_of(reason));
    struct jsonw w = call_problem_begin(&buf, &why);
    jsonw_kstr(&w, "reason", str_of(reason));
    jsonw_kstr(&w, "address", op->found ? op->row.owner : STR_NONE);
    if (op->found)
        jsonw_kint(&w, "generation", op->row.generation);
    if (op->refusal == DEPLOYS_OTHER_INSTANCE)
        jsonw_kint(&w, "left_ms", op->left_ms);
    call_problem_end(own->call, &w, &why);
}

static void answer_renew(struct deploy_call *own)
{
    const struct deploys_op *op = &own->op;

    if (op->err) {
        refuse(own, deploys_refusal_name(op->refusal));
        return;
    }
    assert(op->u.renew.goodbye || op->u.renew.until_ms > 0);
    assert(op->u.renew.unchanged || op->u.renew.items);
    const char *admin = node_admin_name(admin_of(own->call, op->node));
    if (op->u.renew.lapsed)
        metric_add(METRIC_LEASES_LAPSED, 1);
    struct jsonw w = call_begin(own->call);
    common_write(&w, own);
    jsonw_kint(&w, "lease_ms", op->u.renew.lease_ms);
    jsonw_kint(&w, "renew_ms", settings_of(own->call)->deploy_renew_ms);
    jsonw_kint(&w, "until_ms", op->u.renew.until_ms);
    jsonw_kbool(&w, "lapsed", op->u.renew.lapsed);
    jsonw_kstr(&w, "admin", str_of(admin ? admin : "none"));
    write_int_or_null(&w, "drain_deadline_ms", op->u.renew.drain_deadline_ms,
                      op->u.renew.drain_deadline_ms);
    jsonw_kbool(&w, "unchanged", op->u.renew.unchanged);
    if (!op->u.renew.unchanged) {
        const struct json *labels = label_values(own->call, op->node);
        const struct selector_facts facts = {.id = op->node, .labels = labels};
        const struct node_rules *rules = &own->call->worker->sched->sched->config.node_rules;
        const struct json *namespaces = node_rules_get(rules, op->node, "namespaces");
        bool fixed = node_rules_get(rules, op->node, "labels");

        /* Return the labels used for matching: the node may have just changed them, or the server
         * fixes them. */
        jsonw_kraw(&w, fixed ? "fixed_labels" : "labels", labels ? json_raw(labels) : STR("{}"));
        jsonw_kraw(&w, "namespaces", json_raw(namespaces));
        jsonw_karr(&w, "deployments");
        for (size_t i = 0; i < op->u.renew.count; i++) {
            const struct deploys_row *row = &op->u.renew.items[i];

            /* Skip daemons the node does not run: their specs may hold passwords. */
            if (row->spec.type == DEPLOY_DAEMON &&
                (!selector_match(row->spec.selector, &facts) ||
                 !is_admitted(own->call, op->node, row->spec.id)))
                continue;
            jsonw_obj(&w);
            assignment_write(&w, row, own->call->arena);
            jsonw_end_obj(&w);
        }
        jsonw_end_arr(&w);
    }
    call_end(own->call, 200, &w);
}

void api_deploy_renew(struct call *call)
{
    struct deploy_call *own = deploy_call(call, DEPLOYS_RENEW, answer_renew);

    if (!call_node(call, &own->op.node) || !read_instance(call, &own->op.instance))
        return;
    json_bool(json_get(call->body, "goodbye"), &own->op.u.renew.goodbye);
    json_bool(json_get(call->body, "held"), &own->op.u.renew.held);
    own->op.u.renew.lease_ms = settings_of(call)->deploy_lease_ms;
    own->op.u.renew.if_version = body_int(call, "if_version", DEPLOYS_ANY);
    deploy_send(own);
}

static void answer_view(struct deploy_call *own)
{
    const struct deploys_op *op = &own->op;
    struct jsonw w = call_begin(own->call);

    common_write(&w, own);
    write_int_or_null(&w, "approved_until_ms", op->u.view.approved_until_ms,
                      op->u.view.approved_until_ms);
    jsonw_kbool(&w, "unchanged", op->u.view.unchanged);
    if (!op->u.view.unchanged) {
        jsonw_karr(&w, "rows");
        for (size_t i = 0; i < op->u.view.count; i++)
            schema_write(&view_row_schema, &op->u.view.items[i], &w);
        jsonw_end_arr(&w);
    }
    if (!op->u.view.unchanged && op->u.view.delta) {
        jsonw_kbool(&w, "delta", true);
        jsonw_karr(&w, "gone");
        for (size_t i = 0; i < op->u.view.gone_count; i++)
            jsonw_str(&w, op->u.view.gone[i]);
        jsonw_end_arr(&w);
    }
    if (!op->u.view.after.len)
        jsonw_kint(&w, "facts", op->u.view.facts);
    if (!op->u.view.after.len && !op->u.view.same_facts) {
        jsonw_karr(&w, "leases");
        for (size_t i = 0; i < op->u.view.lease_count; i++) {
            jsonw_obj(&w);
            jsonw_kstr(&w, "address", op->u.view.leases[i].node);
            jsonw_kint(&w, "left_ms", op->u.view.leases[i].until_ms - op->now_ms);
            jsonw_kbool(&w, "goodbye", op->u.view.leases[i].goodbye);
            jsonw_end_obj(&w);
        }
        jsonw_end_arr(&w);
        jsonw_karr(&w, "failures");
        for (size_t i = 0; i < op->failure_count; i++) {
            jsonw_obj(&w);
            jsonw_kstr(&w, "id", op->failures[i].id);
            jsonw_kstr(&w, "address", op->failures[i].address);
            jsonw_end_obj(&w);
        }
        jsonw_end_arr(&w);
    }
    jsonw_kstr(&w, "next_cursor",
               op->u.view.more ? op->u.view.items[op->u.view.count - 1].id : STR_NONE);
    call_end(own->call, 200, &w);
}

void api_deploy_view(struct call *call)
{
    struct deploy_call *own = deploy_call(call, DEPLOYS_VIEW, answer_view);

    if (!call_node(call, &own->op.node))
        return;
    own->op.u.view.if_version = body_int(call, "if_version", DEPLOYS_ANY);
    own->op.u.view.if_facts = body_int(call, "if_facts", DEPLOYS_ANY);
    json_bool(json_get(call->body, "delta"), &own->op.u.view.delta);
    json_bool(json_get(call->body, "indexed"), &own->op.u.view.indexed);
    own->op.u.view.within_ms = settings_of(call)->deploy_lease_ms / 2;
    own->op.u.view.after = json_str(json_get(call->body, "cursor"), call->arena);
    deploy_send(own);
}

static void answer_claim(struct deploy_call *own)
{
    const struct deploys_op *op = &own->op;
    const char *result = op->err                 ? deploys_refusal_name(op->refusal)
                         : op->u.claim.duplicate ? "duplicate"
                                                 : "claimed";

    assert(op->err ? op->refusal != DEPLOYS_NOT_REFUSED : op->found);
    metric_add_label(METRIC_CLAIMS, result, 1);
    log_event(op->err ? LOG_DEBUG : LOG_INFO, "deployment.claim", KS("deployment_id", op->id),
              KS("node_id", op->node), KS("from", op->u.claim.observed), KC("result", result),
              KI("generation", op->row.generation));
    if (op->err) {
        refuse(own, result);
        return;
    }
    struct jsonw w = call_begin(own->call);
    assignment_write(&w, &op->row, own->call->arena);
    jsonw_kint(&w, "table_version", op->version);
    if (op->u.claim.duplicate)
        jsonw_kbool(&w, "duplicate", true);
    call_end(own->call, 200, &w);
}

/* Reads instance, id, generation and (for a claim) observed. */
static bool read_claim(struct deploy_call *own)
{
    struct call *call = own->call;
    struct deploys_op *op = &own->op;
    struct str observed = json_str(json_get(call->body, "observed"), call->arena);

    if (!read_instance(call, &op->instance))
        return false;
    op->id = json_str(json_get(call->body, "id"), call->arena);
    if (!deploy_id_valid(op->id)) {
        call_error(call, ERR_BAD_FIELD, "id", "id is required: a deployment.");
        return false;
    }
    if (!json_int(json_get(call->body, "generation"), &op->u.claim.generation)) {
        call_error(call, ERR_BAD_FIELD, "generation",
                   "generation is required: the one you saw, a whole number.");
        return false;
    }
    op->u.claim.observed = observed.at ? observed : STR("");
    return true;
}

void api_deploy_claim(struct call *call)
{
    const struct settings *settings = settings_of(call);
    const struct snapshot *snapshot = call->worker->sched->snapshot;
    struct deploy_call *own = deploy_call(call, DEPLOYS_CLAIM, answer_claim);
    struct deploys_op *op = &own->op;

    if (!call_node(call, &op->node) || !read_claim(own))
        return;
    const char *refusal = admin_of(call, op->node) != NODE_ADMIN_NONE ? "draining"
                          : !is_admitted(call, op->node, op->id)      ? "namespace"
                                                                      : NULL;
    if (refusal) {
        metric_add_label(METRIC_CLAIMS, refusal, 1);
        refuse(own, refusal);
        return;
    }
    const struct snap_node *owner = snapshot_node(snapshot, op->u.claim.observed);
    op->u.claim.owner_online = owner && atomic_load(&owner->node->link);
    op->u.claim.lease_ms = settings->deploy_lease_ms;
    op->u.claim.seed = settings->claim_mode == DEPLOY_SEED;
    op->u.claim.labels = label_values(call, op->node);
    const struct snap_node *known = snapshot_node(snapshot, op->node);
    if (known && known->facts->resources) { /* copied: the node may declare others meanwhile */
        struct resources *declared = arena_new(call->arena, struct resources);
        struct resources_left *left = arena_new(call->arena, struct resources_left);

        *declared = *known->facts->resources;
        if (counts_left(known->node, declared, left)) {
            op->u.claim.declared = declared;
            op->u.claim.left = left;
        }
    }
    deploy_send(own);
}

static void answer_yield(struct deploy_call *own)
{
    const struct deploys_op *op = &own->op;

    if (op->err) {
        refuse(own, deploys_refusal_name(op->refusal));
        return;
    }
    log_event(LOG_INFO, "deployment.yield", KS("deployment_id", op->id), KS("node_id", op->node),
              KI("failed", op->u.claim.failed), KS("reason", op->u.claim.reason));
    call_ok(own->call);
}

void api_deploy_yield(struct call *call)
{
    struct deploy_call *own = deploy_call(call, DEPLOYS_YIELD, answer_yield);
    struct str reason = json_str(json_get(call->body, "reason"), call->arena);

    if (!call_node(call, &own->op.node) || !read_claim(own))
        return;
    if (reason.len > DEPLOY_REASON_MAX || !str_is_text(reason)) {
        call_error(call, ERR_BAD_FIELD, "reason", "reason must be a text of at most %d bytes.",
                   DEPLOY_REASON_MAX);
        return;
    }
    json_bool(json_get(call->body, "failed"), &own->op.u.claim.failed);
    own->op.u.claim.version = body_int(call, "version", 0);
    own->op.u.claim.reason = reason;
    deploy_send(own);
}

static void answer_lost(struct deploy_call *own)
{
    log_event(LOG_INFO, "deployment.release", KS("node_id", own->op.u.release.node),
              KI("released", (int64_t)own->op.u.release.released_count));
    struct jsonw w = call_begin(own->call);
    jsonw_kint(&w, "released", (int64_t)own->op.u.release.released_count);
    call_end(own->call, 200, &w);
}

/* In mode seed any node may release what a lost node holds, and all nodes may try at once. In the
 * mode with leases no node may. */
void api_deploy_lost(struct call *call)
{
    struct deploy_call *own = deploy_call(call, DEPLOYS_RELEASE, answer_lost);

    if (!call_node(call, &own->op.node))
        return;
    own->op.u.release.node = json_str(json_get(call->body, "address"), call->arena);
    own->op.u.release.seed = true;
    if (!own->op.u.release.node.len)
        call_error(call, ERR_BAD_FIELD, "address", "address is required: the node that is lost.");
    else if (settings_of(call)->claim_mode != DEPLOY_SEED)
        call_error(call, ERR_CONFLICT, "", "Only with claim_mode seed.");
    else
        deploy_send(own);
}

static void answer_status(struct deploy_call *own)
{
    const struct deploys_op *op = &own->op;

    if (op->err) {
        refuse(own, deploys_refusal_name(op->refusal));
        return;
    }
    struct jsonw w = call_begin(own->call);
    jsonw_karr(&w, "stale");
    for (size_t i = 0; i < op->u.status.count; i++)
        if (op->u.status.copies[i].stale)
            jsonw_str(&w, op->u.status.copies[i].id);
    jsonw_end_arr(&w);
    jsonw_karr(&w, "waits");
    for (size_t i = 0; i < op->u.status.count; i++) {
        if (!op->u.status.copies[i].waits.at)
            continue;
        jsonw_obj(&w);
        jsonw_kstr(&w, "id", op->u.status.copies[i].id);
        jsonw_kstr(&w, "reason", op->u.status.copies[i].waits);
        jsonw_end_obj(&w);
    }
    jsonw_end_arr(&w);
    call_end(own->call, 200, &w);
}

enum { STATE_MAX = 32, HOST_MAX = 255 };

struct copy_fields {
    struct deploys_copy copy; /* first: most rows describe its fields */
    const struct json *healthy;
};

#define ROW(member, kind, ...) FIELD_ROW(deploys_copy, member, kind, __VA_ARGS__)
static const struct field copy_fields[] = {
    ROW(id, STR, .min = 1, .max = DEPLOY_COPY_ID_MAX, .flags = FIELD_REQUIRED),
    /* A newer agent may send states we do not know; they are shown as they are. */
    ROW(state, ID, .max = STATE_MAX, .flags = FIELD_REQUIRED, .shape = "CopyState"),
    ROW(generation, INT),
    ROW(version, INT),
    ROW(wants, INT, .help = "a changed daemon asks to go on to this version"),
    ROW(restarts, INT),
    ROW(pid, INT),
    ROW(since_ms, INT),
    ROW(reason, STR, .max = DEPLOY_REASON_MAX),
    ROW(limits, STR, .max = DEPLOY_REASON_MAX),
    FIELD_ROW(copy_fields, healthy, JSON, .shape = "boolean"),
    ROW(host, STR, .max = HOST_MAX, .help = "where others reach it"),
    ROW(port, INT, .max = 65535, .help = "that it was given"),
};
const struct schema copy_report_schema = {
    .what = "a copy", .fields = copy_fields, .count = COUNT_OF(copy_fields)};

static enum err read_copy(const struct json *item, struct arena *arena,
                          struct deploys_copy *ret_copy, struct problem *why)
{
    struct copy_fields in = {.copy = {.reason = STR(""), .limits = STR(""), .host = STR("")}};
    enum err err = schema_read(&copy_report_schema, item, &in, arena, why);
    enum json_type healthy = json_type(in.healthy);

    if (err)
        return err;
    if (!deploy_id_valid(in.copy.id))
        return problem_set(why, ERR_BAD_FIELD, "id",
                           "id must be a deployment or one of its copies.");
    in.copy.healthy = healthy == JSON_TRUE    ? STR("true")
                      : healthy == JSON_FALSE ? STR("false")
                                              : STR("null");
    *ret_copy = in.copy;
    return ERR_OK;
}

void api_deploy_status(struct call *call)
{
    struct deploy_call *own = deploy_call(call, DEPLOYS_STATUS, answer_status);
    const struct json *list = json_get(call->body, "copies");
    struct problem why;

    if (!call_node(call, &own->op.node) || !read_instance(call, &own->op.instance))
        return;
    if (json_type(list) != JSON_ARR || list->count > DEPLOYS_COPIES_MAX) {
        call_error(call, ERR_BAD_FIELD, "copies", "copies must be a list of at most %d.",
                   DEPLOYS_COPIES_MAX);
        return;
    }
    own->op.u.status.copies = arena_array(call->arena, struct deploys_copy, list->count + 1);
    own->op.u.status.count = list->count;
    json_bool(json_get(call->body, "partial"), &own->op.u.status.partial);
    const struct json *item = json_first(list);
    for (uint32_t i = 0; i < list->count; i++, item = json_next(item))
        if (json_type(item) != JSON_OBJ ||
            read_copy(item, call->arena, &own->op.u.status.copies[i], &why)) {
            if (json_type(item) != JSON_OBJ)
                problem_set(&why, ERR_BAD_FIELD, "copies", "copies must hold objects.");
            call_problem(call, &why);
            return;
        }
    deploy_send(own);
}

static void answer_services(struct deploy_call *own)
{
    const struct deploys_op *op = &own->op;
    struct jsonw w = call_begin(own->call);

    jsonw_kint(&w, "number", op->u.services.number);
    jsonw_kbool(&w, "unchanged", op->u.services.same);
    write_int_or_null(&w, "left_ms", op->u.services.left_ms != INT64_MAX, op->u.services.left_ms);
    if (!op->u.services.same) {
        jsonw_karr(&w, "copies");
        for (size_t i = 0; i < op->u.services.count; i++) {
            const struct deploys_service *one = &op->u.services.items[i];

            if (!is_admitted(own->call, op->node, one->id))
                continue;
            jsonw_obj(&w);
            jsonw_kstr(&w, "service", deploy_name(one->id));
            service_write(&w, one);
            jsonw_kint(&w, "left_ms", one->until_ms - op->now_ms);
            jsonw_end_obj(&w);
        }
        jsonw_end_arr(&w);
    }
    call_end(own->call, 200, &w);
}

/* Only services in namespaces the node works for. */
void api_deploy_services(struct call *call)
{
    struct deploy_call *own = deploy_call(call, DEPLOYS_SERVICES, answer_services);

    if (!call_node(call, &own->op.node))
        return;
    own->op.u.services.if_number = body_int(call, "if_number", DEPLOYS_ANY);
    deploy_send(own);
}
