/* What a job costs Redis:
 *     bench_redis [jobs] [spec_bytes] [in_flight: only this, without the seed]
 * Whole lives (reserve with its record, commit, done) through the store at several numbers of jobs
 * in flight, and beside them the seed's scripts (R001-29..32) sent in pipelines as long. Prints
 * jobs a second, latency of a verb, and CPU of Redis' main thread for each job. Build only: not a
 * test. */
#include "redis_rig.h"

#include "base/clock.h"
#include "base/mem.h"

#include <assert.h>
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NODES = 1000, NODE_MAX = 64, VERBS = 3, LATENCIES = 1 << 20 };

struct slot {
    struct store_op op;
    int step;
    int64_t sent_us;
    char node[NODE_ID_MAX + 1];
};

static struct {
    struct redis_server server;
    struct desk desk;
    struct store *store;
    long want; /* verbs */
    long sent;
    long done;
    char spec[65536];
    size_t spec_len;
    char names[NODES][16];
    uint32_t latency_us[LATENCIES];
} bench;

static int64_t redis_cpu_ns(void)
{
    char path[64];
    FILE *file;
    long long ns = 0;

    snprintf(path, sizeof path, "/proc/%d/schedstat", (int)bench.server.pid);
    file = fopen(path, "r");
    if (!file || fscanf(file, "%lld", &ns) != 1)
        abort();
    fclose(file);
    return ns;
}

static void finished(struct store_op *op);

static void send_next(struct slot *slot)
{
    struct store_op *op = &slot->op;
    uint64_t job = op->job;

    if (bench.sent >= bench.want)
        return;
    str_copy(str_of(op->head.node), slot->node, sizeof slot->node);
    *op = (struct store_op){.reply_to = &bench.desk.inbox, .done = finished, .attempt = 1};
    if (slot->step == 0) {
        op->verb = STORE_RESERVE;
        op->job = job_id_next(clock_wall_ms(), 1);
        op->u.put.spec = (struct str){bench.spec, bench.spec_len};
        op->u.put.max_attempts = 2;
        op->u.put.ttl_ms = 5000;
        op->u.put.candidate_count = 4;
        for (int i = 0; i < 4; i++)
            op->u.put.candidates[i].node = str_of(bench.names[rand() % NODES]);
    } else {
        op->job = job;
        op->node = str_of(slot->node);
        op->verb = slot->step == 1 ? STORE_COMMIT : STORE_FINISH;
        op->u.settle.running_ttl_ms = 45000;
        op->u.settle.outcome = STORE_DONE;
        if (slot->step == 2)
            op->u.settle.result = STR("{\"text\":\"hello\"}");
    }
    slot->sent_us = clock_mono_us();
    bench.sent++;
    if (store_send(bench.store, op))
        abort();
}

static void finished(struct store_op *op)
{
    struct slot *slot = container_of(op, struct slot, op);

    if (op->err) {
        printf("verb %d: %s\n", op->verb, err_name(op->err));
        abort();
    }
    if (op->verb != STORE_NODE_PUT)
        bench.latency_us[bench.done % LATENCIES] = (uint32_t)(clock_mono_us() - slot->sent_us);
    bench.done++;
    slot->step = (slot->step + 1) % VERBS;
    send_next(slot);
}

