/* Calls to nodes. Under way they are kept by the hub of the loop that has the socket. */
#include "server/rpc.h"

#include <assert.h>

#include "server/hub_private.h"
#include "server/peers.h"

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
    uint32_t holder = rpc->handed ? 0 : atomic_load(&node->holder);

    rpc->link = atomic_load(&node->link);
    assert(rpc->from && rpc->done);
    if (!rpc->link && holder) {
        peers_ask(rpc->from->server, rpc, node->id, holder);
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
        return; /* too late, or somebody else's */
    idmap_del(&hub->rpcs, rpc->id);
    if (json_is_null(result))
        buf_str(&rpc->answer, json_str(json_get(body, "detail"), arena));
    else
        buf_str(&rpc->answer, json_raw(result));
    rpc_over(rpc, json_is_null(result) ? ERR_BAD_REQUEST : ERR_OK);
}

/* Ends those of one socket (incarnation > 0), or those whose time is over. */
static void end_some(struct hub *hub, uint64_t incarnation)
{
    int64_t now_ms = hub->worker->loop.mono_ms;
    struct msg *first = NULL;
    struct rpc *rpc;

    /* Found first, ended then: the map must not change while it is walked. */
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

void rpc_tick(struct hub *hub)
{
    end_some(hub, 0);
}

void rpc_gone(struct hub *hub, uint64_t incarnation)
{
    end_some(hub, incarnation);
}

void rpc_forget(struct hub *hub)
{
    idmap_free(&hub->rpcs);
}
