/* The nodes a dispatch asks: members of its pool that may take the job, ranked by the policy; and
 * why the others were left out. */
#ifndef SCHED_CANDIDATES_H
#define SCHED_CANDIDATES_H

#include "sched/dispatch.h"

unsigned candidates_wants(const struct spec *spec);                       /* of POOL_WANT_* */
const struct snap_pool *candidates_pool(const struct dispatch *dispatch); /* NULL: there is none */
/* Do its labels, its position on the type's route and its resources match what the job asks for? */
bool candidates_fits(const struct sched_loop *loop, const struct spec *spec,
                     const struct snap_node *member);
/* Can this node do such work, and does it have a slot for it, as far as is known? */
bool candidates_has_room(const struct sched_loop *loop, const struct spec *spec,
                         const struct snap_node *member);
/* Does any member fit? If so, waiting for one makes sense. */
bool candidates_some_fit(const struct dispatch *dispatch);

/* Reads which nodes had the job before: one that failed is avoided; one that refused is avoided
 * only in that attempt, and only for a while if the job may wait. */
void candidates_read_history(struct dispatch *dispatch);
void candidates_refused(struct dispatch *dispatch, struct str node); /* or could not be reached */
/* Fills the ranked list from the pool of the job, and counts in `whys` why its other members are
 * not in it. pool == NULL: nobody is. */
void candidates_choose(struct dispatch *dispatch, const struct snap_pool *pool);
/* The same with this node alone, which is then not chosen again. */
void candidates_prefer(struct dispatch *dispatch, const struct snap_node *member);

/* Why this member is left out before it is asked; WHY_COUNT: it is not left out. Changes nothing;
 * *ret is what was seen in any case. */
enum dispatch_why candidates_judge(const struct dispatch *dispatch, const struct snap_node *member,
                                   const struct policy_rules *rules, bool again_ok,
                                   struct policy_candidate *ret_candidate);
/* May it go to a node where an earlier attempt ended? */
bool candidates_again_ok(const struct dispatch *dispatch);
struct policy_rules candidates_rules(const struct dispatch *dispatch);
/* `why`: an enum dispatch_why or explain_why. */
void candidates_look(const struct policy_candidate *candidate, unsigned why, int64_t now_ms,
                     struct dispatch_look *ret_look);
/* The preferred node was tried without success: keeps the reason. */
void candidates_preferred_failed(struct dispatch *dispatch);
/* Before another choice: resets the counts. */
void candidates_start_over(struct dispatch *dispatch);

/* What is short on a node that was left out for its resources. */
struct dispatch_lack candidates_lack(const struct dispatch *dispatch, const struct node *node,
                                     enum dispatch_why why);
/* Is enough left of what the job needs, as far as is known? Ignores slots. */
bool candidates_has_left(const struct spec *spec, const struct snap_node *member);

/* No member has the labels, or as much as the job needs: waiting or trying again would not help. */
bool candidates_nobody_fits(const struct dispatch *dispatch);
/* All members that could take the job, and have not had it before, were left out for this reason:
 * no other reason that may pass by itself was counted. */
bool candidates_all_for(const struct dispatch *dispatch, enum dispatch_why why);
/* Breakers keep the whole pool shut, apart from members that are gone. */
bool candidates_pool_shut(const struct dispatch *dispatch);

#endif
