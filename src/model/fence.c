/* The rules of fencing. */
#include "model/fence.h"

#include <assert.h>

enum { GRACE_MAX_MS = 10000 };

enum fence_state fence_state_by_name(struct str name)
{
    static const struct {
        const char *name;
        enum fence_state state;
    } rows[] = {{"Assigned", FENCE_ASSIGNED}, {"Running", FENCE_RUNNING}};

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (str_is(name, rows[i].name))
            return rows[i].state;
    return FENCE_NONE;
}

bool fence_active(const struct fence *fence, int64_t now_ms)
{
    return fence->state != FENCE_NONE && fence->expire_ms >= now_ms;
}

bool fence_renew(struct fence *fence, struct str holder, int64_t token, int64_t now_ms,
                 int64_t ttl_ms)
{
    assert(ttl_ms > 0);
    if (!fence_active(fence, now_ms) || !str_eq(fence->holder, holder) || fence->token != token)
        return false;
    fence->expire_ms = now_ms + ttl_ms;
    return true;
}

bool fence_reassign(struct fence *fence, struct str holder, int64_t now_ms, int64_t ttl_ms)
{
    assert(ttl_ms > 0);
    if (fence->expire_ms >= now_ms)
        return false;
    *fence = (struct fence){.state = FENCE_ASSIGNED,
                            .holder = holder,
                            .token = fence->token + 1,
                            .expire_ms = now_ms + ttl_ms};
    return true;
}

int64_t fence_stop_ms(int64_t sent_mono_ms, int64_t lease_ms)
{
    assert(lease_ms > 0);
    return sent_mono_ms + lease_ms / 3 * 2;
}

int64_t fence_grace_ms(int64_t lease_ms)
{
    int64_t grace = (lease_ms - lease_ms / 3 * 2) / 3 * 2;

    assert(grace >= 0);
    return grace < GRACE_MAX_MS ? grace : GRACE_MAX_MS;
}
