/* Keys and their limits: which jobs may start or wait, what a refusal gives back, and that rules,
 * holds and starts survive a restart. */
#include "contract.h"

#include <assert.h>
#include <stdio.h>

#define ACME "1 0 0  tenant:acme"
#define BOTH "1 0 0  tenant:acme,account:api-1"

static int setup(void **state)
{
    struct rig *rig;

    if (contract_setup(state))
        return 1;
    rig = *state;
    return rig_node(rig, "n1", 100, NODE_READY);
}

/* `limit` is "CONCURRENCY RATE RATE_MS QUEUE WEIGHT"; NULL removes the rule. */
static enum err set(struct rig *rig, const char *pattern, const char *limit)
{
    struct store_op op = {.verb = STORE_LIMIT_SET};

    op.u.limit.pattern = str_of(pattern);
    op.u.limit.drop = !limit;
    if (limit)
        assert_true(limit_parse(str_of(limit), &op.u.limit.limit));
    rig->op = op;
    return rig_call(rig, &rig->op);
}

static enum err hold(struct rig *rig, const char *key, int64_t ms, const char *reason)
{
    struct store_op op = {.verb = STORE_LIMIT_HOLD};

    op.u.limit.pattern = str_of(key);
    op.u.limit.hold_ms = ms;
    op.u.limit.reason = str_of(reason);
    rig->op = op;
    return rig_call(rig, &rig->op);
}

static enum err reserve_attempt(struct rig *rig, uint64_t job, int attempt, const char *demand)
{
    struct store_op op = {.verb = STORE_RESERVE, .job = job, .attempt = attempt};

    op.u.put.spec = STR("{}");
    op.u.put.demand = str_of(demand);
    op.u.put.max_attempts = 2;
    op.u.put.owner = rig_owner(rig);
    op.u.put.ttl_ms = RIG_TTL_MS;
    op.u.put.candidate_count = 1;
    op.u.put.candidates[0] =
        (struct store_candidate){.node = STR("n1"), .hash = str_hash(STR("n1"))};
    rig->op = op;
    return rig_call(rig, &rig->op);
}

static enum err reserve(struct rig *rig, uint64_t job, const char *demand)
{
    return reserve_attempt(rig, job, 1, demand);
}

static void assert_blocked(struct rig *rig, uint64_t job, const char *demand,
                           struct limit_block want)
{
    struct lease_node before = rig_counts(rig, "n1");
    enum err there = rig_get(rig, job);
    int attempt = there ? 1 : rig->op.head.attempt + (rig->op.head.state == JOB_RETRYING);
    const struct limit_block *block = &rig->op.u.put.block;

    assert_int_equal(reserve_attempt(rig, job, attempt, demand), ERR_LIMITED);
    assert_string_equal(limit_why_name(block->why), limit_why_name(want.why));
    assert_int_equal(block->key, want.key);
    assert_int_equal(block->limit, want.limit);
    assert_int_equal(block->used, want.used);
    assert_int_equal(block->retry_ms, want.retry_ms);
    assert_int_equal(rig->op.u.put.chosen, -1);
    assert_true(rig_counts(rig, "n1").reserved <= before.reserved); /* some may have lapsed */
    assert_int_equal(rig_get(rig, job), there);                     /* no job was made */
}

static enum err put_waiting(struct rig *rig, uint64_t job, const char *demand, bool bounded)
{
    struct store_op op = {.verb = STORE_PUT, .job = job, .attempt = 1};

    op.u.put.spec = STR("{}");
    op.u.put.demand = str_of(demand);
    op.u.put.max_attempts = 2;
    op.u.put.owner = rig_owner(rig);
    op.u.put.lane = 77;
    op.u.put.wait_ms = RIG_LONG_TTL_MS;
    op.u.put.bounds.keys = bounded;
    rig->op = op;
    return rig_call(rig, &rig->op);
}

/* The key as STORE_LIMITS lists it; all 0 if it is not listed. */
static struct store_limit_key look(struct rig *rig, const char *key)
{
    struct store_op op = {.verb = STORE_LIMITS};

    op.u.limits.prefix = str_of(key);
    op.u.limits.max = 1;
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    if (op.u.limits.key_count && str_is(op.u.limits.keys[0].key, key))
        return op.u.limits.keys[0];
    return (struct store_limit_key){0};
}

static void assert_key(struct rig *rig, const char *key, int in_flight, int waiting, int started)
{
    struct store_limit_key now = look(rig, key);

    assert_int_equal(now.in_flight, in_flight);
    assert_int_equal(now.waiting, waiting);
    assert_int_equal(now.started, started);
}

static void finish(struct rig *rig, enum store_outcome outcome, uint64_t job, int attempt)
{
    assert_int_equal(rig_finish(rig, outcome, job, attempt, "n1", "EXIT_1"), ERR_OK);
}

/* --- concurrency --- */

