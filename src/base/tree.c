/* A treap: ordered by key from left to right, and a heap by rank from top to bottom. Ranks are as
 * good as random, which makes it about as deep as a balanced tree. */
#include "base/tree.h"

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>

/* Of its address: neighbours in memory get ranks that have nothing in common (splitmix64). */
static uint64_t rank_of(const struct tree_node *node)
{
    uint64_t rank = (uintptr_t)node + 0x9e3779b97f4a7c15u;

    rank = (rank ^ rank >> 30) * 0xbf58476d1ce4e5b9u;
    rank = (rank ^ rank >> 27) * 0x94d049bb133111ebu;
    return (rank ^ rank >> 31) | 1;
}

void tree_add(struct tree *tree, struct tree_node *node, const void *key)
{
    struct tree_node **at = &tree->root;
    struct tree_node **left = &node->left, **right = &node->right;
    struct tree_node *rest;

    assert(!node->rank);
    node->rank = rank_of(node);
    while (*at && (*at)->rank > node->rank)
        at = tree->compare(key, *at) < 0 ? &(*at)->left : &(*at)->right;
    rest = *at;
    *at = node;
    while (rest) { /* split the nodes below into those before and those after the new one */
        int order = tree->compare(key, rest);

        assert(order != 0);
        if (order > 0) {
            *left = rest;
            left = &rest->right;
            rest = rest->right;
        } else {
            *right = rest;
            right = &rest->left;
            rest = rest->left;
        }
    }
    *left = *right = NULL;
}

void tree_del(struct tree *tree, struct tree_node *node, const void *key)
{
    struct tree_node **at = &tree->root;
    struct tree_node *left = node->left, *right = node->right;

    if (!node->rank)
        return;
    while (*at != node)
        at = tree->compare(key, *at) < 0 ? &(*at)->left : &(*at)->right;
    while (left && right) { /* the higher rank moves up; all of `left` stays before `right` */
        if (left->rank > right->rank) {
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
    *node = (struct tree_node){0};
}

struct tree_node *tree_find(const struct tree *tree, const void *key)
{
    struct tree_node *node = tree->root;
    int order;

    while (node && (order = tree->compare(key, node)) != 0)
        node = order < 0 ? node->left : node->right;
    return node;
}

/* The first node to which `key` compares as `max` or less. */
static struct tree_node *first_after(const struct tree *tree, const void *key, int max)
{
    struct tree_node *found = NULL;

    for (struct tree_node *node = tree->root; node;) {
        bool is_after = tree->compare(key, node) <= max;

        if (is_after)
            found = node;
        node = is_after ? node->left : node->right;
    }
    return found;
}

struct tree_node *tree_before(const struct tree *tree, const void *key)
{
    struct tree_node *found = NULL;

    for (struct tree_node *node = tree->root; node;) {
        bool is_before = tree->compare(key, node) > 0;

        if (is_before)
            found = node;
        node = is_before ? node->right : node->left;
    }
    return found;
}

struct tree_node *tree_from(const struct tree *tree, const void *key)
{
    return first_after(tree, key, 0);
}

struct tree_node *tree_after(const struct tree *tree, const void *key)
{
    return first_after(tree, key, -1);
}

static void check_ranks(const struct tree_node *node, uint64_t max)
{
    if (!node)
        return;
    assert(node->rank > 0 && node->rank <= max);
    check_ranks(node->left, node->rank);
    check_ranks(node->right, node->rank);
}

void tree_check(const struct tree *tree)
{
    check_ranks(tree->root, UINT64_MAX);
}
