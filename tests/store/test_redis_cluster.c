/* A real cluster of three masters and three replicas: the contract, a master that is killed under
 * load, a slot that is moved while in use, and the errors of servers that cannot answer. */
#include "contract.h"
#include "redis_rig.h"

#include "base/clock.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MASTERS = 3,
    SERVERS = 6,
    SLOTS = 16384,
    PATIENCE_MS = 60000,
    LIVES = 300,
    FAILOVER_MS = 6000 /* Redis gives up a failover that was requested after 5 s */
};

static struct redis_server servers[SERVERS];
static char url[256];

/* Waits for a state of the cluster. Building it by hand takes a second, redis-cli --cluster create
 * ten. */

static void wait_until(bool (*done)(void))
{
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;

    while (!done())
        if (clock_mono_ms() > end_ms) {
            fprintf(stderr, "the cluster does not get ready\n");
            abort();
        }
}

static bool all_met(void)
{
    char want[32];

    snprintf(want, sizeof want, "cluster_known_nodes:%d", SERVERS);
    for (int i = 0; i < SERVERS; i++)
        if (!strstr(redis_say(servers[i].port, "CLUSTER INFO"), want))
            return false;
    return true;
}

static bool all_well(void)
{
    for (int i = 0; i < SERVERS; i++) {
        if (!servers[i].pid)
            continue;
        if (!strstr(redis_say(servers[i].port, "CLUSTER INFO"), "cluster_state:ok") ||
            (i >= MASTERS &&
             strstr(redis_say(servers[i].port, "INFO replication"), "master_link_status:down")))
            return false;
    }
    return true;
}

static const char *id_of(int server)
{
    static char ids[SERVERS][48];

    snprintf(ids[server], sizeof ids[server], "%s",
             redis_say(servers[server].port, "CLUSTER MYID"));
    return ids[server];
}

static bool all_follow(void)
{
    for (int i = MASTERS; i < SERVERS; i++)
        if (strcmp(redis_say(servers[i].port, "CLUSTER REPLICATE %s", id_of(i - MASTERS)), "OK"))
            return false;
    return true;
}

static void build(void)
{
    static const char *const options[] = {"--cluster-enabled",
                                          "yes",
                                          "--cluster-node-timeout",
                                          "1000",
                                          "--cluster-announce-ip",
                                          "127.0.0.1",
                                          "--repl-diskless-sync-delay",
                                          "0",
                                          "--cluster-replica-validity-factor",
                                          "0"};
    size_t len = 0;

    len += (size_t)snprintf(url, sizeof url, "redis-cluster://");
    for (int i = 0; i < SERVERS; i++) {
        memcpy(servers[i].options, options, sizeof options);
        redis_server_start(&servers[i]);
        len += (size_t)snprintf(url + len, sizeof url - len, "%s127.0.0.1:%d", i ? "," : "",
                                servers[i].port);
    }
    for (int i = 0; i < MASTERS; i++)
        redis_say(servers[i].port, "CLUSTER ADDSLOTSRANGE %d %d", SLOTS * i / MASTERS,
                  SLOTS * (i + 1) / MASTERS - 1);
    for (int i = 1; i < SERVERS; i++)
        redis_say(servers[0].port, "CLUSTER MEET 127.0.0.1 %d", servers[i].port);
    wait_until(all_met);
    wait_until(all_follow);
    wait_until(all_well);
}

/* The server that has our slot. */
static int owner(void)
{
    for (int i = 0; i < SERVERS; i++)
        if (servers[i].pid &&
            strstr(redis_say(servers[i].port, "INFO replication"), "role:master") &&
            !strstr(redis_say(servers[i].port, "EXISTS sched:{f}:n"), "MOVED"))
            return i;
    return -1;
}

static bool has_refused(int server, const char *error)
{
    char want[64];

    snprintf(want, sizeof want, "errorstat_%s:", error);
    return strstr(redis_say(servers[server].port, "INFO errorstats"), want) != NULL;
}

static void init(struct rig *rig)
{
    rig_init(rig);
    redis_say(servers[owner()].port, "FLUSHALL");
    rig->config.url = url;
    rig->config.timeout_ms = 5000;
}

static void open_newest(struct rig *rig)
{
    rig_open(rig);
    redis_newest_format(servers[owner()].port);
}

static const struct contract_backend backend = {
    .name = "store/redis_cluster contract",
    .init = init,
    .open = open_newest,
    .close = rig_close,
    .done = rig_done,
};

/* On Redis' own clock, and with time-outs for a slow machine. */
static void open_real(struct rig *rig)
{
    init(rig);
    rig->config.now_ms = NULL;
    rig->config.timeout_ms = 1000;
    rig_open(rig);
    assert_int_equal(rig_node(rig, "n1", 4, NODE_READY), ERR_OK);
}

