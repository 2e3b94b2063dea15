/* The nodes a dispatch asks: members of its pool that may take the job, ranked by the policy; and
 * why the others are not among them. */
#ifndef SCHED_CANDIDATES_H
#define SCHED_CANDIDATES_H

#include "sched/dispatch.h"

unsigned candidates_wants(const struct spec *spec);                       /* of POOL_WANT_* */
const struct snap_pool *candidates_pool(const struct dispatch *dispatch); /* NULL: there is none */
struct policy_candidate candidates_look(const struct dispatch *dispatch,
                                        const struct snap_node *member);

/* Where it was before: a node that failed is avoided, one that refused only in that attempt. */
void candidates_read_history(struct dispatch *dispatch);
void candidates_add_tried(struct dispatch *dispatch, struct str node);
/* Fills the ranked list, and counts in `whys` who is not in it. */
void candidates_choose(struct dispatch *dispatch);

/* No member has the labels: to wait or to try again would not help. */
bool candidates_nobody_fits(const struct dispatch *dispatch);
/* All who could do it, and have not had it before, are kept shut by their breakers. */
bool candidates_all_shut(const struct dispatch *dispatch);

#endif
