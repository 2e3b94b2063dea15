/* The life of a copy, above all what must never happen: two at once, one without a lease, one that
 * is prolonged after its deadline, one that an agent's restart touches. */
#include "copies_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "unit.h"

#define ROW(id, generation, version)                                                               \
    "{\"id\":\"" id "\",\"type\":\"deployment\",\"generation\":" #generation                       \
    ",\"version\":" #version ",\"spec\":{\"command\":[\"serve\"],\"env\":{\"A\":\"1\"},"           \
    "\"stop_grace_ms\":700,\"limits\":{\"memory_mb\":64,\"pids\":5,\"cpu_percent\":50,"            \
    "\"disk_mb\":9}}}"
#define DAEMON(id, version)                                                                        \
    "{\"id\":\"" id "\",\"type\":\"daemon\",\"generation\":0,\"version\":" #version                \
    ",\"spec\":{\"command\":\"watch\"}}"

enum { HOUR_MS = 3600 * 1000 };

static int setup(void **state)
{
    struct bench *bench = calloc(1, sizeof *bench);

    bench_make(bench);
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

static void fence(struct bench *bench, int64_t ms)
{
    copies_fence(bench->copies, clock_lease_ms() + ms, 2000);
}

/* What is told of a copy. */
static struct str told_of(struct bench *bench, const char *id, const char *name)
{
    struct buf text = {0};
    struct jsonw w = jsonw_to(&text);
    const struct json *list, *item;

    assert_int_equal(copies_write(bench->copies, 0, 10, &w), 0);
    list = bench_json(bench, buf_view(&text));
    buf_free(&text);
    item = json_first(list);
    for (uint32_t i = 0; i < list->count; i++, item = json_next(item))
        if (json_str_is(json_get(item, "id"), id))
            return json_type(json_get(item, name)) == JSON_STR
                       ? json_str(json_get(item, name), &bench->arena)
                       : json_raw(json_get(item, name));
    return STR_NONE;
}

static struct str told(struct bench *bench, const char *name)
{
    return told_of(bench, "web", name);
}

static struct fake_run *up(struct bench *bench, const char *id)
{
    struct fake_run *run = bench_run(id);

    assert_non_null(run);
    fake_run_begin(run->key);
    return run;
}

#define CHECKED(check)                                                                             \
    "[{\"id\":\"web\",\"generation\":1,\"version\":1,\"spec\":{\"command\":\"serve\",\"health\":"  \
    "{" check ",\"interval_ms\":1000,\"failures\":2}}}]"

static struct fake_run *newest(const char *prefix)
{
    struct fake_run *run = &fake_runs[fake_run_count - 1];

    return strncmp(run->key, prefix, strlen(prefix)) == 0 ? run : NULL;
}

static void test_starts_with_a_lease_only(void **state)
{
    struct bench *bench = *state;
    struct fake_run *run;

    bench_round(bench, "[" ROW("web", 3, 2) "]");
    bench_tick(bench, HOUR_MS);
    assert_null(bench_run("web"));
    assert_str(told(bench, "state"), "stopped");
    copies_fence(bench->copies, clock_lease_ms() - 1, 2000); /* an answer that came too late */
    assert_null(bench_run("web"));
    fence(bench, HOUR_MS);
    run = bench_run("web");
    assert_non_null(run);
    assert_string_equal(run->argv, "serve");
    assert_non_null(strstr(run->env, "BERTH_GENERATION=3"));
    assert_non_null(strstr(run->env, "BERTH_DEPLOYMENT_ID=web"));
    assert_int_equal(run->spec.stop_grace_ms, 700);
    assert_int_equal(run->spec.deadline_grace_ms, 2000);
    assert_int_equal(run->spec.memory_bytes_max, 64 << 20);
    assert_int_equal(run->spec.pids_max, 5);
    assert_int_equal(run->spec.disk_bytes_max, 9 << 20);
    assert_int_equal(run->spec.cpu_permille_max, 500);
    assert_true(run->spec.deadline_boot_ms > clock_lease_ms());
    assert_str(told(bench, "state"), "starting");
    up(bench, "web");
    assert_str(told(bench, "state"), "running");
    assert_str(told(bench, "healthy"), "null"); /* it has just begun */
    bench_tick(bench, 2000);
    assert_str(told(bench, "healthy"), "true");
    for (int i = 0; i < 10; i++) {
        bench_round(bench, "[" ROW("web", 3, 2) "]");
        fence(bench, HOUR_MS);
        bench_tick(bench, 5000);
    }
    assert_int_equal(fake_run_count, 1);
}

static void test_a_daemon_needs_no_lease(void **state)
{
    struct bench *bench = *state;

    bench_round(bench, "[" DAEMON("log", 1) "]");
    assert_non_null(bench_run("log"));
    assert_int_equal(bench_run("log")->deadline_ms, 0);
    up(bench, "log");
    fence(bench, HOUR_MS);
    assert_int_equal(bench_run("log")->deadline_ms, 0);
    assert_int_equal(copies_count(bench->copies), 0);
}

static void test_crashes(void **state)
{
    struct bench *bench = *state;
    int64_t pauses[8];

    bench_round(bench, "[" ROW("web", 1, 1) "]");
    fence(bench, HOUR_MS);
    for (int i = 0; i < 8; i++) {
        int64_t waited = 0;
        int before = fake_run_count;

        fake_run_end(up(bench, "web")->key, "EXITED", 1, -1, "");
        assert_str(told(bench, "state"), i < 4 ? "backoff" : "crash_loop");
        while (fake_run_count == before) {
            bench_tick(bench, 100);
            waited += 100;
            assert_true(waited < HOUR_MS);
        }
        pauses[i] = waited;
    }
    assert_true(pauses[0] <= 1100 && pauses[0] >= 500);
    assert_true(pauses[4] >= 8000 && pauses[7] <= 60100);
    up(bench, "web");
    bench_tick(bench, 30000); /* stable again */
    fake_run_end(bench_run("web")->key, "SIGNALLED", -1, 9, "");
    assert_str(told(bench, "state"), "backoff");
    bench_tick(bench, 1100);
    assert_int_equal(bench_alive("web"), 1);
}

/* A version is not to blame for the one before it: no pause, no word of a loop. */
static void end_in_an_emergency(struct bench *bench)
{
    struct fake_run *run = up(bench, "web");
    struct copy_alive alive;
    struct copy *copy = copies_next(bench->copies, NULL, &alive);

    assert_non_null(copy);
    assert_str(alive.id, "web");
    assert_false(alive.stopping);
    copy_kill(copy, STR("Memory ran out."), 0);
    assert_string_equal(run->stop, "EMERGENCY");
    assert_int_equal(run->stop_grace_ms, 0);
    fake_run_end(run->key, "EMERGENCY", -1, 9, "");
    assert_str(told(bench, "reason"), "Memory ran out.");
    assert_null(copies_next(bench->copies, NULL, &alive));
}

/* It would only lead into the same emergency again. */
static void test_what_an_emergency_ended_rests(void **state)
{
    struct bench *bench = *state;

    bench_round(bench, "[" ROW("web", 1, 1) "]");
    fence(bench, HOUR_MS);
    for (int64_t rest_ms = 60000; rest_ms <= 240000; rest_ms *= 2) { /* longer each time */
        end_in_an_emergency(bench);
        bench_tick(bench, rest_ms - 1000);
        assert_int_equal(bench_alive("web"), 0);
        bench_tick(bench, 2000);
        assert_int_equal(bench_alive("web"), 1);
    }
    end_in_an_emergency(bench);
    copies_danger(bench->copies, true); /* and not before the danger is over */
    bench_tick(bench, HOUR_MS / 2);
    assert_int_equal(bench_alive("web"), 0);
    copies_danger(bench->copies, false);
    bench_tick(bench, 100);
    assert_int_equal(bench_alive("web"), 1);
    end_in_an_emergency(bench);
    bench_round(bench, "[" ROW("web", 1, 2) "]"); /* somebody did something about it */
    bench_tick(bench, 100);
    assert_int_equal(bench_alive("web"), 1);
}

static void test_a_new_version_ends_a_crash_loop(void **state)
{
    struct bench *bench = *state;

    bench_round(bench, "[" ROW("web", 1, 1) "]");
    fence(bench, HOUR_MS);
    for (int i = 0; i < 6; i++) {
        while (bench_alive("web") == 0)
            bench_tick(bench, 1000);
        if (i < 5)
            fake_run_end(up(bench, "web")->key, "EXITED", 1, -1, "");
    }
    assert_str(told(bench, "state"), "crash_loop");
    assert_int_equal(copies_failures(bench->copies, STR("web")), 5);
    bench_round(bench, "[" ROW("web", 1, 2) "]");
    assert_int_equal(copies_failures(bench->copies, STR("web")),
                     0);                                      /* the old one's process lives */
    fake_run_end(bench_run("web")->key, "EXITED", 1, -1, ""); /* before it was stopped */
    bench_tick(bench, 0);
    up(bench, "web");
    assert_str(told(bench, "state"), "running");
    bench_tick(bench, 2000);
    assert_str(told(bench, "healthy"), "true");
}

static void test_what_is_not_named_stops(void **state)
{
    struct bench *bench = *state;
    struct fake_run *run;

    bench_round(bench, "[" ROW("web", 1, 1) "," ROW("api", 1, 1) "]");
    fence(bench, HOUR_MS);
    up(bench, "web");
    run = up(bench, "api");
    bench_round(bench, "[" ROW("web", 1, 1) "]");
    assert_string_equal(run->stop, "STOPPED");
    assert_string_equal(bench_run("web")->stop, "");
    int64_t deadline_ms = run->deadline_ms;
    fence(bench, 2 * HOUR_MS);
    assert_int_equal(run->deadline_ms, deadline_ms); /* the lease is not prolonged for it */
    fake_run_end(run->key, "STOPPED", -1, 15, "");
    bench_tick(bench, 100);
    assert_int_equal(copies_count(bench->copies), 1);
    assert_false(run->there);
    bench_tick(bench, HOUR_MS);
    assert_int_equal(bench_alive("api"), 0);
    assert_int_equal(fake_run_count, 2);
}

/* Each by itself: none waits for another. */
static void test_a_new_version_replaces(void **state)
{
    struct bench *bench = *state;
    struct fake_run *old[2];

    bench_round(bench, "[" ROW("web", 1, 1) "," ROW("api", 1, 1) "]");
    fence(bench, HOUR_MS);
    old[0] = up(bench, "web");
    old[1] = up(bench, "api");
    bench_round(bench, "[" ROW("web", 1, 2) "," ROW("api", 1, 2) "]");
    for (int i = 0; i < 2; i++) {
        const char *id = i ? "api" : "web";

        assert_string_equal(old[i]->stop, "REPLACED");
        assert_int_equal(bench_alive(id), 1); /* never two */
        fake_run_end(old[i]->key, "REPLACED", -1, 15, "");
        bench_tick(bench, 100);
        assert_int_equal(bench_alive(id), 1);
        assert_true(bench_run(id) != old[i]);
    }
}

/* A version that cannot be started leaves the one before it running, with its checks. */
static void test_what_cannot_be_started_replaces_nothing(void **state)
{
    struct bench *bench = *state;
    struct fake_run *old;

    bench_round(bench, CHECKED("\"command\":[\"probe\"]"));
    fence(bench, HOUR_MS);
    old = up(bench, "web");
    bench_round(bench, "[{\"id\":\"web\",\"generation\":1,\"version\":2,\"spec\":"
                       "{\"command\":[\"/no/such/program\"]}}," ROW("api", 1, 1) "]");
    bench_tick(bench, 0);
    bench_tick(bench, 1000);
    assert_string_equal(old->stop, "");
    assert_non_null(newest("h.")); /* of the version that runs */
    fake_run_end(newest("h.")->key, "EXITED", 0, -1, "");
    assert_str(told_of(bench, "web", "state"), "updating");
    assert_str(told_of(bench, "web", "version"), "1");
    assert_str(told_of(bench, "web", "healthy"), "true");
    assert_has(told_of(bench, "web", "reason"), "/no/such/program");
    bench_round(bench, "[" ROW("web", 1, 3) "," ROW("api", 1, 1) "]");
    assert_string_equal(old->stop, "REPLACED");
}

static void test_a_new_generation_ends_the_old_at_once(void **state)
{
    struct bench *bench = *state;
    struct fake_run *old[2];

    bench_round(bench, "[" ROW("web", 1, 1) "," ROW("api", 1, 1) "]");
    fence(bench, HOUR_MS);
    old[0] = up(bench, "web");
    old[1] = up(bench, "api");
    bench_round(bench, "[" ROW("web", 2, 1) "," ROW("api", 2, 1) "]");
    fence(bench, 2 * HOUR_MS);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(old[i]->stop, "REPLACED");
        assert_true(old[i]->deadline_ms < clock_lease_ms() + HOUR_MS + 1); /* and not prolonged */
        fake_run_end(old[i]->key, "REPLACED", -1, 15, "");
    }
    bench_tick(bench, 100);
    assert_non_null(strstr(bench_run("web")->env, "BERTH_GENERATION=2"));
    assert_int_equal(bench_alive("web"), 1);
}

