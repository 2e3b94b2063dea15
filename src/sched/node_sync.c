/* One call at a time, in this order: all nodes once, nodes that were heard of, all counters. */
#include "sched/node_sync.h"
#include "sched/shared_text.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "sched/counts.h"
#include "sched/node_report.h"
#include "sched/view_live.h"

enum { WANTED_MAX = 1024 }; /* nodes of one call */

struct view {
    struct sched *sched;
    struct node_table *members;
    struct view_live *live;
    struct store_op op;
    struct arena arena;
    bool busy;
    bool loaded;     /* the first load is done */
    bool compare;    /* counters are to be looked at */
    struct map news; /* ids of nodes that are to be loaded -> themselves; our memory */
    struct str *ids; /* of the call under way */
    size_t id_count;
    int64_t seq;       /* of the last change heard, or known to be contained */
    int64_t oldest_us; /* see view_take_oldest_us */
    int64_t news_us;   /* when the oldest change of `news` that was heard of was made; 0: none */
    int64_t call_us;   /* the same of `ids` */
    int64_t sent_us;   /* the call under way */
    int64_t looked_us; /* the last look at all (load or compare) that was answered was sent */
    /* What a look found that nobody had told. Its word may still come, and says when it was; else
     * all that is known is that the look before did not see it. */
    bool found;
    int64_t unheard;   /* changes of which that is so */
    int64_t before_us; /* when that look before was sent */
    int64_t late_us;   /* the oldest change whose word came at last; 0: none did */
    char generation[sizeof((struct store_status *)0)->generation]; /* as last seen */
    unsigned moves;                                                /* likewise */
};

struct view *view_new(struct sched *sched, struct node_table *members)
{
    struct view *view = mem_new(struct view);

    view->sched = sched;
    view->members = members;
    view->live = view_live_new(sched);
    return view;
}

static void ids_free(struct view *view)
{
    for (size_t i = 0; i < view->id_count; i++)
        free((void *)view->ids[i].at);
    free(view->ids);
    view->ids = NULL;
    view->id_count = 0;
}

void view_free(struct view *view)
{
    char *id;

    if (!view)
        return;
    for (size_t i = 0; (id = map_next(&view->news, &i));)
        free(id);
    map_free(&view->news);
    ids_free(view);
    view_live_free(view->live);
    arena_free(&view->arena);
    free(view);
}

static struct sched_loop *loop_of(struct view *view)
{
    return sched_keeper_loop(view->sched);
}

bool view_has_peer(const struct view *view, uint32_t name)
{
    return view_live_has_peer(view->live, name);
}

int64_t view_take_oldest_us(struct view *view)
{
    int64_t oldest_us = view->oldest_us;

    view->oldest_us = 0;
    return oldest_us;
}

static void set_seq(struct view *view, int64_t seq)
{
    view->seq = seq;
    metric_set(METRIC_INSTANCE_VERSION, seq);
}

/* Of two moments the earlier; 0 is none. */
static int64_t earlier(int64_t a_us, int64_t b_us)
{
    return a_us && (!b_us || a_us < b_us) ? a_us : b_us;
}

/* Remembers that a node is to be loaded. */
static void want(struct view *view, struct str id)
{
    char *text;

    if (!id.len || id.len > NODE_ID_MAX || map_get(&view->news, id))
        return;
    text = mem_zeroed(1, id.len + 1);
    memcpy(text, id.at, id.len);
    map_put(&view->news, (struct str){.at = text, .len = id.len}, text);
}

/* --- taking over what was read --- */

static struct facts *facts_of(const struct view *view, const struct store_node *record)
{
    struct facts *facts;
    struct problem why;

    if (report_stored(record->facts, &view->sched->config.node_rules, &facts, &why)) {
        log_event(LOG_ERROR, "node.unreadable", KS("node_id", record->id),
                  KC("reason", why.detail));
        return NULL;
    }
    facts->version = record->version;
    return facts;
}

static void take_figures(struct view *view, struct node *node, const struct store_node *record,
                         bool first)
{
    atomic_store(&node->own, record->own);
    atomic_store(&node->health, record->counts.health);
    atomic_store(&node->admin, record->admin);
    blackboard_put(&node->admin_reason, record->admin_reason);
    atomic_store(&node->max, record->counts.max);
    node->version = record->version;
    node->registered_ms = record->registered_ms;
    node->change_order = view->op.order;
    counts_take(node, &record->counts, view->op.order, first);
}

/* What somebody found out about it holds until it gives a new sign of life; our start, and our
 * having heard of it, are none. That somebody takes it back is one. */
static void take_finding(struct view *view, struct node *node, const struct store_node *record)
{
    int64_t now_ms = sched_awake_ms(loop_of(view));

    if (record->counts.health != record->own &&
        (record->counts.health == NODE_OFFLINE || record->counts.health == NODE_DEGRADED)) {
        node->watch.status = record->counts.health;
        return;
    }
    atomic_store(&node->heartbeat_ms, now_ms);
    node->told_ms = now_ms;
    node_watch_init(&node->watch, now_ms);
    node_watch_heartbeat(&node->watch, &node_watch_defaults, true, now_ms);
}

