/* What there is to know besides nodes and jobs: pools, sessions, health, events. */
#include <assert.h>
#include <string.h>

#include "server/api.h"
#include "server/events.h"
#include "server/hub.h"

enum { LIST_DEFAULT = 100, LIST_MAX = 1000 };

static uint32_t count_ready(const struct snapshot *snapshot, const struct snap_pool *pool)
{
    uint32_t ready = 0;

    assert(pool->counts[0] <= snapshot->count);
    for (uint32_t i = 0; i < pool->counts[0]; i++)
        ready += atomic_load_explicit(&snapshot->nodes[pool->members[0][i]].node->health,
                                      memory_order_relaxed) == NODE_READY;
    return ready;
}

void api_pools(struct call *call)
{
    const struct snapshot *snapshot = call->worker->sched->snapshot;
    struct str cursor = http_query(call->req, "cursor");
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);
    int64_t limit = LIST_DEFAULT, shown = 0;
    size_t i = 0;

    if (!call_query_int(call, "limit", 1, LIST_MAX, &limit))
        return;
    while (snapshot && cursor.at && i < snapshot->pool_count &&
           str_cmp(snapshot->pools[i].id, cursor) <= 0)
        i++;
    jsonw_obj(&w);
    jsonw_key(&w, "pools");
    jsonw_arr(&w);
    for (; snapshot && i < snapshot->pool_count && shown < limit; i++, shown++) {
        const struct snap_pool *pool = &snapshot->pools[i];

        jsonw_obj(&w);
        jsonw_kstr(&w, "pool_id", pool->id);
        jsonw_kstr(&w, "src", pool->src);
        jsonw_kstr(&w, "tgt", pool->tgt);
        jsonw_kint(&w, "members", pool->counts[0]);
        jsonw_kint(&w, "ready", count_ready(snapshot, pool));
        jsonw_kint(&w, "version", pool->version);
        jsonw_end_obj(&w);
    }
    jsonw_end_arr(&w);
    bool more = snapshot && i > 0 && i < snapshot->pool_count;
    jsonw_kstr(&w, "next_cursor", more ? snapshot->pools[i - 1].id : STR_NONE);
    jsonw_end_obj(&w);
    call_json(call, 200, &buf);
    buf_free(&buf);
}

struct session_call {
    struct call *call;
    struct store_op op;
};

static void session_read(struct store_op *op)
{
    struct call *call = container_of(op, struct session_call, op)->call;
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);

    if (op->err) {
        if (op->err == ERR_NOT_FOUND)
            call_error(call, ERR_NOT_FOUND, "session_id", "There is no session \"" STR_FMT "\".",
                       STR_ARG(call->params[0]));
        else
            call_error(call, op->err, "", "%s.", err_title(op->err));
        return;
    }
    jsonw_obj(&w);
    jsonw_kstr(&w, "session_id", call->params[0]);
    jsonw_kstr(&w, "preferred_pool", op->u.session.preferred_pool);
    jsonw_kstr(&w, "lang_pair", op->u.session.lang_pair);
    jsonw_kint(&w, "version", op->u.session.version);
    jsonw_kint(&w, "updated_ms", op->u.session.updated_ms);
    jsonw_end_obj(&w);
    call_json(call, 200, &buf);
    buf_free(&buf);
}

void api_session(struct call *call)
{
    struct session_call *own = arena_new(call->arena, struct session_call);

    own->call = call;
    own->op = (struct store_op){.verb = STORE_SESSION_GET,
                                .reply_to = &call->worker->loop.inbox,
                                .done = session_read,
                                .arena = call->arena};
    own->op.u.session.key = call->params[0];
    sched_send(call->worker->sched, &own->op);
}

void api_events(struct call *call)
{
    events_subscribe(call);
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

void api_readyz(struct call *call)
{
    struct server *server = call->worker->server;
    struct store_status status;
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);

    store_status(server->store, &status);
    bool loaded = atomic_load(&server->sched.ready);
    bool draining = atomic_load(&server->draining);
    bool ready = loaded && !draining && status.mode == STORE_NORMAL;
    jsonw_obj(&w);
    jsonw_kbool(&w, "ready", ready);
    jsonw_kstr(&w, "store_mode", str_of(store_mode_name(status.mode)));
    jsonw_kstr(&w, "reason",
               ready      ? STR_NONE
               : draining ? STR("draining")
               : !loaded  ? STR("loading nodes")
                          : str_of(status.detail[0] ? status.detail : "store down"));
    jsonw_kint(&w, "snapshot_version",
               call->worker->sched->snapshot ? call->worker->sched->snapshot->version : 0);
    jsonw_kstr(&w, "version", STR(BERTH_VERSION));
    jsonw_end_obj(&w);
    call_json(call, ready ? 200 : 503, &buf);
    buf_free(&buf);
}
