/* From libyaml's events to JSON text, with the line of each token: every key, scalar and opening
 * bracket becomes exactly one token of json_parse(), in the same order.
 *
 * A plain scalar is null (also ~ and nothing), true, false, or a number where JSON would read one;
 * all else is a string: `no`, `010`, `0x10`, `1_000` and `12:30` hold no surprise. */
#include "base/yaml.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/schema.h"

_Static_assert((int)YAML_DEPTH_MAX <= (int)JSON_DEPTH_MAX, "what comes out must be readable");

struct level {
    struct map keys; /* of a mapping: the keys seen so far */
    bool is_map;
    bool want_key;
};

struct reader {
    yaml_parser_t parser;
    struct arena *arena;
    struct problem *why;
    struct buf json;
    struct jsonw w;
    int *lines;
    size_t line_count;
    size_t line_cap;
    struct level levels[YAML_DEPTH_MAX];
    size_t depth;
    bool some;  /* a document was read */
    bool ended; /* the end of the stream was read */
};

static enum err refuse(struct reader *r, size_t line, const char *what)
{
    enum err err = problem_set(r->why, ERR_BAD_CONFIG, "", "Line %zu: %s.", line + 1, what);

    if (r->why)
        r->why->line = (int)line + 1;
    return err;
}

static void add_line(struct reader *r, size_t line)
{
    if (r->line_count == r->line_cap) {
        r->line_cap = r->line_cap ? r->line_cap * 2 : 64;
        r->lines = mem_resize(r->lines, r->line_cap * sizeof r->lines[0]);
    }
    r->lines[r->line_count++] = (int)line + 1;
}

static enum err check_plain(struct reader *r, size_t line, const void *tag, const void *anchor)
{
    if (anchor)
        return refuse(r, line, "anchors are not read here; write the value out");
    return tag ? refuse(r, line, "tags are not read here; put quotes around a text") : ERR_OK;
}

/* Before a value of any kind: may one come here? In a mapping a key comes next. */
static enum err start_value(struct reader *r, const yaml_event_t *event, const void *tag,
                            const void *anchor)
{
    struct level *level = r->depth ? &r->levels[r->depth - 1] : NULL;
    size_t line = event->start_mark.line;
    enum err err = check_plain(r, line, tag, anchor);

    if (err)
        return err;
    if (level && level->is_map && level->want_key)
        return refuse(r, line, "a key must be a plain name");
    if (level)
        level->want_key = true;
    add_line(r, line);
    return ERR_OK;
}

static enum err on_key(struct reader *r, const yaml_event_t *event, struct str text)
{
    struct level *level = &r->levels[r->depth - 1];
    size_t line = event->start_mark.line;
    enum err err = check_plain(r, line, event->data.scalar.tag, event->data.scalar.anchor);

    if (err)
        return err;
    if (!str_is_text(text) || text.len == 0)
        return refuse(r, line, "a key must be a plain name");
    text = arena_str(r->arena, text);
    if (map_get(&level->keys, text))
        return refuse(
            r, line,
            arena_fmt(r->arena, "the key \"%.64s\" stands here for the second time", text.at).at);
    map_put(&level->keys, text, level);
    add_line(r, line);
    jsonw_key_str(&r->w, text);
    level->want_key = false;
    return ERR_OK;
}

static enum err on_scalar(struct reader *r, const yaml_event_t *event)
{
    struct str text = {.at = (const char *)event->data.scalar.value,
                       .len = event->data.scalar.length};
    bool plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    enum err err;

    if (r->depth && r->levels[r->depth - 1].is_map && r->levels[r->depth - 1].want_key)
        return on_key(r, event, text);
    err = start_value(r, event, event->data.scalar.tag, event->data.scalar.anchor);
    if (err)
        return err;
    if (plain && (text.len == 0 || str_is(text, "~")))
        jsonw_null(&r->w);
    else if (plain && (str_is(text, "null") || str_is(text, "true") || str_is(text, "false") ||
                       json_is_number(text)))
        jsonw_raw(&r->w, text);
    else
        jsonw_str(&r->w, text);
    return ERR_OK;
}

