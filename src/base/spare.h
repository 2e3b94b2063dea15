/* Buffers that a thread has used and may use again: what is written at every request, and gone with
 * it, needs no memory of its own. */
#ifndef BASE_SPARE_H
#define BASE_SPARE_H

#include "base/str.h"

/* An empty buffer, mostly with memory that was another's before. */
struct buf spare_take(void);
/* Instead of buf_free(), by the thread that has it now. */
void spare_give(struct buf *buf);

#endif
