/* The thread that measures, and the loop to which it reports. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../unit.h"
#include "agent/sampler.h"
#include "agent/usage.h"
#include "machine.h"

struct fixture {
    struct machine machine;
    struct loop loop;
    struct sampler *sampler;
    int samples, wanted;
    struct usage last;
    size_t trees; /* in the last sample */
    int first_tree;
    void (*then)(struct fixture *fixture); /* called at each sample */
};

static int set_up(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);

    machine_init(&fixture->machine);
    machine_put_us(&fixture->machine);
    assert_int_equal(loop_init(&fixture->loop, 0), ERR_OK);
    *state = fixture;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *fixture = *state;

    loop_done(&fixture->loop);
    machine_done(&fixture->machine);
    free(fixture);
    return 0;
}

static void on_sample(struct sampler *sampler, const struct usage *usage)
{
    struct fixture *fixture = sampler_user(sampler);

    assert_true(pthread_equal(pthread_self(), fixture->loop.thread) || !fixture->loop.started);
    fixture->last = *usage;
    fixture->trees = usage->tree_count;
    fixture->first_tree = usage->tree_count ? usage->trees[0].pid : 0;
    if (fixture->then)
        fixture->then(fixture);
    if (++fixture->samples == fixture->wanted)
        loop_stop(&fixture->loop);
}

static void start(struct fixture *fixture, const char *gpu_command, int64_t interval_ms, int wanted)
{
    struct usage_config config = {
        .host_root = fixture->machine.root, .gpu_command = gpu_command, .interval_ms = interval_ms};

    fixture->wanted = wanted;
    assert_int_equal(
        sampler_new(&fixture->loop, &config, on_sample, fixture, &fixture->sampler, NULL), ERR_OK);
}

static void test_samples_come_to_the_loop(void **state)
{
    struct fixture *fixture = *state;

    start(fixture, "", 5, 5);
    loop_run(&fixture->loop);
    assert_int_equal(fixture->samples, 5);
    assert_int_equal(fixture->last.cores_milli, 8000);
    assert_int_equal(fixture->last.gpu_permille, USAGE_NONE);
    assert_true(fixture->last.at_ms > 1600000000000);
    sampler_free(fixture->sampler);
}

static void change_load(struct fixture *fixture)
{
    machine_put_load(&fixture->machine, 8, "7.77");
    if (fixture->last.load_1m_centi == 777)
        fixture->wanted = fixture->samples + 1; /* stops after this sample */
}

static void test_what_changes_is_seen(void **state)
{
    struct fixture *fixture = *state;

    fixture->then = change_load;
    start(fixture, "", 5, -1);
    loop_run(&fixture->loop);
    assert_int_equal(fixture->last.load_1m_centi, 777);
    sampler_free(fixture->sampler);
}

static void get_busy(struct fixture *fixture)
{
    machine_put(&fixture->machine, "proc/stat",
                "cpu  9000 10 500 90000 400 20 30 40 0 0\ncpu0 1 0 1 9\n");
    if (fixture->last.busy_10s_permille != USAGE_NONE)
        fixture->wanted = fixture->samples + 1;
}

/* All CPUs were busy since it started watching; the time before does not count as busy. */
static void test_a_busy_start_is_not_ten_busy_seconds(void **state)
{
    struct fixture *fixture = *state;
    int64_t watched_ms;

    fixture->then = get_busy;
    start(fixture, "", 5, -1);
    loop_run(&fixture->loop);
    watched_ms = fixture->last.busy_ms < 10000 ? fixture->last.busy_ms : 10000;
    assert_true(watched_ms > 0);
    assert_int_equal(fixture->last.busy_10s_permille, watched_ms / 10);
    sampler_free(fixture->sampler);
}

static void name_trees(struct fixture *fixture)
{
    int pids[] = {4321, 1234};

    sampler_own(fixture->sampler, pids, 2);
    if (fixture->trees == 2)
        fixture->wanted = fixture->samples + 1;
}

static void test_named_trees_come_with_the_samples(void **state)
{
    struct fixture *fixture = *state;

    fixture->then = name_trees;
    start(fixture, "", 5, -1);
    loop_run(&fixture->loop);
    assert_int_equal(fixture->first_tree, 4321);
    sampler_free(fixture->sampler);
}

static void wait_for_gpu(struct fixture *fixture)
{
    if (fixture->last.gpu_permille != USAGE_NONE)
        fixture->wanted = fixture->samples + 1;
}

static void test_gpu_comes_with_the_samples(void **state)
{
    struct fixture *fixture = *state;

    fixture->then = wait_for_gpu;
    start(fixture, "echo 25", 5, -1);
    loop_run(&fixture->loop);
    assert_int_equal(fixture->last.gpu_permille, 250);
    sampler_free(fixture->sampler);
}

/* Neither samples nor the end wait for a GPU command that hangs. */
static void test_a_gpu_that_hangs_holds_nobody_up(void **state)
{
    struct fixture *fixture = *state;
    int64_t began_ms = fixture->loop.mono_ms;

    start(fixture, "exec sleep 1000", 5, 3);
    loop_run(&fixture->loop);
    sampler_free(fixture->sampler);
    loop_refresh(&fixture->loop);
    assert_true(fixture->loop.mono_ms - began_ms < 1900); /* the command's time limit is 2 s */
    while (waitpid(-1, NULL, 0) > 0)
        ; /* no process is left running */
}

/* Freed before the loop ran, while a report is in its inbox. */
static void test_freed_with_a_report_under_way(void **state)
{
    struct fixture *fixture = *state;

    for (int i = 0; i < 20; i++) {
        start(fixture, "", 1, 0);
        sampler_free(fixture->sampler);
    }
    start(fixture, "", 1, 1);
    loop_run(&fixture->loop); /* reports of freed samplers are dropped */
    assert_int_equal(fixture->samples, 1);
    sampler_free(fixture->sampler);
}

/* A loop that is busy for long gets one report, not all the old ones. */
static void test_slow_loop(void **state)
{
    struct fixture *fixture = *state;

    start(fixture, "", 1, 1);
    for (int i = 0; i < 200; i++) /* gives the thread time for many samples */
        machine_put_load(&fixture->machine, 8, "1.00");
    loop_run(&fixture->loop);
    assert_int_equal(fixture->samples, 1);
    sampler_free(fixture->sampler);
}

/* With samples a minute apart, only the watch on memory can cause the second. */
static void lose_memory(struct fixture *fixture)
{
    static const int64_t free_kib[] = {900, 50, 20};

    machine_put_memory(&fixture->machine, 10000, free_kib[fixture->samples], 0, 0);
}

static void test_memory_that_runs_out_is_told_at_once(void **state)
{
    struct fixture *fixture = *state;

    machine_put_memory(&fixture->machine, 10000, 2900, 0, 0);
    fixture->then = lose_memory;
    start(fixture, "", 60000, 3);
    loop_run(&fixture->loop);
    assert_int_equal(fixture->last.mem_free_kib, 50); /* already critical, then much worse */
    sampler_free(fixture->sampler);
}

static void test_nothing_to_measure(void **state)
{
    struct fixture *fixture = *state;
    struct usage_config config = {.host_root = "/nowhere/at/all", .interval_ms = 1000};
    struct problem why = {0};
    struct sampler *sampler = NULL;

    assert_int_equal(sampler_new(&fixture->loop, &config, on_sample, fixture, &sampler, &why),
                     ERR_IO);
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
