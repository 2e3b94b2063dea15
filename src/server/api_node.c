/* Nodes: register, heartbeat, leave, poll, over HTTP or (hello, heartbeat) over their sockets;
 * operators' orders; showing one node or a page of them. A heartbeat renews leases; one with an
 * empty list, or without a list shortly after a renewal, costs no store call. */
#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/metrics.h"
#include "model/level.h"
#include "model/pool.h"
#include "model/selector.h"
#include "sched/node_report.h"
#include "sched/registry.h"
#include "sched/sched.h"
#include "sched/shared_text.h"
#include "server/api.h"
#include "server/api_deploy.h"
#include "server/callback.h"
#include "server/hub_ws.h"
#include "server/route.h"

/* --- showing nodes --- */

static void share_write(struct jsonw *w, const char *name, int32_t pm)
{
    jsonw_key(w, name);
    if (pm < 0)
        jsonw_null(w);
    else
        jsonw_double(w, pm / 1000.0);
}

static struct str health_text(const _Atomic int8_t *health)
{
    return str_of(node_health_name((enum node_health)atomic_load(health)));
}

const char *node_admin_name(int32_t admin)
{
    static const char *const admins[] = {[NODE_ADMIN_NONE] = NULL,
                                         [NODE_ADMIN_CORDONED] = "cordoned",
                                         [NODE_ADMIN_DRAINING] = "draining"};

    assert(admin >= 0 && admin < (int32_t)COUNT_OF(admins));
    return admins[admin];
}

/* A text of the node, as JSON or as a string; `none` if it has none. */
static void text_write(struct jsonw *w, const char *name, struct shared_text *text, bool is_json,
                       struct str none)
{
    struct buf buf = {0};

    if (text)
        shared_text_read(text, &buf);
    if (is_json)
        jsonw_kraw(w, name, buf.len ? buf_view(&buf) : none);
    else
        jsonw_kstr(w, name, buf.len ? buf_view(&buf) : none);
    buf_free(&buf);
}

void write_amount(struct jsonw *w, const char *key, struct str resource, int32_t amount)
{
    struct buf number = {0};

    demand_write_amount(resource, amount > 0 ? amount : 0, &number);
    jsonw_kraw(w, key, buf_view(&number));
    buf_free(&number);
}

/* One resource: its capacity, what is usable, what is promised to jobs, what is left. */
static void resource_write(struct jsonw *w, struct str name, int32_t capacity, int32_t usable,
                           const int32_t *left)
{
    write_amount(w, "capacity", name, capacity);
    write_amount(w, "usable", name, usable);
    if (!left) {
        jsonw_knull(w, "promised");
        jsonw_knull(w, "left");
        return;
    }
    bool whole = *left == RESOURCES_LEFT_WHOLE;
    write_amount(w, "promised", name, whole ? capacity : usable - *left);
    write_amount(w, "left", name, *left);
}

void node_resources_write(struct jsonw *w, const struct snap_node *member)
{
    const struct resources *declared = member->facts->resources;
    struct resources_left left;

    jsonw_key(w, "resources");
    if (!declared) {
        jsonw_null(w);
        return;
    }
    struct resources now = counts_usable(member->node, declared);
    bool known = counts_left(member->node, declared, &left);
    jsonw_obj(w);
    for (size_t i = 0; i < now.count; i++) {
        struct str name = str_of(now.items[i].name);

        jsonw_key_str(w, name);
        jsonw_obj(w);
        resource_write(w, name, now.items[i].capacity, now.items[i].usable,
                       known ? &left.left[i] : NULL);
        jsonw_end_obj(w);
    }
    if (now.gpu_count) {
        jsonw_karr(w, "gpus");
    }
    for (size_t i = 0; i < now.gpu_count; i++) {
        const struct json *model = facts_gpu_model(member->facts, now.gpus[i].id);

        jsonw_obj(w);
        jsonw_kint(w, "id", now.gpus[i].id);
        jsonw_kraw(w, "model", json_raw(model));
        jsonw_kobj(w, "vram_mb");
        resource_write(w, STR("vram_mb"), now.gpus[i].vram_mb, now.gpus[i].usable_mb,
                       known ? &left.gpu_left[i] : NULL);
        jsonw_end_obj(w);
        jsonw_kbool(w, "whole", known && left.gpu_left[i] == RESOURCES_LEFT_WHOLE);
        jsonw_end_obj(w);
    }
    if (now.gpu_count)
        jsonw_end_arr(w);
    jsonw_end_obj(w);
}

