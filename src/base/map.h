/* Hash maps with open addressing: `map` from text to pointer, `idmap` from 64-bit id to pointer.
 * A map does not own what it holds; a text key must live as long as its entry. One thread each. */
#ifndef BASE_MAP_H
#define BASE_MAP_H

#include "base/str.h"

struct map_slot {
    struct str key;
    uint64_t hash;
    void *value; /* NULL: free */
};

struct map {
    struct map_slot *slots;
    size_t count;
    size_t cap; /* a power of two, 0 when empty */
};

void *map_get(const struct map *map, struct str key);
void *map_get_hashed(const struct map *map, struct str key, uint64_t hash);
void map_put(struct map *map, struct str key, void *value); /* replaces key and value */
void *map_del(struct map *map, struct str key);             /* the old value, or NULL */
void map_free(struct map *map);
/* `for (size_t i = 0; (v = map_next(&m, &i));)` in no particular order; the map must not change
 * meanwhile. */
void *map_next(const struct map *map, size_t *at);

struct idmap_slot {
    uint64_t key;
    void *value;
};

struct idmap {
    struct idmap_slot *slots;
    size_t count;
    size_t cap;
};

void *idmap_get(const struct idmap *map, uint64_t key);
void idmap_put(struct idmap *map, uint64_t key, void *value);
void *idmap_del(struct idmap *map, uint64_t key);
void idmap_clear(struct idmap *map); /* keeps its memory, see arena_rewind() */
void idmap_free(struct idmap *map);
void *idmap_next(const struct idmap *map, size_t *at);

/* An idmap in shards, for very many entries: it never grows as a whole, so no call takes long, and
 * one shard at a time can be walked while the others change. A key stays in its shard. */
enum { IDSHARDS = 256, IDSHARDS_NEAR_BITS = 26 };

struct idshards {
    struct idmap shards[IDSHARDS];
};

size_t idshards_shard(uint64_t key); /* the shard of `key` */
void *idshards_get(const struct idshards *map, uint64_t key);
void idshards_put(struct idshards *map, uint64_t key, void *value);
void *idshards_del(struct idshards *map, uint64_t key);
void idshards_free(struct idshards *map);
void *idshards_next(const struct idshards *map, size_t *at);

#endif
