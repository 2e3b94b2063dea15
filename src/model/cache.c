/* The rules of the cache layers and of degradation. Storing values, and applying degradation to a
 * read or write, is the caller's job. */
#include "model/cache.h"

#include <assert.h>
#include <limits.h>

/* --- layers --- */

int64_t cache_ttl_ms(int64_t base_ms, double fraction)
{
    assert(fraction >= 0 && fraction < 1);
    /* Adds a tiny amount, so that rounding of doubles does not make 0.85 of a round number one
     * less. */
    return (int64_t)((double)base_ms * (0.85 + 0.30 * fraction) + 1e-6);
}

/* After the clock was set back nothing stays fresh for longer than its TTL. */
static bool is_fresh(int64_t since_ms, int64_t ttl_ms, int64_t now_ms)
{
    return now_ms >= since_ms && now_ms - since_ms < ttl_ms;
}

enum cache_answer cache_look(const struct cache_entry *entry, int64_t now_ms)
{
    if (entry->l1 && is_fresh(entry->filled_ms, entry->l1_ttl_ms, now_ms))
        return CACHE_L1;
    if (entry->tagged && is_fresh(entry->tagged_ms, CACHE_EMPTY_MS, now_ms))
        return CACHE_EMPTY_TAG;
    return CACHE_ASK;
}

enum cache_answer cache_value(struct cache_entry *entry, int64_t now_ms, int64_t l1_ttl_ms)
{
    assert(l1_ttl_ms > 0);
    *entry = (struct cache_entry){
        .filled = true, .l1 = true, .filled_ms = now_ms, .l1_ttl_ms = l1_ttl_ms};
    return CACHE_STORE;
}

enum cache_answer cache_absent(struct cache_entry *entry, int64_t now_ms)
{
    *entry = (struct cache_entry){.tagged = true, .tagged_ms = now_ms};
    return CACHE_EMPTY;
}

enum cache_answer cache_down(const struct cache_entry *entry, int64_t now_ms)
{
    return entry->filled && is_fresh(entry->filled_ms, CACHE_L2_MS, now_ms) ? CACHE_L2 : CACHE_MISS;
}

void cache_invalidate(struct cache_entry *entry)
{
    entry->l1 = entry->tagged = false;
}

int64_t cache_age_ms(const struct cache_entry *entry, int64_t now_ms)
{
    return entry->filled && now_ms > entry->filled_ms ? now_ms - entry->filled_ms : 0;
}

/* --- degradation --- */

void degrade_error(struct degrade *degrade, int64_t latency_ms)
{
    if (degrade->errors < INT_MAX)
        degrade->errors++;
    if (degrade->errors >= DEGRADE_LOCAL_ERRORS)
        degrade->mode = DEGRADE_LOCAL_ONLY;
    else if (degrade->mode == DEGRADE_NORMAL &&
             (latency_ms > DEGRADE_SLOW_MS || degrade->errors >= DEGRADE_L2_ERRORS))
        degrade->mode = DEGRADE_L2_ONLY;
}

void degrade_success(struct degrade *degrade)
{
    *degrade = (struct degrade){.mode = DEGRADE_NORMAL};
}
