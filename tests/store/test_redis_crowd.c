/* Calls with hundreds of ops, as under load. The embedded store gets the same calls, and both must
 * give the same answers: the fast steps of lua/columns.lua must not differ from the verbs,
 * whichever instance calls. STORE_OPS is the number of ops; STORE_SEED begins the random numbers.
 */
#include "crowd.h"
#include "redis_rig.h"
#include "same.h"

#include "base/clock.h"
#include "base/mem.h"
#include "store/embedded.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    OPS_DEFAULT = 30000,
    ROUND = 300, /* more than fit into one call */
    COOLDOWN_MS = 3000,
    DRIFT_MS = 900, /* less than what counts as a clock that was set back */
    TURNS = 8,      /* calls that turn Redis' whole wheel, whatever came due */
};

static struct redis_server server;

static void compare(struct play *play, const struct call *call)
{
    const struct store_op *a = &call->sides[0].op;

    same_answer(a, &call->sides[1].op);
    play->answers[a->verb][a->err == ERR_OK]++;
    if (a->verb == STORE_DUE) {
        play->due_count = a->u.due.count;
        assert_true(play->due_count < DUES);
    }
    if (call->slot < 0 || a->err == ERR_TOO_LATE || a->job != play->ids[call->slot])
        return;
    if (a->head.id == a->job)
        play->heads[call->slot] = a->head;
    else if (!a->head.id)
        play->heads[call->slot] = (struct store_head){0};
}

static void check_job(struct play *play)
{
    struct store_op op = {.verb = STORE_JOB_GET, .job = play->ids[crowd_below(play, JOBS)]};
    struct store_op ops[2] = {op, op};
    const struct store_op *a = &ops[0];

    if (!op.job)
        return;
    SAME(rig_call(&play->rigs[0], &ops[0]), rig_call(&play->rigs[play->turn], &ops[1]),
         "error of a read");
    if (!a->err)
        same_record(a, &ops[0].record, &ops[1].record, true);
}

/* One call to each of the two stores, or two if the ops do not fit. */
static void send_round(struct play *play, int k, int count)
{
    struct rig *rig = &play->rigs[k == EMBEDDED ? EMBEDDED : play->turn];

    for (int i = 0; i < count; i++) {
        play->calls[i].sides[k].op.arena = &rig->arena;
        play->calls[i].sides[k].op.msg.next =
            i + 1 < count ? &play->calls[i + 1].sides[k].op.msg : NULL;
    }
    assert_null(store_send_all(rig->store, &play->calls[0].sides[k].op.msg));
}

static void wait_all(struct play *play)
{
    while (play->waiting) {
        work_queue_wait(&play->rigs[0].work_queue, 1000);
        inbox_run(&play->rigs[0].work_queue.inbox);
    }
}

static void play_round(struct play *play)
{
    bool flood = crowd_chance(play, 80);
    int count = flood ? ROUND : 1 + (int)crowd_below(play, crowd_chance(play, 4) ? ROUND : 16);

    play->waiting = 2 * count;
    play->last = -1;
    play->due_asked = false;
    play->tame = flood || !crowd_chance(play, 5);
    play->flood = flood;
    for (int i = 0; i < count; i++)
        crowd_call(play, &play->calls[i], i ? &play->calls[i - 1] : NULL);
    play->turn = 1 + (int)crowd_below(play, (unsigned)play->instances);
    for (int k = 0; k < 2; k++)
        send_round(play, k, count);
    wait_all(play);
    for (int i = 0; i < count; i++)
        compare(play, &play->calls[i]);
    play->ops += count;
    if (crowd_chance(play, 4)) {
        same_nodes(&play->rigs[0], &play->rigs[play->turn]);
        check_job(play);
        same_lanes(&play->rigs[0], &play->rigs[play->turn], 0, crowd_below(play, LANES + 2));
        same_lane(&play->rigs[0], &play->rigs[play->turn], crowd_lanes[crowd_below(play, LANES)],
                  crowd_below(play, JOBS));
    }
    if (crowd_chance(play, 16))
        redis_say(server.port, "FUNCTION FLUSH"); /* also drops what the library remembers */
    for (int k = 0; k <= play->instances; k++)
        arena_reset(&play->rigs[k].arena);
}

/* Moves the clock. An instance may call at any time, to tidy: its clock must not be far behind
 * Redis'. */
