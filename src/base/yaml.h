/* One YAML document as JSON text, for configuration files and specs written by hand. */
#ifndef BASE_YAML_H
#define BASE_YAML_H

#include "base/err.h"
#include "base/mem.h"

enum {
    YAML_BYTES_MAX = 1024 * 1024,
    YAML_DEPTH_MAX = 32, /* at most JSON_DEPTH_MAX: what comes out must be readable */
};

enum err yaml_too_large(struct problem *why); /* more than YAML_BYTES_MAX */
/* `ret_lines[i]` is the line that token i of json_parse() came from. Both live in the arena. */
enum err yaml_read(struct str yaml, struct arena *arena, struct str *ret_json,
                   const int **ret_lines, struct problem *why);

#endif