/* All was frozen, the shim has not yet looked at its clock, and the first thing that happens is an
 * answer to a renewal: another node may have had the deployment meanwhile. */
static void test_a_deadline_that_passed_is_not_prolonged(void **state)
{
    struct bench *bench = *state;
    struct fake_run *run;

    bench_round(bench, "[" ROW("web", 1, 1) "]");
    fence(bench, HOUR_MS);
    run = up(bench, "web");
    run->deadline_ms = clock_lease_ms() - 1;
    fence(bench, HOUR_MS);
    assert_string_equal(run->stop, "FENCED");
    assert_int_equal(run->stop_grace_ms, 0);
    assert_true(run->deadline_ms < clock_lease_ms());
    fake_run_end(run->key, "FENCED", -1, 9, "");
    bench_tick(bench, 100); /* it is still ours: no crash, so no pause */
    assert_int_equal(bench_alive("web"), 1);
}

static void test_the_fence_is_no_crash(void **state)
{
    struct bench *bench = *state;

    bench_round(bench, "[" ROW("web", 1, 1) "]");
    fence(bench, HOUR_MS);
    copies_fence(bench->copies, 1, 2000);
    fake_run_end(up(bench, "web")->key, "DEADLINE", -1, 15, "");
    bench_tick(bench, HOUR_MS);
    assert_int_equal(bench_alive("web"), 0);
    assert_str(told(bench, "state"), "stopped");
    fence(bench, HOUR_MS);
    assert_int_equal(bench_alive("web"), 1);
}

