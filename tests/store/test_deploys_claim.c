/* Claims and leases in the database: what may change an owner, and what must not; each test runs on
 * SQLite and on a real PostgreSQL. */
#include "deploys_fixture.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

static void test_claim_and_what_stands_against_it(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op;

    deploys_rig_put(rig, "web", "run");
    op = deploys_rig_claim(rig, "n1", "web", "", 0);
    assert_int_equal(op.err, ERR_CONFLICT);
    assert_int_equal(op.refusal, DEPLOYS_NO_LEASE);
    deploys_rig_renew(rig, "n1", LEASE_MS);
    deploys_rig_renew(rig, "n2", LEASE_MS);
    op = deploys_rig_claim(rig, "n1", "web", "", 7);
    assert_int_equal(op.refusal, DEPLOYS_CONFLICT); /* the wrong generation */
    op = deploys_rig_claim(rig, "n1", "web", "", 0);
    assert_int_equal(op.err, ERR_OK);
    assert_int_equal(op.row.generation, 1);
    assert_true(str_is(op.row.owner, "n1"));
    op = deploys_rig_claim(rig, "n1", "web", "", 0); /* a repeat after a lost answer */
    assert_true(op.err == ERR_OK && op.u.claim.duplicate);
    op = deploys_rig_claim(rig, "n2", "web", "", 0);
    assert_int_equal(op.refusal, DEPLOYS_CONFLICT);
    assert_true(op.found && str_is(op.row.owner, "n1"));
    op = deploys_rig_claim(rig, "n2", "web", "n1", 1);
    assert_int_equal(op.refusal, DEPLOYS_LEASE_ALIVE);
    op = deploys_rig_claim(rig, "n2", "nope", "", 0);
    assert_int_equal(op.refusal, DEPLOYS_CONFLICT);
    assert_false(op.found);
    assert_true(str_is(deploys_rig_get(rig, "web").row.owner, "n1"));
}

static void test_disabled_and_daemons_are_never_claimed(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op off = {.verb = DEPLOYS_ENABLE,
                             .id = STR("off"),
                             .u.put = {.if_version = DEPLOYS_ANY, .enabled = false}};
    struct deploys_spec spec = {.id = STR("each"),
                                .type = DEPLOY_DAEMON,
                                .package_name = STR(""),
                                .package_version = STR(""),
                                .command = STR("run"),
                                .args = STR("[]"),
                                .env = STR("{}"),
                                .selector = STR("a=b"),
                                .options = STR("{}"),
                                .enabled = true};
    struct deploys_op daemon = {.verb = DEPLOYS_PUT,
                                .u.put = {.spec = &spec, .if_version = DEPLOYS_ANY}};

    deploys_rig_put(rig, "off", "run");
    assert_int_equal(deploys_rig_call(rig, &off), ERR_OK);
    assert_int_equal(deploys_rig_call(rig, &daemon), ERR_OK);
    struct deploys_op renew = deploys_rig_renew(rig, "n1", LEASE_MS);
    assert_int_equal(deploys_rig_claim(rig, "n1", "off", "", 0).err, ERR_CONFLICT);
    assert_int_equal(deploys_rig_claim(rig, "n1", "each", "", 0).err, ERR_CONFLICT);
    /* Any node may run the daemon; agents match its selector. */
    assert_int_equal(renew.u.renew.count, 1);
    assert_true(str_is(renew.u.renew.items[0].spec.selector, "a=b"));
}

/* A deployment is taken from a node only after its lease has run out, and then gets a new
 * generation; the node that comes back has lost it. */
static void test_takeover_needs_a_lease_that_ran_out(void **state)
{
    struct deploys_rig *rig = *state;

    deploys_rig_put(rig, "web", "run");
    deploys_rig_renew(rig, "n1", LEASE_MS);
    deploys_rig_renew(rig, "n2", LEASE_MS);
    assert_int_equal(deploys_rig_claim(rig, "n1", "web", "", 0).err, ERR_OK);
    deploys_rig_lapse(rig, "n1");
    struct deploys_op taken = deploys_rig_claim(rig, "n2", "web", "n1", 1);
    assert_int_equal(taken.err, ERR_OK);
    assert_int_equal(taken.row.generation, 2);
    struct deploys_op back = deploys_rig_renew(rig, "n1", LEASE_MS);
    assert_true(back.u.renew.lapsed);
    assert_int_equal(back.u.renew.count, 0);
}

/* A node renews late, before another took over: what it owns is assigned anew, and a claimer that
 * saw the old generation is refused. */
static void test_a_late_renewal_is_a_new_assignment(void **state)
{
    struct deploys_rig *rig = *state;

    deploys_rig_put(rig, "web", "run");
    deploys_rig_renew(rig, "n1", LEASE_MS);
    deploys_rig_renew(rig, "n2", LEASE_MS);
    deploys_rig_claim(rig, "n1", "web", "", 0);
    deploys_rig_lapse(rig, "n1");
    struct deploys_op back = deploys_rig_renew(rig, "n1", LEASE_MS);
    assert_true(back.u.renew.lapsed);
    assert_int_equal(back.u.renew.count, 1);
    assert_int_equal(back.u.renew.items[0].generation, 2);
    assert_int_equal(deploys_rig_claim(rig, "n2", "web", "n1", 1).refusal, DEPLOYS_LEASE_ALIVE);
    assert_true(str_is(deploys_rig_get(rig, "web").row.owner, "n1"));
}

