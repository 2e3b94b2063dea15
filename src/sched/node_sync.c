/* Keeps the table of nodes in step with the store, with one call at a time, in this order: all
 * nodes once, nodes with known changes, all counters; once they are begun, all their parts. Signs
 * of life are sent in one call for all nodes of this instance, and to all instances at once, with
 * level, load, usage and what is loaded: so any instance can show and judge any node. */
#include "sched/node_sync.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "model/level.h"
#include "sched/frame.h"
#include "sched/node_report.h"
#include "sched/sched.h"
#include "sched/shared_text.h"
#include "sched/warm_index.h"
#include "store/chain.h"

struct node_sync {
    struct sched *sched;
    struct node_table *members;
    struct store_op op; /* NODES or COUNTS */
    struct arena arena;
    bool busy;
    bool loaded;            /* the first load is done */
    bool compare;           /* the counters should be compared */
    uint64_t compares;      /* the number of the present comparison, or of the last */
    size_t compare_from;    /* its next part; 0: none */
    uint64_t compare_order; /* its first answer's */
    size_t noticed_count;   /* in `wanted` then */
    struct map wanted;      /* ids of nodes to be loaded -> themselves; our memory */
    struct str *ids;        /* of the call under way */
    size_t id_count;
    int64_t seq;       /* of the last change that was announced, or is known to be included */
    int64_t oldest_us; /* see node_sync_take_oldest_us */
    int64_t wanted_us; /* when the oldest announced change in `wanted` was made; 0: none */
    int64_t call_us;   /* the same for `ids` */
    int64_t sent_us;   /* when the call under way was sent */
    int64_t looked_us; /* when the last answered look at all nodes was sent, or its last part */
    /* A look found a change without a notice. The notice may still come with the change's time;
     * otherwise it is only known that the previous look did not see the change. */
    bool found;
    int64_t unheard;   /* how many such changes there are */
    int64_t before_us; /* when that previous look was sent */
    int64_t late_us;   /* the oldest change whose notice came later; 0: none */
    char generation[sizeof((struct store_status *)0)->generation]; /* as last seen */
    unsigned moves;                                                /* likewise */
    struct store_op peers_op;
    struct arena peers_arena;
    bool listing; /* peers_op is under way */
    struct peer *peers;
    size_t peer_count;
    int64_t shared_ms;      /* clock_mono_ms */
    struct chain under_way; /* of seen_batch.under_way */
};

struct peer {
    uint32_t name;
    int64_t silent_ms;
};

static void next_call(struct node_sync *sync);

/* --- signs of life --- */

enum {
    SEEN_EVERY_MS = 500,
    SEEN_MAX = 256,      /* nodes in one call */
    PEER_GONE_MS = 4000, /* it calls every second */
    PEER_NEW_MS = 2000,  /* an instance that took a connection so lately may not be listed yet */
    /* Times of another instance use the store's clock, known to within a few hundred ms: a small
     * step forward is not a new sign of life. */
    BEAT_STEP_MS = 1000,
    BEAT_LATE_MS = SEEN_EVERY_MS + BEAT_STEP_MS,
};

/* One SEEN call. */
struct seen_batch {
    struct store_op op;
    struct chain under_way;
    struct buf text;
    struct store_seen items[SEEN_MAX];
    size_t count;
};

static struct sched_loop *loop_of(struct node_sync *sync)
{
    return sched_keeper_loop(sync->sched);
}

static uint32_t own_name(const struct node_sync *sync)
{
    return store_name(sync->sched->store);
}

/* --- instances --- */

static void listed(struct store_op *op)
{
    struct node_sync *sync = container_of(op, struct node_sync, peers_op);

    assert(sync->listing);
    sync->listing = false;
    if (!op->err) {
        sync->peer_count = op->u.peers.count;
        sync->peers = mem_resize(sync->peers, (sync->peer_count + 1) * sizeof *sync->peers);
        for (size_t i = 0; i < sync->peer_count; i++)
            sync->peers[i] = (struct peer){.name = op->u.peers.items[i].name,
                                           .silent_ms = op->u.peers.items[i].silent_ms};
    }
    arena_reset(&sync->peers_arena);
}

void node_sync_list_peers(struct node_sync *sync)
{
    if (!own_name(sync) || sync->listing)
        return;
    sync->peers_op =
        (struct store_op){.verb = STORE_PEERS, .done = listed, .arena = &sync->peers_arena};
    sync->listing = true;
    sched_send(loop_of(sync), &sync->peers_op);
}

