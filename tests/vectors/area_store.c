/* store_degradation. */
#include "vec.h"

#include "model/degrade.h"

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
    jsonw_kstr(vec->w, "mode", str_of(degrade_mode_name(degrade.mode)));
    jsonw_kbool(vec->w, "mutations", degrade_mutates(&degrade));
    jsonw_end_obj(vec->w);
    return true;
}
