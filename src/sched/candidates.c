/* Which nodes are asked for a job, and in which order, judged by this loop's snapshot and the live
 * figures. The store decides what is true; this file only chooses which nodes to ask. */
#include "sched/candidates.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "model/level.h"
#include "model/pool.h"
#include "model/selector.h"
#include "sched/sched.h"
#include "sched/warm_index.h"

_Static_assert((int)SCHED_SAMPLE_MAX <= (int)POLICY_SAMPLE_MAX, "sampled without looking at all");

/* An earlier attempt ended on this node. */
static bool has_failed(const struct dispatch *dispatch, struct str node)
{
    return str_in(node, dispatch->tried, dispatch->failed_count);
}

/* The node refused in this attempt, or could not be reached. */
static bool has_refused(const struct dispatch *dispatch, struct str node)
{
    return str_in(node, dispatch->tried + dispatch->failed_count,
                  dispatch->tried_count - dispatch->failed_count);
}

void candidates_refused(struct dispatch *dispatch, struct str node)
{
    assert(dispatch->failed_count <= dispatch->tried_count);
    if (dispatch->tried_count < SCHED_TRIED_MAX && !has_refused(dispatch, node))
        dispatch->tried[dispatch->tried_count++] = node;
}

/* Reads the refusals or the failures. `list` is an array we wrote. */
static void read_some(struct dispatch *dispatch, const struct json *list, bool refusals)
{
    for (const struct json *entry = json_items(list); entry; entry = json_after(list, entry)) {
        const struct json *outcome = json_get(entry, "outcome");
        struct str node = json_str(json_get(entry, "node_id"), dispatch->arena);
        bool refused = json_str_is(outcome, "refused") || json_str_is(outcome, "send_failed");
        int64_t attempt = 0, ended_ms = 0;

        json_int(json_get(entry, "attempt_id"), &attempt);
        json_int(json_get(entry, "ended_ms"), &ended_ms);
        /* Reserved there, but the answer was lost: the node never got the job. */
        if (json_str_is(json_get(entry, "reason"), err_name(ERR_UNKNOWN)))
            continue;
        if (refused != refusals || !node.len)
            continue;
        /* A node that refused, or could not be reached, is left out for the rest of the attempt; a
         * job that may wait comes back once that node has had time to report its state. llabs: the
         * store's clock may have been set back since. */
        int64_t apart_ms =
            llabs(sched_awake_ms(dispatch->loop) - sched_from_store_ms(dispatch->loop, ended_ms));
        bool past =
            dispatch->spec.queue_ms > 0 && apart_ms >= dispatch->loop->sched->config.heartbeat_ms;

        if (refused && attempt == dispatch->attempt && !past)
            candidates_refused(dispatch, node);
        if (!refused && dispatch->failed_count < SCHED_TRIED_MAX && !has_failed(dispatch, node))
            dispatch->tried[dispatch->failed_count++] = node;
    }
}

void candidates_read_history(struct dispatch *dispatch)
{
    const struct json *list;

    assert(!dispatch->tried_count && !dispatch->failed_count);
    if (!dispatch->history.len || json_parse(dispatch->history, dispatch->arena, &list, NULL))
        return;
    read_some(dispatch, list, false);
    dispatch->tried_count = dispatch->failed_count;
    read_some(dispatch, list, true);
    assert(dispatch->tried_count <= SCHED_TRIED_MAX);
}

unsigned candidates_wants(const struct spec *spec)
{
    return (spec->options.require_tts ? POOL_WANT_TTS : 0u) |
           (spec->options.require_asr ? POOL_WANT_ASR : 0u);
}

const struct snap_pool *candidates_pool(const struct dispatch *dispatch)
{
    const struct snapshot *snapshot = dispatch->loop->snapshot;
    const struct spec *spec = &dispatch->spec;

    return spec->f2f ? snapshot_pool(snapshot, spec->src, spec->tgt)
                     : snapshot_type_pool(snapshot, spec_node_type(spec));
}

static int32_t withheld_of(const struct spec *spec, const struct snap_node *member)
{
    return spec->interactive ? 0 : member->reserved_slots;
}

/* What is left, assuming that each reserve this instance has under way there is as large as this
 * job. */
