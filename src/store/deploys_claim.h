/* What nodes do. */
#ifndef STORE_DEPLOYS_CLAIM_H
#define STORE_DEPLOYS_CLAIM_H

#include "store/deploys_row.h"

/* A renewal as it nearly always is; *ret_done is false when it takes more than that. */
bool deploys_renew_good(struct work *work, bool *ret_done);
/* Clears a piece of what nodes left that are gone for good. */
bool deploys_forget(struct work *work, bool *ret_more);

#endif
