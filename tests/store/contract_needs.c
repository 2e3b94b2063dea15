/* What a job takes of a node besides its slot: all of it or nothing, in one step with the slot, and
 * given back exactly once, however the lease ends. */
#include "contract.h"

/* n1 has room for two typical jobs; n2 is larger. */
#define N1 "cpu=4000/4000,licences=2/2,mem_mb=8000/8000 0=20000/20000,1=24000/24000"
#define N2 "cpu=8000/8000,mem_mb=16000/16000 "

static enum err put_resources(struct rig *rig, const char *node, const char *resources)
{
    struct store_op op = {.verb = STORE_NODE_PUT, .node = str_of(node)};

    op.u.node_put.own = op.u.node_put.health = NODE_READY;
    op.u.node_put.max = -1;
    op.u.node_put.resources = str_of(resources);
    rig->op = op;
    return rig_call(rig, &rig->op);
}

static int setup(void **state)
{
    struct rig *rig;

    if (contract_setup(state))
        return 1;
    rig = *state;
    return rig_node(rig, "n1", 8, NODE_READY) || rig_node(rig, "n2", 8, NODE_READY) ||
           put_resources(rig, "n1", N1) || put_resources(rig, "n2", N2);
}

static enum err reserve_attempt(struct rig *rig, uint64_t job, int attempt, const char *demand,
                                const char *nodes)
{
    struct store_op op = {.verb = STORE_RESERVE, .job = job, .attempt = attempt};
    struct str rest = str_of(nodes);

    op.u.put.spec = STR("{}");
    op.u.put.demand = str_of(demand);
    op.u.put.max_attempts = 3;
    op.u.put.owner = rig_owner(rig);
    op.u.put.ttl_ms = RIG_TTL_MS;
    while (rest.len) {
        struct str node = str_cut(&rest, ' ');

        op.u.put.candidates[op.u.put.candidate_count++] =
            (struct store_candidate){.node = node, .hash = str_hash(node)};
    }
    rig->op = op;
    return rig_call(rig, &rig->op);
}

static enum err reserve(struct rig *rig, uint64_t job, const char *demand, const char *nodes)
{
    return reserve_attempt(rig, job, 1, demand, nodes);
}

static struct store_node find(struct rig *rig, const char *node, enum store_verb verb)
{
    struct store_op op = {.verb = verb};

    assert_int_equal(rig_call(rig, &op), ERR_OK);
    for (size_t i = 0; i < op.u.nodes.count; i++)
        if (str_is(op.u.nodes.items[i].id, node))
            return op.u.nodes.items[i];
    fail_msg("no node %s", node);
    return (struct store_node){0};
}

/* `want` is "cpu,licences,mem_mb gpu,gpu": what is left of n1, or of whatever the node declares. */
static void assert_left(struct rig *rig, const char *node, const char *want)
{
    struct resources_left left = find(rig, node, STORE_COUNTS).left;
    struct buf text = {0};

    for (int i = 0; i < left.count; i++)
        buf_fmt(&text, "%s%d", i ? "," : "", left.left[i]);
    for (int i = 0; i < left.gpu_count; i++) {
        buf_str(&text, i ? STR(",") : STR(" "));
        if (left.gpu_left[i] == RESOURCES_LEFT_WHOLE)
            buf_str(&text, STR("whole"));
        else
            buf_fmt(&text, "%d%s", left.gpu_left[i], left.shared >> i & 1 ? "s" : "");
    }
    if (!str_is(buf_view(&text), want))
        fail_msg("%s: left is \"" STR_FMT "\", not \"%s\"", node, STR_ARG(buf_view(&text)), want);
    buf_free(&text);
}

#define ALL_LEFT "4000,2,8000 20000,24000"

/* One reserve each on n1: the demand, and the answer or the reason of the refusal. */
static const struct {
    const char *demand;
    enum lease_reason why;
    uint64_t gpus;
} fits[] = {
    {"", LEASE_OK, 0},
    {"1 0 0 cpu=4000,mem_mb=8000 ", LEASE_OK, 0},
    {"1 0 0 cpu=4001 ", LEASE_RESOURCES, 0},
    {"1 0 0 cpu=1,mem_mb=8001 ", LEASE_RESOURCES, 0},
    {"1 0 0 fans=1 ", LEASE_RESOURCES, 0}, /* not declared */
    {"8 0 0 licences=2 ", LEASE_OK, 0},
    {"9 0 0 licences=2 ", LEASE_FULL, 0}, /* slots are checked before resources */
    {"9 0 0 licences=3 ", LEASE_FULL, 0},
    {"1 0 7000  ", LEASE_OK, 1},
    {"1 0 21000  ", LEASE_OK, 2},
    {"1 0 24001  ", LEASE_RESOURCES, 0},
    {"1 1 0  ", LEASE_OK, 1},
    {"1 1 21000  ", LEASE_OK, 2},
    {"1 2 0  ", LEASE_OK, 3},
    {"1 2 21000  ", LEASE_RESOURCES, 0},
    {"1 3 0  ", LEASE_RESOURCES, 0},
};

