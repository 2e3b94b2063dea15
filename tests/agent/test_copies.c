/* The life of a copy, above all what must never happen: two at once, one without a lease, one whose
 * deadline is extended after it passed, one that is disturbed by a restart of the agent. */
#include "copies_fixture.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

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
    struct fixture *fixture = calloc(1, sizeof *fixture);

    fixture_make(fixture);
    fixture_open(fixture);
    *state = fixture;
    return 0;
}

static void fence(struct fixture *fixture, int64_t ms)
{
    copies_fence(fixture->copies, clock_lease_ms() + ms, 2000);
}

/* A field of the status that is reported for a copy. */
static struct str report_field_of(struct fixture *fixture, const char *id, const char *name)
{
    struct buf text = {0};
    struct jsonw w = jsonw_to(&text);
    const struct json *list, *item;

    assert_int_equal(copies_write(fixture->copies, 0, 10, &w), 0);
    list = fixture_json(fixture, buf_view(&text));
    buf_free(&text);
    item = json_first(list);
    for (uint32_t i = 0; i < list->count; i++, item = json_next(item))
        if (json_str_is(json_get(item, "id"), id))
            return json_type(json_get(item, name)) == JSON_STR
                       ? json_str(json_get(item, name), &fixture->arena)
                       : json_raw(json_get(item, name));
    return STR_NONE;
}

static struct str report_field(struct fixture *fixture, const char *name)
{
    return report_field_of(fixture, "web", name);
}

static struct fake_run *up(struct fixture *fixture, const char *id)
{
    struct fake_run *run = fixture_run(id);

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
    struct fixture *fixture = *state;
    struct fake_run *run;

    fixture_round(fixture, "[" ROW("web", 3, 2) "]");
    fixture_tick(fixture, HOUR_MS);
    assert_null(fixture_run("web"));
    assert_str(report_field(fixture, "state"), "stopped");
    copies_fence(fixture->copies, clock_lease_ms() - 1, 2000); /* an answer that came too late */
    assert_null(fixture_run("web"));
    fence(fixture, HOUR_MS);
    run = fixture_run("web");
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
    assert_str(report_field(fixture, "state"), "starting");
    up(fixture, "web");
    assert_str(report_field(fixture, "state"), "running");
    assert_str(report_field(fixture, "healthy"), "null"); /* just started */
    fixture_tick(fixture, 2000);
    assert_str(report_field(fixture, "healthy"), "true");
    for (int i = 0; i < 10; i++) {
        fixture_round(fixture, "[" ROW("web", 3, 2) "]");
        fence(fixture, HOUR_MS);
        fixture_tick(fixture, 5000);
    }
    assert_int_equal(fake_run_count, 1);
}

static void test_a_daemon_needs_no_lease(void **state)
{
    struct fixture *fixture = *state;

    fixture_round(fixture, "[" DAEMON("log", 1) "]");
    assert_non_null(fixture_run("log"));
    assert_int_equal(fixture_run("log")->deadline_ms, 0);
    up(fixture, "log");
    fence(fixture, HOUR_MS);
    assert_int_equal(fixture_run("log")->deadline_ms, 0);
    assert_int_equal(copies_count(fixture->copies), 0);
}

static void test_crashes(void **state)
{
    struct fixture *fixture = *state;
    int64_t pauses[8];

    fixture_round(fixture, "[" ROW("web", 1, 1) "]");
    fence(fixture, HOUR_MS);
    for (int i = 0; i < 8; i++) {
        int64_t waited = 0;
        int before = fake_run_count;

        fake_run_end(up(fixture, "web")->key, "EXITED", 1, -1, "");
        assert_str(report_field(fixture, "state"), i < 4 ? "backoff" : "crash_loop");
        while (fake_run_count == before) {
            fixture_tick(fixture, 100);
            waited += 100;
            assert_true(waited < HOUR_MS);
        }
        pauses[i] = waited;
    }
    assert_true(pauses[0] <= 1100 && pauses[0] >= 500);
    assert_true(pauses[4] >= 8000 && pauses[7] <= 60100);
    up(fixture, "web");
    fixture_tick(fixture, 30000); /* stable again */
    fake_run_end(fixture_run("web")->key, "SIGNALLED", -1, 9, "");
    assert_str(report_field(fixture, "state"), "backoff");
    fixture_tick(fixture, 1100);
    assert_int_equal(fixture_alive("web"), 1);
}

/* Ends the run of "web" in an emergency. */
static void end_in_an_emergency(struct fixture *fixture)
{
    struct fake_run *run = up(fixture, "web");
    struct copy *copy = TAILQ_FIRST(&fixture->copies->all);

    assert_true(copy && copy->run);
    assert_str(copy->id, "web");
    assert_false(copy->stopping);
    copy_kill(copy, STR("Memory ran out."), 0);
    assert_string_equal(run->stop, "EMERGENCY");
    assert_int_equal(run->stop_grace_ms, 0);
    fake_run_end(run->key, "EMERGENCY", -1, 9, "");
    assert_str(report_field(fixture, "reason"), "Memory ran out.");
    assert_null(copy->run);
}

