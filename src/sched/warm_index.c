/* A hash table of relaxed atomic words whose buckets never grow: (name, node) or 0. In a full
 * bucket a new entry replaces a random one: when that many nodes have a name, any of them will do.
 * A wrong entry costs a look at its node, whose own list is authoritative. */
#include "sched/warm_index.h"

#include <assert.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/mem.h"
#include "sched/shared_text.h"

enum { BUCKETS = 1024 };

_Static_assert((int)WARM_LIST_BYTES_MAX <= (int)SHARED_TEXT_BYTES_MAX, "a list can be shown");

struct warm_index {
    _Atomic uint64_t words[BUCKETS][WARM_INDEX_NODES];
};

struct warm_index *warm_index_new(void)
{
    return mem_new(struct warm_index);
}

void warm_index_free(struct warm_index *index)
{
    free(index);
}

static _Atomic uint64_t *bucket_of(struct warm_index *index, uint32_t mark)
{
    return index->words[mark % BUCKETS];
}

static uint64_t word_of(uint32_t mark, uint32_t number)
{
    assert(mark != 0);
    return (uint64_t)mark << 32 | number;
}

static void add(struct warm_index *index, uint32_t mark, uint32_t number)
{
    _Atomic uint64_t *words = bucket_of(index, mark);
    uint64_t word = word_of(mark, number);
    size_t at = WARM_INDEX_NODES;

    for (size_t i = 0; i < WARM_INDEX_NODES; i++) {
        uint64_t there = atomic_load_explicit(&words[i], memory_order_relaxed);

        if (there == word)
            return;
        if (!there && at == WARM_INDEX_NODES)
            at = i;
    }
    if (at == WARM_INDEX_NODES) /* full: which entry is replaced differs from node to node */
        at = (mark / BUCKETS + number) % WARM_INDEX_NODES;
    atomic_store_explicit(&words[at], word, memory_order_relaxed);
}

void warm_index_del(struct warm_index *index, uint32_t mark, uint32_t number)
{
    _Atomic uint64_t *words = bucket_of(index, mark);

    for (size_t i = 0; i < WARM_INDEX_NODES; i++) {
        uint64_t word = word_of(mark, number);

        atomic_compare_exchange_strong_explicit(&words[i], &word, 0, memory_order_relaxed,
                                                memory_order_relaxed);
    }
}

static bool has_mark(const uint32_t *marks, size_t count, uint32_t mark)
{
    for (size_t i = 0; i < count; i++)
        if (marks[i] == mark)
            return true;
    return false;
}

void warm_index_put(struct warm_index *index, struct node *node, const struct strs *names)
{
    uint32_t marks[WARM_LOADED_MAX];
    bool same = true;

    assert(names->count <= WARM_LOADED_MAX);
    for (size_t i = 0; i < names->count; i++)
        marks[i] = warm_mark(names->at[i]);
    for (size_t i = 0; i < WARM_LOADED_MAX; i++) {
        uint32_t now = i < names->count ? marks[i] : 0;
        uint32_t before = atomic_load_explicit(&node->loaded[i], memory_order_relaxed);

        if (before == now)
            continue;
        same = false;
        atomic_store_explicit(&node->loaded[i], now, memory_order_relaxed);
        if (before && !has_mark(marks, names->count, before))
            warm_index_del(index, before, node->number);
    }
    if (!same) {
        struct buf text = {0};
        struct jsonw w = jsonw_to(&text);

        jsonw_arr(&w);
        for (size_t i = 0; i < names->count; i++)
            jsonw_str(&w, names->at[i]);
        jsonw_end_arr(&w);
        shared_text_put(&node->loaded_names, names->count ? buf_view(&text) : STR(""));
        buf_free(&text);
    }
    for (size_t i = 0; i < names->count; i++)
        add(index, marks[i], node->number);
}

int32_t warm_index_has(const struct node *node, const uint32_t *marks, size_t count)
{
    int32_t found = 0;

    for (size_t i = 0; i < WARM_LOADED_MAX; i++) {
        uint32_t mark = atomic_load_explicit(&node->loaded[i], memory_order_relaxed);

        if (!mark)
            break;
        found += has_mark(marks, count, mark);
    }
    return found;
}

size_t warm_index_find(struct warm_index *index, uint32_t mark, struct rnd *rnd, size_t max,
                       uint32_t *out)
{
    _Atomic uint64_t *words = bucket_of(index, mark);
    uint32_t first = rnd_below(rnd, WARM_INDEX_NODES);
    size_t count = 0;

    for (uint32_t i = 0; i < WARM_INDEX_NODES && count < max; i++) {
        uint64_t word =
            atomic_load_explicit(&words[(first + i) % WARM_INDEX_NODES], memory_order_relaxed);

        if (word >> 32 == mark)
            out[count++] = (uint32_t)word;
    }
    return count;
}
