/* The GPUs of this machine as reported by a command, which is started, watched and read without
 * blocking. */
#ifndef AGENT_USAGE_GPU_H
#define AGENT_USAGE_GPU_H

#include "base/str.h"
#include "model/resources.h"

enum { USAGE_GPU_MODEL_MAX = 63, USAGE_GPU_PROCESSES_MAX = 256 };

struct usage_gpu_card {
    int32_t id;
    char model[USAGE_GPU_MODEL_MAX + 1]; /* "": unknown */
    int32_t vram_mb, vram_free_mb;
    int64_t permille; /* how busy it is; USAGE_NONE */
    bool listed;      /* the processes that use its memory are known */
};

/* A process that uses memory of a GPU. */
struct usage_gpu_process {
    size_t card; /* index in the list */
    int pid;
    int tree; /* root pid of our tree that it is in; 0: not ours */
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
    int64_t deadline_ms; /* of the running one */
    int64_t next_ms;     /* when the next one starts */
    int64_t permille;    /* from the last good one: of all GPUs */
    struct usage_gpus gpus;
    int64_t seen_ms; /* when it was read; INT64_MIN: it never listed a GPU with its memory */
    uint32_t looks;  /* finished, successful or not */
};

void usage_gpu_init(struct usage_gpu *gpu, const char *command);
/* Starts the command when due and kills a late one; returns when it wants to be called again. */
int64_t usage_gpu_step(struct usage_gpu *gpu, int64_t now_ms);
void usage_gpu_readable(struct usage_gpu *gpu, int64_t now_ms); /* fd is readable */
void usage_gpu_done(struct usage_gpu *gpu);
/* The GPUs with their memory; NULL if none was ever seen, or not recently. */
const struct usage_gpus *usage_gpu_seen(const struct usage_gpu *gpu, int64_t now_ms);
/* True until the command has reported what there is. */
bool usage_gpu_is_new(const struct usage_gpu *gpu);

/* Parses a command's output in one of three forms: a JSON list of GPUs, {id, model, vram_mb,
 * vram_free_mb, util, processes: [{pid, vram_mb}]}; lines of nvidia-smi; percentages, one per line,
 * without GPUs. *ret_permille is the mean utilization, or USAGE_NONE. False: none of these. */
bool usage_gpu_parse(struct str text, struct usage_gpus *ret_gpus, int64_t *ret_permille);

#endif