/* A copy that an emergency ended rests, as it would only cause the next one. */
static void test_what_an_emergency_ended_rests(void **state)
{
    struct fixture *fixture = *state;

    fixture_round(fixture, "[" ROW("web", 1, 1) "]");
    fence(fixture, HOUR_MS);
    for (int64_t rest_ms = 60000; rest_ms <= 240000; rest_ms *= 2) { /* longer each time */
        end_in_an_emergency(fixture);
        fixture_tick(fixture, rest_ms - 1000);
        assert_int_equal(fixture_alive("web"), 0);
        fixture_tick(fixture, 2000);
        assert_int_equal(fixture_alive("web"), 1);
    }
    end_in_an_emergency(fixture);
    fixture->copies->danger = true; /* and until the danger is over */
    fixture_tick(fixture, HOUR_MS / 2);
    assert_int_equal(fixture_alive("web"), 0);
    fixture->copies->danger = false;
    fixture_tick(fixture, 100);
    assert_int_equal(fixture_alive("web"), 1);
    end_in_an_emergency(fixture);
    fixture_round(fixture, "[" ROW("web", 1, 2) "]"); /* an operator changed it */
    fixture_tick(fixture, 100);
    assert_int_equal(fixture_alive("web"), 1);
}

/* A new version starts without a pause, and the failures of the old one do not count for it. */
static void test_a_new_version_ends_a_crash_loop(void **state)
{
    struct fixture *fixture = *state;

    fixture_round(fixture, "[" ROW("web", 1, 1) "]");
    fence(fixture, HOUR_MS);
    for (int i = 0; i < 6; i++) {
        while (fixture_alive("web") == 0)
            fixture_tick(fixture, 1000);
        if (i < 5)
            fake_run_end(up(fixture, "web")->key, "EXITED", 1, -1, "");
    }
    assert_str(report_field(fixture, "state"), "crash_loop");
    assert_int_equal(copies_failures(fixture->copies, STR("web")), 5);
    fixture_round(fixture, "[" ROW("web", 1, 2) "]");
    assert_int_equal(copies_failures(fixture->copies, STR("web")),
                     /* The old version's process is still alive. */
                     0);
    fake_run_end(fixture_run("web")->key, "EXITED", 1, -1, ""); /* before it was stopped */
    fixture_tick(fixture, 0);
    up(fixture, "web");
    assert_str(report_field(fixture, "state"), "running");
    fixture_tick(fixture, 2000);
    assert_str(report_field(fixture, "healthy"), "true");
}

static void test_what_is_not_named_stops(void **state)
{
    struct fixture *fixture = *state;
    struct fake_run *run;

    fixture_round(fixture, "[" ROW("web", 1, 1) "," ROW("api", 1, 1) "]");
    fence(fixture, HOUR_MS);
    up(fixture, "web");
    run = up(fixture, "api");
    fixture_round(fixture, "[" ROW("web", 1, 1) "]");
    assert_string_equal(run->stop, "STOPPED");
    assert_string_equal(fixture_run("web")->stop, "");
    int64_t deadline_ms = run->deadline_ms;
    fence(fixture, 2 * HOUR_MS);
    assert_int_equal(run->deadline_ms, deadline_ms); /* its lease is no longer extended */
    fake_run_end(run->key, "STOPPED", -1, 15, "");
    fixture_tick(fixture, 100);
    assert_int_equal(copies_count(fixture->copies), 1);
    assert_false(run->there);
    fixture_tick(fixture, HOUR_MS);
    assert_int_equal(fixture_alive("api"), 0);
    assert_int_equal(fake_run_count, 2);
}

/* Copies are replaced independently of each other. */
static void test_a_new_version_replaces(void **state)
{
    struct fixture *fixture = *state;
    struct fake_run *old[2];

    fixture_round(fixture, "[" ROW("web", 1, 1) "," ROW("api", 1, 1) "]");
    fence(fixture, HOUR_MS);
    old[0] = up(fixture, "web");
    old[1] = up(fixture, "api");
    fixture_round(fixture, "[" ROW("web", 1, 2) "," ROW("api", 1, 2) "]");
    for (int i = 0; i < 2; i++) {
        const char *id = i ? "api" : "web";

        assert_string_equal(old[i]->stop, "REPLACED");
        assert_int_equal(fixture_alive(id), 1); /* never two at once */
        fake_run_end(old[i]->key, "REPLACED", -1, 15, "");
        fixture_tick(fixture, 100);
        assert_int_equal(fixture_alive(id), 1);
        assert_true(fixture_run(id) != old[i]);
    }
}