static void test_concurrency(void **state)
{
    struct rig *rig = *state;
    struct limit_block full = {.why = LIMIT_CONCURRENCY, .limit = 2, .used = 2};

    assert_int_equal(set(rig, "tenant:acme", "2 -1 0 -1 1"), ERR_OK);
    assert_int_equal(reserve(rig, 1, ACME), ERR_OK);
    assert_int_equal(rig->op.u.put.block.why, LIMIT_OK);
    assert_int_equal(reserve(rig, 2, ACME), ERR_OK);
    assert_key(rig, "tenant:acme", 2, 0, 0);
    assert_blocked(rig, 3, ACME, full);
    full.key = 1;
    assert_blocked(rig, 3, "1 0 0  account:api-1,tenant:acme", full);
    assert_int_equal(reserve(rig, 4, "1 0 0  tenant:other"), ERR_OK);
    assert_int_equal(rig_commit(rig, 1, 1, "n1"), ERR_OK);
    full.key = 0;
    assert_blocked(rig, 3, ACME, full);
    finish(rig, STORE_DONE, 1, 1);
    assert_key(rig, "tenant:acme", 1, 0, 0);
    finish(rig, STORE_DONE, 1, 1); /* repeated */
    assert_key(rig, "tenant:acme", 1, 0, 0);
    assert_int_equal(reserve(rig, 3, ACME), ERR_OK);
    /* A repeated reserve does not count as another start. */
    assert_int_equal(reserve(rig, 3, ACME), ERR_OK);
    assert_true(rig->op.u.put.duplicate);
    assert_key(rig, "tenant:acme", 2, 0, 0);
    assert_int_equal(rig_repairs(rig), 0);
}

/* A limit of 0 lets no job through; a removed rule limits nothing. */
static void test_zero(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(set(rig, "tenant:acme", "0 -1 0 -1 1"), ERR_OK);
    assert_blocked(rig, 1, ACME, (struct limit_block){.why = LIMIT_CONCURRENCY});
    assert_int_equal(set(rig, "tenant:acme", NULL), ERR_OK);
    for (uint64_t job = 1; job <= 5; job++)
        assert_int_equal(reserve(rig, job, ACME), ERR_OK);
    assert_key(rig, "tenant:acme", 5, 0, 0);
}

/* A lease that ran out makes room for its key. A lease of an older epoch keeps counting until it
 * ends. */
static void test_lost_leases(void **state)
{
    struct rig *rig = *state;
    struct store_op epoch = {.verb = STORE_NODE_PUT, .node = STR("n1")};

    assert_int_equal(set(rig, "tenant:*", "1 -1 0 -1 1"), ERR_OK);
    assert_int_equal(reserve(rig, 1, ACME), ERR_OK);
    rig_pass(rig, RIG_TTL_MS);
    assert_int_equal(reserve(rig, 2, ACME), ERR_OK);
    assert_key(rig, "tenant:acme", 1, 0, 0);
    finish(rig, STORE_EXPIRE, 1, 1);
    assert_key(rig, "tenant:acme", 1, 0, 0);
    epoch.u.node_put.own = epoch.u.node_put.health = NODE_READY;
    epoch.u.node_put.max = 100;
    epoch.u.node_put.new_epoch = true;
    assert_int_equal(rig_call(rig, &epoch), ERR_OK);
    assert_key(rig, "tenant:acme", 1, 0, 0);
    assert_blocked(rig, 3, ACME,
                   (struct limit_block){.why = LIMIT_CONCURRENCY, .limit = 1, .used = 1});
    assert_int_equal(rig_finish(rig, STORE_EXPIRE, 2, 1, NULL, NULL), ERR_OK);
    assert_int_equal(reserve(rig, 3, ACME), ERR_OK);
}

/* --- rates --- */

static void test_rate(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(set(rig, "tenant:acme", "-1 2 60000 -1 1"), ERR_OK);
    assert_int_equal(reserve(rig, 1, ACME), ERR_OK);
    rig_pass(rig, 10000);
    assert_int_equal(reserve(rig, 2, ACME), ERR_OK);
    assert_blocked(
        rig, 3, ACME,
        (struct limit_block){.why = LIMIT_RATE, .limit = 2, .used = 2, .retry_ms = 50000});
    rig_pass(rig, 49999);
    assert_blocked(rig, 3, ACME,
                   (struct limit_block){.why = LIMIT_RATE, .limit = 2, .used = 2, .retry_ms = 1});
    assert_key(rig, "tenant:acme", 0, 0, 2);
    rig_pass(rig, 1);
    assert_int_equal(reserve(rig, 3, ACME), ERR_OK);
    assert_blocked(
        rig, 4, ACME,
        (struct limit_block){.why = LIMIT_RATE, .limit = 2, .used = 2, .retry_ms = 10000});
}

/* An attempt that never began uses nothing of the rate; one that began does, however it ended. */
static const struct {
    enum store_outcome outcome;
    bool acked;
    int started;
} uses[] = {
    {STORE_DONE, true, 1},    {STORE_FAIL, true, 1},         {STORE_REFUSED, false, 0},
    {STORE_CANCEL, false, 1}, {STORE_SEND_FAILED, false, 0}, {STORE_ABANDON, false, 0},
};

