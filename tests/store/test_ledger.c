/* The ledger on its own, without threads: what can only be seen from inside. */
#include "contract.h"

#include "store/journal.h"
#include "store/ledger.h"

#include <stdlib.h>

struct fixture {
    struct rig rig; /* for its directory */
    struct storefile file;
    struct journal journal;
    struct ledger ledger;
};

static void load(struct fixture *fixture)
{
    struct ledger_config config = {.journal = &fixture->journal,
                                   .now_ms = RIG_START_MS,
                                   .terms = {RIG_RUN_MS, RIG_F2F_MS},
                                   .breaker = breaker_defaults};

    assert_true(journal_open(&fixture->journal, &fixture->file));
    assert_true(ledger_load(&fixture->ledger, &config));
}

static void unload(struct fixture *fixture)
{
    ledger_check(&fixture->ledger);
    assert_true(journal_commit(&fixture->journal));
    ledger_free(&fixture->ledger);
    journal_close(&fixture->journal);
}

static enum err apply(struct fixture *fixture, struct store_op *op)
{
    ledger_begin(&fixture->ledger, RIG_START_MS);
    ledger_apply(&fixture->ledger, op, RIG_START_MS);
    return op->err; /* in one transaction with what comes next */
}

static void add_node(struct fixture *fixture)
{
    struct store_op op = {.verb = STORE_NODE_PUT, .node = STR("n1")};

    op.u.node_put.own = op.u.node_put.health = NODE_READY;
    op.u.node_put.max = 1000000;
    op.u.node_put.facts = STR("{}");
    assert_int_equal(apply(fixture, &op), ERR_OK);
}

static void reserve(struct fixture *fixture, uint64_t job)
{
    struct store_op op = {.verb = STORE_RESERVE, .job = job, .attempt = 1};

    op.u.put.spec = STR("{}");
    op.u.put.max_attempts = 1;
    op.u.put.ttl_ms = RIG_TTL_MS;
    op.u.put.candidate_count = 1;
    op.u.put.candidates[0] =
        (struct store_candidate){.node = STR("n1"), .hash = str_hash(STR("n1"))};
    assert_int_equal(apply(fixture, &op), ERR_OK);
}

static void finish(struct fixture *fixture, uint64_t job, bool duplicate)
{
    struct store_op op = {.verb = STORE_FINISH, .job = job, .attempt = 1, .node = STR("n1")};

    op.u.settle.outcome = STORE_DONE;
    assert_int_equal(apply(fixture, &op), ERR_OK);
    assert_int_equal(op.u.settle.duplicate, duplicate);
}

static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);

    rig_init(&fixture->rig);
    if (storefile_claim(&fixture->file, fixture->rig.dir, NULL))
        return 1;
    load(fixture);
    add_node(fixture);
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;

    unload(fixture);
    storefile_release(&fixture->file);
    rig_done(&fixture->rig);
    free(fixture);
    return 0;
}

/* Counters that do not fit the leases are put right, and it is told how many there were. */
static void test_audit_repairs(void **state)
{
    struct fixture *fixture = *state;
    struct holder *holder = map_get(&fixture->ledger.nodes, STR("n1"));

    reserve(fixture, 1);
    reserve(fixture, 2);
    assert_int_equal(ledger_audit(&fixture->ledger), 0);
    holder->counts.reserved = 7;
    holder->counts.running = 3;
    assert_int_equal(ledger_audit(&fixture->ledger), 2);
    assert_int_equal(holder->counts.reserved, 2);
    assert_int_equal(holder->counts.running, 0);
    assert_int_equal(ledger_audit(&fixture->ledger), 0);
    assert_int_equal(fixture->ledger.repairs, 2);
    ledger_check(&fixture->ledger);
}

/* Finished jobs leave memory; a message that comes twice finds them in the file all the same. */
static void test_finished_jobs_leave_memory(void **state)
{
    struct fixture *fixture = *state;
    const uint64_t last = LEDGER_RECENT_MAX + 100;

    for (uint64_t job = 1; job <= last; job++) {
        reserve(fixture, job);
        finish(fixture, job, false);
    }
    assert_int_equal(fixture->ledger.recent_count, LEDGER_RECENT_MAX);
    assert_int_equal(fixture->ledger.active_count, 0);
    assert_null(idmap_get(&fixture->ledger.jobs, 1));
    finish(fixture, 1, true);
    finish(fixture, last, true);
    assert_true(fixture->ledger.recent_count <= LEDGER_RECENT_MAX);
}

/* The floor stands at the oldest active job, also after a restart. */
static void test_audit_finds_the_floor(void **state)
{
    struct fixture *fixture = *state;

    for (uint64_t job = 1; job <= 5; job++)
        reserve(fixture, job);
    finish(fixture, 1, false);
    finish(fixture, 3, false);
    ledger_audit(&fixture->ledger);
    assert_int_equal(fixture->journal.floor, 2);
    for (uint64_t job = 2; job <= 5; job++)
        if (job != 3)
            finish(fixture, job, false);
    ledger_audit(&fixture->ledger);
    assert_int_equal(fixture->journal.floor, 6);
    unload(fixture);
    load(fixture);
    assert_int_equal(fixture->ledger.active_count, 0);
    finish(fixture, 4, true);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_audit_repairs),
        TEST(test_finished_jobs_leave_memory),
        TEST(test_audit_finds_the_floor),
    };

    return cmocka_run_group_tests_name("store/ledger", tests, NULL, NULL);
}
