/* The layers of one cached value: L1 while it is fresh, L2 as a fallback while the store is down,
 * and a tag for values the store does not have, so that they are not requested over and over. Pure:
 * it handles times, not values. */
#ifndef MODEL_CACHE_H
#define MODEL_CACHE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    CACHE_L1_MS = 5000, /* +-15 %, drawn anew for each entry, so that not all expire together */
    CACHE_L2_MS = 30000,
    CACHE_EMPTY_MS = 1000,
};

enum cache_answer {
    CACHE_ASK, /* ask the store */
    CACHE_L1,
    CACHE_STORE, /* a value arrived; L1 and L2 are filled */
    CACHE_EMPTY, /* the store has none */
    CACHE_EMPTY_TAG,
    CACHE_L2, /* stale: the store is down */
    CACHE_MISS,
};

struct cache_entry { /* zero-initialised is empty */
    bool filled;     /* L2 has a value */
    bool l1;
    bool tagged;
    int64_t filled_ms;
    int64_t l1_ttl_ms;
    int64_t tagged_ms;
};

int64_t cache_ttl_ms(int64_t base_ms, double fraction); /* fraction in [0, 1) */

/* CACHE_L1 or CACHE_EMPTY_TAG: use that answer. CACHE_ASK: ask the store and pass on its answer. */
enum cache_answer cache_look(const struct cache_entry *entry, int64_t now_ms);
enum cache_answer cache_value(struct cache_entry *entry, int64_t now_ms, int64_t l1_ttl_ms);
enum cache_answer cache_absent(struct cache_entry *entry, int64_t now_ms);
enum cache_answer cache_down(const struct cache_entry *entry, int64_t now_ms); /* L2 or MISS */
void cache_invalidate(struct cache_entry *entry); /* the value changed: drops L1 and the tag */
int64_t cache_age_ms(const struct cache_entry *entry, int64_t now_ms);

/* The store's condition, judged by how calls to it went, and what may be answered without it.
 * Pure. */

enum degrade_mode {
    DEGRADE_NORMAL,
    DEGRADE_L2_ONLY,    /* reads may be answered from the last good view */
    DEGRADE_LOCAL_ONLY, /* reads from local memory only */
};

enum {
    DEGRADE_SLOW_MS = 100, /* one error that took longer than this is enough */
    DEGRADE_L2_ERRORS = 3, /* in a row */
    DEGRADE_LOCAL_ERRORS = 10,
};

struct degrade { /* zero-initialised is healthy */
    enum degrade_mode mode;
    int errors; /* in a row */
};

void degrade_error(struct degrade *degrade, int64_t latency_ms);
void degrade_success(struct degrade *degrade); /* one success is enough */

#endif
