/* Changes of nodes on their way through store, keeper and loops; and the fast path for
 * heartbeats. */
#include "sched/registry.h"

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"
#include "model/level.h"
#include "sched/keeper.h"
#include "sched/sched.h"
#include "sched/shared_text.h"
#include "sched/warm_index.h"

static void stored(struct store_op *op);

/* The usable resources a heartbeat reports, in steps that noise does not cross. */
static struct resources usable_now(const struct node *node, const struct resources *declared,
                                   const struct node_report *report)
{
    struct resources before = node ? counts_usable(node, declared) : *declared; /* unknown: all */
    struct resources now = before;
    struct arena arena = {0};

    if (json_is_null(report->free))
        return before;
    /* The format was checked when the report was read. */
    if (resources_read_free(report->free, report->ours, &arena, &now, NULL))
        now = before;
    arena_free(&arena);
    resources_settle(&now, &before);
    return now;
}

static bool has_other_usable(const struct snap_node *known, const struct node_report *report)
{
    const struct resources *declared = known->facts->resources;

    if (!declared || json_is_null(report->free))
        return false;
    struct resources before = counts_usable(known->node, declared);
    struct resources now = usable_now(known->node, declared, report);
    assert(now.count == before.count && now.gpu_count == before.gpu_count);
    for (size_t i = 0; i < now.count; i++)
        if (now.items[i].usable != before.items[i].usable)
            return true;
    for (size_t i = 0; i < now.gpu_count; i++)
        if (now.gpus[i].usable_mb != before.gpus[i].usable_mb)
            return true;
    return false;
}

static char *resources_text(const struct resources *resources)
{
    struct buf buf = {0};

    resources_write(resources, &buf);
    buf_char(&buf, 0);
    return buf.at; /* the caller owns it, so no buf_free() */
}

enum err registry_prepare(struct sched_loop *loop, const struct node_report *report,
                          struct node_change *ret_change, struct problem *why)
{
    const struct snap_node *known = snapshot_node(loop->snapshot, report->node_id);
    struct facts *facts;
    char *resources = NULL;

    if (!known && loop->snapshot && (int64_t)loop->snapshot->count >= loop->sched->config.nodes_max)
        return problem_set(why, ERR_BUSY, "node_id",
                           "This fleet is configured for at most %lld nodes (nodes_max).",
                           (long long)loop->sched->config.nodes_max);
    enum err err = node_report_facts(report, known ? known->facts : NULL, &facts, why);
    if (err)
        return err;
    /* A node that just left may still be in this loop's snapshot, with no health of its own. */
    enum node_health own = report->health != NODE_HEALTH_NONE ? (enum node_health)report->health
                           : known ? (enum node_health)atomic_load(&known->node->own)
                                   : NODE_HEALTH_NONE;
    if (own == NODE_HEALTH_NONE)
        own = NODE_READY;
    /* Sent with its facts every time: the store may have lost them. */
    if (facts->resources) {
        struct resources now = usable_now(known ? known->node : NULL, facts->resources, report);

        resources = resources_text(&now);
    } else if (!known || known->facts->resources) {
        resources = mem_zeroed(1, 1);
    }
    *ret_change = (struct node_change){.kind = NODE_CHANGE_PUT,
                                       .node = known ? known->node : NULL,
                                       .node_id = report->node_id,
                                       .facts = facts,
                                       .own = own,
                                       .resources = resources,
                                       .report = *report};
    assert(own >= NODE_READY && own < NODE_HEALTH_COUNT);
    return ERR_OK;
}

void registry_prepare_figures(struct sched_loop *loop, const struct node_report *report,
                              struct node *node, struct node_change *ret_change)
{
    const struct snap_node *known = snapshot_of(loop->snapshot, node);

    *ret_change = (struct node_change){
        .kind = NODE_CHANGE_FIGURES, .node = node, .node_id = node->id, .report = *report};
    if (known && has_other_usable(known, report)) {
        struct resources now = usable_now(node, known->facts->resources, report);

        ret_change->resources = resources_text(&now);
    }
}

/* How many jobs it may have: what it would run now, never more than it registered. */
static int32_t bounded(int64_t max, const struct facts *facts)
{
    assert(max == FIELD_OFF || max >= 0);
    return max != FIELD_OFF && max < facts->max_concurrent_jobs ? (int32_t)max
                                                                : facts->max_concurrent_jobs;
}

