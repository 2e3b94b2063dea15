/* The keeper's thread: the table of nodes, editions of the snapshot, the scan for silent nodes, the
 * ticks of queue and sweep, and the gauges of all nodes.
 *
 * An edition is a snapshot being distributed: it is posted to every loop, each swaps its pointer at
 * its next message and posts a confirmation back. When all have confirmed, the changes that waited
 * for it are answered and the previous edition is freed. One edition at a time: changes made
 * meanwhile go into the next. */
#include "sched/keeper.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "model/level.h"
#include "model/node.h"
#include "sched/node_sync.h"
#include "sched/queue.h"
#include "sched/registry.h"
#include "sched/sched.h"
#include "sched/settle.h"
#include "sched/shared_text.h"
#include "sched/snapshot.h"
#include "sched/tally.h"

struct gauges {
    int64_t by_health[NODE_HEALTH_COUNT];
    int64_t by_level[LEVEL_COUNT];
    int64_t reserved, running; /* of all nodes */
    int64_t max, used;         /* of nodes that are ready */
};

struct keeper {
    struct sched *sched;
    struct arena arena; /* the pools of the configuration */
    struct node_table *nodes;
    struct snapshot *current;   /* live on every loop, or being distributed */
    struct snapshot *before;    /* a loop may still read it */
    struct edition_swap *swaps; /* one for each loop */
    int unconfirmed;
    int64_t published_us;
    int64_t changed_us; /* when the oldest change made elsewhere that it holds was made; 0: none */
    struct node_change *arriving; /* wait for an edition that contains them, newest first */
    struct node_change *aboard;   /* wait for the current edition */
    struct queue *queue;
    struct sweep *sweep;
    struct msg kick;
    _Atomic bool kicked;
    _Atomic(struct node *) freed; /* nodes that may have room again, by node->next_freed */
    struct node_sync *node_sync;
    int64_t next_sweep_ms, next_scan_ms, next_compare_ms; /* sched_awake_ms */
    bool deaf;          /* no notices arrive, by the store's last status */
    int64_t sampled_ms; /* monotonic: when the machines were last sampled, */
    int64_t ticked_ms;  /* and the last tick; 0: none yet */
    int64_t judge_ms;   /* sched_awake_ms: no node is declared lost before that */
    size_t may_lose;    /* how many more nodes may be declared lost in this scan */
    struct hours hours;
    enum store_mode store_mode;   /* as last logged */
    char generation[24];          /* of the store, as last seen */
    unsigned moves;               /* likewise */
    int64_t repairs[STORE_RULES]; /* likewise */
    bool store_full;              /* likewise */
};

struct edition_swap {
    struct msg msg;
    struct keeper *keeper;
    struct sched_loop *loop;
};

static void kicked(struct msg *msg);

/* --- gauges --- */

static void gauges_add(struct gauges *gauges, const struct node *node)
{
    int32_t health = atomic_load_explicit(&node->health, memory_order_relaxed);
    int32_t level = atomic_load_explicit(&node->level, memory_order_relaxed);
    struct counts counts = counts_of(node);

    assert(health >= 0 && health < NODE_HEALTH_COUNT && level < LEVEL_COUNT);
    gauges->by_health[health]++;
    gauges->reserved += counts.reserved;
    gauges->running += counts.running;
    if (health != NODE_OFFLINE && level >= 0)
        gauges->by_level[level]++;
    if (health != NODE_READY)
        return;
    int32_t max = atomic_load_explicit(&node->max, memory_order_relaxed);
    int32_t used = counts.reserved + counts.running;
    gauges->max += max;
    gauges->used += used < max ? used : max; /* max was lowered below what runs: no room */
}

/* --- the keeper --- */

