/* Members: which are online, which are node units, and when an absent one is lost. */
#ifndef MODEL_MEMBER_H
#define MODEL_MEMBER_H

#include "base/mem.h"

/* A set of names in insertion order. One claim cycle looks up addresses by the thousand, so it is a
 * hash table; its memory is the arena's. */

#define NAMES_NONE SIZE_MAX

struct names {
    struct str *at; /* borrowed texts, in order of first appearance */
    size_t count;
    size_t max;
    uint32_t *slots; /* place in `at` + 1; 0 is free */
    size_t mask;
};

void names_init(struct names *names, size_t max, struct arena *arena);
/* returns its index, also when it was there already */
size_t names_add(struct names *names, struct str name);
size_t names_find(const struct names *names, struct str name); /* NAMES_NONE when absent */

/* A member as listed; the texts are borrowed. */
struct member {
    struct str terminal_id;
    struct str node_unit; /* the tag; only "true" counts */
    struct str address;   /* the tag node_unit_address */
    int64_t last_seen_ms;
};

#define MEMBER_TTL_OFF INT64_MIN

struct member_units {
    struct names addresses; /* unique, in order of first appearance (loadActiveNodeUnits) */
    struct str *terminals;  /* for each address, the last announced (resolveNodeUnitTerminalIds) */
};

/* Members not seen for more than ttl_ms are left out; MEMBER_TTL_OFF: none are. */
void member_units(const struct member *members, size_t count, int64_t now_ms, int64_t ttl_ms,
                  struct arena *arena, struct member_units *ret_units);

/* Lost (vectors lost_grace): absent for grace_ms from a view that is ready. A view is ready once a
 * full list arrived and warmup_ms have passed since: a host that has just come back must give all
 * members time to rejoin. */
struct member_rules {
    int64_t grace_ms;
    int64_t warmup_ms;
};

extern const struct member_rules member_defaults; /* 15 s, 30 s */
extern const struct member_rules member_seed;     /* neither */

#define MEMBER_NEVER INT64_MIN /* no full list yet; not absent */

/* One address in a view, from the first list on. */
struct member_watch {
    int64_t absent_since_ms; /* MEMBER_NEVER: it is online */
};

void member_watch_init(struct member_watch *watch);
/* A list, or a JOIN or LEAVE, reports it as present or absent at that time. */
void member_watch_note(struct member_watch *watch, bool present, int64_t at_ms);
bool member_view_ready(const struct member_rules *rules, int64_t synced_ms, int64_t now_ms);
/* When it will be lost if nothing changes; MEMBER_NEVER: it is online, or there is no list. */
int64_t member_lost_at_ms(const struct member_watch *watch, const struct member_rules *rules,
                          int64_t synced_ms);

#endif
