/* Breakers: which failures count and against which node and type, that only one probe is out at a
 * time, and that the state survives a restart. */
#include "contract.h"

#include <string.h>

enum { COOLDOWN_MS = 300000, THRESHOLD = 3 };

static int setup(void **state)
{
    struct rig *rig;

    if (contract_setup(state))
        return 1;
    rig = *state;
    contract_backend->close(rig);
    rig->config.breaker_threshold = THRESHOLD;
    rig->config.breaker_cooldown_ms = COOLDOWN_MS;
    contract_backend->open(rig);
    return 0;
}

static struct store_op reserve_op(uint64_t job, const char *type, const char *nodes)
{
    struct store_op op = {.verb = STORE_RESERVE, .job = job, .attempt = 1};
    struct str rest = str_of(nodes);

    op.u.put.spec = STR("{}");
    op.u.put.type = type ? str_of(type) : STR_NONE;
    op.u.put.max_attempts = 1;
    op.u.put.owner = 1;
    op.u.put.ttl_ms = RIG_TTL_MS;
    while (rest.len) {
        struct str node = str_cut(&rest, ' ');

        op.u.put.candidates[op.u.put.candidate_count++] =
            (struct store_candidate){.node = node, .hash = str_hash(node)};
    }
    return op;
}

static enum err reserve(struct rig *rig, uint64_t job, const char *type, const char *nodes)
{
    rig->op = reserve_op(job, type, nodes);
    return rig_call(rig, &rig->op);
}

static uint64_t next_job(void)
{
    static uint64_t job;

    return ++job;
}

/* Runs one job from its reserve to the outcome that the node reports. */
static enum breaker_event run(struct rig *rig, const char *type, const char *node,
                              enum store_outcome outcome, const char *reason)
{
    uint64_t job = next_job();

    assert_int_equal(reserve(rig, job, type, node), ERR_OK);
    assert_int_equal(rig_commit(rig, job, 1, node), ERR_OK);
    assert_int_equal(rig_finish(rig, outcome, job, 1, node, reason), ERR_OK);
    return rig->op.u.settle.breaker;
}

/* Ends a job that brought its own command. */
static enum breaker_event end_command(struct rig *rig, uint64_t job, enum store_outcome outcome)
{
    struct store_op op = {.verb = STORE_FINISH, .job = job, .attempt = 1, .node = STR("n1")};

    op.u.settle.outcome = outcome;
    op.u.settle.command = true;
    op.u.settle.reason = outcome == STORE_FAIL ? STR("EXIT_1") : STR_NONE;
    rig->op = op;
    assert_int_equal(rig_call(rig, &rig->op), ERR_OK);
    return rig->op.u.settle.breaker;
}

static void run_command(struct rig *rig, enum store_outcome outcome)
{
    uint64_t job = next_job();

    assert_int_equal(reserve(rig, job, "talk", "n1"), ERR_OK);
    assert_int_equal(rig_commit(rig, job, 1, "n1"), ERR_OK);
    assert_int_equal(end_command(rig, job, outcome), BREAKER_NO_EVENT);
}

static void open_it(struct rig *rig, const char *type, const char *node)
{
    for (int i = 1; i < THRESHOLD; i++)
        assert_int_equal(run(rig, type, node, STORE_FAIL, "EXIT_1"), BREAKER_NO_EVENT);
    assert_int_equal(run(rig, type, node, STORE_FAIL, "EXIT_1"), BREAKER_TRIPPED);
}

static bool is_shut(struct rig *rig, const char *type, const char *node)
{
    struct lease_node before = rig_counts(rig, node);
    struct lease_node after;

    if (reserve(rig, next_job(), type, node) != ERR_ALL_FULL)
        return false;
    assert_true(rig->op.u.put.candidates[0].tried);
    assert_int_equal(rig->op.u.put.candidates[0].why, LEASE_BREAKER);
    assert_int_equal(rig->op.u.put.chosen, -1);
    after = rig_counts(rig, node);
    assert_int_equal(after.reserved, before.reserved);
    assert_int_equal(after.running, before.running);
    return true;
}

