/* Reads a JSON object into a C struct by a table of fields, with error messages for people. Each
 * field type is a row that says how its values are read, described and shown. */
#include "base/schema.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"

/* Where a field is: "options.require_tts". */
struct path {
    const struct path *up;
    const char *name;
    struct str key; /* used instead when no field has that name */
};

struct reader {
    const struct schema *schema;
    const struct schema_lines *lines; /* NULL: not from a file */
    struct arena *arena;
    struct problem *why;
};

static enum err read_fields(const struct reader *r, const struct field *fields, size_t count,
                            bool open, const struct json *obj, void *out, const struct path *up);

/* --- the types of fields --- */

enum { FIELD_ID_MAX = 128 }; /* where the table gives no bound */

static bool has_bounds(const struct field *field)
{
    return field->min || field->max;
}

static bool in_bounds(const struct field *field, int64_t value)
{
    if (!has_bounds(field))
        return true;
    return value >= field->min && (field->max < field->min || value <= field->max);
}

/* " from 0 to 9", " of at least 1" or nothing; of things " of 1 to 20 bytes". */
static void describe_bounds(const struct field *field, struct buf *text, const char *things)
{
    if (has_bounds(field) && field->max < field->min)
        buf_fmt(text, " of at least %lld%s", (long long)field->min, things);
    else if (has_bounds(field))
        buf_fmt(text, " %s %lld to %lld%s", *things ? "of" : "from", (long long)field->min,
                (long long)field->max, things);
}

static void describe_null(const struct field *field, struct buf *text)
{
    if (field_takes_null(field))
        buf_str(text, STR(", or off"));
}

static bool store_int(const struct field *field, int64_t value, void *to)
{
    if (!in_bounds(field, value) || value == FIELD_OFF)
        return false;
    *(int64_t *)to = value;
    return true;
}

static bool store_off(const struct field *field, void *to)
{
    if (!field_takes_null(field))
        return false;
    *(int64_t *)to = FIELD_OFF;
    return true;
}

static bool bool_from_json(const struct field *field, const struct json *value, void *to,
                           struct arena *arena)
{
    return json_bool(value, to);
}

static bool bool_from_text(const struct field *field, struct str text, void *to,
                           struct arena *arena)
{
    bool on = str_is(text, "true") || str_is(text, "1");

    if (!on && !str_is(text, "false") && !str_is(text, "0"))
        return false;
    *(bool *)to = on;
    return true;
}

static void bool_show(const struct field *field, const void *from, struct jsonw *w)
{
    jsonw_bool(w, *(const bool *)from);
}

static bool int_from_json(const struct field *field, const struct json *value, void *to,
                          struct arena *arena)
{
    int64_t num;

    if (json_is_null(value) || json_str_is(value, "off"))
        return store_off(field, to);
    return json_int(value, &num) && store_int(field, num, to);
}

static bool int_from_text(const struct field *field, struct str text, void *to, struct arena *arena)
{
    int64_t num;

    if (str_is(text, "off"))
        return store_off(field, to);
    return str_int(text, &num) && store_int(field, num, to);
}

static void number_describe(const struct field *field, struct buf *text)
{
    describe_bounds(field, text, "");
    describe_null(field, text);
}

static void int_show(const struct field *field, const void *from, struct jsonw *w)
{
    int64_t num = *(const int64_t *)from;

    if (num == FIELD_OFF)
        jsonw_null(w);
    else
        jsonw_int(w, num);
}

static bool ms_from_text(const struct field *field, struct str text, void *to, struct arena *arena)
{
    int64_t ms;

    if (str_is(text, "off"))
        return store_off(field, to);
    return str_duration_ms(text, &ms) && store_int(field, ms, to);
}

static bool ms_from_json(const struct field *field, const struct json *value, void *to,
                         struct arena *arena)
{
    int64_t ms;

