/* Several copies of a deployment: a row for each index, claimed and fenced by itself; the same on
 * SQLite and on a real PostgreSQL. */
#include "deploys_fixture.h"

#include <stdio.h>
#include <string.h>

static struct deploys_op put(struct deploys_rig *rig, const char *command, int64_t count)
{
    struct deploys_spec spec = {.id = STR("web"),
                                .type = DEPLOY_DEPLOYMENT,
                                .package_name = STR(""),
                                .package_version = STR(""),
                                .command = str_of(command),
                                .args = STR("[]"),
                                .env = STR("{}"),
                                .selector = STR(""),
                                .options = STR("{}"),
                                .enabled = true,
                                .count = count};
    struct deploys_op op = {.verb = DEPLOYS_PUT,
                            .u.put = {.spec = &spec, .if_version = DEPLOYS_ANY}};

    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    return op;
}

static struct deploys_op scale(struct deploys_rig *rig, const char *id, int64_t count)
{
    struct deploys_op op = {.verb = DEPLOYS_SCALE,
                            .id = str_of(id),
                            .u.put = {.count = count, .if_version = DEPLOYS_ANY}};

    deploys_rig_call(rig, &op);
    return op;
}

/* The ids claimers see, as one text. */
static void assert_rows(struct deploys_rig *rig, bool indexed, const char *expected)
{
    static int64_t within_ms = 2000000000;
    struct deploys_op op = {.verb = DEPLOYS_VIEW,
                            .u.view = {.if_version = DEPLOYS_ANY,
                                       .if_facts = DEPLOYS_ANY,
                                       .within_ms = within_ms++,
                                       .indexed = indexed}};
    char text[256] = "";
    size_t len = 0;

    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    for (size_t i = 0; i < op.u.view.count; i++)
        len += (size_t)snprintf(text + len, sizeof text - len, STR_FMT " ",
                                STR_ARG(op.u.view.items[i].id));
    assert_string_equal(text, expected);
}

static void test_each_index_has_a_row(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op list = {.verb = DEPLOYS_LIST, .u.list = {.enabled = -1, .max = 10}}, got;

    put(rig, "run", 3);
    deploys_rig_put(rig, "web-2", "run");
    assert_rows(rig, true, "web web#1 web#2 web-2 ");
    assert_rows(rig, false, "web web-2 "); /* for who does not know of them */
    assert_int_equal(deploys_rig_call(rig, &list), ERR_OK);
    assert_int_equal(list.u.list.count, 2);
    assert_int_equal(list.u.list.items[0].spec.count, 3);
    assert_int_equal(list.u.list.items[1].spec.count, 1);
    got = deploys_rig_get(rig, "web");
    assert_int_equal(got.copy_count, 3);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(got.copies[i].index, i);
        assert_true(str_is(got.copies[i].state, "unclaimed"));
        assert_true(!got.copies[i].address.at);
    }
    assert_true(str_is(deploys_rig_get(rig, "web#2").row.spec.command, "run"));
}

/* A count is no new version: what runs is left alone. */
static void test_scale(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op;

    put(rig, "run", 0);
    assert_rows(rig, true, "web ");
    op = scale(rig, "web", 3);
    assert_true(op.u.put.changed && op.row.version == 1 && op.row.spec.count == 3);
    assert_rows(rig, true, "web web#1 web#2 ");
    assert_false(scale(rig, "web", 3).u.put.changed);
    assert_false(put(rig, "run", 0).u.put.changed); /* not said: as many as there are */
    op = put(rig, "run faster", 0);
    assert_int_equal(op.row.spec.count, 3);
    assert_int_equal(op.row.version, 2);
    op = put(rig, "run faster", 2);
    assert_true(op.u.put.changed && op.row.version == 2);
    assert_rows(rig, true, "web web#1 ");
    assert_int_equal(scale(rig, "web#1", 3).err, ERR_NOT_FOUND);
    assert_int_equal(scale(rig, "nope", 3).err, ERR_NOT_FOUND);
    deploys_rig_put_as(rig, DEPLOY_DAEMON, "each", "run");
    assert_int_equal(scale(rig, "each", 3).err, ERR_CONFLICT);
    assert_int_equal(scale(rig, "web", 1).row.spec.count, 1);
    assert_rows(rig, true, "each web ");
}

