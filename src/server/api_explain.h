/* An explanation as JSON, with a sentence for each node. */
#ifndef SERVER_API_EXPLAIN_H
#define SERVER_API_EXPLAIN_H

#include "base/json.h"
#include "sched/sched.h"
#include "sched/snapshot.h"
#include "server/rpc.h"

/* Members `takes_work` and `why_not`: does this node take work of ordinary priority now, and if
 * not, the first reason. */
void explain_write_node(struct jsonw *w, const struct snap_node *member, const struct sched *sched,
                        int64_t now_ms);

/* What other instances on the same store have decided about a job: each keeps its own decisions, so
 * whoever is asked asks the others. One that does not answer in time is left out. */

/* On the keeper of an instance that is asked: answers through rpc_over(). */
void explain_peers_answer(struct rpc *rpc);

#endif