    if (json_is_null(value))
        return store_off(field, to);
    if (json_type(value) == JSON_STR)
        return ms_from_text(field, json_str(value, arena), to, arena);
    return json_int(value, &ms) && ms >= 0 && store_int(field, ms, to);
}

static void ms_describe(const struct field *field, struct buf *text)
{
    if (has_bounds(field)) {
        buf_char(text, ',');
        describe_bounds(field, text, "");
        buf_str(text, STR(" ms"));
    }
    describe_null(field, text);
}

static size_t id_max(const struct field *field)
{
    return field->max > 0 ? (size_t)field->max : FIELD_ID_MAX;
}

/* FIELD_STR, FIELD_ID, FIELD_NAME. */
static bool str_from_text(const struct field *field, struct str text, void *to, struct arena *arena)
{
    bool good;

    if (field->type == FIELD_ID)
        good = str_is_id(text, id_max(field));
    else if (field->type == FIELD_NAME)
        good = str_is_name(text, id_max(field));
    else
        good = in_bounds(field, (int64_t)text.len) && str_is_text(text);
    if (good)
        *(struct str *)to = text;
    return good;
}

static void str_describe(const struct field *field, struct buf *text)
{
    describe_bounds(field, text, " bytes");
    buf_str(text, STR(" without control characters"));
}

static void str_show(const struct field *field, const void *from, struct jsonw *w)
{
    const struct str *text = from;

    if (text->at)
        jsonw_str(w, *text);
    else
        jsonw_null(w);
}

static void id_describe(const struct field *field, struct buf *text)
{
    buf_fmt(text, "1 to %zu characters out of A-Z a-z 0-9 . _ : @ - and not start with a dot",
            id_max(field));
}

const char *field_word(const struct field *field, size_t index)
{
    return field->names ? field->names[index] : field->name_at(index);
}

static bool enum_from_text(const struct field *field, struct str text, void *to,
                           struct arena *arena)
{
    const char *word;

    for (size_t i = 0; (word = field_word(field, i)); i++)
        if (str_is(text, word)) {
            *(int *)to = (int)i;
            return true;
        }
    return false;
}

static void enum_describe(const struct field *field, struct buf *text)
{
    const char *word;

    for (size_t i = 0; (word = field_word(field, i)); i++)
        buf_fmt(text, "%s %s", i ? "," : "", word);
}

static void enum_show(const struct field *field, const void *from, struct jsonw *w)
{
    assert(*(const int *)from >= 0);
    jsonw_str(w, str_of(field_word(field, (size_t) * (const int *)from)));
}

static bool strs_from_json(const struct field *field, const struct json *value, void *to,
                           struct arena *arena)
{
    struct strs list = {0};

    if (json_type(value) != JSON_ARR || !in_bounds(field, value->count))
        return false;
    list.at = arena_array(arena, struct str, value->count);
    for (const struct json *entry = json_items(value); entry; entry = json_after(value, entry)) {
        list.at[list.count] = json_str(entry, arena);
        if (json_type(entry) != JSON_STR || !str_is_text(list.at[list.count++]))
            return false;
    }
    *(struct strs *)to = list;
    return true;
}

static bool strs_from_text(const struct field *field, struct str text, void *to,
                           struct arena *arena)
{
    struct strs list = {0};
    size_t count = str_trim(text).len > 0;

    if (!str_is_text(text))
        return false;
    for (size_t i = 0; i < text.len; i++)
        count += text.at[i] == ',';
    if (!in_bounds(field, (int64_t)count))
        return false;
    list.at = arena_array(arena, struct str, count);
    while (list.count < count) {
        struct str entry = str_trim(str_cut(&text, ','));

        if (entry.len == 0)
            return false; /* "a,,b": a typing mistake rather than an empty name */
        list.at[list.count++] = entry;
    }
    *(struct strs *)to = list;
    return true;
}

static void strs_describe(const struct field *field, struct buf *text)
{
    if (has_bounds(field))
        describe_bounds(field, text, " texts");
    else
        buf_str(text, STR(" of texts"));
    buf_str(text, STR(" without control characters"));
}