/* A version that cannot be started leaves the one before it running, with its health checks. */
static void test_what_cannot_be_started_replaces_nothing(void **state)
{
    struct fixture *fixture = *state;
    struct fake_run *old;

    fixture_round(fixture, CHECKED("\"command\":[\"probe\"]"));
    fence(fixture, HOUR_MS);
    old = up(fixture, "web");
    fixture_round(fixture, "[{\"id\":\"web\",\"generation\":1,\"version\":2,\"spec\":"
                           "{\"command\":[\"/no/such/program\"]}}," ROW("api", 1, 1) "]");
    fixture_tick(fixture, 0);
    fixture_tick(fixture, 1000);
    assert_string_equal(old->stop, "");
    assert_non_null(newest("h.")); /* the check of the running version */
    fake_run_end(newest("h.")->key, "EXITED", 0, -1, "");
    assert_str(report_field_of(fixture, "web", "state"), "updating");
    assert_str(report_field_of(fixture, "web", "version"), "1");
    assert_str(report_field_of(fixture, "web", "healthy"), "true");
    assert_has(report_field_of(fixture, "web", "reason"), "/no/such/program");
    fixture_round(fixture, "[" ROW("web", 1, 3) "," ROW("api", 1, 1) "]");
    assert_string_equal(old->stop, "REPLACED");
}

static void test_a_new_generation_ends_the_old_at_once(void **state)
{
    struct fixture *fixture = *state;
    struct fake_run *old[2];

    fixture_round(fixture, "[" ROW("web", 1, 1) "," ROW("api", 1, 1) "]");
    fence(fixture, HOUR_MS);
    old[0] = up(fixture, "web");
    old[1] = up(fixture, "api");
    fixture_round(fixture, "[" ROW("web", 2, 1) "," ROW("api", 2, 1) "]");
    fence(fixture, 2 * HOUR_MS);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(old[i]->stop, "REPLACED");
        /* Its deadline is not extended. */
        assert_true(old[i]->deadline_ms < clock_lease_ms() + HOUR_MS + 1);
        fake_run_end(old[i]->key, "REPLACED", -1, 15, "");
    }
    fixture_tick(fixture, 100);
    assert_non_null(strstr(fixture_run("web")->env, "BERTH_GENERATION=2"));
    assert_int_equal(fixture_alive("web"), 1);
}

/* The machine was frozen, and a renewal is answered before the shim has looked at its clock:
 * another node may have had the deployment meanwhile. */
static void test_a_deadline_that_passed_is_not_prolonged(void **state)
{
    struct fixture *fixture = *state;
    struct fake_run *run;

    fixture_round(fixture, "[" ROW("web", 1, 1) "]");
    fence(fixture, HOUR_MS);
    run = up(fixture, "web");
    run->deadline_ms = clock_lease_ms() - 1;
    fence(fixture, HOUR_MS);
    assert_string_equal(run->stop, "FENCED");
    assert_int_equal(run->stop_grace_ms, 0);
    assert_true(run->deadline_ms < clock_lease_ms());
    fake_run_end(run->key, "FENCED", -1, 9, "");
    /* Still owned by this node; a fence is no crash, so there is no pause. */
    fixture_tick(fixture, 100);
    assert_int_equal(fixture_alive("web"), 1);
}

static void test_the_fence_is_no_crash(void **state)
{
    struct fixture *fixture = *state;

    fixture_round(fixture, "[" ROW("web", 1, 1) "]");
    fence(fixture, HOUR_MS);
    copies_fence(fixture->copies, 1, 2000);
    fake_run_end(up(fixture, "web")->key, "DEADLINE", -1, 15, "");
    fixture_tick(fixture, HOUR_MS);
    assert_int_equal(fixture_alive("web"), 0);
    assert_str(report_field(fixture, "state"), "stopped");
    fence(fixture, HOUR_MS);
    assert_int_equal(fixture_alive("web"), 1);
}

static void test_an_agents_restart_touches_nothing(void **state)
{
    struct fixture *fixture = *state;
    struct fake_run *run;

    fixture_round(fixture, "[" ROW("web", 1, 1) "," DAEMON("log", 1) "]");
    fence(fixture, HOUR_MS);
    run = up(fixture, "web");
    up(fixture, "log");
    for (int i = 0; i < 5; i++) {
        fixture_close(fixture);
        fixture_open(fixture);
        assert_int_equal(copies_alive(fixture->copies), 2);
        fixture_tick(fixture, HOUR_MS); /* runs on without any round */
        fixture_round(fixture, "[" ROW("web", 1, 1) "," DAEMON("log", 1) "]");
        fence(fixture, 2 * HOUR_MS);
        fixture_tick(fixture, HOUR_MS);
    }
    assert_int_equal(fake_run_count, 2);
    assert_string_equal(run->stop, "");
    assert_true(run->deadline_ms > clock_lease_ms() + HOUR_MS);
    fixture_close(fixture);
    fixture_open(fixture);
    fixture_round(fixture, "[]"); /* it moved while there was no agent */
    assert_string_equal(run->stop, "STOPPED");
}

