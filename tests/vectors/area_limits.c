/* resources, limits: whole reservations on a store, the embedded one or with --redis the one in
 * Redis. The same cases apply to both. */
#include "vec.h"

#include "model/demand.h"
#include "model/limit.h"
#include "model/resources.h"

#include "../store/redis_rig.h"

#include <stdio.h>
#include <stdlib.h>

enum { JOBS_MAX = 64, KEYS_MAX = 64, LANE = 7, TERM_MS = 24 * 3600 * 1000 };

struct play {
    struct vec *vec;
    struct rig rig;
    struct resources resources; /* of the node, as put last */
    struct str jobs[JOBS_MAX];  /* a job's number is its index + 1 */
    struct str keys[KEYS_MAX];  /* keys of this vector's jobs */
    size_t key_count;
    int64_t at_ms;
};

static struct redis_server server;
static char url[64];

void vec_use_redis(void)
{
    redis_server_start(&server);
    snprintf(url, sizeof url, "redis://127.0.0.1:%d/0", server.port);
}

void vec_done_redis(void)
{
    if (server.pid)
        redis_server_remove(&server);
}

static void open_store(struct play *play)
{
    rig_init(&play->rig);
    if (url[0]) {
        redis_say(server.port, "FLUSHALL");
        play->rig.config.url = url;
        play->rig.config.timeout_ms = 20000;
    }
    rig_open(&play->rig);
}

static uint64_t job_of(struct play *play, const struct json *step)
{
    struct str name = vec_str(play->vec, step, "job");

    for (size_t i = 0; name.at && i < JOBS_MAX; i++) {
        if (!play->jobs[i].at)
            play->jobs[i] = name;
        if (str_eq(play->jobs[i], name))
            return i + 1;
    }
    return 0;
}

static bool demand_of(struct play *play, const struct json *step, struct str *ret_text,
                      struct demand *demand)
{
    struct buf text = {0};

    *demand = demand_plain;
    if (demand_read_needs(json_get(step, "needs"), play->vec->arena, demand, NULL) ||
        demand_read_keys(json_get(step, "keys"), play->vec->arena, demand, NULL))
        return false;
    for (size_t i = 0; i < demand->key_count && play->key_count < KEYS_MAX; i++)
        play->keys[play->key_count++] = demand->keys[i];
    demand_write(demand, &text);
    *ret_text = arena_str(play->vec->arena, buf_view(&text));
    buf_free(&text);
    return true;
}

static void write_block(struct jsonw *w, const struct limit_block *block,
                        const struct demand *demand)
{
    jsonw_kstr(w, "limited", str_of(limit_why_name(block->why)));
    if ((size_t)block->key < demand->key_count)
        jsonw_kstr(w, "key", demand->keys[block->key]);
    jsonw_kint(w, "limit", block->limit);
    jsonw_kint(w, "used", block->used);
    jsonw_kint(w, "retry_ms", block->retry_ms);
}

/* The demand of a job that exists, or the step's for a new one. */
static bool fill_put(struct play *play, const struct json *step, struct store_op *op,
                     struct demand *demand)
{
    op->job = job_of(play, step);
    op->attempt = 1;
    op->u.put.spec = STR("{}");
    op->u.put.max_attempts = 2;
    op->u.put.owner = rig_owner(&play->rig);
    op->u.put.ttl_ms = vec_int(step, "ttl_ms", TERM_MS);
    return op->job && demand_of(play, step, &op->u.put.demand, demand);
}

static void write_gpus(struct jsonw *w, uint64_t gpus)
{
    jsonw_key(w, "gpus");
    jsonw_arr(w);
    for (int id = 0; id < RESOURCES_GPU_IDS; id++)
        if (gpus >> id & 1)
            jsonw_int(w, id);
    jsonw_end_arr(w);
}

