/* Directory trees: listing one, and removing what a job left, however many files and however deep,
 * whatever their modes. */
#ifndef AGENT_DIR_TREE_H
#define AGENT_DIR_TREE_H

#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* All below a directory that may be removed; nothing else, whatever links and mounts are there.
 * True: nothing is left. */
bool dir_tree_empty(int dir_fd);

/* How much room a directory takes, looked at in pieces: a job may have any number of files, and its
 * shim has other things to do. What is on another file system, what lies deeper than so many
 * directories, and what cannot be read is left out: it is a bound for work that takes too much, no
 * quota. */

enum { DISK_WALK_DEPTH_MAX = 128 };

struct disk_walk {
    DIR *dirs[DISK_WALK_DEPTH_MAX]; /* the open directories, from the top down */
    int depth;                      /* 0: no walk is under way */
    dev_t device;
    int64_t bytes; /* so far; a file with n hard links counts 1/n for each */
};

bool disk_walk_begin(struct disk_walk *walk, int dir_fd);
/* Counts up to `entries` more entries. False: the walk is over, and bytes is the total. */
bool disk_walk_step(struct disk_walk *walk, int entries);
void disk_walk_done(struct disk_walk *walk); /* also if no walk is under way */

#endif
