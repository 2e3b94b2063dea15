/* Questions to other instances travel as those to their nodes do (peers.h), and are answered on the
 * keeper's loop there. */
#include "server/peers_round.h"

#include <assert.h>
#include <stdio.h>

#include "server/peers.h"

enum {
    SILENT_MS = 3000, /* who called the store no later than this is asked */
    WAIT_MS = 1,      /* beyond what a word takes there and back: it is answered from memory */
};

struct peers_question {
    struct rpc rpc;
    struct peers_round *round;
};

static void answered(struct rpc *rpc)
{
    struct peers_question *question = container_of(rpc, struct peers_question, rpc);
    struct peers_round *round = question->round;

    assert(round->open > 0);
    round->answered += !rpc->err;
    if (!rpc->err && rpc->answer.len)
        round->texts[round->count++] = arena_str(round->arena, buf_view(&rpc->answer));
    buf_free(&rpc->answer);
    if (--round->open == 0)
        round->done(round);
}

static void listed(struct store_op *op)
{
    struct peers_round *round = container_of(op, struct peers_round, op);
    struct server *server = round->worker->server;
    size_t count = op->err ? 0 : op->u.peers.count;

    round->texts = arena_array(round->arena, struct str, count + 1);
    round->questions = arena_array(round->arena, struct peers_question, count + 1);
    round->open = 1; /* ours, until all were asked */
    for (size_t i = 0; i < count; i++) {
        uint32_t name = op->u.peers.items[i].name;
        struct peers_question *question = &round->questions[round->asked];

        if (name == store_name(server->store) || op->u.peers.items[i].silent_ms > SILENT_MS)
            continue;
        round->asked++;
        round->open++;
        question->round = round;
        question->rpc = (struct rpc){.from = round->worker,
                                     .timeout_ms = WAIT_MS,
                                     .params = round->params,
                                     .done = answered};
        snprintf(question->rpc.method, sizeof question->rpc.method, "%s", round->method);
        peers_ask(server, &question->rpc, STR(PEERS_ITSELF), name);
    }
    if (--round->open == 0)
        round->done(round);
}

void peers_round_start(struct peers_round *round)
{
    assert(round->done && round->method && !round->asked);
    if (!peers_shared(round->worker->server)) {
        round->done(round);
        return;
    }
    round->op = (struct store_op){.verb = STORE_PEERS,
                                  .reply_to = &round->worker->loop.inbox,
                                  .done = listed,
                                  .not_after_ms = sched_not_after(round->worker->sched),
                                  .arena = round->arena};
    sched_send(round->worker->sched, &round->op);
}
