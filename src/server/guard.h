/* Authentication and quotas before a request's handler runs, and the audit entry after an
 * operator's request was answered. */
#ifndef SERVER_GUARD_H
#define SERVER_GUARD_H

#include "server/audit.h"
#include "server/route.h"

/* Authenticates the caller: fills call->token. ERR_UNAUTHORIZED, ERR_FORBIDDEN, or ERR_RATE_LIMIT
 * when its address has sent too many wrong tokens. */
enum err guard_identify(struct call *call, struct problem *why);
/* The head of a request that submits jobs: its first job is counted against the token's rate before
 * any of the body is read, so that a caller over the rate cannot make us read. A body that never
 * arrives or is refused counts all the same. ERR_QUOTA. */
enum err guard_submit(struct call *call, struct problem *why);
/* The caller's rate meter; NULL: it has none. Valid for this turn of the loop: tokens may change
 * after it. */
quota_meter *guard_meter(const struct call *call);
/* Counts another job of this call; the first one is counted already. ERR_QUOTA. */
enum err guard_count_job(struct call *call, quota_meter *meter, struct problem *why);
/* Is the caller still allowed? Tokens may have changed while the body arrived or while the call
 * waited for its result. ERR_UNAUTHORIZED. */
enum err guard_still(const struct call *call, struct problem *why);
/* Identifies the caller, never 0: by its token, so that another address does not make it another
 * caller; without a token by its address. */
uint64_t guard_caller(const struct call *call);
/* Is it an operator's route that changes something? */
bool guard_audited(const struct route *route);
/* Runs the handler: at once, or where the audit is required, after the request has been written to
 * the audit. */
void guard_handle(struct call *call);
/* Audits the call, once, with the answer that is about to be sent: if the route is audited, or if
 * the call had a wrong token. */
void guard_audit(struct call *call, int status);
/* "nodes.drain" for POST /v1/nodes/{id}/drain; "tokens.create", "tokens.delete" where the path has
 * no verb. */
void guard_action(const struct route *route, char *to, size_t size);

/* Refused calls on their way to the audit. Anybody can cause any number of them, so each caller (a
 * token, or an address without a valid one) has a budget: that many get an entry each, further ones
 * are only counted, and one entry says how many there were. Each loop has its own table, of fixed
 * size. */

enum {
    REFUSALS_WINDOW_MS = 10000, /* after that every budget starts over */
    REFUSALS_CALLERS_MAX = 64,  /* in a window; further callers share the last row */
};

struct refusals; /* zeroed memory is empty */

struct refusals *refusals_new(void);
/* Audits the call, or only counts it. `caller` is a hash that identifies the caller, never 0; at
 * most `max` calls of each caller get an entry in a window. */
void refusals_note(struct worker *worker, uint64_t caller, int64_t max,
                   const struct audit_entry *entry);
void refusals_tick(struct worker *worker);  /* writes the counts when the window has ended */
void refusals_flush(struct worker *worker); /* writes the counts now: the loop has ended */

#endif
