/* A Redis some milliseconds away and many nodes: the tests count round trips, not time. */
#include "contract.h"
#include "redis_rig.h"
#include "wire.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NODES = 5000, PAGE = 512, FIELDS = 256, CALL_MS = 20000 };

struct fixture {
    struct redis_server server;
    struct long_wire wire;
    struct rig rig; /* its store is at the far end */
    char url[64];
};

struct waited {
    struct store_op op;
    bool done;
};

static void answered(struct store_op *op)
{
    container_of(op, struct waited, op)->done = true;
}

static void node_name(char id[16], int number)
{
    snprintf(id, 16, "node-%d", number);
}

/* Registers all nodes in a few calls, over a direct connection. */
static void put_nodes(const struct fixture *fixture)
{
    struct rig near = {0};
    struct waited *puts = mem_array(struct waited, NODES);
    char(*ids)[16] = mem_zeroed(NODES, sizeof *ids);
    char url[64];

    rig_init(&near);
    snprintf(url, sizeof url, "redis://127.0.0.1:%d/0", fixture->server.port);
    near.config.url = url;
    near.config.now_ms = NULL;
    near.config.timeout_ms = CALL_MS;
    rig_open(&near);
    for (int i = 0; i < NODES; i++) {
        node_name(ids[i], i);
        puts[i].op = (struct store_op){.verb = STORE_NODE_PUT,
                                       .node = str_of(ids[i]),
                                       .reply_to = &near.work_queue.inbox,
                                       .done = answered};
        puts[i].op.u.node_put.own = puts[i].op.u.node_put.health = NODE_READY;
        puts[i].op.u.node_put.max = i % 7 + 1;
        puts[i].op.u.node_put.facts = STR("{}");
        assert_int_equal(store_send(near.store, &puts[i].op), ERR_OK);
    }
    for (int i = 0; i < NODES; i++) {
        rig_wait(&near, &puts[i].done);
        assert_int_equal(puts[i].op.err, ERR_OK);
    }
    rig_done(&near);
    free(puts);
    free(ids);
}

static int setup(void **state)
{
    struct fixture *fixture = mem_new(struct fixture);

    *state = fixture;
    redis_server_start(&fixture->server);
    put_nodes(fixture);
    fixture->wire =
        (struct long_wire){.to = fixture->server.port, .delay_ms = 3, .mark = "sched:{f}:links"};
    wire_open(&fixture->wire);
    rig_init(&fixture->rig);
    snprintf(fixture->url, sizeof fixture->url, "redis://127.0.0.1:%d/0", fixture->wire.port);
    fixture->rig.config.url = fixture->url;
    fixture->rig.config.now_ms = NULL;
    fixture->rig.config.timeout_ms = CALL_MS;
    rig_open(&fixture->rig);
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;

    rig_done(&fixture->rig);
    wire_close(&fixture->wire);
    redis_server_remove(&fixture->server);
    free(fixture);
    return 0;
}

/* How often Redis got this command since its statistics were reset. */
static long calls_of(const struct fixture *fixture, const char *command)
{
    char key[32];
    const char *stats = redis_say(fixture->server.port, "INFO commandstats");
    const char *found;

    snprintf(key, sizeof key, "cmdstat_%s:calls=", command);
    found = strstr(stats, key);
    return found ? strtol(found + strlen(key), NULL, 10) : 0;
}

static void read_all(struct fixture *fixture, enum store_verb verb)
{
    struct store_op op = {.verb = verb, .arena = &fixture->rig.arena};
    bool *seen = mem_zeroed(NODES, sizeof *seen);

    assert_int_equal(rig_call(&fixture->rig, &op), ERR_OK);
    assert_int_equal(op.u.nodes.count, NODES);
    for (size_t i = 0; i < NODES; i++) {
        int number = atoi(op.u.nodes.items[i].id.at + strlen("node-"));

        assert_in_range(number, 0, NODES - 1);
        assert_false(seen[number]);
        seen[number] = true;
        assert_int_equal(op.u.nodes.items[i].counts.max, number % 7 + 1);
        assert_int_equal(op.u.nodes.items[i].facts.len, verb == STORE_NODES ? 2 : 0);
    }
    free(seen);
}

/* A page takes one round trip, with the details of its nodes in the next one; and no command asks
 * for so much that Redis blocks for long. */
static void a_page_is_a_round_trip(void **state)
{
    static const enum store_verb verbs[] = {STORE_NODES, STORE_COUNTS};
    static const int besides[] = {4, 3};
    struct fixture *fixture = *state;

    for (size_t i = 0; i < COUNT_OF(verbs); i++) {
        redis_say(fixture->server.port, "CONFIG RESETSTAT");
        atomic_store(&fixture->wire.trips, 0);
        read_all(fixture, verbs[i]);
        int trips = atomic_load(&fixture->wire.trips);
        assert_in_range(trips, 2, NODES / PAGE + 4);
        assert_true(calls_of(fixture, "hscan") >= NODES / PAGE);
        assert_true(calls_of(fixture, "hmget") >= NODES / FIELDS * besides[i]);
    }
}

/* Named nodes are loaded in two round trips: their records, then the details. */
static void named_nodes_take_two_round_trips(void **state)
{
    struct fixture *fixture = *state;
    struct str ids[] = {STR("node-7"), STR("nobody"), STR("node-4999")};
    struct store_op op = {.verb = STORE_NODES, .arena = &fixture->rig.arena};

    op.u.nodes.ids = ids;
    op.u.nodes.id_count = COUNT_OF(ids);
    atomic_store(&fixture->wire.trips, 0);
    assert_int_equal(rig_call(&fixture->rig, &op), ERR_OK);
    assert_int_equal(op.u.nodes.count, 2);
    assert_true(str_is(op.u.nodes.items[0].id, "node-7"));
    assert_true(str_is(op.u.nodes.items[1].id, "node-4999"));
    assert_true(str_is(op.u.nodes.items[1].facts, "{}"));
    assert_int_equal(atomic_load(&fixture->wire.trips), 2);
}

/* A read of one job does not wait for a read of all nodes. */
static void a_single_read_waits_for_no_list(void **state)
{
    struct fixture *fixture = *state;
    struct waited list = {.op = {.verb = STORE_COUNTS,
                                 .arena = &fixture->rig.arena,
                                 .reply_to = &fixture->rig.work_queue.inbox,
                                 .done = answered}};

    assert_int_equal(rig_put(&fixture->rig, 1), ERR_OK);
    atomic_store(&fixture->wire.held, true);
    assert_int_equal(store_send(fixture->rig.store, &list.op), ERR_OK);
    while (atomic_load(&fixture->wire.said) == 0)
        sched_yield();
    assert_int_equal(rig_get(&fixture->rig, 1), ERR_OK);
    assert_false(list.done);
    atomic_store(&fixture->wire.held, false);
    rig_wait(&fixture->rig, &list.done);
    assert_int_equal(list.op.err, ERR_OK);
    assert_int_equal(list.op.u.nodes.count, NODES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_single_read_waits_for_no_list),
        cmocka_unit_test(a_page_is_a_round_trip),
        cmocka_unit_test(named_nodes_take_two_round_trips),
    };

    return cmocka_run_group_tests_name("store/redis_far", tests, setup, teardown);
}
