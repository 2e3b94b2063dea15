/* Why the disk part of the store failed; small enough for atomics, so any thread can read the
 * status. */
#ifndef STORE_FAULT_H
#define STORE_FAULT_H

#include <stddef.h>

enum {
    /* Instead of an SQLite code: */
    FAULT_NEWER = -1,   /* the file was written by a newer berth */
    FAULT_DAMAGED = -2, /* a batch of the journal is not what was written */
    FAULT_GAP = -3,     /* batches between store.db and the journal are missing */
};

struct fault {
    const char *what; /* a literal: the failed operation; NULL: no fault */
    int code;         /* SQLite's extended result code, or one of the above */
    int sys;          /* errno where it matters, else 0 */
};

void fault_text(const struct fault *fault, char *to,
                size_t size); /* "commit: disk I/O error ..." */

#endif
