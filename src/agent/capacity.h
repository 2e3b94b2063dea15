/* What this node has for work with declared needs: how much of each resource it declares, how much
 * of that is free now, and how much our own work uses of what it was promised. Computed from the
 * settings and each sample; the server reserves by it, and admission checks each start against it
 * again. One loop. */
#ifndef AGENT_CAPACITY_H
#define AGENT_CAPACITY_H

#include "agent/config.h"
#include "agent/usage.h"
#include "agent/usage_gpu.h"

/* Unfinished work with a promise. */
struct capacity_task {
    const struct demand *demand;
    uint64_t gpus;                 /* ids of its GPUs, one bit each */
    const struct usage_tree *tree; /* what it uses; USAGE_NONE where that is unknown */
    bool standing; /* of a deployment: no server lease counts it, so its promise is taken off
                    * what is free, including what it does not use yet */
};

struct capacity_amount {
    bool measured;      /* otherwise all that is declared counts as free */
    int32_t free, ours; /* free now; and how much of the rest is used by work with a promise */
    int64_t unbound; /* like `free`, but negative if deployments were promised more than is free */
};

struct capacity {
    const struct config *config;
    /* Usable: free plus ours at the last sample. Used: what was promised. */
    struct resources resources;
    struct capacity_amount items[RESOURCES_MAX]; /* of each, in the same order */
    struct capacity_amount gpus[RESOURCES_GPUS_MAX];
    char models[RESOURCES_GPU_IDS][USAGE_GPU_MODEL_MAX + 1]; /* by id */
    bool declared;         /* cpu and mem_mb were taken from the settings and a sample; if false,
                            * the next sample declares them */
    uint64_t gpus_seen;    /* by id: measured at least once */
    int64_t others_milli;  /* CPU used by work without a promise, averaged over some seconds */
    int64_t changes_milli; /* CPU promised or given back since the last sample */
    int64_t sampled_ms;
    struct resources sent; /* as last sent to the server */
    /* The GPU that cannot keep its promises, the fullest of them; total 0: none. */
    int32_t short_gpu, short_total_mb, short_free_mb;
};

/* Applies a sample; `tasks` is all work with a promise. */
void capacity_sample(struct capacity *capacity, int64_t now_ms, const struct usage *usage,
                     const struct capacity_task *tasks, size_t count);
/* A job takes (1) or gives back (-1), so that the figures stay right between two samples. */
void capacity_take(struct capacity *capacity, const struct demand *demand, uint64_t gpus, int sign);
/* The same for a deployment's copy, which holds it whether it runs or not. */
void capacity_keep(struct capacity *capacity, const struct demand *demand, uint64_t gpus, int sign);
/* May a copy of a deployment have this? `has` (NULL: nothing) is what is reserved for it now and
 * would be given back. *ret_gpus: the GPUs it gets. */
bool capacity_choose(const struct capacity *capacity, const struct demand *demand,
                     const struct demand *has, uint64_t has_gpus, uint64_t *ret_gpus,
                     struct buf *detail);
/* Does the demand fit, on these GPUs? If not, `detail` gets a sentence. */
bool capacity_fits(const struct capacity *capacity, const struct demand *demand, uint64_t gpus,
                   struct buf *detail);

/* True if a figure fell by a 64th of what is declared since it was last written. */
bool capacity_fell(const struct capacity *capacity);
/* Writes resources, free and ours into an open object. */
void capacity_write(struct capacity *capacity, struct jsonw *w);
/* Reads [0, 3], GPU ids, into one bit each; null is none. False: not such a list. */
bool capacity_gpus_read(const struct json *list, uint64_t *ret_gpus);
void capacity_gpus_write(uint64_t gpus, struct jsonw *w);
/* Environment variables ("NAME=value", at most CAPACITY_ENV) that show a run only its own GPUs; a
 * run without GPUs sees none. Returns how many. */
enum { CAPACITY_ENV = 7 };
size_t capacity_env(uint64_t gpus, struct arena *arena, struct str *env);

/* GPU memory used by the processes of a tree; USAGE_NONE: unknown. */
int64_t capacity_vram_kib(const struct usage *usage, int32_t gpu, int tree_pid);

#endif
