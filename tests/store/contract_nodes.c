/* Nodes: registration, versions, epochs, leaving, heartbeats with a list of runs. */
#include "contract.h"

#include <string.h>

static struct store_op put(const char *node, const char *facts)
{
    struct store_op op = {.verb = STORE_NODE_PUT, .node = str_of(node)};

    op.u.node_put.own = op.u.node_put.health = NODE_READY;
    op.u.node_put.max = 2;
    op.u.node_put.facts = str_of(facts);
    return op;
}

static const struct store_node *find(struct rig *rig, const char *node)
{
    struct store_op op = {.verb = STORE_NODES};

    assert_int_equal(rig_call(rig, &op), ERR_OK);
    for (size_t i = 0; i < op.u.nodes.count; i++)
        if (str_is(op.u.nodes.items[i].id, node))
            return &op.u.nodes.items[i];
    return NULL;
}

static void test_register_and_change(void **state)
{
    struct rig *rig = *state;
    struct store_op op = put("x", "{\"a\":1}");
    int64_t start = rig_now_ms();

    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_true(op.u.node_put.created);
    assert_int_equal(op.u.node_put.version, 1);
    assert_int_equal(op.counts.epoch, 1);
    rig_pass(rig, 1000);
    op = put("x", "{\"a\":1}"); /* repeated: no change */
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_false(op.u.node_put.created);
    assert_int_equal(op.u.node_put.version, 1);
    op = put("x", NULL); /* same facts, fewer slots */
    op.u.node_put.max = 1;
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_int_equal(op.u.node_put.version, 2);
    op = put("x", NULL);
    op.u.node_put.max = 1;
    op.u.node_put.health = NODE_DRAINING;
    op.u.node_put.set_admin = true;
    op.u.node_put.admin = NODE_ADMIN_CORDONED;
    op.u.node_put.admin_reason = STR("disk swap");
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_int_equal(op.u.node_put.version, 3);

    contract_backend->close(rig);
    contract_backend->open(rig);
    const struct store_node *node = find(rig, "x");
    assert_non_null(node);
    assert_true(str_is(node->facts, "{\"a\":1}"));
    assert_int_equal(node->counts.max, 1);
    assert_int_equal(node->counts.health, NODE_DRAINING);
    assert_int_equal(node->own, NODE_READY);
    assert_int_equal(node->admin, NODE_ADMIN_CORDONED);
    assert_true(str_is(node->admin_reason, "disk swap"));
    assert_int_equal(node->version, 3);
    assert_int_equal(node->registered_ms, start);
    assert_int_equal(rig_reserve(rig, 1, 1, "x"), ERR_ALL_FULL);
}

static void test_put_of_nobody(void **state)
{
    static char name[NODE_ID_MAX + 2];
    struct rig *rig = *state;
    struct store_op op = put("x", NULL);

    assert_int_equal(rig_call(rig, &op), ERR_NOT_FOUND);
    memset(name, 'n', sizeof name - 1);
    op = put(name, "{}");
    assert_int_equal(rig_call(rig, &op), ERR_BAD_FIELD);
    name[NODE_ID_MAX] = '\0';
    op = put(name, "{}");
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_int_equal(rig_reserve(rig, 1, 1, name), ERR_OK);
    assert_string_equal(rig->op.head.node, name);
}

/* Two instances find the same node lost: the epoch rises once. A finding about an older epoch
 * changes nothing. */
static void test_epoch_is_guarded(void **state)
{
    struct rig *rig = *state;
    struct store_op lost = put("n1", NULL);
    struct store_op again;

    lost.u.node_put.health = NODE_OFFLINE;
    lost.u.node_put.new_epoch = true;
    lost.u.node_put.if_epoch = 1;
    again = lost;
    assert_int_equal(rig_call(rig, &lost), ERR_OK);
    assert_int_equal(lost.counts.epoch, 2);
    assert_int_equal(rig_node(rig, "n1", 2, NODE_READY), ERR_OK);
    assert_int_equal(rig_call(rig, &again), ERR_STALE);
    assert_int_equal(again.counts.epoch, 2);
    assert_int_equal(rig_counts(rig, "n1").health, NODE_READY);

    /* A node that registers after a reboot says itself that its runs are gone: it counts, but does
     * not raise the epoch twice. */
    struct store_op back = put("n1", "{\"boot\":2}");
    back.u.node_put.new_epoch = true;
    back.u.node_put.if_epoch = 1;
    assert_int_equal(rig_call(rig, &back), ERR_OK);
    assert_int_equal(back.counts.epoch, 2);
    assert_true(str_is(find(rig, "n1")->facts, "{\"boot\":2}"));
}

