/* Leases: the result of each operation, and that the counts always match the leases. */
#include "base/clock.h"
#include "model/lease.h"

#include "../unit.h"

static struct lease_node ready_node(int32_t max)
{
    return (struct lease_node){.health = NODE_READY, .max = max, .epoch = 7};
}

static void test_reasons_in_order(void **state)
{
    static const struct {
        struct lease_node node;
        enum lease_reason reason;
    } rows[] = {
        {{.health = NODE_READY, .max = 1}, LEASE_OK},
        {{.health = NODE_READY, .max = 3, .running = 1, .reserved = 1}, LEASE_OK},
        {{.health = NODE_HEALTH_NONE, .max = 1}, LEASE_NOT_READY},
        {{.health = NODE_REGISTERING, .max = 1}, LEASE_NOT_READY},
        {{.health = NODE_DEGRADED, .max = 1}, LEASE_NOT_READY},
        {{.health = NODE_DRAINING, .max = 1}, LEASE_NOT_READY},
        {{.health = NODE_OFFLINE, .max = 0, .running = 5}, LEASE_NOT_READY},
        {{.health = NODE_READY, .max = 0}, LEASE_NO_CAPACITY},
        {{.health = NODE_READY, .max = -1, .running = 1}, LEASE_NO_CAPACITY},
        {{.health = NODE_READY, .max = INT32_MIN}, LEASE_NO_CAPACITY},
        {{.health = NODE_READY, .max = 2, .running = 1, .reserved = 1}, LEASE_FULL},
        {{.health = NODE_READY, .max = 2, .running = 2}, LEASE_FULL},
        {{.health = NODE_READY, .max = 2, .reserved = 3}, LEASE_FULL},
        {{.health = NODE_READY, .max = INT32_MAX, .running = INT32_MAX, .reserved = INT32_MAX},
         LEASE_FULL},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct lease_node node = rows[i].node;
        struct lease lease = {0};
        enum lease_reason reason = lease_reserve(&node, &lease, 1, 0, 5000);
        bool took = reason == LEASE_OK;

        assert_int_equal(reason, rows[i].reason);
        assert_int_equal(node.reserved, rows[i].node.reserved + took);
        assert_int_equal(node.running, rows[i].node.running);
        assert_int_equal(lease.kind, took ? LEASE_RESERVED : LEASE_NONE);
    }
}

static void test_names(void **state)
{
    assert_string_equal(lease_reason_name(LEASE_OK), "OK");
    assert_string_equal(lease_reason_name(LEASE_RESV_EXISTS), "RESV_EXISTS");
    assert_string_equal(lease_reason_name(LEASE_NOT_READY), "NOT_READY");
    assert_string_equal(lease_reason_name(LEASE_NO_CAPACITY), "NO_CAPACITY");
    assert_string_equal(lease_reason_name(LEASE_FULL), "FULL");
    assert_string_equal(lease_reason_name(LEASE_BREAKER), "BREAKER_OPEN");
}

static void test_a_life(void **state)
{
    struct lease_node node = ready_node(1);
    struct lease lease = {0};

    assert_int_equal(lease_reserve(&node, &lease, 41, 1000, 5000), LEASE_OK);
    assert_int_equal(lease.until_ms, 6000);
    assert_int_equal(lease.epoch, 7);
    assert_true(lease_ack(&node, &lease, 41, 5999, 50000));
    assert_int_equal(lease.kind, LEASE_RUNNING);
    assert_int_equal(lease.until_ms, 50000);
    assert_true(lease_renew(&lease, 60000));
    assert_true(lease_renew(&lease, 55000));
    assert_int_equal(lease.until_ms, 60000); /* never shortened */
    assert_false(lease_expire(&node, &lease, 59999));
    assert_true(lease_finish(&node, &lease));
    assert_int_equal(node.running, 0);
    assert_int_equal(node.reserved, 0);
    assert_false(lease_finish(&node, &lease));
    assert_false(lease_renew(&lease, 99999));
}

