/* Updates: from copy to copy, and back; what interrupts them, and nodes that stay silent. Each test
 * runs on SQLite and on a real PostgreSQL. */
#include "deploys_fixture.h"

#include <poll.h>
#include <string.h>

#include "base/clock.h"

enum { PATIENCE_MS = 60000 };

static const char *const copy_ids[] = {"web", "web#1", "web#2"};

static void assert_versions(struct deploys_rig *rig, int64_t a, int64_t b, int64_t c)
{
    int64_t expected[] = {a, b, c};

    for (size_t i = 0; i < 3; i++) {
        struct deploys_op op = deploys_rig_get(rig, copy_ids[i]);

        assert_int_equal(op.row.version, expected[i]);
        assert_true(
            str_eq(op.row.spec.command, arena_fmt(&rig->arena, "run %d", (int)expected[i])));
    }
}

/* Each node has a copy that is well. */
static void start_well(struct deploys_rig *rig)
{
    deploys_rig_start_three(rig);
    for (size_t i = 0; i < 3; i++)
        deploys_rig_tell(rig, i, 1, "running");
}

static void start_one(struct deploys_rig *rig, const char *word)
{
    deploys_rig_put_copies(rig, "run 1", 0);
    deploys_rig_renew(rig, "n1", LEASE_MS);
    assert_int_equal(deploys_rig_claim(rig, "n1", "web", "", 0).err, ERR_OK);
    deploys_rig_tell(rig, 0, 1, word);
}

/* Checks the state of the update, the current version, and a part of the reason (NULL: any). */
static void assert_update(struct deploys_rig *rig, enum rollout_state rollout, int64_t version,
                          const char *reason)
{
    struct deploys_row row = deploys_rig_get(rig, "web").row;

    assert_string_equal(rollout_state_name(row.rollout), rollout_state_name(rollout));
    assert_int_equal(row.version, version);
    if (reason && !strstr(arena_cstr(&rig->arena, row.rollout_reason), reason))
        fail_msg(STR_FMT, STR_ARG(row.rollout_reason));
}

static void do_verb(struct deploys_rig *rig, enum deploys_verb verb, bool enabled)
{
    struct deploys_op op = {
        .verb = verb, .id = STR("web"), .u.put = {.if_version = DEPLOYS_ANY, .enabled = enabled}};

    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
}

/* Ages the rows by more than the time that a copy has to become well. */
static void pass_timeout(struct deploys_rig *rig)
{
    run_sql(rig->url, "UPDATE deployment SET tried_ms = tried_ms - 601000");
}

/* Waits without a report of any node: the server notices the state by itself. */
static void wait_for(struct deploys_rig *rig, enum rollout_state rollout)
{
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;

    while (deploys_rig_get(rig, "web").row.rollout != rollout) {
        assert_true(clock_mono_ms() < end_ms);
        poll(NULL, 0, 20);
    }
}

/* The next copy is updated when the one before is well; the update is over when all are. */
static void test_an_update_goes_from_copy_to_copy(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op;

    start_well(rig);
    deploys_rig_put_copies(rig, "run 2", 0);
    assert_versions(rig, 2, 1, 1);
    op = deploys_rig_get(rig, "web");
    assert_true(op.row.rollout == ROLLOUT_ROLLING && op.row.good_version == 1);
    deploys_rig_tell(rig, 0, 1, "stopping");
    deploys_rig_tell(rig, 0, 2, "starting");
    deploys_rig_tell(rig, 1, 1, "running");
    assert_versions(rig, 2, 1, 1);
    deploys_rig_tell(rig, 0, 2, "running");
    assert_versions(rig, 2, 2, 1);
    deploys_rig_tell(rig, 1, 2, "running");
    assert_versions(rig, 2, 2, 2);
    assert_int_equal(deploys_rig_get(rig, "web").row.rollout, ROLLOUT_ROLLING);
    deploys_rig_tell(rig, 2, 2, "running");
    op = deploys_rig_get(rig, "web");
    assert_true(op.row.rollout == ROLLOUT_NONE && op.row.good_version == 2);
}

/* The update stops at the first failure and goes back, also on copies that were well; the others
 * never change. The number of the bad version is not used again. */