/* The members of a node, within an open object. */
static void node_write(struct jsonw *w, const struct snap_node *member,
                       const struct sched_loop *loop)
{
    const struct facts *facts = member->facts;
    const struct node *node = member->node;
    const struct json *fixed = node_rules_find(&loop->sched->config.node_rules, node->id);
    struct counts now = counts_of(node);
    int32_t level = atomic_load(&node->level);

    jsonw_kstr(w, "node_id", node->id);
    jsonw_kstr(w, "health", health_text(&node->health));
    jsonw_kstr(w, "reported_health", health_text(&node->own));
    jsonw_kstr(w, "admin", str_of(node_admin_name(atomic_load(&node->admin))));
    text_write(w, "admin_reason", atomic_load(&node->admin_reason), false, STR_NONE);
    text_write(w, "claim", atomic_load(&node->claim), true, STR_NONE);
    text_write(w, "loaded", atomic_load(&node->loaded_names), true, STR("[]"));
    jsonw_kint(w, "max", atomic_load(&node->max));
    jsonw_kint(w, "running", now.running);
    jsonw_kint(w, "reserved", now.reserved);
    jsonw_kint(w, "last_heartbeat_ms", sched_wall_ms(loop, atomic_load(&node->heartbeat_ms)));
    jsonw_kstr(w, "level", level < 0 ? STR_NONE : str_of(level_name((enum level)level)));
    jsonw_kobj(w, "current_load");
    share_write(w, "cpu", atomic_load(&node->cpu_pm));
    share_write(w, "gpu", atomic_load(&node->gpu_pm));
    share_write(w, "mem", atomic_load(&node->mem_pm));
    jsonw_end_obj(w);
    jsonw_kint(w, "epoch", atomic_load(&node->epoch));
    jsonw_kraw(w, "labels", facts->labels);
    pool_facts_write(w, &facts->pool, "capabilities");
    /* The facts set by the configuration, whatever the node reports. */
    jsonw_karr(w, "fixed");
    for (const struct json *key = json_keys(fixed); key; key = json_after(fixed, key))
        jsonw_raw(w, json_raw(key));
    jsonw_end_arr(w);
    jsonw_kint(w, "max_concurrent_jobs", facts->max_concurrent_jobs);
    jsonw_kint(w, "health_score", sched_score(node, loop->sched->config.latency_target_ms));
    jsonw_kstr(w, "agent_version", facts->agent_version);
    jsonw_kint(w, "version", atomic_load(&node->version));
    jsonw_kstr(w, "reached_by",
               atomic_load(&node->link) ? STR("websocket")
               : facts->endpoint.at     ? STR("push")
                                        : STR("poll"));
    jsonw_kstr(w, "endpoint", facts->endpoint);
    jsonw_kstr(w, "name", facts->name);
    jsonw_kstr(w, "role", facts->role);
    node_resources_write(w, member);
    jsonw_kint(w, "registered_ms", atomic_load(&node->registered_ms));
    explain_write_node(w, member, loop->sched, sched_awake_ms(loop));
}

static struct str node_etag(const struct snap_node *member, struct arena *arena)
{
    return arena_fmt(arena, "\"%lld-%u-%d\"", (long long)member->facts->version,
                     (unsigned)atomic_load(&member->node->epoch),
                     (int)atomic_load(&member->node->admin));
}

struct show_call {
    struct call *call;
    struct store_op op;
};

static void node_shown(struct store_op *op)
{
    struct call *call = container_of(op, struct show_call, op)->call;
    const struct snap_node *known = call_has_node(call, call->params[0]);
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);

    if (!known)
        return;
    jsonw_obj(&w);
    node_write(&w, known, call->worker->sched);
    /* The types of work it does not get; null when the store cannot be asked. */
    jsonw_key(&w, "breakers");
    if (op->err)
        jsonw_null(&w);
    else
        jsonw_arr(&w);
    for (size_t i = 0; !op->err && i < op->u.breakers.count; i++) {
        const struct store_breaker *item = &op->u.breakers.items[i];

        if (str_eq(item->node, known->node->id) && call_sees(call, item->type))
            breaker_write_item(&w, call, item);
    }
    if (!op->err)
        jsonw_end_arr(&w);
    jsonw_end_obj(&w);
    /* The ETag covers what an operator decides by, not figures that change with every heartbeat. */
    etag_reply(call, 200, buf_view(&buf), node_etag(known, call->arena));
    buf_free(&buf);
}

