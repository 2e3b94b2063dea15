#include "agent/backoff.h"

#include <assert.h>

int64_t backoff_bound_ms(int64_t times, int64_t min_ms, int64_t max_ms)
{
    int64_t bound_ms = min_ms;

    assert(times >= 0 && min_ms > 0 && max_ms <= INT64_MAX / 2);
    for (; times > 0 && bound_ms < max_ms; times--)
        bound_ms *= 2;
    return bound_ms < max_ms ? bound_ms : max_ms;
}

int64_t backoff_ms(int64_t failures, int64_t min_ms, int64_t max_ms, struct rnd *rnd)
{
    int64_t bound_ms = backoff_bound_ms(failures - 1, min_ms, max_ms);

    assert(failures > 0 && bound_ms < UINT32_MAX);
    return bound_ms - rnd_below(rnd, (uint32_t)(bound_ms / 2 + 1));
}
