/* jansson differs on purpose: it holds only 64-bit integers, finite doubles and keys without NUL.
 * And by mistake: it skips a NUL byte between two tokens. */
#include "json_theirs.h"

#include <jansson.h>
#include <string.h>

static void dump_text(struct buf *dump, const char *text, size_t len)
{
    buf_fmt(dump, "s%zu:", len);
    buf_add(dump, text, len);
    buf_char(dump, ' ');
}

static int dump_value(struct buf *dump, json_t *value)
{
    int deepest = 0;
    const char *key;
    json_t *child;
    size_t i;

    switch (json_typeof(value)) {
    case JSON_NULL:
        buf_str(dump, STR("n "));
        return 0;
    case JSON_TRUE:
        buf_str(dump, STR("t "));
        return 0;
    case JSON_FALSE:
        buf_str(dump, STR("f "));
        return 0;
    case JSON_INTEGER:
        buf_fmt(dump, "i%lld ", (long long)json_integer_value(value));
        return 0;
    case JSON_REAL:
        buf_fmt(dump, "r%a ", json_real_value(value));
        return 0;
    case JSON_STRING:
        dump_text(dump, json_string_value(value), json_string_length(value));
        return 0;
    case JSON_ARRAY:
        buf_fmt(dump, "[%zu ", json_array_size(value));
        json_array_foreach(value, i, child)
        {
            int depth = dump_value(dump, child);

            deepest = depth > deepest ? depth : deepest;
        }
        return deepest + 1;
    case JSON_OBJECT:
        buf_fmt(dump, "{%zu ", json_object_size(value));
        json_object_foreach(value, key, child) /* in insertion order */
        {
            int depth;

            dump_text(dump, key, str_of(key).len);
            depth = dump_value(dump, child);
            deepest = depth > deepest ? depth : deepest;
        }
        return deepest + 1;
    }
    return 0;
}

enum theirs theirs_dump(struct str text, struct buf *dump, int *ret_depth)
{
    json_error_t error;
    json_t *root;

    if (text.len == 0 || memchr(text.at, '\0', text.len))
        return THEIRS_REFUSED;
    root = json_loadb(text.at, text.len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL,
                      &error);
    if (!root) {
        enum json_error_code code = json_error_code(&error);

        return code == json_error_numeric_overflow || code == json_error_null_byte_in_key
                   ? THEIRS_BEYOND
                   : THEIRS_REFUSED;
    }
    *ret_depth = dump_value(dump, root);
    json_decref(root);
    return THEIRS_ACCEPTED;
}
