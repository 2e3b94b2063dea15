/* How near a machine is to freezing: four levels, by the worst of its signals. A
 * level changes slowly in both directions, except that memory running out counts at once. Pure: the
 * figures and the time are handed in. */
#ifndef MODEL_LEVEL_H
#define MODEL_LEVEL_H

#include "base/str.h"

enum level { LEVEL_NORMAL, LEVEL_WARNING, LEVEL_DANGER, LEVEL_CRITICAL, LEVEL_COUNT };

/* What may trip. Of several that are equally bad the first here is named: memory kills soonest. */
enum level_signal {
    LEVEL_MEMORY,
    LEVEL_CPU,
    LEVEL_SWAP,
    LEVEL_PRESSURE,
    LEVEL_DISK,
    LEVEL_VRAM,
    LEVEL_SIGNAL_COUNT
};

const char *level_name(enum level level); /* "normal", ... */
bool level_by_name(struct str name, enum level *ret_level);
const char *level_signal_name(enum level_signal signal); /* "memory", "cpu", "swap", ... */
const char *level_dispatch(enum level level);            /* "all", "high_priority_only", "none" */

#define LEVEL_UNKNOWN INT64_MIN /* a figure that was not sent: it does not trip */
#define LEVEL_NEVER   INT64_MIN /* a bound that is not there */

/* In millionths of the whole, so 59.9 % is 599000: memory free, CPU used (may exceed a million),
 * swap used (none there = 0), the share of time everything waited for memory (PSI full avg10),
 * disk free where runs and packages are, and memory free of the GPU that cannot keep what it
 * promised. */
struct level_figures {
    int64_t ppm[LEVEL_SIGNAL_COUNT];
};

/* Percent x 100. The first border belongs to warning, every other one to the milder level. */
struct level_bounds {
    int64_t warning_centi;
    int64_t danger_centi;
    int64_t critical_centi;
    int64_t margin_centi; /* 0: that of the rules */
};

struct level_rules {
    struct level_bounds bounds[LEVEL_SIGNAL_COUNT];
    int64_t margin_centi; /* better means better than a border by this much */
    int rise_samples;     /* this many samples in a row raise the level, */
    int64_t rise_ms;      /* or a row of them as long as this */
    int64_t calm_ms;      /* better for this long lowers it, */
    int64_t hold_ms;      /* but not sooner than this after it rose */
};

/* The borders, and the hysteresis. A value that stays around one border changes the level at most
 * twice in hold_ms: between a rise and the next fall there is hold_ms. */
extern const struct level_rules level_defaults;

struct level_verdict {
    enum level level;
    enum level_signal by; /* the worst signal; means nothing at normal */
    enum level of[LEVEL_SIGNAL_COUNT];
};

/* One look at the figures, without memory. */
struct level_verdict level_of(const struct level_figures *figures, const struct level_rules *rules);

struct level_state {
    enum level level;     /* what is shown, sent and filtered by */
    enum level_signal by; /* what raised it last */
    struct level_verdict now;
    int64_t changed_ms;
    int64_t raised_ms;
    bool sampled;
    /* For each level: since when, and for how many samples in a row, it was this bad or worse. */
    int64_t since_ms[LEVEL_COUNT];
    int row[LEVEL_COUNT];
    int64_t near_ms[LEVEL_COUNT]; /* when it last was this bad, or too near to it */
};

/* Zero-initialised is a state without samples; of the first, all but CPU and pressure counts at
 * once. True: the level changed. Times never go back. */
bool level_step(struct level_state *state, const struct level_rules *rules,
                const struct level_figures *figures, int64_t now_ms);
/* What new work is judged by: the level, or the last look if that was worse: it is
 * asked before each dispatch. */
enum level level_gate(const struct level_state *state);

/* May work of this priority start? Normal: all; warning: priority >= high_priority_min. */
bool level_admits(enum level level, int64_t priority, int64_t high_priority_min);

#endif
