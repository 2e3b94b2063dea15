/* Start and end of the scheduler, and what its parts share about a node's live figures: the newest
 * answer's counters win. */
#include "sched/sched.h"

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/metrics.h"
#include "sched/explain.h"
#include "sched/keeper.h"
#include "sched/tally.h"
#include "sched/warm_index.h"

/* --- start and end --- */

enum err sched_init(struct sched *sched, const struct sched_config *config, struct store *store,
                    int loop_count, const struct sched_hooks *hooks, struct problem *why)
{
    struct arena arena = {0};
    struct pool_pair *pairs = arena_array(&arena, struct pool_pair, config->pools.count + 1);

    assert(loop_count > 0 && store && hooks);
    *sched = (struct sched){.config = *config,
                            .policy = policy_at((size_t)config->policy),
                            .store = store,
                            .loop_count = loop_count,
                            .hooks = hooks};
    assert(sched->policy);
    for (size_t i = 0; i < config->pools.count; i++) {
        struct str tgt = config->pools.at[i], src = str_cut(&tgt, ':');

        if (pool_lang_normalise(src, &arena, &pairs[i].src) &&
            pool_lang_normalise(tgt, &arena, &pairs[i].tgt))
            continue;
        arena_free(&arena);
        return problem_set(why, ERR_BAD_CONFIG, "pools",
                           "pools must list pairs like \"en:zh\", not \"" STR_FMT "\".",
                           STR_ARG(config->pools.at[i]));
    }
    sched->loops = mem_array(struct sched_loop, (size_t)loop_count + 1);
    sched->warm = warm_index_new();
    sched->keeper = keeper_new(sched, pairs, config->pools.count, arena);
    return ERR_OK;
}

void sched_loop_init(struct sched *sched, int index, struct inbox *inbox, const int64_t *wall_ms,
                     const int64_t *mono_ms)
{
    struct sched_loop *loop = &sched->loops[index];

    assert(index >= 0 && index <= sched->loop_count);
    *loop = (struct sched_loop){
        .sched = sched, .inbox = inbox, .wall_ms = wall_ms, .mono_ms = mono_ms, .index = index};
    assert(inbox && wall_ms && mono_ms);
    rnd_seed_os(&loop->rnd);
    loop->book = explain_book_new((size_t)sched->config.explain_bytes);
    loop->tally = tally_new();
}

void sched_done(struct sched *sched)
{
    keeper_free(sched->keeper);
    if (sched->loops)
        tally_collect(sched, NULL);
    for (int i = 0; sched->loops && i <= sched->loop_count; i++) {
        explain_book_free(sched->loops[i].book);
        tally_free(sched->loops[i].tally);
    }
    free(sched->loops);
    warm_index_free(sched->warm);
    sched->keeper = NULL;
    sched->warm = NULL;
    sched->loops = NULL;
}

void sched_send(struct sched_loop *loop, struct store_op *op)
{
    assert(op->done && (!op->reply_to || op->reply_to == loop->inbox));
    op->reply_to = loop->inbox;
    op->msg.next = NULL;
    if (loop->out_last)
        loop->out_last->msg.next = &op->msg;
    else
        loop->out_first = op;
    loop->out_last = op;
}

void sched_flush(struct sched_loop *loop)
{
    while (loop->out_first) {
        struct msg *refused;

        assert(!loop->out_last->msg.next);
        refused = &loop->out_first->msg;
        loop->out_first = loop->out_last = NULL;
        refused = store_send_all(loop->sched->store, refused);
        for (struct msg *next; refused; refused = next) {
            struct store_op *op = container_of(refused, struct store_op, msg);

            next = refused->next;
            op->done(op); /* may send more, in the next round */
        }
    }
}

void sched_count_cache(const struct sched *sched, int64_t now_us)
{
    int64_t fresh_us = atomic_load_explicit(&sched->fresh_us, memory_order_relaxed);
    int64_t age_ms = (now_us - fresh_us) / 1000;

    if (age_ms <= SCHED_L1_MS) {
        metric_add_label(METRIC_CACHE, "l1,hit", 1);
        return;
    }
    metric_add_label(METRIC_CACHE, "l1,miss", 1);
    metric_add_label(METRIC_CACHE, age_ms <= SCHED_L2_MS ? "l2,hit" : "l2,miss", 1);
}

