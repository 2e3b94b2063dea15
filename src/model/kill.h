/* Whom an emergency ends (R002-11, ruling 23): the order, and when the next one goes. Pure: the
 * caller hands in figures, tasks and time, and does the killing. */
#ifndef MODEL_KILL_H
#define MODEL_KILL_H

#include "base/schema.h"
#include "model/level.h"

#define KILL_REASON  "emergency_degradation"
#define KILL_UNKNOWN INT64_MIN /* memory nobody measured */

struct kill_task {
    struct str id;
    struct str type;
    int64_t score;      /* lowest first */
    bool young;         /* after everybody who is not; never spared */
    int64_t memory_kib; /* what its end frees; KILL_UNKNOWN */
    bool doomed;        /* picked, now or before: not picked again */
};

struct kill_rules {
    struct strs types; /* the killable ones */
    int samples;       /* critical samples in a row before CPU or swap kill: 3 */
    int64_t settle_ms; /* between one decision and the next: 5000 */
    int64_t young_ms;  /* 60000 */
};

extern const struct kill_rules kill_defaults; /* research, talk */

int64_t kill_score(int64_t priority, int64_t age_ms); /* priority*1000 + min(age_s, 999) */
bool kill_may(const struct kill_rules *rules, struct str type);
/* The next to go: killable and not doomed, the lowest score, ties by id. NULL: nobody. */
struct kill_task *kill_next(const struct kill_rules *rules, struct kill_task *tasks, size_t count);

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
    bool memory;      /* memory is critical */
    int64_t mem_free_kib;
    int64_t missing_kib; /* to get back above critical */
    int64_t now_ms;
};

/* Marks those that must end now as doomed and puts them into `picked` (room for `count`), in order.
 * Returns how many: often 0. Memory: on the first critical sample as many as free what is missing
 * (a task of unknown size counts as enough), then settle_ms of peace, cut short only when
 * free memory falls by a quarter (of the bound, once it had recovered). CPU or swap: after
 * `samples` critical ones a single one, then settle_ms. */
size_t kill_step(struct kill_state *state, const struct kill_rules *rules,
                 const struct kill_sample *sample, struct kill_task *tasks, size_t count,
                 struct kill_task **picked);

/* KiB missing until `free` is not below the critical bound (percent x 100) of `total`. */
int64_t kill_missing_kib(int64_t total_kib, int64_t free_kib, int64_t critical_centi);

#endif
