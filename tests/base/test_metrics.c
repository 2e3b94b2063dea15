/* Counts of many threads add up, and the text is valid for Prometheus. */
#include "../unit.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/metrics.h"

static struct buf text;

static bool has(const char *line)
{
    return strstr(text.at, line) != NULL;
}

static bool shows_all(const char *label, const void *user)
{
    return true;
}

static bool shows_one(const char *label, const void *user)
{
    return strncmp(label, user, strlen(user)) == 0;
}

static void render(void)
{
    buf_clear(&text);
    metrics_render(&text);
    metrics_render_part(&text, METRIC_NAMESPACE_JOBS, shows_all, NULL);
    metrics_render_version(&text, "1.2.3");
    buf_char(&text, '\0');
}

static int free_text(void **state)
{
    buf_free(&text);
    return 0;
}

/* Must run first, before anything is counted. */
static void test_zeros_from_the_start(void **state)
{
    render();
    assert_true(has("\nberth_retries_total 0\n"));
    assert_true(has("\nberth_queue_depth 0\n"));
    assert_true(has("\nberth_pool_consistency_delay_seconds_bucket{le=\"+Inf\"} 0\n"));
    assert_true(has("\nberth_pool_consistency_delay_seconds_count 0\n"));
    assert_true(has("# TYPE berth_dispatch_seconds histogram\n"));
    assert_false(has("berth_dispatch_seconds_count"));
    assert_true(has("\n# TYPE berth_reserve_total counter\n"));
    assert_false(has("berth_reserve_total{"));
    assert_true(has("\nberth_build_info{version=\"1.2.3\"} 1\n"));
}

/* Label texts are copied and compared by content, and only a part is shown. */
static void test_a_part_is_shown(void **state)
{
    char label[] = "maps,DONE";

    metric_add_text(METRIC_NAMESPACE_JOBS, label, 2);
    label[0] = 'x';
    metric_add_text(METRIC_NAMESPACE_JOBS, label, 5);
    label[0] = 'm';
    metric_add_text(METRIC_NAMESPACE_JOBS, label, 1);
    buf_clear(&text);
    metrics_render_part(&text, METRIC_NAMESPACE_JOBS, shows_one, "maps,");
    buf_char(&text, '\0');
    assert_true(has("\nberth_namespace_jobs_total{namespace=\"maps\",state=\"DONE\"} 3\n"));
    assert_false(has("xaps"));
    buf_clear(&text);
    metrics_render(&text);
    buf_char(&text, '\0');
    assert_false(has("berth_namespace_jobs_total"));
    for (int i = 0; i < 2 * METRIC_LABELS_MAX; i++) {
        char many[16];

        snprintf(many, sizeof many, "n%d,DONE", i);
        metric_add_text(METRIC_NAMESPACE_JOBS, many, 1);
    }
    assert_int_equal(metric_value(METRIC_NAMESPACE_JOBS, NULL), 8 + 2 * METRIC_LABELS_MAX);
    assert_int_equal(metric_value(METRIC_NAMESPACE_JOBS, "other"), METRIC_LABELS_MAX + 2);
}

static void test_labels(void **state)
{
    char copy[] = "hit"; /* the same text at another address */

    metric_add_label(METRIC_RESERVE, "hit", 2);
    metric_add_label(METRIC_RESERVE, copy, 3);
    metric_add_label(METRIC_RESERVE, "full", 1);
    metric_add_label(METRIC_CACHE, "l1,hit", 4);
    metric_add_label(METRIC_CACHE, "l2,miss", 5);
    metric_add_label(METRIC_INVARIANT, "a\"b\\c\nd", 1);
    assert_int_equal(metric_value(METRIC_RESERVE, "hit"), 5);
    assert_int_equal(metric_value(METRIC_RESERVE, NULL), 6);
    assert_int_equal(metric_value(METRIC_RESERVE, "never"), 0);
    render();
    assert_true(has("\nberth_reserve_total{result=\"full\"} 1\n"
                    "berth_reserve_total{result=\"hit\"} 5\n"));
    assert_true(has("\nberth_cache_requests_total{layer=\"l1\",result=\"hit\"} 4\n"));
    assert_true(has("\nberth_cache_requests_total{layer=\"l2\",result=\"miss\"} 5\n"));
    assert_true(has("\nberth_invariant_violations_total{rule=\"a\\\"b\\\\c\\nd\"} 1\n"));
}

