/* Streams for eyes: one event a job, in order, bounded. */
#include "unit.h"

#include <stdlib.h>

#include "server/thin.h"

static struct frame *frame(int64_t seq, uint64_t job)
{
    struct frame *made = calloc(1, sizeof *made);

    made->seq = seq;
    made->job = job;
    atomic_store(&made->refs, 1);
    return made;
}

/* As the event stream does: hands it over and lets go of it. */
static void add(struct thin *thin, int64_t seq, uint64_t job)
{
    struct frame *made = frame(seq, job);

    thin_add(thin, made);
    frame_unref(made);
}

static void test_the_last_of_each_job_in_order(void **state)
{
    struct thin thin = {0};
    static const int64_t want[] = {3, 5, 6, 7};

    add(&thin, 1, 11);
    add(&thin, 2, 12);
    add(&thin, 3, 0); /* a node's: every one counts */
    add(&thin, 4, 11);
    add(&thin, 5, 0);
    add(&thin, 6, 12);
    add(&thin, 7, 11);
    thin_sort(&thin);
    assert_int_equal(thin.count, 4);
    for (size_t i = 0; i < thin.count; i++)
        assert_int_equal(thin.frames[i]->seq, want[i]);
    assert_int_equal(thin.skipped, 0);
    thin_clear(&thin);
    assert_int_equal(thin.count, 0);
}

static void test_a_flood_is_counted(void **state)
{
    struct thin thin = {0};
    int64_t seq = 0;

    for (uint64_t job = 1; job <= 5000; job++)
        add(&thin, ++seq, job << 20); /* ids of one moment: alike in their low bits */
    assert_int_equal(thin.count, THIN_FRAMES);
    assert_int_equal(thin.skipped, 5000 - THIN_FRAMES);
    add(&thin, ++seq, 7ull << 20); /* one that has a place keeps it */
    assert_int_equal(thin.skipped, 5000 - THIN_FRAMES);
    thin_sort(&thin);
    assert_int_equal(thin.frames[THIN_FRAMES - 1]->seq, seq);
    thin_clear(&thin);
    add(&thin, ++seq, 1); /* and it begins anew */
    assert_int_equal(thin.count, 1);
    assert_int_equal(thin.skipped, 0);
    thin_clear(&thin);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_last_of_each_job_in_order),
        cmocka_unit_test(test_a_flood_is_counted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
