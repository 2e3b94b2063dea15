/* The GPU's command: started, watched and read without ever waiting. */
#ifndef AGENT_USAGE_GPU_H
#define AGENT_USAGE_GPU_H

#include "base/str.h"

struct usage_gpu {
    const char *command; /* NULL: nvidia-smi; "" = off */
    int pid;             /* > 0: not reaped yet */
    int fd;              /* >= 0: its output is still coming */
    struct buf output;
    int64_t deadline_ms; /* of the one that runs */
    int64_t next_ms;     /* when the next one starts */
    int64_t permille;    /* what the last good one said */
};

void usage_gpu_init(struct usage_gpu *gpu, const char *command);
/* Starts what is due and ends what is late; returns when it wants to be called again. */
int64_t usage_gpu_step(struct usage_gpu *gpu, int64_t now_ms);
void usage_gpu_readable(struct usage_gpu *gpu, int64_t now_ms); /* fd has something */
void usage_gpu_done(struct usage_gpu *gpu);
/* The mean of the percentages in the text, one a line; USAGE_NONE when there are none. */
int64_t usage_gpu_parse(struct str text);

#endif
