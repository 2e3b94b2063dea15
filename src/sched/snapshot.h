/* Membership as dispatch sees it: which nodes exist, what they can do, which pools they are in. A
 * snapshot never changes; a change makes a new version, which shares everything unchanged with the
 * previous one: only chunks of nodes, and pools that were joined or left, are made anew. Figures
 * that change with every heartbeat or reserve (load, health, time) are in node structs whose
 * address never changes, as relaxed atomics: advisory, the store decides.
 *
 * One writer (the keeper) owns `struct node_table` and publishes; each loop reads its own
 * pointer. */
#ifndef SCHED_SNAPSHOT_H
#define SCHED_SNAPSHOT_H

#include <stdatomic.h>

#include "base/map.h"
#include "base/mem.h"
#include "model/node.h"
#include "model/pool.h"
#include "model/resources.h"
#include "model/warm.h"
#include "sched/snap_list.h"

enum {
    NODE_RING = 100, /* the number of latest jobs that health_score considers */
    NODE_MARKS = 15, /* fields of a registration, see node_report.c */
};

/* What is known of a node's resources, in the order of its facts. Each figure is valid by itself;
 * the shape says how many names and GPUs they cover, 0: nothing is known yet. */
struct node_resources {
    _Atomic int32_t pending; /* reserves of this instance under way that need some */
    _Atomic uint32_t left_shape;
    _Atomic uint32_t shared;
    _Atomic int32_t left[RESOURCES_MAX], gpu_left[RESOURCES_GPUS_MAX];
    _Atomic uint32_t usable_shape; /* by measurement, as last put into the store */
    _Atomic int32_t usable[RESOURCES_MAX], gpu_usable[RESOURCES_GPUS_MAX];
};

/* The live figures of one node. Any thread reads and writes, without waiting. */
struct node {
    /* What every dispatch reads of each node it sampled: one cache line. */
    _Alignas(MEM_LINE) _Atomic uint64_t
        counts; /* reserved and running as the store last answered, see sched.h */
    /* Times of sched_awake_ms(). */
    _Atomic int64_t heartbeat_ms;    /* last sign of life */
    _Atomic int64_t disconnected_ms; /* when its connection closed; 0 = connected */
    _Atomic int32_t max;
    _Atomic int32_t pending; /* reserves of this instance under way */
    _Atomic int8_t health;   /* effective, enum node_health */
    _Atomic int8_t level;    /* enum level as its agent sent it; -1 = it has no agent */
    _Atomic int8_t score;
    _Atomic int8_t admin; /* enum node_admin */
    uint64_t hash;        /* of its id */
    struct str id;
    /* And what is read of the one that is chosen. */
    _Atomic uint64_t link;                      /* how to reach it, see hub.h; 0 = not connected */
    uint32_t number;                            /* 0.. in order of first registration */
    _Atomic int8_t own;                         /* the health it last reported */
    _Atomic(struct shared_text *) admin_reason; /* the operator's text; NULL: never any */
    _Atomic int64_t version, registered_ms;     /* of its record in the store, as last known */
    _Atomic uint32_t epoch;
    _Atomic int32_t bad_heartbeats; /* since the keeper last looked */
    _Atomic int64_t renewed_ms; /* sched_awake_ms() too: last renewal of its leases sent; 0: none */
    _Atomic int32_t cpu_pm, gpu_pm, mem_pm; /* current_load in 1/1000; -1 = not sent */
    _Atomic(struct shared_text *) claim;    /* `claim` of its last heartbeat: how claims went */
    _Atomic(struct shared_text *) usage; /* the `usage` of its last heartbeat; NULL: never sent */
    /* What it has loaded, by its last report: marks of the names (the first 0 ends them) and the
     * names, a JSON list; see warm_index.h. */
    _Atomic uint32_t loaded[WARM_LOADED_MAX];
    _Atomic(struct shared_text *) loaded_names;
    /* Fingerprints of the facts last stored, by field: a heartbeat that repeats them costs
     * nothing. */
    _Atomic uint32_t marks[NODE_MARKS];
    /* In a shared store: the instance that has its connection, 0 = none or this one; and the order
     * of our last message about it, UINT64_MAX while one is on its way. */
    _Atomic uint32_t instance;
    _Atomic uint64_t link_order;
    _Atomic bool polled; /* the store was told that the node polls this instance for its jobs */
    _Atomic uint32_t ring_at;
    _Atomic bool freed;        /* it is in the keeper's list of nodes that may have room again, */
    struct node *next_freed;   /* before this one */
    struct node_watch watch;   /* the keeper's only */
    struct node *next_retired; /* in members->first_retired */
    int64_t retired_ms;
    bool in_retired;
    bool unpublished;          /* keeper: in members->changed */
    bool offered;              /* keeper: it is in the queue's list of nodes that may have room, */
    struct node *next_offered; /* before this one */
    int64_t passed_on_ms;      /* keeper: when a lane last left it to a better one */
    uint64_t change_order;     /* keeper: of its last change applied by the store */
    uint64_t compared;         /* keeper: the last comparison of all nodes in which it was found */
    int64_t shared_ms; /* keeper: heartbeat_ms as last sent to, or received from, other instances */
    uint32_t ring_seen; /* keeper: ring_at at its last look, and when that changed */
    int64_t ring_changed_ms;
    _Atomic int32_t ring[NODE_RING]; /* ms of a job's run, negative - 1 when it failed */
    struct node_resources resources;
};

