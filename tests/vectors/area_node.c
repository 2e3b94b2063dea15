/* node_health_fsm, membership_events, health_score. */
#include "vec.h"

#include <math.h>
#include <stdlib.h>

#include "model/node.h"

bool area_node_health_fsm(struct vec *vec)
{
    struct node_watch_rules rules = node_watch_defaults;
    struct node_watch watch;
    const struct json *steps = json_get(vec->in, "steps");
    struct vec_at at = {0};

    rules.health_check_count = (int)vec_int(vec->in, "health_check_count", 3);
    node_watch_init(&watch, 0);
    watch.status = node_health_by_name(vec_str(vec, vec->in, "start"));
    if (watch.status == NODE_HEALTH_NONE || rules.health_check_count < 1)
        return false;
    for (const struct json *step; (step = vec_each(steps, &at));) {
        int64_t now_ms = vec_int(step, "at_ms", watch.last_heartbeat_ms);

        if (json_str_is(json_get(step, "op"), "heartbeat"))
            node_watch_heartbeat(&watch, &rules, vec_bool(step, "ok", true), now_ms);
        else if (json_str_is(json_get(step, "op"), "scan"))
            node_watch_scan(&watch, &rules, now_ms);
        else
            return false;
        vec_check(vec, step, arena_fmt(vec->arena, "\"%s\"", node_health_name(watch.status)));
    }
    jsonw_obj(vec->w);
    jsonw_kstr(vec->w, "status", str_of(node_health_name(watch.status)));
    jsonw_end_obj(vec->w);
    return true;
}

/* The member table: which nodes are connected, and by which connection. */
struct pool_member {
    struct str node;
    uint64_t conn; /* 0: disconnected */
};

struct table {
    struct pool_member *members;
    size_t count;
};

static void connect_node(struct table *table, struct str node, uint64_t conn)
{
    for (size_t i = 0; i < table->count; i++) {
        if (!str_eq(table->members[i].node, node))
            continue;
        table->members[i].conn = conn;
        return;
    }
    table->members[table->count++] = (struct pool_member){.node = node, .conn = conn};
}

static void close_conn(struct table *table, uint64_t conn)
{
    for (size_t i = 0; i < table->count; i++)
        if (node_close_evicts(table->members[i].conn, conn))
            table->members[i].conn = 0;
}

static int by_node(const void *a, const void *b)
{
    return str_cmp(((const struct pool_member *)a)->node, ((const struct pool_member *)b)->node);
}

static void write_online(struct vec *vec, struct table *table)
{
    qsort(table->members, table->count, sizeof *table->members, by_node);
    jsonw_key(vec->w, "online");
    jsonw_arr(vec->w);
    for (size_t i = 0; i < table->count; i++)
        if (table->members[i].conn != 0)
            jsonw_str(vec->w, table->members[i].node);
    jsonw_end_arr(vec->w);
}

static bool run_members(struct vec *vec, const struct json *steps)
{
    struct table table = {.members = arena_array(vec->arena, struct pool_member, steps->count + 1)};
    struct vec_at at = {0};

    for (const struct json *step; (step = vec_each(steps, &at));) {
        const struct json *op = json_get(step, "op");
        uint64_t conn = (uint64_t)vec_int(step, "conn", 0);
        struct str node = vec_str(vec, step, "node");

        if (conn == 0)
            return false;
        if (json_str_is(op, "connect") && node.at)
            connect_node(&table, node, conn);
        else if (json_str_is(op, "close") || json_str_is(op, "ping_failed"))
            close_conn(&table, conn);
        else
            return false;
    }
    write_online(vec, &table);
    return true;
}

static void run_sequence(struct vec *vec, const struct json *events)
{
    uint64_t last = (uint64_t)vec_int(vec->in, "last_seq", 0);
    struct vec_at at = {0};

    for (const struct json *event; (event = vec_each(events, &at));) {
        int64_t seq;

        if (!json_int(event, &seq))
            seq = vec_int(event, "seq", 0);
        if ((uint64_t)seq != last + 1) {
            jsonw_kint(vec->w, "resync_at", seq);
            return;
        }
        last = (uint64_t)seq;
    }
    jsonw_knull(vec->w, "resync_at");
}

bool area_membership_events(struct vec *vec)
{
    const struct json *steps = json_get(vec->in, "steps");
    const struct json *events = json_get(vec->in, "events");
    bool ok = true;

    jsonw_obj(vec->w);
    if (json_type(steps) == JSON_ARR)
        ok = run_members(vec, steps);
    if (json_type(events) == JSON_ARR)
        run_sequence(vec, events);
    jsonw_end_obj(vec->w);
    return ok;
}

/* A double represents 15 decimal digits: scaled by 1e15 and rounded, a fraction is again the
 * decimal number as written. */
static int64_t scaled(const struct json *in, const char *name, double fallback)
{
    double value = vec_double(in, name, fallback);

    return llround(fmin(fmax(value, -1), 1) * 1e15);
}

bool area_health_score(struct vec *vec)
{
    const struct json *in = vec->in;
    struct node_figures figures = {
        .scale = INT64_C(1000000000000000),
        .cpu = scaled(in, "cpu", 0),
        .gpu = scaled(in, "gpu", -1),
        .mem = scaled(in, "mem", 0),
        .fail = scaled(in, "fail_rate", 0),
        .p95 = llround(vec_double(in, "p95_latency_ms", 0) * 1e6),
        .target = llround(vec_double(in, "target_ms", 0) * 1e6),
    };

    jsonw_obj(vec->w);
    jsonw_kint(vec->w, "score", node_score(&figures));
    jsonw_end_obj(vec->w);
    return true;
}
