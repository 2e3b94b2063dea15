/* Which nodes belong to which pool, and what changes when a node's facts change; and typed routing.
 * The snapshot owns the index of pools, the configuration owns the routing table. Texts in results
 * are borrowed from the facts and candidates they came from. */
#include "model/pool.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/schema.h"
#include "model/selector.h"

/* --- routing --- */

enum { RANK_STEP = 1024 }; /* more than any server priority */

static const struct strs *route_of(const struct routing *routing, struct str type)
{
    for (size_t i = 0; i < routing->count; i++)
        if (str_eq(routing->routes[i].type, type))
            return &routing->routes[i].servers;
    return routing->default_route.count ? &routing->default_route : NULL;
}

bool routing_allows(const struct strs *types, struct str type)
{
    return !types || str_in(type, types->at, types->count) ||
           str_in(STR("*"), types->at, types->count);
}

int32_t routing_rank(const struct routing *routing, struct str type,
                     const struct routing_server *server)
{
    const struct strs *route = route_of(routing, type);
    struct selector_facts facts = {.id = server->id, .labels = server->labels};

    assert(server->priority >= 0 && server->priority < RANK_STEP);
    if (!routing_allows(server->types, type))
        return ROUTING_REFUSED;
    if (!route)
        return server->priority;
    for (size_t i = 0; i < route->count; i++) {
        struct str entry = route->at[i];

        if (str_is(entry, "*") || str_eq(entry, server->id) ||
            (entry.len && !str_is_id(entry, entry.len) && selector_match(entry, &facts)))
            return (int32_t)i * RANK_STEP + server->priority;
    }
    return ROUTING_REFUSED;
}

/* --- pools --- */

void pool_derive(struct pool_facts *facts)
{
    facts->semantic = facts->semantic_count > 0;
    facts->nmt = facts->nmt_any || facts->nmt_count > 0;
    facts->tts = facts->tts_count > 0;
    facts->asr = false;
    facts->tone = false;
}

static void texts_write(struct jsonw *w, const char *name, const struct str *list, size_t count)
{
    jsonw_karr(w, name);
    for (size_t i = 0; i < count; i++)
        jsonw_str(w, list[i]);
    jsonw_end_arr(w);
}

void pool_facts_write(struct jsonw *w, const struct pool_facts *facts, const char *switches)
{
    assert(w->depth > 0);
    texts_write(w, "semantic_langs", facts->semantic_langs, facts->semantic_count);
    jsonw_key(w, "nmt_pairs");
    if (facts->nmt_any) {
        jsonw_str(w, STR("any"));
    } else {
        jsonw_arr(w);
        for (size_t i = 0; i < facts->nmt_count; i++) {
            jsonw_arr(w);
            jsonw_str(w, facts->nmt_pairs[i].src);
            jsonw_str(w, facts->nmt_pairs[i].tgt);
            jsonw_end_arr(w);
        }
        jsonw_end_arr(w);
    }
    texts_write(w, "tts_langs", facts->tts_langs, facts->tts_count);
    texts_write(w, "allowed_types", facts->types, facts->type_count);
    jsonw_kobj(w, switches);
    jsonw_kbool(w, "asr", facts->asr);
    jsonw_kbool(w, "nmt", facts->nmt);
    jsonw_kbool(w, "tts", facts->tts);
    jsonw_kbool(w, "tone", facts->tone);
    jsonw_kbool(w, "semantic", facts->semantic);
    jsonw_end_obj(w);
}

/* Checks everything but the pair itself: a caller that walks the declared pairs has matched that
 * already. */
static bool fits(const struct pool_facts *facts, struct str src, struct str tgt, unsigned wants)
{
    if (!facts->semantic || !facts->nmt ||
        !str_in(src, facts->semantic_langs, facts->semantic_count))
        return false;
    if ((wants & POOL_WANT_TTS) && !(facts->tts && str_in(tgt, facts->tts_langs, facts->tts_count)))
        return false;
    return !(wants & POOL_WANT_ASR) || facts->asr;
}