static bool known_left(const struct spec *spec, const struct snap_node *member,
                       struct resources_left *ret_left)
{
    const struct resources *declared = member->resources;
    int32_t pending = atomic_load_explicit(&member->node->resources.pending, memory_order_relaxed);

    if (!declared || !counts_left(member->node, declared, ret_left))
        return false;
    while (pending-- > 0 && resources_left_take(declared, ret_left, spec->demand))
        ;
    return true;
}

/* How much of the scarcest resource it needs (or of the slots, if it needs nothing else) would be
 * left on this node, in 1/1000 of the total. */
static int32_t left_over(const struct spec *spec, const struct snap_node *member)
{
    int32_t max = atomic_load_explicit(&member->node->max, memory_order_relaxed);
    int32_t left = max - withheld_of(spec, member) - counts_load(member->node) - spec_slots(spec);
    struct resources_left resources;

    if (spec_has_needs(spec) && known_left(spec, member, &resources)) {
        int32_t over = resources_left_over(member->resources, &resources, spec->demand);

        return over < 0 ? INT32_MAX : over;
    }
    return left < 0 || max <= 0 ? INT32_MAX : (int32_t)((int64_t)left * 1000 / max);
}

struct policy_rules candidates_rules(const struct dispatch *dispatch)
{
    const struct sched_config *config = &dispatch->loop->sched->config;

    return (struct policy_rules){.now_ms = sched_awake_ms(dispatch->loop),
                                 .stale_ms = config->heartbeat_stale_ms,
                                 .heartbeat_interval_ms = config->heartbeat_ms,
                                 .prefers = dispatch->spec.prefer_count > 0};
}

static bool is_routed(const struct sched *sched)
{
    return sched->config.routing.count > 0 || sched->config.routing.default_route.count > 0;
}

/* The node's position in the type's order of servers. */
static bool on_route(const struct sched *sched, const struct spec *spec,
                     const struct snap_node *member, struct policy_candidate *candidate)
{
    assert(!spec->f2f && member->priority >= 0);
    candidate->route_position = (int32_t)member->priority;
    if (is_routed(sched)) {
        const struct pool_facts *pool = &member->facts->pool;
        struct strs types = {.at = pool->types, .count = pool->type_count};
        struct routing_server server = {.id = member->node->id,
                                        .labels = member->label_values,
                                        .types = &types,
                                        .priority = candidate->route_position};

        candidate->route_position =
            routing_rank(&sched->config.routing, spec_node_type(spec), &server);
    }
    return candidate->route_position != ROUTING_REFUSED;
}

static bool has_labels(const struct spec *spec, const struct snap_node *member)
{
    struct selector_facts facts = {.id = member->node->id, .labels = member->label_values};

    return !spec->selector.count || selector_fits(&spec->selector, &facts);
}

static bool is_admitted(const struct spec *spec, const struct snap_node *member)
{
    const struct json *namespaces = member->namespaces;

    return !namespaces || namespace_in(namespaces, spec->type);
}

/* Does the node have as much as the job needs when it is idle? */
static bool is_large_enough(const struct spec *spec, const struct snap_node *member)
{
    const struct facts *facts = member->facts;
    uint64_t gpus;

    if (spec->demand->slots > 1 &&
        spec->demand->slots > facts->max_concurrent_jobs - withheld_of(spec, member))
        return false;
    return !spec_has_needs(spec) ||
           (facts->resources && resources_fit(facts->resources, spec->demand, &gpus, NULL));
}

bool candidates_has_left(const struct spec *spec, const struct snap_node *member)
{
    struct resources_left left;

    return !spec_has_needs(spec) || !known_left(spec, member, &left) ||
           resources_left_fit(member->resources, &left, spec->demand, NULL);
}

static uint8_t need_of(const struct demand *demand, const struct resources_short *lack)
{
    if (str_is(str_of(lack->name), "gpus"))
        return NEEDS_GPUS;
    if (str_is(str_of(lack->name), "vram_mb"))
        return NEEDS_VRAM;
    for (size_t i = 0; i < demand->need_count; i++)
        if (str_is(demand->needs[i].name, lack->name))
            return (uint8_t)(NEEDS_NAMED + i);
    return NEEDS_UNKNOWN;
}

