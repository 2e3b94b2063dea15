/* A set of names that remembers the order in which they came. Addresses are looked up by the
 * thousand in one claim cycle, so it is a table, not a list; its memory is the arena's. */
#ifndef MODEL_NAMES_H
#define MODEL_NAMES_H

#include "base/mem.h"

#define NAMES_NONE SIZE_MAX

struct names {
    struct str *at; /* borrowed texts, first seen first */
    size_t count;
    size_t max;
    uint32_t *slots; /* place in `at` + 1; 0 is free */
    size_t mask;
};

void names_init(struct names *names, size_t max, struct arena *arena);
size_t names_add(struct names *names, struct str name); /* its place, also when it was there */
size_t names_find(const struct names *names, struct str name); /* NAMES_NONE when it is not */

#endif
