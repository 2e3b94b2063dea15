/* Two instances on one Redis: their numbers, the notices they get of each other, and connections of
 * nodes. */
#include "contract.h"
#include "redis_rig.h"

#include "base/clock.h"
#include "base/mem.h"
#include "store/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATIENCE_MS = 20000, NOTICES_MAX = 64 };

struct received {
    enum store_notice_kind kind;
    int64_t seq;
    char text[128];
};

struct side {
    struct rig rig;
    struct store_listener listener;
    struct received notices[NOTICES_MAX];
    size_t count;
};

struct fixture {
    struct redis_server server;
    struct side a, b;
    char url[64];
};

static void on_notice(struct store_listener *listener, const struct store_notice *notice)
{
    struct side *side = container_of(listener, struct side, listener);
    struct received *copy = &side->notices[side->count++];

    assert_true(side->count <= NOTICES_MAX);
    *copy = (struct received){.kind = notice->kind, .seq = notice->seq};
    str_copy(notice->text, copy->text, sizeof copy->text);
}

/* Waits for the first notice of this kind from index `from` on. */
static const struct received *await(struct side *side, size_t from, enum store_notice_kind kind)
{
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;

    for (;;) {
        for (size_t i = from; i < side->count; i++)
            if (side->notices[i].kind == kind)
                return &side->notices[i];
        assert_true(clock_mono_ms() < end_ms);
        work_queue_wait(&side->rig.work_queue, 10);
        inbox_run(&side->rig.work_queue.inbox);
    }
}

static void open_side(struct fixture *fixture, struct side *side)
{
    rig_init(&side->rig);
    side->rig.config.url = fixture->url;
    side->rig.config.timeout_ms = 5000;
    rig_open(&side->rig);
    side->listener =
        (struct store_listener){.inbox = &side->rig.work_queue.inbox, .notify = on_notice};
    store_listen(side->rig.store, &side->listener);
    await(side, 0, STORE_NOTICE_GAP);
    side->count = 0;
}

static void close_side(struct side *side)
{
    rig_close(&side->rig);
    inbox_run(&side->rig.work_queue.inbox); /* frees notices that came meanwhile */
    arena_free(&side->rig.arena);
    rig_remove_dir(side->rig.dir);
}

static int setup(void **state)
{
    struct fixture *fixture = mem_new(struct fixture);

    redis_server_start(&fixture->server);
    snprintf(fixture->url, sizeof fixture->url, "redis://127.0.0.1:%d/0", fixture->server.port);
    open_side(fixture, &fixture->a);
    open_side(fixture, &fixture->b);
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;

    close_side(&fixture->a);
    close_side(&fixture->b);
    redis_server_remove(&fixture->server);
    free(fixture);
    return 0;
}

static enum err send_message(struct side *side, uint32_t to, const char *text)
{
    side->rig.op = (struct store_op){.verb = STORE_MESSAGE};
    side->rig.op.u.message.to = to;
    side->rig.op.u.message.text = str_of(text);
    return rig_call(&side->rig, &side->rig.op);
}

static enum err take_link(struct side *side, const char *node, enum store_link_kind kind,
                          uint64_t incarnation)
{
    side->rig.op = (struct store_op){.verb = STORE_LINK, .node = str_of(node)};
    side->rig.op.u.link.kind = kind;
    side->rig.op.u.link.incarnation = incarnation;
    return rig_call(&side->rig, &side->rig.op);
}

/* One node, as this instance reads it. */
static const struct store_node *look(struct side *side, const char *node)
{
    struct str id = str_of(node);
    struct store_op *op = &side->rig.op;

    arena_reset(&side->rig.arena);
    *op = (struct store_op){.verb = STORE_NODES, .arena = &side->rig.arena};
    op->u.nodes.ids = &id;
    op->u.nodes.id_count = 1;
    assert_int_equal(rig_call(&side->rig, op), ERR_OK);
    return op->u.nodes.count ? &op->u.nodes.items[0] : NULL;
}

