/* The points of the charts. */
#include "../unit.h"

#include <stdlib.h>
#include <string.h>

#include "server/api_metrics.h"

static struct stats_reading reading(int64_t placed, int64_t fast, int64_t slow)
{
    struct stats_reading now = {.placed = placed, .queue = 3, .slots_used = 4, .slots_max = 9};

    now.times[4] = fast;  /* up to 0.25 ms */
    now.times[15] = slow; /* up to 50 ms */
    return now;
}

static const struct json *written(const struct stats *stats, int64_t since_ms, struct arena *arena)
{
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);
    const struct json *json = NULL;

    stats_write(stats, since_ms, &w);
    assert_int_equal(json_parse(arena_str(arena, buf_view(&buf)), arena, &json, NULL), ERR_OK);
    buf_free(&buf);
    return json_get(json, "points");
}

static const struct json *json_at(const struct json *list, size_t at)
{
    const struct json *value = json_first(list);

    assert_true(at < list->count);
    while (at-- > 0)
        value = json_next(value);
    return value;
}

static double figure(const struct json *point, const char *name)
{
    double value = -1;

    assert_true(json_double(json_get(point, name), &value));
    return value;
}

static void test_a_point_is_what_came_between(void **state)
{
    struct stats *stats = calloc(1, sizeof *stats);
    struct stats_reading first = reading(100, 50, 0), second = reading(300, 148, 2);
    struct arena arena = {0};

    second.refused[0] = (struct metric_cell){"QUEUE_FULL", 6};
    second.refused_count = 1;
    stats_add(stats, 2000, &first);
    /* Nothing to compare the first reading with. */
    assert_int_equal(written(stats, 0, &arena)->count, 0);
    stats_add(stats, 4000, &second);
    const struct json *points = written(stats, 0, &arena);
    assert_int_equal(points->count, 1);
    const struct json *point = json_at(points, 0);
    assert_true(figure(point, "dispatched_per_s") == 100);
    assert_true(figure(point, "p50_ms") <= 0.25);
    assert_true(figure(point, "p99_ms") > 25 && figure(point, "p99_ms") <= 50);
    assert_true(figure(point, "queue") == 3 && figure(point, "slots_used") == 4);
    assert_true(figure(json_get(point, "refused_per_s"), "QUEUE_FULL") == 3);
    assert_int_equal(written(stats, 4000, &arena)->count, 0); /* no later point */
    arena_free(&arena);
    free(stats);
}

static void test_nothing_came(void **state)
{
    struct stats *stats = calloc(1, sizeof *stats);
    struct stats_reading same = reading(100, 50, 0);
    struct arena arena = {0};

    stats_add(stats, 2000, &same);
    stats_add(stats, 4000, &same);
    const struct json *point = json_at(written(stats, 0, &arena), 0);
    assert_true(json_is_null(json_get(point, "p50_ms")));
    assert_true(figure(point, "dispatched_per_s") == 0);
    arena_free(&arena);
    free(stats);
}

static void test_the_oldest_go(void **state)
{
    struct stats *stats = calloc(1, sizeof *stats);
    struct arena arena = {0};

    for (int i = 1; i <= STATS_POINTS + 8; i++) {
        struct stats_reading now = reading(i, i, 0);

        stats_add(stats, i * 2000, &now);
    }
    const struct json *points = written(stats, 0, &arena);
    assert_int_equal(points->count, STATS_POINTS);
    assert_true(figure(json_at(points, 0), "at_ms") == 9 * 2000);
    assert_true(figure(json_at(points, STATS_POINTS - 1), "at_ms") == (STATS_POINTS + 8) * 2000);
    arena_free(&arena);
    free(stats);
}

static void test_ticks_are_even_and_survive_the_clock(void **state)
{
    struct stats *stats = calloc(1, sizeof *stats);
    struct arena arena = {0};

    stats_tick(stats, 100100, 0);
    stats_tick(stats, 101900, 0); /* not due yet */
    assert_int_equal(stats->count, 0);
    stats_tick(stats, 102050, 0);
    assert_int_equal(stats->count, 1);
    assert_int_equal(stats->points[0].at_ms, 102000);
    stats_tick(stats, 50000, 0); /* clock set back: starts anew */
    assert_int_equal(stats->count, 0);
    stats_tick(stats, 52000, 0);
    assert_int_equal(written(stats, 0, &arena)->count, 1);
    arena_free(&arena);
    free(stats);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_point_is_what_came_between),
        cmocka_unit_test(test_nothing_came),
        cmocka_unit_test(test_the_oldest_go),
        cmocka_unit_test(test_ticks_are_even_and_survive_the_clock),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
