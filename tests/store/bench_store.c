/* Throughput of the embedded store on this machine:
 *     bench_store DIR [reserve|life] [in_flight] [ops] [spec_bytes] [needs]
 * One producer keeps `in_flight` ops under way. `reserve` makes a new job with each op; `life`
 * takes each job through reserve, commit and done. With `needs` each job takes three resources and
 * has two keys with a limit, of a hundred tenants. Prints verbs a second, latency, and the CPU time
 * of the store's threads for each verb; the flush thread is measured until it has caught up. Build
 * only: it is not a test. */
#include "base/clock.h"

#include <assert.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "store/op_queue.h"
#include "store/store.h"

enum { NODES = 1000, LATENCIES = 1 << 20, FLUSH_MS = 500, TENANTS = 100 };

struct slot {
    struct store_op op;
    int step;
    int64_t sent_us;
    char node[NODE_ID_MAX + 1]; /* the node of the job */
};

static struct {
    struct work_queue work_queue;
    struct store *store;
    bool life;
    bool needs;
    long want;
    long sent;
    long done;
    char spec[65536];
    size_t spec_len;
    char names[NODES][16];
    char demands[TENANTS][80];
    uint32_t latency_us[LATENCIES];
} bench;

static void finished(struct store_op *op);

static void send_next(struct slot *slot)
{
    struct store_op *op = &slot->op;
    uint64_t job = op->job;

    if (bench.sent >= bench.want)
        return;
    str_copy(str_of(op->head.node), slot->node, sizeof slot->node);
    *op = (struct store_op){.reply_to = &bench.work_queue.inbox, .done = finished, .attempt = 1};
    if (slot->step == 0) {
        op->verb = STORE_RESERVE;
        op->job = job_id_next(clock_wall_ms(), 1);
        op->u.put.spec = (struct str){bench.spec, bench.spec_len};
        if (bench.needs)
            op->u.put.demand = str_of(bench.demands[rand() % TENANTS]);
        op->u.put.max_attempts = 2;
        op->u.put.ttl_ms = 5000;
        op->u.put.candidate_count = 4;
        for (int i = 0; i < 4; i++) {
            struct str name = str_of(bench.names[rand() % NODES]);

            op->u.put.candidates[i] =
                (struct store_candidate){.node = name, .hash = str_hash(name)};
        }
    } else {
        op->job = job;
        op->node = str_of(slot->node);
        op->verb = slot->step == 1 ? STORE_ACK : STORE_FINISH;
        op->u.settle.terms = (struct lease_terms){45000, 45000};
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
    if (op->verb != STORE_NODE_PUT && op->verb != STORE_LIMIT_SET)
        bench.latency_us[bench.done % LATENCIES] = (uint32_t)(clock_mono_us() - slot->sent_us);
    bench.done++;
    slot->step = bench.life ? (slot->step + 1) % 3 : 0;
    send_next(slot);
}

static void run_until_done(void)
{
    while (bench.done < bench.want) {
        work_queue_wait(&bench.work_queue, 1000);
        inbox_run(&bench.work_queue.inbox);
    }
}

/* CPU time, in ns, of the thread with this name. */
static int64_t cpu_ns(const char *name)
{
    DIR *dir = opendir("/proc/self/task");
    int64_t ns = 0;

    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[300];
        char comm[32] = "";
        FILE *file;

        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        if (!(file = fopen(path, "r")))
            continue;
        if (!fgets(comm, sizeof comm, file))
            comm[0] = '\0';
        fclose(file);
        comm[strcspn(comm, "\n")] = '\0';
        snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", entry->d_name);
        if (strcmp(comm, name) || !(file = fopen(path, "r")))
            continue;
        if (fscanf(file, "%ld", &ns) != 1)
            ns = 0;
        fclose(file);
    }
    closedir(dir);
    return ns;
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

static void register_nodes(int32_t max)
{
    struct slot *slots = mem_array(struct slot, NODES);

    for (int i = 0; i < NODES; i++) {
        snprintf(bench.names[i], sizeof bench.names[i], "node-%04d", i);
        slots[i].op = (struct store_op){.reply_to = &bench.work_queue.inbox,
                                        .done = finished,
                                        .verb = STORE_NODE_PUT,
                                        .node = str_of(bench.names[i])};
        slots[i].op.u.node_put.own = slots[i].op.u.node_put.health = NODE_READY;
        slots[i].op.u.node_put.max = max;
        slots[i].op.u.node_put.facts = STR("{}");
        if (bench.needs)
            slots[i].op.u.node_put.resources =
                STR("cpu=1000000000/1000000000,licences=1000000000/1000000000,"
                    "mem_mb=1000000000/1000000000 ");
        if (store_send(bench.store, &slots[i].op))
            abort();
    }
    bench.want = NODES;
    bench.sent = NODES;
    run_until_done();
    free(slots);
}

static void set_limit(void)
{
    struct slot slot = {
        .op = {.reply_to = &bench.work_queue.inbox, .done = finished, .verb = STORE_LIMIT_SET}};

    slot.op.u.limit.pattern = STR("*");
    slot.op.u.limit.limit = limit_none;
    slot.op.u.limit.limit.concurrency = DEMAND_AMOUNT_MAX;
    for (int i = 0; i < TENANTS; i++)
        snprintf(bench.demands[i], sizeof bench.demands[i],
                 "1 0 0 cpu=1,licences=1,mem_mb=1 tenant:%d,account:api-%d", i, i % 7);
    bench.done = 0;
    bench.want = bench.sent = 1;
    if (store_send(bench.store, &slot.op))
        abort();
    run_until_done();
}

int main(int argc, char **argv)
{
    const char *dir = argc > 1 ? argv[1] : "bench-data";
    long flight = argc > 3 ? atol(argv[3]) : 100;
    long ops = argc > 4 ? atol(argv[4]) : 200000;
    struct store_config config = {.url = "embedded:", .data_dir = dir, .in_flight_max = 100000};
    struct slot *slots = mem_array(struct slot, (size_t)flight);
    struct problem why;
    struct store_status status;
    int64_t wall_us;
    int64_t store_ns;
    int64_t helper_ns;
    int64_t flush_ns;

    bench.life = argc > 2 && strcmp(argv[2], "life") == 0;
    bench.needs = argc > 6 && strcmp(argv[6], "needs") == 0;
    bench.spec_len = argc > 5 ? (size_t)atol(argv[5]) : 250;
    assert(bench.spec_len < sizeof bench.spec);
    memset(bench.spec, 'x', bench.spec_len);
    work_queue_init(&bench.work_queue);
    wall_us = clock_mono_us();
    if (store_open(&config, &bench.store, &why)) {
        printf("%s\n", why.detail);
        return 1;
    }
    printf("open %.1f ms\n", (double)(clock_mono_us() - wall_us) / 1000);
    register_nodes(bench.life ? 1000000 : 100000000);
    if (bench.needs)
        set_limit();
    store_ns = cpu_ns("berth-store");
    helper_ns = cpu_ns("berth-reader");
    flush_ns = cpu_ns("berth-flush");
    bench.done = bench.sent = 0;
    bench.want = ops;
    wall_us = clock_mono_us();
    for (long i = 0; i < flight; i++)
        send_next(&slots[i]);
    run_until_done();
    wall_us = clock_mono_us() - wall_us;
    store_ns = cpu_ns("berth-store") - store_ns;
    helper_ns = cpu_ns("berth-reader") - helper_ns;
    usleep(2 * FLUSH_MS * 1000);
    flush_ns = cpu_ns("berth-flush") - flush_ns;
    store_status(bench.store, &status);
    size_t count = (size_t)(ops < LATENCIES ? ops : LATENCIES);
    qsort(bench.latency_us, count, sizeof bench.latency_us[0], by_value);
    printf("%s, %ld in flight: %.0f verbs/s, batch %.1f, store thread %.2f us/verb, helper %.2f, "
           "flush thread %.2f, "
           "latency p50 %u p99 %u p99.9 %u max %u us\n",
           bench.life ? "life" : "reserve", flight, (double)ops * 1e6 / (double)wall_us,
           (double)status.calls / (double)status.batches, (double)store_ns / 1000 / (double)ops,
           (double)helper_ns / 1000 / (double)ops, (double)flush_ns / 1000 / (double)ops,
           bench.latency_us[count / 2], bench.latency_us[count * 99 / 100],
           bench.latency_us[count * 999 / 1000], bench.latency_us[count - 1]);
    store_close(bench.store);
    free(slots);
    return 0;
}
