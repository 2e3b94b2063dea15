/* Calls to nodes, kept until answered by the hub of the loop that has the socket; and the routes
 * that forward a request to a node: its usage, the output of a job. */
#include "server/rpc.h"

#include <assert.h>
#include <stdio.h>

#include "server/api.h"
#include "server/hub_ws.h"
#include "server/peers.h"

/* --- calls --- */

static void answered(struct msg *msg)
{
    struct rpc *rpc = container_of(msg, struct rpc, msg);

    rpc->done(rpc);
}

void rpc_over(struct rpc *rpc, enum err err)
{
    assert(rpc->from && rpc->done);
    rpc->err = err;
    rpc->msg.run = answered;
    inbox_post(&rpc->from->loop.inbox, &rpc->msg);
}

static void ask(struct msg *msg)
{
    struct rpc *rpc = container_of(msg, struct rpc, msg);
    struct hub *hub = rpc->from->server->workers[hub_link_loop(rpc->link)].hub;
    struct socket *socket = idmap_get(&hub->sockets, hub_link_incarnation(rpc->link));
    struct buf *frame = &hub->frame;

    assert(rpc->link);
    if (!socket) {
        rpc_over(rpc, ERR_CONFLICT);
        return;
    }
    rpc->id = ++hub->last_rpc;
    rpc->until_ms =
        hub->worker->loop.mono_ms + (rpc->timeout_ms > 0 ? rpc->timeout_ms : RPC_TIMEOUT_MS);
    idmap_put(&hub->rpcs, rpc->id, rpc);
    struct jsonw w = jsonw_to(frame);
    buf_clear(frame);
    jsonw_obj(&w);
    jsonw_kstr(&w, "msg", STR("rpc"));
    jsonw_kint(&w, "id", (int64_t)rpc->id);
    jsonw_kstr(&w, "method", str_of(rpc->method));
    jsonw_kraw(&w, "params", rpc->params.len ? rpc->params : STR("{}"));
    jsonw_end_obj(&w);
    if (!hub_socket_send(socket, buf_view(frame))) {
        idmap_del(&hub->rpcs, rpc->id);
        rpc_over(rpc, ERR_CONFLICT);
    }
}

void rpc_send(struct rpc *rpc, struct node *node)
{
    uint32_t instance = rpc->forwarded ? 0 : atomic_load(&node->instance);

    rpc->link = atomic_load(&node->link);
    assert(rpc->from && rpc->done);
    if (!rpc->link && instance) {
        peers_query(rpc->from->server, rpc, node->id, instance);
        return;
    }
    if (!rpc->link) {
        rpc_over(rpc, ERR_CONFLICT);
        return;
    }
    rpc->msg.run = ask;
    inbox_post(&rpc->from->server->workers[hub_link_loop(rpc->link)].loop.inbox, &rpc->msg);
}

void rpc_reply(struct hub *hub, uint64_t incarnation, const struct json *body, struct arena *arena)
{
    const struct json *result = json_get(body, "result");
    int64_t re = 0;

    json_int(json_get(body, "re"), &re);
    struct rpc *rpc = idmap_get(&hub->rpcs, (uint64_t)re);
    if (!rpc || hub_link_incarnation(rpc->link) != incarnation)
        return; /* too late, or from another socket */
    idmap_del(&hub->rpcs, rpc->id);
    if (json_is_null(result))
        buf_str(&rpc->answer, json_str(json_get(body, "detail"), arena));
    else
        buf_str(&rpc->answer, json_raw(result));
    rpc_over(rpc, json_is_null(result) ? ERR_BAD_REQUEST : ERR_OK);
}

void rpc_end(struct hub *hub, uint64_t incarnation)
{
    int64_t now_ms = hub->worker->loop.mono_ms;
    struct msg *first = NULL;
    struct rpc *rpc;

    /* Collected first, then ended: the map must not change while it is walked. */
    for (size_t i = 0; (rpc = idmap_next(&hub->rpcs, &i));) {
        rpc->gone = incarnation && hub_link_incarnation(rpc->link) == incarnation;
        if (!rpc->gone && rpc->until_ms > now_ms)
            continue;
        rpc->msg.next = first;
        first = &rpc->msg;
    }
    while (first) {
        rpc = container_of(first, struct rpc, msg);
        first = first->next; /* before it is posted */
        idmap_del(&hub->rpcs, rpc->id);
        rpc_over(rpc, rpc->gone ? ERR_CONFLICT : ERR_TIMEOUT);
    }
}

/* --- routes --- */

enum { LOG_DEFAULT = 65536, LOG_MAX = 1 << 20, WORD_MAX = RPC_METHOD_MAX / 2 - 1 };

struct rpc_call {
    struct call *call;
    struct rpc rpc;
    struct store_op op;
    int64_t offset, max;
};

static struct rpc_call *rpc_call(struct call *call)
{
    struct rpc_call *own = arena_new(call->arena, struct rpc_call);

    own->call = call;
    own->rpc.from = call->worker;
    return own;
}

