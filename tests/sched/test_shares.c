/* Whose turn it is: by priority, then keys in turn, then age. */
#include "../unit.h"

#include "sched/shares.h"

#include <stdlib.h>

enum { KEYS = 4 };

struct world {
    struct shares shares;
    struct share_order order;
    struct share *keys[KEYS];
    struct share_place places[KEYS];
    uint64_t jobs[KEYS];
};

static int setup(void **state)
{
    static const char *const names[KEYS] = {"tenant:a", "tenant:b", "tenant:c", NULL};
    struct world *world = calloc(1, sizeof *world);

    shares_init(&world->shares);
    for (size_t i = 0; i < KEYS; i++)
        world->keys[i] = shares_enter(&world->shares, names[i] ? str_of(names[i]) : STR_NONE);
    *state = world;
    return 0;
}

static int teardown(void **state)
{
    struct world *world = *state;

    for (size_t i = 0; i < KEYS; i++)
        share_order_del(&world->places[i]);
    share_order_done(&world->order);
    for (size_t i = 0; i < KEYS; i++)
        shares_leave(&world->shares, world->keys[i]);
    assert_int_equal(world->shares.by_key.count, 0);
    shares_done(&world->shares);
    free(world);
    return 0;
}

static void stand(struct world *world, size_t key, int priority)
{
    share_order_del(&world->places[key]);
    share_order_put(&world->shares, &world->order, &world->places[key], world->keys[key], priority,
                    1000 * (key + 1) + world->jobs[key]++);
}

/* The first key is served, and has another job. */
static size_t serve(struct world *world, int priority)
{
    struct share_place *first = share_order_first(&world->order);
    size_t key = (size_t)(first - world->places);

    assert_non_null(first);
    shares_use_turn(&world->shares, priority,
                    shares_take_turn(&world->shares, world->keys[key], priority));
    stand(world, key, priority);
    return key;
}

static void keys_take_turns(void **state)
{
    struct world *world = *state;
    size_t counts[KEYS] = {0};

    for (size_t i = 0; i < KEYS; i++)
        stand(world, i, 5);
    for (int i = 0; i < 400; i++)
        counts[serve(world, 5)]++;
    for (size_t i = 0; i < KEYS; i++)
        assert_int_equal(counts[i], 100);
}

static void weights_are_shares(void **state)
{
    static const struct store_limit rules[] = {
        {.pattern = {"tenant:*", 8}, .limit = {.weight = 2}},
        {.pattern = {"tenant:b", 8}, .limit = {.weight = 5}}};
    struct world *world = *state;
    size_t counts[KEYS] = {0};

    shares_set_rules(&world->shares, rules, COUNT_OF(rules));
    for (size_t i = 0; i < KEYS; i++)
        stand(world, i, 5);
    for (int i = 0; i < 1000; i++)
        counts[serve(world, 5)]++;
    assert_in_range(counts[0], 199, 201); /* 2, 5, 2 and 1 of 10 */
    assert_in_range(counts[1], 499, 501);
    assert_in_range(counts[2], 199, 201);
    assert_in_range(counts[3], 99, 101);
}

static void who_comes_new_is_next_and_no_more(void **state)
{
    struct world *world = *state;
    size_t counts[KEYS] = {0};

    stand(world, 0, 5);
    for (int i = 0; i < 100000; i++)
        assert_int_equal(serve(world, 5), 0);
    stand(world, 1, 5);
    assert_int_equal(serve(world, 5), 1);
    for (int i = 0; i < 100; i++)
        counts[serve(world, 5)]++;
    assert_in_range(counts[0], 49, 51);
}

/* A turn that is given back leaves no trace. */
static void a_turn_is_given_back(void **state)
{
    struct world *world = *state;

    stand(world, 0, 5);
    stand(world, 1, 5);
    for (int i = 0; i < 10; i++) {
        struct share_turn turn = shares_take_turn(&world->shares, world->keys[0], 5);

        shares_give_back(world->keys[0], 5, turn);
    }
    stand(world, 0, 5);
    assert_int_equal(serve(world, 5), 0);
    assert_int_equal(serve(world, 5), 1);
}

static void who_was_away_does_not_get_everything(void **state)
{
    struct world *world = *state;
    size_t row = 0;

    stand(world, 0, 5);
    stand(world, 1, 5);
    for (int i = 0; i < 1000; i++) { /* key 1 is in line, but cannot be served */
        shares_use_turn(&world->shares, 5, shares_take_turn(&world->shares, world->keys[0], 5));
        stand(world, 0, 5);
    }
    while (serve(world, 5) == 1)
        row++;
    assert_in_range(row, 1, 8);
}

static void priorities_are_apart(void **state)
{
    struct world *world = *state;

    stand(world, 0, 9);
    stand(world, 1, 5);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(serve(world, 9), 0);
    stand(world, 0, 5); /* its turns at priority 9 do not count here */
    size_t counts[KEYS] = {0};
    for (int i = 0; i < 10; i++)
        counts[serve(world, 5)]++;
    assert_int_equal(counts[0], 5);
}

/* One key with very many lanes: a turn costs the same as with one, and the oldest lane is first. */
static void many_lanes_of_one_key(void **state)
{
    enum { LANES = 20000 };
    struct world *world = *state;
    struct share_place *places = calloc(LANES, sizeof *places), *some[16];

    for (size_t i = 0; i < LANES; i++)
        share_order_put(&world->shares, &world->order, &places[i], world->keys[0], 5, LANES - i);
    stand(world, 1, 5);
    assert_ptr_equal(share_order_first(&world->order), &places[LANES - 1]);
    for (size_t i = LANES; i-- > LANES - 1000;) {
        struct share_place *first = share_order_first(&world->order);

        if (first == &world->places[1]) {
            serve(world, 5);
            first = share_order_first(&world->order);
        }
        assert_ptr_equal(first, &places[i]);
        share_order_del(first);
        shares_use_turn(&world->shares, 5, shares_take_turn(&world->shares, world->keys[0], 5));
    }
    size_t count = share_order_some(&world->order, COUNT_OF(some), some);
    bool both = false;
    for (size_t i = 0; i < count; i++)
        both |= some[i] == &world->places[1];
    assert_true(both);
    for (size_t i = 0; i < LANES; i++)
        share_order_del(&places[i]);
    free(places);
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        ROW(keys_take_turns),       ROW(weights_are_shares),
        ROW(a_turn_is_given_back),  ROW(who_comes_new_is_next_and_no_more),
        ROW(priorities_are_apart),  ROW(who_was_away_does_not_get_everything),
        ROW(many_lanes_of_one_key),
    };

    return cmocka_run_group_tests_name("sched/shares", tests, NULL, NULL);
}
