/* The thread that measures, and the loop it reports to. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../unit.h"
#include "agent/sampler.h"
#include "agent/usage.h"
#include "machine.h"

struct bench {
    struct machine machine;
    struct loop loop;
    struct sampler *sampler;
    int samples, wanted;
    struct usage last;
    size_t trees; /* of the last sample */
    int first_tree;
    void (*then)(struct bench *bench); /* at each sample */
};

static int set_up(void **state)
{
    struct bench *bench = calloc(1, sizeof *bench);

    machine_init(&bench->machine);
    machine_put_us(&bench->machine);
    assert_int_equal(loop_init(&bench->loop, 0), ERR_OK);
    *state = bench;
    return 0;
}

static int tear_down(void **state)
{
    struct bench *bench = *state;

    loop_done(&bench->loop);
    machine_done(&bench->machine);
    free(bench);
    return 0;
}

static void on_sample(struct sampler *sampler, const struct usage *usage)
{
    struct bench *bench = sampler_user(sampler);

    assert_true(pthread_equal(pthread_self(), bench->loop.thread) || !bench->loop.started);
    bench->last = *usage;
    bench->trees = usage->tree_count;
    bench->first_tree = usage->tree_count ? usage->trees[0].pid : 0;
    if (bench->then)
        bench->then(bench);
    if (++bench->samples == bench->wanted)
        loop_stop(&bench->loop);
}

static void start(struct bench *bench, const char *gpu_command, int64_t interval_ms, int wanted)
{
    struct usage_config config = {
        .host_root = bench->machine.root, .gpu_command = gpu_command, .interval_ms = interval_ms};

    bench->wanted = wanted;
    assert_int_equal(sampler_new(&bench->loop, &config, on_sample, bench, &bench->sampler, NULL),
                     ERR_OK);
}

static void test_samples_come_to_the_loop(void **state)
{
    struct bench *bench = *state;

    start(bench, "", 5, 5);
    loop_run(&bench->loop);
    assert_int_equal(bench->samples, 5);
    assert_int_equal(bench->last.cores_milli, 8000);
    assert_int_equal(bench->last.gpu_permille, USAGE_NONE);
    assert_true(bench->last.at_ms > 1600000000000);
    sampler_free(bench->sampler);
}

static void change_load(struct bench *bench)
{
    machine_put_load(&bench->machine, 8, "7.77");
    if (bench->last.load_1m_centi == 777)
        bench->wanted = bench->samples + 1; /* this one is the last */
}

static void test_what_changes_is_seen(void **state)
{
    struct bench *bench = *state;

    bench->then = change_load;
    start(bench, "", 5, -1);
    loop_run(&bench->loop);
    assert_int_equal(bench->last.load_1m_centi, 777);
    sampler_free(bench->sampler);
}

static void get_busy(struct bench *bench)
{
    machine_put(&bench->machine, "proc/stat",
                "cpu  9000 10 500 90000 400 20 30 40 0 0\ncpu0 1 0 1 9\n");
    if (bench->last.busy_10s_permille != USAGE_NONE)
        bench->wanted = bench->samples + 1;
}

/* All CPUs were busy for as long as it watched; what was before the start it did not see. */
static void test_a_busy_start_is_not_ten_busy_seconds(void **state)
{
    struct bench *bench = *state;
    int64_t watched_ms;

    bench->then = get_busy;
    start(bench, "", 5, -1);
    loop_run(&bench->loop);
    watched_ms = bench->last.busy_ms < 10000 ? bench->last.busy_ms : 10000;
    assert_true(watched_ms > 0);
    assert_int_equal(bench->last.busy_10s_permille, watched_ms / 10);
    sampler_free(bench->sampler);
}

static void name_trees(struct bench *bench)
{
    int pids[] = {4321, 1234};

    sampler_own(bench->sampler, pids, 2);
    if (bench->trees == 2)
        bench->wanted = bench->samples + 1;
}

static void test_named_trees_come_with_the_samples(void **state)
{
    struct bench *bench = *state;

    bench->then = name_trees;
    start(bench, "", 5, -1);
    loop_run(&bench->loop);
    assert_int_equal(bench->first_tree, 4321);
    sampler_free(bench->sampler);
}

