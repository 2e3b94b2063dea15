/* The fast steps of lua/columns.lua do what the verbs do. Two servers get the same random calls on
 * the same clock; the second one never uses a step. Answers and everything that is written must be
 * the same. STORE_OPS is the number of ops; STORE_SEED begins the random numbers. */
#include "crowd.h"
#include "redis_rig.h"
#include "same.h"

#include "base/mem.h"
#include "store/redis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPS_DEFAULT = 10000,
    ROUND = 64, /* fits into one call */
    CALL_MS = 10000,
    COOLDOWN_MS = 3000,
    KEYS_MAX = 100,
    FAST = 0, /* index of the server */
    VERBS = 1,
};

static struct {
    struct redis_server server;
    struct redis_session session;
    struct arena arena;
    long steps; /* ops that a step answered */
} sides[2];

static struct store_config config = {.now_ms = rig_now_ms, .timeout_ms = CALL_MS};

/* Dumps all keys with their values in one order; of `meta` only what is no cursor of a chore. Lists
 * of jobs (`l:` and the wheel) are compared by their ids, since it depends on the time of writing
 * which ids share an element. So does the term in the record (bytes 12 to 17) of a run that its
 * node's stamp renews; answers have the current one. */
static const char dump[] =
    "local texts = {} "
    "local function of_pairs(list, is_job) local all = {} "
    "  for i = 1, #list, 2 do "
    "    local name, value = list[i], list[i + 1] "
    "    if is_job and #name == 14 and value:byte(3) == 2 and value:byte(7) == 0 then "
    "      value = value:sub(1, 11) .. value:sub(18) end "
    "    all[#all + 1] = name .. '=' .. value end "
    "  table.sort(all) return table.concat(all, ',') end "
    "local function of_ids(list) local ids = {} "
    "  for id in table.concat(list):gmatch(('.'):rep(14)) do ids[#ids + 1] = id end "
    "  table.sort(ids) return table.concat(ids, ',') end "
    "local keys = redis.call('KEYS', '*') table.sort(keys) "
    "for _, key in ipairs(keys) do "
    "  local kind, text = redis.call('TYPE', key).ok, nil "
    "  if key == KEYS[1] .. 'meta' then "
    "    text = of_pairs({'state', redis.call('HGET', key, 'state'), 'waiting', "
    "      redis.call('HGET', key, 'waiting') or ''}) "
    "  elseif key:sub(1, #KEYS[1] + 2) == KEYS[1] .. 'l:' then "
    "    text = of_ids(redis.call('ZRANGE', key, 0, -1)) "
    "  elseif kind == 'list' then text = of_ids(redis.call('LRANGE', key, 0, -1)) "
    "  elseif kind == 'hash' then text = of_pairs(redis.call('HGETALL', key), "
    "    key:sub(1, #KEYS[1] + 2) == KEYS[1] .. 'j:') "
    "  elseif kind == 'zset' then text = of_pairs(redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')) "
    "  else text = redis.call('GET', key) end "
    "  texts[#texts + 1] = key .. ' ' .. redis.sha1hex(text) "
    "end return table.concat(texts, '\\n')";

static void begin(int k)
{
    redis_session_begin(&sides[k].session, &config, 0);
}

static redisReply *call(int k)
{
    redisReply *reply;

    if (k == VERBS)
        sides[k].session.wire.columns.early_ms = 1; /* too late for any step */
    reply = redis_session_call(&sides[k].session, clock_mono_ms() + CALL_MS);
    if (!reply)
        fail_msg("%s", sides[k].session.link.why);
    return reply;
}

static void take_answer(int k, struct store_op *op, const redisReply *reply, size_t *at)
{
    size_t from = *at;

    op->err = ERR_OK;
    assert_true(wire_answer(op, reply, at));
    if (*at - from == 2)
        sides[k].steps++;
}

/* A heartbeat may take several calls. */
static void go_on(int k, struct store_op *op)
{
    while (op->verb == STORE_RENEW && !op->err && op->u.renew.more) {
        size_t at = WIRE_ANSWERS;
        redisReply *reply;

        begin(k);
        wire_op(&sides[k].session.wire, op, 0);
        reply = call(k);
        take_answer(k, op, reply, &at);
        freeReplyObject(reply);
    }
}

