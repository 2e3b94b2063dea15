/* Generates random calls. */
#include "crowd.h"

#include <string.h>

/* Of jobs; outside the instance numbers, since an instance would fall silent under this clock. */
enum { OWNER = 400 };

enum {
    FIXED = 20, /* the first nodes never leave; only they get typed jobs */
    MANY = 100,
    TERMS = 50,
    HOLD_MS = 15000,
    WAIT_MS = 20000,
    LANE_MAX = 3,
    ALL_MAX = 40,
    ACCOUNT_MAX = 12,
};

#define LONG_32  "abcdefghijklmnopqrstuvwxyz.0-1_2"
#define LONG_128 LONG_32 LONG_32 LONG_32 LONG_32
const char *const crowd_nodes[NODES] = {"n0", "n1", "n2", "n3", "n4",     "n5",    "n6",    "n7",
                                        "n8", "n9", "o0", "o1", "o2",     "o3",    "o4",    "o5",
                                        "o6", "o7", "o8", "x",  LONG_128, "d:0@a", "d.1_-", "d2"};
const uint64_t crowd_lanes[LANES] = {1, 16, UINT64_C(0x123456789abcdef0), UINT64_C(1) << 63,
                                     UINT64_MAX};
static const char *const types[] = {"talk", "dev", "f2f", LONG_32, "1"};
#define LONG_1K LONG_128 LONG_128 LONG_128 LONG_128 LONG_128 LONG_128 LONG_128 LONG_128
static const char long_text[] = LONG_1K LONG_1K LONG_1K LONG_1K LONG_1K LONG_1K LONG_1K LONG_1K;

unsigned crowd_below(struct play *play, unsigned bound)
{
    return rnd_below(&play->rnd, bound);
}

bool crowd_chance(struct play *play, unsigned one_in)
{
    return crowd_below(play, one_in) == 0;
}

/* Chooses something unusual; much more rarely while the round is tame. */
static bool odd(struct play *play, unsigned one_in)
{
    enum { TAMER = 200 };

    return crowd_chance(play, play->tame ? one_in * TAMER : one_in);
}

void crowd_arrived(struct store_op *op)
{
    container_of(op, struct side, op)->play->waiting--;
}

static bool is_open(const struct store_head *head)
{
    return head->state == JOB_NEW || head->state == JOB_SELECTING || head->state == JOB_RETRYING;
}

static bool is_over(const struct store_head *head)
{
    return job_state_final(head->state) && !head->lease;
}

/* Can the verb be expected to succeed on this job? */
static bool suits(const struct store_head *head, enum store_verb verb)
{
    if (verb == STORE_ACK)
        return head->id && head->state == JOB_DISPATCHED;
    if (verb == STORE_FINISH)
        return head->id && head->state == JOB_ACKED;
    if (verb == STORE_RESERVE)
        return !head->id || is_open(head) || is_over(head);
    if (verb == STORE_WAIT)
        return head->id && is_open(head);
    return true;
}

/* Often the job of the previous call, so that one batch may hold a job's whole life. */
static int pick_slot(struct play *play, enum store_verb verb)
{
    int slot = play->last;

    if (slot >= 0 && crowd_chance(play, 2) && (suits(&play->heads[slot], verb) || odd(play, 10)))
        return slot;
    for (int tries = 0; tries < JOBS; tries++) {
        slot = (int)crowd_below(play, JOBS);
        if (suits(&play->heads[slot], verb) || odd(play, 100))
            break;
    }
    return slot;
}

static int pick_job(struct play *play, enum store_verb verb)
{
    int slot = pick_slot(play, verb);
    struct store_head *head = &play->heads[slot];
    bool makes = verb == STORE_RESERVE || verb == STORE_PUT;

    play->fresh = 0;
    if (!play->ids[slot] || play->flood || (makes && head->id && is_over(head) && !odd(play, 30))) {
        if (crowd_chance(play, 500))
            play->next_id += UINT64_C(1) << 40; /* into another hash in Redis */
        play->ids[slot] = play->fresh = play->next_id++;
        *head = (struct store_head){0};
    }
    return play->last = slot;
}

/* Half of the jobs have a type, and go only to nodes that never leave. Stores remove the breakers
 * of a node that left when they are idle, which is not at the same moment in both. */
