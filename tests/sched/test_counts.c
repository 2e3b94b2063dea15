/* A node's counters as loops see them: the newest answer wins, in whatever order answers arrive. */
#include "rig.h"

#include "sched/sched.h"

#include <pthread.h>
#include <string.h>

#define WRAP (UINT64_C(1) << COUNTS_ORDER_BITS)

static struct lease_node counted(int32_t reserved, int32_t running)
{
    return (struct lease_node){
        .health = NODE_READY, .max = 10, .reserved = reserved, .running = running, .epoch = 3};
}

static void newest_answer_wins(void **state)
{
    static const struct {
        const char *what;
        uint64_t known, comes;
        bool first;
        bool taken;
    } rows[] = {
        {"newer", 5, 6, false, true},
        {"older", 6, 5, false, false},
        {"the same again", 6, 6, false, true},
        {"older, but the node is new", 6, 5, true, true},
        {"newer over the turn", WRAP - 1, WRAP, false, true},
        {"older over the turn", WRAP, WRAP - 1, false, false},
        {"newer, far over the turn", WRAP - 1000, WRAP + 1000, false, true},
        {"older, far over the turn", WRAP + 1000, WRAP - 1000, false, false},
        {"half a turn less one is newer", 1, WRAP / 2, false, true},
        {"many turns later", 7 * WRAP + 5, 7 * WRAP + 6, false, true},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct node node = {0};
        struct lease_node before = counted(1, 2), after = counted(3, 4);

        counts_take(&node, &before, NULL, rows[i].known, true);
        counts_take(&node, &after, NULL, rows[i].comes, rows[i].first);
        if (counts_of(&node).reserved != (rows[i].taken ? 3 : 1) ||
            counts_of(&node).running != (rows[i].taken ? 4 : 2))
            fail_msg("%s: reserved %d, running %d", rows[i].what, counts_of(&node).reserved,
                     counts_of(&node).running);
    }
}

static void load_is_all_three(void **state)
{
    struct node node = {0};
    struct lease_node counts = counted(2, 3);

    counts_take(&node, &counts, NULL, 1, true);
    assert_int_equal(counts_load(&node), 5);
    atomic_fetch_add(&node.pending, 4);
    assert_int_equal(counts_load(&node), 9);
    assert_int_equal(atomic_load(&node.epoch), 3);
}

static void largest_counts_fit(void **state)
{
    struct node node = {0};
    struct lease_node counts = counted(1000000, 1000000);

    counts_take(&node, &counts, NULL, WRAP - 1, true);
    assert_int_equal(counts_of(&node).reserved, 1000000);
    assert_int_equal(counts_of(&node).running, 1000000);
}

/* An answer that is not about a node (an unknown job) carries no counters. */
static void an_answer_about_no_node_changes_nothing(void **state)
{
    struct node node = {0};
    struct lease_node counts = counted(2, 3), none = {0};

    counts_take(&node, &counts, NULL, 1, true);
    counts_take(&node, &none, NULL, 2, false);
    assert_int_equal(counts_load(&node), 5);
}

static void full_shows_until_more_is_known(void **state)
{
    struct node node = {0};
    struct lease_node counts = counted(0, 4);

    atomic_store(&node.max, 10);
    counts_take(&node, &counts, NULL, 7, true);
    counts_full(&node);
    assert_int_equal(counts_load(&node), 10);
    assert_int_equal(counts_of(&node).running, 4);
    counts_take(&node, &counts, NULL, 6, false); /* older than the answer that said FULL */
    assert_int_equal(counts_load(&node), 10);
    counts_take(&node, &counts, NULL, 8, false);
    assert_int_equal(counts_load(&node), 4);
    atomic_store(&node.max, 3); /* lowered below what is running */
    counts_full(&node);
    assert_int_equal(counts_load(&node), 4);
}

enum { THREADS = 4, ANSWERS = 20000 };

struct taker {
    pthread_t thread;
    struct node *node;
    int number;
};

/* The answer with order n has reserved n % 1000, so that a torn or outdated word shows. */
static void *take_answers(void *arg)
{
    struct taker *taker = arg;

    for (int i = taker->number; i < ANSWERS; i += THREADS) {
        struct lease_node counts = counted(i % 1000, (i + 1) % 1000);

        counts_take(taker->node, &counts, NULL, (uint64_t)i, false);
        if (i % 7 == 0)
            counts_full(taker->node);
        assert_true(counts_of(taker->node).reserved <= 1000);
    }
    return NULL;
}

static void many_loops_agree_in_the_end(void **state)
{
    struct node node = {0};
    struct taker takers[THREADS];

    for (int i = 0; i < THREADS; i++) {
        takers[i] = (struct taker){.node = &node, .number = i};
        assert_int_equal(pthread_create(&takers[i].thread, NULL, take_answers, &takers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(takers[i].thread, NULL);
    assert_int_equal(counts_of(&node).running, ANSWERS % 1000);
    assert_int_equal(counts_of(&node).reserved, (ANSWERS - 1) % 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(newest_answer_wins),
        cmocka_unit_test(load_is_all_three),
        cmocka_unit_test(largest_counts_fit),
        cmocka_unit_test(an_answer_about_no_node_changes_nothing),
        cmocka_unit_test(full_shows_until_more_is_known),
        cmocka_unit_test(many_loops_agree_in_the_end),
    };

    return cmocka_run_group_tests_name("sched/counts", tests, NULL, NULL);
}
