/* ext_selector, selector, ext_lease. */
#include "vec.h"

#include "model/lease.h"
#include "model/selector.h"

/* Equality only, as with the setting `selectors: equality`. */
bool area_ext_selector(struct vec *vec)
{
    struct str selector = vec_str(vec, vec->in, "selector");
    struct selector_facts facts = {.labels = json_get(vec->in, "labels")};
    bool valid = !selector_check(selector, SELECTOR_EQUALITY, "selector", NULL);

    jsonw_obj(vec->w);
    jsonw_kbool(vec->w, "valid", valid);
    jsonw_kbool(vec->w, "match", valid && selector_match(selector, &facts));
    jsonw_end_obj(vec->w);
    return true;
}

/* All kinds of terms. */
bool area_selector(struct vec *vec)
{
    struct str text = vec_str(vec, vec->in, "selector");
    struct selector_facts facts = {.id = vec_str(vec, vec->in, "name"),
                                   .labels = json_get(vec->in, "labels")};
    struct selector selector;
    struct problem problem = {0};
    struct buf canonical = {0}, why = {0};
    bool valid = !selector_read(text, "selector", vec->arena, &selector, &problem);

    jsonw_obj(vec->w);
    jsonw_kbool(vec->w, "valid", valid);
    jsonw_kbool(vec->w, "match", selector_match(text, &facts));
    if (valid) {
        selector_canonical(&selector, &canonical);
        jsonw_kstr(vec->w, "canonical", canonical.len ? buf_view(&canonical) : STR(""));
        if (selector_explain(&selector, &facts, &why))
            jsonw_kstr(vec->w, "why", buf_view(&why));
    } else {
        jsonw_kint(vec->w, "column", problem.column);
    }
    jsonw_end_obj(vec->w);
    buf_free(&canonical);
    buf_free(&why);
    return true;
}

static struct fence read_fence(struct vec *vec, const struct json *value)
{
    return (struct fence){.state = fence_state_by_name(vec_str(vec, value, "state")),
                          .holder = vec_str(vec, value, "holder"),
                          .token = vec_int(value, "token", 0),
                          .expire_ms = vec_int(value, "lease_expire_ms", 0)};
}

bool area_ext_lease(struct vec *vec)
{
    const struct json *assignment = json_get(vec->in, "assignment");
    const struct json *op = json_get(vec->in, "op");
    struct fence fence = read_fence(vec, assignment ? assignment : vec->in);
    int64_t now_ms = vec_int(vec->in, "now_ms", 0);
    int64_t ttl_ms = vec_int(vec->in, "ttl_ms", 1);
    struct str holder = vec_str(vec, op, "holder");
    bool reassign = json_str_is(json_get(op, "op"), "reassign");
    bool ok;

    jsonw_obj(vec->w);
    if (!op) {
        jsonw_kbool(vec->w, "active", fence_active(&fence, now_ms));
        jsonw_end_obj(vec->w);
        return true;
    }
    if (reassign)
        ok = fence_reassign(&fence, holder, now_ms, ttl_ms);
    else if (json_str_is(json_get(op, "op"), "renew"))
        ok = fence_renew(&fence, holder, vec_int(op, "token", 0), now_ms, ttl_ms);
    else
        return false;
    jsonw_kbool(vec->w, "ok", ok);
    jsonw_kint(vec->w, "lease_expire_ms", fence.expire_ms);
    if (reassign && ok)
        jsonw_kint(vec->w, "token", fence.token);
    jsonw_end_obj(vec->w);
    return true;
}