static void test_an_agents_restart_touches_nothing(void **state)
{
    struct bench *bench = *state;
    struct fake_run *run;

    bench_round(bench, "[" ROW("web", 1, 1) "," DAEMON("log", 1) "]");
    fence(bench, HOUR_MS);
    run = up(bench, "web");
    up(bench, "log");
    for (int i = 0; i < 5; i++) {
        bench_close(bench);
        bench_open(bench);
        assert_int_equal(copies_alive(bench->copies), 2);
        bench_tick(bench, HOUR_MS); /* nobody says anything: it runs on */
        bench_round(bench, "[" ROW("web", 1, 1) "," DAEMON("log", 1) "]");
        fence(bench, 2 * HOUR_MS);
        bench_tick(bench, HOUR_MS);
    }
    assert_int_equal(fake_run_count, 2);
    assert_string_equal(run->stop, "");
    assert_true(run->deadline_ms > clock_lease_ms() + HOUR_MS);
    bench_close(bench);
    bench_open(bench);
    bench_round(bench, "[]"); /* it moved while we were away */
    assert_string_equal(run->stop, "STOPPED");
}

static void test_a_spec_that_cannot_be_run(void **state)
{
    struct bench *bench = *state;

    bench_round(bench, "[{\"id\":\"web\",\"generation\":7,\"version\":5,\"spec\":{}}]");
    fence(bench, HOUR_MS);
    assert_str(told(bench, "state"), "refused");
    assert_has(told(bench, "reason"), "command");
    assert_str(told(bench, "generation"), "7"); /* of this assignment, or nobody would hear of it */
    assert_str(told(bench, "version"), "5");
    bench_round(bench, "[" ROW("web", 7, 6) "]");
    up(bench, "web");
    bench_round(bench, "[{\"id\":\"web\",\"generation\":7,\"version\":7,\"spec\":{}}]");
    bench_tick(bench, HOUR_MS);
    assert_string_equal(bench_run("web")->stop, ""); /* what runs, runs */
    assert_str(told(bench, "state"), "updating");
    assert_has(told(bench, "reason"), "command");
    bench_round(bench, "[{\"id\":\"web\",\"generation\":8,\"version\":7,\"spec\":{}}]");
    assert_string_equal(bench_run("web")->stop, "REPLACED"); /* of an assignment that is over */
}

