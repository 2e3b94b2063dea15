/* GET /v1/stats: the last minutes, as points computed from counter readings and kept in a ring. GET
 * /metrics: the counters, and the present state of each node, breaker and limited key. The number
 * of series is bounded (metrics_nodes_max for nodes); the sums over all nodes are always there. */
#include "server/api_metrics.h"

#include <assert.h>
#include <string.h>

#include "sched/sched.h"
#include "server/api.h"

/* --- the last minutes --- */

void stats_add(struct stats *stats, int64_t now_ms, const struct stats_reading *now)
{
    const struct stats_reading *last = &stats->last;
    struct stats_point *point = &stats->points[stats->count % STATS_POINTS];

    assert(now_ms > stats->last_ms && now->refused_count <= STATS_REASONS_MAX);
    if (stats->last_ms) {
        *point = (struct stats_point){.at_ms = now_ms,
                                      .span_ms = now_ms - stats->last_ms,
                                      .placed = now->placed - last->placed,
                                      .failed = now->failed - last->failed,
                                      .queue = now->queue,
                                      .slots_used = now->slots_used,
                                      .slots_max = now->slots_max,
                                      .p50_us = metric_quantile_us(last->times, now->times, 500),
                                      .p99_us = metric_quantile_us(last->times, now->times, 990),
                                      .refused_count = now->refused_count};
        for (size_t i = 0; i < now->refused_count; i++) {
            point->refused[i] = now->refused[i];
            for (size_t k = 0; k < last->refused_count; k++)
                if (strcmp(last->refused[k].label, now->refused[i].label) == 0)
                    point->refused[i].value -= last->refused[k].value;
        }
        assert(point->placed >= 0 && point->failed >= 0);
        stats->count++;
    }
    stats->last = *now;
    stats->last_ms = now_ms;
}

void stats_tick(struct stats *stats, int64_t now_ms, int64_t queue)
{
    struct metric_cell cells[METRIC_LABELS_MAX + 1];
    int64_t due_ms = now_ms - now_ms % STATS_EVERY_MS;

    if (due_ms < stats->last_ms)
        *stats = (struct stats){0}; /* the clock was set back: times must increase */
    if (due_ms == stats->last_ms)
        return;
    struct stats_reading now = {.failed = metric_value(METRIC_JOBS, "FAILED"),
                                .queue = queue,
                                .slots_used = metric_value(METRIC_LEASES, NULL),
                                .slots_max = metric_value(METRIC_SLOTS, "max")};
    size_t count = metric_cells(METRIC_DISPATCH, cells);
    for (size_t i = 0; i < count; i++)
        if (strcmp(cells[i].label, "PLACED") == 0)
            now.placed = cells[i].value;
        else if (strcmp(cells[i].label, "WAITS") != 0 && cells[i].value > 0 &&
                 now.refused_count < STATS_REASONS_MAX)
            now.refused[now.refused_count++] = cells[i];
    metric_buckets(METRIC_DISPATCH_SECONDS, now.times);
    stats_add(stats, due_ms, &now);
}

static void ms_write(struct jsonw *w, const char *name, int64_t us)
{
    if (us < 0)
        jsonw_knull(w, name);
    else
        jsonw_kdouble(w, name, (double)us / 1000);
}

static double per_s(int64_t count, const struct stats_point *point)
{
    return (double)(count * 1000) / (double)point->span_ms;
}

void stats_write(const struct stats *stats, int64_t since_ms, struct jsonw *w)
{
    size_t first = stats->count > STATS_POINTS ? stats->count - STATS_POINTS : 0;

    jsonw_obj(w);
    jsonw_kint(w, "every_ms", STATS_EVERY_MS);
    jsonw_karr(w, "points");
    for (size_t i = first; i < stats->count; i++) {
        const struct stats_point *point = &stats->points[i % STATS_POINTS];

        if (point->at_ms <= since_ms)
            continue;
        jsonw_obj(w);
        jsonw_kint(w, "at_ms", point->at_ms);
        jsonw_kdouble(w, "dispatched_per_s", per_s(point->placed, point));
        ms_write(w, "p50_ms", point->p50_us);
        ms_write(w, "p99_ms", point->p99_us);
        jsonw_kint(w, "slots_used", point->slots_used);
        jsonw_kint(w, "slots_max", point->slots_max);
        jsonw_kint(w, "queue", point->queue);
        jsonw_kint(w, "failed", point->failed);
        jsonw_kobj(w, "refused_per_s");
        for (size_t k = 0; k < point->refused_count; k++)
            jsonw_kdouble(w, point->refused[k].label, per_s(point->refused[k].value, point));
        jsonw_end_obj(w);
        jsonw_end_obj(w);
    }
    jsonw_end_arr(w);
    jsonw_end_obj(w);
}

