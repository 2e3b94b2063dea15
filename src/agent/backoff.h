/* Pauses that grow: whoever failed waits longer each time, and never in step with others. */
#ifndef AGENT_BACKOFF_H
#define AGENT_BACKOFF_H

#include "base/clock.h"

/* min_ms doubled `times` times, at most max_ms. */
int64_t backoff_bound_ms(int64_t times, int64_t min_ms, int64_t max_ms);
/* After so many failures in a row (at least 1): between half of the bound and the bound. */
int64_t backoff_ms(int64_t failures, int64_t min_ms, int64_t max_ms, struct rnd *rnd);

#endif
