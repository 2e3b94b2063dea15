/* Buffers that a thread keeps for reuse: text that is written for every request and dropped with it
 * needs no new memory. */
#ifndef BASE_SPARE_H
#define BASE_SPARE_H

#include "base/str.h"

/* An empty buffer, usually with memory left from an earlier use. */
struct buf spare_take(void);
/* Instead of buf_free(), on the thread that now owns the buffer. */
void spare_give(struct buf *buf);

#endif