enum {
    SWEEP_EVERY_MS = 200,
    SCAN_EVERY_MS = 1000,
    COMPARE_EVERY_MS = 1000,
    COMPARE_DEAF_MS = 250, /* while no notices of changes arrive */
    RING_FORGET_MS = 60000,
    SAMPLE_EVERY_MS = 5000,
    RECOVERING_MS = 60000,
    LATE_MS = 1000, /* it ticks ten times a second: any longer gap was a pause of this process */
    LOST_MAX = 5,   /* nodes declared lost in one scan, or one in LOST_SHARE if that is more */
    LOST_SHARE = 20
};

/* A job to be placed again, posted by any thread. */
struct onward {
    struct msg msg;
    struct keeper *keeper;
    struct arena arena;
    struct store_record record; /* spec.at == NULL: forget the job */
    bool abandon;               /* end the job instead of placing it again */
};

/* A change made by the keeper itself (a lost or forgotten node). */
struct own_change {
    struct node_change change;
    char node_id[NODE_ID_MAX + 1];
};

struct keeper *keeper_new(struct sched *sched, const struct pool_pair *pairs, size_t pair_count,
                          struct arena arena)
{
    struct keeper *keeper = mem_new(struct keeper);

    keeper->sched = sched;
    keeper->arena = arena;
    keeper->nodes = node_table_new(pairs, pair_count);
    keeper->swaps = mem_array(struct edition_swap, (size_t)sched->loop_count);
    keeper->node_sync = node_sync_new(sched, keeper->nodes);
    keeper->queue = queue_new(sched);
    keeper->sweep = sweep_new(sched, keeper->queue);
    keeper->kick.run = kicked;
    return keeper;
}

void keeper_free(struct keeper *keeper)
{
    if (!keeper)
        return;
    node_sync_free(keeper->node_sync);
    sweep_free(keeper->sweep);
    queue_free(keeper->queue);
    snapshot_free(keeper->before);
    snapshot_free(keeper->current);
    node_table_free(keeper->nodes);
    arena_free(&keeper->arena);
    free(keeper->swaps);
    hours_free(&keeper->hours);
    free(keeper);
}

static struct sched_loop *loop_of(struct keeper *keeper)
{
    return sched_keeper_loop(keeper->sched);
}

static void answer(struct msg *msg)
{
    struct node_change *change = container_of(msg, struct node_change, msg);

    change->done(change);
}

static void confirmed(struct msg *msg)
{
    struct keeper *keeper = container_of(msg, struct edition_swap, msg)->keeper;

    assert(keeper->unconfirmed > 0 && keeper->current);
    if (--keeper->unconfirmed > 0)
        return;
    /* All loops read the new version: the changes that waited for it are answered on their
     * loops. */
    struct node_change *change = keeper->aboard, *next;
    keeper->aboard = NULL;
    for (; change; change = next) {
        next = change->next;
        change->msg.run = answer;
        inbox_post(change->from->inbox, &change->msg);
    }
    snapshot_free(keeper->before);
    keeper->before = NULL;
    metric_observe_us(METRIC_POOL_DELAY,
                      clock_mono_us() -
                          (keeper->changed_us ? keeper->changed_us : keeper->published_us));
    if (!atomic_exchange(&keeper->sched->ready, true)) {
        log_event(LOG_INFO, "nodes.loaded", KI("nodes", (int64_t)keeper->current->count));
        keeper->sched->hooks->loaded(keeper->sched);
    }
    queue_want_kick(keeper->queue);
}

/* On the loop's thread. */
static void swap_snapshot(struct msg *msg)
{
    struct edition_swap *swap = container_of(msg, struct edition_swap, msg);

    assert(swap->loop->index < swap->keeper->sched->loop_count);
    swap->loop->snapshot = swap->keeper->current;
    swap->msg.run = confirmed;
    inbox_post(loop_of(swap->keeper)->inbox, &swap->msg);
}

