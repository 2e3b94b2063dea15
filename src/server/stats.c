/* Points from readings of the counters, in a ring. */
#include "server/stats.h"

#include <assert.h>
#include <string.h>

static struct stats_reading read_counters(int64_t queue)
{
    struct metric_cell cells[METRIC_LABELS_MAX + 1];
    struct stats_reading now = {.failed = metric_value(METRIC_JOBS, "FAILED"),
                                .queue = queue,
                                .slots_used = metric_value(METRIC_LEASES, NULL),
                                .slots_max = metric_value(METRIC_SLOTS, "max")};
    size_t count = metric_cells(METRIC_DISPATCH, cells);

    for (size_t i = 0; i < count; i++)
        if (strcmp(cells[i].label, "PLACED") == 0)
            now.placed = cells[i].value;
        else if (strcmp(cells[i].label, "WAITS") != 0 && cells[i].value > 0 &&
                 now.refused_count < STATS_REASONS_MAX)
            now.refused[now.refused_count++] = cells[i];
    metric_buckets(METRIC_DISPATCH_SECONDS, now.times);
    return now;
}

static int64_t earlier(const struct stats_reading *reading, const char *label)
{
    for (size_t i = 0; i < reading->refused_count; i++)
        if (strcmp(reading->refused[i].label, label) == 0)
            return reading->refused[i].value;
    return 0;
}

void stats_add(struct stats *stats, int64_t now_ms, const struct stats_reading *now)
{
    const struct stats_reading *last = &stats->last;
    struct stats_point *point = &stats->points[stats->count % STATS_POINTS];

    assert(now_ms > stats->last_ms && now->refused_count <= STATS_REASONS_MAX);
    if (stats->last_ms) {
        *point = (struct stats_point){.at_ms = now_ms,
                                      .span_ms = now_ms - stats->last_ms,
                                      .placed = now->placed - last->placed,
                                      .failed = now->failed - last->failed,
                                      .queue = now->queue,
                                      .slots_used = now->slots_used,
                                      .slots_max = now->slots_max,
                                      .p50_us = metric_quantile_us(last->times, now->times, 500),
                                      .p99_us = metric_quantile_us(last->times, now->times, 990),
                                      .refused_count = now->refused_count};
        for (size_t i = 0; i < now->refused_count; i++)
            point->refused[i] = (struct metric_cell){.label = now->refused[i].label,
                                                     .value = now->refused[i].value -
                                                              earlier(last, now->refused[i].label)};
        assert(point->placed >= 0 && point->failed >= 0);
        stats->count++;
    }
    stats->last = *now;
    stats->last_ms = now_ms;
}

void stats_tick(struct stats *stats, int64_t now_ms, int64_t queue)
{
    int64_t due_ms = now_ms - now_ms % STATS_EVERY_MS;

    if (due_ms < stats->last_ms)
        *stats = (struct stats){0}; /* the clock was set back: times must not run backwards */
    if (due_ms == stats->last_ms)
        return;
    struct stats_reading now = read_counters(queue);
    stats_add(stats, due_ms, &now);
}

static void ms_write(struct jsonw *w, const char *name, int64_t us)
{
    if (us < 0)
        jsonw_knull(w, name);
    else
        jsonw_kdouble(w, name, (double)us / 1000);
}

static double per_s(int64_t count, const struct stats_point *point)
{
    return (double)(count * 1000) / (double)point->span_ms;
}

static void point_write(struct jsonw *w, const struct stats_point *point)
{
    jsonw_obj(w);
    jsonw_kint(w, "at_ms", point->at_ms);
    jsonw_kdouble(w, "dispatched_per_s", per_s(point->placed, point));
    ms_write(w, "p50_ms", point->p50_us);
    ms_write(w, "p99_ms", point->p99_us);
    jsonw_kint(w, "slots_used", point->slots_used);
    jsonw_kint(w, "slots_max", point->slots_max);
    jsonw_kint(w, "queue", point->queue);
    jsonw_kint(w, "failed", point->failed);
    jsonw_key(w, "refused_per_s");
    jsonw_obj(w);
    for (size_t i = 0; i < point->refused_count; i++)
        jsonw_kdouble(w, point->refused[i].label, per_s(point->refused[i].value, point));
    jsonw_end_obj(w);
    jsonw_end_obj(w);
}

void stats_write(const struct stats *stats, int64_t since_ms, struct jsonw *w)
{
    size_t first = stats->count > STATS_POINTS ? stats->count - STATS_POINTS : 0;

    jsonw_obj(w);
    jsonw_kint(w, "every_ms", STATS_EVERY_MS);
    jsonw_key(w, "points");
    jsonw_arr(w);
    for (size_t i = first; i < stats->count; i++)
        if (stats->points[i % STATS_POINTS].at_ms > since_ms)
            point_write(w, &stats->points[i % STATS_POINTS]);
    jsonw_end_arr(w);
    jsonw_end_obj(w);
}
