/* Fencing (vectors ext_lease): an assignment is good while its lease lasts, and only for
 * the holder and the token it was given to. Each new assignment has a new token, so that whoever
 * held it before, and slept, is told apart from whoever holds it now. Pure. */
#ifndef MODEL_FENCE_H
#define MODEL_FENCE_H

#include "base/str.h"

enum fence_state { FENCE_NONE, FENCE_ASSIGNED, FENCE_RUNNING };

enum fence_state fence_state_by_name(struct str name); /* "Assigned", "Running"; else FENCE_NONE */

struct fence {
    enum fence_state state;
    struct str holder;
    int64_t token;     /* what a deployment calls its generation */
    int64_t expire_ms; /* the last moment at which it is still good */
};

bool fence_active(const struct fence *fence, int64_t now_ms);
/* Its holder lives. False: it ran out, or it is somebody else's; nothing changes. */
bool fence_renew(struct fence *fence, struct str holder, int64_t token, int64_t now_ms,
                 int64_t ttl_ms);
/* Somebody takes over. False: the lease still lasts. */
bool fence_reassign(struct fence *fence, struct str holder, int64_t now_ms, int64_t ttl_ms);

/* When a holder must have begun to stop, by its own monotonic clock: two thirds of the lease behind
 * the moment at which it *sent* the last renewal that was granted. */
int64_t fence_stop_ms(int64_t sent_mono_ms, int64_t lease_ms);
/* How long it then has for a gentle stop before the lease ends: at most 10 s, and a third of what
 * is left stays for the kill. */
int64_t fence_grace_ms(int64_t lease_ms);

#endif
