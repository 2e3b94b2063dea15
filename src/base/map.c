/* Linear probing with backward-shift deletion: no tombstones, so a map with many insertions and
 * deletions never slows down. At most three quarters of the slots are used. */
#include "base/map.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { MAP_CAP_MIN = 16 };

static bool is_full(size_t count, size_t cap)
{
    return (count + 1) * 4 > cap * 3;
}

/* The slot that holds `key`, or the free one where it belongs. */
static size_t map_find(const struct map *map, struct str key, uint64_t hash)
{
    size_t mask = map->cap - 1;
    size_t at = hash & mask;

    assert(map->cap > 0 && (map->cap & mask) == 0);
    while (map->slots[at].value) {
        if (map->slots[at].hash == hash && str_eq(map->slots[at].key, key))
            break;
        at = (at + 1) & mask;
    }
    return at;
}

void *map_get_hashed(const struct map *map, struct str key, uint64_t hash)
{
    return map->count ? map->slots[map_find(map, key, hash)].value : NULL;
}

void *map_get(const struct map *map, struct str key)
{
    return map->count ? map_get_hashed(map, key, str_hash(key)) : NULL;
}

void map_put(struct map *map, struct str key, void *value)
{
    uint64_t hash = str_hash(key);
    struct map old = *map;
    size_t at;

    assert(value);
    if (is_full(map->count, map->cap)) {
        map->cap = old.cap ? old.cap * 2 : MAP_CAP_MIN;
        map->slots = mem_array(struct map_slot, map->cap);
        for (size_t i = 0; i < old.cap; i++)
            if (old.slots[i].value)
                map->slots[map_find(map, old.slots[i].key, old.slots[i].hash)] = old.slots[i];
        free(old.slots);
    }
    at = map_find(map, key, hash);
    if (!map->slots[at].value)
        map->count++;
    assert(map->count < map->cap); /* a free slot ends every search */
    map->slots[at] = (struct map_slot){.key = key, .hash = hash, .value = value};
}

/* May the entry whose home is `home` move from `from` back to the hole? Only if its home is not
 * between the hole and `from`. */
static bool may_fill(size_t hole, size_t home, size_t from, size_t mask)
{
    return ((from - home) & mask) >= ((from - hole) & mask);
}

void *map_del(struct map *map, struct str key)
{
    size_t mask = map->cap - 1;
    size_t hole;
    void *value;

    if (map->count == 0)
        return NULL;
    hole = map_find(map, key, str_hash(key));
    value = map->slots[hole].value;
    if (!value)
        return NULL;
    for (size_t at = (hole + 1) & mask; map->slots[at].value; at = (at + 1) & mask)
        if (may_fill(hole, map->slots[at].hash & mask, at, mask)) {
            map->slots[hole] = map->slots[at];
            hole = at;
        }
    map->slots[hole] = (struct map_slot){0};
    map->count--;
    return value;
}

void map_free(struct map *map)
{
    free(map->slots);
    *map = (struct map){0};
}

void *map_next(const struct map *map, size_t *at)
{
    while (*at < map->cap) {
        void *value = map->slots[(*at)++].value;

        if (value)
            return value;
    }
    return NULL;
}

/* Ids come in sequence and in strides of powers of two; every bit of them must reach the low bits
 * that choose the slot. */
static uint64_t mix(uint64_t key)
{
    key ^= key >> 32;
    key *= 0x9e3779b97f4a7c15u;
    key ^= key >> 29;
    key *= 0xd6e8feb86659fd93u;
    return key ^ key >> 32;
}

static size_t idmap_find(const struct idmap *map, uint64_t key)
{
    size_t mask = map->cap - 1;
    size_t at = mix(key) & mask;

    assert(map->cap > 0 && (map->cap & mask) == 0);
    while (map->slots[at].value && map->slots[at].key != key)
        at = (at + 1) & mask;
    return at;
}

void *idmap_get(const struct idmap *map, uint64_t key)
{
    return map->count ? map->slots[idmap_find(map, key)].value : NULL;
}

void idmap_put(struct idmap *map, uint64_t key, void *value)
{
    struct idmap old = *map;
    size_t at;

    assert(value);
    if (is_full(map->count, map->cap)) {
        map->cap = old.cap ? old.cap * 2 : MAP_CAP_MIN;
        map->slots = mem_array(struct idmap_slot, map->cap);
        for (size_t i = 0; i < old.cap; i++)
            if (old.slots[i].value)
                map->slots[idmap_find(map, old.slots[i].key)] = old.slots[i];
        free(old.slots);
    }
    at = idmap_find(map, key);
    if (!map->slots[at].value)
        map->count++;
    assert(map->count < map->cap);
    map->slots[at] = (struct idmap_slot){.key = key, .value = value};
}

void *idmap_del(struct idmap *map, uint64_t key)
{
    size_t mask = map->cap - 1;
    size_t hole;
    void *value;

    if (map->count == 0)
        return NULL;
    hole = idmap_find(map, key);
    value = map->slots[hole].value;
    if (!value)
        return NULL;
    for (size_t at = (hole + 1) & mask; map->slots[at].value; at = (at + 1) & mask)
        if (may_fill(hole, mix(map->slots[at].key) & mask, at, mask)) {
            map->slots[hole] = map->slots[at];
            hole = at;
        }
    map->slots[hole] = (struct idmap_slot){0};
    map->count--;
    return value;
}

void idmap_clear(struct idmap *map)
{
    if (map->count)
        memset(map->slots, 0, map->cap * sizeof *map->slots);
    map->count = 0;
}

void idmap_free(struct idmap *map)
{
    free(map->slots);
    *map = (struct idmap){0};
}

void *idmap_next(const struct idmap *map, size_t *at)
{
    while (*at < map->cap) {
        void *value = map->slots[(*at)++].value;

        if (value)
            return value;
    }
    return NULL;
}

/* Ids are created and used roughly in order of time. Ids that differ only in their low bits share a
 * shard, which is then likely to be in the processor's cache. */
size_t idshards_shard(uint64_t key)
{
    static_assert(IDSHARDS == 1 << 8, "one shard for each value of the bits that select it");
    return mix(key >> IDSHARDS_NEAR_BITS) >> (64 - 8);
}

void *idshards_get(const struct idshards *map, uint64_t key)
{
    return idmap_get(&map->shards[idshards_shard(key)], key);
}

void idshards_put(struct idshards *map, uint64_t key, void *value)
{
    idmap_put(&map->shards[idshards_shard(key)], key, value);
}

void *idshards_del(struct idshards *map, uint64_t key)
{
    return idmap_del(&map->shards[idshards_shard(key)], key);
}

void idshards_free(struct idshards *map)
{
    for (size_t i = 0; i < IDSHARDS; i++)
        idmap_free(&map->shards[i]);
}

/* *at is slot * IDSHARDS + shard. */
void *idshards_next(const struct idshards *map, size_t *at)
{
    for (size_t shard = *at % IDSHARDS, slot = *at / IDSHARDS; shard < IDSHARDS;
         shard++, slot = 0) {
        void *value = idmap_next(&map->shards[shard], &slot);

        *at = slot * IDSHARDS + shard;
        if (value)
            return value;
    }
    return NULL;
}
