/* The slot formula and its clamps. Owns the arithmetic and the reasons; the agent measures. */
#include "model/slots.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

enum { GIB_KIB = 1024 * 1024 };

static const char *const step_names[SLOTS_STEP_COUNT] = {
    [SLOTS_CPU] = "cpu",
    [SLOTS_MEMORY] = "memory",
    [SLOTS_RAW] = "raw",
    [SLOTS_BUFFER] = "safety_buffer",
    [SLOTS_MAX] = "max_slots",
    [SLOTS_PENDING] = "pending",
    [SLOTS_FIXED] = "slots_fixed",
    [SLOTS_IN_USE] = "in_use",
    [SLOTS_JOBS] = "max_concurrent_jobs",
    [SLOTS_LEVEL] = "level",
    [SLOTS_MIN] = "slots_min",
    [SLOTS_RESERVED] = "reserved_slots",
};

const struct slots_rules slots_defaults = {
    .cpu_per_process_centi = 120,
    .mem_per_process_centi_gb = 150,
    .mem_reserve_centi_gb = 200,
    .safety_buffer = 1,
    .max_slots = SLOTS_NONE,
    .reserved_slots = 0,
    .max_concurrent_jobs = SLOTS_NONE,
    .slots_min = 1,
    .slots_fixed = SLOTS_NONE,
};

const char *slots_step_name(enum slots_step step)
{
    assert(step >= SLOTS_CPU && step < SLOTS_STEP_COUNT);
    return step_names[step];
}