static void test_gauges(void **state)
{
    metric_set(METRIC_QUEUE_DEPTH, 17);
    metric_set(METRIC_QUEUE_DEPTH, 12);
    metric_add(METRIC_CONNECTIONS, 3);
    metric_add(METRIC_CONNECTIONS, -1);
    metric_set_label(METRIC_NODES, "ready", 9);
    metric_set_label(METRIC_NODES, "ready", 8);
    assert_int_equal(metric_value(METRIC_QUEUE_DEPTH, NULL), 12);
    assert_int_equal(metric_value(METRIC_CONNECTIONS, NULL), 2);
    assert_int_equal(metric_value(METRIC_NODES, "ready"), 8);
    render();
    assert_true(has("\nberth_queue_depth 12\n"));
    assert_true(has("\nberth_nodes{health=\"ready\"} 8\n"));
}

static void *move_gauge(void *arg)
{
    metrics_thread();
    metric_add(METRIC_STORE_MODE, 5);
    return NULL;
}

/* A gauge is one number, whichever thread adds to it or sets it. */
static void test_gauge_of_several_threads(void **state)
{
    pthread_t thread;

    pthread_create(&thread, NULL, move_gauge, NULL);
    pthread_join(thread, NULL);
    assert_int_equal(metric_value(METRIC_STORE_MODE, NULL), 5);
    metric_set(METRIC_STORE_MODE, 1);
    assert_int_equal(metric_value(METRIC_STORE_MODE, NULL), 1);
    metric_set(METRIC_STORE_MODE, 0);
}

static void test_histogram(void **state)
{
    static const int64_t us[] = {-5, 0, 50, 51, 1000, 1001, 10000000, 10000001, 3600000000};

    for (size_t i = 0; i < COUNT_OF(us); i++)
        metric_observe_us(METRIC_POOL_DELAY, us[i]);
    assert_int_equal(metric_value(METRIC_POOL_DELAY, NULL), COUNT_OF(us));
    render();
    assert_true(has("\nberth_pool_consistency_delay_seconds_bucket{le=\"5e-05\"} 3\n"));
    assert_true(has("\nberth_pool_consistency_delay_seconds_bucket{le=\"0.0001\"} 4\n"));
    assert_true(has("\nberth_pool_consistency_delay_seconds_bucket{le=\"0.001\"} 5\n"));
    assert_true(has("\nberth_pool_consistency_delay_seconds_bucket{le=\"0.0025\"} 6\n"));
    assert_true(has("\nberth_pool_consistency_delay_seconds_bucket{le=\"10\"} 7\n"));
    assert_true(has("\nberth_pool_consistency_delay_seconds_bucket{le=\"+Inf\"} 9\n"));
    assert_true(has("\nberth_pool_consistency_delay_seconds_sum 3620.002103\n"));
    assert_true(has("\nberth_pool_consistency_delay_seconds_count 9\n"));
}

static void test_histogram_by_label(void **state)
{
    metric_declare(METRIC_DISPATCH_SECONDS, "PLACED");
    metric_declare(METRIC_RESERVE, "RESV_EXISTS");
    render();
    assert_true(has("\nberth_dispatch_seconds_bucket{outcome=\"PLACED\",le=\"+Inf\"} 0\n"));
    assert_true(has("\nberth_reserve_total{result=\"RESV_EXISTS\"} 0\n"));
    metric_observe_label_us(METRIC_DISPATCH_SECONDS, "PLACED", 90);
    metric_observe_label_us(METRIC_DISPATCH_SECONDS, "PLACED", 900);
    metric_observe_label_us(METRIC_DISPATCH_SECONDS, "REFUSED", 20);
    render();
    assert_true(has("\nberth_dispatch_seconds_bucket{outcome=\"PLACED\",le=\"0.0001\"} 1\n"));
    assert_true(has("\nberth_dispatch_seconds_bucket{outcome=\"PLACED\",le=\"+Inf\"} 2\n"));
    assert_true(has("\nberth_dispatch_seconds_sum{outcome=\"PLACED\"} 0.000990\n"));
    assert_true(has("\nberth_dispatch_seconds_count{outcome=\"REFUSED\"} 1\n"));
    assert_int_equal(metric_value(METRIC_DISPATCH_SECONDS, NULL), 3);
    assert_int_equal(metric_value(METRIC_DISPATCH_SECONDS, "PLACED"), 2);
}

