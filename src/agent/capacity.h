/* What this node has for work that says what it needs: how much it declares of each resource, how
 * much of that is free now, and how much our own work has of what it was promised. Out of the
 * settings and of each sample; the server reserves by it, and what comes in is held against it once
 * more. One loop. */
#ifndef AGENT_CAPACITY_H
#define AGENT_CAPACITY_H

#include "agent/config.h"
#include "agent/usage.h"
#include "agent/usage_gpu.h"

/* Work that was promised something and is not over. */
struct capacity_task {
    const struct demand *demand;
    uint64_t gpus;                 /* ids it got, a bit each */
    const struct usage_tree *tree; /* what it uses; USAGE_NONE where that is not known */
    bool standing; /* a deployment's: no lease of the server's counts it, so it is taken off what is
                    * free, also what it does not use yet */
};

struct capacity_amount {
    bool measured;      /* else all that is declared counts as free */
    int32_t free, ours; /* free now; and how much of the rest is used by who was promised it */
    int64_t unbound; /* as `free`, but below 0 when deployments were promised more than is free */
};

struct capacity {
    const struct config *config;
    /* Usable: free and ours together, at the last sample. Used: what was promised. */
    struct resources resources;
    struct capacity_amount items[RESOURCES_MAX]; /* of each, in the same order */
    struct capacity_amount gpus[RESOURCES_GPUS_MAX];
    char models[RESOURCES_GPU_IDS][USAGE_GPU_MODEL_MAX + 1]; /* by id */
    bool declared;         /* cpu and mem_mb were taken from the settings and a sample */
    uint64_t gpus_seen;    /* by id: it was measured once */
    int64_t others_milli;  /* CPU of everybody but who was promised it, over some seconds */
    int64_t changes_milli; /* CPU promised or given back since the last sample */
    int64_t sampled_ms;
    struct resources sent; /* what the server knows */
    /* The GPU that cannot keep what it promised, the fullest of them; total 0: none. */
    int32_t short_gpu, short_total_mb, short_free_mb;
};

void capacity_init(struct capacity *capacity, const struct config *config);
/* The settings changed: the next sample declares anew. */
void capacity_reload(struct capacity *capacity);
/* A sample, and all that was promised something. */
void capacity_sample(struct capacity *capacity, int64_t now_ms, const struct usage *usage,
                     const struct capacity_task *tasks, size_t count);
/* Between two samples, so that it stays true. */
void capacity_take(struct capacity *capacity, const struct demand *demand, uint64_t gpus);
void capacity_give(struct capacity *capacity, const struct demand *demand, uint64_t gpus);
/* The same for a deployment's, which has it whether it runs or not. */
void capacity_keep(struct capacity *capacity, const struct demand *demand, uint64_t gpus);
void capacity_release(struct capacity *capacity, const struct demand *demand, uint64_t gpus);
/* May a copy of a deployment have this? `has` (NULL: nothing) is what is kept for it by now, which
 * it would give back. *ret_gpus: the GPUs it gets. */
bool capacity_choose(const struct capacity *capacity, const struct demand *demand,
                     const struct demand *has, uint64_t has_gpus, uint64_t *ret_gpus,
                     struct buf *detail);
/* May it come in, on these GPUs? `detail` gets a sentence when not. */
bool capacity_fits(const struct capacity *capacity, const struct demand *demand, uint64_t gpus,
                   struct buf *detail);

/* Something fell by a 64th of what is declared since it was written last. */
bool capacity_fell(const struct capacity *capacity);
/* resources, free and ours, into an open object. */
void capacity_write(struct capacity *capacity, struct jsonw *w);
/* [0, 3]: ids of GPUs, a bit each. False: it is no such list; null is none. */
bool capacity_gpus_read(const struct json *list, uint64_t *ret_gpus);
void capacity_gpus_write(uint64_t gpus, struct jsonw *w);
/* Which GPUs are a run's own, as "NAME=value", at most CAPACITY_ENV of them; without any it sees
 * none. How many there are. */
enum { CAPACITY_ENV = 7 };
size_t capacity_env(uint64_t gpus, struct arena *arena, struct str *env);

/* How much memory of a GPU the processes of a tree have; USAGE_NONE: nobody knows. */
int64_t capacity_vram_kib(const struct usage *usage, int32_t gpu, int tree_pid);

#endif