static void test_a_bad_version_goes_back(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op;

    start_well(rig);
    deploys_rig_put_copies(rig, "run 2", 0);
    deploys_rig_tell(rig, 0, 2, "running");
    assert_versions(rig, 2, 2, 1);
    deploys_rig_tell(rig, 1, 2, "backoff");
    assert_versions(rig, 2, 1, 1); /* the failed copy goes back first; the one that is well waits */
    op = deploys_rig_get(rig, "web");
    assert_int_equal(op.row.rollout, ROLLOUT_BACK);
    assert_non_null(
        strstr(arena_cstr(&rig->arena, op.row.rollout_reason), "index 1 on n2 (backoff)"));
    deploys_rig_tell(rig, 1, 1, "running");
    assert_versions(rig, 1, 1, 1);
    deploys_rig_tell(rig, 0, 1, "running");
    op = deploys_rig_get(rig, "web");
    assert_true(op.row.rollout == ROLLOUT_ROLLED_BACK && op.row.version == 1);
    deploys_rig_put_copies(rig, "run 3", 0);
    assert_versions(rig, 3, 1, 1);
}

static struct deploys_op roll_back(struct deploys_rig *rig, int64_t to)
{
    struct deploys_op op = {.verb = DEPLOYS_ROLLBACK,
                            .id = STR("web"),
                            .u.put = {.to_version = to, .if_version = DEPLOYS_ANY}};

    deploys_rig_call(rig, &op);
    return op;
}

static void test_an_operator_goes_back(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op restart = {
        .verb = DEPLOYS_RESTART, .id = STR("web"), .u.put.if_version = DEPLOYS_ANY};
    struct deploys_op op;

    deploys_rig_put_copies(rig, "run 1", 0);
    assert_int_equal(roll_back(rig, 0).err, ERR_CONFLICT);
    deploys_rig_put_copies(rig, "run 2", 0);
    assert_int_equal(deploys_rig_call(rig, &restart), ERR_OK);
    op = roll_back(rig, 0); /* a restart made a version with the same spec */
    assert_true(op.u.put.changed && op.row.version == 1 && str_is(op.row.spec.command, "run 1"));
    assert_false(roll_back(rig, 1).u.put.changed);
    assert_int_equal(roll_back(rig, 9).err, ERR_CONFLICT);
    op = roll_back(rig, 2);
    assert_true(op.row.version == 2 && str_is(op.row.spec.command, "run 2"));
    assert_int_equal(deploys_rig_put_copies(rig, "run 4", 0).row.version, 4);
}

/* A copy that is added during an update begins with the old version, and another update replaces
 * the one under way. */
static void test_what_comes_between(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op;

    start_well(rig);
    deploys_rig_put_copies(rig, "run 2", 0);
    deploys_rig_scale(rig, "web", 4);
    assert_int_equal(deploys_rig_get(rig, "web#3").row.version, 1);
    deploys_rig_put_copies(rig, "run 3", 0);
    op = deploys_rig_get(rig, "web");
    assert_true(op.row.version == 3 && op.row.good_version == 1);
    deploys_rig_tell(rig, 0, 3, "crash_loop");
    assert_versions(rig, 1, 1, 1);
    deploys_rig_tell(rig, 0, 1, "running");
    assert_int_equal(deploys_rig_get(rig, "web").row.rollout, ROLLOUT_ROLLED_BACK);
}

/* --- one copy --- */

static void test_one_copy_goes_back(void **state)
{
    struct deploys_rig *rig = *state;

    start_one(rig, "running");
    deploys_rig_put_copies(rig, "run 2", 0);
    assert_update(rig, ROLLOUT_ROLLING, 2, NULL);
    deploys_rig_tell(rig, 0, 1, "updating");
    assert_update(rig, ROLLOUT_ROLLING, 2, NULL);
    deploys_rig_tell(rig, 0, 2, "backoff");
    assert_update(rig, ROLLOUT_BACK, 1, "Version 2 is not well: index 0 on n1 (backoff). exit 1");
    assert_true(str_is(deploys_rig_get(rig, "web").row.spec.command, "run 1"));
    deploys_rig_tell(rig, 0, 1, "running");
    assert_update(rig, ROLLOUT_ROLLED_BACK, 1, "Version 2 is not well");
    deploys_rig_put_copies(rig, "run 3", 0);
    deploys_rig_tell(rig, 0, 3, "running");
    assert_update(rig, ROLLOUT_NONE, 3, NULL);
    assert_int_equal(roll_back(rig, 0).row.version, 1); /* not to the version that failed */
}