static void publish(struct keeper *keeper)
{
    struct sched *sched = keeper->sched;

    assert(keeper->unconfirmed == 0 && !keeper->before);
    for (size_t i = 0; i < keeper->nodes->changed_count; i++)
        queue_room(keeper->queue, keeper->nodes->changed[i]);
    keeper->before = keeper->current;
    keeper->current = node_table_publish(keeper->nodes);
    assert(!keeper->nodes->dirty && !keeper->aboard);
    keeper->aboard = keeper->arriving;
    keeper->arriving = NULL;
    keeper->published_us = clock_mono_us();
    keeper->changed_us = node_sync_take_oldest_us(keeper->node_sync);
    loop_of(keeper)->snapshot = keeper->current;
    keeper->unconfirmed = sched->loop_count;
    metric_set(METRIC_SNAPSHOT_VERSION, keeper->current->version);
    for (int i = 0; i < sched->loop_count; i++) {
        keeper->swaps[i] = (struct edition_swap){
            .msg = {.run = swap_snapshot}, .keeper = keeper, .loop = &sched->loops[i]};
        inbox_post(sched->loops[i].inbox, &keeper->swaps[i].msg);
    }
}

/* Takes the live figures as the store has them now. */
static void take_figures(struct node *node, struct node_change *change)
{
    const struct store_op *op = &change->op;

    assert(!op->err && op->verb == STORE_NODE_PUT);
    node->version = op->u.node_put.version;
    node->registered_ms = op->u.node_put.registered_ms;
    if (change->kind == NODE_CHANGE_PUT)
        atomic_store(&node->own, change->own);
    if (change->kind == NODE_CHANGE_ADMIN) {
        atomic_store(&node->admin, change->admin);
        shared_text_put(&node->admin_reason, change->admin_reason);
    }
    atomic_store(&node->health, op->counts.health);
    atomic_store(&node->max, op->counts.max);
    counts_take(node, &op->counts, &op->left, op->order, op->u.node_put.created);
    registry_take_resources(node, change);
}

/* Changes of one node, sent from several loops, may overtake each other between store and keeper.
 * The store determines their order: a late one is only answered. */
static bool is_late(struct keeper *keeper, struct node_change *change)
{
    struct node *node = node_table_node(keeper->nodes, change->node_id);
    bool created = change->kind == NODE_CHANGE_PUT && change->op.u.node_put.created;

    /* A node that the store did not have starts over, and so does the order in a store that was
     * emptied. */
    if (created || change->op.order >= node->change_order) {
        node->change_order = change->op.order;
        return false;
    }
    facts_unref(change->facts);
    change->facts = NULL;
    free(change->resources);
    change->resources = NULL;
    change->node = node;
    return true;
}

static void apply(struct msg *msg)
{
    struct node_change *change = container_of(msg, struct node_change, msg);
    struct keeper *keeper = change->from->sched->keeper;
    static const char *const words[] = {[NODE_CHANGE_PUT] = "changed",
                                        [NODE_CHANGE_FIGURES] = "max",
                                        [NODE_CHANGE_ADMIN] = "admin",
                                        [NODE_CHANGE_DROP] = "left",
                                        [NODE_CHANGE_WATCH] = "health"};

    assert(!change->err && change->kind < COUNT_OF(words) && change->kind != NODE_CHANGE_FIGURES);
    if (!is_late(keeper, change)) {
        if (change->kind == NODE_CHANGE_PUT) {
            struct facts *known = node_table_facts(keeper->nodes, change->node_id);
            int64_t now_ms = sched_awake_ms(loop_of(keeper));

            /* not shared with any reader yet */
            assert(change->facts && atomic_load(&change->facts->refs) == 1);
            change->facts->version = change->op.u.node_put.version;
            change->node = node_table_put(keeper->nodes, change->node_id, change->facts);
            change->facts = NULL;
            take_figures(change->node, change);
            node_report_remember(&change->report, change->node);
            registry_take_live(keeper->sched, change->node, &change->report);
            atomic_store(&change->node->heartbeat_ms, now_ms);
            atomic_store(&change->node->disconnected_ms, 0);
            if (!known)
                node_watch_init(&change->node->watch, now_ms);
            node_watch_heartbeat(&change->node->watch, &node_watch_defaults, true, now_ms);
        } else if (change->kind == NODE_CHANGE_DROP) {
            node_table_del(keeper->nodes, change->node_id);
        } else {
            take_figures(node_table_node(keeper->nodes, change->node_id), change);
        }
        if (change->kind == NODE_CHANGE_ADMIN || change->kind == NODE_CHANGE_WATCH)
            queue_room(keeper->queue, node_table_node(keeper->nodes, change->node_id));
        keeper->sched->hooks->node_changed(loop_of(keeper), change->node_id, words[change->kind]);
    }
    keeper->nodes->dirty = true;
    change->next = keeper->arriving;
    keeper->arriving = change;
}

