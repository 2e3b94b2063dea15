/* A tree of numbers compared with a plain list, and its depth. */
#include "../unit.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/tree.h"

#include <stdlib.h>

enum { ENTRIES = 512, STEPS = 200000, MANY = 100000, DEPTH_MAX = 80 };

struct entry {
    uint64_t key;
    struct tree_node node;
};

static int compare_keys(const void *key, const struct tree_node *node)
{
    uint64_t a = *(const uint64_t *)key;
    uint64_t b = container_of(node, struct entry, node)->key;

    return a < b ? -1 : a > b;
}

static void test_as_a_list(void **state)
{
    static struct entry entries[ENTRIES];
    struct tree tree = {.compare = compare_keys};
    struct rnd rnd;

    rnd_seed(&rnd, 3);
    for (uint64_t key = 0; key < ENTRIES; key++)
        entries[key].key = key;
    for (int i = 0; i < STEPS; i++) {
        uint64_t key = rnd_below(&rnd, ENTRIES);
        struct tree_node *node = &entries[key].node, *before = NULL, *after = NULL;

        if (!node->rank && rnd_below(&rnd, 2))
            tree_add(&tree, node, &key);
        else
            tree_del(&tree, node, &key); /* also of missing keys */
        for (uint64_t at = key; !before && at-- > 0;)
            before = entries[at].node.rank ? &entries[at].node : NULL;
        for (uint64_t at = key; !after && ++at < ENTRIES;)
            after = entries[at].node.rank ? &entries[at].node : NULL;
        assert_ptr_equal(tree_find(&tree, &key), node->rank ? node : NULL);
        assert_ptr_equal(tree_before(&tree, &key), before);
        assert_ptr_equal(tree_after(&tree, &key), after);
        assert_ptr_equal(tree_from(&tree, &key), node->rank ? node : after);
        if (i % 256 == 0)
            tree_check(&tree);
    }
}

static size_t depth_of(const struct tree_node *node)
{
    size_t left = node ? depth_of(node->left) : 0;
    size_t right = node ? depth_of(node->right) : 0;

    return node ? 1 + (left > right ? left : right) : 0;
}

/* Keys ascending, descending and far apart: a call visits a few dozen nodes at most. */
static void test_stays_shallow(void **state)
{
    static const uint64_t steps[] = {1, UINT64_MAX, 1000003, UINT64_C(1) << 40};
    struct entry *entries = mem_array(struct entry, MANY);

    for (size_t k = 0; k < sizeof steps / sizeof *steps; k++) {
        struct tree tree = {.compare = compare_keys};

        for (size_t i = 0; i < MANY; i++) {
            entries[i] = (struct entry){.key = steps[k] * (i + 1)};
            tree_add(&tree, &entries[i].node, &entries[i].key);
        }
        assert_true(depth_of(tree.root) < DEPTH_MAX);
    }
    free(entries);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_a_list),
        cmocka_unit_test(test_stays_shallow),
    };

    return cmocka_run_group_tests_name("base/tree", tests, NULL, NULL);
}