static size_t list(struct rig *rig)
{
    rig->op = (struct store_op){.verb = STORE_BREAKERS};
    assert_int_equal(rig_call(rig, &rig->op), ERR_OK);
    return rig->op.u.breakers.count;
}

/* The breaker of this node and type; closed and without failures if the store lists none. */
static struct breaker look(struct rig *rig, const char *type, const char *node)
{
    size_t count = list(rig);

    for (size_t i = 0; i < count; i++)
        if (str_is(rig->op.u.breakers.items[i].node, node) &&
            str_is(rig->op.u.breakers.items[i].type, type))
            return rig->op.u.breakers.items[i].breaker;
    return (struct breaker){0};
}

static enum err reset(struct rig *rig, const char *type, const char *node)
{
    rig->op = (struct store_op){.verb = STORE_BREAKER_RESET, .node = str_of(node)};
    rig->op.u.breaker.type = str_of(type);
    return rig_call(rig, &rig->op);
}

static void restart(struct rig *rig)
{
    contract_backend->close(rig);
    contract_backend->open(rig);
}

static void wait_cooldown(struct rig *rig, int64_t less_ms)
{
    int64_t since_ms = rig_now_ms() - look(rig, "talk", "n1").opened_ms;

    rig_pass(rig, COOLDOWN_MS - since_ms - less_ms);
}

static void renew(struct rig *rig)
{
    rig->op = (struct store_op){.verb = STORE_RENEW, .node = STR("n1")};
    rig->op.u.renew.terms = (struct lease_terms){RIG_RUN_MS, RIG_F2F_MS};
    assert_int_equal(rig_call(rig, &rig->op), ERR_OK);
}

/* How work ends. A capital letter ends the probe that is out; a small letter is a whole run. */
static const struct {
    char letter;
    enum store_outcome outcome;
    const char *node;
    const char *reason;
} ends[] = {
    {'D', STORE_DONE, "n1", NULL},
    {'F', STORE_FAIL, "n1", "EXIT_1"},
    {'E', STORE_FAIL, "n1", "EMERGENCY"},
    {'R', STORE_REFUSED, "n1", "NODE_OVERLOADED"},
    {'S', STORE_SEND_FAILED, "n1", "no connection"},
    {'X', STORE_CANCEL, NULL, NULL},
    {'L', STORE_EXPIRE, NULL, NULL},
};

static bool end(struct rig *rig, char letter, uint64_t probe)
{
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        if (letter == ends[i].letter)
            assert_int_equal(
                rig_finish(rig, ends[i].outcome, probe, 1, ends[i].node, ends[i].reason), ERR_OK);
        else if (letter == ends[i].letter + ('a' - 'A'))
            run(rig, "talk", "n1", ends[i].outcome, ends[i].reason);
        else
            continue;
        return true;
    }
    return false;
}

/* Each letter is one event for type talk on n1. */
static void step(struct rig *rig, char letter, uint64_t *probe)
{
    switch (letter) {
    case 'b': /* the breaker is shut */
        assert_true(is_shut(rig, "talk", "n1"));
        break;
    case 'v': /* 1 ms less than the cooldown */
        wait_cooldown(rig, 1);
        break;
    case 'w':
        wait_cooldown(rig, 0);
        break;
    case 'h': /* 40 s, then the node renews its leases */
        rig_pass(rig, RIG_RUN_MS - RIG_TTL_MS);
        renew(rig);
        break;
    case 'q': /* the node is silent until all of its leases have run out */
        rig_pass(rig, RIG_RUN_MS);
        break;
    case '!':
        restart(rig);
        break;
    case '0':
        assert_int_equal(reset(rig, "talk", "n1"), ERR_OK);
        break;
    case 'P':
        *probe = next_job();
        assert_int_equal(reserve(rig, *probe, "talk", "n1"), ERR_OK);
        assert_true(rig->op.u.put.probe);
        break;
    case 'A': /* a probe before the cooldown is over, because the node is the last of its pool */
        *probe = next_job();
        rig->op = reserve_op(*probe, "talk", "n1");
        rig->op.u.put.last = true;
        assert_int_equal(rig_call(rig, &rig->op), ERR_OK);
        assert_true(rig->op.u.put.probe);
        break;
    case 'B': /* refused even to the last of its pool: the probe is out */
        rig->op = reserve_op(next_job(), "talk", "n1");
        rig->op.u.put.last = true;
        assert_int_equal(rig_call(rig, &rig->op), ERR_ALL_FULL);
        assert_int_equal(rig->op.u.put.candidates[0].why, LEASE_BREAKER);
        break;
    case 'c': /* a command fails (c) or succeeds (g) */
        run_command(rig, STORE_FAIL);
        break;
    case 'g':
        run_command(rig, STORE_DONE);
        break;
    case 'C': /* the probe was a command */
        assert_int_equal(end_command(rig, *probe, STORE_FAIL), BREAKER_NO_EVENT);
        break;
    case 'K':
        assert_int_equal(rig_commit(rig, *probe, 1, "n1"), ERR_OK);
        break;
    default:
        assert_true(end(rig, letter, *probe));
    }
}

