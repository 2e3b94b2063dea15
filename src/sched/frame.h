/* Several messages to another instance in one text: each with its length before it, four bytes,
 * little end first. */
#ifndef SCHED_FRAME_H
#define SCHED_FRAME_H

#include "base/str.h"

size_t frame_begin(struct buf *buf);           /* what is added from here on is one frame, until */
void frame_end(struct buf *buf, size_t begun); /* this, with what frame_begin returned */
/* Cuts the next frame off; false when there is none, or what is left is no frame. */
bool frame_next(struct str *rest, struct str *ret_frame);

#endif
