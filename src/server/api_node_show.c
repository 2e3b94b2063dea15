/* How nodes are shown: one, or a page of them. */
#include <assert.h>

#include "model/level.h"
#include "model/pool.h"
#include "sched/sched.h"
#include "sched/shared_text.h"
#include "server/api.h"
#include "server/explain_write.h"

enum { LIST_DEFAULT = 100, LIST_MAX = 1000 };

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

static struct str health_text(const _Atomic int32_t *health)
{
    return str_of(node_health_name((enum node_health)atomic_load(health)));
}

const char *node_admin_name(const struct node *node)
{
    static const char *const admins[] = {[NODE_ADMIN_NONE] = NULL,
                                         [NODE_ADMIN_CORDONED] = "cordoned",
                                         [NODE_ADMIN_DRAINING] = "draining"};
    int32_t admin = atomic_load(&node->admin);

    assert(admin >= 0 && admin < (int32_t)COUNT_OF(admins));
    return admins[admin];
}

static void reason_write(struct jsonw *w, const struct node *node)
{
    struct shared_text *board = atomic_load(&node->admin_reason);
    struct buf reason = {0};

    if (board)
        shared_text_read(board, &reason);
    jsonw_kstr(w, "admin_reason", reason.len ? buf_view(&reason) : STR_NONE);
    buf_free(&reason);
}

/* How its claims of deployments went, as its agent tells it. */
static void claim_write(struct jsonw *w, const struct node *node)
{
    struct shared_text *board = atomic_load(&node->claim);
    struct buf text = {0};

    if (board)
        shared_text_read(board, &text);
    jsonw_kraw(w, "claim", buf_view(&text)); /* empty: null */
    buf_free(&text);
}

/* How it is right now. */
static void live_write(struct jsonw *w, const struct node *node, const struct sched_loop *loop)
{
    struct counts now = counts_of(node);
    int32_t level = atomic_load(&node->level);

    jsonw_kstr(w, "health", health_text(&node->health));
    jsonw_kstr(w, "reported_health", health_text(&node->own));
    jsonw_kstr(w, "admin", str_of(node_admin_name(node)));
    reason_write(w, node);
    claim_write(w, node);
    jsonw_kint(w, "max", atomic_load(&node->max));
    jsonw_kint(w, "running", now.running);
    jsonw_kint(w, "reserved", now.reserved);
    jsonw_kint(w, "last_heartbeat_ms", sched_wall_ms(loop, atomic_load(&node->heartbeat_ms)));
    jsonw_kstr(w, "level", level < 0 ? STR_NONE : str_of(level_name((enum level)level)));
    jsonw_key(w, "current_load");
    jsonw_obj(w);
    share_write(w, "cpu", atomic_load(&node->cpu_pm));
    share_write(w, "gpu", atomic_load(&node->gpu_pm));
    share_write(w, "mem", atomic_load(&node->mem_pm));
    jsonw_end_obj(w);
    jsonw_kint(w, "epoch", atomic_load(&node->epoch));
}

/* What of it is the configuration's word and not its own. */
static void fixed_write(struct jsonw *w, const struct node *node, const struct sched *sched)
{
    const struct json *facts = node_rules_find(&sched->config.node_rules, node->id);
    const struct json *key = json_first(facts);

    jsonw_key(w, "fixed");
    jsonw_arr(w);
    for (uint32_t i = 0; facts && i < facts->count; i++, key = json_next(key + 1))
        jsonw_raw(w, json_raw(key));
    jsonw_end_arr(w);
}

/* Its members, within an object. */
static void node_write(struct jsonw *w, const struct snap_node *member,
                       const struct sched_loop *loop)
{
    const struct facts *facts = member->facts;

    jsonw_kstr(w, "node_id", member->node->id);
    live_write(w, member->node, loop);
    jsonw_kraw(w, "labels", facts->labels);
    pool_facts_write(w, &facts->pool, "capabilities");
    fixed_write(w, member->node, loop->sched);
    jsonw_kint(w, "max_concurrent_jobs", facts->max_concurrent_jobs);
    jsonw_kint(w, "health_score", sched_score(member->node, loop->sched->config.latency_target_ms));
    jsonw_kstr(w, "agent_version", facts->agent_version);
    jsonw_kint(w, "version", atomic_load(&member->node->version));
    jsonw_kstr(w, "reached_by", str_of(reached_by(member)));
    jsonw_kstr(w, "endpoint", facts->endpoint);
    jsonw_kstr(w, "name", facts->name);
    jsonw_kstr(w, "role", facts->role);
    jsonw_kint(w, "registered_ms", atomic_load(&member->node->registered_ms));
    explain_write_node(w, member, loop->sched, sched_awake_ms(loop));
}