void api_node_show(struct call *call)
{
    struct show_call *own = arena_new(call->arena, struct show_call);

    own->call = call;
    own->op = call_op_timely(call, STORE_BREAKERS, node_shown);
    sched_send(call->worker->sched, &own->op);
}

void api_node_list(struct call *call)
{
    const struct snapshot *snapshot = call->worker->sched->snapshot;
    struct str cursor = http_query(call->req, "cursor");
    struct str health = http_query(call->req, "health");
    struct selector selector;
    struct problem why;
    int64_t limit = CALL_LIST_DEFAULT, shown = 0;
    struct snap_at at = snapshot_after(snapshot, cursor);
    const struct snap_node *node, *last = NULL;

    if (!call_query_int(call, "limit", 1, CALL_LIST_MAX, &limit))
        return;
    if (health.at && node_health_by_name(health) == NODE_HEALTH_NONE) {
        call_error(call, ERR_BAD_FIELD, "health",
                   "health must be registering, ready, degraded, draining or offline.");
        return;
    }
    if (selector_read(http_query(call->req, "selector"), "selector", call->arena, &selector,
                      &why)) {
        call_problem(call, &why);
        return;
    }
    struct jsonw w = call_begin(call);
    jsonw_karr(&w, "nodes");
    for (; shown < limit && (node = snapshot_next(snapshot, &at)); last = node) {
        enum node_health now = (enum node_health)atomic_load(&node->node->health);
        struct selector_facts facts = {.id = node->node->id, .labels = node->facts->label_values};

        if (health.at && now != node_health_by_name(health))
            continue;
        if (!selector_fits(&selector, &facts))
            continue;
        jsonw_obj(&w);
        node_write(&w, node, call->worker->sched);
        jsonw_end_obj(&w);
        shown++;
    }
    jsonw_end_arr(&w);
    bool more = shown == limit && snapshot_next(snapshot, &at);
    jsonw_kstr(&w, "next_cursor", more ? last->node->id : STR_NONE);
    write_age(&w, call->worker->server);
    call_end(call, 200, &w);
}

/* --- renewing leases --- */

struct renew {
    struct store_op op;
    struct worker *worker;
    struct store_run *runs;
    size_t count;
    bool listed; /* running_jobs was sent */
};

static void renewed_all(struct store_op *op)
{
    free(container_of(op, struct renew, op));
}

static void send_renew(struct renew *renew, struct node *node, store_done *done)
{
    struct sched *sched = &renew->worker->server->sched;

    assert(!renew->listed || renew->runs);
    renew->op = (struct store_op){.verb = STORE_RENEW,
                                  .reply_to = &renew->worker->loop.inbox,
                                  .done = done,
                                  .node = node->id};
    renew->op.u.renew.runs = renew->listed ? renew->runs : NULL;
    renew->op.u.renew.count = renew->count;
    renew->op.u.renew.terms = sched->config.leases;
    sched_send(renew->worker->sched, &renew->op);
}

/* Renews all leases of the node, often enough for a lease to survive several lost heartbeats. */
static void renew_all(struct renew *renew, struct node *node)
{
    int64_t now_ms = sched_awake_ms(renew->worker->sched);
    int64_t last_ms = atomic_load_explicit(&node->renewed_ms, memory_order_relaxed);
    int64_t every_ms = lease_renew_every_ms(&renew->worker->server->sched.config.leases);

    if (last_ms && now_ms - last_ms < every_ms && now_ms >= last_ms)
        return;
    struct renew *own = mem_new(struct renew);
    *own = *renew;
    send_renew(own, node, renewed_all);
    atomic_store_explicit(&node->renewed_ms, now_ms, memory_order_relaxed);
}

/* --- routes --- */

enum { POLL_MAX = 1000, POLL_DEFAULT = 16, REASON_MAX = 256, DEADLINE_MAX_MS = 7 * 86400000 };

/* The change a request makes to a node. Not zeroed: whoever uses a part fills it in. */
struct node_call {
    struct call *call;
    struct node_change change;
    void (*then)(struct call *call, struct node *node); /* called once made; NULL: answer ok */
    struct renew renew;
};

