/* Whom an emergency ends: the order, and when the next one goes. Pure: the
 * caller hands in figures, tasks and time, and does the killing. */
#ifndef MODEL_KILL_H
#define MODEL_KILL_H

#include "base/schema.h"
#include "model/level.h"

#define KILL_REASON  "emergency_degradation"
#define KILL_UNKNOWN INT64_MIN /* a size nobody measured */

struct kill_task {
    struct str id;
    struct str type;
    int64_t priority; /* lowest first, whatever else */
    bool deployment;  /* after the jobs of its priority */
    int64_t score;    /* where sizes do not decide: lowest first */
    bool young;       /* and this before the score: last */
    /* What its end gives back; KILL_UNKNOWN. */
    int64_t memory_kib; /* its share of swap too */
    int64_t swap_kib;
    int64_t cpu_ppm;  /* of all the machine has */
    int64_t vram_kib; /* of the GPU it is about */
    bool doomed;      /* picked, now or before: not picked again */
};

struct kill_rules {
    struct strs types;     /* only these may be ended; count 0: all */
    struct strs protected; /* but these never; "*": nobody */
    int samples;           /* critical samples in a row before anything but memory kills: 3 */
    int64_t settle_ms;     /* between one decision and the next: 5000 */
    int64_t young_ms;      /* 60000 */
};

extern const struct kill_rules kill_defaults; /* all but f2f */

int64_t kill_score(int64_t priority, int64_t age_ms); /* priority*1000 + min(age_s, 999) */
bool kill_may(const struct kill_rules *rules, struct str type);

/* One machine's emergency across samples; zero-initialised is none. */
struct kill_state {
    int row; /* critical samples in a row */
    bool settling;
    bool unresolved; /* critical, and nobody left to end */
    int64_t decided_ms;
    bool recovered;   /* it was not critical meanwhile */
    int64_t free_kib; /* the most since it was decided because of memory; else KILL_UNKNOWN */
};

struct kill_sample {
    enum level level; /* of this sample */
    enum level_signal by;
    int64_t mem_free_kib;
    /* In KiB, or millionths of the machine's CPU: what must come back to leave critical, */
    int64_t missing;
    int64_t wanted; /* and to leave it for good, by the margin of the levels: never less */
    int64_t now_ms;
};

/* Marks those that must end now as doomed and puts them into `picked` (room for `count`), in order.
 * Returns how many: often 0.
 *
 * Which: by priority, jobs before deployments; within that the one that gives back most. One that
 * gives back less than a tenth of what is wanted is passed over, whatever its priority, while
 * another gives more; if nobody does the largest go first, and nobody goes when all of them
 * together would not make up that tenth: then the cause is elsewhere. CPU is only taken from one to
 * give it to another: the last that computes stays. Where nothing was measured the order is
 * priority, age, id.
 *
 * When: for memory on the first critical sample, as many as give back what is missing (an unknown
 * size counts as enough), then settle_ms of peace, cut short only when free memory falls by a
 * quarter (of the bound, once it had recovered) and those that are ending will not make up for it.
 * For everything else after `samples` critical ones a single one, then settle_ms; pressure is an
 * average over ten seconds, so it waits ten seconds more. */
size_t kill_step(struct kill_state *state, const struct kill_rules *rules,
                 const struct kill_sample *sample, struct kill_task *tasks, size_t count,
                 struct kill_task **picked);

/* KiB missing until `free` is not below the bound (percent x 100) of `total`. */
int64_t kill_missing_kib(int64_t total_kib, int64_t free_kib, int64_t bound_centi);

#endif