static void test_refused_costs_no_rate(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(set(rig, "*", "-1 1 60000 -1 1"), ERR_OK);
    for (size_t i = 0; i < COUNT_OF(uses); i++) {
        char demand[32], key[16];
        bool by_node = uses[i].outcome <= STORE_SEND_FAILED;

        snprintf(key, sizeof key, "key%zu", i);
        snprintf(demand, sizeof demand, "1 0 0  %s", key);
        assert_int_equal(reserve(rig, 10 + i, demand), ERR_OK);
        assert_key(rig, key, 1, 0, 1);
        if (uses[i].acked)
            assert_int_equal(rig_commit(rig, 10 + i, 1, "n1"), ERR_OK);
        assert_int_equal(rig_finish(rig, uses[i].outcome, 10 + i, by_node ? 1 : 0,
                                    by_node ? "n1" : NULL, "EXIT_1"),
                         ERR_OK);
        assert_key(rig, key, 0, 0, uses[i].started);
        assert_int_equal(reserve(rig, 100 + i, demand), uses[i].started ? ERR_LIMITED : ERR_OK);
    }
}

/* A job that is blocked by its second key uses nothing of the first. */
static void test_all_or_none(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(set(rig, "tenant:acme", "-1 5 60000 -1 1"), ERR_OK);
    assert_int_equal(set(rig, "account:*", "1 -1 0 -1 1"), ERR_OK);
    assert_int_equal(reserve(rig, 1, BOTH), ERR_OK);
    assert_blocked(rig, 2, BOTH,
                   (struct limit_block){.why = LIMIT_CONCURRENCY, .key = 1, .limit = 1, .used = 1});
    assert_key(rig, "tenant:acme", 1, 0, 1);
    /* Nor does a job that found no node. */
    assert_int_equal(rig_node(rig, "n1", 1, NODE_READY), ERR_OK);
    assert_int_equal(reserve(rig, 3, ACME), ERR_ALL_FULL);
    assert_key(rig, "tenant:acme", 1, 0, 1);
}

/* --- rules --- */

static void test_closest_rule(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(set(rig, "*", "9 -1 0 -1 1"), ERR_OK);
    assert_int_equal(set(rig, "tenant:*", "8 -1 0 -1 2"), ERR_OK);
    assert_int_equal(set(rig, "tenant:acme", "7 -1 0 -1 3"), ERR_OK);
    assert_int_equal(set(rig, "tenant:acme*", "6 -1 0 -1 4"), ERR_OK);
    assert_int_equal(reserve(rig, 1, "1 0 0  tenant:acme,tenant:acme-2,tenant:b,x"), ERR_OK);
    assert_true(str_is(look(rig, "tenant:acme").pattern, "tenant:acme"));
    assert_true(str_is(look(rig, "tenant:acme-2").pattern, "tenant:acme*"));
    assert_true(str_is(look(rig, "tenant:b").pattern, "tenant:*"));
    assert_true(str_is(look(rig, "x").pattern, "*"));
    /* Changed rules apply at once, also to keys in use. */
    assert_int_equal(set(rig, "tenant:acme", NULL), ERR_OK);
    assert_int_equal(set(rig, "*", NULL), ERR_OK);
    assert_true(str_is(look(rig, "tenant:acme").pattern, "tenant:acme*"));
    assert_null(look(rig, "x").pattern.at);
}

/* Keys of other namespaces: the longest possible name, and a rule for a whole namespace. */
static void test_namespaces(void **state)
{
    static const char longest[] =
        "0123456789abcdef/"
        "0123456789012345678901234567890123456789012345678901234567890123";
    struct rig *rig = *state;
    char demand[128];

    static_assert(sizeof longest - 1 == DEMAND_FULL_KEY_MAX, "that is how long");
    snprintf(demand, sizeof demand, "1 0 0  %s,team/a", longest);
    assert_int_equal(set(rig, longest, "1 -1 0 -1 1"), ERR_OK);
    assert_int_equal(set(rig, "team/*", "1 -1 0 -1 1"), ERR_OK);
    assert_int_equal(set(rig, "team/a/*", "1 -1 0 -1 1"), ERR_BAD_FIELD);
    assert_int_equal(set(rig, "/*", "1 -1 0 -1 1"), ERR_BAD_FIELD);
    assert_int_equal(set(rig, ".a", "1 -1 0 -1 1"), ERR_BAD_FIELD);
    assert_int_equal(reserve(rig, 1, demand), ERR_OK);
    for (int i = 0; i < 2; i++) {
        assert_true(str_is(look(rig, longest).pattern, longest));
        assert_true(str_is(look(rig, "team/a").pattern, "team/*"));
        assert_blocked(rig, 2, demand,
                       (struct limit_block){.why = LIMIT_CONCURRENCY, .limit = 1, .used = 1});
        assert_int_equal(hold(rig, longest, 600000, "closed"), ERR_OK);
        contract_reopen(rig);
        assert_int_equal(look(rig, longest).hold_ms, 600000);
        assert_int_equal(hold(rig, longest, 0, NULL), ERR_OK);
    }
}

