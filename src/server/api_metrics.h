/* The last minutes in figures, for charts: what was counted, at every even second. Each loop has
 * its own, made from the same counters at the same moments, so it does not matter which one is
 * asked. */
#ifndef SERVER_API_METRICS_H
#define SERVER_API_METRICS_H

#include "base/json.h"
#include "base/metrics.h"

enum {
    STATS_EVERY_MS = 2000,
    STATS_POINTS = 150,
    STATS_REASONS_MAX = 12,
};

/* The counters at one moment. */
struct stats_reading {
    int64_t placed, failed; /* since the start */
    int64_t queue, slots_used, slots_max;
    struct metric_cell refused[STATS_REASONS_MAX]; /* since the start, by reason */
    size_t refused_count;
    int64_t times[METRIC_BUCKETS]; /* of dispatches */
};

/* The difference between two readings. */
struct stats_point {
    int64_t at_ms, span_ms;
    int64_t placed, failed, queue, slots_used, slots_max;
    int64_t p50_us, p99_us; /* -1: nothing was dispatched */
    struct metric_cell refused[STATS_REASONS_MAX];
    size_t refused_count;
};

struct stats {
    struct stats_reading last;
    int64_t last_ms; /* 0: nothing was read yet */
    struct stats_point points[STATS_POINTS];
    size_t count; /* points made so far; the ring holds the last STATS_POINTS */
};

/* Takes a reading when one is due; `queue` is how many jobs wait. */
void stats_tick(struct stats *stats, int64_t now_ms, int64_t queue);
void stats_add(struct stats *stats, int64_t now_ms, const struct stats_reading *now);
/* {"every_ms":…,"points":[…]}: those after since_ms, oldest first. */
void stats_write(const struct stats *stats, int64_t since_ms, struct jsonw *w);

#endif
