/* Questions to other instances travel as those to their nodes do (peers.h), and are answered on the
 * keeper's loop there. */
#include "server/explain_peers.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sched/spec.h"
#include "server/peers.h"

enum {
    RECORDS_MAX = 64,
    SILENT_MS = 3000, /* who called the store no later than this is asked */
    WAIT_MS = 1,      /* beyond what a word takes there and back: it is answered from memory */
};

struct explain_question {
    struct rpc rpc;
    struct explain_round *round;
};

static int by_time(const void *a, const void *b)
{
    const struct explain *left = *(const struct explain *const *)a,
                         *right = *(const struct explain *const *)b;

    return (left->at_ms > right->at_ms) - (left->at_ms < right->at_ms);
}

struct str explain_decisions(const struct buf *found, const struct explain_style *style,
                             struct arena *arena)
{
    const struct explain *all[RECORDS_MAX], *explain;
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);
    size_t count = 0;

    for (size_t at = 0; (explain = explain_next(found, &at));)
        all[count++ % RECORDS_MAX] = explain; /* of too many the newest */
    count = count < RECORDS_MAX ? count : RECORDS_MAX;
    qsort(all, count, sizeof *all, by_time);
    jsonw_arr(&w);
    for (size_t i = 0; i < count; i++)
        explain_write(&w, all[i], style);
    jsonw_end_arr(&w);
    struct str text = arena_str(arena, buf_view(&buf));
    buf_free(&buf);
    return text;
}

static void answered(struct rpc *rpc)
{
    struct explain_question *question = container_of(rpc, struct explain_question, rpc);
    struct explain_round *round = question->round;

    assert(round->open > 0);
    if (!rpc->err && rpc->answer.len)
        round->texts[round->count++] = arena_str(round->arena, buf_view(&rpc->answer));
    buf_free(&rpc->answer);
    if (--round->open == 0)
        round->done(round);
}

static void listed(struct store_op *op)
{
    struct explain_round *round = container_of(op, struct explain_round, op);
    struct server *server = round->worker->server;
    size_t count = op->err ? 0 : op->u.peers.count;

    round->texts = arena_array(round->arena, struct str, count + 1);
    round->questions = arena_array(round->arena, struct explain_question, count + 1);
    round->open = 1; /* ours, until all were asked */
    for (size_t i = 0; i < count; i++) {
        uint32_t name = op->u.peers.items[i].name;
        struct explain_question *question = &round->questions[round->asked];

        if (name == store_name(server->store) || op->u.peers.items[i].silent_ms > SILENT_MS)
            continue;
        round->asked++;
        round->open++;
        question->round = round;
        question->rpc = (struct rpc){.from = round->worker,
                                     .timeout_ms = WAIT_MS,
                                     .params = round->params,
                                     .done = answered};
        snprintf(question->rpc.method, sizeof question->rpc.method, "Instance/Explain");
        peers_ask(server, &question->rpc, STR(EXPLAIN_PEERS_NODE), name);
    }
    if (--round->open == 0)
        round->done(round);
}

void explain_round_start(struct explain_round *round)
{
    char id[JOB_ID_TEXT + 1];

    assert(round->done && round->job && !round->count);
    if (!peers_shared(round->worker->server)) {
        round->done(round);
        return;
    }
    job_id_text(round->job, id);
    round->params =
        arena_fmt(round->arena, "%s %zu\n" STR_FMT, id, round->limit, STR_ARG(round->spec));
    round->op = (struct store_op){.verb = STORE_PEERS,
                                  .reply_to = &round->worker->loop.inbox,
                                  .done = listed,
                                  .not_after_ms = sched_not_after(round->worker->sched),
                                  .arena = round->arena};
    sched_send(round->worker->sched, &round->op);
}

/* --- the other side --- */

struct told {
    struct explain_ask ask;
    struct rpc *rpc;
    struct arena arena;
    struct str spec;
    int64_t limit;
};

static void told(struct explain_ask *ask)
{
    struct told *own = container_of(ask, struct told, ask);
    struct spec spec;
    bool known = own->spec.len && !spec_stored(own->spec, &own->arena, &spec, NULL);

    struct explain_style style = {.snapshot = ask->from->snapshot,
                                  .sched = ask->from->sched,
                                  .spec = known ? &spec : NULL,
                                  .limit = (size_t)own->limit};

    if (ask->found.len)
        buf_str(&own->rpc->answer, explain_decisions(&ask->found, &style, &own->arena));
    buf_free(&ask->found);
    rpc_over(own->rpc, ERR_OK);
    arena_free(&own->arena);
    free(own);
}

/* "JOB LIMIT\nSPEC" */
void explain_peers_answer(struct rpc *rpc)
{
    struct told *own = mem_new(struct told);
    struct str rest = rpc->params;
    struct str head = str_cut(&rest, '\n');

    own->rpc = rpc;
    own->spec = rest;
    own->ask.from = rpc->from->sched;
    own->ask.done = told;
    if (job_id_parse(str_cut(&head, ' '), &own->ask.job) && str_int(head, &own->limit) &&
        own->limit > 0 && rpc->from->sched->snapshot) {
        explain_find(&own->ask);
        return;
    }
    free(own);
    rpc_over(rpc, ERR_BAD_REQUEST);
}