static void test_replay_changes_nothing(void **state)
{
    struct lease_node node = ready_node(1);
    struct lease lease = {0};
    struct lease before;

    lease_reserve(&node, &lease, 41, 0, 5000);
    before = lease;
    node.health = NODE_OFFLINE; /* a replay is answered before anything else is checked */
    assert_int_equal(lease_reserve(&node, &lease, 41, 4999, 5000), LEASE_RESV_EXISTS);
    assert_int_equal(node.reserved, 1);
    assert_memory_equal(&lease, &before, sizeof lease);
    assert_true(lease_ack(&node, &lease, 41, 4999, LEASE_FOREVER));
    assert_int_equal(lease_reserve(&node, &lease, 41, 99999, 5000), LEASE_RESV_EXISTS);
    assert_int_equal(node.running, 1);
}

static void test_late_ack_is_refused_and_frees_the_slot(void **state)
{
    struct lease_node node = ready_node(1);
    struct lease lease = {0};

    lease_reserve(&node, &lease, 41, 0, 5000);
    assert_false(lease_ack(&node, &lease, 41, 5000, LEASE_FOREVER));
    assert_int_equal(node.reserved, 0);
    assert_int_equal(node.running, 0);
    assert_false(lease_finish(&node, &lease));
    assert_false(lease_release(&node, &lease));
}

static void test_a_run_out_lease_is_no_replay(void **state)
{
    struct lease_node node = ready_node(1);
    struct lease lease = {0};

    lease_reserve(&node, &lease, 41, 0, 5000);
    assert_int_equal(lease_reserve(&node, &lease, 41, 5000, 5000), LEASE_OK);
    assert_int_equal(node.reserved, 1); /* its own slot came back first */
    assert_int_equal(lease.until_ms, 10000);
}

static void test_another_job_cannot_commit(void **state)
{
    struct lease_node node = ready_node(2);
    struct lease lease = {0};

    lease_reserve(&node, &lease, 41, 0, 5000);
    assert_false(lease_ack(&node, &lease, 42, 1, LEASE_FOREVER));
    assert_int_equal(lease.kind, LEASE_RESERVED);
    assert_int_equal(node.reserved, 1);
    assert_true(lease_ack(&node, &lease, 41, 2, LEASE_FOREVER));
    assert_false(lease_ack(&node, &lease, 41, 3, LEASE_FOREVER)); /* repeated */
    assert_int_equal(node.running, 1);
}

static void test_running_lease_runs_out_and_for_ever_does_not(void **state)
{
    struct lease_node node = ready_node(2);
    struct lease leases[2] = {{0}};

    lease_reserve(&node, &leases[0], 1, 0, 5000);
    lease_reserve(&node, &leases[1], 2, 0, 5000);
    lease_ack(&node, &leases[0], 1, 1, 45000);
    lease_ack(&node, &leases[1], 2, 1, LEASE_FOREVER);
    assert_false(lease_expire(&node, &leases[0], 44999));
    assert_true(lease_expire(&node, &leases[0], 45000));
    assert_false(lease_expire(&node, &leases[0], 45000)); /* ends exactly once */
    assert_false(lease_expire(&node, &leases[1], INT64_MAX));
    assert_int_equal(node.running, 1);
}

static void test_a_new_epoch_ends_all_leases_at_once(void **state)
{
    struct lease_node node = ready_node(3);
    struct lease old[3] = {{0}};
    struct lease fresh = {0};

    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(lease_reserve(&node, &old[i], i + 1, 0, 5000), LEASE_OK);
    lease_ack(&node, &old[0], 1, 1, LEASE_FOREVER);
    lease_new_epoch(&node, false);
    assert_int_equal(node.epoch, 8);
    assert_int_equal(node.reserved + node.running, 0);
    assert_int_equal(lease_reserve(&node, &fresh, 9, 2, 5000), LEASE_OK);

    assert_false(lease_finish(&node, &old[0]));
    assert_false(lease_ack(&node, &old[1], 2, 3, LEASE_FOREVER));
    assert_false(lease_release(&node, &old[1]));
    assert_int_equal(lease_end(&node, &old[2]), LEASE_NONE);
    assert_int_equal(node.reserved, 1); /* the new lease is unaffected */
    assert_int_equal(node.running, 0);
}

