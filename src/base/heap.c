/* The usual array heap; each node knows its position, so any node can be moved or removed. */
#include "base/heap.h"

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/str.h"

enum { HEAP_CAP_MIN = 16 };

bool heap_before(const struct heap_node *a, const struct heap_node *b)
{
    return a->key != b->key ? a->key < b->key : a->tie < b->tie;
}

static void place(struct heap *heap, struct heap_node *node, size_t at)
{
    heap->nodes[at] = node;
    node->at = at + 1;
}

static void sift_down(struct heap *heap, struct heap_node *node, size_t at)
{
    for (size_t child; (child = 2 * at + 1) < heap->count; at = child) {
        if (child + 1 < heap->count && heap_before(heap->nodes[child + 1], heap->nodes[child]))
            child++;
        if (!heap_before(heap->nodes[child], node))
            break;
        place(heap, heap->nodes[child], at);
    }
    place(heap, node, at);
}

static void sift(struct heap *heap, struct heap_node *node, size_t at)
{
    assert(at < heap->count);
    while (at > 0 && heap_before(node, heap->nodes[(at - 1) / 2])) {
        place(heap, heap->nodes[(at - 1) / 2], at);
        at = (at - 1) / 2;
    }
    sift_down(heap, node, at);
}

void heap_add(struct heap *heap, struct heap_node *node)
{
    assert(node->at == 0);
    if (heap->count == heap->cap) {
        heap->cap = heap->cap ? heap->cap * 2 : HEAP_CAP_MIN;
        heap->nodes = mem_resize(heap->nodes, heap->cap * sizeof heap->nodes[0]);
    }
    heap->count++;
    sift(heap, node, heap->count - 1);
}

void heap_move(struct heap *heap, struct heap_node *node, int64_t key)
{
    node->key = key;
    if (node->at == 0) {
        heap_add(heap, node);
        return;
    }
    assert(node->at <= heap->count && heap->nodes[node->at - 1] == node);
    sift(heap, node, node->at - 1);
}

/* The lower half are heaps of one node; going up from there, each node is sifted into the two
 * ordered heaps below it. */
void heap_reorder(struct heap *heap)
{
    for (size_t at = heap->count / 2; at-- > 0;)
        sift_down(heap, heap->nodes[at], at);
}

void heap_del(struct heap *heap, struct heap_node *node)
{
    struct heap_node *last;
    size_t at = node->at;

    if (at == 0)
        return;
    assert(at <= heap->count && heap->nodes[at - 1] == node);
    last = heap->nodes[--heap->count];
    if (last != node)
        sift(heap, last, at - 1);
    node->at = 0;
}

struct heap_node *heap_top(const struct heap *heap)
{
    return heap->count ? heap->nodes[0] : NULL;
}

/* A node comes after its parent, so the next one is always a child of a node already found; a
 * second heap, of those children, finds it. */
size_t heap_first(const struct heap *heap, size_t max, struct heap_node **ret_nodes)
{
    size_t count = max < heap->count ? max : heap->count;
    struct seen {
        struct heap_node node; /* a copy of the one at `at` */
        size_t at;
    } *seen = mem_array(struct seen, 2 * count + 1);
    struct heap next = {0};
    size_t seen_count = 0;

    for (size_t found = 0, at = 0, end = 1; found < count; found++) {
        for (; at < end && at < heap->count; at++, seen_count++) {
            seen[seen_count] = (struct seen){
                .at = at, .node = {.key = heap->nodes[at]->key, .tie = heap->nodes[at]->tie}};
            heap_add(&next, &seen[seen_count].node);
        }
        at = container_of(heap_top(&next), struct seen, node)->at;
        heap_del(&next, heap_top(&next));
        ret_nodes[found] = heap->nodes[at];
        at = 2 * at + 1;
        end = at + 2;
    }
    heap_free(&next);
    free(seen);
    return count;
}

void heap_free(struct heap *heap)
{
    free(heap->nodes);
    *heap = (struct heap){0};
}
