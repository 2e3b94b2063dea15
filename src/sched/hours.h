/* Tallies of the last hours, on the keeper's thread. At most HOURS_MAX of them and HOURS_WORKS_MAX
 * rows of work: with very many nodes the oldest go sooner, but a whole day always fits. */
#ifndef SCHED_HOURS_H
#define SCHED_HOURS_H

#include "sched/tally.h"

enum { HOURS_MAX = 7 * 24, HOURS_WORKS_MAX = 25 * TALLY_WORKS_MAX, HOUR_MS = 3600000 };

struct hour {
    int64_t number;      /* hours since 1970 */
    struct tally *tally; /* NULL: nothing happened */
    bool unsaved;
};

struct hours {
    struct hour ring[HOURS_MAX]; /* by number */
    size_t works;                /* in all of them, as of the last time they were counted */
};

void hours_free(struct hours *hours); /* what it holds */
/* The tally of the hour in which `ms` lies; NULL: so old that it is not kept. Marks it unsaved. */
struct tally *hours_at(struct hours *hours, int64_t ms);
/* Everything from `since_ms` to `until_ms`, by whole hours; the caller frees it. */
struct tally *hours_sum(const struct hours *hours, int64_t since_ms, int64_t until_ms);
/* Drops what is too old at `now_ms` or too much. */
void hours_tidy(struct hours *hours, int64_t now_ms);

#endif
