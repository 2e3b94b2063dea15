/* Breakers on their own: their number is bounded, and on any path there is only one probe of
 * each. */
#include "base/clock.h"
#include "base/mem.h"
#include "store/journal.h"

/* cmocka.h needs these first */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

static const struct breaker_rules rules = {.threshold = 3, .cooldown_ms = 1000, .probe_ms = 1000};

struct fixture {
    struct breakers breakers;
    struct journal journal; /* failed, so it accepts records and writes nothing */
    struct ledger_node holder;
    struct ledger_job entry;
    struct ledger_run run; /* the job's run */
};

static void set_up(struct fixture *fixture)
{
    *fixture = (struct fixture){.journal.fault.what = "there is no file"};
    breakers_init(&fixture->breakers, &rules);
    fixture->entry.run = &fixture->run;
    fixture->run.holder = &fixture->holder;
}

static enum breaker_event settle(struct fixture *fixture, const char *node, const char *type,
                                 enum breakers_verdict word, int64_t now_ms)
{
    str_copy(str_of(node), fixture->run.node, sizeof fixture->run.node);
    str_copy(str_of(type), fixture->entry.head.type, sizeof fixture->entry.head.type);
    return breakers_settle(&fixture->breakers, &fixture->journal, &fixture->entry, word, now_ms);
}

static bool allow(struct fixture *fixture, const char *node, const char *type, int64_t now_ms)
{
    struct breaker_entry *probe;

    return breakers_allow(&fixture->breakers, str_of(node), str_of(type), false, now_ms, &probe);
}

/* Names that look alike when joined are different breakers. */
static void test_names_are_told_apart(void **state)
{
    struct fixture fixture;

    set_up(&fixture);
    for (int i = 0; i < 3; i++)
        settle(&fixture, "n1", "1a", BREAKERS_BAD, 10);
    assert_false(allow(&fixture, "n1", "1a", 10));
    assert_true(allow(&fixture, "n11", "a", 10));
    assert_true(allow(&fixture, "n", "11a", 10));
    breakers_free(&fixture.breakers);
}

/* New types that fail on a node do not use unbounded memory; the breaker that changed longest ago
 * is dropped. */
static void test_bound(void **state)
{
    struct fixture fixture;
    char type[32];

    set_up(&fixture);
    settle(&fixture, "n1", "first", BREAKERS_BAD, 0);
    settle(&fixture, "n1", "second", BREAKERS_BAD, 0);
    settle(&fixture, "n1", "first", BREAKERS_BAD, 0);
    for (int i = 0; i < BREAKERS_MAX - 1; i++) {
        snprintf(type, sizeof type, "t%d", i);
        settle(&fixture, "n1", type, BREAKERS_BAD, i);
    }
    assert_int_equal(fixture.breakers.gates.count, BREAKERS_MAX);
    breakers_check(&fixture.breakers);
    assert_int_equal(settle(&fixture, "n1", "first", BREAKERS_BAD, 0), BREAKER_TRIPPED);
    assert_int_equal(settle(&fixture, "n1", "second", BREAKERS_BAD, 0), BREAKER_NO_EVENT);
    assert_int_equal(fixture.breakers.gates.count, BREAKERS_MAX);
    assert_int_equal(fixture.breakers.open_count, 1);
    breakers_check(&fixture.breakers);
    breakers_free(&fixture.breakers);
}

/* A breaker that is dropped for lack of room releases its probe. */
static void test_bound_with_a_probe(void **state)
{
    struct ledger_job *job = mem_new(struct ledger_job);
    struct ledger_run run = {0};
    struct fixture fixture;
    struct breaker_entry *probe;
    char type[32];

    set_up(&fixture);
    job->run = &run;
    run.holder = &fixture.holder;
    for (int i = 0; i < 3; i++)
        settle(&fixture, "n1", "talk", BREAKERS_BAD, 0);
    assert_true(breakers_allow(&fixture.breakers, STR("n1"), STR("talk"), false, rules.cooldown_ms,
                               &probe));
    assert_non_null(probe);
    breakers_probe(&fixture.breakers, &fixture.journal, probe, job, rules.cooldown_ms);
    assert_ptr_equal(job->run->probe, probe);
    for (int i = 0; i < BREAKERS_MAX; i++) {
        snprintf(type, sizeof type, "t%d", i);
        settle(&fixture, "n1", type, BREAKERS_BAD, i);
    }
    assert_null(job->run->probe);
    breakers_check(&fixture.breakers);
    breakers_free(&fixture.breakers);
    free(job);
}

enum { JOBS = 8 };

struct run {
    struct ledger_job jobs[JOBS];
    struct ledger_run runs[JOBS];
    bool busy[JOBS];
};

/* One random event; the invariants are checked after each. */
static void random_step(struct fixture *fixture, struct run *run, struct rnd *rnd, int64_t now_ms)
{
    uint32_t at = rnd_below(rnd, JOBS);
    struct ledger_job *job = &run->jobs[at];
    struct breaker_entry *probe;

    if (run->busy[at]) {
        if (rnd_below(rnd, 4) == 0)
            breakers_release(job); /* the lease ran out before the job ended */
        breakers_settle(&fixture->breakers, &fixture->journal, job,
                        (enum breakers_verdict)rnd_below(rnd, 3), now_ms);
        assert_null(job->run->probe);
        run->busy[at] = false;
        return;
    }
    str_copy(STR("n1"), job->run->node, sizeof job->run->node);
    str_copy(STR("talk"), job->head.type, sizeof job->head.type);
    if (!breakers_allow(&fixture->breakers, STR("n1"), STR("talk"), false, now_ms, &probe))
        return;
    run->busy[at] = true;
    job->run->holder = &fixture->holder;
    job->run->dispatched_ms = now_ms;
    if (probe)
        breakers_probe(&fixture->breakers, &fixture->journal, probe, job, now_ms);
}

static void test_any_path(void **state)
{
    struct rnd rnd;
    int probes = 0;

    rnd_seed(&rnd, 7);
    for (int i = 0; i < 200; i++) {
        struct run run = {0};
        struct fixture fixture;
        int64_t now_ms = 0;

        set_up(&fixture);
        for (int k = 0; k < JOBS; k++)
            run.jobs[k].run = &run.runs[k];
        for (int j = 0; j < 500; j++) {
            int out = 0;

            now_ms += rnd_below(&rnd, 200);
            random_step(&fixture, &run, &rnd, now_ms);
            for (int k = 0; k < JOBS; k++)
                out += run.runs[k].probe != NULL;
            assert_in_range(out, 0, 1);
            probes += out;
            breakers_check(&fixture.breakers);
        }
        /* Without probes or failures it always recovers after the cooldown. */
        for (int k = 0; k < JOBS; k++)
            breakers_settle(&fixture.breakers, &fixture.journal, &run.jobs[k], BREAKERS_NOTHING,
                            now_ms);
        assert_true(allow(&fixture, "n1", "talk", now_ms + rules.cooldown_ms));
        breakers_free(&fixture.breakers);
    }
    assert_true(probes > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_are_told_apart),
        cmocka_unit_test(test_bound),
        cmocka_unit_test(test_bound_with_a_probe),
        cmocka_unit_test(test_any_path),
    };

    return cmocka_run_group_tests_name("store/breakers", tests, NULL, NULL);
}