static bool is_typed(uint64_t job)
{
    return job % 2;
}

static struct str some_text(struct play *play)
{
    static const size_t lens[] = {1, 8, 255, 256, 257, 8000}; /* the last two are too long */
    size_t count = COUNT_OF(lens) - (odd(play, 4) ? 0 : 2);

    return (struct str){long_text, lens[crowd_below(play, (unsigned)count)]};
}

/* Most take amounts and have keys, which the fast steps handle; some take more. */
static struct str some_demand(struct play *play)
{
    static const char *const demands[] = {
        "1 0 0 cpu=10,licences=1,mem_mb=5 k:a,all",
        "1 0 0 cpu=20,mem_mb=50 k:b",
        "1 0 0  k:a,k:b,k:c,all",
        "1 0 0 licences=2 ",
        "1 0 0 cpu=1 all",
        "1 0 0 gold=1 k:c",
        "2 0 0 cpu=5 k:a",
        "1 0 900 cpu=5 k:b",
        "1 1 0  all",
    };

    return str_of(demands[crowd_below(play, odd(play, 4) ? COUNT_OF(demands) : 5)]);
}

/* The fields that PUT and RESERVE share: spec, type, demand, owner, attempts and terms. */
static void make_put(struct play *play, struct store_op *op, int slot)
{
    op->job = play->ids[slot];
    op->attempt = 1;
    op->u.put.fresh = op->job == play->fresh && crowd_chance(play, 2);
    if (!odd(play, 50))
        op->u.put.spec = crowd_chance(play, 8) ? some_text(play) : STR("{\"type\":\"talk\"}");
    if (is_typed(op->job))
        op->u.put.type = str_of(types[crowd_below(play, COUNT_OF(types))]);
    if (odd(play, 100))
        op->u.put.type = (struct str){long_text, 33}; /* too long */
    if (crowd_chance(play, 3))
        op->u.put.demand = some_demand(play);
    if (odd(play, 50))
        op->u.put.idem = str_of(crowd_nodes[crowd_below(play, NODES)]);
    if (crowd_chance(play, 10)) {
        op->u.put.session = str_of(crowd_nodes[crowd_below(play, 3)]);
        op->u.put.pool = crowd_chance(play, 8) ? STR("en:zh") : STR("");
        op->u.put.lang_pair = STR("en->zh");
    }
    op->u.put.max_attempts = odd(play, 5) ? (int)crowd_below(play, 11) : 3;
    op->u.put.timeout_ms = crowd_chance(play, 3)    ? 20000
                           : crowd_chance(play, 20) ? 400000000000
                                                    : 0;
    op->u.put.callback = odd(play, 8);
    op->u.put.owner = OWNER + crowd_below(play, 2);
    op->u.put.hold_ms = HOLD_MS;
    op->u.put.ttl_ms =
        crowd_chance(play, 3) ? 3000 + (int64_t)crowd_below(play, TERMS) : RIG_TTL_MS;
    if (play->flood)
        op->u.put.ttl_ms = 3000 + play->flood++;
    else if (crowd_chance(play, 100))
        op->u.put.ttl_ms = crowd_chance(play, 2) ? crowd_below(play, 300) : 2 * 3600000;
}

/* One of a few lanes. */
static uint64_t some_lane(struct play *play)
{
    return crowd_lanes[crowd_below(play, LANES)];
}

static struct store_bounds some_bounds(struct play *play)
{
    struct str account = str_of(crowd_nodes[crowd_below(play, 4)]);

    return (struct store_bounds){.lane_max = crowd_chance(play, 2) ? LANE_MAX : 0,
                                 .all_max = crowd_chance(play, 3) ? ALL_MAX : 0,
                                 .account = {.name = crowd_chance(play, 3) ? STR_NONE : account,
                                             .bytes = crowd_below(play, 1 << 20),
                                             .jobs_max = crowd_chance(play, 3) ? ACCOUNT_MAX : 0,
                                             .bytes_max = crowd_chance(play, 3) ? 8 << 20 : 0}};
}

static void make_put_lane(struct play *play, struct store_op *op, int slot)
{
    make_put(play, op, slot);
    if (crowd_chance(play, 3))
        return; /* held, not in a lane */
    op->u.put.lane = some_lane(play);
    op->u.put.priority = (int)crowd_below(play, 10);
    op->u.put.wait_ms = crowd_below(play, WAIT_MS);
    op->u.put.bounds = some_bounds(play);
}