/* Fills what the store needs: one NODE_PUT for everything but a drop. */
static void fill_op(struct node_change *change)
{
    struct store_op *op = &change->op;
    const struct snap_node *known = snapshot_node(change->from->snapshot, change->node_id);
    /* the report comes from the node itself */
    bool says = change->kind == NODE_CHANGE_PUT || change->kind == NODE_CHANGE_FIGURES;

    *op = (struct store_op){.verb =
                                change->kind == NODE_CHANGE_DROP ? STORE_NODE_DROP : STORE_NODE_PUT,
                            .done = stored,
                            .not_after_ms = sched_not_after(change->from),
                            .node = change->node_id};
    if (change->kind == NODE_CHANGE_DROP)
        return;
    assert(change->facts || known);
    enum node_health own = change->kind == NODE_CHANGE_PUT
                               ? change->own
                               : (enum node_health)atomic_load(&known->node->own);
    enum node_health watch = change->kind == NODE_CHANGE_WATCH ? change->watch : NODE_READY;
    bool lost = watch == NODE_OFFLINE;
    bool ends_epoch = lost || (change->without_runs && known);
    /* Values the change may not set stay as the store has them: our copy may be stale. */
    op->u.node_put.own = change->kind == NODE_CHANGE_PUT ? change->own : NODE_HEALTH_NONE;
    op->u.node_put.health = node_effective(own, watch, NODE_ADMIN_NONE);
    says &= change->facts || change->report.max != FIELD_OFF;
    op->u.node_put.max =
        says ? bounded(change->report.max, change->facts ? change->facts : known->facts) : -1;
    op->u.node_put.facts = change->facts ? change->facts->json : STR_NONE;
    op->u.node_put.resources = change->resources ? str_of(change->resources) : STR_NONE;
    op->u.node_put.set_admin = change->kind == NODE_CHANGE_ADMIN;
    op->u.node_put.admin = change->admin;
    op->u.node_put.admin_reason = change->admin_reason;
    op->u.node_put.new_epoch = ends_epoch;
    op->u.node_put.keeps_runs = lost;
    op->u.node_put.if_epoch = ends_epoch ? atomic_load(&known->node->epoch) : 0;
}

void registry_send(struct sched_loop *loop, struct node_change *change)
{
    assert(change->done && change->node_id.at &&
           (change->kind == NODE_CHANGE_PUT) == !!change->facts);
    change->from = loop;
    /* In a shared store the node may have registered elsewhere a moment ago: ask the store. */
    bool asks = change->kind == NODE_CHANGE_DROP && store_name(loop->sched->store);
    if (change->kind != NODE_CHANGE_PUT && !asks &&
        !snapshot_node(loop->snapshot, change->node_id)) {
        free(change->resources);
        change->resources = NULL;
        change->err = problem_set(&change->why, ERR_NOT_FOUND, "node_id",
                                  "There is no node \"" STR_FMT "\".", STR_ARG(change->node_id));
        change->done(change);
        return;
    }
    fill_op(change);
    sched_send(loop, &change->op);
}

void registry_take_resources(struct node *node, struct node_change *change)
{
    struct resources resources;

    if (change->resources && resources_parse(str_of(change->resources), &resources))
        counts_usable_put(node, &resources);
    free(change->resources);
    change->resources = NULL;
}

static void stored(struct store_op *op)
{
    struct node_change *change = container_of(op, struct node_change, op);

    assert(op->reply_to == change->from->inbox);
    change->err = op->err == ERR_TOO_LATE ? ERR_STORE_DOWN : op->err;
    if (!change->err && change->kind == NODE_CHANGE_FIGURES) {
        /* Membership does not change: no new snapshot is needed. */
        struct node *node = change->node;

        assert(node && op->counts.max >= 0);
        int32_t before = atomic_exchange(&node->max, op->counts.max);
        bool more = op->counts.max > before || change->resources;
        if (change->resources)
            counts_take(node, &op->counts, &op->left, op->order, false);
        registry_take_resources(node, change);
        if (more)
            keeper_freed(change->from->sched->keeper, node);
        change->done(change);
        return;
    }
    if (!change->err) {
        keeper_apply(change->from->sched->keeper, change);
        return;
    }
    if (change->err == ERR_NOT_FOUND)
        problem_set(&change->why, ERR_NOT_FOUND, "node_id", "There is no node \"" STR_FMT "\".",
                    STR_ARG(change->node_id));
    else
        problem_set(&change->why, change->err, "", "%s.", err_title(change->err));
    facts_unref(change->facts);
    free(change->resources);
    change->facts = NULL;
    change->resources = NULL;
    change->done(change);
}

