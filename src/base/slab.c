#include "base/slab.h"

#include "base/mem.h"

#include <assert.h>
#include <sanitizer/asan_interface.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 256 * 1024 };

struct slab_free {
    struct slab_free *next;
};

struct slab_block {
    struct slab_block *next;
    alignas(max_align_t) char bytes[];
};

static size_t stride(const struct slab *slab)
{
    size_t align = alignof(max_align_t);

    return (slab->size + align - 1) / align * align;
}

static void grow(struct slab *slab)
{
    struct slab_block *block = mem_alloc(BLOCK_BYTES);
    size_t step = stride(slab);
    size_t room = BLOCK_BYTES - sizeof *block;

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
        ASAN_UNPOISON_MEMORY_REGION(block, BLOCK_BYTES);
        free(block);
    }
    *slab = (struct slab){.size = slab->size};
}
