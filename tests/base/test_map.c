/* Both maps compared with a plain array, over many random steps. */
#include "../unit.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/map.h"

enum { KEYS = 1000, STEPS = 200000 };

static char names[KEYS][16];
static int values[KEYS];

static int make_names(void **state)
{
    for (int i = 0; i < KEYS; i++)
        snprintf(names[i], sizeof names[i], "node-%d", i);
    return 0;
}

static void test_map_like_an_array(void **state)
{
    void *model[KEYS] = {0};
    size_t count = 0;
    struct map map = {0};
    struct rnd rnd;

    rnd_seed(&rnd, 1);
    assert_null(map_get(&map, STR("nothing")));
    assert_null(map_del(&map, STR("nothing")));
    for (int step = 0; step < STEPS; step++) {
        uint32_t key = rnd_below(&rnd, KEYS);
        struct str name = str_of(names[key]);

        /* Mostly grows, then mostly shrinks, so that clusters form and break up. */
        if (rnd_below(&rnd, 100) < (step / 20000 % 2 ? 30u : 70u)) {
            void *value = &values[rnd_below(&rnd, KEYS)];

            count += !model[key];
            map_put(&map, name, value);
            model[key] = value;
        } else {
            count -= model[key] != NULL;
            assert_ptr_equal(map_del(&map, name), model[key]);
            model[key] = NULL;
        }
        key = rnd_below(&rnd, KEYS);
        name = str_of(names[key]);
        assert_ptr_equal(map_get(&map, name), model[key]);
        assert_ptr_equal(map_get_hashed(&map, name, str_hash(name)), model[key]);
        assert_int_equal(map.count, count);
    }
    for (int i = 0; i < KEYS; i++)
        assert_ptr_equal(map_get(&map, str_of(names[i])), model[i]);
    map_free(&map);
    assert_null(map_get(&map, STR("nothing")));
}

static void test_idmap_like_an_array(void **state)
{
    void *model[KEYS] = {0};
    size_t count = 0;
    struct idmap map = {0};
    struct idshards shards = {0};
    struct rnd rnd;

    rnd_seed(&rnd, 2);
    assert_null(idmap_get(&map, 0));
    assert_null(idmap_del(&map, 0));
    assert_null(idshards_get(&shards, 0));
    assert_null(idshards_del(&shards, 0));
    for (int step = 0; step < STEPS; step++) {
        uint32_t key = rnd_below(&rnd, KEYS);
        uint64_t id = (uint64_t)key << (key % 3 * 20); /* 0, small and large ids, in strides */

        if (rnd_below(&rnd, 100) < (step / 20000 % 2 ? 30u : 70u)) {
            void *value = &values[rnd_below(&rnd, KEYS)];

            count += !model[key];
            idmap_put(&map, id, value);
            idshards_put(&shards, id, value);
            model[key] = value;
        } else {
            count -= model[key] != NULL;
            assert_ptr_equal(idmap_del(&map, id), model[key]);
            assert_ptr_equal(idshards_del(&shards, id), model[key]);
            model[key] = NULL;
        }
        key = rnd_below(&rnd, KEYS);
        id = (uint64_t)key << (key % 3 * 20);
        assert_ptr_equal(idmap_get(&map, id), model[key]);
        assert_ptr_equal(idshards_get(&shards, id), model[key]);
        assert_int_equal(map.count, count);
        if (step % 50000 == 49999) {
            idmap_clear(&map);
            idshards_free(&shards);
            memset(model, 0, sizeof model);
            count = 0;
        }
    }
    idmap_free(&map);
    idshards_free(&shards);
}

static void test_next_sees_each_entry_once(void **state)
{
    struct map map = {0};
    struct idmap ids = {0};
    struct idshards shards = {0};
    int seen[KEYS] = {0};
    int *value;

    for (int i = 0; i < KEYS; i++) {
        map_put(&map, str_of(names[i]), &values[i]);
        idmap_put(&ids, (uint64_t)i, &values[i]);
        idshards_put(&shards, (uint64_t)i, &values[i]);
    }
    for (size_t at = 0; (value = map_next(&map, &at));)
        seen[value - values]++;
    for (size_t at = 0; (value = idmap_next(&ids, &at));)
        seen[value - values]++;
    for (size_t at = 0; (value = idshards_next(&shards, &at));)
        seen[value - values]++;
    for (int i = 0; i < KEYS; i++)
        assert_int_equal(seen[i], 3);
    map_free(&map);
    idmap_free(&ids);
    idshards_free(&shards);
}

static void test_put_replaces_the_key_too(void **state)
{
    struct map map = {0};
    char first[] = "same";
    char second[] = "same";

    map_put(&map, str_of(first), &values[0]);
    map_put(&map, str_of(second), &values[1]);
    first[0] = 'X'; /* its owner has freed it */
    assert_ptr_equal(map_get(&map, STR("same")), &values[1]);
    assert_int_equal(map.count, 1);
    map_free(&map);
}

/* The longest run of used slots with `count` ids. */
static size_t worst_probe(uint64_t first, uint64_t stride, size_t count)
{
    struct idmap map = {0};
    size_t worst = 0;
    size_t run = 0;

    for (size_t i = 0; i < count; i++)
        idmap_put(&map, first + i * stride, &values[0]);
    for (size_t i = 0; i < 2 * map.cap; i++) {
        run = map.slots[i % map.cap].value ? run + 1 : 0;
        worst = run > worst ? run : worst;
    }
    idmap_free(&map);
    return worst;
}

/* A weak hash would put such ids into one long run of slots. A random one gives runs of about 60 to
 * 150 at this load (10000 of 16384 slots). */
static void test_ids_in_sequence_spread(void **state)
{
    static const struct {
        uint64_t first, stride;
    } rows[] = {
        {1, 1},    {1u << 30, 1},    {0, 1u << 16}, {0, (uint64_t)1 << 32}, {0, (uint64_t)1 << 48},
        {7, 1024}, {0, 0x100000001u}};

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_in_range(worst_probe(rows[i].first, rows[i].stride, 10000), 1, 400);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_map_like_an_array),
        cmocka_unit_test(test_idmap_like_an_array),
        cmocka_unit_test(test_next_sees_each_entry_once),
        cmocka_unit_test(test_put_replaces_the_key_too),
        cmocka_unit_test(test_ids_in_sequence_spread),
    };

    return cmocka_run_group_tests(tests, make_names, NULL);
}