int64_t sched_from_store_ms(const struct sched_loop *loop, int64_t store_ms)
{
    return store_mono_ms(loop->sched->store, store_ms) -
           atomic_load_explicit(&loop->sched->paused_ms, memory_order_relaxed);
}

int64_t sched_not_after(const struct sched_loop *loop)
{
    return *loop->mono_ms + loop->sched->config.store_timeout_ms;
}

void sched_ring_add(struct node *node, int64_t run_ms, bool failed)
{
    uint32_t at = atomic_fetch_add_explicit(&node->ring_at, 1, memory_order_relaxed);
    int32_t ms = run_ms < 0 ? 0 : run_ms > INT32_MAX / 2 ? INT32_MAX / 2 : (int32_t)run_ms;

    assert(ms >= 0);
    atomic_store_explicit(&node->ring[at % NODE_RING], failed ? -ms - 1 : ms, memory_order_relaxed);
}

static int by_int(const void *a, const void *b)
{
    int32_t left = *(const int32_t *)a, right = *(const int32_t *)b;

    return (left > right) - (left < right);
}

int sched_score(const struct node *node, int64_t latency_target_ms)
{
    uint32_t seen = atomic_load_explicit(&node->ring_at, memory_order_relaxed);
    uint32_t count = seen < NODE_RING ? seen : NODE_RING;
    int64_t step_ms = latency_target_ms / 100, p95_ms = 0;
    int32_t run_ms[NODE_RING];
    int failed = 0;

    for (uint32_t i = 0; i < count; i++) {
        int32_t entry = atomic_load_explicit(&node->ring[i], memory_order_relaxed);

        failed += entry < 0;
        run_ms[i] = entry < 0 ? -(entry + 1) : entry;
    }
    qsort(run_ms, count, sizeof *run_ms, by_int);
    if (count)
        p95_ms = run_ms[(count * 95 + 99) / 100 - 1];
    /* A difference of a millisecond is noise and must not decide which node is healthier. */
    if (step_ms > 1)
        p95_ms -= p95_ms % step_ms;
    /* A share that was not sent is -1: for CPU and memory that counts as 0, so the node is not
     * penalised. */
    struct node_figures figures = {
        .scale = 1000,
        .cpu = atomic_load_explicit(&node->cpu_pm, memory_order_relaxed),
        .gpu = atomic_load_explicit(&node->gpu_pm, memory_order_relaxed),
        .mem = atomic_load_explicit(&node->mem_pm, memory_order_relaxed),
        .fail = count ? failed * 1000 / (int64_t)count : 0,
        .p95 = p95_ms,
        .target = latency_target_ms,
    };
    assert(figures.fail >= 0 && figures.fail <= 1000 && figures.p95 >= 0);
    return node_score(&figures);
}

/* --- counters --- */

#define COUNT_MASK ((1ull << COUNTS_BITS) - 1)
#define ORDER_MASK ((1ull << COUNTS_ORDER_BITS) - 1)

_Static_assert(2 * COUNTS_BITS + COUNTS_ORDER_BITS == 64, "all of it in one word");

static uint64_t pack(uint64_t reserved, uint64_t running, uint64_t order)
{
    assert(reserved <= COUNT_MASK && running <= COUNT_MASK);
    return (order & ORDER_MASK) << (2 * COUNTS_BITS) | running << COUNTS_BITS | reserved;
}

/* Is `a` the older of two orders known only by their low bits? They are less than half the range
 * apart. */
static bool is_older(uint64_t a, uint64_t b)
{
    return a != b && ((b - a) & ORDER_MASK) < 1ull << (COUNTS_ORDER_BITS - 1);
}

static uint32_t shape_of(size_t count, size_t gpu_count)
{
    return (uint32_t)(count << 8 | gpu_count);
}

bool counts_left(const struct node *node, const struct resources *declared,
                 struct resources_left *ret_left)
{
    const struct node_resources *from = &node->resources;
    uint32_t shape = atomic_load_explicit(&from->left_shape, memory_order_relaxed);

