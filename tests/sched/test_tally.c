/* Tallies: times in few numbers, bounded rows, saving and reading, and old hours that are
 * dropped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "sched/tally.h"

static void test_percentiles_are_near(void **state)
{
    static const struct {
        int64_t from, to; /* ms, each value once */
    } rows[] = {{1, 100}, {1, 1}, {5, 5}, {1000, 3000}, {60000, 61000}, {3600000, 3601000}};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct tally_times times = {0};

        for (int64_t ms = rows[i].from; ms <= rows[i].to; ms++)
            tally_time(&times, ms);
        for (int percent = 50; percent <= 95; percent += 45) {
            int64_t exact = rows[i].from + (rows[i].to - rows[i].from) * percent / 100;
            int64_t told = tally_percentile(&times, percent);

            assert_in_range(told, exact - exact / 5 - 1, exact + exact / 5 + 1);
        }
    }
}

static void test_times_at_the_edges(void **state)
{
    struct tally_times times = {0};

    assert_int_equal(tally_percentile(&times, 50), -1);
    tally_time(&times, -7); /* from clocks that disagree */
    tally_time(&times, 0);
    assert_int_equal(tally_percentile(&times, 95), 1);
    memset(&times, 0, sizeof times);
    tally_time(&times, INT64_MAX);
    assert_true(tally_percentile(&times, 50) > 24 * 3600 * 1000);
}

static void count(struct tally *tally, const char *node, const char *type, uint32_t done)
{
    struct tally_work *work = tally_work(tally, str_of(node), str_of(type));

    work->counts[TALLY_DONE] += done;
    for (uint32_t i = 0; i < done; i++)
        tally_time(&work->run, 10);
}

static uint64_t all_done(const struct tally *tally)
{
    const struct tally_work *work;
    uint64_t sum = 0;

    for (size_t at = 0; (work = map_next(&tally->works, &at));)
        sum += work->counts[TALLY_DONE];
    return sum;
}

/* The number of rows is bounded, and no count is lost. */
static void test_rows_are_bounded(void **state)
{
    struct tally *tally = tally_new();
    char name[32];

    for (int i = 0; i < 3 * TALLY_WORKS_MAX; i++) {
        snprintf(name, sizeof name, "node-%d", i);
        count(tally, name, "dev", 1);
    }
    for (int i = 0; i < 2 * TALLY_REFUSALS_MAX; i++) {
        snprintf(name, sizeof name, "REASON_%d", i);
        tally_refuse(tally, STR_NONE, STR("dev"), str_of(name), 1);
    }
    for (int i = 0; i < 2 * TALLY_MACHINES_MAX; i++) {
        snprintf(name, sizeof name, "node-%d", i);
        tally_machine(tally, str_of(name))->used_ms++;
    }
    assert_int_equal(tally->works.count, TALLY_WORKS_MAX);
    assert_int_equal(tally->refusals.count, TALLY_REFUSALS_MAX);
    assert_int_equal(tally->machines.count, TALLY_MACHINES_MAX);
    assert_int_equal(all_done(tally), 3 * TALLY_WORKS_MAX);
    assert_int_equal(tally_work(tally, STR("other"), STR("other"))->counts[TALLY_DONE],
                     2 * TALLY_WORKS_MAX + 1);
    tally_free(tally);
}

static void test_names_that_are_none(void **state)
{
    struct tally *tally = tally_new();

    count(tally, "", "a b", 1);
    count(tally, "x\ny", "", 2);
    assert_int_equal(tally_work(tally, STR("-"), STR("other"))->counts[TALLY_DONE], 1);
    assert_int_equal(tally_work(tally, STR("other"), STR("-"))->counts[TALLY_DONE], 2);
    tally_free(tally);
}

static struct tally *example(void)
{
    struct tally *tally = tally_new();

    count(tally, "us", "dev", 3);
    count(tally, "hk", "talk", 1);
    tally_work(tally, STR("us"), STR("dev"))->counts[TALLY_KILLS] = 2;
    tally_time(&tally_work(tally, STR("us"), STR("dev"))->wait, 250);
    tally_machine(tally, STR("us"))->level_ms[LEVEL_DANGER] = 1234;
    tally_machine(tally, STR("us"))->level_ms[TALLY_OFFLINE] = 5;
    tally_machine(tally, STR("us"))->max_ms = 99;
    tally_refuse(tally, STR("us"), STR("dev"), STR("FULL"), 7);
    tally_refuse(tally, STR_NONE, STR("f2f"), STR("NO_CAPABLE_NODE"), 2);
    return tally;
}