void keeper_apply(struct keeper *keeper, struct node_change *change)
{
    assert(change->from && change->done);
    change->msg.run = apply;
    inbox_post(loop_of(keeper)->inbox, &change->msg);
}

void keeper_turn(struct keeper *keeper)
{
    if (keeper->nodes->dirty && keeper->unconfirmed == 0)
        publish(keeper);
    queue_turn(keeper->queue);
}

static void kicked(struct msg *msg)
{
    struct keeper *keeper = container_of(msg, struct keeper, kick);

    assert(atomic_load(&keeper->kicked));
    atomic_store(&keeper->kicked, false);
    for (struct node *node = atomic_exchange(&keeper->freed, NULL), *next; node; node = next) {
        next = node->next_freed;
        atomic_store(&node->freed, false);
        queue_room(keeper->queue, node);
    }
    queue_want_kick(keeper->queue);
}

void keeper_freed(struct keeper *keeper, struct node *node)
{
    if (atomic_load_explicit(&keeper->sched->queue_depth, memory_order_relaxed) <= 0)
        return;
    if (!atomic_exchange(&node->freed, true)) {
        struct node *first = atomic_load(&keeper->freed);

        do
            node->next_freed = first;
        while (!atomic_compare_exchange_weak(&keeper->freed, &first, node));
    }
    /* Asks the keeper to look at the queue. */
    if (!atomic_exchange(&keeper->kicked, true))
        inbox_post(loop_of(keeper)->inbox, &keeper->kick);
}

static void go_on(struct msg *msg)
{
    struct onward *onward = container_of(msg, struct onward, msg);

    if (onward->abandon)
        queue_abandon(onward->keeper->queue, &onward->record);
    else if (onward->record.spec.at)
        queue_continue(onward->keeper->queue, &onward->record);
    else
        queue_forget(onward->keeper->queue, onward->record.head.id, 0);
    arena_free(&onward->arena);
    free(onward);
}

static struct onward *onward_new(struct keeper *keeper)
{
    struct onward *onward = mem_new(struct onward);

    onward->keeper = keeper;
    onward->msg.run = go_on;
    return onward;
}

void keeper_continue(struct keeper *keeper, const struct store_record *record)
{
    struct onward *onward = onward_new(keeper);

    assert(record->spec.at);
    if (record->head.lane) /* or the next request would not see it and would overtake it */
        atomic_fetch_add(&keeper->sched->queue_depth, 1);
    onward->record.head = record->head;
    onward->record.spec = arena_str(&onward->arena, record->spec);
    onward->record.history = arena_str(&onward->arena, record->history);
    onward->record.idem = record->idem.at ? arena_str(&onward->arena, record->idem) : STR_NONE;
    onward->record.fingerprint = record->fingerprint;
    inbox_post(loop_of(keeper)->inbox, &onward->msg);
}

void keeper_forget(struct keeper *keeper, uint64_t job)
{
    struct onward *onward = onward_new(keeper);

    assert(job);
    onward->record.head.id = job;
    inbox_post(loop_of(keeper)->inbox, &onward->msg);
}

void keeper_abandon(struct keeper *keeper, uint64_t job, struct str spec)
{
    struct onward *onward = onward_new(keeper);

    assert(job && spec.at);
    onward->record.head.id = job;
    onward->record.spec = arena_str(&onward->arena, spec);
    onward->abandon = true;
    inbox_post(loop_of(keeper)->inbox, &onward->msg);
}