static void numbers_are_ones_own(void **state)
{
    struct fixture *fixture = *state;
    struct store *a = fixture->a.rig.store, *b = fixture->b.rig.store;
    struct store_op op = {.verb = STORE_PEERS, .arena = &fixture->a.rig.arena};

    assert_true(store_number(a) > 0 && store_number(b) > 0);
    assert_int_not_equal(store_number(a), store_number(b));
    assert_int_not_equal(store_name(a), store_name(b));
    assert_true(store_number_is_ours(a) && store_number_is_ours(b));
    assert_int_equal(rig_call(&fixture->a.rig, &op), ERR_OK);
    assert_int_equal(op.u.peers.count, 2);
    for (size_t i = 0; i < 2; i++)
        assert_true(op.u.peers.items[i].name == store_name(a) ||
                    op.u.peers.items[i].name == store_name(b));
}

/* An instance that is silent for too long loses its number to the next one that starts, and never
 * gets it back. */
static void a_lapsed_number_goes_to_another(void **state)
{
    struct fixture *fixture = *state;
    struct store *a = fixture->a.rig.store;
    unsigned before = store_number(a);
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;
    unsigned now;

    /* What time would do to its entry, done by hand. */
    redis_say(fixture->server.port, "HDEL sched:{f}:instances %08x", store_name(a));
    atomic_store(&a->number_until_ms, 0);
    assert_false(store_number_is_ours(a));
    do {
        assert_int_equal(rig_node(&fixture->a.rig, "n1", 1, NODE_READY), ERR_OK);
        now = store_number(a);
        assert_true(clock_mono_ms() < end_ms);
    } while (now == before);
    assert_true(store_number_is_ours(a));
    assert_int_not_equal(now, store_number(fixture->b.rig.store));
}

static void a_clean_exit_frees_the_number(void **state)
{
    struct fixture *fixture = *state;
    struct store_op op = {.verb = STORE_PEERS, .arena = &fixture->a.rig.arena};

    rig_close(&fixture->b.rig);
    assert_int_equal(rig_call(&fixture->a.rig, &op), ERR_OK);
    assert_int_equal(op.u.peers.count, 1);
    rig_open(&fixture->b.rig);
    assert_int_not_equal(store_number(fixture->b.rig.store), store_number(fixture->a.rig.store));
}

static void words_reach_whom_they_are_for(void **state)
{
    struct fixture *fixture = *state;
    struct side *a = &fixture->a, *b = &fixture->b;

    assert_int_equal(send_message(a, store_name(b->rig.store), "hello b"), ERR_OK);
    assert_int_equal(a->rig.op.u.message.receivers, 1);
    assert_string_equal(await(b, 0, STORE_NOTICE_MESSAGE)->text, "hello b");
    assert_int_equal(send_message(a, 0, "hello all"), ERR_OK);
    assert_int_equal(a->rig.op.u.message.receivers, 2);
    assert_string_equal(await(b, 1, STORE_NOTICE_MESSAGE)->text, "hello all");
    assert_string_equal(await(a, 0, STORE_NOTICE_MESSAGE)->text, "hello all");
    assert_int_equal(send_message(a, 0x12345678, "nobody"), ERR_OK);
    assert_int_equal(a->rig.op.u.message.receivers, 0);
}

static void changes_of_nodes_are_heard_in_order(void **state)
{
    struct fixture *fixture = *state;
    const struct received *first, *second;

    assert_int_equal(rig_node(&fixture->a.rig, "n1", 1, NODE_READY), ERR_OK);
    first = await(&fixture->b, 0, STORE_NOTICE_NODES);
    assert_string_equal(first->text, "n1");
    /* No change, so no notice. */
    assert_int_equal(rig_node(&fixture->a.rig, "n1", 1, NODE_READY), ERR_OK);
    assert_int_equal(rig_node(&fixture->a.rig, "n1", 2, NODE_READY), ERR_OK);
    second = await(&fixture->b, 1, STORE_NOTICE_NODES);
    assert_int_equal(second->seq, first->seq + 1);
    assert_int_equal(look(&fixture->b, "n1")->counts.max, 2);
    assert_null(look(&fixture->b, "n2"));
}

