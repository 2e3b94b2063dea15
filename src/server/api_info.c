/* Pools, health, events; GET /v1/debug, the state of this process (settings without secrets, the
 * store, the last log lines); and GET /api/brain/cluster/status, the whole cluster on one page:
 * figures that a server did not send are null, with the reason. */
#include <assert.h>
#include <malloc.h>
#include <unistd.h>

#include "base/log.h"
#include "model/fleet.h"
#include "model/level.h"
#include "sched/node_report.h"
#include "sched/sched.h"
#include "sched/shared_text.h"
#include "server/api.h"
#include "server/guard.h"
#include "server/hub.h"
#include "store/deploys.h"

/* --- pools, health, events --- */

void write_age(struct jsonw *w, struct server *server)
{
    int64_t fresh_us = atomic_load_explicit(&server->sched.fresh_us, memory_order_relaxed);
    int64_t age_ms = fresh_us ? (clock_mono_us() - fresh_us) / 1000 : 0;
    struct store_status status;

    store_status(server->store, &status);
    jsonw_kbool(w, "stale", status.mode != STORE_NORMAL || age_ms > SCHED_L1_MS);
    jsonw_kint(w, "age_ms", age_ms > 0 ? age_ms : 0);
}

void api_pools(struct call *call)
{
    const struct snapshot *snapshot = call->worker->sched->snapshot;
    struct str cursor = http_query(call->req, "cursor");
    int64_t limit = CALL_LIST_DEFAULT, shown = 0;
    struct snap_at at = snapshot_after_pool(snapshot, cursor);
    const struct snap_pool *pool, *last = NULL;

    if (!call_query_int(call, "limit", 1, CALL_LIST_MAX, &limit))
        return;
    struct jsonw w = call_begin(call);
    jsonw_karr(&w, "pools");
    for (; shown < limit && (pool = snapshot_next_pool(snapshot, &at)); shown++, last = pool) {
        uint32_t ready = 0;

        assert(pool->counts[0] <= snapshot->count);
        for (uint32_t i = 0; i < pool->counts[0]; i++)
            ready += atomic_load_explicit(
                         &snapshot_numbered(snapshot, pool->members[0][i])->node->health,
                         memory_order_relaxed) == NODE_READY;
        jsonw_obj(&w);
        jsonw_kstr(&w, "pool_id", pool->id);
        jsonw_kstr(&w, "src", pool->src);
        jsonw_kstr(&w, "tgt", pool->tgt);
        jsonw_kint(&w, "members", pool->counts[0]);
        jsonw_kint(&w, "ready", ready);
        jsonw_kint(&w, "version", pool->version);
        jsonw_end_obj(&w);
    }
    jsonw_end_arr(&w);
    bool more = shown == limit && snapshot_next_pool(snapshot, &at);
    jsonw_kstr(&w, "next_cursor", more ? last->id : STR_NONE);
    write_age(&w, call->worker->server);
    call_end(call, 200, &w);
}

void api_connect(struct call *call)
{
    if (ws_wanted(call->req))
        hub_accept(call);
    else
        call_error(call, ERR_UPGRADE, "Upgrade",
                   "This route speaks WebSocket: ask for an upgrade, version 13.");
}

void api_healthz(struct call *call)
{
    call_ok(call);
}

/* A load balancer needs only the status. The rest is for callers with the scope read, checked as on
 * their routes: a wrong token is counted. */