static void test_drop(void **state)
{
    struct rig *rig = *state;
    struct store_op op = {.verb = STORE_NODE_DROP, .node = STR("n1")};
    struct store_op again = op;

    rig_reserve(rig, 1, 1, "n1");
    rig_commit(rig, 1, 1, "n1");
    rig_reserve(rig, 2, 1, "n1");
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_int_equal(rig_call(rig, &again), ERR_NOT_FOUND);
    assert_null(find(rig, "n1"));
    assert_int_equal(rig_reserve(rig, 3, 1, "n1"), ERR_ALL_FULL);
    /* A job that it still has ends as usual. */
    assert_int_equal(rig_finish(rig, STORE_DONE, 1, 1, "n1", NULL), ERR_OK);
    contract_backend->close(rig);
    contract_backend->open(rig);
    assert_null(find(rig, "n1"));
    /* A node that comes back before its last lease ended: that lease counts. */
    assert_int_equal(rig_node(rig, "n1", 2, NODE_READY), ERR_OK);
    assert_true(rig->op.u.node_put.created);
    assert_int_equal(rig_counts(rig, "n1").reserved, 1);
    rig_pass(rig, RIG_TTL_MS);
    assert_int_equal(rig_finish(rig, STORE_EXPIRE, 2, 1, NULL, NULL), ERR_OK);
    assert_int_equal(rig_counts(rig, "n1").reserved, 0);
}

/* A heartbeat that lists runs renews exactly those, and learns which of them are not the node's. */
static void test_renew_list(void **state)
{
    struct rig *rig = *state;
    struct store_op op = {.verb = STORE_RENEW, .node = STR("n1")};
    struct store_run runs[] = {
        {.id = 1, .attempt = 1}, /* running here */
        {.id = 2, .attempt = 1}, /* only reserved */
        {.id = 3, .attempt = 1}, /* runs on n2 */
        {.id = 4, .attempt = 1}, /* no such job */
        {.id = 1, .attempt = 2}, /* the wrong attempt */
    };

    rig_node(rig, "n1", 3, NODE_READY);
    rig_reserve(rig, 1, 1, "n1");
    rig_commit(rig, 1, 1, "n1");
    rig_reserve(rig, 5, 1, "n1");
    rig_commit(rig, 5, 1, "n1");
    rig_reserve(rig, 3, 1, "n2");
    rig_commit(rig, 3, 1, "n2");
    rig_pass(rig, 44000);
    rig_reserve(rig, 2, 1, "n1");
    op.u.renew.runs = runs;
    op.u.renew.count = 5;
    op.u.renew.terms = (struct lease_terms){RIG_RUN_MS, RIG_F2F_MS};
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_false(runs[0].unknown);
    for (int i = 1; i < 5; i++)
        assert_true(runs[i].unknown);
    assert_int_equal(op.counts.running, 2);
    rig_pass(rig, 1000);
    assert_int_equal(rig_finish(rig, STORE_EXPIRE, 1, 1, NULL, NULL), ERR_STALE);
    assert_int_equal(rig_finish(rig, STORE_EXPIRE, 5, 1, NULL, NULL), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_EXPIRE, 3, 1, NULL, NULL), ERR_OK);

    op = (struct store_op){.verb = STORE_RENEW, .node = STR("nobody")};
    op.u.renew.runs = runs;
    op.u.renew.count = 1;
    assert_int_equal(rig_call(rig, &op), ERR_NOT_FOUND);
    assert_true(runs[0].unknown);
}

