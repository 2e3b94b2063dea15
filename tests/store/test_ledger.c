/* The ledger on its own, without threads: what can only be checked from inside. */
#include "contract.h"

#include "store/dump.h"
#include "store/flush.h"
#include "store/journal.h"
#include "store/ledger.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fixture {
    struct rig rig; /* for its directory */
    struct storefile file;
    struct journal journal;
    struct ledger ledger;
    int64_t now_ms;
    struct str demand; /* of jobs that are put */
};

static void load(struct fixture *fixture)
{
    struct ledger_config config = {.journal = &fixture->journal,
                                   .now_ms = fixture->now_ms,
                                   .terms = {RIG_RUN_MS, RIG_F2F_MS},
                                   .breaker = breaker_defaults};

    assert_true(journal_open(&fixture->journal, &fixture->file, UINT64_MAX));
    assert_true(journal_settle(&fixture->journal));
    assert_true(ledger_load(&fixture->ledger, &config));
}

static void unload(struct fixture *fixture)
{
    ledger_check(&fixture->ledger);
    ledger_end(&fixture->ledger);
    assert_int_equal(journal_commit(&fixture->journal), ERR_OK);
    ledger_free(&fixture->ledger);
    journal_close(&fixture->journal);
}

static enum err apply(struct fixture *fixture, struct store_op *op)
{
    ledger_begin(&fixture->ledger, fixture->now_ms);
    ledger_apply(&fixture->ledger, op, fixture->now_ms);
    return op->err; /* committed together with the next op */
}

