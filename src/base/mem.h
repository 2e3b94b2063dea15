/* Heap memory that is always there: a process that cannot have it says so and aborts, because no
 * caller could do better and a check at every call would never be tested. */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stddef.h>

void *mem_alloc(size_t size);                 /* not zeroed */
void *mem_zeroed(size_t count, size_t size);  /* count * size, checked for overflow */
void *mem_resize(void *mem, size_t size);     /* like realloc */
void *mem_aligned(size_t align, size_t size); /* zeroed; `align` is a power of two */

#define mem_new(type)          ((type *)mem_zeroed(1, sizeof(type)))
#define mem_array(type, count) ((type *)mem_zeroed((count), sizeof(type)))

#endif
