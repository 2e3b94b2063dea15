/* The embedded store and the one in Redis get the same random calls on the same clock, and must
 * give the same answers in every field. STORE_OPS and STORE_SEED set the number of ops and the
 * seed. */
#include "redis_rig.h"
#include "same.h"

#include "base/clock.h"
#include "base/mem.h"
#include "store/embedded.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPS_DEFAULT = 100000,
    JOBS = 80,
    NODES = 8,
    FIXED = 6, /* the first nodes never leave; only they get typed jobs */
    ROUND = 32,
    CALM_SHARE = 5, /* makes the rounds of a calm play short */
    STRANGERS = 5,  /* most runs in a heartbeat's list that are not the node's */
    RUNS = JOBS + STRANGERS,
    DUES = 2 * JOBS + 8,
    COOLDOWN_MS = 20000,
    HOLD_MS = 15000,
    WAIT_MS = 20000,
    BACK_MS = 1000,
    LANE_MAX = 4,
    ALL_MAX = 9,
    ACCOUNT_MAX = 3,
};

static const char *const names[NODES] = {"n0", "n1", "n2", "n3", "n4", "n5", "d0", "d1"};
static const char *const keys[] = {"a", "b", "key c", "d", "e", "f"};
static const char *const types[] = {"talk", "dev", "f2f"};
static const uint64_t lanes[] = {7, 1, UINT64_C(1) << 63, UINT64_MAX - 1};
static const char *const reasons[] = {NULL, "EXIT_1", "EMERGENCY", "a \"b\" \\ \x01 c", "TIMEOUT"};

/* What jobs demand and nodes declare; the last of each cannot be parsed. */
static const char *const demands[] = {
    "2 0 0  ",
    "1 0 0  t:a",
    "1 0 0  t:a,acc",
    "3 0 0 cpu=500 t:b,t:a",
    "1 0 0 cpu=1500,mem_mb=3000 acc",
    "1 0 0 cpu=250,licences=1,mem_mb=100 t:b,acc",
    "1 0 0 gold=1 ",
    "1 0 7000  t:c",
    "1 0 3000 cpu=100 ",
    "1 1 0  ",
    "2 2 10000 mem_mb=500 t:c,acc,t:a",
    "1 0 0  x,y,z,t:a",
    "1 0 0 cpu=100 maps/t:a,maps/acc",
    "1 0 2000  t:a,maps/t:a",
    "one slot",
};
static const char *const stocks[] = {
    "",
    "cpu=8000/8000,mem_mb=16000/16000 ",
    "cpu=8000/6000,mem_mb=16000/4000 ",
    "cpu=8000/8000,licences=2/2,mem_mb=16000/9000 0=24000/24000,1=16000/16000",
    "cpu=8000/8000,licences=2/2,mem_mb=16000/9000 0=24000/20000,1=16000/15000",
    " 0=24000/24000,3=16000/16000,7=16000/16000",
    "cpu=2000/500,gold=3/3 1=12000/12000",
    "cpu",
};
static const char *const patterns[] = {"t:a",    "t:b",      "t:*", "acc", "a*", "t:c",
                                       "maps/*", "maps/t:a", "m*",  "*",   "x y"};
/* All windows have the same length: each store drops starts that have left their window at a moment
 * of its own, which a longer window would show. The same goes for keys without a rate, so every key
 * has one. */
static const char *const limits[] = {
    "2 900000 5000 -1 1", "-1 3 5000 -1 1",   "0 1000 5000 -1 1",
    "5 4 5000 3 2",       "-1 1000 5000 0 1", "-1 1 5000 -1 1",
    "3 2000 5000 -1 1",   "9 1001 5000 9 9",  "1 10 5000 -1 1",
};

/* In a calm play rules do not change, so windows may differ, and keys may have no rate. */
static const char *const calm_rules[][2] = {
    {"*", "40 -1 0 -1 1"},       {"t:*", "-1 30 1000 -1 2"},   {"t:b", "5 -1 0 4 1"},
    {"acc", "9 400 20000 -1 3"}, {"maps/*", "3 -1 0 -1 1000"}, {"maps/t:a", "-1 2 700 -1 1"},
};

