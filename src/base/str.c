/* Text: comparing, cutting and reading numbers out of borrowed bytes, the rules for ids and UTF-8,
 * and bytes that grow. */
#include "base/str.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/mem.h"

/* --- borrowed --- */

bool str_in(struct str a, const struct str *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (str_eq(list[i], a))
            return true;
    return false;
}

static unsigned char lower(char c)
{
    return (unsigned char)(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
}

bool str_eq_nocase(struct str a, struct str b)
{
    if (a.len != b.len)
        return false;
    for (size_t i = 0; i < a.len; i++)
        if (lower(a.at[i]) != lower(b.at[i]))
            return false;
    return true;
}

bool str_starts(struct str a, struct str prefix)
{
    return a.len >= prefix.len && (prefix.len == 0 || memcmp(a.at, prefix.at, prefix.len) == 0);
}

int str_cmp(struct str a, struct str b)
{
    size_t both = a.len < b.len ? a.len : b.len;
    int diff = both ? memcmp(a.at, b.at, both) : 0;

    if (diff)
        return diff;
    return a.len < b.len ? -1 : a.len > b.len;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

struct str str_trim(struct str a)
{
    while (a.len > 0 && is_blank(a.at[0])) {
        a.at++;
        a.len--;
    }
    while (a.len > 0 && is_blank(a.at[a.len - 1]))
        a.len--;
    return a;
}

struct str str_cut(struct str *rest, char sep)
{
    const char *hit = rest->len ? memchr(rest->at, sep, rest->len) : NULL;
    struct str head = *rest;

    if (!hit) {
        *rest = STR_NONE;
        return head;
    }
    head.len = (size_t)(hit - head.at);
    *rest = (struct str){.at = hit + 1, .len = rest->len - head.len - 1};
    return head;
}

bool str_int(struct str a, int64_t *ret_value)
{
    bool minus = a.len > 0 && a.at[0] == '-';
    int64_t value = 0;

    if (a.len == (size_t)minus)
        return false;
    /* Summed as a negative number, so that INT64_MIN fits. */
    for (size_t i = minus; i < a.len; i++) {
        if (a.at[i] < '0' || a.at[i] > '9')
            return false;
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_sub_overflow(value, a.at[i] - '0', &value))
            return false;
    }
    if (!minus && value == INT64_MIN)
        return false;
    *ret_value = minus ? value : -value;
    return true;
}

static const struct {
    struct str name;
    int64_t ms;
} units[] = {
    /* "ms" comes before "s", which is also its ending */
    {{"ms", 2}, 1},
    {{"s", 1}, 1000},
    {{"m", 1}, 60 * 1000},
    {{"h", 1}, 3600 * 1000},
    {{"d", 1}, 24 * 3600 * 1000},
};

bool str_duration_ms(struct str a, int64_t *ret_ms)
{
    int64_t unit_ms = 1;
    int64_t count;

    for (size_t i = 0; i < COUNT_OF(units); i++) {
        struct str name = units[i].name;

        if (a.len > name.len && memcmp(a.at + a.len - name.len, name.at, name.len) == 0) {
            a.len -= name.len;
            unit_ms = units[i].ms;
            break;
        }
    }
    if (!str_int(a, &count) || count < 0 || a.at[0] == '-')
        return false;
    return !__builtin_mul_overflow(count, unit_ms, ret_ms);
}

/* Random per process, so that no client can choose keys that collide. */
static uint64_t secret[3];

__attribute__((constructor)) static void draw_secret(void)
{
    if (getrandom(secret, sizeof secret, 0) != (ssize_t)sizeof secret)
        abort();
}

static uint64_t fold(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;

    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t load64(const char *at)
{
    uint64_t word;

    memcpy(&word, at, sizeof word);
    return word;
}

static uint64_t load32(const char *at)
{
    uint32_t word;

    memcpy(&word, at, sizeof word);
    return word;
}

/* Sixteen bytes a step, multiplied to 128 bits and folded. The tail is read as two overlapping
 * words instead of being padded; mixing in the length separates texts that would look alike. */
uint64_t str_hash(struct str a)
{
    uint64_t state = secret[0];
    uint64_t low = 0;
    uint64_t high = 0;
    const char *at = a.at;
    size_t left = a.len;

    for (; left > 16; at += 16, left -= 16)
        state = fold(load64(at) ^ secret[1], load64(at + 8) ^ state);
    if (left >= 8) {
        low = load64(at);
        high = load64(at + left - 8);
    } else if (left >= 4) {
        low = load32(at);
        high = load32(at + left - 4);
    } else if (left > 0) {
        low = (uint64_t)(unsigned char)at[0] << 16 | (uint64_t)(unsigned char)at[left / 2] << 8 |
              (unsigned char)at[left - 1];
    }
    state = fold(low ^ secret[1], high ^ state);
    return fold(state ^ secret[2], secret[0] ^ a.len);
}

bool str_copy(struct str a, char *to, size_t size)
{
    assert(size > 0);
    if (a.len >= size) {
        to[0] = '\0';
        return false;
    }
    if (a.len)
        memcpy(to, a.at, a.len);
    to[a.len] = '\0';
    return true;
}

int str_hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

size_t str_distance(struct str a, struct str b)
{
    size_t rows[3][STR_DISTANCE_MAX + 1];

    assert(a.len <= STR_DISTANCE_MAX && b.len <= STR_DISTANCE_MAX);
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

static const bool id_chars[256] = {
    ['a' ... 'z'] = true, ['A' ... 'Z'] = true, ['0' ... '9'] = true, ['.'] = true,
    ['_'] = true,         [':'] = true,         ['@'] = true,         ['-'] = true,
};

bool str_is_id(struct str a, size_t max)
{
    if (a.len == 0 || a.len > max || a.at[0] == '.')
        return false;
    for (size_t i = 0; i < a.len; i++)
        if (!id_chars[(unsigned char)a.at[i]])
            return false;
    return true;
}

bool str_is_name(struct str a, size_t max)
{
    struct str rest = a;
    struct str first = str_cut(&rest, '/');

    return a.len <= max && str_is_id(first, max) && (!rest.at || str_is_id(rest, max));
}

size_t str_utf8_len(struct str a)
{
    const unsigned char *at = (const unsigned char *)a.at;
    unsigned char least = 0x80; /* bounds of the second byte: no overlong form, no surrogate */
    unsigned char most = 0xbf;
    size_t len;

    if (a.len == 0)
        return 0;
    if (at[0] < 0x80)
        return 1;
    if (at[0] < 0xc2 || at[0] > 0xf4)
        return 0;
    len = at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : 4;
    if (at[0] == 0xe0)
        least = 0xa0;
    else if (at[0] == 0xed)
        most = 0x9f;
    else if (at[0] == 0xf0)
        least = 0x90;
    else if (at[0] == 0xf4)
        most = 0x8f;
    if (a.len < len || at[1] < least || at[1] > most)
        return 0;
    for (size_t i = 2; i < len; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    return len;
}

bool str_is_utf8(struct str a)
{
    while (a.len > 0) {
        size_t len;

        /* Most texts are ASCII: several words at a time. */
        if (a.len >= 32 &&
            ((load64(a.at) | load64(a.at + 8) | load64(a.at + 16) | load64(a.at + 24)) &
             EACH_BYTE(0x80)) == 0)
            len = 32;
        else if (a.len >= 8 && (load64(a.at) & EACH_BYTE(0x80)) == 0)
            len = 8;
        else
            len = str_utf8_len(a);
        if (len == 0)
            return false;
        a.at += len;
        a.len -= len;
    }
    return true;
}

/* Eight bytes of ASCII, none of them a control character. Each sum or difference that leaves its
 * byte does so into a top bit that is tested. */
static bool is_printable(uint64_t word)
{
    uint64_t above = word + EACH_BYTE(1);  /* 0x7f */
    uint64_t below = word - EACH_BYTE(32); /* 0x00 to 0x1f */

    return ((word | above | below) & EACH_BYTE(0x80)) == 0;
}

bool str_is_text(struct str a)
{
    bool words = a.len >= 8; /* there are eight bytes before its end */

    while (a.len > 0) {
        unsigned char first = (unsigned char)a.at[0];
        size_t len = 1;

        if (a.len >= 8 && is_printable(load64(a.at))) {
            a.at += 8;
            a.len -= 8;
            continue;
        }
        /* What is left is shorter: the last eight bytes, some of them once more. */
        if (a.len < 8 && words && is_printable(load64(a.at + a.len - 8)))
            return true;
        if (first < 0x20 || first == 0x7f)
            return false;
        if (first >= 0x80)
            len = str_utf8_len(a);
        if (len == 0 || (first == 0xc2 && (unsigned char)a.at[1] < 0xa0)) /* U+0080 to U+009F */
            return false;
        a.at += len;
        a.len -= len;
    }
    return true;
}

/* --- owned --- */

enum { BUF_CAP_MIN = 256 };

void buf_grow(struct buf *buf, size_t more)
{
    size_t need = buf->len + more;
    size_t cap = buf->cap ? buf->cap : BUF_CAP_MIN;

    assert(buf->len <= buf->cap && need >= more);
    while (cap < need)
        cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    buf->at = mem_resize(buf->at, cap);
    buf->cap = cap;
}

static size_t count_digits(uint64_t value)
{
    size_t count = 1;

    for (; value >= 10000; value /= 10000)
        count += 4;
    return count + (value >= 10) + (value >= 100) + (value >= 1000);
}

void buf_int(struct buf *buf, int64_t value)
{
    static const char pairs[] = "00010203040506070809101112131415161718192021222324"
                                "25262728293031323334353637383940414243444546474849"
                                "50515253545556575859606162636465666768697071727374"
                                "75767778798081828384858687888990919293949596979899";
    uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    char *to;

    buf_reserve(buf, 20);
    if (value < 0)
        buf_char(buf, '-');
    buf->len += count_digits(left);
    to = buf->at + buf->len; /* from the last digit on */
    for (; left >= 100; left /= 100)
        memcpy(to -= 2, pairs + left % 100 * 2, 2);
    if (left >= 10)
        memcpy(to - 2, pairs + left * 2, 2);
    else
        to[-1] = (char)('0' + left);
}

void buf_fmt(struct buf *buf, const char *fmt, ...)
{
    va_list args;
    va_list again;
    int len;

    buf_reserve(buf, 64);
    va_start(args, fmt);
    va_copy(again, args);
    len = vsnprintf(buf->at + buf->len, buf->cap - buf->len, fmt, args);
    va_end(args);
    assert(len >= 0);
    if ((size_t)len >= buf->cap - buf->len) {
        buf_reserve(buf, (size_t)len + 1);
        vsnprintf(buf->at + buf->len, buf->cap - buf->len, fmt, again);
    }
    va_end(again);
    buf->len += (size_t)len;
}

void buf_drop(struct buf *buf, size_t len)
{
    assert(len <= buf->len);
    buf->len -= len;
    if (buf->len > 0)
        memmove(buf->at, buf->at + len, buf->len);
}

void buf_free(struct buf *buf)
{
    free(buf->at);
    *buf = (struct buf){0};
}