void api_readyz(struct call *call)
{
    static const struct route readers = {.scope = SCOPE_READ};
    struct call asked = {.worker = call->worker, .req = call->req, .route = &readers};
    struct server *server = call->worker->server;
    const struct snapshot *snapshot = call->worker->sched->snapshot;
    struct store_status status;
    struct problem why;

    store_status(server->store, &status);
    bool loaded = atomic_load(&server->sched.ready);
    bool draining = atomic_load(&server->draining);
    bool ready = loaded && !draining && status.mode == STORE_NORMAL;
    struct jsonw w = call_begin(call);
    jsonw_kbool(&w, "ready", ready);
    if (!call->worker->auth->tokens.count ||
        (auth_bearer(call->req).at && guard_identify(&asked, &why) == ERR_OK)) {
        const char *reason = ready              ? NULL
                             : draining         ? "draining"
                             : !loaded          ? "loading nodes"
                             : status.detail[0] ? status.detail
                                                : "store down";

        jsonw_kstr(&w, "store_mode", str_of(store_mode_name(status.mode)));
        jsonw_kstr(&w, "reason", str_of(reason));
        jsonw_key(&w, "database_up"); /* only deployments need it */
        if (server->deploys) {
            struct deploys_status database;

            deploys_status(server->deploys, &database);
            jsonw_bool(&w, database.up);
        } else {
            jsonw_null(&w);
        }
        jsonw_kint(&w, "snapshot_version", snapshot ? snapshot->version : 0);
        jsonw_kstr(&w, "version", STR(BERTH_VERSION));
    }
    call_end(call, ready ? 200 : 503, &w);
}

/* --- GET /v1/debug --- */

void api_debug(struct call *call)
{
    struct server *server = call->worker->server;
    struct settings *settings = server->settings; /* read once: a reload may swap them */
    struct mallinfo2 heap = mallinfo2();
    struct store_status status;
    struct buf log = {0};
    struct jsonw w = call_begin(call);

    jsonw_kstr(&w, "version", STR(BERTH_VERSION));
    jsonw_kint(&w, "pid", getpid());
    jsonw_kint(&w, "started_ms", server->started_ms);
    jsonw_kint(&w, "now_ms", call->worker->loop.wall_ms);
    jsonw_kint(&w, "loops", server->loop_count);
    jsonw_kint(&w, "heap_bytes", (int64_t)(heap.uordblks + heap.hblkhd));
    store_status(server->store, &status);
    jsonw_kobj(&w, "store");
    jsonw_kstr(&w, "mode", str_of(store_mode_name(status.mode)));
    jsonw_kint(&w, "since_ms", status.since_ms);
    jsonw_kint(&w, "errors", status.errors);
    jsonw_kint(&w, "calls", status.calls);
    jsonw_kint(&w, "batches", status.batches);
    jsonw_kstr(&w, "detail", str_of(status.detail));
    jsonw_kstr(&w, "generation", str_of(status.generation));
    jsonw_end_obj(&w);
    jsonw_key(&w, "settings");
    conf_show_json(&container_of(settings, struct settings_source, settings)->conf, &w);
    log_recent(&log);
    jsonw_karr(&w, "log");
    for (struct str rest = buf_view(&log); rest.len > 0;)
        jsonw_str(&w, str_cut(&rest, '\n'));
    jsonw_end_arr(&w);
    buf_free(&log);
    call_end(call, 200, &w);
}

/* --- the cluster's status --- */

enum { TASKS_MAX = 1000 };

/* One server as shown on the page. */
struct card {
    const struct snap_node *member;
    const struct json *usage; /* NULL: it has no agent */
    struct fleet_server fleet;
    const char *offline_reason; /* NULL: online */
    int64_t in_use;
    int64_t last_seen_ms;
};

struct status_call {
    struct call *call;
    struct store_op op;
    struct str node_id; /* only this server; at == NULL: all of them */
    int64_t brief;      /* 1: omit what a page that polls every few seconds does not need */
};

static const struct json *read_usage(const struct node *node, struct arena *arena)
{
    struct shared_text *board = atomic_load(&node->usage);
    const struct json *usage = NULL;
    struct buf buf = {0};

    if (board && shared_text_read(board, &buf) &&
        json_parse(arena_str(arena, buf_view(&buf)), arena, &usage, NULL))
        usage = NULL;
    buf_free(&buf);
    return usage;
}

static const char *why_offline(const struct node *node, bool has_endpoint,
                               const struct sched_config *config, int64_t now_ms)
{
    int64_t silent_ms = now_ms - atomic_load(&node->heartbeat_ms);

    if (atomic_load(&node->health) == NODE_OFFLINE)
        return atomic_load(&node->own) == NODE_OFFLINE ? "it said it is offline"
                                                       : "no heartbeat: lost";
    if (atomic_load(&node->disconnected_ms) && !has_endpoint)
        return "no heartbeat: its connection closed";
    if (config->heartbeat_stale_ms != FIELD_OFF && silent_ms > config->heartbeat_stale_ms)
        return "no heartbeat lately";
    return NULL;
}