static void put_node(struct fixture *fixture, const char *id)
{
    struct store_op op = {.verb = STORE_NODE_PUT, .node = str_of(id)};

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

    fixture->now_ms = RIG_START_MS;
    rig_init(&fixture->rig);
    if (storefile_claim(&fixture->file, fixture->rig.dir, NULL))
        return 1;
    load(fixture);
    put_node(fixture, "n1");
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

/* Runs the whole audit with its walk; returns how often each rule was found broken. */
static const int64_t *audit(struct fixture *fixture)
{
    memset(fixture->ledger.repairs, 0, sizeof fixture->ledger.repairs);
    ledger_audit(&fixture->ledger);
    while (ledger_walk(&fixture->ledger))
        ;
    return fixture->ledger.repairs;
}

static void assert_only(const int64_t *repairs, enum store_rule rule, int64_t count)
{
    for (int i = 0; i < STORE_RULES; i++)
        if (repairs[i] != (i == (int)rule ? count : 0))
            fail_msg("%s was found broken %lld times", store_rule_name((enum store_rule)i),
                     (long long)repairs[i]);
}

/* The audit corrects counters that do not match the leases, and reports how many there were. */
static void test_audit_repairs(void **state)
{
    struct fixture *fixture = *state;
    struct ledger_node *holder = map_get(&fixture->ledger.nodes, STR("n1"));

    reserve(fixture, 1);
    reserve(fixture, 2);
    assert_only(audit(fixture), STORE_RULES, 0);
    holder->counts.reserved = 7;
    holder->counts.running = 3;
    assert_only(audit(fixture), STORE_RULE_SLOTS, 2);
    assert_int_equal(holder->counts.reserved, 2);
    assert_int_equal(holder->counts.running, 0);
    assert_only(audit(fixture), STORE_RULES, 0);
    ledger_check(&fixture->ledger);
}

static enum err reserve_needs(struct fixture *fixture, uint64_t job, const char *demand)
{
    struct store_op op = {.verb = STORE_RESERVE, .job = job, .attempt = 1};

    op.u.put.spec = STR("{}");
    op.u.put.demand = str_of(demand);
    op.u.put.max_attempts = 2;
    op.u.put.ttl_ms = RIG_TTL_MS;
    op.u.put.candidate_count = 1;
    op.u.put.candidates[0] =
        (struct store_candidate){.node = STR("n1"), .hash = str_hash(STR("n1"))};
    return apply(fixture, &op);
}

static void add_resources(struct fixture *fixture, const char *resources)
{
    struct store_op op = {.verb = STORE_NODE_PUT, .node = STR("n1")};

    op.u.node_put.own = op.u.node_put.health = NODE_READY;
    op.u.node_put.max = -1;
    op.u.node_put.resources = str_of(resources);
    assert_int_equal(apply(fixture, &op), ERR_OK);
}

/* It also corrects what is used of a node's resources, and how many leases a key has. */
static void test_audit_repairs_needs_and_keys(void **state)
{
    struct fixture *fixture = *state;
    struct ledger_node *holder = map_get(&fixture->ledger.nodes, STR("n1"));
    struct limits_key *key;

    add_resources(fixture, "cpu=4000/4000 0=8000/8000,1=8000/8000");
    assert_int_equal(reserve_needs(fixture, 1, "1 1 0 cpu=1000 a"), ERR_OK);
    assert_int_equal(reserve_needs(fixture, 2, "1 0 500 cpu=500 a,b"), ERR_OK);
    key = map_get(&fixture->ledger.limits.keys, STR("a"));
    assert_only(audit(fixture), STORE_RULES, 0);
    holder->resources->items[0].used = 7;
    holder->resources->gpus[0].whole = false;
    holder->resources->gpus[1].used_mb = 0;
    assert_only(audit(fixture), STORE_RULE_RESOURCES, 3);
    assert_int_equal(holder->resources->items[0].used, 1500);
    assert_true(holder->resources->gpus[0].whole);
    assert_int_equal(holder->resources->gpus[1].used_mb, 500);
    key->state.in_flight = 9;
    assert_only(audit(fixture), STORE_RULE_KEY_LEASES, 1);
    assert_int_equal(key->state.in_flight, 2);
    assert_only(audit(fixture), STORE_RULES, 0);
    ledger_check(&fixture->ledger);
}

static void refuse(struct fixture *fixture, uint64_t job)
{
    struct store_op op = {.verb = STORE_FINISH, .job = job, .attempt = 1, .node = STR("n1")};

    op.u.settle.outcome = STORE_REFUSED;
    op.u.settle.candidates_left = true;
    assert_int_equal(apply(fixture, &op), ERR_OK);
}

/* The clock is set while a job is on its way: neither the window nor the hold of its key changes,
 * and a refusal still finds the start it gives back. */
static void test_clock_set_moves_no_limit(void **state)
{
    static const int64_t steps[] = {3600000, -7200000, 90000000};
    struct fixture *fixture = *state;
    struct store_op set = {.verb = STORE_LIMIT_SET};
    struct store_op hold = {.verb = STORE_LIMIT_HOLD};
    struct limits_key *key;

    set.u.limit.pattern = STR("*");
    set.u.limit.limit = limit_none;
    set.u.limit.limit.rate = 1;
    set.u.limit.limit.rate_ms = 60000;
    assert_int_equal(apply(fixture, &set), ERR_OK);
    hold.u.limit.pattern = STR("b");
    hold.u.limit.hold_ms = 1000;
    assert_int_equal(apply(fixture, &hold), ERR_OK);
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        uint64_t job = 10 * i + 1;

        assert_int_equal(reserve_needs(fixture, job, "1 0 0  a"), ERR_OK);
        ledger_clock_set(&fixture->ledger, steps[i]);
        fixture->now_ms += steps[i];
        assert_int_equal(reserve_needs(fixture, job + 1, "1 0 0  a"), ERR_LIMITED);
        assert_int_equal(reserve_needs(fixture, job + 2, "1 0 0  b"), ERR_LIMITED);
        refuse(fixture, job);
        key = map_get(&fixture->ledger.limits.keys, STR("a"));
        assert_int_equal(key->state.window.total, 0);
        unload(fixture);
        load(fixture);
        assert_int_equal(reserve_needs(fixture, job + 2, "1 0 0  b"), ERR_LIMITED);
    }
    fixture->now_ms += 1000;
    assert_int_equal(reserve_needs(fixture, 99, "1 0 0  b"), ERR_OK);
}