static void test_renew_tells_only_what_changed(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op = deploys_rig_renew(rig, "n1", LEASE_MS);
    struct deploys_op again = {.verb = DEPLOYS_RENEW,
                               .node = STR("n1"),
                               .u.renew = {.lease_ms = LEASE_MS, .if_version = op.version}};

    assert_int_equal(deploys_rig_call(rig, &again), ERR_OK);
    assert_true(again.u.renew.unchanged && !again.u.renew.lapsed);
    assert_true(again.u.renew.until_ms > again.now_ms);
    deploys_rig_put(rig, "web", "run");
    again.u.renew.if_version = op.version;
    assert_int_equal(deploys_rig_call(rig, &again), ERR_OK);
    assert_false(again.u.renew.unchanged);
}

static void test_yield(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op = {
        .verb = DEPLOYS_YIELD, .id = STR("web"), .node = STR("n2"), .u.claim.generation = 1};

    deploys_rig_put(rig, "web", "run");
    deploys_rig_renew(rig, "n1", LEASE_MS);
    deploys_rig_claim(rig, "n1", "web", "", 0);
    assert_int_equal(deploys_rig_call(rig, &op), ERR_CONFLICT); /* not its own */
    op.node = STR("n1");
    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    assert_true(op.row.owner.len == 0 && op.row.generation == 2);
    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK); /* repeated */
    assert_true(op.u.claim.duplicate && op.row.generation == 2);
}

/* A status does not change the spec, and one with another generation is ignored. */
static void test_status(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_copy copies[] = {
        {.id = STR("web"),
         .generation = 1,
         .version = 1,
         .state = STR("running"),
         .pid = 42,
         .healthy = STR("null"),
         .reason = STR(""),
         .limits = STR("not enforced: pids")},
        {.id = STR("gone"),
         .generation = 1,
         .state = STR("running"),
         .healthy = STR("null"),
         .reason = STR(""),
         .limits = STR("")},
    };
    struct deploys_op op = {
        .verb = DEPLOYS_STATUS, .node = STR("n1"), .u.status = {.copies = copies, .count = 2}};

    deploys_rig_put(rig, "web", "run");
    deploys_rig_renew(rig, "n1", LEASE_MS);
    deploys_rig_claim(rig, "n1", "web", "", 0);
    struct deploys_op before = deploys_rig_get(rig, "web");
    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    assert_true(!copies[0].stale && copies[1].stale);
    struct deploys_op after = deploys_rig_get(rig, "web");
    assert_int_equal(after.copy_count, 1);
    assert_int_equal(after.copies[0].pid, 42);
    assert_true(str_is(after.copies[0].limits, "not enforced: pids"));
    assert_true(str_is(after.copies[0].address, "n1"));
    assert_true(str_eq(before.row.updated_at, after.row.updated_at));
    assert_int_equal(before.version, after.version);
    assert_int_equal(before.row.version, after.row.version);
    copies[0].generation = 0;
    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    assert_true(copies[0].stale);
}

/* A node reports one copy. */
static struct deploys_copy report_copy(struct deploys_rig *rig, const char *node, const char *id,
                                       int64_t generation, int64_t version, const char *state,
                                       int64_t wants)
{
    struct deploys_copy copy = {.id = str_of(id),
                                .generation = generation,
                                .version = version,
                                .state = str_of(state),
                                .healthy =
                                    strcmp(state, "running") == 0 ? STR("true") : STR("false"),
                                .reason = STR("Exited with code 1."),
                                .limits = STR(""),
                                .wants = wants};
    struct deploys_op op = {
        .verb = DEPLOYS_STATUS, .node = str_of(node), .u.status = {.copies = &copy, .count = 1}};

    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    return copy;
}

/* A status lists all copies of a node: one that it does not name is forgotten. */
static void test_what_is_not_named_is_forgotten(void **state)
{
    struct deploys_rig *rig = *state;

    for (int i = 0; i < 2; i++) {
        deploys_rig_put(rig, i ? "api" : "web", "run");
        deploys_rig_renew(rig, "n1", LEASE_MS);
        deploys_rig_claim(rig, "n1", i ? "api" : "web", "", 0);
    }
    report_copy(rig, "n1", "web", 1, 1, "running", 0);
    assert_int_equal(deploys_rig_get(rig, "web").copy_count, 1);
    report_copy(rig, "n1", "api", 1, 1, "running", 0);
    assert_int_equal(deploys_rig_get(rig, "web").copy_count, 0);
    assert_int_equal(deploys_rig_get(rig, "api").copy_count, 1);
}

/* A deployment that has finished is not claimed, even when its node is lost, until an operator
 * restarts it. */
