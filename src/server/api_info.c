/* What there is to know besides nodes and jobs: pools, sessions, health, events. */
#include <assert.h>
#include <string.h>

#include "server/api.h"
#include "server/events.h"
#include "server/guard.h"
#include "server/hub.h"
#include "store/deploys.h"

enum { LIST_DEFAULT = 100, LIST_MAX = 1000 };

static uint32_t count_ready(const struct snapshot *snapshot, const struct snap_pool *pool)
{
    uint32_t ready = 0;

    assert(pool->counts[0] <= snapshot->count);
    for (uint32_t i = 0; i < pool->counts[0]; i++)
        ready +=
            atomic_load_explicit(&snapshot_numbered(snapshot, pool->members[0][i])->node->health,
                                 memory_order_relaxed) == NODE_READY;
    return ready;
}

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
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);
    int64_t limit = LIST_DEFAULT, shown = 0;
    struct snap_at at = snapshot_after_pool(snapshot, cursor);
    const struct snap_pool *pool, *last = NULL;

    if (!call_query_int(call, "limit", 1, LIST_MAX, &limit))
        return;
    jsonw_obj(&w);
    jsonw_key(&w, "pools");
    jsonw_arr(&w);
    for (; shown < limit && (pool = snapshot_next_pool(snapshot, &at)); shown++, last = pool) {
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
    bool more = shown == limit && snapshot_next_pool(snapshot, &at);
    jsonw_kstr(&w, "next_cursor", more ? last->id : STR_NONE);
    write_age(&w, call->worker->server);
    jsonw_end_obj(&w);
    call_json(call, 200, &buf);
    buf_free(&buf);
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

/* Would a route for readers let them in? A wrong token counts as it does there. */
static bool may_read(struct call *call)
{
    static const struct route readers = {.scope = SCOPE_READ};
    struct call asked = {.worker = call->worker, .req = call->req, .route = &readers};
    struct problem why;

    if (!call->worker->auth->tokens.count)
        return true;
    return auth_bearer(call->req).at && guard_identify(&asked, &why) == ERR_OK;
}

static void write_state(struct jsonw *w, struct call *call, const char *reason,
                        const struct store_status *status)
{
    struct server *server = call->worker->server;

    jsonw_kstr(w, "store_mode", str_of(store_mode_name(status->mode)));
    jsonw_kstr(w, "reason", reason ? str_of(reason) : STR_NONE);
    jsonw_key(w, "database_up"); /* deployments only: without it all else works */
    if (server->deploys) {
        struct deploys_status database;

        deploys_status(server->deploys, &database);
        jsonw_bool(w, database.up);
    } else {
        jsonw_null(w);
    }
    jsonw_kint(w, "snapshot_version",
               call->worker->sched->snapshot ? call->worker->sched->snapshot->version : 0);
    jsonw_kstr(w, "version", STR(BERTH_VERSION));
}

/* A load balancer needs no more than the status; the rest is for those who may look. */
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
    if (may_read(call))
        write_state(&w, call,
                    ready              ? NULL
                    : draining         ? "draining"
                    : !loaded          ? "loading nodes"
                    : status.detail[0] ? status.detail
                                       : "store down",
                    &status);
    jsonw_end_obj(&w);
    call_json(call, ready ? 200 : 503, &buf);
    buf_free(&buf);
}