/* What a node registered: immutable, shared by the versions that contain it. */
struct facts {
    struct pool_facts pool;
    struct arena arena;
    const struct json *label_values;   /* parsed `labels`, and its resources */
    const struct json *namespaces;     /* whose work it takes, by the rules; NULL: all */
    const struct resources *resources; /* declared; NULL: none */
    struct str endpoint;               /* push; at == NULL: none */
    int32_t reserved_slots;            /* of its slots, kept for interactive jobs */
    int32_t max_concurrent_jobs;
    int64_t priority;  /* of the server: lower is asked first if a route does not decide */
    struct str json;   /* the whole registration, normalised: what the store keeps */
    struct str labels; /* JSON object text */
    struct str tags;   /* JSON object text: what UpdateTerminalInfo sets */
    struct str agent_version;
    struct str name, role;
    struct str resources_json; /* `resources` as it was sent; at == NULL: none */
    const struct json *gpus;   /* its list of GPUs, with the models; NULL: none */
    int64_t version;           /* of the record they came with; the node's own version moves on */
    _Atomic int refs;
};

struct facts *facts_new(void);
struct facts *facts_ref(struct facts *facts);
void facts_unref(struct facts *facts); /* NULL is fine */
/* The name of its GPU, a text; NULL: not reported. */
const struct json *facts_gpu_model(const struct facts *facts, int32_t id);

/* One cache line: what every dispatch reads of the facts of each node it sampled is copied here. */
struct snap_node {
    _Alignas(MEM_LINE) struct node *node; /* NULL: no node has this number */
    struct facts *facts;
    const struct json *label_values, *namespaces;
    const struct resources *resources;
    int64_t priority;
    int32_t reserved_slots;
    bool has_endpoint;
};

enum { SNAP_CHUNK = 128 };

/* Nodes by number, in chunks that versions share. */
struct snap_chunk {
    int refs; /* tables that contain it; keeper only, like all of these */
    struct snap_node nodes[SNAP_CHUNK];
};

struct snap_table {
    int refs;
    size_t chunk_count;
    struct snap_chunk *chunks[];
};

/* Never changes; shared by versions with the same members. */
struct snap_pool {
    struct str id;       /* "en:zh", "type:dev" */
    struct str src, tgt; /* of a task pool: "type", NAME */
    /* Members by what a request wants beyond the pool (POOL_WANT_*): their numbers, in order. */
    const uint32_t *members[POOL_WANTS];
    uint32_t counts[POOL_WANTS];
    int64_t version; /* of the snapshot in which its members last changed */
    int refs;
};

