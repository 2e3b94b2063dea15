/* What other instances on the same store have decided about a job: each keeps its own decisions, so
 * whoever is asked asks the others. One that does not answer in time is left out. */
#ifndef SERVER_EXPLAIN_PEERS_H
#define SERVER_EXPLAIN_PEERS_H

#include "server/explain_write.h"
#include "server/peers_round.h"

/* `spec`: JSON; len 0: nobody has it, and then only decisions of the namespace `listed` are told
 * (at
 * == NULL: any). The texts it answers with are JSON arrays of decisions. */
void explain_round_start(struct peers_round *round, uint64_t job, struct str spec,
                         struct str listed, size_t limit);

/* On the keeper of an instance that is asked: answers through rpc_over(). */
void explain_peers_answer(struct rpc *rpc);

/* Decisions as a JSON array, oldest first. */
struct str explain_decisions(const struct buf *found, const struct explain_style *style,
                             struct arena *arena);

#endif
