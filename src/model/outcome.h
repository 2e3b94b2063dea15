/* The order in which a dispatch comes to its outcome: which candidate next, and what
 * the answer is when none is left. A cursor the dispatcher advances; pure. */
#ifndef MODEL_OUTCOME_H
#define MODEL_OUTCOME_H

#include "base/err.h"
#include "base/str.h"

enum outcome_phase { OUTCOME_PREFERRED, OUTCOME_WALK, OUTCOME_PLACED, OUTCOME_REFUSED };

struct outcome {
    enum outcome_phase phase;
    enum err err; /* when REFUSED */
    bool strict;
    bool preferred_given;
};

/* What the dispatcher knows before it asks anybody. */
struct outcome_start {
    bool store_up;
    bool preferred_given;
    bool preferred_in_pool;
    bool strict;
    size_t pool_count; /* members that fit the request, the preferred one included */
};

/* First phase: REFUSED (err set), PREFERRED (try that one alone) or WALK. */
void outcome_begin(struct outcome *outcome, const struct outcome_start *start);
/* The preferred node did not reserve, or its send failed: fall back or, if strict, refuse.
 * `others` = members left without it; none = ALL_CANDIDATES_FULL_OR_FAILED. */
void outcome_preferred_failed(struct outcome *outcome, size_t others);
void outcome_placed(struct outcome *outcome);    /* reserved and sent */
void outcome_exhausted(struct outcome *outcome); /* every candidate was tried */
void outcome_store_failed(struct outcome *outcome);

#endif
