/* What is said to and asked of members: their tags (UpdateTerminalInfo) and their usage. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "sched/registry.h"
#include "server/api.h"
#include "server/events.h"
#include "server/rpc.h"

enum {
    ADDRESSES_MAX = 4096,
    USAGE_TIMEOUT_MS = 1000,
    USAGE_ASKS_MAX = 65536, /* under way for the callers of one loop */
};

void api_terminal_events(struct call *call)
{
    events_subscribe_host(call);
}

struct update_call {
    struct call *call;
    struct change change;
};

static void updated(struct change *change)
{
    struct update_call *own = container_of(change, struct update_call, change);

    if (change->err)
        call_problem(own->call, &change->why);
    else
        call_ok(own->call);
}

/* Only a node that is there can be told so: a change of its facts is a sign of its life. */
void api_terminal_update(struct call *call)
{
    struct sched_loop *loop = call->worker->sched;
    struct update_call *own = arena_new(call->arena, struct update_call);
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
    if (!known || atomic_load(&known->node->left_ms)) {
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
    own->call = call;
    if (registry_prepare(loop, &report, &own->change, &why)) {
        call_problem(call, &why);
        return;
    }
    own->change.done = updated;
    registry_send(loop, &own->change);
}

/* Usage: every node is asked at the same time, each with its own deadline; the answer goes when the
 * last of them is in. */
struct usage_call {
    struct call *call;
    struct usage_ask *asks;
    size_t count;
    size_t waiting;
};

struct usage_ask {
    struct usage_call *own;
    struct str address;
    struct rpc rpc;
};

static void write_usage(struct usage_call *own)
{
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);

    jsonw_obj(&w);
    jsonw_key(&w, "usage");
    jsonw_obj(&w);
    for (size_t i = 0; i < own->count; i++) {
        struct usage_ask *ask = &own->asks[i];

        jsonw_key_str(&w, ask->address);
        jsonw_raw(&w, ask->rpc.err ? STR("null") : buf_view(&ask->rpc.answer));
        buf_free(&ask->rpc.answer);
    }
    jsonw_end_obj(&w);
    jsonw_end_obj(&w);
    own->call->worker->usage_asks -= (int64_t)own->count;
    call_json(own->call, 200, &buf);
    buf_free(&buf);
}

static void usage_told(struct rpc *rpc)
{
    struct usage_call *own = container_of(rpc, struct usage_ask, rpc)->own;

    assert(own->waiting > 0);
    if (--own->waiting == 0)
        write_usage(own);
}

static void ask_usage(struct usage_call *own, int64_t timeout_ms)
{
    struct call *call = own->call;

    if (call->worker->usage_asks + (int64_t)own->count > USAGE_ASKS_MAX) {
        call_error(call, ERR_BUSY, "addresses", "%d nodes are being asked already.",
                   USAGE_ASKS_MAX);
        return;
    }
    call->worker->usage_asks += (int64_t)own->count;
    own->waiting = own->count + 1; /* one more is held here, until all were asked */
    for (size_t i = 0; i < own->count; i++) {
        struct usage_ask *ask = &own->asks[i];
        const struct snap_node *known = snapshot_node(call->worker->sched->snapshot, ask->address);

        ask->own = own;
        ask->rpc.from = call->worker;
        ask->rpc.timeout_ms = timeout_ms;
        ask->rpc.done = usage_told;
        snprintf(ask->rpc.method, sizeof ask->rpc.method, "NodeUnit/InspectResourceUsage");
        if (known) {
            rpc_send(&ask->rpc, known->node);
        } else {
            ask->rpc.err = ERR_NOT_FOUND;
            own->waiting--;
        }
    }
    if (--own->waiting == 0)
        write_usage(own);
}

static bool listed_before(const struct usage_call *own, struct str address)
{
    for (size_t i = 0; i < own->count; i++)
        if (str_eq(own->asks[i].address, address))
            return true;
    return false;
}

void api_terminal_usage(struct call *call)
{
    struct usage_call *own = arena_new(call->arena, struct usage_call);
    const struct json *list = json_get(call->body, "addresses");
    const struct json *item = json_first(list);
    int64_t timeout_ms = USAGE_TIMEOUT_MS;
    struct str node;

    if (!call_node(call, &node))
        return;
    if (json_type(list) != JSON_ARR || list->count > ADDRESSES_MAX) {
        call_error(call, ERR_BAD_FIELD, "addresses",
                   "addresses must be a list of at most %d nodes.", ADDRESSES_MAX);
        return;
    }
    json_int(json_get(call->body, "timeout_ms"), &timeout_ms);
    if (timeout_ms < 1 || timeout_ms > RPC_TIMEOUT_MS)
        timeout_ms = timeout_ms < 1 ? 1 : RPC_TIMEOUT_MS;
    own->call = call;
    own->asks = arena_array(call->arena, struct usage_ask, list->count + 1);
    for (uint32_t i = 0; i < list->count; i++, item = json_next(item)) {
        struct str address = json_type(item) == JSON_STR ? json_str(item, call->arena) : STR_NONE;

        if (address.len && !listed_before(own, address))
            own->asks[own->count++].address = address;
    }
    ask_usage(own, timeout_ms);
}