/* --- routes --- */

enum {
    BREAKERS_MAX = 200,
    KEYS_MAX = 200,        /* limited keys with series of their own, */
    KEYS_LOOKED_MAX = 500, /* out of the first ones in use */
};

struct scrape_call {
    struct call *call;
    struct store_op op;     /* the breakers; requested only while one is open */
    struct store_op limits; /* keys in use */
};

/* Exports what alerting rules refer to before it first happens. */
void api_metrics_declare(void)
{
    static const struct {
        enum metric metric;
        const char *labels[13];
    } rows[] = {
        {METRIC_DISPATCH,
         {"PLACED", "WAITS", "NO_CAPABLE_NODE", "PREFERRED_NODE_NOT_CAPABLE",
          "PREFERRED_NODE_UNAVAILABLE", "ALL_CANDIDATES_FULL_OR_FAILED",
          "SCHEDULER_DEPENDENCY_DOWN", "OUTCOME_UNKNOWN", "SCHEDULER_BUSY", "STORE_FULL",
          "QUEUE_FULL", "QUOTA_EXCEEDED"}},
        {METRIC_DISPATCH_SECONDS, {"PLACED"}},
        {METRIC_DISPATCH_WARM, {"warm", "cold"}},
        {METRIC_CACHE, {"l1,hit", "l1,miss", "l2,hit", "l2,miss"}},
        {METRIC_STORE_CALLS, {"ok", "refused", "down", "unknown"}},
        {METRIC_JOBS, {"DONE", "FAILED"}},
        {METRIC_KILLS, {"emergency", "oom", "disk_limit", "timeout"}},
        {METRIC_LEASE_EXPIRED, {"reserved", "running"}},
        {METRIC_BREAKER_EVENTS, {"open", "probe", "closed", "reset"}},
        {METRIC_RELOADS, {"ok", "refused"}},
        {METRIC_CONNECTIONS_DROPPED, {"unknown", "full", "behind"}},
        {METRIC_SQL, {"ok", "error", "refused"}},
        {METRIC_CLAIMS,
         {"claimed", "duplicate", "claim_conflict", "lease_alive", "owner_online", "no_lease",
          "mass_loss", "draining", "was_daemon", "selector", "namespace", "other_instance",
          "no_room"}},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        for (size_t k = 0; k < COUNT_OF(rows[i].labels) && rows[i].labels[k]; k++)
            metric_declare(rows[i].metric, rows[i].labels[k]);
    for (int i = 0; i < LEASE_REASON_COUNT; i++)
        metric_declare(METRIC_RESERVE, lease_reason_name((enum lease_reason)i));
    for (int i = 0; i < STORE_RULES; i++)
        metric_declare(METRIC_INVARIANT, store_rule_name((enum store_rule)i));
}

static void put_node(struct buf *text, const char *name, struct str id, const char *state,
                     int64_t value)
{
    buf_fmt(text, "%s{node_id=\"" STR_FMT "\"", name, STR_ARG(id)); /* an id needs no escapes */
    if (state)
        buf_fmt(text, ",state=\"%s\"", state);
    buf_fmt(text, "} %lld\n", (long long)value);
}

/* One figure of a node's resource; `gpu`: the id of the GPU whose memory it is, -1: none. */
static void put_amount(struct buf *text, struct str id, struct str name, int32_t gpu,
                       const char *state, int32_t amount)
{
    if (gpu >= 0)
        buf_fmt(text, "berth_node_gpu_vram_mb{node_id=\"" STR_FMT "\",gpu=\"%d\"", STR_ARG(id),
                gpu);
    else
        buf_fmt(text, "berth_node_resource{node_id=\"" STR_FMT "\",resource=\"" STR_FMT "\"",
                STR_ARG(id), STR_ARG(name));
    buf_fmt(text, ",state=\"%s\"} ", state);
    demand_write_amount(name, amount > 0 ? amount : 0, text);
    buf_char(text, '\n');
}

static void put_resource(struct buf *text, struct str id, struct str name, int32_t gpu,
                         int32_t capacity, int32_t usable, const int32_t *left)
{
    put_amount(text, id, name, gpu, "capacity", capacity);
    put_amount(text, id, name, gpu, "usable", usable);
    if (!left)
        return; /* not known yet how much of it leases hold */
    put_amount(text, id, name, gpu, "promised",
               *left == RESOURCES_LEFT_WHOLE ? capacity : usable - *left);
    put_amount(text, id, name, gpu, "free", *left);
}

/* The resources besides slots of the first `shown` nodes: named ones, or GPUs. */
static void put_resources(struct buf *text, const struct snapshot *snapshot, size_t shown,
                          bool gpus)
{
    struct snap_at at = {0};

    for (size_t i = 0; i < shown; i++) {
        const struct snap_node *member = snapshot_next(snapshot, &at);
        const struct resources *declared = member->facts->resources;
        struct resources_left left;

        if (!declared)
            continue;
        struct resources now = counts_usable(member->node, declared);
        bool known = counts_left(member->node, declared, &left);
        for (size_t k = 0; !gpus && k < now.count; k++)
            put_resource(text, member->node->id, str_of(now.items[k].name), -1,
                         now.items[k].capacity, now.items[k].usable, known ? &left.left[k] : NULL);
        for (size_t k = 0; gpus && k < now.gpu_count; k++)
            put_resource(text, member->node->id, STR("vram_mb"), now.gpus[k].id,
                         now.gpus[k].vram_mb, now.gpus[k].usable_mb,
                         known ? &left.gpu_left[k] : NULL);
    }
}

static void put_nodes(struct buf *text, const struct snapshot *snapshot, int64_t most)
{
    size_t count = snapshot ? snapshot->count : 0;
    size_t shown = (int64_t)count < most ? count : (size_t)most;
    struct snap_at at = {0}, again = {0};

    metrics_head(text, "berth_node_slots", "gauge", "Slots of a node: max, reserved, running");
    for (size_t i = 0; i < shown; i++) {
        const struct node *node = snapshot_next(snapshot, &at)->node;
        struct counts counts = counts_of(node);

        put_node(text, "berth_node_slots", node->id, "max", atomic_load(&node->max));
        put_node(text, "berth_node_slots", node->id, "reserved", counts.reserved);
        put_node(text, "berth_node_slots", node->id, "running", counts.running);
    }
    metrics_head(text, "berth_node_level", "gauge",
                 "Load of a node's machine: 0 normal, 1 warning, 2 danger, 3 critical");
    for (size_t i = 0; i < shown; i++) {
        const struct node *node = snapshot_next(snapshot, &again)->node;
        int32_t level = atomic_load(&node->level);

        if (level >= 0) /* a node without an agent has no level */
            put_node(text, "berth_node_level", node->id, NULL, level);
    }
    metrics_head(text, "berth_node_resource", "gauge",
                 "What a node has of a resource: capacity, usable, promised, free");
    put_resources(text, snapshot, shown, false);
    metrics_head(text, "berth_node_gpu_vram_mb", "gauge",
                 "Memory of a node's GPU: capacity, usable, promised, free");
    put_resources(text, snapshot, shown, true);
    metrics_head(text, "berth_nodes_unlisted", "gauge",
                 "Nodes without series of their own, see metrics_nodes_max");
    buf_fmt(text, "berth_nodes_unlisted %zu\n", count - shown);
}

static void put_key(struct buf *text, struct str key, const char *state, int32_t value)
{
    buf_fmt(text, "berth_limit{key=\"" STR_FMT "\",state=\"%s\"} %d\n", STR_ARG(key), state, value);
}

/* The label is "NAMESPACE,STATE"; "other" collects those beyond the limit on labels. */
static bool shows_namespace(const char *label, const void *user)
{
    const struct namespace_view *view = user;
    struct str rest = str_of(label);

    return view->all || str_eq(str_cut(&rest, ','), view->namespace);
}

/* Process metrics, for callers who may see sums over all namespaces. */
static void put_process(struct buf *text, struct server *server)
{
    int64_t age_us = clock_mono_us() - atomic_load(&server->sched.fresh_us);
    int64_t connections = 0;
    struct store_status status;

    store_status(server->store, &status);
    for (int i = 0; i < server->loop_count; i++)
        connections += atomic_load(&server->workers[i].connections);
    metric_set(METRIC_CONNECTIONS, connections);
    metric_set(METRIC_BODIES, http_bodies_bytes());
    metric_set(METRIC_STORE_MODE, status.mode);
    metric_set(METRIC_SNAPSHOT_AGE, age_us / 1000);
    metric_set(METRIC_QUEUE_DEPTH, atomic_load(&server->sched.queue_depth));
    metrics_render(text);
    metrics_head(text, "berth_store_errors_total", "counter", "Errors of the store itself");
    buf_fmt(text, "berth_store_errors_total %lld\n", (long long)status.errors);
}

static void reply(struct store_op *op)
{
    struct scrape_call *own = container_of(op, struct scrape_call, limits);
    const struct store_op *breakers = &own->op;
    struct call *call = own->call;
    struct server *server = call->worker->server;
    struct namespace_view view = call_view(call);
    struct buf buf = {0};
    size_t shown = 0;

    if (namespace_sees_sums(&view))
        put_process(&buf, server);
    metrics_render_part(&buf, METRIC_NAMESPACE_JOBS, shows_namespace, &view);
    metrics_render_version(&buf, BERTH_VERSION);
    put_nodes(&buf, call->worker->sched->snapshot, server->settings->metrics_nodes_max);
    metrics_head(&buf, "berth_breaker_state", "gauge",
                 "1 for each breaker that is open or half open");
    for (size_t i = 0; !breakers->err && i < breakers->u.breakers.count && shown < BREAKERS_MAX;
         i++) {
        const struct store_breaker *item = &breakers->u.breakers.items[i];

        if (item->breaker.state == BREAKER_CLOSED || !call_sees(call, item->type))
            continue;
        buf_fmt(&buf,
                "berth_breaker_state{node_id=\"" STR_FMT "\",type=\"" STR_FMT "\",state=\"%s\"} "
                "1\n",
                STR_ARG(item->node), STR_ARG(call_shown(call, item->type)),
                breaker_state_name(item->breaker.state));
        shown++;
    }
    shown = 0;
    metrics_head(&buf, "berth_limit", "gauge",
                 "Jobs with a key that has a limit: in_flight, limit, waiting");
    for (size_t i = 0; !op->err && i < op->u.limits.key_count && shown < KEYS_MAX; i++) {
        const struct store_limit_key *key = &op->u.limits.keys[i];
        const struct store_limit *rule = limit_rule_for(op, key->key);

        if (!rule || !call_sees(call, key->key))
            continue;
        put_key(&buf, call_shown(call, key->key), "in_flight", key->in_flight);
        if (rule->limit.concurrency != LIMIT_NONE)
            put_key(&buf, call_shown(call, key->key), "limit", rule->limit.concurrency);
        put_key(&buf, call_shown(call, key->key), "waiting", key->waiting);
        shown++;
    }
    struct http_reply answer = {.status = 200,
                                .content_type = "text/plain; version=0.0.4; charset=utf-8",
                                .body = buf_view(&buf)};
    call_reply(call, &answer);
    buf_free(&buf);
}

static void ask_limits(struct store_op *op)
{
    struct scrape_call *own = container_of(op, struct scrape_call, op);
    struct sched_loop *loop = own->call->worker->sched;

    own->limits = call_op_timely(own->call, STORE_LIMITS, reply);
    own->limits.u.limits.max = KEYS_LOOKED_MAX;
    sched_send(loop, &own->limits);
}

void api_metrics(struct call *call)
{
    struct scrape_call *own = arena_new(call->arena, struct scrape_call);

    own->call = call;
    own->op = call_op_timely(call, STORE_BREAKERS, ask_limits);
    assert(own->op.u.breakers.count == 0);
    if (metric_value(METRIC_BREAKERS_OPEN, NULL) > 0)
        sched_send(call->worker->sched, &own->op);
    else
        ask_limits(&own->op);
}

void api_stats(struct call *call)
{
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);
    struct namespace_view view = call_view(call);
    int64_t since_ms = 0;

    if (!call_query_int(call, "since", 0, INT64_MAX, &since_ms))
        return;
    if (!namespace_sees_sums(&view))
        since_ms = INT64_MAX; /* points are sums over all namespaces */
    stats_write(call->worker->stats, since_ms, &w);
    call_json(call, 200, &buf);
}
