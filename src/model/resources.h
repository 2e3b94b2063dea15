/* What a node has: countable resources by name, and GPUs. How much of each may be given away is the
 * smaller of what was declared and what was measured to be usable, less what leases hold. A demand
 * is taken whole or not at all; what was taken is given back with its lease. Pure: whoever keeps
 * the leases keeps this beside the node's counters. */
#ifndef MODEL_RESOURCES_H
#define MODEL_RESOURCES_H

#include "model/demand.h"

enum {
    RESOURCES_MAX = 16,      /* names of one node */
    RESOURCES_GPUS_MAX = 16, /* and GPUs, */
    RESOURCES_GPU_IDS = 64,  /* whose ids are below this: a set of them is 64 bits */
    RESOURCES_TEXT_MAX = 2048,
    RESOURCES_WHOLE_PERCENT = 90, /* of a GPU's memory is usable: it can be had whole */
};

struct resource {
    char name[DEMAND_NAME_MAX + 1];
    int32_t capacity;
    int32_t usable; /* by measurement: what is free and what our work has of it; at most capacity */
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

/* How much is left of each, in the same order; below 0 when the node shrank under its leases. Of a
 * GPU that somebody has whole: RESOURCES_LEFT_WHOLE. */
struct resources_left {
    uint8_t count, gpu_count;
    int32_t left[RESOURCES_MAX];
    int32_t gpu_left[RESOURCES_GPUS_MAX];
    uint32_t shared; /* bit i: others share the i-th GPU, so it cannot be had whole */
};
#define RESOURCES_LEFT_WHOLE INT32_MIN

/* `resources` of a registration: {cpu: 8, mem_mb: 15000, gpus: [{id: 0, model: "L4", vram_mb:
 * 23034}], licences: 3}. All of it is usable. */
enum err resources_read(const struct json *value, struct arena *arena,
                        struct resources *ret_resources, struct problem *why);
/* By hand, as a machine was measured: adds it, or changes what was declared; 0 takes it away. All
 * of it is usable. False: no such name or id, or there is no room for one more. */
bool resources_declare(struct resources *resources, struct str name, int32_t capacity);
bool resources_declare_gpu(struct resources *resources, int32_t id, int32_t vram_mb);
/* `free` of a heartbeat: {mem_mb: 5000, gpus: [{id: 0, vram_mb: 3000}]}, what is free now; and
 * `ours`, the same shape: what our work has of what it was promised. Usable is the sum of both.
 * What neither names is as it was declared; names that were not declared are passed over. */
enum err resources_read_free(const struct json *free, const struct json *ours, struct arena *arena,
                             struct resources *resources, struct problem *why);
/* Usable amounts in steps of a 64th of the capacity, downwards, so that noise changes nothing: as
 * `before` has it unless it fell below that, or rose by more than a step. */
void resources_settle(struct resources *resources, const struct resources *before);

/* "NAME=CAPACITY/USABLE,... ID=VRAM/USABLE,...": what a store keeps. "" has nothing. */
void resources_write(const struct resources *resources, struct buf *to);
/* Nothing is used. False: resources_write did not write that. */
bool resources_parse(struct str text, struct resources *ret_resources);

/* Why a demand does not fit: the first thing that is short. */
struct resources_short {
    char name[DEMAND_NAME_MAX + 1]; /* "gpus", "vram_mb", or the name of an item */
    int32_t needed;
    int32_t
        left; /* of a GPU the most that one has; of gpus how many are free; 0 when there is none */
    int32_t of;  /* capacity; 0: the node does not have it at all */
    int32_t gpu; /* id of the GPU that has the most left; -1: it is not about one */
};

/* Does it fit, slots apart? *ret_gpus: the ids it gets, a bit each; 0 if it needs none. Shared: of
 * those that nobody could have whole, else of all, the GPU with the least left; whole ones: those
 * with the least memory that have enough. */
bool resources_fit(const struct resources *resources, const struct demand *demand,
                   uint64_t *ret_gpus, struct resources_short *ret_short);
void resources_take(struct resources *resources, const struct demand *demand, uint64_t gpus);
void resources_give(struct resources *resources, const struct demand *demand, uint64_t gpus);
void resources_none_used(struct resources *resources); /* before a recount */
/* Takes over what is declared and usable. False: names, ids or the memory of GPUs differ, so
 * whoever keeps the leases counts what is used anew. */
bool resources_update(struct resources *resources, const struct resources *now);

void resources_left(const struct resources *resources, struct resources_left *ret_left);
/* The same question asked of what is left, by whoever has no leases. */
bool resources_left_fit(const struct resources *declared, const struct resources_left *left,
                        const struct demand *demand, struct resources_short *ret_short);
/* And takes it from there. False: it does not fit, nothing is taken. */
bool resources_left_take(const struct resources *declared, struct resources_left *left,
                         const struct demand *demand);
/* How much of the scarcest thing the demand asks for would be left, in 1/1000 of what the node
 * declares; -1: it does not fit. What it does not ask for does not count. */
int32_t resources_left_over(const struct resources *declared, const struct resources_left *left,
                            const struct demand *demand);
/* "GPU 0: 6.2 of 23 GB free, needs 7 GB", "licences: 0 of 3 free, needs 1", "it has no licences".
 */
void resources_short_text(const struct resources_short *lack, struct buf *to);

#endif
