/* How near a machine is to freezing: four levels, by the worst of its signals. A level changes
 * slowly in both directions, except that memory running out counts at once. Pure: figures and time
 * are passed in. */
#ifndef MODEL_LEVEL_H
#define MODEL_LEVEL_H

#include <stdbool.h>
#include <stdint.h>

enum level { LEVEL_NORMAL, LEVEL_WARNING, LEVEL_DANGER, LEVEL_CRITICAL, LEVEL_COUNT };

/* What may trip. If several are equally bad the first one here is named: memory kills soonest. */
enum level_signal {
    LEVEL_MEMORY,
    LEVEL_CPU,
    LEVEL_SWAP,
    LEVEL_PRESSURE,
    LEVEL_DISK,
    LEVEL_VRAM,
    LEVEL_SIGNAL_COUNT
};

const char *level_name(enum level level);                /* "normal", ... */
const char *level_signal_name(enum level_signal signal); /* "memory", "cpu", "swap", ... */

#define LEVEL_UNKNOWN INT64_MIN /* a figure that was not sent: it does not trip */
#define LEVEL_NEVER   INT64_MIN /* a bound that does not exist */

/* In millionths of the whole, so 59.9 % is 599000: memory free; CPU used (may exceed a million);
 * swap used (0 if there is none); the share of time in which everything waited for memory (PSI full
 * avg10); disk free where runs and packages are; and memory free on the GPU that cannot keep its
 * promises. */
struct level_figures {
    int64_t ppm[LEVEL_SIGNAL_COUNT];
};

/* Percent x 100. The first border belongs to warning, every other one to the milder level. */
struct level_bounds {
    int64_t warning_centi;
    int64_t danger_centi;
    int64_t critical_centi;
    int64_t margin_centi; /* 0: the margin of the rules */
};

struct level_rules {
    struct level_bounds bounds[LEVEL_SIGNAL_COUNT];
    int64_t margin_centi; /* to count as better, a figure must be past the border by this much */
    int rise_samples;     /* this many samples in a row raise the level, */
    int64_t rise_ms;      /* or a run of them as long as this */
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

/* The level by one sample, ignoring the past. */
struct level_verdict level_of(const struct level_figures *figures, const struct level_rules *rules);

struct level_state {
    enum level level;     /* shown, sent and used for filtering */
    enum level_signal by; /* what raised it last */
    struct level_verdict now;
    int64_t changed_ms;
    int64_t raised_ms;
    bool sampled;
    /* For each level: since when, and for how many samples in a row, it has been this bad or
     * worse. */
    int64_t since_ms[LEVEL_COUNT];
    int row[LEVEL_COUNT];
    int64_t near_ms[LEVEL_COUNT]; /* when it was last this bad, or too close to it */
};

/* Zero-initialised is a state without samples; of the first sample, all but CPU and pressure counts
 * at once. True: the level changed. Times never go back. */
bool level_step(struct level_state *state, const struct level_rules *rules,
                const struct level_figures *figures, int64_t now_ms);
/* The level for admitting new work, asked before each dispatch: the current level, or that of the
 * last sample if it was worse. */
enum level level_gate(const struct level_state *state);

/* May work of this priority start? Normal: all; warning: priority >= high_priority_min. */
bool level_admits(enum level level, int64_t priority, int64_t high_priority_min);

#endif
