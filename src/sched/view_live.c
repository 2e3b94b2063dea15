/* Signs of life are told in one call for all nodes of this instance, and to everybody at once, with
 * level, load and usage: any instance can show and judge any node. */
#include "sched/view_live.h"

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"
#include "model/level.h"
#include "sched/frame.h"
#include "sched/registry.h"
#include "sched/shared_text.h"
#include "store/chain.h"

enum {
    TELL_EVERY_MS = 500,
    TELL_MAX = 256,      /* nodes of one call */
    PEER_GONE_MS = 4000, /* it calls every second */
    PEER_NEW_MS = 2000,  /* one that took a connection so lately may be missing in our list */
    /* Times of another instance come with the store's clock, known to some hundred ms: a small step
     * forward is no new sign of life. */
    BEAT_STEP_MS = 1000,
    BEAT_LATE_MS = TELL_EVERY_MS + BEAT_STEP_MS,
};

struct peer {
    uint32_t name;
    int64_t silent_ms;
};

struct view_live {
    struct sched *sched;
    struct store_op op; /* PEERS */
    struct arena arena;
    bool busy;
    struct peer *peers;
    size_t peer_count;
    int64_t told_ms;        /* clock_mono_ms */
    struct chain under_way; /* of telling.in_live */
};

/* One SEEN call. */
struct telling {
    struct store_op op;
    struct chain in_live;
    struct buf text;
    struct store_seen items[TELL_MAX];
    size_t count;
};

struct view_live *view_live_new(struct sched *sched)
{
    struct view_live *live = mem_new(struct view_live);

    live->sched = sched;
    chain_init(&live->under_way);
    return live;
}

static void told(struct store_op *op);

void view_live_free(struct view_live *live)
{
    if (!live)
        return;
    /* What the store answered into an inbox that nobody reads any more. */
    while (live->under_way.next != &live->under_way)
        told(&container_of(live->under_way.next, struct telling, in_live)->op);
    arena_free(&live->arena);
    free(live->peers);
    free(live);
}

static struct sched_loop *loop_of(struct view_live *live)
{
    return sched_keeper_loop(live->sched);
}

static uint32_t own_name(const struct view_live *live)
{
    return store_name(live->sched->store);
}

/* --- instances --- */

static void listed(struct store_op *op)
{
    struct view_live *live = container_of(op, struct view_live, op);

    assert(live->busy);
    live->busy = false;
    if (!op->err) {
        live->peer_count = op->u.peers.count;
        live->peers = mem_resize(live->peers, (live->peer_count + 1) * sizeof *live->peers);
        for (size_t i = 0; i < live->peer_count; i++)
            live->peers[i] = (struct peer){.name = op->u.peers.items[i].name,
                                           .silent_ms = op->u.peers.items[i].silent_ms};
    }
    arena_reset(&live->arena);
}

void view_live_compare(struct view_live *live)
{
    if (!own_name(live) || live->busy)
        return;
    live->op = (struct store_op){.verb = STORE_PEERS,
                                 .reply_to = loop_of(live)->inbox,
                                 .done = listed,
                                 .arena = &live->arena};
    live->busy = true;
    sched_send(loop_of(live), &live->op);
}

bool view_live_has_peer(const struct view_live *live, uint32_t name)
{
    for (size_t i = 0; i < live->peer_count; i++)
        if (live->peers[i].name == name)
            return live->peers[i].silent_ms <= PEER_GONE_MS;
    return live->peer_count == 0; /* not listed yet */
}

/* --- telling --- */

static void told(struct store_op *op)
{
    struct telling *telling = container_of(op, struct telling, op);

    chain_del(&telling->in_live);
    buf_free(&telling->text);
    free(telling);
}

static void tell(struct view_live *live, struct telling *telling, size_t begun)
{
    assert(telling->count > 0 && telling->count <= TELL_MAX);
    frame_end(&telling->text, begun);
    telling->op =
        (struct store_op){.verb = STORE_SEEN, .reply_to = loop_of(live)->inbox, .done = told};
    telling->op.u.seen.items = telling->items;
    telling->op.u.seen.count = telling->count;
    telling->op.u.seen.text = buf_view(&telling->text);
    chain_add_last(&live->under_way, &telling->in_live);
    sched_send(loop_of(live), &telling->op);
}

/* "\nNODE LEVEL CPU GPU MEM USAGE"; a usage is JSON without line ends, and may be missing. */
static void add_node(struct telling *telling, struct node *node)
{
    struct blackboard *board = atomic_load(&node->usage);
    struct store_seen *seen = &telling->items[telling->count++];
    struct buf usage = {0};

    *seen = (struct store_seen){.node = node->id,
                                .level = atomic_load(&node->level),
                                .cpu_pm = atomic_load(&node->cpu_pm),
                                .gpu_pm = atomic_load(&node->gpu_pm),
                                .mem_pm = atomic_load(&node->mem_pm)};
    buf_fmt(&telling->text, "\n" STR_FMT " %d %d %d %d ", STR_ARG(node->id), seen->level,
            seen->cpu_pm, seen->gpu_pm, seen->mem_pm);
    if (board && blackboard_read(board, &usage))
        for (size_t i = 0; i < usage.len; i++)
            buf_char(&telling->text,
                     usage.at[i] == '\n' || usage.at[i] == '\r' ? ' ' : usage.at[i]);
    buf_free(&usage);
}