static void jump(struct play *play, int64_t ms)
{
    struct side calls[INSTANCES_MAX] = {0};

    play->drift_ms += ms < 0 ? -ms : ms;
    if (play->instances == 1 || play->drift_ms < DRIFT_MS) {
        rig_jump(ms);
        return;
    }
    play->drift_ms = 0;
    play->waiting = play->instances;
    redis_meeting_begin();
    for (int i = 0; i < play->instances; i++) {
        calls[i].play = play;
        calls[i].op = (struct store_op){RIG_NOTHING, .done = crowd_arrived,
                                        .reply_to = &play->rigs[0].work_queue.inbox};
        assert_int_equal(store_send(play->rigs[1 + i].store, &calls[i].op), ERR_OK);
    }
    redis_meeting_jump(play->instances, ms);
    wait_all(play);
}

/* In each call Redis looks at only a part of what came due, so the rest counts for some calls
 * longer than in the embedded store. Calls without effect bring it up to date. */
static void turn_wheel(struct play *play)
{
    for (int i = 0; i < TURNS; i++) {
        struct store_op op = {RIG_NOTHING};

        assert_int_equal(rig_call(&play->rigs[1], &op), ERR_NOT_FOUND);
    }
}

static void pass(struct play *play)
{
    unsigned dice = crowd_below(play, 200);

    if (dice < 180)
        jump(play, crowd_below(play, 100));
    else if (dice < 196)
        jump(play, crowd_below(play, 3000));
    else if (dice < 199)
        jump(play, crowd_below(play, 70000));
    else
        jump(play, -(int64_t)crowd_below(play, 3000));
    turn_wheel(play);
}

static long given(const char *name, long otherwise)
{
    const char *text = getenv(name);

    return text ? strtol(text, NULL, 10) : otherwise;
}

static void open_all(struct play *play, int breaker_threshold)
{
    static char url[64];

    snprintf(url, sizeof url, "redis://127.0.0.1:%d/0", server.port);
    redis_say(server.port, "FLUSHALL");
    for (int k = 0; k <= play->instances; k++) {
        rig_init(&play->rigs[k]);
        play->rigs[k].config.breaker_threshold = breaker_threshold;
        play->rigs[k].config.breaker_cooldown_ms = COOLDOWN_MS;
        if (k != EMBEDDED) {
            play->rigs[k].config.url = url;
            play->rigs[k].config.timeout_ms = 5000;
            play->rigs[k].config.now_ms = redis_meeting_ms;
        }
        rig_open(&play->rigs[k]);
    }
    redis_newest_format(server.port);
    embedded_check_always(play->rigs[EMBEDDED].store);
    for (int i = 0; i < NODES; i++)
        for (int k = 0; k < 2; k++)
            assert_int_equal(rig_node(&play->rigs[k], crowd_nodes[i], 200 - 5 * i, NODE_READY),
                             ERR_OK);
}

static void play_it(int breaker_threshold, int instances)
{
    static struct play play;
    long want = given("STORE_OPS", OPS_DEFAULT);
    long seed = given("STORE_SEED", 1);

    play = (struct play){.next_id = 1, .instances = instances};
    print_message("seed %ld, %ld operations\n", seed, want);
    rnd_seed(&play.rnd, (uint64_t)seed);
    play.calls = mem_array(struct call, ROUND);
    for (int k = 0; k < 2; k++)
        play.dues[k] = mem_array(struct store_due, DUES);
    open_all(&play, breaker_threshold);
    while (play.ops < want) {
        play_round(&play);
        pass(&play);
    }
    for (int verb = STORE_PUT; verb <= STORE_FINISH; verb++)
        assert_true(play.answers[verb][false] > 0 && play.answers[verb][true] > 0);
    for (int k = 0; k <= instances; k++) {
        assert_int_equal(rig_repairs(&play.rigs[k]), 0);
        rig_done(&play.rigs[k]);
    }
    for (int k = 0; k < 2; k++)
        free(play.dues[k]);
    free(play.calls);
}

static void test_same_answers_to_a_crowd(void **state)
{
    play_it(0, INSTANCES_MAX);
}

static void test_same_answers_beside_breakers(void **state)
{
    play_it(3, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_answers_to_a_crowd),
        cmocka_unit_test(test_same_answers_beside_breakers),
    };
    int failed;

    redis_server_start(&server);
    failed = cmocka_run_group_tests_name("store/redis_crowd", tests, NULL, NULL);
    redis_server_remove(&server);
    return failed;
}