static void run_until_done(void)
{
    while (bench.done < bench.want) {
        desk_wait(&bench.desk, 1000);
        inbox_run(&bench.desk.inbox);
    }
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

static void register_nodes(void)
{
    struct slot *slots = mem_array(struct slot, NODES);

    bench.want = bench.sent = NODES;
    bench.done = 0;
    for (int i = 0; i < NODES; i++) {
        struct store_op *op = &slots[i].op;

        *op = (struct store_op){.reply_to = &bench.desk.inbox,
                                .done = finished,
                                .verb = STORE_NODE_PUT,
                                .node = str_of(bench.names[i])};
        op->u.node_put.own = op->u.node_put.health = NODE_READY;
        op->u.node_put.max = NODE_MAX;
        op->u.node_put.facts = STR("{}");
        if (store_send(bench.store, op))
            abort();
    }
    run_until_done();
    free(slots);
}

static void run_store(long flight, long jobs)
{
    struct slot *slots = mem_array(struct slot, (size_t)flight);
    size_t count = (size_t)(jobs * VERBS < LATENCIES ? jobs * VERBS : LATENCIES);
    struct store_status before;
    struct store_status after;
    int64_t cpu_ns = redis_cpu_ns();
    int64_t wall_us = clock_mono_us();

    store_status(bench.store, &before);
    bench.done = bench.sent = 0;
    bench.want = jobs * VERBS;
    for (long i = 0; i < flight; i++)
        send_next(&slots[i]);
    run_until_done();
    wall_us = clock_mono_us() - wall_us;
    cpu_ns = redis_cpu_ns() - cpu_ns;
    store_status(bench.store, &after);
    qsort(bench.latency_us, count, sizeof bench.latency_us[0], by_value);
    printf("store, %4ld in flight: %6.0f jobs/s, %4.1f verbs a call, Redis %5.1f us/job, a verb "
           "p50 %u p99 %u us\n",
           flight, (double)jobs * 1e6 / (double)wall_us,
           (double)(after.calls - before.calls) / (double)(after.batches - before.batches),
           (double)cpu_ns / 1000 / (double)jobs, bench.latency_us[count / 2],
           bench.latency_us[count * 99 / 100]);
    free(slots);
}

/* The seed's scripts, as section 9.2 of 001 describes them. */
/* Bracketed: clang takes literals that follow each other in a table for a forgotten comma. */
static const char *const scripts[] = {
    ("if redis.call('HGET', KEYS[2], 'health') ~= 'ready' then return {0, 'NOT_READY'} end "
     "local max = tonumber(redis.call('HGET', KEYS[1], 'max') or '0') "
     "local running = tonumber(redis.call('HGET', KEYS[1], 'running') or '0') "
     "local reserved = tonumber(redis.call('HGET', KEYS[1], 'reserved') or '0') "
     "if max <= 0 then return {0, 'NO_CAPACITY'} end "
     "if running + reserved >= max then return {0, 'FULL'} end "
     "redis.call('HINCRBY', KEYS[1], 'reserved', 1) "
     "if not redis.call('SET', KEYS[3], ARGV[2], 'PX', ARGV[1], 'NX') then "
     "redis.call('HINCRBY', KEYS[1], 'reserved', -1) return {0, 'RESV_EXISTS'} end "
     "return {1, 'OK'}"),
    ("if redis.call('EXISTS', KEYS[2]) == 0 then return 0 end "
     "redis.call('HINCRBY', KEYS[1], 'reserved', -1) "
     "redis.call('HINCRBY', KEYS[1], 'running', 1) redis.call('DEL', KEYS[2]) return 1"),
    ("if tonumber(redis.call('HGET', KEYS[1], 'running') or '0') <= 0 then return 0 end "
     "redis.call('HINCRBY', KEYS[1], 'running', -1) return 1"),
};

static void drop_replies(redisContext *context, long count)
{
    for (long i = 0; i < count; i++) {
        void *reply;

        if (redisGetReply(context, &reply) != REDIS_OK)
            abort();
        if (((redisReply *)reply)->type == REDIS_REPLY_ERROR)
            printf("%s\n", ((redisReply *)reply)->str);
        freeReplyObject(reply);
    }
}

/* `flight` jobs at a time through all their steps; each step one pipeline. */
static void seed_lives(redisContext *context, char shas[VERBS][41], long first, long flight)
{
    long replies = 0;

    for (long i = first; i < first + flight; i++, replies += 3) {
        const char *node = bench.names[i % NODES];

        redisAppendCommand(context,
                           "EVALSHA %s 3 sched:node:%s:cap sched:node:%s:meta sched:resv:%ld 5000 "
                           "{\"node_id\":\"%s\",\"job_id\":\"%ld\",\"attempt_id\":1}",
                           shas[0], node, node, i, node, i);
        redisAppendCommand(context,
                           "HSET sched:job:%ld state DISPATCHED session_id s src en tgt zh node_id "
                           "%s attempt 1 updated_ms 1 payload %b",
                           i, node, bench.spec, bench.spec_len);
        redisAppendCommand(context, "PEXPIRE sched:job:%ld 3600000", i);
    }
    drop_replies(context, replies);
    for (long i = first; i < first + flight; i++) {
        redisAppendCommand(context, "EVALSHA %s 2 sched:node:%s:cap sched:resv:%ld", shas[1],
                           bench.names[i % NODES], i);
        redisAppendCommand(context, "HSET sched:job:%ld state ACKED updated_ms 2", i);
    }
    drop_replies(context, flight * 2);
    for (long i = first; i < first + flight; i++) {
        redisAppendCommand(context, "EVALSHA %s 1 sched:node:%s:cap", shas[2],
                           bench.names[i % NODES]);
        redisAppendCommand(context, "HSET sched:job:%ld state DONE updated_ms 3 result %s", i,
                           "{\"text\":\"hello\"}");
    }
    drop_replies(context, flight * 2);
}

static void run_seed(long flight, long jobs)
{
    redisContext *context = redisConnect("127.0.0.1", bench.server.port);
    char shas[VERBS][41];
    int64_t cpu_ns;
    int64_t wall_us;

    for (int i = 0; i < VERBS; i++) {
        redisReply *reply = redisCommand(context, "SCRIPT LOAD %s", scripts[i]);

        str_copy(str_of(reply->str), shas[i], sizeof shas[i]);
        freeReplyObject(reply);
    }
    for (int i = 0; i < NODES; i++) {
        freeReplyObject(redisCommand(
            context, "HSET sched:node:%s:cap max 1000 running 0 reserved 0", bench.names[i]));
        freeReplyObject(
            redisCommand(context, "HSET sched:node:%s:meta health ready", bench.names[i]));
    }
    cpu_ns = redis_cpu_ns();
    wall_us = clock_mono_us();
    for (long done = 0; done < jobs; done += flight)
        seed_lives(context, shas, done, flight);
    wall_us = clock_mono_us() - wall_us;
    cpu_ns = redis_cpu_ns() - cpu_ns;
    printf("seed,  %4ld in flight: %6.0f jobs/s, Redis %5.1f us/job\n", flight,
           (double)jobs * 1e6 / (double)wall_us, (double)cpu_ns / 1000 / (double)jobs);
    redisFree(context);
    redis_say(bench.server.port, "FLUSHALL");
}

int main(int argc, char **argv)
{
    static const long flights[] = {1, 4, 16, 64, 256};
    long jobs = argc > 1 ? atol(argv[1]) : 20000;
    long only = argc > 3 ? atol(argv[3]) : 0;
    struct store_config config = {.data_dir = ".", .in_flight_max = 100000, .timeout_ms = 5000};
    struct problem why;
    char url[64];

    bench.spec_len = argc > 2 ? (size_t)atol(argv[2]) : 250;
    assert(bench.spec_len < sizeof bench.spec);
    memset(bench.spec, 'x', bench.spec_len);
    redis_server_start(&bench.server);
    snprintf(url, sizeof url, "redis://127.0.0.1:%d/0", bench.server.port);
    config.url = url;
    desk_init(&bench.desk);
    for (int i = 0; i < NODES; i++)
        snprintf(bench.names[i], sizeof bench.names[i], "node-%04d", i);
    for (size_t i = 0; i < COUNT_OF(flights); i++) {
        if (only && only != flights[i])
            continue;
        if (!only)
            run_seed(flights[i], flights[i] == 1 ? jobs / 4 : jobs);
        if (store_open(&config, &bench.store, &why)) {
            printf("%s\n", why.detail);
            return 1;
        }
        register_nodes();
        run_store(flights[i], flights[i] == 1 ? jobs / 4 : jobs);
        store_close(bench.store);
        redis_say(bench.server.port, "FLUSHALL");
    }
    redis_server_remove(&bench.server);
    return 0;
}