/* Keys of which one job each may start now, or (count 0) changed rules. Posted by any thread. */
struct keys_freed {
    struct msg msg;
    struct keeper *keeper;
    size_t count;
    uint64_t keys[DEMAND_KEYS_MAX];
};

static void keys_freed(struct msg *msg)
{
    struct keys_freed *freed = container_of(msg, struct keys_freed, msg);

    for (size_t i = 0; i < freed->count; i++)
        queue_key_freed(freed->keeper->queue, freed->keys[i]);
    if (!freed->count)
        queue_limits_changed(freed->keeper->queue);
    free(freed);
}

void keeper_keys_freed(struct keeper *keeper, const uint64_t *keys, size_t count)
{
    struct keys_freed *freed = mem_new(struct keys_freed);

    assert(count <= DEMAND_KEYS_MAX);
    freed->msg.run = keys_freed;
    freed->keeper = keeper;
    freed->count = count;
    memcpy(freed->keys, keys, count * sizeof *keys);
    inbox_post(loop_of(keeper)->inbox, &freed->msg);
}

void keeper_limits_changed(struct keeper *keeper)
{
    static const uint64_t none[1];

    keeper_keys_freed(keeper, none, 0);
}

void keeper_notice(struct keeper *keeper, const struct store_notice *notice)
{
    struct str text = notice->text;

    if (notice->kind == STORE_NOTICE_LANE)
        queue_notice(keeper->queue, text);
    while (notice->kind == STORE_NOTICE_KEY && text.len)
        queue_key_freed(keeper->queue, str_hash(str_cut(&text, ' ')));
    if (notice->kind == STORE_NOTICE_GAP)
        queue_look(keeper->queue);
    if (notice->kind == STORE_NOTICE_GAP || notice->kind == STORE_NOTICE_LIMITS)
        queue_limits_changed(keeper->queue);
    if (notice->kind != STORE_NOTICE_LANE && notice->kind != STORE_NOTICE_KEY &&
        notice->kind != STORE_NOTICE_LIMITS)
        node_sync_notice(keeper->node_sync, notice);
}

static void own_change_done(struct node_change *change)
{
    struct own_change *own = container_of(change, struct own_change, change);

    /* The store does not have it at all: it is forgotten here as well. */
    if (change->kind == NODE_CHANGE_DROP && change->err == ERR_NOT_FOUND)
        node_table_del(change->from->sched->keeper->nodes, change->node_id);
    log_event(LOG_INFO, change->kind == NODE_CHANGE_DROP ? "node.forgotten" : "node.health",
              KC("node_id", own->node_id), KC("health", node_health_name(change->watch)),
              KC("result", err_name(change->err)));
    free(own);
}

static void change_node(struct keeper *keeper, const struct node *node, enum node_change_kind kind,
                        enum node_health watch)
{
    struct own_change *own = mem_new(struct own_change);

    bool fits = str_copy(node->id, own->node_id, sizeof own->node_id);
    assert(fits && (kind == NODE_CHANGE_DROP || kind == NODE_CHANGE_WATCH));
    own->change.kind = kind;
    own->change.watch = watch;
    own->change.node_id = str_of(own->node_id);
    own->change.done = own_change_done;
    registry_send(loop_of(keeper), &own->change);
}

