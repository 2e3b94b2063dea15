/* A search tree of entries that live inside other structs, ordered by its `compare`: for range
 * queries. A treap: about as deep as a balanced tree, in whatever order entries are added and
 * removed. Each tree belongs to one thread. */
#ifndef BASE_TREE_H
#define BASE_TREE_H

#include <stdint.h>

struct tree_node {
    struct tree_node *left, *right; /* nodes before this one, nodes after it */
    uint64_t rank;                  /* no child has a larger one; 0: in no tree */
};

/* Below 0: `key` comes before the node; 0: it is the node's own key. */
typedef int tree_compare(const void *key, const struct tree_node *node);

struct tree {
    struct tree_node *root;
    tree_compare *compare;
};

/* `key` is the node's own; no two nodes have the same. */
void tree_add(struct tree *tree, struct tree_node *node, const void *key);
/* no-op if it is in no tree */
void tree_del(struct tree *tree, struct tree_node *node, const void *key);
struct tree_node *tree_find(const struct tree *tree, const void *key);
/* NULL: none. `key` itself need not be in the tree. */
struct tree_node *tree_before(const struct tree *tree, const void *key);
struct tree_node *tree_from(const struct tree *tree, const void *key); /* with this key, or after */
struct tree_node *tree_after(const struct tree *tree, const void *key);
void tree_check(const struct tree *tree); /* for tests: aborts if a rank is out of order */

#endif
