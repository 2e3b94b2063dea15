/* A package is installed once for each version; a failed install is retried after growing
 * pauses. */
#include "agent/packages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "copies_fixture.h"
#include "unit.h"

#define PACKED(id, version)                                                                        \
    "{\"id\":\"" id "\",\"type\":\"daemon\",\"version\":1,\"spec\":{\"command\":\"serve\","        \
    "\"package_name\":\"@acme/web\",\"package_version\":\"" version "\"}}"

static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);

    fixture_make(fixture);
    fixture->config.install_command =
        fixture_json(fixture, STR("[\"fetch\",\"{name}@{version}\",\"--to={dir}\"]"));
    fixture_open(fixture);
    *state = fixture;
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
    struct fixture *fixture = *state;
    char words[300];

    fixture_round(fixture,
                  "[" PACKED("a", "1.0") "," PACKED("b", "1.0") "," PACKED("c", "2.0") "]");
    fixture_tick(fixture, 100);
    assert_non_null(install(0));
    assert_non_null(install(1)); /* another version */
    assert_null(install(2));
    assert_null(fixture_run("a"));
    snprintf(words, sizeof words, "fetch|@acme/web@1.0|--to=" STR_FMT,
             STR_ARG(install(0)->spec.cwd));
    assert_string_equal(install(0)->argv, words);
    assert_non_null(strstr(install(0)->env, "BERTH_PACKAGE_NAME=@acme/web"));
    fake_run_end(install(0)->key, "EXITED", 0, -1, "");
    fixture_tick(fixture, 100);
    assert_int_equal(fixture_alive("a") + fixture_alive("b"), 2);
    assert_int_equal(fixture_alive("c"), 0);
    assert_non_null(strstr(fixture_run("a")->env, "BERTH_PACKAGE_DIR="));
    fixture_close(fixture); /* not installed again by the next agent */
    fixture_open(fixture);
    fixture_round(fixture,
                  "[" PACKED("a", "1.0") "," PACKED("d", "1.0") "," PACKED("c", "2.0") "]");
    fixture_tick(fixture, 100);
    assert_int_equal(fixture_alive("d"), 1);
    assert_null(install(2)); /* the second install is still running, and was adopted */
    fake_run_end(install(1)->key, "EXITED", 0, -1, "");
    fixture_tick(fixture, 100);
    assert_int_equal(fixture_alive("c"), 1);
}

/* A version that cannot be installed leaves the one before it running, and the reason is
 * reported. */
static void test_an_update_waits_for_its_package(void **state)
{
    struct fixture *fixture = *state;
    struct fake_run *old;
    struct buf text = {0};
    struct jsonw w = jsonw_to(&text);

    fixture_round(fixture, "[" PACKED("a", "1.0") "]");
    fake_run_end(install(0)->key, "EXITED", 0, -1, "");
    fixture_tick(fixture, 100);
    old = fixture_run("a");
    fake_run_begin(old->key);
    fixture_round(fixture, "[{\"id\":\"a\",\"type\":\"deployment\",\"version\":2,\"spec\":"
                           "{\"command\":\"serve\",\"package_name\":\"@acme/web\","
                           "\"package_version\":\"9.9\"}}]");
    fixture_tick(fixture, 100);
    assert_string_equal(old->stop, "");
    fake_run_end(install(1)->key, "EXITED", 1, -1, "looking\nno such version\n");
    fixture_tick(fixture, 100);
    assert_string_equal(old->stop, "");
    copies_write(fixture->copies, 0, 10, &w);
    buf_char(&text, 0);
    assert_non_null(strstr(text.at, "\"state\":\"updating\""));
    assert_non_null(strstr(text.at, "\"version\":1"));
    assert_non_null(strstr(text.at, "@acme/web 9.9 cannot be installed"));
    assert_non_null(strstr(text.at, "no such version"));
    buf_free(&text);
    for (int ms = 0; !install(2); ms += 100) {
        assert_true(ms < 60000);
        fixture_tick(fixture, 100); /* retried */
    }
    assert_string_equal(old->stop, "");
    fake_run_end(install(2)->key, "EXITED", 0, -1, "");
    fixture_tick(fixture, 100);
    assert_string_equal(old->stop, "REPLACED");
}

/* A health check runs in the package directory of its copy. */
static void test_checks_run_in_the_package(void **state)
{
    struct fixture *fixture = *state;
    struct fake_run *check;

    fixture_round(fixture, "[{\"id\":\"a\",\"type\":\"daemon\",\"version\":1,\"spec\":"
                           "{\"command\":\"serve\",\"package_name\":\"@acme/web\","
                           "\"package_version\":\"1.0\",\"health\":{\"command\":\"./check\","
                           "\"interval_ms\":1000}}}]");
    fake_run_end(install(0)->key, "EXITED", 0, -1, "");
    fixture_tick(fixture, 100);
    fake_run_begin(fixture_run("a")->key);
    fixture_tick(fixture, 0);
    fixture_tick(fixture, 1000);
    check = &fake_runs[fake_run_count - 1];
    assert_int_equal(check->key[0], 'h');
    assert_non_null(strstr(check->env, "BERTH_PACKAGE_DIR="));
    assert_true(check->spec.cwd.len > 0 && str_eq(check->spec.cwd, fixture_run("a")->spec.cwd));
}

