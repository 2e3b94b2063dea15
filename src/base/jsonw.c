/* Writing JSON. The writer keeps two bits for each open level: whether it is an object, and whether
 * a comma is due. */
#include "base/json.h"

#include <assert.h>
#include <fenv.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { JSONW_DEPTH_MAX = 63 };

struct jsonw jsonw_to(struct buf *buf)
{
    return (struct jsonw){.buf = buf};
}

static uint64_t level_bit(const struct jsonw *w)
{
    return (uint64_t)1 << w->depth;
}

/* Before a value: writes the comma of an array, or notes that the key has its value. */
static inline void start_value(struct jsonw *w)
{
    uint64_t bit;

    if (w->keyed) {
        w->keyed = false;
        return;
    }
    bit = level_bit(w);
    assert(!(w->objs & bit));
    if (w->some & bit) {
        assert(w->depth > 0); /* a text is one value */
        buf_char(w->buf, ',');
    }
    w->some |= bit;
}

static void open_level(struct jsonw *w, bool is_obj)
{
    uint64_t bit;

    assert(w->depth < JSONW_DEPTH_MAX);
    start_value(w);
    buf_char(w->buf, is_obj ? '{' : '[');
    w->depth++;
    bit = level_bit(w);
    w->some &= ~bit;
    w->objs = is_obj ? w->objs | bit : w->objs & ~bit;
}

static void close_level(struct jsonw *w, bool is_obj)
{
    assert(w->depth > 0 && !w->keyed);
    assert(is_obj == ((w->objs & level_bit(w)) != 0));
    w->depth--;
    buf_char(w->buf, is_obj ? '}' : ']');
}

void jsonw_obj(struct jsonw *w)
{
    open_level(w, true);
}

void jsonw_arr(struct jsonw *w)
{
    open_level(w, false);
}

void jsonw_end_obj(struct jsonw *w)
{
    close_level(w, true);
}

void jsonw_end_arr(struct jsonw *w)
{
    close_level(w, false);
}

/* Before a key; returns whether it needs a comma. */
static bool start_key(struct jsonw *w)
{
    uint64_t bit = level_bit(w);
    bool comma = (w->some & bit) != 0;

    assert((w->objs & bit) && !w->keyed);
    w->some |= bit;
    w->keyed = true;
    return comma;
}

void jsonw_key_plain(struct jsonw *w, struct str name)
{
    char *to;

    buf_reserve(w->buf, name.len + 4);
    to = w->buf->at + w->buf->len;
    if (start_key(w))
        *to++ = ',';
    *to++ = '"';
    memcpy(to, name.at, name.len);
    to += name.len;
    *to++ = '"';
    *to++ = ':';
    w->buf->len = (size_t)(to - w->buf->at);
}

void jsonw_key_str(struct jsonw *w, struct str name)
{
    if (start_key(w))
        buf_char(w->buf, ',');
    json_quote(w->buf, name);
    buf_char(w->buf, ':');
}

/* 0: as it is; 'u': \u00XX; 'x': the start of a UTF-8 sequence; else the letter that follows the
 * backslash. */
static const char escapes[256] = {
    [0 ... 7] = 'u', ['\b'] = 'b',  ['\t'] = 't', ['\n'] = 'n',
    [0x0b] = 'u',    ['\f'] = 'f',  ['\r'] = 'r', [0x0e ... 0x1f] = 'u',
    ['"'] = '"',     ['\\'] = '\\', [0x7f] = 'u', [0x80 ... 0xff] = 'x',
};