/* The version before failed too: going back would not help. */
static void test_nothing_before_was_well(void **state)
{
    struct deploys_rig *rig = *state;

    start_one(rig, "backoff");
    deploys_rig_put_copies(rig, "run 2", 0);
    deploys_rig_tell(rig, 0, 2, "backoff");
    assert_update(rig, ROLLOUT_STOPPED, 2, "None before it was well.");
    deploys_rig_put_copies(rig, "run 3", 0);
    deploys_rig_tell(rig, 0, 3, "running");
    assert_update(rig, ROLLOUT_NONE, 3, NULL);
    assert_int_equal(deploys_rig_get(rig, "web").row.good_version, 3);
}

/* A failing restart is not rolled back, since its spec is the same, unless that version was still
 * on trial. */
static void test_a_restart_of_one(void **state)
{
    struct deploys_rig *rig = *state;

    start_one(rig, "running");
    do_verb(rig, DEPLOYS_RESTART, true);
    deploys_rig_tell(rig, 0, 2, "backoff");
    assert_update(rig, ROLLOUT_NONE, 2, NULL);
    deploys_rig_put_copies(rig, "run 3", 0);
    do_verb(rig, DEPLOYS_RESTART, true);
    assert_update(rig, ROLLOUT_ROLLING, 4, NULL);
    deploys_rig_tell(rig, 0, 4, "backoff");
    assert_update(rig, ROLLOUT_BACK, 2, NULL);
}

/* --- time --- */

/* A version that neither fails nor becomes well has failed when its time is over. */
static void test_a_version_has_its_time(void **state)
{
    struct deploys_rig *rig = *state;

    start_well(rig);
    deploys_rig_put_copies(rig, "run 2", 0);
    deploys_rig_tell(rig, 0, 2, "starting");
    assert_versions(rig, 2, 1, 1);
    pass_timeout(rig);
    wait_for(rig, ROLLOUT_BACK);
    assert_versions(rig, 1, 1, 1);
    assert_update(rig, ROLLOUT_BACK, 1,
                  "Version 2 did not get well in 600 s: index 0 on n1 (starting).");
    deploys_rig_tell(rig, 0, 1, "running");
    assert_update(rig, ROLLOUT_ROLLED_BACK, 1, NULL);
}

/* A copy that was well and no longer is gets its whole time again. */
static void test_well_for_a_while(void **state)
{
    struct deploys_rig *rig = *state;

    start_well(rig);
    deploys_rig_put_copies(rig, "run 2", 0);
    deploys_rig_tell(rig, 0, 2, "running");
    run_sql(rig->url, "UPDATE deployment SET tried_ms = tried_ms - 601000 WHERE copy_of = ''");
    deploys_rig_tell(rig, 0, 2, "unhealthy");
    assert_update(rig, ROLLOUT_ROLLING, 2, NULL);
    deploys_rig_tell(rig, 1, 2, "running");
    assert_update(rig, ROLLOUT_ROLLING, 2, NULL);
    deploys_rig_tell(rig, 0, 2, "running");
    deploys_rig_tell(rig, 2, 2, "running");
    assert_update(rig, ROLLOUT_NONE, 2, NULL);
}

/* The time during which its node is away does not count against a version. The time starts again
 * when the node comes back or another node claims the copy. */
static void test_a_node_lost_in_the_middle(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op;

    start_well(rig);
    deploys_rig_put_copies(rig, "run 2", 0);
    deploys_rig_tell(rig, 0, 2, "starting");
    deploys_rig_lapse(rig, "n1");
    pass_timeout(rig);
    deploys_rig_tell(rig, 1, 1, "running"); /* a status, which computes the update again */
    assert_update(rig, ROLLOUT_ROLLING, 2, NULL);
    deploys_rig_renew(rig, "n1", LEASE_MS);
    deploys_rig_tell(rig, 1, 1, "running");
    assert_update(rig, ROLLOUT_ROLLING, 2, NULL);
    deploys_rig_lapse(rig, "n1");
    pass_timeout(rig);
    op = deploys_rig_get(rig, "web");
    assert_int_equal(deploys_rig_claim(rig, "n2", "web", "n1", op.row.generation).err, ERR_OK);
    deploys_rig_tell(rig, 0, 2, "starting");
    assert_versions(rig, 2, 1, 1);
    assert_update(rig, ROLLOUT_ROLLING, 2, NULL);
    deploys_rig_tell(rig, 0, 2, "running");
    assert_versions(rig, 2, 2, 1);
}