static void test_each_is_claimed_by_itself(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op;

    put(rig, "run", 3);
    deploys_rig_renew(rig, "n1", LEASE_MS);
    deploys_rig_renew(rig, "n2", LEASE_MS);
    assert_int_equal(deploys_rig_claim(rig, "n1", "web", "", 0).err, ERR_OK);
    assert_int_equal(deploys_rig_claim(rig, "n2", "web#1", "", 0).err, ERR_OK);
    assert_int_equal(deploys_rig_claim(rig, "n1", "web#1", "", 0).refusal, DEPLOYS_CONFLICT);
    assert_int_equal(deploys_rig_claim(rig, "n1", "web#1", "n2", 1).refusal, DEPLOYS_LEASE_ALIVE);
    op = deploys_rig_renew(rig, "n2", LEASE_MS);
    assert_int_equal(op.u.renew.count, 1);
    assert_true(str_is(op.u.renew.items[0].spec.id, "web#1"));
    assert_true(str_is(op.u.renew.items[0].spec.command, "run"));
    op = deploys_rig_get(rig, "web");
    assert_true(str_is(op.copies[0].address, "n1") && str_is(op.copies[1].address, "n2"));
    assert_true(str_is(op.copies[1].state, "claimed") && !op.copies[2].address.at);
}

/* An index that went and came again is never two: it stays with the node that had it while that
 * one's lease is good, and goes on counting generations. */
static void test_an_index_that_comes_again(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op;

    put(rig, "run", 2);
    deploys_rig_renew(rig, "n1", LEASE_MS);
    deploys_rig_renew(rig, "n2", LEASE_MS);
    assert_int_equal(deploys_rig_claim(rig, "n1", "web#1", "", 0).err, ERR_OK);
    scale(rig, "web", 1);
    assert_int_equal(deploys_rig_renew(rig, "n1", LEASE_MS).u.renew.count, 0);
    scale(rig, "web", 2);
    op = deploys_rig_get(rig, "web#1");
    assert_true(str_is(op.row.address, "n1"));
    assert_int_equal(op.row.generation, 2);
    assert_int_equal(deploys_rig_claim(rig, "n2", "web#1", "n1", 2).refusal, DEPLOYS_LEASE_ALIVE);
    scale(rig, "web", 1);
    deploys_rig_lapse(rig, "n1");
    scale(rig, "web", 2);
    op = deploys_rig_get(rig, "web#1");
    assert_true(op.row.address.len == 0 && op.row.generation > 2);
}

/* What is done to a deployment is done to all of its copies. */
static void test_all_copies_follow(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op disable = {
        .verb = DEPLOYS_ENABLE, .id = STR("web"), .u.put.if_version = DEPLOYS_ANY};
    struct deploys_op delete = {
        .verb = DEPLOYS_DELETE, .id = STR("web"), .u.put.if_version = DEPLOYS_ANY};

    put(rig, "run", 3);
    assert_int_equal(deploys_rig_call(rig, &disable), ERR_OK);
    assert_false(deploys_rig_get(rig, "web#2").row.spec.enabled);
    assert_int_equal(deploys_rig_get(rig, "web#2").row.version, 2);
    disable.id = delete.id = STR("web#1");
    assert_int_equal(deploys_rig_call(rig, &disable), ERR_NOT_FOUND);
    assert_int_equal(deploys_rig_call(rig, &delete), ERR_NOT_FOUND);
    delete.id = STR("web");
    assert_int_equal(deploys_rig_call(rig, &delete), ERR_OK);
    assert_rows(rig, true, "");
}

/* --- updates --- */

static const char *const copy_ids[] = {"web", "web#1", "web#2"};
static const char *const owners[] = {"n1", "n2", "n3"};

