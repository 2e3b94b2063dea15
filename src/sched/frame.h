/* Several messages in one text, for another instance or for a socket that takes them later: each is
 * preceded by its length in four bytes, little-endian. */
#ifndef SCHED_FRAME_H
#define SCHED_FRAME_H

#include "base/str.h"

size_t frame_begin(struct buf *buf); /* starts a frame */
/* ends the frame; begun: what frame_begin returned */
void frame_end(struct buf *buf, size_t begun);
/* Cuts off the next frame; false when there is none, or the rest is malformed. */
bool frame_next(struct str *rest, struct str *ret_frame);

#endif
