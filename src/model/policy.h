/* Which candidate first: sampling, filtering and ranking. No allocation; randomness is passed
 * in. */
#ifndef MODEL_POLICY_H
#define MODEL_POLICY_H

#include <stdbool.h>
#include <stddef.h>

#include "base/clock.h"
#include "base/err.h"

enum { POLICY_SAMPLE_MAX = 64 };

#define POLICY_STALE_OFF INT64_MIN /* the same as FIELD_OFF of a setting that is null */

/* A candidate as a rule sees it: figures copied from the node's atomics. */
struct policy_candidate {
    void *node; /* the caller's, like `hash`, `admin` and `level` */
    uint64_t hash;
    int64_t heartbeat_ms;
    /* set by policy_rank: the heartbeat's age in intervals, divided once, and its warmth. */
    int64_t age_steps;
    int32_t warmth;
    int32_t load; /* running + reserved */
    int32_t max;
    int32_t withheld; /* of its slots, not for this job */
    int32_t
        route_position; /* its position in a route; smaller is asked first, whatever the policy */
    int32_t
        left_over;  /* what would be left there, see best_fit; 0 where the policy does not use it */
    int16_t score;  /* health_score 0..100 */
    uint8_t health; /* enum node_health */
    uint8_t admin;
    int8_t level;
    int8_t warm;      /* how much of what the job prefers is loaded; -1: it prefers nothing */
    bool not_sampled; /* added for what it has loaded, not by sampling; not used to judge others */
};

struct policy_rules {
    int64_t now_ms;
    int64_t stale_ms;              /* POLICY_STALE_OFF: no staleness filter */
    int64_t heartbeat_interval_ms; /* freshness counts in steps of this; 1 = the exact order */
    bool prefers;                  /* the job prefers something loaded: see `warm` of candidates */
    /* When the candidates are only the best of a larger set: load and slots of all that have room;
     * 0: they are the whole set. */
    int64_t others_load, others_slots;
};

struct policy {
    const char *name;
    const char *help;
    const char *key; /* what it orders by, for people */
    bool by_score;   /* it needs the nodes' score, which is computed only then */
    bool by_fit;     /* likewise, for what would be left over */
    /* Order of two candidates: < 0, 0, > 0; 0 keeps the shuffled order. NULL: no ranking. Only
     * policy_rank calls it. */
    int (*compare)(const struct policy_candidate *a, const struct policy_candidate *b);
};

const struct policy *policy_at(size_t index); /* NULL after the last */
const char *policy_name(size_t index);        /* likewise: the values of a setting */

/* min(k, n) distinct numbers of [0, n) in random order (that is, shuffled). k >= n returns all,
 * shuffled. No allocation; up to POLICY_SAMPLE_MAX the cost does not depend on n (rejection),
 * beyond it grows with n. `out` has room for min(k, n). Returns how many. */
size_t policy_sample(uint32_t n, uint32_t k, struct rnd *rnd, uint32_t *out);

/* Why a candidate is left out before any reserve is tried. */
enum policy_skip { POLICY_KEEP, POLICY_SKIP_HEALTH, POLICY_SKIP_STALE, POLICY_SKIP_COUNT };
enum policy_skip policy_filter(const struct policy_candidate *candidate,
                               const struct policy_rules *rules);
/* Drops what the filter refuses and stable-sorts the rest: by rank; if the job prefers something,
 * idle and warm, idle and cold, busy and warm, busy and cold, full; then by the policy. Returns how
 * many are left. */
size_t policy_rank(const struct policy *policy, struct policy_candidate *candidates, size_t count,
                   const struct policy_rules *rules);

/* The order in which a dispatch reaches its outcome: which candidate is next, and the answer when
 * none is left. A cursor that the dispatcher advances; pure. */

enum outcome_phase { OUTCOME_PREFERRED, OUTCOME_WALK, OUTCOME_PLACED, OUTCOME_REFUSED };

struct outcome {
    enum outcome_phase phase;
    enum err err; /* when REFUSED */
    bool strict;
    bool preferred_given;
};

/* What the dispatcher knows before it asks any node. */
struct outcome_start {
    bool store_up;
    bool preferred_given;
    bool preferred_in_pool;
    bool strict;
    size_t pool_count; /* members that fit the request, including the preferred one */
};

/* First phase: REFUSED (err set), PREFERRED (try that one alone) or WALK. */
void outcome_begin(struct outcome *outcome, const struct outcome_start *start);
/* The preferred node did not reserve, or its send failed: fall back or, if strict, refuse.
 * `others` = members left without it; none = ALL_CANDIDATES_FULL_OR_FAILED. */
void outcome_preferred_failed(struct outcome *outcome, size_t others);
void outcome_placed(struct outcome *outcome);    /* reserved and sent */
void outcome_exhausted(struct outcome *outcome); /* every candidate was tried */

#endif
