/* Pools: which nodes may do which work. A pool is an index, never a concurrency control point. */
#ifndef MODEL_POOL_H
#define MODEL_POOL_H

#include "base/json.h"
#include "base/mem.h"
#include "base/schema.h"

enum { POOL_LANG_MAX = 32, POOL_ID_MAX = 80 };

struct pool_pair {
    struct str src;
    struct str tgt;
};

/* What a node can do, normalised at registration (languages trimmed and lower-cased). */
struct pool_facts {
    struct str *semantic_langs;
    size_t semantic_count;
    struct pool_pair *nmt_pairs;
    size_t nmt_count;
    bool nmt_any; /* joins every pool that others declare or the config lists */
    struct str *tts_langs;
    size_t tts_count;
    struct str *types; /* allowed_types: task pools `type:NAME`; "*" = every type */
    size_t type_count;
    /* capability_by_type; derived from the lists if it was not sent. */
    bool asr, nmt, tts, tone, semantic;
};

/* Derives the capabilities from the lists: semantic, nmt and tts where a list is not empty, asr and
 * tone off. capability_by_type then overrides them. */
void pool_derive(struct pool_facts *facts);

/* Writes the facts as keys of the object that `w` is in; the switches become an object with the
 * given name. */
void pool_facts_write(struct jsonw *w, const struct pool_facts *facts, const char *switches);

/* What a request may want beyond its pool; one bit each, so that a pool can keep one member list
 * for each combination. */
enum { POOL_WANT_TTS = 1, POOL_WANT_ASR = 2, POOL_WANTS = 4 };

/* Is it a member? src in semantic_langs, nmt supports src->tgt (both capabilities not switched
 * off), and what `wants` adds: tts = tgt in tts_langs, asr = the capability. Health does not
 * matter. */
bool pool_member(const struct pool_facts *facts, struct str src, struct str tgt, unsigned wants);
bool pool_type_member(const struct pool_facts *facts, struct str type);

/* All pairs a node declares and can serve, in the order of their pool ids, without duplicates.
 * Returns how many; `out` has room for nmt_count. The texts are borrowed. */
size_t pool_pairs(const struct pool_facts *facts, struct pool_pair *out);

/* "No node supports semantic(en) + nmt(en->zh) + tts(zh)." */
struct str pool_refusal(struct str src, struct str tgt, unsigned wants, struct arena *arena);
/* pool_id "src:tgt" into `out`. */
void pool_id(struct str src, struct str tgt, char out[POOL_ID_MAX]);
/* Trimmed, lower-cased, 1..POOL_LANG_MAX of [a-z0-9-]; false: not a language code. */
bool pool_lang_normalise(struct str in, struct arena *arena, struct str *ret);

/* Which servers a type of work may go to, and in which order: a table that the configuration fills.
 * Pure, no allocation. */

/* An entry of `servers` is a server's id, "*" for any, or a selector (anything that is not an
 * id). */
struct routing_route {
    struct str type;
    struct strs servers; /* in order of preference */
};

struct routing {
    const struct routing_route *routes;
    size_t count;
    struct strs default_route; /* for types no route names; none: any server that allows the type */
};

struct routing_server {
    struct str id;
    const struct json *labels; /* an object of texts; NULL: none */
    const struct strs *types;  /* allowed_types; NULL or "*": all */
    int32_t priority;          /* 0 to 1000: lower first, where the route does not decide */
};

#define ROUTING_REFUSED -1

/* The order in which servers are asked for this type, smallest first: by their position in the
 * type's route; at the same position, or without routes, by priority. ROUTING_REFUSED: the server
 * may not get this type. */
int32_t routing_rank(const struct routing *routing, struct str type,
                     const struct routing_server *server);
/* The server allows this type (TYPE_NOT_ALLOWED otherwise). */
bool routing_allows(const struct strs *types, struct str type);

#endif