static void test_a_spec_that_cannot_be_run(void **state)
{
    struct fixture *fixture = *state;

    fixture_round(fixture, "[{\"id\":\"web\",\"generation\":7,\"version\":5,\"spec\":{}}]");
    fence(fixture, HOUR_MS);
    assert_str(report_field(fixture, "state"), "refused");
    assert_has(report_field(fixture, "reason"), "command");
    assert_str(report_field(fixture, "generation"),
               "7"); /* of this assignment, or the server would ignore it */
    assert_str(report_field(fixture, "version"), "5");
    fixture_round(fixture, "[" ROW("web", 7, 6) "]");
    up(fixture, "web");
    fixture_round(fixture, "[{\"id\":\"web\",\"generation\":7,\"version\":7,\"spec\":{}}]");
    fixture_tick(fixture, HOUR_MS);
    assert_string_equal(fixture_run("web")->stop, ""); /* the running copy stays */
    assert_str(report_field(fixture, "state"), "updating");
    assert_has(report_field(fixture, "reason"), "command");
    fixture_round(fixture, "[{\"id\":\"web\",\"generation\":8,\"version\":7,\"spec\":{}}]");
    assert_string_equal(fixture_run("web")->stop, "REPLACED"); /* the assignment has changed */
}

static void test_health_by_command(void **state)
{
    struct fixture *fixture = *state;

    fixture_round(fixture, CHECKED("\"command\":[\"probe\"]"));
    fence(fixture, HOUR_MS);
    up(fixture, "web");
    fixture_tick(fixture, 0);
    fixture_tick(fixture, 999);
    assert_null(newest("h."));
    assert_str(report_field(fixture, "healthy"), "null"); /* not known yet */
    fixture_tick(fixture, 1);
    assert_non_null(newest("h."));
    assert_non_null(strstr(newest("h.")->env, "BERTH_DEPLOYMENT_ID=web"));
    fake_run_end(newest("h.")->key, "EXITED", 0, -1, "");
    assert_str(report_field(fixture, "healthy"), "true");
    for (int i = 0; i < 2; i++) {
        fixture_tick(fixture, 1000);
        assert_string_equal(fixture_run("web")->stop, "");
        fake_run_end(newest("h.")->key, "EXITED", 1, -1, "");
        assert_str(report_field(fixture, "healthy"), "false");
    }
    assert_string_equal(fixture_run("web")->stop, "UNHEALTHY");
    fake_run_end(fixture_run("web")->key, "UNHEALTHY", -1, 15, "");
    assert_str(report_field(fixture, "state"), "backoff"); /* as after a crash */
    for (int i = 0; i < fake_run_count; i++)
        assert_true(fake_runs[i].key[0] != 'h' || !fake_runs[i].there);
}

static void fail_check(struct fixture *fixture)
{
    fixture_tick(fixture, 1000);
    assert_non_null(newest("h."));
    fake_run_end(newest("h.")->key, "EXITED", 1, -1, "");
}

/* The reason has the output of the check, while it fails and after the restart it caused. */
static void test_why_it_is_not_well(void **state)
{
    struct fixture *fixture = *state;

    fixture_round(fixture, CHECKED("\"command\":[\"probe\"]"));
    fence(fixture, HOUR_MS);
    up(fixture, "web");
    fixture_tick(fixture, 0);
    for (int i = 0; i < 2; i++) {
        fixture_tick(fixture, 1000);
        fake_run_end(newest("h.")->key, "EXITED", 1, -1, "one\nno route\n");
        assert_has(report_field(fixture, "reason"), "no route");
    }
    fake_run_end(fixture_run("web")->key, "UNHEALTHY", -1, 15, "");
    assert_str(report_field(fixture, "state"), "backoff");
    assert_has(report_field(fixture, "reason"), "no route");
    fixture_tick(fixture, 5000);
    up(fixture, "web");
    assert_has(report_field(fixture, "reason"), "no route"); /* why it was restarted */
    fixture_round(fixture, "[" ROW("web", 1, 2) "]");
    fake_run_end(fixture_run("web")->key, "REPLACED", -1, 15, "");
    fixture_tick(fixture, 0); /* a failed check is no crash, so there is no pause */
    assert_int_equal(fixture_alive("web"), 1);
}

static void answer(struct fixture *fixture, const char *reply)
{
    copies_told(fixture->copies, fixture_json(fixture, str_of(reply)));
    fixture_tick(fixture, 0);
}

