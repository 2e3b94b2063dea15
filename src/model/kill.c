/* The order and pace of emergency kills. Decides which task and when; the agent does the killing
 * and reports it. */
#include "model/kill.h"

#include <assert.h>

enum {
    AGE_S_MAX = 999,
    PRIORITY_WEIGHT = 1000,
    WORTH = 10, /* a task that frees less than a tenth of what is wanted is passed over */
    PRESSURE_MS = 10000,
};

static struct str protected_default[] = {{.at = "f2f", .len = sizeof "f2f" - 1}};

const struct kill_rules kill_defaults = {
    .protected = {.at = protected_default, .count = COUNT_OF(protected_default)},
    .samples = 3,
    .settle_ms = 5000,
    .young_ms = 60000,
};

int64_t kill_score(int64_t priority, int64_t age_ms)
{
    int64_t age_s = age_ms > 0 ? age_ms / 1000 : 0;

    return priority * PRIORITY_WEIGHT + (age_s < AGE_S_MAX ? age_s : AGE_S_MAX);
}

static bool names(const struct strs *types, struct str type)
{
    return str_in(type, types->at, types->count) || str_in(STR("*"), types->at, types->count);
}

/* --- which task --- */

static int64_t gives(const struct kill_task *task, enum level_signal by)
{
    return by == LEVEL_CPU    ? task->cpu_ppm
           : by == LEVEL_SWAP ? task->swap_kib
           : by == LEVEL_VRAM ? task->vram_kib
                              : task->memory_kib;
}

/* KILL_UNKNOWN is below any size: a task that is known to free something comes before an unknown
 * one. */
static bool goes_before(const struct kill_task *a, const struct kill_task *b, enum level_signal by)
{
    if (a->priority != b->priority)
        return a->priority < b->priority;
    if (a->deployment != b->deployment)
        return b->deployment;
    if (gives(a, by) != gives(b, by))
        return gives(a, by) > gives(b, by);
    if (a->young != b->young)
        return b->young;
    if (a->score != b->score)
        return a->score < b->score;
    return str_cmp(a->id, b->id) < 0;
}

/* One decision: which tasks are worth ending. */
struct choice {
    const struct kill_rules *rules;
    struct kill_task *tasks;
    size_t count;
    enum level_signal by;
    int64_t least;  /* a task that frees less is passed over, */
    bool all_small; /* but no task frees more */
};

static bool may_end(const struct choice *choice, const struct kill_task *task)
{
    const struct kill_rules *rules = choice->rules;

    return !task->doomed && (rules->types.count == 0 || names(&rules->types, task->type)) &&
           !names(&rules->protected, task->type);
}

static bool is_worth(const struct choice *choice, const struct kill_task *task)
{
    int64_t size = gives(task, choice->by);

    return size == KILL_UNKNOWN || size >= choice->least;
}

/* Would another task use the CPU that this one frees? A task that may not be ended counts too. */
static bool somebody_gains(const struct choice *choice, const struct kill_task *task)
{
    if (choice->by != LEVEL_CPU || gives(task, LEVEL_CPU) == KILL_UNKNOWN)
        return true;
    for (size_t i = 0; i < choice->count; i++)
        if (&choice->tasks[i] != task && !choice->tasks[i].doomed &&
            is_worth(choice, &choice->tasks[i]))
            return true;
    return false;
}

static struct kill_task *choose(const struct choice *choice)
{
    struct kill_task *next = NULL;

    for (size_t i = 0; i < choice->count; i++) {
        struct kill_task *task = &choice->tasks[i];
        bool larger = next && gives(task, choice->by) > gives(next, choice->by);
        bool as_large = next && gives(task, choice->by) == gives(next, choice->by);

        if (!may_end(choice, task) || !somebody_gains(choice, task) ||
            (!choice->all_small && !is_worth(choice, task)))
            continue;
        if (!next ||
            (choice->all_small ? larger || (as_large && goes_before(task, next, choice->by))
                               : goes_before(task, next, choice->by)))
            next = task;
    }
    return next;
}