/* Only the next batch can tell whether there was a pause, so tidying between batches must not end a
 * hold. */
static void test_tidying_knows_no_pause(void **state)
{
    struct fixture *fixture = *state;
    struct store_op hold = {.verb = STORE_LIMIT_HOLD};

    hold.u.limit.pattern = STR("a");
    hold.u.limit.hold_ms = 60000;
    assert_int_equal(apply(fixture, &hold), ERR_OK);
    fixture->now_ms += 600000;
    ledger_tidy(&fixture->ledger, fixture->now_ms);
    assert_int_equal(reserve_needs(fixture, 1, "1 0 0  a"), ERR_LIMITED);
}

/* Keys that no job has are removed with their rows once nothing about them matters; demands are
 * removed with their last job. */
static void test_keys_are_forgotten(void **state)
{
    struct fixture *fixture = *state;
    struct store_op set = {.verb = STORE_LIMIT_SET};
    char demand[32];

    set.u.limit.pattern = STR("k1*");
    set.u.limit.limit = limit_none;
    set.u.limit.limit.rate = 100;
    set.u.limit.limit.rate_ms = 60000;
    assert_int_equal(apply(fixture, &set), ERR_OK);
    for (uint64_t job = 1; job <= 100; job++) {
        snprintf(demand, sizeof demand, "1 0 0  k%d", (int)job);
        assert_int_equal(reserve_needs(fixture, job, demand), ERR_OK);
        finish(fixture, job, false);
    }
    assert_int_equal(fixture->ledger.limits.demands.count, 0);
    assert_int_equal(fixture->ledger.limits.keys.count, 12); /* k1, k10 to k19, k100 */
    unload(fixture);
    load(fixture);
    assert_int_equal(fixture->ledger.limits.keys.count, 12);
    ledger_tidy(&fixture->ledger, fixture->now_ms);
    assert_int_equal(fixture->ledger.limits.keys.count, 12);
    for (int64_t ms = 0; ms < 60000; ms += LEDGER_AWAY_MS)
        ledger_begin(&fixture->ledger, fixture->now_ms += LEDGER_AWAY_MS);
    ledger_tidy(&fixture->ledger, fixture->now_ms);
    assert_int_equal(fixture->ledger.limits.keys.count, 0);
    unload(fixture);
    load(fixture);
    assert_int_equal(fixture->ledger.limits.keys.count, 0);
    assert_int_equal(fixture->ledger.limits.rule_count, 1);
}

/* Finished jobs leave memory; a repeated message still finds them in the file. */
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
    assert_null(idshards_get(&fixture->ledger.jobs, 1));
    finish(fixture, 1, true);
    finish(fixture, last, true);
    assert_true(fixture->ledger.recent_count <= LEDGER_RECENT_MAX);
}

static void find_floor(struct fixture *fixture)
{
    ledger_audit(&fixture->ledger);
    while (ledger_walk(&fixture->ledger))
        ;
}

/* The floor is the oldest active job, also after a restart. */
static void test_audit_finds_the_floor(void **state)
{
    struct fixture *fixture = *state;

    for (uint64_t job = 1; job <= 5; job++)
        reserve(fixture, job);
    finish(fixture, 1, false);
    finish(fixture, 3, false);
    find_floor(fixture);
    assert_int_equal(fixture->journal.floor, 2);
    for (uint64_t job = 2; job <= 5; job++)
        if (job != 3)
            finish(fixture, job, false);
    find_floor(fixture);
    assert_int_equal(fixture->journal.floor, 6);
    unload(fixture);
    load(fixture);
    assert_int_equal(fixture->ledger.active_count, 0);
    finish(fixture, 4, true);
}

/* The walk goes over all jobs in pieces. Whatever comes and goes between two pieces, no active job
 * is below the floor. */
