/* Latency of a fleet's calls on a PostgreSQL of your own, whose tables are dropped first:
 *     bench_deploys URL [agents] [deployments] [old leases] [changes a second] [seconds]
 * Every 5 s each agent renews its lease, reports its status and reads its view. `changes` are
 * deployments given up and claimed again, which every agent then reads. Prints the latency of each
 * kind of call, measured from the moment it was due. Build only: it is not a test. */
#include <libpq-fe.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "store/deploys.h"
#include "store/op_queue.h"

enum { EVERY_MS = 5000, LEASE_MS = 45000, RENEW = 0, STATUS, VIEW, CHANGE, KINDS };

static const char *const kinds[KINDS] = {"renew", "status", "view", "change"};

struct caller {
    struct deploys_op op;
    struct arena arena;
    char node[24], id[24];
    int kind;
    int64_t next_ms, due_ms; /* when the next call is due, and when the current one was */
    int64_t version, facts, generation;
    bool busy, owned;
};

static struct {
    struct work_queue work_queue;
    struct deploys *deploys;
    long agents, deployments, old, changes, seconds;
    struct caller *callers[KINDS];
    struct {
        uint32_t *ms;
        size_t count, room;
        long failed, late;
    } results[KINDS];
} bench;

static void ask(PGconn *conn, const char *sql)
{
    PGresult *result = PQexec(conn, sql);

    if (PQresultStatus(result) != PGRES_COMMAND_OK && PQresultStatus(result) != PGRES_TUPLES_OK) {
        fprintf(stderr, "%s\n", PQerrorMessage(conn));
        exit(1);
    }
    PQclear(result);
}

#define NOW "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"

static void fill(const char *url)
{
    PGconn *conn = PQconnectdb(url);
    char sql[1024];

    snprintf(sql, sizeof sql,
             "INSERT INTO deployment (id, type, command, address, generation) SELECT 'd' || i,"
             " 'deployment', 'run', 'n' || (i %% %ld), 1 FROM generate_series(0, %ld) i",
             bench.agents, bench.deployments - 1);
    ask(conn, sql);
    snprintf(sql, sizeof sql,
             "INSERT INTO berth_node_lease (address, until_ms, renewed_ms) SELECT 'n' || i, " NOW
             " + 45000, " NOW " FROM generate_series(0, %ld) i",
             bench.agents - 1);
    ask(conn, sql);
    snprintf(sql, sizeof sql,
             "INSERT INTO berth_node_lease (address, until_ms, renewed_ms) SELECT 'old' || i, " NOW
             " - 20000 - i, " NOW " FROM generate_series(1, %ld) i",
             bench.old);
    ask(conn, sql);
    ask(conn, "ANALYZE");
    PQfinish(conn);
}

static void note(struct caller *caller)
{
    int64_t ms = clock_mono_ms() - caller->due_ms;

    if (bench.results[caller->kind].count == bench.results[caller->kind].room) {
        bench.results[caller->kind].room = 2 * bench.results[caller->kind].room + 1024;
        bench.results[caller->kind].ms = realloc(
            bench.results[caller->kind].ms, bench.results[caller->kind].room * sizeof(uint32_t));
    }
    bench.results[caller->kind].ms[bench.results[caller->kind].count++] = (uint32_t)ms;
}

static void done(struct deploys_op *op);

static void send_op(struct caller *caller)
{
    struct deploys_op *op = &caller->op;

    *op = (struct deploys_op){.reply_to = &bench.work_queue.inbox,
                              .done = done,
                              .arena = &caller->arena,
                              .node = str_of(caller->node),
                              .id = str_of(caller->id)};
    op->instance = caller->kind == CHANGE ? STR_NONE : str_of(caller->node);
    switch (caller->kind) {
    case RENEW:
        op->verb = DEPLOYS_RENEW;
        op->u.renew.lease_ms = LEASE_MS;
        op->u.renew.if_version = caller->version;
        break;
    case STATUS:
        op->verb = DEPLOYS_STATUS;
        op->u.status.partial = true;
        break;
    case VIEW:
        op->verb = DEPLOYS_VIEW;
        op->u.view.if_version = caller->version;
        op->u.view.if_facts = caller->facts;
        op->u.view.delta = true;
        op->u.view.within_ms = LEASE_MS / 2;
        break;
    case CHANGE:
        op->verb = caller->owned ? DEPLOYS_YIELD : DEPLOYS_CLAIM;
        op->u.claim.observed = STR("");
        op->u.claim.generation = caller->generation;
    }
    caller->busy = true;
    caller->due_ms = caller->next_ms;
    if (deploys_send(bench.deploys, op)) {
        caller->busy = false;
        bench.results[caller->kind].failed++;
    }
}

