/* Snapshots: how they are made from the keeper's table, and the sharing of facts between versions.
 */
#include "sched/snapshot.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define TYPE_POOL STR("type")
#define TYPE_ANY  STR("*")

struct facts *facts_new(void)
{
    struct facts *facts = calloc(1, sizeof *facts);

    assert(facts);
    atomic_init(&facts->refs, 1);
    return facts;
}

struct facts *facts_ref(struct facts *facts)
{
    int before = atomic_fetch_add_explicit(&facts->refs, 1, memory_order_relaxed);

    assert(before > 0);
    return facts;
}

void facts_unref(struct facts *facts)
{
    if (!facts)
        return;
    int before = atomic_fetch_sub_explicit(&facts->refs, 1, memory_order_acq_rel);
    assert(before > 0);
    if (before > 1)
        return;
    arena_free(&facts->arena);
    free(facts);
}

const struct snap_node *snapshot_node(const struct snapshot *snapshot, struct str id)
{
    return snapshot ? map_get(&snapshot->by_id, id) : NULL;
}

static const struct snap_pool *pool_by_id(const struct snapshot *snapshot, struct str src,
                                          struct str tgt)
{
    char id[POOL_ID_MAX];

    if (!snapshot || src.len + tgt.len + 2 > sizeof id)
        return NULL;
    pool_id(src, tgt, id);
    return map_get(&snapshot->by_pool, str_of(id));
}

const struct snap_pool *snapshot_pool(const struct snapshot *snapshot, struct str src,
                                      struct str tgt)
{
    return pool_by_id(snapshot, src, tgt);
}

const struct snap_pool *snapshot_type_pool(const struct snapshot *snapshot, struct str type)
{
    const struct snap_pool *pool = pool_by_id(snapshot, TYPE_POOL, type);

    return pool ? pool : pool_by_id(snapshot, TYPE_POOL, TYPE_ANY);
}

bool snapshot_is_member(const struct snapshot *snapshot, const struct snap_pool *pool,
                        const struct snap_node *node, unsigned wants)
{
    assert(wants < POOL_WANTS);
    if (!pool || !node)
        return false;
    if (str_eq(pool->src, TYPE_POOL))
        return pool_type_member(&node->facts->pool, pool->tgt);
    return pool_member(&node->facts->pool, pool->src, pool->tgt, wants);
}

void snapshot_free(struct snapshot *snapshot)
{
    if (!snapshot)
        return;
    for (size_t i = 0; i < snapshot->count; i++)
        facts_unref(snapshot->nodes[i].facts);
    map_free(&snapshot->by_id);
    map_free(&snapshot->by_pool);
    arena_free(&snapshot->arena);
    free(snapshot);
}

static int by_node_id(const void *a, const void *b)
{
    const struct snap_node *left = a, *right = b;

    return str_cmp(left->node->id, right->node->id);
}

static int by_pool_id(const void *a, const void *b)
{
    const struct snap_pool *left = a, *right = b;

    return str_cmp(left->id, right->id);
}

static void copy_nodes(struct snapshot *snapshot, const struct members *members)
{
    const struct member *member;

    snapshot->nodes = arena_array(&snapshot->arena, struct snap_node, members->by_id.count + 1);
    for (size_t i = 0; (member = map_next(&members->by_id, &i));)
        snapshot->nodes[snapshot->count++] =
            (struct snap_node){.node = member->node, .facts = facts_ref(member->facts)};
    qsort(snapshot->nodes, snapshot->count, sizeof *snapshot->nodes, by_node_id);
    for (size_t i = 0; i < snapshot->count; i++)
        map_put(&snapshot->by_id, snapshot->nodes[i].node->id, &snapshot->nodes[i]);
}

/* The pools being gathered: found by id while members are counted. */
struct gather {
    struct snapshot *snapshot;
    struct map seen; /* pool id -> struct snap_pool * (in the arena, unsorted) */
    struct snap_pool **pools;
    size_t count, cap;
    struct pool_pair *pairs; /* scratch of declared() */
    size_t pair_cap;
};

static struct snap_pool *gather_pool(struct gather *gather, struct str src, struct str tgt)
{
    char id[POOL_ID_MAX];

    pool_id(src, tgt, id);
    struct snap_pool *pool = map_get(&gather->seen, str_of(id));
    if (pool)
        return pool;
    assert(src.len > 0 && tgt.len > 0);
    pool = arena_new(&gather->snapshot->arena, struct snap_pool);
    pool->id = arena_str(&gather->snapshot->arena, str_of(id));
    pool->src = arena_str(&gather->snapshot->arena, src);
    pool->tgt = arena_str(&gather->snapshot->arena, tgt);
    map_put(&gather->seen, pool->id, pool);
    if (gather->count == gather->cap) {
        gather->cap = gather->cap ? gather->cap * 2 : 64;
        gather->pools = realloc(gather->pools, gather->cap * sizeof *gather->pools);
        assert(gather->pools);
    }
    gather->pools[gather->count++] = pool;
    return pool;
}

/* The pairs a node names and can serve, each once; good until the next call. A node may name
 * thousands: nothing here may cost their square. */
static size_t declared(struct gather *gather, const struct pool_facts *facts)
{
    if (facts->nmt_count > gather->pair_cap) {
        gather->pair_cap = facts->nmt_count;
        gather->pairs = realloc(gather->pairs, gather->pair_cap * sizeof *gather->pairs);
        assert(gather->pairs);
    }
    return pool_pairs(facts, NULL, 0, 0, gather->pairs, gather->pair_cap);
}

