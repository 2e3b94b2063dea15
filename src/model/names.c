/* The set of names. */
#include "model/names.h"

#include <assert.h>

void names_init(struct names *names, size_t max, struct arena *arena)
{
    size_t slots = 4;

    assert(max < UINT32_MAX / 4);
    while (slots < 2 * max)
        slots *= 2;
    *names = (struct names){.at = arena_array(arena, struct str, max + 1),
                            .max = max,
                            .slots = arena_array(arena, uint32_t, slots),
                            .mask = slots - 1};
}

/* The slot of a name, or the free one where it belongs: at most half of them are taken. */
static size_t slot_of(const struct names *names, struct str name)
{
    size_t slot = str_hash(name) & names->mask;

    while (names->slots[slot] != 0 && !str_eq(names->at[names->slots[slot] - 1], name))
        slot = (slot + 1) & names->mask;
    return slot;
}

size_t names_add(struct names *names, struct str name)
{
    size_t slot = slot_of(names, name);

    if (names->slots[slot] == 0) {
        assert(names->count < names->max);
        names->at[names->count++] = name;
        names->slots[slot] = (uint32_t)names->count;
    }
    return names->slots[slot] - 1;
}

size_t names_find(const struct names *names, struct str name)
{
    size_t slot;

    if (names->count == 0)
        return NAMES_NONE;
    slot = slot_of(names, name);
    return names->slots[slot] == 0 ? NAMES_NONE : names->slots[slot] - 1;
}