struct dispatch_lack candidates_lack(const struct dispatch *dispatch, const struct node *node,
                                     enum dispatch_why why)
{
    static const struct resources none;
    const struct spec *spec = &dispatch->spec;
    struct resources_left left;
    struct resources_short lack;

    if ((why != WHY_TOO_SMALL && why != WHY_RESOURCES) || !spec->demand)
        return (struct dispatch_lack){0};
    const struct snap_node *member = snapshot_of(dispatch->loop->snapshot, node);
    if (!member)
        return (struct dispatch_lack){0};
    if (why == WHY_TOO_SMALL) {
        const struct resources *declared = member->resources ? member->resources : &none;

        resources_left(declared, &left);
        if (!spec_has_needs(spec) || resources_left_fit(declared, &left, spec->demand, &lack))
            return (struct dispatch_lack){.what = NEEDS_SLOTS,
                                          .of = member->facts->max_concurrent_jobs -
                                                withheld_of(spec, member),
                                          .gpu = -1};
    } else if (!known_left(spec, member, &left) ||
               resources_left_fit(member->resources, &left, spec->demand, &lack)) {
        return (struct dispatch_lack){.gpu = -1};
    }
    return (struct dispatch_lack){.left = lack.left,
                                  .of = lack.of,
                                  .gpu = (int8_t)lack.gpu,
                                  .what = need_of(spec->demand, &lack)};
}

bool candidates_fits(const struct sched_loop *loop, const struct spec *spec,
                     const struct snap_node *member)
{
    struct policy_candidate unused;

    return has_labels(spec, member) && is_admitted(spec, member) &&
           (!spec->demand || is_large_enough(spec, member)) &&
           (spec->f2f || on_route(loop->sched, spec, member, &unused));
}

bool candidates_has_room(const struct sched_loop *loop, const struct spec *spec,
                         const struct snap_node *member)
{
    const struct pool_facts *facts = &member->facts->pool;
    int32_t max = atomic_load_explicit(&member->node->max, memory_order_relaxed);

    return counts_load(member->node) + spec_slots(spec) <= max - withheld_of(spec, member) &&
           (spec->f2f ? pool_member(facts, spec->src, spec->tgt, candidates_wants(spec))
                      : pool_type_member(facts, spec_node_type(spec))) &&
           candidates_fits(loop, spec, member) && candidates_has_left(spec, member);
}

/* Is there a member that could take the job and on which no attempt has ended? */
static bool has_other(const struct dispatch *dispatch, const struct snap_pool *pool)
{
    const struct snapshot *snapshot = dispatch->loop->snapshot;
    unsigned wants = candidates_wants(&dispatch->spec);

    for (uint32_t i = 0; i < pool->counts[wants]; i++) {
        const struct snap_node *member = snapshot_numbered(snapshot, pool->members[wants][i]);

        if (!has_failed(dispatch, member->node->id) &&
            candidates_fits(dispatch->loop, &dispatch->spec, member))
            return true;
    }
    return false;
}

bool candidates_some_fit(const struct dispatch *dispatch)
{
    const struct snap_pool *pool = candidates_pool(dispatch);

    assert(!dispatch->failed_count);
    return pool && has_other(dispatch, pool);
}

enum dispatch_why candidates_judge(const struct dispatch *dispatch, const struct snap_node *member,
                                   const struct policy_rules *rules, bool again_ok,
                                   struct policy_candidate *ret_candidate)
{
    static const enum dispatch_why skips[POLICY_SKIP_COUNT] = {[POLICY_KEEP] = WHY_COUNT,
                                                               [POLICY_SKIP_HEALTH] = WHY_NOT_READY,
                                                               [POLICY_SKIP_STALE] = WHY_STALE};
    const struct sched *sched = dispatch->loop->sched;
    const struct spec *spec = &dispatch->spec;
    struct node *node = member->node;

