/* Bytes with a length (`str`, borrowed) and bytes that grow (`buf`, owned). */
#ifndef BASE_STR_H
#define BASE_STR_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))
#define COUNT_OF(array)                 (sizeof(array) / sizeof((array)[0]))
/* A word of eight such bytes. */
#define EACH_BYTE(value) (0x0101010101010101u * (value))

struct str {
    const char *at; /* not NUL-terminated */
    size_t len;
};

#define STR(literal) ((struct str){.at = (literal), .len = sizeof(literal) - 1})
#define STR_NONE     ((struct str){0})
#define STR_FMT      "%.*s"
#define STR_ARG(s)   (int)(s).len, (s).at

/* NULL gives STR_NONE. */
static inline struct str str_of(const char *text)
{
    return text ? (struct str){.at = text, .len = strlen(text)} : STR_NONE;
}

static inline bool str_eq(struct str a, struct str b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.at, b.at, a.len) == 0);
}

/* Inline, so that the compiler knows the length of a literal. */
static inline bool str_is(struct str a, const char *text)
{
    assert(text);
    return str_eq(a, str_of(text));
}

/* What follows the first `at` bytes. */
static inline struct str str_from(struct str a, size_t at)
{
    return (struct str){.at = a.at + at, .len = a.len - at};
}

bool str_in(struct str a, const struct str *list, size_t count); /* is `a` in the list? */
bool str_eq_nocase(struct str a, struct str b);                  /* ASCII */
bool str_starts(struct str a, struct str prefix);
int str_cmp(struct str a, struct str b);
struct str str_trim(struct str a); /* spaces and tabs at both ends */
/* Cuts *rest at the first `sep`: returns what is before it, leaves what follows (rest->at is
 * NULL when there was no `sep`). */
struct str str_cut(struct str *rest, char sep);
bool str_int(struct str a, int64_t *ret_value); /* decimal, whole text, no overflow */
/* "250ms", "5s", "2m", "1h", "1d" or plain milliseconds -> ms. */
bool str_duration_ms(struct str a, int64_t *ret_ms);
uint64_t str_hash(struct str a);
/* Copies with a NUL; false (and an empty string) when it does not fit. */
bool str_copy(struct str a, char *to, size_t size);
int str_hex_digit(char c); /* its value; -1: not a hex digit */
/* Edit distance: insertions, deletions, changes and swaps that turn `a` into `b`. */
enum { STR_DISTANCE_MAX = 64 }; /* bytes of each */
size_t str_distance(struct str a, struct str b);
/* 1 to `max` characters of [A-Za-z0-9._:@-], not starting with '.': safe in a URL, a log, a file
 * name. */
bool str_is_id(struct str a, size_t max);
/* An id, or two of them with a '/' between; 1 to `max` characters in all. */
bool str_is_name(struct str a, size_t max);
bool str_is_utf8(struct str a);
/* Bytes of the UTF-8 character that `a` starts with: 1 to 4; 0 when it is none or `a` is empty. */
size_t str_utf8_len(struct str a);
/* Valid UTF-8 without control characters (C0, DEL, C1): safe to show. */
bool str_is_text(struct str a);

/* Bytes that grow. Zero-initialised is empty; running out of memory aborts the process. */
struct buf {
    char *at;
    size_t len;
    size_t cap;
};

void buf_grow(struct buf *buf, size_t more); /* buf_reserve() when there is no room yet */

/* Makes room for `more` bytes after len. Inline, like the functions below: called for every few
 * bytes written, and nearly always there is room already. */
static inline void buf_reserve(struct buf *buf, size_t more)
{
    if (__builtin_expect(more > buf->cap - buf->len, 0))
        buf_grow(buf, more);
}

static inline void buf_add(struct buf *buf, const void *bytes, size_t len)
{
    if (len == 0)
        return;
    buf_reserve(buf, len);
    memcpy(buf->at + buf->len, bytes, len);
    buf->len += len;
}

static inline void buf_str(struct buf *buf, struct str text)
{
    buf_add(buf, text.at, text.len);
}

static inline void buf_char(struct buf *buf, char c)
{
    buf_reserve(buf, 1);
    buf->at[buf->len++] = c;
}

void buf_int(struct buf *buf, int64_t value);
__attribute__((format(printf, 2, 3))) void buf_fmt(struct buf *buf, const char *fmt, ...);
void buf_drop(struct buf *buf, size_t len); /* the first `len` bytes */
void buf_free(struct buf *buf);

/* Keeps the memory. */
static inline void buf_clear(struct buf *buf)
{
    buf->len = 0;
}

static inline struct str buf_view(const struct buf *buf)
{
    return (struct str){.at = buf->at, .len = buf->len};
}

#endif
