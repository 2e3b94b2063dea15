/* Each length is written once its text is complete. */
#include "sched/frame.h"

#include <assert.h>

enum { LENGTH_BYTES = 4 };

size_t frame_begin(struct buf *buf)
{
    buf_add(buf, "\0\0\0\0", LENGTH_BYTES);
    return buf->len;
}

void frame_end(struct buf *buf, size_t begun)
{
    size_t len = buf->len - begun;

    assert(begun >= LENGTH_BYTES && begun <= buf->len && len <= UINT32_MAX);
    for (int i = 0; i < LENGTH_BYTES; i++)
        buf->at[begun - LENGTH_BYTES + (size_t)i] = (char)(len >> (8 * i));
}

bool frame_next(struct str *rest, struct str *ret_frame)
{
    size_t len = 0;

    if (rest->len < LENGTH_BYTES)
        return false;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        len = len << 8 | (unsigned char)rest->at[i];
    if (len > rest->len - LENGTH_BYTES)
        return false;
    *ret_frame = (struct str){.at = rest->at + LENGTH_BYTES, .len = len};
    rest->at += LENGTH_BYTES + len;
    rest->len -= LENGTH_BYTES + len;
    return true;
}
