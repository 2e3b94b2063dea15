/* A binary heap of entries that live inside other structs, smallest (key, then tie) first. */
#ifndef BASE_HEAP_H
#define BASE_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct heap_node {
    int64_t key;
    uint64_t tie; /* orders equal keys: an id, a sequence number */
    size_t at;    /* position + 1; 0 when it is in no heap */
};

struct heap {
    struct heap_node **nodes;
    size_t count;
    size_t cap;
};

bool heap_before(const struct heap_node *a, const struct heap_node *b);
void heap_add(struct heap *heap, struct heap_node *node); /* node->key and tie are set */
void heap_move(struct heap *heap, struct heap_node *node, int64_t key); /* adds it if needed */
void heap_reorder(struct heap *heap); /* after any number of keys were changed in place */
void heap_del(struct heap *heap, struct heap_node *node); /* no-op if it is in no heap */
struct heap_node *heap_top(const struct heap *heap);      /* NULL when empty */
/* The first `max` nodes in order, without removing them; visits at most twice as many. Returns how
 * many were found. */
size_t heap_first(const struct heap *heap, size_t max, struct heap_node **ret_nodes);
void heap_free(struct heap *heap);

#endif