/* Notices during a cut are lost, but each instance gets a GAP that says so. */
static void a_cut_is_told(void **state)
{
    struct fixture *fixture = *state;

    redis_say(fixture->server.port, "CLIENT KILL TYPE pubsub");
    await(&fixture->b, 0, STORE_NOTICE_GAP);
    await(&fixture->a, 0, STORE_NOTICE_GAP);
    assert_int_equal(send_message(&fixture->a, store_name(fixture->b.rig.store), "again"), ERR_OK);
    assert_int_equal(fixture->a.rig.op.u.message.receivers, 1);
    assert_string_equal(await(&fixture->b, 0, STORE_NOTICE_MESSAGE)->text, "again");
}

/* Channels are shared by all databases of a server; a notice from another database is not
 * delivered. */
static void another_database_is_not_heard(void **state)
{
    struct fixture *fixture = *state;
    struct side other = {0};
    char url[64];

    snprintf(url, sizeof url, "redis://127.0.0.1:%d/1", fixture->server.port);
    rig_init(&other.rig);
    other.rig.config.url = url;
    other.rig.config.timeout_ms = 5000;
    rig_open(&other.rig);
    assert_int_equal(send_message(&other, 0, "elsewhere"), ERR_OK);
    assert_int_equal(rig_node(&other.rig, "n1", 1, NODE_READY), ERR_OK);
    assert_int_equal(send_message(&fixture->a, 0, "here"), ERR_OK);
    assert_string_equal(await(&fixture->b, 0, STORE_NOTICE_MESSAGE)->text, "here");
    assert_int_equal(fixture->b.count, 1);
    rig_done(&other.rig);
}

static void the_last_connection_counts(void **state)
{
    struct fixture *fixture = *state;
    struct side *a = &fixture->a, *b = &fixture->b;
    const struct store_node *node;

    assert_int_equal(take_link(a, "n1", STORE_LINK_SOCKET, 1), ERR_NOT_FOUND);
    rig_node(&a->rig, "n1", 1, NODE_READY);
    node = look(b, "n1");
    assert_int_equal(node->live.kind, STORE_LINK_NONE);
    assert_int_equal(node->live.silent_ms, -1);
    assert_int_equal(take_link(a, "n1", STORE_LINK_SOCKET, 1), ERR_OK);
    node = look(b, "n1");
    assert_int_equal(node->live.kind, STORE_LINK_SOCKET);
    assert_int_equal(node->live.instance, store_name(a->rig.store));
    /* A poll elsewhere does not replace a socket; another socket does. */
    assert_int_equal(take_link(b, "n1", STORE_LINK_POLL, 1), ERR_CONFLICT);
    assert_int_equal(take_link(b, "n1", STORE_LINK_SOCKET, 7), ERR_OK);
    assert_int_equal(look(a, "n1")->live.instance, store_name(b->rig.store));
    /* The close of a replaced connection does not remove the new one. */
    assert_int_equal(take_link(a, "n1", STORE_LINK_LEFT, 1), ERR_STALE);
    assert_int_equal(take_link(b, "n1", STORE_LINK_LEFT, 6), ERR_STALE);
    assert_int_equal(look(a, "n1")->live.kind, STORE_LINK_SOCKET);
    assert_int_equal(take_link(b, "n1", STORE_LINK_LEFT, 7), ERR_OK);
    assert_int_equal(look(a, "n1")->live.kind, STORE_LINK_LEFT);
    assert_int_equal(take_link(a, "n1", STORE_LINK_POLL, 1), ERR_OK);
    assert_int_equal(look(b, "n1")->live.kind, STORE_LINK_POLL);
}

/* The socket of a dead instance does not count: it was silent for longer than its number lasts. */
static void the_dead_hold_no_connection(void **state)
{
    struct fixture *fixture = *state;
    int port = fixture->server.port;

    rig_node(&fixture->a.rig, "n1", 1, NODE_READY);
    redis_say(port, "HSET sched:{f}:instances deadbeef %s", "0 77 2 2 x");
    redis_say(port, "HSET sched:{f}:links n1 %s", "deadbeef 1 5 0");
    assert_int_equal(take_link(&fixture->b, "n1", STORE_LINK_POLL, 1), ERR_OK);
}