/* Repeats a verb while the store is away: every verb can be replayed. */
static enum err insist(struct rig *rig, struct store_op *op)
{
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;
    struct store_op copy;

    do {
        copy = *op;
        rig_call(rig, &copy);
        assert_true(clock_mono_ms() < end_ms);
    } while (copy.err == ERR_STORE_DOWN || copy.err == ERR_TOO_LATE);
    *op = copy;
    return op->err;
}

/* Takes one job from reserve to done. What a failover lost is detected, not hidden. */
static void live(struct rig *rig, uint64_t job)
{
    struct store_op op = {.verb = STORE_RESERVE, .job = job, .attempt = 1};

    op.u.put.spec = STR("{}");
    op.u.put.max_attempts = 1;
    op.u.put.ttl_ms = 500;
    op.u.put.candidate_count = 1;
    op.u.put.candidates[0].node = STR("n1");
    if (insist(rig, &op))
        return; /* the node is full until older leases run out */
    assert_true(op.counts.reserved + op.counts.running <= op.counts.max);
    op = (struct store_op){.verb = STORE_ACK, .job = job, .attempt = 1, .node = STR("n1")};
    op.u.settle.terms = (struct lease_terms){1000, 1000};
    if (insist(rig, &op))
        return;
    op = (struct store_op){.verb = STORE_FINISH, .job = job, .attempt = 1, .node = STR("n1")};
    op.u.settle.outcome = STORE_DONE;
    insist(rig, &op);
}

/* Waits until all leases have run out, and no slot is taken. */
static void drain(struct rig *rig)
{
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;
    struct lease_node counts;

    do {
        struct store_due due[16];
        size_t count = rig_due(rig, due, 16);

        for (size_t i = 0; i < count; i++)
            rig_finish(rig, STORE_EXPIRE, due[i].id, due[i].attempt, NULL, NULL);
        assert_true(clock_mono_ms() < end_ms);
        counts = rig_counts(rig, "n1");
    } while (counts.reserved + counts.running > 0);
    assert_int_equal(counts.max, 4);
}

static void test_master_is_killed(void **state)
{
    struct rig rig;
    int64_t began_ms = 0;
    int64_t away_ms = 0;
    int killed = -1;

    open_real(&rig);
    for (uint64_t job = 1; job <= LIVES; job++) {
        if (job == LIVES / 3) {
            killed = owner();
            redis_server_kill(&servers[killed]);
            began_ms = clock_mono_ms();
        }
        live(&rig, job);
        if (began_ms && !away_ms)
            away_ms = clock_mono_ms() - began_ms;
    }
    print_message("away for %lld ms after kill -9 of the master\n", (long long)away_ms);
    assert_int_not_equal(owner(), killed);
    drain(&rig);
    rig_done(&rig);
    redis_server_start(&servers[killed]); /* it comes back as a replica */
    wait_until(all_well);
}

static void move_keys(int from, int to, int slot)
{
    for (;;) {
        char keys[8192];
        char port[16];
        const char *words[32] = {"MIGRATE", "127.0.0.1", port, "", "0", "5000", "KEYS"};
        char *rest;
        int count = 7;

        snprintf(port, sizeof port, "%d", servers[to].port);
        snprintf(keys, sizeof keys, "%s",
                 redis_say(servers[from].port, "CLUSTER GETKEYSINSLOT %d 10", slot));
        if (!*keys)
            return;
        for (char *key = strtok_r(keys, "\n", &rest); key; key = strtok_r(NULL, "\n", &rest))
            words[count++] = key;
        assert_string_equal(redis_say_words(servers[from].port, count, words), "OK");
    }
}

/* Moving our slot from one master to another. */
struct move {
    int slot;
    int from;
    int to;
    char from_id[48];
    char to_id[48];
};

static struct move move_begin(void)
{
    struct move move = {.from = owner(), .to = -1};

    move.slot = atoi(redis_say(servers[0].port, "CLUSTER KEYSLOT sched:{f}:n"));
    for (int i = 0; i < SERVERS && move.to < 0; i++)
        if (i != move.from && strstr(redis_say(servers[i].port, "INFO replication"), "role:master"))
            move.to = i;
    snprintf(move.from_id, sizeof move.from_id, "%s", id_of(move.from));
    snprintf(move.to_id, sizeof move.to_id, "%s", id_of(move.to));
    redis_say(servers[move.to].port, "CLUSTER SETSLOT %d IMPORTING %s", move.slot, move.from_id);
    redis_say(servers[move.from].port, "CLUSTER SETSLOT %d MIGRATING %s", move.slot, move.to_id);
    return move;
}