/* Withheld slots: the node is full for this job, but not for one that withholds none. */
static void test_spare_slots(void **state)
{
    struct rig *rig = *state;
    struct store_op op = {.verb = STORE_RESERVE, .job = 2, .attempt = 1};

    op.u.put.spec = STR("{}");
    op.u.put.max_attempts = 1;
    op.u.put.ttl_ms = RIG_TTL_MS;
    op.u.put.candidate_count = 1;
    op.u.put.candidates[0] =
        (struct store_candidate){.node = STR("n1"), .hash = str_hash(STR("n1")), .withheld = 1};
    assert_int_equal(rig_reserve(rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(rig_call(rig, &op), ERR_ALL_FULL);
    assert_int_equal(op.u.put.candidates[0].why, LEASE_FULL);
    op.u.put.candidates[0].withheld = 2; /* all slots withheld: full, too */
    assert_int_equal(rig_call(rig, &op), ERR_ALL_FULL);
    assert_int_equal(op.u.put.candidates[0].why, LEASE_FULL);
    assert_int_equal(rig_counts(rig, "n1").max, 2);
    op.u.put.candidates[0].withheld = 0;
    assert_int_equal(rig_call(rig, &op), ERR_OK);
}

/* The answer with the higher order is the newer one, whichever verb it answers. */
static void test_answers_have_an_order(void **state)
{
    struct rig *rig = *state;
    uint64_t last;

    rig_reserve(rig, 1, 1, "n1");
    last = rig->op.order;
    rig_commit(rig, 1, 1, "n1");
    assert_true(rig->op.order > last);
    last = rig->op.order;
    rig_reserve(rig, 2, 1, "nowhere");
    assert_true(rig->op.order > last);
}

static void test_counts_without_facts(void **state)
{
    struct rig *rig = *state;
    struct store_op op = {.verb = STORE_COUNTS};

    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_int_equal(op.u.nodes.count, 3);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(op.u.nodes.items[i].facts.len, 0);
}

/* Short jobs come and go while long ones run. When the node is lost, the long ones are due, oldest
 * first. */
static void test_long_beside_short(void **state)
{
    enum { LONG_A = 1, LONG_B = 30, SHORT_LAST = 60 };
    struct rig *rig = *state;
    struct store_op lost = put("x", NULL);
    struct store_due due[4];

    assert_int_equal(rig_node(rig, "x", 8, NODE_READY), ERR_OK);
    for (uint64_t job = 1; job <= SHORT_LAST; job++) {
        bool stays = job == LONG_A || job == LONG_B;

        assert_int_equal(rig_reserve(rig, job, 1, "x"), ERR_OK);
        assert_int_equal(rig_commit(rig, job, 1, "x"), ERR_OK);
        if (!stays)
            assert_int_equal(rig_finish(rig, STORE_DONE, job, 1, "x", NULL), ERR_OK);
        assert_int_equal(rig->op.counts.running, job < LONG_B ? 1 : 2);
    }
    lost.u.node_put.new_epoch = true;
    assert_int_equal(rig_call(rig, &lost), ERR_OK);
    assert_int_equal(rig_counts(rig, "x").running, 0);
    assert_int_equal(rig_due(rig, due, COUNT_OF(due)), 2);
    assert_int_equal(due[0].id, LONG_A);
    assert_int_equal(due[1].id, LONG_B);
}

/* Most of a node's jobs have ended, scattered over its list: those left are still the node's, and
 * the end of one does not affect another. */
static void test_few_of_many_are_left(void **state)
{
    enum { JOBS = 40, EACH = 4, LEFT = JOBS / EACH - 1 };
    struct rig *rig = *state;
    struct store_op lost = put("x", NULL);
    struct store_due due[JOBS];

    assert_int_equal(rig_node(rig, "x", JOBS, NODE_READY), ERR_OK);
    for (uint64_t job = 1; job <= JOBS; job++) {
        assert_int_equal(rig_reserve(rig, job, 1, "x"), ERR_OK);
        assert_int_equal(rig_commit(rig, job, 1, "x"), ERR_OK);
    }
    for (uint64_t job = 1; job <= JOBS; job++)
        if (job % EACH != 0)
            assert_int_equal(rig_finish(rig, STORE_DONE, job, 1, "x", NULL), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_DONE, EACH, 1, "x", NULL), ERR_OK);
    assert_int_equal(rig->op.counts.running, LEFT);
    lost.u.node_put.new_epoch = true;
    assert_int_equal(rig_call(rig, &lost), ERR_OK);
    assert_int_equal(rig_due(rig, due, COUNT_OF(due)), LEFT);
}

/* A lost node may still run its jobs: they keep their leases and slots until those run out, and go
 * on if the node comes back before. Jobs without an ACK move on at once. */
static void test_lost_keeps_what_runs(void **state)
{
    enum { RUNS = 1, RESERVED = 2, ENDS = 3 };
    struct rig *rig = *state;
    struct store_op lost = put("x", NULL);
    struct store_op renew = {.verb = STORE_RENEW, .node = STR("x")};
    struct store_run runs[] = {{.id = RUNS, .attempt = 1}};
    struct store_due due[4];

    assert_int_equal(rig_node(rig, "x", 4, NODE_READY), ERR_OK);
    for (uint64_t job = RUNS; job <= ENDS; job++)
        assert_int_equal(rig_reserve(rig, job, 1, "x"), ERR_OK);
    assert_int_equal(rig_commit(rig, RUNS, 1, "x"), ERR_OK);
    assert_int_equal(rig_commit(rig, ENDS, 1, "x"), ERR_OK);
    lost.u.node_put.health = NODE_OFFLINE;
    lost.u.node_put.new_epoch = lost.u.node_put.keeps_runs = true;
    lost.u.node_put.if_epoch = 1;
    assert_int_equal(rig_call(rig, &lost), ERR_OK);
    assert_int_equal(lost.counts.epoch, 2);
    assert_int_equal(lost.counts.running, 2);
    assert_int_equal(lost.counts.reserved, 0);
    assert_int_equal(rig_due(rig, due, COUNT_OF(due)), 1);
    assert_int_equal(due[0].id, RESERVED);
    assert_int_equal(rig_finish(rig, STORE_EXPIRE, RUNS, 1, NULL, NULL), ERR_STALE);
    assert_int_equal(rig_finish(rig, STORE_EXPIRE, RESERVED, 1, NULL, NULL), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_CANCEL, RESERVED, 0, NULL, NULL), ERR_OK);

    /* The same after a restart. */
    contract_backend->close(rig);
    contract_backend->open(rig);
    assert_int_equal(rig_counts(rig, "x").running, 2);
    rig_pass(rig, RIG_RUN_MS - 1000);
    assert_int_equal(rig_due(rig, due, COUNT_OF(due)), 0);

    /* The node comes back with one of its two runs: that one goes on, the other ends when its lease
     * does. */
    assert_int_equal(rig_node(rig, "x", 4, NODE_READY), ERR_OK);
    renew.u.renew.runs = runs;
    renew.u.renew.count = COUNT_OF(runs);
    renew.u.renew.terms = (struct lease_terms){RIG_RUN_MS, RIG_F2F_MS};
    assert_int_equal(rig_call(rig, &renew), ERR_OK);
    assert_false(runs[0].unknown);
    assert_int_equal(rig_finish(rig, STORE_EXPIRE, ENDS, 1, NULL, NULL), ERR_STALE);
    rig_pass(rig, 1000);
    assert_int_equal(rig_due(rig, due, COUNT_OF(due)), 1);
    assert_int_equal(due[0].id, ENDS);
    assert_int_equal(rig_finish(rig, STORE_EXPIRE, ENDS, 1, NULL, NULL), ERR_OK);
    assert_string_equal(rig->op.head.reason, "NODE_LOST");
    assert_int_equal(rig_counts(rig, "x").running, 1);
    assert_int_equal(rig_finish(rig, STORE_DONE, RUNS, 1, "x", NULL), ERR_OK);
    assert_int_equal(rig_counts(rig, "x").running, 0);
}

