/* Thinned event streams: the last event of each job, in order, bounded. */
#include "../unit.h"

#include <stdlib.h>

#include "server/events.h"

static struct frame *frame(int64_t seq, uint64_t job)
{
    struct frame *made = calloc(1, sizeof *made);

    made->seq = seq;
    made->job = job;
    atomic_store(&made->refs, 1);
    return made;
}

/* Adds a frame and drops its own reference, as the event stream does. */
static void add(struct latest *latest, int64_t seq, uint64_t job)
{
    struct frame *made = frame(seq, job);

    latest_add(latest, made);
    frame_unref(made);
}

static void test_the_last_of_each_job_in_order(void **state)
{
    struct latest latest = {0};
    static const int64_t want[] = {3, 5, 6, 7};

    add(&latest, 1, 11);
    add(&latest, 2, 12);
    add(&latest, 3, 0); /* events of nodes are all kept */
    add(&latest, 4, 11);
    add(&latest, 5, 0);
    add(&latest, 6, 12);
    add(&latest, 7, 11);
    latest_sort(&latest);
    assert_int_equal(latest.count, 4);
    for (size_t i = 0; i < latest.count; i++)
        assert_int_equal(latest.frames[i]->seq, want[i]);
    assert_int_equal(latest.skipped, 0);
    latest_clear(&latest);
    assert_int_equal(latest.count, 0);
}

static void test_a_flood_is_counted(void **state)
{
    struct latest latest = {0};
    int64_t seq = 0;

    for (uint64_t job = 1; job <= 5000; job++)
        add(&latest, ++seq, job << 20); /* ids that are alike in their low bits */
    assert_int_equal(latest.count, LATEST_FRAMES);
    assert_int_equal(latest.skipped, 5000 - LATEST_FRAMES);
    add(&latest, ++seq, 7ull << 20); /* a job that has a place keeps it */
    assert_int_equal(latest.skipped, 5000 - LATEST_FRAMES);
    latest_sort(&latest);
    assert_int_equal(latest.frames[LATEST_FRAMES - 1]->seq, seq);
    latest_clear(&latest);
    add(&latest, ++seq, 1); /* starts over after a clear */
    assert_int_equal(latest.count, 1);
    assert_int_equal(latest.skipped, 0);
    latest_clear(&latest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_last_of_each_job_in_order),
        cmocka_unit_test(test_a_flood_is_counted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