/* Each node has a copy that is well. */
static void start_three(struct deploys_rig *rig)
{
    put(rig, "run 1", 3);
    for (size_t i = 0; i < 3; i++) {
        deploys_rig_renew(rig, owners[i], LEASE_MS);
        assert_int_equal(deploys_rig_claim(rig, owners[i], copy_ids[i], "", 0).err, ERR_OK);
    }
}

static void tell(struct deploys_rig *rig, size_t index, int64_t version, const char *word)
{
    struct deploys_copy copy = {.id = str_of(copy_ids[index]),
                                .generation = 1,
                                .version = version,
                                .state = str_of(word),
                                .healthy = strcmp(word, "running") ? STR("false") : STR("true"),
                                .reason = STR("exit 1"),
                                .limits = STR("")};
    struct deploys_op op = {.verb = DEPLOYS_STATUS,
                            .node = str_of(owners[index]),
                            .u.status = {.copies = &copy, .count = 1}};

    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    assert_false(copy.stale);
}

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

/* The next one follows when the last is well; when all are, it is over. */
static void test_an_update_goes_from_copy_to_copy(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op;

    start_three(rig);
    for (size_t i = 0; i < 3; i++)
        tell(rig, i, 1, "running");
    put(rig, "run 2", 0);
    assert_versions(rig, 2, 1, 1);
    op = deploys_rig_get(rig, "web");
    assert_true(op.row.rollout == ROLLOUT_ROLLING && op.row.good_version == 1);
    tell(rig, 0, 1, "stopping");
    tell(rig, 0, 2, "starting");
    tell(rig, 1, 1, "running");
    assert_versions(rig, 2, 1, 1);
    tell(rig, 0, 2, "running");
    assert_versions(rig, 2, 2, 1);
    tell(rig, 1, 2, "running");
    assert_versions(rig, 2, 2, 2);
    assert_int_equal(deploys_rig_get(rig, "web").row.rollout, ROLLOUT_ROLLING);
    tell(rig, 2, 2, "running");
    op = deploys_rig_get(rig, "web");
    assert_true(op.row.rollout == ROLLOUT_NONE && op.row.good_version == 2);
}

/* It stops at the first failure and goes back, also where it was well; those that did not have it
 * never notice. The number of the bad version is not given again. */
static void test_a_bad_version_goes_back(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op;

    start_three(rig);
    for (size_t i = 0; i < 3; i++)
        tell(rig, i, 1, "running");
    put(rig, "run 2", 0);
    tell(rig, 0, 2, "running");
    assert_versions(rig, 2, 2, 1);
    tell(rig, 1, 2, "backoff");
    assert_versions(rig, 2, 1, 1); /* the one that failed; the other is well, and waits for it */
    op = deploys_rig_get(rig, "web");
    assert_int_equal(op.row.rollout, ROLLOUT_BACK);
    assert_non_null(
        strstr(arena_cstr(&rig->arena, op.row.rollout_reason), "index 1 on n2 (backoff)"));
    tell(rig, 1, 1, "running");
    assert_versions(rig, 1, 1, 1);
    tell(rig, 0, 1, "running");
    op = deploys_rig_get(rig, "web");
    assert_true(op.row.rollout == ROLLOUT_ROLLED_BACK && op.row.version == 1);
    put(rig, "run 3", 0);
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

    put(rig, "run 1", 0);
    assert_int_equal(roll_back(rig, 0).err, ERR_CONFLICT);
    put(rig, "run 2", 0);
    assert_int_equal(deploys_rig_call(rig, &restart), ERR_OK);
    op = roll_back(rig, 0); /* what a restart made is the same spec */
    assert_true(op.u.put.changed && op.row.version == 1 && str_is(op.row.spec.command, "run 1"));
    assert_false(roll_back(rig, 1).u.put.changed);
    assert_int_equal(roll_back(rig, 9).err, ERR_CONFLICT);
    op = roll_back(rig, 2);
    assert_true(op.row.version == 2 && str_is(op.row.spec.command, "run 2"));
    assert_int_equal(put(rig, "run 4", 0).row.version, 4);
}

