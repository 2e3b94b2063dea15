/* Bytes with a length (`str`, borrowed) and bytes that grow (`buf`, owned). */
#ifndef BASE_STR_H
#define BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))
#define COUNT_OF(array)                 (sizeof(array) / sizeof((array)[0]))

struct str {
    const char *at; /* not NUL-terminated */
    size_t len;
};

#define STR(literal) ((struct str){.at = (literal), .len = sizeof(literal) - 1})
#define STR_NONE     ((struct str){0})
#define STR_FMT      "%.*s"
#define STR_ARG(s)   (int)(s).len, (s).at

struct str str_of(const char *text); /* NULL gives STR_NONE */
bool str_eq(struct str a, struct str b);
bool str_is(struct str a, const char *text);
bool str_eq_nocase(struct str a, struct str b); /* ASCII */
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
/* 1 to `max` characters out of [A-Za-z0-9._:@-], not starting with '.': safe in a URL, a log, a
 * file. */
bool str_is_id(struct str a, size_t max);
/* An id, or two of them with a '/' between; 1 to `max` characters in all. */
bool str_is_name(struct str a, size_t max);
bool str_is_utf8(struct str a);
/* Bytes of the UTF-8 character that `a` starts with: 1 to 4; 0 when it is none or `a` is empty. */
size_t str_utf8_len(struct str a);
/* Valid UTF-8 without control characters (C0, DEL, C1): safe to show. */
bool str_is_text(struct str a);

/* Bytes that grow. Zero-initialised is empty; memory that cannot be had aborts the process. */
struct buf {
    char *at;
    size_t len;
    size_t cap;
};

void buf_reserve(struct buf *buf, size_t more); /* room for `more` bytes behind len */
void buf_add(struct buf *buf, const void *bytes, size_t len);
void buf_str(struct buf *buf, struct str text);
void buf_char(struct buf *buf, char c);
void buf_int(struct buf *buf, int64_t value);
__attribute__((format(printf, 2, 3))) void buf_fmt(struct buf *buf, const char *fmt, ...);
void buf_drop(struct buf *buf, size_t len); /* the first `len` bytes */
void buf_clear(struct buf *buf);            /* keeps the memory */
void buf_free(struct buf *buf);
struct str buf_view(const struct buf *buf);

#endif
