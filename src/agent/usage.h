/* What this machine has and how much of it is in use, sampled every second without blocking the
 * loop. Integers only; a value that cannot be read is left out, never guessed. */
#ifndef AGENT_USAGE_H
#define AGENT_USAGE_H

#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "model/level.h"

struct usage_gpus;

#define USAGE_NONE INT64_MIN /* unknown; the same as LEVEL_UNKNOWN and SLOTS_UNKNOWN */

/* One of the trees named with usage_own: its root and all living descendants. */
struct usage_tree {
    int pid;
    int64_t cpu_permille; /* share of TOTAL capacity since the last sample */
    int64_t memory_kib;   /* resident */
    int64_t freed_kib;    /* what its end frees: private pages, including those in swap, and
                           * shared memory, counted once however many of its processes use it */
    int64_t swap_kib;     /* of these, in swap */
};

struct usage {
    int64_t cores_milli;       /* 1/1000 core; the cgroup's quota if there is one */
    int64_t load_1m_centi;     /* load average x 100; under a quota, where the load average includes
                                * other work: cores in use over the last minute x 100 */
    int64_t busy_10s_permille; /* CPU busy over the last 10 s, of all cores (of the quota if
                                * there is one) */
    int64_t busy_permille;     /* the same over about a second */
    int64_t busy_ms;           /* how much of these 10 s was measured: less just after the start */
    int64_t mem_total_kib;     /* the cgroup's limit if that runs out first */
    int64_t mem_free_kib; /* MemAvailable, or what is left of the limit (reclaimable is free) */
    int64_t mem_used_permille; /* if confined: of the fullest, the machine or a group */
    int64_t swap_total_kib;
    int64_t swap_used_kib;
    int64_t psi_cpu_some_centi; /* avg10 x 100, percent */
    int64_t psi_mem_some_centi, psi_mem_full_centi;
    int64_t psi_io_some_centi, psi_io_full_centi;
    /* Of the file system with runs and packages; total 0: not measured. Also its inodes, 0 where
     * there are none. */
    int64_t disk_total_kib, disk_free_kib;
    int64_t disk_inodes, disk_inodes_free;
    int64_t gpu_permille; /* from nvidia-smi or the configured command; of all GPUs */
    int64_t
        own_cpu_permille; /* agent + all its runs, share of TOTAL capacity since the last sample */
    int64_t own_memory_kib;
    bool confined; /* in a cgroup with its own limits */
    int64_t at_ms; /* wall time of the sample */
    int64_t mono_ms;
    const struct usage_tree *trees; /* in the order they were named; only valid during the call */
    size_t tree_count;
    /* Likewise, with the memory of each; NULL: there are none, or their state is unknown. */
    const struct usage_gpus *gpus;
    bool gpus_new; /* the first GPU measurement is still running: nothing is known yet */
    /* The GPU that is short of memory, see capacity.h; total 0: none. */
    int vram_gpu;
    int64_t vram_total_kib, vram_free_kib;
};

/* Derives the figures that the rules use. */
void usage_figures(const struct usage *usage, struct level_figures *ret_figures);
/* One of them, in percent x 100: LEVEL_CPU (the smaller of load/cores and busy), LEVEL_MEMORY
 * (free), LEVEL_SWAP (no swap = 0); USAGE_NONE if unknown. */
int64_t usage_pct_centi(const struct usage *usage, enum level_signal signal);
/* Free disk space in millionths of the total. A larger disk counts as counted_kib_max, so that a
 * few percent of a large disk do not count as little. Inodes likewise; the worse of both.
 * LEVEL_UNKNOWN if not measured. */
int64_t usage_disk_ppm(const struct usage *usage, int64_t counted_kib_max);
/* Writes the figures as members of an open object; null if unknown. */
void usage_write(const struct usage *usage, struct jsonw *w);

struct usage_config {
    const char *host_root;   /* "/" (also NULL); everything is read below it */
    const char *disk_dir;    /* whose file system is measured; NULL: none */
    const char *gpu_command; /* NULL: try nvidia-smi; "" = off */
    int64_t interval_ms;     /* 1000 */
    /* Memory alone is read ten times a second: if less than this is free, or a quarter less than at
     * the last sample, the next sample is taken at once. Percent x 100; 0: 10 %. */
    int64_t mem_alert_centi;
};

/* --- a meter remembers earlier looks, for rates; one thread at a time --- */

struct usage_meter;
struct usage_meter *usage_meter_new(const char *host_root);
void usage_meter_free(struct usage_meter *meter);
/* The pids whose trees count as our own in addition to this process (shims). Copied. */
void usage_own(struct usage_meter *meter, const int *pids, size_t count);
void usage_disk(struct usage_meter *meter, const char *dir); /* see usage_config; copied */
/* Measures everything but GPUs. The first look has no rates. Fails only if nothing can be read. The
 * trees belong to the meter and last until its next look. */
enum err usage_measure(struct usage_meter *meter, int64_t mono_ms, int64_t wall_ms,
                       struct usage *ret_usage, struct problem *why);
/* While less memory than this is free, every look walks the process trees at any cost: their sizes
 * decide which task is killed. Percent x 100. */
void usage_alert(struct usage_meter *meter, int64_t mem_alert_centi);

/* The pid of the named tree that a process was in at the last look; 0: none. */
int usage_tree_of(const struct usage_meter *meter, int pid);

/* Only total and free memory, which is cheap to read, in the groups of the last look; USAGE_NONE if
 * unknown. */
void usage_memory(struct usage_meter *meter, int64_t *ret_total_kib, int64_t *ret_free_kib);

enum { USAGE_PATH_MAX = 4096, USAGE_GROUP_MAX = 1024 };

/* Reads files below host_root; one buffer for all of them. */
struct usage_files {
    char root[USAGE_PATH_MAX]; /* without a trailing slash, so "" for "/" */
    struct buf text;
};

/* The whole file, valid until the next read; STR_NONE if it cannot be read. */
__attribute__((format(printf, 2, 3))) struct str usage_file(struct usage_files *files,
                                                            const char *fmt, ...);
struct str usage_word(struct str *rest); /* the next word of a line; empty at the end */
/* Reads the values named by the rows from lines "NAME: 123 kB" or "NAME 123". */
struct usage_row {
    const char *name; /* with its colon, if any */
    int64_t *to;      /* unchanged if missing */
};
void usage_fields(struct str text, const struct usage_row *rows, size_t count);
bool usage_centi(struct str decimal, int64_t *ret_centi); /* "12.345" -> 1234 */
/* True if less than this share (percent x 100) is free. */
bool usage_below(int64_t free_kib, int64_t total_kib, int64_t centi);

#endif
