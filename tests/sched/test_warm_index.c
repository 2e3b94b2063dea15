#include "../unit.h"

#include "sched/warm_index.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>

static void put(struct warm_index *index, struct node *node, const char *first, const char *second)
{
    struct str names[2];
    struct strs list = {.at = names};

    if (first)
        names[list.count++] = str_of(first);
    if (second)
        names[list.count++] = str_of(second);
    warm_index_put(index, node, &list);
}

static void test_what_is_loaded_is_found(void **state)
{
    struct warm_index *index = warm_index_new();
    struct node *node = mem_new(struct node), *other = mem_new(struct node);
    uint32_t a = warm_mark(STR("a")), b = warm_mark(STR("b")), both[] = {a, b}, out[4];
    struct rnd rnd;

    rnd_seed(&rnd, 1);
    node->number = 7;
    other->number = 8;
    put(index, node, "a", "b");
    put(index, other, "b", NULL);
    assert_int_equal(warm_index_has(node, both, 2), 2);
    assert_int_equal(warm_index_has(other, both, 2), 1);
    assert_int_equal(warm_index_find(index, a, &rnd, 4, out), 1);
    assert_int_equal(out[0], 7);
    assert_int_equal(warm_index_find(index, b, &rnd, 4, out), 2);
    assert_int_equal(warm_index_find(index, b, &rnd, 1, out), 1);
    put(index, node, "b", NULL); /* a was unloaded */
    assert_int_equal(warm_index_find(index, a, &rnd, 4, out), 0);
    put(index, node, "b", NULL); /* repeated: listed once */
    assert_int_equal(warm_index_find(index, b, &rnd, 4, out), 2);
    warm_index_del(index, b, 7);
    assert_int_equal(warm_index_find(index, b, &rnd, 4, out), 1);
    put(index, node, "b", NULL); /* the next heartbeat restores it */
    assert_int_equal(warm_index_find(index, b, &rnd, 4, out), 2);
    free(atomic_load(&node->loaded_names));
    free(atomic_load(&other->loaded_names));
    free(node);
    free(other);
    warm_index_free(index);
}

/* More nodes have the name than the index has places: the newest are found, up to its size. */
static void test_a_name_that_everybody_has(void **state)
{
    enum { NODES = 1000 };
    struct warm_index *index = warm_index_new();
    struct node *nodes = mem_array(struct node, NODES);
    uint32_t out[2 * WARM_INDEX_NODES], mark = warm_mark(STR("a"));
    struct rnd rnd;

    rnd_seed(&rnd, 1);
    for (uint32_t i = 0; i < NODES; i++) {
        nodes[i].number = i;
        put(index, &nodes[i], "a", NULL);
    }
    assert_int_equal(warm_index_find(index, mark, &rnd, COUNT_OF(out), out), WARM_INDEX_NODES);
    for (uint32_t i = 0; i < NODES; i++) {
        put(index, &nodes[i], NULL, NULL);
        free(atomic_load(&nodes[i].loaded_names));
    }
    assert_int_equal(warm_index_find(index, mark, &rnd, COUNT_OF(out), out), 0);
    free(nodes);
    warm_index_free(index);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_loaded_is_found),
        cmocka_unit_test(test_a_name_that_everybody_has),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