/* One node's silence: counts the heartbeats since the last scan, then applies the rules. */
static void watch_node(struct keeper *keeper, struct node *node, int64_t beat_ms, int64_t now_ms)
{
    const struct sched_config *config = &keeper->sched->config;
    struct node_watch_rules rules = node_watch_defaults;
    int bad = atomic_exchange_explicit(&node->bad_heartbeats, 0, memory_order_relaxed);

    if (beat_ms > node->watch.last_heartbeat_ms) {
        node_watch_heartbeat(&node->watch, &rules, true, beat_ms);
        if (node->watch.status == NODE_REGISTERING) /* back from offline: a heartbeat counts */
            node_watch_heartbeat(&node->watch, &rules, true, beat_ms);
    }
    while (bad-- > 0)
        node_watch_heartbeat(&node->watch, &rules, false, beat_ms);
    /* How long it may be silent: after its connection closed only the grace is left. */
    int64_t disconnected_ms = atomic_load_explicit(&node->disconnected_ms, memory_order_relaxed);
    int64_t whole_ms = config->view_drop_ms + config->lost_grace_ms;
    int64_t rest_ms = disconnected_ms - node->watch.last_heartbeat_ms + config->lost_grace_ms;
    rules.heartbeat_timeout_ms = disconnected_ms && rest_ms < whole_ms ? rest_ms : whole_ms;
    /* A node that is silent too long is lost, unless the limit for this scan is reached: a bug of
     * ours, or a network failure on our side, must not take out the whole fleet at once. The next
     * scan looks again. */
    struct node_watch seen = node->watch;
    node_watch_scan(&seen, &rules, now_ms);
    bool lost = seen.status == NODE_OFFLINE && node->watch.status != NODE_OFFLINE;
    if (lost && !keeper->may_lose)
        return;
    keeper->may_lose -= lost;
    node->watch = seen;
}

/* Compares the desired with the actual state and sends again what was lost on the way. */
static void scan_node(struct keeper *keeper, struct node *node, int64_t now_ms)
{
    int64_t beat_ms = atomic_load_explicit(&node->heartbeat_ms, memory_order_relaxed);

    /* A heartbeat that a loop recorded right after a pause, before the pause was noticed, is as far
     * in the future as the pause was long. */
    while (beat_ms > now_ms)
        if (atomic_compare_exchange_weak(&node->heartbeat_ms, &beat_ms, now_ms))
            beat_ms = now_ms;
    enum node_health own = (enum node_health)atomic_load(&node->own);
    enum node_admin admin = (enum node_admin)atomic_load(&node->admin);
    /* Another live instance has its connection and knows more about it than this one. */
    if (atomic_load_explicit(&node->instance, memory_order_relaxed)) {
        node->watch.last_heartbeat_ms = beat_ms;
        return;
    }
    watch_node(keeper, node, beat_ms, now_ms);
    if (now_ms - beat_ms > keeper->sched->config.forget_ms)
        change_node(keeper, node, NODE_CHANGE_DROP, NODE_OFFLINE);
    else if ((int32_t)node_effective(own, node->watch.status, admin) != atomic_load(&node->health))
        change_node(keeper, node, NODE_CHANGE_WATCH, node->watch.status);
}

struct hours *keeper_hours(struct keeper *keeper)
{
    return &keeper->hours;
}

/* Samples the state of the machines since the last look. A pause of this process is not counted. */
static void sample(struct keeper *keeper)
{
    int64_t now_ms = *loop_of(keeper)->wall_ms;
    int64_t mono_ms = *loop_of(keeper)->mono_ms;
    int64_t past_ms = mono_ms - keeper->sampled_ms;
    struct tally *tally = hours_at(&keeper->hours, now_ms);
    const struct snap_node *member;
    struct snap_at at = {0};

    keeper->sampled_ms = mono_ms;
    while (tally && past_ms <= 3 * SAMPLE_EVERY_MS &&
           (member = snapshot_next(keeper->current, &at)))
        tally_note_machine(tally, member->node, past_ms);
    hours_tidy(&keeper->hours, now_ms);
}

