/* Members: loadActiveNodeUnits, resolveNodeUnitTerminalIds, and when a member is lost. */
#include "model/member.h"

#include "../unit.h"

static struct arena arena;

static int teardown(void **state)
{
    arena_free(&arena);
    return 0;
}

static struct member_units units_of(const struct member *members, size_t count)
{
    struct member_units units;

    member_units(members, count, 0, MEMBER_TTL_OFF, &arena, &units);
    return units;
}

static void test_load_active_node_units(void **state)
{
    static const struct {
        const char *tag, *address;
        bool active;
    } rows[] = {
        {"true", "a", true}, {"false", "a", false}, {"TRUE", "a", false},  {"1", "a", false},
        {NULL, "a", false},  {"true", "", false},   {"true", NULL, false}, {" true", "a", false},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct member member = {.terminal_id = STR("t"),
                                .node_unit = str_of(rows[i].tag),
                                .address = str_of(rows[i].address)};

        assert_int_equal(units_of(&member, 1).addresses.count, rows[i].active);
    }
    assert_int_equal(units_of(NULL, 0).addresses.count, 0);
}

static void test_resolve_node_unit_terminal_ids(void **state)
{
    struct member members[] = {
        {STR("t1"), STR("true"), STR("b"), 0},
        {STR("t2"), STR("true"), STR("a"), 0},
        {STR("t3"), STR("no"), STR("c"), 0},
        {STR("t4"), STR("true"), STR("b"), 0},
    };
    struct member_units units = units_of(members, COUNT_OF(members));

    assert_int_equal(units.addresses.count, 2);
    assert_true(str_is(units.addresses.at[0], "b") && str_is(units.terminals[0], "t4"));
    assert_true(str_is(units.addresses.at[1], "a") && str_is(units.terminals[1], "t2"));
    assert_int_equal(names_find(&units.addresses, STR("c")), NAMES_NONE);
}

/* Thousands of members are found as fast as a few, and in their order. */
static void test_many_members(void **state)
{
    enum { MANY = 20000 };
    struct member *members = arena_array(&arena, struct member, MANY);

    for (size_t i = 0; i < MANY; i++)
        members[i] = (struct member){.node_unit = STR("true"),
                                     .address = arena_fmt(&arena, "n%zu", i % (MANY / 2)),
                                     .terminal_id = arena_fmt(&arena, "t%zu", i)};
    struct member_units units = units_of(members, MANY);
    assert_int_equal(units.addresses.count, MANY / 2);
    for (size_t i = 0; i < MANY / 2; i++)
        assert_true(str_eq(units.terminals[i], members[i + MANY / 2].terminal_id));
}

static bool is_lost(const struct member_watch *watch, const struct member_rules *rules,
                    int64_t synced_ms, int64_t now_ms)
{
    int64_t lost_at_ms = member_lost_at_ms(watch, rules, synced_ms);

    return lost_at_ms != MEMBER_NEVER && now_ms >= lost_at_ms;
}

static void test_lost_only_after_grace_and_warm_up(void **state)
{
    static const struct {
        int64_t synced_ms, absent_ms, now_ms;
        bool lost;
    } rows[] = {
        {0, 40000, 54999, false},   {0, 40000, 55000, true},   {MEMBER_NEVER, 0, 90000, false},
        {100000, 0, 129999, false}, {100000, 0, 130000, true}, {0, MEMBER_NEVER, 90000, false},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct member_watch watch = {.absent_since_ms = rows[i].absent_ms};

        assert_int_equal(is_lost(&watch, &member_defaults, rows[i].synced_ms, rows[i].now_ms),
                         rows[i].lost);
    }
}

/* A member that comes back starts a new count. */
static void test_a_return_ends_the_absence(void **state)
{
    struct member_watch watch;

    member_watch_init(&watch);
    member_watch_note(&watch, false, 1000);
    member_watch_note(&watch, false, 50000); /* the same absence */
    assert_true(is_lost(&watch, &member_defaults, 0, 60000));
    member_watch_note(&watch, true, 60001);
    assert_false(is_lost(&watch, &member_defaults, 0, 90000));
    member_watch_note(&watch, false, 90000);
    assert_false(is_lost(&watch, &member_defaults, 0, 104999));
    assert_true(is_lost(&watch, &member_defaults, 0, 105000));
}

static void test_the_seed_has_no_grace(void **state)
{
    struct member_watch watch = {.absent_since_ms = 7};

    assert_true(is_lost(&watch, &member_seed, 7, 7));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load_active_node_units),
        cmocka_unit_test(test_resolve_node_unit_terminal_ids),
        cmocka_unit_test(test_many_members),
        cmocka_unit_test(test_lost_only_after_grace_and_warm_up),
        cmocka_unit_test(test_a_return_ends_the_absence),
        cmocka_unit_test(test_the_seed_has_no_grace),
    };

    return cmocka_run_group_tests_name("member", tests, NULL, teardown);
}
