/* How well the store is, from how its calls went, and what may be answered without it. Pure. */
#ifndef MODEL_DEGRADE_H
#define MODEL_DEGRADE_H

#include <stdbool.h>
#include <stdint.h>

enum degrade_mode {
    DEGRADE_NORMAL,
    DEGRADE_L2_ONLY,    /* reads may be answered from the last good view */
    DEGRADE_LOCAL_ONLY, /* reads from local memory only */
};

enum {
    DEGRADE_SLOW_MS = 100, /* one error slower than this is enough */
    DEGRADE_L2_ERRORS = 3, /* in a row */
    DEGRADE_LOCAL_ERRORS = 10,
};

struct degrade { /* zero-initialised is well */
    enum degrade_mode mode;
    int errors; /* in a row */
};

void degrade_error(struct degrade *degrade, int64_t latency_ms);
void degrade_success(struct degrade *degrade);         /* one is enough */
bool degrade_mutates(const struct degrade *degrade);   /* only when all is well */
const char *degrade_mode_name(enum degrade_mode mode); /* "NORMAL" */

#endif
