/* What is loaded on this machine, as whoever loads it keeps it in a file: one name a line. Looked
 * at again and again by a thread of the pool, so that a disk that hangs holds nobody up. */
#ifndef AGENT_LOADED_H
#define AGENT_LOADED_H

#include "base/json.h"
#include "base/str.h"
#include "io/loop.h"

enum { LOADED_FILE_BYTES_MAX = 8192, LOADED_PATH_MAX = 2048 };

struct loaded {
    struct loop *loop;
    void (*changed)(struct loaded *loaded); /* on the loop: the list is another */

    /* private */
    struct loop_job job;
    bool busy; /* the next three are the other thread's */
    char path[LOADED_PATH_MAX + 1];
    char read[LOADED_FILE_BYTES_MAX + 1];
    int64_t result; /* bytes read, or -errno */
    int64_t last_result;
    bool known;      /* it was read once */
    struct buf text; /* as last read */
    struct buf list; /* JSON, as last found right; empty: there never was one */
};

void loaded_init(struct loaded *loaded, struct loop *loop, void (*changed)(struct loaded *loaded));
void loaded_done(struct loaded *loaded); /* after loop_done */
/* Looks at the file, if the last look is over. path.at == NULL: nothing is loaded. */
void loaded_look(struct loaded *loaded, struct str path);
/* "loaded" into an open object; nothing as long as it is not known. */
void loaded_write(const struct loaded *loaded, struct jsonw *w);

#endif
