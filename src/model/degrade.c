/* The rule of degradation. What it means for a read or a write is the caller's. */
#include "model/degrade.h"

#include <assert.h>
#include <limits.h>

static const char *const names[] = {
    [DEGRADE_NORMAL] = "NORMAL",
    [DEGRADE_L2_ONLY] = "L2_ONLY",
    [DEGRADE_LOCAL_ONLY] = "LOCAL_ONLY",
};

void degrade_error(struct degrade *degrade, int64_t latency_ms)
{
    if (degrade->errors < INT_MAX)
        degrade->errors++;
    if (degrade->errors >= DEGRADE_LOCAL_ERRORS)
        degrade->mode = DEGRADE_LOCAL_ONLY;
    else if (degrade->mode == DEGRADE_NORMAL &&
             (latency_ms > DEGRADE_SLOW_MS || degrade->errors >= DEGRADE_L2_ERRORS))
        degrade->mode = DEGRADE_L2_ONLY;
}

void degrade_success(struct degrade *degrade)
{
    *degrade = (struct degrade){.mode = DEGRADE_NORMAL};
}

bool degrade_mutates(const struct degrade *degrade)
{
    return degrade->mode == DEGRADE_NORMAL;
}

const char *degrade_mode_name(enum degrade_mode mode)
{
    assert(mode <= DEGRADE_LOCAL_ONLY);
    return names[mode];
}
