/* A human-readable dump of a whole store: nodes with their counters and resources, leases, jobs,
 * sessions, breakers, rules for keys, the state of each key, instances. Read-only and needs no
 * server, though one may be running. */
#ifndef STORE_DUMP_H
#define STORE_DUMP_H

#include "base/err.h"
#include "base/json.h"

enum { DUMP_MAX_DEFAULT = 1000, DUMP_MAX = 1000000 };

/* Writes one object. `max` limits jobs and sessions (newest first) and keys; `more` in the output
 * means some were left out. */
enum err store_dump(const char *url, const char *data_dir, size_t max, struct jsonw *w,
                    struct problem *why);
enum err dump_embedded(const char *data_dir, size_t max, struct jsonw *w, struct problem *why);

#endif