static bool is_up(const struct node_sync *sync, uint32_t peer)
{
    for (size_t i = 0; i < sync->peer_count; i++)
        if (sync->peers[i].name == peer)
            return sync->peers[i].silent_ms <= PEER_GONE_MS;
    return sync->peer_count == 0; /* not listed yet */
}

/* --- sending heartbeats to other instances --- */

static void batch_sent(struct store_op *op)
{
    struct seen_batch *batch = container_of(op, struct seen_batch, op);

    chain_del(&batch->under_way);
    buf_free(&batch->text);
    free(batch);
}

static void send_batch(struct node_sync *sync, struct seen_batch *batch, size_t begun)
{
    assert(batch->count > 0 && batch->count <= SEEN_MAX);
    frame_end(&batch->text, begun);
    batch->op = (struct store_op){.verb = STORE_SEEN, .done = batch_sent};
    batch->op.u.seen.items = batch->items;
    batch->op.u.seen.count = batch->count;
    batch->op.u.seen.text = buf_view(&batch->text);
    chain_add_last(&sync->under_way, &batch->under_way);
    sched_send(loop_of(sync), &batch->op);
}

/* "\nNODE LEVEL CPU GPU MEM USAGE"; a usage is JSON without line ends, and may be missing. After
 * it, if the node ever reported any, "\nNODE loaded NAMES", a JSON list without blanks. */
static void add_node(struct seen_batch *batch, struct node *node)
{
    struct shared_text *usage = atomic_load(&node->usage);
    struct shared_text *loaded = atomic_load(&node->loaded_names);
    struct store_seen *seen = &batch->items[batch->count++];
    struct buf buf = {0};

    *seen = (struct store_seen){.node = node->id,
                                .level = atomic_load(&node->level),
                                .cpu_pm = atomic_load(&node->cpu_pm),
                                .gpu_pm = atomic_load(&node->gpu_pm),
                                .mem_pm = atomic_load(&node->mem_pm)};
    buf_fmt(&batch->text, "\n" STR_FMT " %d %d %d %d ", STR_ARG(node->id), seen->level,
            seen->cpu_pm, seen->gpu_pm, seen->mem_pm);
    if (usage && shared_text_read(usage, &buf))
        for (size_t i = 0; i < buf.len; i++)
            buf_char(&batch->text, buf.at[i] == '\n' || buf.at[i] == '\r' ? ' ' : buf.at[i]);
    buf_clear(&buf);
    /* A separate line, which older releases read as a sign of life without figures. */
    if (loaded && shared_text_read(loaded, &buf)) /* empty: it had some before */
        buf_fmt(&batch->text, "\n" STR_FMT " loaded " STR_FMT, STR_ARG(node->id),
                STR_ARG(buf.len ? buf_view(&buf) : STR("[]")));
    buf_free(&buf);
}

void node_sync_tick(struct node_sync *sync)
{
    const struct snapshot *snapshot = loop_of(sync)->snapshot;
    int64_t now_ms = *loop_of(sync)->mono_ms;
    struct seen_batch *batch = NULL;
    const struct snap_node *member;
    size_t begun = 0;

    if (!own_name(sync) || !snapshot || now_ms - sync->shared_ms < SEEN_EVERY_MS)
        return;
    sync->shared_ms = now_ms;
    for (struct snap_at at = {0}; (member = snapshot_next(snapshot, &at));) {
        struct node *node = member->node;
        int64_t beat_ms = atomic_load_explicit(&node->heartbeat_ms, memory_order_relaxed);

        if (beat_ms <= node->shared_ms)
            continue;
        node->shared_ms = beat_ms;
        if (!batch) {
            batch = mem_new(struct seen_batch);
            begun = frame_begin(&batch->text);
            buf_str(&batch->text, STR("seen"));
        }
        add_node(batch, node);
        if (batch->count == SEEN_MAX) {
            send_batch(sync, batch, begun);
            batch = NULL;
        }
    }
    if (batch)
        send_batch(sync, batch, begun);
}

/* --- heartbeats of other instances --- */

