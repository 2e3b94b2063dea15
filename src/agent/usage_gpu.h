/* The GPUs of this machine as a command shows them: started, watched and read without ever waiting.
 */
#ifndef AGENT_USAGE_GPU_H
#define AGENT_USAGE_GPU_H

#include "base/str.h"
#include "model/resources.h"

enum { USAGE_GPU_MODEL_MAX = 63, USAGE_GPU_PROCESSES_MAX = 256 };

struct usage_gpu_card {
    int32_t id;
    char model[USAGE_GPU_MODEL_MAX + 1]; /* "": not known */
    int32_t vram_mb, vram_free_mb;
    int64_t permille; /* how busy it is; USAGE_NONE */
    bool listed;      /* who has its memory is known */
};

/* A process that has memory of a GPU. */
struct usage_gpu_process {
    size_t card; /* its place in the list */
    int pid;
    int tree; /* pid of the root of the tree of ours that it is in; 0: it is not ours */
    int32_t vram_mb;
};

struct usage_gpus {
    size_t count;
    struct usage_gpu_card cards[RESOURCES_GPUS_MAX];
    size_t process_count;
    struct usage_gpu_process processes[USAGE_GPU_PROCESSES_MAX];
};

struct usage_gpu {
    const char *command; /* NULL: nvidia-smi; "" = off */
    int pid;             /* > 0: not reaped yet */
    int fd;              /* >= 0: its output is still coming */
    struct buf output;
    int64_t deadline_ms; /* of the one that runs */
    int64_t next_ms;     /* when the next one starts */
    int64_t permille;    /* what the last good one said: of all GPUs */
    struct usage_gpus gpus;
    int64_t seen_ms; /* when it said so; INT64_MIN: it never named a GPU with its memory */
    uint32_t looks;  /* that ended, well or not */
};

void usage_gpu_init(struct usage_gpu *gpu, const char *command);
/* Starts what is due and ends what is late; returns when it wants to be called again. */
int64_t usage_gpu_step(struct usage_gpu *gpu, int64_t now_ms);
void usage_gpu_readable(struct usage_gpu *gpu, int64_t now_ms); /* fd has something */
void usage_gpu_done(struct usage_gpu *gpu);
/* The GPUs with their memory; NULL when none was ever seen, or not lately. */
const struct usage_gpus *usage_gpu_seen(const struct usage_gpu *gpu, int64_t now_ms);
/* It has not said yet what there is. */
bool usage_gpu_is_new(const struct usage_gpu *gpu);

/* What a command printed, in one of three forms: a JSON list of GPUs, {id, model, vram_mb,
 * vram_free_mb, util, processes: [{pid, vram_mb}]}; lines of nvidia-smi; percentages, one a line,
 * which name no GPU. *ret_permille is the mean of how busy they are, or USAGE_NONE. False: it is
 * none of these. */
bool usage_gpu_parse(struct str text, struct usage_gpus *ret_gpus, int64_t *ret_permille);

#endif