static struct node_call *node_call(struct call *call)
{
    struct node_call *own = arena_raw(call->arena, sizeof *own);

    own->call = call;
    call->user = own;
    return own;
}

static void change_made(struct node_change *change)
{
    struct node_call *own = container_of(change, struct node_call, change);

    assert(!change->facts && (change->err || change->node || !own->then));
    if (change->err)
        call_problem(own->call, &change->why);
    else if (own->then)
        own->then(own->call, change->node);
    else
        call_ok(own->call);
}

static void send_change(struct node_call *own, void (*then)(struct call *call, struct node *node))
{
    assert(own->change.node_id.at);
    own->change.done = change_made;
    own->then = then;
    registry_send(own->call->worker->sched, &own->change);
}

/* Reads what the node reports about itself, and with `runs` also what it runs. */
static enum err read_report(struct node_call *own, bool runs, struct node_report *report,
                            struct node_report_load *load, struct problem *why)
{
    struct call *call = own->call;
    enum err err =
        node_report_read(call->body, call->node_id, &call->worker->sched->sched->config.node_rules,
                         call->arena, report, why);

    if (!err)
        err = node_report_load(report, load, why);
    if (!err)
        err = urls_check(call->worker->server, URL_ENDPOINT, report->endpoint, why);
    if (err || !runs)
        return err;
    own->renew =
        (struct renew){.worker = call->worker, .listed = !json_is_null(report->running_jobs)};
    return node_report_runs(report, call->arena, &own->renew.runs, &own->renew.count, why);
}

static void write_run(struct jsonw *w, const struct store_run *run)
{
    write_job_id(w, run->id);
    jsonw_kint(w, "attempt_id", run->attempt);
}

/* Lists the runs the node reported but no longer owns: it should end them. Not if the store does
 * not know the node: an emptied store has forgotten all nodes, and this one is about to register
 * again with everything it runs. Over a socket each drop is a frame of its own. Only an answer with
 * the lease terms confirms that the others were renewed; it is sent after the drops, so what was
 * not dropped by then continues. */
static void renewed(struct store_op *op)
{
    struct renew *renew = container_of(op, struct renew, op);
    struct call *call = container_of(renew, struct node_call, renew)->call;
    bool some = false;

    assert(renew->listed);
    for (size_t i = 0; !op->err && call->push && i < renew->count; i++) {
        if (!renew->runs[i].unknown)
            continue;
        struct buf *frame = call_buf(call);
        struct jsonw w = jsonw_to(frame);
        jsonw_obj(&w);
        jsonw_kstr(&w, "msg", STR("drop"));
        write_run(&w, &renew->runs[i]);
        jsonw_end_obj(&w);
        call->push(call, buf_view(frame));
    }
    struct jsonw w = call_begin(call);
    jsonw_kbool(&w, "ok", true);
    if (!op->err && call->push) {
        jsonw_kint(&w, "running_lease_ms", op->u.renew.terms.task_ms);
        jsonw_kint(&w, "f2f_lease_ms", op->u.renew.terms.f2f_ms);
    }
    for (size_t i = 0; !op->err && !call->push && i < renew->count; i++) {
        if (!renew->runs[i].unknown)
            continue;
        if (!some) {
            jsonw_karr(&w, "drop");
        }
        some = true;
        jsonw_obj(&w);
        write_run(&w, &renew->runs[i]);
        jsonw_end_obj(&w);
    }
    if (some)
        jsonw_end_arr(&w);
    call_end(call, 200, &w);
}

/* The node is known and alive, so it keeps what it runs. Without a list all its leases are renewed
 * in the background, no more often than useful. */
static void renew(struct call *call, struct node *node)
{
    static struct store_run nothing;
    struct renew *renew = &((struct node_call *)call->user)->renew;
    const struct sched *sched = &call->worker->server->sched;

    if (!renew->listed)
        renew_all(renew, node);
    /* An emptied store waits for a report from every node, even that it runs nothing. */
    if (!renew->listed ||
        (!renew->count && clock_mono_ms() >= atomic_load_explicit(&sched->recovering_until_ms,
                                                                  memory_order_relaxed))) {
        call_ok(call);
        return;
    }
    if (!renew->runs)
        renew->runs = &nothing;
    send_renew(renew, node, renewed);
}

/* A hello is a registration, and the first heartbeat on its socket. */
static void registered(struct call *call, struct node *node)
{
    if (call->req)
        call_ok(call);
    else
        hub_welcome(call, node, renew);
}