static int next_attempt(struct play *play, const struct store_head *head)
{
    if (odd(play, 30))
        return (int)crowd_below(play, 4);
    return head->id ? head->attempt + (head->state == JOB_RETRYING) : 1;
}

static void make_wait(struct play *play, struct store_op *op, int slot)
{
    op->job = play->ids[slot];
    op->attempt = next_attempt(play, &play->heads[slot]);
    op->u.wait.lane = some_lane(play);
    op->u.wait.priority = (int)crowd_below(play, 10);
    op->u.wait.wait_ms = crowd_below(play, WAIT_MS);
    op->u.wait.bounds = some_bounds(play);
}

/* Two of them are chosen most of the time, so that their lists grow long. */
static unsigned some_place(struct play *play, unsigned count)
{
    return crowd_below(play, crowd_chance(play, 3) ? count : 2);
}

static void make_reserve(struct play *play, struct store_op *op, int slot)
{
    const struct store_head *head = &play->heads[slot];

    make_put(play, op, slot);
    op->attempt = next_attempt(play, head);
    op->u.put.last = odd(play, 8);
    op->u.put.candidate_count =
        odd(play, 60) ? 0 : 1 + (size_t)crowd_below(play, STORE_CANDIDATES_MAX);
    for (size_t i = 0; i < op->u.put.candidate_count; i++) {
        struct str node = str_of(crowd_nodes[some_place(play, is_typed(op->job) ? FIXED : NODES)]);

        if (odd(play, 200))
            node.len = crowd_chance(play, 2) ? 0 : 1; /* no such node */
        op->u.put.candidates[i] = (struct store_candidate){.node = node, .hash = str_hash(node)};
        if (odd(play, 8))
            op->u.put.candidates[i].withheld = 1 << crowd_below(play, 10);
    }
}

static const char *some_node(struct play *play, const struct store_head *head)
{
    for (int i = 0; i < NODES; i++)
        if (strcmp(head->node, crowd_nodes[i]) == 0 && !odd(play, 30))
            return crowd_nodes[i];
    return crowd_nodes[crowd_below(play, NODES)];
}

static void make_commit(struct play *play, struct store_op *op, int slot)
{
    const struct store_head *head = &play->heads[slot];

    op->job = play->ids[slot];
    op->attempt = head->id && !odd(play, 30) ? head->attempt : (int)crowd_below(play, 11);
    if (crowd_chance(play, 60))
        op->attempt = 1 + op->attempt % 2; /* right for other jobs in the batch */
    if (head->dispatched_ms && crowd_chance(play, 2))
        op->u.settle.send_id = head->dispatched_ms - crowd_chance(play, 20);
    if (!odd(play, 100))
        op->node = str_of(some_node(play, head));
    op->u.settle.terms = (struct lease_terms){RIG_RUN_MS, RIG_F2F_MS};
    if (odd(play, 30))
        op->u.settle.terms.task_ms = crowd_below(play, 6000);
    op->u.settle.stop_grace_ms = odd(play, 10) ? 0 : 1000;
}

/* Settles a job that DUE listed: leases and running attempts expire, waiting jobs time out, held
 * ones are cancelled. */
static int make_expire(struct play *play, struct store_op *op)
{
    const struct store_due *due = &play->dues[EMBEDDED][--play->due_count];

    op->job = due->id;
    op->attempt = due->attempt;
    op->u.settle.outcome = due->lease || (due->state != JOB_NEW && due->state != JOB_SELECTING &&
                                          due->state != JOB_RETRYING)
                               ? STORE_EXPIRE
                           : due->lane ? STORE_QUEUE_TIMEOUT
                                       : STORE_CANCEL;
    for (int slot = 0; slot < JOBS; slot++)
        if (play->ids[slot] == due->id)
            return slot;
    return -1;
}