    assert(node && member->facts);
    int32_t level = atomic_load_explicit(&node->level, memory_order_relaxed);
    *ret_candidate = (struct policy_candidate){
        .node = node,
        .hash = node->hash,
        .warm =
            spec->prefer_count ? warm_index_has(node, spec->prefer_marks, spec->prefer_count) : -1,
        .withheld = withheld_of(spec, member),
        .health = (uint8_t)atomic_load_explicit(&node->health, memory_order_relaxed),
        .load = counts_load(node),
        .max = atomic_load_explicit(&node->max, memory_order_relaxed),
        .score = (int16_t)atomic_load_explicit(&node->score, memory_order_relaxed),
        .admin = (uint8_t)atomic_load_explicit(&node->admin, memory_order_relaxed),
        .level = (int8_t)level,
        .left_over = sched->policy->by_fit ? left_over(spec, member) : 0,
        .heartbeat_ms = atomic_load_explicit(&node->heartbeat_ms, memory_order_relaxed)};
    if (dispatch->tried_count &&
        (has_refused(dispatch, node->id) || (!again_ok && has_failed(dispatch, node->id))))
        return WHY_TRIED;
    if (!has_labels(spec, member))
        return WHY_REQUIRES;
    if (!is_admitted(spec, member))
        return WHY_NAMESPACE;
    if (!spec->f2f && !on_route(sched, spec, member, ret_candidate))
        return WHY_ROUTE;
    if (spec->demand && !is_large_enough(spec, member))
        return WHY_TOO_SMALL;
    if (level > 0 &&
        !level_admits((enum level)level, spec->priority, sched->config.high_priority_min))
        return WHY_LEVEL;
    enum policy_skip skip = policy_filter(ret_candidate, rules);
    /* Its connection closed, and it cannot get a job in any other way. */
    if (skip == POLICY_KEEP && !member->has_endpoint &&
        atomic_load_explicit(&node->disconnected_ms, memory_order_relaxed))
        skip = POLICY_SKIP_STALE;
    return skips[skip];
}

void candidates_look(const struct policy_candidate *candidate, unsigned why, int64_t now_ms,
                     struct dispatch_look *ret_look)
{
    int64_t age_ms = now_ms - candidate->heartbeat_ms;

    *ret_look = (struct dispatch_look){.node = candidate->node,
                                       .hash = candidate->hash,
                                       .load = candidate->load,
                                       .max = candidate->max - candidate->withheld,
                                       .score = candidate->score,
                                       .route_position = candidate->route_position,
                                       .age_ms = age_ms < 0           ? 0
                                                 : age_ms > INT32_MAX ? INT32_MAX
                                                                      : (int32_t)age_ms,
                                       .why = (uint8_t)why,
                                       .warm = candidate->warm,
                                       .health = candidate->health,
                                       .admin = candidate->admin,
                                       .level = candidate->level};
}

/* Counts the node for the answer and keeps it for explain. */
static void leave_out(struct dispatch *dispatch, const struct policy_candidate *candidate,
                      enum dispatch_why why)
{
    assert(why < WHY_COUNT);
    dispatch->whys[why]++;
    if (dispatch->look_count < dispatch->look_max) {
        struct dispatch_look *look = &dispatch->looks[dispatch->look_count];

        candidates_look(candidate, why, sched_awake_ms(dispatch->loop), look);
        look->lack = candidates_lack(dispatch, candidate->node, why);
    }
    dispatch->look_count++;
}

/* Whether this member may be a candidate at all. */
static bool may_take(struct dispatch *dispatch, const struct snap_node *member,
                     const struct policy_rules *rules, bool again_ok,
                     struct policy_candidate *ret_candidate)
{
    dispatch->loop->looked++;
    if (member->node == dispatch->preferred)
        return false; /* already tried */
    enum dispatch_why why = candidates_judge(dispatch, member, rules, again_ok, ret_candidate);
    if (why != WHY_COUNT)
        leave_out(dispatch, ret_candidate, why);
    return why == WHY_COUNT;
}

/* Is it among the first `count` candidates? */
static bool is_listed(const struct dispatch *dispatch, size_t count, const struct node *node)
{
    for (size_t i = 0; i < count; i++)
        if (dispatch->list[i].node == node)
            return true;
    return false;
}

/* A sample of many members may miss the few that have loaded what the job prefers; the index knows
 * them. They get up to half of the places; the rest is for the nodes they are compared with. A node
 * left out here is not counted: it may still be in the sample. */
