/* malloc and friends, minus the NULL. */
#include "base/mem.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

void *mem_aligned(size_t align, size_t size)
{
    size_t whole = (size + align - 1) & ~(align - 1); /* aligned_alloc wants a multiple */

    assert(align > 0 && (align & (align - 1)) == 0 && whole >= size);
    return memset(must(aligned_alloc(align, whole), whole), 0, whole);
}