const struct slots_clamp *slots_zero(const struct slots *slots)
{
    size_t at = slots->count;

    while (at > 0 && slots->chain[at - 1].value == 0)
        at--;
    if (at == slots->count)
        return NULL;
    for (size_t i = at; i < slots->count; i++)
        if (slots->chain[i].step == SLOTS_MIN) /* it did not matter that the formula had none */
            return &slots->chain[i];
    if (slots->chain[at].step == SLOTS_RAW) /* only repeats one of the two before it */
        for (size_t i = 0; i < at; i++)
            if (slots->chain[i].value == 0)
                return &slots->chain[i];
    return &slots->chain[at];
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t not_negative(int64_t value)
{
    return value > 0 ? value : 0;
}

__attribute__((format(printf, 5, 6))) static void
step(struct slots *slots, enum slots_step name, int64_t value, bool bites, const char *fmt, ...)
{
    struct slots_clamp *clamp = &slots->chain[slots->count];
    va_list args;

    assert(slots->count < SLOTS_STEP_COUNT && value >= 0);
    *clamp = (struct slots_clamp){.step = name, .value = value, .bites = bites};
    va_start(args, fmt);
    vsnprintf(clamp->reason, sizeof clamp->reason, fmt, args);
    va_end(args);
    slots->count++;
}

/* For a person: "6.00" of 600. */
#define CENTI_FMT    "%" PRId64 ".%02d"
#define CENTI_ARG(v) (v) / 100, (int)((v) % 100)

static int64_t cpu_allowed(const struct slots_rules *rules, int64_t cores_milli, int64_t load_centi)
{
    return not_negative(cores_milli - load_centi * 10) / (rules->cpu_per_process_centi * 10);
}

/* In 1/100 KiB, so that neither a bound of 1.55 GB nor a figure in KiB is rounded. */
static int64_t mem_allowed(const struct slots_rules *rules, int64_t free_kib)
{
    return not_negative(free_kib * 100 - rules->mem_reserve_centi_gb * GIB_KIB) /
           (rules->mem_per_process_centi_gb * GIB_KIB);
}

/* The formula, or the fixed number that slots_fixed replaces it with. */
static int64_t apply_formula(struct slots *slots, const struct slots_rules *rules,
                             const struct slots_input *input)
{
    bool max_set = rules->max_slots != SLOTS_NONE;
    int64_t left;

    if (input->cores_milli == SLOTS_UNKNOWN || input->load_1m_centi == SLOTS_UNKNOWN) {
        step(slots, SLOTS_CPU, 0, true, "cores or load are not known");
    } else {
        slots->cpu_allowed = cpu_allowed(rules, input->cores_milli, input->load_1m_centi);
        step(slots, SLOTS_CPU, slots->cpu_allowed, false,
             "(" CENTI_FMT " cores - load " CENTI_FMT ") / " CENTI_FMT,
             CENTI_ARG(input->cores_milli / 10), CENTI_ARG(input->load_1m_centi),
             CENTI_ARG(rules->cpu_per_process_centi));
    }
    if (input->mem_free_kib == SLOTS_UNKNOWN) {
        step(slots, SLOTS_MEMORY, 0, true, "free memory is not known");
    } else {
        slots->mem_allowed = mem_allowed(rules, input->mem_free_kib);
        step(slots, SLOTS_MEMORY, slots->mem_allowed, slots->mem_allowed < slots->cpu_allowed,
             "(" CENTI_FMT " GB free - " CENTI_FMT ") / " CENTI_FMT,
             CENTI_ARG(input->mem_free_kib * 100 / GIB_KIB), CENTI_ARG(rules->mem_reserve_centi_gb),
             CENTI_ARG(rules->mem_per_process_centi_gb));
    }
    slots->raw = least(slots->cpu_allowed, slots->mem_allowed);
    step(slots, SLOTS_RAW, slots->raw, false, "the smaller of cpu and memory");
    slots->safe = not_negative(slots->raw - rules->safety_buffer);
    step(slots, SLOTS_BUFFER, slots->safe, slots->safe < slots->raw,
         "less %" PRId64 " (safety_buffer)", rules->safety_buffer);
    /* The formula's result with nothing running: more than that at once is never right, however far
     * the load average lags behind a burst. */
    if (max_set)
        slots->max = rules->max_slots;
    else if (input->cores_milli != SLOTS_UNKNOWN && input->mem_total_kib != SLOTS_UNKNOWN)
        slots->max = not_negative(least(cpu_allowed(rules, input->cores_milli, 0),
                                        mem_allowed(rules, input->mem_total_kib)) -
                                  rules->safety_buffer);
    slots->formula = least(slots->safe, slots->max);
    step(slots, SLOTS_MAX, slots->formula, slots->formula < slots->safe,
         max_set ? "at most %" PRId64 " (max_slots)"
                 : "at most %" PRId64 ", what this machine carries when idle",
         slots->max);
    if (rules->slots_fixed == SLOTS_NONE) {
        /* A job that has just begun is not in the figures yet; without this a burst would be
         * admitted twice. */
        left = not_negative(slots->formula - input->pending);
        if (input->pending > 0)
            step(slots, SLOTS_PENDING, left, left < slots->formula,
                 "%" PRId64 " begun since the machine was measured", input->pending);
        return left;
    }
    slots->max = rules->slots_fixed;
    step(slots, SLOTS_FIXED, slots->max, slots->max < slots->formula,
         "%" PRId64 " in all, whatever the formula says (slots_fixed)", slots->max);
    return slots->max;
}

/* The formula gives no slot at all for a machine of two cores. A value configured for this machine
 * still counts, and a figure that could not be read still means no. */
static int64_t carries_min(const struct slots_rules *rules, const struct slots_input *input)
{
    int64_t carries = rules->slots_min;

    if (rules->slots_fixed != SLOTS_NONE || input->cores_milli == SLOTS_UNKNOWN ||
        input->load_1m_centi == SLOTS_UNKNOWN || input->mem_total_kib == SLOTS_UNKNOWN ||
        input->mem_free_kib == SLOTS_UNKNOWN)
        return 0;
    if (rules->max_slots != SLOTS_NONE)
        carries = least(carries, rules->max_slots);
    if (rules->max_concurrent_jobs != SLOTS_NONE)
        carries = least(carries, rules->max_concurrent_jobs);
    return carries;
}

void slots_compute(struct slots *ret_slots, const struct slots_rules *rules,
                   const struct slots_input *input)
{
    struct slots slots = {.count = 0};
    int64_t carries = carries_min(rules, input), left, room, after;

    assert(rules->cpu_per_process_centi > 0 && rules->mem_per_process_centi_gb > 0);
    assert(rules->safety_buffer >= 0 && rules->reserved_slots >= 0 && rules->slots_min >= 0);
    assert(input->in_use >= 0 && input->pending >= 0);
    left = apply_formula(&slots, rules, input);
    if (slots.max < carries)
        slots.max = carries;
    room = not_negative(slots.max - input->in_use);
    step(&slots, SLOTS_IN_USE, least(left, room), room < left, "%" PRId64 " of %" PRId64 " in use",
         input->in_use, slots.max);
    left = least(left, room);
    if (rules->max_concurrent_jobs != SLOTS_NONE) {
        room = not_negative(rules->max_concurrent_jobs - input->in_use);
        step(&slots, SLOTS_JOBS, least(left, room), room < left,
             "%" PRId64 " of %" PRId64 " jobs run (max_concurrent_jobs)", input->in_use,
             rules->max_concurrent_jobs);
        left = least(left, room);
    }
    after = input->level >= LEVEL_DANGER ? 0 : left;
    step(&slots, SLOTS_LEVEL, after, after < left, "%s: %s", level_name(input->level),
         input->level >= LEVEL_DANGER    ? "nothing starts"
         : input->level == LEVEL_WARNING ? "only high priority starts"
                                         : "everything may start");
    left = after;
    if (slots.formula < carries && input->level == LEVEL_NORMAL) {
        room = not_negative(carries - input->in_use);
        left = room > left ? room : left;
        step(&slots, SLOTS_MIN, left, left == 0,
             "at least %" PRId64 " at level normal (slots_min), %" PRId64 " in use", carries,
             input->in_use);
    }
    slots.additional = left;
    slots.max_to_send = input->in_use + left;
    if (rules->max_concurrent_jobs != SLOTS_NONE)
        slots.max_to_send = least(slots.max_to_send, rules->max_concurrent_jobs);
    slots.additional_noninteractive = not_negative(left - rules->reserved_slots);
    step(&slots, SLOTS_RESERVED, slots.additional_noninteractive,
         slots.additional_noninteractive < left,
         "%" PRId64 " kept for interactive work (reserved_slots)", rules->reserved_slots);
    assert(slots.additional >= 0 && slots.additional_noninteractive <= slots.additional);
    *ret_slots = slots;
}
