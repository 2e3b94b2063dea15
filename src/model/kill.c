/* The emergency's order and pace. Owns who and when; what a kill is and who is told is the agent's.
 */
#include "model/kill.h"

#include <assert.h>

enum { AGE_S_MAX = 999, PRIORITY_WEIGHT = 1000 };

static struct str types_default[] = {
    {.at = "research", .len = sizeof "research" - 1},
    {.at = "talk", .len = sizeof "talk" - 1},
};

const struct kill_rules kill_defaults = {
    .types = {.at = types_default, .count = COUNT_OF(types_default)},
    .samples = 3,
    .settle_ms = 5000,
    .young_ms = 60000,
};

int64_t kill_score(int64_t priority, int64_t age_ms)
{
    int64_t age_s = age_ms > 0 ? age_ms / 1000 : 0;

    return priority * PRIORITY_WEIGHT + (age_s < AGE_S_MAX ? age_s : AGE_S_MAX);
}

bool kill_may(const struct kill_rules *rules, struct str type)
{
    for (size_t i = 0; i < rules->types.count; i++)
        if (str_eq(rules->types.at[i], type))
            return true;
    return false;
}

static bool goes_before(const struct kill_task *a, const struct kill_task *b)
{
    if (a->young != b->young)
        return b->young;
    if (a->score != b->score)
        return a->score < b->score;
    return str_cmp(a->id, b->id) < 0;
}

struct kill_task *kill_next(const struct kill_rules *rules, struct kill_task *tasks, size_t count)
{
    struct kill_task *next = NULL;

    for (size_t i = 0; i < count; i++)
        if (!tasks[i].doomed && kill_may(rules, tasks[i].type) &&
            (!next || goes_before(&tasks[i], next)))
            next = &tasks[i];
    return next;
}

/* The last decision still works, or was too small: memory fell by a quarter since. Once it had
 * recovered the bound is what it fell from. */
static bool at_peace(const struct kill_state *state, const struct kill_rules *rules,
                     const struct kill_sample *sample)
{
    int64_t from_kib =
        state->recovered ? sample->mem_free_kib + sample->missing_kib : state->free_kib;

    if (!state->settling || sample->now_ms - state->decided_ms >= rules->settle_ms)
        return false;
    if (!sample->memory)
        return true;
    if (state->free_kib == KILL_UNKNOWN) /* it was for CPU or swap; memory does not wait for that */
        return false;
    return sample->mem_free_kib >= from_kib - from_kib / 4;
}

static size_t pick(const struct kill_rules *rules, const struct kill_sample *sample,
                   struct kill_task *tasks, size_t count, struct kill_task **picked)
{
    int64_t missing_kib = sample->missing_kib;
    struct kill_task *task;
    size_t some = 0;

    while ((some == 0 || (sample->memory && missing_kib > 0)) &&
           (task = kill_next(rules, tasks, count))) {
        assert(!task->doomed && some < count);
        task->doomed = true;
        picked[some++] = task;
        missing_kib -= task->memory_kib == KILL_UNKNOWN ? missing_kib : task->memory_kib;
    }
    assert(some <= count);
    return some;
}

size_t kill_step(struct kill_state *state, const struct kill_rules *rules,
                 const struct kill_sample *sample, struct kill_task *tasks, size_t count,
                 struct kill_task **picked)
{
    size_t some;

    assert(rules->samples >= 1 && rules->settle_ms >= 0);
    assert(!sample->memory || sample->level == LEVEL_CRITICAL);
    if (sample->level != LEVEL_CRITICAL) {
        state->row = 0; /* the peace after a decision goes on */
        state->unresolved = false;
        state->recovered = true;
        return 0;
    }
    state->row++;
    if (state->free_kib != KILL_UNKNOWN && sample->mem_free_kib > state->free_kib)
        state->free_kib = sample->mem_free_kib;
    if (at_peace(state, rules, sample) || (!sample->memory && state->row < rules->samples))
        return 0;
    some = pick(rules, sample, tasks, count, picked);
    assert(some <= 1 || sample->memory); /* one by one where nobody knows what it will bring */
    state->settling = some > 0;
    state->unresolved = some == 0;
    state->recovered = false;
    state->decided_ms = sample->now_ms;
    state->free_kib = sample->memory ? sample->mem_free_kib : KILL_UNKNOWN;
    return some;
}

int64_t kill_missing_kib(int64_t total_kib, int64_t free_kib, int64_t critical_centi)
{
    int64_t bound_kib;

    assert(total_kib >= 0 && critical_centi >= 0 && critical_centi <= 10000);
    bound_kib = (total_kib * critical_centi + 9999) / 10000; /* rounded up: not below is enough */
    return free_kib < bound_kib ? bound_kib - free_kib : 0;
}