static void move_end(const struct move *move)
{
    redis_say(servers[move->to].port, "CLUSTER SETSLOT %d NODE %s", move->slot, move->to_id);
    redis_say(servers[move->from].port, "CLUSTER SETSLOT %d NODE %s", move->slot, move->to_id);
}

static void test_slot_moves(void **state)
{
    struct rig rig;
    struct move move;

    open_real(&rig);
    for (uint64_t job = 1; job <= 20; job++)
        live(&rig, job);
    assert_int_equal(rig_put(&rig, 21), ERR_OK);
    move = move_begin();
    /* While the keys are on both servers, nothing is decided on one half of them. */
    assert_true(store_is_away(rig_reserve(&rig, 22, 1, "n1"))); /* refused, or timed out */
    move_keys(move.from, move.to, move.slot);
    assert_true(store_is_away(rig_reserve(&rig, 22, 1, "n1")));
    move_end(&move);
    for (uint64_t job = 30; job <= 60; job++)
        live(&rig, job);
    assert_int_equal(owner(), move.to);
    assert_int_equal(rig_get(&rig, 1), ERR_OK);
    assert_int_equal(rig.op.head.state, JOB_DONE);
    assert_int_equal(rig_get(&rig, 60), ERR_OK);
    assert_int_equal(rig_get(&rig, 22), ERR_NOT_FOUND);
    assert_int_equal(rig_get(&rig, 21), ERR_OK);
    drain(&rig);
    rig_done(&rig);
}

/* ASK: keys that have moved are read from their new server. */
static void test_read_while_the_slot_moves(void **state)
{
    struct rig rig;
    struct move move;

    open_real(&rig);
    live(&rig, 1);
    move = move_begin();
    assert_int_equal(rig_get(&rig, 1), ERR_OK);
    move_keys(move.from, move.to, move.slot);
    assert_int_equal(rig_get(&rig, 1), ERR_OK);
    assert_int_equal(rig.op.head.state, JOB_DONE);
    assert_true(has_refused(move.from, "ASK"));
    move_end(&move);
    live(&rig, 2);
    drain(&rig);
    rig_done(&rig);
}

/* Acts once the server has refused a call with this error; otherwise the call would wait for
 * ever. */
struct helper {
    struct move move;
    int at;
    const char *refusal;
    void (*act)(const struct helper *helper);
};

static void *help(void *arg)
{
    const struct helper *helper = arg;
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;

    while (!has_refused(helper->at, helper->refusal) && clock_mono_ms() < end_ms)
        sched_yield();
    helper->act(helper);
    return NULL;
}

