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
/* The spec of a kept version goes into the row of a copy. */
bool deploys_set_spec(struct work *work, struct str id, const struct deploys_spec *spec,
                      int64_t version);
/* The version to go back to when the next one fails, by the row as it was `before` that came: what
 * is well now, or was. 0: none is known. */
bool deploys_find_good(struct work *work, const struct deploys_row *before, int64_t *ret_good);
/* Is an update under way, or stopped half-way? */
bool deploys_is_rolling(const struct deploys_row *row);
/* The first copy has a new version: the others follow, a few at a time. */
bool deploys_roll(struct work *work, const struct deploys_row *before, int64_t good);
/* They follow at once, because nothing runs or it is the same again. If it is to run and was never
 * well, it is watched like any update. */
bool deploys_follow_first(struct work *work, int64_t good);
/* Something became known of the copies of op->id, whose row is locked: the next ones follow, all
 * go back, or it is over. *ret_changed: nodes should look. */
bool deploys_roll_on(struct work *work, bool *ret_changed);

#endif
