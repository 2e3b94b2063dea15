/* The seed's scripts as its section 9.2 describes them, for comparison only. `flight` jobs share
 * one connection; each waits for the answer to its last step before it takes the next, as the
 * seed's code does, and what is ready meanwhile goes out in one write: the seed at its best. */
#include "redis_cost.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"

#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TRY_RESERVE, COMMIT_RESERVE, RELEASE_RESERVE, DEC_RUNNING, NOTHING, SCRIPT_COUNT };

/* Bracketed: clang takes literals that follow each other in a table for a forgotten comma. */
static const char *const scripts[SCRIPT_COUNT] = {
    [TRY_RESERVE] = ("local health = redis.call('HGET', KEYS[2], 'health') "
                     "if health ~= 'ready' then return {0, 'NOT_READY'} end "
                     "local maxv = tonumber(redis.call('HGET', KEYS[1], 'max') or '0') "
                     "local running = tonumber(redis.call('HGET', KEYS[1], 'running') or '0') "
                     "local reserved = tonumber(redis.call('HGET', KEYS[1], 'reserved') or '0') "
                     "if maxv <= 0 then return {0, 'NO_CAPACITY'} end "
                     "if (running + reserved) >= maxv then return {0, 'FULL'} end "
                     "redis.call('HINCRBY', KEYS[1], 'reserved', 1) "
                     "local ok = redis.call('SET', KEYS[3], ARGV[2], 'PX', ARGV[1], 'NX') "
                     "if not ok then redis.call('HINCRBY', KEYS[1], 'reserved', -1) "
                     "return {0, 'RESV_EXISTS'} end "
                     "return {1, 'OK'}"),
    [COMMIT_RESERVE] = ("if redis.call('EXISTS', KEYS[2]) == 0 then return 0 end "
                        "redis.call('HINCRBY', KEYS[1], 'reserved', -1) "
                        "redis.call('HINCRBY', KEYS[1], 'running', 1) "
                        "redis.call('DEL', KEYS[2]) return 1"),
    [RELEASE_RESERVE] = ("if redis.call('EXISTS', KEYS[2]) == 0 then return 0 end "
                         "if tonumber(redis.call('HGET', KEYS[1], 'reserved') or '0') > 0 then "
                         "redis.call('HINCRBY', KEYS[1], 'reserved', -1) end "
                         "redis.call('DEL', KEYS[2]) return 1"),
    [DEC_RUNNING] =
        ("if tonumber(redis.call('HGET', KEYS[1], 'running') or '0') <= 0 then return 0 end "
         "redis.call('HINCRBY', KEYS[1], 'running', -1) return 1"),
    [NOTHING] = "return 1",
};

struct seed {
    const struct cost_plan *plan;
    redisContext *context;
    char shas[SCRIPT_COUNT][41];
    long begun; /* jobs so far: the number of the next one */
};

struct life {
    long number;
    char node[16];
    int step;
    int replies; /* still to come for this step */
};

static void say(struct seed *seed, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    if (redisvAppendCommand(seed->context, format, args) != REDIS_OK)
        abort();
    va_end(args);
}

/* A step sends something and tells how many replies will come; 0: the life is over. */
typedef int seed_step(struct seed *seed, struct life *life);

static int try_reserve(struct seed *seed, struct life *life)
{
    say(seed,
        "EVALSHA %s 3 sched:node:%s:cap sched:node:%s:meta sched:resv:%ld:1:%s 5000 "
        "{\"node_id\":\"%s\",\"job_id\":\"%ld\",\"attempt_id\":1,\"created_ms\":1,\"ttl_ms\":5000}",
        seed->shas[TRY_RESERVE], life->node, life->node, life->number, life->node, life->node,
        life->number);
    return 1;
}

static int write_job(struct seed *seed, struct life *life)
{
    say(seed,
        "HSET sched:job:%ld state DISPATCHED session_id s src en tgt zh node_id %s attempt 1 "
        "updated_ms 1 payload %b",
        life->number, life->node, seed->plan->spec, seed->plan->spec_bytes);
    say(seed, "PEXPIRE sched:job:%ld 3600000", life->number);
    return 2;
}

static int commit(struct seed *seed, struct life *life)
{
    say(seed, "EVALSHA %s 2 sched:node:%s:cap sched:resv:%ld:1:%s", seed->shas[COMMIT_RESERVE],
        life->node, life->number, life->node);
    say(seed, "HSET sched:job:%ld state ACKED updated_ms 2", life->number);
    return 2;
}

static int dec_running(struct seed *seed, struct life *life)
{
    say(seed, "EVALSHA %s 1 sched:node:%s:cap", seed->shas[DEC_RUNNING], life->node);
    say(seed, "HSET sched:job:%ld state DONE updated_ms 3 result %s", life->number,
        "{\"text\":\"hello\"}");
    return 2;
}

