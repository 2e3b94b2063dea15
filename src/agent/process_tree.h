/* Processes by their place in the tree, read from /proc: the descendants of a shim. A process is
 * identified by its pid and start time, never by the pid alone. */
#ifndef AGENT_PROCESS_TREE_H
#define AGENT_PROCESS_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

struct run_proc {
    int pid, parent, session;
    uint64_t start; /* clock ticks since boot */
    int64_t ticks;  /* CPU it has used */
    int64_t waited; /* CPU of the children it waited for */
    int64_t rss_bytes;
    char state; /* 'R', 'S', 'Z', … */
};

bool process_tree_proc(int pid, struct run_proc *ret_proc);
/* The same from its directory in any /proc: "4711" or "self". False: it is gone. */
bool process_tree_stat(int proc_fd, const char *name, struct run_proc *ret_proc);
/* All descendants of `root`, without it, parents first. The caller frees *ret_procs. */
size_t process_tree_list(int root, struct run_proc **ret_procs);
/* Signals all descendants of `root`. May miss processes that start meanwhile: to kill all, repeat
 * until none is left. */
void process_tree_signal(int root, int signal);
/* Stops them first, so that none can fork away, then kills. Repeat likewise. */
void process_tree_kill(int root);
/* Sends KILL to every process whose environment contains exactly `mark` ("NAME=value"); returns how
 * many. */
size_t process_tree_kill_marked(struct str mark);
/* Sends KILL to all descendants of `spawner`, a child of this process, except shims: those keep
 * track of their own processes, so any others belonged to shims that are gone. Returns how many. */
size_t process_tree_kill_orphans(int spawner);
/* Only if the process still has that start time. False: it is gone. */
bool process_tree_kill_one(int pid, uint64_t start, int signal);

#endif