static void choose_warm(struct dispatch *dispatch, const struct snap_pool *pool, bool again_ok,
                        const struct policy_rules *rules)
{
    struct sched *sched = dispatch->loop->sched;
    const struct snapshot *snapshot = dispatch->loop->snapshot;
    const struct spec *spec = &dispatch->spec;
    struct policy_candidate found[WARM_INDEX_NODES];
    uint32_t numbers[WARM_INDEX_NODES];
    size_t keep = (size_t)sched->config.sample_k / 2;

    for (uint32_t i = 0; i < spec->prefer_count && dispatch->count < keep; i++) {
        uint32_t mark = spec->prefer_marks[i];
        size_t count = warm_index_find(sched->warm, mark, &dispatch->loop->rnd,
                                       (size_t)sched->config.sample_k, numbers);
        size_t kept = 0;

        for (size_t n = 0; n < count; n++) {
            bool exists = numbers[n] / SNAP_CHUNK < snapshot->table->chunk_count;
            const struct snap_node *member =
                exists ? snapshot_numbered(snapshot, numbers[n]) : NULL;
            struct policy_candidate *warm = &found[kept];

            dispatch->loop->looked++;
            if (!member || !member->node || !warm_index_has(member->node, &mark, 1)) {
                warm_index_del(sched->warm, mark, numbers[n]);
                continue;
            }
            /* A member with room that was not looked at yet. */
            kept += member->node != dispatch->preferred &&
                    snapshot_is_member(snapshot, pool, member, candidates_wants(spec)) &&
                    candidates_judge(dispatch, member, rules, again_ok, warm) == WHY_COUNT &&
                    warm->load + spec_slots(spec) <= warm->max - warm->withheld &&
                    candidates_has_left(spec, member) &&
                    !is_listed(dispatch, dispatch->count, member->node);
        }
        kept = policy_rank(sched->policy, found, kept, rules);
        for (size_t n = 0; n < kept && dispatch->count < keep; n++) {
            found[n].not_sampled =
                true; /* warm nodes are fuller and would distort the comparison */
            dispatch->list[dispatch->count++] = found[n];
        }
    }
}

/* Looks at every member, or every one with room (as far as this loop knows), and picks a fair
 * choice when there are many. Costs a look at each member. */
static void scan_members(struct dispatch *dispatch, const uint32_t *members, uint32_t count,
                         bool again_ok, bool with_room, const struct policy_rules *rules)
{
    const struct snapshot *snapshot = dispatch->loop->snapshot;
    size_t warm = dispatch->count; /* the warm ones stay */
    uint32_t seen = 0, keep = (uint32_t)dispatch->loop->sched->config.sample_k - (uint32_t)warm;

    assert(warm + keep <= SCHED_SAMPLE_MAX && keep > 0);
    for (uint32_t i = 0; i < count; i++) {
        const struct snap_node *member = snapshot_numbered(snapshot, members[i]);
        struct policy_candidate candidate;

        if (is_listed(dispatch, warm, member->node) ||
            !may_take(dispatch, member, rules, again_ok, &candidate))
            continue;
        bool full =
            candidate.load + spec_slots(&dispatch->spec) > candidate.max - candidate.withheld;
        if (with_room && (full || !candidates_has_left(&dispatch->spec, member))) {
            leave_out(dispatch, &candidate, full ? WHY_FULL : WHY_RESOURCES);
            continue;
        }
        uint32_t at = seen < keep ? seen : rnd_below(&dispatch->loop->rnd, seen + 1);
        seen++;
        if (at < keep)
            dispatch->list[warm + at] = candidate;
    }
    dispatch->count = warm + (seen < keep ? seen : keep);
}

/* A job that may wait must not wait while a slot is free. One that is refused when no node has room
 * is not refused by this loop's figures alone: then nodes that seem full are asked too. */