struct str node_etag(const struct snap_node *member, struct arena *arena)
{
    return arena_fmt(arena, "\"%lld-%u-%d\"", (long long)member->facts->version,
                     (unsigned)atomic_load(&member->node->epoch),
                     (int)atomic_load(&member->node->admin));
}

struct node_call {
    struct call *call;
    struct store_op op;
};

/* The types of work it gets none of; null when the store does not say. */
static void breakers_write(struct jsonw *w, const struct call *call, struct str node_id,
                           const struct store_op *op)
{
    jsonw_key(w, "breakers");
    if (op->err) {
        jsonw_null(w);
        return;
    }
    jsonw_arr(w);
    for (size_t i = 0; i < op->u.breakers.count; i++) {
        const struct store_breaker *item = &op->u.breakers.items[i];

        if (str_eq(item->node, node_id) && call_sees(call, item->type))
            breaker_write_item(w, call, item);
    }
    jsonw_end_arr(w);
}

static void node_shown(struct store_op *op)
{
    struct call *call = container_of(op, struct node_call, op)->call;
    const struct snap_node *known = snapshot_node(call->worker->sched->snapshot, call->params[0]);
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);

    if (!known) {
        call_error(call, ERR_NOT_FOUND, "node_id", "There is no node \"" STR_FMT "\".",
                   STR_ARG(call->params[0]));
        return;
    }
    jsonw_obj(&w);
    node_write(&w, known, call->worker->sched);
    breakers_write(&w, call, known->node->id, op);
    jsonw_end_obj(&w);
    /* What moves with every heartbeat is no part of it: it names what an operator decides by. */
    struct http_header etag = {.name = STR("ETag"), .value = node_etag(known, call->arena)};
    struct http_reply reply = {
        .status = 200, .body = buf_view(&buf), .headers = &etag, .header_count = 1};
    call_reply(call, &reply);
    buf_free(&buf);
}

void api_node_show(struct call *call)
{
    struct node_call *own = arena_new(call->arena, struct node_call);

    own->call = call;
    own->op = (struct store_op){.verb = STORE_BREAKERS,
                                .reply_to = &call->worker->loop.inbox,
                                .done = node_shown,
                                .not_after_ms = sched_not_after(call->worker->sched),
                                .arena = call->arena};
    sched_send(call->worker->sched, &own->op);
}

void api_node_list(struct call *call)
{
    const struct snapshot *snapshot = call->worker->sched->snapshot;
    struct str cursor = http_query(call->req, "cursor");
    struct str health = http_query(call->req, "health");
    struct str selector = http_query(call->req, "selector");
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);
    int64_t limit = LIST_DEFAULT, shown = 0;
    struct snap_at at = snapshot_after(snapshot, cursor);
    const struct snap_node *node, *last = NULL;

    if (!call_query_int(call, "limit", 1, LIST_MAX, &limit))
        return;
    if (health.at && node_health_by_name(health) == NODE_HEALTH_NONE) {
        call_error(call, ERR_BAD_FIELD, "health",
                   "health must be registering, ready, degraded, draining or offline.");
        return;
    }
    if (!selector_valid(selector)) {
        call_error(call, ERR_BAD_FIELD, "selector",
                   "selector must be labels like zone=eu,gpu=yes.");
        return;
    }
    jsonw_obj(&w);
    jsonw_key(&w, "nodes");
    jsonw_arr(&w);
    for (; shown < limit && (node = snapshot_next(snapshot, &at)); last = node) {
        enum node_health now = (enum node_health)atomic_load(&node->node->health);

        if (health.at && now != node_health_by_name(health))
            continue;
        if (!selector_match(selector, node->facts->label_values))
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
    jsonw_end_obj(&w);
    call_json(call, 200, &buf);
    buf_free(&buf);
}
