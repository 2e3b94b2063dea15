/* Which candidate is first, which is next, and the outcome of a dispatch. Owns sampling, the filter
 * before any reserve, the policy table and the order of outcomes; the figures are copies of the
 * nodes' atomics, and only the reserve decides. */
#include "model/policy.h"

#include <assert.h>

#include "model/node.h"

/* --- ranking --- */

static int order(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

static int by_load(const struct policy_candidate *a, const struct policy_candidate *b)
{
    int load = order(a->load, b->load);

    return load != 0 ? load : order(a->age_steps, b->age_steps);
}

static int by_score(const struct policy_candidate *a, const struct policy_candidate *b)
{
    int score = order(b->score, a->score);

    return score != 0 ? score : order(a->load, b->load);
}

static int by_fit(const struct policy_candidate *a, const struct policy_candidate *b)
{
    int over = order(a->left_over, b->left_over);

    return over != 0 ? over : by_load(a, b);
}

static const struct policy policies[] = {
    {.name = "random", .help = "any capable node, evenly", .key = "chance"},
    {.name = "least_loaded",
     .help = "the fewest slots running or reserved, then the freshest heartbeat",
     .key = "load, heartbeat_age",
     .compare = by_load},
    {.name = "health",
     .help = "the best health score, then the fewest slots",
     .key = "health_score, load",
     .by_score = true,
     .compare = by_score},
    {.name = "best_fit",
     .help = "the least left over of what the job needs most of, else of the slots",
     .key = "left_over, load, heartbeat_age",
     .by_fit = true,
     .compare = by_fit},
};

const struct policy *policy_at(size_t index)
{
    return index < COUNT_OF(policies) ? &policies[index] : NULL;
}

const char *policy_name(size_t index)
{
    return index < COUNT_OF(policies) ? policies[index].name : NULL;
}

/* Considers every number in turn: costs n, so it is for small n or a sample of most of it. */
static void sample_most(uint32_t n, uint32_t k, struct rnd *rnd, uint32_t *out)
{
    for (uint32_t i = 0; i < k; i++)
        out[i] = i;
    for (uint32_t i = k; i < n; i++) {
        uint32_t j = rnd_below(rnd, i + 1);

        if (j < k)
            out[j] = i;
    }
    for (uint32_t i = k; i > 1; i--) {
        uint32_t j = rnd_below(rnd, i);
        uint32_t number = out[j];

        out[j] = out[i - 1];
        out[i - 1] = number;
    }
}

/* Draws until k distinct numbers were found. At most half of all numbers are taken, so a draw is
 * new with a probability of at least a half; the table of drawn numbers is at most half full, so a
 * look-up takes few steps. */
static void sample_few(uint32_t n, uint32_t k, struct rnd *rnd, uint32_t *out)
{
    enum { SLOTS = 2 * POLICY_SAMPLE_MAX };
    uint32_t drawn[SLOTS] = {0}; /* number + 1; 0 is free */
    uint32_t count = 0;

    _Static_assert((SLOTS & (SLOTS - 1)) == 0, "the mask needs a power of two");
    while (count < k) {
        uint32_t number = rnd_below(rnd, n);
        uint32_t slot = number & (SLOTS - 1);

        while (drawn[slot] != 0 && drawn[slot] != number + 1)
            slot = (slot + 1) & (SLOTS - 1);
        if (drawn[slot] != 0)
            continue;
        drawn[slot] = number + 1;
        out[count++] = number;
    }
}

size_t policy_sample(uint32_t n, uint32_t k, struct rnd *rnd, uint32_t *out)
{
    if (k > n)
        k = n;
    if (k > POLICY_SAMPLE_MAX || k > n / 2)
        sample_most(n, k, rnd, out);
    else
        sample_few(n, k, rnd, out);
    return k;
}

/* Saturates: a node that never sent a heartbeat may be at INT64_MIN. */
static int64_t age_ms(const struct policy_candidate *candidate, const struct policy_rules *rules)
{
    int64_t age;

    if (__builtin_sub_overflow(rules->now_ms, candidate->heartbeat_ms, &age))
        return candidate->heartbeat_ms < 0 ? INT64_MAX : INT64_MIN;
    return age;
}

/* A heartbeat that another loop received after `now` was read is no fresher than one just before
 * it, except when the exact order is wanted. */
static int64_t age_steps(int64_t age, int64_t interval_ms)
{
    if (interval_ms == 1)
        return age;
    return age < interval_ms ? 0 : age / interval_ms; /* most are fresh: no division */
}

inline enum policy_skip policy_filter(const struct policy_candidate *candidate,
                                      const struct policy_rules *rules)
{
    if (candidate->health != NODE_READY)
        return POLICY_SKIP_HEALTH;
    if (rules->stale_ms != POLICY_STALE_OFF && age_ms(candidate, rules) > rules->stale_ms)
        return POLICY_SKIP_STALE;
    return POLICY_KEEP;
}

/* Smaller is asked first. If a job prefers several names, the node that has more of them is
 * warmer. */
enum warmth { WARMTH_IDLE_COLD = 0, WARMTH_BUSY_WARM, WARMTH_BUSY_COLD, WARMTH_FULL };

/* A node is idle while it has a free slot and its slots are at most half fuller than those of the
 * others together (of its rank, with room); a node without others is idle. So loaded names attract
 * work to a node only until it is half fuller than the rest: beyond that a warm node comes after
 * every cold idle one, and such nodes exist as long as any node has room. */
static int32_t warmth_of(const struct policy_candidate *candidates, size_t count,
                         const struct policy_candidate *it, const struct policy_rules *rules)
{
    int64_t slots = it->max - it->withheld, load = 0, others = 0;

    if (it->load >= slots)
        return WARMTH_FULL;
    if (rules->others_slots > 0) {
        others = rules->others_slots - slots;
        load = rules->others_load - it->load;
    }
    for (size_t i = 0; !rules->others_slots && i < count; i++) {
        const struct policy_candidate *other = &candidates[i];
        int64_t theirs = other->max - other->withheld;

        if (other == it || other->not_sampled || other->route_position != it->route_position ||
            other->load >= theirs)
            continue;
        others += theirs;
        load += other->load;
    }
    if (2 * it->load * others <= 3 * load * slots)
        return WARMTH_IDLE_COLD - it->warm;
    return it->warm > 0 ? WARMTH_BUSY_WARM : WARMTH_BUSY_COLD;
}

static bool goes_after(const struct policy *policy, const struct policy_candidate *a,
                       const struct policy_candidate *b)
{
    if (a->route_position != b->route_position)
        return a->route_position > b->route_position;
    if (a->warmth != b->warmth)
        return a->warmth > b->warmth;
    return policy->compare && policy->compare(a, b) > 0;
}

size_t policy_rank(const struct policy *policy, struct policy_candidate *candidates, size_t count,
                   const struct policy_rules *rules)
{
    size_t kept = 0;

    assert(policy);
    assert(rules->heartbeat_interval_ms >= 1);
    for (size_t i = 0; i < count; i++) {
        if (policy_filter(&candidates[i], rules) != POLICY_KEEP)
            continue;
        if (kept != i)
            candidates[kept] = candidates[i];
        candidates[kept].age_steps =
            age_steps(age_ms(&candidates[i], rules), rules->heartbeat_interval_ms);
        candidates[kept].warmth = 0;
        kept++;
    }
    for (size_t i = 0; rules->prefers && i < kept; i++)
        candidates[i].warmth = warmth_of(candidates, kept, &candidates[i], rules);
    /* Insertion sort: stable, and fastest for twenty candidates. */
    for (size_t i = 1; i < kept; i++) {
        struct policy_candidate moved;
        size_t at = i;

        if (!goes_after(policy, &candidates[i - 1], &candidates[i]))
            continue;
        moved = candidates[i];
        do {
            candidates[at] = candidates[at - 1];
            at--;
        } while (at > 0 && goes_after(policy, &candidates[at - 1], &moved));
        candidates[at] = moved;
    }
    assert(kept <= count);
    return kept;
}

/* --- outcomes --- */

static void refuse(struct outcome *outcome, enum err err)
{
    assert(err != ERR_OK);
    outcome->phase = OUTCOME_REFUSED;
    outcome->err = err;
}

void outcome_begin(struct outcome *outcome, const struct outcome_start *start)
{
    *outcome = (struct outcome){
        .phase = start->preferred_given ? OUTCOME_PREFERRED : OUTCOME_WALK,
        .err = ERR_OK,
        .strict = start->strict,
        .preferred_given = start->preferred_given,
    };
    if (!start->store_up)
        refuse(outcome, ERR_STORE_DOWN);
    else if (start->preferred_given && !start->preferred_in_pool)
        refuse(outcome, ERR_PREFERRED_NOT_CAPABLE);
    else if (start->pool_count == 0)
        refuse(outcome, ERR_NO_CAPABLE_NODE);
    assert(outcome->phase != OUTCOME_PREFERRED || start->pool_count > 0);
}

void outcome_preferred_failed(struct outcome *outcome, size_t others)
{
    assert(outcome->phase == OUTCOME_PREFERRED && outcome->preferred_given);
    outcome->phase = OUTCOME_WALK;
    if (outcome->strict)
        refuse(outcome, ERR_PREFERRED_UNAVAILABLE);
    else if (others == 0)
        refuse(outcome, ERR_ALL_FULL); /* a capable node exists, it only had no room */
}

void outcome_placed(struct outcome *outcome)
{
    assert(outcome->phase == OUTCOME_PREFERRED || outcome->phase == OUTCOME_WALK);
    outcome->phase = OUTCOME_PLACED;
    outcome->err = ERR_OK;
}

void outcome_exhausted(struct outcome *outcome)
{
    assert(outcome->phase == OUTCOME_WALK);
    refuse(outcome, ERR_ALL_FULL);
}