static int release(struct seed *seed, struct life *life)
{
    say(seed, "EVALSHA %s 2 sched:node:%s:cap sched:resv:%ld:1:%s", seed->shas[RELEASE_RESERVE],
        life->node, life->number, life->node);
    say(seed, "HSET sched:job:%ld state FAILED updated_ms 2", life->number);
    return 2;
}

static int nothing(struct seed *seed, struct life *life)
{
    say(seed, "EVALSHA %s 1 sched:node:%s:cap", seed->shas[NOTHING], life->node);
    return 1;
}

static bool step_on(struct seed *seed, struct life *life, seed_step *const *steps)
{
    if (!steps[life->step]) {
        if (seed->begun >= seed->plan->jobs)
            return false;
        life->number = seed->begun++;
        life->step = 0;
        cost_node_name((int)(rand() % seed->plan->nodes), life->node);
    }
    life->replies = steps[life->step](seed, life);
    life->step++;
    return true;
}

static void check(const redisReply *reply)
{
    if (reply->type == REDIS_REPLY_ERROR) {
        fprintf(stderr, "%s\n", reply->str);
        exit(1);
    }
}

/* Replies come in the order of the steps that wait for them. */
static void live(struct seed *seed, seed_step *const *steps)
{
    long flight = seed->plan->flight;
    struct life *lives = mem_array(struct life, (size_t)flight);
    long *queue = mem_array(long, (size_t)flight);
    long head = 0;
    long waiting = 0;

    for (long i = 0; i < flight; i++) {
        while (steps[lives[i].step])
            lives[i].step++; /* as if one had just ended */
        if (step_on(seed, &lives[i], steps))
            queue[waiting++] = i;
    }
    while (waiting) {
        struct life *life = &lives[queue[head]];
        void *reply = NULL;

        /* What is here already first; then all that is ready goes out, and we wait. */
        if (redisReaderGetReply(seed->context->reader, &reply) != REDIS_OK ||
            (!reply && redisGetReply(seed->context, &reply) != REDIS_OK))
            abort();
        check(reply);
        freeReplyObject(reply);
        if (--life->replies > 0)
            continue;
        long at = queue[head];
        head = (head + 1) % flight;
        waiting--;
        if (step_on(seed, life, steps))
            queue[(head + waiting++) % flight] = at;
    }
    free(queue);
    free(lives);
}

static void prepare(struct seed *seed)
{
    seed->context = redisConnect("127.0.0.1", seed->plan->port);
    if (seed->context->err)
        abort();
    for (int i = 0; i < SCRIPT_COUNT; i++) {
        redisReply *reply = redisCommand(seed->context, "SCRIPT LOAD %s", scripts[i]);

        check(reply);
        str_copy(str_of(reply->str), seed->shas[i], sizeof seed->shas[i]);
        freeReplyObject(reply);
    }
    for (int i = 0; i < seed->plan->nodes; i++) {
        char name[16];

        cost_node_name(i, name);
        freeReplyObject(redisCommand(seed->context,
                                     "HSET sched:node:%s:cap max %d running 0 reserved 0", name,
                                     COST_NODE_SLOTS));
        freeReplyObject(redisCommand(seed->context, "HSET sched:node:%s:meta health ready", name));
    }
}

static struct cost run(const struct cost_plan *plan, seed_step *const *steps)
{
    struct seed seed = {.plan = plan};
    struct cost cost = {.ops_a_call = 1};
    int64_t cpu_ns;
    int64_t wall_us;

    prepare(&seed);
    cpu_ns = cost_redis_ns(plan);
    wall_us = clock_mono_us();
    live(&seed, steps);
    wall_us = clock_mono_us() - wall_us;
    cpu_ns = cost_redis_ns(plan) - cpu_ns;
    cost.per_s = (double)plan->jobs * 1e6 / (double)wall_us;
    cost.redis_us = (double)cpu_ns / 1000 / (double)plan->jobs;
    freeReplyObject(redisCommand(seed.context, "FLUSHALL"));
    redisFree(seed.context);
    return cost;
}

struct cost seed_lives(const struct cost_plan *plan)
{
    return run(plan, (seed_step *const[]){try_reserve, write_job, commit, dec_running, NULL});
}

struct cost seed_releases(const struct cost_plan *plan)
{
    return run(plan, (seed_step *const[]){try_reserve, write_job, release, NULL});
}

struct cost seed_nothing(const struct cost_plan *plan)
{
    return run(plan, (seed_step *const[]){nothing, nothing, nothing, NULL});
}
