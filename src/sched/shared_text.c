/* A sequence lock over relaxed atomic words: odd while it is written. */
#include "sched/shared_text.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { WORDS = SHARED_TEXT_BYTES_MAX / sizeof(uint64_t) };

struct shared_text {
    _Atomic uint32_t turn;
    _Atomic uint32_t len;
    _Atomic uint64_t words[WORDS];
};

struct shared_text *shared_text_new(void)
{
    return mem_new(struct shared_text);
}

void shared_text_free(struct shared_text *board)
{
    free(board);
}

bool shared_text_write(struct shared_text *board, struct str text)
{
    uint32_t turn = atomic_load_explicit(&board->turn, memory_order_relaxed);

    assert(text.at || !text.len);
    if (text.len > SHARED_TEXT_BYTES_MAX || turn % 2 ||
        !atomic_compare_exchange_strong_explicit(&board->turn, &turn, turn + 1,
                                                 memory_order_acquire, memory_order_relaxed))
        return false;
    assert(turn % 2 == 0); /* no other thread writes until it is even again */
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&board->len, (uint32_t)text.len, memory_order_relaxed);
    for (size_t i = 0; i * sizeof(uint64_t) < text.len; i++) {
        size_t left = text.len - i * sizeof(uint64_t);
        uint64_t word = 0;

        memcpy(&word, text.at + i * sizeof word, left < sizeof word ? left : sizeof word);
        atomic_store_explicit(&board->words[i], word, memory_order_relaxed);
    }
    atomic_store_explicit(&board->turn, turn + 2, memory_order_release);
    return true;
}

bool shared_text_put(_Atomic(struct shared_text *) *place, struct str text)
{
    struct shared_text *board = atomic_load(place);

    if (!board && !text.len)
        return true;
    if (!board) {
        struct shared_text *fresh = shared_text_new();

        if (atomic_compare_exchange_strong(place, &board, fresh))
            board = fresh;
        else
            shared_text_free(fresh); /* another thread was first */
    }
    return shared_text_write(board, text);
}

bool shared_text_read(struct shared_text *board, struct buf *out)
{
    uint64_t words[WORDS];
    uint32_t before, len;

    do {
        before = atomic_load_explicit(&board->turn, memory_order_acquire);
        len = atomic_load_explicit(&board->len, memory_order_relaxed);
        for (size_t i = 0; i * sizeof(uint64_t) < len; i++)
            words[i] = atomic_load_explicit(&board->words[i], memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
    } while (before % 2 || before != atomic_load_explicit(&board->turn, memory_order_relaxed));
    assert(len <= SHARED_TEXT_BYTES_MAX);
    if (!before)
        return false;
    buf_add(out, words, len);
    return true;
}
