/* A short text that one thread writes now and then and any thread may read at any time, without a
 * lock: a reader that meets a writer looks again. */
#ifndef SCHED_SHARED_TEXT_H
#define SCHED_SHARED_TEXT_H

#include <stdatomic.h>

#include "base/str.h"

enum { BLACKBOARD_BYTES_MAX = 4096 };

struct blackboard;

struct blackboard *blackboard_new(void);
void blackboard_free(struct blackboard *board); /* NULL is fine; nobody reads any more */
/* False: it does not fit, or somebody else writes at this moment. */
bool blackboard_write(struct blackboard *board, struct str text);
/* The same on the board of a place that may have none yet; any thread. An empty text makes none. */
bool blackboard_put(_Atomic(struct blackboard *) *place, struct str text);
/* Appends the text; false when nothing was written yet. */
bool blackboard_read(struct blackboard *board, struct buf *out);

#endif