/* What an op points to, for one of the two stores. */
struct side {
    struct store_op op;
    struct store_run runs[RUNS];
    struct store_due due[DUES];
    struct play *play;
};

struct call {
    struct side sides[2];
    int slot; /* of the job it is about; -1: none */
};

struct play {
    struct rig rigs[2]; /* embedded, Redis; the second uses the first one's inbox */
    struct rnd rnd;
    bool calm; /* nearly every call succeeds, as in real life; lua/columns.lua is made for that */
    uint64_t next_id;
    uint64_t fresh_id;             /* the job just made for a reserve; 0: none */
    struct store_head heads[JOBS]; /* as last answered; id 0: no job yet */
    uint64_t ids[JOBS];
    uint64_t left_job; /* a due job whose slot another job has by now; 0: none */
    int left_attempt;
    struct call *calls;
    int waiting;
    long ops;
    long answers[STORE_VERB_COUNT][2]; /* refused, accepted */
    /* Refused for a key; got GPUs; refused for lack of a resource. */
    long limited, with_gpus, short_of;
};

static unsigned below(struct play *play, unsigned bound)
{
    return rnd_below(&play->rnd, bound);
}

static bool chance(struct play *play, unsigned one_in)
{
    return below(play, one_in) == 0;
}

static void arrived(struct store_op *op)
{
    container_of(op, struct side, op)->play->waiting--;
}

/* Making an op: mostly one that fits now, sometimes any. */

/* A node's name that does not depend on the head, which may change. */
static const char *some_node(struct play *play, const struct store_head *head)
{
    for (int i = 0; i < NODES; i++)
        if (strcmp(head->node, names[i]) == 0 && !chance(play, 8))
            return names[i];
    return names[below(play, NODES)];
}

/* Can the verb be expected to succeed? A new job replaces one that has ended; one that waits goes
 * on. */
static bool suits(const struct store_head *head, enum store_verb verb)
{
    switch (verb) {
    case STORE_RESERVE:
        return (job_state_final(head->state) && !head->lease) || head->state == JOB_NEW ||
               head->state == JOB_SELECTING || head->state == JOB_RETRYING;
    case STORE_ACK:
        return head->state == JOB_DISPATCHED;
    case STORE_FINISH:
        return head->state == JOB_ACKED;
    default:
        return true;
    }
}

static int pick_slot(struct play *play, enum store_verb verb)
{
    int slot = (int)below(play, JOBS);

    for (int tries = 0; play->calm && tries < JOBS && play->ids[slot]; tries++) {
        if (play->heads[slot].id && suits(&play->heads[slot], verb))
            break;
        slot = (int)below(play, JOBS);
    }
    return slot;
}

static int pick_job(struct play *play, enum store_verb verb)
{
    int slot = pick_slot(play, verb);
    const struct store_head *head = &play->heads[slot];

    bool over = head->id && job_state_final(head->state) && !head->lease;

    play->fresh_id = 0;
    /* A new job. In a calm play it may replace one that still lives, so that some leases run
     * out. */
    if (!play->ids[slot] || (over && (play->calm || chance(play, 3))) ||
        (play->calm && verb == STORE_RESERVE && !chance(play, 5))) {
        play->ids[slot] = play->next_id++;
        play->fresh_id = verb == STORE_RESERVE ? play->ids[slot] : 0;
        play->heads[slot] = (struct store_head){0};
    }
    return slot;
}

/* Half of the jobs have a type, and go only to nodes that never leave. Stores remove the breakers
 * of a node that left when they are idle, which is not at the same moment in both. */
static bool is_typed(uint64_t job)
{
    return job % 2;
}

static struct store_bounds some_bounds(struct play *play)
{
    static const char *const accounts[] = {NULL, "ci", "a b", "n\xc3\xa4me"};
    const char *account = accounts[below(play, COUNT_OF(accounts))];

    return (struct store_bounds){.lane_max = chance(play, 2) ? LANE_MAX : 0,
                                 .all_max = chance(play, 3) ? ALL_MAX : 0,
                                 .keys = chance(play, 2),
                                 .account = {.name = account ? str_of(account) : STR_NONE,
                                             .bytes = below(play, 1000),
                                             .jobs_max = chance(play, 3) ? ACCOUNT_MAX : 0,
                                             .bytes_max = chance(play, 3) ? 1500 : 0}};
}

