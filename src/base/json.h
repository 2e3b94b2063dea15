/* Strict JSON (RFC 8259). Reading makes an array of tokens over the text: no allocation per value,
 * no recursion. The token array comes from an arena; strings are decoded only on request.
 * Refused: depth over JSON_DEPTH_MAX, duplicate keys, bad UTF-8, lone surrogates, raw control
 * characters, leading zeros, NaN, anything after the value. Numbers keep their text. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <assert.h>

#include "base/err.h"
#include "base/mem.h"

enum {
    JSON_DEPTH_BODY = 32, /* of a request body */
    JSON_DEPTH_MAX = 40,  /* answers show a body with a few levels around it */
};

enum json_type { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUM, JSON_STR, JSON_ARR, JSON_OBJ };

struct json {
    const char *at;  /* the value's text; a string's without its quotes, still escaped */
    uint32_t len;    /* of that text */
    uint32_t span;   /* tokens of this value, itself included: value + span is what follows */
    uint32_t count;  /* elements or members */
    uint8_t type;    /* enum json_type */
    uint8_t escaped; /* the string holds a backslash */
};

/* `why` gets the byte offset and what was expected. The tokens point into `text`. */
enum err json_parse(struct str text, struct arena *arena, const struct json **ret_root,
                    struct problem *why);
/* The same for a text that may become part of a larger one: JSON_DEPTH_BODY levels. */
enum err json_parse_body(struct str text, struct arena *arena, const struct json **ret_root,
                         struct problem *why);

/* Inline, since they are called for every token and do nearly nothing. */
static inline enum json_type json_type(const struct json *value) /* NULL is JSON_NULL */
{
    return value ? (enum json_type)value->type : JSON_NULL;
}

static inline bool json_is_null(const struct json *value) /* absent or null */
{
    return json_type(value) == JSON_NULL;
}

/* The first of the elements, or of the keys, each key's value being key + 1. NULL-safe: a missing
 * value reads as JSON_NULL. */
static inline const struct json *json_first(const struct json *parent)
{
    return parent && parent->count > 0 ? parent + 1 : NULL;
}

/* The next element, or key after a value. Valid while fewer than parent->count were seen. */
static inline const struct json *json_next(const struct json *value)
{
    assert(value->span > 0);
    return value + value->span;
}

/* The elements of an array or the keys of an object:
 *     for (item = json_items(list); item; item = json_after(list, item))
 * A value of another type has none. */
static inline const struct json *json_items(const struct json *arr)
{
    return json_type(arr) == JSON_ARR ? json_first(arr) : NULL;
}

static inline const struct json *json_keys(const struct json *obj)
{
    return json_type(obj) == JSON_OBJ ? json_first(obj) : NULL;
}

static inline const struct json *json_after(const struct json *parent, const struct json *item)
{
    const struct json *next = json_next(parent->type == JSON_OBJ ? item + 1 : item);

    return next < parent + parent->span ? next : NULL;
}

/* The value of a key; NULL when absent. */
const struct json *json_member(const struct json *obj, struct str name);

static inline const struct json *json_get(const struct json *obj, const char *name)
{
    return json_member(obj, str_of(name));
}

struct str json_raw(const struct json *value); /* the text as it was sent, quotes included */
/* Puts JSON on one line: a line break in it can only be between two tokens, and becomes a space. */
void json_one_line(char *text, size_t len);
struct str json_unescape(const struct json *value, struct arena *arena);
/* Unescaped (copied only if it must be). */
static inline struct str json_str(const struct json *value, struct arena *arena)
{
    struct str text = STR_NONE;

    if (json_type(value) != JSON_STR)
        return text;
    if (value->escaped)
        return json_unescape(value, arena);
    text.at = value->at;
    text.len = value->len;
    return text;
}

bool json_str_is(const struct json *value, const char *text); /* a string equal to `text` */
/* Integral and in range ("1.0", "1e3" count). */
bool json_int(const struct json *value, int64_t *ret);
bool json_double(const struct json *value, double *ret);
bool json_bool(const struct json *value, bool *ret);
bool json_is_number(struct str text); /* the whole text is one JSON number */

/* Writing appends to a buf and sets the commas itself. A value without a key in an object, a key
 * outside of one, or a wrong closing bracket is our mistake and aborts. */
struct jsonw {
    struct buf *buf;
    uint8_t depth;
    bool keyed;    /* a key was written, its value is due */
    uint64_t some; /* bit d: level d has an element already */
    uint64_t objs; /* bit d: level d is an object */
};

struct jsonw jsonw_to(struct buf *buf);
void jsonw_obj(struct jsonw *w); /* { */
void jsonw_arr(struct jsonw *w); /* [ */
void jsonw_end_obj(struct jsonw *w);
void jsonw_end_arr(struct jsonw *w);
void jsonw_key_plain(struct jsonw *w, struct str name); /* needs no escaping */
void jsonw_key_str(struct jsonw *w, struct str name);   /* any name */
void jsonw_str(struct jsonw *w, struct str text);       /* invalid UTF-8 becomes U+FFFD */
void jsonw_int(struct jsonw *w, int64_t value);
void jsonw_double(struct jsonw *w, double value); /* shortest text that reads back the same */
void jsonw_bool(struct jsonw *w, bool value);
void jsonw_null(struct jsonw *w);
void jsonw_raw(struct jsonw *w, struct str json); /* text that is JSON already; empty = null */
/* Names in C need no escaping. Inline, so that the compiler knows their length. */
static inline void jsonw_key(struct jsonw *w, const char *name)
{
    jsonw_key_plain(w, str_of(name));
}

/* Key and value in one. A str with at == NULL is written as null. */
static inline void jsonw_kstr(struct jsonw *w, const char *name, struct str text)
{
    jsonw_key(w, name);
    if (text.at)
        jsonw_str(w, text);
    else
        jsonw_null(w);
}

static inline void jsonw_kint(struct jsonw *w, const char *name, int64_t value)
{
    jsonw_key(w, name);
    jsonw_int(w, value);
}

static inline void jsonw_kdouble(struct jsonw *w, const char *name, double value)
{
    jsonw_key(w, name);
    jsonw_double(w, value);
}

static inline void jsonw_kbool(struct jsonw *w, const char *name, bool value)
{
    jsonw_key(w, name);
    jsonw_bool(w, value);
}

static inline void jsonw_kobj(struct jsonw *w, const char *name)
{
    jsonw_key(w, name);
    jsonw_obj(w);
}

static inline void jsonw_karr(struct jsonw *w, const char *name)
{
    jsonw_key(w, name);
    jsonw_arr(w);
}

static inline void jsonw_knull(struct jsonw *w, const char *name)
{
    jsonw_key(w, name);
    jsonw_null(w);
}

static inline void jsonw_kraw(struct jsonw *w, const char *name, struct str json)
{
    jsonw_key(w, name);
    jsonw_raw(w, json);
}

/* Appends `text` as a JSON string with its quotes, outside any writer. */
void json_quote(struct buf *buf, struct str text);

#endif