/* While an update is under way a new copy is one of those that wait, and another update takes its
 * place. */
static void test_what_comes_between(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op;

    start_three(rig);
    for (size_t i = 0; i < 3; i++)
        tell(rig, i, 1, "running");
    put(rig, "run 2", 0);
    scale(rig, "web", 4);
    assert_int_equal(deploys_rig_get(rig, "web#3").row.version, 1);
    put(rig, "run 3", 0);
    op = deploys_rig_get(rig, "web");
    assert_true(op.row.version == 3 && op.row.good_version == 1);
    tell(rig, 0, 3, "crash_loop");
    assert_versions(rig, 1, 1, 1);
    tell(rig, 0, 1, "running");
    assert_int_equal(deploys_rig_get(rig, "web").row.rollout, ROLLOUT_ROLLED_BACK);
}

/* --- services --- */

static struct deploys_op services(struct deploys_rig *rig, const char *id)
{
    struct deploys_op op = {
        .verb = DEPLOYS_SERVICES, .id = str_of(id), .u.services.if_number = DEPLOYS_ANY};

    deploys_rig_call(rig, &op);
    return op;
}

/* Those that run, on nodes whose lease is good; and nobody's of before. */
static void test_where_copies_listen(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_copy copy = {.id = STR("web"),
                                .generation = 1,
                                .version = 1,
                                .state = STR("running"),
                                .healthy = STR("true"),
                                .reason = STR(""),
                                .limits = STR(""),
                                .host = STR("h1"),
                                .port = 21007};
    struct deploys_op status = {
        .verb = DEPLOYS_STATUS, .node = STR("n1"), .u.status = {.copies = &copy, .count = 1}};
    struct deploys_op op;

    start_three(rig);
    assert_int_equal(services(rig, "web").u.services.count, 0);
    assert_int_equal(services(rig, "nope").err, ERR_NOT_FOUND);
    assert_int_equal(services(rig, "web#1").err, ERR_NOT_FOUND);
    assert_int_equal(deploys_rig_call(rig, &status), ERR_OK);
    tell(rig, 1, 1, "running");
    tell(rig, 2, 1, "backoff");
    op = services(rig, "web");
    assert_int_equal(op.u.services.count, 2);
    assert_true(str_is(op.u.services.items[0].id, "web"));
    assert_true(str_is(op.u.services.items[0].node, "n1"));
    assert_true(str_is(op.u.services.items[0].address, "h1"));
    assert_int_equal(op.u.services.items[0].port, 21007);
    assert_true(op.u.services.items[0].until_ms > op.now_ms);
    assert_int_equal(op.u.services.items[1].port, 0);
    op = services(rig, NULL); /* all */
    assert_int_equal(op.u.services.count, 2);
    op.u.services.if_number = op.u.services.number;
    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    assert_true(op.u.services.same && op.u.services.left_ms > 0);
    deploys_rig_lapse(rig, "n1");
    op = services(rig, "web");
    assert_int_equal(op.u.services.count, 1);
    assert_true(str_is(op.u.services.items[0].id, "web#1"));
    deploys_rig_renew(rig, "n1", LEASE_MS); /* an assignment anew: what ran before is none of it */
    assert_int_equal(services(rig, "web").u.services.count, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DEPLOYS_TEST(test_each_index_has_a_row),
        DEPLOYS_TEST(test_scale),
        DEPLOYS_TEST(test_each_is_claimed_by_itself),
        DEPLOYS_TEST(test_an_index_that_comes_again),
        DEPLOYS_TEST(test_all_copies_follow),
        DEPLOYS_TEST(test_an_update_goes_from_copy_to_copy),
        DEPLOYS_TEST(test_a_bad_version_goes_back),
        DEPLOYS_TEST(test_an_operator_goes_back),
        DEPLOYS_TEST(test_what_comes_between),
        DEPLOYS_TEST(test_where_copies_listen),
    };

    return deploys_main("deploys_copies", tests, COUNT_OF(tests));
}
