/* What is loaded on this machine, from a file kept by the program that loads it: one name per line.
 * Read periodically by a pool thread, so that a hanging disk blocks nothing else. */
#ifndef AGENT_LOADED_H
#define AGENT_LOADED_H

#include "base/json.h"
#include "base/str.h"
#include "io/loop.h"

enum { LOADED_FILE_BYTES_MAX = 8192, LOADED_PATH_MAX = 2048 };

struct loaded {
    struct loop *loop;
    void (*changed)(struct loaded *loaded); /* on the loop: the list changed */

    /* private */
    struct loop_job job;
    bool busy; /* the pool thread uses the next three */
    char path[LOADED_PATH_MAX + 1];
    char read[LOADED_FILE_BYTES_MAX + 1];
    int64_t result; /* bytes read, or -errno */
    int64_t last_result;
    bool known;      /* it was read at least once */
    struct buf text; /* as last read */
    struct buf list; /* JSON, last valid list; empty: there never was one */
};

void loaded_init(struct loaded *loaded, struct loop *loop, void (*changed)(struct loaded *loaded));
void loaded_done(struct loaded *loaded); /* after loop_done */
/* Reads the file unless the last read is still under way. path.at == NULL: nothing is loaded. */
void loaded_look(struct loaded *loaded, struct str path);
/* Writes "loaded" into an open object; nothing while it is unknown. */
void loaded_write(const struct loaded *loaded, struct jsonw *w);

#endif