static void make_put(struct play *play, struct store_op *op, int slot)
{
    op->job = play->ids[slot];
    op->attempt = 1;
    if (!chance(play, 20))
        op->u.put.spec = STR("{\"type\":\"talk\",\"session_id\":\"s1\"}");
    op->u.put.fresh = op->job == play->fresh_id;
    if (is_typed(op->job))
        op->u.put.type = str_of(types[below(play, COUNT_OF(types))]);
    if (chance(play, 2))
        op->u.put.demand =
            str_of(demands[below(play, COUNT_OF(demands) - (chance(play, 20) ? 0 : 1))]);
    if (chance(play, 10)) {
        op->u.put.idem = str_of(keys[below(play, COUNT_OF(keys))]);
        op->u.put.fingerprint = below(play, 2);
    }
    if (chance(play, 6)) {
        op->u.put.session = str_of(names[below(play, 3)]);
        op->u.put.pool = chance(play, 2) ? STR("en:zh") : STR("zh:en");
        op->u.put.lang_pair = STR("en->zh");
    }
    op->u.put.max_attempts = chance(play, 50) ? 10 : 1 + (int)below(play, 3);
    op->u.put.timeout_ms = chance(play, 3) ? 20000 : 0;
    op->u.put.callback = chance(play, play->calm ? 12 : 4);
    op->u.put.owner = 1 + below(play, 2);
    op->u.put.hold_ms = HOLD_MS;
    op->u.put.ttl_ms = chance(play, 30) ? 0 : RIG_TTL_MS;
    if (op->verb != STORE_PUT || chance(play, 3))
        return;
    op->u.put.lane = lanes[below(play, COUNT_OF(lanes))];
    op->u.put.priority = (int)below(play, 10);
    op->u.put.wait_ms = below(play, WAIT_MS);
    op->u.put.bounds = some_bounds(play);
}

static void make_reserve(struct play *play, struct store_op *op, int slot)
{
    const struct store_head *head = &play->heads[slot];

    make_put(play, op, slot);
    if (head->id)
        op->attempt = head->attempt + (head->state == JOB_RETRYING);
    if (chance(play, 10))
        op->attempt = 1 + (int)below(play, 3);
    op->u.put.last = chance(play, 8);
    op->u.put.candidate_count =
        play->calm ? 1 + below(play, STORE_CANDIDATES_MAX) : below(play, STORE_CANDIDATES_MAX + 1);
    for (size_t i = 0; i < op->u.put.candidate_count; i++) {
        struct str node = str_of(names[below(play, is_typed(op->job) ? FIXED : NODES)]);

        op->u.put.candidates[i] = (struct store_candidate){
            .node = node, .hash = str_hash(node), .withheld = chance(play, 10) ? 1 : 0};
    }
}

static void make_wait(struct play *play, struct store_op *op, int slot)
{
    const struct store_head *head = &play->heads[slot];

    op->job = play->ids[slot];
    op->attempt = head->id ? head->attempt + (head->state == JOB_RETRYING) : 1;
    if (chance(play, 10))
        op->attempt = 1 + (int)below(play, 3);
    op->u.wait.lane = lanes[below(play, COUNT_OF(lanes))];
    op->u.wait.priority = (int)below(play, 10);
    op->u.wait.wait_ms = below(play, WAIT_MS);
    op->u.wait.bounds = some_bounds(play);
}

static struct lease_terms some_terms(struct play *play, unsigned one_in)
{
    if (!chance(play, one_in))
        return (struct lease_terms){RIG_RUN_MS, RIG_F2F_MS};
    return (struct lease_terms){below(play, 2 * RIG_RUN_MS), below(play, 2 * RIG_F2F_MS)};
}

static void make_commit(struct play *play, struct store_op *op, int slot)
{
    const struct store_head *head = &play->heads[slot];

    op->job = play->ids[slot];
    op->attempt = head->id && !chance(play, 10) ? head->attempt : 1 + (int)below(play, 3);
    op->node = str_of(some_node(play, head));
    op->u.settle.terms = some_terms(play, play->calm ? 50 : 6);
    op->u.settle.stop_grace_ms = 1000;
}