/* Kept in milliseconds, shown in seconds. */
static void test_gauge_of_time(void **state)
{
    metric_set(METRIC_QUEUE_OLDEST, 12345);
    render();
    assert_true(has("\n# TYPE berth_queue_oldest_seconds gauge\n"));
    assert_true(has("\nberth_queue_oldest_seconds 12.345\n"));
    metric_set(METRIC_QUEUE_OLDEST, 0);
}

/* The number of labels is bounded; no count is lost. */
static void test_too_many_labels_become_other(void **state)
{
    static char names[100][16];

    for (int i = 0; i < 100; i++) {
        snprintf(names[i], sizeof names[i], "state-%02d", i);
        metric_add_label(METRIC_JOBS, names[i], 1);
    }
    assert_int_equal(metric_value(METRIC_JOBS, NULL), 100);
    assert_int_equal(metric_value(METRIC_JOBS, "state-31"), 1);
    assert_int_equal(metric_value(METRIC_JOBS, "state-32"), 0);
    assert_int_equal(metric_value(METRIC_JOBS, "other"), 68);
}

enum { THREADS = 6, ROUNDS = 60000 };

static pthread_barrier_t ready; /* makes them count at the same time */

static void *count(void *arg)
{
    static const char *const labels[] = {"hit", "miss", "error"};

    if (*(int *)arg % 2) /* the others share the slow slot */
        metrics_thread();
    pthread_barrier_wait(&ready);
    for (int i = 0; i < ROUNDS; i++) {
        metric_add(METRIC_HEARTBEATS, 1);
        metric_add_label(METRIC_STORE_CALLS, labels[i % 3], 1);
        metric_observe_label_us(METRIC_DISPATCH_SECONDS, labels[i % 3], i);
        metric_add(METRIC_VERSION_LAG, i % 2 ? 1 : -1);
    }
    metrics_thread();
    metrics_thread();
    return NULL;
}

