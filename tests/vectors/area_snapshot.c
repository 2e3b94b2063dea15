/* snapshot. The table of members is the only writer. A vector's value is in a node's facts, which
 * versions share. */
#include "vec.h"

#include "sched/snapshot.h"

enum { HANDLES_MAX = 256, VERSIONS_MAX = 1024 };

struct named {
    struct str name;
    const struct snapshot *read; /* for `read`; NULL before the first version */
    struct str node;             /* for `begin` */
    struct facts *facts;         /* for `begin`, until its commit */
};

struct world {
    struct vec *vec;
    struct node_table *members;
    struct snapshot *versions[VERSIONS_MAX];
    size_t version_count;
    struct named named[HANDLES_MAX];
    size_t named_count;
};

static struct facts *facts_with(const struct json *val)
{
    struct facts *facts = facts_new();

    facts->json = arena_str(&facts->arena, val ? json_raw(val) : STR("null"));
    return facts;
}

static bool valid_node(struct str node)
{
    return node.len > 0 && node.len <= NODE_ID_MAX;
}

static struct named *find(struct world *world, struct str name)
{
    for (size_t i = world->named_count; i-- > 0;)
        if (str_eq(world->named[i].name, name))
            return &world->named[i];
    return NULL;
}

static struct named *add(struct world *world, const struct json *step)
{
    struct named *named;

    if (world->named_count == HANDLES_MAX)
        return NULL;
    named = &world->named[world->named_count++];
    named->name = vec_str(world->vec, step, "as");
    return named;
}

static const struct snapshot *newest(const struct world *world)
{
    return world->version_count > 0 ? world->versions[world->version_count - 1] : NULL;
}

static bool publish(struct world *world)
{
    if (!world->members->dirty)
        return true;
    if (world->version_count == VERSIONS_MAX)
        return false;
    world->versions[world->version_count] = node_table_publish(world->members);
    world->version_count++;
    return true;
}

static bool put(struct world *world, struct str node, const struct json *val)
{
    if (!valid_node(node))
        return false;
    node_table_put(world->members, node, facts_with(val));
    return true;
}

static bool op_put(struct world *world, const struct json *step)
{
    return put(world, vec_str(world->vec, step, "node"), json_get(step, "val")) && publish(world);
}

static bool op_del(struct world *world, const struct json *step)
{
    node_table_del(world->members, vec_str(world->vec, step, "node"));
    return publish(world);
}

/* puts: [{"node":"a","val":1},...] or {"a":1,...}. */
static bool op_batch(struct world *world, const struct json *step)
{
    const struct json *puts = json_get(step, "puts");
    bool pairs = json_type(puts) == JSON_OBJ;
    struct vec_at at = {0};

    for (const struct json *each; (each = vec_each(puts, &at));) {
        struct str node =
            pairs ? json_str(each, world->vec->arena) : vec_str(world->vec, each, "node");

        if (!put(world, node, pairs ? each + 1 : json_get(each, "val")))
            return false;
    }
    return publish(world);
}

static bool op_begin(struct world *world, const struct json *step)
{
    struct named *named = add(world, step);

    if (!named)
        return false;
    named->node = vec_str(world->vec, step, "node");
    named->facts = facts_with(json_get(step, "val"));
    return valid_node(named->node);
}

static bool op_commit(struct world *world, const struct json *step)
{
    struct named *named = find(world, vec_str(world->vec, step, "as"));

    if (!named || !named->facts)
        return false;
    node_table_put(world->members, named->node, named->facts);
    named->facts = NULL;
    return publish(world);
}

static bool op_read(struct world *world, const struct json *step)
{
    struct named *named = add(world, step);

    if (!named)
        return false;
    named->read = newest(world);
    return true;
}

static bool op_get(struct world *world, const struct json *step)
{
    struct named *named = find(world, vec_str(world->vec, step, "handle"));
    const struct snap_node *node;

    if (!named)
        return false;
    node = snapshot_node(named->read, vec_str(world->vec, step, "node"));
    vec_check(world->vec, step, node ? node->facts->json : STR("null"));
    return true;
}

static const struct {
    const char *name;
    bool (*run)(struct world *world, const struct json *step);
} ops[] = {
    {"put", op_put},       {"del", op_del},   {"batch", op_batch}, {"begin", op_begin},
    {"commit", op_commit}, {"read", op_read}, {"get", op_get},
};

static bool run_step(struct world *world, const struct json *step)
{
    for (size_t i = 0; i < COUNT_OF(ops); i++)
        if (json_str_is(json_get(step, "op"), ops[i].name))
            return ops[i].run(world, step);
    return false;
}

bool area_snapshot(struct vec *vec)
{
    const struct json *steps = json_get(vec->in, "steps");
    struct world *world = arena_new(vec->arena, struct world);
    struct vec_at at = {0};
    bool ok = true;

    world->vec = vec;
    world->members = node_table_new(NULL, 0);
    for (const struct json *step; ok && (step = vec_each(steps, &at));)
        ok = run_step(world, step);
    jsonw_obj(vec->w);
    jsonw_kint(vec->w, "versions", world->members->version);
    jsonw_end_obj(vec->w);

    for (size_t i = 0; i < world->named_count; i++)
        facts_unref(world->named[i].facts);
    for (size_t i = 0; i < world->version_count; i++)
        snapshot_free(world->versions[i]);
    node_table_free(world->members);
    return ok;
}