static void scan(struct keeper *keeper)
{
    int64_t now_ms = sched_awake_ms(loop_of(keeper));
    struct gauges gauges = {0};
    const struct snapshot *snapshot = keeper->current;
    size_t share = snapshot->count / LOST_SHARE;
    const struct snap_node *member;

    keeper->may_lose = now_ms < keeper->judge_ms ? 0 : share > LOST_MAX ? share : LOST_MAX;
    for (struct snap_at at = {0}; (member = snapshot_next(snapshot, &at));) {
        struct node *node = member->node;

        scan_node(keeper, node, now_ms);
        /* A node that gets no jobs cannot show that it has recovered: old results are forgotten. */
        uint32_t ring_at = atomic_load_explicit(&node->ring_at, memory_order_relaxed);
        if (ring_at != node->ring_seen) {
            node->ring_seen = ring_at;
            node->ring_changed_ms = now_ms;
        } else if (ring_at && now_ms - node->ring_changed_ms > RING_FORGET_MS) {
            atomic_store_explicit(&node->ring_at, 0, memory_order_relaxed);
            node->ring_seen = 0;
        }
        gauges_add(&gauges, node);
        if (keeper->sched->policy->by_score)
            atomic_store_explicit(&node->score,
                                  sched_score(node, keeper->sched->config.latency_target_ms),
                                  memory_order_relaxed);
    }
    /* Updates the metrics. */
    for (int i = NODE_REGISTERING; i < NODE_HEALTH_COUNT; i++)
        metric_set_label(METRIC_NODES, node_health_name((enum node_health)i), gauges.by_health[i]);
    for (int i = 0; i < LEVEL_COUNT; i++)
        metric_set_label(METRIC_NODE_LEVELS, level_name((enum level)i), gauges.by_level[i]);
    metric_set_label(METRIC_LEASES, "reserved", gauges.reserved);
    metric_set_label(METRIC_LEASES, "running", gauges.running);
    metric_set_label(METRIC_SLOTS, "max", gauges.max);
    metric_set_label(METRIC_SLOTS, "used", gauges.used);
    metric_set_label(METRIC_SLOTS, "free", gauges.max - gauges.used);
    tally_collect(keeper->sched, hours_at(&keeper->hours, *loop_of(keeper)->wall_ms));
    metric_set(METRIC_QUEUE_OLDEST, queue_oldest_ms(keeper->queue, now_ms));
}

const struct queue *keeper_queue(const struct keeper *keeper)
{
    return keeper->queue;
}

struct node_sync *keeper_view(struct keeper *keeper)
{
    return keeper->node_sync;
}

/* Related data is written in one call, so a repair means a bug of ours, or that something else
 * wrote to the store. */
static void watch_repairs(struct keeper *keeper, const struct store_status *status)
{
    static const char *const details[STORE_RULES] = {
        [STORE_RULE_SLOTS] = "slots were counted that no lease held, or the other way round",
        [STORE_RULE_LEASES] = "leases of a node were listed otherwise than their jobs have them",
        [STORE_RULE_LANES] = "a queue had jobs that did not wait there",
        [STORE_RULE_RESOURCES] = "what was used of a node's resources was not what its leases hold",
        [STORE_RULE_KEY_LEASES] = "a key's jobs in flight were not those that have a lease",
        [STORE_RULE_KEY_WAITING] = "a key's waiting jobs were not those in the queues",
    };

    for (int i = 0; i < STORE_RULES; i++) {
        if (status->repairs[i] == keeper->repairs[i])
            continue;
        log_event(LOG_ERROR, "store.repaired", KC("rule", store_rule_name((enum store_rule)i)),
                  KI("counts", status->repairs[i] - keeper->repairs[i]), KC("detail", details[i]));
        keeper->repairs[i] = status->repairs[i];
    }
}

/* The store was emptied, or another server took over, perhaps without the latest acknowledged
 * writes: nodes are put again with what they run. */
static void put_again(struct keeper *keeper)
{
    queue_put_again(keeper->queue);
    atomic_store(&keeper->sched->recovering_until_ms, clock_mono_ms() + RECOVERING_MS);
}

/* Logs once what changed about the store: another generation or server, out of space, writes
 * refused. */