/* A lost node may still run its jobs: running leases keep counting, reservations do not. */
static void test_a_lost_node_keeps_what_runs(void **state)
{
    struct lease_node node = ready_node(4);
    struct lease running = {0}, reserved = {0}, older = {0};

    lease_reserve(&node, &older, 3, 0, 5000);
    lease_ack(&node, &older, 3, 1, LEASE_FOREVER);
    lease_new_epoch(&node, false);
    lease_reserve(&node, &running, 1, 0, 5000);
    lease_ack(&node, &running, 1, 1, 45000);
    lease_reserve(&node, &reserved, 2, 0, 5000);
    lease_new_epoch(&node, true);
    assert_true(lease_keep(&node, &running));
    assert_false(lease_keep(&node, &reserved));
    assert_false(lease_keep(&node, &older)); /* it had stopped counting before */
    assert_int_equal(node.running, 1);
    assert_int_equal(node.reserved, 0);
    assert_int_equal(running.until_ms, 45000);
    assert_false(lease_expire(&node, &running, 44999));
    assert_true(lease_expire(&node, &running, 45000));
    assert_int_equal(node.running, 0);
    assert_false(lease_finish(&node, &older));
    assert_int_equal(lease_end(&node, &reserved), LEASE_NONE);
    assert_int_equal(node.reserved, 0);
}

static void test_terms_by_type(void **state)
{
    static const struct lease_terms terms = {.task_ms = 120000, .f2f_ms = 45000};

    assert_int_equal(lease_term_ms(&terms, STR("f2f")), 45000);
    assert_int_equal(lease_term_ms(&terms, STR("task")), 120000);
    assert_int_equal(lease_term_ms(&terms, STR("")), 120000);
    assert_int_equal(lease_renew_every_ms(&terms), 7500);
    assert_int_equal(lease_renew_every_ms(&(struct lease_terms){3000, 45000}), 500);
    assert_int_equal(lease_terms_default.task_ms, 120000);
    assert_int_equal(lease_terms_default.f2f_ms, 45000);
}

static void test_a_lease_of_an_old_epoch_can_be_taken_again(void **state)
{
    struct lease_node node = ready_node(1);
    struct lease lease = {0};

    lease_reserve(&node, &lease, 1, 0, 5000);
    lease_new_epoch(&node, false);
    assert_int_equal(lease_reserve(&node, &lease, 1, 1, 5000), LEASE_OK);
    assert_int_equal(lease.epoch, node.epoch);
    assert_int_equal(node.reserved, 1);
}

static void test_end_takes_what_it_was(void **state)
{
    struct lease_node node = ready_node(2);
    struct lease leases[2] = {{0}};

    lease_reserve(&node, &leases[0], 1, 0, 5000);
    lease_reserve(&node, &leases[1], 2, 0, 5000);
    lease_ack(&node, &leases[1], 2, 1, LEASE_FOREVER);
    assert_int_equal(lease_end(&node, &leases[0]), LEASE_RESERVED);
    assert_int_equal(lease_end(&node, &leases[1]), LEASE_RUNNING);
    assert_int_equal(lease_end(&node, &leases[1]), LEASE_NONE);
    assert_int_equal(node.reserved + node.running, 0);
}

static void test_time_at_its_end(void **state)
{
    struct lease_node node = ready_node(1);
    struct lease lease = {0};

    assert_int_equal(lease_reserve(&node, &lease, 1, INT64_MAX - 10, 5000), LEASE_OK);
    assert_int_equal(lease.until_ms, LEASE_FOREVER);
}

