/* Several copies of a deployment: each index has a row of its own, which is claimed and fenced
 * separately; each test runs on SQLite and on a real PostgreSQL. */
#include "deploys_fixture.h"

#include <stdio.h>
#include <string.h>

/* The ids that claimers see are these. */
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

    deploys_rig_put_copies(rig, "run", 3);
    deploys_rig_put(rig, "web-2", "run");
    assert_rows(rig, true, "web web#1 web#2 web-2 ");
    assert_rows(rig, false, "web web-2 "); /* for agents that do not know indexes */
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

/* Scaling makes no new version: running copies are left alone. */
static void test_scale(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op;

    deploys_rig_put_copies(rig, "run", 0);
    assert_rows(rig, true, "web ");
    op = deploys_rig_scale(rig, "web", 3);
    assert_true(op.u.put.changed && op.row.version == 1 && op.row.spec.count == 3);
    assert_rows(rig, true, "web web#1 web#2 ");
    assert_false(deploys_rig_scale(rig, "web", 3).u.put.changed);
    assert_false(deploys_rig_put_copies(rig, "run", 0).u.put.changed); /* 0 keeps the number */
    op = deploys_rig_put_copies(rig, "run faster", 0);
    assert_int_equal(op.row.spec.count, 3);
    assert_int_equal(op.row.version, 2);
    op = deploys_rig_put_copies(rig, "run faster", 2);
    assert_true(op.u.put.changed && op.row.version == 2);
    assert_rows(rig, true, "web web#1 ");
    assert_int_equal(deploys_rig_scale(rig, "web#1", 3).err, ERR_NOT_FOUND);
    assert_int_equal(deploys_rig_scale(rig, "nope", 3).err, ERR_NOT_FOUND);
    deploys_rig_put_as(rig, DEPLOY_DAEMON, "each", "run");
    assert_int_equal(deploys_rig_scale(rig, "each", 3).err, ERR_CONFLICT);
    assert_int_equal(deploys_rig_scale(rig, "web", 1).row.spec.count, 1);
    assert_rows(rig, true, "each web ");
}

static void test_each_is_claimed_by_itself(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op;

    deploys_rig_put_copies(rig, "run", 3);
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

/* An index that is removed and added again never runs twice: it stays with the node that had it
 * while that node's lease is good, and its generations go on. */
static void test_an_index_that_comes_again(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op;

    deploys_rig_put_copies(rig, "run", 2);
    deploys_rig_renew(rig, "n1", LEASE_MS);
    deploys_rig_renew(rig, "n2", LEASE_MS);
    assert_int_equal(deploys_rig_claim(rig, "n1", "web#1", "", 0).err, ERR_OK);
    deploys_rig_scale(rig, "web", 1);
    assert_int_equal(deploys_rig_renew(rig, "n1", LEASE_MS).u.renew.count, 0);
    deploys_rig_scale(rig, "web", 2);
    op = deploys_rig_get(rig, "web#1");
    assert_true(str_is(op.row.owner, "n1"));
    assert_int_equal(op.row.generation, 2);
    assert_int_equal(deploys_rig_claim(rig, "n2", "web#1", "n1", 2).refusal, DEPLOYS_LEASE_ALIVE);
    deploys_rig_scale(rig, "web", 1);
    deploys_rig_lapse(rig, "n1");
    deploys_rig_scale(rig, "web", 2);
    op = deploys_rig_get(rig, "web#1");
    assert_true(op.row.owner.len == 0 && op.row.generation > 2);
}

/* Verbs on a deployment apply to all of its copies. */
static void test_all_copies_follow(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op disable = {
        .verb = DEPLOYS_ENABLE, .id = STR("web"), .u.put.if_version = DEPLOYS_ANY};
    struct deploys_op delete = {
        .verb = DEPLOYS_DELETE, .id = STR("web"), .u.put.if_version = DEPLOYS_ANY};

    deploys_rig_put_copies(rig, "run", 3);
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

/* --- services --- */

static struct deploys_op services(struct deploys_rig *rig, const char *id)
{
    struct deploys_op op = {
        .verb = DEPLOYS_SERVICES, .id = str_of(id), .u.services.if_number = DEPLOYS_ANY};

    deploys_rig_call(rig, &op);
    return op;
}

/* The list has running copies on nodes with a good lease; it drops those of an earlier
 * assignment. */
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

    deploys_rig_start_three(rig);
    assert_int_equal(services(rig, "web").u.services.count, 0);
    assert_int_equal(services(rig, "nope").err, ERR_NOT_FOUND);
    assert_int_equal(services(rig, "web#1").err, ERR_NOT_FOUND);
    assert_int_equal(deploys_rig_call(rig, &status), ERR_OK);
    deploys_rig_tell(rig, 1, 1, "running");
    deploys_rig_tell(rig, 2, 1, "backoff");
    op = services(rig, "web");
    assert_int_equal(op.u.services.count, 2);
    assert_true(str_is(op.u.services.items[0].id, "web"));
    assert_true(str_is(op.u.services.items[0].node, "n1"));
    assert_true(str_is(op.u.services.items[0].address, "h1"));
    assert_int_equal(op.u.services.items[0].port, 21007);
    assert_true(op.u.services.items[0].until_ms > op.now_ms);
    assert_int_equal(op.u.services.items[1].port, 0);
    op = services(rig, NULL); /* all deployments */
    assert_int_equal(op.u.services.count, 2);
    op.u.services.if_number = op.u.services.number;
    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    assert_true(op.u.services.same && op.u.services.left_ms > 0);
    deploys_rig_lapse(rig, "n1");
    op = services(rig, "web");
    assert_int_equal(op.u.services.count, 1);
    assert_true(str_is(op.u.services.items[0].id, "web#1"));
    deploys_rig_renew(rig, "n1", LEASE_MS); /* a new assignment: what ran before does not count */
    assert_int_equal(services(rig, "web").u.services.count, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DEPLOYS_TEST(test_each_index_has_a_row),      DEPLOYS_TEST(test_scale),
        DEPLOYS_TEST(test_each_is_claimed_by_itself), DEPLOYS_TEST(test_an_index_that_comes_again),
        DEPLOYS_TEST(test_all_copies_follow),         DEPLOYS_TEST(test_where_copies_listen),
    };

    return deploys_main("deploys_copies", tests, COUNT_OF(tests));
}
