/* Nodes over HTTP: register, heartbeat, leave, poll; and an operator's word about them. How they
 * are shown is api_node_show.c's. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/metrics.h"
#include "sched/registry.h"
#include "server/api.h"
#include "server/deploy.h"
#include "server/etag.h"
#include "server/hub.h"
#include "server/renew.h"
#include "server/urls.h"

enum { POLL_MAX = 1000, POLL_DEFAULT = 16, REASON_MAX = 256, DEADLINE_MAX_MS = 7 * 86400000 };

/* A change of a node on behalf of a request. */
struct node_call {
    struct call *call;
    struct change change;
    struct renew renew;
};

static struct node_call *node_call(struct call *call)
{
    struct node_call *own = arena_new(call->arena, struct node_call);

    own->call = call;
    return own;
}

static void registered(struct change *change)
{
    struct node_call *own = container_of(change, struct node_call, change);

    assert(!change->facts);
    if (change->err)
        call_problem(own->call, &change->why);
    else
        call_ok(own->call);
}

static enum err read_report(struct call *call, struct node_report *report,
                            struct node_report_load *load, struct problem *why)
{
    enum err err =
        node_report_read(call->body, STR_NONE, &call->worker->sched->sched->config.node_rules,
                         call->arena, report, why);

    if (!err)
        err = node_report_load(report, load, why);
    if (!err)
        err = urls_check(call->worker->server, URL_ENDPOINT, report->endpoint, why);
    return err;
}

static void send_change(struct node_call *own, void (*done)(struct change *change))
{
    assert(own->change.node_id.at);
    own->change.done = done;
    registry_send(own->call->worker->sched, &own->change);
}

void api_node_register(struct call *call)
{
    struct node_call *own = node_call(call);
    struct node_report report;
    struct node_report_load load;
    struct problem why;

    if (read_report(call, &report, &load, &why)) {
        call_problem(call, &why);
        return;
    }
    if (!call_speaks_for(call, report.node_id))
        return;
    /* A repeated registration that says nothing new is a heartbeat. */
    if (registry_heartbeat(call->worker->sched, &report, &load) == BEAT_TAKEN) {
        call_ok(call);
        return;
    }
    if (registry_prepare(call->worker->sched, &report, &own->change, &why)) {
        call_problem(call, &why);
        return;
    }
    send_change(own, registered);
}

/* {"ok":true}, and what the node runs that is not its own any more; as in hub_ws.c not so when the
 * store does not know the node. */
static void renewed(struct renew *renew)
{
    struct node_call *own = container_of(renew, struct node_call, renew);
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);
    bool some = false;

    jsonw_obj(&w);
    jsonw_kbool(&w, "ok", true);
    for (size_t i = 0; !renew->op.err && i < renew->count; i++) {
        char id[JOB_ID_TEXT + 1];

        if (!renew->runs[i].unknown)
            continue;
        if (!some) {
            jsonw_key(&w, "drop");
            jsonw_arr(&w);
        }
        some = true;
        job_id_text(renew->runs[i].id, id);
        jsonw_obj(&w);
        jsonw_kstr(&w, "job_id", str_of(id));
        jsonw_kint(&w, "attempt_id", renew->runs[i].attempt);
        jsonw_end_obj(&w);
    }
    if (some)
        jsonw_end_arr(&w);
    jsonw_end_obj(&w);
    call_json(own->call, 200, &buf);
    buf_free(&buf);
}

static void beat_registered(struct change *change)
{
    struct node_call *own = container_of(change, struct node_call, change);

    assert(change->err || change->node);
    if (change->err)
        call_problem(own->call, &change->why);
    else if (!renew_start(&own->renew, change->node, renewed))
        call_ok(own->call);
}

