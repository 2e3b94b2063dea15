/* A package is installed once for each version, and a failure is tried again, later each time. */
#include "agent/packages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "copies_bench.h"
#include "unit.h"

#define PACKED(id, version)                                                                        \
    "{\"id\":\"" id "\",\"type\":\"daemon\",\"version\":1,\"spec\":{\"command\":\"serve\","        \
    "\"package_name\":\"@acme/web\",\"package_version\":\"" version "\"}}"

static int setup(void **state)
{
    struct bench *bench = calloc(1, sizeof *bench);

    bench_make(bench);
    bench->config.install_command =
        bench_json(bench, STR("[\"fetch\",\"{name}@{version}\",\"--to={dir}\"]"));
    bench_open(bench);
    *state = bench;
    return 0;
}

static int teardown(void **state)
{
    struct bench *bench = *state;

    bench_close(bench);
    bench_remove(bench);
    free(bench);
    return 0;
}

static struct fake_run *install(int number)
{
    int count = 0;

    for (int i = 0; i < fake_run_count; i++)
        if (strncmp(fake_runs[i].key, "p.", 2) == 0 && count++ == number)
            return &fake_runs[i];
    return NULL;
}

static void test_once(void **state)
{
    struct bench *bench = *state;
    char words[300];

    bench_round(bench, "[" PACKED("a", "1.0") "," PACKED("b", "1.0") "," PACKED("c", "2.0") "]");
    bench_tick(bench, 100);
    assert_non_null(install(0));
    assert_non_null(install(1)); /* another version */
    assert_null(install(2));
    assert_null(bench_run("a"));
    snprintf(words, sizeof words, "fetch|@acme/web@1.0|--to=" STR_FMT,
             STR_ARG(install(0)->spec.cwd));
    assert_string_equal(install(0)->argv, words);
    assert_non_null(strstr(install(0)->env, "BERTH_PACKAGE_NAME=@acme/web"));
    fake_run_end(install(0)->key, "EXITED", 0, -1, "");
    bench_tick(bench, 100);
    assert_int_equal(bench_alive("a") + bench_alive("b"), 2);
    assert_int_equal(bench_alive("c"), 0);
    assert_non_null(strstr(bench_run("a")->env, "BERTH_PACKAGE_DIR="));
    bench_close(bench); /* and not again in the next life */
    bench_open(bench);
    bench_round(bench, "[" PACKED("a", "1.0") "," PACKED("d", "1.0") "," PACKED("c", "2.0") "]");
    bench_tick(bench, 100);
    assert_int_equal(bench_alive("d"), 1);
    assert_null(install(2)); /* the second is still under way, and was found again */
    fake_run_end(install(1)->key, "EXITED", 0, -1, "");
    bench_tick(bench, 100);
    assert_int_equal(bench_alive("c"), 1);
}

static void test_failure(void **state)
{
    struct bench *bench = *state;
    struct buf text = {0};
    int64_t offset, total;
    bool ended;

    bench_round(bench, "[" PACKED("a", "1.0") "]");
    for (int i = 0; i < 3; i++) {
        assert_non_null(install(i));
        fake_run_end(install(i)->key, "EXITED", 7, -1, "no such package\n");
        bench_tick(bench, 499 << i);
        assert_null(install(i + 1));
        assert_null(bench_run("a"));
        copies_log(bench->copies, STR("a"), false, 0, 10, &text, &offset, &total, &ended);
        assert_true(ended && str_is(buf_view(&text), install(i)->key)); /* why it does not run */
        buf_clear(&text);
        bench_tick(bench, 502 << i);
    }
    fake_run_end(install(3)->key, "EXITED", 0, -1, "");
    bench_tick(bench, 100);
    assert_int_equal(bench_alive("a"), 1);
    buf_free(&text);
}

static void test_no_command_no_package(void **state)
{
    struct bench *bench = *state;

    bench->config.install_command = NULL;
    bench_round(bench, "[" PACKED("a", "1.0") "]");
    assert_null(install(0));
    assert_int_equal(bench_alive("a"), 1);
    assert_null(strstr(bench_run("a")->env, "BERTH_PACKAGE_DIR="));
}

#define PACKAGE_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {PACKAGE_TEST(test_once), PACKAGE_TEST(test_failure),
                                       PACKAGE_TEST(test_no_command_no_package)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