static const struct {
    const char *steps;
    enum breaker_state state;
    int failures;
    bool probing;
} rows[] = {
    {"f", BREAKER_CLOSED, 1, false},
    {"ffd", BREAKER_CLOSED, 0, false},
    {"ffdff", BREAKER_CLOSED, 2, false},
    {"ffeef", BREAKER_OPEN, 3, false},
    {"fffbvb", BREAKER_OPEN, 3, false},
    {"fffw", BREAKER_HALF_OPEN, 3, false},
    {"fffwPbb", BREAKER_HALF_OPEN, 3, true},
    {"fffwPKbD", BREAKER_CLOSED, 0, false},
    {"fffwPKDd", BREAKER_CLOSED, 0, false},
    {"fffwPKFb", BREAKER_OPEN, 4, false},
    {"fffwPKFvbwPKFwPKFwPKF", BREAKER_OPEN, 6, false}, /* capped at twice the threshold */
    {"fffwPKFwPKDf", BREAKER_CLOSED, 1, false},
    /* A probe that ended without a verdict on the work: the next job may be a probe. */
    {"fffwPR", BREAKER_HALF_OPEN, 3, false},
    {"fffwPRPbSPXPqLPKEPKqLPKD", BREAKER_CLOSED, 0, false},
    /* A probe may take any time while its node is alive. */
    {"fffwPKhhhhhhhhhbD", BREAKER_CLOSED, 0, false},
    /* A probe that was cancelled while it ran stays out until its node ended it; its outcome does
     * not count. */
    {"fffwPKXbFPKD", BREAKER_CLOSED, 0, false},
    /* The exit of a command says nothing about its node. */
    {"cccc", BREAKER_CLOSED, 0, false},
    {"ffgc", BREAKER_CLOSED, 2, false},
    {"ffgf", BREAKER_OPEN, 3, false},
    {"fffwPKC", BREAKER_HALF_OPEN, 3, false},
    {"fffwPKCPKD", BREAKER_CLOSED, 0, false},
    /* The last node of a pool is never shut completely: it gets one job at a time. */
    {"fffbABbKBD", BREAKER_CLOSED, 0, false},
    {"fffAKFb", BREAKER_OPEN, 4, false},
    {"fffAKFAKFA!BKD", BREAKER_CLOSED, 0, false},
    {"fffAKC", BREAKER_HALF_OPEN, 3, false},
    /* Across a restart of the store. */
    {"ff!f", BREAKER_OPEN, 3, false},
    {"fff!b", BREAKER_OPEN, 3, false},
    {"fff!vbw!Pb", BREAKER_HALF_OPEN, 3, true},
    {"fffwP!bKb!bF", BREAKER_OPEN, 4, false},
    {"fffwPKFv!b", BREAKER_OPEN, 4, false},
    {"fffwPR!Pb", BREAKER_HALF_OPEN, 3, true},
    {"fffwPKD!d", BREAKER_CLOSED, 0, false},
    /* Reset by an operator. */
    {"fff0", BREAKER_CLOSED, 0, false},
    {"fff0!ff", BREAKER_CLOSED, 2, false},
    {"fffwPK0F", BREAKER_CLOSED, 1, false},
};