void api_node_heartbeat(struct call *call)
{
    struct node_call *own = node_call(call);
    struct sched_loop *loop = call->worker->sched;
    struct node_report report;
    struct node_report_load load;
    struct problem why;

    if (read_report(call, &report, &load, &why) ||
        renew_read(&report, call->worker, call->arena, &own->renew, &why)) {
        const struct snap_node *known =
            snapshot_node(loop->snapshot, json_str(json_get(call->body, "node_id"), call->arena));

        if (known && auth_speaks_for(call->token, known->node->id))
            atomic_fetch_add(&known->node->bad_heartbeats, 1);
        call_problem(call, &why);
        return;
    }
    if (!call_speaks_for(call, report.node_id))
        return;
    metric_add(METRIC_HEARTBEATS, 1);
    enum registry_beat beat = registry_heartbeat(loop, &report, &load);
    if (beat == BEAT_TAKEN) {
        struct node *node = snapshot_node(loop->snapshot, report.node_id)->node;

        if (!renew_start(&own->renew, node, renewed))
            call_ok(call);
        return;
    }
    if (beat == BEAT_UNKNOWN && !node_report_registers(&report)) {
        call_error(call, ERR_NOT_FOUND, "node_id",
                   "There is no node \"" STR_FMT "\": register it first.", STR_ARG(report.node_id));
        return;
    }
    if (beat == BEAT_MAX) {
        registry_prepare_max(&report, snapshot_node(loop->snapshot, report.node_id)->node,
                             &own->change);
    } else if (registry_prepare(loop, &report, &own->change, &why)) {
        call_problem(call, &why);
        return;
    }
    send_change(own, beat_registered);
}

/* If-Match, by what this instance knows. False: answered with 412. */
static bool is_as_seen(struct call *call, struct str id)
{
    const struct snap_node *known = snapshot_node(call->worker->sched->snapshot, id);

    return !known || etag_matches(call, node_etag(known, call->arena), "The node");
}

/* The keeper lets go of its connection when it is true. */
static void leave(struct call *call, struct str id)
{
    struct node_call *own = node_call(call);

    if (!is_as_seen(call, id))
        return;
    own->change = (struct change){.kind = CHANGE_DROP, .node_id = id};
    send_change(own, registered);
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
    send_change(deploy->user, registered);
}

/* Until when a node may take its time stands with its lease: the node reads it there. Without one,
 * what an earlier drain said is taken back; a database that is away is no reason not to drain. */
static void write_deadline(struct node_call *own, int64_t deadline_ms)
{
    struct server *server = own->call->worker->server;
    struct deploys_status status = {0};

    if (server->deploys)
        deploys_status(server->deploys, &status);
    if (deadline_ms == 0 && !status.up) {
        send_change(own, registered);
        return;
    }
    struct deploy_call *deploy = deploy_call(own->call, DEPLOYS_DRAIN, deadline_written);
    deploy->user = own;
    deploy->op.node = own->call->params[0];
    deploy->op.u.until.for_ms = deadline_ms;
    deploy_send(deploy);
}

static void admin(struct call *call, enum node_admin word)
{
    static const struct field fields[] = {{.name = "reason",
                                           .type = FIELD_STR,
                                           .offset = offsetof(struct admin_fields, reason),
                                           .max = REASON_MAX},
                                          {.name = "deadline_ms",
                                           .type = FIELD_MS,
                                           .offset = offsetof(struct admin_fields, deadline_ms),
                                           .min = 1,
                                           .max = DEADLINE_MAX_MS}};
    static const struct schema schema = {
        .what = "the body", .fields = fields, .count = COUNT_OF(fields)};
    struct node_call *own = node_call(call);
    struct admin_fields in = {0};
    struct problem why;

    if (schema_read(&schema, call->body, &in, call->arena, &why)) {
        call_problem(call, &why);
        return;
    }
    if (in.deadline_ms && word != NODE_ADMIN_DRAINING) {
        call_error(call, ERR_BAD_FIELD, "deadline_ms", "deadline_ms is for draining.");
        return;
    }
    if (!is_as_seen(call, call->params[0]))
        return;
    own->change = (struct change){
        .kind = CHANGE_ADMIN, .node_id = call->params[0], .admin = word, .admin_reason = in.reason};
    if (word == NODE_ADMIN_DRAINING &&
        snapshot_node(call->worker->sched->snapshot, call->params[0]))
        write_deadline(own, in.deadline_ms);
    else
        send_change(own, registered);
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
    if (call->req->method == HTTP_M_HEAD) { /* which shows no body must take no job */
        struct buf none = {0};

        buf_str(&none, STR("{\"jobs\":[]}"));
        call_json(call, 200, &none);
        buf_free(&none);
        return;
    }
    registry_alive(loop, known->node);
    hub_poll(call, known->node, wait_ms, (size_t)max);
}