static void load_new(struct view *view, const struct store_node *record)
{
    int64_t now_ms = sched_awake_ms(loop_of(view));
    struct facts *facts = facts_of(view, record);

    if (!facts)
        return;
    struct node *node = node_table_put(view->members, record->id, facts);
    take_figures(view, node, record, true);
    atomic_store(&node->heartbeat_ms, now_ms); /* ages count from here */
    node->told_ms = now_ms;
    node_watch_init(&node->watch, now_ms);
    node_watch_heartbeat(&node->watch, &node_watch_defaults, true, now_ms);
    take_finding(view, node, record);
}

/* One we know: its facts only if they differ, so that a change of figures makes no new edition. */
static void load_known(struct view *view, struct node *node, const struct facts *known,
                       const struct store_node *record)
{
    bool same = str_eq(known->json, record->facts);
    bool new_health = atomic_load(&node->health) != (int32_t)record->counts.health;
    struct facts *facts = same ? NULL : facts_of(view, record);

    if (!same && !facts)
        return;
    if (facts && str_eq(known->json, facts->json)) { /* with what our rules say they are the same */
        same = true;
        facts_unref(facts);
    }
    take_figures(view, node, record, false);
    if (new_health)
        take_finding(view, node, record);
    if (same)
        return;
    node_table_put(view->members, record->id, facts);
    for (int i = 0; i < NODE_MARKS; i++)
        atomic_store(&node->marks[i], 0); /* what it said here before is not what is stored */
}

static void tell_changed(struct view *view, struct str id, const char *what)
{
    view->sched->hooks->node_changed(loop_of(view), id, what);
}

static void load_record(struct view *view, const struct store_node *record)
{
    const struct facts *known = node_table_facts(view->members, record->id);
    struct node *node = known ? node_table_node(view->members, record->id) : NULL;

    if (node && node->change_order > view->op.order)
        return; /* a change of our own is newer */
    bool news = !node || node->version != record->version;
    if (node)
        load_known(view, node, known, record);
    else
        load_new(view, record);
    if (news && view->loaded)
        tell_changed(view, record->id, "changed");
    node = map_get(&view->members->nodes, record->id);
    if (node)
        view_live_take(view->live, node, &record->live, view->op.order);
}

static void drop(struct view *view, struct str id)
{
    struct node *node = map_get(&view->members->nodes, id);

    if (!node || !node_table_facts(view->members, id) || node->change_order > view->op.order)
        return;
    assert(view->op.verb == STORE_NODES);
    node->change_order = view->op.order;
    tell_changed(view, node->id, "left"); /* while it still is in our snapshot */
    node_table_del(view->members, node->id);
}

/* --- the calls --- */

static void next_call(struct view *view);

static void loaded_all(struct view *view)
{
    struct store_op *op = &view->op;

    assert(!view->id_count);
    for (size_t i = 0; i < op->u.nodes.count; i++)
        if (op->u.nodes.items[i].facts.len)
            load_record(view, &op->u.nodes.items[i]);
    view->members->dirty = true; /* also when there is none: the first edition makes us ready */
    view->loaded = true;
    set_seq(view, op->u.nodes.version);
}

/* Who was asked for and is not among the answers has left. */
static void loaded_some(struct view *view)
{
    struct store_op *op = &view->op;
    struct map found = {0};

    for (size_t i = 0; i < op->u.nodes.count; i++) {
        if (!op->u.nodes.items[i].facts.len)
            continue; /* dropped between the reading of its record and of its facts */
        load_record(view, &op->u.nodes.items[i]);
        map_put(&found, op->u.nodes.items[i].id, view);
    }
    for (size_t i = 0; i < view->id_count; i++)
        if (!map_get(&found, view->ids[i]))
            drop(view, view->ids[i]);
    map_free(&found);
}

/* After a look: `heard_count` nodes were to be loaded before it. */
static void note_found(struct view *view, size_t heard_count)
{
    int64_t version = view->op.u.nodes.version;
    bool found = version > 0 && view->news.count > heard_count; /* 0: not shared, all is our own */

    assert(view->news.count >= heard_count);
    view->unheard = version > view->seq ? version - view->seq : 0;
    view->late_us = 0;
    if (found && !view->found)
        view->before_us = view->looked_us;
    view->found = found;
    if (!view->news.count)
        view->news_us = 0; /* what could not be loaded is as it was */
    metric_set(METRIC_VERSION_LAG, view->unheard);
    set_seq(view, version); /* smaller, if the store was emptied */
}