void api_node_register(struct call *call)
{
    struct node_call *own = node_call(call);
    struct sched_loop *loop = call->worker->sched;
    struct node_report report;
    struct node_report_load load;
    struct problem why;

    if (read_report(own, !call->req, &report, &load, &why)) {
        call_problem(call, &why);
        return;
    }
    if (!call_speaks_for(call, report.node_id))
        return;
    bool without_runs = !call->req && registry_came_back_empty(loop, &report);
    /* A repeated registration that says nothing new is a heartbeat. */
    if (registry_heartbeat(loop, &report, &load) == BEAT_TAKEN && !without_runs) {
        registered(call, snapshot_node(loop->snapshot, report.node_id)->node);
        return;
    }
    if (registry_prepare(loop, &report, &own->change, &why)) {
        call_problem(call, &why);
        return;
    }
    own->change.without_runs = without_runs;
    send_change(own, registered);
}

void api_node_heartbeat(struct call *call)
{
    struct node_call *own = node_call(call);
    struct sched_loop *loop = call->worker->sched;
    struct node *node = call->node;
    struct node_report report;
    struct node_report_load load;
    struct problem why;

    if (!node) { /* looked up first, so that unreadable reports are counted too */
        const struct snap_node *known =
            snapshot_node(loop->snapshot, json_str(json_get(call->body, "node_id"), call->arena));

        node = known && auth_speaks_for(call->token, known->node->id) ? known->node : NULL;
    }
    if (read_report(own, true, &report, &load, &why)) {
        if (node)
            atomic_fetch_add(&node->bad_heartbeats, 1);
        call_problem(call, &why);
        return;
    }
    if (!call->node && !call_speaks_for(call, report.node_id))
        return;
    metric_add(METRIC_HEARTBEATS, 1);
    enum registry_beat beat = registry_heartbeat(loop, &report, &load);
    if (beat == BEAT_TAKEN) {
        renew(call, node);
        return;
    }
    /* A heartbeat alone would create a node that can do nothing. A connected node that is unknown
     * has left or was forgotten, and its connection is about to close. */
    if (beat == BEAT_UNKNOWN && !report.registers) {
        call_error(call, ERR_NOT_FOUND, "node_id",
                   "There is no node \"" STR_FMT "\": register it first.", STR_ARG(report.node_id));
        return;
    }
    if (beat == BEAT_FIGURES) {
        registry_prepare_figures(loop, &report, node, &own->change);
    } else if (registry_prepare(loop, &report, &own->change, &why)) {
        call_problem(call, &why);
        return;
    }
    send_change(own, renew);
}

/* Sets the tags of a member (UpdateTerminalInfo), only while it is online: a change of its facts
 * counts as a sign of life. */
void api_terminal_update(struct call *call)
{
    struct node_call *own = node_call(call);
    struct sched_loop *loop = call->worker->sched;
    const struct snap_node *known = snapshot_node(loop->snapshot, call->params[0]);
    struct node_report report = {.node_id = call->params[0],
                                 .max_concurrent_jobs = FIELD_OFF,
                                 .reserved_slots = FIELD_OFF,
                                 .priority = FIELD_OFF,
                                 .max = FIELD_OFF,
                                 .level = -1};
    struct problem why;

    if (!call_speaks_for(call, call->params[0]))
        return;
    if (!known || atomic_load(&known->node->disconnected_ms)) {
        call_error(call, ERR_NOT_FOUND, "terminal_id", "There is no member \"" STR_FMT "\" online.",
                   STR_ARG(call->params[0]));
        return;
    }
    report.tags = json_get(call->body, "tags");
    if (json_type(report.tags) != JSON_OBJ) {
        call_error(call, ERR_BAD_FIELD, "tags", "tags must be an object of texts (or null).");
        return;
    }
    report.max = atomic_load(&known->node->max);
    if (registry_prepare(loop, &report, &own->change, &why))
        call_problem(call, &why);
    else
        send_change(own, NULL);
}

/* Checks If-Match against what this instance knows. False: already answered with 412. */
static bool is_as_seen(struct call *call, struct str id)
{
    const struct snap_node *known = snapshot_node(call->worker->sched->snapshot, id);

    return !known || etag_matches(call, node_etag(known, call->arena), "The node");
}