/* A view is read to its last page. */
static void done(struct deploys_op *op)
{
    struct caller *caller = container_of(op, struct caller, op);

    caller->busy = false;
    if (op->err) {
        bench.results[caller->kind].failed++;
    } else if (caller->kind == VIEW && op->u.view.more) {
        struct str after = op->u.view.items[op->u.view.count - 1].id;
        char cursor[64];

        str_copy(after, cursor, sizeof cursor);
        arena_reset(&caller->arena);
        after = arena_str(&caller->arena, str_of(cursor));
        if (!op->u.view.after.len)
            caller->facts = op->u.view.facts;
        *op = (struct deploys_op){.reply_to = &bench.work_queue.inbox,
                                  .done = done,
                                  .arena = &caller->arena,
                                  .node = str_of(caller->node),
                                  .verb = DEPLOYS_VIEW,
                                  .u.view = {.if_version = DEPLOYS_ANY, .after = after}};
        caller->busy = !deploys_send(bench.deploys, op);
        return;
    } else if (caller->kind == CHANGE) {
        caller->owned = !caller->owned;
        caller->generation = op->row.generation;
    } else {
        caller->version = caller->kind == STATUS ? 0 : op->version;
        if (caller->kind == VIEW && !op->u.view.after.len)
            caller->facts = op->u.view.facts;
    }
    note(caller);
    arena_reset(&caller->arena);
}

static int by_size(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

static void report(void)
{
    for (int kind = 0; kind < KINDS; kind++) {
        size_t count = bench.results[kind].count;
        uint32_t *ms = bench.results[kind].ms;

        if (!count && !bench.results[kind].failed)
            continue;
        qsort(ms, count, sizeof *ms, by_size);
        printf("%-8s %8.0f/s  p50 %5u ms  p99 %5u ms  max %5u ms  failed %ld  late %ld\n",
               kinds[kind], (double)count / (double)bench.seconds, count ? ms[count / 2] : 0,
               count ? ms[count * 99 / 100] : 0, count ? ms[count - 1] : 0,
               bench.results[kind].failed, bench.results[kind].late);
    }
}

/* The callers of a kind are spread evenly over its interval. */
static void begin(void)
{
    int64_t now_ms = clock_mono_ms();

    for (int kind = 0; kind < KINDS; kind++) {
        long count = kind == CHANGE ? bench.changes : bench.agents;
        int64_t every_ms = kind == CHANGE ? 1000 : EVERY_MS;

        bench.callers[kind] = mem_array(struct caller, (size_t)count + 1);
        for (long i = 0; i < count; i++) {
            struct caller *caller = &bench.callers[kind][i];

            *caller = (struct caller){.kind = kind,
                                      .version = DEPLOYS_ANY,
                                      .facts = DEPLOYS_ANY,
                                      .generation = 1,
                                      .owned = true,
                                      .next_ms = now_ms + every_ms * i / count + kind * 7};
            snprintf(caller->node, sizeof caller->node, "n%ld", i);
            snprintf(caller->id, sizeof caller->id, "d%ld", i);
        }
    }
}

static void run(void)
{
    int64_t end_ms = clock_mono_ms() + bench.seconds * 1000;
    long at[KINDS] = {0};

    while (clock_mono_ms() < end_ms) {
        for (int kind = 0; kind < KINDS; kind++) {
            long count = kind == CHANGE ? bench.changes : bench.agents;
            struct caller *caller;

            while (count > 0 &&
                   (caller = &bench.callers[kind][at[kind]])->next_ms <= clock_mono_ms()) {
                if (caller->busy)
                    bench.results[kind].late++; /* not done after a whole interval */
                else
                    send_op(caller);
                at[kind] = (at[kind] + 1) % count;
                caller->next_ms += kind == CHANGE ? 1000 : EVERY_MS;
            }
        }
        work_queue_wait(&bench.work_queue, 1);
        inbox_run(&bench.work_queue.inbox);
    }
}

int main(int argc, char **argv)
{
    struct deploys_config config = {.url = argc > 1 ? argv[1] : "", .timeout_ms = 5000};
    struct problem why;
    PGconn *conn = PQconnectdb(config.url);

    if (argc < 2 || PQstatus(conn) != CONNECTION_OK) {
        fprintf(stderr, "bench_deploys URL [agents] [deployments] [old leases] [changes/s] [s]\n");
        return 2;
    }
    bench.agents = argc > 2 ? atol(argv[2]) : 2000;
    bench.deployments = argc > 3 ? atol(argv[3]) : 10000;
    bench.old = argc > 4 ? atol(argv[4]) : 8000;
    bench.changes = argc > 5 ? atol(argv[5]) : 0;
    bench.seconds = argc > 6 ? atol(argv[6]) : 30;
    ask(conn,
        "SET client_min_messages = warning; DROP SCHEMA public CASCADE; CREATE SCHEMA public");
    PQfinish(conn);
    work_queue_init(&bench.work_queue);
    if (deploys_open(&config, &bench.deploys, &why)) {
        fprintf(stderr, "%s\n", why.detail);
        return 1;
    }
    fill(config.url);
    begin();
    run();
    report();
    fflush(stdout);
    _exit(0); /* calls in flight need no cleanup */
}
