/* Reading values out of the tokens that json_parse made. */
#include "base/json.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const struct json *json_first(const struct json *parent)
{
    return parent && parent->count > 0 ? parent + 1 : NULL;
}

const struct json *json_next(const struct json *value)
{
    assert(value->span > 0);
    return value + value->span;
}

enum json_type json_type(const struct json *value)
{
    return value ? (enum json_type)value->type : JSON_NULL;
}

bool json_is_null(const struct json *value)
{
    return json_type(value) == JSON_NULL;
}

void json_one_line(char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (text[i] == '\n' || text[i] == '\r')
            text[i] = ' ';
}

struct str json_raw(const struct json *value)
{
    bool quoted = json_type(value) == JSON_STR;

    if (!value)
        return STR("null");
    return (struct str){.at = value->at - quoted, .len = value->len + 2u * quoted};
}

static unsigned hex4(const char *at)
{
    unsigned value = 0;

    for (int i = 0; i < 4; i++)
        value = value << 4 | (unsigned)(at[i] <= '9' ? at[i] - '0' : (at[i] | 0x20) - 'a' + 10);
    return value;
}

static size_t put_utf8(char *to, unsigned code)
{
    if (code < 0x80) {
        to[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        to[0] = (char)(0xc0 | code >> 6);
        to[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        to[0] = (char)(0xe0 | code >> 12);
        to[1] = (char)(0x80 | (code >> 6 & 0x3f));
        to[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    to[0] = (char)(0xf0 | code >> 18);
    to[1] = (char)(0x80 | (code >> 12 & 0x3f));
    to[2] = (char)(0x80 | (code >> 6 & 0x3f));
    to[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}

/* Reads the escape at *at, which json_parse found right, and moves behind it; returns how many
 * bytes it wrote: at most 4, and never more than the escape is long. */
static size_t unescape(const char **at, char *to)
{
    static const char plain[256] = {['"'] = '"',  ['\\'] = '\\', ['/'] = '/',  ['b'] = '\b',
                                    ['f'] = '\f', ['n'] = '\n',  ['r'] = '\r', ['t'] = '\t'};
    unsigned char letter = (unsigned char)(*at)[1];
    unsigned code;

    assert((*at)[0] == '\\');
    if (letter != 'u') {
        *to = plain[letter];
        *at += 2;
        return 1;
    }
    code = hex4(*at + 2);
    *at += 6;
    if (code >= 0xd800 && code <= 0xdbff) {
        code = 0x10000 + ((code - 0xd800) << 10) + (hex4(*at + 2) - 0xdc00);
        *at += 6;
    }
    return put_utf8(to, code);
}

struct str json_str(const struct json *value, struct arena *arena)
{
    const char *at;
    const char *end;
    char *copy;
    size_t len = 0;

    if (json_type(value) != JSON_STR)
        return STR_NONE;
    if (!value->escaped)
        return (struct str){.at = value->at, .len = value->len};
    copy = arena_raw(arena, value->len); /* escapes only get shorter */
    for (at = value->at, end = at + value->len; at < end;) {
        if (*at == '\\')
            len += unescape(&at, copy + len);
        else
            copy[len++] = *at++;
    }
    assert(len < value->len);
    return (struct str){.at = copy, .len = len};
}

static bool text_is(const struct json *value, const char *text, size_t text_len)
{
    const char *at = value->at;
    const char *end = at + value->len;
    size_t done = 0;

    if (!value->escaped)
        return value->len == text_len && memcmp(at, text, text_len) == 0;
    while (at < end) {
        char piece[4] = {*at};
        size_t len = 1;

        if (*at == '\\')
            len = unescape(&at, piece);
        else
            at++;
        if (len > text_len - done || memcmp(piece, text + done, len) != 0)
            return false;
        done += len;
    }
    return done == text_len;
}

bool json_str_is(const struct json *value, const char *text)
{
    return json_type(value) == JSON_STR && text_is(value, text, strlen(text));
}

const struct json *json_get(const struct json *obj, const char *name)
{
    size_t len = strlen(name);
    const struct json *key;

    if (json_type(obj) != JSON_OBJ)
        return NULL;
    key = json_first(obj);
    for (uint32_t i = 0; i < obj->count; i++, key += 1 + key[1].span)
        if ((key->len == len || key->escaped) && text_is(key, name, len))
            return key + 1;
    return NULL;
}

/* A number as digits times a power of ten: "-12.50e3" is -1250 * 10^1. */
struct decimal {
    const char *digits; /* may hold one '.'; starts with a digit that is not 0, or is empty */
    size_t len;
    int64_t exponent;
    bool minus;
};

enum { EXPONENT_MAX = 1000000000 }; /* beyond any text that fits; keeps the sums in range */

static int64_t read_exponent(const char *at, const char *end)
{
    bool minus = at < end && *at == '-';
    int64_t value = 0;

    if (at < end && (*at == '-' || *at == '+'))
        at++;
    for (; at < end; at++)
        if (value < EXPONENT_MAX)
            value = value * 10 + (*at - '0');
    return minus ? -value : value;
}

static struct decimal read_decimal(const struct json *value)
{
    struct decimal num = {.digits = value->at, .len = value->len};
    const char *end = value->at + value->len;
    const char *dot = NULL;

    num.minus = *num.digits == '-';
    num.digits += num.minus;
    for (const char *at = num.digits; at < end; at++) {
        if (*at == '.')
            dot = at;
        if (*at == 'e' || *at == 'E') {
            num.exponent = read_exponent(at + 1, end);
            end = at;
        }
    }
    if (dot)
        num.exponent -= end - dot - 1;
    while (end > num.digits && (end[-1] == '0' || end[-1] == '.')) {
        num.exponent += end[-1] == '0';
        end--;
    }
    while (num.digits < end && (*num.digits == '0' || *num.digits == '.'))
        num.digits++;
    num.len = (size_t)(end - num.digits);
    return num;
}

static bool decimal_int(const struct decimal *num, int64_t *ret)
{
    int64_t sum = 0; /* counted below zero, where INT64_MIN fits as well */

    if (num->len == 0) {
        *ret = 0;
        return true;
    }
    if (num->exponent < 0 || num->exponent > 18)
        return false;
    for (size_t i = 0; i < num->len; i++) {
        if (num->digits[i] == '.')
            continue;
        if (__builtin_mul_overflow(sum, 10, &sum) ||
            __builtin_sub_overflow(sum, num->digits[i] - '0', &sum))
            return false;
    }
    for (int64_t i = 0; i < num->exponent; i++)
        if (__builtin_mul_overflow(sum, 10, &sum))
            return false;
    if (!num->minus && sum == INT64_MIN)
        return false;
    *ret = num->minus ? sum : -sum;
    return true;
}

bool json_int(const struct json *value, int64_t *ret)
{
    struct decimal num;

    if (json_type(value) != JSON_NUM)
        return false;
    if (str_int((struct str){.at = value->at, .len = value->len}, ret))
        return true;
    num = read_decimal(value);
    return decimal_int(&num, ret);
}

bool json_double(const struct json *value, double *ret)
{
    char few[64];
    char *text = few;
    double result;

    if (json_type(value) != JSON_NUM)
        return false;
    if (value->len >= sizeof few) {
        text = malloc((size_t)value->len + 1);
        if (!text)
            return false;
    }
    memcpy(text, value->at, value->len);
    text[value->len] = '\0';
    result = strtod(text, NULL);
    if (text != few)
        free(text);
    if (!isfinite(result))
        return false;
    *ret = result;
    return true;
}

bool json_bool(const struct json *value, bool *ret)
{
    enum json_type type = json_type(value);

    if (type != JSON_TRUE && type != JSON_FALSE)
        return false;
    *ret = type == JSON_TRUE;
    return true;
}

const char *json_type_name(enum json_type type)
{
    static const char *const names[] = {
        [JSON_NULL] = "null",  [JSON_FALSE] = "boolean", [JSON_TRUE] = "boolean",
        [JSON_NUM] = "number", [JSON_STR] = "string",    [JSON_ARR] = "array",
        [JSON_OBJ] = "object",
    };

    assert((size_t)type < COUNT_OF(names));
    return names[type];
}
