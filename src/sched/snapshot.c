/* Snapshots: how they are made from the keeper's table of nodes, and the sharing of facts between
 * versions. The table owns the node structs: a pointer to one stays valid, even after the node has
 * left. Its memory is reused for another node only when no such pointer can exist any more. */
#include "sched/snapshot.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "model/node.h"
#include "model/pool.h"
#include "sched/shared_text.h"
#include "sched/snap_list.h"

/* --- snapshots --- */

#define TYPE_POOL STR("type")
#define TYPE_ANY  STR("*")

_Static_assert(offsetof(struct node, link) <= MEM_LINE, "a dispatch reads one line of a node");
_Static_assert(sizeof(struct snap_node) == MEM_LINE, "and one of its facts");

struct facts *facts_new(void)
{
    struct facts *facts = mem_new(struct facts);

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

const struct json *facts_gpu_model(const struct facts *facts, int32_t id)
{
    const struct json *gpus = facts->gpus;

    for (const struct json *item = json_items(gpus); item; item = json_after(gpus, item)) {
        int64_t of;

        if (json_int(json_get(item, "id"), &of) && of == id)
            return json_type(json_get(item, "model")) == JSON_STR ? json_get(item, "model") : NULL;
    }
    return NULL;
}

static const struct node *node_of(const struct str *item)
{
    return item ? container_of(item, struct node, id) : NULL;
}

static const struct snap_pool *pool_of(const struct str *item)
{
    return item ? container_of(item, struct snap_pool, id) : NULL;
}

const struct snap_node *snapshot_node(const struct snapshot *snapshot, struct str id)
{
    const struct node *node = snapshot ? node_of(snap_list_find(snapshot->by_id, id)) : NULL;

    return node ? snapshot_numbered(snapshot, node->number) : NULL;
}

const struct snap_node *snapshot_next(const struct snapshot *snapshot, struct snap_at *at)
{
    const struct node *node = snapshot ? node_of(snap_list_next(snapshot->by_id, at)) : NULL;

    return node ? snapshot_numbered(snapshot, node->number) : NULL;
}

const struct snap_pool *snapshot_next_pool(const struct snapshot *snapshot, struct snap_at *at)
{
    return snapshot ? pool_of(snap_list_next(snapshot->by_pool, at)) : NULL;
}

struct snap_at snapshot_after(const struct snapshot *snapshot, struct str id)
{
    return snapshot && id.at ? snap_list_after(snapshot->by_id, id) : (struct snap_at){0};
}

struct snap_at snapshot_after_pool(const struct snapshot *snapshot, struct str id)
{
    return snapshot && id.at ? snap_list_after(snapshot->by_pool, id) : (struct snap_at){0};
}

const struct snap_pool *snapshot_pool(const struct snapshot *snapshot, struct str src,
                                      struct str tgt)
{
    char id[POOL_ID_MAX];