static void test_floor_holds_while_it_is_sought(void **state)
{
    enum { JOBS = 2000 };
    const uint64_t apart = (uint64_t)1 << IDSHARDS_NEAR_BITS;
    struct fixture *fixture = *state;
    uint64_t oldest = 1001 * apart; /* smaller ids come later */

    for (uint64_t i = 0; i < JOBS; i++)
        reserve(fixture, oldest + i * apart);
    ledger_audit(&fixture->ledger);
    for (uint64_t round = 0; ledger_walk(&fixture->ledger); round++) {
        oldest = (1000 - round) * apart;
        reserve(fixture, oldest);
        finish(fixture, (1001 + round) * apart, false);
    }
    assert_in_range(fixture->journal.floor, 1, oldest);
    unload(fixture);
    load(fixture);
    assert_int_equal(fixture->ledger.active_count, JOBS);
    find_floor(fixture);
    assert_int_equal(fixture->journal.floor, oldest);
}

static enum err put(struct fixture *fixture, uint64_t job, uint64_t lane)
{
    struct store_op op = {.verb = STORE_PUT, .job = job, .attempt = 1};

    op.u.put.spec = STR("{}");
    op.u.put.max_attempts = 2;
    op.u.put.demand = fixture->demand;
    op.u.put.lane = lane;
    op.u.put.priority = (int)(job % 10);
    op.u.put.wait_ms = op.u.put.hold_ms = RIG_WAIT_MS;
    return apply(fixture, &op);
}

static enum err put_with_key(struct fixture *fixture, uint64_t job, const char *demand)
{
    struct store_op op = {.verb = STORE_PUT, .job = job, .attempt = 1};

    op.u.put.spec = STR("{}");
    op.u.put.demand = str_of(demand);
    op.u.put.max_attempts = 2;
    op.u.put.lane = 1 + job % 3;
    op.u.put.wait_ms = RIG_WAIT_MS;
    return apply(fixture, &op);
}

/* The number of waiting jobs of a key matches the lanes. */
static void test_audit_repairs_waiting(void **state)
{
    struct fixture *fixture = *state;
    struct limits_key *a, *b;

    for (uint64_t job = 1; job <= 5; job++)
        assert_int_equal(put_with_key(fixture, job, job % 2 ? "1 0 0  a" : "1 0 0  b,a"), ERR_OK);
    a = map_get(&fixture->ledger.limits.keys, STR("a"));
    b = map_get(&fixture->ledger.limits.keys, STR("b"));
    assert_int_equal(a->state.waiting, 5);
    assert_only(audit(fixture), STORE_RULES, 0);
    a->state.waiting = 40;
    b->state.waiting = 0;
    assert_only(audit(fixture), STORE_RULE_KEY_WAITING, 2);
    assert_int_equal(a->state.waiting, 5);
    assert_int_equal(b->state.waiting, 2);
    assert_only(audit(fixture), STORE_RULES, 0);
    ledger_check(&fixture->ledger);
}

/* Jobs come and go before and behind the walk: it finds nothing wrong. */
static void test_waiting_holds_while_it_is_counted(void **state)
{
    enum { JOBS = 2000 };
    const uint64_t apart = (uint64_t)1 << IDSHARDS_NEAR_BITS;
    struct fixture *fixture = *state;
    uint64_t last = JOBS;

    for (uint64_t i = 1; i <= JOBS; i++)
        assert_int_equal(put_with_key(fixture, i * apart, "1 0 0  a"), ERR_OK);
    ledger_audit(&fixture->ledger);
    for (uint64_t round = 1; ledger_walk(&fixture->ledger); round++) {
        assert_int_equal(put_with_key(fixture, ++last * apart, "1 0 0  a"), ERR_OK);
        assert_int_equal(put_with_key(fixture, ++last * apart, "1 0 0  late,a"), ERR_OK);
        assert_int_equal(reserve_needs(fixture, round * apart, ""), ERR_OK);
    }
    assert_only(fixture->ledger.repairs, STORE_RULES, 0);
    ledger_check(&fixture->ledger);
}

static int64_t due_of(struct fixture *fixture, uint64_t job)
{
    return ((struct ledger_job *)idshards_get(&fixture->ledger.jobs, job))->head.due_ms;
}

