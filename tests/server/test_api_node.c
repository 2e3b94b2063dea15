/* Renewing leases: what a heartbeat costs the store. */
#include "../unit.h"

#include "hand_server.h"
#include "server/api_node.h"

#include <stdlib.h>

enum { RUNS_MAX = 4 };

struct fixture {
    struct server *server;
    struct settings settings;
    struct node node;
    struct renew renew;
    struct store_run runs[RUNS_MAX];
};

static int setup(void **state)
{
    struct fixture *own = calloc(1, sizeof *own);

    own->server = hand_server_new(&own->settings);
    own->server->sched.config.leases = lease_terms_default;
    own->node = (struct node){.id = STR("n1")};
    *state = own;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *own = *state;

    hand_server_free(own->server);
    free(own);
    return 0;
}

static int renewals;

static void renewed(struct renew *renew)
{
    renewals++;
}

/* A heartbeat that lists `count` runs; -1: it has no list. True: it waits for the store. */
static bool beat(struct fixture *own, int count)
{
    own->renew = (struct renew){.worker = &own->server->workers[0],
                                .listed = count >= 0,
                                .runs = own->runs,
                                .count = count > 0 ? (size_t)count : 0};
    return renew_start(&own->renew, &own->node, renewed);
}

/* What the store was asked meanwhile, and answers now. */
static int asked(struct fixture *own)
{
    struct sched_loop *loop = own->server->workers[0].sched;
    int count = 0;

    while (loop->out_first) {
        struct store_op *op = loop->out_first;
        struct msg *next = op->msg.next;

        assert_int_equal(op->verb, STORE_RENEW);
        assert_str(op->node, "n1");
        loop->out_first = next ? container_of(next, struct store_op, msg) : NULL;
        if (!next)
            loop->out_last = NULL;
        count++;
        op->done(op);
    }
    return count;
}

static void what_is_listed_is_renewed_with_every_heartbeat(void **state)
{
    struct fixture *own = *state;

    renewals = 0;
    for (int i = 1; i <= 3; i++) {
        assert_true(beat(own, RUNS_MAX));
        assert_int_equal(asked(own), 1);
        assert_int_equal(renewals, i);
    }
    assert_false(beat(own, 0)); /* it runs nothing: nothing to ask */
    assert_int_equal(asked(own), 0);
}

/* Who lists nothing has all its leases renewed, no more often than they need it. */
static void all_are_renewed_once_in_a_while(void **state)
{
    struct fixture *own = *state;
    int64_t every_ms = lease_renew_every_ms(&lease_terms_default);

    for (int round = 0; round < 3; round++) {
        assert_false(beat(own, -1));
        assert_int_equal(asked(own), 1);
        for (int i = 0; i < 5; i++) /* other heartbeats of the same moment */
            assert_false(beat(own, -1));
        hand_server_pass(own->server, every_ms - 1);
        assert_false(beat(own, -1));
        assert_int_equal(asked(own), 0);
        hand_server_pass(own->server, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_listed_is_renewed_with_every_heartbeat, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(all_are_renewed_once_in_a_while, setup, teardown),
    };

    return cmocka_run_group_tests_name("server/api_node", tests, NULL, NULL);
}
