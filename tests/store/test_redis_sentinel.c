/* A master dies, and Sentinels name another. */
#include "contract.h"
#include "redis_rig.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATIENCE_MS = 30000 };

/* A replication offset of this server, as it reports it. */
static long long offset_of(const struct redis_server *server, const char *name)
{
    const char *at = strstr(redis_say(server->port, "INFO replication"), name);

    return at ? atoll(at + strlen(name)) : -1;
}

static void test_failover(void **state)
{
    struct redis_server servers[2] = {0};
    struct redis_server sentinel = {0};
    struct rig rig;
    char master[16];
    char url[128];
    long long written;
    int64_t began_ms;
    int64_t end_ms = clock_mono_ms() + PATIENCE_MS;

    redis_server_start(&servers[0]);
    snprintf(master, sizeof master, "%d", servers[0].port);
    memcpy(servers[1].options, (const char *[]){"--replicaof", "127.0.0.1", master},
           3 * sizeof *servers[1].options);
    redis_say(servers[0].port, "CONFIG SET repl-diskless-sync-delay 0");
    redis_server_start(&servers[1]);
    sentinel.watches = servers[0].port;
    redis_server_start(&sentinel);
    rig_init(&rig);
    snprintf(url, sizeof url, "redis-sentinel://127.0.0.1:1,127.0.0.1:%d/m", sentinel.port);
    rig.config.url = url;
    rig.config.now_ms = NULL;
    rig.config.timeout_ms = 1000; /* a slow machine must not make a test fail */
    rig_open(&rig);
    assert_int_equal(rig_node(&rig, "n1", 5, NODE_READY), ERR_OK);
    assert_int_equal(rig_reserve(&rig, 1, 1, "n1"), ERR_OK);
    assert_int_equal(rig_commit(&rig, 1, 1, "n1"), ERR_OK);
    written = offset_of(&servers[0], "master_repl_offset:");
    assert_true(written > 0);
    while (offset_of(&servers[1], "slave_repl_offset:") < written ||
           !strstr(redis_say(sentinel.port, "SENTINEL replicas m"), "127.0.0.1"))
        assert_true(clock_mono_ms() < end_ms);

    began_ms = clock_mono_ms();
    redis_server_kill(&servers[0]);
    while (rig_reserve(&rig, 2, 1, "n1") == ERR_STORE_DOWN)
        assert_true(clock_mono_ms() < end_ms);
    print_message("dispatch again %lld ms after the master died\n",
                  (long long)(clock_mono_ms() - began_ms));
    assert_int_equal(rig.op.err, ERR_OK);
    assert_int_equal(rig_counts(&rig, "n1").running, 1);
    assert_int_equal(rig_finish(&rig, STORE_DONE, 1, 1, "n1", NULL), ERR_OK);
    rig_done(&rig);
    redis_server_remove(&sentinel);
    redis_server_remove(&servers[0]);
    redis_server_remove(&servers[1]);
}

static void test_unknown_master(void **state)
{
    struct redis_server server = {0};
    struct redis_server sentinel = {0};
    struct store_config config = {.data_dir = "unused"};
    struct problem why = {0};
    struct store *store;
    char url[128];

    redis_server_start(&server);
    sentinel.watches = server.port;
    redis_server_start(&sentinel);
    snprintf(url, sizeof url, "redis-sentinel://127.0.0.1:%d/other", sentinel.port);
    config.url = url;
    assert_int_not_equal(store_open(&config, &store, &why), ERR_OK);
    assert_non_null(strstr(why.detail, "knows no such master"));
    redis_server_remove(&sentinel);
    redis_server_remove(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_failover),
        cmocka_unit_test(test_unknown_master),
    };

    return cmocka_run_group_tests_name("store/redis_sentinel", tests, NULL, NULL);
}