static void yield_web(struct deploys_rig *rig)
{
    struct deploys_op got = deploys_rig_get(rig, "web");
    struct deploys_op op = {.verb = DEPLOYS_YIELD,
                            .id = STR("web"),
                            .node = got.row.owner,
                            .u.claim = {.generation = got.row.generation}};

    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
}

/* No node takes the new version (its selector or needs match none): it was not tried, so the update
 * goes on; when its time is over, it goes back. */
static void test_nobody_takes_the_new_one(void **state)
{
    struct deploys_rig *rig = *state;

    start_one(rig, "running");
    deploys_rig_put_copies(rig, "run 2", 0);
    yield_web(rig);
    deploys_rig_renew(rig, "n2", LEASE_MS);
    assert_update(rig, ROLLOUT_ROLLING, 2, NULL);
    pass_timeout(rig);
    wait_for(rig, ROLLOUT_BACK);
    assert_update(rig, ROLLOUT_BACK, 1, "in 600 s: index 0 is claimed by no node.");
    assert_int_equal(deploys_rig_claim(rig, "n1", "web", "", 2).err, ERR_OK);
    deploys_rig_tell(rig, 0, 1, "running");
    assert_update(rig, ROLLOUT_ROLLED_BACK, 1, NULL);
}

/* --- in the middle --- */

/* A version that was on trial when disabled is on trial again when enabled, now on all copies at
 * once, since nothing ran. */
static void test_disabled_in_the_middle(void **state)
{
    struct deploys_rig *rig = *state;

    start_well(rig);
    deploys_rig_put_copies(rig, "run 2", 0);
    do_verb(rig, DEPLOYS_ENABLE, false);
    assert_update(rig, ROLLOUT_NONE, 3, NULL);
    do_verb(rig, DEPLOYS_ENABLE, true);
    assert_update(rig, ROLLOUT_ROLLING, 4, NULL);
    assert_int_equal(deploys_rig_get(rig, "web#2").row.version, 4);
    deploys_rig_tell(rig, 0, 4, "backoff");
    assert_versions(rig, 1, 1, 1);
    for (size_t i = 0; i < 3; i++)
        deploys_rig_tell(rig, i, 1, "running");
    assert_update(rig, ROLLOUT_ROLLED_BACK, 1, NULL);
    /* A version that was well is not on trial. */
    do_verb(rig, DEPLOYS_ENABLE, false);
    do_verb(rig, DEPLOYS_ENABLE, true);
    assert_update(rig, ROLLOUT_NONE, 6, NULL);
    assert_int_equal(deploys_rig_get(rig, "web").row.good_version, 6);
}

/* The copy that the update waits for is removed by scaling: the update must go on without a
 * report. */
static void test_fewer_in_the_middle(void **state)
{
    struct deploys_rig *rig = *state;

    start_well(rig);
    deploys_rig_put_copies(rig, "run 2", 0);
    deploys_rig_tell(rig, 0, 2, "running");
    assert_versions(rig, 2, 2, 1);
    deploys_rig_scale(rig, "web", 1);
    assert_update(rig, ROLLOUT_NONE, 2, NULL);
}

/* Copies that are added during an update begin with the good version. */
static void test_more_in_the_middle(void **state)
{
    struct deploys_rig *rig = *state;

    start_one(rig, "running");
    deploys_rig_put_copies(rig, "run 2", 0);
    deploys_rig_scale(rig, "web", 3);
    assert_versions(rig, 2, 1, 1);
    deploys_rig_renew(rig, "n2", LEASE_MS);
    assert_int_equal(deploys_rig_claim(rig, "n2", "web#1", "", 0).err, ERR_OK);
    deploys_rig_tell(rig, 1, 1, "running");
    deploys_rig_tell(rig, 0, 2, "backoff");
    assert_versions(rig, 1, 1, 1);
    deploys_rig_tell(rig, 0, 1, "running");
    assert_update(rig, ROLLOUT_ROLLED_BACK, 1, NULL);
}

/* After two updates in a row a rollback goes to the last good version, not to the one in
 * between. */
