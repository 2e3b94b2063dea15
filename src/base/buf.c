/* Bytes that grow: the owned half of str.h. */
#include "base/mem.h"
#include "base/str.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUF_CAP_MIN = 256 };

void buf_reserve(struct buf *buf, size_t more)
{
    size_t need = buf->len + more;
    size_t cap = buf->cap ? buf->cap : BUF_CAP_MIN;

    assert(buf->len <= buf->cap && need >= more);
    if (need <= buf->cap)
        return;
    while (cap < need)
        cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    buf->at = mem_resize(buf->at, cap);
    buf->cap = cap;
}

void buf_add(struct buf *buf, const void *bytes, size_t len)
{
    if (len == 0)
        return;
    buf_reserve(buf, len);
    memcpy(buf->at + buf->len, bytes, len);
    buf->len += len;
}

void buf_str(struct buf *buf, struct str text)
{
    buf_add(buf, text.at, text.len);
}

void buf_char(struct buf *buf, char c)
{
    buf_reserve(buf, 1);
    buf->at[buf->len++] = c;
}

void buf_int(struct buf *buf, int64_t value)
{
    char digits[20];
    size_t at = sizeof digits;
    uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;

    do {
        digits[--at] = (char)('0' + left % 10);
        left /= 10;
    } while (left > 0);
    if (value < 0)
        digits[--at] = '-';
    buf_add(buf, digits + at, sizeof digits - at);
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

void buf_clear(struct buf *buf)
{
    buf->len = 0;
}

void buf_free(struct buf *buf)
{
    free(buf->at);
    *buf = (struct buf){0};
}

struct str buf_view(const struct buf *buf)
{
    return (struct str){.at = buf->at, .len = buf->len};
}