/* A node is lost a second time: a lease that stopped counting before does not count again. */
static void test_lost_again_revives_nothing(void **state)
{
    struct rig *rig = *state;
    struct store_op back = put("x", NULL), lost = put("x", NULL);
    struct store_due due[4];

    assert_int_equal(rig_node(rig, "x", 4, NODE_READY), ERR_OK);
    assert_int_equal(rig_reserve(rig, 1, 1, "x"), ERR_OK);
    assert_int_equal(rig_commit(rig, 1, 1, "x"), ERR_OK);
    back.u.node_put.new_epoch = true; /* it comes back without its run */
    assert_int_equal(rig_call(rig, &back), ERR_OK);
    lost.u.node_put.new_epoch = lost.u.node_put.keeps_runs = true;
    assert_int_equal(rig_call(rig, &lost), ERR_OK);
    assert_int_equal(lost.counts.running, 0);
    assert_int_equal(rig_due(rig, due, COUNT_OF(due)), 1);
    assert_int_equal(rig_finish(rig, STORE_EXPIRE, 1, 1, NULL, NULL), ERR_OK);
    assert_int_equal(rig_counts(rig, "x").running, 0);
}

/* A face-to-face job has a lease term of its own: at the ACK, at each renewal, and after a
 * restart. */
static void test_leases_by_type(void **state)
{
    enum { F2F = 1, TASK = 2 };
    struct rig *rig = *state;
    struct store_op renew = {.verb = STORE_RENEW, .node = STR("x")};
    struct store_due due[4];

    assert_int_equal(rig_node(rig, "x", 4, NODE_READY), ERR_OK);
    for (uint64_t job = F2F; job <= TASK; job++) {
        struct store_op op = contract_reserve(job, "x");

        op.u.put.type = job == F2F ? STR("f2f") : STR("dev");
        assert_int_equal(rig_call(rig, &op), ERR_OK);
        assert_int_equal(rig_commit(rig, job, 1, "x"), ERR_OK);
        assert_int_equal(rig->op.head.due_ms - rig_now_ms(), job == F2F ? RIG_F2F_MS : RIG_RUN_MS);
    }
    rig_pass(rig, 4000);
    renew.u.renew.terms = (struct lease_terms){2 * RIG_RUN_MS, 2 * RIG_F2F_MS};
    assert_int_equal(rig_call(rig, &renew), ERR_OK);
    rig_pass(rig, 2 * RIG_F2F_MS - 1);
    assert_int_equal(rig_due(rig, due, COUNT_OF(due)), 0);

    contract_backend->close(rig);
    contract_backend->open(rig); /* each lease has at least a full term after this */
    rig_pass(rig, RIG_F2F_MS - 1);
    assert_int_equal(rig_due(rig, due, COUNT_OF(due)), 0);
    rig_pass(rig, 1);
    assert_int_equal(rig_due(rig, due, COUNT_OF(due)), 1);
    assert_int_equal(due[0].id, F2F);
    rig_pass(rig, RIG_RUN_MS - RIG_F2F_MS - 1);
    assert_int_equal(rig_due(rig, due, COUNT_OF(due)), 1);
    rig_pass(rig, RIG_RUN_MS);
    assert_int_equal(rig_due(rig, due, COUNT_OF(due)), 2);
}