/* The call is repeated until its time is over, so its caller does not notice. */
static void reserve_with_help(struct rig *rig, struct helper *helper)
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, help, helper), 0);
    assert_int_equal(rig_reserve(rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(has_refused(helper->at, helper->refusal));
    assert_int_equal(rig_finish(rig, STORE_DONE, 1, 1, "n1", NULL), ERR_OK);
    drain(rig);
    rig_done(rig);
}

static void open_patient(struct rig *rig)
{
    open_real(rig);
    rig_close(rig);
    rig->config.timeout_ms = PATIENCE_MS;
    rig_open(rig);
}

/* If the slot moved completely, another master would have taken over, and the caller would see
 * that. */
static void call_off_the_move(const struct helper *helper)
{
    redis_say(servers[helper->move.to].port, "CLUSTER SETSLOT %d STABLE", helper->move.slot);
    redis_say(servers[helper->move.from].port, "CLUSTER SETSLOT %d STABLE", helper->move.slot);
}

static void test_tryagain(void **state)
{
    struct rig rig;
    struct helper helper = {.refusal = "TRYAGAIN", .act = call_off_the_move};

    open_patient(&rig);
    helper.move = move_begin();
    helper.at = helper.move.from;
    redis_say(servers[helper.at].port, "CONFIG RESETSTAT");
    reserve_with_help(&rig, &helper);
}

/* Nobody has slot 0, so the server refuses everything. The slot belongs to servers[0]. */
static void find_the_slot(const struct helper *helper)
{
    redis_say(servers[helper->at].port, "CLUSTER SETSLOT 0 NODE %s", id_of(0));
}

static void test_clusterdown(void **state)
{
    struct rig rig;
    struct helper helper = {.refusal = "CLUSTERDOWN", .act = find_the_slot};

    open_patient(&rig);
    helper.at = owner();
    redis_say(servers[helper.at].port, "CONFIG RESETSTAT");
    redis_say(servers[helper.at].port, "CLUSTER DELSLOTS 0");
    reserve_with_help(&rig, &helper);
    wait_until(all_well);
}

static bool is_replica_of(int server, int master)
{
    char want[32];

    snprintf(want, sizeof want, "master_port:%d", servers[master].port);
    return strstr(redis_say(servers[server].port, "INFO replication"), want) != NULL;
}

/* After a failover the new master's answers are not used until the instance has noticed it, which
 * it reports. What a node holds and the new master has lost is taken back. */
static void test_another_master_is_not_trusted_blindly(void **state)
{
    struct rig rig;
    struct store_status status;
    struct store_run runs[] = {{.id = 2, .attempt = 3}};
    struct store_op renew = {.verb = STORE_RENEW, .node = STR("n1")};
    int from = owner();
    int to = 0;

    open_real(&rig);
    assert_int_equal(rig_reserve(&rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(rig_commit(&rig, 1, 1, "n1"), ERR_OK);
    for (uint64_t job = 6; job <= 8; job++)
        assert_int_equal(rig_put_lane(&rig, job, 77, 3), ERR_OK);
    renew.u.renew.runs = runs;
    renew.u.renew.count = 1;
    renew.u.renew.terms = (struct lease_terms){20000, 20000};
    assert_int_equal(rig_call(&rig, &renew), ERR_OK);
    assert_true(runs[0].unknown); /* nothing was lost yet: the node must drop it */
    store_status(rig.store, &status);
    assert_int_equal(status.moves, 0);
    while (!is_replica_of(to, from))
        to++;
    for (int64_t end_ms = clock_mono_ms() + PATIENCE_MS, ask_ms = 0; status.moves == 0;) {
        assert_true(clock_mono_ms() < end_ms);
        if (clock_mono_ms() >= ask_ms && is_replica_of(to, from)) {
            assert_string_equal(redis_say(servers[to].port, "CLUSTER FAILOVER"), "OK");
            ask_ms = clock_mono_ms() + FAILOVER_MS;
        }
        sched_yield();
        store_status(rig.store, &status);
    }
    assert_int_equal(status.moves, 1);
    assert_true(strstr(status.detail, "another server took over") != NULL);
    assert_int_equal(insist(&rig, &renew), ERR_OK);
    assert_false(runs[0].unknown);
    assert_int_equal(rig_get(&rig, 2), ERR_OK);
    assert_int_equal(rig.op.head.state, JOB_ACKED);
    assert_int_equal(rig.op.head.attempt, 3);
    assert_int_equal(rig_counts(&rig, "n1").running, 2);
    /* Its reserve was answered by the old master, and lost. */
    assert_int_equal(rig_commit(&rig, 3, 1, "n1"), ERR_OK);
    assert_int_equal(rig_finish(&rig, STORE_DONE, 4, 1, "n1", NULL), ERR_OK);
    assert_int_equal(rig_finish(&rig, STORE_DONE, 4, 1, "n1", NULL), ERR_OK);
    assert_int_equal(rig_commit(&rig, 5, 1, "nobody"), ERR_NOT_FOUND);
    assert_int_equal(rig_counts(&rig, "n1").running, 3);
    /* Three jobs are reserved as far as the new master knows: one is listed by its node, one
     * acknowledged, one ended. */
    runs[0] = (struct store_run){.id = 6, .attempt = 1};
    assert_int_equal(insist(&rig, &renew), ERR_OK);
    assert_false(runs[0].unknown);
    assert_int_equal(rig_commit(&rig, 7, 1, "n1"), ERR_OK);
    assert_int_equal(rig_finish(&rig, STORE_DONE, 8, 1, "n1", NULL), ERR_OK);
    assert_int_equal(rig_counts(&rig, "n1").running, 5);
    assert_int_equal(rig_lane(&rig, 77, 8), ERR_OK);
    assert_int_equal(rig.op.u.lane.waiting, 0);
    assert_int_equal(rig_reserve(&rig, 6, 1, "n2"), ERR_OK);
    assert_true(rig.op.u.put.duplicate && str_is(STR("n1"), rig.op.head.node));
    for (uint64_t job = 1; job <= 7; job++)
        if (job < 4 || job > 5)
            assert_int_equal(rig_finish(&rig, STORE_DONE, job, job == 2 ? 3 : 1, "n1", NULL),
                             ERR_OK);
    drain(&rig);
    rig_done(&rig);
    wait_until(all_well);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slot_moves),
        cmocka_unit_test(test_read_while_the_slot_moves),
        cmocka_unit_test(test_tryagain),
        cmocka_unit_test(test_clusterdown),
        cmocka_unit_test(test_another_master_is_not_trusted_blindly),
        cmocka_unit_test(test_master_is_killed),
    };
    int failed;

    build();
    failed = contract_run(&backend);
    failed += cmocka_run_group_tests_name("store/redis_cluster", tests, NULL, NULL);
    for (int i = 0; i < SERVERS; i++)
        redis_server_remove(&servers[i]);
    return failed;
}
