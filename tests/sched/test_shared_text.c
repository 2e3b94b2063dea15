/* A text that one thread writes and any thread reads: complete or not at all. */
#include "rig.h"

#include "sched/shared_text.h"

#include <pthread.h>
#include <string.h>

static void what_was_written_is_read(void **state)
{
    static const size_t lens[] = {0, 1, 7, 8, 9, 63, 64, 4095, SHARED_TEXT_BYTES_MAX};
    char text[SHARED_TEXT_BYTES_MAX];
    struct shared_text *board = shared_text_new();
    struct buf out = {0};

    assert_false(shared_text_read(board, &out)); /* nothing written yet */
    for (size_t i = 0; i < COUNT_OF(lens); i++) {
        memset(text, 'a' + (int)i, sizeof text);
        assert_true(shared_text_write(board, (struct str){.at = text, .len = lens[i]}));
        buf_clear(&out);
        buf_str(&out, STR("before "));
        assert_true(shared_text_read(board, &out)); /* appends */
        assert_int_equal(out.len, 7 + lens[i]);
        assert_memory_equal(out.at + 7, text, lens[i]);
    }
    buf_free(&out);
    shared_text_free(board);
    shared_text_free(NULL);
}

static void what_does_not_fit_leaves_the_old(void **state)
{
    static const char large[SHARED_TEXT_BYTES_MAX + 1];
    struct shared_text *board = shared_text_new();
    struct buf out = {0};

    assert_true(shared_text_write(board, STR("old")));
    assert_false(shared_text_write(board, (struct str){.at = large, .len = sizeof large}));
    assert_true(shared_text_read(board, &out));
    assert_str(buf_view(&out), "old");
    buf_free(&out);
    shared_text_free(board);
}

enum { WRITES = 20000, READERS = 2, WRITERS = 2 };

struct shared {
    struct shared_text *board;
    _Atomic bool over;
};

/* Each text repeats one letter, 100 times its place in the alphabet, so that a torn one shows. */
static void *write_many(void *arg)
{
    struct shared *shared = arg;
    char text[26 * 100];

    for (int i = 0; i < WRITES; i++) {
        int letter = i % 26;

        memset(text, 'a' + letter, sizeof text);
        shared_text_write(shared->board,
                          (struct str){.at = text, .len = (size_t)(letter + 1) * 100});
    }
    return NULL;
}

static void *read_many(void *arg)
{
    struct shared *shared = arg;
    struct buf out = {0};

    while (!atomic_load(&shared->over)) {
        buf_clear(&out);
        if (!shared_text_read(shared->board, &out))
            continue;
        assert_true(out.len > 0 && out.len == (size_t)(out.at[0] - 'a' + 1) * 100);
        for (size_t i = 1; i < out.len; i++)
            assert_true(out.at[i] == out.at[0]);
    }
    buf_free(&out);
    return NULL;
}

static void a_reader_never_sees_half_a_text(void **state)
{
    struct shared shared = {.board = shared_text_new()};
    pthread_t readers[READERS], writers[WRITERS];

    for (int i = 0; i < READERS; i++)
        pthread_create(&readers[i], NULL, read_many, &shared);
    for (int i = 0; i < WRITERS; i++)
        pthread_create(&writers[i], NULL, write_many, &shared);
    for (int i = 0; i < WRITERS; i++)
        pthread_join(writers[i], NULL);
    atomic_store(&shared.over, true);
    for (int i = 0; i < READERS; i++)
        pthread_join(readers[i], NULL);
    shared_text_free(shared.board);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_is_read),
        cmocka_unit_test(what_does_not_fit_leaves_the_old),
        cmocka_unit_test(a_reader_never_sees_half_a_text),
    };

    return cmocka_run_group_tests_name("sched/shared_text", tests, NULL, NULL);
}