static void strs_show(const struct field *field, const void *from, struct jsonw *w)
{
    const struct strs *list = from;

    jsonw_arr(w);
    for (size_t i = 0; i < list->count; i++)
        jsonw_str(w, list->at[i]);
    jsonw_end_arr(w);
}

void schema_write(const struct schema *schema, const void *from, struct jsonw *w)
{
    jsonw_obj(w);
    for (size_t i = 0; i < schema->count; i++) {
        jsonw_key(w, schema->fields[i].name);
        field_show(&schema->fields[i], from, w);
    }
    jsonw_end_obj(w);
}

static void obj_show(const struct field *field, const void *from, struct jsonw *w)
{
    const struct schema inner = {.fields = field->fields, .count = field->field_count};

    schema_write(&inner, from, w);
}

static bool json_from_json(const struct field *field, const struct json *value, void *to,
                           struct arena *arena)
{
    *(const struct json **)to = value;
    return true;
}

static bool json_from_text(const struct field *field, struct str text, void *to,
                           struct arena *arena)
{
    return json_parse(text, arena, to, NULL) == ERR_OK;
}

static void json_show(const struct field *field, const void *from, struct jsonw *w)
{
    jsonw_raw(w, json_raw(*(const struct json *const *)from));
}

static bool real_from_json(const struct field *field, const struct json *value, void *to,
                           struct arena *arena)
{
    double num;

    if (!json_double(value, &num) ||
        (has_bounds(field) &&
         (num < (double)field->min || (field->max >= field->min && num > (double)field->max))))
        return false;
    *(double *)to = num;
    return true;
}

static bool real_from_text(const struct field *field, struct str text, void *to,
                           struct arena *arena)
{
    const struct json *value;

    return json_is_number(text) && json_parse(text, arena, &value, NULL) == ERR_OK &&
           real_from_json(field, value, to, arena);
}

static void real_show(const struct field *field, const void *from, struct jsonw *w)
{
    jsonw_double(w, *(const double *)from);
}

static void raw_show(const struct field *field, const void *from, struct jsonw *w)
{
    jsonw_raw(w, *(const struct str *)from);
}

/* from_json and from_text leave `to` untouched when they return false because the value is not what
 * field_expect() describes. Without from_json a JSON string is read as text. FIELD_OBJ has neither:
 * it has its own fields. */
struct type_row {
    bool (*from_json)(const struct field *, const struct json *, void *to, struct arena *);
    bool (*from_text)(const struct field *, struct str, void *to, struct arena *);
    const char *what;                                     /* follows "must be", and then */
    void (*describe)(const struct field *, struct buf *); /* what depends on the field */
    void (*show)(const struct field *, const void *from, struct jsonw *);
};

static const struct type_row types[] = {
    [FIELD_BOOL] = {bool_from_json, bool_from_text, "true or false", NULL, bool_show},
    [FIELD_INT] = {int_from_json, int_from_text, "a whole number", number_describe, int_show},
    [FIELD_MS] = {ms_from_json, ms_from_text, "a time such as 250ms, 5s or 2m", ms_describe,
                  int_show},
    [FIELD_STR] = {NULL, str_from_text, "a text", str_describe, str_show},
    [FIELD_ID] = {NULL, str_from_text, "", id_describe, str_show},
    [FIELD_NAME] = {NULL, str_from_text, "", id_describe, str_show},
    [FIELD_ENUM] = {NULL, enum_from_text, "one of", enum_describe, enum_show},
    [FIELD_STRS] = {strs_from_json, strs_from_text, "a list", strs_describe, strs_show},
    [FIELD_OBJ] = {NULL, NULL, "an object", NULL, obj_show},
    [FIELD_JSON] = {json_from_json, json_from_text, "valid JSON", NULL, json_show},
    [FIELD_REAL] = {real_from_json, real_from_text, "a number", number_describe, real_show},
    [FIELD_RAW] = {NULL, NULL, "valid JSON", NULL, raw_show},
};

