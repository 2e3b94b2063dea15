/* pool_membership, pool_delta. */
#include "vec.h"

#include "model/pool.h"

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

/* A pair is ["en","zh"], or "en>zh" as the files spell a pool. */
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

static void write_pools(struct vec *vec, const char *name, const struct pool_pair *pairs,
                        size_t count)
{
    jsonw_key(vec->w, name);
    jsonw_arr(vec->w);
    for (size_t i = 0; i < count; i++)
        jsonw_str(vec->w, arena_fmt(vec->arena, STR_FMT ">" STR_FMT, STR_ARG(pairs[i].src),
                                    STR_ARG(pairs[i].tgt)));
    jsonw_end_arr(vec->w);
}

bool area_pool_delta(struct vec *vec)
{
    const struct json *before = json_get(vec->in, "before");
    const struct json *after = json_get(vec->in, "after");
    struct pool_facts old = read_facts(vec, before);
    struct pool_facts new = read_facts(vec, after);
    struct pool_delta delta;
    size_t count;
    struct pool_pair *candidates = read_pairs(vec, json_get(vec->in, "candidates"), &count);

    pool_delta(json_is_null(before) ? NULL : &old, json_is_null(after) ? NULL : &new, candidates,
               count, read_wants(vec->in), vec->arena, &delta);
    jsonw_obj(vec->w);
    write_pools(vec, "add", delta.add, delta.add_count);
    write_pools(vec, "remove", delta.remove, delta.remove_count);
    jsonw_end_obj(vec->w);
    return true;
}