static void test_fits(void **state)
{
    struct rig *rig = *state;

    for (size_t i = 0; i < COUNT_OF(fits); i++) {
        uint64_t job = 100 + i;
        bool ok = fits[i].why == LEASE_OK;

        assert_int_equal(reserve(rig, job, fits[i].demand, "n1"), ok ? ERR_OK : ERR_ALL_FULL);
        assert_int_equal(rig->op.u.put.candidates[0].why, fits[i].why);
        assert_int_equal(rig_get(rig, job), ok ? ERR_OK : ERR_NOT_FOUND);
        if (ok) {
            assert_true(rig->op.head.gpus == fits[i].gpus);
            assert_int_equal(rig_finish(rig, STORE_SEND_FAILED, job, 1, "n1", NULL), ERR_OK);
            assert_true(rig->op.head.gpus == 0);
        }
        assert_left(rig, "n1", ALL_LEFT);
        assert_int_equal(rig_counts(rig, "n1").reserved, 0);
    }
}

/* Slots, resources and GPUs are taken and given back together, and answers carry what is left. */
static void test_taken_and_given_back(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(reserve(rig, 1, "3 0 5000 cpu=1500,licences=1 ", "n1"), ERR_OK);
    assert_int_equal(rig->op.counts.reserved, 3);
    assert_int_equal(rig->op.left.count, 3);
    assert_int_equal(rig->op.left.left[0], 2500);
    assert_int_equal(rig->op.left.gpu_count, 2);
    assert_int_equal(rig->op.left.gpu_left[0], 15000);
    assert_left(rig, "n1", "2500,1,8000 15000s,24000");
    assert_int_equal(reserve(rig, 2, "1 1 0 licences=1 ", "n1"), ERR_OK);
    assert_true(rig->op.head.gpus == 2);
    assert_left(rig, "n1", "2500,0,8000 15000s,whole");
    assert_int_equal(reserve(rig, 3, "1 0 0 licences=1 ", "n1"), ERR_ALL_FULL);
    assert_int_equal(rig->op.u.put.candidates[0].why, LEASE_RESOURCES);
    assert_int_equal(rig_commit(rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(rig->op.counts.running, 3);
    assert_int_equal(rig->op.left.left[0], 2500);
    assert_int_equal(rig_finish(rig, STORE_DONE, 1, 1, "n1", NULL), ERR_OK);
    assert_int_equal(rig->op.counts.running, 0);
    assert_int_equal(rig->op.left.left[0], 4000);
    assert_left(rig, "n1", "4000,1,8000 20000,whole");
    assert_int_equal(rig_finish(rig, STORE_DONE, 1, 1, "n1", NULL), ERR_OK); /* repeated */
    assert_left(rig, "n1", "4000,1,8000 20000,whole");
    assert_int_equal(rig_get(rig, 2), ERR_OK);
    assert_true(rig->op.head.gpus == 2);
    assert_int_equal(rig_commit(rig, 2, 1, "n1"), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_FAIL, 2, 1, "n1", "EXIT_1"), ERR_OK);
    assert_true(rig->op.head.gpus == 2); /* the record keeps its GPUs after the end */
    assert_left(rig, "n1", ALL_LEFT);
    assert_int_equal(rig_repairs(rig), 0);
}

/* The next candidate gets a job for which the first has no room. */
static void test_next_candidate(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(reserve(rig, 1, "1 0 0 cpu=3000,mem_mb=3000 ", "n1 n2"), ERR_OK);
    assert_string_equal(rig->op.head.node, "n1");
    assert_int_equal(reserve(rig, 2, "1 0 0 cpu=3000,mem_mb=3000 ", "n1 n2"), ERR_OK);
    assert_string_equal(rig->op.head.node, "n2");
    assert_int_equal(rig->op.u.put.candidates[0].why, LEASE_RESOURCES);
    assert_int_equal(rig->op.u.put.candidates[1].why, LEASE_OK);
    assert_int_equal(rig->op.left.count, 2);
    assert_int_equal(rig->op.left.left[0], 5000);
    assert_int_equal(rig_counts(rig, "n1").reserved, 1);
}

/* A node that declares no resources takes only jobs that need none. */
static void test_nothing_declared(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(rig_node(rig, "bare", 4, NODE_READY), ERR_OK);
    assert_int_equal(rig->op.left.count, 0);
    assert_int_equal(reserve(rig, 1, "1 0 0 cpu=1 ", "bare"), ERR_ALL_FULL);
    assert_int_equal(rig->op.u.put.candidates[0].why, LEASE_RESOURCES);
    assert_int_equal(reserve(rig, 2, "3 0 0  tenant:a", "bare"), ERR_OK);
    assert_int_equal(rig->op.counts.reserved, 3);
    assert_int_equal(rig->op.left.count, 0);
    assert_int_equal(reserve(rig, 3, "2 0 0  ", "bare"), ERR_ALL_FULL);
    assert_int_equal(rig->op.u.put.candidates[0].why, LEASE_FULL);
}

/* Every way a lease may end. `acked`: the job ran. */
static const struct {
    const char *name;
    bool acked;
    enum store_outcome outcome;
} ends[] = {
    {"done", true, STORE_DONE},        {"fail", true, STORE_FAIL},
    {"refused", false, STORE_REFUSED}, {"send failed", false, STORE_SEND_FAILED},
    {"cancel", false, STORE_CANCEL},   {"abandon", false, STORE_ABANDON},
    {"run out", false, STORE_EXPIRE},  {"run out, running", true, STORE_EXPIRE},
};

static void test_every_end(void **state)
{
    struct rig *rig = *state;

    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        uint64_t job = 10 + i;
        bool by_node = ends[i].outcome <= STORE_SEND_FAILED;

        assert_int_equal(reserve(rig, job, "2 1 0 cpu=500 ", "n1"), ERR_OK);
        if (ends[i].acked)
            assert_int_equal(rig_commit(rig, job, 1, "n1"), ERR_OK);
        assert_left(rig, "n1", "3500,2,8000 whole,24000");
        if (ends[i].outcome == STORE_EXPIRE) {
            struct store_due due[2];

            rig_pass(rig, RIG_RUN_MS + RIG_TTL_MS);
            assert_int_equal(rig_due(rig, due, 2), 1);
            assert_left(rig, "n1", ALL_LEFT); /* freed before the job is settled */
        }
        assert_int_equal(rig_finish(rig, ends[i].outcome, job,
                                    by_node || ends[i].outcome == STORE_EXPIRE ? 1 : 0,
                                    by_node ? "n1" : NULL, "EXIT_1"),
                         ERR_OK);
        assert_left(rig, "n1", ALL_LEFT);
        assert_int_equal(rig_counts(rig, "n1").reserved, 0);
        assert_int_equal(rig_counts(rig, "n1").running, 0);
        rig_finish(rig, STORE_CANCEL, job, 0, NULL, NULL);
        assert_left(rig, "n1", ALL_LEFT);
    }
    assert_int_equal(rig_repairs(rig), 0);
}