static void load_all(struct tally *tally, struct str rest)
{
    while (rest.len > 0)
        assert_int_equal(tally_load(tally, str_cut(&rest, '\n')), ERR_OK);
}

static void test_what_is_saved_is_read(void **state)
{
    struct tally *tally = example(), *again = tally_new();
    struct buf text = {0}, second = {0};

    tally_save(tally, &text);
    load_all(again, buf_view(&text));
    tally_save(again, &second);
    assert_int_equal(text.len, second.len); /* perhaps in another order */
    const struct tally_work *work = tally_work(again, STR("us"), STR("dev"));
    assert_memory_equal(work->counts, tally_work(tally, STR("us"), STR("dev"))->counts,
                        sizeof work->counts);
    assert_memory_equal(&work->wait, &tally_work(tally, STR("us"), STR("dev"))->wait,
                        sizeof work->wait);
    assert_int_equal(tally_machine(again, STR("us"))->level_ms[LEVEL_DANGER], 1234);
    assert_int_equal(tally_machine(again, STR("us"))->level_ms[TALLY_OFFLINE], 5);
    load_all(again, buf_view(&text)); /* a second load adds up */
    assert_int_equal(tally_work(again, STR("us"), STR("dev"))->counts[TALLY_DONE], 6);
    buf_free(&text);
    buf_free(&second);
    tally_free(tally);
    tally_free(again);
}

/* An older release counted only attempts: two of three failed ones were retried. */
static void test_lines_of_an_older_release(void **state)
{
    struct tally *tally = tally_new();
    const struct tally_work *work;

    load_all(tally, STR("{\"work\":[\"us\",\"dev\"],\"succeeded\":4,\"failed\":3,\"cancelled\":1,"
                        "\"retried\":2,\"wait\":[],\"run\":[]}\n"));
    work = tally_work(tally, STR("us"), STR("dev"));
    assert_int_equal(work->counts[TALLY_ATTEMPTS], 8);
    assert_int_equal(work->counts[TALLY_FAILED], 1);
    load_all(tally, STR("{\"work\":[\"us\",\"dev\"],\"failed\":1,\"attempts\":3,\"retried\":2}"));
    assert_int_equal(work->counts[TALLY_ATTEMPTS], 11);
    assert_int_equal(work->counts[TALLY_FAILED], 2);
    tally_free(tally);
}

static void test_lines_nobody_wrote(void **state)
{
    static const char *const bad[] = {"",
                                      "{",
                                      "[]",
                                      "null",
                                      "{\"work\":[\"us\"]}",
                                      "{\"work\":\"us\"}",
                                      "{\"work\":[1,2]}",
                                      "{\"machine\":[]}",
                                      "{\"refusal\":[\"a\",\"b\"]}",
                                      "{\"other\":[\"a\"]}"};
    static const char *const odd[] = {
        "{\"work\":[\"us\",\"dev\"],\"succeeded\":-4,\"run\":[[99,1],[1],[0,-1],\"x\",[2,3.5]]}",
        "{\"machine\":[\"us\"],\"normal\":\"long\",\"later\":{\"more\":1}}"};
    struct tally *tally = tally_new();

    for (size_t i = 0; i < COUNT_OF(bad); i++)
        assert_int_not_equal(tally_load(tally, str_of(bad[i])), ERR_OK);
    assert_true(tally_is_empty(tally));
    for (size_t i = 0; i < COUNT_OF(odd); i++)
        assert_int_equal(tally_load(tally, str_of(odd[i])), ERR_OK);
    assert_int_equal(all_done(tally), 0);
    assert_int_equal(tally_percentile(&tally_work(tally, STR("us"), STR("dev"))->run, 50), -1);
    tally_free(tally);
}

static void test_merge(void **state)
{
    struct tally *sum = example(), *more = example();

    tally_merge(sum, more);
    assert_int_equal(all_done(sum), 8);
    assert_int_equal(tally_machine(sum, STR("us"))->max_ms, 198);
    assert_int_equal(sum->refusals.count, 2);
    tally_free(more);
    tally_free(sum);
}

