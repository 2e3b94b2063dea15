/* A stream for eyes: of each job only the last event of every fifth of a second, and of a flood as
 * many as somebody could look at. A loop has one for all its readers of a namespace that asked for
 * it. */
#ifndef SERVER_THIN_H
#define SERVER_THIN_H

#include "server/events_private.h"

enum {
    THIN_MS = 200,
    THIN_FRAMES = 256,
    THIN_PLACES = 4 * THIN_FRAMES, /* a power of two */
};

struct thin {
    struct frame *frames[THIN_FRAMES]; /* each with a reference */
    size_t count;
    uint16_t places[THIN_PLACES]; /* by job: the frame's number + 1; 0: free */
    int64_t skipped;              /* events that found no room */
};

/* Keeps the frame, in the place of an earlier one of the same job. */
void thin_add(struct thin *thin, struct frame *frame);
void thin_sort(struct thin *thin); /* by number; only before thin_clear */
void thin_clear(struct thin *thin);

#endif
