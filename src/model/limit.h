/* Limits by key: how many jobs with a key may hold a lease at once, how many may start within a
 * period, how many may wait, and the key's share of the queue's turns. A rule names one key, or
 * with a trailing * all keys with that prefix, each limited separately; only the most specific rule
 * applies to a key. Pure: the store keeps the rules and the state of each key, and passes in the
 * time. */
#ifndef MODEL_LIMIT_H
#define MODEL_LIMIT_H

#include "base/json.h"
#include "base/str.h"

enum {
    LIMIT_NONE = -1, /* no bound */
    LIMIT_RULES_MAX = 4096,
    LIMIT_RATE_MAX = 1000000,
    LIMIT_WINDOW_MS_MAX = 24 * 3600 * 1000,
    LIMIT_STEPS = 1000, /* steps of a window in which its starts are kept */
    LIMIT_WEIGHT_MAX = 1000,
    LIMIT_REASON_MAX = 200,
    LIMIT_HOLDERS = 4, /* jobs with a lease that are known by name */
};

#define LIMIT_HOLD_MS_MAX (30LL * 24 * 3600 * 1000)

struct limit {
    int32_t concurrency; /* leases alive; LIMIT_NONE */
    int32_t rate;        /* starts in rate_ms; LIMIT_NONE */
    int64_t rate_ms;
    int32_t queue;  /* jobs that wait; LIMIT_NONE */
    int32_t weight; /* 1.. */
};

extern const struct limit limit_none; /* bounds nothing, weight 1 */

bool limit_is_pattern(struct str pattern); /* a key, or a prefix followed by * */
bool limit_matches(struct str pattern, struct str key);
/* Is `a` the more specific rule for a key that both match? A key before a pattern, then the
 * longer. */
bool limit_is_closer(struct str a, struct str b);
/* The rule's members, each null when not set. */
void limit_write_members(const struct limit *limit, struct jsonw *w);
/* "60/1m" */
bool limit_rate_parse(struct str text, struct limit *limit);
void limit_rate_text(const struct limit *limit, struct buf *to);
/* "CONCURRENCY RATE RATE_MS QUEUE WEIGHT": what a store keeps. */
void limit_write(const struct limit *limit, struct buf *to);
bool limit_parse(struct str text, struct limit *ret_limit);

/* Starts in a sliding window. A start leaves it after rate_ms; for large rates starts are grouped
 * in steps, and leave up to one step later, never sooner. */
struct limit_start {
    int64_t at_ms;
    int32_t count;
};

struct limit_window {
    struct limit_start *starts; /* a ring: oldest first */
    uint32_t first, count, cap;
    int64_t total;
};

void limit_window_free(struct limit_window *window);
/* How long until one more may start; 0: now. Drops starts that have left the window. */
int64_t limit_window_wait_ms(struct limit_window *window, const struct limit *limit,
                             int64_t now_ms);
void limit_window_add(struct limit_window *window, const struct limit *limit, int64_t now_ms);
/* The job did not start after all: takes back the start at this moment, if it is still there. */
void limit_window_undo(struct limit_window *window, const struct limit *limit, int64_t at_ms);
/* "AT COUNT AT COUNT ...": each AT after the first is relative to the one before. */
void limit_window_write(const struct limit_window *window, struct buf *to);
bool limit_window_parse(struct str text, struct limit_window *ret_window);

/* The state of one key. */
struct limit_key {
    int32_t in_flight; /* leases */
    int32_t waiting;   /* jobs in lanes */
    struct limit_window window;
    int64_t hold_until_ms; /* nothing starts before then; 0: no hold */
};

enum limit_why {
    LIMIT_OK,
    LIMIT_HELD,
    LIMIT_CONCURRENCY,
    LIMIT_RATE,
    LIMIT_QUEUE,
    LIMIT_WHY_COUNT
};
const char *limit_why_name(enum limit_why why); /* "concurrency" */

/* Why a key keeps a job from starting or waiting. */
struct limit_block {
    enum limit_why why;
    int32_t key;      /* which of the job's keys */
    int32_t limit;    /* the bound; 0 for a hold */
    int32_t used;     /* how much of it is used */
    int64_t retry_ms; /* when to try again; 0: unknown */
};

/* May one more job start? Checked in this order: hold, concurrency, rate. */
struct limit_block limit_check(struct limit_key *key, const struct limit *limit, int64_t now_ms);
/* May one more job wait? */
struct limit_block limit_check_queue(const struct limit_key *key, const struct limit *limit);

#endif
