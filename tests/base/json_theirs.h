/* A text as jansson reads it, as a plain dump. In a file of its own, since its names collide with
 * ours. */
#ifndef TESTS_BASE_JSON_THEIRS_H
#define TESTS_BASE_JSON_THEIRS_H

#include "base/str.h"

enum theirs { THEIRS_REFUSED, THEIRS_ACCEPTED, THEIRS_BEYOND };

/* Appends the values in order, each with its type: `{2 s1:a i1 s1:b r0x1p+0 ` for {"a":1,"b":1.0}.
 * THEIRS_BEYOND: valid so far, but jansson cannot represent it. */
enum theirs theirs_dump(struct str text, struct buf *dump, int *ret_depth);

#endif
