/* store_degradation, cache_layers, cache_jitter. */
#include "vec.h"

#include "model/cache.h"
#include "store/store.h"

bool area_store_degradation(struct vec *vec)
{
    struct degrade degrade = {0};
    struct vec_at at = {0};
    const struct json *steps = json_get(vec->in, "steps");

    for (const struct json *step; (step = vec_each(steps, &at));) {
        struct str op = vec_str(vec, step, "op");

        if (str_is(op, "success"))
            degrade_success(&degrade);
        else if (str_is(op, "error"))
            degrade_error(&degrade, vec_int(step, "latency_ms", 0));
        else
            return false;
    }
    jsonw_obj(vec->w);
    jsonw_kstr(vec->w, "mode", str_of(store_mode_name((enum store_mode)degrade.mode)));
    jsonw_kbool(vec->w, "mutations", degrade.mode == DEGRADE_NORMAL);
    jsonw_end_obj(vec->w);
    return true;
}

static const char *const answer_names[] = {
    [CACHE_L1] = "L1", [CACHE_STORE] = "STORE",         [CACHE_EMPTY] = "EMPTY",
    [CACHE_L2] = "L2", [CACHE_EMPTY_TAG] = "EMPTY_TAG", [CACHE_MISS] = "MISS",
};

static enum cache_answer cache_get(struct cache_entry *entry, int64_t now_ms, struct str store)
{
    enum cache_answer answer = cache_look(entry, now_ms);

    if (answer != CACHE_ASK)
        return answer;
    if (str_is(store, "value"))
        return cache_value(entry, now_ms, CACHE_L1_MS);
    if (str_is(store, "absent"))
        return cache_absent(entry, now_ms);
    return cache_down(entry, now_ms);
}

bool area_cache_layers(struct vec *vec)
{
    struct cache_entry entry = {0};
    struct vec_at at = {0};
    const struct json *steps = json_get(vec->in, "steps");

    for (const struct json *step; (step = vec_each(steps, &at));) {
        struct str op = vec_str(vec, step, "op");
        struct str got = STR("null");

        if (str_is(op, "invalidate"))
            cache_invalidate(&entry);
        else if (str_is(op, "get"))
            got = arena_fmt(vec->arena, "\"%s\"",
                            answer_names[cache_get(&entry, vec_int(step, "at_ms", 0),
                                                   vec_str(vec, step, "store"))]);
        else
            return false;
        vec_check(vec, step, got);
    }
    jsonw_obj(vec->w);
    jsonw_end_obj(vec->w);
    return true;
}

bool area_cache_jitter(struct vec *vec)
{
    double fraction = vec_double(vec->in, "u", -1);

    if (fraction < 0 || fraction >= 1)
        return false;
    jsonw_obj(vec->w);
    jsonw_kint(vec->w, "ttl_ms", cache_ttl_ms(vec_int(vec->in, "base_ms", 0), fraction));
    jsonw_end_obj(vec->w);
    return true;
}
