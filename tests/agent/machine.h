/* A machine as a directory tree: the files of /proc and /sys that a test needs. */
#ifndef TESTS_AGENT_MACHINE_H
#define TESTS_AGENT_MACHINE_H

#include "base/str.h"

struct machine {
    char root[64];
};

void machine_init(struct machine *machine); /* empty, in the directory for temporary files */
void machine_done(struct machine *machine); /* removes everything in it */
/* Writes a file and creates its directories. `path` has no leading slash. */
__attribute__((format(printf, 3, 4))) void machine_put(struct machine *machine, const char *path,
                                                       const char *fmt, ...);
/* Removes a file or an empty directory. */
void machine_drop(struct machine *machine, const char *path);

/* The machine "us" of examples/: 8 cores, 15 GiB of memory with 11 free, load 6.00, no swap, idle
 * counters. */
void machine_put_us(struct machine *machine);
void machine_put_load(struct machine *machine, int cores, const char *load);
/* In KiB. */
void machine_put_memory(struct machine *machine, int64_t total, int64_t free, int64_t swap_total,
                        int64_t swap_free);
/* One process, as in /proc/PID/stat. */
struct machine_proc {
    int pid, parent, session;
    int64_t ticks;  /* user and system time, half each */
    int64_t waited; /* time of children it has waited for */
    int64_t start;
    int64_t rss_pages;
    const char *name;  /* NULL: "job" */
    const char *state; /* NULL: "S" */
};
void machine_put_proc(struct machine *machine, const struct machine_proc *proc);
/* The reading process itself. */
void machine_put_self(struct machine *machine, const struct machine_proc *proc);

#endif