/* A job keeps the demand it was put with; reserves of later attempts do not repeat it. */
static void test_kept_with_the_job(void **state)
{
    struct rig *rig = *state;
    struct store_op op = {.verb = STORE_PUT, .job = 7, .attempt = 1};

    op.u.put.spec = STR("{}");
    op.u.put.demand = STR("2 0 0 licences=2 ");
    op.u.put.max_attempts = 2;
    op.u.put.lane = 77;
    op.u.put.wait_ms = RIG_WAIT_MS;
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    contract_reopen(rig);
    assert_int_equal(reserve(rig, 7, "", "n1"), ERR_OK);
    assert_int_equal(rig->op.counts.reserved, 2);
    assert_left(rig, "n1", "4000,0,8000 20000,24000");
    assert_int_equal(rig_commit(rig, 7, 1, "n1"), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_FAIL, 7, 1, "n1", "EXIT_1"), ERR_OK);
    contract_reopen(rig);
    assert_int_equal(reserve_attempt(rig, 7, 2, "", "n1"), ERR_OK);
    assert_left(rig, "n1", "4000,0,8000 20000,24000");
}

/* A restart counts the leases again and keeps what nodes declared. */
static void test_after_a_restart(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(reserve(rig, 1, "3 0 5000 cpu=1500,licences=1 ", "n1"), ERR_OK);
    assert_int_equal(reserve(rig, 2, "1 1 0  ", "n1"), ERR_OK);
    assert_int_equal(rig_commit(rig, 2, 1, "n1"), ERR_OK);
    for (int i = 0; i < 2; i++) {
        contract_reopen(rig);
        assert_left(rig, "n1", "2500,1,8000 15000s,whole");
        assert_int_equal(rig_counts(rig, "n1").reserved, 3);
        assert_int_equal(rig_counts(rig, "n1").running, 1);
        assert_true(str_is(find(rig, "n1", STORE_NODES).resources, N1));
    }
    assert_int_equal(rig_finish(rig, STORE_DONE, 2, 1, "n1", NULL), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_REFUSED, 1, 1, "n1", NULL), ERR_OK);
    assert_left(rig, "n1", ALL_LEFT);
    assert_int_equal(rig_repairs(rig), 0);
}