/* The clock is set: jobs wait as long as before, also after a restart. One of them was already due,
 * and stays due. */
static void test_clock_set_moves_times_to_wait(void **state)
{
    static const int64_t steps[] = {3600000, -7200000, 1800000};
    struct fixture *fixture = *state;
    struct store_op op = {.verb = STORE_DUE};
    struct store_due due[4];
    int64_t end_ms;

    assert_int_equal(put(fixture, 1, 77), ERR_OK);
    fixture->now_ms += RIG_WAIT_MS / 2;
    for (int64_t ms = 0; ms < RIG_WAIT_MS / 2; ms += LEDGER_AWAY_MS)
        ledger_begin(&fixture->ledger, RIG_START_MS + ms);
    assert_int_equal(put(fixture, 2, 77), ERR_OK);
    end_ms = fixture->now_ms + RIG_WAIT_MS;
    op.u.due.items = due;
    op.u.due.max = 4;
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        ledger_clock_set(&fixture->ledger, steps[i]);
        fixture->now_ms += steps[i];
        end_ms += steps[i];
        assert_int_equal(due_of(fixture, 1), end_ms - RIG_WAIT_MS / 2);
        assert_int_equal(due_of(fixture, 2), end_ms);
        unload(fixture);
        load(fixture);
        assert_int_equal(due_of(fixture, 1), end_ms - RIG_WAIT_MS / 2);
        assert_int_equal(due_of(fixture, 2), end_ms);
        for (int64_t ms = LEDGER_AWAY_MS; i == 0 && ms <= RIG_WAIT_MS / 2; ms += LEDGER_AWAY_MS)
            ledger_begin(&fixture->ledger, fixture->now_ms += LEDGER_AWAY_MS);
        assert_int_equal(apply(fixture, &op), ERR_OK);
        assert_int_equal(op.u.due.count, 1);
        assert_int_equal(due[0].id, 1);
    }
}

/* The steps that the file's lookups took since the last call. */
static int64_t take_steps(struct fixture *fixture)
{
    int64_t steps = 0;

    for (int i = 0; i < LOOKUP_COUNT; i++)
        steps += sqlite3_stmt_status(fixture->journal.lookups[i], SQLITE_STMTSTATUS_VM_STEP, true);
    return steps;
}

/* Makes one call of each kind that concerns the queue. */
static void call_each(struct fixture *fixture, uint64_t waiting, uint64_t free_id,
                      int64_t ret_steps[8])
{
    static struct store_due due[4];
    struct store_op ops[] = {
        {.verb = STORE_PUT, .job = free_id, .attempt = 1},
        {.verb = STORE_WAIT, .job = free_id, .attempt = 1},
        {.verb = STORE_LANE},
        {.verb = STORE_LANES},
        {.verb = STORE_DUE},
        {.verb = STORE_RESERVE, .job = waiting, .attempt = 1},
        {.verb = STORE_FINISH, .job = waiting, .attempt = 1, .node = STR("n1")},
        {.verb = STORE_FINISH, .job = waiting + 1},
    };

    ops[0].u.put.spec = STR("{}");
    ops[0].u.put.max_attempts = 2;
    ops[1].u.wait.lane = 77;
    ops[1].u.wait.wait_ms = LEASE_FOREVER / 2;
    ops[1].u.wait.bounds.lane_max = INT64_MAX;
    ops[2].u.lane.lane = 77;
    ops[2].u.lane.max = 4;
    ops[3].u.lanes.max = 4;
    ops[4].u.due.items = due;
    ops[4].u.due.max = 4;
    ops[5].u.put.ttl_ms = RIG_TTL_MS;
    ops[5].u.put.candidate_count = 1;
    ops[5].u.put.candidates[0] =
        (struct store_candidate){.node = STR("n1"), .hash = str_hash(STR("n1"))};
    ops[6].u.settle.outcome = STORE_FAIL;
    ops[6].u.settle.hold_ms = RIG_WAIT_MS;
    ops[7].u.settle.outcome = STORE_QUEUE_TIMEOUT;
    take_steps(fixture);
    for (size_t i = 0; i < COUNT_OF(ops); i++) {
        ops[i].arena = &fixture->rig.arena;
        assert_int_equal(apply(fixture, &ops[i]), ERR_OK);
        ret_steps[i] = take_steps(fixture);
    }
    assert_int_equal(ops[2].u.lane.count, 4);
    assert_int_equal(ops[3].u.lanes.count, 4);
    assert_true(ops[3].u.lanes.more);
    assert_int_equal(ops[4].u.due.count, 4);
}

