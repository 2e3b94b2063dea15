/* Many threads on one store: every answer comes once, on the thread that asked; no node ever has
 * more than its max; nothing is left over. Mainly for the thread sanitiser. */
#include "contract.h"

#include "base/clock.h"
#include "base/mem.h"
#include "store/embedded.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 4, FLIGHT = 16, LIVES = 600, NODES = 3, MAX = 5 };

static const char *const names[NODES] = {"n0", "n1", "n2"};
static _Atomic int carried[NODES]; /* as the nodes would count: begun, not yet ended */
static _Atomic int above_max;
static struct store *store;

struct life {
    struct store_op op;
    struct client *client;
    struct arena arena; /* belongs to the store while an op is in flight */
    uint64_t job;
    int node;
    int step; /* RESERVE, COMMIT, FINISH */
};

struct client {
    pthread_t thread; /* for pthread_join */
    pthread_t self;   /* the same, set by the thread itself */
    struct work_queue work_queue;
    struct rnd rnd;
    unsigned index;
    int begun;
    int over;
    int full;
    struct life lives[FLIGHT];
};

static void next_step(struct life *life);

static int node_of(const char *name)
{
    for (int i = 0; i < NODES; i++)
        if (str_is(str_of(names[i]), name))
            return i;
    return -1;
}

static void answered(struct store_op *op)
{
    struct life *life = container_of(op, struct life, op);
    struct client *client = life->client;

    if (!pthread_equal(pthread_self(), client->self))
        abort();
    if (op->verb == STORE_RESERVE && op->err == ERR_ALL_FULL) {
        client->full++;
        next_step(life); /* the same job again, until a node has room */
        return;
    }
    if (op->err)
        abort();
    if (op->verb == STORE_RESERVE) {
        life->node = node_of(op->head.node);
        if (atomic_fetch_add(&carried[life->node], 1) >= MAX)
            atomic_fetch_add(&above_max, 1);
    }
    if (op->verb == STORE_JOB_GET && op->record.head.state != JOB_DONE)
        abort(); /* its end was answered, so a read must show it */
    if (op->verb == STORE_JOB_GET) {
        client->over++;
        arena_reset(&life->arena);
    }
    life->step = (life->step + 1) % 4;
    next_step(life);
}

static void next_step(struct life *life)
{
    static const enum store_verb verbs[] = {STORE_RESERVE, STORE_ACK, STORE_FINISH, STORE_JOB_GET};
    struct client *client = life->client;
    struct store_op *op = &life->op;
    bool again = op->verb == STORE_RESERVE && op->err == ERR_ALL_FULL;

    if (life->step == 0 && !again) {
        if (client->begun == LIVES)
            return;
        client->begun++;
        life->job = job_id_next(clock_wall_ms(), client->index);
    }
    *op = (struct store_op){.verb = verbs[life->step],
                            .reply_to = &client->work_queue.inbox,
                            .done = answered,
                            .job = life->job,
                            .attempt = 1,
                            .arena = &life->arena};
    if (life->step == 0) {
        int first = (int)rnd_below(&client->rnd, NODES);

        op->u.put.spec = STR("{}");
        op->u.put.max_attempts = 1;
        op->u.put.ttl_ms = 600000;
        op->u.put.session = STR("shared");
        op->u.put.pool = str_of(names[first]);
        op->u.put.lang_pair = STR("en->zh");
        op->u.put.candidate_count = 2;
        for (int i = 0; i < 2; i++) {
            struct str node = str_of(names[(first + i) % NODES]);

            op->u.put.candidates[i] =
                (struct store_candidate){.node = node, .hash = str_hash(node)};
        }
    } else {
        op->node = str_of(names[life->node]);
        op->u.settle.terms = (struct lease_terms){600000, 600000};
        op->u.settle.outcome = STORE_DONE;
    }
    /* Counted as ended before the store gets it, so that the store is never ahead of this count. */
    if (op->verb == STORE_FINISH)
        atomic_fetch_sub(&carried[life->node], 1);
    if (store_send(store, op))
        abort();
}

static void *run(void *arg)
{
    struct client *client = arg;

    client->self = pthread_self();
    for (int i = 0; i < FLIGHT; i++) {
        client->lives[i].client = client;
        next_step(&client->lives[i]);
    }
    while (client->over < LIVES) {
        work_queue_wait(&client->work_queue, 1000);
        inbox_run(&client->work_queue.inbox);
    }
    for (int i = 0; i < FLIGHT; i++)
        arena_free(&client->lives[i].arena);
    return NULL;
}

static void *watch(void *arg)
{
    _Atomic bool *stop = arg;
    struct store_status status;

    while (!atomic_load(stop)) {
        store_status(store, &status);
        if (status.mode != STORE_NORMAL)
            abort();
        sched_yield();
    }
    return NULL;
}

static void test_many_threads(void **state)
{
    static struct client clients[THREADS];
    _Atomic bool stop = false;
    struct rig rig;
    pthread_t watcher;
    int full = 0;

    rig_init(&rig);
    rig_open(&rig);
    embedded_check_always(rig.store);
    store = rig.store;
    for (int i = 0; i < NODES; i++)
        assert_int_equal(rig_node(&rig, names[i], MAX, NODE_READY), ERR_OK);
    pthread_create(&watcher, NULL, watch, &stop);
    for (unsigned i = 0; i < THREADS; i++) {
        clients[i].index = i;
        rnd_seed(&clients[i].rnd, i);
        work_queue_init(&clients[i].work_queue);
        pthread_create(&clients[i].thread, NULL, run, &clients[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(clients[i].thread, NULL);
        full += clients[i].full;
        assert_int_equal(clients[i].over, LIVES);
    }
    atomic_store(&stop, true);
    pthread_join(watcher, NULL);
    assert_int_equal(atomic_load(&above_max), 0);
    assert_true(full > 0); /* otherwise no thread ever met a full node */
    for (int i = 0; i < NODES; i++) {
        assert_int_equal(rig_counts(&rig, names[i]).reserved, 0);
        assert_int_equal(rig_counts(&rig, names[i]).running, 0);
    }
    assert_int_equal(rig_repairs(&rig), 0);
    rig_done(&rig);
}

struct counted {
    struct store_op op;
    int *answers;
};

static void count_one(struct store_op *op)
{
    ++*container_of(op, struct counted, op)->answers;
}

/* Closing answers every op in flight, reads and writes, exactly once. */
static void test_close_answers_all(void **state)
{
    enum { OPS = 300 };
    static struct counted ops[OPS];
    struct rig rig;
    int answers = 0;

    rig_init(&rig);
    rig_open(&rig);
    rig_node(&rig, "n1", 1000, NODE_READY);
    for (int i = 0; i < OPS; i++) {
        struct store_op *op = &ops[i].op;

        ops[i].answers = &answers;
        *op = (struct store_op){.verb = i % 3 ? STORE_PUT : STORE_JOB_GET,
                                .reply_to = &rig.work_queue.inbox,
                                .done = count_one,
                                .job = (uint64_t)i + 1,
                                .attempt = 1,
                                .arena = &rig.arena};
        if (i % 3) {
            op->u.put.spec = STR("{}");
            op->u.put.max_attempts = 1;
        }
        assert_int_equal(store_send(rig.store, op), ERR_OK);
    }
    rig_close(&rig);
    inbox_run(&rig.work_queue.inbox);
    assert_int_equal(answers, OPS);
    rig_done(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_threads),
        cmocka_unit_test(test_close_answers_all),
    };

    return cmocka_run_group_tests_name("store/threads", tests, NULL, NULL);
}
