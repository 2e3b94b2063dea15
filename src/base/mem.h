/* Memory of three kinds: the heap, arenas (many small pieces with the life of one request, freed in
 * one call) and slabs (objects of one size that come and go all the time).
 *
 * No allocation fails: a process that runs out of memory says so and aborts, because no caller
 * could do better and a check at every call would never be tested. */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stddef.h>

#include "base/str.h"

void *mem_alloc(size_t size);                 /* not zeroed */
void *mem_zeroed(size_t count, size_t size);  /* count * size, checked for overflow */
void *mem_resize(void *mem, size_t size);     /* like realloc */
char *mem_cstr(struct str text);              /* copy, NUL-terminated */
struct str mem_str(struct str text);          /* the same; free(text.at) */
enum { MEM_LINE = 64 };                       /* bytes the processor reads from memory at once */
void *mem_aligned(size_t align, size_t size); /* zeroed; `align` is a power of two */

#define mem_new(type)          ((type *)mem_zeroed(1, sizeof(type)))
#define mem_array(type, count) ((type *)mem_zeroed((count), sizeof(type)))

/* Memory with the life of one request: many small pieces, freed in one call. */

struct arena_chunk;

struct arena {
    struct arena_chunk *chunk; /* the newest; zero-initialised is an empty arena */
    size_t used;               /* of the newest chunk */
    struct arena_chunk *spare; /* kept by arena_rewind() */
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
/* Empties it and keeps all of its memory, for an owner that soon needs as much again: new memory
 * costs a page fault every 4 KiB. */
void arena_rewind(struct arena *arena);
void arena_free(struct arena *arena);

#define arena_new(arena, type)          ((type *)arena_alloc((arena), sizeof(type)))
#define arena_array(arena, type, count) ((type *)arena_alloc((arena), sizeof(type) * (count)))

/* Objects of one size, allocated and freed all the time by one thread: they come from blocks and go
 * back to a free list, so that most need neither the allocator nor the kernel. The blocks are kept
 * until slab_free(): memory stays at its high-water mark. The first object of a block begins at a
 * cache line. */

struct slab {
    size_t size;    /* of an object; set by the owner before the first use */
    bool is_random; /* set by the owner: read in random order, so many are put into large pages */
    struct slab_free *free;
    struct slab_block *blocks;
    size_t used; /* objects handed out */
};

void *slab_new(struct slab *slab); /* zeroed */
void slab_drop(struct slab *slab, void *thing);
void slab_free(struct slab *slab); /* everything, including objects still handed out */

#endif