/* Usable amounts shrink and grow. What is left may be negative; then nothing more of it is
 * given. */
static void test_shrinks_and_grows(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(reserve(rig, 1, "1 0 0 mem_mb=6000 ", "n1"), ERR_OK);
    assert_int_equal(put_resources(rig, "n1",
                                   "cpu=4000/4000,licences=2/2,mem_mb=8000/4000 "
                                   "0=20000/20000,1=24000/24000"),
                     ERR_OK);
    assert_int_equal(rig->op.left.left[2], -2000);
    assert_left(rig, "n1", "4000,2,-2000 20000,24000");
    assert_int_equal(reserve(rig, 2, "1 0 0 mem_mb=1 ", "n1"), ERR_ALL_FULL);
    assert_int_equal(reserve(rig, 3, "1 0 0 cpu=1 ", "n1"), ERR_OK);
    assert_int_equal(put_resources(rig, "n1", N1), ERR_OK);
    assert_left(rig, "n1", "3999,2,2000 20000,24000");
    assert_int_equal(reserve(rig, 2, "1 0 0 mem_mb=2000 ", "n1"), ERR_OK);
    assert_left(rig, "n1", "3999,2,0 20000,24000");
}

/* A node declares other names and other GPUs: what its leases hold is counted again, and none of it
 * is lost. */
static void test_other_shape(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(reserve(rig, 1, "1 0 5000 cpu=1000,licences=1 ", "n1"), ERR_OK);
    assert_int_equal(put_resources(rig, "n1", "cpu=4000/4000,fans=3/3 "), ERR_OK);
    assert_left(rig, "n1", "3000,3");
    assert_int_equal(put_resources(rig, "n1", ""), ERR_OK);
    assert_int_equal(rig->op.left.count, 0);
    assert_left(rig, "n1", "");
    assert_int_equal(put_resources(rig, "n1", N1), ERR_OK);
    assert_left(rig, "n1", "3000,1,8000 15000s,24000");
    assert_int_equal(rig_finish(rig, STORE_SEND_FAILED, 1, 1, "n1", NULL), ERR_OK);
    assert_left(rig, "n1", ALL_LEFT);
    assert_int_equal(put_resources(rig, "n1", "cpu=1/2 "), ERR_BAD_FIELD);
    assert_left(rig, "n1", ALL_LEFT);
}

static void new_epoch(struct rig *rig, bool keeps_runs)
{
    struct store_op op = {.verb = STORE_NODE_PUT, .node = STR("n1")};

    op.u.node_put.own = op.u.node_put.health = NODE_READY;
    op.u.node_put.max = 8;
    op.u.node_put.new_epoch = true;
    op.u.node_put.keeps_runs = keeps_runs;
    assert_int_equal(rig_call(rig, &op), ERR_OK);
}

/* Leases of an older epoch take nothing of the node, except those of runs that a lost node
 * keeps. */
static void test_epochs(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(reserve(rig, 1, "1 0 0 cpu=1000 ", "n1"), ERR_OK);
    assert_int_equal(reserve(rig, 2, "2 1 0 cpu=500 ", "n1"), ERR_OK);
    assert_int_equal(rig_commit(rig, 2, 1, "n1"), ERR_OK);
    new_epoch(rig, true);
    assert_left(rig, "n1", "3500,2,8000 whole,24000");
    assert_int_equal(rig_counts(rig, "n1").running, 2);
    assert_int_equal(rig_finish(rig, STORE_EXPIRE, 1, 1, NULL, NULL), ERR_OK);
    assert_left(rig, "n1", "3500,2,8000 whole,24000");
    contract_reopen(rig);
    assert_left(rig, "n1", "3500,2,8000 whole,24000");
    new_epoch(rig, false);
    assert_left(rig, "n1", ALL_LEFT);
    assert_int_equal(reserve(rig, 3, "1 2 0  ", "n1"), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_DONE, 2, 1, "n1", NULL), ERR_OK); /* a late DONE */
    assert_left(rig, "n1", "4000,2,8000 whole,whole");
    assert_int_equal(rig_repairs(rig), 0);
}

