/* Reading JSON. One pass with a stack of open levels makes tokens; when an object closes, its keys
 * are checked for duplicates. Values are decoded from the tokens only when a caller needs them. */
#include "base/json.h"

#include <assert.h>
#include <endian.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"

/* --- tokens to values --- */

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

/* The four digits of a \u escape; -1 when they are missing. */
static int read_hex4(const char *at, const char *end)
{
    int value = 0;

    if (end - at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        int digit = str_hex_digit(at[i]);

        if (digit < 0)
            return -1;
        value = value << 4 | digit;
    }
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

/* Decodes the escape at *at, which json_parse has validated, and moves past it; returns how many
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
    code = (unsigned)read_hex4(*at + 2, *at + 6);
    *at += 6;
    if (code >= 0xd800 && code <= 0xdbff) {
        code = 0x10000 + ((code - 0xd800) << 10) + ((unsigned)read_hex4(*at + 2, *at + 6) - 0xdc00);
        *at += 6;
    }
    return put_utf8(to, code);
}

struct str json_unescape(const struct json *value, struct arena *arena)
{
    const char *at;
    const char *end;
    char *copy;
    size_t len = 0;

    assert(value->type == JSON_STR && value->escaped);
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

/* A string with escapes is compared piece by piece. */
static bool is_unescaped(const struct json *value, struct str text)
{
    const char *at = value->at;
    const char *end = at + value->len;
    size_t done = 0;

    while (at < end) {
        char piece[4] = {*at};
        size_t len = 1;

        if (*at == '\\')
            len = unescape(&at, piece);
        else
            at++;
        if (len > text.len - done || memcmp(piece, text.at + done, len) != 0)
            return false;
        done += len;
    }
    return done == text.len;
}

static inline bool text_is(const struct json *value, struct str text)
{
    if (value->escaped)
        return is_unescaped(value, text);
    return str_eq((struct str){.at = value->at, .len = value->len}, text);
}

bool json_str_is(const struct json *value, const char *text)
{
    return json_type(value) == JSON_STR && text_is(value, str_of(text));
}

const struct json *json_member(const struct json *obj, struct str name)
{
    const struct json *key;

    if (json_type(obj) != JSON_OBJ)
        return NULL;
    key = json_first(obj);
    for (uint32_t i = 0; i < obj->count; i++, key += 1 + key[1].span)
        if (text_is(key, name))
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

static struct decimal read_decimal(const struct json *value)
{
    struct decimal num = {.digits = value->at, .len = value->len};
    const char *end = value->at + value->len;
    const char *dot = NULL, *exponent = NULL;

    num.minus = *num.digits == '-';
    num.digits += num.minus;
    for (const char *at = num.digits; at < end; at++) {
        if (*at == '.')
            dot = at;
        if (*at == 'e' || *at == 'E')
            exponent = at;
    }
    if (exponent) {
        const char *at = exponent + 1;
        bool minus = *at == '-';

        at += *at == '-' || *at == '+';
        for (; at < end; at++)
            if (num.exponent < EXPONENT_MAX)
                num.exponent = num.exponent * 10 + (*at - '0');
        num.exponent = minus ? -num.exponent : num.exponent;
        end = exponent;
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

bool json_int(const struct json *value, int64_t *ret)
{
    struct decimal num;
    int64_t sum = 0; /* summed as a negative number, so that INT64_MIN fits */

    if (json_type(value) != JSON_NUM)
        return false;
    if (str_int((struct str){.at = value->at, .len = value->len}, ret))
        return true;
    num = read_decimal(value);
    if (num.len > 0 && (num.exponent < 0 || num.exponent > 18))
        return false;
    for (size_t i = 0; i < num.len; i++) {
        if (num.digits[i] == '.')
            continue;
        if (__builtin_mul_overflow(sum, 10, &sum) ||
            __builtin_sub_overflow(sum, num.digits[i] - '0', &sum))
            return false;
    }
    for (int64_t i = 0; sum != 0 && i < num.exponent; i++)
        if (__builtin_mul_overflow(sum, 10, &sum))
            return false;
    if (!num.minus && sum == INT64_MIN)
        return false;
    *ret = num.minus ? sum : -sum;
    return true;
}

bool json_double(const struct json *value, double *ret)
{
    char few[64];
    char *text = few;
    double result;

    if (json_type(value) != JSON_NUM)
        return false;
    if (value->len >= sizeof few)
        text = mem_alloc((size_t)value->len + 1);
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

/* --- text to tokens --- */

enum {
    KEYS_FEW = 16,    /* up to here comparing every pair is cheaper than hashing */
    ROUND_TOKENS = 2, /* most that one round of parse_text adds: a value, and a key behind it */
};

struct parse {
    const char *start;
    const char *at;
    const char *end;
    struct arena *arena;
    struct json *tokens;
    uint32_t count;
    uint32_t cap;
    uint32_t depth;
    uint32_t depth_max;
    uint32_t open[JSON_DEPTH_MAX]; /* token of each open level */
    const char *expected;          /* what was expected at `at`, set on failure */
};

static bool fail(struct parse *p, const char *expected)
{
    p->expected = expected;
    return false;
}

/* There is room: parse_text sees to it, once for all that is read in one round. */
static inline struct json *add_token(struct parse *p, enum json_type type)
{
    struct json *token = &p->tokens[p->count++];

    assert(p->count <= p->cap);
    *token = (struct json){.at = p->at, .span = 1, .type = (uint8_t)type};
    return token;
}

static bool is_space(char c)
{
    /* Compared with the blank first: nearly every byte is above it. */
    return (unsigned char)c <= ' ' && (c == ' ' || c == '\n' || c == '\r' || c == '\t');
}

/* The next byte that is not space; at the end '\0', which can be no token. */
static inline char next_byte(struct parse *p)
{
    const char *at = p->at;

    while (at < p->end && is_space(*at))
        at++;
    p->at = at;
    return at < p->end ? *at : '\0';
}

/* p->at is at the backslash. */
static bool skip_escape(struct parse *p)
{
    char c = p->end - p->at >= 2 ? p->at[1] : '\0';
    int unit;
    int low;

    assert(*p->at == '\\');
    if (c != 'u') {
        if (c == '\0' || !strchr("\"\\/bfnrt", c))
            return fail(p, "one of \" \\ / b f n r t u behind the backslash");
        p->at += 2;
        return true;
    }
    unit = read_hex4(p->at + 2, p->end);
    if (unit < 0)
        return fail(p, "four hexadecimal digits behind \\u");
    if (unit < 0xd800 || unit > 0xdfff) {
        p->at += 6;
        return true;
    }
    if (unit > 0xdbff || p->end - p->at < 12 || p->at[6] != '\\' || p->at[7] != 'u')
        return fail(p, "a pair of surrogates");
    low = read_hex4(p->at + 8, p->end);
    if (low < 0xdc00 || low > 0xdfff)
        return fail(p, "a pair of surrogates");
    p->at += 12;
    return true;
}

/* Bytes of a string that need a second look: quote, backslash, control, and beyond ASCII. */
static const bool special[256] = {
    [0 ... 0x1f] = true, ['"'] = true, ['\\'] = true, [0x80 ... 0xff] = true};

/* Finds the first special byte from `at` on, eight bytes at a time while there are eight: x - 1
 * borrows into the top bit just when x is 0, and likewise for bytes below 0x20. The first special
 * byte sets its top bit, later ones perhaps. */
static const char *skip_plain(const char *at, const char *end)
{
    while (end - at >= 8) {
        uint64_t word, bits;

        memcpy(&word, at, sizeof word);
        word = le64toh(word);
        bits = (word | (word - EACH_BYTE(0x20)) | ((word ^ EACH_BYTE('"')) - EACH_BYTE(1)) |
                ((word ^ EACH_BYTE('\\')) - EACH_BYTE(1))) &
               EACH_BYTE(0x80);
        if (bits)
            return at + __builtin_ctzll(bits) / 8;
        at += 8;
    }
    while (at < end && !special[(unsigned char)*at])
        at++;
    return at;
}

/* The rest of a string that has more than plain text: from p->at on, up to its closing quote. */
static bool read_rest(struct parse *p, struct json *token)
{
    size_t len;

    for (;; p->at = skip_plain(p->at, p->end)) {
        if (p->at == p->end)
            return fail(p, "the closing quote of a string");
        if (*p->at == '"')
            break;
        if (*p->at == '\\') {
            token->escaped = true;
            if (!skip_escape(p))
                return false;
            continue;
        }
        if ((unsigned char)*p->at < 0x20)
            return fail(p, "an escape instead of a control character");
        len = str_utf8_len((struct str){.at = p->at, .len = (size_t)(p->end - p->at)});
        if (len == 0)
            return fail(p, "valid UTF-8");
        p->at += len;
    }
    token->len = (uint32_t)(p->at - token->at);
    p->at++;
    return true;
}

/* p->at is just after the opening quote and ends up just after the closing one. */
static inline bool read_string(struct parse *p)
{
    struct json *token = add_token(p, JSON_STR);

    p->at = skip_plain(p->at, p->end);
    if (p->at == p->end || *p->at != '"')
        return read_rest(p, token);
    token->len = (uint32_t)(p->at - token->at);
    p->at++;
    return true;
}

static const char *skip_digits(const char *at, const char *end)
{
    while (at < end && *at >= '0' && *at <= '9')
        at++;
    return at;
}

/* The end of the number that starts at `at`; NULL when there is none. */
static const char *skip_number(const char *at, const char *end)
{
    const char *digits;

    if (at < end && *at == '-')
        at++;
    digits = at;
    at = skip_digits(at, end);
    if (at == digits || (*digits == '0' && at - digits > 1))
        return NULL;
    if (at < end && *at == '.') {
        digits = ++at;
        at = skip_digits(at, end);
        if (at == digits)
            return NULL;
    }
    if (at < end && (*at == 'e' || *at == 'E')) {
        at++;
        if (at < end && (*at == '+' || *at == '-'))
            at++;
        digits = at;
        at = skip_digits(at, end);
        if (at == digits)
            return NULL;
    }
    return at;
}

bool json_is_number(struct str text)
{
    return text.len > 0 && skip_number(text.at, text.at + text.len) == text.at + text.len;
}

static bool read_word(struct parse *p, struct str word, enum json_type type)
{
    struct str rest = {.at = p->at, .len = (size_t)(p->end - p->at)};
    struct json *token;

    if (!str_starts(rest, word))
        return fail(p, "a value");
    token = add_token(p, type);
    token->len = (uint32_t)word.len;
    p->at += word.len;
    return true;
}

/* A key with its colon. */
static bool read_key(struct parse *p)
{
    if (next_byte(p) != '"')
        return fail(p, "a key in double quotes");
    p->at++;
    if (!read_string(p))
        return false;
    if (next_byte(p) != ':')
        return fail(p, "':' behind a key");
    p->at++;
    return true;
}

/* The first of a few keys that occurs twice, NULL when there is none. A key is compared only with
 * those before it that share a bit; 64 bits keep most apart. `ret_plain` turns false, and the
 * answer means nothing, when a key is escaped. */
static const struct json *duplicate_of_few(const struct json *obj, bool *ret_plain)
{
    const struct json *keys[KEYS_FEW];
    const struct json *key = obj + 1;
    uint64_t seen = 0;

    assert(obj->type == JSON_OBJ && obj->count <= KEYS_FEW);
    *ret_plain = true;
    for (uint32_t i = 0; i < obj->count; i++, key += 1 + key[1].span) {
        uint32_t print = key->len;
        uint64_t bit;

        if (key->escaped)
            *ret_plain = false;
        if (key->len)
            print += 7 * (unsigned char)key->at[0] + 13 * (unsigned char)key->at[key->len - 1];
        bit = (uint64_t)1 << (print & 63);
        for (uint32_t k = 0; k < i && (seen & bit); k++)
            if (keys[k]->len == key->len && memcmp(keys[k]->at, key->at, key->len) == 0)
                return key;
        seen |= bit;
        keys[i] = key;
    }
    return NULL;
}

/* The same for many keys, or when one is escaped and has to be read first. */
static const struct json *duplicate_of_many(const struct json *obj)
{
    const struct json *key = obj + 1;
    const struct json *twice = NULL;
    struct arena scratch = {0};
    struct map seen = {0};

    for (uint32_t i = 0; i < obj->count && !twice; i++, key = json_next(key + 1)) {
        struct str name = json_str(key, &scratch);

        if (map_get(&seen, name))
            twice = key;
        else
            map_put(&seen, name, (void *)key);
    }
    map_free(&seen);
    arena_free(&scratch);
    return twice;
}

/* After an opening bracket; `ret_empty` is set when the closing one follows at once. */
static bool open_level(struct parse *p, enum json_type type, bool *ret_empty)
{
    uint32_t index = p->count;
    struct json *token;

    assert(p->depth <= p->depth_max && p->depth_max <= JSON_DEPTH_MAX);
    if (p->depth == p->depth_max)
        return fail(p, "fewer levels");
    token = add_token(p, type);
    p->at++;
    *ret_empty = next_byte(p) == (type == JSON_OBJ ? '}' : ']');
    if (*ret_empty) {
        p->at++;
        token->len = (uint32_t)(p->at - token->at);
        return true;
    }
    token->count = 1;
    p->open[p->depth++] = index;
    return type == JSON_ARR || read_key(p);
}

/* One value, or the opening of one; `ret_whole` says whether it is complete. */
static bool read_value(struct parse *p, bool *ret_whole)
{
    const char *end;

    *ret_whole = true;
    switch (next_byte(p)) {
    case '{':
        return open_level(p, JSON_OBJ, ret_whole);
    case '[':
        return open_level(p, JSON_ARR, ret_whole);
    case '"':
        p->at++;
        return read_string(p);
    case 't':
        return read_word(p, STR("true"), JSON_TRUE);
    case 'f':
        return read_word(p, STR("false"), JSON_FALSE);
    case 'n':
        return read_word(p, STR("null"), JSON_NULL);
    default:
        if (p->at == p->end || (*p->at != '-' && (*p->at < '0' || *p->at > '9')))
            return fail(p, "a value");
        end = skip_number(p->at, p->end);
        if (!end)
            return fail(p, "a number");
        add_token(p, JSON_NUM)->len = (uint32_t)(end - p->at);
        p->at = end;
        return true;
    }
}

/* After a value: closes levels until another value is due or no level is open. */
static bool read_tail(struct parse *p)
{
    while (p->depth > 0) {
        struct json *parent = &p->tokens[p->open[p->depth - 1]];
        bool is_obj = parent->type == JSON_OBJ, done = false;
        const struct json *twice = NULL;
        char next = next_byte(p);

        if (next == ',') {
            p->at++;
            parent->count++;
            return !is_obj || read_key(p);
        }
        if (next != (is_obj ? '}' : ']'))
            return fail(p, is_obj ? "',' or '}'" : "',' or ']'");
        p->at++;
        p->depth--;
        assert(parent->count > 0 && p->count > p->open[p->depth]);
        parent->len = (uint32_t)(p->at - parent->at);
        parent->span = p->count - p->open[p->depth];
        if (is_obj && parent->count <= KEYS_FEW)
            twice = duplicate_of_few(parent, &done);
        if (is_obj && !done)
            twice = duplicate_of_many(parent);
        if (twice) {
            p->at = twice->at - 1;
            return fail(p, "a key that the object does not have yet");
        }
    }
    return true;
}

static void more_tokens(struct parse *p)
{
    size_t size = p->cap * sizeof *p->tokens;

    p->tokens = arena_resize(p->arena, p->tokens, size, 2 * size);
    p->cap *= 2;
}

static enum err parse_text(struct str text, uint32_t depth_max, struct arena *arena,
                           const struct json **ret_root, struct problem *why)
{
    struct parse p; /* not zeroed as a whole: `open` is large and does not need it */
    bool good, whole;

    if (text.len > UINT32_MAX / 2)
        return problem_set(why, ERR_TOO_LARGE, "", "The JSON text is longer than 2 GiB.");
    p.arena = arena;
    p.count = 0;
    p.depth = 0;
    p.depth_max = depth_max;
    p.start = text.at ? text.at : "";
    p.at = p.start;
    p.end = p.start + text.len;
    p.cap = (uint32_t)text.len / 8 + 8;
    p.tokens = arena_raw(arena, p.cap * sizeof *p.tokens);
    do {
        if (p.cap - p.count < ROUND_TOKENS)
            more_tokens(&p);
        good = read_value(&p, &whole) && (!whole || read_tail(&p));
    } while (good && p.depth > 0);
    if (good) {
        next_byte(&p);
        good = p.at == p.end || fail(&p, "nothing behind the value");
    }
    if (!good)
        return problem_set(why, ERR_BAD_JSON, "", "Byte %zu: expected %s.",
                           (size_t)(p.at - p.start), p.expected);
    assert(p.count > 0 && p.tokens[0].span == p.count);
    *ret_root = arena_resize(arena, p.tokens, p.cap * sizeof *p.tokens, p.count * sizeof *p.tokens);
    return ERR_OK;
}

enum err json_parse(struct str text, struct arena *arena, const struct json **ret_root,
                    struct problem *why)
{
    return parse_text(text, JSON_DEPTH_MAX, arena, ret_root, why);
}

enum err json_parse_body(struct str text, struct arena *arena, const struct json **ret_root,
                         struct problem *why)
{
    return parse_text(text, JSON_DEPTH_BODY, arena, ret_root, why);
}