bool field_takes_null(const struct field *field)
{
    return (field->flags & FIELD_NULLABLE) && (field->type == FIELD_INT || field->type == FIELD_MS);
}

bool field_from_text(const struct field *field, struct str text, void *out, struct arena *arena)
{
    assert((size_t)field->type < COUNT_OF(types) && types[field->type].from_text);
    return types[field->type].from_text(field, text, (char *)out + field->offset, arena);
}

void field_expect(const struct field *field, struct buf *ret_text)
{
    assert((size_t)field->type < COUNT_OF(types));
    buf_fmt(ret_text, "must be %s", types[field->type].what);
    if (types[field->type].describe)
        types[field->type].describe(field, ret_text);
}

void field_show(const struct field *field, const void *out, struct jsonw *w)
{
    const void *from = (const char *)out + field->offset;

    assert((size_t)field->type < COUNT_OF(types));
    assert(!(field->flags & FIELD_EMPTY) || field->type == FIELD_INT || field->type == FIELD_STR);
    if (field->flags & FIELD_SECRET)
        jsonw_str(w, STR("***"));
    else if ((field->flags & FIELD_EMPTY) &&
             (field->type == FIELD_INT ? *(const int64_t *)from <= 0
                                       : ((const struct str *)from)->len == 0))
        jsonw_null(w);
    else
        types[field->type].show(field, from, w);
}

bool field_same(const struct field *field, const void *a, const void *b)
{
    struct buf texts[2] = {{0}};
    bool same;

    assert((size_t)field->type < COUNT_OF(types));
    for (int i = 0; i < 2; i++) {
        struct jsonw w = jsonw_to(&texts[i]);

        types[field->type].show(field, (const char *)(i ? b : a) + field->offset, &w);
    }
    same = str_eq(buf_view(&texts[0]), buf_view(&texts[1]));
    buf_free(&texts[0]);
    buf_free(&texts[1]);
    return same;
}

void field_copy(const struct field *field, const void *from, void *to)
{
    static const size_t sizes[] = {
        [FIELD_BOOL] = sizeof(bool),          [FIELD_INT] = sizeof(int64_t),
        [FIELD_MS] = sizeof(int64_t),         [FIELD_STR] = sizeof(struct str),
        [FIELD_ID] = sizeof(struct str),      [FIELD_NAME] = sizeof(struct str),
        [FIELD_ENUM] = sizeof(int),           [FIELD_STRS] = sizeof(struct strs),
        [FIELD_JSON] = sizeof(struct json *), [FIELD_REAL] = sizeof(double),
        [FIELD_RAW] = sizeof(struct str)};
    const char *source = (const char *)from + field->offset;
    char *target = (char *)to + field->offset;

    if (field->type != FIELD_OBJ) {
        memcpy(target, source, sizes[field->type]);
        return;
    }
    for (size_t i = 0; i < field->field_count; i++)
        field_copy(&field->fields[i], source, target);
}

/* --- objects --- */

enum {
    FIELDS_MAX = 256,                  /* of one object */
    NAME_BYTES_MAX = STR_DISTANCE_MAX, /* of a name in messages, and of one that is compared */
};

/* Shortens names from outside, and removes control characters that a terminal would act on. */
static void add_path(struct buf *text, const struct path *path)
{
    struct str name;

    if (!path)
        return;
    add_path(text, path->up);
    if (path->up)
        buf_char(text, '.');
    name = path->name ? str_of(path->name) : path->key;
    for (size_t i = 0; i < name.len;) {
        struct str one = str_from(name, i);
        size_t len = str_utf8_len(one);

        one.len = len ? len : 1;
        if (i + one.len > NAME_BYTES_MAX) {
            buf_str(text, STR("..."));
            return;
        }
        buf_str(text, str_is_text(one) ? one : STR("?"));
        i += one.len;
    }
}

