/* Until the store has answered, what it says of the node's connection is taken for older than ours.
 */
#include "server/links.h"

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"
#include "server/hub_private.h"

enum { TELL_AGAIN_MS = 500 };

static void told(struct store_op *op)
{
    struct linking *linking = container_of(op, struct linking, op);
    bool answered = !op->err || op->err == ERR_STALE || op->err == ERR_CONFLICT;

    assert(op->verb == STORE_LINK && linking->node);
    /* Unanswered it may be true or not: the next look at the store will show. But a socket that
     * stands is told again until it is known, or what was before would count. */
    if (answered || op->u.link.kind != STORE_LINK_SOCKET || !linking->worker->serves)
        atomic_store(&linking->node->link_order, answered ? op->order : 0);
    else
        linking->worker->hub->untold = true;
    if (!op->err)
        atomic_store(&linking->node->holder, 0);
    linking->done(linking);
}

void links_tell(struct worker *worker, struct linking *linking, struct node *node,
                enum store_link_kind kind, uint64_t incarnation)
{
    assert(peers_shared(worker->server) && linking->done);
    linking->worker = worker;
    linking->node = node;
    linking->op = (struct store_op){
        .verb = STORE_LINK, .reply_to = &worker->loop.inbox, .done = told, .node = node->id};
    linking->op.u.link.kind = kind;
    linking->op.u.link.incarnation = incarnation;
    atomic_store(&node->link_order, UINT64_MAX);
    sched_send(worker->sched, &linking->op);
}

static void noted(struct linking *linking)
{
    free(linking);
}

void links_note(struct worker *worker, struct node *node, enum store_link_kind kind,
                uint64_t incarnation)
{
    struct linking *linking;

    if (!peers_shared(worker->server))
        return;
    linking = mem_new(struct linking);
    linking->done = noted;
    links_tell(worker, linking, node, kind, incarnation);
}

void links_tick(struct hub *hub)
{
    struct socket *socket;

    if (!hub->untold || hub->worker->loop.mono_ms < hub->next_tell_ms)
        return;
    hub->untold = false;
    hub->next_tell_ms = hub->worker->loop.mono_ms + TELL_AGAIN_MS;
    for (size_t i = 0; (socket = idmap_next(&hub->sockets, &i));)
        if (socket->node && atomic_load(&socket->node->link_order) == UINT64_MAX &&
            hub_link_incarnation(atomic_load(&socket->node->link)) == socket->incarnation)
            links_note(hub->worker, socket->node, STORE_LINK_SOCKET, socket->incarnation);
}

/* On the keeper. Our socket of a node that has connected elsewhere is of the past, and jobs in our
 * box go where it asks now. */
void peers_linked(struct sched_loop *from, struct node *node, const struct store_live *said,
                  bool away)
{
    struct server *server = container_of(from->sched, struct server, sched);
    struct worker *keeper = server_keeper(server);
    uint64_t link = atomic_load(&node->link);

    assert(!away || (said->holder && said->holder != store_name(server->store)));
    if (away && link)
        hub_close_link(server, link);
    if (away)
        hub_move_box(server, node, said->holder);
    else if (link)
        links_note(keeper, node, STORE_LINK_SOCKET, hub_link_incarnation(link));
    else if (said->kind == STORE_LINK_SOCKET && said->holder == store_name(server->store))
        links_note(keeper, node, STORE_LINK_LEFT, said->incarnation);
}
