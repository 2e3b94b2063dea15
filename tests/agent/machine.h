/* A machine as a directory tree: the files of /proc and /sys a test wants to be there. */
#ifndef TESTS_AGENT_MACHINE_H
#define TESTS_AGENT_MACHINE_H

#include "base/str.h"

struct machine {
    char root[64];
};

void machine_init(struct machine *machine); /* empty, below the directory for temporary files */
void machine_done(struct machine *machine); /* and all that is in it goes */
/* Writes a file, with the directories it needs. `path` has no slash in front. */
__attribute__((format(printf, 3, 4))) void machine_put(struct machine *machine, const char *path,
                                                       const char *fmt, ...);
void machine_drop(struct machine *machine, const char *path); /* a file or an empty directory */

/* The server us of examples/: 8 cores, 15 GiB of which 11 are free, load 6.00, no swap, idle
 * counters. */
void machine_put_us(struct machine *machine);
void machine_put_load(struct machine *machine, int cores, const char *load);
/* In KiB. */
void machine_put_memory(struct machine *machine, int64_t total, int64_t free, int64_t swap_total,
                        int64_t swap_free);
/* One process; `extra` is where its state does ("S"). */
struct machine_proc {
    int pid, parent, session;
    int64_t ticks;  /* of user and system time, half each */
    int64_t waited; /* and of the children it waited for */
    int64_t start;
    int64_t rss_pages;
    const char *name;  /* NULL: "job" */
    const char *state; /* NULL: "S" */
};
void machine_put_proc(struct machine *machine, const struct machine_proc *proc);
void machine_put_self(struct machine *machine, const struct machine_proc *proc); /* who reads */

#endif