static void make_finish(struct play *play, struct store_op *op, int slot)
{
    static const enum store_outcome often[] = {
        STORE_DONE,    STORE_DONE,        STORE_FAIL,          STORE_FAIL,         STORE_FAIL,
        STORE_EXPIRE,  STORE_EXPIRE,      STORE_CANCEL,        STORE_EXPIRE,       STORE_DONE,
        STORE_REFUSED, STORE_SEND_FAILED, STORE_QUEUE_TIMEOUT, STORE_NO_CANDIDATE, STORE_ABANDON,
    };
    const struct store_head *head = &play->heads[slot];
    enum store_outcome outcome = often[below(play, COUNT_OF(often))];
    if (play->calm && !chance(play, 8))
        outcome = STORE_DONE;
    bool by_node = outcome <= STORE_SEND_FAILED;

    op->job = play->ids[slot];
    op->attempt = head->id && !chance(play, 10) ? head->attempt : (int)below(play, 4);
    if (!by_node && !chance(play, 4))
        op->attempt = 0;
    if (outcome == STORE_EXPIRE && op->attempt == 0)
        op->attempt = 1;
    if (by_node && !chance(play, 30))
        op->node = str_of(some_node(play, head));
    op->u.settle.outcome = outcome;
    op->u.settle.reason = str_of(reasons[below(play, COUNT_OF(reasons))]);
    op->u.settle.result = chance(play, 2) ? STR("{\"ok\":1}") : STR_NONE;
    op->u.settle.candidates_left = !chance(play, 4);
    op->u.settle.command = chance(play, 8);
    op->u.settle.owner = 1 + below(play, 2);
    op->u.settle.hold_ms = HOLD_MS;
    op->u.settle.want_record = chance(play, play->calm ? 20 : 4);
    if (chance(play, 12)) {
        static const char *const held[] = {"t:a", "acc", "t:b", "maps/t:a"};

        op->u.settle.hold_key = str_of(held[below(play, COUNT_OF(held))]);
        op->u.settle.hold_key_ms = below(play, 8000);
        op->u.settle.hold_reason = chance(play, 2) ? STR("out of quota") : STR_NONE;
    }
    if (play->left_job && chance(play, 4)) {
        op->job = play->left_job;
        op->attempt = play->left_attempt;
        op->node = STR_NONE;
        op->u.settle.outcome = STORE_EXPIRE;
        op->u.settle.hold_key = STR_NONE;
        play->left_job = 0;
    }
}

/* The runs of the node, sometimes all of them: one stamp then renews them all in Redis. */
static size_t list_runs(struct play *play, const char *node, struct store_run *runs)
{
    unsigned lacks_one_in = chance(play, 2) ? 0 : 1 + below(play, 8); /* 0: all are listed */
    size_t count = 0;

    for (int slot = 0; slot < JOBS; slot++) {
        const struct store_head *head = &play->heads[slot];

        if (head->id && head->lease == LEASE_RUNNING && strcmp(head->node, node) == 0 &&
            !(lacks_one_in && chance(play, lacks_one_in)))
            runs[count++] = (struct store_run){.id = head->id, .attempt = head->attempt};
    }
    return count;
}

static void make_renew(struct play *play, struct call *call)
{
    const char *node = names[below(play, NODES)];
    bool all = chance(play, 4);
    size_t count = chance(play, 4) ? 0 : list_runs(play, node, call->sides[0].runs);
    size_t strangers = chance(play, 2) ? below(play, STRANGERS + 1) : 0;
    struct lease_terms terms = some_terms(play, 6);

    for (size_t i = 0; i < strangers; i++) {
        int slot = pick_job(play, STORE_RENEW);

        call->sides[0].runs[count++] = (struct store_run){
            .id = play->ids[slot], .attempt = play->heads[slot].id ? play->heads[slot].attempt : 1};
    }
    if (count > 0 && chance(play, 20))
        call->sides[0].runs[below(play, (unsigned)count)].attempt++;
    memcpy(call->sides[1].runs, call->sides[0].runs, sizeof call->sides[0].runs);
    for (int k = 0; k < 2; k++) {
        struct store_op *op = &call->sides[k].op;

        op->node = str_of(node);
        op->u.renew.runs = all ? NULL : call->sides[k].runs;
        op->u.renew.count = all ? 0 : count;
        op->u.renew.terms = terms;
    }
}