static void watch_store(struct keeper *keeper)
{
    struct store_status status;

    store_status(keeper->sched->store, &status);
    if (status.generation[0] && strcmp(status.generation, keeper->generation) != 0) {
        if (keeper->generation[0]) {
            put_again(keeper);
            log_event(LOG_ERROR, "store.emptied", KC("generation", status.generation),
                      KC("detail", "nodes register again; what they run is taken back"));
        }
        str_copy(str_of(status.generation), keeper->generation, sizeof keeper->generation);
    }
    if (status.moves != keeper->moves) {
        keeper->moves = status.moves;
        put_again(keeper);
        log_event(
            LOG_WARN, "store.moved", KI("moves", status.moves),
            KC("detail", "another server took over; what nodes hold and it lacks is taken back"));
    }
    watch_repairs(keeper, &status);
    if (status.full != keeper->store_full) {
        keeper->store_full = status.full;
        if (status.full && !store_name(keeper->sched->store))
            log_event(LOG_ERROR, "store.full",
                      KC("detail", "store.db does not follow the journal: no new work is taken"),
                      KC("reason", status.detail));
        else if (status.full)
            log_event(LOG_ERROR, "store.full",
                      KC("detail", "Redis is near its maxmemory: no new work is taken, and "
                                   "finished jobs go before their time"));
        else
            log_event(LOG_INFO, "store.room", KC("detail", "new work is taken again"));
    }
    keeper->deaf = status.deaf;
    if (status.mode == keeper->store_mode)
        return;
    keeper->store_mode = status.mode;
    if (status.mode == STORE_NORMAL)
        log_event(LOG_INFO, "store.up", KI("errors", status.errors));
    else
        log_event(LOG_ERROR, "store.down", KC("mode", store_mode_name(status.mode)),
                  KC("reason", status.detail));
}

void keeper_start(struct keeper *keeper)
{
    /* Records the current state: if the store is emptied before the first tick, that is logged. */
    watch_store(keeper);
    node_sync_load(keeper->node_sync);
}

/* A pause of this process (it was stopped, or the virtual machine moved) does not count as silence,
 * and messages that arrived meanwhile are read before any node is judged. Awake time advances a
 * little with every tick, so that a keeper that is always late still finds lost nodes. */
static void pass_time(struct keeper *keeper)
{
    struct sched *sched = keeper->sched;
    int64_t mono_ms = *loop_of(keeper)->mono_ms;
    int64_t paused_ms = keeper->ticked_ms ? mono_ms - keeper->ticked_ms - LATE_MS : 0;

    keeper->ticked_ms = mono_ms;
    if (paused_ms <= 0)
        return;
    atomic_fetch_add_explicit(&sched->paused_ms, paused_ms, memory_order_relaxed);
    if (paused_ms < sched->config.heartbeat_ms)
        return;
    keeper->judge_ms = sched_awake_ms(loop_of(keeper)) + sched->config.heartbeat_ms;
    log_event(LOG_WARN, "server.paused", KI("paused_ms", paused_ms),
              KC("detail", "this process was not running; nobody is lost because of that"));
}

void keeper_tick(struct keeper *keeper)
{
    int64_t now_ms;

    pass_time(keeper);
    now_ms = sched_awake_ms(loop_of(keeper));
    watch_store(keeper);
    keeper->nodes->now_ms = now_ms;
    if (!keeper->current) {
        node_sync_load(keeper->node_sync);
        return;
    }
    node_sync_tick(keeper->node_sync);
    queue_tick(keeper->queue, now_ms);
    if (now_ms >= keeper->next_sweep_ms) {
        keeper->next_sweep_ms = now_ms + SWEEP_EVERY_MS;
        sweep_tick(keeper->sweep);
    }
    if (now_ms >= keeper->next_scan_ms) {
        keeper->next_scan_ms = now_ms + SCAN_EVERY_MS;
        scan(keeper);
    }
    if (now_ms >= keeper->next_compare_ms) {
        keeper->next_compare_ms = now_ms + (keeper->deaf ? COMPARE_DEAF_MS : COMPARE_EVERY_MS);
        node_sync_compare(keeper->node_sync);
    }
    if (*loop_of(keeper)->mono_ms - keeper->sampled_ms >= SAMPLE_EVERY_MS)
        sample(keeper);
}