/* An instance received a heartbeat of the node at `at_ms`. */
static void take_beat(struct node *node, int64_t at_ms)
{
    int64_t last_ms = atomic_load_explicit(&node->heartbeat_ms, memory_order_relaxed);

    while (at_ms > last_ms + BEAT_STEP_MS)
        if (atomic_compare_exchange_weak(&node->heartbeat_ms, &last_ms, at_ms)) {
            node->shared_ms = at_ms;
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

void node_sync_seen(struct node_sync *sync, struct str text)
{
    const struct node_table *members = sync->members;
    int64_t now_ms = sched_awake_ms(loop_of(sync));

    while (text.len) {
        struct str line = str_cut(&text, '\n');
        struct str id = str_cut(&line, ' ');
        struct node *node =
            id.len && node_table_facts(members, id) ? map_get(&members->nodes, id) : NULL;

        if (!node || atomic_load(&node->link))
            continue; /* we have its connection, so we know better */
        if (str_starts(line, STR("loaded "))) {
            struct arena arena = {0};
            const struct json *list;
            struct strs names;

            str_cut(&line, ' ');
            if (!json_parse(line, &arena, &list, NULL) &&
                warm_names(list, WARM_LOADED_MAX, &arena, &names))
                warm_index_put(sync->sched->warm, node, &names);
            arena_free(&arena);
            continue;
        }
        struct store_seen seen = {.level = next_figure(&line)};
        seen.cpu_pm = next_figure(&line);
        seen.gpu_pm = next_figure(&line);
        seen.mem_pm = next_figure(&line);
        take_load(node, &seen);
        if (line.len)
            shared_text_put(&node->usage, line);
        take_beat(node, now_ms);
    }
}

/* The node gets no jobs while no instance has its connection. An earlier heartbeat may have been
 * sent after its connection closed; a much later one is a sign of life by another route. */
static void take_left(struct node *node, int64_t at_ms)
{
    int64_t none = 0;

    if (!atomic_load(&node->link) && atomic_load(&node->heartbeat_ms) <= at_ms + BEAT_LATE_MS)
        atomic_compare_exchange_strong(&node->disconnected_ms, &none, at_ms);
}

static void take_link(struct node_sync *sync, struct node *node, const struct store_live *stored)
{
    int64_t now_ms = sched_awake_ms(loop_of(sync));
    bool held = stored->kind == STORE_LINK_SOCKET || stored->kind == STORE_LINK_POLL;
    bool ours = stored->instance == own_name(sync);
    bool up = stored->linked_ms < PEER_NEW_MS || is_up(sync, stored->instance);
    uint32_t instance = held && !ours && up ? stored->instance : 0;
    uint32_t before = atomic_exchange(&node->instance, instance);
    bool socket = atomic_load(&node->link) != 0;
    bool polled = !socket && atomic_load(&node->polled);

    if (instance)
        atomic_store(&node->disconnected_ms, 0);
    else if (stored->kind == STORE_LINK_SOCKET && !ours)
        take_left(node, now_ms); /* its instance is gone, and the connection with it */
    else if (stored->kind == STORE_LINK_LEFT)
        take_left(node, now_ms - stored->linked_ms);
    /* Our state and the store's record of it must match. */
    if ((instance && instance != before) || (instance && socket) ||
        socket != (ours && stored->kind == STORE_LINK_SOCKET) ||
        (polled && !(ours && stored->kind == STORE_LINK_POLL)))
        sync->sched->hooks->linked(loop_of(sync), node, stored, instance != 0);
}

void node_sync_take_live(struct node_sync *sync, struct node *node, const struct store_live *stored,
                         uint64_t order)
{
    if (!own_name(sync))
        return;
    assert(stored->kind <= STORE_LINK_LEFT && stored->linked_ms >= 0);
    if (stored->silent_ms >= 0 && !atomic_load(&node->link)) {
        struct store_seen seen = {.level = stored->level,
                                  .cpu_pm = stored->cpu_pm,
                                  .gpu_pm = stored->gpu_pm,
                                  .mem_pm = stored->mem_pm};

        take_load(node, &seen);
        take_beat(node, sched_awake_ms(loop_of(sync)) - stored->silent_ms);
    }
    if (order >= atomic_load(&node->link_order))
        take_link(sync, node, stored);
}

/* --- records and counters --- */

enum { WANTED_MAX = 1024 }; /* nodes in one call */

struct node_sync *node_sync_new(struct sched *sched, struct node_table *members)
{
    struct node_sync *sync = mem_new(struct node_sync);

    sync->sched = sched;
    sync->members = members;
    chain_init(&sync->under_way);
    return sync;
}

static void ids_free(struct node_sync *sync)
{
    for (size_t i = 0; i < sync->id_count; i++)
        free((void *)sync->ids[i].at);
    free(sync->ids);
    sync->ids = NULL;
    sync->id_count = 0;
}

void node_sync_free(struct node_sync *sync)
{
    char *id;

    if (!sync)
        return;
    for (size_t i = 0; (id = map_next(&sync->wanted, &i));)
        free(id);
    map_free(&sync->wanted);
    ids_free(sync);
    /* Frees answers that the store put into an inbox that is no longer read. */
    while (sync->under_way.next != &sync->under_way)
        batch_sent(&container_of(sync->under_way.next, struct seen_batch, under_way)->op);
    arena_free(&sync->peers_arena);
    free(sync->peers);
    arena_free(&sync->arena);
    free(sync);
}

int64_t node_sync_take_oldest_us(struct node_sync *sync)
{
    int64_t oldest_us = sync->oldest_us;

    sync->oldest_us = 0;
    return oldest_us;
}

static void set_seq(struct node_sync *sync, int64_t seq)
{
    sync->seq = seq;
    metric_set(METRIC_INSTANCE_VERSION, seq);
}

/* The earlier of two moments; 0 is none. */
static int64_t earlier(int64_t a_us, int64_t b_us)
{
    return a_us && (!b_us || a_us < b_us) ? a_us : b_us;
}

/* Marks a node to be loaded. */
static void want(struct node_sync *sync, struct str id)
{
    if (!id.len || id.len > NODE_ID_MAX || map_get(&sync->wanted, id))
        return;
    id = mem_str(id);
    map_put(&sync->wanted, id, (void *)id.at);
}

/* --- taking over what was read --- */

static struct facts *facts_of(const struct node_sync *sync, const struct store_node *record)
{
    struct facts *facts;
    struct problem why;

    if (node_report_stored(record->facts, &sync->sched->config.node_rules, &facts, &why)) {
        log_event(LOG_ERROR, "node.unreadable", KS("node_id", record->id),
                  KC("reason", why.detail));
        return NULL;
    }
    facts->version = record->version;
    return facts;
}

static void take_figures(struct node_sync *sync, struct node *node, const struct store_node *record,
                         bool first)
{
    struct resources resources;

    atomic_store(&node->own, record->own);
    atomic_store(&node->health, record->counts.health);
    atomic_store(&node->admin, record->admin);
    shared_text_put(&node->admin_reason, record->admin_reason);
    atomic_store(&node->max, record->counts.max);
    node->version = record->version;
    node->registered_ms = record->registered_ms;
    node->change_order = sync->op.order;
    counts_take(node, &record->counts, &record->left, sync->op.order, first);
    if (record->resources.len && resources_parse(record->resources, &resources))
        counts_usable_put(node, &resources);
}

/* Its ages count from here. */
static void start_watch(struct node *node, int64_t now_ms)
{
    atomic_store(&node->heartbeat_ms, now_ms);
    node->shared_ms = now_ms;
    node_watch_init(&node->watch, now_ms);
    node_watch_heartbeat(&node->watch, &node_watch_defaults, true, now_ms);
}

/* A health found by an instance holds until the node gives a new sign of life; our start, or our
 * reading of it, is not one. An instance withdrawing its finding is one. */
static void take_finding(struct node *node, const struct store_node *record, int64_t now_ms)
{
    if (record->counts.health != record->own &&
        (record->counts.health == NODE_OFFLINE || record->counts.health == NODE_DEGRADED))
        node->watch.status = record->counts.health;
    else
        start_watch(node, now_ms);
}

static void load_new(struct node_sync *sync, const struct store_node *record)
{
    int64_t now_ms = sched_awake_ms(loop_of(sync));
    struct facts *facts = facts_of(sync, record);

    if (!facts)
        return;
    struct node *node = node_table_put(sync->members, record->id, facts);
    take_figures(sync, node, record, true);
    start_watch(node, now_ms);
    take_finding(node, record, now_ms);
}

/* A known node: its facts are replaced only if they differ, so that changed figures do not make a
 * new edition. */
static void load_known(struct node_sync *sync, struct node *node, const struct facts *known,
                       const struct store_node *record)
{
    bool same = str_eq(known->json, record->facts);
    bool new_health = atomic_load(&node->health) != (int32_t)record->counts.health;
    struct facts *facts = same ? NULL : facts_of(sync, record);

    if (!same && !facts)
        return;
    if (facts && str_eq(known->json, facts->json)) { /* the same once our rules are applied */
        same = true;
        facts_unref(facts);
    }
    take_figures(sync, node, record, false);
    if (new_health)
        take_finding(node, record, sched_awake_ms(loop_of(sync)));
    if (same)
        return;
    node_table_put(sync->members, record->id, facts);
    for (int i = 0; i < NODE_MARKS; i++)
        atomic_store(&node->marks[i], 0); /* what it reported before is not what is stored */
}

static void load_record(struct node_sync *sync, const struct store_node *record)
{
    const struct facts *known = node_table_facts(sync->members, record->id);
    struct node *node = known ? node_table_node(sync->members, record->id) : NULL;

    if (node && node->change_order > sync->op.order)
        return; /* our own change is newer */
    bool changed = !node || node->version != record->version;
    if (node)
        load_known(sync, node, known, record);
    else
        load_new(sync, record);
    if (changed && sync->loaded)
        sync->sched->hooks->node_changed(loop_of(sync), record->id, "changed");
    node = map_get(&sync->members->nodes, record->id);
    if (node)
        node_sync_take_live(sync, node, &record->live, sync->op.order);
}

/* --- the calls --- */

/* A node that was requested and is not in the answer has left. */
static void loaded_some(struct node_sync *sync)
{
    struct store_op *op = &sync->op;
    struct map found = {0};

    for (size_t i = 0; i < op->u.nodes.count; i++) {
        if (!op->u.nodes.items[i].facts.len)
            continue; /* dropped between reading its record and reading its facts */
        load_record(sync, &op->u.nodes.items[i]);
        map_put(&found, op->u.nodes.items[i].id, sync);
    }
    for (size_t i = 0; i < sync->id_count; i++) {
        struct str id = sync->ids[i];
        struct node *node = map_get(&sync->members->nodes, id);

        if (map_get(&found, id) || !node || !node_table_facts(sync->members, id) ||
            node->change_order > op->order)
            continue;
        node->change_order = op->order;
        /* While it still is in our snapshot. */
        sync->sched->hooks->node_changed(loop_of(sync), node->id, "left");
        node_table_del(sync->members, node->id);
    }
    map_free(&found);
}

/* Takes over the counters of a part of the nodes; a node whose version differs, or that we lack, is
 * loaded. */
static void compare_part(struct node_sync *sync)
{
    struct store_op *op = &sync->op;

    for (size_t i = 0; i < op->u.nodes.count; i++) {
        const struct store_node *record = &op->u.nodes.items[i];
        const struct node_entry *member = map_get(&sync->members->by_id, record->id);
        struct node *node = member ? member->node : NULL;

        if (!node ||
            (node->change_order <= op->order &&
             (node->version != record->version || node->registered_ms != record->registered_ms)))
            want(sync, record->id);
        if (!node)
            continue;
        node->compared = sync->compares;
        counts_take(node, &record->counts, &record->left, op->order, false);
        node_sync_take_live(sync, node, &record->live, op->order);
    }
}

static void compared(struct node_sync *sync)
{
    struct store_op *op = &sync->op;
    struct node_entry *member;

    if (!sync->compare_from) {
        sync->compares++;
        sync->compare_order = op->order;
        sync->noticed_count = sync->wanted.count;
    }
    compare_part(sync);
    sync->compare_from = op->u.nodes.from;
    if (sync->compare_from)
        return;
    for (size_t i = 0; (member = map_next(&sync->members->by_id, &i));)
        if (member->node->compared != sync->compares &&
            member->node->change_order <= sync->compare_order)
            want(sync, member->node->id);
    assert(sync->wanted.count >= sync->noticed_count);
    int64_t version = op->u.nodes.version; /* 0: not shared, all nodes are our own */
    bool is_found = version > 0 && sync->wanted.count > sync->noticed_count;
    sync->unheard = version > sync->seq ? version - sync->seq : 0;
    sync->late_us = 0;
    if (is_found && !sync->found)
        sync->before_us = sync->looked_us;
    sync->found = is_found;
    if (!sync->wanted.count)
        sync->wanted_us = 0; /* what could not be loaded stays as it was */
    metric_set(METRIC_VERSION_LAG, sync->unheard);
    set_seq(sync, version); /* smaller, if the store was emptied */
}

static void answered(struct store_op *op)
{
    struct node_sync *sync = container_of(op, struct node_sync, op);
    bool some = op->verb == STORE_NODES && sync->id_count > 0;

    assert(sync->busy);
    sync->busy = false;
    if (!op->err && !some)
        atomic_store_explicit(&sync->sched->fresh_us, clock_mono_us(), memory_order_relaxed);
    if (op->err) {
        sync->compare_from = 0;
        sync->compare |= sync->loaded && some; /* what was not loaded will be found again */
        sync->wanted_us = earlier(sync->wanted_us, some ? sync->call_us : 0);
    } else if (some) {
        loaded_some(sync);
        int64_t found_us = !sync->unheard && sync->late_us ? sync->late_us : sync->before_us;
        if (sync->members->dirty) /* an edition with the loaded nodes will follow */
            sync->oldest_us =
                earlier(sync->oldest_us, earlier(sync->call_us, sync->found ? found_us : 0));
        sync->found = false;
    } else if (op->verb == STORE_NODES) {
        for (size_t i = 0; i < op->u.nodes.count; i++)
            if (op->u.nodes.items[i].facts.len)
                load_record(sync, &op->u.nodes.items[i]);
        sync->members->dirty = true; /* even if there is none: the first edition makes us ready */
        sync->loaded = true;
        set_seq(sync, op->u.nodes.version);
    } else {
        compared(sync);
    }
    if (!op->err && !some)
        sync->looked_us = sync->sent_us;
    ids_free(sync);
    arena_reset(&sync->arena);
    if (!op->err)
        next_call(sync);
}

static void send(struct node_sync *sync, enum store_verb verb)
{
    assert(!sync->busy);
    sync->op = (struct store_op){.verb = verb, .done = answered, .arena = &sync->arena};
    sync->op.u.nodes.ids = sync->id_count ? sync->ids : NULL;
    sync->op.u.nodes.id_count = sync->id_count;
    sync->op.u.nodes.from = verb == STORE_COUNTS ? sync->compare_from : 0;
    sync->busy = true;
    sync->sent_us = clock_mono_us();
    sched_send(loop_of(sync), &sync->op);
}

static void next_call(struct node_sync *sync)
{
    size_t count = sync->wanted.count < WANTED_MAX ? sync->wanted.count : WANTED_MAX;
    char *id;

    if (sync->busy || !sync->loaded)
        return;
    if (count && !sync->compare_from) { /* the ids move from the map to the call */
        assert(!sync->ids);
        sync->ids = mem_array(struct str, count);
        for (size_t i = 0; sync->id_count < count && (id = map_next(&sync->wanted, &i));)
            sync->ids[sync->id_count++] = str_of(id);
        for (size_t i = 0; i < count; i++)
            map_del(&sync->wanted, sync->ids[i]);
        sync->call_us = sync->wanted_us;
        if (!sync->wanted.count)
            sync->wanted_us = 0;
        send(sync, STORE_NODES);
    } else if (sync->compare || sync->compare_from) {
        sync->compare &= sync->compare_from > 0;
        send(sync, STORE_COUNTS);
    }
}

void node_sync_load(struct node_sync *sync)
{
    if (!sync->busy)
        send(sync, STORE_NODES);
}

void node_sync_compare(struct node_sync *sync)
{
    struct store_status status;
    struct node *node;

    store_status(sync->sched->store, &status);
    /* A store that was emptied, or that another server took over, may not continue our sequence
     * numbers: everything known predates that and is loaded again, including nodes that left, which
     * may return. */
    if (status.moves != sync->moves || strcmp(status.generation, sync->generation) != 0) {
        for (size_t i = 0; sync->generation[0] && (node = map_next(&sync->members->nodes, &i));) {
            node->change_order = 0;
            atomic_store(&node->link_order, 0);
            atomic_store(&node->counts, 0);
        }
        memcpy(sync->generation, status.generation, sizeof sync->generation);
        sync->moves = status.moves;
    }
    sync->compare = true;
    node_sync_list_peers(sync);
    next_call(sync);
}

void node_sync_notice(struct node_sync *sync, const struct store_notice *notice)
{
    struct str rest = notice->text;
    int64_t then_us = clock_mono_us() - notice->age_ms * 1000;

    if (notice->kind == STORE_NOTICE_NODES) {
        if (sync->unheard > 0 && notice->seq <= sync->seq) {
            sync->unheard--;
            sync->late_us = earlier(sync->late_us, then_us);
        }
        sync->wanted_us = earlier(sync->wanted_us, then_us);
        while (rest.len)
            want(sync, str_cut(&rest, ' '));
    }
    /* A notice was missed: comparing versions shows what changed. */
    if (notice->kind == STORE_NOTICE_GAP || notice->seq > sync->seq + 1)
        sync->compare = true;
    if (notice->kind == STORE_NOTICE_NODES && notice->seq > sync->seq)
        set_seq(sync, notice->seq);
    next_call(sync);
}