static int64_t figure(const struct json *usage, const char *name, int64_t otherwise)
{
    int64_t value;

    /* Another instance may have accepted the value unchecked. */
    return json_int(json_get(usage, name), &value) && value >= 0 && value <= NODE_REPORT_SLOTS_MAX
               ? value
               : otherwise;
}

static struct card card_of(const struct snap_node *member, const struct sched_config *config,
                           const struct sched_loop *loop, struct arena *arena)
{
    struct node *node = member->node;
    struct counts counts = counts_of(node);
    int32_t level = atomic_load(&node->level);
    int64_t max = atomic_load(&node->max);
    struct card card = {.member = member,
                        .usage = read_usage(node, arena),
                        .offline_reason = why_offline(node, member->facts->endpoint.at, config,
                                                      sched_awake_ms(loop)),
                        .last_seen_ms = sched_wall_ms(loop, atomic_load(&node->heartbeat_ms)),
                        .in_use = counts.reserved + counts.running};
    int64_t room = max > card.in_use ? max - card.in_use : 0;

    if (atomic_load(&node->health) != NODE_READY || level >= LEVEL_DANGER)
        room = 0;
    card.fleet = (struct fleet_server){
        .id = node->id,
        .name = member->facts->name,
        .online = !card.offline_reason,
        .slots_max = figure(card.usage, "slots_max", member->facts->max_concurrent_jobs),
        .slots_available = card.offline_reason ? 0 : room};
    if (card.fleet.slots_available > 0)
        card.fleet.available_for =
            (struct strs){.at = member->facts->pool.types, .count = member->facts->pool.type_count};
    return card;
}

/* The tasks of each server, indexed once: a fleet has many of both. */
struct task {
    const struct store_record *record;
    struct task *next; /* on the same server */
};

static void write_card(struct jsonw *w, const struct call *call, const struct card *card,
                       const struct task *tasks, bool brief)
{
    static const char *const figures[] = {
        "cpu_cores",     "cpu_load",      "cpu_pct",      "mem_total_gb", "mem_free_gb",
        "swap_used_pct", "disk_total_gb", "disk_free_gb", "gpu_pct",      "tripped"};
    const struct node *node = card->member->node;
    int32_t level = atomic_load(&node->level);

    jsonw_key_str(w, node->id);
    jsonw_obj(w);
    jsonw_kstr(w, "name", card->member->facts->name.at ? card->member->facts->name : node->id);
    jsonw_kstr(w, "role", card->member->facts->role);
    jsonw_kbool(w, "online", card->fleet.online);
    jsonw_kstr(w, "offline_reason", str_of(card->offline_reason));
    jsonw_kint(w, "last_seen_ms", card->last_seen_ms);
    jsonw_kstr(w, "health", str_of(node_health_name(atomic_load(&node->health))));
    jsonw_kstr(w, "admin", str_of(node_admin_name(atomic_load(&node->admin))));
    jsonw_kstr(w, "level", level < 0 ? STR_NONE : str_of(level_name((enum level)level)));
    for (size_t i = 0; i < COUNT_OF(figures); i++)
        write_member(w, figures[i], card->usage);
    jsonw_kstr(w, "figures_reason",
               card->usage ? STR_NONE : STR("no agent on this server: nothing is measured there"));
    jsonw_kint(w, "slots_max", card->fleet.slots_max);
    jsonw_kint(w, "slots_available", card->fleet.slots_available);
    jsonw_kint(w, "slots_in_use", card->in_use);
    node_resources_write(w, card->member);
    if (!brief) {
        char id[JOB_ID_TEXT + 1];

        write_member(w, "clamps", card->usage);
        /* The older form of the answer lists only the ids. */
        jsonw_karr(w, "tasks_running");
        for (const struct task *task = tasks; task; task = task->next) {
            job_id_text(task->record->head.id, id);
            jsonw_str(w, str_of(id));
        }
        jsonw_end_arr(w);
    }
    jsonw_karr(w, "tasks");
    for (const struct task *task = tasks; task; task = task->next) {
        const struct store_record *record = task->record;
        const struct json *spec;

        if (json_parse(record->spec, call->arena, &spec, NULL))
            continue;
        jsonw_obj(w);
        write_job_id(w, record->head.id);
        jsonw_kstr(w, "type", call_shown(call, json_str(json_get(spec, "type"), call->arena)));
        jsonw_kstr(w, "title", json_str(json_get(spec, "title"), call->arena));
        jsonw_kstr(w, "state", str_of(job_state_name(record->head.state)));
        jsonw_end_obj(w);
    }
    jsonw_end_arr(w);
    jsonw_karr(w, "available_for");
    for (size_t i = 0; i < card->fleet.available_for.count; i++)
        jsonw_str(w, card->fleet.available_for.at[i]);
    jsonw_end_arr(w);
    jsonw_end_obj(w);
}