static void test_rows(void **state)
{
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct breaker breaker;
        struct rig *rig;
        uint64_t probe = 0;
        void *own = NULL;

        assert_int_equal(setup(&own), 0);
        rig = own;
        for (const char *letter = rows[i].steps; *letter; letter++)
            step(rig, *letter, &probe);
        breaker = look(rig, "talk", "n1");
        if (breaker.state != rows[i].state || breaker.failures != rows[i].failures ||
            (breaker.probe_until_ms > 0) != rows[i].probing)
            fail_msg("%s: %s, %d failures, probe until %lld", rows[i].steps,
                     breaker_state_name(breaker.state), (int)breaker.failures,
                     (long long)breaker.probe_until_ms);
        contract_teardown(&own);
    }
}

static void test_events(void **state)
{
    struct rig *rig = *state;
    uint64_t probe = next_job();

    open_it(rig, "talk", "n1");
    wait_cooldown(rig, 0);
    assert_int_equal(run(rig, "talk", "n1", STORE_FAIL, "EXIT_1"), BREAKER_PROBE_FAILED);
    wait_cooldown(rig, 0);
    reserve(rig, probe, "talk", "n1");
    rig_commit(rig, probe, 1, "n1");
    assert_int_equal(rig_finish(rig, STORE_DONE, probe, 1, "n1", NULL), ERR_OK);
    assert_int_equal(rig->op.u.settle.breaker, BREAKER_RECOVERED);
    assert_string_equal(rig->op.head.type, "talk");
    /* A repeated message reports no second event. */
    assert_int_equal(rig_finish(rig, STORE_DONE, probe, 1, "n1", NULL), ERR_OK);
    assert_true(rig->op.u.settle.duplicate);
    assert_int_equal(rig->op.u.settle.breaker, BREAKER_NO_EVENT);
}

/* Which reasons of a FAIL count against the node; model/breaker.c has the whole table. */
static void test_attribution(void **state)
{
    static const char *const reasons[] = {"EXIT_1", "MODEL_LOAD_FAILED", "SHIM_LOST", "CANCELLED"};
    struct rig *rig = *state;

    for (size_t i = 0; i < COUNT_OF(reasons); i++) {
        run(rig, "talk", "n1", STORE_FAIL, reasons[i]);
        assert_int_equal(look(rig, "talk", "n1").failures, i < 2);
        run(rig, "talk", "n1", STORE_DONE, NULL);
    }
}

/* A job that its node did not stop at its time-out counts as a failure; one whose node fell silent
 * does not. */
static void test_run_timeout_counts(void **state)
{
    struct rig *rig = *state;
    uint64_t job = next_job();

    rig->op = reserve_op(job, "talk", "n1");
    rig->op.u.put.timeout_ms = 2000;
    assert_int_equal(rig_call(rig, &rig->op), ERR_OK);
    rig_commit(rig, job, 1, "n1");
    rig_pass(rig, 3000);
    assert_int_equal(rig_finish(rig, STORE_EXPIRE, job, 1, NULL, NULL), ERR_OK);
    assert_string_equal(rig->op.head.reason, "RUN_TIMEOUT");
    assert_int_equal(look(rig, "talk", "n1").failures, 1);
}

/* A probe that hits its own time-out reopens the breaker, although its lease was cleared before the
 * sweep settled it. */
static void test_probe_that_hangs_reopens(void **state)
{
    struct rig *rig = *state;
    uint64_t probe = next_job();

    open_it(rig, "talk", "n1");
    wait_cooldown(rig, 0);
    rig->op = reserve_op(probe, "talk", "n1");
    rig->op.u.put.timeout_ms = 2000;
    assert_int_equal(rig_call(rig, &rig->op), ERR_OK);
    assert_true(rig->op.u.put.probe);
    rig_commit(rig, probe, 1, "n1");
    rig_pass(rig, 3000);
    assert_int_equal(reserve(rig, next_job(), "dev", "n1"), ERR_OK); /* clears expired leases */
    assert_int_equal(rig_finish(rig, STORE_EXPIRE, probe, 1, NULL, NULL), ERR_OK);
    assert_int_equal(rig->op.u.settle.breaker, BREAKER_PROBE_FAILED);
    assert_true(is_shut(rig, "talk", "n1"));
}