static void test_rules_are_listed(void **state)
{
    static const char *const patterns[] = {"*", "a", "b*", "tenant:*", "z"};
    struct rig *rig = *state;
    struct store_op op = {.verb = STORE_LIMITS};
    int64_t version;

    assert_int_equal(set(rig, "z", "1 2 3 4 5"), ERR_OK);
    for (size_t i = COUNT_OF(patterns) - 1; i-- > 0;)
        assert_int_equal(set(rig, patterns[i], "1 -1 0 -1 1"), ERR_OK);
    assert_int_equal(set(rig, "a", "2 -1 0 -1 1"), ERR_OK); /* replaced */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(rig_call(rig, &op), ERR_OK);
        assert_int_equal(op.u.limits.rule_count, COUNT_OF(patterns));
        assert_int_equal(op.u.limits.key_count, 0);
        assert_false(op.u.limits.more);
        for (size_t k = 0; k < COUNT_OF(patterns); k++)
            assert_true(str_is(op.u.limits.rules[k].pattern, patterns[k]));
        assert_int_equal(op.u.limits.rules[1].limit.concurrency, 2);
        assert_int_equal(op.u.limits.rules[4].limit.rate, 2);
        assert_int_equal(op.u.limits.rules[4].limit.rate_ms, 3);
        assert_int_equal(op.u.limits.rules[4].limit.queue, 4);
        assert_int_equal(op.u.limits.rules[4].limit.weight, 5);
        contract_reopen(rig);
    }
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    version = op.u.limits.version;
    assert_int_equal(set(rig, "a", NULL), ERR_OK);
    assert_int_equal(set(rig, "a", NULL), ERR_NOT_FOUND);
    assert_int_equal(set(rig, "no good", "1 -1 0 -1 1"), ERR_BAD_FIELD);
    assert_int_equal(set(rig, "", "1 -1 0 -1 1"), ERR_BAD_FIELD);
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_int_equal(op.u.limits.version, version + 1);
    assert_int_equal(op.u.limits.rule_count, COUNT_OF(patterns) - 1);
    contract_reopen(rig);
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_int_equal(op.u.limits.rule_count, COUNT_OF(patterns) - 1);
}

/* Keys are listed in pages, in order, by prefix, and only while in use. */
static void test_keys_are_listed(void **state)
{
    static const char *const names[] = {"a:1", "a:2", "b:1", "b:2", "b:3", "c"};
    struct rig *rig = *state;
    struct store_op op = {.verb = STORE_LIMITS};
    char demand[32], last[16] = "";
    size_t seen = 0;

    for (size_t i = COUNT_OF(names); i-- > 0;) {
        snprintf(demand, sizeof demand, "1 0 0  %s", names[i]);
        assert_int_equal(reserve(rig, 1 + i, demand), ERR_OK);
    }
    assert_int_equal(rig_put(rig, 99), ERR_OK); /* a job without keys */
    op.u.limits.max = 2;
    do {
        op.u.limits.after = *last ? str_of(last) : STR_NONE;
        assert_int_equal(rig_call(rig, &op), ERR_OK);
        for (size_t i = 0; i < op.u.limits.key_count; i++)
            assert_true(str_is(op.u.limits.keys[i].key, names[seen++]));
        str_copy(op.u.limits.keys[op.u.limits.key_count - 1].key, last, sizeof last);
        assert_int_equal(op.u.limits.more, seen < COUNT_OF(names));
    } while (op.u.limits.more);
    assert_int_equal(seen, COUNT_OF(names));
    op.u.limits.prefix = STR("b:");
    op.u.limits.after = STR("b:1");
    op.u.limits.max = 10;
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_int_equal(op.u.limits.key_count, 2);
    assert_true(str_is(op.u.limits.keys[0].key, "b:2"));
    op.u.limits.after = STR("a");
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_int_equal(op.u.limits.key_count, 3);
    finish(rig, STORE_SEND_FAILED, 4, 1);
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_int_equal(op.u.limits.key_count, 2);
}

/* --- holds --- */

static void test_hold(void **state)
{
    struct rig *rig = *state;
    struct limit_block held = {.why = LIMIT_HELD, .retry_ms = 60000};

    assert_int_equal(reserve(rig, 1, ACME), ERR_OK);
    assert_int_equal(hold(rig, "tenant:acme", 60000, "quota"), ERR_OK);
    assert_int_equal(look(rig, "tenant:acme").hold_ms, 60000);
    assert_true(str_is(look(rig, "tenant:acme").hold_reason, "quota"));
    assert_int_equal(rig_commit(rig, 1, 1, "n1"), ERR_OK); /* a job that was reserved goes on */
    assert_blocked(rig, 2, ACME, held);
    rig_pass(rig, 59999);
    held.retry_ms = 1;
    assert_blocked(rig, 2, ACME, held);
    rig_pass(rig, 1);
    assert_int_equal(reserve(rig, 2, ACME), ERR_OK);
    assert_int_equal(look(rig, "tenant:acme").hold_ms, 0);
    /* Released before its time. */
    assert_int_equal(hold(rig, "tenant:acme", 60000, "again"), ERR_OK);
    assert_int_equal(reserve(rig, 3, ACME), ERR_LIMITED);
    assert_int_equal(hold(rig, "tenant:acme", 0, NULL), ERR_OK);
    assert_int_equal(reserve(rig, 3, ACME), ERR_OK);
    assert_int_equal(hold(rig, "tenant:nobody", 0, NULL), ERR_OK);
    assert_int_equal(hold(rig, "tenant:*", 1000, NULL), ERR_BAD_FIELD);
    assert_int_equal(hold(rig, "x", LIMIT_HOLD_MS_MAX + 1, NULL), ERR_BAD_FIELD);
}

