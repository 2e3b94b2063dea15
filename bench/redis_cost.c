/* What a job costs Redis:
 *     bench_redis PORT PID KIND JOBS IN_FLIGHT [NODES] [SPEC_BYTES]
 * KIND is `store` (whole lives through the store: reserve with its record, commit, done),
 * `store-needs` (the same of jobs that need three resources and have two keys with limits),
 * `store-release` (reserve, then the send fails), or the seed's side: `seed`, `seed-release`,
 * `evalsha` (a script that does nothing, three times). Redis is a fresh one and is emptied. The
 * last line is JSON: jobs a second, CPU of Redis' main thread for each job, ops a call, and how
 * long a verb took. */
#include "redis_cost.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "store/op_queue.h"
#include "store/store.h"

#include <assert.h>
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LATENCIES = 1 << 20, STEPS_MAX = 3 };

struct slot {
    struct store_op op;
    int step;
    int64_t sent_us;
    char node[NODE_ID_MAX + 1];
};

static struct {
    const struct cost_plan *plan;
    struct work_queue work_queue;
    struct store *store;
    bool release; /* lives that end with a failed send */
    bool needs;   /* lives of jobs that have some, and keys */
    long want;    /* verbs */
    long sent;
    long done;
    struct msg *turn; /* ops that go out together when all answers were looked at, oldest first */
    struct msg **turn_end;
    char (*names)[16];
    uint32_t latency_us[LATENCIES];
} bench;

int64_t cost_redis_ns(const struct cost_plan *plan)
{
    char path[64];
    FILE *file;
    long long ns = 0;

    snprintf(path, sizeof path, "/proc/%d/schedstat", plan->pid);
    file = fopen(path, "r");
    if (!file || fscanf(file, "%lld", &ns) != 1) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(1);
    }
    fclose(file);
    return ns;
}

void cost_node_name(int number, char name[16])
{
    snprintf(name, 16, "node-%04d", number);
}

static void finished(struct store_op *op);

static int steps(void)
{
    return bench.release ? 2 : STEPS_MAX;
}

/* Tenants, each with some accounts. */
static const char *const demands[] = {
    "1 0 0 cpu=1000,licences=1,mem_mb=500 tenant:a,account:1",
    "1 0 0 cpu=1000,licences=1,mem_mb=500 tenant:a,account:2",
    "1 0 0 cpu=2000,licences=1,mem_mb=900 tenant:b,account:3",
    "1 0 0 cpu=2000,licences=1,mem_mb=900 tenant:c,account:4",
};

static void make_reserve(struct store_op *op)
{
    op->verb = STORE_RESERVE;
    op->job = job_id_next(clock_wall_ms(), 1);
    op->u.put.spec = (struct str){bench.plan->spec, bench.plan->spec_bytes};
    op->u.put.fresh = true;
    op->u.put.type = STR("f2f");
    op->u.put.max_attempts = 2;
    if (bench.needs)
        op->u.put.demand = str_of(demands[rand() % COUNT_OF(demands)]);
    op->u.put.ttl_ms = 5000;
    op->u.put.candidate_count = STORE_CANDIDATES_MAX;
    for (int i = 0; i < STORE_CANDIDATES_MAX; i++)
        op->u.put.candidates[i].node = str_of(bench.names[rand() % bench.plan->nodes]);
}

static void add(struct store_op *op)
{
    if (!bench.turn)
        bench.turn_end = &bench.turn;
    *bench.turn_end = &op->msg;
    bench.turn_end = &op->msg.next;
}

/* As a loop of the scheduler sends them. */
static void flush(void)
{
    struct msg *ops = bench.turn;

    bench.turn = NULL;
    if (ops && store_send_all(bench.store, ops))
        abort();
}

static void send_next(struct slot *slot)
{
    struct store_op *op = &slot->op;
    uint64_t job = op->job;

    if (bench.sent >= bench.want)
        return;
    str_copy(str_of(op->head.node), slot->node, sizeof slot->node);
    *op = (struct store_op){.reply_to = &bench.work_queue.inbox, .done = finished, .attempt = 1};
    if (slot->step == 0) {
        make_reserve(op);
    } else {
        op->job = job;
        op->node = str_of(slot->node);
        op->verb = slot->step == 1 && !bench.release ? STORE_ACK : STORE_FINISH;
        op->u.settle.terms = (struct lease_terms){45000, 45000};
        op->u.settle.outcome = bench.release ? STORE_SEND_FAILED : STORE_DONE;
        if (slot->step == 2)
            op->u.settle.result = STR("{\"text\":\"hello\"}");
    }
    slot->sent_us = clock_mono_us();
    bench.sent++;
    add(op);
}

static void finished(struct store_op *op)
{
    struct slot *slot = container_of(op, struct slot, op);

    if (op->err) {
        fprintf(stderr, "verb %d: %s\n", op->verb, err_name(op->err));
        exit(1);
    }
    if (op->verb != STORE_NODE_PUT)
        bench.latency_us[bench.done % LATENCIES] = (uint32_t)(clock_mono_us() - slot->sent_us);
    bench.done++;
    slot->step = (slot->step + 1) % steps();
    send_next(slot);
}