static void test_others_are_not_shut(void **state)
{
    struct rig *rig = *state;

    open_it(rig, "talk", "n1");
    assert_true(is_shut(rig, "talk", "n1"));
    run(rig, "dev", "n1", STORE_DONE, NULL);
    run(rig, "talk", "n2", STORE_FAIL, "EXIT_1");
    run(rig, "talk", "n2", STORE_DONE, NULL);
    /* Work on n2 or of another type neither opens nor closes the breaker. */
    assert_true(is_shut(rig, "talk", "n1"));
    assert_int_equal(list(rig), 1);
    /* The next candidate gets the job. */
    assert_int_equal(reserve(rig, next_job(), "talk", "n1 n2"), ERR_OK);
    assert_int_equal(rig->op.u.put.candidates[0].why, LEASE_BREAKER);
    assert_int_equal(rig->op.u.put.chosen, 1);
    assert_false(rig->op.u.put.probe);
    assert_int_equal(rig_counts(rig, "n1").reserved, 0);
    assert_int_equal(rig_counts(rig, "n2").reserved, 1);
}

/* A job's next attempt has the job's type, although the reserve does not repeat it. */
static void test_next_attempt_is_of_its_type(void **state)
{
    struct rig *rig = *state;
    uint64_t job = next_job();

    rig->op = reserve_op(job, "talk", "n1");
    rig->op.u.put.max_attempts = 2;
    assert_int_equal(rig_call(rig, &rig->op), ERR_OK);
    rig_commit(rig, job, 1, "n1");
    run(rig, "talk", "n1", STORE_FAIL, "EXIT_1");
    run(rig, "talk", "n1", STORE_FAIL, "EXIT_1");
    rig_finish(rig, STORE_FAIL, job, 1, "n1", "EXIT_1");
    assert_int_equal(rig->op.head.state, JOB_RETRYING);
    restart(rig);
    rig->op = reserve_op(job, NULL, "n1");
    rig->op.attempt = 2;
    assert_int_equal(rig_call(rig, &rig->op), ERR_ALL_FULL);
    assert_int_equal(rig->op.u.put.candidates[0].why, LEASE_BREAKER);
    wait_cooldown(rig, 0);
    rig->op = reserve_op(job, NULL, "n1");
    rig->op.attempt = 2;
    assert_int_equal(rig_call(rig, &rig->op), ERR_OK);
    assert_true(rig->op.u.put.probe);
    /* Repeating the reserve gives the same answer, not another probe. */
    rig->op = reserve_op(job, NULL, "n1");
    rig->op.attempt = 2;
    assert_int_equal(rig_call(rig, &rig->op), ERR_OK);
    assert_true(rig->op.u.put.duplicate);
    assert_true(is_shut(rig, "talk", "n1"));
}

/* A full node sends no probe; the next job that gets a slot can be it. */
static void test_probe_needs_a_slot(void **state)
{
    struct rig *rig = *state;
    uint64_t first = next_job();
    uint64_t second = next_job();

    open_it(rig, "talk", "n1");
    wait_cooldown(rig, 0);
    reserve(rig, first, "dev", "n1");
    reserve(rig, second, "dev", "n1");
    assert_int_equal(reserve(rig, next_job(), "talk", "n1"), ERR_ALL_FULL);
    assert_int_equal(rig->op.u.put.candidates[0].why, LEASE_FULL);
    assert_int_equal(look(rig, "talk", "n1").probe_until_ms, 0);
    rig_finish(rig, STORE_SEND_FAILED, first, 1, "n1", NULL);
    assert_int_equal(reserve(rig, next_job(), "talk", "n1"), ERR_OK);
    assert_true(rig->op.u.put.probe);
}

/* Work that began before the breaker opened does not move it when half open, whether it succeeds or
 * fails. */
