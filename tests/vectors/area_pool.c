/* pool_membership, pool_delta: the members of a snapshot's pools. */
#include "vec.h"

#include "model/pool.h"
#include "sched/snapshot.h"

static struct str *read_langs(struct vec *vec, const struct json *list, size_t *ret_count)
{
    size_t count = json_type(list) == JSON_ARR ? list->count : 0;
    struct str *langs = arena_array(vec->arena, struct str, count + 1);
    struct vec_at at = {0};

    for (size_t i = 0; i < count; i++)
        langs[i] = json_str(vec_each(list, &at), vec->arena);
    *ret_count = count;
    return langs;
}

/* A pair is ["en","zh"], or "en>zh" as in the names of pools. */
static struct pool_pair read_pair(struct vec *vec, const struct json *value)
{
    struct pool_pair pair = {0};
    struct vec_at at = {0};

    if (json_type(value) == JSON_STR) {
        pair.tgt = json_str(value, vec->arena);
        pair.src = str_cut(&pair.tgt, '>');
    } else if (json_type(value) == JSON_ARR && value->count == 2) {
        pair.src = json_str(vec_each(value, &at), vec->arena);
        pair.tgt = json_str(vec_each(value, &at), vec->arena);
    }
    return pair;
}

static struct pool_pair *read_pairs(struct vec *vec, const struct json *list, size_t *ret_count)
{
    size_t count = json_type(list) == JSON_ARR ? list->count : 0;
    struct pool_pair *pairs = arena_array(vec->arena, struct pool_pair, count + 1);
    struct vec_at at = {0};

    for (size_t i = 0; i < count; i++)
        pairs[i] = read_pair(vec, vec_each(list, &at));
    *ret_count = count;
    return pairs;
}

static struct pool_facts read_facts(struct vec *vec, const struct json *node)
{
    struct pool_facts facts = {0};
    const struct json *sent = json_get(node, "capability_by_type");

    facts.nmt_any = json_str_is(json_get(node, "nmt_pairs"), "any");
    facts.semantic_langs = read_langs(vec, json_get(node, "semantic_langs"), &facts.semantic_count);
    facts.nmt_pairs = read_pairs(vec, json_get(node, "nmt_pairs"), &facts.nmt_count);
    facts.tts_langs = read_langs(vec, json_get(node, "tts_langs"), &facts.tts_count);
    pool_derive(&facts);
    facts.semantic = vec_bool(sent, "semantic", facts.semantic);
    facts.nmt = vec_bool(sent, "nmt", facts.nmt);
    facts.tts = vec_bool(sent, "tts", facts.tts);
    facts.asr = vec_bool(sent, "asr", facts.asr);
    facts.tone = vec_bool(sent, "tone", facts.tone);
    return facts;
}

static unsigned read_wants(const struct json *in)
{
    return (vec_bool(in, "require_tts", false) ? POOL_WANT_TTS : 0u) |
           (vec_bool(in, "require_asr", false) ? POOL_WANT_ASR : 0u);
}

bool area_pool_membership(struct vec *vec)
{
    struct pool_facts facts = read_facts(vec, json_get(vec->in, "node"));
    struct str src = vec_str(vec, vec->in, "src");
    struct str tgt = vec_str(vec, vec->in, "tgt");

    jsonw_obj(vec->w);
    jsonw_kbool(vec->w, "member", pool_member(&facts, src, tgt, read_wants(vec->in)));
    jsonw_end_obj(vec->w);
    return true;
}

/* The snapshot after the node registered like this; NULL: not registered. */
static struct snapshot *publish(struct vec *vec, struct node_table *table, const struct json *node)
{
    struct facts *facts;

    if (json_is_null(node))
        return NULL;
    facts = facts_new();
    facts->pool = read_facts(vec, node);
    node_table_put(table, STR("n1"), facts);
    return node_table_publish(table);
}

/* Is the only node in this pool? */
static bool is_joined(const struct snapshot *snapshot, struct str src, struct str tgt,
                      unsigned wants)
{
    const struct snap_pool *pool = snapshot_pool(snapshot, src, tgt);

    return pool && pool->counts[wants] > 0;
}

/* The pools with the node in `in` but not in `out`. */
static void write_change(struct vec *vec, const char *name, const struct snapshot *in,
                         const struct snapshot *out)
{
    unsigned wants = read_wants(vec->in);
    const struct snap_pool *pool;

    jsonw_karr(vec->w, name);
    for (struct snap_at at = {0}; out && (pool = snapshot_next_pool(in, &at));)
        if (pool->counts[wants] > 0 && !is_joined(out, pool->src, pool->tgt, wants))
            jsonw_str(vec->w, arena_fmt(vec->arena, STR_FMT ">" STR_FMT, STR_ARG(pool->src),
                                        STR_ARG(pool->tgt)));
    jsonw_end_arr(vec->w);
}

bool area_pool_delta(struct vec *vec)
{
    size_t count;
    struct pool_pair *candidates = read_pairs(vec, json_get(vec->in, "candidates"), &count);
    struct node_table *table = node_table_new(candidates, count);
    struct snapshot *empty = node_table_publish(table);
    struct snapshot *before = publish(vec, table, json_get(vec->in, "before"));
    struct snapshot *after = publish(vec, table, json_get(vec->in, "after"));

    jsonw_obj(vec->w);
    write_change(vec, "add", after, before ? before : empty);
    write_change(vec, "remove", before, after);
    jsonw_end_obj(vec->w);
    snapshot_free(after);
    snapshot_free(before);
    snapshot_free(empty);
    node_table_free(table);
    return true;
}
