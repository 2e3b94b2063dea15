/* The rules of membership. The caller keeps the list and knows its source. */
#include "model/member.h"

#include <assert.h>

/* --- members --- */

const struct member_rules member_defaults = {.grace_ms = 15000, .warmup_ms = 30000};
const struct member_rules member_seed = {0};

void member_units(const struct member *members, size_t count, int64_t now_ms, int64_t ttl_ms,
                  struct arena *arena, struct member_units *ret_units)
{
    struct member_units units;

    names_init(&units.addresses, count, arena);
    units.terminals = arena_array(arena, struct str, count + 1);
    for (size_t i = 0; i < count; i++) {
        const struct member *member = &members[i];

        if (!str_is(member->node_unit, "true") || !member->address.len ||
            (ttl_ms != MEMBER_TTL_OFF && now_ms - member->last_seen_ms > ttl_ms))
            continue;
        units.terminals[names_add(&units.addresses, member->address)] = member->terminal_id;
    }
    assert(units.addresses.count <= count);
    *ret_units = units;
}

void member_watch_init(struct member_watch *watch)
{
    watch->absent_since_ms = MEMBER_NEVER;
}

void member_watch_note(struct member_watch *watch, bool present, int64_t at_ms)
{
    if (present)
        watch->absent_since_ms = MEMBER_NEVER;
    else if (watch->absent_since_ms == MEMBER_NEVER)
        watch->absent_since_ms = at_ms;
}

bool member_view_ready(const struct member_rules *rules, int64_t synced_ms, int64_t now_ms)
{
    assert(rules->warmup_ms >= 0);
    return synced_ms != MEMBER_NEVER && now_ms - synced_ms >= rules->warmup_ms;
}

int64_t member_lost_at_ms(const struct member_watch *watch, const struct member_rules *rules,
                          int64_t synced_ms)
{
    int64_t ready_ms, absent_ms;

    assert(rules->grace_ms >= 0 && rules->warmup_ms >= 0);
    if (synced_ms == MEMBER_NEVER || watch->absent_since_ms == MEMBER_NEVER)
        return MEMBER_NEVER;
    ready_ms = synced_ms + rules->warmup_ms;
    absent_ms = watch->absent_since_ms + rules->grace_ms;
    return ready_ms > absent_ms ? ready_ms : absent_ms;
}

/* --- sets of names --- */

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

/* The slot of a name, or the free slot where it belongs: at most half of the slots are used. */
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
