/* Protects the machine from overload: turns samples into a level, slots and an answer to new work,
 * and in an emergency ends the tasks that cause it. No timers and no clock: it acts on each sample.
 * Times are CLOCK_MONOTONIC ms. One thread. */
#ifndef AGENT_PROTECT_H
#define AGENT_PROTECT_H

#include "agent/usage.h"
#include "model/kill.h"
#include "model/level.h"
#include "model/slots.h"

struct protect_rules {
    struct level_rules level;
    struct slots_rules slots;
    struct kill_rules kill;
    struct strs allowed_types; /* count 0: all */
    int64_t disk_counted_kib;  /* a larger disk counts as this size */
    int64_t high_priority_min; /* minimum priority that still starts at level warning */
    int64_t stale_ms;          /* if the last sample is older, nothing starts */
};

struct protect_rules protect_defaults(void);
/* Are these rules valid? Describes the first error. */
enum err protect_check(const struct protect_rules *rules, struct problem *why);

/* A job or a deployment's copy that runs here. */
struct protect_task {
    struct str id;
    struct str type;
    bool deployment; /* it takes no slot */
    int64_t slots;   /* slots a job takes; 0 counts as 1 */
    int64_t priority;
    int64_t started_ms;
    /* What its end frees; USAGE_NONE: unknown. */
    int64_t memory_kib; /* including swap */
    int64_t swap_kib;
    int64_t cpu_permille; /* of the whole machine */
    int64_t vram_kib;     /* of the GPU that is short of memory */
    bool stopping;        /* its end was already requested */
};

/* Why a task must end: the evidence that is logged and stored with it. */
struct protect_kill {
    const struct protect_task *task;
    enum level level;
    enum level_signal by;
    struct level_figures figures;
    int64_t mem_free_kib, mem_total_kib;
    int64_t missing_kib; /* of memory, swap or VRAM; 0 if the cause is another */
    int gpu;             /* whose memory is short; -1: not about a GPU */
    int64_t missing_cpu_permille;
    int64_t grace_ms; /* between TERM and KILL: 0 when memory runs out */
    int64_t score;
    int64_t age_ms;
    size_t number, count; /* position among those that end together, from 1 */
};

struct protect {
    struct protect_rules rules;
    struct level_state level;
    struct kill_state emergency;
    struct slots slots;
    struct usage usage; /* the last sample, without trees */
    bool sampled;
    int64_t sampled_ms;
    int64_t in_use, pending;
    int64_t kills; /* since the start */
    /* A task must end now (TERM, and KILL soon after). Called inside protect_sample. */
    void (*kill)(struct protect *protect, const struct protect_kill *kill);
    void *user;
    struct kill_task *doomed; /* room for a sample's tasks, and which of them were picked */
    struct kill_task **picked;
    size_t room;
};

/* The strings and lists of `rules` must outlive it. */
void protect_init(struct protect *protect, const struct protect_rules *rules,
                  void (*kill)(struct protect *protect, const struct protect_kill *kill),
                  void *user);
void protect_done(struct protect *protect);

/* A sample and everything that runs, including deployments. True: the level changed. Logs
 * level.change, emergency.kill and emergency.unresolved. */
bool protect_sample(struct protect *protect, int64_t now_ms, const struct usage *usage,
                    const struct protect_task *tasks, size_t count);
/* Called between two samples to keep the slot count right. `started_ms` and `slots` are the
 * job's. */
void protect_started(struct protect *protect, int64_t started_ms, int64_t slots);
void protect_ended(struct protect *protect, int64_t started_ms, int64_t slots);

enum protect_answer {
    PROTECT_ADMIT,
    PROTECT_TYPE,  /* TYPE_NOT_ALLOWED; the ones below are NODE_OVERLOADED */
    PROTECT_STALE, /* the samples are out of date */
    PROTECT_LEVEL,
    PROTECT_FULL,
};

const char *protect_code(enum protect_answer answer); /* of a refusal */
/* May a job like this start here now? If not, `detail` (may be NULL) gets one sentence. */
enum protect_answer protect_admits(const struct protect *protect, int64_t now_ms, struct str type,
                                   int64_t priority, bool interactive, int64_t slots,
                                   struct buf *detail);

/* How many slots there are and why, in one line. Only after the first sample. */
void protect_explain(const struct protect *protect, struct buf *out);
/* Writes level, slots and clamps into an open object. */
void protect_write(const struct protect *protect, int64_t now_ms, struct jsonw *w);
void protect_kill_write(const struct protect_kill *kill, struct jsonw *w); /* an object */

#endif