static bool op_start(struct play *play, const struct json *step, struct jsonw *w)
{
    struct store_op op = {.verb = STORE_RESERVE};
    struct store_op known = {.verb = STORE_JOB_GET};
    struct demand demand;

    if (!fill_put(play, step, &op, &demand))
        return false;
    known.job = op.job;
    if (!rig_call(&play->rig, &known))
        op.attempt = known.head.attempt + (known.head.state == JOB_RETRYING);
    op.u.put.candidate_count = 1;
    op.u.put.candidates[0] =
        (struct store_candidate){.node = STR("n1"), .hash = str_hash(STR("n1"))};
    rig_call(&play->rig, &op);
    jsonw_obj(w);
    if (op.err == ERR_OK) {
        jsonw_kbool(w, "started", true);
        if (op.head.gpus)
            write_gpus(w, op.head.gpus);
    } else if (op.err == ERR_LIMITED) {
        write_block(w, &op.u.put.block, &demand);
    } else if (op.err == ERR_ALL_FULL) {
        jsonw_kstr(w, "no_room", str_of(lease_reason_name(op.u.put.candidates[0].why)));
    } else {
        jsonw_kstr(w, "error", str_of(err_name(op.err)));
    }
    jsonw_end_obj(w);
    return true;
}

static bool op_wait(struct play *play, const struct json *step, struct jsonw *w)
{
    struct store_op op = {.verb = STORE_PUT};
    struct demand demand;

    if (!fill_put(play, step, &op, &demand))
        return false;
    op.u.put.lane = LANE;
    op.u.put.wait_ms = TERM_MS;
    op.u.put.bounds.keys = true;
    rig_call(&play->rig, &op);
    jsonw_obj(w);
    if (op.err == ERR_LIMITED)
        write_block(w, &op.u.put.block, &demand);
    else
        jsonw_kbool(w, "waits", op.err == ERR_OK);
    jsonw_end_obj(w);
    return true;
}

static bool op_ack(struct play *play, const struct json *step, struct jsonw *w)
{
    struct store_op op = {.verb = STORE_ACK, .job = job_of(play, step), .node = STR("n1")};
    struct store_op known = {.verb = STORE_JOB_GET, .job = op.job};

    rig_call(&play->rig, &known);
    op.attempt = known.head.attempt;
    op.u.settle.terms = (struct lease_terms){TERM_MS, TERM_MS};
    jsonw_str(w, str_of(err_name(rig_call(&play->rig, &op))));
    return true;
}

static void write_freed(const struct play *play, const struct store_op *op, struct jsonw *w)
{
    jsonw_key(w, "freed");
    jsonw_arr(w);
    for (size_t i = 0; i < op->u.settle.freed_count; i++)
        for (size_t k = 0; k < play->key_count; k++)
            if (str_hash(play->keys[k]) == op->u.settle.freed[i]) {
                jsonw_str(w, play->keys[k]);
                break;
            }
    jsonw_end_arr(w);
}

static bool op_end(struct play *play, const struct json *step, struct jsonw *w)
{
    static const struct {
        const char *name;
        enum store_outcome outcome;
        bool by_node;
    } rows[] = {{"done", STORE_DONE, true},       {"fail", STORE_FAIL, true},
                {"refused", STORE_REFUSED, true}, {"send_failed", STORE_SEND_FAILED, true},
                {"cancel", STORE_CANCEL, false},  {"abandon", STORE_ABANDON, false}};
    struct store_op op = {.verb = STORE_FINISH, .job = job_of(play, step)};
    struct store_op known = {.verb = STORE_JOB_GET, .job = op.job};
    const struct json *hold = json_get(step, "hold");
    size_t row = 0;

    while (row < COUNT_OF(rows) && !json_str_is(json_get(step, "as"), rows[row].name))
        row++;
    if (row == COUNT_OF(rows) || rig_call(&play->rig, &known))
        return false;
    op.attempt = rows[row].by_node ? known.head.attempt : 0;
    op.node = rows[row].by_node ? STR("n1") : STR_NONE;
    op.u.settle.outcome = rows[row].outcome;
    op.u.settle.owner = rig_owner(&play->rig);
    op.u.settle.hold_ms = TERM_MS;
    op.u.settle.candidates_left = true;
    op.u.settle.reason = vec_str(play->vec, step, "reason");
    op.u.settle.hold_key = vec_str(play->vec, hold, "key");
    op.u.settle.hold_key_ms = vec_int(hold, "for_ms", 0);
    rig_call(&play->rig, &op);
    jsonw_obj(w);
    if (op.err) {
        jsonw_kstr(w, "error", str_of(err_name(op.err)));
    } else {
        write_freed(play, &op, w);
        jsonw_kstr(w, "state", str_of(job_state_name(op.head.state)));
        jsonw_kint(w, "attempts_left", op.head.max_attempts - op.head.attempt);
    }
    jsonw_end_obj(w);
    return true;
}