static void play_calls(struct play *play, int k, int count)
{
    size_t at = WIRE_ANSWERS;
    redisReply *reply;

    begin(k);
    for (int i = 0; i < count; i++) {
        play->calls[i].sides[k].op.arena = &sides[k].arena;
        wire_op(&sides[k].session.wire, &play->calls[i].sides[k].op,
                play->calls[i].sides[k].op.not_after_ms);
    }
    reply = call(k);
    for (int i = 0; i < count; i++)
        take_answer(k, &play->calls[i].sides[k].op, reply, &at);
    freeReplyObject(reply);
    for (int i = 0; i < count; i++)
        go_on(k, &play->calls[i].sides[k].op);
}

static void compare(struct play *play, const struct call *of)
{
    const struct store_op *a = &of->sides[FAST].op;

    same_answer(a, &of->sides[VERBS].op);
    play->answers[a->verb][a->err == ERR_OK]++;
    if (a->verb == STORE_DUE)
        play->due_count = a->u.due.count;
    if (of->slot < 0 || a->err == ERR_TOO_LATE || a->job != play->ids[of->slot])
        return;
    if (a->head.id == a->job)
        play->heads[of->slot] = a->head;
    else if (!a->head.id)
        play->heads[of->slot] = (struct store_head){0};
}

/* Shows the first line that differs, which names the key. */
static void fail_at(const char *left, const char *right)
{
    while (*left && *right) {
        size_t here = strcspn(left, "\n"), there = strcspn(right, "\n");

        if (here != there || memcmp(left, right, here) != 0)
            break;
        left += here + (left[here] == '\n');
        right += there + (right[there] == '\n');
    }
    fail_msg("what is written differs: %.*s, by the verbs %.*s", (int)strcspn(left, "\n"), left,
             (int)strcspn(right, "\n"), right);
}

/* Tidying writes what the steps have not written yet. A key notices the end of an audit round when
 * it is read, which steps and verbs do at different moments: here all keys are read. */
static void compare_stores(void)
{
    static char texts[2][65536];
    const char *words[] = {"EVAL", dump, "1", "sched:{f}:"};
    struct store_op keys = {.verb = STORE_LIMITS};

    keys.u.limits.max = KEYS_MAX;
    for (int k = 0; k < 2; k++) {
        begin(k);
        wire_tidy(&sides[k].session.wire, true, 0);
        freeReplyObject(call(k));
        begin(k);
        wire_op(&sides[k].session.wire, &keys, 0);
        freeReplyObject(call(k));
        snprintf(texts[k], sizeof texts[k], "%s",
                 redis_say_words(sides[k].server.port, COUNT_OF(words), words));
    }
    if (strcmp(texts[FAST], texts[VERBS]) != 0)
        fail_at(texts[FAST], texts[VERBS]);
}

static void play_round(struct play *play)
{
    int count = 1 + (int)crowd_below(play, ROUND);

    play->last = -1;
    play->due_asked = false;
    play->tame = !crowd_chance(play, 5);
    for (int i = 0; i < count; i++)
        crowd_call(play, &play->calls[i], i ? &play->calls[i - 1] : NULL);
    for (int k = 0; k < 2; k++)
        play_calls(play, k, count);
    for (int i = 0; i < count; i++)
        compare(play, &play->calls[i]);
    play->ops += count;
    if (crowd_chance(play, 8))
        compare_stores();
    for (int k = 0; k < 2; k++)
        arena_reset(&sides[k].arena);
}

static void pass(struct play *play)
{
    unsigned dice = crowd_below(play, 200);

    if (dice < 180)
        rig_jump(crowd_below(play, 100));
    else if (dice < 196)
        rig_jump(crowd_below(play, 3000));
    else if (dice < 199)
        rig_jump(crowd_below(play, 70000));
    else
        rig_jump(-(int64_t)crowd_below(play, 3000));
}

