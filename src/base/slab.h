/* Things of one size, made and freed all the time by one thread: they come from blocks and go back
 * to a free list, so that neither the allocator nor the kernel is asked for each of them. The
 * blocks are kept until the end: memory stays at its highest mark. */
#ifndef BASE_SLAB_H
#define BASE_SLAB_H

#include <stddef.h>

struct slab {
    size_t size; /* of a thing; set by the owner before the first use */
    struct slab_free *free;
    struct slab_block *blocks;
    size_t used; /* things that are out */
};

void *slab_new(struct slab *slab); /* zeroed */
void slab_drop(struct slab *slab, void *thing);
void slab_free(struct slab *slab); /* all of it, also what is still out */

#endif