static void test_health_by_command(void **state)
{
    struct bench *bench = *state;

    bench_round(bench, CHECKED("\"command\":[\"probe\"]"));
    fence(bench, HOUR_MS);
    up(bench, "web");
    bench_tick(bench, 0);
    bench_tick(bench, 999);
    assert_null(newest("h."));
    assert_str(told(bench, "healthy"), "null"); /* not known yet */
    bench_tick(bench, 1);
    assert_non_null(newest("h."));
    assert_non_null(strstr(newest("h.")->env, "BERTH_DEPLOYMENT_ID=web"));
    fake_run_end(newest("h.")->key, "EXITED", 0, -1, "");
    assert_str(told(bench, "healthy"), "true");
    for (int i = 0; i < 2; i++) {
        bench_tick(bench, 1000);
        assert_string_equal(bench_run("web")->stop, "");
        fake_run_end(newest("h.")->key, "EXITED", 1, -1, "");
        assert_str(told(bench, "healthy"), "false");
    }
    assert_string_equal(bench_run("web")->stop, "UNHEALTHY");
    fake_run_end(bench_run("web")->key, "UNHEALTHY", -1, 15, "");
    assert_str(told(bench, "state"), "backoff"); /* like a crash */
    for (int i = 0; i < fake_run_count; i++)
        assert_true(fake_runs[i].key[0] != 'h' || !fake_runs[i].there);
}

