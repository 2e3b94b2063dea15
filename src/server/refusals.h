/* Refused calls on their way to the audit. Anybody can be refused as often as he likes, so each
 * caller (a token, or an address without a good one) has a budget: so many are noted one by one,
 * then it is only counted, and one entry tells how many more there were. Each loop has its own
 * table, of fixed size. */
#ifndef SERVER_REFUSALS_H
#define SERVER_REFUSALS_H

#include "server/audit.h"

enum {
    REFUSALS_WINDOW_MS = 10000, /* then every budget is whole again */
    REFUSALS_CALLERS_MAX = 64,  /* in a window; the others share the last place */
};

struct refusals; /* zeroed memory is empty */

struct refusals *refusals_new(void);
/* To the audit, or to the count. `caller` is a hash that tells callers apart, never 0; at
 * most `max` of each are noted in a window. */
void refusals_note(struct worker *worker, uint64_t caller, int64_t max,
                   const struct audit_entry *entry);
void refusals_tick(struct worker *worker); /* a window that is over is told */
void refusals_tell(struct worker *worker); /* at once: the loop has ended */

#endif