static bool set_rule(struct play *play, struct str pattern, const struct json *rule)
{
    struct store_op op = {.verb = STORE_LIMIT_SET};
    struct limit *limit = &op.u.limit.limit;
    struct str rate = vec_str(play->vec, rule, "rate");

    *limit = limit_none;
    limit->concurrency = (int32_t)vec_int(rule, "concurrency", LIMIT_NONE);
    limit->queue = (int32_t)vec_int(rule, "queue", LIMIT_NONE);
    limit->weight = (int32_t)vec_int(rule, "weight", 1);
    if (rate.at && !limit_rate_parse(rate, limit))
        return false;
    op.u.limit.pattern = pattern;
    return rig_call(&play->rig, &op) == ERR_OK;
}

static bool op_set(struct play *play, const struct json *step, struct jsonw *w)
{
    jsonw_null(w);
    return set_rule(play, vec_str(play->vec, step, "rule"), step);
}

static bool op_drop(struct play *play, const struct json *step, struct jsonw *w)
{
    struct store_op op = {.verb = STORE_LIMIT_SET};

    op.u.limit.pattern = vec_str(play->vec, step, "rule");
    op.u.limit.drop = true;
    jsonw_null(w);
    return rig_call(&play->rig, &op) == ERR_OK;
}

static bool op_hold(struct play *play, const struct json *step, struct jsonw *w)
{
    struct store_op op = {.verb = STORE_LIMIT_HOLD};

    op.u.limit.pattern = vec_str(play->vec, step, "key");
    op.u.limit.hold_ms = vec_int(step, "for_ms", 0);
    op.u.limit.reason = vec_str(play->vec, step, "reason");
    jsonw_str(w, str_of(err_name(rig_call(&play->rig, &op))));
    return true;
}

static bool put_node(struct play *play, int64_t slots, bool new_epoch, bool keeps_runs)
{
    struct store_op op = {.verb = STORE_NODE_PUT, .node = STR("n1")};
    struct buf text = {0};

    resources_write(&play->resources, &text);
    op.u.node_put.own = op.u.node_put.health = NODE_READY;
    op.u.node_put.max = (int32_t)slots;
    op.u.node_put.facts = STR("{}");
    op.u.node_put.resources = buf_view(&text);
    op.u.node_put.new_epoch = new_epoch;
    op.u.node_put.keeps_runs = keeps_runs;
    bool ok = rig_call(&play->rig, &op) == ERR_OK;
    buf_free(&text);
    return ok;
}

/* The node registers with other resources, or without its runs, or is lost. */
static bool op_register(struct play *play, const struct json *step, struct jsonw *w)
{
    bool lost = vec_bool(step, "lost", false);

    jsonw_null(w);
    if (json_get(step, "resources") &&
        resources_read(json_get(step, "resources"), play->vec->arena, &play->resources, NULL))
        return false;
    return put_node(play, vec_int(step, "slots", -1), lost || vec_bool(step, "anew", false), lost);
}

/* The node reports what is free, and what our jobs use of what they were promised. */
static bool op_heartbeat(struct play *play, const struct json *step, struct jsonw *w)
{
    struct resources before = play->resources;

    jsonw_null(w);
    if (resources_read_free(json_get(step, "free"), json_get(step, "ours"), play->vec->arena,
                            &play->resources, NULL))
        return false;
    resources_settle(&play->resources, &before);
    return put_node(play, -1, false, false);
}

/* No call for this time. */
static bool op_pause(struct play *play, const struct json *step, struct jsonw *w)
{
    struct store_op op = {RIG_NOTHING};

    rig_jump(vec_int(step, "ms", 0));
    rig_call(&play->rig, &op);
    jsonw_null(w);
    return true;
}

static bool op_restart(struct play *play, const struct json *step, struct jsonw *w)
{
    (void)step;
    rig_close(&play->rig);
    rig_open(&play->rig);
    jsonw_null(w);
    return true;
}

static const struct {
    const char *name;
    bool (*run)(struct play *play, const struct json *step, struct jsonw *w);
} ops[] = {
    {"start", op_start}, {"wait", op_wait},         {"ack", op_ack},
    {"end", op_end},     {"set", op_set},           {"drop", op_drop},
    {"hold", op_hold},   {"register", op_register}, {"heartbeat", op_heartbeat},
    {"pause", op_pause}, {"restart", op_restart},
};