/* Counters are taken over; whose version differs, or who is not there on one side, is loaded. */
static void compared(struct view *view)
{
    struct store_op *op = &view->op;
    struct map found = {0};
    size_t heard_count = view->news.count;
    struct node_entry *member;

    for (size_t i = 0; i < op->u.nodes.count; i++) {
        const struct store_node *record = &op->u.nodes.items[i];
        bool known = node_table_facts(view->members, record->id) != NULL;
        struct node *node = known ? node_table_node(view->members, record->id) : NULL;

        map_put(&found, record->id, view);
        if (!node ||
            (node->change_order <= op->order &&
             (node->version != record->version || node->registered_ms != record->registered_ms)))
            want(view, record->id);
        if (!node)
            continue;
        counts_take(node, &record->counts, op->order, false);
        view_live_take(view->live, node, &record->live, op->order);
    }
    for (size_t i = 0; (member = map_next(&view->members->by_id, &i));)
        if (!map_get(&found, member->node->id) && member->node->change_order <= op->order)
            want(view, member->node->id);
    map_free(&found);
    note_found(view, heard_count);
}

/* An edition with what was loaded is to come. */
static void note_loaded(struct view *view)
{
    int64_t found_us = !view->unheard && view->late_us ? view->late_us : view->before_us;

    if (view->members->dirty)
        view->oldest_us =
            earlier(view->oldest_us, earlier(view->call_us, view->found ? found_us : 0));
    view->found = false;
}

static void answered(struct store_op *op)
{
    struct view *view = container_of(op, struct view, op);
    bool some = op->verb == STORE_NODES && view->id_count > 0;

    assert(view->busy);
    view->busy = false;
    if (!op->err && !some)
        atomic_store_explicit(&view->sched->fresh_us, clock_mono_us(), memory_order_relaxed);
    if (op->err) {
        view->compare |= view->loaded && some; /* what was not loaded is found again */
        view->news_us = earlier(view->news_us, some ? view->call_us : 0);
    } else if (some) {
        loaded_some(view);
        note_loaded(view);
    } else if (op->verb == STORE_NODES) {
        loaded_all(view);
    } else {
        compared(view);
    }
    if (!op->err && !some)
        view->looked_us = view->sent_us;
    ids_free(view);
    arena_reset(&view->arena);
    if (!op->err)
        next_call(view);
}

static void send(struct view *view, enum store_verb verb)
{
    assert(!view->busy);
    view->op = (struct store_op){
        .verb = verb, .reply_to = loop_of(view)->inbox, .done = answered, .arena = &view->arena};
    view->op.u.nodes.ids = view->id_count ? view->ids : NULL;
    view->op.u.nodes.id_count = view->id_count;
    view->busy = true;
    view->sent_us = clock_mono_us();
    sched_send(loop_of(view), &view->op);
}

/* The ids move from the map to the call. */
static void send_some(struct view *view)
{
    size_t count = view->news.count < WANTED_MAX ? view->news.count : WANTED_MAX;
    char *id;

    assert(count > 0 && !view->ids);
    view->ids = mem_array(struct str, count);
    for (size_t i = 0; view->id_count < count && (id = map_next(&view->news, &i));)
        view->ids[view->id_count++] = str_of(id);
    for (size_t i = 0; i < count; i++)
        map_del(&view->news, view->ids[i]);
    view->call_us = view->news_us;
    if (!view->news.count)
        view->news_us = 0;
    send(view, STORE_NODES);
}

static void next_call(struct view *view)
{
    if (view->busy || !view->loaded)
        return;
    if (view->news.count) {
        send_some(view);
    } else if (view->compare) {
        view->compare = false;
        send(view, STORE_COUNTS);
    }
}

void view_load(struct view *view)
{
    if (!view->busy)
        send(view, STORE_NODES);
}

/* A store that was emptied, or that another server took over, need not go on counting where we
 * were: what we know is of before, all of it. */
static void watch_generation(struct view *view)
{
    struct store_status status;
    struct node_entry *member;

    store_status(view->sched->store, &status);
    if (status.moves == view->moves && strcmp(status.generation, view->generation) == 0)
        return;
    for (size_t i = 0; view->generation[0] && (member = map_next(&view->members->by_id, &i));) {
        member->node->change_order = 0;
        atomic_store(&member->node->link_order, 0);
        atomic_store(&member->node->counts, 0);
    }
    memcpy(view->generation, status.generation, sizeof view->generation);
    view->moves = status.moves;
}

void view_compare(struct view *view)
{
    watch_generation(view);
    view->compare = true;
    view_live_compare(view->live);
    next_call(view);
}

void view_heard(struct view *view, const struct store_word *word)
{
    struct str rest = word->text;
    int64_t then_us = clock_mono_us() - word->age_ms * 1000;

    if (word->kind == STORE_WORD_NODES) {
        if (view->unheard > 0 && word->seq <= view->seq) {
            view->unheard--;
            view->late_us = earlier(view->late_us, then_us);
        }
        view->news_us = earlier(view->news_us, then_us);
        while (rest.len)
            want(view, str_cut(&rest, ' '));
    }
    /* Something was missed: the versions tell what. */
    if (word->kind == STORE_WORD_GAP || word->seq > view->seq + 1)
        view->compare = true;
    if (word->kind == STORE_WORD_NODES && word->seq > view->seq)
        set_seq(view, word->seq);
    next_call(view);
}

void view_seen(struct view *view, struct str text)
{
    view_live_seen(view->live, view->members, text);
}

void view_tick(struct view *view)
{
    view_live_tick(view->live);
}