static void test_what_ended_is_not_claimed(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op view = {
        .verb = DEPLOYS_VIEW, .node = STR("n2"), .u.view.if_version = DEPLOYS_ANY};
    struct deploys_op again = {
        .verb = DEPLOYS_RESTART, .id = STR("web"), .u.put.if_version = DEPLOYS_ANY};

    deploys_rig_put(rig, "web", "run");
    deploys_rig_renew(rig, "n1", LEASE_MS);
    deploys_rig_claim(rig, "n1", "web", "", 0);
    report_copy(rig, "n1", "web", 0, 1, "finished", 0); /* from an older assignment */
    assert_int_equal(deploys_rig_get(rig, "web").row.ended.len, 0);
    int64_t before = deploys_rig_get(rig, "web").version;
    report_copy(rig, "n1", "web", 1, 1, "finished", 0);
    struct deploys_op got = deploys_rig_get(rig, "web");
    assert_true(str_is(got.row.ended, "finished"));
    assert_true(got.version > before); /* readers of the table see the change */
    struct deploys_op renew = deploys_rig_renew(rig, "n1", LEASE_MS);
    assert_int_equal(renew.u.renew.count, 1); /* its node keeps it, with its output */
    assert_true(str_is(renew.u.renew.items[0].ended, "finished"));
    deploys_rig_lapse(rig, "n1");
    deploys_rig_renew(rig, "n2", LEASE_MS);
    assert_int_equal(deploys_rig_call(rig, &view), ERR_OK);
    assert_true(view.u.view.count == 1 && !view.u.view.items[0].enabled);
    assert_int_equal(deploys_rig_claim(rig, "n2", "web", "n1", 1).err, ERR_CONFLICT);
    assert_int_equal(deploys_rig_call(rig, &again), ERR_OK);
    assert_int_equal(again.row.ended.len, 0);
    assert_int_equal(deploys_rig_claim(rig, "n2", "web", "n1", 1).err, ERR_OK);
}

/* A changed daemon is updated on one node after the other, and the update stops at the first node
 * where it is not well. */
static void test_a_daemons_turn(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_spec spec = {.id = STR("log"),
                                .type = DEPLOY_DAEMON,
                                .package_name = STR(""),
                                .package_version = STR(""),
                                .command = STR("a"),
                                .args = STR("[]"),
                                .env = STR("{}"),
                                .selector = STR(""),
                                .options = STR("{}"),
                                .enabled = true};
    struct deploys_op put = {.verb = DEPLOYS_PUT,
                             .u.put = {.spec = &spec, .if_version = DEPLOYS_ANY}};
    const char *nodes[] = {"n1", "n2", "n3"};

    assert_int_equal(deploys_rig_call(rig, &put), ERR_OK);
    for (int i = 0; i < 3; i++) {
        deploys_rig_renew(rig, nodes[i], LEASE_MS);
        report_copy(rig, nodes[i], "log", 0, 1, "running", 0);
    }
    spec.command = STR("b");
    assert_int_equal(deploys_rig_call(rig, &put), ERR_OK);
    assert_true(str_starts(report_copy(rig, "n2", "log", 0, 1, "updating", 2).waits,
                           STR("The update waits for n1 (running).")));
    assert_null(report_copy(rig, "n1", "log", 0, 1, "updating", 2).waits.at);
    report_copy(rig, "n1", "log", 0, 2, "crash_loop", 0);
    struct str waits = report_copy(rig, "n2", "log", 0, 1, "updating", 2).waits;
    assert_true(str_starts(waits, STR("The update stopped: version 2 is not well on n1 "
                                      "(crash_loop). Exited with code 1.")));
    report_copy(rig, "n1", "log", 0, 2, "running", 0);
    assert_null(report_copy(rig, "n2", "log", 0, 1, "updating", 2).waits.at);
    assert_non_null(report_copy(rig, "n3", "log", 0, 1, "updating", 2).waits.at);
    deploys_rig_lapse(rig, "n2"); /* a lost node blocks no other */
    assert_null(report_copy(rig, "n3", "log", 0, 1, "updating", 2).waits.at);
    report_copy(rig, "n3", "log", 0, 2, "finished", 0); /* holds for this node only */
    assert_int_equal(deploys_rig_get(rig, "log").row.ended.len, 0);
    assert_true(str_is(deploys_rig_renew(rig, "n3", LEASE_MS).u.renew.items[0].ended, "finished"));
    assert_int_equal(deploys_rig_renew(rig, "n1", LEASE_MS).u.renew.items[0].ended.len, 0);
}

static void test_release_only_of_nodes_that_are_gone(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op = {.verb = DEPLOYS_RELEASE, .u.release.node = STR("n1")};

    for (int i = 0; i < 3; i++) {
        char id[8];

        snprintf(id, sizeof id, "d%d", i);
        deploys_rig_put(rig, id, "run");
        deploys_rig_renew(rig, "n1", LEASE_MS);
        deploys_rig_claim(rig, "n1", id, "", 0);
    }
    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    assert_true(op.u.release.released_count == 0 && op.u.release.held_count == 3);
    assert_true(op.u.release.held[0].left_ms > 0);
    deploys_rig_lapse(rig, "n1");
    op = (struct deploys_op){.verb = DEPLOYS_RELEASE, .u.release.node = STR("n1")};
    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    assert_true(op.u.release.released_count == 3 && op.u.release.held_count == 0);
    assert_int_equal(deploys_rig_get(rig, "d0").row.owner.len, 0);
}

