/* Things of one size: zeroed, apart from each other, used again after they were dropped. */
#include "base/slab.h"
#include "unit.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 5000, SIZE = 120 };

static void test_things_are_zeroed_and_apart(void **state)
{
    struct slab slab = {.size = SIZE};
    unsigned char *things[MANY];

    for (int i = 0; i < MANY; i++) {
        static const unsigned char nothing[SIZE];

        things[i] = slab_new(&slab);
        assert_int_equal((uintptr_t)things[i] % _Alignof(max_align_t), 0);
        assert_memory_equal(things[i], nothing, SIZE);
        memset(things[i], i & 0xff, SIZE);
    }
    for (int i = 0; i < MANY; i++)
        for (int at = 0; at < SIZE; at++)
            assert_int_equal(things[i][at], i & 0xff);
    assert_int_equal(slab.used, MANY);
    slab_free(&slab);
    assert_int_equal(slab.used, 0);
}

/* A slab that is filled and emptied for ever takes no more memory than it once needed. */
static void test_what_was_dropped_is_used_again(void **state)
{
    struct slab slab = {.size = SIZE};
    void *first = slab_new(&slab);
    struct slab_block *blocks = slab.blocks;

    for (int i = 0; i < 100 * MANY; i++) {
        slab_drop(&slab, first);
        assert_ptr_equal(slab_new(&slab), first);
    }
    assert_ptr_equal(slab.blocks, blocks);
    slab_free(&slab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_things_are_zeroed_and_apart),
        cmocka_unit_test(test_what_was_dropped_is_used_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
