/* From a JSON object to a C struct by a table of fields, with messages for people. */
#include "base/schema.h"
#include "base/field.h"
#include "base/schema_lines.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum {
    FIELDS_MAX = 256,    /* of one object */
    NAME_BYTES_MAX = 64, /* of a name in messages, and of one that is compared for likeness */
};

/* Where a field stands: "options.require_tts". */
struct path {
    const struct path *up;
    const char *name;
    struct str key; /* instead, when no field has it */
};

struct reader {
    const struct schema *schema;
    const struct schema_lines *lines; /* NULL: not from a file */
    struct arena *arena;
    struct problem *why;
};

/* A name from outside is shown in part, and without what a terminal would act on. */
static void add_name(struct buf *text, struct str name)
{
    for (size_t i = 0; i < name.len;) {
        struct str one = {.at = name.at + i, .len = name.len - i};
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

static void add_path(struct buf *text, const struct path *path)
{
    if (!path)
        return;
    add_path(text, path->up);
    if (path->up)
        buf_char(text, '.');
    add_name(text, path->name ? str_of(path->name) : path->key);
}

static int line_of(const struct reader *r, const struct json *token)
{
    if (!r->lines)
        return 0;
    assert(token >= r->lines->root && token < r->lines->root + r->lines->root->span);
    return r->lines->lines[token - r->lines->root];
}

/* The sentence, behind "Line 7: " when it is about a file. */
static enum err tell(const struct reader *r, const struct json *token, const struct path *path,
                     struct buf *sentence)
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

static enum err wrong_value(const struct reader *r, const struct json *value,
                            const struct path *path, const struct field *field)
{
    struct buf sentence = {0};

    add_path(&sentence, path);
    buf_char(&sentence, ' ');
    field_expect(field, &sentence);
    buf_char(&sentence, '.');
    return tell(r, value, path, &sentence);
}

static enum err missing(const struct reader *r, const struct json *obj, const struct path *path)
{
    struct buf sentence = {0};

    add_path(&sentence, path);
    buf_str(&sentence, STR(" is required."));
    return tell(r, obj, path, &sentence);
}

static enum err given_twice(const struct reader *r, const struct json *key, const struct path *path,
                            const struct field *field)
{
    struct buf sentence = {0};

    add_path(&sentence, path);
    buf_fmt(&sentence, " is given twice, as %s and as %s.", field->name, field->alias);
    return tell(r, key, path, &sentence);
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* How many letters must be put in, taken out, changed or swapped to make `b` of `a`. */
static size_t distance(struct str a, struct str b)
{
    size_t rows[3][NAME_BYTES_MAX + 1];

    assert(a.len <= NAME_BYTES_MAX && b.len <= NAME_BYTES_MAX);
    for (size_t j = 0; j <= b.len; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= a.len; i++) {
        size_t *row = rows[i % 3];
        const size_t *last = rows[(i + 2) % 3];
        const size_t *before = rows[(i + 1) % 3];

        row[0] = i;
        for (size_t j = 1; j <= b.len; j++) {
            row[j] =
                least(last[j - 1] + (a.at[i - 1] != b.at[j - 1]), least(last[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && a.at[i - 1] == b.at[j - 2] && a.at[i - 2] == b.at[j - 1])
                row[j] = least(row[j], before[j - 2] + 1);
        }
    }
    return rows[a.len % 3][b.len];
}

const char *schema_nearest(const struct field *fields, size_t count, struct str name)
{
    const char *best = NULL;
    size_t best_distance = name.len < 6 ? 1 : name.len / 3; /* further is no slip of the finger */

    if (name.len > NAME_BYTES_MAX)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        struct str candidate = str_of(fields[i].name);
        size_t far;

        if (candidate.len > NAME_BYTES_MAX)
            continue;
        far = distance(name, candidate);
        if (far <= best_distance && (!best || far < best_distance)) {
            best = fields[i].name;
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
    return tell(r, key, &path, &sentence);
}

static bool is_name(const char *name, struct str key)
{
    for (size_t i = 0; i < key.len; i++)
        if (name[i] != key.at[i] || name[i] == '\0')
            return false;
    return name[key.len] == '\0';
}

const struct field *schema_find(const struct field *fields, size_t count, struct str name)
{
    for (size_t i = 0; i < count; i++)
        if (is_name(fields[i].name, name) || (fields[i].alias && is_name(fields[i].alias, name)))
            return &fields[i];
    return NULL;
}

static enum err read_fields(const struct reader *r, const struct field *fields, size_t count,
                            const struct json *obj, void *out, const struct path *up);

static enum err read_member(const struct reader *r, const struct field *field,
                            const struct json *value, void *out, const struct path *up)
{
    struct path path = {.up = up, .name = field->name};

    if (field->type == FIELD_OBJ && json_type(value) == JSON_OBJ)
        return read_fields(r, field->fields, field->field_count, value, (char *)out + field->offset,
                           &path);
    if (field->type == FIELD_OBJ || !field_from_json(field, value, out, r->arena))
        return wrong_value(r, value, &path, field);
    return ERR_OK;
}

static enum err read_fields(const struct reader *r, const struct field *fields, size_t count,
                            const struct json *obj, void *out, const struct path *up)
{
    uint64_t seen[FIELDS_MAX / 64] = {0};
    const struct json *key = json_first(obj);
    bool partial = !up && r->lines; /* other sources of the configuration may follow */
    enum err err;

    assert(count <= FIELDS_MAX);
    for (uint32_t i = 0; i < obj->count; i++, key = json_next(key + 1)) {
        const struct json *value = key + 1;
        const struct field *field = schema_find(fields, count, json_str(key, r->arena));
        size_t at = field ? (size_t)(field - fields) : 0;

        if (!field && r->schema->strict)
            return unknown_key(r, key, up, fields, count);
        if (!field || (json_is_null(value) && !field_takes_null(field)))
            continue;
        if (seen[at / 64] >> at % 64 & 1)
            return given_twice(r, key, &(struct path){.up = up, .name = field->name}, field);
        seen[at / 64] |= (uint64_t)1 << at % 64;
        err = read_member(r, field, value, out, up);
        if (err)
            return err;
    }
    for (size_t i = 0; i < count && !partial; i++)
        if ((fields[i].flags & FIELD_REQUIRED) && !(seen[i / 64] >> i % 64 & 1))
            return missing(r, obj, &(struct path){.up = up, .name = fields[i].name});
    return ERR_OK;
}

enum err schema_read_lines(const struct schema *schema, const struct json *obj,
                           const struct schema_lines *lines, void *out, struct arena *arena,
                           struct problem *why)
{
    struct reader r = {.schema = schema, .lines = lines, .arena = arena, .why = why};

    assert(schema->what[0] >= 'a' && schema->what[0] <= 'z'); /* becomes a capital below */
    if (json_type(obj) == JSON_OBJ)
        return read_fields(&r, schema->fields, schema->count, obj, out, NULL);
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
