/* The breaker's rules, and which failures count. The store keeps the breakers. */
#include "model/breaker.h"

#include <assert.h>

static const char *const state_names[BREAKER_STATE_COUNT] = {
    [BREAKER_CLOSED] = "CLOSED",
    [BREAKER_OPEN] = "OPEN",
    [BREAKER_HALF_OPEN] = "HALF_OPEN",
};

static const char *const event_names[] = {
    [BREAKER_NO_EVENT] = NULL,
    [BREAKER_TRIPPED] = "circuit_open:failure_threshold_reached",
    [BREAKER_PROBE_FAILED] = "circuit_open:half_open_probe_failed",
    [BREAKER_RECOVERED] = "circuit_closed",
};

const struct breaker_rules breaker_defaults = {
    .threshold = 3,
    .cooldown_ms = 300000,
    .probe_ms = 300000,
};

const char *breaker_state_name(enum breaker_state state)
{
    assert(state >= BREAKER_CLOSED && state < BREAKER_STATE_COUNT);
    return state_names[state];
}

const char *breaker_event_name(enum breaker_event event)
{
    assert(event >= BREAKER_NO_EVENT && (size_t)event < COUNT_OF(event_names));
    return event_names[event];
}

enum breaker_state breaker_state(struct breaker *breaker, const struct breaker_rules *rules,
                                 int64_t now_ms)
{
    assert(rules->threshold >= 1 && rules->cooldown_ms >= 0);
    if (breaker->state != BREAKER_OPEN)
        return breaker->state;
    if (breaker->opened_ms > now_ms)
        breaker->opened_ms = now_ms; /* the clock was set back: the pause must still end */
    if (now_ms - breaker->opened_ms >= rules->cooldown_ms) {
        breaker->state = BREAKER_HALF_OPEN;
        breaker->probe_until_ms = 0;
    }
    return breaker->state;
}

static bool probe_is_out(const struct breaker *breaker, const struct breaker_rules *rules,
                         int64_t now_ms)
{
    int64_t left_ms = breaker->probe_until_ms - now_ms;

    /* A probe whose end is further away than probe_ms was started before the clock was set back. */
    return breaker->probe_until_ms != 0 && left_ms > 0 && left_ms <= rules->probe_ms;
}

bool breaker_allowed(struct breaker *breaker, const struct breaker_rules *rules, int64_t now_ms)
{
    enum breaker_state state = breaker_state(breaker, rules, now_ms);

    assert(rules->probe_ms > 0);
    if (state != BREAKER_HALF_OPEN)
        return state == BREAKER_CLOSED;
    if (probe_is_out(breaker, rules, now_ms))
        return false;
    breaker->probe_until_ms = now_ms + rules->probe_ms;
    return true;
}

static void open_at(struct breaker *breaker, int64_t now_ms)
{
    breaker->state = BREAKER_OPEN;
    breaker->opened_ms = now_ms;
    breaker->probe_until_ms = 0;
}

void breaker_try(struct breaker *breaker)
{
    if (breaker->state != BREAKER_OPEN)
        return;
    breaker->state = BREAKER_HALF_OPEN;
    breaker->probe_until_ms = 0;
}

enum breaker_event breaker_fail(struct breaker *breaker, const struct breaker_rules *rules,
                                int64_t now_ms)
{
    enum breaker_state state = breaker_state(breaker, rules, now_ms);

    if (breaker->failures < INT32_MAX)
        breaker->failures++;
    if (state == BREAKER_HALF_OPEN) {
        if (breaker->failures / 2 >= rules->threshold)
            breaker->failures = rules->threshold * 2;
        open_at(breaker, now_ms);
        return BREAKER_PROBE_FAILED;
    }
    if (state == BREAKER_OPEN || breaker->failures < rules->threshold)
        return BREAKER_NO_EVENT;
    open_at(breaker, now_ms);
    return BREAKER_TRIPPED;
}

enum breaker_event breaker_ok(struct breaker *breaker, const struct breaker_rules *rules,
                              int64_t now_ms)
{
    enum breaker_state state = breaker_state(breaker, rules, now_ms);

    if (state == BREAKER_OPEN) /* started before the breaker opened; only a probe closes it */
        return BREAKER_NO_EVENT;
    breaker_reset(breaker);
    return state == BREAKER_HALF_OPEN ? BREAKER_RECOVERED : BREAKER_NO_EVENT;
}

void breaker_probe_ended(struct breaker *breaker)
{
    breaker->probe_until_ms = 0;
}

void breaker_reset(struct breaker *breaker)
{
    *breaker = (struct breaker){.state = BREAKER_CLOSED};
}

void breaker_write(const struct breaker *breaker, struct jsonw *w)
{
    jsonw_obj(w);
    jsonw_kstr(w, "state", str_of(breaker_state_name(breaker->state)));
    jsonw_kint(w, "failures", breaker->failures);
    jsonw_kint(w, "opened_ms", breaker->opened_ms);
    jsonw_kint(w, "probe_until_ms", breaker->probe_until_ms);
    jsonw_end_obj(w);
}

static const struct class
{
    const char *name;
    bool counts;
} classes[] = {
    {"task_error", true},      {"executor_timeout", true},
    {"rate_limit", false},     {"network", false},
    {"billing_cap", false},    {"auth", false},
    {"other_executor", false}, {"emergency_degradation", false},
    {"cancelled", false},      {"refused", false},
    {"lost", false},
};

static const struct {
    const char *reason;
    const char *class;
    bool begins; /* a prefix of the reason: "EXIT_3", "SIGNAL_SEGV" */
} reasons[] = {
    {"EXITED", "task_error", false},
    {"EXIT_", "task_error", true},
    {"SIGNALLED", "task_error", false},
    {"SIGNAL_", "task_error", true},
    {"OOM", "task_error", false},
    {"DISK_LIMIT", "task_error", false},
    {"START_FAILED", "task_error", false},
    {"TIMEOUT", "executor_timeout", false},
    {"RUN_TIMEOUT", "executor_timeout", false}, /* the server stopped it, not its node */
    {"STOPPED", "cancelled", false},
    {"CANCELLED", "cancelled", false},
    {"DROPPED", "cancelled", false},
    {"EMERGENCY", "emergency_degradation", false},
    {"NODE_OVERLOADED", "refused", false},
    {"TYPE_NOT_ALLOWED", "refused", false},
    {"NODE_LOST", "lost", false},
    {"SHIM_LOST", "lost", false},
    {"LEASE_LOST", "lost", false}, /* its agent was cut off from the server for too long */
    {"DEADLINE", "lost", false},   /* the same, from an older agent */
};

static const struct class *class_of(struct str name)
{
    /* Third-party nodes may send the class in capitals: RATE_LIMIT. */
    for (size_t i = 0; i < COUNT_OF(classes); i++)
        if (str_eq_nocase(name, str_of(classes[i].name)))
            return &classes[i];
    return NULL;
}

bool breaker_counts(struct str failure_class)
{
    const struct class *class = class_of(failure_class);

    return class && class->counts; /* an unknown class must not open a breaker */
}

bool breaker_blames(struct str reason)
{
    const struct class *class;

    for (size_t i = 0; i < COUNT_OF(reasons); i++)
        if (reasons[i].begins ? str_starts(reason, str_of(reasons[i].reason))
                              : str_is(reason, reasons[i].reason)) {
            reason = str_of(reasons[i].class);
            break;
        }
    class = class_of(reason);
    return !class || class->counts;
}
