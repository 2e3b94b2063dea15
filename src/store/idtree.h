/* Structs that hold their own links, in the order of a 64-bit id: what is asked for by range. A map
 * beside it finds one by its id. One thread each. */
#ifndef STORE_IDTREE_H
#define STORE_IDTREE_H

#include <stdbool.h>
#include <stdint.h>

struct idtree_node {
    uint64_t id;
    struct idtree_node *left, *right; /* smaller ids, larger ids */
    bool inside;
};

struct idtree {
    struct idtree_node *root;
};

void idtree_add(struct idtree *tree, struct idtree_node *node); /* node->id is set; no two alike */
void idtree_del(struct idtree *tree, struct idtree_node *node); /* not in it: nothing happens */
struct idtree_node *idtree_below(const struct idtree *tree, uint64_t id); /* the largest smaller */
struct idtree_node *idtree_above(const struct idtree *tree, uint64_t id); /* the smallest larger */

#endif
