/* Sessions: which pool and language pair a session used last. Written only when that changed; a
 * bounded cache of recent sessions avoids most lookups. */
#ifndef STORE_SESSIONS_H
#define STORE_SESSIONS_H

#include "base/map.h"
#include "store/chain.h"

#include <stdint.h>

struct journal;

enum { SESSIONS_KEPT_MAX = 4096 };

struct sessions {
    struct map known;   /* id -> struct session */
    struct chain order; /* oldest first */
};

void sessions_init(struct sessions *sessions);
void sessions_free(struct sessions *sessions);
/* Notes that the session used this pool now. An unchanged session is rewritten when it is older
 * than `refresh_ms`, so that retention keeps it; 0 = never. */
void sessions_note(struct sessions *sessions, struct journal *journal, struct str id,
                   struct str pool, struct str lang_pair, int64_t now_ms, int64_t refresh_ms);

#endif