static void put_held(struct rig *rig, uint64_t job, unsigned owner)
{
    struct store_op put = {.verb = STORE_PUT, .job = job, .attempt = 1};

    put.u.put.spec = STR("{}");
    put.u.put.max_attempts = 1;
    put.u.put.owner = owner;
    put.u.put.hold_ms = 15000;
    assert_int_equal(rig_call(rig, &put), ERR_OK);
}

static void a_number_that_is_taken_is_passed_over(void **state)
{
    struct fixture *fixture = *state;
    struct side *a = &fixture->a, *b = &fixture->b;
    unsigned number = store_number(b->rig.store);

    close_side(b);
    *b = (struct side){0};
    redis_say(fixture->server.port, "HSET sched:{f}:meta numbers %u",
              store_number(a->rig.store) - 1);
    open_side(fixture, b);
    assert_int_equal(store_number(b->rig.store), number);
}

static enum job_state expire(struct rig *rig, uint64_t job)
{
    assert_int_equal(rig_finish(rig, STORE_EXPIRE, job, 1, NULL, NULL), ERR_OK);
    return rig->op.head.state;
}

static void reserve_last(struct rig *rig, uint64_t job, unsigned owner)
{
    struct store_op op = {.verb = STORE_RESERVE, .job = job, .attempt = 1};

    op.u.put.spec = STR("{}");
    op.u.put.max_attempts = 1;
    op.u.put.ttl_ms = RIG_TTL_MS;
    op.u.put.owner = owner;
    op.u.put.candidate_count = 1;
    op.u.put.candidates[0] =
        (struct store_candidate){.node = STR("n1"), .hash = str_hash(STR("n1"))};
    assert_int_equal(rig_call(rig, &op), ERR_OK);
}

/* Only a live instance is certain to have sent what it reserved: if it is gone, the last attempt of
 * a job is not used up. */
static void who_has_gone_may_have_sent_nothing(void **state)
{
    struct fixture *fixture = *state;
    struct side *a = &fixture->a, *b = &fixture->b;

    rig_node(&a->rig, "n1", 4, NODE_READY);
    reserve_last(&a->rig, 1, store_number(a->rig.store));
    reserve_last(&b->rig, 2, store_number(b->rig.store));
    close_side(b);
    *b = (struct side){0};
    rig_pass(&a->rig, RIG_TTL_MS);
    assert_int_equal(expire(&a->rig, 1), JOB_FAILED);
    assert_int_equal(expire(&a->rig, 2), JOB_SELECTING);
    open_side(fixture, b);
}

/* Empties Redis and gives this number to a new instance. */
static void empty_for(struct fixture *fixture, unsigned number)
{
    char script[256];
    const char *words[] = {"EVAL", script, "0"};

    snprintf(script, sizeof script,
             "redis.call('FLUSHALL') redis.call('HSET', 'sched:{f}:instances', '0000cafe', "
             "'%lld %u %d %d x')",
             (long long)rig_now_ms(), number, FORMAT_OLDEST, FORMAT_OLDEST);
    redis_say_words(fixture->server.port, 3, words);
}

/* Job ids contain the instance's number, so two instances with one number could make the same id.
 * After Redis was emptied (or a failover lost who has which number) each instance keeps its own,
 * unless another has it by then, in whose name it then does nothing any more. */
static void an_emptied_store_gives_no_number_twice(void **state)
{
    struct fixture *fixture = *state;
    struct rig *a = &fixture->a.rig, *b = &fixture->b.rig;
    unsigned ours = store_number(a->store), theirs = store_number(b->store), now;
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;
    struct store_op op = {.verb = STORE_PEERS, .arena = &a->arena};
    enum err err;

    empty_for(fixture, ours);
    assert_int_equal(rig_node(b, "n2", 1, NODE_READY), ERR_OK);
    assert_int_equal(store_number(b->store), theirs);
    do { /* the instance has its new number a moment before it is up again */
        err = rig_node(a, "n1", 1, NODE_READY);
        now = store_number(a->store);
        assert_true(clock_mono_ms() < end_ms);
        assert_true(store_is_away(err) || (err == ERR_OK && now != ours));
    } while (err);
    assert_int_not_equal(now, theirs);
    assert_int_equal(rig_call(a, &op), ERR_OK);
    assert_int_equal(op.u.peers.count, 3);
    for (size_t i = 0; i < op.u.peers.count; i++)
        if (op.u.peers.items[i].name == store_name(b->store))
            assert_int_equal(op.u.peers.items[i].number, theirs);
    assert_int_equal(store_number(b->store), theirs);
}

