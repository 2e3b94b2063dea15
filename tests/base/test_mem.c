/* Arenas and slabs. */
#include "base/mem.h"

#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../unit.h"

static void test_pieces_are_zeroed_aligned_and_apart(void **state)
{
    struct arena arena = {0};
    unsigned char *pieces[500];

    for (size_t i = 0; i < COUNT_OF(pieces); i++) {
        size_t size = i * 7 % 300;

        pieces[i] = arena_alloc(&arena, size);
        assert_int_equal((uintptr_t)pieces[i] % 16, 0);
        for (size_t k = 0; k < size; k++)
            assert_int_equal(pieces[i][k], 0);
        memset(pieces[i], (int)i, size);
    }
    for (size_t i = 0; i < COUNT_OF(pieces); i++)
        for (size_t k = 0; k < i * 7 % 300; k++)
            assert_int_equal(pieces[i][k], (unsigned char)i);
    arena_free(&arena);
    arena_free(&arena);
}

static void test_memory_is_zeroed_again_after_a_reset(void **state)
{
    struct arena arena = {0};

    for (int round = 0; round < 3; round++) {
        char *mem = arena_alloc(&arena, 1000);

        for (int i = 0; i < 1000; i++)
            assert_int_equal(mem[i], 0);
        memset(mem, 'x', 1000);
        arena_reset(&arena);
    }
    arena_free(&arena);
}

static void test_reset_keeps_a_small_chunk_only(void **state)
{
    struct arena arena = {0};
    struct arena_chunk *first;

    arena_alloc(&arena, 100);
    first = arena.chunk;
    arena_reset(&arena);
    assert_ptr_equal(arena.chunk, first);
    arena_alloc(&arena, 1024 * 1024);
    assert_ptr_not_equal(arena.chunk, first);
    arena_reset(&arena);
    assert_ptr_equal(arena.chunk, first); /* the megabyte was freed */
    arena_free(&arena);

    arena_alloc(&arena, 1024 * 1024);
    arena_reset(&arena);
    assert_null(arena.chunk);
    arena_free(&arena);
}

/* What is needed again and again is allocated once, whatever the sizes and their order. */
static void test_rewind_keeps_all(void **state)
{
    struct arena arena = {0};
    struct arena_chunk *chunks[3];

    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 3; i++) {
            char *mem = arena_raw(&arena, 1024 * 1024);

            memset(mem, round, 1024 * 1024);
            if (round == 0)
                chunks[i] = arena.chunk;
            assert_ptr_equal(arena.chunk, chunks[i]);
        }
        arena_rewind(&arena);
        assert_null(arena.chunk);
    }
    arena_raw(&arena, 2 * 1024 * 1024); /* none is large enough, so none is kept */
    assert_null(arena.spare);
    arena_rewind(&arena);
    assert_non_null(arena.spare);
    arena_reset(&arena);
    assert_null(arena.spare);
    arena_alloc(&arena, 100);
    arena_rewind(&arena);
    arena_free(&arena);
    assert_null(arena.spare);
}

static void test_resize(void **state)
{
    struct arena arena = {0};
    char *last = arena_raw(&arena, 32);
    char *grown;

    memset(last, 'a', 32);
    grown = arena_resize(&arena, last, 32, 200);
    assert_ptr_equal(grown, last); /* in place, as nothing came after it */
    memset(grown, 'b', 200);
    grown = arena_resize(&arena, grown, 200, 64);
    assert_ptr_equal(grown, last);
    assert_true((char *)arena_raw(&arena, 1) - last <= 64 + 16); /* the rest was given back */
    grown = arena_resize(&arena, last, 64, 128);
    assert_ptr_not_equal(grown, last);
    for (int i = 0; i < 64; i++)
        assert_int_equal(grown[i], 'b');
    grown = arena_resize(&arena, grown, 128, 100000);
    for (int i = 0; i < 64; i++)
        assert_int_equal(grown[i], 'b');
    /* Not the last piece, so it stays. */
    assert_ptr_equal(arena_resize(&arena, last, 64, 16), last);
    arena_free(&arena);
}

/* A list that doubles, as in the JSON reader, must not leave all its smaller copies behind. */
static void test_growing_alone_keeps_one_copy(void **state)
{
    struct arena arena = {0};
    struct mallinfo2 before = mallinfo2();
    struct mallinfo2 now;
    size_t size = 5000;
    char *mem;

    arena_alloc(&arena, 100);
    mem = arena_raw(&arena, size);
    memset(mem, 'a', size);
    for (; size < 1000000; size *= 2) {
        mem = arena_resize(&arena, mem, size, 2 * size);
        assert_int_equal(mem[0], 'a');
        assert_int_equal(mem[size - 1], 'a');
        memset(mem, 'a', 2 * size);
    }
    assert_true(arena.used >= size && arena.used < size + 64);
    now = mallinfo2(); /* all zero under a sanitiser */
    assert_true(now.uordblks + now.hblkhd < before.uordblks + before.hblkhd + size + size / 2);
    arena_reset(&arena);
    assert_non_null(arena.chunk); /* the first chunk, which never moved */
    assert_non_null(arena_alloc(&arena, 10));
    arena_free(&arena);
}

static void test_texts(void **state)
{
    struct arena arena = {0};
    struct str text = arena_fmt(&arena, "%s-%d", "job", 41);

    assert_str(text, "job-41");
    assert_int_equal(text.at[text.len], '\0');
    text = arena_str(&arena, STR("abc"));
    assert_str(text, "abc");
    assert_int_equal(text.at[3], '\0');
    assert_string_equal(arena_cstr(&arena, STR("xy")), "xy");
    assert_string_equal(arena_cstr(&arena, STR_NONE), "");
    arena_free(&arena);
}

/* --- slab --- */

/* Items of one size: zeroed, separate, and reused after they were dropped. */

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

/* Objects of whole cache lines begin at one, also in large pages. */
static void test_things_of_a_line_are_aligned(void **state)
{
    enum { LINES = 3 * MEM_LINE, BYTES = 5 << 20, COUNT = BYTES / LINES };
    struct slab slab = {.size = LINES, .is_random = true};
    void **things = mem_array(void *, COUNT);

    for (size_t i = 0; i < COUNT; i++) {
        things[i] = slab_new(&slab);
        assert_int_equal((uintptr_t)things[i] % MEM_LINE, 0);
        memset(things[i], (int)(i & 0xff), LINES);
    }
    for (size_t i = 0; i < COUNT; i++) {
        assert_int_equal(*(unsigned char *)things[i], i & 0xff);
        slab_drop(&slab, things[i]);
    }
    assert_int_equal(slab.used, 0);
    slab_free(&slab);
    free(things);
}

/* A slab that is filled and emptied again and again needs no more memory than at its peak. */
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
        cmocka_unit_test(test_pieces_are_zeroed_aligned_and_apart),
        cmocka_unit_test(test_memory_is_zeroed_again_after_a_reset),
        cmocka_unit_test(test_reset_keeps_a_small_chunk_only),
        cmocka_unit_test(test_rewind_keeps_all),
        cmocka_unit_test(test_resize),
        cmocka_unit_test(test_growing_alone_keeps_one_copy),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_things_are_zeroed_and_apart),
        cmocka_unit_test(test_things_of_a_line_are_aligned),
        cmocka_unit_test(test_what_was_dropped_is_used_again),
    };

    return cmocka_run_group_tests_name("mem", tests, NULL, NULL);
}