/* More leases may come due at once than a store looks at in one call. The first heartbeat after
 * that is still answered exactly. */
enum { MANY = 1500 };

static void many_run(struct rig *rig, struct store_run *runs, int64_t timeout_ms)
{
    assert_int_equal(rig_node(rig, "x", MANY, NODE_READY), ERR_OK);
    for (int i = 0; i < MANY; i++) {
        struct store_op op = contract_reserve((uint64_t)i + 1, "x");

        op.u.put.timeout_ms = timeout_ms;
        assert_int_equal(rig_call(rig, &op), ERR_OK);
        assert_int_equal(rig_commit(rig, (uint64_t)i + 1, 1, "x"), ERR_OK);
        runs[i] = (struct store_run){.id = (uint64_t)i + 1, .attempt = 1};
    }
}

/* Renews; `runs` may be NULL: none are listed. Returns how many of the listed ones are unknown. */
static int renew_many(struct rig *rig, struct store_run *runs)
{
    struct store_op op = {.verb = STORE_RENEW, .node = STR("x")};
    int unknown = 0;

    op.u.renew.runs = runs;
    op.u.renew.count = runs ? MANY : 0;
    op.u.renew.terms = (struct lease_terms){RIG_RUN_MS, RIG_F2F_MS};
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    for (int i = 0; runs && i < MANY; i++)
        unknown += runs[i].unknown;
    return unknown;
}

/* A few DUE calls return all of them. */
static size_t due_many(struct rig *rig)
{
    struct store_due due[2 * MANY];
    size_t count = 0;

    for (int i = 0; i < 8; i++)
        count = rig_due(rig, due, COUNT_OF(due));
    return count;
}

static void test_many_that_ran_out_are_not_revived(void **state)
{
    struct store_run runs[MANY];
    struct rig *rig = *state;

    many_run(rig, runs, 0);
    rig_pass(rig, RIG_RUN_MS - 1000);
    assert_int_equal(due_many(rig), 0);
    rig_jump(1000);
    assert_int_equal(renew_many(rig, runs), MANY);
    assert_int_equal(due_many(rig), MANY);
    assert_int_equal(rig_counts(rig, "x").running, 0);
}

