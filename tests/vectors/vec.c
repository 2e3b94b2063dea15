/* Reading values of a vector, comparing answers, and writing them compactly. */
#include "vec.h"

#include <assert.h>
#include <math.h>

struct str vec_str(struct vec *vec, const struct json *obj, const char *name)
{
    const struct json *value = json_get(obj, name);

    return json_type(value) == JSON_STR ? json_str(value, vec->arena) : STR_NONE;
}

int64_t vec_int(const struct json *obj, const char *name, int64_t fallback)
{
    int64_t value;

    return json_int(json_get(obj, name), &value) ? value : fallback;
}

bool vec_bool(const struct json *obj, const char *name, bool fallback)
{
    bool value;

    return json_bool(json_get(obj, name), &value) ? value : fallback;
}

double vec_double(const struct json *obj, const char *name, double fallback)
{
    double value;

    return json_double(json_get(obj, name), &value) ? value : fallback;
}

const struct json *vec_each(const struct json *parent, struct vec_at *at)
{
    enum json_type type = json_type(parent);

    if ((type != JSON_ARR && type != JSON_OBJ) || at->seen == parent->count)
        return NULL;
    if (at->seen++ == 0)
        at->value = json_first(parent);
    else
        at->value = json_next(type == JSON_OBJ ? at->value + 1 : at->value);
    return at->value;
}

static bool same_numbers(const struct json *a, const struct json *b)
{
    int64_t left, right;
    double x, y;

    if (json_int(a, &left) && json_int(b, &right))
        return left == right;
    return json_double(a, &x) && json_double(b, &y) && fabs(x - y) <= 1e-9;
}

static bool same_elements(const struct json *a, const struct json *b)
{
    struct vec_at left = {0}, right = {0};

    if (a->count != b->count)
        return false;
    for (uint32_t i = 0; i < a->count; i++)
        if (!vec_same(vec_each(a, &left), vec_each(b, &right)))
            return false;
    return true;
}

/* Is every member of `a` in `b`? Names in this format need no unescaping. */
static bool covered(const struct json *a, const struct json *b)
{
    struct vec_at at = {0};
    char name[256];

    for (const struct json *key; (key = vec_each(a, &at));)
        if (!str_copy((struct str){.at = key->at, .len = key->len}, name, sizeof name) ||
            !vec_same(key + 1, json_get(b, name)))
            return false;
    return true;
}

bool vec_same(const struct json *a, const struct json *b)
{
    enum json_type type = json_type(a);

    if (type != json_type(b))
        return false;
    if (type == JSON_NUM)
        return same_numbers(a, b);
    if (type == JSON_ARR)
        return same_elements(a, b);
    if (type == JSON_OBJ)
        return covered(a, b) && covered(b, a);
    return type != JSON_STR || str_eq(json_raw(a), json_raw(b));
}

static void write_compact(struct jsonw *w, const struct json *value)
{
    enum json_type type = json_type(value);
    struct vec_at at = {0};

    if (type == JSON_ARR) {
        jsonw_arr(w);
        for (const struct json *element; (element = vec_each(value, &at));)
            write_compact(w, element);
        jsonw_end_arr(w);
    } else if (type == JSON_OBJ) {
        jsonw_obj(w);
        for (const struct json *key; (key = vec_each(value, &at));) {
            jsonw_key_str(w, (struct str){.at = key->at, .len = key->len});
            write_compact(w, key + 1);
        }
        jsonw_end_obj(w);
    } else {
        jsonw_raw(w, json_raw(value));
    }
}

struct str vec_compact(const struct json *value, struct arena *arena)
{
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);
    struct str text;

    write_compact(&w, value);
    text = arena_str(arena, buf_view(&buf));
    buf_free(&buf);
    return text;
}

void vec_check(struct vec *vec, const struct json *step, struct str got)
{
    const struct json *expected = json_get(step, "expect");
    const struct json *said;
    enum err err;

    if (!expected || vec->wrong_got.at)
        return;
    err = json_parse(arena_str(vec->arena, got), vec->arena, &said, NULL);
    assert(err == ERR_OK);
    if (vec_same(expected, said))
        return;
    vec->wrong_expected =
        arena_fmt(vec->arena, "{\"step\":" STR_FMT "}", STR_ARG(vec_compact(step, vec->arena)));
    vec->wrong_got = arena_fmt(vec->arena, "{\"step\":{\"expect\":" STR_FMT "}}",
                               STR_ARG(vec_compact(said, vec->arena)));
}