/* Two instances count different ends, but observe the same machines. */
static void test_merge_of_another_instance(void **state)
{
    struct tally *sum = example(), *other = example();
    struct tally_machine *machine = tally_machine(other, STR("us"));

    tally_machine(other, STR("eu"))->level_ms[LEVEL_NORMAL] = 3;
    tally_merge_other(sum, other);
    assert_int_equal(all_done(sum), 8);
    assert_int_equal(tally_machine(sum, STR("us"))->level_ms[LEVEL_DANGER], 1234);
    assert_int_equal(tally_machine(sum, STR("us"))->max_ms, 99);
    assert_int_equal(tally_machine(sum, STR("eu"))->level_ms[LEVEL_NORMAL], 3);
    machine->level_ms[LEVEL_NORMAL] = 1; /* observed for longer */
    machine->max_ms = 100;
    tally_merge_other(sum, other);
    assert_int_equal(tally_machine(sum, STR("us"))->max_ms, 100);
    tally_free(other);
    assert_string_equal(tally_machine(sum, STR("eu"))->node.at, "eu"); /* a copy of its own */
    tally_free(sum);
}

static uint64_t done_since(struct hours *hours, int64_t since_ms, int64_t until_ms)
{
    struct tally *sum = hours_sum(hours, since_ms, until_ms);
    uint64_t done = all_done(sum);

    tally_free(sum);
    return done;
}

static void test_hours(void **state)
{
    static struct hours hours;
    const int64_t base_ms = 480000LL * HOUR_MS;

    for (int i = 0; i < HOURS_MAX + 10; i++)
        count(hours_at(&hours, base_ms + (int64_t)i * HOUR_MS + 5), "us", "dev", 1);
    int64_t now_ms = base_ms + (HOURS_MAX + 9LL) * HOUR_MS + 5;
    assert_int_equal(done_since(&hours, 0, now_ms), HOURS_MAX);
    assert_int_equal(done_since(&hours, now_ms, now_ms), 1);
    assert_int_equal(done_since(&hours, now_ms - HOUR_MS, now_ms), 2);
    assert_int_equal(done_since(&hours, now_ms - 24LL * HOUR_MS, now_ms), 25);
    assert_null(hours_at(&hours, base_ms)); /* a clock that went back a week */
    hours_tidy(&hours, now_ms + 100LL * HOUR_MS);
    assert_int_equal(done_since(&hours, 0, now_ms), HOURS_MAX - 100);
    hours_free(&hours);
}

/* A day of the largest hours fits; beyond that the oldest are dropped. */
static void test_hours_are_bounded(void **state)
{
    static struct hours hours;
    char name[32];

    for (int h = 0; h < 30; h++) {
        struct tally *tally = hours_at(&hours, h * (int64_t)HOUR_MS);

        for (int i = 0; i < TALLY_WORKS_MAX; i++) {
            snprintf(name, sizeof name, "node-%d", i);
            count(tally, name, "dev", 1);
        }
        hours_tidy(&hours, h * (int64_t)HOUR_MS);
    }
    assert_int_equal(hours.works, HOURS_WORKS_MAX);
    assert_null(hours.ring[4].tally);
    assert_non_null(hours.ring[5].tally);
    hours_free(&hours);
}

/* Notes an attempt that ran for `ms` with this demand. */
static void ran(struct tally *tally, const char *demand, int64_t ms, enum store_outcome outcome)
{
    struct sched_loop loop = {.tally = tally};
    struct store_op op = {.verb = STORE_FINISH, .node = STR("us")};

    op.u.settle.outcome = outcome;
    op.u.settle.ended_lease = true;
    op.u.settle.demand = str_of(demand);
    op.head.state = outcome == STORE_DONE ? JOB_DONE : JOB_RETRYING;
    op.head.attempt = 1;
    op.head.acked_ms = 1000;
    op.head.updated_ms = 1000 + ms;
    str_copy(STR("dev"), op.head.type, sizeof op.head.type);
    tally_note_end(&loop, &op, false);
}

static void assert_usage(const struct tally_usage *usage, int64_t runs,
                         const int64_t amounts[TALLY_AMOUNTS], int64_t seats)
{
    assert_int_equal(usage->runs, runs);
    for (int i = 0; i < TALLY_AMOUNTS; i++)
        assert_int_equal(usage->amount_ms[i], amounts[i]);
    assert_int_equal(usage->others ? usage->others->amount_ms : 0, seats);
}

#define AMOUNTS(...) ((const int64_t[TALLY_AMOUNTS]){__VA_ARGS__})

static const struct tally_usage *of_key(struct tally *tally, const char *key)
{
    return &tally_key(tally, str_of(key), STR("dev"))->usage;
}

