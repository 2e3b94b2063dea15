/* What a node has: countable resources by name, and GPUs. The amount available for jobs is the
 * smaller of what was declared and what was measured as usable, less what leases hold. A demand is
 * taken whole or not at all, and given back with its lease. Pure: whatever keeps the leases keeps
 * this next to the node's counters. */
#ifndef MODEL_RESOURCES_H
#define MODEL_RESOURCES_H

#include "model/demand.h"

enum {
    RESOURCES_MAX = 16,      /* names of one node */
    RESOURCES_GPUS_MAX = 16, /* and GPUs, */
    RESOURCES_GPU_IDS = 64,  /* whose ids are below this: a set of them is 64 bits */
    RESOURCES_TEXT_MAX = 2048,
    RESOURCES_WHOLE_PERCENT = 90, /* of a GPU's memory usable: it can be taken whole */
};

struct resource {
    char name[DEMAND_NAME_MAX + 1];
    int32_t capacity;
    int32_t usable; /* by measurement: free memory plus what our jobs use; at most capacity */
    int32_t used;   /* sum of the leases */
};

struct resource_gpu {
    int32_t id;
    int32_t vram_mb;
    int32_t usable_mb; /* as `usable` */
    int32_t used_mb;   /* sum of the leases that share it */
    bool whole;        /* one lease has all of it */
};

struct resources {
    size_t count;
    struct resource items[RESOURCES_MAX]; /* by name */
    size_t gpu_count;
    struct resource_gpu gpus[RESOURCES_GPUS_MAX]; /* by id */
};

/* How much is left of each, in the same order; below 0 when the node shrank under its leases.
 * RESOURCES_LEFT_WHOLE for a GPU that a job has whole. */
struct resources_left {
    uint8_t count, gpu_count;
    int32_t left[RESOURCES_MAX];
    int32_t gpu_left[RESOURCES_GPUS_MAX];
    uint32_t shared; /* bit i: the i-th GPU is shared, so it cannot be taken whole */
};
#define RESOURCES_LEFT_WHOLE INT32_MIN

/* `resources` of a registration: {cpu: 8, mem_mb: 15000, gpus: [{id: 0, model: "L4", vram_mb:
 * 23034}], licences: 3}. All of it is usable. */
enum err resources_read(const struct json *value, struct arena *arena,
                        struct resources *ret_resources, struct problem *why);
/* Manual declaration, used when a machine was measured: adds it, or changes what was declared; 0
 * removes it. All of it is usable. False: no such name or id, or there is no room for one more. */
bool resources_declare(struct resources *resources, struct str name, int32_t capacity);
bool resources_declare_gpu(struct resources *resources, int32_t id, int32_t vram_mb);
/* `free` of a heartbeat: {mem_mb: 5000, gpus: [{id: 0, vram_mb: 3000}]}, what is free now; and
 * `ours`, the same shape: what our jobs use of what they were promised. Usable is the sum of both.
 * Resources named in neither are as declared; undeclared names are ignored. */
enum err resources_read_free(const struct json *free, const struct json *ours, struct arena *arena,
                             struct resources *resources, struct problem *why);
/* Rounds usable amounts down to steps of a 64th of the capacity, so that noise changes nothing: as
 * in `before` unless it fell below that, or rose by more than a step. */
void resources_settle(struct resources *resources, const struct resources *before);

/* "NAME=CAPACITY/USABLE,... ID=VRAM/USABLE,...": the stored form. "" means no resources. */
void resources_write(const struct resources *resources, struct buf *to);
/* Nothing is used afterwards. False: not written by resources_write. */
bool resources_parse(struct str text, struct resources *ret_resources);

/* Why a demand does not fit: the first thing that is short. */
struct resources_short {
    char name[DEMAND_NAME_MAX + 1]; /* "gpus", "vram_mb", or the name of an item */
    int32_t needed;
    int32_t left; /* for a GPU, the most that any has; for gpus, how many are free; 0: none */
    int32_t of;   /* capacity; 0: the node does not have it at all */
    int32_t gpu;  /* id of the GPU with the most left; -1: not about a GPU */
};

/* Does it fit, ignoring slots? ret_short may be NULL. *ret_gpus: the ids it gets, one bit each; 0
 * if it needs none. Shared: the GPU with the least left, from those that cannot be taken whole,
 * else from all. Whole ones: those with the least memory that have enough. */
bool resources_fit(const struct resources *resources, const struct demand *demand,
                   uint64_t *ret_gpus, struct resources_short *ret_short);
void resources_take(struct resources *resources, const struct demand *demand, uint64_t gpus);
void resources_give(struct resources *resources, const struct demand *demand, uint64_t gpus);
void resources_none_used(struct resources *resources); /* before a recount */
/* Takes over what is declared and usable. False: names, ids or the memory of GPUs differ, so the
 * caller must recount what the leases use. */
bool resources_update(struct resources *resources, const struct resources *now);

void resources_left(const struct resources *resources, struct resources_left *ret_left);
/* The same check against what is left, for callers that do not have the leases. */
bool resources_left_fit(const struct resources *declared, const struct resources_left *left,
                        const struct demand *demand, struct resources_short *ret_short);
/* Takes it from there. False: it does not fit, nothing is taken. */
bool resources_left_take(const struct resources *declared, struct resources_left *left,
                         const struct demand *demand);
/* How much of the scarcest resource in the demand would be left, in 1/1000 of what the node
 * declares; -1: it does not fit. Resources not in the demand do not count. */
int32_t resources_left_over(const struct resources *declared, const struct resources_left *left,
                            const struct demand *demand);
/* "GPU 0: 6.2 of 23 GB free, needs 7 GB", "licences: 0 of 3 free, needs 1", "it has no licences".
 */
void resources_short_text(const struct resources_short *lack, struct buf *to);

#endif
