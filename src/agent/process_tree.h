/* Processes by their place in the tree, read from /proc: the descendants of a shim. A process is
 * identified by its pid and start time, never by the pid alone. */
#ifndef AGENT_PROCESS_TREE_H
#define AGENT_PROCESS_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

struct run_proc {
    int pid, parent;
    uint64_t start; /* clock ticks since boot */
    int64_t cpu_ms; /* itself and the children it waited for */
    int64_t rss_bytes;
    char state; /* 'R', 'S', 'Z', … */
};

bool process_tree_proc(int pid, struct run_proc *ret_proc);
/* Everything below `root`, without it, parents first. *ret_procs is the caller's to free. */
size_t process_tree_list(int root, struct run_proc **ret_procs);
/* To all below `root`. What is started meanwhile may be missed: for an end, repeat it until nothing
 * is left. */
void process_tree_signal(int root, int signal);
/* Stops first, so that nobody can fork away, then kills. Repeat it likewise. */
void process_tree_kill(int root);
/* KILL to every process whose environment holds exactly `mark` ("NAME=value"); how many. */
size_t process_tree_kill_marked(struct str mark);
/* KILL to all below `spawner`, a child of this process, except shims: they hold on to what is
 * theirs, so it was left by shims that are gone. How many. */
size_t process_tree_kill_orphans(int spawner);
/* Only if the process is still the one that started then. False: it is gone. */
bool process_tree_kill_one(int pid, uint64_t start, int signal);
void process_tree_usage(int root, int64_t *ret_cpu_ms, int64_t *ret_memory_bytes);

#endif
