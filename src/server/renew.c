/* Lease renewal. A heartbeat that lists nothing it runs, and one of a node that was renewed a
 * moment ago, cost no call. */
#include "server/renew.h"

#include <assert.h>
#include <stdlib.h>

enum err renew_read(const struct node_report *report, struct worker *worker, struct arena *arena,
                    struct renew *ret_renew, struct problem *why)
{
    *ret_renew = (struct renew){.worker = worker, .listed = !json_is_null(report->running_jobs)};
    return node_report_runs(report, arena, &ret_renew->runs, &ret_renew->count, why);
}

static void renewed(struct store_op *op)
{
    struct renew *renew = container_of(op, struct renew, op);

    assert(renew->done && renew->listed);
    renew->done(renew);
}

static void renewed_all(struct store_op *op)
{
    free(container_of(op, struct renew, op));
}

static void send_renew(struct renew *renew, struct node *node, store_done *done)
{
    struct sched *sched = &renew->worker->server->sched;

    assert(!renew->listed || renew->runs);
    renew->op = (struct store_op){.verb = STORE_RENEW,
                                  .reply_to = &renew->worker->loop.inbox,
                                  .done = done,
                                  .node = node->id};
    renew->op.u.renew.runs = renew->listed ? renew->runs : NULL;
    renew->op.u.renew.count = renew->count;
    renew->op.u.renew.terms = sched->config.leases;
    sched_send(renew->worker->sched, &renew->op);
}

/* All of the node's: often enough that a lease outlives several lost heartbeats. */
static void renew_all(struct renew *renew, struct node *node)
{
    int64_t now_ms = sched_awake_ms(renew->worker->sched);
    int64_t last_ms = atomic_load_explicit(&node->renewed_ms, memory_order_relaxed);
    int64_t every_ms = lease_renew_every_ms(&renew->worker->server->sched.config.leases);

    if (last_ms && now_ms - last_ms < every_ms && now_ms >= last_ms)
        return;
    struct renew *own = calloc(1, sizeof *own);
    assert(own);
    *own = *renew;
    send_renew(own, node, renewed_all);
    atomic_store_explicit(&node->renewed_ms, now_ms, memory_order_relaxed);
}

/* A store that was emptied waits for the word of every node, also that it runs nothing. */
static bool recovering(struct renew *renew)
{
    static struct store_run nothing;
    const struct sched *sched = &renew->worker->server->sched;

    renew->runs = renew->runs ? renew->runs : &nothing;
    return clock_mono_ms() <
           atomic_load_explicit(&sched->recovering_until_ms, memory_order_relaxed);
}

bool renew_start(struct renew *renew, struct node *node, void (*done)(struct renew *renew))
{
    if (!renew->listed) {
        renew_all(renew, node);
        return false;
    }
    if (!renew->count && !recovering(renew))
        return false;
    renew->done = done;
    send_renew(renew, node, renewed);
    return true;
}