static void test_a_daemon_waits_for_its_turn(void **state)
{
    struct fixture *fixture = *state;
    struct fake_run *old;

    fixture_round(fixture, "[" DAEMON("web", 1) "]");
    old = up(fixture, "web");
    answer(fixture, "{\"stale\":[]}"); /* a reply to a status that did not ask */
    fixture_round(fixture, "[" DAEMON("web", 2) "]");
    fixture_tick(fixture, 100);
    assert_string_equal(old->stop, "");
    assert_str(report_field(fixture, "wants"), "2");
    answer(fixture, "{\"waits\":[{\"id\":\"web\",\"reason\":\"Not on n0 yet.\"}]}");
    assert_string_equal(old->stop, "");
    assert_str(report_field(fixture, "state"), "updating");
    assert_str(report_field(fixture, "reason"), "Not on n0 yet.");
    assert_str(report_field(fixture, "wants"), "null"); /* not in every status */
    answer(fixture, "{\"waits\":[]}");
    assert_string_equal(old->stop, "");
    fixture_tick(fixture, 1000);
    assert_str(report_field(fixture, "wants"), "2");
    /* The answer was lost, and this status does not ask. */
    assert_str(report_field(fixture, "wants"), "null");
    answer(fixture, "{\"waits\":[]}");
    assert_string_equal(old->stop, "");
    fixture_tick(fixture, 1000);
    assert_str(report_field(fixture, "wants"), "2");
    fixture_round(fixture, "[" DAEMON("web", 3) "]"); /* the answer is about version 2 */
    answer(fixture, "{\"waits\":[]}");
    assert_string_equal(old->stop, "");
    fixture_tick(fixture, 1000);
    assert_str(report_field(fixture, "wants"), "3");
    answer(fixture, "{\"waits\":[]}");
    assert_string_equal(old->stop, "REPLACED");
}

/* While a copy starts, failed checks do not count for start_ms; once one has passed, all count. */
static void test_health_while_it_starts(void **state)
{
    struct fixture *fixture = *state;

    fixture_round(fixture, CHECKED("\"command\":[\"probe\"],\"start_ms\":5500"));
    fence(fixture, HOUR_MS);
    up(fixture, "web");
    fixture_tick(fixture, 0);
    for (int i = 0; i < 5; i++) {
        fail_check(fixture);
        assert_string_equal(fixture_run("web")->stop, "");
        assert_str(report_field(fixture, "healthy"), "null");
    }
    fail_check(fixture);
    assert_string_equal(fixture_run("web")->stop, "");
    fail_check(fixture);
    assert_string_equal(fixture_run("web")->stop, "UNHEALTHY");
}

static void test_health_that_passed_early_counts(void **state)
{
    struct fixture *fixture = *state;

    fixture_round(fixture, CHECKED("\"command\":[\"probe\"],\"start_ms\":\"1h\""));
    fence(fixture, HOUR_MS);
    up(fixture, "web");
    fixture_tick(fixture, 0);
    fail_check(fixture);
    fixture_tick(fixture, 1000);
    fake_run_end(newest("h.")->key, "EXITED", 0, -1, "");
    assert_str(report_field(fixture, "healthy"), "true");
    fail_check(fixture);
    fail_check(fixture);
    assert_string_equal(fixture_run("web")->stop, "UNHEALTHY");
}

static void test_health_by_http_when_nobody_answers(void **state)
{
    struct fixture *fixture = *state;

    fixture_round(fixture, CHECKED("\"http\":\"http://127.0.0.1:1/\""));
    fence(fixture, HOUR_MS);
    up(fixture, "web");
    for (int i = 0; i < 3; i++) {
        fixture_tick(fixture, 1000);
        await(&fixture->loop, !str_is(report_field(fixture, "state"), "running"));
        fixture_tick(fixture, 1000);
    }
    await(&fixture->loop, fixture_run("web")->stop[0]);
    assert_string_equal(fixture_run("web")->stop, "UNHEALTHY");
}

static void test_held(void **state)
{
    struct fixture *fixture = *state;
    const struct copy *held;

    fixture_round(fixture, "[" ROW("web", 4, 1) "]");
    fence(fixture, HOUR_MS);
    up(fixture, "web");
    assert_str(copies_first_owned(fixture->copies), "web");
    copies_set_hold(fixture->copies, STR("web"), COPY_DRAINED);
    assert_int_equal(copies_holding(fixture->copies, COPY_DRAINED), 1);
    assert_null(copies_first_owned(fixture->copies).at);
    fixture_tick(fixture, 100);
    assert_string_equal(fixture_run("web")->stop, "STOPPED");
    assert_null(copies_next_held(fixture->copies)); /* it still runs */
    fake_run_end(fixture_run("web")->key, "STOPPED", -1, 15, "");
    fixture_tick(fixture, HOUR_MS);
    assert_int_equal(fixture_alive("web"), 0);
    held = copies_next_held(fixture->copies);
    assert_non_null(held);
    assert_str(held->id, "web");
    assert_int_equal(held->generation, 4);
    copies_release_all(fixture->copies, COPY_DRAINED); /* the operator ended the drain */
    fixture_tick(fixture, 100);
    assert_int_equal(fixture_alive("web"), 1);
}