static void choose_by_scan(struct dispatch *dispatch, const uint32_t *members, uint32_t count,
                           bool again_ok, const struct policy_rules *rules)
{
    uint32_t before[WHY_COUNT], look_count = dispatch->look_count;
    uint32_t max = count + 1 < DISPATCH_LOOKS_MAX ? count + 1 : DISPATCH_LOOKS_MAX;

    /* Makes room to record every member. A job that is tried again and again records only a few. */
    if (max > dispatch->look_max && !dispatch->quiet) {
        struct dispatch_look *looks = arena_raw(dispatch->arena, max * sizeof *looks);

        assert(look_count <= dispatch->look_max);
        memcpy(looks, dispatch->looks, look_count * sizeof *looks);
        dispatch->looks = looks;
        dispatch->look_max = max;
    }
    memcpy(before, dispatch->whys, sizeof before);
    scan_members(dispatch, members, count, again_ok, true, rules);
    if (dispatch->count || dispatch->look_at_all ||
        (dispatch->whys[WHY_FULL] == before[WHY_FULL] &&
         dispatch->whys[WHY_RESOURCES] == before[WHY_RESOURCES]))
        return;
    memcpy(dispatch->whys, before, sizeof before);
    dispatch->look_count = look_count;
    scan_members(dispatch, members, count, again_ok, false, rules);
}

static int by_number(const void *a, const void *b)
{
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;

    return (left > right) - (left < right);
}

static void choose_by_sample(struct dispatch *dispatch, const uint32_t *members, uint32_t count,
                             bool again_ok, const struct policy_rules *rules)
{
    const struct sched_config *config = &dispatch->loop->sched->config;
    const struct snapshot *snapshot = dispatch->loop->snapshot;
    const struct snap_node *found[SCHED_SAMPLE_MAX];
    uint32_t picks[SCHED_SAMPLE_MAX];
    assert(config->sample_k > 0 && config->sample_k <= SCHED_SAMPLE_MAX);
    size_t warm = dispatch->count; /* the warm ones stay */
    size_t picked = policy_sample(count, (uint32_t)config->sample_k - (uint32_t)warm,
                                  &dispatch->loop->rnd, picks);

    if (!config->candidate_shuffle)
        qsort(picks, picked, sizeof *picks, by_number);
    /* In a large fleet randomly chosen nodes are not in the cache: all are prefetched before the
     * first is looked at, so that the cache misses overlap. */
    for (size_t i = 0; i < picked; i++) {
        found[i] = snapshot_numbered(snapshot, members[picks[i]]);
        __builtin_prefetch(found[i]);
    }
    for (size_t i = 0; i < picked; i++)
        __builtin_prefetch(found[i]->node);
    for (size_t i = 0; i < picked; i++)
        if (!is_listed(dispatch, warm, found[i]->node) &&
            may_take(dispatch, found[i], rules, again_ok, &dispatch->list[dispatch->count]))
            dispatch->count++;
}

bool candidates_again_ok(const struct dispatch *dispatch)
{
    if (dispatch->retry_failed_nodes || !dispatch->failed_count)
        return dispatch->retry_failed_nodes;
    /* A retry goes to another node if the pool has one, else to the same. */
    const struct snap_pool *pool = candidates_pool(dispatch);
    return pool && !has_other(dispatch, pool);
}

static void begin_choice(struct dispatch *dispatch, const struct snap_pool *pool)
{
    const struct snapshot *snapshot = dispatch->loop->snapshot;

    dispatch->version = snapshot->version;
    dispatch->nodes = (uint32_t)snapshot->count;
    dispatch->members = pool ? pool->counts[candidates_wants(&dispatch->spec)] : 0;
    memset(dispatch->answers, 0, sizeof dispatch->answers);
    if (!dispatch->looks) {
        dispatch->looks = dispatch->own_looks;
        dispatch->look_max = COUNT_OF(dispatch->own_looks);
    }
}

void candidates_start_over(struct dispatch *dispatch)
{
    memset(dispatch->whys, 0, sizeof dispatch->whys);
    dispatch->look_count = 0;
    if (!dispatch->preferred)
        return;
    /* It is not looked at again: its reason is kept. */
    assert(dispatch->looks[0].node == dispatch->preferred);
    dispatch->look_count = 1;
    dispatch->whys[dispatch->looks[0].why]++;
}