/* An instance that stops releases all jobs it holds, however many others there are, and none that
 * another holds. */
static void who_goes_lets_go(void **state)
{
    enum { HELD = 40, OVER = 2500 };
    struct fixture *fixture = *state;
    struct side *a = &fixture->a, *b = &fixture->b;
    unsigned ours = store_number(a->rig.store), theirs = store_number(b->rig.store);
    struct store_due due[HELD + 1];

    rig_node(&a->rig, "n1", 4, NODE_READY);
    for (uint64_t job = 1; job <= OVER; job++) {
        if (job % (OVER / HELD) == 0) {
            put_held(&a->rig, job, theirs);
            put_held(&a->rig, OVER + job, ours);
        } else {
            assert_int_equal(rig_reserve(&a->rig, job, 1, "n1"), ERR_OK);
            assert_int_equal(rig_finish(&a->rig, STORE_DONE, job, 1, "n1", NULL), ERR_OK);
        }
    }
    assert_int_equal(rig_due(&a->rig, due, COUNT_OF(due)), 0);
    close_side(b);
    *b = (struct side){0};
    assert_int_equal(rig_due(&a->rig, due, COUNT_OF(due)), HELD);
    for (size_t i = 0; i < HELD; i++)
        assert_true(due[i].id <= OVER);
    open_side(fixture, b);
}

static void signs_of_life_are_shared(void **state)
{
    struct fixture *fixture = *state;
    struct side *a = &fixture->a;
    struct store_seen seen[] = {{STR("n1"), 2, 500, -1, 250}, {STR("unknown"), 0, 0, 0, 0}};
    struct store_op op = {.verb = STORE_SEEN};
    const struct store_node *node;

    rig_node(&a->rig, "n1", 1, NODE_READY);
    op.u.seen.items = seen;
    op.u.seen.count = 2;
    op.u.seen.text = STR("seen");
    assert_int_equal(rig_call(&a->rig, &op), ERR_OK);
    assert_string_equal(await(&fixture->b, 0, STORE_NOTICE_MESSAGE)->text, "seen");
    node = look(&fixture->b, "n1");
    assert_in_range(node->live.silent_ms, 0, PATIENCE_MS);
    assert_int_equal(node->live.level, 2);
    assert_int_equal(node->live.cpu_pm, 500);
    assert_int_equal(node->live.gpu_pm, -1);
    assert_int_equal(node->live.mem_pm, 250);
    rig_pass(&a->rig, 3000);
    assert_in_range(look(&fixture->b, "n1")->live.silent_ms, 2500, 3500);
    assert_null(look(&fixture->b, "unknown"));
}

static enum err claim(struct side *side, uint64_t job)
{
    struct store_op op = {.verb = STORE_CLAIM, .job = job};

    op.u.callback.hold_ms = 15000;
    return rig_call(&side->rig, &op);
}

static void a_callback_is_one_instances_at_a_time(void **state)
{
    struct fixture *fixture = *state;
    struct side *a = &fixture->a, *b = &fixture->b;
    struct store_op op = {.verb = STORE_RESERVE, .job = 1, .attempt = 1};
    struct store_op done = {.verb = STORE_CALLBACK_DONE, .job = 1};

    rig_node(&a->rig, "n1", 1, NODE_READY);
    op.u.put.spec = STR("{}");
    op.u.put.max_attempts = 1;
    op.u.put.ttl_ms = 5000;
    op.u.put.callback = true;
    op.u.put.candidate_count = 1;
    op.u.put.candidates[0].node = STR("n1");
    assert_int_equal(rig_call(&a->rig, &op), ERR_OK);
    assert_int_equal(claim(a, 1), ERR_NOT_FOUND); /* not ended yet */
    assert_int_equal(rig_finish(&a->rig, STORE_DONE, 1, 1, "n1", NULL), ERR_OK);
    assert_int_equal(claim(a, 1), ERR_OK);
    assert_int_equal(claim(b, 1), ERR_CONFLICT);
    assert_int_equal(claim(a, 1), ERR_OK);
    rig_pass(&a->rig, 15001); /* the instance that claimed it died */
    assert_int_equal(claim(b, 1), ERR_OK);
    assert_int_equal(claim(a, 1), ERR_CONFLICT);
    assert_int_equal(rig_call(&b->rig, &done), ERR_OK);
    assert_int_equal(claim(a, 1), ERR_NOT_FOUND);
}

