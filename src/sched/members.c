/* The keeper's table of nodes. Owns the node structs: a pointer to one stays good, also when the
 * node has left. Its memory serves another node only when nobody can hold such a pointer any more.
 */
#include "sched/snapshot.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sched/shared_text.h"

/* Longer than any poll, push or call may last. */
enum { MEMBERS_RETIRED_MS = 2 * 3600 * 1000 };

struct node_table *node_table_new(const struct pool_pair *config_pairs, size_t count)
{
    struct node_table *members = calloc(1, sizeof *members);

    assert(members);
    node_table_books_init(members, config_pairs, count);
    return members;
}

void node_table_free(struct node_table *members)
{
    struct node_entry *member;
    struct node *node;

    if (!members)
        return;
    node_table_books_free(members);
    for (size_t i = 0; (member = map_next(&members->by_id, &i));) {
        facts_unref(member->facts);
        free(member);
    }
    for (size_t i = 0; (node = map_next(&members->nodes, &i));) {
        free((void *)node->id.at);
        blackboard_free(atomic_load(&node->usage));
        blackboard_free(atomic_load(&node->admin_reason));
        blackboard_free(atomic_load(&node->claim));
        free(node);
    }
    map_free(&members->by_id);
    map_free(&members->nodes);
    free(members->changed);
    free(members);
}

/* As one that never said anything. */
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
    atomic_store(&node->left_ms, 0);
    atomic_store(&node->holder, 0);
    atomic_store(&node->bad_heartbeats, 0);
    atomic_store(&node->ring_at, 0);
    for (int i = 0; i < NODE_MARKS; i++)
        atomic_store(&node->marks[i], 0);
    blackboard_put(&node->usage, STR(""));
    blackboard_put(&node->admin_reason, STR(""));
    blackboard_put(&node->claim, STR(""));
}

/* Behind the others that left; once. */
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

/* One that left so long ago that nobody can hold a pointer to it any more; NULL: there is none. */
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
    if (members->now_ms - node->retired_ms < MEMBERS_RETIRED_MS || atomic_load(&node->link) ||
        atomic_load(&node->pending) || node->unpublished || node->offered ||
        atomic_load(&node->freed)) {
        int64_t retired_ms = node->retired_ms;

        retire(members, node);
        node->retired_ms = retired_ms;
        return NULL;
    }
    return node;
}

/* A struct for a new id: what a node left behind long ago, or fresh memory. */
static struct node *node_make(struct node_table *members)
{
    struct node *node = take_retired(members);
    struct blackboard *usage = NULL, *reason = NULL, *claim = NULL;
    uint32_t number = (uint32_t)members->nodes.count;

    if (node) {
        map_del(&members->nodes, node->id);
        free((void *)node->id.at);
        usage = atomic_load(&node->usage);
        reason = atomic_load(&node->admin_reason);
        claim = atomic_load(&node->claim);
        number = node->number;
    } else {
        node = calloc(1, sizeof *node);
        assert(node);
    }
    memset(node, 0, sizeof *node);
    node->number = number;
    atomic_store(&node->usage, usage);
    atomic_store(&node->admin_reason, reason);
    atomic_store(&node->claim, claim);
    clear_live(node);
    return node;
}

struct node *node_table_node(struct node_table *members, struct str id)
{
    struct node *node = map_get(&members->nodes, id);

    assert(id.len > 0 && id.len <= NODE_ID_MAX);
    if (node)
        return node;
    char *text = malloc(id.len + 1);
    assert(text);
    memcpy(text, id.at, id.len);
    text[id.len] = 0;
    node = node_make(members);
    node->id = (struct str){.at = text, .len = id.len};
    node->hash = str_hash(node->id);
    map_put(&members->nodes, node->id, node);
    assert(node->number < members->nodes.count);
    return node;
}

/* The next snapshot is to tell. */
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
        member = calloc(1, sizeof *member);
        assert(member);
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

size_t node_table_count(const struct node_table *members)
{
    return members->by_id.count;
}