static enum err open_level(struct reader *r, const yaml_event_t *event, const void *tag,
                           const void *anchor, bool is_map)
{
    enum err err = start_value(r, event, tag, anchor);

    if (err)
        return err;
    (is_map ? jsonw_obj : jsonw_arr)(&r->w);
    if (r->depth == YAML_DEPTH_MAX)
        return refuse(r, event->start_mark.line, "too many levels");
    r->levels[r->depth++] = (struct level){.is_map = is_map, .want_key = true};
    return ERR_OK;
}

static enum err on_event(struct reader *r, const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_STREAM_END_EVENT:
        r->ended = true;
        return ERR_OK;
    case YAML_DOCUMENT_START_EVENT:
        if (r->some)
            return refuse(r, event->start_mark.line, "a second document starts here");
        r->some = true;
        return ERR_OK;
    case YAML_ALIAS_EVENT:
        return refuse(r, event->start_mark.line, "aliases are not read here; write the value out");
    case YAML_SCALAR_EVENT:
        return on_scalar(r, event);
    case YAML_SEQUENCE_START_EVENT:
        return open_level(r, event, event->data.sequence_start.tag,
                          event->data.sequence_start.anchor, false);
    case YAML_MAPPING_START_EVENT:
        return open_level(r, event, event->data.mapping_start.tag, event->data.mapping_start.anchor,
                          true);
    case YAML_SEQUENCE_END_EVENT:
        assert(r->depth > 0 && !r->levels[r->depth - 1].is_map);
        r->depth--;
        jsonw_end_arr(&r->w);
        return ERR_OK;
    case YAML_MAPPING_END_EVENT:
        assert(r->depth > 0 && r->levels[r->depth - 1].is_map);
        map_free(&r->levels[--r->depth].keys);
        jsonw_end_obj(&r->w);
        return ERR_OK;
    default:
        return ERR_OK;
    }
}

enum err yaml_too_large(struct problem *why)
{
    return problem_set(why, ERR_TOO_LARGE, "", "The text is larger than %d bytes.", YAML_BYTES_MAX);
}

enum err yaml_read(struct str yaml, struct arena *arena, struct str *ret_json,
                   const int **ret_lines, struct problem *why)
{
    struct reader r = {.arena = arena, .why = why};
    yaml_event_t event;
    enum err err = ERR_OK;
    int *lines;

    if (yaml.len > YAML_BYTES_MAX)
        return yaml_too_large(why);
    if (!yaml_parser_initialize(&r.parser))
        return problem_set(why, ERR_MEMORY, "", "Out of memory.");
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)(yaml.at ? yaml.at : ""),
                                 yaml.len);
    r.w = jsonw_to(&r.json);
    while (!err && !r.ended) {
        if (!yaml_parser_parse(&r.parser, &event)) {
            err = refuse(&r, r.parser.problem_mark.line,
                         r.parser.problem ? r.parser.problem : "not valid YAML");
            break;
        }
        err = on_event(&r, &event);
        yaml_event_delete(&event);
    }
    if (!err) {
        if (r.line_count == 0) { /* an empty file */
            add_line(&r, 0);
            jsonw_null(&r.w);
        }
        assert(r.depth == 0 && r.json.len > 0);
        lines = arena_array(arena, int, r.line_count);
        memcpy(lines, r.lines, r.line_count * sizeof lines[0]);
        *ret_lines = lines;
        *ret_json = arena_str(arena, buf_view(&r.json));
    }
    yaml_parser_delete(&r.parser);
    for (size_t i = 0; i < r.depth; i++)
        map_free(&r.levels[i].keys);
    free(r.lines);
    buf_free(&r.json);
    return err;
}

enum err yaml_to_json(struct str yaml, struct arena *arena, struct str *ret_json,
                      struct problem *why)
{
    const int *lines;

    return yaml_read(yaml, arena, ret_json, &lines, why);
}