static void assert_counts(const struct lease_node *node, const struct lease *leases, size_t count)
{
    int32_t reserved = 0;
    int32_t running = 0;

    for (size_t i = 0; i < count; i++) {
        bool live = leases[i].epoch == node->epoch;

        reserved += live && leases[i].kind == LEASE_RESERVED;
        running += live && leases[i].kind == LEASE_RUNNING;
    }
    assert_int_equal(node->reserved, reserved);
    assert_int_equal(node->running, running);
    assert_true(lease_counts_ok(node));
}

/* Operations in any order, early, late and repeated, while max changes: the counts match the
 * leases, and none is taken above max. */
static void test_counts_are_the_leases(void **state)
{
    enum { LEASES = 12, STEPS = 200000 };
    struct lease_node node = ready_node(4);
    struct lease leases[LEASES] = {{0}};
    int64_t now_ms = 0;
    int taken = 0;
    struct rnd rnd;

    rnd_seed(&rnd, 1);
    for (int step = 0; step < STEPS; step++) {
        size_t i = rnd_below(&rnd, LEASES);
        struct lease *lease = &leases[i];
        uint64_t job = rnd_below(&rnd, 8) == 0 ? 99 : i + 1;

        now_ms += rnd_below(&rnd, 200);
        switch (rnd_below(&rnd, 10)) {
        case 0:
        case 1:
        case 2:
            for (size_t k = 0; k < LEASES; k++)
                lease_expire(&node, &leases[k], now_ms);
            if (lease_reserve(&node, lease, i + 1, now_ms, 1000) == LEASE_OK) {
                taken++;
                assert_true(node.reserved + node.running <= node.max);
            }
            break;
        case 3:
        case 4:
            lease_ack(&node, lease, job, now_ms, now_ms + 3000);
            break;
        case 5:
            lease_release(&node, lease);
            break;
        case 6:
            lease_finish(&node, lease);
            break;
        case 7:
            lease_renew(lease, now_ms + 3000);
            break;
        case 8:
            lease_expire(&node, lease, now_ms);
            break;
        default:
            node.max = (int32_t)rnd_below(&rnd, 6);
            if (rnd_below(&rnd, 50) == 0) {
                bool keeps_runs = rnd_below(&rnd, 2) == 0;

                lease_new_epoch(&node, keeps_runs);
                for (size_t kept = 0; keeps_runs && kept < LEASES; kept++)
                    lease_keep(&node, &leases[kept]);
            }
        }
        assert_counts(&node, leases, LEASES);
    }
    assert_true(taken > 1000); /* leases were taken */
}

/* --- fence --- */

/* Fencing: who may continue, who may take over, and when to stop. */

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

/* A holder that missed the end of its lease is refused after a takeover. */
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

/* A stop begins after 30 s, with 10 s of grace, so the copy is gone before the 45 s are over. */
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
        cmocka_unit_test(test_reasons_in_order),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_a_life),
        cmocka_unit_test(test_replay_changes_nothing),
        cmocka_unit_test(test_late_ack_is_refused_and_frees_the_slot),
        cmocka_unit_test(test_a_run_out_lease_is_no_replay),
        cmocka_unit_test(test_another_job_cannot_commit),
        cmocka_unit_test(test_running_lease_runs_out_and_for_ever_does_not),
        cmocka_unit_test(test_a_new_epoch_ends_all_leases_at_once),
        cmocka_unit_test(test_a_lost_node_keeps_what_runs),
        cmocka_unit_test(test_terms_by_type),
        cmocka_unit_test(test_a_lease_of_an_old_epoch_can_be_taken_again),
        cmocka_unit_test(test_end_takes_what_it_was),
        cmocka_unit_test(test_time_at_its_end),
        cmocka_unit_test(test_counts_are_the_leases),
        cmocka_unit_test(test_renewal),
        cmocka_unit_test(test_a_takeover_fences_the_sleeper),
        cmocka_unit_test(test_only_assigned_and_running_are_active),
        cmocka_unit_test(test_a_copy_is_gone_before_the_lease_ends),
    };

    return cmocka_run_group_tests_name("lease", tests, NULL, NULL);
}
