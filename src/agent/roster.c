#include "agent/roster.h"

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"

/* Who left longer ago and owns nothing is not missed any more. */
enum { WATCH_MS_MAX = 5 * 60 * 1000 };

/* A tag a node sets when it would not claim although it is well: it is full, or claims nothing. */
#define TAG_TAKES "node_unit_takes"

struct roster_entry {
    struct arena arena;
    struct str id;
    const struct json *terminal;
};

struct roster_watch {
    struct arena arena;
    struct str address;
    struct member_watch watch;
};

void roster_init(struct roster *roster)
{
    *roster = (struct roster){.synced_ms = MEMBER_NEVER};
}

static void free_entries(struct map *map)
{
    struct roster_entry *entry;

    for (size_t i = 0; (entry = map_next(map, &i));) {
        arena_free(&entry->arena);
        free(entry);
    }
    map_free(map);
    *map = (struct map){0};
}

static void free_watch(struct roster_watch *watch)
{
    arena_free(&watch->arena);
    free(watch);
}

void roster_done(struct roster *roster)
{
    struct roster_watch *watch;

    free_entries(&roster->by_id);
    for (size_t i = 0; (watch = map_next(&roster->watches, &i));)
        free_watch(watch);
    map_free(&roster->watches);
}

void roster_forget(struct roster *roster)
{
    roster_done(roster);
    roster_init(roster);
}

void roster_write(const struct roster *roster, struct jsonw *w)
{
    if (!roster->source[0])
        return;
    jsonw_kstr(w, "source", str_of(roster->source));
    jsonw_kint(w, "seq", roster->seq);
}

/* --- what the server says --- */

static void drop(struct roster *roster, struct str id)
{
    struct roster_entry *entry = map_del(&roster->by_id, id);

    if (!entry)
        return;
    arena_free(&entry->arena);
    free(entry);
}

static void put(struct roster *roster, const struct json *terminal)
{
    struct roster_entry *entry = mem_new(struct roster_entry);
    struct str text = arena_str(&entry->arena, json_raw(terminal));

    if (json_parse(text, &entry->arena, &entry->terminal, NULL) != ERR_OK)
        entry->terminal = NULL;
    entry->id = json_str(json_get(entry->terminal, "terminal_id"), &entry->arena);
    if (!entry->id.len) {
        arena_free(&entry->arena);
        free(entry);
        return;
    }
    drop(roster, entry->id);
    map_put(&roster->by_id, entry->id, entry);
}

static bool take_source(struct roster *roster, const struct json *reply)
{
    struct arena arena = {0};
    struct str source = json_str(json_get(reply, "source"), &arena);
    bool same = source.len > 0 && str_is(source, roster->source);

    if (!same && !str_copy(source, roster->source, sizeof roster->source))
        roster->source[0] = 0;
    arena_free(&arena);
    return same;
}

static void take_all(struct roster *roster, const struct json *list, int64_t now_ms)
{
    const struct json *terminal = json_first(list);

    free_entries(&roster->by_id);
    for (uint32_t i = 0; i < list->count; i++, terminal = json_next(terminal))
        put(roster, terminal);
    if (roster->synced_ms == MEMBER_NEVER)
        roster->synced_ms = now_ms;
}

static void take_change(struct roster *roster, const struct json *change)
{
    const struct json *payload = json_get(change, "payload"), *added = json_get(payload, "new");
    struct arena arena = {0};

    if (!json_is_null(added))
        put(roster, added);
    else
        drop(roster, json_str(json_get(json_get(payload, "old"), "terminal_id"), &arena));
    arena_free(&arena);
}

bool roster_take(struct roster *roster, const struct json *reply, int64_t now_ms)
{
    const struct json *list = json_get(reply, "terminals"), *changes = json_get(reply, "changes");
    const struct json *change = json_first(changes);
    int64_t seq = 0, before = roster->seq;
    bool same = take_source(roster, reply);

    if (!json_int(json_get(reply, "seq"), &seq) || !roster->source[0])
        return false;
    roster->seq = seq;
    if (json_type(list) == JSON_ARR) {
        if (!same) /* another life of the server: everybody has to come back to it first */
            roster->synced_ms = MEMBER_NEVER;
        take_all(roster, list, now_ms);
        return true;
    }
    if (!same || json_type(changes) != JSON_ARR || before + changes->count != seq) {
        roster->source[0] = 0;
        return false;
    }
    for (uint32_t i = 0; i < changes->count; i++, change = json_next(change))
        take_change(roster, change);
    return true;
}

