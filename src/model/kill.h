/* Which tasks an emergency ends, in which order, and when the next one follows. Pure: the caller
 * passes in figures, tasks and time, and does the killing. */
#ifndef MODEL_KILL_H
#define MODEL_KILL_H

#include "base/schema.h"
#include "model/level.h"

#define KILL_REASON  "emergency_degradation"
#define KILL_UNKNOWN INT64_MIN /* a size that was not measured */

struct kill_task {
    struct str id;
    struct str type;
    int64_t priority; /* lowest first, before any other criterion */
    bool deployment;  /* after the jobs of the same priority */
    int64_t score;    /* when sizes do not decide: lowest first */
    bool young;       /* decides before the score: young tasks last */
    /* What ending it frees; KILL_UNKNOWN: not measured. */
    int64_t memory_kib; /* including its swapped memory */
    int64_t swap_kib;
    int64_t cpu_ppm;  /* of all the machine has */
    int64_t vram_kib; /* on the GPU in question */
    bool doomed;      /* picked, now or earlier: not picked again */
};

struct kill_rules {
    struct strs types;     /* only these may be ended; count 0: all */
    struct strs protected; /* but these never; "*": none may be ended */
    int samples; /* critical samples in a row before anything other than memory causes a kill: 3 */
    int64_t settle_ms; /* between one decision and the next: 5000 */
    int64_t young_ms;  /* 60000 */
};

extern const struct kill_rules kill_defaults; /* all but f2f */

int64_t kill_score(int64_t priority, int64_t age_ms); /* priority*1000 + min(age_s, 999) */

/* One machine's emergency across samples; zero-initialised is none. */
struct kill_state {
    int row; /* critical samples in a row */
    bool settling;
    bool unresolved; /* critical, and no task left to end */
    int64_t decided_ms;
    bool recovered;   /* it was not critical in between */
    int64_t free_kib; /* the most free memory seen since a decision because of memory; else
                         KILL_UNKNOWN */
};

struct kill_sample {
    enum level level; /* of this sample */
    enum level_signal by;
    int64_t mem_free_kib;
    /* In KiB, or millionths of the machine's CPU: how much must be freed to leave critical, */
    int64_t missing;
    int64_t wanted; /* and to stay out of it, including the levels' margin: never less */
    int64_t now_ms;
};

/* Marks the tasks that must end now as doomed and puts them into `picked` (room for `count`), in
 * order. Returns how many: often 0.
 *
 * Which: by priority, jobs before deployments; within that, the task that frees most. A task that
 * frees less than a tenth of what is wanted is passed over, whatever its priority, while another
 * frees more. If none does, the largest go first; if all of them together would not free that
 * tenth, none is ended: the cause is elsewhere. CPU is only taken from one task to give it to
 * another: the last one that uses CPU stays. Without measurements the order is priority, age, id.
 *
 * When: for memory on the first critical sample, as many as free what is missing (an unknown size
 * counts as enough), followed by a pause of settle_ms. The pause is cut short only when free memory
 * falls by a quarter (of the bound, once it had recovered) and the tasks already ending will not
 * make up for it. For every other signal, a single task after `samples` critical samples, then
 * settle_ms; pressure is an average over ten seconds, so it waits ten seconds more. */
size_t kill_step(struct kill_state *state, const struct kill_rules *rules,
                 const struct kill_sample *sample, struct kill_task *tasks, size_t count,
                 struct kill_task **picked);

/* How many KiB `free` is below the bound (percent x 100) of `total`. */
int64_t kill_missing_kib(int64_t total_kib, int64_t free_kib, int64_t bound_centi);

#endif
