/* Memory: malloc and friends without the NULL, arenas of chunks that double in size, slabs with a
 * free list. */
#include "base/mem.h"

#include <assert.h>
#include <sanitizer/asan_interface.h>
#include <stdalign.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* --- the heap --- */

static void *must(void *mem, size_t size)
{
    if (!mem) {
        fprintf(stderr, "event=out_of_memory bytes=%zu\n", size);
        abort();
    }
    return mem;
}

void *mem_alloc(size_t size)
{
    assert(size > 0);
    return must(malloc(size), size);
}

void *mem_zeroed(size_t count, size_t size)
{
    assert(count > 0 && size > 0);
    return must(calloc(count, size), size);
}

void *mem_resize(void *mem, size_t size)
{
    assert(size > 0);
    return must(realloc(mem, size), size);
}

char *mem_cstr(struct str text)
{
    char *copy = mem_alloc(text.len + 1);

    if (text.len)
        memcpy(copy, text.at, text.len);
    copy[text.len] = '\0';
    return copy;
}

struct str mem_str(struct str text)
{
    return (struct str){.at = mem_cstr(text), .len = text.len};
}

void *mem_aligned(size_t align, size_t size)
{
    size_t whole = (size + align - 1) & ~(align - 1); /* aligned_alloc wants a multiple */

    assert(align > 0 && (align & (align - 1)) == 0 && whole >= size);
    return memset(must(aligned_alloc(align, whole), whole), 0, whole);
}

/* --- arenas --- */

/* Chunks that double in size, filled from the front. Under the address sanitiser all memory that is
 * not handed out is poisoned, with a gap after each piece, so that an overrun or a use after
 * arena_reset is caught as it would be with malloc. */

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ARENA_ASAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define ARENA_ASAN 1
#endif

#ifdef ARENA_ASAN
enum { ARENA_GAP = 16 };
#else
enum { ARENA_GAP = 0 };
#endif

enum {
    ARENA_ALIGN = 16,
    CHUNK_MIN = 4096,
    CHUNK_MAX = 256 * 1024,
    CHUNK_KEEP_MAX = 16 * 1024, /* kept by an idle connection at most */
};

struct arena_chunk {
    struct arena_chunk *older;
    size_t size; /* of data */
    _Alignas(ARENA_ALIGN) char data[];
};

static size_t padded(size_t size)
{
    assert(size <= PTRDIFF_MAX - 2 * ARENA_ALIGN); /* a count that overflowed */
    return ((size + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1)) + ARENA_GAP;
}

static void chunk_free(struct arena_chunk *chunk)
{
    ASAN_UNPOISON_MEMORY_REGION(chunk->data, chunk->size);
    free(chunk);
}

/* Those that are too small are freed, so that there are never more than were needed at once. */
static struct arena_chunk *take_spare(struct arena *arena, size_t need)
{
    struct arena_chunk *chunk = arena->spare;

    for (; chunk && chunk->size < need; chunk = arena->spare) {
        arena->spare = chunk->older;
        chunk_free(chunk);
    }
    if (chunk)
        arena->spare = chunk->older;
    return chunk;
}

static struct arena_chunk *chunk_new(const struct arena *arena, size_t need)
{
    size_t size = arena->chunk ? arena->chunk->size * 2 : CHUNK_MIN - sizeof(struct arena_chunk);
    struct arena_chunk *chunk;

    if (size > CHUNK_MAX)
        size = CHUNK_MAX;
    /* One large piece at the beginning does not decide that the next chunk is too large to keep. */
    while (size < need && 2 * size <= CHUNK_KEEP_MAX)
        size *= 2;
    if (size < need)
        size = need;
    chunk = mem_alloc(sizeof *chunk + size);
    chunk->size = size;
    ASAN_POISON_MEMORY_REGION(chunk->data, size);
    return chunk;
}

static void add_chunk(struct arena *arena, size_t need)
{
    struct arena_chunk *chunk = take_spare(arena, need);

    if (!chunk)
        chunk = chunk_new(arena, need);
    chunk->older = arena->chunk;
    arena->chunk = chunk;
    arena->used = 0;
}

void *arena_raw(struct arena *arena, size_t size)
{
    size_t need = padded(size);
    void *mem;

    if (!arena->chunk || arena->chunk->size - arena->used < need)
        add_chunk(arena, need);
    mem = arena->chunk->data + arena->used;
    arena->used += need;
    assert(arena->used <= arena->chunk->size);
    ASAN_UNPOISON_MEMORY_REGION(mem, size);
    return mem;
}

void *arena_alloc(struct arena *arena, size_t size)
{
    return memset(arena_raw(arena, size), 0, size);
}

/* The newest chunk holds only this piece: grows both, so that no old copy of it is left over. */
static void *grow_chunk(struct arena *arena, size_t size)
{
    struct arena_chunk *chunk = arena->chunk;

    assert(padded(size) > chunk->size);
    ASAN_UNPOISON_MEMORY_REGION(chunk->data, chunk->size);
    chunk->size = padded(size);
    chunk = mem_resize(chunk, sizeof *chunk + chunk->size);
    ASAN_POISON_MEMORY_REGION(chunk->data, chunk->size);
    ASAN_UNPOISON_MEMORY_REGION(chunk->data, size);
    arena->chunk = chunk;
    arena->used = chunk->size;
    return chunk->data;
}