static void open_side(int k)
{
    struct redis_target target;
    struct problem why = {0};
    char url[64];

    snprintf(url, sizeof url, "redis://127.0.0.1:%d/0", sides[k].server.port);
    assert_false(redis_url_parse(url, &target, &why));
    redis_say(sides[k].server.port, "FLUSHALL");
    /* Keeps the nodes a listpack, which has them in the order in which they came, so that the audit
     * of both servers gets equally far in one call. */
    redis_say(sides[k].server.port, "CONFIG SET hash-max-listpack-value 1024");
    redis_session_init(&sides[k].session, &target, &config);
    snprintf(sides[k].session.next_generation, sizeof sides[k].session.next_generation, "1");
    snprintf(sides[k].session.instance, sizeof sides[k].session.instance, "1");
    sides[k].steps = 0;
    for (int i = 0; i < NODES; i++) {
        struct store_op op = {.verb = STORE_NODE_PUT, .node = str_of(crowd_nodes[i])};

        op.u.node_put.own = op.u.node_put.health = NODE_READY;
        op.u.node_put.max = 2 + 3 * i; /* some are full most of the time */
        op.u.node_put.facts = STR("{}");
        if (i % 4)
            op.u.node_put.resources = STR("cpu=400/400,licences=9/9,mem_mb=900/900 ");
        begin(k);
        wire_op(&sides[k].session.wire, &op, 0);
        freeReplyObject(call(k));
    }
}

static void set_rules(int k)
{
    static const char *const rules[][2] = {
        {"k:a", "9 -1 0 -1 1"}, {"k:*", "-1 60 2000 -1 1"}, {"*", "-1 5000 4000 20 1"}};

    for (size_t i = 0; i < COUNT_OF(rules); i++) {
        struct store_op op = {.verb = STORE_LIMIT_SET};

        op.u.limit.pattern = str_of(rules[i][0]);
        assert_true(limit_parse(str_of(rules[i][1]), &op.u.limit.limit));
        begin(k);
        wire_op(&sides[k].session.wire, &op, 0);
        freeReplyObject(call(k));
    }
}

static long given(const char *name, long otherwise)
{
    const char *text = getenv(name);

    return text ? strtol(text, NULL, 10) : otherwise;
}

static void play_it(int breaker_threshold)
{
    static struct play play;
    long want = given("STORE_OPS", OPS_DEFAULT);
    long seed = given("STORE_SEED", 1);

    play = (struct play){.next_id = 1};
    config.breaker_threshold = breaker_threshold;
    config.breaker_cooldown_ms = COOLDOWN_MS;
    rnd_seed(&play.rnd, (uint64_t)seed);
    play.calls = mem_array(struct call, ROUND);
    for (int k = 0; k < 2; k++) {
        play.dues[k] = mem_array(struct store_due, DUES);
        open_side(k);
        set_rules(k);
    }
    while (play.ops < want) {
        play_round(&play);
        pass(&play);
    }
    compare_stores();
    print_message("seed %ld, %ld operations, %ld steps\n", seed, play.ops, sides[FAST].steps);
    assert_int_equal(sides[VERBS].steps, 0);
    assert_true(sides[FAST].steps > play.ops / 20);
    for (int verb = STORE_PUT; verb <= STORE_FINISH; verb++)
        assert_true(play.answers[verb][false] > 0 && play.answers[verb][true] > 0);
    for (int k = 0; k < 2; k++) {
        redis_session_free(&sides[k].session);
        arena_free(&sides[k].arena);
        free(play.dues[k]);
    }
    free(play.calls);
}

static void test_steps_are_the_verbs(void **state)
{
    play_it(0);
}

static void test_steps_are_the_verbs_beside_breakers(void **state)
{
    play_it(3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_are_the_verbs),
        cmocka_unit_test(test_steps_are_the_verbs_beside_breakers),
    };
    int failed;

    for (int k = 0; k < 2; k++)
        redis_server_start(&sides[k].server);
    failed = cmocka_run_group_tests_name("store/redis_steps", tests, NULL, NULL);
    for (int k = 0; k < 2; k++)
        redis_server_remove(&sides[k].server);
    return failed;
}