/* A copy that fails is held until it is given up or changed. */
static void test_held_because_it_fails(void **state)
{
    struct fixture *fixture = *state;
    const struct copy *held;

    fixture_round(fixture, "[" ROW("web", 4, 1) "]");
    fence(fixture, HOUR_MS);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(copies_failures(fixture->copies, STR("web")), i);
        up(fixture, "web");
        fake_run_end(fixture_run("web")->key, "EXITED", 127, -1, "no such program");
        fixture_tick(fixture, HOUR_MS);
    }
    copies_set_hold(fixture->copies, STR("web"), COPY_FAILING);
    fixture_tick(fixture, 100);
    if (fixture_alive("web"))
        fake_run_end(fixture_run("web")->key, "STOPPED", -1, 15, "");
    held = copies_next_held(fixture->copies);
    assert_non_null(held);
    assert_int_equal(held->held, COPY_FAILING);
    assert_true(held->held_reason[0]);
    fixture_round(fixture, "[" ROW("web", 4, 2) "]");
    assert_int_equal(copies_holding(fixture->copies, COPY_FAILING), 0);
    assert_int_equal(copies_failures(fixture->copies, STR("web")), 0);
    copies_set_hold(fixture->copies, STR("web"), COPY_FAILING);
    fixture_tick(fixture, 100);
    if (fixture_alive("web"))
        fake_run_end(fixture_run("web")->key, "STOPPED", -1, 15, "");
    ((struct copy *)map_get(&fixture->copies->by_id, STR("web")))->wanted = false;
    fixture_tick(fixture, 100);
    assert_int_equal(copies_count(fixture->copies), 0);
}

/* The status of many copies is written in pieces, each copy once. */
static void test_told_in_pieces(void **state)
{
    struct fixture *fixture = *state;
    struct buf text = {0};
    size_t from = 0, pieces = 0, reported_count = 0;

    fixture_round(fixture, "[" ROW("a", 1, 1) "," ROW("b", 1, 1) "," ROW("c", 1, 1) "]");
    do {
        struct jsonw w = jsonw_to(&text);

        buf_clear(&text);
        from = copies_write(fixture->copies, from, 2, &w);
        reported_count += fixture_json(fixture, buf_view(&text))->count;
        pieces++;
    } while (from > 0);
    assert_int_equal(pieces, 2);
    assert_int_equal(reported_count, 3);
    buf_free(&text);
}

#define POLICY(version, policy)                                                                    \
    "[{\"id\":\"web\",\"generation\":1,\"version\":" #version                                      \
    ",\"spec\":{\"command\":\"work\",\"restart\":{\"policy\":\"" policy "\"}}}]"

/* Which ends are final, by policy, reason and exit code. */
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
        {POLICY(1, "never"), "EMERGENCY", -1, "backoff"}, /* ended by berth */
        {POLICY(1, "never"), "DEADLINE", -1, "stopped"},
    };
    struct fixture *fixture = *state;

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        bool over = strcmp(rows[i].state, "finished") == 0 || strcmp(rows[i].state, "failed") == 0;

        fixture_round(fixture, rows[i].rows);
        fence(fixture, HOUR_MS);
        fake_run_end(up(fixture, "web")->key, rows[i].reason, rows[i].exit_code, -1, "");
        assert_str(report_field(fixture, "state"), rows[i].state);
        assert_str(report_field(fixture, "restarts"), over ? "0" : "1");
        fixture_tick(fixture, HOUR_MS);
        fixture_tick(fixture, HOUR_MS);
        assert_int_equal(fixture_alive("web"), !over);
        fixture_round(fixture, "[]"); /* removes the copy */
        if (!over)
            fake_run_end(fixture_run("web")->key, "STOPPED", -1, 15, "");
        fixture_tick(fixture, 0);
        fake_run_reset();
    }
}

