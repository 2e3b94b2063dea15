/* What is between a request and its handler, and what is noted when an operator was answered.
 */
#ifndef SERVER_GUARD_H
#define SERVER_GUARD_H

#include "server/audit.h"
#include "server/route.h"

/* Who calls: fills call->token. ERR_UNAUTHORIZED, ERR_FORBIDDEN, or ERR_RATE_LIMIT when its address
 * has sent too many wrong tokens. */
enum err guard_identify(struct call *call, struct problem *why);
/* The head of a request that submits: its first job is counted against the token's rate before
 * anything of its body is read, so that who is over the rate cannot make us read. A body that never
 * comes, or is refused, has used it up. ERR_QUOTA. */
enum err guard_submit(struct call *call, struct problem *why);
/* What measures the rate of the caller; NULL: nothing does. Good for this turn of the loop: the
 * tokens may change after it. */
quota_meter *guard_meter(const struct call *call);
/* One more job of this call; the first one is counted already. ERR_QUOTA. */
enum err guard_count_job(struct call *call, quota_meter *meter, struct problem *why);
/* May they still? Tokens may have changed while the body came, or while they waited for what they
 * are to be told. ERR_UNAUTHORIZED. */
enum err guard_still(const struct call *call, struct problem *why);
/* Tells callers apart, never 0: by the token, so that nobody is another by coming from elsewhere;
 * by the address without one. */
uint64_t guard_caller(const struct call *call);
/* Is it something an operator does, and changes something? */
bool guard_audited(const struct route *route);
/* The handler: at once, or where the audit is required once it has been written that somebody
 * asked.
 */
void guard_handle(struct call *call);
/* To the audit, once, with the answer that is about to leave: if it is audited, or if a wrong token
 * came with it. */
void guard_audit(struct call *call, int status);
/* "nodes.drain" for POST /v1/nodes/{id}/drain; "tokens.create", "tokens.delete" where the path has
 * no verb. */
void guard_action(const struct route *route, char *to, size_t size);

/* Refused calls on their way to the audit. Anybody can be refused as often as he likes, so each
 * caller (a token, or an address without a good one) has a budget: so many are noted one by one,
 * then it is only counted, and one entry tells how many more there were. Each loop has its own
 * table, of fixed size. */

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