void rpc_answer(struct call *call, struct rpc *rpc, enum err refused)
{
    static const char *const sentences[ERR_COUNT] = {
        [ERR_TIMEOUT] = "The node did not answer in time.",
        [ERR_CONFLICT] = "The node has no connection to be asked over."};
    struct buf answer = rpc->answer; /* the reply ends the request, and `rpc` with it */

    assert(!rpc->err || rpc->err == ERR_BAD_REQUEST || sentences[rpc->err]);
    if (!rpc->err)
        call_body(call, 200, buf_view(&answer));
    else if (rpc->err == ERR_BAD_REQUEST)
        call_error(call, refused, "", "The node says: " STR_FMT, STR_ARG(buf_view(&answer)));
    else
        call_error(call, rpc->err, "", "%s", sentences[rpc->err]);
    buf_free(&answer);
}

static void rpc_done(struct rpc *rpc)
{
    rpc_answer(container_of(rpc, struct rpc_call, rpc)->call, rpc, ERR_BAD_REQUEST);
}

static void rpc_start(struct rpc_call *own)
{
    const struct snap_node *known = call_has_node(own->call, own->call->params[0]);

    if (known)
        rpc_send(&own->rpc, known->node);
}

static void rpc_job_found(struct store_op *op)
{
    struct rpc_call *own = container_of(op, struct rpc_call, op);

    if (call_has_job(own->call, op))
        rpc_start(own);
}

void api_node_rpc(struct call *call)
{
    struct rpc_call *own = rpc_call(call);

    if (!call_has_node(call, call->params[0]))
        return;
    if (!str_is_id(call->params[1], WORD_MAX) || !str_is_id(call->params[2], WORD_MAX)) {
        call_error(call, ERR_NOT_FOUND, "",
                   "A service and its method are ids of at most %d letters.", WORD_MAX);
        return;
    }
    snprintf(own->rpc.method, sizeof own->rpc.method, STR_FMT "/" STR_FMT, STR_ARG(call->params[1]),
             STR_ARG(call->params[2]));
    own->rpc.params = call->req->body;
    own->rpc.done = rpc_done;
    /* A node answers every question, so access to a job or a deployment is checked here. */
    struct str id = json_str(json_get(call->body, "id"), call->arena);
    bool all = call_view(call).all;
    if (!all && str_is(call->params[1], "Job")) {
        own->op = call_op(call, STORE_JOB_GET, rpc_job_found);
        if (call_job_id(call, json_str(json_get(call->body, "job_id"), call->arena), &own->op.job))
            sched_send(call->worker->sched, &own->op);
    } else if (!all && str_is(call->params[1], "Deployment") && !call_sees(call, id)) {
        call_error(call, ERR_NOT_FOUND, "id", "There is no deployment \"" STR_FMT "\".",
                   STR_ARG(id));
    } else {
        rpc_start(own);
    }
}

/* When the node is not connected, or never had the job, the last lines stored with the result are
 * better than nothing. */
static void logs_done(struct rpc *rpc)
{
    struct rpc_call *own = container_of(rpc, struct rpc_call, rpc);
    const struct store_record *record = &own->op.record;
    const struct json *result;

    if (!rpc->err || !record->result.len ||
        json_parse(record->result, own->call->arena, &result, NULL) ||
        json_type(json_get(result, "tail")) != JSON_STR) {
        rpc_answer(own->call, rpc, ERR_BAD_REQUEST);
        return;
    }
    buf_free(&rpc->answer);
    struct str tail = json_str(json_get(result, "tail"), own->call->arena);
    struct jsonw w = call_begin(own->call);
    jsonw_kint(&w, "offset", 0);
    jsonw_kint(&w, "total", (int64_t)tail.len);
    jsonw_kstr(&w, "text", tail);
    jsonw_kbool(&w, "ended", true);
    jsonw_kbool(&w, "tail_only", true);
    call_end(own->call, 200, &w);
}

static void logs_found(struct store_op *op)
{
    struct rpc_call *own = container_of(op, struct rpc_call, op);
    struct call *call = own->call;
    struct buf params = {0};
    struct jsonw w = jsonw_to(&params);

    assert(op->err || op->head.id == op->job);
    if (!call_has_job(call, op))
        return;
    const struct snap_node *known =
        snapshot_node(call->worker->sched->snapshot, str_of(op->head.node));
    jsonw_obj(&w);
    jsonw_kstr(&w, "job_id", call->params[0]);
    jsonw_kint(&w, "attempt_id", op->head.attempt);
    jsonw_kint(&w, "offset", own->offset);
    jsonw_kint(&w, "max", own->max);
    jsonw_end_obj(&w);
    own->rpc.params = arena_str(call->arena, buf_view(&params));
    buf_free(&params);
    snprintf(own->rpc.method, sizeof own->rpc.method, "Job/Logs");
    own->rpc.done = logs_done;
    if (known) {
        rpc_send(&own->rpc, known->node);
        return;
    }
    own->rpc.err = ERR_CONFLICT;
    logs_done(&own->rpc);
}

void api_job_logs(struct call *call)
{
    struct rpc_call *own = rpc_call(call);

    own->max = LOG_DEFAULT;
    own->op = call_op(call, STORE_JOB_GET, logs_found);
    if (call_job_id(call, call->params[0], &own->op.job) &&
        call_query_int(call, "offset", 0, INT64_MAX, &own->offset) &&
        call_query_int(call, "max", 1, LOG_MAX, &own->max))
        sched_send(call->worker->sched, &own->op);
}