/* A new agent or a new assignment does not start a finished copy again; another version does. */
static void test_what_is_over_stays_over(void **state)
{
    struct fixture *fixture = *state;
    struct fake_run *run;

    fixture_round(fixture, POLICY(1, "never"));
    fence(fixture, HOUR_MS);
    run = up(fixture, "web");
    fixture_close(fixture);
    fake_run_end(run->key, "EXITED", 0, -1, ""); /* while there is no agent */
    fixture_open(fixture);
    fixture_round(fixture, POLICY(1, "never"));
    fence(fixture, HOUR_MS);
    fixture_tick(fixture, HOUR_MS);
    assert_str(report_field(fixture, "state"), "finished");
    assert_str(report_field(fixture, "healthy"), "true");
    assert_int_equal(copies_count(fixture->copies), 0);
    assert_int_equal(fake_run_count, 1);
    fixture_round(fixture, POLICY(2, "never"));
    fence(fixture, HOUR_MS);
    assert_int_equal(fixture_alive("web"), 1);
}

/* The server remembers a finished copy for an agent that lost its files. */
static void test_the_server_says_it_is_over(void **state)
{
    struct fixture *fixture = *state;

    fixture_round(fixture, "[{\"id\":\"web\",\"generation\":1,\"version\":1,\"ended\":\"failed\","
                           "\"spec\":{\"command\":\"work\",\"restart\":{\"policy\":\"never\"}}}]");
    fence(fixture, HOUR_MS);
    fixture_tick(fixture, HOUR_MS);
    assert_int_equal(fake_run_count, 0);
    assert_str(report_field(fixture, "state"), "failed");
}

/* A copy with a limit that cannot be enforced runs without it, and reports that. */
static void test_limits_are_told(void **state)
{
    struct fixture *fixture = *state;

    fake_run_offered = (struct cgroup_place){.limits[CGROUP_CPU] = true, .missing = "no group"};
    fixture_round(fixture, "[" ROW("web", 1, 1) "," DAEMON("log", 1) "]");
    fence(fixture, HOUR_MS);
    assert_int_equal(fixture_run("web")->spec.memory_bytes_max, 0);
    assert_int_equal(fixture_run("web")->spec.cpu_permille_max, 500);
    assert_str(report_field(fixture, "limits"), "not enforced: memory_mb, pids (no group)");
    assert_str(report_field_of(fixture, "log", "limits"), "null"); /* has no limits */
    fake_run_offered = (struct cgroup_place){
        .limits[CGROUP_CPU] = true, .limits[CGROUP_MEMORY] = true, .limits[CGROUP_PIDS] = true};
    assert_str(report_field(fixture, "limits"), "enforced");
}

static void test_logs(void **state)
{
    struct fixture *fixture = *state;
    struct buf text = {0};
    int64_t offset, total;
    bool ended;
    struct fake_run *old;

    assert_int_equal(
        copies_log(fixture->copies, STR("web"), false, 0, 10, &text, &offset, &total, &ended),
        ERR_NOT_FOUND);
    fixture_round(fixture, "[" ROW("web", 1, 1) "]");
    fence(fixture, HOUR_MS);
    old = up(fixture, "web");
    fake_run_end(old->key, "EXITED", 1, -1, "");
    assert_int_equal(
        copies_log(fixture->copies, STR("web"), false, 0, 10, &text, &offset, &total, &ended),
        ERR_OK);
    assert_true(ended && str_is(buf_view(&text), old->key));
    fixture_tick(fixture, 1100);
    buf_clear(&text);
    copies_log(fixture->copies, STR("web"), false, 0, 10, &text, &offset, &total, &ended);
    assert_true(!ended && str_is(buf_view(&text), fixture_run("web")->key));
    buf_clear(&text);
    copies_log(fixture->copies, STR("web"), true, 0, 10, &text, &offset, &total, &ended);
    assert_true(ended && str_is(buf_view(&text), old->key));
    buf_free(&text);
}

#define COPY_TEST(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)

/* Each copy has a port of its own that is free, and keeps it across runs and agents. */
static void test_ports(void **state)
{
    struct fixture *fixture = *state;
    struct sockaddr_in any = {.sin_family = AF_INET};
    socklen_t len = sizeof any;
    int taken = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct fake_run *run;
    char web[32], next[32];

    /* A range with one port in use. */
    assert_int_equal(bind(taken, (struct sockaddr *)&any, sizeof any), 0);
    assert_int_equal(listen(taken, 1), 0);
    assert_int_equal(getsockname(taken, (struct sockaddr *)&any, &len), 0);
    fixture->config.port_min = ntohs(any.sin_port);
    fixture->config.port_max =
        fixture->config.port_min + 40 > 65535 ? 65535 : fixture->config.port_min + 40;
    fixture_round(fixture, "[" ROW("web", 1, 1) "," ROW("web#1", 1, 1) "]");
    copies_fence(fixture->copies, clock_lease_ms() + HOUR_MS, 1000);
    run = up(fixture, "web");
    assert_non_null(strstr(run->env, "BERTH_PORT="));
    assert_non_null(strstr(run->env, "BERTH_INDEX=0"));
    snprintf(web, sizeof web, "BERTH_PORT=%.5s", strstr(run->env, "BERTH_PORT=") + 11);
    snprintf(next, sizeof next, "BERTH_PORT=%d", ntohs(any.sin_port));
    assert_null(strstr(run->env, next));
    assert_true(str_eq(report_field(fixture, "port"), str_of(web + 11)));
    run = up(fixture, "web#1");
    assert_null(strstr(run->env, web));
    assert_non_null(strstr(run->env, "BERTH_INDEX=1"));
    assert_non_null(strstr(run->env, "BERTH_DEPLOYMENT_ID=web|"));
    fixture_close(fixture);
    fixture_open(fixture);
    fixture_round(fixture, "[" ROW("web", 1, 1) "," ROW("web#1", 1, 1) "]");
    copies_fence(fixture->copies, clock_lease_ms() + HOUR_MS, 1000);
    assert_true(str_eq(report_field(fixture, "port"), str_of(web + 11)));
    fake_run_end(fixture_run("web")->key, "EXITED", 1, -1, "");
    fixture_tick(fixture, HOUR_MS);
    run = up(fixture, "web");
    assert_non_null(strstr(run->env, web));
    close(taken);
}

