/* Refused calls: a few of each caller are noted, the rest is told as one number, none is lost. */
#include "../unit.h"

#include "base/log.h"
#include "server/guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX = 3 };

/* A server that has nothing but its main thread's inbox and one loop, both run by hand. */
struct rig {
    struct server server;
    struct worker worker;
    struct audit_query query;
    struct arena arena;
};

static int setup(void **state)
{
    struct rig *rig = calloc(1, sizeof *rig);

    rig->worker.server = &rig->server;
    rig->worker.refusals = refusals_new();
    rig->worker.loop.mono_ms = 1000000;
    rig->server.audit = audit_open(STR("/proc/nowhere"));
    *state = rig;
    return 0;
}

static int teardown(void **state)
{
    struct rig *rig = *state;

    audit_free(rig->server.audit);
    buf_free(&rig->query.answer);
    arena_free(&rig->arena);
    free(rig->worker.refusals);
    free(rig);
    return 0;
}

static void refuse(struct rig *rig, uint64_t caller, int times)
{
    struct audit_entry entry = {
        .at_ms = 1, .kind = AUDIT_REFUSED, .count = 1, .action = "nodes.drain", .peer = "here"};

    snprintf(entry.who, sizeof entry.who, "t%d", (int)caller);
    for (int i = 0; i < times; i++)
        refusals_note(&rig->worker, caller, MAX, &entry);
}

static void pass(struct rig *rig, int64_t ms)
{
    rig->worker.loop.mono_ms += ms;
    refusals_tick(&rig->worker);
}

static void over(struct audit_query *query)
{
}

/* The entries of a caller (NULL: of all), newest first. */
static const struct json *told(struct rig *rig, const char *who)
{
    const struct json *root;

    buf_free(&rig->query.answer);
    rig->query = (struct audit_query){.request.from = &rig->worker,
                                      .max = 1000,
                                      .who = who ? str_of(who) : STR_NONE,
                                      .done = over};
    audit_ask(&rig->query);
    while (audit_run(&rig->server))
        ;
    inbox_run(&rig->worker.loop.inbox);
    assert_int_equal(json_parse(buf_view(&rig->query.answer), &rig->arena, &root, NULL), ERR_OK);
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
    struct rig *rig = *state;

    refuse(rig, 1, MAX);
    refuse(rig, 2, 1);
    assert_int_equal(told(rig, "t1")->count, MAX);
    refuse(rig, 1, 1000);
    pass(rig, REFUSALS_WINDOW_MS - 1);
    assert_int_equal(told(rig, "t1")->count, MAX);
    pass(rig, 1);
    assert_int_equal(told(rig, "t1")->count, MAX + 1);
    assert_int_equal(calls(told(rig, "t1")), MAX + 1000);
    assert_int_equal(told(rig, "t2")->count, 1);
    refuse(rig, 1, 1); /* its budget is whole again */
    assert_int_equal(told(rig, "t1")->count, MAX + 2);
    pass(rig, REFUSALS_WINDOW_MS);
    assert_int_equal(calls(told(rig, NULL)), MAX + 1000 + 2);
}

static void more_callers_than_places(void **state)
{
    struct rig *rig = *state;
    const int callers = REFUSALS_CALLERS_MAX + 100, times = MAX + 2;

    for (int i = 1; i <= callers; i++)
        refuse(rig, (uint64_t)i, times);
    refusals_tell(&rig->worker);
    assert_int_equal(calls(told(rig, NULL)), callers * times);
    assert_int_equal(told(rig, NULL)->count, REFUSALS_CALLERS_MAX * (MAX + 1));
    const struct json *last = json_first(told(rig, NULL));
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