/* Every pool somebody declares, or the configuration lists. `any` nodes join these afterwards. */
static void gather_names(struct gather *gather, const struct members *members)
{
    const struct snapshot *snapshot = gather->snapshot;

    for (size_t i = 0; i < members->config_pair_count; i++)
        gather_pool(gather, members->config_pairs[i].src, members->config_pairs[i].tgt);
    for (size_t i = 0; i < snapshot->count; i++) {
        const struct pool_facts *facts = &snapshot->nodes[i].facts->pool;
        size_t count = declared(gather, facts);

        for (size_t p = 0; p < count; p++)
            gather_pool(gather, gather->pairs[p].src, gather->pairs[p].tgt);
        for (size_t t = 0; t < facts->type_count; t++)
            gather_pool(gather, TYPE_POOL, facts->types[t]);
    }
}

/* What of `wants` a member of the pool fulfils, as a bit for each combination. */
static unsigned fulfils(const struct snap_pool *pool, const struct pool_facts *facts)
{
    unsigned bits = 0;

    if (str_eq(pool->src, TYPE_POOL))
        return pool_type_member(facts, pool->tgt) ? (1u << POOL_WANTS) - 1 : 0;
    for (unsigned wants = 0; wants < POOL_WANTS; wants++)
        if (pool_member(facts, pool->src, pool->tgt, wants))
            bits |= 1u << wants;
    return bits;
}

static void join(struct snap_pool *pool, uint32_t index, unsigned bits)
{
    for (unsigned wants = 0; wants < POOL_WANTS; wants++)
        if (bits & (1u << wants)) {
            assert(!pool->counts[wants] || !pool->members[wants] ||
                   pool->members[wants][pool->counts[wants] - 1] < index); /* once, in order */
            if (pool->members[wants])
                pool->members[wants][pool->counts[wants]] = index;
            pool->counts[wants]++;
        }
}

/* A node joins the pools it names; one that takes any pair or any type looks at all of them. */
static void join_pools(struct gather *gather, uint32_t index)
{
    const struct pool_facts *facts = &gather->snapshot->nodes[index].facts->pool;
    bool any_type = pool_type_member(facts, TYPE_ANY);

    for (size_t i = 0; (facts->nmt_any || any_type) && i < gather->count; i++) {
        struct snap_pool *pool = gather->pools[i];
        bool task = str_eq(pool->src, TYPE_POOL);

        if (task ? any_type : facts->nmt_any)
            join(pool, index, fulfils(pool, facts));
    }
    if (!facts->nmt_any) {
        struct pool_facts named = *facts;
        size_t count = declared(gather, facts);

        named.nmt_any = true; /* it names the pair: that need not be looked up again */
        for (size_t p = 0; p < count; p++) {
            struct snap_pool *pool =
                gather_pool(gather, gather->pairs[p].src, gather->pairs[p].tgt);

            join(pool, index, fulfils(pool, &named));
        }
    }
    for (size_t t = 0; !any_type && t < facts->type_count; t++) {
        struct snap_pool *pool = gather_pool(gather, TYPE_POOL, facts->types[t]);

        join(pool, index, fulfils(pool, facts));
    }
}

/* Two passes over the nodes: the first counts, so that the arrays fit exactly. */
static void fill_pools(struct gather *gather)
{
    struct snapshot *snapshot = gather->snapshot;

    for (uint32_t i = 0; i < snapshot->count; i++)
        join_pools(gather, i);
    for (size_t p = 0; p < gather->count; p++)
        for (unsigned wants = 0; wants < POOL_WANTS; wants++) {
            struct snap_pool *pool = gather->pools[p];

            pool->members[wants] = arena_array(&snapshot->arena, uint32_t, pool->counts[wants] + 1);
            pool->counts[wants] = 0;
        }
    for (uint32_t i = 0; i < snapshot->count; i++)
        join_pools(gather, i);
}

static bool same_members(const struct snap_pool *a, const struct snapshot *in_a,
                         const struct snap_pool *b, const struct snapshot *in_b)
{
    for (unsigned wants = 0; wants < POOL_WANTS; wants++) {
        if (a->counts[wants] != b->counts[wants])
            return false;
        for (uint32_t i = 0; i < a->counts[wants]; i++)
            if (in_a->nodes[a->members[wants][i]].node != in_b->nodes[b->members[wants][i]].node)
                return false;
    }
    return true;
}

static void finish_pools(struct gather *gather, const struct snapshot *before)
{
    struct snapshot *snapshot = gather->snapshot;

    snapshot->pools = arena_array(&snapshot->arena, struct snap_pool, gather->count + 1);
    snapshot->pool_count = gather->count;
    for (size_t i = 0; i < gather->count; i++)
        snapshot->pools[i] = *gather->pools[i];
    qsort(snapshot->pools, snapshot->pool_count, sizeof *snapshot->pools, by_pool_id);
    for (size_t i = 0; i < snapshot->pool_count; i++) {
        struct snap_pool *pool = &snapshot->pools[i];
        const struct snap_pool *old = before ? map_get(&before->by_pool, pool->id) : NULL;

        pool->version =
            old && same_members(pool, snapshot, old, before) ? old->version : snapshot->version;
        map_put(&snapshot->by_pool, pool->id, pool);
    }
}

struct snapshot *members_publish(struct members *members, const struct snapshot *before)
{
    struct snapshot *snapshot = calloc(1, sizeof *snapshot);
    struct gather gather = {.snapshot = snapshot};

    assert(snapshot);
    snapshot->version = ++members->version;
    members->dirty = false;
    copy_nodes(snapshot, members);
    gather_names(&gather, members);
    fill_pools(&gather);
    finish_pools(&gather, before);
    map_free(&gather.seen);
    free(gather.pools);
    free(gather.pairs);
    assert(snapshot->count == members->by_id.count);
    return snapshot;
}