    if (!shape || shape != shape_of(declared->count, declared->gpu_count))
        return false;
    *ret_left = (struct resources_left){
        .count = (uint8_t)declared->count,
        .gpu_count = (uint8_t)declared->gpu_count,
        .shared = atomic_load_explicit(&from->shared, memory_order_relaxed)};
    for (size_t i = 0; i < declared->count; i++)
        ret_left->left[i] = atomic_load_explicit(&from->left[i], memory_order_relaxed);
    for (size_t i = 0; i < declared->gpu_count; i++)
        ret_left->gpu_left[i] = atomic_load_explicit(&from->gpu_left[i], memory_order_relaxed);
    return true;
}

void counts_usable_put(struct node *node, const struct resources *resources)
{
    struct node_resources *to = &node->resources;

    for (size_t i = 0; i < resources->count; i++)
        atomic_store_explicit(&to->usable[i], resources->items[i].usable, memory_order_relaxed);
    for (size_t i = 0; i < resources->gpu_count; i++)
        atomic_store_explicit(&to->gpu_usable[i], resources->gpus[i].usable_mb,
                              memory_order_relaxed);
    atomic_store_explicit(&to->usable_shape, shape_of(resources->count, resources->gpu_count),
                          memory_order_relaxed);
}

static int32_t at_most(int32_t figure, int32_t most)
{
    return figure < most ? figure : most;
}

struct resources counts_usable(const struct node *node, const struct resources *declared)
{
    const struct node_resources *from = &node->resources;
    uint32_t shape = atomic_load_explicit(&from->usable_shape, memory_order_relaxed);
    struct resources usable = *declared;

    if (shape != shape_of(declared->count, declared->gpu_count))
        return usable;
    for (size_t i = 0; i < usable.count; i++)
        usable.items[i].usable = at_most(
            atomic_load_explicit(&from->usable[i], memory_order_relaxed), usable.items[i].capacity);
    for (size_t i = 0; i < usable.gpu_count; i++)
        usable.gpus[i].usable_mb =
            at_most(atomic_load_explicit(&from->gpu_usable[i], memory_order_relaxed),
                    usable.gpus[i].vram_mb);
    return usable;
}

void counts_take(struct node *node, const struct lease_node *counts,
                 const struct resources_left *left, uint64_t order, bool first)
{
    uint64_t old = atomic_load_explicit(&node->counts, memory_order_relaxed);
    uint64_t word = pack((uint64_t)counts->reserved, (uint64_t)counts->running, order);

    assert(lease_counts_ok(counts));
    if (counts->health == NODE_HEALTH_NONE)
        return; /* the answer was not about a node */
    do
        if (!first && is_older(order & ORDER_MASK, old >> (2 * COUNTS_BITS)))
            return;
    while (!atomic_compare_exchange_weak_explicit(&node->counts, &old, word, memory_order_relaxed,
                                                  memory_order_relaxed));
    atomic_store_explicit(&node->epoch, counts->epoch, memory_order_relaxed);
    if (left && (left->count || left->gpu_count)) {
        for (size_t i = 0; i < left->count; i++)
            atomic_store_explicit(&node->resources.left[i], left->left[i], memory_order_relaxed);
        for (size_t i = 0; i < left->gpu_count; i++)
            atomic_store_explicit(&node->resources.gpu_left[i], left->gpu_left[i],
                                  memory_order_relaxed);
        atomic_store_explicit(&node->resources.shared, left->shared, memory_order_relaxed);
        atomic_store_explicit(&node->resources.left_shape, shape_of(left->count, left->gpu_count),
                              memory_order_relaxed);
    }
}

void counts_take_of(const struct snapshot *snapshot, struct str node_id, const struct store_op *op)
{
    const struct snap_node *member = snapshot_node(snapshot, node_id);

    if (member)
        counts_take(member->node, &op->counts, &op->left, op->order, false);
}

void counts_full(struct node *node)
{
    uint64_t old = atomic_load_explicit(&node->counts, memory_order_relaxed);
    int32_t max = atomic_load_explicit(&node->max, memory_order_relaxed);
    int32_t running = (int32_t)(old >> COUNTS_BITS & COUNT_MASK);

    if (running >= max)
        return;
    /* If this fails, a newer answer was stored, which is right. */
    atomic_compare_exchange_strong_explicit(
        &node->counts, &old,
        pack((uint64_t)(max - running), (uint64_t)running, old >> (2 * COUNTS_BITS)),
        memory_order_relaxed, memory_order_relaxed);
}