#define NEEDY(generation, version, licences)                                                       \
    "[{\"id\":\"web\",\"generation\":" #generation ",\"version\":" #version                        \
    ",\"spec\":{\"command\":\"serve\",\"needs\":{\"licences\":" #licences "}}}]"

/* A copy's room is kept from before its first start to its end, also between two starts. */
static void test_room_is_kept(void **state)
{
    struct fixture *fixture = *state;

    fixture->licences = 3;
    fixture_round(fixture, NEEDY(1, 1, 2));
    fence(fixture, HOUR_MS);
    assert_int_equal(fixture->kept, 2);
    up(fixture, "web");
    fake_run_end(fixture_run("web")->key, "EXITED", 1, -1, "");
    assert_str(report_field(fixture, "state"), "backoff");
    assert_int_equal(fixture->kept, 2);
    fixture_tick(fixture, HOUR_MS);
    fence(fixture, HOUR_MS);
    up(fixture, "web");
    assert_int_equal(fixture->kept, 2);
    fixture_round(fixture, "[]");
    fixture_tick(fixture, 0);
    assert_int_equal(fixture->kept, 2); /* it still runs */
    fake_run_end(fixture_run("web")->key, "STOPPED", -1, 15, "");
    fixture_tick(fixture, 0);
    assert_int_equal(fixture->kept, 0);
}

/* Without room a copy waits, which is no failure; a running copy is not stopped for lack of
 * room. */
static void test_without_room(void **state)
{
    struct fixture *fixture = *state;

    fixture->licences = 3;
    fixture_round(fixture, NEEDY(1, 1, 4));
    fence(fixture, HOUR_MS);
    assert_null(fixture_run("web"));
    assert_str(report_field(fixture, "state"), "stopped");
    assert_str(report_field(fixture, "reason"), "This node has no room for it: licences: 3 free.");
    assert_int_equal(copies_failures(fixture->copies, STR("web")), 0);
    assert_true(copies_lacks(fixture->copies, STR("web"), 0));
    assert_false(copies_lacks(fixture->copies, STR("web"), 1500));
    fixture_tick(fixture, 2000);
    assert_true(copies_lacks(fixture->copies, STR("web"), 1500));
    fixture->licences = 4;
    fixture_tick(fixture, 2000);
    assert_non_null(fixture_run("web"));
    assert_false(copies_lacks(fixture->copies, STR("web"), 0));
    up(fixture, "web");
    fixture_round(fixture, NEEDY(1, 2, 5));
    fixture_tick(fixture, 2000);
    assert_str(report_field(fixture, "state"), "updating");
    assert_true(copies_lacks(fixture->copies, STR("web"), 0));
    assert_false(fixture_run("web")->run.state == RUN_STOPPING);
    assert_true(copies_lacks(fixture->copies, STR("web"), 1500));
    /* The next version counts from its own beginning how long it lacks room. */
    fixture_round(fixture, NEEDY(1, 3, 5));
    fixture_tick(fixture, 1000);
    assert_true(copies_lacks(fixture->copies, STR("web"), 0));
    assert_false(copies_lacks(fixture->copies, STR("web"), 1500));
    fixture->licences = 5; /* enough together with its own four */
    fixture_tick(fixture, 2000);
    assert_int_equal(fixture_run("web")->run.state, RUN_STOPPING);
    assert_int_equal(fixture->kept, 4);
    fake_run_end(fixture_run("web")->key, "STOPPED", -1, 15, "");
    fixture_tick(fixture, 2000);
    assert_int_equal(fixture->kept, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        COPY_TEST(test_ports),
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
        COPY_TEST(test_room_is_kept),
        COPY_TEST(test_without_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
