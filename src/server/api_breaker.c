/* Breaker routes for operators: which nodes get no work of which type, and the order to reset a
 * breaker. */
#include <assert.h>

#include "base/log.h"
#include "base/metrics.h"
#include "sched/keeper.h"
#include "server/api.h"

struct breaker_call {
    struct call *call;
    struct store_op op;
    int64_t limit;
};

static struct breaker_call *breaker_call(struct call *call, enum store_verb verb, store_done *done)
{
    struct breaker_call *own = arena_new(call->arena, struct breaker_call);

    assert(verb == STORE_BREAKERS || verb == STORE_BREAKER_RESET);
    own->call = call;
    own->limit = CALL_LIST_DEFAULT;
    own->op = call_op_timely(call, verb, done);
    return own;
}

static void failed(struct call *call, const struct store_op *op)
{
    enum err err = op->err == ERR_TOO_LATE ? ERR_STORE_DOWN : op->err;

    assert(op->err);
    if (err == ERR_NOT_FOUND)
        call_error(call, err, "node_id",
                   "There is no breaker of " STR_FMT " for type " STR_FMT
                   ": nothing failed there lately.",
                   STR_ARG(op->node), STR_ARG(op->u.breaker.type));
    else
        call_error(call, err, "", "%s.", err_title(err));
}

void breaker_write_item(struct jsonw *w, const struct call *call, const struct store_breaker *item)
{
    jsonw_obj(w);
    jsonw_kstr(w, "node_id", item->node);
    jsonw_kstr(w, "type", call_shown(call, item->type));
    jsonw_kstr(w, "state", str_of(breaker_state_name(item->breaker.state)));
    jsonw_kint(w, "failures", item->breaker.failures);
    write_int_or_null(w, "opened_ms", item->breaker.opened_ms, item->breaker.opened_ms);
    write_int_or_null(w, "probe_until_ms", item->breaker.probe_until_ms,
                      item->breaker.probe_until_ms);
    jsonw_end_obj(w);
}

/* The cursor is "node,type"; neither contains a comma. Types of one namespace sort the same with or
 * without its prefix. */
static bool is_behind(const struct call *call, const struct store_breaker *item, struct str cursor)
{
    struct str node = str_cut(&cursor, ',');
    int order = str_cmp(item->node, node);

    return order ? order > 0 : str_cmp(call_shown(call, item->type), cursor) > 0;
}

static void listed(struct store_op *op)
{
    struct breaker_call *own = container_of(op, struct breaker_call, op);
    struct call *call = own->call;
    struct str cursor = http_query(call->req, "cursor");
    const struct store_breaker *last = NULL;
    int64_t shown = 0;
    bool more = false;

    if (op->err) {
        failed(call, op);
        return;
    }
    struct jsonw w = call_begin(call);
    jsonw_karr(&w, "breakers");
    for (size_t i = 0; i < op->u.breakers.count && !more; i++) {
        const struct store_breaker *item = &op->u.breakers.items[i];

        if (!call_sees(call, item->type) || (cursor.at && !is_behind(call, item, cursor)))
            continue;
        more = shown == own->limit;
        if (more)
            continue;
        breaker_write_item(&w, call, item);
        last = item;
        shown++;
    }
    jsonw_end_arr(&w);
    jsonw_kstr(&w, "next_cursor",
               more ? arena_fmt(call->arena, STR_FMT "," STR_FMT, STR_ARG(last->node),
                                STR_ARG(call_shown(call, last->type)))
                    : STR_NONE);
    call_end(call, 200, &w);
}

void api_breaker_list(struct call *call)
{
    struct breaker_call *own = breaker_call(call, STORE_BREAKERS, listed);

    if (call_query_int(call, "limit", 1, CALL_LIST_MAX, &own->limit))
        sched_send(call->worker->sched, &own->op);
}

struct reset_fields {
    struct str node_id, type;
};

static const struct field fields[] = {
    FIELD_ROW(reset_fields, node_id, ID, .max = NODE_ID_MAX, .flags = FIELD_REQUIRED),
    FIELD_ROW(reset_fields, type, NAME, .max = POOL_LANG_MAX, .flags = FIELD_REQUIRED),
};
const struct schema breaker_name_schema = {
    .what = "the body", .fields = fields, .count = COUNT_OF(fields)};

static void was_reset(struct store_op *op)
{
    struct call *call = container_of(op, struct breaker_call, op)->call;
    const struct snap_node *known = snapshot_node(call->worker->sched->snapshot, op->node);

    assert(op->verb == STORE_BREAKER_RESET && op->node.at);
    if (op->err) {
        failed(call, op);
        return;
    }
    metric_add_label(METRIC_BREAKER_EVENTS, "reset", 1);
    log_event(LOG_INFO, "breaker.reset", KS("node_id", op->node), KS("type", op->u.breaker.type));
    if (known) /* waiting jobs may be sent there again */
        keeper_freed(call->worker->server->sched.keeper, known->node);
    call_ok(call);
}

void api_breaker_reset(struct call *call)
{
    struct breaker_call *own = breaker_call(call, STORE_BREAKER_RESET, was_reset);
    struct reset_fields in = {0};

    if (!call_read(call, &breaker_name_schema, &in))
        return;
    own->op.node = in.node_id;
    if (!call_name(call, "type", in.type, POOL_LANG_MAX, &own->op.u.breaker.type))
        return;
    sched_send(call->worker->sched, &own->op);
}