/* The keeper closes the node's connection once the store has the change. */
static void leave(struct call *call, struct str id)
{
    struct node_call *own = node_call(call);

    if (!is_as_seen(call, id))
        return;
    own->change = (struct node_change){.kind = NODE_CHANGE_DROP, .node_id = id};
    send_change(own, NULL);
}

void api_node_deregister(struct call *call)
{
    struct node_report report;
    struct problem why;

    if (node_report_read(call->body, STR_NONE, NULL, call->arena, &report, &why))
        call_problem(call, &why);
    else if (call_speaks_for(call, report.node_id))
        leave(call, report.node_id);
}

void api_node_delete(struct call *call)
{
    leave(call, call->params[0]);
}

struct admin_fields {
    struct str reason;
    int64_t deadline_ms;
};

static void deadline_written(struct deploy_call *deploy)
{
    send_change(deploy->user, NULL);
}

/* The deadline of a drain is stored with the node's lease, where the node reads it. A drain without
 * one clears that of an earlier drain, but does not fail if the database is down. */
static void write_deadline(struct node_call *own, int64_t deadline_ms)
{
    struct server *server = own->call->worker->server;
    struct deploys_status status = {0};

    if (server->deploys)
        deploys_status(server->deploys, &status);
    if (deadline_ms == 0 && !status.up) {
        send_change(own, NULL);
        return;
    }
    struct deploy_call *deploy = deploy_call(own->call, DEPLOYS_DRAIN, deadline_written);
    deploy->user = own;
    deploy->op.node = own->call->params[0];
    deploy->op.u.until.for_ms = deadline_ms;
    deploy_send(deploy);
}

static const struct field admin_fields[] = {
    FIELD_ROW(admin_fields, reason, STR, .max = REASON_MAX),
    FIELD_ROW(admin_fields, deadline_ms, MS, .min = 1, .max = DEADLINE_MAX_MS,
              .help = "of a drain: after this its deployments move all at once"),
};
const struct schema node_admin_schema = {
    .what = "the body", .fields = admin_fields, .count = COUNT_OF(admin_fields)};

static void admin(struct call *call, enum node_admin word)
{
    struct node_call *own = node_call(call);
    struct admin_fields in = {0};

    if (!call_read(call, &node_admin_schema, &in))
        return;
    if (in.deadline_ms && word != NODE_ADMIN_DRAINING) {
        call_error(call, ERR_BAD_FIELD, "deadline_ms", "deadline_ms is for draining.");
        return;
    }
    if (!is_as_seen(call, call->params[0]))
        return;
    own->change = (struct node_change){.kind = NODE_CHANGE_ADMIN,
                                       .node_id = call->params[0],
                                       .admin = word,
                                       .admin_reason = in.reason};
    if (word == NODE_ADMIN_DRAINING &&
        snapshot_node(call->worker->sched->snapshot, call->params[0]))
        write_deadline(own, in.deadline_ms);
    else
        send_change(own, NULL);
}

void api_node_drain(struct call *call)
{
    admin(call, NODE_ADMIN_DRAINING);
}

void api_node_undrain(struct call *call)
{
    admin(call, NODE_ADMIN_NONE);
}

void api_node_cordon(struct call *call)
{
    admin(call, NODE_ADMIN_CORDONED);
}

void api_node_jobs(struct call *call)
{
    struct sched_loop *loop = call->worker->sched;
    struct str id = http_query(call->req, "node_id");
    int64_t wait_ms = 0, max = POLL_DEFAULT;

    if (!id.at) {
        call_error(call, ERR_BAD_FIELD, "node_id", "node_id is required.");
        return;
    }
    if (!call_speaks_for(call, id))
        return;
    const struct snap_node *known = snapshot_node(loop->snapshot, id);
    if (!known) {
        call_error(call, ERR_NOT_FOUND, "node_id",
                   "There is no node \"" STR_FMT "\": register it first.", STR_ARG(id));
        return;
    }
    if (!call_query_ms(call, "wait", call->worker->server->settings->poll_wait_max_ms, &wait_ms) ||
        !call_query_int(call, "max", 1, POLL_MAX, &max))
        return;
    if (call->req->method == HTTP_M_HEAD) { /* its answer has no body, so it must not take jobs */
        call_body(call, 200, STR("{\"jobs\":[]}"));
        return;
    }
    registry_alive(loop, known->node);
    hub_poll(call, known->node, wait_ms, (size_t)max);
}