/* Nodes that owned nothing and left are no mass loss, however few nodes are left. */
static void test_nodes_without_deployments_may_go(void **state)
{
    struct deploys_rig *rig = *state;

    deploys_rig_put(rig, "a", "run");
    for (int i = 1; i <= 4; i++) {
        char node[4];

        snprintf(node, sizeof node, "n%d", i);
        deploys_rig_renew(rig, node, LEASE_MS);
        if (i > 1)
            deploys_rig_lapse(rig, node);
    }
    assert_int_equal(deploys_rig_claim(rig, "n1", "a", "", 0).err, ERR_OK);
}

static void three_nodes(struct deploys_rig *rig)
{
    deploys_rig_renew(rig, "n1", LEASE_MS);
    deploys_rig_renew(rig, "n2", LEASE_MS);
    deploys_rig_renew(rig, "n3", LEASE_MS);
}

static void goodbye(struct deploys_rig *rig, const char *node)
{
    struct deploys_op op = {.verb = DEPLOYS_RENEW,
                            .node = str_of(node),
                            .u.renew = {.lease_ms = LEASE_MS, .goodbye = true}};

    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
}

/* More than half of the nodes are lost: what they own is not claimed until an operator approves.
 * What nobody owns can be claimed. */
static void test_mass_loss_waits_for_an_operator(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op approve = {.verb = DEPLOYS_APPROVE, .u.until.for_ms = 60000};

    deploys_rig_put(rig, "a", "run");
    deploys_rig_put(rig, "b", "run");
    three_nodes(rig);
    assert_int_equal(deploys_rig_claim(rig, "n1", "a", "", 0).err, ERR_OK);
    deploys_rig_lapse(rig, "n1");
    deploys_rig_lapse(rig, "n2");
    struct deploys_op op = deploys_rig_claim(rig, "n3", "a", "n1", 1);
    assert_int_equal(op.refusal, DEPLOYS_MASS_LOSS);
    assert_int_equal(deploys_rig_claim(rig, "n3", "b", "", 0).err, ERR_OK);
    assert_int_equal(deploys_rig_call(rig, &approve), ERR_OK);
    assert_true(approve.u.until.until_ms > 0);
    assert_int_equal(deploys_rig_claim(rig, "n3", "a", "n1", 1).err, ERR_OK);
}

/* Two of three nodes say goodbye: what they own is taken over once their leases have run out, not
 * before. A node that came back and is lost later counts as lost. */
static void test_a_goodbye_is_no_loss(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op view;

    deploys_rig_put(rig, "a", "run");
    deploys_rig_put(rig, "b", "run");
    three_nodes(rig);
    assert_int_equal(deploys_rig_claim(rig, "n1", "a", "", 0).err, ERR_OK);
    assert_int_equal(deploys_rig_claim(rig, "n2", "b", "", 0).err, ERR_OK);
    goodbye(rig, "n1");
    goodbye(rig, "n2");
    assert_int_equal(deploys_rig_claim(rig, "n3", "a", "n1", 1).refusal, DEPLOYS_LEASE_ALIVE);
    view = deploys_rig_view(rig);
    assert_int_equal(view.u.view.lease_count, 3);
    assert_true(view.u.view.leases[0].goodbye && !view.u.view.leases[2].goodbye);
    deploys_rig_lapse(rig, "n1");
    goodbye(rig, "n1");
    deploys_rig_lapse(rig, "n2");
    goodbye(rig, "n2");
    assert_int_equal(deploys_rig_claim(rig, "n3", "a", "n1", 1).err, ERR_OK);
    deploys_rig_lapse(rig, "n1");
    deploys_rig_lapse(rig, "n2");
    assert_int_equal(deploys_rig_claim(rig, "n3", "b", "n2", 2).refusal, DEPLOYS_MASS_LOSS);
}

static struct deploys_op give_up(struct deploys_rig *rig, const char *node, int64_t generation)
{
    struct deploys_op op = {.verb = DEPLOYS_YIELD,
                            .id = STR("web"),
                            .node = str_of(node),
                            .u.claim = {.generation = generation,
                                        .version = 1,
                                        .failed = true,
                                        .reason = STR("It exited with code 127.")}};

    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    return op;
}

/* Every claimer sees where a deployment failed; the time it is avoided grows with each failure,
 * until its spec changes. */
