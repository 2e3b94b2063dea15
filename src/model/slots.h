/* How much more work a machine can take: a formula on live figures, then each clamp with its number
 * and reason, so that a person can follow it. Exact integers; pure. */
#ifndef MODEL_SLOTS_H
#define MODEL_SLOTS_H

#include <stddef.h>

#include "model/level.h"

#define SLOTS_UNKNOWN INT64_MIN /* a figure that could not be read: no room (fail closed) */
#define SLOTS_NONE    INT64_MIN /* a limit that is not set */

struct slots_rules {
    int64_t cpu_per_process_centi;    /* cores x 100 */
    int64_t mem_per_process_centi_gb; /* GiB x 100 */
    int64_t mem_reserve_centi_gb;     /* GiB x 100, left to the system */
    int64_t safety_buffer;
    int64_t max_slots;      /* the hard cap; SLOTS_NONE: what the machine can carry when idle */
    int64_t reserved_slots; /* kept for interactive work */
    int64_t max_concurrent_jobs; /* SLOTS_NONE: no such limit */
    int64_t slots_min;   /* at least this many at level normal, whatever the formula yields */
    int64_t slots_fixed; /* replaces formula and hard cap; SLOTS_NONE: the formula */
};

extern const struct slots_rules slots_defaults; /* no cap but the machine's own */

struct slots_input {
    int64_t cores_milli;
    int64_t load_1m_centi;
    int64_t mem_total_kib; /* only for the cap of an idle machine */
    int64_t mem_free_kib;
    int64_t in_use;  /* jobs that run here now */
    int64_t pending; /* of these, started since the figures were read: not included in them yet */
    enum level level;
};

/* In the order in which they are applied. */
enum slots_step {
    SLOTS_CPU,
    SLOTS_MEMORY,
    SLOTS_RAW,
    SLOTS_BUFFER,
    SLOTS_MAX,
    SLOTS_PENDING,
    SLOTS_FIXED,
    SLOTS_IN_USE,
    SLOTS_JOBS,
    SLOTS_LEVEL,
    SLOTS_MIN,
    SLOTS_RESERVED,
    SLOTS_STEP_COUNT
};

/* What was left after this step, and why: "(8.00 cores - load 6.00) / 1.20". */
struct slots_clamp {
    enum slots_step step;
    int64_t value;
    bool bites; /* it reduced the number */
    char reason[112];
};

const char *slots_step_name(enum slots_step step); /* "cpu", "memory", ... */

struct slots {
    struct slots_clamp chain[SLOTS_STEP_COUNT];
    size_t count; /* steps that do not apply are left out */
    int64_t cpu_allowed, mem_allowed, raw, safe;
    int64_t formula;    /* min(safe, the hard cap) */
    int64_t max;        /* slots in all: the hard cap (slots_min if that is more), or slots_fixed */
    int64_t additional; /* on top of those in use; never negative */
    int64_t additional_noninteractive;
    int64_t max_to_send; /* min(max_concurrent_jobs, in_use + additional) */
};

/* The step that left nothing, to show to a person; NULL: something is left for all work. */
const struct slots_clamp *slots_zero(const struct slots *slots);

void slots_compute(struct slots *ret_slots, const struct slots_rules *rules,
                   const struct slots_input *input);

#endif
