/* What is known of sessions, read through the layers of model/cache.h. Each loop has its
 * own; that a session was written is noted for all loops of this instance, another instance's
 * writing is seen when L1 has run out. */
#ifndef SERVER_SESSION_CACHE_H
#define SERVER_SESSION_CACHE_H

#include "base/str.h"

#include <stdatomic.h>

enum { SESSION_MARKS = 16384 };

/* One for the server: how often sessions were written, by hash. Two that share a mark are read once
 * too often, nothing worse. */
struct session_marks {
    _Atomic uint32_t marks[SESSION_MARKS];
};

void session_written(struct session_marks *marks, struct str session);

struct session_cache;
struct session_cache *session_cache_new(void);
void session_cache_free(struct session_cache *cache);

#endif