static void fail_check(struct bench *bench)
{
    bench_tick(bench, 1000);
    assert_non_null(newest("h."));
    fake_run_end(newest("h.")->key, "EXITED", 1, -1, "");
}

/* The reason is what the check said, while it fails and after it was restarted for it. */
static void test_why_it_is_not_well(void **state)
{
    struct bench *bench = *state;

    bench_round(bench, CHECKED("\"command\":[\"probe\"]"));
    fence(bench, HOUR_MS);
    up(bench, "web");
    bench_tick(bench, 0);
    for (int i = 0; i < 2; i++) {
        bench_tick(bench, 1000);
        fake_run_end(newest("h.")->key, "EXITED", 1, -1, "one\nno route\n");
        assert_has(told(bench, "reason"), "no route");
    }
    fake_run_end(bench_run("web")->key, "UNHEALTHY", -1, 15, "");
    assert_str(told(bench, "state"), "backoff");
    assert_has(told(bench, "reason"), "no route");
    bench_tick(bench, 5000);
    up(bench, "web");
    assert_has(told(bench, "reason"), "no route"); /* why it was restarted */
    bench_round(bench, "[" ROW("web", 1, 2) "]");
    fake_run_end(bench_run("web")->key, "REPLACED", -1, 15, "");
    bench_tick(bench, 0); /* no failure, though a check had failed: without a pause */
    assert_int_equal(bench_alive("web"), 1);
}

static void answer(struct bench *bench, const char *reply)
{
    copies_told(bench->copies, bench_json(bench, str_of(reply)));
    bench_tick(bench, 0);
}

static void test_a_daemon_waits_for_its_turn(void **state)
{
    struct bench *bench = *state;
    struct fake_run *old;

    bench_round(bench, "[" DAEMON("web", 1) "]");
    old = up(bench, "web");
    answer(bench, "{\"stale\":[]}"); /* to a status that did not ask */
    bench_round(bench, "[" DAEMON("web", 2) "]");
    bench_tick(bench, 100);
    assert_string_equal(old->stop, "");
    assert_str(told(bench, "wants"), "2");
    answer(bench, "{\"waits\":[{\"id\":\"web\",\"reason\":\"Not on n0 yet.\"}]}");
    assert_string_equal(old->stop, "");
    assert_str(told(bench, "state"), "updating");
    assert_str(told(bench, "reason"), "Not on n0 yet.");
    assert_str(told(bench, "wants"), "null"); /* not with every status */
    answer(bench, "{\"waits\":[]}");
    assert_string_equal(old->stop, "");
    bench_tick(bench, 1000);
    assert_str(told(bench, "wants"), "2");
    assert_str(told(bench, "wants"), "null"); /* the answer was lost, and this does not ask */
    answer(bench, "{\"waits\":[]}");
    assert_string_equal(old->stop, "");
    bench_tick(bench, 1000);
    assert_str(told(bench, "wants"), "2");
    bench_round(bench, "[" DAEMON("web", 3) "]"); /* the answer is to what was asked */
    answer(bench, "{\"waits\":[]}");
    assert_string_equal(old->stop, "");
    bench_tick(bench, 1000);
    assert_str(told(bench, "wants"), "3");
    answer(bench, "{\"waits\":[]}");
    assert_string_equal(old->stop, "REPLACED");
}