void view_live_tick(struct view_live *live)
{
    const struct snapshot *snapshot = loop_of(live)->snapshot;
    int64_t now_ms = *loop_of(live)->mono_ms;
    struct telling *telling = NULL;
    const struct snap_node *member;
    size_t begun = 0;

    if (!own_name(live) || !snapshot || now_ms - live->told_ms < TELL_EVERY_MS)
        return;
    live->told_ms = now_ms;
    for (struct snap_at at = {0}; (member = snapshot_next(snapshot, &at));) {
        struct node *node = member->node;
        int64_t beat_ms = atomic_load_explicit(&node->heartbeat_ms, memory_order_relaxed);

        if (beat_ms <= node->told_ms)
            continue;
        node->told_ms = beat_ms;
        if (!telling) {
            telling = mem_new(struct telling);
            begun = frame_begin(&telling->text);
            buf_str(&telling->text, STR("seen"));
        }
        add_node(telling, node);
        if (telling->count == TELL_MAX) {
            tell(live, telling, begun);
            telling = NULL;
        }
    }
    if (telling)
        tell(live, telling, begun);
}

/* --- hearing --- */

/* It was heard of at `at_ms`, by somebody. */
static void take_beat(struct node *node, int64_t at_ms)
{
    int64_t last_ms = atomic_load_explicit(&node->heartbeat_ms, memory_order_relaxed);

    while (at_ms > last_ms + BEAT_STEP_MS)
        if (atomic_compare_exchange_weak(&node->heartbeat_ms, &last_ms, at_ms)) {
            node->told_ms = at_ms;
            return;
        }
}

static int32_t next_figure(struct str *rest)
{
    int64_t value;

    return str_int(str_cut(rest, ' '), &value) && value >= -1 && value <= INT32_MAX ? (int32_t)value
                                                                                    : -1;
}

static void take_load(struct node *node, const struct store_seen *seen)
{
    if (seen->level >= 0 && seen->level < (int32_t)LEVEL_COUNT)
        atomic_store_explicit(&node->level, seen->level, memory_order_relaxed);
    if (seen->cpu_pm >= 0)
        atomic_store_explicit(&node->cpu_pm, seen->cpu_pm, memory_order_relaxed);
    if (seen->gpu_pm >= 0)
        atomic_store_explicit(&node->gpu_pm, seen->gpu_pm, memory_order_relaxed);
    if (seen->mem_pm >= 0)
        atomic_store_explicit(&node->mem_pm, seen->mem_pm, memory_order_relaxed);
}

void view_live_seen(struct view_live *live, const struct node_table *members, struct str text)
{
    int64_t now_ms = sched_awake_ms(loop_of(live));

    while (text.len) {
        struct str line = str_cut(&text, '\n');
        struct str id = str_cut(&line, ' ');
        struct node *node =
            id.len && node_table_facts(members, id) ? map_get(&members->nodes, id) : NULL;

        if (!node || atomic_load(&node->link))
            continue; /* whose connection is ours we know better */
        struct store_seen seen = {.level = next_figure(&line)};
        seen.cpu_pm = next_figure(&line);
        seen.gpu_pm = next_figure(&line);
        seen.mem_pm = next_figure(&line);
        take_load(node, &seen);
        if (line.len)
            registry_take_usage(node, line);
        take_beat(node, now_ms);
    }
}

/* It is not asked while its connection is nowhere. What was heard of it before may have been told
 * after its connection closed; what comes much later is a sign of life by another way. */
static void take_left(struct node *node, int64_t at_ms)
{
    int64_t none = 0;

    if (!atomic_load(&node->link) && atomic_load(&node->heartbeat_ms) <= at_ms + BEAT_LATE_MS)
        atomic_compare_exchange_strong(&node->left_ms, &none, at_ms);
}

static void take_link(struct view_live *live, struct node *node, const struct store_live *said)
{
    int64_t now_ms = sched_awake_ms(loop_of(live));
    bool held = said->kind == STORE_LINK_SOCKET || said->kind == STORE_LINK_POLL;
    bool ours = said->holder == own_name(live);
    bool there = said->linked_ms < PEER_NEW_MS || view_live_has_peer(live, said->holder);
    uint32_t holder = held && !ours && there ? said->holder : 0;
    uint32_t before = atomic_exchange(&node->holder, holder);
    bool socket = atomic_load(&node->link) != 0;

    if (holder)
        atomic_store(&node->left_ms, 0);
    else if (said->kind == STORE_LINK_SOCKET && !ours)
        take_left(node, now_ms); /* its instance is gone, and so is its connection */
    else if (said->kind == STORE_LINK_LEFT)
        take_left(node, now_ms - said->linked_ms);
    /* What we have and what the store says we have must be the same. */
    if ((holder && holder != before) || (holder && socket) ||
        socket != (ours && said->kind == STORE_LINK_SOCKET))
        live->sched->hooks->linked(loop_of(live), node, said, holder != 0);
}

void view_live_take(struct view_live *live, struct node *node, const struct store_live *said,
                    uint64_t order)
{
    if (!own_name(live))
        return;
    assert(said->kind <= STORE_LINK_LEFT && said->linked_ms >= 0);
    if (said->silent_ms >= 0 && !atomic_load(&node->link)) {
        struct store_seen seen = {.level = said->level,
                                  .cpu_pm = said->cpu_pm,
                                  .gpu_pm = said->gpu_pm,
                                  .mem_pm = said->mem_pm};

        take_load(node, &seen);
        take_beat(node, sched_awake_ms(loop_of(live)) - said->silent_ms);
    }
    if (order >= atomic_load(&node->link_order))
        take_link(live, node, said);
}