static int make_finish(struct play *play, struct store_op *op)
{
    static const enum store_outcome often[] = {STORE_FAIL,    STORE_EXPIRE,      STORE_CANCEL,
                                               STORE_REFUSED, STORE_SEND_FAILED, STORE_ABANDON};
    bool sweeps = play->due_count > 0 && (play->due_count > MANY || odd(play, 2));
    int slot = sweeps ? make_expire(play, op) : pick_job(play, STORE_FINISH);

    op->u.settle.result = crowd_chance(play, 2) ? STR_NONE : some_text(play);
    op->u.settle.candidates_left = crowd_chance(play, 2);
    op->u.settle.command = odd(play, 8);
    op->u.settle.owner = OWNER + crowd_below(play, 2);
    op->u.settle.hold_ms = HOLD_MS;
    op->u.settle.want_record = odd(play, 40);
    if (sweeps)
        return slot;
    op->job = play->ids[slot];
    op->attempt = play->heads[slot].id ? play->heads[slot].attempt : 1;
    op->u.settle.outcome = odd(play, 40)             ? often[crowd_below(play, COUNT_OF(often))]
                           : crowd_chance(play, 200) ? STORE_FAIL
                                                     : STORE_DONE;
    op->u.settle.reason = crowd_chance(play, 2) ? STR("EXIT_1") : STR_NONE;
    if (odd(play, 40))
        op->attempt = (int)crowd_below(play, 4);
    if (op->u.settle.outcome <= STORE_SEND_FAILED && !odd(play, 60))
        op->node = str_of(some_node(play, &play->heads[slot]));
    return slot;
}

/* The runs of the node, sometimes all of them: one stamp then renews them all in Redis. */
static size_t list_runs(struct play *play, const char *node, struct store_run *runs)
{
    unsigned lacks_one_in = odd(play, 2) ? 1 + crowd_below(play, 16) : 0; /* 0: all are listed */
    size_t count = 0;

    for (int slot = 0; slot < JOBS; slot++) {
        const struct store_head *head = &play->heads[slot];

        if (head->id && head->lease == LEASE_RUNNING && strcmp(head->node, node) == 0 &&
            !(lacks_one_in && crowd_chance(play, lacks_one_in)))
            runs[count++] = (struct store_run){.id = head->id, .attempt = head->attempt};
    }
    return count;
}

static void make_renew(struct play *play, struct call *call)
{
    const char *node = crowd_nodes[some_place(play, NODES)];
    bool all = crowd_chance(play, 4);
    size_t count = odd(play, 4) ? 0 : list_runs(play, node, call->sides[0].runs);
    size_t strangers = odd(play, 4) ? crowd_below(play, STRANGERS + 1) : 0;
    struct lease_terms terms = {RIG_RUN_MS, RIG_F2F_MS};

    if (odd(play, 10))
        terms = (struct lease_terms){crowd_below(play, 60000), crowd_below(play, 20000)};
    for (size_t i = 0; i < strangers; i++) {
        int slot = (int)crowd_below(play, JOBS);

        call->sides[0].runs[count++] = (struct store_run){
            .id = play->ids[slot], .attempt = play->heads[slot].id ? play->heads[slot].attempt : 1};
    }
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
    op->node = str_of(crowd_nodes[crowd_below(play, NODES)]);
    op->u.node_put.own = NODE_READY;
    op->u.node_put.health =
        odd(play, 40) ? (enum node_health)crowd_below(play, NODE_HEALTH_COUNT) : NODE_READY;
    op->u.node_put.max =
        crowd_chance(play, 8) ? (int32_t)crowd_below(play, 3) - 1 : (int32_t)crowd_below(play, 250);
    if (!odd(play, 4))
        op->u.node_put.facts = crowd_chance(play, 2) ? STR("{\"v\":1}") : STR("{\"v\":2}");
    if (crowd_chance(play, 2))
        op->u.node_put.resources = odd(play, 8) ? STR("")
                                   : crowd_chance(play, 3)
                                       ? STR("cpu=900/700,gold=2/2 0=9000/9000,1=9000/8000")
                                       : STR("cpu=4000/4000,licences=40/40,mem_mb=900/900 ");
    op->u.node_put.set_admin = odd(play, 6);
    op->u.node_put.admin = odd(play, 10) ? NODE_ADMIN_CORDONED : NODE_ADMIN_NONE;
    op->u.node_put.new_epoch = odd(play, 4);
    op->u.node_put.keeps_runs = op->u.node_put.new_epoch && odd(play, 2);
    op->u.node_put.if_epoch = odd(play, 10) ? 1 + crowd_below(play, 3) : 0;
}