static void test_many_that_ran_out_unlisted(void **state)
{
    struct store_run runs[MANY];
    struct rig *rig = *state;

    many_run(rig, runs, 0);
    rig_pass(rig, 20000);
    assert_int_equal(renew_many(rig, runs), 0);
    rig_pass(rig, RIG_RUN_MS - 1000);
    assert_int_equal(due_many(rig), 0);
    rig_jump(1000);
    renew_many(rig, NULL);
    assert_int_equal(due_many(rig), MANY);
    assert_int_equal(renew_many(rig, runs), MANY);
}

static void test_many_at_their_time_out(void **state)
{
    enum { TIMEOUT_MS = 40000, STOP_MS = 1000 };
    struct store_run runs[MANY];
    struct rig *rig = *state;

    many_run(rig, runs, TIMEOUT_MS);
    rig_pass(rig, TIMEOUT_MS);
    assert_int_equal(renew_many(rig, runs), 0);
    assert_int_equal(due_many(rig), 0);
    rig_jump(STOP_MS);
    assert_int_equal(renew_many(rig, runs), MANY);
    assert_int_equal(due_many(rig), MANY);
}

static void test_many_go_on(void **state)
{
    struct store_run runs[MANY];
    struct rig *rig = *state;

    many_run(rig, runs, 0);
    rig_pass(rig, RIG_RUN_MS - 1000);
    assert_int_equal(renew_many(rig, runs), 0);
    rig_jump(1000);
    assert_int_equal(renew_many(rig, runs), 0);
    assert_int_equal(due_many(rig), 0);
    rig_pass(rig, RIG_RUN_MS - 1);
    assert_int_equal(due_many(rig), 0);
    assert_int_equal(rig_counts(rig, "x").running, MANY);
    rig_pass(rig, 1);
    assert_int_equal(due_many(rig), MANY);
}

/* Leases that a heartbeat does not list keep their term, however many there are; the next heartbeat
 * that lists one renews it. */
static void test_half_of_many_is_listed(void **state)
{
    static const size_t listed[] = {1000, 300}; /* more than half, then fewer */
    struct store_op op = {.verb = STORE_RENEW, .node = STR("x")};
    struct store_run runs[MANY];
    struct rig *rig = *state;

    many_run(rig, runs, 0);
    for (size_t i = 0; i < COUNT_OF(listed); i++) {
        op = (struct store_op){.verb = STORE_RENEW, .node = STR("x")};
        rig_pass(rig, 4000);
        op.u.renew.runs = runs;
        op.u.renew.count = listed[i];
        op.u.renew.terms = (struct lease_terms){RIG_RUN_MS, RIG_F2F_MS};
        assert_int_equal(rig_call(rig, &op), ERR_OK);
        for (size_t k = 0; k < listed[i]; k++)
            assert_false(runs[k].unknown);
    }
    rig_pass(rig, RIG_RUN_MS - 8000 - 1);
    assert_int_equal(due_many(rig), 0);
    rig_pass(rig, 1);
    assert_int_equal(due_many(rig), MANY - listed[0]);
    rig_pass(rig, 4000);
    assert_int_equal(due_many(rig), MANY - listed[1]);
    assert_int_equal(renew_many(rig, runs), MANY - listed[1]);
    rig_pass(rig, RIG_RUN_MS - 1);
    assert_int_equal(due_many(rig), MANY - listed[1]);
    rig_pass(rig, 1);
    assert_int_equal(due_many(rig), MANY);
}

const struct CMUnitTest contract_nodes[] = {
    CONTRACT(test_register_and_change),
    CONTRACT(test_put_of_nobody),
    CONTRACT(test_epoch_is_guarded),
    CONTRACT(test_drop),
    CONTRACT(test_spare_slots),
    CONTRACT(test_answers_have_an_order),
    CONTRACT(test_renew_list),
    CONTRACT(test_counts_without_facts),
    CONTRACT(test_long_beside_short),
    CONTRACT(test_few_of_many_are_left),
    CONTRACT(test_lost_keeps_what_runs),
    CONTRACT(test_lost_again_revives_nothing),
    CONTRACT(test_leases_by_type),
    CONTRACT(test_many_that_ran_out_are_not_revived),
    CONTRACT(test_many_that_ran_out_unlisted),
    CONTRACT(test_many_at_their_time_out),
    CONTRACT(test_many_go_on),
    CONTRACT(test_half_of_many_is_listed),
};
const size_t contract_nodes_count = COUNT_OF(contract_nodes);
