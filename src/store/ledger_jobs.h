/* The list of a job's ended attempts: a JSON array, newest last, at most STORE_HISTORY_MAX bytes.
 * People see it, and it tells a duplicate message from a contradicting one. */
#ifndef STORE_LEDGER_JOBS_H
#define STORE_LEDGER_JOBS_H

#include "store/store.h"

/* `head` is the job as it was during the attempt. The oldest entries are dropped when it gets too
 * long. */
void attempts_add(struct buf *attempts, const struct store_head *head, enum job_event outcome,
                  struct str reason, int64_t now_ms);

#endif
