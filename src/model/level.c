/* The danger levels. Decides what trips and how slowly; measuring, and acting on a level, is the
 * caller's job. */
#include "model/level.h"

#include <assert.h>

enum { CENTI_PPM = 100 }; /* 1/100 percent in millionths */

static const char *const names[LEVEL_COUNT] = {[LEVEL_NORMAL] = "normal",
                                               [LEVEL_WARNING] = "warning",
                                               [LEVEL_DANGER] = "danger",
                                               [LEVEL_CRITICAL] = "critical"};

static const struct {
    const char *name;
    bool falls; /* lower is worse */
} signals[LEVEL_SIGNAL_COUNT] = {
    [LEVEL_MEMORY] = {"memory", true}, [LEVEL_CPU] = {"cpu", false},
    [LEVEL_SWAP] = {"swap", false},    [LEVEL_PRESSURE] = {"pressure", false},
    [LEVEL_DISK] = {"disk", true},     [LEVEL_VRAM] = {"vram", true},
};

const struct level_rules level_defaults = {
    .bounds =
        {
            [LEVEL_MEMORY] = {3000, 2000, 1000, 0},
            [LEVEL_CPU] = {6000, 8000, 9000, 0},
            [LEVEL_SWAP] = {3000, 5000, 7000, 0},
            [LEVEL_PRESSURE] = {1000, 2500, 4000, 0},
            /* No task is ended because of a full disk: it is not known whose files fill it. The
             * borders are close together, because free disk space does not fluctuate as load
             * does. */
            [LEVEL_DISK] = {500, 200, LEVEL_NEVER, 50},
            /* A GPU that is short gets no new work anyway, and the rest of the machine is not
             * short: nothing to report until a task must be ended. */
            [LEVEL_VRAM] = {1000, 1000, 1000, 0},
        },
    .margin_centi = 300,
    .rise_samples = 3,
    .rise_ms = 2000,
    .calm_ms = 10000,
    .hold_ms = 60000,
};

const char *level_name(enum level level)
{
    assert(level >= LEVEL_NORMAL && level < LEVEL_COUNT);
    return names[level];
}

const char *level_signal_name(enum level_signal signal)
{
    assert(signal >= LEVEL_MEMORY && signal < LEVEL_SIGNAL_COUNT);
    return signals[signal].name;
}

/* `nearer_ppm` makes the figure worse by that much. */
static enum level level_by(enum level_signal signal, int64_t ppm, const struct level_bounds *bounds,
                           int64_t nearer_ppm)
{
    const int64_t centi[LEVEL_COUNT] = {
        [LEVEL_WARNING] = bounds->warning_centi,
        [LEVEL_DANGER] = bounds->danger_centi,
        [LEVEL_CRITICAL] = bounds->critical_centi,
    };

    if (ppm == LEVEL_UNKNOWN)
        return LEVEL_NORMAL;
    for (int level = LEVEL_CRITICAL; level > LEVEL_NORMAL; level--) {
        int64_t over;

        if (centi[level] == LEVEL_NEVER)
            continue;
        over = ppm - centi[level] * CENTI_PPM;
        if (signals[signal].falls)
            over = -over;
        over += nearer_ppm;
        if (over > 0 || (over == 0 && level == LEVEL_WARNING))
            return (enum level)level;
    }
    return LEVEL_NORMAL;
}

/* `near`: as if every figure were worse by its margin. */
static struct level_verdict judge(const struct level_figures *figures,
                                  const struct level_rules *rules, bool near)
{
    struct level_verdict verdict = {.level = LEVEL_NORMAL};

    for (int i = 0; i < LEVEL_SIGNAL_COUNT; i++) {
        const struct level_bounds *bounds = &rules->bounds[i];
        int64_t margin_centi = bounds->margin_centi ? bounds->margin_centi : rules->margin_centi;

        verdict.of[i] = level_by((enum level_signal)i, figures->ppm[i], bounds,
                                 near ? margin_centi * CENTI_PPM : 0);
        if (verdict.of[i] <= verdict.level)
            continue;
        verdict.level = verdict.of[i];
        verdict.by = (enum level_signal)i;
    }
    return verdict;
}

struct level_verdict level_of(const struct level_figures *figures, const struct level_rules *rules)
{
    return judge(figures, rules, false);
}

/* The worst level that lasted long enough. Running out of memory leaves no time for a second
 * sample. */
static enum level risen(const struct level_state *state, const struct level_rules *rules,
                        int64_t now_ms)
{
    enum level risen = state->level;

    if (state->now.of[LEVEL_MEMORY] == LEVEL_CRITICAL)
        return LEVEL_CRITICAL;
    for (int level = LEVEL_WARNING; level < LEVEL_COUNT; level++)
        if ((enum level)level > risen && state->row[level] > 0 &&
            (state->row[level] >= rules->rise_samples ||
             now_ms - state->since_ms[level] >= rules->rise_ms))
            risen = (enum level)level;
    return risen;
}

/* The worst level that was reached, or nearly so, within calm_ms. */
static enum level calmed(const struct level_state *state, const struct level_rules *rules,
                         int64_t now_ms)
{
    assert(rules->calm_ms >= 0 && rules->hold_ms >= 0);
    for (int level = state->level; level > LEVEL_NORMAL; level--)
        if (now_ms - state->near_ms[level] < rules->calm_ms)
            return (enum level)level;
    return LEVEL_NORMAL;
}

bool level_step(struct level_state *state, const struct level_rules *rules,
                const struct level_figures *figures, int64_t now_ms)
{
    struct level_figures full = *figures;
    struct level_verdict counts;
    enum level before = state->level;
    enum level near;

    assert(rules->margin_centi >= 0 && rules->rise_samples >= 1);
    assert(!state->sampled || now_ms >= state->changed_ms);
    state->now = level_of(figures, rules);
    near = judge(figures, rules, true).level;
    assert(near >= state->now.level); /* a margin never makes it better */
    for (int level = LEVEL_WARNING; level < LEVEL_COUNT; level++) {
        bool there = state->now.level >= (enum level)level;

        if (there && state->row[level] == 0)
            state->since_ms[level] = now_ms;
        state->row[level] = there ? state->row[level] + 1 : 0;
        if (near >= (enum level)level)
            state->near_ms[level] = now_ms;
    }
    /* One sample is enough to tell how full memory, swap and disk are. CPU and memory pressure are
     * rates and must last as at any other time. */
    full.ppm[LEVEL_CPU] = full.ppm[LEVEL_PRESSURE] = LEVEL_UNKNOWN;
    counts = state->sampled ? state->now : level_of(&full, rules);
    state->level = state->sampled ? risen(state, rules, now_ms) : counts.level;
    if (state->level > before) {
        state->raised_ms = now_ms;
        state->by = counts.by;
    } else if (before > LEVEL_NORMAL && now_ms - state->raised_ms >= rules->hold_ms) {
        state->level = calmed(state, rules, now_ms);
    }
    assert(state->level >= LEVEL_NORMAL && state->level < LEVEL_COUNT);
    if (!state->sampled || state->level != before)
        state->changed_ms = now_ms;
    state->sampled = true;
    return state->level != before;
}

enum level level_gate(const struct level_state *state)
{
    return state->now.level > state->level ? state->now.level : state->level;
}

bool level_admits(enum level level, int64_t priority, int64_t high_priority_min)
{
    assert(level >= LEVEL_NORMAL && level < LEVEL_COUNT);
    return level == LEVEL_NORMAL || (level == LEVEL_WARNING && priority >= high_priority_min);
}
