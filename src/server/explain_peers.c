/* Questions to other instances travel as those to their nodes do (peers.h), and are answered on the
 * keeper's loop there. */
#include "server/explain_peers.h"

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"
#include "sched/spec.h"

enum { RECORDS_MAX = 64 };

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

void explain_round_start(struct peers_round *round, uint64_t job, struct str spec,
                         struct str listed, size_t limit)
{
    char id[JOB_ID_TEXT + 1];

    assert(job && limit > 0);
    job_id_text(job, id);
    round->method = "Instance/Explain";
    round->params = arena_fmt(round->arena, "%s %zu%s" STR_FMT "\n" STR_FMT, id, limit,
                              spec.len || !listed.at ? "" : " ",
                              STR_ARG(spec.len ? STR("") : listed), STR_ARG(spec));
    peers_round_start(round);
}

/* --- the other side --- */

struct told {
    struct explain_ask ask;
    struct rpc *rpc;
    struct arena arena;
    struct str spec;
    struct str listed;
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

    explain_keep(&ask->found, own->listed);
    if (ask->found.len)
        buf_str(&own->rpc->answer, explain_decisions(&ask->found, &style, &own->arena));
    buf_free(&ask->found);
    rpc_over(own->rpc, ERR_OK);
    arena_free(&own->arena);
    free(own);
}

/* "JOB LIMIT\nSPEC" or "JOB LIMIT NAMESPACE\n" */
void explain_peers_answer(struct rpc *rpc)
{
    struct told *own = mem_new(struct told);
    struct str rest = rpc->params;
    struct str head = str_cut(&rest, '\n');

    own->rpc = rpc;
    own->spec = rest;
    own->ask.from = rpc->from->sched;
    own->ask.done = told;
    if (job_id_parse(str_cut(&head, ' '), &own->ask.job) &&
        str_int(str_cut(&head, ' '), &own->limit) && own->limit > 0 && rpc->from->sched->snapshot) {
        own->listed = head; /* at == NULL when there is none */
        explain_find(&own->ask);
        return;
    }
    free(own);
    rpc_over(rpc, ERR_BAD_REQUEST);
}
