/* Memory with the life of one request: many small pieces, freed in one call. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include "base/str.h"

struct arena_chunk;

struct arena {
    struct arena_chunk *chunk; /* the newest; zero-initialised is an empty arena */
    size_t used;               /* of the newest chunk */
};

void *arena_alloc(struct arena *arena, size_t size); /* zeroed, aligned to 16 */
void *arena_raw(struct arena *arena, size_t size);   /* the same, not zeroed */
/* Grows or shrinks what arena_alloc or arena_raw gave: in place when it was the last piece, else a
 * copy. New bytes are not zeroed. */
void *arena_resize(struct arena *arena, void *mem, size_t old_size, size_t size);
struct str arena_str(struct arena *arena, struct str text); /* copy, NUL-terminated */
char *arena_cstr(struct arena *arena, struct str text);
__attribute__((format(printf, 2, 3))) struct str arena_fmt(struct arena *arena, const char *fmt,
                                                           ...);
/* Empties it but keeps one chunk of modest size, so that the next request need not allocate. */
void arena_reset(struct arena *arena);
void arena_free(struct arena *arena);

#define arena_new(arena, type)          ((type *)arena_alloc((arena), sizeof(type)))
#define arena_array(arena, type, count) ((type *)arena_alloc((arena), sizeof(type) * (count)))

#endif
