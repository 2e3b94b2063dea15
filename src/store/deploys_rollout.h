/* Updates of several copies, and the versions they go back to. */
#ifndef STORE_DEPLOYS_ROLLOUT_H
#define STORE_DEPLOYS_ROLLOUT_H

#include "store/deploys_row.h"

/* The spec of op->id as it stands in the table is kept under its version. */
bool deploys_keep_spec(struct work *work);
bool deploys_forget_specs(struct work *work);
/* A version of op->id that was kept, and its `enabled` not said; *ret_found. */
bool deploys_kept_spec(struct work *work, int64_t version, struct deploys_spec *ret_spec,
                       bool *ret_found);
/* The first copy has a new version, `good` is that of before: the others follow, a few at a time.
 */
bool deploys_roll(struct work *work, int64_t good);
/* They follow at once: nothing runs. */
bool deploys_follow_first(struct work *work);
/* Something became known of the copies of op->id, whose row is locked: the next ones follow, all
 * go back, or it is over. *ret_changed: nodes should look. */
bool deploys_roll_on(struct work *work, bool *ret_changed);

#endif