static size_t pick(const struct kill_rules *rules, const struct kill_sample *sample,
                   struct kill_task *tasks, size_t count, struct kill_task **picked)
{
    struct choice choice = {.rules = rules,
                            .tasks = tasks,
                            .count = count,
                            .by = sample->by,
                            .least = sample->wanted > WORTH ? sample->wanted / WORTH : 1};
    int64_t missing = sample->missing, sum = 0;
    struct kill_task *task;
    size_t some = 0;

    choice.all_small = true;
    for (size_t i = 0; i < count && choice.all_small; i++) {
        if (!may_end(&choice, &tasks[i]))
            continue;
        choice.all_small = !is_worth(&choice, &tasks[i]);
        sum += gives(&tasks[i], choice.by);
    }
    if (choice.all_small && sum < choice.least)
        return 0; /* ending all of them would not help */
    while ((some == 0 || (sample->by == LEVEL_MEMORY && missing > 0)) && (task = choose(&choice))) {
        assert(!task->doomed && some < count);
        task->doomed = true;
        picked[some++] = task;
        missing -= task->memory_kib == KILL_UNKNOWN ? missing : task->memory_kib;
    }
    assert(some <= count);
    return some;
}

/* --- when --- */

/* The last decision is still taking effect, or it was too small: free memory fell by a quarter
 * since. If memory had recovered in between, the comparison is with the bound. */
static bool at_peace(const struct kill_state *state, const struct kill_rules *rules,
                     const struct kill_sample *sample, const struct kill_task *tasks, size_t count)
{
    int64_t from_kib = state->recovered ? sample->mem_free_kib + sample->missing : state->free_kib;
    int64_t peace_ms = rules->settle_ms + (sample->by == LEVEL_PRESSURE ? PRESSURE_MS : 0);
    int64_t coming_kib = 0; /* memory that tasks already ending still hold */

    if (!state->settling || sample->now_ms - state->decided_ms >= peace_ms)
        return false;
    if (sample->by != LEVEL_MEMORY)
        return true;
    if (state->free_kib == KILL_UNKNOWN) /* it was about something else; memory cannot wait */
        return false;
    for (size_t i = 0; i < count; i++)
        if (tasks[i].doomed && tasks[i].memory_kib != KILL_UNKNOWN)
            coming_kib += tasks[i].memory_kib;
    return sample->mem_free_kib >= from_kib - from_kib / 4 || coming_kib >= sample->missing;
}

size_t kill_step(struct kill_state *state, const struct kill_rules *rules,
                 const struct kill_sample *sample, struct kill_task *tasks, size_t count,
                 struct kill_task **picked)
{
    bool memory = sample->by == LEVEL_MEMORY;
    size_t some;

    assert(rules->samples >= 1 && rules->settle_ms >= 0 && sample->wanted >= sample->missing);
    if (sample->level != LEVEL_CRITICAL) {
        state->row = 0; /* the pause after a decision goes on */
        state->unresolved = false;
        state->recovered = true;
        return 0;
    }
    state->row++;
    if (state->free_kib != KILL_UNKNOWN && sample->mem_free_kib > state->free_kib)
        state->free_kib = sample->mem_free_kib;
    if (at_peace(state, rules, sample, tasks, count) || (!memory && state->row < rules->samples))
        return 0;
    some = pick(rules, sample, tasks, count, picked);
    assert(some <= 1 || memory); /* one at a time when the effect cannot be predicted */
    state->settling = some > 0;
    state->unresolved = some == 0;
    state->recovered = false;
    state->decided_ms = sample->now_ms;
    state->free_kib = memory ? sample->mem_free_kib : KILL_UNKNOWN;
    return some;
}

int64_t kill_missing_kib(int64_t total_kib, int64_t free_kib, int64_t bound_centi)
{
    int64_t bound_kib;

    assert(total_kib >= 0 && bound_centi >= 0 && bound_centi <= 10000);
    bound_kib = (total_kib * bound_centi + 9999) / 10000; /* rounded up: not below is enough */
    return free_kib < bound_kib ? bound_kib - free_kib : 0;
}