static enum err fail_holding(struct rig *rig, uint64_t job, int attempt, const char *key,
                             int64_t ms)
{
    struct store_op op = {.verb = STORE_FINISH, .job = job, .attempt = attempt, .node = STR("n1")};

    op.u.settle.outcome = STORE_FAIL;
    op.u.settle.reason = STR("QUOTA");
    op.u.settle.hold_key = str_of(key);
    op.u.settle.hold_key_ms = ms;
    op.u.settle.owner = rig_owner(rig);
    op.u.settle.hold_ms = 15000;
    rig->op = op;
    return rig_call(rig, &rig->op);
}

/* A job that hit a limit outside berth fails and holds its key; the attempt does not count. */
static void test_fail_holds_its_key(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(reserve(rig, 1, BOTH), ERR_OK);
    assert_int_equal(rig_commit(rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(fail_holding(rig, 1, 1, "account:api-2", 30000), ERR_BAD_FIELD);
    assert_key(rig, "tenant:acme", 1, 0, 0);
    for (int attempt = 1; attempt <= 4; attempt++) {
        if (attempt > 1) {
            assert_int_equal(reserve_attempt(rig, 1, attempt, NULL), ERR_OK);
            assert_int_equal(rig_commit(rig, 1, attempt, "n1"), ERR_OK);
        }
        assert_int_equal(fail_holding(rig, 1, attempt, "account:api-1", 30000), ERR_OK);
        assert_int_equal(rig->op.head.state, JOB_RETRYING);
        assert_int_equal(rig->op.head.max_attempts, 2 + attempt);
        assert_int_equal(fail_holding(rig, 1, attempt, "account:api-1", 30000), ERR_OK);
        assert_true(rig->op.u.settle.duplicate);
        assert_int_equal(rig->op.head.max_attempts, 2 + attempt);
        assert_int_equal(look(rig, "account:api-1").hold_ms, 30000);
        assert_true(str_is(look(rig, "account:api-1").hold_reason, "QUOTA"));
        assert_int_equal(look(rig, "tenant:acme").hold_ms, 0);
        assert_blocked(rig, 1, NULL,
                       (struct limit_block){.why = LIMIT_HELD, .key = 1, .retry_ms = 30000});
        contract_reopen(rig);
        assert_int_equal(rig_get(rig, 1), ERR_OK);
        assert_int_equal(rig->op.head.max_attempts, 2 + attempt);
        assert_int_equal(look(rig, "account:api-1").hold_ms, 30000);
        rig_pass(rig, 30000);
    }
    /* A shorter hold does not cut a longer one short. */
    assert_int_equal(reserve_attempt(rig, 1, 5, NULL), ERR_OK);
    assert_int_equal(hold(rig, "account:api-1", 3600000, "closed"), ERR_OK);
    assert_int_equal(rig_commit(rig, 1, 5, "n1"), ERR_OK);
    assert_int_equal(fail_holding(rig, 1, 5, "account:api-1", 1000), ERR_OK);
    assert_int_equal(look(rig, "account:api-1").hold_ms, 3600000);
    assert_true(str_is(look(rig, "account:api-1").hold_reason, "closed"));
}

/* A hold may have a reason of its own, besides the one of the failure. */
static void test_reason_of_a_hold(void **state)
{
    struct rig *rig = *state;
    struct store_op op = {.verb = STORE_FINISH, .job = 1, .attempt = 1, .node = STR("n1")};

    assert_int_equal(reserve(rig, 1, ACME), ERR_OK);
    assert_int_equal(rig_commit(rig, 1, 1, "n1"), ERR_OK);
    op.u.settle.outcome = STORE_FAIL;
    op.u.settle.reason = STR("QUOTA");
    op.u.settle.hold_key = STR("tenant:acme");
    op.u.settle.hold_key_ms = 30000;
    op.u.settle.hold_reason = STR("the account is closed until six");
    op.u.settle.owner = rig_owner(rig);
    op.u.settle.hold_ms = 15000;
    assert_int_equal(rig_call(rig, &op), ERR_OK);
    assert_string_equal(op.head.reason, "QUOTA");
    assert_true(str_is(look(rig, "tenant:acme").hold_reason, "the account is closed until six"));
    contract_reopen(rig);
    assert_true(str_is(look(rig, "tenant:acme").hold_reason, "the account is closed until six"));
}

/* The list names some of the jobs that have leases of a key, so that a waiting client sees what it
 * waits for. */
static void test_holders(void **state)
{
    struct rig *rig = *state;
    struct store_limit_key now;

    assert_int_equal(reserve(rig, 1, ACME), ERR_OK); /* no rule matches the key yet */
    assert_int_equal(set(rig, "tenant:*", "9 -1 0 -1 1"), ERR_OK);
    assert_int_equal(look(rig, "tenant:acme").holder_count, 0);
    for (uint64_t job = 2; job <= 7; job++)
        assert_int_equal(reserve(rig, job, job % 2 ? ACME : BOTH), ERR_OK);
    assert_int_equal(rig_commit(rig, 3, 1, "n1"), ERR_OK);
    now = look(rig, "tenant:acme");
    assert_int_equal(now.in_flight, 7);
    assert_int_equal(now.holder_count, LIMIT_HOLDERS);
    for (uint64_t i = 0; i < LIMIT_HOLDERS; i++)
        assert_int_equal(now.holders[i], i + 2);
    assert_int_equal(look(rig, "account:api-1").holder_count, 0);
    assert_int_equal(rig_finish(rig, STORE_DONE, 3, 1, "n1", NULL), ERR_OK);
    now = look(rig, "tenant:acme");
    assert_int_equal(now.holder_count, LIMIT_HOLDERS - 1);
    assert_int_equal(now.holders[1], 4);
    assert_int_equal(reserve(rig, 8, ACME), ERR_OK);
    assert_int_equal(look(rig, "tenant:acme").holders[3], 8);
    rig_pass(rig, RIG_TTL_MS + 1); /* reservations without an ACK run out */
    for (uint64_t job = 1; job <= 8; job++)
        if (job != 3)
            assert_int_equal(rig_finish(rig, STORE_EXPIRE, job, 1, NULL, NULL), ERR_OK);
    now = look(rig, "tenant:acme");
    assert_int_equal(now.in_flight, 0);
    assert_int_equal(now.holder_count, 0);
}

static void assert_took(struct rig *rig, const char *demand)
{
    assert_true(rig->op.u.settle.ended_lease);
    assert_true(str_is(rig->op.u.settle.demand, demand));
}

/* The end of every lease answers with the demand it had taken, which is what usage is billed by. */
static void test_what_it_had_taken(void **state)
{
    static const struct {
        enum store_outcome outcome;
        bool acked;
    } rows[] = {{STORE_DONE, true},
                {STORE_FAIL, true},
                {STORE_EXPIRE, true},
                {STORE_EXPIRE, false},
                {STORE_REFUSED, false}};
    struct rig *rig = *state;
    uint64_t job = 0;

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const char *node = rows[i].outcome == STORE_EXPIRE ? NULL : "n1";

        assert_int_equal(reserve(rig, ++job, BOTH), ERR_OK);
        if (rows[i].acked)
            assert_int_equal(rig_commit(rig, job, 1, "n1"), ERR_OK);
        if (!node)
            rig_pass(rig, RIG_LONG_TTL_MS + 1);
        assert_int_equal(rig_finish(rig, rows[i].outcome, job, 1, node, NULL), ERR_OK);
        assert_took(rig, BOTH);
        rig_finish(rig, rows[i].outcome, job, 1, node, NULL);
        assert_int_equal(rig->op.u.settle.demand.len, 0); /* a repeat ends no lease */
    }
    /* Cancelled while it runs: the demand comes with the end of the run. */
    assert_int_equal(reserve(rig, ++job, "2 0 0  tenant:acme"), ERR_OK);
    assert_int_equal(rig_commit(rig, job, 1, "n1"), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_CANCEL, job, 0, NULL, NULL), ERR_OK);
    assert_int_equal(rig->op.u.settle.demand.len, 0);
    assert_int_equal(rig_finish(rig, STORE_FAIL, job, 1, "n1", NULL), ERR_OK);
    assert_took(rig, "2 0 0  tenant:acme");
    assert_int_equal(reserve(rig, ++job, ""), ERR_OK);
    assert_int_equal(rig_commit(rig, job, 1, "n1"), ERR_OK);
    assert_int_equal(rig_finish(rig, STORE_DONE, job, 1, "n1", NULL), ERR_OK);
    assert_took(rig, "");
}