/* The work of a call is the same however many jobs wait, in one lane or many, and however many are
 * due. */
static void test_calls_do_not_grow_with_the_queue(void **state)
{
    static const uint64_t sizes[] = {10, 1000, 100000};
    struct fixture *fixture = *state;
    int64_t steps[COUNT_OF(sizes)][8];
    uint64_t next = 1;

    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        for (; next <= sizes[i]; next++)
            assert_int_equal(put(fixture, next, next % 2 ? 77 : 1000 + next), ERR_OK);
        for (int64_t ms = 0; ms < RIG_WAIT_MS; ms += LEDGER_AWAY_MS)
            ledger_begin(&fixture->ledger, fixture->now_ms += LEDGER_AWAY_MS);
        call_each(fixture, 2 * i + 1, 10 * sizes[2] + i, steps[i]);
        for (size_t k = 0; k < COUNT_OF(steps[i]); k++)
            assert_int_equal(steps[i][k], steps[0][k]);
    }
}

static void begin_epoch(struct fixture *fixture)
{
    struct store_op op = {.verb = STORE_NODE_PUT, .node = STR("n1")};

    op.u.node_put.own = op.u.node_put.health = NODE_READY;
    op.u.node_put.max = 1000000;
    op.u.node_put.facts = STR("{}");
    op.u.node_put.new_epoch = true;
    assert_int_equal(apply(fixture, &op), ERR_OK);
}

/* A dropped node has leases of two epochs: those of the newer one still count after a restart,
 * although one of the older is read first. */
static void test_dropped_node_keeps_its_newest_epoch(void **state)
{
    struct fixture *fixture = *state;
    struct store_op drop = {.verb = STORE_NODE_DROP, .node = STR("n1")};
    struct store_op op = {.verb = STORE_DUE};
    struct store_due due[4];
    const struct ledger_node *holder;

    reserve(fixture, 2);
    reserve(fixture, 7);
    begin_epoch(fixture);
    reserve(fixture, 3);
    reserve(fixture, 5);
    reserve(fixture, 9);
    assert_int_equal(apply(fixture, &drop), ERR_OK);
    for (int i = 0; i < 2; i++) {
        holder = map_get(&fixture->ledger.nodes, STR("n1"));
        assert_false(holder->known);
        assert_int_equal(holder->counts.epoch, 2);
        assert_int_equal(holder->counts.reserved, 3);
        op.u.due.items = due;
        op.u.due.max = COUNT_OF(due);
        assert_int_equal(apply(fixture, &op), ERR_OK);
        assert_int_equal(op.u.due.count, 2);
        assert_int_equal(due[0].id, 2);
        assert_int_equal(due[1].id, 7);
        unload(fixture);
        load(fixture);
    }
}

static void flush_all(struct fixture *fixture)
{
    struct flush flush;
    bool more;

    flush_init(&flush, &fixture->file, 0, 0);
    do
        assert_true(flush_step(&flush, fixture->journal.seq, 0, fixture->now_ms, 1, &more));
    while (flush.job_count > 0);
    flush_close(&flush, false);
}

/* Sanitisers replace the allocator, and report its total by this function. */
extern size_t __sanitizer_get_current_allocated_bytes(void) __attribute__((weak));

/* Bytes allocated and not freed, without SQLite's page cache. */
static size_t bytes_allocated(struct fixture *fixture)
{
    struct mallinfo2 heap;

    sqlite3_db_release_memory(fixture->journal.tables);
    if (__sanitizer_get_current_allocated_bytes)
        return __sanitizer_get_current_allocated_bytes();
    heap = mallinfo2();
    return heap.uordblks + heap.hblkhd;
}