static void wait_for_gpu(struct bench *bench)
{
    if (bench->last.gpu_permille != USAGE_NONE)
        bench->wanted = bench->samples + 1;
}

static void test_gpu_comes_with_the_samples(void **state)
{
    struct bench *bench = *state;

    bench->then = wait_for_gpu;
    start(bench, "echo 25", 5, -1);
    loop_run(&bench->loop);
    assert_int_equal(bench->last.gpu_permille, 250);
    sampler_free(bench->sampler);
}

/* Samples must not wait for a command that hangs, nor must the end. */
static void test_a_gpu_that_hangs_holds_nobody_up(void **state)
{
    struct bench *bench = *state;
    int64_t began_ms = bench->loop.mono_ms;

    start(bench, "exec sleep 1000", 5, 3);
    loop_run(&bench->loop);
    sampler_free(bench->sampler);
    loop_refresh(&bench->loop);
    assert_true(bench->loop.mono_ms - began_ms < 1900); /* its deadline is 2 s */
    while (waitpid(-1, NULL, 0) > 0)
        ; /* nothing of it is left running */
}

/* Freed before the loop ever ran, so with its report in the inbox. */
static void test_freed_with_a_report_under_way(void **state)
{
    struct bench *bench = *state;

    for (int i = 0; i < 20; i++) {
        start(bench, "", 1, 0);
        sampler_free(bench->sampler);
    }
    start(bench, "", 1, 1);
    loop_run(&bench->loop); /* reports of freed ones reach nobody */
    assert_int_equal(bench->samples, 1);
    sampler_free(bench->sampler);
}

/* A loop that does nothing for long gets one report, not a heap of old ones. */
static void test_slow_loop(void **state)
{
    struct bench *bench = *state;

    start(bench, "", 1, 1);
    for (int i = 0; i < 200; i++) /* the thread has time for many */
        machine_put_load(&bench->machine, 8, "1.00");
    loop_run(&bench->loop);
    assert_int_equal(bench->samples, 1);
    sampler_free(bench->sampler);
}

/* Samples a minute apart: only the watch on memory can bring the second. */
static void lose_memory(struct bench *bench)
{
    static const int64_t free_kib[] = {900, 50, 20};

    machine_put_memory(&bench->machine, 10000, free_kib[bench->samples], 0, 0);
}

static void test_memory_that_runs_out_is_told_at_once(void **state)
{
    struct bench *bench = *state;

    machine_put_memory(&bench->machine, 10000, 2900, 0, 0);
    bench->then = lose_memory;
    start(bench, "", 60000, 3);
    loop_run(&bench->loop);
    assert_int_equal(bench->last.mem_free_kib, 50); /* it was critical, and then much worse */
    sampler_free(bench->sampler);
}

static void test_nothing_to_measure(void **state)
{
    struct bench *bench = *state;
    struct usage_config config = {.host_root = "/nowhere/at/all", .interval_ms = 1000};
    struct problem why = {0};
    struct sampler *sampler = NULL;

    assert_int_equal(sampler_new(&bench->loop, &config, on_sample, bench, &sampler, &why), ERR_IO);
    assert_string_equal(why.field, "host_root");
    assert_null(sampler);
    sampler_free(NULL);
}

#define ON_A_MACHINE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_A_MACHINE(test_samples_come_to_the_loop),
        ON_A_MACHINE(test_what_changes_is_seen),
        ON_A_MACHINE(test_a_busy_start_is_not_ten_busy_seconds),
        ON_A_MACHINE(test_named_trees_come_with_the_samples),
        ON_A_MACHINE(test_gpu_comes_with_the_samples),
        ON_A_MACHINE(test_a_gpu_that_hangs_holds_nobody_up),
        ON_A_MACHINE(test_freed_with_a_report_under_way),
        ON_A_MACHINE(test_slow_loop),
        ON_A_MACHINE(test_memory_that_runs_out_is_told_at_once),
        ON_A_MACHINE(test_nothing_to_measure),
    };

    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
