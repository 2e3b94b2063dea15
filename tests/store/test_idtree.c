/* A tree of ids beside a plain list of what it should hold. */
#include "contract.h"

#include "base/clock.h"
#include "store/idtree.h"

enum { IDS = 512, STEPS = 200000 };

static void test_as_a_list(void **state)
{
    static struct idtree_node nodes[IDS];
    struct idtree tree = {0};
    struct rnd rnd;

    rnd_seed(&rnd, 3);
    for (uint64_t id = 0; id < IDS; id++)
        nodes[id].id = id;
    for (int i = 0; i < STEPS; i++) {
        uint64_t id = rnd_below(&rnd, IDS);
        uint64_t below = id, above = id;

        if (!nodes[id].inside && rnd_below(&rnd, 2))
            idtree_add(&tree, &nodes[id]);
        else
            idtree_del(&tree, &nodes[id]); /* also of what is not there */
        while (below > 0 && !nodes[--below].inside)
            ;
        while (above < IDS - 1 && !nodes[++above].inside)
            ;
        assert_ptr_equal(idtree_below(&tree, id),
                         below < id && nodes[below].inside ? &nodes[below] : NULL);
        assert_ptr_equal(idtree_above(&tree, id),
                         above > id && nodes[above].inside ? &nodes[above] : NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_as_a_list)};

    return cmocka_run_group_tests_name("store/idtree", tests, NULL, NULL);
}
