/* Fencing: who may go on, who may take over, and when to stop. */
#include "model/fence.h"

#include "../base/unit.h"

static struct fence fence(void)
{
    return (struct fence){
        .state = FENCE_RUNNING, .holder = STR("n1"), .token = 7, .expire_ms = 30000};
}

static void test_renewal(void **state)
{
    static const struct {
        const char *holder;
        int64_t token, now_ms;
        bool ok;
    } rows[] = {{"n1", 7, 20000, true},
                {"n1", 7, 30000, true},
                {"n1", 7, 30001, false},
                {"n1", 6, 20000, false},
                {"n2", 7, 20000, false}};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct fence one = fence();
        bool ok = fence_renew(&one, str_of(rows[i].holder), rows[i].token, rows[i].now_ms, 60000);

        assert_int_equal(ok, rows[i].ok);
        assert_int_equal(one.expire_ms, ok ? rows[i].now_ms + 60000 : 30000);
    }
}

/* Whoever slept through the end of its lease is refused, whether it was taken over or not. */
static void test_a_takeover_fences_the_sleeper(void **state)
{
    struct fence one = fence();

    assert_false(fence_reassign(&one, STR("n2"), 30000, 60000));
    assert_true(fence_reassign(&one, STR("n2"), 30001, 60000));
    assert_int_equal(one.token, 8);
    assert_false(fence_renew(&one, STR("n1"), 7, 30002, 60000));
    assert_false(fence_renew(&one, STR("n2"), 7, 30002, 60000));
    assert_true(fence_renew(&one, STR("n2"), 8, 30002, 60000));
}

static void test_only_assigned_and_running_are_active(void **state)
{
    struct fence one = fence();

    assert_true(fence_active(&one, 30000) && !fence_active(&one, 30001));
    one.state = fence_state_by_name(STR("Stopped"));
    assert_false(fence_active(&one, 0));
}

/* Ruling 27: begin after 30 s, 10 s for a gentle stop, gone before the 45 s are over. */
static void test_a_copy_is_gone_before_the_lease_ends(void **state)
{
    assert_int_equal(fence_stop_ms(1000, 45000), 31000);
    assert_int_equal(fence_grace_ms(45000), 10000);
    for (int64_t lease_ms = 1000; lease_ms < 120000; lease_ms += 37)
        assert_true(fence_stop_ms(0, lease_ms) + fence_grace_ms(lease_ms) < lease_ms);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_renewal),
        cmocka_unit_test(test_a_takeover_fences_the_sleeper),
        cmocka_unit_test(test_only_assigned_and_running_are_active),
        cmocka_unit_test(test_a_copy_is_gone_before_the_lease_ends),
    };

    return cmocka_run_group_tests_name("fence", tests, NULL, NULL);
}
