/* The nodes a dispatch asks: members of its pool that may take the job, ranked by the policy; and
 * why the others were left out. */
#ifndef SCHED_CANDIDATES_H
#define SCHED_CANDIDATES_H

#include "sched/dispatch.h"

unsigned candidates_wants(const struct spec *spec);                       /* of POOL_WANT_* */
const struct snap_pool *candidates_pool(const struct dispatch *dispatch); /* NULL: there is none */
/* Its labels, its place on the type's route and what it has are what the job asks for. */
bool candidates_fits(const struct dispatch *dispatch, const struct snap_node *member);
/* This node can do such work, and has a slot for it as far as is known. */
bool candidates_has_room(const struct sched_loop *loop, const struct spec *spec,
                         const struct snap_node *member);
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

/* Why this member is left out before it is asked; WHY_COUNT: it is not. Changes nothing; *ret is
 * what was seen in any case. */
enum dispatch_why candidates_judge(const struct dispatch *dispatch, const struct snap_node *member,
                                   const struct policy_rules *rules, bool again_ok,
                                   struct policy_candidate *ret_candidate);
/* May it go to a node where an earlier attempt ended? */
bool candidates_again_ok(const struct dispatch *dispatch);
struct policy_rules candidates_rules(const struct dispatch *dispatch);
struct dispatch_look candidates_look(const struct policy_candidate *candidate,
                                     enum dispatch_why why, int64_t now_ms);
/* The preferred one was tried without success: why, is kept. */
void candidates_preferred_failed(struct dispatch *dispatch);
/* Before another choice: what was counted is counted anew. */
void candidates_start_over(struct dispatch *dispatch);

/* What a node that was left out for its resources has too little of. */
struct dispatch_lack candidates_lack(const struct dispatch *dispatch, const struct node *node,
                                     enum dispatch_why why);
/* Enough is left of what the job needs, as far as is known; slots apart. */
bool candidates_has_left(const struct spec *spec, const struct snap_node *member);

/* No member has the labels, or as much as it needs: to wait or to try again would not help. */
bool candidates_nobody_fits(const struct dispatch *dispatch);
/* All who could do it, and have not had it before, are kept shut by their breakers. */
bool candidates_all_shut(const struct dispatch *dispatch);
/* So is the whole pool, apart from those that are gone: whoever is shut there is its last. */
bool candidates_pool_shut(const struct dispatch *dispatch);
/* All who could do it, and have not had it before, offer no slot at all. */
bool candidates_all_without_slots(const struct dispatch *dispatch);

#endif