static void tasks_listed(struct store_op *op)
{
    struct status_call *own = container_of(op, struct status_call, op);
    struct call *call = own->call;
    const struct snapshot *snapshot = call->worker->sched->snapshot;
    const struct sched_config *config = &call->worker->server->sched.config;
    size_t count = snapshot->count;
    struct card *cards = arena_array(call->arena, struct card, count + 1);
    struct fleet_server *servers = arena_array(call->arena, struct fleet_server, count + 1);
    struct buf text = {0};
    struct map by_node = {0};
    struct task *tasks;

    if (op->err)
        op->u.list.count = 0; /* the store is unavailable: still show the servers */
    tasks = arena_array(call->arena, struct task, op->u.list.count + 1);
    for (size_t i = op->u.list.count; i-- > 0;) { /* backwards, so that each chain is in order */
        struct str node = str_of(op->u.list.items[i].head.node);

        tasks[i] = (struct task){.record = &op->u.list.items[i], .next = map_get(&by_node, node)};
        map_put(&by_node, node, &tasks[i]);
    }
    struct jsonw w = call_begin(call);
    jsonw_kobj(&w, "servers");
    struct snap_at at = {0};
    for (size_t i = 0; i < count; i++) {
        cards[i] = card_of(snapshot_next(snapshot, &at), config, call->worker->sched, call->arena);
        servers[i] = cards[i].fleet;
        if (!own->node_id.at || str_eq(own->node_id, servers[i].id))
            write_card(&w, call, &cards[i], map_get(&by_node, servers[i].id), own->brief);
    }
    jsonw_end_obj(&w);
    struct fleet fleet = fleet_sum(servers, count);
    if (op->err)
        buf_str(&text, STR("The store is away and nothing is placed; when it is back: "));
    fleet_recommend(servers, count, &text);
    jsonw_kstr(&w, "cluster_status", str_of(fleet_status_name(fleet.status)));
    jsonw_kint(&w, "total_slots", fleet.total_slots);
    jsonw_kint(&w, "available_slots", fleet.available_slots);
    jsonw_kstr(&w, "recommendation", buf_view(&text));
    jsonw_kbool(&w, "stale", op->err != ERR_OK);
    call_end(call, 200, &w);
    buf_free(&text);
    map_free(&by_node);
}

void api_cluster_status(struct call *call)
{
    struct status_call *own = arena_new(call->arena, struct status_call);
    struct namespace_view view = call_view(call);

    own->call = call;
    own->node_id = http_query(call->req, "node_id");
    if (!call_query_int(call, "brief", 0, 1, &own->brief))
        return;
    own->op = call_op(call, STORE_JOB_LIST, tasks_listed);
    own->op.u.list.states = 1u << JOB_DISPATCHED | 1u << JOB_ACKED;
    own->op.u.list.max = TASKS_MAX;
    own->op.u.list.namespace = namespace_listed(&view);
    own->op.u.list.node_id = own->node_id;
    sched_send(call->worker->sched, &own->op);
}