static void test_failures_are_remembered(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op, view = {.verb = DEPLOYS_VIEW,
                                  .u.view = {.if_version = DEPLOYS_ANY, .if_facts = DEPLOYS_ANY}};
    struct deploys_op restart = {
        .verb = DEPLOYS_RESTART, .id = STR("web"), .u.put.if_version = DEPLOYS_ANY};
    int64_t first_ms;

    deploys_rig_put(rig, "web", "run");
    deploys_rig_renew(rig, "n1", LEASE_MS);
    deploys_rig_claim(rig, "n1", "web", "", 0);
    give_up(rig, "n1", 1);
    op = deploys_rig_get(rig, "web");
    assert_int_equal(op.row.owner.len, 0);
    assert_int_equal(op.failure_count, 1);
    assert_true(str_is(op.failures[0].address, "n1"));
    assert_true(str_is(op.failures[0].reason, "It exited with code 127."));
    first_ms = op.failures[0].until_ms - op.failures[0].at_ms;
    assert_true(first_ms > 0);
    assert_int_equal(deploys_rig_call(rig, &view), ERR_OK);
    view.u.view.if_version = view.version; /* also when nothing else changed */
    assert_int_equal(deploys_rig_call(rig, &view), ERR_OK);
    assert_true(view.u.view.unchanged && view.failure_count == 1);
    assert_true(str_is(view.failures[0].id, "web"));
    /* Allowed if no other node takes it. */
    assert_int_equal(deploys_rig_claim(rig, "n1", "web", "", 2).err, ERR_OK);
    give_up(rig, "n1", 3);
    op = deploys_rig_get(rig, "web");
    assert_int_equal(op.failures[0].until_ms - op.failures[0].at_ms, 2 * first_ms);
    assert_int_equal(deploys_rig_call(rig, &restart), ERR_OK);
    assert_int_equal(deploys_rig_get(rig, "web").failure_count, 0);
    assert_int_equal(deploys_rig_claim(rig, "n1", "web", "", 4).err, ERR_OK);
    give_up(rig, "n1", 5); /* of the version before */
    assert_int_equal(deploys_rig_get(rig, "web").failure_count, 0);
}

static void test_drain_deadline(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op = {.verb = DEPLOYS_DRAIN, .node = STR("n1"), .u.until.for_ms = 60000};

    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    assert_true(op.u.until.until_ms > op.now_ms);
    assert_int_equal(deploys_rig_renew(rig, "n1", LEASE_MS).u.renew.drain_deadline_ms,
                     op.u.until.until_ms);
    op.u.until.for_ms = 0;
    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
    assert_int_equal(deploys_rig_renew(rig, "n1", LEASE_MS).u.renew.drain_deadline_ms, 0);
}

/* One of two threads that race. */
struct racer {
    struct deploys_rig rig;
    const char *node;
    int won;
};

static struct deploys_op renew_as(struct deploys_rig *rig, const char *instance, int64_t lease_ms,
                                  bool held)
{
    struct deploys_op op = {
        .verb = DEPLOYS_RENEW,
        .node = STR("n1"),
        .instance = str_of(instance),
        .u.renew = {.lease_ms = lease_ms, .if_version = DEPLOYS_ANY, .held = held}};

    deploys_rig_call(rig, &op);
    return op;
}

/* Two agents use one name: the first has the lease until it runs out; then everything is assigned
 * anew. Meanwhile the second can neither renew, claim, yield, report a status nor say goodbye. */
static void test_two_agents_of_one_name(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op, claim = {.verb = DEPLOYS_CLAIM,
                                   .id = STR("b"),
                                   .node = STR("n1"),
                                   .instance = STR("second"),
                                   .u.claim.observed = STR("")};
    struct deploys_op yield = {.verb = DEPLOYS_YIELD,
                               .id = STR("a"),
                               .node = STR("n1"),
                               .instance = STR("second"),
                               .u.claim.generation = 1};
    struct deploys_op status = {
        .verb = DEPLOYS_STATUS, .node = STR("n1"), .instance = STR("second")};
    struct deploys_op goodbye_of = {.verb = DEPLOYS_RENEW,
                                    .node = STR("n1"),
                                    .instance = STR("second"),
                                    .u.renew = {.lease_ms = LEASE_MS, .goodbye = true}};

    deploys_rig_put(rig, "a", "run");
    deploys_rig_put(rig, "b", "run");
    assert_int_equal(renew_as(rig, "first", LEASE_MS, false).err, ERR_OK);
    assert_int_equal(deploys_rig_claim(rig, "n1", "a", "", 0).err, ERR_OK);
    op = renew_as(rig, "second", LEASE_MS, false);
    assert_int_equal(op.err, ERR_CONFLICT);
    assert_int_equal(op.refusal, DEPLOYS_OTHER_INSTANCE);
    assert_true(op.left_ms > 0 && op.left_ms <= LEASE_MS);
    assert_int_equal(deploys_rig_call(rig, &claim), ERR_CONFLICT);
    assert_int_equal(claim.refusal, DEPLOYS_OTHER_INSTANCE);
    assert_int_equal(deploys_rig_call(rig, &yield), ERR_CONFLICT);
    assert_int_equal(deploys_rig_call(rig, &status), ERR_CONFLICT);
    assert_int_equal(deploys_rig_call(rig, &goodbye_of), ERR_CONFLICT);
    op = renew_as(rig, "first", 1, false);
    assert_true(op.err == ERR_OK && !op.u.renew.lapsed && op.u.renew.items[0].generation == 1);
    do {
        op = renew_as(rig, "second", LEASE_MS, true);
    } while (op.err == ERR_CONFLICT);
    assert_true(op.err == ERR_OK && op.u.renew.lapsed && op.u.renew.items[0].generation == 2);
    assert_int_equal(renew_as(rig, "first", LEASE_MS, true).refusal, DEPLOYS_OTHER_INSTANCE);
}

/* An agent of the release before does not say who it is: it is accepted as the owner of the lease,
 * and the next agent that does say so gets the lease. */
