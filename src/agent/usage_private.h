/* What the files of `usage` share. */
#ifndef AGENT_USAGE_PRIVATE_H
#define AGENT_USAGE_PRIVATE_H

#include "agent/usage.h"

enum { USAGE_PATH_MAX = 4096, USAGE_GROUP_MAX = 1024 };

/* Reads files below host_root; one buffer for all of them. */
struct usage_files {
    char root[USAGE_PATH_MAX]; /* without a slash at its end, so "" for "/" */
    struct buf text;
};

/* The whole file, valid until the next read; STR_NONE when it cannot be read. */
__attribute__((format(printf, 2, 3))) struct str usage_file(struct usage_files *files,
                                                            const char *fmt, ...);
struct str usage_word(struct str *rest); /* the next word of a line; empty at the end */
/* "NAME: 123 kB", a line each: what the rows name. */
struct usage_row {
    const char *name; /* with its colon */
    int64_t *to_kib;  /* left alone when it is not there */
};
void usage_kib(struct str text, const struct usage_row *rows, size_t count);
bool usage_centi(struct str decimal, int64_t *ret_centi); /* "12.345" -> 1234 */
/* Less than this share (percent x 100) is free. */
bool usage_below(int64_t free_kib, int64_t total_kib, int64_t centi);

/* --- /proc: counters and figures of one moment --- */

struct usage_proc {
    int64_t cores; /* online */
    int64_t busy_ticks, total_ticks;
    int64_t load_1m_centi;
    int64_t mem_total_kib, mem_free_kib;
    int64_t swap_total_kib, swap_used_kib;
};

void usage_proc_read(struct usage_files *files, struct usage_proc *ret_proc);
void usage_proc_read_memory(struct usage_files *files, struct usage_proc *ret_proc); /* only that */
/* `dir` is a cgroup's directory ("" = none: the machine's own). */
void usage_pressure_read(struct usage_files *files, const char *dir, struct usage *usage);

/* --- cgroups: what confines this process --- */

/* The group of this process in each hierarchy that matters; "" where there is none. */
enum usage_place {
    USAGE_UNIFIED,
    USAGE_MEMORY,
    USAGE_CPU,
    USAGE_CPUACCT,
    USAGE_CPUSET,
    USAGE_PLACES
};

struct usage_groups {
    struct usage_files *files;
    char dirs[USAGE_PLACES][USAGE_GROUP_MAX];
};

struct usage_cgroup {
    int64_t cpu_milli;         /* USAGE_NONE: no quota and no cpuset */
    int64_t cpu_used_us;       /* by everybody under that quota, ever */
    int64_t mem_total_kib;     /* of the limit with the smallest room; USAGE_NONE: no limit */
    int64_t mem_free_kib;      /* that room */
    int64_t mem_used_permille; /* of the fullest of all limits */
    int64_t swap_total_kib;    /* USAGE_NONE: as the machine's */
    int64_t swap_used_kib;
};

void usage_cgroup_find(struct usage_files *files, struct usage_groups *ret_groups);
void usage_cgroup_read(const struct usage_groups *groups, struct usage_cgroup *ret_cgroup);
void usage_cgroup_read_memory(const struct usage_groups *groups, struct usage_cgroup *ret_cgroup);

/* --- processes: our own trees --- */

struct usage_trees;
struct usage_trees *usage_trees_new(void);
void usage_trees_free(struct usage_trees *trees);
void usage_trees_own(struct usage_trees *trees, const int *pids, size_t count);
/* Fills own_* and trees of `usage`, whose cores_milli must be there. A walk rests in between unless
 * it is urgent. */
void usage_trees_read(struct usage_trees *trees, struct usage_files *files, int64_t mono_ms,
                      bool urgent, struct usage *usage);

/* --- the GPU's command: started, watched and read without ever waiting --- */

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