/* A million waiting jobs take a quarter of a gigabyte: 192 bytes each, plus the places in the map
 * and in two heaps. Only a job that was on a node takes more. */
static void test_a_waiting_job_is_small(void **state)
{
    enum { JOBS = 20000, LANES = 10, BYTES_MAX = 256 };
    struct fixture *fixture = *state;
    struct ledger_config config = {
        .journal = &fixture->journal, .now_ms = fixture->now_ms, .breaker = breaker_defaults};
    size_t before, after;

    fixture->demand = STR("2 0 0  tenant:acme,account:api-1"); /* the same for all */
    for (uint64_t job = 1; job <= JOBS; job++)
        assert_int_equal(put(fixture, job, 77 + job % LANES), ERR_OK);
    assert_int_equal(fixture->ledger.runs.used, 0);
    unload(fixture);
    flush_all(fixture);

    assert_true(journal_open(&fixture->journal, &fixture->file, UINT64_MAX));
    assert_true(journal_settle(&fixture->journal));
    assert_int_equal(fixture->journal.rows.jobs.count, 0);
    before = bytes_allocated(fixture);
    assert_true(ledger_load(&fixture->ledger, &config));
    after = bytes_allocated(fixture);
    assert_int_equal(fixture->ledger.lanes.job_count, JOBS);
    assert_int_equal(fixture->ledger.runs.used, 0);
    assert_in_range(after - before, JOBS * sizeof(struct ledger_job), JOBS * BYTES_MAX);

    reserve(fixture, 1);
    assert_int_equal(fixture->ledger.runs.used, 1);
}

static int lookups(const struct fixture *fixture, enum journal_lookup which)
{
    return sqlite3_stmt_status(fixture->journal.lookups[which], SQLITE_STMTSTATUS_RUN, false);
}

/* The account that a job counts for is in its spec, which a start reads together with the row, from
 * the file or the journal, whichever is newer. */
static void test_start_reads_each_row_once(void **state)
{
    const struct str spec = STR("{\"type\":\"t\",\"submitted_by\":\"ci\"}");
    struct fixture *fixture = *state;
    struct store_op wait = {.verb = STORE_WAIT, .job = 3, .attempt = 1};

    for (uint64_t job = 1; job <= 3; job++) {
        struct store_op op = {.verb = STORE_PUT, .job = job, .attempt = 1};

        op.u.put.spec = spec;
        op.u.put.max_attempts = 1;
        op.u.put.lane = job < 3 ? 77 : 0; /* the third is held */
        op.u.put.wait_ms = op.u.put.hold_ms = RIG_WAIT_MS;
        op.u.put.bounds.account = (struct store_account){.name = STR("ci"), .bytes = spec.len};
        assert_int_equal(apply(fixture, &op), ERR_OK);
    }
    unload(fixture);
    flush_all(fixture);
    load(fixture);
    wait.u.wait.lane = 78; /* only the journal has this, and what follows */
    wait.u.wait.wait_ms = RIG_WAIT_MS;
    wait.u.wait.bounds.account = (struct store_account){.name = STR("ci"), .bytes = spec.len};
    assert_int_equal(apply(fixture, &wait), ERR_OK);
    assert_int_equal(put(fixture, 4, 79), ERR_OK);
    unload(fixture);
    load(fixture);
    const struct account *account = map_get(&fixture->ledger.accounts.by_name, STR("ci"));
    assert_non_null(account);
    assert_int_equal(account->jobs, 3);
    assert_int_equal(account->bytes, 3 * spec.len);
    assert_int_equal(fixture->ledger.lanes.job_count, 4);
    assert_int_equal(lookups(fixture, LOOKUP_ACTIVE), 1);
    assert_int_equal(lookups(fixture, LOOKUP_RECORD), 0);
    assert_int_equal(lookups(fixture, LOOKUP_JOB), 0);
}