    if (!snapshot || src.len + tgt.len + 2 > sizeof id)
        return NULL;
    pool_id(src, tgt, id);
    return pool_of(snap_list_find(snapshot->by_pool, str_of(id)));
}

const struct snap_pool *snapshot_type_pool(const struct snapshot *snapshot, struct str type)
{
    const struct snap_pool *pool = snapshot_pool(snapshot, TYPE_POOL, type);

    return pool ? pool : snapshot_pool(snapshot, TYPE_POOL, TYPE_ANY);
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

/* --- nodes by number --- */

static void table_unref(struct snap_table *table)
{
    if (!table || --table->refs > 0)
        return;
    for (size_t i = 0; i < table->chunk_count; i++) {
        struct snap_chunk *chunk = table->chunks[i];

        if (--chunk->refs > 0)
            continue;
        for (size_t n = 0; n < SNAP_CHUNK; n++)
            facts_unref(chunk->nodes[n].facts);
        free(chunk);
    }
    free(table);
}

/* Into a chunk that only this table has. Takes over the reference to `facts`. */
static void table_set(struct node_table *members, struct snap_table *table, struct node *node,
                      struct facts *facts)
{
    struct snap_chunk **chunk = &table->chunks[node->number / SNAP_CHUNK];
    struct snap_node *place;

    if ((*chunk)->refs > 1) {
        struct snap_chunk *own = mem_aligned(MEM_LINE, sizeof *own);

        *own = **chunk;
        own->refs = 1;
        for (size_t i = 0; i < SNAP_CHUNK; i++)
            if (own->nodes[i].facts)
                facts_ref(own->nodes[i].facts);
        (*chunk)->refs--;
        *chunk = own;
        members->copied += SNAP_CHUNK;
    }
    place = &(*chunk)->nodes[node->number % SNAP_CHUNK];
    facts_unref(place->facts);
    *place = (struct snap_node){0};
    if (facts)
        *place = (struct snap_node){.node = node,
                                    .facts = facts,
                                    .label_values = facts->label_values,
                                    .namespaces = facts->namespaces,
                                    .resources = facts->resources,
                                    .priority = facts->priority,
                                    .reserved_slots = facts->reserved_slots,
                                    .has_endpoint = facts->endpoint.at != NULL};
}

static struct snap_node table_get(const struct snap_table *table, uint32_t number)
{
    return table && number / SNAP_CHUNK < table->chunk_count
               ? table->chunks[number / SNAP_CHUNK]->nodes[number % SNAP_CHUNK]
               : (struct snap_node){0};
}

/* --- pools --- */

static void pool_hold(const struct str *item)
{
    ((struct snap_pool *)pool_of(item))->refs++;
}

static void pool_drop(const struct str *item)
{
    struct snap_pool *pool = (struct snap_pool *)pool_of(item);

    if (--pool->refs == 0)
        free(pool);
}

static const struct snap_kind pool_kind = {.hold = pool_hold, .drop = pool_drop};

/* Which of `wants` a node fulfils from now on, one bit for each combination; 0: it is not a
 * member. */
struct pool_edit {
    uint32_t number;
    uint32_t bits;
    size_t turn; /* of two edits for one node the later one wins */
};

/* A pool as the keeper knows it, while a node or the configuration declares it. */
struct pool_book {
    struct snap_pool *pool; /* in the last snapshot; NULL: not there yet */
    struct str id, src, tgt;
    struct snap_pool *old; /* while a snapshot is made: the previous `pool` */
    size_t declared;
    bool touched; /* it is in the list of pools with edits, or without a pool */
    struct pool_book *next_touched;
    struct pool_edit *edits;
    size_t edit_count, edit_cap;
    char text[];
};

/* A snapshot being made. */
struct edition {
    struct node_table *members;
    struct pool_book *touched;
    struct snap_edit *pools;
    size_t pool_count, pool_cap;
    int64_t version;
};

static struct str put_text(char **to, struct str text)
{
    struct str put = {.at = *to, .len = text.len};

    memcpy(*to, text.at, text.len);
    (*to)[text.len] = '\0';
    *to += text.len + 1;
    return put;
}

static struct pool_book *find_book(struct node_table *members, struct str src, struct str tgt)
{
    char id[POOL_ID_MAX];
    struct pool_book *book;
    char *text;

    assert(src.len > 0 && tgt.len > 0);
    pool_id(src, tgt, id);
    book = map_get(&members->books, str_of(id));
    if (book)
        return book;
    book = mem_zeroed(1, sizeof *book + strlen(id) + src.len + tgt.len + 3);
    text = book->text;
    book->id = put_text(&text, str_of(id));
    book->src = put_text(&text, src);
    book->tgt = put_text(&text, tgt);
    map_put(&members->books, book->id, book);
    return book;
}

static void book_free(struct pool_book *book)
{
    if (book->pool)
        pool_drop(&book->pool->id);
    free(book->edits);
    free(book);
}

static void touch(struct edition *edition, struct pool_book *book)
{
    if (book->touched)
        return;
    book->touched = true;
    book->next_touched = edition->touched;
    edition->touched = book;
}

/* The pairs a node names and can serve, without duplicates; valid until the next call. A node may
 * name thousands: nothing here may take quadratic time. */
static size_t declared(struct node_table *members, const struct pool_facts *facts)
{
    if (facts->nmt_count > members->pair_cap) {
        members->pair_cap = facts->nmt_count;
        members->pairs = mem_resize(members->pairs, members->pair_cap * sizeof *members->pairs);
    }
    return pool_pairs(facts, members->pairs);
}

/* Makes sure that every pool a node declares exists. `any` nodes join these afterwards. */
static void declare(struct edition *edition, const struct pool_facts *facts, bool more)
{
    struct node_table *members = edition->members;
    size_t count = declared(members, facts);

    for (size_t i = 0; i < count + facts->type_count; i++) {
        struct pool_book *book =
            i < count ? find_book(members, members->pairs[i].src, members->pairs[i].tgt)
                      : find_book(members, TYPE_POOL, facts->types[i - count]);

        assert(more || book->declared > 0);
        book->declared += more ? 1 : (size_t)-1;
        touch(edition, book);
    }
}

/* Which of `wants` a member of the pool fulfils. */
static unsigned fulfils(const struct pool_book *book, const struct pool_facts *facts)
{
    unsigned bits = 0;

    if (str_eq(book->src, TYPE_POOL))
        return pool_type_member(facts, book->tgt) ? (1u << POOL_WANTS) - 1 : 0;
    for (unsigned wants = 0; wants < POOL_WANTS; wants++)
        if (pool_member(facts, book->src, book->tgt, wants))
            bits |= 1u << wants;
    return bits;
}

static void edit(struct edition *edition, struct pool_book *book, uint32_t number, unsigned bits)
{
    touch(edition, book);
    if (book->edit_count == book->edit_cap) {
        book->edit_cap = book->edit_cap ? book->edit_cap * 2 : 8;
        book->edits = mem_resize(book->edits, book->edit_cap * sizeof *book->edits);
    }
    book->edits[book->edit_count] =
        (struct pool_edit){.number = number, .bits = bits, .turn = book->edit_count};
    book->edit_count++;
}

/* A node joins or leaves the pools it names; one that takes any pair or any type is in all. */
static void join_pools(struct edition *edition, uint32_t number, const struct pool_facts *facts,
                       bool joins)
{
    struct node_table *members = edition->members;
    bool any_type = pool_type_member(facts, TYPE_ANY);
    struct pool_book *book;

    for (size_t i = 0; (facts->nmt_any || any_type) && (book = map_next(&members->books, &i));)
        if (str_eq(book->src, TYPE_POOL) ? any_type : facts->nmt_any)
            edit(edition, book, number, joins ? fulfils(book, facts) : 0);
    if (!facts->nmt_any) {
        struct pool_facts named = *facts;
        size_t count = declared(members, facts);

        named.nmt_any = true; /* it names the pair: no need to look that up again */
        for (size_t i = 0; i < count; i++) {
            book = find_book(members, members->pairs[i].src, members->pairs[i].tgt);
            edit(edition, book, number, joins ? fulfils(book, &named) : 0);
        }
    }
    for (size_t i = 0; !any_type && i < facts->type_count; i++) {
        book = find_book(members, TYPE_POOL, facts->types[i]);
        edit(edition, book, number, joins ? fulfils(book, facts) : 0);
    }
}

static void note_any(struct idmap *any, struct node_entry *member, uint32_t number, bool is_any)
{
    if (is_any)
        idmap_put(any, number, member);
    else
        idmap_del(any, number);
}

/* All pools must exist before a node joins all of them. */
static void change_pools(struct edition *edition)
{
    struct node_table *members = edition->members;

    for (size_t i = 0; i < members->changed_count; i++) {
        const struct node *node = members->changed[i];
        struct node_entry *member = map_get(&members->by_id, node->id);
        struct snap_node before = table_get(members->table, node->number);
        const struct pool_facts *facts = member ? &member->facts->pool : NULL;

        if (facts)
            declare(edition, facts, true);
        if (before.facts)
            declare(edition, &before.facts->pool, false);
        note_any(&members->any_pairs, member, node->number, facts && facts->nmt_any);
        note_any(&members->any_types, member, node->number,
                 facts && pool_type_member(facts, TYPE_ANY));
    }
    for (size_t i = 0; i < members->changed_count; i++) {
        const struct node *node = members->changed[i];
        const struct node_entry *member = map_get(&members->by_id, node->id);
        struct snap_node before = table_get(members->table, node->number);

        if (before.facts)
            join_pools(edition, node->number, &before.facts->pool, false);
        if (member)
            join_pools(edition, node->number, &member->facts->pool, true);
    }
}

static int by_number(const void *a, const void *b)
{
    const struct pool_edit *left = a, *right = b;

    if (left->number != right->number)
        return left->number < right->number ? -1 : 1;
    return (left->turn > right->turn) - (left->turn < right->turn);
}

static bool is_member(const struct snap_pool *pool, unsigned wants, uint32_t number)
{
    uint32_t low = 0, high = pool ? pool->counts[wants] : 0;

    while (low < high) {
        uint32_t middle = (low + high) / 2;

        if (pool->members[wants][middle] == number)
            return true;
        if (pool->members[wants][middle] < number)
            low = middle + 1;
        else
            high = middle;
    }
    return false;
}

/* Sorts the edits and keeps one for each node, only if it changes something. */
static void tidy_edits(struct pool_book *book)
{
    size_t kept = 0;

    if (book->edit_count)
        qsort(book->edits, book->edit_count, sizeof *book->edits, by_number);
    for (size_t i = 0; i < book->edit_count; i++) {
        unsigned bits = 0;

        if (i + 1 < book->edit_count && book->edits[i + 1].number == book->edits[i].number)
            continue;
        for (unsigned wants = 0; wants < POOL_WANTS; wants++)
            bits |= (unsigned)is_member(book->pool, wants, book->edits[i].number) << wants;
        if (bits != book->edits[i].bits)
            book->edits[kept++] = book->edits[i];
    }
    book->edit_count = kept;
}

/* The members of the old pool with the edits applied. */
static uint32_t merge(const struct pool_book *book, unsigned wants, uint32_t *to)
{
    const struct snap_pool *old = book->pool;
    uint32_t count = 0, at = 0, end = old ? old->counts[wants] : 0;

    for (size_t i = 0; i < book->edit_count; i++) {
        const struct pool_edit *edit = &book->edits[i];

        while (at < end && old->members[wants][at] < edit->number)
            to[count++] = old->members[wants][at++];
        if (at < end && old->members[wants][at] == edit->number)
            at++;
        if (edit->bits >> wants & 1)
            to[count++] = edit->number;
    }
    while (at < end)
        to[count++] = old->members[wants][at++];
    return count;
}

/* Does each member fulfil this too? Then the list is that of all members. */
static bool is_all(const struct pool_book *book, unsigned wants)
{
    if (book->pool && book->pool->members[wants] != book->pool->members[0])
        return false;
    for (size_t i = 0; i < book->edit_count; i++)
        if ((book->edits[i].bits >> wants & 1) != (book->edits[i].bits & 1))
            return false;
    return true;
}

static struct snap_pool *pool_make(struct edition *edition, const struct pool_book *book)
{
    size_t text = book->id.len + book->src.len + book->tgt.len + 3, most = 0;
    struct snap_pool *pool;
    uint32_t *to;
    char *name;

    for (unsigned wants = 0; wants < POOL_WANTS; wants++)
        most += (book->pool ? book->pool->counts[wants] : 0) + book->edit_count;
    pool = mem_alloc(sizeof *pool + most * sizeof *to + text);
    *pool = (struct snap_pool){.version = edition->version, .refs = 1};
    to = (uint32_t *)(pool + 1);
    name = (char *)(to + most);
    pool->id = put_text(&name, book->id);
    pool->src = put_text(&name, book->src);
    pool->tgt = put_text(&name, book->tgt);
    for (unsigned wants = 0; wants < POOL_WANTS; wants++) {
        if (wants && is_all(book, wants)) {
            pool->members[wants] = pool->members[0];
            pool->counts[wants] = pool->counts[0];
            continue;
        }
        pool->members[wants] = to;
        pool->counts[wants] = merge(book, wants, to);
        edition->members->copied += pool->counts[wants];
        to += pool->counts[wants];
    }
    return pool;
}

static void list_pool(struct edition *edition, const struct snap_pool *pool, bool gone)
{
    if (edition->pool_count == edition->pool_cap) {
        edition->pool_cap = edition->pool_cap ? edition->pool_cap * 2 : 16;
        edition->pools = mem_resize(edition->pools, edition->pool_cap * sizeof *edition->pools);
    }
    edition->pools[edition->pool_count++] = (struct snap_edit){.item = &pool->id, .gone = gone};
}

/* Makes a new pool if it changed. Returns the old one: its name is still read. */
static struct snap_pool *settle_pool(struct edition *edition, struct pool_book *book)
{
    struct snap_pool *old = book->pool;
    const struct idmap *any =
        str_eq(book->src, TYPE_POOL) ? &edition->members->any_types : &edition->members->any_pairs;
    const struct node_entry *member;

    if (!book->declared) {
        if (old)
            list_pool(edition, old, true);
        book->pool = NULL;
        return old;
    }
    /* A node that takes anything is in a new pool too. */
    for (size_t i = 0; !old && (member = idmap_next(any, &i));)
        edit(edition, book, member->node->number, fulfils(book, &member->facts->pool));
    tidy_edits(book);
    if (old && !book->edit_count)
        return NULL;
    book->pool = pool_make(edition, book);
    list_pool(edition, book->pool, false);
    return old;
}

static void settle_pools(struct edition *edition)
{
    struct node_table *members = edition->members;
    struct pool_book *book;
    struct snap_list *list;

    if (!members->pool_list) /* the first snapshot: the configuration's pools are new */
        for (size_t i = 0; (book = map_next(&members->books, &i));)
            touch(edition, book);
    for (book = edition->touched; book; book = book->next_touched)
        book->old = settle_pool(edition, book);
    if (edition->pool_count || !members->pool_list) {
        list = snap_list_edit(members->pool_list, &pool_kind, edition->pools, edition->pool_count,
                              &members->copied);
        snap_list_unref(members->pool_list);
        members->pool_list = list;
    }
    for (struct pool_book *next; (book = edition->touched); edition->touched = next) {
        next = book->next_touched;
        if (book->old)
            pool_drop(&book->old->id);
        book->old = NULL;
        book->touched = false;
        free(book->edits);
        book->edits = NULL;
        book->edit_count = book->edit_cap = 0;
        if (!book->declared) {
            map_del(&members->books, book->id);
            book_free(book);
        }
    }
    free(edition->pools);
}

static void settle_nodes(struct node_table *members)
{
    size_t had = members->table ? members->table->chunk_count : 0;
    size_t wanted = (members->nodes.count + SNAP_CHUNK - 1) / SNAP_CHUNK;
    size_t count = had > wanted ? had : wanted;
    struct snap_table *table = mem_alloc(sizeof *table + count * sizeof *table->chunks);
    struct snap_edit *edits = mem_array(struct snap_edit, members->changed_count + 1);
    size_t edit_count = 0;

    /* The same chunks, plus empty ones up to the highest number. */
    *table = (struct snap_table){.refs = 1, .chunk_count = count};
    for (size_t i = 0; i < count; i++) {
        table->chunks[i] =
            i < had ? members->table->chunks[i] : mem_aligned(MEM_LINE, sizeof(struct snap_chunk));
        table->chunks[i]->refs++;
    }
    members->copied += count;
    for (size_t i = 0; i < members->changed_count; i++) {
        struct node *node = members->changed[i];
        const struct node_entry *member = map_get(&members->by_id, node->id);
        bool was = table_get(members->table, node->number).facts != NULL;

        if (member || was)
            table_set(members, table, node, member ? facts_ref(member->facts) : NULL);
        if (was != (member != NULL))
            edits[edit_count++] = (struct snap_edit){.item = &node->id, .gone = was};
        node->unpublished = false;
    }
    members->changed_count = 0;
    table_unref(members->table);
    members->table = table;
    if (edit_count || !members->id_list) {
        struct snap_list *list =
            snap_list_edit(members->id_list, NULL, edits, edit_count, &members->copied);

        snap_list_unref(members->id_list);
        members->id_list = list;
    }
    free(edits);
}

struct snapshot *node_table_publish(struct node_table *members)
{
    struct snapshot *snapshot = mem_new(struct snapshot);
    struct edition edition = {.members = members, .version = ++members->version};

    members->dirty = false;
    members->copied = 0;
    change_pools(&edition);
    settle_pools(&edition);
    settle_nodes(members);
    members->table->refs++;
    *snapshot = (struct snapshot){.version = members->version,
                                  .count = members->id_list->count,
                                  .pool_count = members->pool_list->count,
                                  .table = members->table,
                                  .by_id = snap_list_ref(members->id_list),
                                  .by_pool = snap_list_ref(members->pool_list)};
    assert(snapshot->count == members->by_id.count);
    return snapshot;
}

void snapshot_free(struct snapshot *snapshot)
{
    if (!snapshot)
        return;
    table_unref(snapshot->table);
    snap_list_unref(snapshot->by_id);
    snap_list_unref(snapshot->by_pool);
    free(snapshot);
}

/* --- the table of nodes --- */

/* Longer than any poll, push or call may last. */
enum { NODE_RETIRED_MS = 2 * 3600 * 1000 };

struct node_table *node_table_new(const struct pool_pair *config_pairs, size_t count)
{
    struct node_table *members = mem_new(struct node_table);

    members->slab = (struct slab){.size = sizeof(struct node), .is_random = true};
    /* `pools:`, for nodes with nmt `any`. */
    for (size_t i = 0; i < count; i++)
        find_book(members, config_pairs[i].src, config_pairs[i].tgt)->declared++;
    return members;
}

void node_table_free(struct node_table *members)
{
    struct node_entry *member;
    struct node *node;
    struct pool_book *book;

    if (!members)
        return;
    table_unref(members->table);
    snap_list_unref(members->id_list);
    snap_list_unref(members->pool_list);
    for (size_t i = 0; (book = map_next(&members->books, &i));)
        book_free(book);
    map_free(&members->books);
    idmap_free(&members->any_pairs);
    idmap_free(&members->any_types);
    free(members->pairs);
    for (size_t i = 0; (member = map_next(&members->by_id, &i));) {
        facts_unref(member->facts);
        free(member);
    }
    for (size_t i = 0; (node = map_next(&members->nodes, &i));) {
        free((void *)node->id.at);
        shared_text_free(atomic_load(&node->usage));
        shared_text_free(atomic_load(&node->admin_reason));
        shared_text_free(atomic_load(&node->claim));
        shared_text_free(atomic_load(&node->loaded_names));
    }
    slab_free(&members->slab);
    map_free(&members->by_id);
    map_free(&members->nodes);
    free(members->changed);
    free(members);
}

/* Resets the figures to those of a node that never reported. */
static void clear_live(struct node *node)
{
    atomic_store(&node->health, NODE_HEALTH_NONE);
    atomic_store(&node->own, NODE_HEALTH_NONE);
    atomic_store(&node->admin, NODE_ADMIN_NONE);
    atomic_store(&node->max, 0);
    atomic_store(&node->cpu_pm, -1);
    atomic_store(&node->gpu_pm, -1);
    atomic_store(&node->mem_pm, -1);
    atomic_store(&node->score, 100);
    atomic_store(&node->level, -1);
    atomic_store(&node->disconnected_ms, 0);
    atomic_store(&node->instance, 0);
    atomic_store(&node->bad_heartbeats, 0);
    atomic_store(&node->ring_at, 0);
    for (int i = 0; i < NODE_MARKS; i++)
        atomic_store(&node->marks[i], 0);
    shared_text_put(&node->usage, STR(""));
    shared_text_put(&node->admin_reason, STR(""));
    shared_text_put(&node->claim, STR(""));
    for (int i = 0; i < WARM_LOADED_MAX; i++)
        atomic_store(&node->loaded[i], 0);
    shared_text_put(&node->loaded_names, STR(""));
}

/* Puts it at the end of the list of nodes that left, once. */
static void retire(struct node_table *members, struct node *node)
{
    node->retired_ms = members->now_ms;
    if (node->in_retired)
        return;
    node->in_retired = true;
    node->next_retired = NULL;
    if (members->last_retired)
        members->last_retired->next_retired = node;
    else
        members->first_retired = node;
    members->last_retired = node;
}

/* A node that left so long ago that no pointer to it can exist any more; NULL: there is none. */
static struct node *take_retired(struct node_table *members)
{
    struct node *node = members->first_retired;

    if (!node)
        return NULL;
    members->first_retired = node->next_retired;
    if (!members->first_retired)
        members->last_retired = NULL;
    node->in_retired = false;
    if (map_get(&members->by_id, node->id))
        return NULL; /* it came back */
    if (members->now_ms - node->retired_ms < NODE_RETIRED_MS || atomic_load(&node->link) ||
        atomic_load(&node->pending) || node->unpublished || node->offered ||
        atomic_load(&node->freed)) {
        int64_t retired_ms = node->retired_ms;

        retire(members, node);
        node->retired_ms = retired_ms;
        return NULL;
    }
    return node;
}

/* A struct for a new id: one retired long ago, or fresh memory. */
static struct node *node_make(struct node_table *members)
{
    struct node *node = take_retired(members);
    struct shared_text *usage = NULL, *reason = NULL, *claim = NULL, *loaded = NULL;
    uint32_t number = (uint32_t)members->nodes.count;

    if (node) {
        map_del(&members->nodes, node->id);
        free((void *)node->id.at);
        usage = atomic_load(&node->usage);
        reason = atomic_load(&node->admin_reason);
        claim = atomic_load(&node->claim);
        loaded = atomic_load(&node->loaded_names);
        number = node->number;
    } else {
        node = slab_new(&members->slab);
    }
    memset(node, 0, sizeof *node);
    node->number = number;
    atomic_store(&node->usage, usage);
    atomic_store(&node->admin_reason, reason);
    atomic_store(&node->claim, claim);
    atomic_store(&node->loaded_names, loaded);
    clear_live(node);
    return node;
}

struct node *node_table_node(struct node_table *members, struct str id)
{
    struct node *node = map_get(&members->nodes, id);

    assert(id.len > 0 && id.len <= NODE_ID_MAX);
    if (node)
        return node;
    struct str own_id = mem_str(id); /* `id` may belong to the node whose memory is reused */
    node = node_make(members);
    node->id = own_id;
    node->hash = str_hash(node->id);
    map_put(&members->nodes, node->id, node);
    assert(node->number < members->nodes.count);
    return node;
}

/* Includes the node in the next snapshot. */
static void note_changed(struct node_table *members, struct node *node)
{
    members->dirty = true;
    if (node->unpublished)
        return;
    node->unpublished = true;
    if (members->changed_count == members->changed_cap) {
        members->changed_cap = members->changed_cap ? members->changed_cap * 2 : 64;
        members->changed =
            mem_resize(members->changed, members->changed_cap * sizeof *members->changed);
    }
    members->changed[members->changed_count++] = node;
}

struct node *node_table_put(struct node_table *members, struct str id, struct facts *facts)
{
    struct node *node = node_table_node(members, id);
    struct node_entry *member = map_get(&members->by_id, node->id);

    assert(facts);
    if (!member) {
        member = mem_new(struct node_entry);
        member->node = node;
        map_put(&members->by_id, node->id, member);
    }
    facts_unref(member->facts);
    member->facts = facts;
    note_changed(members, node);
    return node;
}

bool node_table_del(struct node_table *members, struct str id)
{
    struct node_entry *member = map_del(&members->by_id, id);

    if (!member)
        return false;
    clear_live(member->node);
    retire(members, member->node);
    note_changed(members, member->node);
    facts_unref(member->facts);
    free(member);
    return true;
}

struct facts *node_table_facts(const struct node_table *members, struct str id)
{
    const struct node_entry *member = map_get(&members->by_id, id);

    return member ? member->facts : NULL;
}