/* A node is dropped while a job runs there, and comes back: what the job takes is counted again. */
static void test_dropped_and_back(void **state)
{
    struct rig *rig = *state;
    struct store_op drop = {.verb = STORE_NODE_DROP, .node = STR("n1")};

    assert_int_equal(reserve(rig, 1, "2 0 0 cpu=1000 ", "n1"), ERR_OK);
    assert_int_equal(rig_commit(rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(rig_call(rig, &drop), ERR_OK);
    assert_int_equal(rig_node(rig, "n1", 8, NODE_READY), ERR_OK);
    assert_left(rig, "n1", "");
    assert_int_equal(put_resources(rig, "n1", N1), ERR_OK);
    assert_left(rig, "n1", "3000,2,8000 20000,24000");
    assert_int_equal(rig_finish(rig, STORE_DONE, 1, 1, "n1", NULL), ERR_OK);
    assert_left(rig, "n1", ALL_LEFT);
}

/* Putting the same resources again changes nothing, not even the version. */
static void test_same_again(void **state)
{
    struct rig *rig = *state;
    int64_t version = find(rig, "n1", STORE_COUNTS).version;

    assert_int_equal(put_resources(rig, "n1", N1), ERR_OK);
    assert_int_equal(rig->op.u.node_put.version, version);
    assert_int_equal(put_resources(rig, "n1", NULL), ERR_OK);
    assert_int_equal(rig->op.u.node_put.version, version);
    assert_left(rig, "n1", ALL_LEFT);
    assert_int_equal(put_resources(rig, "n1", N2), ERR_OK);
    assert_int_equal(rig->op.u.node_put.version, version + 1);
}

/* A demand that cannot be read makes no job, and has no side effect: leases that ran out are
 * cleared only by a reserve that is valid. */
static void test_bad_demand(void **state)
{
    struct rig *rig = *state;
    struct store_op op = {.verb = STORE_PUT, .job = 7, .attempt = 1};

    assert_int_equal(reserve(rig, 1, "0 0 0  ", "n1"), ERR_BAD_FIELD);
    assert_int_equal(rig_get(rig, 1), ERR_NOT_FOUND);
    op.u.put.spec = STR("{}");
    op.u.put.demand = STR("1 0 0 cpu=x ");
    op.u.put.max_attempts = 2;
    assert_int_equal(rig_call(rig, &op), ERR_BAD_FIELD);
    assert_int_equal(rig_get(rig, 7), ERR_NOT_FOUND);
    assert_left(rig, "n1", ALL_LEFT);
    assert_int_equal(reserve(rig, 2, "", "n1"), ERR_OK);
    rig_jump(RIG_TTL_MS);
    assert_int_equal(reserve(rig, 1, "0 0 0  ", "n1"), ERR_BAD_FIELD);
    assert_int_equal(rig_counts(rig, "n1").reserved, 1);
    assert_int_equal(reserve(rig, 1, "1 0 0 cpu=1000000 ", "n1"), ERR_ALL_FULL);
    assert_int_equal(rig_counts(rig, "n1").reserved, 0);
}

/* A repeated reserve takes nothing more and answers the same GPUs. */
static void test_replay(void **state)
{
    struct rig *rig = *state;

    for (int i = 0; i < 3; i++) {
        assert_int_equal(reserve(rig, 1, "2 1 0 cpu=500 ", "n1"), ERR_OK);
        assert_int_equal(rig->op.u.put.duplicate, i > 0);
        assert_true(rig->op.head.gpus == 1);
        assert_int_equal(rig->op.left.left[0], 3500);
        assert_left(rig, "n1", "3500,2,8000 whole,24000");
    }
}

#define NEEDS(name)                                                                                \
    {                                                                                              \
#name, name, setup, contract_teardown, NULL                                                \
    }

const struct CMUnitTest contract_needs[] = {
    NEEDS(test_fits),
    NEEDS(test_taken_and_given_back),
    NEEDS(test_next_candidate),
    NEEDS(test_nothing_declared),
    NEEDS(test_every_end),
    NEEDS(test_kept_with_the_job),
    NEEDS(test_after_a_restart),
    NEEDS(test_shrinks_and_grows),
    NEEDS(test_other_shape),
    NEEDS(test_epochs),
    NEEDS(test_dropped_and_back),
    NEEDS(test_same_again),
    NEEDS(test_bad_demand),
    NEEDS(test_replay),
};
const size_t contract_needs_count = COUNT_OF(contract_needs);
