/* Compares the dumps of both readers as text; our values are then written with jsonw, read again
 * and compared once more. */
#include "json_oracle.h"

#include <assert.h>
#include <math.h>

#include "base/json.h"
#include "json_theirs.h"

static void dump_text(struct buf *dump, struct str text)
{
    buf_fmt(dump, "s%zu:", text.len);
    buf_str(dump, text);
    buf_char(dump, ' ');
}

/* A number with a fraction or exponent is a real to jansson, whatever its value. */
static bool looks_real(struct str text)
{
    for (size_t i = 0; i < text.len; i++)
        if (text.at[i] == '.' || text.at[i] == 'e' || text.at[i] == 'E')
            return true;
    return false;
}

static void dump_number(struct buf *dump, const struct json *value)
{
    int64_t num = 0;
    double real = 0;
    bool is_int = json_int(value, &num);
    bool is_real = json_double(value, &real);

    if (!is_real)
        buf_str(dump, STR("beyond "));
    else if (looks_real(json_raw(value)))
        buf_fmt(dump, "r%a ", real);
    else if (is_int)
        buf_fmt(dump, "i%lld ", (long long)num);
    else
        buf_str(dump, STR("beyond "));
    /* A whole number reads as one however it is spelled, and no other number does. */
    if (is_int && (double)num != real)
        buf_str(dump, STR("int-is-not-real "));
    if (!is_int && real != 0 && fabs(real) < 1e15 && real == floor(real) && value->len < 15)
        buf_str(dump, STR("whole-but-no-int "));
}

static void dump_value(struct buf *dump, const struct json *value, struct arena *arena)
{
    const struct json *child = json_first(value);

    switch (json_type(value)) {
    case JSON_NULL:
        buf_str(dump, STR("n "));
        break;
    case JSON_TRUE:
        buf_str(dump, STR("t "));
        break;
    case JSON_FALSE:
        buf_str(dump, STR("f "));
        break;
    case JSON_NUM:
        dump_number(dump, value);
        break;
    case JSON_STR:
        dump_text(dump, json_str(value, arena));
        break;
    case JSON_ARR:
        buf_fmt(dump, "[%u ", value->count);
        for (uint32_t i = 0; i < value->count; i++, child = json_next(child))
            dump_value(dump, child, arena);
        break;
    case JSON_OBJ:
        buf_fmt(dump, "{%u ", value->count);
        for (uint32_t i = 0; i < value->count; i++, child = json_next(child + 1)) {
            dump_text(dump, json_str(child, arena));
            dump_value(dump, child + 1, arena);
            if (json_get(value, arena_cstr(arena, json_str(child, arena))) != child + 1)
                buf_str(dump, STR("not-found "));
        }
        break;
    }
}

static void write_value(struct jsonw *w, const struct json *value, struct arena *arena)
{
    const struct json *child = json_first(value);
    bool flag = false;

    switch (json_type(value)) {
    case JSON_NULL:
        jsonw_null(w);
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        json_bool(value, &flag);
        jsonw_bool(w, flag);
        break;
    case JSON_NUM:
        jsonw_raw(w, json_raw(value));
        break;
    case JSON_STR:
        jsonw_str(w, json_str(value, arena));
        break;
    case JSON_ARR:
        jsonw_arr(w);
        for (uint32_t i = 0; i < value->count; i++, child = json_next(child))
            write_value(w, child, arena);
        jsonw_end_arr(w);
        break;
    case JSON_OBJ:
        jsonw_obj(w);
        for (uint32_t i = 0; i < value->count; i++, child = json_next(child + 1)) {
            jsonw_key_str(w, json_str(child, arena));
            write_value(w, child + 1, arena);
        }
        jsonw_end_obj(w);
        break;
    }
}

static bool survives_writing(const struct json *root, struct str dump, struct arena *arena)
{
    struct buf text = {0};
    struct buf again = {0};
    struct jsonw w = jsonw_to(&text);
    int depth;
    bool same;

    write_value(&w, root, arena);
    same = theirs_dump(buf_view(&text), &again, &depth) == THEIRS_ACCEPTED &&
           str_eq(buf_view(&again), dump);
    buf_free(&text);
    buf_free(&again);
    return same;
}

enum verdict oracle_judge(struct str text, struct buf *ret_why)
{
    struct arena arena = {0};
    struct buf our_dump = {0};
    struct buf their_dump = {0};
    const struct json *root = NULL;
    struct problem why = {0};
    int depth = 0;
    bool ours = json_parse(text, &arena, &root, &why) == ERR_OK;
    enum theirs theirs = theirs_dump(text, &their_dump, &depth);
    enum verdict verdict = THEY_DIFFER;

    if (ours)
        dump_value(&our_dump, root, &arena);
    if (theirs == THEIRS_BEYOND)
        verdict = NO_VERDICT;
    else if (!ours && theirs == THEIRS_REFUSED)
        verdict = BOTH_REFUSE;
    else if (!ours && depth > JSON_DEPTH_MAX)
        verdict = TOO_DEEP;
    else if (!ours)
        buf_fmt(ret_why, "only ours refuses: %s", why.detail);
    else if (theirs == THEIRS_REFUSED)
        buf_fmt(ret_why, "only jansson refuses");
    else if (depth > JSON_DEPTH_MAX)
        buf_fmt(ret_why, "ours accepts depth %d", depth);
    else if (!str_eq(buf_view(&our_dump), buf_view(&their_dump)))
        buf_fmt(ret_why, "ours " STR_FMT ", theirs " STR_FMT, STR_ARG(buf_view(&our_dump)),
                STR_ARG(buf_view(&their_dump)));
    else if (!survives_writing(root, buf_view(&their_dump), &arena))
        buf_fmt(ret_why, "what jsonw writes reads differently");
    else
        verdict = BOTH_ACCEPT;
    arena_free(&arena);
    buf_free(&our_dump);
    buf_free(&their_dump);
    return verdict;
}
