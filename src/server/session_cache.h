/* A cache of sessions, with the layers of model/cache.h. Each loop has its own. A write to a
 * session invalidates it for all loops of this instance; another instance's write is seen once L1
 * has expired.
 */
#ifndef SERVER_SESSION_CACHE_H
#define SERVER_SESSION_CACHE_H

#include "base/str.h"

#include <stdatomic.h>

enum { SESSION_MARKS = 16384 };

/* One for the server: how often sessions were written, by hash. Two sessions that share a mark only
 * cost an extra read. */
struct session_marks {
    _Atomic uint32_t marks[SESSION_MARKS];
};

void session_written(struct session_marks *marks, struct str session);

struct session_cache;
struct session_cache *session_cache_new(void);
void session_cache_free(struct session_cache *cache);

#endif