void candidates_choose(struct dispatch *dispatch, const struct snap_pool *pool)
{
    const struct snapshot *snapshot = dispatch->loop->snapshot;
    const struct sched *sched = dispatch->loop->sched;
    const struct spec *spec = &dispatch->spec;
    unsigned wants = candidates_wants(spec);
    struct policy_rules rules = candidates_rules(dispatch);

    dispatch->count = dispatch->next = 0;
    begin_choice(dispatch, pool);
    if (!pool)
        return;
    const uint32_t *members = pool->members[wants];
    uint32_t count = pool->counts[wants];
    bool again_ok = candidates_again_ok(dispatch);
    if (spec->prefer_count && !dispatch->only && count > (uint32_t)sched->config.sample_k)
        choose_warm(dispatch, pool, again_ok, &rules);
    if (dispatch->only) { /* the node that was offered */
        const struct snap_node *member = snapshot_of(snapshot, dispatch->only);

        dispatch->count = member && snapshot_is_member(snapshot, pool, member, wants) &&
                          may_take(dispatch, member, &rules, again_ok, &dispatch->list[0]);
    } else if (dispatch->look_at_all || spec->selector.count || spec_has_needs(spec) ||
               sched->config.node_rules.namespaces || (!spec->f2f && is_routed(sched))) {
        /* Few nodes may match a selector, or have enough left: a sample could miss all of them. */
        choose_by_scan(dispatch, members, count, again_ok, &rules);
    } else {
        choose_by_sample(dispatch, members, count, again_ok, &rules);
    }
    if (dispatch->spoken_for && !dispatch->only) {
        size_t kept = 0;

        /* Checks only nodes the job would take: each check costs a look at other lanes. */
        for (size_t i = 0; i < dispatch->count; i++) {
            const struct snap_node *member = snapshot_of(snapshot, dispatch->list[i].node);

            if (member && dispatch->spoken_for(dispatch, member))
                leave_out(dispatch, &dispatch->list[i], WHY_FULL);
            else
                dispatch->list[kept++] = dispatch->list[i];
        }
        dispatch->count = kept;
    }
    dispatch->count = policy_rank(sched->policy, dispatch->list, dispatch->count, &rules);
    assert(dispatch->count <= SCHED_SAMPLE_MAX && dispatch->next == 0);
}

void candidates_prefer(struct dispatch *dispatch, const struct snap_node *member)
{
    struct policy_rules rules = candidates_rules(dispatch);

    assert(!dispatch->preferred);
    dispatch->next = 0;
    begin_choice(dispatch, candidates_pool(dispatch));
    dispatch->count = may_take(dispatch, member, &rules, false, &dispatch->list[0]);
    dispatch->preferred = member->node;
}

void candidates_preferred_failed(struct dispatch *dispatch)
{
    assert(dispatch->preferred && dispatch->count <= 1 && dispatch->look_count <= 1);
    if (dispatch->count == 0)
        return; /* it was not asked, and that is recorded */
    assert(dispatch->answers[0] > 0);
    candidates_look(&dispatch->list[0], dispatch->answers[0] - 1u, sched_awake_ms(dispatch->loop),
                    &dispatch->looks[dispatch->look_count++]);
}

bool candidates_nobody_fits(const struct dispatch *dispatch)
{
    const struct snap_pool *pool = candidates_pool(dispatch);
    uint32_t never = dispatch->whys[WHY_REQUIRES] + dispatch->whys[WHY_NAMESPACE] +
                     dispatch->whys[WHY_TOO_SMALL];

    return never > 0 && pool && never == pool->counts[candidates_wants(&dispatch->spec)];
}

bool candidates_all_for(const struct dispatch *dispatch, enum dispatch_why why)
{
    static const bool may_change[WHY_COUNT] = {
        [WHY_NOT_READY] = true,   [WHY_STALE] = true, [WHY_NO_CAPACITY] = true, [WHY_FULL] = true,
        [WHY_SEND_FAILED] = true, [WHY_LEVEL] = true, [WHY_RESOURCES] = true,
    };

    for (int i = 0; i < WHY_COUNT; i++)
        if (may_change[i] && i != (int)why && dispatch->whys[i])
            return false;
    return dispatch->whys[why] > 0;
}

bool candidates_pool_shut(const struct dispatch *dispatch)
{
    const uint32_t *whys = dispatch->whys;
    uint32_t gone = whys[WHY_NOT_READY] + whys[WHY_STALE] + whys[WHY_NO_CAPACITY];

    return whys[WHY_BREAKER] > 0 && whys[WHY_BREAKER] + gone == dispatch->members;
}