/* Until a check has passed none counts for so long; from then on all do. */
static void test_health_while_it_starts(void **state)
{
    struct bench *bench = *state;

    bench_round(bench, CHECKED("\"command\":[\"probe\"],\"start_ms\":5500"));
    fence(bench, HOUR_MS);
    up(bench, "web");
    bench_tick(bench, 0);
    for (int i = 0; i < 5; i++) {
        fail_check(bench);
        assert_string_equal(bench_run("web")->stop, "");
        assert_str(told(bench, "healthy"), "null");
    }
    fail_check(bench);
    assert_string_equal(bench_run("web")->stop, "");
    fail_check(bench);
    assert_string_equal(bench_run("web")->stop, "UNHEALTHY");
}

static void test_health_that_passed_early_counts(void **state)
{
    struct bench *bench = *state;

    bench_round(bench, CHECKED("\"command\":[\"probe\"],\"start_ms\":\"1h\""));
    fence(bench, HOUR_MS);
    up(bench, "web");
    bench_tick(bench, 0);
    fail_check(bench);
    bench_tick(bench, 1000);
    fake_run_end(newest("h.")->key, "EXITED", 0, -1, "");
    assert_str(told(bench, "healthy"), "true");
    fail_check(bench);
    fail_check(bench);
    assert_string_equal(bench_run("web")->stop, "UNHEALTHY");
}

static void test_health_by_http_when_nobody_answers(void **state)
{
    struct bench *bench = *state;

    bench_round(bench, CHECKED("\"http\":\"http://127.0.0.1:1/\""));
    fence(bench, HOUR_MS);
    up(bench, "web");
    for (int i = 0; i < 3; i++) {
        bench_tick(bench, 1000);
        await(&bench->loop, !str_is(told(bench, "state"), "running"));
        bench_tick(bench, 1000);
    }
    await(&bench->loop, bench_run("web")->stop[0]);
    assert_string_equal(bench_run("web")->stop, "UNHEALTHY");
}

static void test_held(void **state)
{
    struct bench *bench = *state;
    struct copy_held held;

    bench_round(bench, "[" ROW("web", 4, 1) "]");
    fence(bench, HOUR_MS);
    up(bench, "web");
    assert_str(copies_first_owned(bench->copies), "web");
    copies_hold(bench->copies, STR("web"), COPY_DRAINED);
    assert_int_equal(copies_holding(bench->copies, COPY_DRAINED), 1);
    assert_null(copies_first_owned(bench->copies).at);
    bench_tick(bench, 100);
    assert_string_equal(bench_run("web")->stop, "STOPPED");
    assert_false(copies_next_held(bench->copies, &held)); /* it still runs */
    fake_run_end(bench_run("web")->key, "STOPPED", -1, 15, "");
    bench_tick(bench, HOUR_MS);
    assert_int_equal(bench_alive("web"), 0);
    assert_true(copies_next_held(bench->copies, &held));
    assert_str(held.id, "web");
    assert_int_equal(held.generation, 4);
    copies_keep(bench->copies, STR_NONE, COPY_DRAINED); /* the operator thought better of it */
    bench_tick(bench, 100);
    assert_int_equal(bench_alive("web"), 1);
}

/* One that fails is held until it is given away, or somebody changes it. */
static void test_held_because_it_fails(void **state)
{
    struct bench *bench = *state;
    struct copy_held held;

    bench_round(bench, "[" ROW("web", 4, 1) "]");
    fence(bench, HOUR_MS);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(copies_failures(bench->copies, STR("web")), i);
        up(bench, "web");
        fake_run_end(bench_run("web")->key, "EXITED", 127, -1, "no such program");
        bench_tick(bench, HOUR_MS);
    }
    copies_hold(bench->copies, STR("web"), COPY_FAILING);
    bench_tick(bench, 100);
    if (bench_alive("web"))
        fake_run_end(bench_run("web")->key, "STOPPED", -1, 15, "");
    assert_true(copies_next_held(bench->copies, &held));
    assert_int_equal(held.hold, COPY_FAILING);
    assert_true(held.reason.len > 0);
    bench_round(bench, "[" ROW("web", 4, 2) "]");
    assert_int_equal(copies_holding(bench->copies, COPY_FAILING), 0);
    assert_int_equal(copies_failures(bench->copies, STR("web")), 0);
    copies_hold(bench->copies, STR("web"), COPY_FAILING);
    bench_tick(bench, 100);
    if (bench_alive("web"))
        fake_run_end(bench_run("web")->key, "STOPPED", -1, 15, "");
    copies_gave(bench->copies, STR("web"));
    bench_tick(bench, 100);
    assert_int_equal(copies_count(bench->copies), 0);
}

