/* An explanation as JSON, with a sentence for each node. */
#ifndef SERVER_EXPLAIN_WRITE_H
#define SERVER_EXPLAIN_WRITE_H

#include "sched/explain.h"

/* What is known beside the record. */
struct explain_style {
    const struct snapshot *snapshot; /* of now: the ids of the nodes; NULL: none yet */
    const struct sched *sched;
    const struct spec *spec;   /* NULL: what it was about stands in the record */
    const struct problem *why; /* NULL: likewise the refusal */
    struct str node_id;        /* who would get it; at == NULL: look it up */
    const struct store_breaker *breakers;
    size_t breaker_count;
    size_t limit; /* of nodes */
};
void explain_write(struct jsonw *w, const struct explain *explain,
                   const struct explain_style *style);

/* Members `takes_work` and `why_not`: does this node take work of ordinary priority now, and if
 * not, the first reason. */
void explain_write_node(struct jsonw *w, const struct snap_node *member, const struct sched *sched,
                        int64_t now_ms);

#endif