struct snapshot {
    int64_t version;
    size_t count;
    size_t pool_count;
    struct snap_table *table;
    struct snap_list *by_id;   /* of struct node */
    struct snap_list *by_pool; /* of struct snap_pool */
};

static inline const struct snap_node *snapshot_numbered(const struct snapshot *snapshot,
                                                        uint32_t number)
{
    return &snapshot->table->chunks[number / SNAP_CHUNK]->nodes[number % SNAP_CHUNK];
}

/* The node as this version has it; NULL: it does not. */
static inline const struct snap_node *snapshot_of(const struct snapshot *snapshot,
                                                  const struct node *node)
{
    bool there = node->number / SNAP_CHUNK < snapshot->table->chunk_count;
    const struct snap_node *member = there ? snapshot_numbered(snapshot, node->number) : NULL;

    return member && member->node == node ? member : NULL;
}

/* `for (struct snap_at at = {0}; (node = snapshot_next(snapshot, &at));)` in the order of their
 * ids; the same for pools. A NULL snapshot is empty. */
const struct snap_node *snapshot_next(const struct snapshot *snapshot, struct snap_at *at);
const struct snap_pool *snapshot_next_pool(const struct snapshot *snapshot, struct snap_at *at);
/* A walk that begins with the first node after a name; at == NULL: with the first of all. */
struct snap_at snapshot_after(const struct snapshot *snapshot, struct str id);
struct snap_at snapshot_after_pool(const struct snapshot *snapshot, struct str id);
const struct snap_node *snapshot_node(const struct snapshot *snapshot, struct str id);
const struct snap_pool *snapshot_pool(const struct snapshot *snapshot, struct str src,
                                      struct str tgt);
/* "type:NAME", or the pool of nodes that take any type; NULL when no node takes it. */
const struct snap_pool *snapshot_type_pool(const struct snapshot *snapshot, struct str type);
bool snapshot_is_member(const struct snapshot *snapshot, const struct snap_pool *pool,
                        const struct snap_node *node, unsigned wants);
void snapshot_free(struct snapshot *snapshot);

/* The keeper's table, from which snapshots are made. */
struct node_entry {
    struct node *node;
    struct facts *facts;
};

struct node_table {
    struct map by_id;                          /* -> struct node_entry * */
    struct map nodes;                          /* including nodes that left */
    struct slab slab;                          /* of struct node */
    int64_t now_ms;                            /* the keeper's, as of its last tick */
    struct node *first_retired, *last_retired; /* nodes that left, oldest first */
    int64_t version;                           /* of the last snapshot published */
    bool dirty;

    struct node **changed; /* nodes put or deleted since then, without duplicates */
    size_t changed_count, changed_cap;
    /* Of the last snapshot, referenced here too. */
    struct snap_table *table;
    struct snap_list *id_list, *pool_list;
    struct map books;                  /* pool id -> struct pool_book *, see snapshot.c */
    struct idmap any_pairs, any_types; /* number -> struct node_entry *: nodes in all such pools */
    struct pool_pair *pairs;           /* scratch */
    size_t pair_cap;
    size_t copied; /* nodes, members and list entries written for the last snapshot */
};

struct node_table *node_table_new(const struct pool_pair *config_pairs, size_t count);
void node_table_free(struct node_table *members);
/* The node struct for an id, created when first seen. */
struct node *node_table_node(struct node_table *members, struct str id);
/* Takes over the caller's reference to `facts`. */
struct node *node_table_put(struct node_table *members, struct str id, struct facts *facts);
bool node_table_del(struct node_table *members, struct str id);
/* NULL: not a member. */
struct facts *node_table_facts(const struct node_table *members, struct str id);
/* A new version with everything put since the last; old versions are unchanged. */
struct snapshot *node_table_publish(struct node_table *members);

#endif