static enum store_verb pick_verb(struct play *play)
{
    static const enum store_verb seldom[] = {
        STORE_PUT, STORE_PUT,      STORE_WAIT,      STORE_WAIT,     STORE_RENEW,        STORE_RENEW,
        STORE_DUE, STORE_NODE_PUT, STORE_NODE_DROP, STORE_BREAKERS, STORE_CALLBACK_DONE};
    unsigned dice = play->flood ? 0 : crowd_below(play, 100);

    if (!play->flood && crowd_chance(play, play->tame ? 400 : 40))
        return STORE_RENEW;
    if (odd(play, 30)) {
        enum store_verb verb = seldom[crowd_below(play, COUNT_OF(seldom))];

        return verb == STORE_DUE && play->due_asked ? STORE_RENEW : verb;
    }
    return dice < 34   ? STORE_RESERVE
           : dice < 64 ? STORE_ACK
           : dice < 94 ? STORE_FINISH
           : dice < 98 ? STORE_PUT
                       : STORE_WAIT;
}

/* For the first side; what points into a side is filled in for both later. */
static int make_op(struct play *play, struct store_op *op)
{
    int slot = -1;

    if (op->verb == STORE_FINISH)
        return make_finish(play, op);
    if (op->verb == STORE_NODE_PUT)
        make_node_put(play, op);
    if (op->verb == STORE_NODE_DROP)
        op->node = str_of(crowd_nodes[FIXED + crowd_below(play, NODES - FIXED)]);
    if (op->verb == STORE_PUT || op->verb == STORE_RESERVE || op->verb == STORE_ACK ||
        op->verb == STORE_WAIT || op->verb == STORE_CALLBACK_DONE)
        slot = pick_job(play, op->verb);
    if (op->verb == STORE_PUT)
        make_put_lane(play, op, slot);
    if (op->verb == STORE_WAIT)
        make_wait(play, op, slot);
    if (op->verb == STORE_RESERVE)
        make_reserve(play, op, slot);
    if (op->verb == STORE_ACK)
        make_commit(play, op, slot);
    if (op->verb == STORE_CALLBACK_DONE)
        op->job = play->ids[slot];
    return slot;
}

/* Records what the call will do if it succeeds, since later calls in the batch build on it. */
static void foresee(struct play *play, const struct store_op *op, int slot)
{
    struct store_head *head = &play->heads[slot];

    if (op->verb == STORE_RESERVE && op->u.put.candidate_count && suits(head, STORE_RESERVE)) {
        *head =
            (struct store_head){.id = op->job, .state = JOB_DISPATCHED, .lease = LEASE_RESERVED};
        head->attempt = op->attempt;
        str_copy(op->u.put.candidates[0].node, head->node, sizeof head->node);
    } else if (op->verb == STORE_ACK && suits(head, STORE_ACK)) {
        head->state = JOB_ACKED;
        head->lease = LEASE_RUNNING;
    } else if (op->verb == STORE_FINISH && suits(head, STORE_FINISH)) {
        head->state = JOB_DONE;
        head->lease = LEASE_NONE;
    }
}

/* Generates the next call; sometimes it repeats the one before. */
void crowd_call(struct play *play, struct call *call, const struct call *before)
{
    struct store_op op = {.verb = pick_verb(play), .done = crowd_arrived};
    bool again = before && before->sides[0].op.verb <= STORE_FINISH && odd(play, 20);

    *call = (struct call){.slot = -1};
    op.reply_to = &play->rigs[0].work_queue.inbox;
    if (crowd_chance(play, 1000))
        op.not_after_ms = rig_now_ms() - crowd_below(play, 2);
    if (again)
        op = before->sides[0].op;
    if (again && op.verb == STORE_RESERVE)
        op.u.put.fresh = false;
    call->slot = again ? before->slot : make_op(play, &op);
    if (call->slot >= 0)
        foresee(play, &op, call->slot);
    for (int k = 0; k < 2; k++) {
        call->sides[k].op = op;
        call->sides[k].play = play;
        if (op.verb == STORE_DUE) {
            call->sides[k].op.u.due.items = play->dues[k];
            call->sides[k].op.u.due.max = DUES;
            play->due_asked = true;
        }
    }
    if (op.verb == STORE_RENEW)
        make_renew(play, call);
}