static void run_until_done(void)
{
    while (bench.done < bench.want) {
        flush();
        work_queue_wait(&bench.work_queue, 1000);
        inbox_run(&bench.work_queue.inbox);
    }
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

static void register_nodes(int nodes)
{
    struct slot *slots = mem_array(struct slot, (size_t)nodes);

    bench.want = bench.sent = nodes;
    bench.done = 0;
    for (int i = 0; i < nodes; i++) {
        struct store_op *op = &slots[i].op;

        cost_node_name(i, bench.names[i]);
        *op = (struct store_op){.reply_to = &bench.work_queue.inbox,
                                .done = finished,
                                .verb = STORE_NODE_PUT,
                                .node = str_of(bench.names[i])};
        op->u.node_put.own = op->u.node_put.health = NODE_READY;
        op->u.node_put.max = COST_NODE_SLOTS;
        op->u.node_put.facts = STR("{}");
        if (bench.needs)
            op->u.node_put.resources =
                STR("cpu=9000000/9000000,licences=9000/9000,mem_mb=9000000/9000000 ");
        add(op);
    }
    run_until_done();
    free(slots);
}

static void set_limits(void)
{
    static const struct {
        struct str pattern;
        struct limit limit;
    } rules[] = {
        {STR("tenant:*"), {.concurrency = 1000, .rate = -1, .queue = -1, .weight = 1}},
        {STR("account:*"),
         {.concurrency = -1, .rate = 1000000, .rate_ms = 60000, .queue = -1, .weight = 1}},
    };
    struct slot slots[COUNT_OF(rules)] = {0};

    bench.want = bench.sent = COUNT_OF(rules);
    bench.done = 0;
    for (size_t i = 0; i < COUNT_OF(rules); i++) {
        slots[i].op =
            (struct store_op){.reply_to = &bench.work_queue.inbox,
                              .done = finished,
                              .verb = STORE_LIMIT_SET,
                              .u.limit = {.pattern = rules[i].pattern, .limit = rules[i].limit}};
        add(&slots[i].op);
    }
    run_until_done();
}

static struct cost run_lives(void)
{
    const struct cost_plan *plan = bench.plan;
    struct slot *slots = mem_array(struct slot, (size_t)plan->flight);
    size_t count = (size_t)(plan->jobs * steps());
    struct store_status before;
    struct store_status after;
    int64_t cpu_ns = cost_redis_ns(plan);
    int64_t wall_us = clock_mono_us();

    store_status(bench.store, &before);
    bench.done = bench.sent = 0;
    bench.want = (long)count;
    for (long i = 0; i < plan->flight; i++)
        send_next(&slots[i]);
    run_until_done();
    wall_us = clock_mono_us() - wall_us;
    cpu_ns = cost_redis_ns(plan) - cpu_ns;
    store_status(bench.store, &after);
    if (count > LATENCIES)
        count = LATENCIES;
    qsort(bench.latency_us, count, sizeof bench.latency_us[0], by_value);
    free(slots);
    return (struct cost){
        .per_s = (double)plan->jobs * 1e6 / (double)wall_us,
        .redis_us = (double)cpu_ns / 1000 / (double)plan->jobs,
        .ops_a_call =
            (double)(after.calls - before.calls) / (double)(after.batches - before.batches),
        .p50_us = bench.latency_us[count / 2],
        .p99_us = bench.latency_us[count * 99 / 100],
    };
}

static struct cost run_store(const struct cost_plan *plan)
{
    struct store_config config = {.data_dir = ".", .in_flight_max = 100000, .timeout_ms = 5000};
    struct problem why = {0};
    struct cost cost;
    char url[64];

    snprintf(url, sizeof url, "redis://127.0.0.1:%d/0", plan->port);
    config.url = url;
    bench.plan = plan;
    bench.names = mem_alloc((size_t)plan->nodes * sizeof *bench.names);
    work_queue_init(&bench.work_queue);
    if (store_open(&config, &bench.store, &why)) {
        fprintf(stderr, "%s\n", why.detail);
        exit(1);
    }
    register_nodes(plan->nodes);
    if (bench.needs)
        set_limits();
    cost = run_lives();
    store_close(bench.store);
    free(bench.names);
    return cost;
}

static struct cost run_release(const struct cost_plan *plan)
{
    bench.release = true;
    return run_store(plan);
}

static struct cost run_needs(const struct cost_plan *plan)
{
    bench.needs = true;
    return run_store(plan);
}

static const struct {
    const char *name;
    struct cost (*run)(const struct cost_plan *plan);
} kinds[] = {
    {"store", run_store},      {"store-release", run_release},
    {"seed", seed_lives},      {"seed-release", seed_releases},
    {"evalsha", seed_nothing}, {"store-needs", run_needs},
};

int main(int argc, char **argv)
{
    struct cost_plan plan = {.nodes = argc > 6 ? atoi(argv[6]) : 50,
                             .spec_bytes = argc > 7 ? (size_t)atol(argv[7]) : 250};
    char *spec;

    if (argc < 6 || plan.nodes < 1 || plan.nodes > COST_NODES_MAX) {
        fprintf(stderr, "bench_redis PORT PID KIND JOBS IN_FLIGHT [NODES] [SPEC_BYTES]\n");
        return 2;
    }
    plan.port = atoi(argv[1]);
    plan.pid = atoi(argv[2]);
    plan.jobs = atol(argv[4]);
    plan.flight = atol(argv[5]);
    spec = mem_alloc(plan.spec_bytes + 1);
    memset(spec, 'x', plan.spec_bytes);
    plan.spec = spec;
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        if (strcmp(argv[3], kinds[i].name) != 0)
            continue;
        struct cost cost = kinds[i].run(&plan);
        printf("{\"per_s\":%.1f,\"redis_us\":%.2f,\"ops_a_call\":%.2f,\"p50_us\":%u,"
               "\"p99_us\":%u}\n",
               cost.per_s, cost.redis_us, cost.ops_a_call, cost.p50_us, cost.p99_us);
        free(spec);
        return 0;
    }
    fprintf(stderr, "%s is no kind\n", argv[3]);
    return 2;
}
