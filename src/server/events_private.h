/* What the files of the event stream share. */
#ifndef SERVER_EVENTS_PRIVATE_H
#define SERVER_EVENTS_PRIVATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/namespace.h"

/* One event as it is sent; shared by the loops it goes to and by what is kept. */
struct frame {
    _Atomic int refs;
    int64_t seq;
    uint64_t job;                      /* 0: not of a job, and for everybody */
    char namespace[NAMESPACE_MAX + 1]; /* of the job */
    bool host;                         /* of the list of members */
    struct frame *next;                /* the keeper's, of those kept */
    size_t len;
    char text[];
};

void frame_unref(struct frame *frame);

#endif