/* A node names the keys of its jobs without their namespace. */
static void test_fail_holds_the_key_of_its_namespace(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(reserve(rig, 1, "1 0 0  maps/account:api-1"), ERR_OK);
    assert_int_equal(rig_commit(rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(fail_holding(rig, 1, 1, "count:api-1", 30000), ERR_BAD_FIELD);
    assert_int_equal(fail_holding(rig, 1, 1, "account:api-1", 30000), ERR_OK);
    assert_int_equal(look(rig, "maps/account:api-1").hold_ms, 30000);
    assert_int_equal(look(rig, "account:api-1").hold_ms, 0);
}

/* Even attempts that do not count come to an end. */
static void test_fail_cannot_go_on_forever(void **state)
{
    struct rig *rig = *state;
    int attempt = 1;

    for (;; attempt++) {
        assert_int_equal(reserve_attempt(rig, 1, attempt, ACME), ERR_OK);
        assert_int_equal(rig_commit(rig, 1, attempt, "n1"), ERR_OK);
        assert_int_equal(fail_holding(rig, 1, attempt, "tenant:acme", 1), ERR_OK);
        if (rig->op.head.state == JOB_FAILED)
            break;
        rig_pass(rig, 1);
    }
    assert_int_equal(attempt, JOB_ATTEMPTS_MAX);
}

/* --- the queue --- */

static void test_waiting(void **state)
{
    struct rig *rig = *state;
    struct limit_block *block = &rig->op.u.put.block;

    assert_int_equal(set(rig, "tenant:*", "-1 -1 0 2 1"), ERR_OK);
    assert_int_equal(put_waiting(rig, 1, ACME, true), ERR_OK);
    assert_int_equal(put_waiting(rig, 2, BOTH, true), ERR_OK);
    assert_key(rig, "tenant:acme", 0, 2, 0);
    assert_key(rig, "account:api-1", 0, 1, 0);
    assert_int_equal(put_waiting(rig, 3, "1 0 0  account:x,tenant:acme", true), ERR_LIMITED);
    assert_int_equal(block->why, LIMIT_QUEUE);
    assert_int_equal(block->key, 1);
    assert_int_equal(block->limit, 2);
    assert_int_equal(block->used, 2);
    assert_int_equal(rig_get(rig, 3), ERR_NOT_FOUND);
    assert_key(rig, "account:x", 0, 0, 0);
    assert_int_equal(put_waiting(rig, 4, "1 0 0  tenant:b", true), ERR_OK);
    /* A job that was accepted before is counted, but not refused. */
    assert_int_equal(put_waiting(rig, 5, ACME, false), ERR_OK);
    assert_key(rig, "tenant:acme", 0, 3, 0);
    assert_int_equal(reserve(rig, 1, NULL), ERR_OK);
    assert_key(rig, "tenant:acme", 1, 2, 0);
    contract_reopen(rig);
    assert_key(rig, "tenant:acme", 1, 2, 0);
    assert_int_equal(rig_finish(rig, STORE_CANCEL, 2, 0, NULL, NULL), ERR_OK);
    assert_key(rig, "tenant:acme", 1, 1, 0);
    assert_int_equal(put_waiting(rig, 3, ACME, true), ERR_OK);
}

static enum err wait_in(struct rig *rig, uint64_t job, uint64_t lane, bool bounded)
{
    struct store_op op = {.verb = STORE_WAIT, .job = job, .attempt = 1};

    op.u.wait.lane = lane;
    op.u.wait.wait_ms = RIG_LONG_TTL_MS;
    op.u.wait.bounds.keys = bounded;
    rig->op = op;
    return rig_call(rig, &rig->op);
}

static void test_wait_again(void **state)
{
    struct rig *rig = *state;
    struct store_op held = {.verb = STORE_PUT, .job = 9, .attempt = 1};

    assert_int_equal(set(rig, "tenant:*", "-1 -1 0 1 1"), ERR_OK);
    assert_int_equal(put_waiting(rig, 1, ACME, true), ERR_OK);
    held.u.put.spec = STR("{}");
    held.u.put.demand = STR(ACME);
    held.u.put.max_attempts = 2;
    held.u.put.hold_ms = RIG_WAIT_MS;
    assert_int_equal(rig_call(rig, &held), ERR_OK); /* held: it does not count as waiting */
    assert_int_equal(wait_in(rig, 9, 77, true), ERR_LIMITED);
    assert_int_equal(rig->op.u.wait.block.why, LIMIT_QUEUE);
    assert_int_equal(rig->op.u.wait.block.used, 1);
    assert_key(rig, "tenant:acme", 0, 1, 0);
    assert_int_equal(wait_in(rig, 1, 78, true), ERR_OK); /* it waits in a lane already */
    assert_key(rig, "tenant:acme", 0, 1, 0);
    assert_int_equal(wait_in(rig, 9, 77, false), ERR_OK);
    assert_key(rig, "tenant:acme", 0, 2, 0);
}

/* The end of a lease names the keys for which waiting jobs may start now. */
static void test_freed(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(set(rig, "tenant:acme", "1 -1 0 -1 1"), ERR_OK);
    assert_int_equal(reserve(rig, 1, BOTH), ERR_OK);
    assert_int_equal(rig_commit(rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(rig->op.u.settle.freed_count, 0);
    assert_int_equal(put_waiting(rig, 2, ACME, true), ERR_OK);
    finish(rig, STORE_DONE, 1, 1);
    assert_int_equal(rig->op.u.settle.freed_count, 1);
    assert_true(rig->op.u.settle.freed[0] == str_hash(STR("tenant:acme")));
    finish(rig, STORE_DONE, 1, 1); /* repeated */
    assert_int_equal(rig->op.u.settle.freed_count, 0);
    /* No job with the key waits. */
    assert_int_equal(reserve(rig, 2, NULL), ERR_OK);
    finish(rig, STORE_SEND_FAILED, 2, 1);
    assert_int_equal(rig->op.u.settle.freed_count, 0);
    /* The key is held. */
    assert_int_equal(put_waiting(rig, 3, ACME, true), ERR_OK);
    assert_int_equal(reserve(rig, 4, ACME), ERR_OK);
    assert_int_equal(hold(rig, "tenant:acme", 60000, NULL), ERR_OK);
    finish(rig, STORE_SEND_FAILED, 4, 1);
    assert_int_equal(rig->op.u.settle.freed_count, 0);
    /* The lease runs out. */
    assert_int_equal(hold(rig, "tenant:acme", 0, NULL), ERR_OK);
    assert_int_equal(reserve(rig, 5, ACME), ERR_OK);
    rig_pass(rig, RIG_TTL_MS);
    finish(rig, STORE_EXPIRE, 5, 1);
    assert_int_equal(rig->op.u.settle.freed_count, 1);
}

/* --- what is not forgotten --- */

static void test_after_a_restart(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(set(rig, "tenant:acme", "3 3 60000 -1 1"), ERR_OK);
    for (uint64_t job = 1; job <= 3; job++) {
        assert_int_equal(reserve(rig, job, ACME), ERR_OK);
        rig_pass(rig, 1000);
    }
    finish(rig, STORE_SEND_FAILED, 3, 1);
    assert_int_equal(hold(rig, "account:api-1", 60000, "closed"), ERR_OK);
    for (int i = 0; i < 2; i++) {
        contract_reopen(rig);
        assert_key(rig, "tenant:acme", 2, 0, 2);
        assert_int_equal(look(rig, "account:api-1").hold_ms, 60000);
        assert_true(str_is(look(rig, "account:api-1").hold_reason, "closed"));
    }
    assert_int_equal(reserve(rig, 4, ACME), ERR_OK);
    finish(rig, STORE_SEND_FAILED, 1, 1); /* gives back a start from before the restart */
    assert_key(rig, "tenant:acme", 2, 0, 2);
    assert_int_equal(reserve(rig, 5, ACME), ERR_OK);
    assert_blocked(rig, 6, ACME,
                   (struct limit_block){.why = LIMIT_CONCURRENCY, .limit = 3, .used = 3});
    finish(rig, STORE_CANCEL, 5, 0);
    assert_blocked(
        rig, 6, ACME,
        (struct limit_block){.why = LIMIT_RATE, .limit = 3, .used = 3, .retry_ms = 58000});
    contract_reopen(rig);
    assert_int_equal(reserve(rig, 6, ACME), ERR_LIMITED);
    rig_pass(rig, 58000);
    assert_int_equal(reserve(rig, 6, ACME), ERR_OK);
    assert_int_equal(rig_repairs(rig), 0);
}

/* A pause of the store does not count: neither a rate's window nor a hold ends during it. */
static void test_pause(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(set(rig, "tenant:acme", "-1 1 60000 -1 1"), ERR_OK);
    assert_int_equal(reserve(rig, 1, ACME), ERR_OK);
    assert_int_equal(hold(rig, "x", 60000, NULL), ERR_OK);
    rig_pass(rig, 4000);
    rig_jump(600000);
    assert_blocked(
        rig, 2, ACME,
        (struct limit_block){.why = LIMIT_RATE, .limit = 1, .used = 1, .retry_ms = 56000});
    assert_int_equal(look(rig, "x").hold_ms, 56000);
    contract_reopen(rig);
    assert_int_equal(look(rig, "x").hold_ms, 56000);
    assert_int_equal(look(rig, "tenant:acme").started, 1);
}

#define LIMITS(name)                                                                               \
    {                                                                                              \
#name, name, setup, contract_teardown, NULL                                                \
    }

const struct CMUnitTest contract_limits[] = {
    LIMITS(test_concurrency),
    LIMITS(test_zero),
    LIMITS(test_lost_leases),
    LIMITS(test_rate),
    LIMITS(test_refused_costs_no_rate),
    LIMITS(test_all_or_none),
    LIMITS(test_closest_rule),
    LIMITS(test_namespaces),
    LIMITS(test_rules_are_listed),
    LIMITS(test_keys_are_listed),
    LIMITS(test_hold),
    LIMITS(test_fail_holds_its_key),
    LIMITS(test_fail_holds_the_key_of_its_namespace),
    LIMITS(test_fail_cannot_go_on_forever),
    LIMITS(test_waiting),
    LIMITS(test_wait_again),
    LIMITS(test_reason_of_a_hold),
    LIMITS(test_holders),
    LIMITS(test_what_it_had_taken),
    LIMITS(test_freed),
    LIMITS(test_after_a_restart),
    LIMITS(test_pause),
};
const size_t contract_limits_count = COUNT_OF(contract_limits);