static void test_threads_add_up(void **state)
{
    pthread_t threads[THREADS];
    int numbers[THREADS];
    int64_t last = 0;

    pthread_barrier_init(&ready, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        pthread_create(&threads[i], NULL, count, &numbers[i]);
    }
    for (int i = 0; i < 50; i++) { /* a scrape meanwhile never goes back */
        int64_t now = metric_value(METRIC_HEARTBEATS, NULL);

        assert_true(now >= last);
        last = now;
        render();
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(metric_value(METRIC_HEARTBEATS, NULL), THREADS * ROUNDS);
    assert_int_equal(metric_value(METRIC_STORE_CALLS, NULL), THREADS * ROUNDS);
    assert_int_equal(metric_value(METRIC_STORE_CALLS, "hit"), THREADS * ((ROUNDS + 2) / 3));
    assert_int_equal(metric_value(METRIC_DISPATCH_SECONDS, NULL), THREADS * ROUNDS + 3);
    assert_int_equal(metric_value(METRIC_VERSION_LAG, NULL), 0);
    pthread_barrier_destroy(&ready);
}

static bool is_name(struct str name)
{
    for (size_t i = 0; i < name.len; i++)
        if (!strchr("abcdefghijklmnopqrstuvwxyz_", name.at[i]))
            return false;
    return str_starts(name, STR("berth_"));
}

/* Every line of the text format: comments for each metric, then samples with its name. */
static void test_the_text_is_well_formed(void **state)
{
    struct str rest;
    struct str family = STR_NONE;
    int helps = 0, types = 0;

    render();
    rest = str_of(text.at);
    assert_int_equal(rest.at[rest.len - 1], '\n');
    while (rest.len > 0) {
        struct str line = str_cut(&rest, '\n');

        if (str_starts(line, STR("# HELP "))) {
            line.at += 7, line.len -= 7;
            family = str_cut(&line, ' ');
            assert_true(is_name(family) && line.len > 0);
            helps++;
        } else if (str_starts(line, STR("# TYPE "))) {
            line.at += 7, line.len -= 7;
            assert_true(str_eq(str_cut(&line, ' '), family));
            assert_true(str_is(line, "counter") || str_is(line, "gauge") ||
                        str_is(line, "histogram"));
            types++;
        } else {
            const char *space = memrchr(line.at, ' ', line.len);
            double value;

            assert_true(str_starts(line, family));
            assert_non_null(space);
            assert_int_equal(sscanf(space, "%lf", &value), 1);
            assert_true(strchr("{_ ", line.at[family.len]) != NULL);
        }
    }
    assert_int_equal(helps, METRIC_COUNT + 1);
    assert_int_equal(types, METRIC_COUNT + 1);
}

static void test_quantiles_between_two_readings(void **state)
{
    static const struct {
        int64_t counts[4]; /* up to 50, 100, 150 us; unbounded */
        int share_pm;
        int64_t want_us;
    } table[] = {
        {{0, 0, 0, 0}, 500, -1},           {{100, 0, 0, 0}, 500, 25},  {{0, 100, 0, 0}, 500, 75},
        {{50, 50, 0, 0}, 500, 50},         {{90, 0, 10, 0}, 990, 145}, {{1, 0, 0, 0}, 1000, 50},
        {{0, 0, 0, 7}, 500, 10 * 1000000},
    };
    int64_t before[METRIC_BUCKETS], now[METRIC_BUCKETS];

    for (size_t i = 0; i < COUNT_OF(table); i++) {
        for (int k = 0; k < METRIC_BUCKETS; k++)
            before[k] = now[k] = 1000 + k;
        for (int k = 0; k < 3; k++)
            now[k] += table[i].counts[k];
        now[METRIC_BUCKETS - 1] += table[i].counts[3];
        assert_int_equal(metric_quantile_us(before, now, table[i].share_pm), table[i].want_us);
    }
}

static void test_cells_and_buckets_are_read(void **state)
{
    struct metric_cell cells[METRIC_LABELS_MAX + 1];
    int64_t before[METRIC_BUCKETS], now[METRIC_BUCKETS];

    metric_add_label(METRIC_PUSH, "zebra", 3);
    metric_add_label(METRIC_PUSH, "ant", 2);
    size_t count = metric_cells(METRIC_PUSH, cells);
    assert_true(count >= 2);
    for (size_t i = 1; i < count; i++)
        assert_true(strcmp(cells[i - 1].label, cells[i].label) < 0);
    metric_buckets(METRIC_DISPATCH_SECONDS, before);
    metric_observe_label_us(METRIC_DISPATCH_SECONDS, "PLACED", 60);
    metric_observe_label_us(METRIC_DISPATCH_SECONDS, "QUEUE_FULL", 70);
    metric_buckets(METRIC_DISPATCH_SECONDS, now);
    assert_int_equal(now[1] - before[1], 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_zeros_from_the_start),
        cmocka_unit_test(test_labels),
        cmocka_unit_test(test_a_part_is_shown),
        cmocka_unit_test(test_gauges),
        cmocka_unit_test(test_gauge_of_several_threads),
        cmocka_unit_test(test_histogram),
        cmocka_unit_test(test_histogram_by_label),
        cmocka_unit_test(test_gauge_of_time),
        cmocka_unit_test(test_too_many_labels_become_other),
        cmocka_unit_test(test_threads_add_up),
        cmocka_unit_test(test_the_text_is_well_formed),
        cmocka_unit_test(test_quantiles_between_two_readings),
        cmocka_unit_test(test_cells_and_buckets_are_read),
    };

    return cmocka_run_group_tests(tests, NULL, free_text);
}