/* The next notice of a lane has this text. False: the connection was cut meanwhile, as after a
 * stall of some seconds, so notices may be lost. */
static bool await_lane(struct side *side, const char *text)
{
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;

    for (;;) {
        for (size_t i = 0; i < side->count; i++) {
            if (side->notices[i].kind == STORE_NOTICE_GAP)
                return false;
            if (side->notices[i].kind != STORE_NOTICE_LANE)
                continue;
            assert_string_equal(side->notices[i].text, text);
            side->count = 0;
            return true;
        }
        assert_true(clock_mono_ms() < end_ms);
        work_queue_wait(&side->rig.work_queue, 10);
        inbox_run(&side->rig.work_queue.inbox);
    }
}

static bool fill_lanes(struct side *a, struct side *b)
{
    char text[64];

    for (uint64_t job = 0; job < STORE_LANE_ANNOUNCED; job++) {
        assert_int_equal(rig_put_lane(&a->rig, 0x100 + job, UINT64_MAX, 3), ERR_OK);
        snprintf(text, sizeof text, "ffffffffffffffff 3 %x", (unsigned)(0x100 + job));
        if (!await_lane(b, text))
            return false;
    }
    assert_int_equal(rig_put_lane(&a->rig, 0x200, UINT64_MAX, 3), ERR_OK);
    assert_int_equal(rig_put_lane(&a->rig, 0x201, UINT64_MAX, 9), ERR_OK);
    if (!await_lane(b, "ffffffffffffffff 9 201"))
        return false;
    assert_int_equal(rig_put(&a->rig, 0x202), ERR_OK);
    a->rig.op = (struct store_op){.verb = STORE_WAIT, .job = 0x202, .attempt = 1};
    a->rig.op.u.wait.lane = 0xc0ffee;
    a->rig.op.u.wait.wait_ms = RIG_WAIT_MS;
    assert_int_equal(rig_call(&a->rig, &a->rig.op), ERR_OK);
    if (!await_lane(b, "0000000000c0ffee 0 202"))
        return false;
    assert_int_equal(rig_put_lane(&b->rig, 0x203, 0xc0ffee, 9), ERR_OK);
    return await_lane(a, "0000000000c0ffee 9 203");
}

/* Other instances get a notice of a job that becomes one of the first of its lane, and none of a
 * job behind those. */
static void who_comes_among_the_first_of_a_lane_is_heard(void **state)
{
    enum { TRIES = 5 };
    struct fixture *fixture = *state;

    for (int tries = 1; !fill_lanes(&fixture->a, &fixture->b); tries++) {
        assert_true(tries < TRIES);
        teardown(state);
        setup(state);
        fixture = *state;
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(numbers_are_ones_own),
        TEST(an_emptied_store_gives_no_number_twice),
        TEST(who_has_gone_may_have_sent_nothing),
        TEST(a_lapsed_number_goes_to_another),
        TEST(a_clean_exit_frees_the_number),
        TEST(words_reach_whom_they_are_for),
        TEST(changes_of_nodes_are_heard_in_order),
        TEST(a_cut_is_told),
        TEST(another_database_is_not_heard),
        TEST(a_number_that_is_taken_is_passed_over),
        TEST(who_goes_lets_go),
        TEST(the_last_connection_counts),
        TEST(the_dead_hold_no_connection),
        TEST(signs_of_life_are_shared),
        TEST(a_callback_is_one_instances_at_a_time),
        TEST(who_comes_among_the_first_of_a_lane_is_heard),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