static void make_node_put(struct play *play, struct store_op *op)
{
    op->node = str_of(names[below(play, NODES)]);
    op->u.node_put.own = (enum node_health)below(play, NODE_HEALTH_COUNT);
    op->u.node_put.health = chance(play, play->calm ? 40 : 8)
                                ? (enum node_health)below(play, NODE_HEALTH_COUNT)
                                : NODE_READY;
    op->u.node_put.max = (int32_t)below(play, 7) + (play->calm ? 6 : -1);
    if (chance(play, 2))
        op->u.node_put.facts = chance(play, 2) ? STR("{\"v\":1}") : STR("{\"v\":2}");
    if (chance(play, 2))
        op->u.node_put.resources =
            str_of(stocks[below(play, COUNT_OF(stocks) - (chance(play, 20) ? 0 : 1))]);
    op->u.node_put.set_admin = chance(play, 6);
    op->u.node_put.admin =
        chance(play, play->calm ? 10 : 2) ? NODE_ADMIN_CORDONED : NODE_ADMIN_NONE;
    op->u.node_put.admin_reason = chance(play, 2) ? STR("disk") : STR_NONE;
    op->u.node_put.new_epoch = chance(play, 6);
    op->u.node_put.keeps_runs = op->u.node_put.new_epoch && chance(play, 2);
    op->u.node_put.if_epoch = chance(play, 4) ? 1 + below(play, 3) : 0;
}

static void make_limit(struct play *play, struct store_op *op)
{
    unsigned patterns_count = COUNT_OF(patterns) - (chance(play, 20) ? 0 : 1);

    op->u.limit.pattern = str_of(patterns[below(play, patterns_count)]);
    if (op->verb == STORE_LIMIT_HOLD) {
        op->u.limit.hold_ms = chance(play, 3) ? 0 : below(play, 9000);
        op->u.limit.reason = chance(play, 2) ? STR("full") : STR_NONE;
        return;
    }
    op->u.limit.drop = chance(play, 3) && !str_is(op->u.limit.pattern, "*");
    assert_true(limit_parse(str_of(limits[below(play, COUNT_OF(limits))]), &op->u.limit.limit));
}

static void make_limits(struct play *play, struct store_op *op)
{
    static const char *const prefixes[] = {NULL, "", "t:", "acc", "u"};
    static const char *const afters[] = {NULL, "a", "t:a", "zz"};

    op->u.limits.prefix = str_of(prefixes[below(play, COUNT_OF(prefixes))]);
    op->u.limits.after = str_of(afters[below(play, COUNT_OF(afters))]);
    op->u.limits.max = below(play, 8);
}

static void make_due(struct play *play, struct call *call)
{
    for (int k = 0; k < 2; k++) {
        call->sides[k].op.u.due.items = call->sides[k].due;
        call->sides[k].op.u.due.max = DUES;
    }
}

struct share {
    enum store_verb verb;
    unsigned often; /* of 100 */
};

static const struct share mix[] = {
    {STORE_RESERVE, 26},  {STORE_ACK, 16},          {STORE_FINISH, 25},  {STORE_PUT, 5},
    {STORE_WAIT, 4},      {STORE_RENEW, 8},         {STORE_DUE, 2},      {STORE_NODE_PUT, 5},
    {STORE_NODE_DROP, 1}, {STORE_CALLBACK_DONE, 2}, {STORE_BREAKERS, 1}, {STORE_BREAKER_RESET, 1},
    {STORE_LIMIT_SET, 2}, {STORE_LIMIT_HOLD, 1},    {STORE_LIMITS, 1},
};

static const struct share calm_mix[COUNT_OF(mix)] = {
    {STORE_RESERVE, 34}, {STORE_ACK, 30},     {STORE_FINISH, 30}, {STORE_PUT, 1},
    {STORE_RENEW, 2},    {STORE_NODE_PUT, 1}, {STORE_LIMITS, 1},
};

