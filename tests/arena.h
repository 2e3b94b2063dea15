/* An arena as the state of each test. */
#ifndef TESTS_ARENA_H
#define TESTS_ARENA_H

#include <stdlib.h>

#include "base/mem.h"

static inline int arena_setup(void **state)
{
    *state = mem_new(struct arena);
    return 0;
}

static inline int arena_teardown(void **state)
{
    arena_free(*state);
    free(*state);
    return 0;
}

#endif