bool registry_came_back_empty(const struct sched_loop *loop, const struct node_report *report)
{
    const struct snap_node *known = snapshot_node(loop->snapshot, report->node_id);

    return known && json_type(report->running_jobs) == JSON_ARR &&
           report->running_jobs->count == 0 && report->taking == 0 &&
           counts_of(known->node).running > 0;
}

/* Read first, to avoid writing a cache line that many loops read. */
static void clear_left(struct node *node)
{
    if (atomic_load_explicit(&node->disconnected_ms, memory_order_relaxed))
        atomic_store_explicit(&node->disconnected_ms, 0, memory_order_relaxed);
}

void registry_alive(struct sched_loop *loop, struct node *node)
{
    /* Busy nodes send many messages; one write a second is fresh enough and keeps the cache line
     * shared. */
    int64_t last = atomic_load_explicit(&node->heartbeat_ms, memory_order_relaxed);
    int64_t now_ms = sched_awake_ms(loop);

    if (now_ms - last >= 1000 || now_ms < last)
        atomic_store_explicit(&node->heartbeat_ms, now_ms, memory_order_relaxed);
    clear_left(node);
}

void registry_left(struct sched_loop *loop, struct node *node, bool goodbye)
{
    /* A node that says goodbye and runs nothing is gone at once: no grace is needed. */
    bool gone = goodbye && counts_of(node).running == 0;
    int64_t grace_ms = gone ? loop->sched->config.lost_grace_ms : 0;
    int64_t disconnected_ms = sched_awake_ms(loop) - grace_ms;

    atomic_store_explicit(&node->disconnected_ms, disconnected_ms ? disconnected_ms : -1,
                          memory_order_relaxed);
}

void registry_take_live(struct sched *sched, struct node *node, const struct node_report *report)
{
    if (report->level >= 0)
        atomic_store_explicit(&node->level, report->level, memory_order_relaxed);
    if (!json_is_null(report->usage))
        shared_text_put(&node->usage, json_raw(report->usage));
    if (!json_is_null(report->claim))
        shared_text_put(&node->claim, json_raw(report->claim));
    if (!json_is_null(report->loaded))
        warm_index_put(sched->warm, node, &report->loaded_names);
}

enum registry_beat registry_heartbeat(struct sched_loop *loop, const struct node_report *report,
                                      const struct node_report_load *load)
{
    const struct snap_node *known = snapshot_node(loop->snapshot, report->node_id);

    if (!known)
        return BEAT_UNKNOWN;
    struct node *node = known->node;
    int32_t level = atomic_load_explicit(&node->level, memory_order_relaxed);
    bool away = atomic_load_explicit(&node->disconnected_ms, memory_order_relaxed) != 0;
    assert(str_eq(node->id, report->node_id) && report->level < (int)LEVEL_COUNT);
    atomic_store_explicit(&node->heartbeat_ms, sched_awake_ms(loop), memory_order_relaxed);
    clear_left(node);
    if (load->cpu_pm >= 0)
        atomic_store_explicit(&node->cpu_pm, load->cpu_pm, memory_order_relaxed);
    if (load->gpu_pm >= 0)
        atomic_store_explicit(&node->gpu_pm, load->gpu_pm, memory_order_relaxed);
    if (load->mem_pm >= 0)
        atomic_store_explicit(&node->mem_pm, load->mem_pm, memory_order_relaxed);
    registry_take_live(loop->sched, node, report);
    if (away || (report->level >= 0 && report->level < level))
        keeper_freed(loop->sched->keeper, node);
    /* If we declared it lost or degraded, the store takes that back before it gets work again. */
    enum node_health own = (enum node_health)atomic_load_explicit(&node->own, memory_order_relaxed);
    enum node_admin admin =
        (enum node_admin)atomic_load_explicit(&node->admin, memory_order_relaxed);
    bool back = atomic_load_explicit(&node->health, memory_order_relaxed) !=
                (int32_t)node_effective(own, NODE_READY, admin);
    if (back || node_report_is_news(report, node))
        return BEAT_NEWS;
    bool new_max =
        report->max != FIELD_OFF && bounded(report->max, known->facts) != atomic_load(&node->max);
    return new_max || has_other_usable(known, report) ? BEAT_FIGURES : BEAT_TAKEN;
}