/* --- what follows from it --- */

static int by_id(const void *a, const void *b)
{
    return str_cmp((*(struct roster_entry *const *)a)->id, (*(struct roster_entry *const *)b)->id);
}

static const struct json *tag(const struct roster_entry *entry, const char *name)
{
    return json_get(json_get(entry->terminal, "tags"), name);
}

static void fill(const struct roster_entry *entry, struct str address, struct claim_node *node)
{
    *node = (struct claim_node){.address = address,
                                .labels = json_get(entry->terminal, "labels"),
                                .namespaces = json_get(entry->terminal, "namespaces")};
    json_bool(json_get(entry->terminal, "takes"), &node->takes);
    if (json_str_is(tag(entry, TAG_TAKES), "false"))
        node->takes = false;
}

size_t roster_nodes(const struct roster *roster, struct arena *arena, struct claim_node **ret_nodes)
{
    size_t count = roster->by_id.count, filled = 0;
    struct roster_entry **sorted = arena_array(arena, struct roster_entry *, count + 1), *entry;
    struct member *members = arena_array(arena, struct member, count + 1);
    struct member_units units;

    for (size_t i = 0; (entry = map_next(&roster->by_id, &i));)
        sorted[filled++] = entry;
    assert(filled == count);
    qsort(sorted, filled, sizeof *sorted, by_id);
    for (size_t i = 0; i < filled; i++)
        members[i] =
            (struct member){.terminal_id = sorted[i]->id,
                            .node_unit = json_str(tag(sorted[i], "node_unit"), arena),
                            .address = json_str(tag(sorted[i], "node_unit_address"), arena)};
    member_units(members, filled, 0, MEMBER_TTL_OFF, arena, &units);
    *ret_nodes = arena_array(arena, struct claim_node, units.addresses.count + 1);
    for (size_t i = 0; i < units.addresses.count; i++)
        fill(map_get(&roster->by_id, units.terminals[i]), units.addresses.at[i], &(*ret_nodes)[i]);
    return units.addresses.count;
}

static void watch(struct roster *roster, struct str address)
{
    struct roster_watch *own = map_get(&roster->watches, address);

    assert(address.len > 0);
    if (own)
        return;
    own = mem_new(struct roster_watch);
    own->address = arena_str(&own->arena, address);
    member_watch_init(&own->watch);
    map_put(&roster->watches, own->address, own);
}

static struct roster_watch *next_forgotten(struct roster *roster, const struct names *owners,
                                           int64_t now_ms)
{
    struct roster_watch *own;

    for (size_t i = 0; (own = map_next(&roster->watches, &i));)
        if (own->watch.absent_since_ms != MEMBER_NEVER &&
            now_ms - own->watch.absent_since_ms > WATCH_MS_MAX &&
            names_find(owners, own->address) == NAMES_NONE)
            return own;
    return NULL;
}

void roster_note(struct roster *roster, const struct names *online, const struct names *owners,
                 int64_t now_ms)
{
    struct roster_watch *own;

    for (size_t i = 0; i < online->count; i++)
        watch(roster, online->at[i]);
    for (size_t i = 0; i < owners->count; i++)
        watch(roster, owners->at[i]);
    for (size_t i = 0; (own = map_next(&roster->watches, &i));)
        member_watch_note(&own->watch, names_find(online, own->address) != NAMES_NONE, now_ms);
    while ((own = next_forgotten(roster, owners, now_ms))) {
        map_del(&roster->watches, own->address);
        free_watch(own);
    }
}

int64_t roster_lost_ms(const struct roster *roster, struct str address,
                       const struct member_rules *rules)
{
    const struct roster_watch *own = map_get(&roster->watches, address);

    return own ? member_lost_ms(&own->watch, rules, roster->synced_ms) : MEMBER_NEVER;
}

void roster_absent(const struct roster *roster, struct arena *arena, struct names *ret_absent)
{
    const struct roster_watch *own;

    names_init(ret_absent, roster->watches.count, arena);
    for (size_t i = 0; (own = map_next(&roster->watches, &i));)
        if (own->watch.absent_since_ms != MEMBER_NEVER)
            names_add(ret_absent, own->address);
}