static enum store_verb pick_verb(struct play *play)
{
    const struct share *shares = play->calm ? calm_mix : mix;
    unsigned dice = below(play, 100);

    for (size_t i = 0; i < COUNT_OF(mix); i++) {
        if (dice < shares[i].often)
            return shares[i].verb;
        dice -= shares[i].often;
    }
    return STORE_FINISH;
}

/* Makes the op for the first side; what points into a side is filled in for both. */
static void make_op(struct play *play, struct call *call, struct store_op *op)
{
    bool about_job = op->verb == STORE_PUT || op->verb == STORE_RESERVE || op->verb == STORE_ACK ||
                     op->verb == STORE_FINISH || op->verb == STORE_CALLBACK_DONE ||
                     op->verb == STORE_WAIT;

    call->slot = about_job ? pick_job(play, op->verb) : -1;
    if (op->verb == STORE_PUT)
        make_put(play, op, call->slot);
    else if (op->verb == STORE_RESERVE)
        make_reserve(play, op, call->slot);
    else if (op->verb == STORE_WAIT)
        make_wait(play, op, call->slot);
    else if (op->verb == STORE_ACK)
        make_commit(play, op, call->slot);
    else if (op->verb == STORE_FINISH)
        make_finish(play, op, call->slot);
    else if (op->verb == STORE_NODE_PUT)
        make_node_put(play, op);
    else if (op->verb == STORE_NODE_DROP)
        op->node = str_of(names[FIXED + below(play, NODES - FIXED)]);
    else if (op->verb == STORE_BREAKER_RESET) {
        op->node = str_of(names[below(play, FIXED)]);
        op->u.breaker.type = str_of(types[below(play, COUNT_OF(types))]);
    } else if (op->verb == STORE_CALLBACK_DONE) {
        op->job = play->ids[call->slot];
        op->u.callback.given_up = chance(play, 2);
    } else if (op->verb == STORE_LIMIT_SET || op->verb == STORE_LIMIT_HOLD) {
        make_limit(play, op);
    } else if (op->verb == STORE_LIMITS) {
        make_limits(play, op);
    }
}

static void make_call(struct play *play, struct call *call)
{
    struct store_op op = {.verb = pick_verb(play), .done = arrived};

    *call = (struct call){0};
    if (chance(play, play->calm ? 200 : 50))
        op.not_after_ms = rig_now_ms() - below(play, 2);
    op.reply_to = &play->rigs[0].work_queue.inbox;
    make_op(play, call, &op);
    for (int k = 0; k < 2; k++) {
        call->sides[k].op = op;
        call->sides[k].op.arena = &play->rigs[k].arena;
        call->sides[k].play = play;
    }
    if (op.verb == STORE_RENEW)
        make_renew(play, call);
    else if (op.verb == STORE_DUE)
        make_due(play, call);
}

static void note(struct play *play, const struct store_op *a)
{
    play->limited += a->err == ERR_LIMITED;
    if (a->verb != STORE_RESERVE)
        return;
    play->with_gpus += a->head.gpus != 0;
    for (size_t i = 0; i < a->u.put.candidate_count; i++)
        play->short_of +=
            a->u.put.candidates[i].tried && a->u.put.candidates[i].why == LEASE_RESOURCES;
}

/* Finds a due job whose slot was reused, to be settled next: otherwise more jobs would be due than
 * one DUE returns, and which of them it returns is up to each store. */
static void find_left(struct play *play, const struct store_op *due)
{
    for (size_t i = 0; i < due->u.due.count && !play->left_job; i++) {
        const struct store_due *item = &due->u.due.items[i];
        bool has_slot = false;

        for (int slot = 0; slot < JOBS; slot++)
            has_slot |= play->ids[slot] == item->id;
        if (!has_slot) {
            play->left_job = item->id;
            play->left_attempt = item->attempt;
        }
    }
}