static void test_earlier_work_does_not_decide(void **state)
{
    struct rig *rig = *state;
    uint64_t early[2] = {next_job(), next_job()};

    rig_node(rig, "n1", 4, NODE_READY);
    for (int i = 0; i < 2; i++) {
        reserve(rig, early[i], "talk", "n1");
        rig_commit(rig, early[i], 1, "n1");
    }
    rig_pass(rig, 1000);
    open_it(rig, "talk", "n1");
    for (int64_t passed = 0; passed < COOLDOWN_MS; passed += 40000) {
        rig_pass(rig, 40000);
        renew(rig);
    }
    assert_int_equal(rig_finish(rig, STORE_DONE, early[0], 1, "n1", NULL), ERR_OK);
    assert_int_equal(rig->op.u.settle.breaker, BREAKER_NO_EVENT);
    assert_int_equal(look(rig, "talk", "n1").state, BREAKER_HALF_OPEN);
    assert_int_equal(reserve(rig, next_job(), "talk", "n1"), ERR_OK);
    assert_true(rig->op.u.put.probe);
    assert_int_equal(rig_finish(rig, STORE_FAIL, early[1], 1, "n1", "EXIT_1"), ERR_OK);
    assert_int_equal(rig->op.u.settle.breaker, BREAKER_NO_EVENT);
    assert_int_equal(look(rig, "talk", "n1").state, BREAKER_HALF_OPEN);
    assert_true(look(rig, "talk", "n1").probe_until_ms > 0);
}

struct asked {
    struct store_op op;
    size_t *open;
    bool *all;
};

static void answered(struct store_op *op)
{
    struct asked *asked = container_of(op, struct asked, op);

    *asked->all = --*asked->open == 0;
}

/* Of many reserves sent at once, in any batches, only one becomes a probe. */
static void test_one_probe_among_many(void **state)
{
    enum { MANY = 64 };
    static struct asked asked[MANY];
    struct rig *rig = *state;
    size_t open = MANY;
    bool all = false;
    int placed = 0;

    rig_node(rig, "n1", MANY, NODE_READY);
    open_it(rig, "talk", "n1");
    wait_cooldown(rig, 0);
    for (int i = 0; i < MANY; i++) {
        asked[i] =
            (struct asked){.op = reserve_op(next_job(), "talk", "n1"), .open = &open, .all = &all};
        asked[i].op.reply_to = &rig->work_queue.inbox;
        asked[i].op.done = answered;
        assert_int_equal(store_send(rig->store, &asked[i].op), ERR_OK);
    }
    rig_wait(rig, &all);
    for (int i = 0; i < MANY; i++)
        placed += asked[i].op.err == ERR_OK && asked[i].op.u.put.probe;
    assert_int_equal(placed, 1);
    assert_int_equal(rig_counts(rig, "n1").reserved, 1);
}

/* A late or repeated message is counted once or not at all. */
static void test_counted_once(void **state)
{
    struct rig *rig = *state;
    uint64_t job = next_job();

    reserve(rig, job, "talk", "n1");
    rig_commit(rig, job, 1, "n1");
    for (int i = 0; i < 5; i++)
        rig_finish(rig, STORE_FAIL, job, 1, "n1", "EXIT_1");
    rig_finish(rig, STORE_FAIL, job, 2, "n1", "EXIT_1");
    rig_finish(rig, STORE_FAIL, job, 1, "n2", "EXIT_1");
    assert_int_equal(look(rig, "talk", "n1").failures, 1);
    assert_int_equal(list(rig), 1);
}

static void test_no_type_no_breaker(void **state)
{
    static char name[POOL_LANG_MAX + 2];
    struct rig *rig = *state;

    for (int i = 0; i < 5; i++)
        run(rig, NULL, "n1", STORE_FAIL, "EXIT_1");
    assert_int_equal(list(rig), 0);
    memset(name, 't', sizeof name - 1);
    assert_int_equal(reserve(rig, next_job(), name, "n1"), ERR_BAD_FIELD);
    name[POOL_LANG_MAX] = '\0';
    open_it(rig, name, "n1");
    restart(rig);
    assert_true(is_shut(rig, name, "n1"));
}

