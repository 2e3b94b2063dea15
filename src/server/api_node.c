/* Nodes over HTTP: register, heartbeat, leave, poll; and how they are shown and drained. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/metrics.h"
#include "model/level.h"
#include "sched/counts.h"
#include "sched/registry.h"
#include "server/api.h"
#include "server/hub.h"
#include "server/renew.h"

enum { LIST_DEFAULT = 100, LIST_MAX = 1000, POLL_MAX = 1000, POLL_DEFAULT = 16 };

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

    if (change->err)
        call_problem(own->call, &change->why);
    else
        call_ok(own->call);
}

static enum err read_report(struct call *call, struct report *report, struct report_load *load,
                            struct problem *why)
{
    const struct strs *allowed = &call->worker->server->settings->allow_urls;
    enum err err = report_read(call->body, STR_NONE, call->arena, report, why);

    if (!err)
        err = report_load(report, load, why);
    if (!err && report->endpoint.len &&
        !client_url_allowed(report->endpoint, allowed->at, allowed->count))
        err = problem_set(why, ERR_BAD_FIELD, "endpoint",
                          "endpoint is not among the URLs this server may call (allow_urls).");
    return err;
}

static void send_change(struct node_call *own, void (*done)(struct change *change))
{
    own->change.done = done;
    registry_send(own->call->worker->sched, &own->change);
}

void api_node_register(struct call *call)
{
    struct node_call *own = node_call(call);
    struct report report;
    struct report_load load;
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

/* {"ok":true}, and what the node runs that is not its own any more. */
static void renewed(struct renew *renew)
{
    struct node_call *own = container_of(renew, struct node_call, renew);
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);
    bool some = false;

    jsonw_obj(&w);
    jsonw_kbool(&w, "ok", true);
    for (size_t i = 0; i < renew->count; i++) {
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

    if (change->err)
        call_problem(own->call, &change->why);
    else if (!renew_start(&own->renew, change->node, renewed))
        call_ok(own->call);
}

