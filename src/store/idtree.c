/* A tree by id that is also a heap by rank. Ranks are as good as random, so it is about as deep as
 * a balanced one, in whatever order ids come and go. */
#include "store/idtree.h"

#include <assert.h>
#include <stddef.h>

/* Ids next to each other get ranks that have nothing in common (splitmix64). */
static uint64_t rank_of(const struct idtree_node *node)
{
    uint64_t id = node->id + 0x9e3779b97f4a7c15u;

    id = (id ^ id >> 30) * 0xbf58476d1ce4e5b9u;
    id = (id ^ id >> 27) * 0x94d049bb133111ebu;
    return id ^ id >> 31;
}

/* Into those below `id` and the others. */
static void split(struct idtree_node *root, uint64_t id, struct idtree_node **ret_left,
                  struct idtree_node **ret_right)
{
    while (root) {
        if (root->id < id) {
            *ret_left = root;
            ret_left = &root->right;
            root = root->right;
        } else {
            *ret_right = root;
            ret_right = &root->left;
            root = root->left;
        }
    }
    *ret_left = *ret_right = NULL;
}

void idtree_add(struct idtree *tree, struct idtree_node *node)
{
    uint64_t rank = rank_of(node);
    struct idtree_node **at = &tree->root;

    assert(!node->inside);
    while (*at && rank_of(*at) > rank) {
        assert((*at)->id != node->id);
        at = (*at)->id < node->id ? &(*at)->right : &(*at)->left;
    }
    split(*at, node->id, &node->left, &node->right);
    *at = node;
    node->inside = true;
}

void idtree_del(struct idtree *tree, struct idtree_node *node)
{
    struct idtree_node **at = &tree->root;
    struct idtree_node *left = node->left, *right = node->right;

    if (!node->inside)
        return;
    while (*at != node)
        at = (*at)->id < node->id ? &(*at)->right : &(*at)->left;
    while (left && right) { /* the higher rank comes up, all of `left` stays before `right` */
        if (rank_of(left) > rank_of(right)) {
            *at = left;
            at = &left->right;
            left = left->right;
        } else {
            *at = right;
            at = &right->left;
            right = right->left;
        }
    }
    *at = left ? left : right;
    node->left = node->right = NULL;
    node->inside = false;
}

struct idtree_node *idtree_below(const struct idtree *tree, uint64_t id)
{
    struct idtree_node *found = NULL;

    for (struct idtree_node *node = tree->root; node;) {
        if (node->id < id)
            found = node;
        node = node->id < id ? node->right : node->left;
    }
    return found;
}

struct idtree_node *idtree_above(const struct idtree *tree, uint64_t id)
{
    struct idtree_node *found = NULL;

    for (struct idtree_node *node = tree->root; node;) {
        if (node->id > id)
            found = node;
        node = node->id > id ? node->left : node->right;
    }
    return found;
}