static int line_of(const struct reader *r, const struct json *token)
{
    if (!r->lines)
        return 0;
    assert(token >= r->lines->root && token < r->lines->root + r->lines->root->span);
    return r->lines->lines[token - r->lines->root];
}

/* Sets the problem's sentence, after "Line 7: " when it is about a file. */
static enum err set_problem(const struct reader *r, const struct json *token,
                            const struct path *path, struct buf *sentence)
{
    struct buf name = {0};
    int line = line_of(r, token);
    char place[32] = "";
    enum err err;

    add_path(&name, path);
    buf_char(&name, '\0');
    buf_char(sentence, '\0');
    if (line > 0)
        snprintf(place, sizeof place, "Line %d: ", line);
    err = problem_set(r->why, ERR_BAD_FIELD, name.at, "%s%s", place, sentence->at);
    if (r->why)
        r->why->line = line;
    buf_free(&name);
    buf_free(sentence);
    return err;
}

const char *schema_nearest(const struct field *fields, size_t count, struct str name)
{
    const char *best = NULL;
    size_t best_distance =
        name.len < 6 ? 1 : name.len / 3; /* beyond that it is not a typing mistake */

    if (name.len > NAME_BYTES_MAX)
        return NULL;
    for (size_t i = 0; i < 2 * count; i++) {
        struct str candidate = str_of(i < count ? fields[i].name : fields[i - count].alias);
        size_t far;

        if (!candidate.len || candidate.len > NAME_BYTES_MAX)
            continue;
        far = str_distance(name, candidate);
        if (far <= best_distance && (!best || far < best_distance)) {
            best = fields[i % count].name;
            best_distance = far;
        }
    }
    return best;
}

static enum err unknown_key(const struct reader *r, const struct json *key, const struct path *up,
                            const struct field *fields, size_t count)
{
    struct path path = {.up = up, .key = json_str(key, r->arena)};
    const char *near = schema_nearest(fields, count, path.key);
    struct buf sentence = {0};

    buf_str(&sentence, line_of(r, key) > 0 ? STR("unknown setting \"") : STR("Unknown setting \""));
    add_path(&sentence, &path);
    buf_char(&sentence, '"');
    if (!near) {
        buf_char(&sentence, '.');
    } else {
        buf_str(&sentence, STR("; did you mean \""));
        add_path(&sentence, &(struct path){.up = up, .name = near});
        buf_str(&sentence, STR("\"?"));
    }
    return set_problem(r, key, &path, &sentence);
}

/* Looks at the key's first byte before anything else, which rejects most fields at once. */
static inline bool is_name(const char *name, struct str key, char first)
{
    return name && name[0] == first && str_eq(str_of(name), key);
}

static const struct field *find_in(const struct field *field, const struct field *end,
                                   struct str name)
{
    char first = name.len ? name.at[0] : '\0';

    for (; field < end; field++)
        if (is_name(field->name, name, first) || is_name(field->alias, name, first))
            return field;
    return NULL;
}

/* The field of that name, looked for from the given one on, then before it: members mostly come
 * in the order of the table. */
static const struct field *find_from(const struct field *fields, size_t count, size_t first,
                                     struct str name)
{
    const struct field *field = find_in(fields + first, fields + count, name);

    return field ? field : find_in(fields, fields + first, name);
}

const struct field *schema_find(const struct field *fields, size_t count, struct str name)
{
    return find_from(fields, count, 0, name);
}

static enum err read_member(const struct reader *r, const struct field *field,
                            const struct json *value, void *out, const struct path *up)
{
    struct path path = {.up = up, .name = field->name};
    const struct type_row *type = &types[field->type];
    void *to = (char *)out + field->offset;
    struct buf sentence = {0};
    bool good = false;

    if (field->type == FIELD_OBJ && json_type(value) == JSON_OBJ)
        return read_fields(r, field->fields, field->field_count, field->flags & FIELD_OPEN, value,
                           to, &path);
    assert((size_t)field->type < COUNT_OF(types));
    assert(field->type == FIELD_OBJ || type->from_json || type->from_text);
    if (type->from_json)
        good = type->from_json(field, value, to, r->arena);
    else if (type->from_text && json_type(value) == JSON_STR)
        good = type->from_text(field, json_str(value, r->arena), to, r->arena);
    if (good)
        return ERR_OK;
    add_path(&sentence, &path);
    buf_char(&sentence, ' ');
    field_expect(field, &sentence);
    buf_char(&sentence, '.');
    return set_problem(r, value, &path, &sentence);
}