void api_node_heartbeat(struct call *call)
{
    struct node_call *own = node_call(call);
    struct sched_loop *loop = call->worker->sched;
    struct report report;
    struct report_load load;
    struct problem why;

    if (read_report(call, &report, &load, &why) ||
        renew_read(&report, call->worker, call->arena, &own->renew, &why)) {
        const struct snap_node *known =
            snapshot_node(loop->snapshot, json_str(json_get(call->body, "node_id"), call->arena));

        if (known)
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
    if (beat == BEAT_UNKNOWN && !report_registers(&report)) {
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

/* The keeper lets go of its connection when it is true. */
static void leave(struct call *call, struct str id)
{
    struct node_call *own = node_call(call);

    own->change = (struct change){.kind = CHANGE_DROP, .node_id = id};
    send_change(own, registered);
}

void api_node_deregister(struct call *call)
{
    struct report report;
    struct problem why;

    if (report_read(call->body, STR_NONE, call->arena, &report, &why))
        call_problem(call, &why);
    else if (call_speaks_for(call, report.node_id))
        leave(call, report.node_id);
}

void api_node_delete(struct call *call)
{
    leave(call, call->params[0]);
}

static void admin(struct call *call, enum node_admin word)
{
    struct node_call *own = node_call(call);
    struct str reason = json_str(json_get(call->body, "reason"), call->arena);

    own->change = (struct change){
        .kind = CHANGE_ADMIN, .node_id = call->params[0], .admin = word, .admin_reason = reason};
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
    registry_alive(loop, known->node);
    hub_poll(call, known->node, wait_ms, (size_t)max);
}

static void share_write(struct jsonw *w, const char *name, int32_t pm)
{
    jsonw_key(w, name);
    if (pm < 0)
        jsonw_null(w);
    else
        jsonw_double(w, pm / 1000.0);
}

static const char *reached_by(const struct snap_node *member)
{
    if (atomic_load(&member->node->link))
        return "websocket";
    return member->facts->endpoint.at ? "push" : "poll";
}

void node_write(struct jsonw *w, const struct snap_node *member, const struct sched *sched)
{
    static const char *const admins[] = {
        [NODE_ADMIN_CORDONED] = "cordoned", [NODE_ADMIN_DRAINING] = "draining"};
    struct node *node = member->node;
    const struct facts *facts = member->facts;
    const struct pool_facts *pool = &facts->pool;
    enum node_admin word = (enum node_admin)atomic_load(&node->admin);

    jsonw_obj(w);
    jsonw_kstr(w, "node_id", node->id);
    jsonw_kstr(w, "health", str_of(node_health_name((enum node_health)atomic_load(&node->health))));
    jsonw_kstr(w, "reported_health",
               str_of(node_health_name((enum node_health)atomic_load(&node->own))));
    jsonw_kstr(w, "admin", word == NODE_ADMIN_NONE ? STR_NONE : str_of(admins[word]));
    jsonw_kint(w, "max", atomic_load(&node->max));
    struct counts now = counts_of(node);
    jsonw_kint(w, "running", now.running);
    jsonw_kint(w, "reserved", now.reserved);
    jsonw_kint(w, "last_heartbeat_ms", atomic_load(&node->heartbeat_ms));
    int32_t level = atomic_load(&node->level);
    jsonw_kstr(w, "level", level < 0 ? STR_NONE : str_of(level_name((enum level)level)));
    jsonw_kraw(w, "labels", facts->labels);
    const char *const lists[] = {"semantic_langs", "tts_langs", "allowed_types"};
    const struct str *values[] = {pool->semantic_langs, pool->tts_langs, pool->types};
    const size_t counts[] = {pool->semantic_count, pool->tts_count, pool->type_count};
    for (size_t l = 0; l < COUNT_OF(lists); l++) {
        jsonw_key(w, lists[l]);
        jsonw_arr(w);
        for (size_t i = 0; i < counts[l]; i++)
            jsonw_str(w, values[l][i]);
        jsonw_end_arr(w);
    }
    jsonw_key(w, "nmt_pairs");
    if (pool->nmt_any) {
        jsonw_str(w, STR("any"));
    } else {
        jsonw_arr(w);
        for (size_t i = 0; i < pool->nmt_count; i++) {
            jsonw_arr(w);
            jsonw_str(w, pool->nmt_pairs[i].src);
            jsonw_str(w, pool->nmt_pairs[i].tgt);
            jsonw_end_arr(w);
        }
        jsonw_end_arr(w);
    }
    jsonw_key(w, "capabilities");
    jsonw_obj(w);
    jsonw_kbool(w, "asr", pool->asr);
    jsonw_kbool(w, "nmt", pool->nmt);
    jsonw_kbool(w, "tts", pool->tts);
    jsonw_kbool(w, "tone", pool->tone);
    jsonw_kbool(w, "semantic", pool->semantic);
    jsonw_end_obj(w);
    jsonw_kint(w, "max_concurrent_jobs", facts->max_concurrent_jobs);
    jsonw_key(w, "current_load");
    jsonw_obj(w);
    share_write(w, "cpu", atomic_load(&node->cpu_pm));
    share_write(w, "gpu", atomic_load(&node->gpu_pm));
    share_write(w, "mem", atomic_load(&node->mem_pm));
    jsonw_end_obj(w);
    jsonw_kint(w, "health_score", sched_score(node, sched->config.latency_target_ms));
    jsonw_kstr(w, "agent_version", facts->agent_version);
    jsonw_kint(w, "version", facts->version);
    jsonw_kint(w, "epoch", atomic_load(&node->epoch));
    jsonw_kstr(w, "reached_by", str_of(reached_by(member)));
    jsonw_kstr(w, "endpoint", facts->endpoint);
    jsonw_kstr(w, "name", facts->name);
    jsonw_kstr(w, "role", facts->role);
    jsonw_kint(w, "registered_ms", facts->registered_ms);
    jsonw_end_obj(w);
}

void api_node_show(struct call *call)
{
    const struct snap_node *known = snapshot_node(call->worker->sched->snapshot, call->params[0]);
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);

    if (!known) {
        call_error(call, ERR_NOT_FOUND, "node_id", "There is no node \"" STR_FMT "\".",
                   STR_ARG(call->params[0]));
        return;
    }
    node_write(&w, known, &call->worker->server->sched);
    call_json(call, 200, &buf);
    buf_free(&buf);
}

/* The first node behind the cursor. */
static size_t first_after(const struct snapshot *snapshot, struct str cursor)
{
    size_t low = 0, high = snapshot ? snapshot->count : 0;

    while (cursor.at && low < high) {
        size_t middle = (low + high) / 2;

        if (str_cmp(snapshot->nodes[middle].node->id, cursor) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void api_node_list(struct call *call)
{
    const struct snapshot *snapshot = call->worker->sched->snapshot;
    struct str cursor = http_query(call->req, "cursor");
    struct str health = http_query(call->req, "health");
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);
    int64_t limit = LIST_DEFAULT, shown = 0;
    size_t i = first_after(snapshot, cursor);

    if (!call_query_int(call, "limit", 1, LIST_MAX, &limit))
        return;
    if (health.at && node_health_by_name(health) == NODE_HEALTH_NONE) {
        call_error(call, ERR_BAD_FIELD, "health",
                   "health must be registering, ready, degraded, draining or offline.");
        return;
    }
    jsonw_obj(&w);
    jsonw_key(&w, "nodes");
    jsonw_arr(&w);
    for (; snapshot && i < snapshot->count && shown < limit; i++) {
        enum node_health now = (enum node_health)atomic_load(&snapshot->nodes[i].node->health);

        if (health.at && now != node_health_by_name(health))
            continue;
        node_write(&w, &snapshot->nodes[i], &call->worker->server->sched);
        shown++;
    }
    jsonw_end_arr(&w);
    bool more = snapshot && shown > 0 && i < snapshot->count;
    jsonw_kstr(&w, "next_cursor", more ? snapshot->nodes[i - 1].node->id : STR_NONE);
    jsonw_end_obj(&w);
    call_json(call, 200, &buf);
    buf_free(&buf);
}
