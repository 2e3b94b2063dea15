/* The whole state of a store, readable, for people: nodes with their counters and resources,
 * leases, jobs, sessions, breakers, rules for keys and what is known of each key, instances.
 * Changes nothing and needs no server; one may run meanwhile. */
#ifndef STORE_DUMP_H
#define STORE_DUMP_H

#include "base/err.h"
#include "base/json.h"

enum { DUMP_MAX_DEFAULT = 1000, DUMP_MAX = 1000000 };

/* Writes one object. `max`: jobs and sessions, the newest, and keys; `more` says that there are
 * others. */
enum err store_dump(const char *url, const char *data_dir, size_t max, struct jsonw *w,
                    struct problem *why);
enum err dump_embedded(const char *data_dir, size_t max, struct jsonw *w, struct problem *why);

#endif
