/* Refused calls: a few of each caller are noted, the rest is counted, and none is lost. */
#include "../unit.h"

#include "base/log.h"
#include "server/guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX = 3 };

/* A server with nothing but its main thread's inbox and one loop, both run by hand. */
struct fixture {
    struct server server;
    struct worker worker;
    struct audit_query query;
    struct arena arena;
};

static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);

    fixture->worker.server = &fixture->server;
    fixture->worker.refusals = refusals_new();
    fixture->worker.loop.mono_ms = 1000000;
    fixture->server.audit = audit_open(STR("/proc/nowhere"));
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;

    audit_free(fixture->server.audit);
    buf_free(&fixture->query.answer);
    arena_free(&fixture->arena);
    free(fixture->worker.refusals);
    free(fixture);
    return 0;
}

static void refuse(struct fixture *fixture, uint64_t caller, int times)
{
    struct audit_entry entry = {
        .at_ms = 1, .kind = AUDIT_REFUSED, .count = 1, .action = "nodes.drain", .peer = "here"};

    snprintf(entry.who, sizeof entry.who, "t%d", (int)caller);
    for (int i = 0; i < times; i++)
        refusals_note(&fixture->worker, caller, MAX, &entry);
}

static void pass(struct fixture *fixture, int64_t ms)
{
    fixture->worker.loop.mono_ms += ms;
    refusals_tick(&fixture->worker);
}

static void over(struct audit_request *request)
{
}

/* The entries of a caller (NULL: of all), newest first. */
static const struct json *entries(struct fixture *fixture, const char *who)
{
    const struct json *root;

    buf_free(&fixture->query.answer);
    fixture->query = (struct audit_query){.request = {.from = &fixture->worker, .done = over},
                                          .max = 1000,
                                          .who = who ? str_of(who) : STR_NONE};
    audit_ask(&fixture->query);
    while (audit_run(&fixture->server))
        ;
    inbox_run(&fixture->worker.loop.inbox);
    assert_int_equal(json_parse(buf_view(&fixture->query.answer), &fixture->arena, &root, NULL),
                     ERR_OK);
    return json_get(root, "audit");
}

static int64_t calls(const struct json *list)
{
    const struct json *item = json_first(list);
    int64_t sum = 0, count;

    for (uint32_t i = 0; i < list->count; i++, item = json_next(item)) {
        assert_true(json_int(json_get(item, "count"), &count));
        sum += count;
    }
    return sum;
}

static void a_budget_and_a_number(void **state)
{
    struct fixture *fixture = *state;

    refuse(fixture, 1, MAX);
    refuse(fixture, 2, 1);
    assert_int_equal(entries(fixture, "t1")->count, MAX);
    refuse(fixture, 1, 1000);
    pass(fixture, REFUSALS_WINDOW_MS - 1);
    assert_int_equal(entries(fixture, "t1")->count, MAX);
    pass(fixture, 1);
    assert_int_equal(entries(fixture, "t1")->count, MAX + 1);
    assert_int_equal(calls(entries(fixture, "t1")), MAX + 1000);
    assert_int_equal(entries(fixture, "t2")->count, 1);
    refuse(fixture, 1, 1); /* its budget is full again */
    assert_int_equal(entries(fixture, "t1")->count, MAX + 2);
    pass(fixture, REFUSALS_WINDOW_MS);
    assert_int_equal(calls(entries(fixture, NULL)), MAX + 1000 + 2);
}

static void more_callers_than_places(void **state)
{
    struct fixture *fixture = *state;
    const int callers = REFUSALS_CALLERS_MAX + 100, times = MAX + 2;

    for (int i = 1; i <= callers; i++)
        refuse(fixture, (uint64_t)i, times);
    refusals_flush(&fixture->worker);
    assert_int_equal(calls(entries(fixture, NULL)), callers * times);
    assert_int_equal(entries(fixture, NULL)->count, REFUSALS_CALLERS_MAX * (MAX + 1));
    const struct json *last = json_first(entries(fixture, NULL));
    assert_true(json_is_null(json_get(last, "who")) && json_is_null(json_get(last, "peer")));
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        ROW(a_budget_and_a_number),
        ROW(more_callers_than_places),
    };

    log_setup(LOG_ERROR, LOG_LOGFMT, STDERR_FILENO);
    return cmocka_run_group_tests_name("server/refusals", tests, NULL, NULL);
}