static void test_off(void **state)
{
    struct rig *rig = *state;

    open_it(rig, "talk", "n1");
    contract_backend->close(rig);
    rig->config.breaker_threshold = 0;
    contract_backend->open(rig);
    for (int i = 0; i < 5; i++)
        run(rig, "talk", "n1", STORE_FAIL, "EXIT_1");
    assert_int_equal(list(rig), 0);
    assert_int_equal(reset(rig, "talk", "n1"), ERR_NOT_FOUND);
}

static void test_reset_of_none(void **state)
{
    struct rig *rig = *state;

    open_it(rig, "talk", "n1");
    assert_int_equal(reset(rig, "dev", "n1"), ERR_NOT_FOUND);
    assert_int_equal(reset(rig, "talk", "n2"), ERR_NOT_FOUND);
    assert_int_equal(reset(rig, "", ""), ERR_NOT_FOUND);
    assert_int_equal(reset(rig, "talk", "n1"), ERR_OK);
    assert_int_equal(reset(rig, "talk", "n1"), ERR_NOT_FOUND);
}

static void test_listed_in_order(void **state)
{
    static const char *const want[] = {"n1 dev", "n1 talk", "n2 dev", "n2 talk"};
    struct rig *rig = *state;

    run(rig, "talk", "n2", STORE_FAIL, "EXIT_1");
    run(rig, "dev", "n1", STORE_FAIL, "EXIT_1");
    run(rig, "talk", "n1", STORE_FAIL, "EXIT_1");
    run(rig, "dev", "n2", STORE_FAIL, "EXIT_1");
    for (int again = 0; again < 2; again++) {
        assert_int_equal(list(rig), COUNT_OF(want));
        for (size_t i = 0; i < COUNT_OF(want); i++) {
            const struct store_breaker *item = &rig->op.u.breakers.items[i];
            struct str text = arena_fmt(&rig->arena, STR_FMT " " STR_FMT, STR_ARG(item->node),
                                        STR_ARG(item->type));

            assert_true(str_is(text, want[i]));
        }
        restart(rig);
    }
}

/* A node that leaves and comes back keeps its breakers; those of a node that stays away are
 * removed. */
static void test_node_leaves(void **state)
{
    struct rig *rig = *state;
    struct store_op drop = {.verb = STORE_NODE_DROP, .node = STR("n1")};
    struct store_op again = drop;

    open_it(rig, "talk", "n1");
    open_it(rig, "talk", "n2");
    assert_int_equal(rig_call(rig, &drop), ERR_OK);
    assert_int_equal(rig_node(rig, "n1", 2, NODE_READY), ERR_OK);
    assert_true(is_shut(rig, "talk", "n1"));
    assert_int_equal(rig_call(rig, &again), ERR_OK);
    rig_pass(rig, COOLDOWN_MS);
    while (list(rig) > 1) /* the store removes them when it is idle */
        rig_pass(rig, 1);
    assert_true(str_is(rig->op.u.breakers.items[0].node, "n2"));
    restart(rig);
    assert_int_equal(list(rig), 1);
}

#define TEST(name)                                                                                 \
    {                                                                                              \
#name, name, setup, contract_teardown, NULL                                                \
    }

const struct CMUnitTest contract_breaker[] = {
    {"test_rows", test_rows, NULL, NULL, NULL},
    TEST(test_events),
    TEST(test_attribution),
    TEST(test_run_timeout_counts),
    TEST(test_probe_that_hangs_reopens),
    TEST(test_others_are_not_shut),
    TEST(test_next_attempt_is_of_its_type),
    TEST(test_probe_needs_a_slot),
    TEST(test_earlier_work_does_not_decide),
    TEST(test_one_probe_among_many),
    TEST(test_counted_once),
    TEST(test_no_type_no_breaker),
    TEST(test_off),
    TEST(test_reset_of_none),
    TEST(test_listed_in_order),
    TEST(test_node_leaves),
};
const size_t contract_breaker_count = COUNT_OF(contract_breaker);
