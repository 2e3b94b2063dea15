/* The nodes a dispatch asks: members of its pool that may take the job, ranked by the policy; and
 * why the others are not among them. */
#ifndef SCHED_CANDIDATES_H
#define SCHED_CANDIDATES_H

#include "sched/dispatch.h"

unsigned candidates_wants(const struct spec *spec);                       /* of POOL_WANT_* */
const struct snap_pool *candidates_pool(const struct dispatch *dispatch); /* NULL: there is none */
/* Its labels and its place on the type's route are what the job asks for. */
bool candidates_fits(const struct dispatch *dispatch, const struct snap_node *member);
/* Some member fits: it makes sense to wait for one. */
bool candidates_some_fit(const struct dispatch *dispatch);

/* Where it was before: a node that failed is avoided, one that refused only in that attempt, and
 * only for a while if the job may wait. */
void candidates_read_history(struct dispatch *dispatch);
void candidates_refused(struct dispatch *dispatch, struct str node); /* or could not be reached */
/* Fills the ranked list, and counts in `whys` who is not in it. */
void candidates_choose(struct dispatch *dispatch);
/* The same with this one alone, which then is not chosen again. */
void candidates_prefer(struct dispatch *dispatch, const struct snap_node *member);

/* No member has the labels: to wait or to try again would not help. */
bool candidates_nobody_fits(const struct dispatch *dispatch);
/* All who could do it, and have not had it before, are kept shut by their breakers. */
bool candidates_all_shut(const struct dispatch *dispatch);

#endif