/* Many copies are told in pieces, each of them once. */
static void test_told_in_pieces(void **state)
{
    struct bench *bench = *state;
    struct buf text = {0};
    size_t from = 0, pieces = 0, told_count = 0;

    bench_round(bench, "[" ROW("a", 1, 1) "," ROW("b", 1, 1) "," ROW("c", 1, 1) "]");
    do {
        struct jsonw w = jsonw_to(&text);

        buf_clear(&text);
        from = copies_write(bench->copies, from, 2, &w);
        told_count += bench_json(bench, buf_view(&text))->count;
        pieces++;
    } while (from > 0);
    assert_int_equal(pieces, 2);
    assert_int_equal(told_count, 3);
    buf_free(&text);
}

#define POLICY(version, policy)                                                                    \
    "[{\"id\":\"web\",\"generation\":1,\"version\":" #version                                      \
    ",\"spec\":{\"command\":\"work\",\"restart\":{\"policy\":\"" policy "\"}}}]"

/* Which ends are the last: by policy, reason and code. */
static void test_restart_policies(void **state)
{
    static const struct {
        const char *rows, *reason;
        int exit_code;
        const char *state;
    } rows[] = {
        {POLICY(1, "always"), "EXITED", 0, "backoff"},
        {POLICY(1, "on_failure"), "EXITED", 0, "finished"},
        {POLICY(1, "on_failure"), "EXITED", 1, "backoff"},
        {POLICY(1, "on_failure"), "OOM", -1, "backoff"},
        {POLICY(1, "never"), "EXITED", 0, "finished"},
        {POLICY(1, "never"), "EXITED", 3, "failed"},
        {POLICY(1, "never"), "SIGNALLED", -1, "failed"},
        {POLICY(1, "never"), "SHIM_LOST", -1, "failed"},
        {POLICY(1, "never"), "EMERGENCY", -1, "backoff"}, /* berth ended it */
        {POLICY(1, "never"), "DEADLINE", -1, "stopped"},
    };
    struct bench *bench = *state;

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        bool over = strcmp(rows[i].state, "finished") == 0 || strcmp(rows[i].state, "failed") == 0;

        bench_round(bench, rows[i].rows);
        fence(bench, HOUR_MS);
        fake_run_end(up(bench, "web")->key, rows[i].reason, rows[i].exit_code, -1, "");
        assert_str(told(bench, "state"), rows[i].state);
        assert_str(told(bench, "restarts"), over ? "0" : "1");
        bench_tick(bench, HOUR_MS);
        bench_tick(bench, HOUR_MS);
        assert_int_equal(bench_alive("web"), !over);
        bench_round(bench, "[]"); /* and away with it */
        if (!over)
            fake_run_end(bench_run("web")->key, "STOPPED", -1, 15, "");
        bench_tick(bench, 0);
        fake_run_reset();
    }
}

/* Neither a new agent nor a new assignment starts it again; another version does. */
static void test_what_is_over_stays_over(void **state)
{
    struct bench *bench = *state;
    struct fake_run *run;

    bench_round(bench, POLICY(1, "never"));
    fence(bench, HOUR_MS);
    run = up(bench, "web");
    bench_close(bench);
    fake_run_end(run->key, "EXITED", 0, -1, ""); /* while nobody looked */
    bench_open(bench);
    bench_round(bench, POLICY(1, "never"));
    fence(bench, HOUR_MS);
    bench_tick(bench, HOUR_MS);
    assert_str(told(bench, "state"), "finished");
    assert_str(told(bench, "healthy"), "true");
    assert_int_equal(copies_count(bench->copies), 0);
    assert_int_equal(fake_run_count, 1);
    bench_round(bench, POLICY(2, "never"));
    fence(bench, HOUR_MS);
    assert_int_equal(bench_alive("web"), 1);
}

