/* The heap compared with a search through all nodes. */
#include "../unit.h"
#include "base/clock.h"
#include "base/heap.h"

enum { NODES = 300, STEPS = 30000 };

static struct heap_node nodes[NODES];

static struct heap_node *smallest(void)
{
    struct heap_node *best = NULL;

    for (int i = 0; i < NODES; i++)
        if (nodes[i].at && (!best || nodes[i].key < best->key ||
                            (nodes[i].key == best->key && nodes[i].tie < best->tie)))
            best = &nodes[i];
    return best;
}

static void test_top_is_the_smallest(void **state)
{
    struct heap heap = {0};
    struct rnd rnd;

    rnd_seed(&rnd, 3);
    for (int i = 0; i < NODES; i++)
        nodes[i] = (struct heap_node){.tie = (uint64_t)i};
    assert_null(heap_top(&heap));
    for (int step = 0; step < STEPS; step++) {
        struct heap_node *node = &nodes[rnd_below(&rnd, NODES)];
        int64_t key = (int64_t)rnd_below(&rnd, 50) - 25; /* few keys, so many ties */

        switch (rnd_below(&rnd, 4)) {
        case 0:
            heap_del(&heap, node);
            assert_int_equal(node->at, 0);
            break;
        case 1:
            if (heap_top(&heap))
                heap_del(&heap, heap_top(&heap));
            break;
        default:
            heap_move(&heap, node, key);
            assert_int_equal(node->key, key);
            break;
        }
        assert_ptr_equal(heap_top(&heap), smallest());
    }
    heap_free(&heap);
}

static void test_comes_out_in_order(void **state)
{
    struct heap heap = {0};
    struct rnd rnd;
    struct heap_node *last = NULL;
    int count = 0;

    rnd_seed(&rnd, 4);
    for (int i = 0; i < NODES; i++) {
        nodes[i] = (struct heap_node){.key = (int64_t)rnd_below(&rnd, 20), .tie = (uint64_t)i};
        heap_add(&heap, &nodes[i]);
    }
    for (int i = 0; i < NODES; i++)
        nodes[i].key = (int64_t)rnd_below(&rnd, 20);
    heap_reorder(&heap);
    for (struct heap_node *node; (node = heap_top(&heap)); last = node, count++) {
        heap_del(&heap, node);
        if (last)
            assert_true(last->key < node->key || (last->key == node->key && last->tie < node->tie));
    }
    assert_int_equal(count, NODES);
    heap_free(&heap);
}

/* The first nodes in order, any number of them, without removing them. */
static void test_first_in_order(void **state)
{
    struct heap heap = {0};
    struct heap_node *first[NODES + 1];
    struct rnd rnd;

    rnd_seed(&rnd, 5);
    assert_int_equal(heap_first(&heap, NODES, first), 0);
    for (int i = 0; i < NODES; i++) {
        nodes[i] = (struct heap_node){.key = (int64_t)rnd_below(&rnd, 20), .tie = (uint64_t)i};
        heap_add(&heap, &nodes[i]);
    }
    for (size_t max = 0; max <= NODES + 1; max++) {
        size_t count = heap_first(&heap, max, first);

        assert_int_equal(count, max < NODES ? max : NODES);
        assert_int_equal(heap.count, NODES);
        for (size_t i = 0; i < count; i++) {
            assert_ptr_equal(heap.nodes[first[i]->at - 1], first[i]);
            assert_true(i == 0 || first[i - 1]->key < first[i]->key ||
                        (first[i - 1]->key == first[i]->key && first[i - 1]->tie < first[i]->tie));
        }
        if (count)
            assert_ptr_equal(first[0], heap_top(&heap));
    }
    heap_free(&heap);
}

static void test_deleting_an_outsider_does_nothing(void **state)
{
    struct heap heap = {0};
    struct heap_node in = {.key = 5};
    struct heap_node out = {.key = 1};

    heap_add(&heap, &in);
    heap_del(&heap, &out);
    heap_del(&heap, &out);
    assert_int_equal(heap.count, 1);
    assert_ptr_equal(heap_top(&heap), &in);
    heap_free(&heap);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_top_is_the_smallest),
        cmocka_unit_test(test_comes_out_in_order),
        cmocka_unit_test(test_first_in_order),
        cmocka_unit_test(test_deleting_an_outsider_does_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