/* The dump shows the lane of a waiting job. */
static void test_dump_tells_the_lane(void **state)
{
    struct fixture *fixture = *state;
    struct buf text = {0};
    struct jsonw w = jsonw_to(&text);

    assert_int_equal(put(fixture, 7, UINT64_MAX), ERR_OK);
    assert_int_equal(put(fixture, 8, 0), ERR_OK);
    unload(fixture);
    flush_all(fixture);
    assert_int_equal(dump_embedded(fixture->rig.dir, 10, &w, NULL), ERR_OK);
    buf_char(&text, '\0');
    assert_non_null(strstr(text.at, "\"lane\":\"ffffffffffffffff\",\"priority\":7"));
    assert_null(strstr(text.at, "\"priority\":8"));
    buf_free(&text);
    load(fixture);
}

/* The counters of many nodes come in parts of a size that does not grow with the fleet, and each
 * node is in one of them. */
static void test_counters_of_many_nodes_come_in_parts(void **state)
{
    enum { NODES = 3000, PART_MAX = 512 };
    struct fixture *fixture = *state;
    struct arena arena = {0};
    struct map seen = {0};
    size_t from = 0;
    int parts = 0;

    for (int i = 2; i <= NODES; i++)
        put_node(fixture, arena_fmt(&arena, "n%d", i).at);
    do {
        struct store_op op = {.verb = STORE_COUNTS, .arena = &arena, .u.nodes.from = from};

        assert_int_equal(apply(fixture, &op), ERR_OK);
        assert_in_range(op.u.nodes.count, 1, PART_MAX);
        for (size_t i = 0; i < op.u.nodes.count; i++) {
            assert_null(map_get(&seen, op.u.nodes.items[i].id));
            assert_null(op.u.nodes.items[i].facts.at);
            map_put(&seen, op.u.nodes.items[i].id, fixture);
        }
        from = op.u.nodes.from;
        parts++;
    } while (from);
    assert_int_equal(seen.count, NODES);
    assert_in_range(parts, NODES / PART_MAX, NODES / PART_MAX + 2);
    map_free(&seen);
    arena_free(&arena);
}

/* Nodes asked for by name: those there are, with what they declare. */
static void test_nodes_by_name(void **state)
{
    static const struct str ids[] = {STR("n7"), STR("nobody"), STR("n1")};
    struct fixture *fixture = *state;
    struct arena arena = {0};
    struct store_op op = {
        .verb = STORE_NODES, .arena = &arena, .u.nodes = {.ids = ids, .id_count = COUNT_OF(ids)}};

    for (int i = 2; i < 10; i++)
        put_node(fixture, arena_fmt(&arena, "n%d", i).at);
    assert_int_equal(apply(fixture, &op), ERR_OK);
    assert_int_equal(op.u.nodes.count, 2);
    assert_true(str_is(op.u.nodes.items[0].id, "n7"));
    assert_true(str_is(op.u.nodes.items[1].id, "n1"));
    assert_true(str_is(op.u.nodes.items[1].facts, "{}"));
    arena_free(&arena);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_audit_repairs),
        TEST(test_audit_repairs_needs_and_keys),
        TEST(test_audit_repairs_waiting),
        TEST(test_waiting_holds_while_it_is_counted),
        TEST(test_clock_set_moves_no_limit),
        TEST(test_keys_are_forgotten),
        TEST(test_tidying_knows_no_pause),
        TEST(test_finished_jobs_leave_memory),
        TEST(test_audit_finds_the_floor),
        TEST(test_floor_holds_while_it_is_sought),
        TEST(test_clock_set_moves_times_to_wait),
        TEST(test_calls_do_not_grow_with_the_queue),
        TEST(test_dropped_node_keeps_its_newest_epoch),
        TEST(test_a_waiting_job_is_small),
        TEST(test_start_reads_each_row_once),
        TEST(test_dump_tells_the_lane),
        TEST(test_counters_of_many_nodes_come_in_parts),
        TEST(test_nodes_by_name),
    };

    return cmocka_run_group_tests_name("store/ledger", tests, NULL, NULL);
}