static enum err read_fields(const struct reader *r, const struct field *fields, size_t count,
                            bool open, const struct json *obj, void *out, const struct path *up)
{
    uint64_t seen[FIELDS_MAX / 64] = {0};
    const struct json *key = json_first(obj);
    bool partial = !up && r->lines; /* other sources of the configuration may follow */
    size_t next = 0;
    enum err err;

    assert(count <= FIELDS_MAX);
    for (uint32_t i = 0; i < obj->count; i++, key = json_next(key + 1)) {
        const struct json *value = key + 1;
        const struct field *field = find_from(fields, count, next, json_str(key, r->arena));
        size_t at = field ? (size_t)(field - fields) : 0;

        if (!field && r->schema->strict &&
            (!open || schema_nearest(fields, count, json_str(key, r->arena))))
            return unknown_key(r, key, up, fields, count);
        if (!field || (json_is_null(value) && !field_takes_null(field)))
            continue;
        next = at + 1;
        if (seen[at / 64] >> at % 64 & 1) {
            struct path path = {.up = up, .name = field->name};
            struct buf sentence = {0};

            add_path(&sentence, &path);
            buf_fmt(&sentence, " is given twice, as %s and as %s.", field->name, field->alias);
            return set_problem(r, key, &path, &sentence);
        }
        seen[at / 64] |= (uint64_t)1 << at % 64;
        err = read_member(r, field, value, out, up);
        if (err)
            return err;
    }
    for (size_t i = 0; i < count && !partial; i++) {
        if (!(fields[i].flags & FIELD_REQUIRED) || seen[i / 64] >> i % 64 & 1)
            continue;
        struct path path = {.up = up, .name = fields[i].name};
        struct buf sentence = {0};
        add_path(&sentence, &path);
        buf_str(&sentence, STR(" is required."));
        return set_problem(r, obj, &path, &sentence);
    }
    return ERR_OK;
}

enum err schema_read_lines(const struct schema *schema, const struct json *obj,
                           const struct schema_lines *lines, void *out, struct arena *arena,
                           struct problem *why)
{
    struct reader r = {.schema = schema, .lines = lines, .arena = arena, .why = why};

    assert(schema->what[0] >= 'a' && schema->what[0] <= 'z'); /* becomes a capital below */
    if (json_type(obj) == JSON_OBJ)
        return read_fields(&r, schema->fields, schema->count, false, obj, out, NULL);
    return problem_set(why, ERR_BAD_FIELD, "", "%c%s must be an object with named values.",
                       schema->what[0] - ('a' - 'A'), schema->what + 1);
}

enum err schema_read(const struct schema *schema, const struct json *obj, void *out,
                     struct arena *arena, struct problem *why)
{
    return schema_read_lines(schema, obj, NULL, out, arena, why);
}

static enum err presets(const struct field *fields, size_t count, void *out, struct arena *arena)
{
    enum err err;

    for (size_t i = 0; i < count; i++) {
        const struct field *field = &fields[i];

        if (field->type == FIELD_OBJ) {
            err = presets(field->fields, field->field_count, (char *)out + field->offset, arena);
            if (err)
                return err;
        } else if (field->preset && !field_from_text(field, str_of(field->preset), out, arena)) {
            return ERR_BAD_CONFIG;
        }
    }
    return ERR_OK;
}

enum err schema_presets(const struct schema *schema, void *out, struct arena *arena)
{
    return presets(schema->fields, schema->count, out, arena);
}