/* The server remembers it for an agent that has lost its files. */
static void test_the_server_says_it_is_over(void **state)
{
    struct bench *bench = *state;

    bench_round(bench, "[{\"id\":\"web\",\"generation\":1,\"version\":1,\"ended\":\"failed\","
                       "\"spec\":{\"command\":\"work\",\"restart\":{\"policy\":\"never\"}}}]");
    fence(bench, HOUR_MS);
    bench_tick(bench, HOUR_MS);
    assert_int_equal(fake_run_count, 0);
    assert_str(told(bench, "state"), "failed");
}

/* Where a limit cannot be enforced its copy runs without it, and says so. */
static void test_limits_are_told(void **state)
{
    struct bench *bench = *state;

    fake_run_offered = (struct run_limits_offered){.cpu = true, .missing = "no group"};
    bench_round(bench, "[" ROW("web", 1, 1) "," DAEMON("log", 1) "]");
    fence(bench, HOUR_MS);
    assert_int_equal(bench_run("web")->spec.memory_bytes_max, 0);
    assert_int_equal(bench_run("web")->spec.cpu_permille_max, 500);
    assert_str(told(bench, "limits"), "not enforced: memory_mb, pids (no group)");
    assert_str(told_of(bench, "log", "limits"), "null"); /* it has none */
    fake_run_offered = (struct run_limits_offered){.cpu = true, .memory = true, .pids = true};
    assert_str(told(bench, "limits"), "enforced");
}

static void test_logs(void **state)
{
    struct bench *bench = *state;
    struct buf text = {0};
    int64_t offset, total;
    bool ended;
    struct fake_run *old;

    assert_int_equal(
        copies_log(bench->copies, STR("web"), false, 0, 10, &text, &offset, &total, &ended),
        ERR_NOT_FOUND);
    bench_round(bench, "[" ROW("web", 1, 1) "]");
    fence(bench, HOUR_MS);
    old = up(bench, "web");
    fake_run_end(old->key, "EXITED", 1, -1, "");
    assert_int_equal(
        copies_log(bench->copies, STR("web"), false, 0, 10, &text, &offset, &total, &ended),
        ERR_OK);
    assert_true(ended && str_is(buf_view(&text), old->key));
    bench_tick(bench, 1100);
    buf_clear(&text);
    copies_log(bench->copies, STR("web"), false, 0, 10, &text, &offset, &total, &ended);
    assert_true(!ended && str_is(buf_view(&text), bench_run("web")->key));
    buf_clear(&text);
    copies_log(bench->copies, STR("web"), true, 0, 10, &text, &offset, &total, &ended);
    assert_true(ended && str_is(buf_view(&text), old->key));
    buf_free(&text);
}

#define COPY_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        COPY_TEST(test_starts_with_a_lease_only),
        COPY_TEST(test_a_daemon_needs_no_lease),
        COPY_TEST(test_crashes),
        COPY_TEST(test_a_new_version_ends_a_crash_loop),
        COPY_TEST(test_what_an_emergency_ended_rests),
        COPY_TEST(test_what_is_not_named_stops),
        COPY_TEST(test_a_new_version_replaces),
        COPY_TEST(test_what_cannot_be_started_replaces_nothing),
        COPY_TEST(test_a_daemon_waits_for_its_turn),
        COPY_TEST(test_why_it_is_not_well),
        COPY_TEST(test_a_new_generation_ends_the_old_at_once),
        COPY_TEST(test_a_deadline_that_passed_is_not_prolonged),
        COPY_TEST(test_the_fence_is_no_crash),
        COPY_TEST(test_an_agents_restart_touches_nothing),
        COPY_TEST(test_a_spec_that_cannot_be_run),
        COPY_TEST(test_health_by_command),
        COPY_TEST(test_health_while_it_starts),
        COPY_TEST(test_health_that_passed_early_counts),
        COPY_TEST(test_health_by_http_when_nobody_answers),
        COPY_TEST(test_held),
        COPY_TEST(test_held_because_it_fails),
        COPY_TEST(test_told_in_pieces),
        COPY_TEST(test_restart_policies),
        COPY_TEST(test_what_is_over_stays_over),
        COPY_TEST(test_the_server_says_it_is_over),
        COPY_TEST(test_limits_are_told),
        COPY_TEST(test_logs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
