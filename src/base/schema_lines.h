/* Between schema.c and conf.c: reading a tree whose tokens come from known lines of a file. */
#ifndef BASE_SCHEMA_LINES_H
#define BASE_SCHEMA_LINES_H

#include "base/schema.h"

struct schema_lines {
    const struct json *root;
    const int *lines; /* of each token from the root on */
};

/* schema_read() with "Line 7: " in its messages. With lines, a required field of the top level may
 * be absent: flags and the environment come later, and conf_check() last. */
enum err schema_read_lines(const struct schema *schema, const struct json *obj,
                           const struct schema_lines *lines, void *out, struct arena *arena,
                           struct problem *why);
/* By name or alias; NULL when the table has neither. */
const struct field *schema_find(const struct field *fields, size_t count, struct str name);
/* The name that `name` was probably meant to be, NULL when none is near. */
const char *schema_nearest(const struct field *fields, size_t count, struct str name);

#endif
