/* A short text that one thread writes now and then and any thread may read at any time, without a
 * lock: a reader that overlaps with a write tries again. */
#ifndef SCHED_SHARED_TEXT_H
#define SCHED_SHARED_TEXT_H

#include <stdatomic.h>

#include "base/str.h"

enum { SHARED_TEXT_BYTES_MAX = 4096 };

struct shared_text;

struct shared_text *shared_text_new(void);
void shared_text_free(struct shared_text *board); /* NULL is fine; there must be no more readers */
/* False: it does not fit, or another thread is writing at this moment. */
bool shared_text_write(struct shared_text *board, struct str text);
/* The same for a place that may have no board yet; any thread. An empty text creates none. */
bool shared_text_put(_Atomic(struct shared_text *) *place, struct str text);
/* Appends the text; false when nothing was written yet. */
bool shared_text_read(struct shared_text *board, struct buf *out);

#endif
