/* A short text that one thread writes now and then and any thread may read at any time, without a
 * lock: a reader that meets a writer looks again. */
#ifndef SCHED_BLACKBOARD_H
#define SCHED_BLACKBOARD_H

#include "base/str.h"

enum { BLACKBOARD_BYTES_MAX = 4096 };

struct blackboard;

struct blackboard *blackboard_new(void);
void blackboard_free(struct blackboard *board); /* NULL is fine; nobody reads any more */
/* False: it does not fit, or somebody else writes at this moment. */
bool blackboard_write(struct blackboard *board, struct str text);
/* Appends the text; false when nothing was written yet. */
bool blackboard_read(struct blackboard *board, struct buf *out);

#endif