static void test_back_in_the_middle(void **state)
{
    struct deploys_rig *rig = *state;

    start_well(rig);
    deploys_rig_put_copies(rig, "run 2", 0);
    deploys_rig_tell(rig, 0, 2, "running");
    deploys_rig_put_copies(rig, "run 3", 0);
    assert_versions(rig, 3, 2, 1);
    assert_int_equal(roll_back(rig, 0).row.version, 1);
    assert_update(rig, ROLLOUT_BACK, 1, "An operator took it back.");
    assert_versions(rig, 1, 1, 1);
    assert_false(roll_back(rig, 0).u.put.changed); /* it is going there already */
    assert_update(rig, ROLLOUT_BACK, 1, NULL);
    deploys_rig_tell(rig, 0, 1, "backoff"); /* the way back is kept to even if it fails */
    assert_update(rig, ROLLOUT_BACK, 1, NULL);
    deploys_rig_tell(rig, 0, 1, "running");
    deploys_rig_tell(rig, 1, 1, "running");
    assert_update(rig, ROLLOUT_ROLLED_BACK, 1, NULL);
}

static void test_all_at_once(void **state)
{
    struct deploys_rig *rig = *state;

    start_well(rig);
    deploys_rig_put_copies(rig, "run 2", 0);
    run_sql(rig->url, "UPDATE deployment SET max_unavailable = 9 WHERE copy_of = ''");
    deploys_rig_tell(rig, 0, 2, "starting");
    assert_versions(rig, 2, 2, 2);
    deploys_rig_tell(rig, 2, 2, "crash_loop");
    assert_versions(rig, 1, 1, 1);
    for (size_t i = 0; i < 3; i++)
        deploys_rig_tell(rig, i, 1, "running");
    assert_update(rig, ROLLOUT_ROLLED_BACK, 1, NULL);
}

/* The server is restarted: the state of an update is all in the database. */
static void test_another_server(void **state)
{
    struct deploys_rig *rig = *state;

    start_well(rig);
    deploys_rig_put_copies(rig, "run 2", 0);
    deploys_rig_close(rig);
    deploys_rig_open(rig, rig->url, "/nowhere");
    deploys_rig_tell(rig, 0, 2, "running");
    assert_versions(rig, 2, 2, 1);
    deploys_rig_close(rig);
    deploys_rig_open(rig, rig->url, "/nowhere");
    deploys_rig_tell(rig, 1, 2, "backoff");
    assert_update(rig, ROLLOUT_BACK, 2, NULL);
    deploys_rig_close(rig);
    deploys_rig_open(rig, rig->url, "/nowhere");
    deploys_rig_tell(rig, 1, 1, "running");
    deploys_rig_tell(rig, 0, 1, "running");
    assert_update(rig, ROLLOUT_ROLLED_BACK, 1, NULL);
}

/* A daemon becomes a deployment of three copies, none of which is a daemon. */
static void test_a_daemon_becomes_several(void **state)
{
    struct deploys_rig *rig = *state;

    deploys_rig_put_as(rig, DEPLOY_DAEMON, "web", "run 1");
    deploys_rig_put_copies(rig, "run 2", 3);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(deploys_rig_get(rig, copy_ids[i]).row.spec.type, DEPLOY_DEPLOYMENT);
    assert_int_equal(deploys_rig_renew(rig, "n9", LEASE_MS).u.renew.count, 0);
    deploys_rig_put_as(rig, DEPLOY_DAEMON, "web", "run 3");
    assert_int_equal(deploys_rig_get(rig, "web#1").err, ERR_NOT_FOUND);
    assert_int_equal(deploys_rig_renew(rig, "n9", LEASE_MS).u.renew.count, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DEPLOYS_TEST(test_an_update_goes_from_copy_to_copy),
        DEPLOYS_TEST(test_a_bad_version_goes_back),
        DEPLOYS_TEST(test_an_operator_goes_back),
        DEPLOYS_TEST(test_what_comes_between),
        DEPLOYS_TEST(test_one_copy_goes_back),
        DEPLOYS_TEST(test_nothing_before_was_well),
        DEPLOYS_TEST(test_a_restart_of_one),
        DEPLOYS_TEST(test_a_version_has_its_time),
        DEPLOYS_TEST(test_well_for_a_while),
        DEPLOYS_TEST(test_a_node_lost_in_the_middle),
        DEPLOYS_TEST(test_nobody_takes_the_new_one),
        DEPLOYS_TEST(test_disabled_in_the_middle),
        DEPLOYS_TEST(test_fewer_in_the_middle),
        DEPLOYS_TEST(test_more_in_the_middle),
        DEPLOYS_TEST(test_back_in_the_middle),
        DEPLOYS_TEST(test_all_at_once),
        DEPLOYS_TEST(test_another_server),
        DEPLOYS_TEST(test_a_daemon_becomes_several),
    };

    return deploys_main("deploys_rollout", tests, COUNT_OF(tests));
}