static void compare(struct play *play, const struct call *call)
{
    const struct store_op *a = &call->sides[0].op;

    same_answer(a, &call->sides[1].op);
    play->answers[a->verb][a->err == ERR_OK]++;
    note(play, a);
    if (a->verb == STORE_DUE && !a->err)
        find_left(play, a);
    if (call->slot < 0 || a->err == ERR_TOO_LATE || a->job != play->ids[call->slot])
        return;
    if (a->head.id == a->job)
        play->heads[call->slot] = a->head;
    else if (!a->head.id)
        /* The call was expected to make it, and did not. */
        play->heads[call->slot] = (struct store_head){0};
}

/* Reads, while no call is under way. */

static void ask_both(struct play *play, struct store_op ops[2])
{
    assert_int_equal(rig_call(&play->rigs[0], &ops[0]), rig_call(&play->rigs[1], &ops[1]));
    assert_int_equal(ops[0].err, ops[1].err);
}

static void check_jobs(struct play *play, enum store_verb verb, struct store_op op)
{
    struct store_op ops[2] = {op, op};
    const struct store_op *a = &ops[0];

    ops[0].verb = ops[1].verb = verb;
    ask_both(play, ops);
    if (verb == STORE_JOB_GET && !a->err)
        same_record(a, &ops[0].record, &ops[1].record, true);
    if (verb == STORE_JOB_GET)
        return;
    SAME(ops[0].u.list.count, ops[1].u.list.count, "number of jobs");
    for (size_t i = 0; i < a->u.list.count; i++)
        same_record(a, &ops[0].u.list.items[i], &ops[1].u.list.items[i], true);
}

static void check_reads(struct play *play)
{
    struct store_op op = {.job = play->ids[below(play, JOBS)]};
    struct store_op ops[2] = {{.verb = STORE_SESSION_GET}, {.verb = STORE_SESSION_GET}};

    same_nodes(&play->rigs[0], &play->rigs[1]);
    same_lanes(&play->rigs[0], &play->rigs[1],
               chance(play, 2) ? 0 : lanes[below(play, COUNT_OF(lanes))], below(play, 6));
    same_lane(&play->rigs[0], &play->rigs[1], lanes[below(play, COUNT_OF(lanes))],
              below(play, 2 * JOBS));
    check_jobs(play, STORE_JOB_GET, op);
    op = (struct store_op){.u.list.max = 20};
    if (chance(play, 2))
        op.u.list.before =
            play->next_id - below(play, play->next_id < 40 ? (unsigned)play->next_id : 40);
    /* While many jobs come and go, a filter would reach those that each store removes at a moment
     * of its own. */
    if (!play->calm && chance(play, 3))
        op.u.list.states = 1u << below(play, JOB_STATE_COUNT);
    if (!play->calm && chance(play, 3))
        op.u.list.node_id = str_of(names[below(play, NODES)]);
    check_jobs(play, STORE_JOB_LIST, op);
    check_jobs(play, STORE_CALLBACKS, (struct store_op){.u.list.max = 1000});
    ops[0].u.session.key = ops[1].u.session.key = str_of(names[below(play, 3)]);
    ask_both(play, ops);
    const struct store_op *a = &ops[0];
    if (a->err)
        return;
    SAME(ops[0].u.session.version, ops[1].u.session.version, "version of the session");
    SAME(ops[0].u.session.updated_ms, ops[1].u.session.updated_ms, "updated_ms of the session");
    SAME_TEXT(ops[0].u.session.preferred_pool, ops[1].u.session.preferred_pool, "pool");
}

/* A calm round is short: the fast step does not take a job whose record a verb has loaded. */
static void play_round(struct play *play)
{
    int count = play->calm ? 1 + (int)below(play, ROUND / 4) : ROUND;

    play->waiting = 2 * count;
    for (int i = 0; i < count; i++) {
        make_call(play, &play->calls[i]);
        for (int k = 0; k < 2; k++)
            assert_int_equal(store_send(play->rigs[k].store, &play->calls[i].sides[k].op), ERR_OK);
    }
    while (play->waiting) {
        work_queue_wait(&play->rigs[0].work_queue, 1000);
        inbox_run(&play->rigs[0].work_queue.inbox);
    }
    for (int i = 0; i < count; i++)
        compare(play, &play->calls[i]);
    play->ops += count;
    if (chance(play, 8))
        check_reads(play);
    for (int k = 0; k < 2; k++)
        arena_reset(&play->rigs[k].arena);
}