static void test_an_agent_that_does_not_say_who_it_is(void **state)
{
    struct deploys_rig *rig = *state;

    deploys_rig_put(rig, "a", "run");
    deploys_rig_renew(rig, "n1", LEASE_MS);
    deploys_rig_claim(rig, "n1", "a", "", 0);
    struct deploys_op op = renew_as(rig, "first", LEASE_MS, false);
    assert_true(op.err == ERR_OK && !op.u.renew.lapsed && op.u.renew.items[0].generation == 1);
    assert_int_equal(renew_as(rig, "second", LEASE_MS, false).err, ERR_CONFLICT);
    assert_false(deploys_rig_renew(rig, "n1", LEASE_MS).u.renew.lapsed);
    assert_int_equal(renew_as(rig, "second", LEASE_MS, false).err, ERR_CONFLICT);
}

/* Two agents that are both new renew at the same moment. */
static void *come(void *arg)
{
    struct racer *racer = arg;

    racer->won = renew_as(&racer->rig, racer->node, LEASE_MS, false).err == ERR_OK;
    return NULL;
}

static void test_two_agents_come_at_once(void **state)
{
    struct deploys_rig *rig = *state;
    struct racer racers[2] = {{.node = "first"}, {.node = "second"}};
    pthread_t threads[2];

    for (int i = 0; i < 2; i++)
        deploys_rig_open(&racers[i].rig, rig->url, "/nowhere");
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, come, &racers[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(racers[0].won + racers[1].won, 1);
    for (int i = 0; i < 2; i++)
        deploys_rig_close(&racers[i].rig);
}

/* The database's clock jumps forward by an hour, so all leases have run out. An agent that knows by
 * its own clock that it always had a lease keeps what it runs in the same generation; otherwise it
 * gets a new generation, and what another node took meanwhile is gone. */
static void test_the_clock_is_put_forward(void **state)
{
    static const char *const forward = "UPDATE berth_node_lease SET until_ms = until_ms - 3600000";
    struct deploys_rig *rig = *state;
    struct deploys_op op;

    deploys_rig_put(rig, "a", "run");
    renew_as(rig, "first", LEASE_MS, false);
    deploys_rig_claim(rig, "n1", "a", "", 0);
    run_sql(rig->url, forward);
    op = renew_as(rig, "first", LEASE_MS, true);
    assert_true(op.err == ERR_OK && !op.u.renew.lapsed && op.u.renew.items[0].generation == 1);
    run_sql(rig->url, forward);
    op = renew_as(rig, "first", LEASE_MS, false);
    assert_true(op.u.renew.lapsed && op.u.renew.items[0].generation == 2);
    run_sql(rig->url, forward);
    deploys_rig_renew(rig, "n2", LEASE_MS);
    assert_int_equal(deploys_rig_claim(rig, "n2", "a", "n1", 2).err, ERR_OK);
    op = renew_as(rig, "first", LEASE_MS, true);
    assert_true(op.err == ERR_OK && op.u.renew.count == 0);
}

/* The database's clock is set back by an hour while a node is lost: its deployments become free
 * after one whole lease, not an hour later. Servers check that now and then and when they start. */
static void test_the_clock_is_set_back(void **state)
{
    static const char *const back = "UPDATE berth_node_lease SET until_ms = until_ms + 3600000,"
                                    " renewed_ms = renewed_ms + 3600000 WHERE address <> 'n3'";
    int64_t end_ms = clock_mono_ms() + 20000, left_ms[3];
    struct deploys_rig *rig = *state;

    deploys_rig_put(rig, "a", "run");
    renew_as(rig, "first", LEASE_MS, false);
    deploys_rig_claim(rig, "n1", "a", "", 0);
    deploys_rig_renew(rig, "n2", 2 * LEASE_MS);
    deploys_rig_renew(rig, "n3", LEASE_MS);
    run_sql(rig->url, back);
    deploys_rig_close(rig);
    deploys_rig_open(rig, rig->url, "/nowhere");
    do {
        struct deploys_op op = deploys_rig_view(rig);

        assert_true(clock_mono_ms() < end_ms);
        assert_int_equal(op.u.view.lease_count, 3);
        for (size_t i = 0; i < 3; i++)
            left_ms[op.u.view.leases[i].node.at[1] - '1'] =
                op.u.view.leases[i].until_ms - op.now_ms;
    } while (left_ms[0] > LEASE_MS);
    assert_in_range(left_ms[0], LEASE_MS / 2, LEASE_MS);
    assert_in_range(left_ms[1], 2 * LEASE_MS / 2, 2 * LEASE_MS);
    assert_in_range(left_ms[2], 1, LEASE_MS);
    assert_int_equal(deploys_rig_claim(rig, "n2", "a", "n1", 1).refusal, DEPLOYS_LEASE_ALIVE);
    assert_false(renew_as(rig, "first", LEASE_MS, true).u.renew.lapsed);
}

static void put_as(struct deploys_rig *rig, enum deploy_type type)
{
    deploys_rig_put_as(rig, type, "each", "run");
}

static void delete_each(struct deploys_rig *rig)
{
    struct deploys_op op = {
        .verb = DEPLOYS_DELETE, .id = STR("each"), .u.put.if_version = DEPLOYS_ANY};

    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
}

static struct deploys_op claim_each(struct deploys_rig *rig)
{
    return deploys_rig_claim(rig, "n3", "each", "", deploys_rig_get(rig, "each").row.generation);
}

/* A daemon that becomes a deployment runs on other nodes until they learn of the change, which may
 * not be before their leases end. */
static void test_what_was_a_daemon_is_not_claimed_at_once(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_copy copy = {.id = STR("each"),
                                .state = STR("stopping"),
                                .healthy = STR("null"),
                                .reason = STR(""),
                                .limits = STR("")};
    struct deploys_op status = {
        .verb = DEPLOYS_STATUS, .node = STR("n1"), .u.status = {.copies = &copy, .count = 1}};

    put_as(rig, DEPLOY_DAEMON);
    three_nodes(rig);
    put_as(rig, DEPLOY_DEPLOYMENT);
    assert_int_equal(claim_each(rig).refusal, DEPLOYS_WAS_DAEMON);
    delete_each(rig); /* deleting it does not end the wait */
    put_as(rig, DEPLOY_DEPLOYMENT);
    assert_int_equal(claim_each(rig).refusal, DEPLOYS_WAS_DAEMON);
    delete_each(rig);
    put_as(rig, DEPLOY_DAEMON);
    delete_each(rig);
    put_as(rig, DEPLOY_DEPLOYMENT);
    assert_int_equal(claim_each(rig).refusal, DEPLOYS_WAS_DAEMON);
    /* The wait is nearly over, and a node reports that it still runs the daemon. */
    run_sql(rig->url, "UPDATE deployment SET free_from_ms = free_from_ms - 30000");
    int64_t before_ms = deploys_rig_get(rig, "each").row.free_from_ms;
    assert_int_equal(deploys_rig_call(rig, &status), ERR_OK);
    assert_true(copy.stale);
    assert_true(deploys_rig_get(rig, "each").row.free_from_ms > before_ms);
    run_sql(rig->url, "UPDATE deployment SET free_from_ms = 1");
    assert_int_equal(claim_each(rig).err, ERR_OK);
}

/* Two claimers on two connections claim the same rows: each row is won exactly once. */
enum { RACE_ROWS = 60 };

static void *race(void *arg)
{
    struct racer *racer = arg;

    for (int i = 0; i < RACE_ROWS; i++) {
        char id[8];

        snprintf(id, sizeof id, "d%02d", i);
        struct deploys_op op = deploys_rig_claim(&racer->rig, racer->node, id, "", 0);
        assert_true(op.err == ERR_OK || op.refusal == DEPLOYS_CONFLICT);
        racer->won += op.err == ERR_OK;
    }
    return NULL;
}

static void test_two_claimers_race(void **state)
{
    struct deploys_rig *rig = *state;
    struct racer racers[2] = {{.node = "n1"}, {.node = "n2"}};
    pthread_t threads[2];
    int owned[2] = {0};

    for (int i = 0; i < RACE_ROWS; i++) {
        char id[8];

        snprintf(id, sizeof id, "d%02d", i);
        deploys_rig_put(rig, id, "run");
    }
    for (int i = 0; i < 2; i++) {
        deploys_rig_open(&racers[i].rig, rig->url, "/nowhere");
        deploys_rig_renew(&racers[i].rig, racers[i].node, LEASE_MS);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < RACE_ROWS; i++) {
        char id[8];

        snprintf(id, sizeof id, "d%02d", i);
        struct deploys_op got = deploys_rig_get(rig, id);
        assert_int_equal(got.row.generation, 1); /* it changed its owner once */
        owned[str_is(got.row.owner, "n2")]++;
    }
    assert_int_equal(racers[0].won + racers[1].won, RACE_ROWS);
    assert_int_equal(owned[0], racers[0].won);
    for (int i = 0; i < 2; i++)
        deploys_rig_close(&racers[i].rig);
}

/* PostgreSQL is killed and comes back: calls fail at once meanwhile, and then work again with all
 * data. */
static void test_the_server_is_killed_and_comes_back(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op = {.verb = DEPLOYS_GET, .id = STR("web")};
    struct deploys_op renew = {.verb = DEPLOYS_RENEW,
                               .node = STR("n1"),
                               .u.renew = {.lease_ms = LEASE_MS, .if_version = DEPLOYS_ANY}};
    int64_t end_ms;

    if (!on_pg)
        skip();
    deploys_rig_put(rig, "web", "run");
    deploys_rig_renew(rig, "n1", LEASE_MS);
    deploys_rig_claim(rig, "n1", "web", "", 0);
    pg_server_kill(&pg);
    end_ms = clock_mono_ms() + 60000;
    while (deploys_rig_call(rig, &op) != ERR_STORE_DOWN)
        assert_true(clock_mono_ms() < end_ms);
    assert_int_equal(deploys_rig_call(rig, &op), ERR_STORE_DOWN);
    pg_server_start(&pg);
    end_ms = clock_mono_ms() + 60000;
    while (deploys_rig_call(rig, &op) != ERR_OK) {
        assert_true(clock_mono_ms() < end_ms);
        poll(NULL, 0, 20);
    }
    assert_true(str_is(op.row.owner, "n1") && op.row.generation == 1);
    while (deploys_rig_call(rig, &renew) != ERR_OK) { /* on the other connection */
        assert_true(clock_mono_ms() < end_ms);
        poll(NULL, 0, 20);
    }
    assert_false(renew.u.renew.lapsed);
}

/* With synchronous_commit off, PostgreSQL answers before it has written: a crash would forget an
 * owner and give its generation to another node. */
static void test_a_claim_survives_a_crash(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_op op;

    if (!on_pg)
        skip();
    deploys_rig_close(rig);
    run_sql(pg.url, "ALTER SYSTEM SET synchronous_commit = off");
    run_sql(pg.url, "ALTER SYSTEM SET wal_writer_delay = '10s'");
    pg_server_kill(&pg);
    pg_server_start(&pg);
    deploys_rig_open(rig, pg.url, "/nowhere");
    deploys_rig_put(rig, "web", "run");
    deploys_rig_renew(rig, "n1", LEASE_MS);
    assert_int_equal(deploys_rig_claim(rig, "n1", "web", "", 0).err, ERR_OK);
    pg_server_kill(&pg);
    deploys_rig_close(rig);
    pg_server_start(&pg);
    deploys_rig_open(rig, pg.url, "/nowhere");
    op = deploys_rig_get(rig, "web");
    assert_true(op.found && str_is(op.row.owner, "n1") && op.row.generation == 1);
    run_sql(pg.url, "ALTER SYSTEM RESET ALL");
}

/* A claim that does not fit what the server knows of the node changes nothing, and names what is
 * short. */
static void test_a_claim_without_room(void **state)
{
    struct deploys_rig *rig = *state;
    struct deploys_spec spec = {.id = STR("web"),
                                .type = DEPLOY_DEPLOYMENT,
                                .package_name = STR(""),
                                .package_version = STR(""),
                                .command = STR("run"),
                                .args = STR("[]"),
                                .env = STR("{}"),
                                .selector = STR(""),
                                .options = STR("{\"needs\":{\"licences\":2}}"),
                                .enabled = true};
    struct deploys_op put = {.verb = DEPLOYS_PUT,
                             .u.put = {.spec = &spec, .if_version = DEPLOYS_ANY}};
    struct resources declared = {0};
    struct resources_left left = {.count = 1, .left = {1}};
    struct deploys_op op = {.verb = DEPLOYS_CLAIM,
                            .id = STR("web"),
                            .node = STR("n1"),
                            .u.claim = {.observed = STR(""), .declared = &declared, .left = &left}};
    const struct demand *demand;

    assert_true(resources_declare(&declared, STR("licences"), 3));
    assert_int_equal(deploys_rig_call(rig, &put), ERR_OK);
    demand = deploy_demand(deploys_rig_view(rig).u.view.items[0].needs, &rig->arena);
    assert_int_equal(demand_need(demand, STR("licences")), 2);
    deploys_rig_renew(rig, "n1", LEASE_MS);
    assert_int_equal(deploys_rig_call(rig, &op), ERR_CONFLICT);
    assert_int_equal(op.refusal, DEPLOYS_NO_ROOM);
    assert_true(str_is(op.u.claim.lack, "licences: 1 of 3 free, needs 2"));
    assert_int_equal(deploys_rig_get(rig, "web").row.generation, 0);
    left.left[0] = 2;
    assert_int_equal(deploys_rig_call(rig, &op), ERR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DEPLOYS_TEST(test_claim_and_what_stands_against_it),
        DEPLOYS_TEST(test_disabled_and_daemons_are_never_claimed),
        DEPLOYS_TEST(test_takeover_needs_a_lease_that_ran_out),
        DEPLOYS_TEST(test_a_late_renewal_is_a_new_assignment),
        DEPLOYS_TEST(test_renew_tells_only_what_changed),
        DEPLOYS_TEST(test_yield),
        DEPLOYS_TEST(test_status),
        DEPLOYS_TEST(test_what_is_not_named_is_forgotten),
        DEPLOYS_TEST(test_what_ended_is_not_claimed),
        DEPLOYS_TEST(test_a_daemons_turn),
        DEPLOYS_TEST(test_release_only_of_nodes_that_are_gone),
        DEPLOYS_TEST(test_nodes_without_deployments_may_go),
        DEPLOYS_TEST(test_mass_loss_waits_for_an_operator),
        DEPLOYS_TEST(test_a_goodbye_is_no_loss),
        DEPLOYS_TEST(test_failures_are_remembered),
        DEPLOYS_TEST(test_drain_deadline),
        DEPLOYS_TEST(test_two_agents_of_one_name),
        DEPLOYS_TEST(test_an_agent_that_does_not_say_who_it_is),
        DEPLOYS_TEST(test_two_agents_come_at_once),
        DEPLOYS_TEST(test_the_clock_is_put_forward),
        DEPLOYS_TEST(test_the_clock_is_set_back),
        DEPLOYS_TEST(test_what_was_a_daemon_is_not_claimed_at_once),
        DEPLOYS_TEST(test_two_claimers_race),
        DEPLOYS_TEST(test_a_claim_survives_a_crash),
        DEPLOYS_TEST(test_the_server_is_killed_and_comes_back),
        DEPLOYS_TEST(test_a_claim_without_room),
    };

    return deploys_main("deploys_claim", tests, COUNT_OF(tests));
}