static size_t quote_one(struct buf *buf, struct str text)
{
    static const char hex[] = "0123456789abcdef";
    unsigned char c = (unsigned char)text.at[0];
    char kind = escapes[c];

    if (kind == 'x') {
        size_t len = str_utf8_len(text);

        buf_str(buf, len ? (struct str){.at = text.at, .len = len} : STR("\xef\xbf\xbd"));
        return len ? len : 1;
    }
    if (kind == 'u')
        buf_add(buf, (const char[]){'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]}, 6);
    else
        buf_add(buf, (const char[]){'\\', kind}, 2);
    return 1;
}

/* None of eight bytes needs an escape. A byte that does sets its top bit in one of the terms; one
 * that does not may borrow from its neighbour only if a lower one does, too. */
static bool is_plain(const char *at)
{
    uint64_t word, odd;

    memcpy(&word, at, sizeof word);
    odd = word | (word + EACH_BYTE(1)) | (word - EACH_BYTE(0x20)) |
          ((word ^ EACH_BYTE('"')) - EACH_BYTE(1)) | ((word ^ EACH_BYTE('\\')) - EACH_BYTE(1));
    return (odd & EACH_BYTE(0x80)) == 0;
}

/* How many bytes from the first on need no escape. */
static size_t plain_len(struct str text)
{
    size_t plain = 0;

    while (text.len - plain >= 8 && is_plain(text.at + plain))
        plain += 8;
    /* What is left is shorter than a word: the last eight bytes, some of them once more. */
    if (plain > 0 && text.len - plain < 8 && is_plain(text.at + text.len - 8))
        return text.len;
    while (plain < text.len && escapes[(unsigned char)text.at[plain]] == 0)
        plain++;
    return plain;
}

void json_quote(struct buf *buf, struct str text)
{
    buf_reserve(buf, text.len + 2);
    buf_char(buf, '"');
    for (;;) {
        size_t plain = plain_len(text);

        buf_add(buf, text.at, plain);
        if (plain == text.len)
            break;
        text = str_from(text, plain);
        text = str_from(text, quote_one(buf, text));
    }
    buf_char(buf, '"');
}

void jsonw_str(struct jsonw *w, struct str text)
{
    start_value(w);
    json_quote(w->buf, text);
}

void jsonw_int(struct jsonw *w, int64_t value)
{
    start_value(w);
    buf_int(w->buf, value);
}

static bool reads_back(const char *text, double value)
{
    return strtod(text, NULL) == value;
}

/* Doubles distinguish all decimals of fifteen digits, so a text of fifteen that reads back the same
 * is the shortest once its trailing zeros are cut; below DBL_MIN doubles are sparser than that.
 * Just above a power of two the gap is twice the one below it: there the next decimal away from
 * zero may need only sixteen digits although it is not the nearest. */
static void format_double(char *text, size_t size, double value)
{
    int digits = fabs(value) < DBL_MIN ? 1 : DBL_DIG;
    int mode = fegetround();

    for (; digits < DBL_DECIMAL_DIG; digits++) {
        snprintf(text, size, "%.*g", digits, value);
        if (reads_back(text, value))
            return;
    }
    fesetround(value > 0 ? FE_UPWARD : FE_DOWNWARD);
    snprintf(text, size, "%.*g", digits - 1, value);
    fesetround(mode);
    if (!reads_back(text, value))
        snprintf(text, size, "%.*g", digits, value);
}

void jsonw_double(struct jsonw *w, double value)
{
    char text[40], *from, *to;

    start_value(w);
    if (!isfinite(value)) { /* JSON cannot express it */
        buf_str(w->buf, STR("null"));
        return;
    }
    if (fabs(value) < 1e15 && value == (double)(int64_t)value && !(value == 0 && signbit(value))) {
        buf_int(w->buf, (int64_t)value);
        return;
    }
    format_double(text, sizeof text, value);
    from = strchr(text, 'e');
    if (from) { /* "1e+20" and "1e-07" to "1e20" and "1e-7" */
        to = ++from;
        if (*from == '-')
            to++;
        from++;
        while (*from == '0')
            from++;
        memmove(to, from, strlen(from) + 1);
    }
    buf_str(w->buf, str_of(text));
}

void jsonw_bool(struct jsonw *w, bool value)
{
    start_value(w);
    buf_str(w->buf, value ? STR("true") : STR("false"));
}

void jsonw_null(struct jsonw *w)
{
    start_value(w);
    buf_str(w->buf, STR("null"));
}

void jsonw_raw(struct jsonw *w, struct str json)
{
    start_value(w);
    buf_str(w->buf, json.len ? json : STR("null"));
}
