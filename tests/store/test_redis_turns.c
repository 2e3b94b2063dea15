/* Redis answers that it cannot take the call now: the store repeats it until its time is over, and
 * the caller does not notice. Errors of a cluster are in test_redis_cluster.c. */
#include "contract.h"
#include "redis_rig.h"

#include "base/mem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALL_MS = 15000, KEYS = 2000, SLOTS = 1000000 };

static int setup(void **state)
{
    struct redis_fixture *fixture = mem_new(struct redis_fixture);

    *state = fixture;
    fixture->server.options[0] = "--enable-debug-command";
    fixture->server.options[1] = "yes";
    return redis_fixture_open(fixture, CALL_MS, SLOTS);
}

/* Starts a thread that acts while the call waits. */
static pthread_t begin(struct redis_fixture *fixture, void *(*work)(void *))
{
    pthread_t helper;

    assert_int_equal(pthread_create(&helper, NULL, work, fixture), 0);
    return helper;
}

static void end(pthread_t helper)
{
    assert_int_equal(pthread_join(helper, NULL), 0);
}

static bool says(struct redis_fixture *fixture, const char *section, const char *what)
{
    return strstr(redis_say(fixture->server.port, "INFO %s", section), what) != NULL;
}

static atomic_bool was_turned_away;

/* A script that keeps Redis busy until it has rejected a call. */
static void *run_until_one_was_turned_away(void *arg)
{
    struct redis_fixture *fixture = arg;
    const char *script = "local function turned_away() "
                         "return redis.call('INFO', "
                         "'commandstats'):match('cmdstat_fcall:[^%c]*rejected_calls=(%d+)') end "
                         "local before = turned_away() "
                         "repeat for i = 1, 200000 do end until turned_away() ~= before";
    const char *words[] = {"EVAL", script, "0"};

    redis_say_words(fixture->server.port, 3, words);
    atomic_store(&was_turned_away, true);
    return NULL;
}

static void test_busy(void **state)
{
    struct redis_fixture *fixture = *state;
    pthread_t runner;
    uint64_t job = 1;

    redis_say(fixture->server.port, "CONFIG SET busy-reply-threshold 1");
    assert_int_equal(rig_reserve(&fixture->rig, job, 1, "n1"), ERR_OK);
    runner = begin(fixture, run_until_one_was_turned_away);
    while (!atomic_load(&was_turned_away))
        assert_int_equal(rig_reserve(&fixture->rig, ++job, 1, "n1"), ERR_OK);
    end(runner);
    assert_int_equal(rig_counts(&fixture->rig, "n1").reserved, job);
}

static void *load_again(void *arg)
{
    struct redis_fixture *fixture = arg;

    redis_say(fixture->server.port, "DEBUG RELOAD");
    return NULL;
}

/* Redis loads its file, slowly, and serves its clients after every few keys. */
static void test_loading(void **state)
{
    struct redis_fixture *fixture = *state;
    int port = fixture->server.port;
    pthread_t loader;

    redis_say(port, "DEBUG POPULATE %d filler 100", KEYS);
    redis_say(port, "CONFIG SET key-load-delay 500");
    redis_say(port, "CONFIG SET loading-process-events-interval-bytes 1024");
    loader = begin(fixture, load_again);
    while (!says(fixture, "persistence", "loading:1"))
        sched_yield();
    assert_int_equal(rig_reserve(&fixture->rig, 1, 1, "n1"), ERR_OK);
    end(loader);
    assert_true(says(fixture, "errorstats", "errorstat_LOADING"));
    assert_int_equal(rig_commit(&fixture->rig, 1, 1, "n1"), ERR_OK);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, redis_fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_busy),
        TEST(test_loading),
    };

    return cmocka_run_group_tests_name("store/redis_turns", tests, NULL, NULL);
}
