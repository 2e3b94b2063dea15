/* What is loaded where: names of models, images or data sets that a node holds ready and that a job
 * prefers to find there. Only names: berth does not know what they stand for. */
#ifndef MODEL_WARM_H
#define MODEL_WARM_H

#include "base/schema.h"

enum {
    WARM_NAME_MAX = 64,         /* bytes of a name */
    WARM_LOADED_MAX = 64,       /* names a node reports */
    WARM_PREFERS_MAX = 8,       /* names a job prefers */
    WARM_LIST_BYTES_MAX = 4096, /* of all that a node reports, as a JSON list */
};

#define WARM_NAME_RULE "names of 1 to 64 printable ASCII characters, without blank, quote or \\"

bool warm_is_name(struct str name);
/* Reads a list of at most `max` such names into the arena, without duplicates; an absent list is
 * empty. False: not such a list. */
bool warm_names(const struct json *list, size_t max, struct arena *arena, struct strs *ret_names);
/* A name as a number, never 0. Two names may share one: only the order of nodes depends on it. */
uint32_t warm_mark(struct str name);

#endif