static bool run_step(struct play *play, const struct json *step)
{
    struct buf answer = {0};
    struct jsonw w = jsonw_to(&answer);
    int64_t at_ms = vec_int(step, "at_ms", play->at_ms);
    bool known = false;

    if (at_ms < play->at_ms)
        return false;
    rig_pass(&play->rig, at_ms - play->at_ms);
    play->at_ms = at_ms;
    for (size_t i = 0; i < COUNT_OF(ops) && !known; i++)
        known = json_str_is(json_get(step, "op"), ops[i].name) && ops[i].run(play, step, &w);
    if (known)
        vec_check(play->vec, step, buf_view(&answer));
    buf_free(&answer);
    return known;
}

static bool run_steps(struct play *play)
{
    const struct json *in = play->vec->in;
    struct vec_at at = {0};

    if (resources_read(json_get(in, "resources"), play->vec->arena, &play->resources, NULL) ||
        !put_node(play, vec_int(in, "slots", 100), false, false))
        return false;
    for (const struct json *key; (key = vec_each(json_get(in, "rules"), &at));)
        if (!set_rule(play, json_str(key, play->vec->arena), key + 1))
            return false;
    at = (struct vec_at){0};
    for (const struct json *step; (step = vec_each(json_get(in, "steps"), &at));)
        if (!run_step(play, step))
            return false;
    return true;
}

static void write_left(struct play *play, const struct store_node *node)
{
    struct jsonw *w = play->vec->w;
    const struct resources *declared = &play->resources;

    jsonw_kint(w, "slots_left", node->counts.max - node->counts.reserved - node->counts.running);
    jsonw_key(w, "left");
    jsonw_obj(w);
    for (size_t i = 0; i < node->left.count; i++) {
        struct buf amount = {0};

        demand_write_amount(str_of(declared->items[i].name), node->left.left[i], &amount);
        jsonw_key(w, declared->items[i].name);
        jsonw_raw(w, buf_view(&amount));
        buf_free(&amount);
    }
    jsonw_end_obj(w);
    jsonw_key(w, "gpus_left");
    jsonw_arr(w);
    for (size_t i = 0; i < node->left.gpu_count; i++) {
        if (node->left.gpu_left[i] == RESOURCES_LEFT_WHOLE)
            jsonw_str(w, STR("whole"));
        else
            jsonw_int(w, node->left.gpu_left[i]);
    }
    jsonw_end_arr(w);
}

static bool run(struct vec *vec, void (*finish)(struct play *play))
{
    struct play *play = arena_new(vec->arena, struct play);

    play->vec = vec;
    open_store(play);
    bool ok = run_steps(play);
    if (ok)
        finish(play);
    rig_done(&play->rig);
    return ok;
}

static void write_node(struct play *play)
{
    struct store_op op = {.verb = STORE_COUNTS};

    jsonw_obj(play->vec->w);
    if (!rig_call(&play->rig, &op) && op.u.nodes.count == 1)
        write_left(play, &op.u.nodes.items[0]);
    jsonw_end_obj(play->vec->w);
}

static void write_keys(struct play *play)
{
    struct store_op op = {.verb = STORE_LIMITS};
    struct jsonw *w = play->vec->w;

    op.u.limits.max = KEYS_MAX;
    rig_call(&play->rig, &op);
    jsonw_obj(w);
    for (size_t i = 0; !op.err && i < op.u.limits.key_count; i++) {
        const struct store_limit_key *key = &op.u.limits.keys[i];

        jsonw_key_str(w, key->key);
        jsonw_obj(w);
        jsonw_kstr(w, "rule", key->pattern);
        jsonw_kint(w, "in_flight", key->in_flight);
        jsonw_kint(w, "waiting", key->waiting);
        jsonw_kint(w, "started", key->started);
        if (key->hold_ms) {
            jsonw_kint(w, "held_ms", key->hold_ms);
            jsonw_kstr(w, "reason", key->hold_reason);
        }
        jsonw_end_obj(w);
    }
    jsonw_end_obj(w);
}

bool area_resources(struct vec *vec)
{
    return run(vec, write_node);
}

bool area_limits(struct vec *vec)
{
    return run(vec, write_keys);
}
