/* GET /v1/sessions/{id}. */
#include "server/session_cache.h"

#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "model/cache.h"
#include "server/api.h"
#include "server/server.h"

enum { KEPT_MAX = 4096 }; /* per loop; then the oldest is replaced */

struct kept {
    struct cache_entry entry;
    char *id; /* the key in the map points to it; NULL: free */
    char *pool;
    char *lang_pair;
    int64_t version;
    int64_t updated_ms;
    uint32_t mark; /* the session's write count when it was read */
};

struct session_cache {
    struct map by_id;
    struct kept *ring;
    size_t next; /* in the ring: the oldest */
};

struct session_cache *session_cache_new(void)
{
    struct session_cache *cache = mem_new(struct session_cache);

    cache->ring = mem_array(struct kept, KEPT_MAX);
    return cache;
}

static void drop(struct session_cache *cache, struct kept *kept)
{
    if (!kept->id)
        return;
    map_del(&cache->by_id, str_of(kept->id));
    free(kept->id);
    free(kept->pool);
    free(kept->lang_pair);
    *kept = (struct kept){0};
}

void session_cache_free(struct session_cache *cache)
{
    if (!cache)
        return;
    for (size_t i = 0; i < KEPT_MAX; i++)
        drop(cache, &cache->ring[i]);
    map_free(&cache->by_id);
    free(cache->ring);
    free(cache);
}

static _Atomic uint32_t *mark_of(struct session_marks *marks, struct str session)
{
    return &marks->marks[str_hash(session) % SESSION_MARKS];
}

void session_written(struct session_marks *marks, struct str session)
{
    atomic_fetch_add_explicit(mark_of(marks, session), 1, memory_order_relaxed);
}

struct session_call {
    struct call *call;
    struct store_op op;
    struct str key; /* of the session in the store */
    uint32_t mark;
};

static void count(bool l1, bool hit)
{
    metric_add_label(METRIC_CACHE,
                     l1    ? (hit ? "l1,hit" : "l1,miss")
                     : hit ? "l2,hit"
                           : "l2,miss",
                     1);
}

static void answer_none(struct call *call)
{
    call_error(call, ERR_NOT_FOUND, "session_id", "There is no session \"" STR_FMT "\".",
               STR_ARG(call->params[0]));
}

/* `stale`: the store is not available, and this is its answer from `age_ms` ago. */
static void answer(struct call *call, const struct kept *kept, bool stale, int64_t now_ms)
{
    int64_t age_ms = cache_age_ms(&kept->entry, now_ms);
    struct jsonw w = call_begin(call);

    jsonw_kstr(&w, "session_id", call->params[0]);
    jsonw_kstr(&w, "preferred_pool", str_of(kept->pool));
    jsonw_kstr(&w, "lang_pair", str_of(kept->lang_pair));
    jsonw_kint(&w, "version", kept->version);
    jsonw_kint(&w, "updated_ms", kept->updated_ms);
    jsonw_kbool(&w, "stale", stale);
    jsonw_kint(&w, "age_ms", age_ms);
    metric_observe_us(METRIC_CACHE_AGE, age_ms * 1000);
    call_end(call, 200, &w);
}

static void session_read(struct store_op *op)
{
    struct session_call *own = container_of(op, struct session_call, op);
    struct call *call = own->call;
    struct session_cache *cache = call->worker->session_cache;
    struct kept *kept = map_get(&cache->by_id, own->key);
    int64_t now_ms = clock_mono_ms();

    if (!kept) { /* replaces the oldest */
        kept = &cache->ring[cache->next];
        cache->next = (cache->next + 1) % KEPT_MAX;
        drop(cache, kept);
        kept->id = mem_cstr(own->key);
        map_put(&cache->by_id, str_of(kept->id), kept);
    }
    kept->mark = own->mark;
    if (!op->err) {
        double fraction = (double)rnd_below(&call->worker->sched->rnd, 1 << 24) / (1 << 24);

        free(kept->pool);
        free(kept->lang_pair);
        kept->pool = mem_cstr(op->u.session.preferred_pool);
        kept->lang_pair = mem_cstr(op->u.session.lang_pair);
        kept->version = op->u.session.version;
        kept->updated_ms = op->u.session.updated_ms;
        cache_value(&kept->entry, now_ms, cache_ttl_ms(CACHE_L1_MS, fraction));
        answer(call, kept, false, now_ms);
    } else if (op->err == ERR_NOT_FOUND) {
        cache_absent(&kept->entry, now_ms);
        answer_none(call);
    } else if (cache_down(&kept->entry, now_ms) == CACHE_L2) {
        count(false, true);
        answer(call, kept, true, now_ms);
    } else {
        count(false, false);
        call_error(call, op->err, "", "%s.", err_title(op->err));
    }
}

void api_session(struct call *call)
{
    struct worker *worker = call->worker;
    struct namespace_view view = call_view(call);
    struct str key = namespace_enter_session(&view, call->params[0], call->arena);
    int64_t now_ms = clock_mono_ms();
    uint32_t mark =
        atomic_load_explicit(mark_of(&worker->server->session_marks, key), memory_order_relaxed);
    struct kept *kept = map_get(&worker->session_cache->by_id, key);

    if (kept && kept->mark != mark)
        cache_invalidate(&kept->entry);
    switch (kept ? cache_look(&kept->entry, now_ms) : CACHE_ASK) {
    case CACHE_L1:
        count(true, true);
        answer(call, kept, false, now_ms);
        return;
    case CACHE_EMPTY_TAG:
        count(true, true);
        answer_none(call);
        return;
    default:
        count(true, false);
    }
    struct session_call *own = arena_new(call->arena, struct session_call);
    own->call = call;
    own->key = key;
    own->mark = mark;
    own->op = call_op(call, STORE_SESSION_GET, session_read);
    own->op.u.session.key = key;
    sched_send(worker->sched, &own->op);
}