static void test_failure(void **state)
{
    struct fixture *fixture = *state;
    struct buf text = {0};
    int64_t offset, total;
    bool ended;

    fixture_round(fixture, "[" PACKED("a", "1.0") "]");
    for (int i = 0; i < 3; i++) {
        assert_non_null(install(i));
        fake_run_end(install(i)->key, "EXITED", 7, -1, "no such package\n");
        fixture_tick(fixture, 499 << i);
        assert_null(install(i + 1));
        assert_null(fixture_run("a"));
        copies_log(fixture->copies, STR("a"), false, 0, 10, &text, &offset, &total, &ended);
        /* The log shows why it does not run. */
        assert_true(ended && str_is(buf_view(&text), install(i)->key));
        buf_clear(&text);
        fixture_tick(fixture, 502 << i);
    }
    fake_run_end(install(3)->key, "EXITED", 0, -1, "");
    fixture_tick(fixture, 100);
    assert_int_equal(fixture_alive("a"), 1);
    buf_free(&text);
}

static void test_no_command_no_package(void **state)
{
    struct fixture *fixture = *state;

    fixture->config.install_command = NULL;
    fixture_round(fixture, "[" PACKED("a", "1.0") "]");
    assert_null(install(0));
    assert_int_equal(fixture_alive("a"), 1);
    assert_null(strstr(fixture_run("a")->env, "BERTH_PACKAGE_DIR="));
}

static void later(struct fixture *fixture, int64_t ms)
{
    fixture->loop.mono_ms += ms;
    fixture->loop.wall_ms += ms;
}

/* Waits until the clock of file times has moved on, so that files made later are younger. Twice,
 * because a file may get the new time a moment before the clock shows it. */
static void next_instant(void)
{
    struct timespec before, now;

    for (int i = 0; i < 2; i++) {
        clock_gettime(CLOCK_REALTIME_COARSE, &before);
        do {
            clock_gettime(CLOCK_REALTIME_COARSE, &now);
        } while (now.tv_sec == before.tv_sec && now.tv_nsec == before.tv_nsec);
    }
}

/* Running packages and those used recently are kept; of the others the last few, for a rollback. */
static void test_unused_ones_go(void **state)
{
    enum { VERSIONS = 6, HOUR_MS = 3600 * 1000 };
    static const struct run_handler handler = {.ended = run_forget};
    struct fixture *fixture = *state;
    struct packages *packages =
        packages_new(&fixture->loop, &fixture->config, fixture->dir, fixture->runs);
    const char *dirs[VERSIONS];
    struct str argv = STR("serve");
    struct run *run;

    fixture->config.packages_kept = 2;
    fixture->config.packages_unused_ms = HOUR_MS;
    fixture->loop.wall_ms = clock_wall_ms();
    for (int i = 0; i < VERSIONS; i++) {
        char version[8];

        snprintf(version, sizeof version, "%d", i);
        assert_int_equal(packages_need(packages, STR("web"), str_of(version), &dirs[i]),
                         PACKAGE_BUSY);
        dirs[i] = arena_cstr(&fixture->arena, str_of(dirs[i]));
        fake_run_end(install(i)->key, "EXITED", 0, -1, "");
        next_instant();
    }
    assert_int_equal(runs_start(fixture->runs,
                                &(struct run_spec){.handler = &handler,
                                                   .key = STR("d.web"),
                                                   .argv = &argv,
                                                   .argc = 1,
                                                   .cwd = str_of(dirs[0])},
                                NULL, &run, NULL),
                     ERR_OK);
    packages_trim(packages, true);
    later(fixture, HOUR_MS + 60000);
    packages_trim(packages, false); /* it is not known yet what should run */
    later(fixture, 1);
    packages_trim(packages, true);
    for (int i = 0; i < VERSIONS; i++)
        assert_int_equal(access(dirs[i], F_OK), 0);
    packages_need(packages, STR("web"), STR("2"), &dirs[2]); /* still in use */
    dirs[2] = arena_cstr(&fixture->arena, str_of(dirs[2]));
    later(fixture, HOUR_MS - 1);
    packages_trim(packages, true);
    assert_int_equal(access(dirs[1], F_OK), 0);
    packages_need(packages, STR("web"), STR("2"), &dirs[2]);
    dirs[2] = arena_cstr(&fixture->arena, str_of(dirs[2]));
    later(fixture, 1);
    packages_trim(packages, true);
    for (int i = 0; i < VERSIONS; i++) /* 0 runs, 2 is wanted, 4 and 5 are the last two */
        assert_int_equal(access(dirs[i], F_OK), i == 1 || i == 3 ? -1 : 0);
    assert_int_equal(packages_need(packages, STR("web"), STR("1"), &dirs[1]), PACKAGE_BUSY);
    packages_free(packages);
}

#define PACKAGE_TEST(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        PACKAGE_TEST(test_once),
        PACKAGE_TEST(test_an_update_waits_for_its_package),
        PACKAGE_TEST(test_checks_run_in_the_package),
        PACKAGE_TEST(test_failure),
        PACKAGE_TEST(test_no_command_no_package),
        PACKAGE_TEST(test_unused_ones_go),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