bool pool_member(const struct pool_facts *facts, struct str src, struct str tgt, unsigned wants)
{
    assert(wants < POOL_WANTS);
    if (!fits(facts, src, tgt, wants))
        return false;
    if (facts->nmt_any)
        return true;
    for (size_t i = 0; i < facts->nmt_count; i++)
        if (str_eq(facts->nmt_pairs[i].src, src) && str_eq(facts->nmt_pairs[i].tgt, tgt))
            return true;
    return false;
}

bool pool_type_member(const struct pool_facts *facts, struct str type)
{
    return str_in(STR("*"), facts->types, facts->type_count) ||
           str_in(type, facts->types, facts->type_count);
}

/* The order of the pool ids as texts. Where one src is a prefix of the other (en, en-us) the
 * separator decides; it comes after all of [0-9-] and before the letters. */
static int pair_cmp(const struct pool_pair *a, const struct pool_pair *b)
{
    size_t len = a->src.len < b->src.len ? a->src.len : b->src.len;
    int order = len > 0 ? memcmp(a->src.at, b->src.at, len) : 0;

    if (order != 0)
        return order;
    if (a->src.len > len)
        return (unsigned char)a->src.at[len] < ':' ? -1 : 1;
    if (b->src.len > len)
        return (unsigned char)b->src.at[len] < ':' ? 1 : -1;
    return str_cmp(a->tgt, b->tgt);
}

static int by_id(const void *a, const void *b)
{
    return pair_cmp(a, b);
}

size_t pool_pairs(const struct pool_facts *facts, struct pool_pair *out)
{
    size_t count = 0, kept = 0;

    for (size_t i = 0; i < facts->nmt_count; i++) {
        const struct pool_pair *pair = &facts->nmt_pairs[i];

        if (fits(facts, pair->src, pair->tgt, 0))
            out[count++] = *pair;
    }
    if (count)
        qsort(out, count, sizeof *out, by_id);
    for (size_t i = 0; i < count; i++)
        if (kept == 0 || pair_cmp(&out[kept - 1], &out[i]) != 0)
            out[kept++] = out[i];
    return kept;
}

struct str pool_refusal(struct str src, struct str tgt, unsigned wants, struct arena *arena)
{
    struct str tts = STR("");
    struct str asr = STR("");

    assert(wants < POOL_WANTS);
    if (wants & POOL_WANT_TTS)
        tts = arena_fmt(arena, " + tts(" STR_FMT ")", STR_ARG(tgt));
    if (wants & POOL_WANT_ASR)
        asr = arena_fmt(arena, " + asr(" STR_FMT ")", STR_ARG(src));
    return arena_fmt(arena,
                     "No node supports semantic(" STR_FMT ") + nmt(" STR_FMT "->" STR_FMT
                     ")" STR_FMT STR_FMT ".",
                     STR_ARG(src), STR_ARG(src), STR_ARG(tgt), STR_ARG(tts), STR_ARG(asr));
}

void pool_id(struct str src, struct str tgt, char out[POOL_ID_MAX])
{
    assert(src.len + tgt.len + 2 <= POOL_ID_MAX);
    memcpy(out, src.at, src.len);
    out[src.len] = ':';
    memcpy(out + src.len + 1, tgt.at, tgt.len);
    out[src.len + 1 + tgt.len] = '\0';
}

bool pool_lang_normalise(struct str in, struct arena *arena, struct str *ret)
{
    struct str trimmed = str_trim(in);
    char lang[POOL_LANG_MAX];

    if (trimmed.len == 0 || trimmed.len > POOL_LANG_MAX)
        return false;
    for (size_t i = 0; i < trimmed.len; i++) {
        char c = trimmed.at[i];

        if (c >= 'A' && c <= 'Z')
            c = (char)(c - 'A' + 'a');
        if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') && c != '-')
            return false;
        lang[i] = c;
    }
    /* A pool "type:NAME" holds tasks: no language may look like one. */
    if (str_is((struct str){.at = lang, .len = trimmed.len}, "type"))
        return false;
    *ret = arena_str(arena, (struct str){.at = lang, .len = trimmed.len});
    return true;
}