void *arena_resize(struct arena *arena, void *mem, size_t old_size, size_t size)
{
    size_t old_need = padded(old_size);
    size_t need = padded(size);
    bool last = arena->chunk && arena->used >= old_need &&
                (char *)mem == arena->chunk->data + arena->used - old_need;
    void *copy;

    assert(mem && (uintptr_t)mem % ARENA_ALIGN == 0);
    if (last && arena->chunk->size - (arena->used - old_need) >= need) {
        arena->used = arena->used - old_need + need;
        ASAN_POISON_MEMORY_REGION(mem, old_size);
        ASAN_UNPOISON_MEMORY_REGION(mem, size);
        return mem;
    }
    if (size <= old_size)
        return mem;
    if (last && arena->used == old_need)
        return grow_chunk(arena, size);
    copy = arena_raw(arena, size);
    return memcpy(copy, mem, old_size);
}

struct str arena_str(struct arena *arena, struct str text)
{
    char *copy = arena_raw(arena, text.len + 1);

    if (text.len)
        memcpy(copy, text.at, text.len);
    copy[text.len] = '\0';
    return (struct str){.at = copy, .len = text.len};
}

char *arena_cstr(struct arena *arena, struct str text)
{
    return (char *)arena_str(arena, text).at;
}

struct str arena_fmt(struct arena *arena, const char *fmt, ...)
{
    va_list args;
    char *text;
    int len;

    va_start(args, fmt);
    len = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    assert(len >= 0);
    text = arena_raw(arena, (size_t)len + 1);
    va_start(args, fmt);
    vsnprintf(text, (size_t)len + 1, fmt, args);
    va_end(args);
    return (struct str){.at = text, .len = (size_t)len};
}

static void free_spare(struct arena *arena)
{
    for (struct arena_chunk *chunk = arena->spare, *older; chunk; chunk = older) {
        older = chunk->older;
        chunk_free(chunk);
    }
    arena->spare = NULL;
}

void arena_reset(struct arena *arena)
{
    struct arena_chunk *keep = NULL;

    free_spare(arena);
    for (struct arena_chunk *chunk = arena->chunk, *older; chunk; chunk = older) {
        older = chunk->older;
        if (!keep && chunk->size <= CHUNK_KEEP_MAX) {
            keep = chunk;
            keep->older = NULL;
            ASAN_POISON_MEMORY_REGION(keep->data, keep->size);
        } else {
            chunk_free(chunk);
        }
    }
    arena->chunk = keep;
    arena->used = 0;
}

void arena_rewind(struct arena *arena)
{
    for (struct arena_chunk *chunk = arena->chunk, *older; chunk; chunk = older) {
        older = chunk->older;
        chunk->older = arena->spare;
        arena->spare = chunk;
        ASAN_POISON_MEMORY_REGION(chunk->data, chunk->size);
    }
    arena->chunk = NULL;
    arena->used = 0;
}

void arena_free(struct arena *arena)
{
    arena_rewind(arena);
    free_spare(arena);
    *arena = (struct arena){0};
}

/* --- slabs --- */

enum { BLOCK_MIN = 32 * 1024, BLOCK_MAX = 256 * 1024, LARGE_PAGE = 2 << 20 };

struct slab_free {
    struct slab_free *next;
};

struct slab_block {
    struct slab_block *next;
    size_t size;
    alignas(MEM_LINE) char bytes[];
};

static size_t stride(const struct slab *slab)
{
    size_t align = alignof(max_align_t);

    return (slab->size + align - 1) / align * align;
}

/* Within bounds, as large as all blocks before it. Thousands of objects that are read in random
 * order would each be in a page of their own, and finding a page costs as much as reading the
 * object: a large page holds many. The kernel may have to make one, which takes a while. */
static struct slab_block *block_new(const struct slab *slab)
{
    size_t size = slab->used * stride(slab);
    bool large = slab->is_random && size >= LARGE_PAGE;

    size = large ? LARGE_PAGE : size < BLOCK_MIN ? BLOCK_MIN : size > BLOCK_MAX ? BLOCK_MAX : size;
    size = (size + MEM_LINE - 1) / MEM_LINE * MEM_LINE;
    struct slab_block *block = must(aligned_alloc(large ? LARGE_PAGE : MEM_LINE, size), size);
    if (large)
        madvise(block, size, MADV_HUGEPAGE); /* refused: it only costs more to read */
    block->size = size;
    return block;
}

static void grow(struct slab *slab)
{
    struct slab_block *block = block_new(slab);
    size_t step = stride(slab);
    size_t room = block->size - sizeof *block;

    assert(slab->size >= sizeof(struct slab_free) && step <= room);
    block->next = slab->blocks;
    slab->blocks = block;
    for (size_t at = room / step; at-- > 0;) {
        struct slab_free *thing = (struct slab_free *)(block->bytes + at * step);

        thing->next = slab->free;
        slab->free = thing;
        ASAN_POISON_MEMORY_REGION(thing, step);
    }
}

void *slab_new(struct slab *slab)
{
    struct slab_free *thing;

    if (!slab->free)
        grow(slab);
    thing = slab->free;
    ASAN_UNPOISON_MEMORY_REGION(thing, stride(slab));
    slab->free = thing->next;
    slab->used++;
    return memset(thing, 0, slab->size);
}

void slab_drop(struct slab *slab, void *thing)
{
    struct slab_free *freed = thing;

    assert(thing && slab->used > 0);
    slab->used--;
    freed->next = slab->free;
    slab->free = freed;
    ASAN_POISON_MEMORY_REGION(thing, stride(slab));
}

void slab_free(struct slab *slab)
{
    for (struct slab_block *block = slab->blocks, *next; block; block = next) {
        next = block->next;
        ASAN_UNPOISON_MEMORY_REGION(block, block->size);
        free(block);
    }
    *slab = (struct slab){.size = slab->size, .is_random = slab->is_random};
}