static void assert_used(struct tally *tally, int64_t times)
{
    const struct tally_work *work = tally_work(tally, STR("us"), STR("dev"));

    assert_usage(&work->keyless, 2 * times, AMOUNTS(15 * times, 35 * times, 0, 0, 0, 0), 0);
    assert_usage(&work->keyed, 3 * times,
                 AMOUNTS(2100 * times, 3100 * times, 1500000 * times, 512000 * times, 200 * times,
                         700000 * times),
                 3000 * times);
    assert_usage(
        of_key(tally, "tenant:acme"), 2 * times,
        AMOUNTS(1100 * times, 2100 * times, 1500000 * times, 512000 * times, 200 * times, 0),
        3000 * times);
    assert_usage(
        of_key(tally, "a:1"), 2 * times,
        AMOUNTS(2000 * times, 3000 * times, 1500000 * times, 512000 * times, 0, 700000 * times),
        3000 * times);
    assert_int_equal(tally->keys.count, 2);
}

/* Demands are multiplied by the time they were held; a job counts for each of its keys. */
static void test_usage(void **state)
{
    struct tally *tally = tally_new(), *again = tally_new();
    struct buf text = {0};

    ran(tally, NULL, 5, STORE_DONE);
    ran(tally, "3 0 0  ", 10, STORE_FAIL);
    ran(tally, "2 0 0 cpu=1500,mem_mb=512,seats=3 tenant:acme,a:1", 1000, STORE_FAIL);
    /* Whole GPUs: their memory is not counted. */
    ran(tally, "1 2 9000  tenant:acme", 100, STORE_DONE);
    ran(tally, "1 0 700  a:1", 1000, STORE_EXPIRE);
    ran(tally, "not a demand", -3, STORE_REFUSED); /* a refusal uses nothing */
    assert_used(tally, 1);
    tally_save(tally, &text);
    load_all(again, buf_view(&text));
    assert_used(again, 1);
    tally_merge(again, tally);
    assert_used(again, 2);
    buf_free(&text);
    tally_free(tally);
    assert_used(again, 2); /* does not share memory with the freed one */
    tally_free(again);
}

/* Sums stop at the largest number, rows at their limits. */
static void test_usage_is_bounded(void **state)
{
    static struct hours hours;
    struct tally *tally = tally_new();
    char text[64];

    for (int i = 0; i < 3; i++)
        ran(tally, "1 0 0 mem_mb=1000000000 a:1", INT64_MAX / 2, STORE_DONE);
    assert_true(of_key(tally, "a:1")->amount_ms[TALLY_MEM_MB] == INT64_MAX);
    assert_true(of_key(tally, "a:1")->amount_ms[TALLY_RUN_MS] == INT64_MAX);
    for (int i = 0; i < TALLY_OTHERS_MAX + 9; i++) {
        snprintf(text, sizeof text, "1 0 0 r%d=1 a:2", i);
        ran(tally, text, 1, STORE_DONE);
    }
    int others = 0;
    for (const struct tally_other *at = of_key(tally, "a:2")->others; at; at = at->next)
        others++;
    assert_int_equal(others, TALLY_OTHERS_MAX);
    assert_int_equal(of_key(tally, "a:2")->runs, TALLY_OTHERS_MAX + 9);
    for (int i = 0; i < 2 * TALLY_KEYS_MAX; i++) {
        snprintf(text, sizeof text, "1 0 0  k:%d", i);
        ran(tally, text, 1, STORE_DONE);
    }
    assert_int_equal(tally->keys.count, TALLY_KEYS_MAX);
    assert_int_equal(tally_key(tally, STR("other"), STR("other"))->usage.runs,
                     2 * TALLY_KEYS_MAX - (TALLY_KEYS_MAX - 3));
    for (int h = 0; h < 30; h++) {
        tally_merge(hours_at(&hours, h * (int64_t)HOUR_MS), tally);
        hours_tidy(&hours, h * (int64_t)HOUR_MS);
    }
    assert_in_range(hours.keys, HOURS_KEYS_MAX - TALLY_KEYS_MAX, HOURS_KEYS_MAX);
    assert_null(hours.ring[4].tally);
    assert_non_null(hours.ring[5].tally);
    hours_free(&hours);
    tally_free(tally);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_percentiles_are_near),
        cmocka_unit_test(test_times_at_the_edges),
        cmocka_unit_test(test_rows_are_bounded),
        cmocka_unit_test(test_names_that_are_none),
        cmocka_unit_test(test_what_is_saved_is_read),
        cmocka_unit_test(test_lines_of_an_older_release),
        cmocka_unit_test(test_lines_nobody_wrote),
        cmocka_unit_test(test_merge),
        cmocka_unit_test(test_merge_of_another_instance),
        cmocka_unit_test(test_hours),
        cmocka_unit_test(test_hours_are_bounded),
        cmocka_unit_test(test_usage),
        cmocka_unit_test(test_usage_is_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