/* Mostly a short time passes; now and then there is a pause, or the clock is set back so far that
 * both stores notice. A second or less back would return starts into the window of a rate if they
 * were not dropped yet, and stores drop them at different moments. */
static void pass(struct play *play)
{
    unsigned dice = below(play, 200);

    if (play->calm && !chance(play, 20))
        rig_jump(below(play, 60));
    else if (dice < 120)
        rig_jump(below(play, 400));
    else if (dice < 196)
        rig_jump(below(play, 5001));
    else if (dice < 199)
        rig_jump(below(play, 70000));
    else
        rig_jump(-(int64_t)(BACK_MS + 1 + below(play, 10000)));
}

static long given(const char *name, long otherwise)
{
    const char *text = getenv(name);

    return text ? strtol(text, NULL, 10) : otherwise;
}

static struct redis_server server;

static void open_both(struct play *play)
{
    static char url[64];

    for (int k = 0; k < 2; k++) {
        rig_init(&play->rigs[k]);
        play->rigs[k].config.breaker_threshold = play->calm ? 0 : 3;
        play->rigs[k].config.breaker_cooldown_ms = COOLDOWN_MS;
    }
    snprintf(url, sizeof url, "redis://127.0.0.1:%d/0", server.port);
    redis_say(server.port, "FLUSHALL");
    play->rigs[1].config.url = url;
    play->rigs[1].config.timeout_ms = 5000;
    rig_open(&play->rigs[0]);
    embedded_check_always(play->rigs[0].store);
    rig_open(&play->rigs[1]);
    redis_newest_format(server.port);
}

static void play_it(bool calm)
{
    static struct play play;
    long want = given("STORE_OPS", OPS_DEFAULT) / (calm ? CALM_SHARE : 1);
    long seed = given("STORE_SEED", 1);

    play = (struct play){.next_id = 1, .calm = calm};
    print_message("seed %ld, %ld operations\n", seed, want);
    rnd_seed(&play.rnd, (uint64_t)seed);
    play.calls = mem_array(struct call, ROUND);
    open_both(&play);
    for (int i = 0; i < NODES; i++)
        for (int k = 0; k < 2; k++)
            assert_int_equal(
                rig_node(&play.rigs[k], names[i], 1 + i % 4 * (calm ? 12 : 1), NODE_READY), ERR_OK);
    for (size_t i = 0; i < (calm ? COUNT_OF(calm_rules) : 1); i++)
        for (int k = 0; k < 2; k++) {
            struct store_op rule = {.verb = STORE_LIMIT_SET};

            rule.u.limit.pattern = str_of(calm_rules[i][0]);
            assert_true(
                limit_parse(str_of(calm ? calm_rules[i][1] : limits[0]), &rule.u.limit.limit));
            assert_int_equal(rig_call(&play.rigs[k], &rule), ERR_OK);
        }
    while (play.ops < want) {
        play_round(&play);
        pass(&play);
    }
    /* A verb that was never accepted, or never refused, was not tested. */
    for (size_t i = 0; !calm && i < COUNT_OF(mix); i++)
        assert_true(play.answers[mix[i].verb][true] > 0);
    assert_true(play.answers[STORE_RESERVE][false] > 0 && play.answers[STORE_FINISH][false] > 0);
    print_message("%ld limited, %ld got GPUs, %ld short of something\n", play.limited,
                  play.with_gpus, play.short_of);
    assert_true(play.limited > 0 && play.with_gpus > 0 && play.short_of > 0);
    for (int k = 0; k < 2; k++) {
        assert_int_equal(rig_repairs(&play.rigs[k]), 0);
        rig_done(&play.rigs[k]);
    }
    free(play.calls);
}

static void test_same_answers(void **state)
{
    play_it(false);
}

static void test_same_answers_when_all_goes_well(void **state)
{
    play_it(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_answers),
        cmocka_unit_test(test_same_answers_when_all_goes_well),
    };
    int failed;

    redis_server_start(&server);
    failed = cmocka_run_group_tests_name("store/redis_same", tests, NULL, NULL);
    redis_server_remove(&server);
    return failed;
}
