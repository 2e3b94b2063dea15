/* Directory trees: listing one, and removing what a job left, however many files and however deep,
 * whatever their modes. */
#ifndef AGENT_DIR_TREE_H
#define AGENT_DIR_TREE_H

#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* The entries of a directory; takes over `fd` (-1: opening failed) and closes it with the list.
 * NULL: the directory cannot be read. */
DIR *dir_tree_entries(int fd);
/* The same with a descriptor of its own. */
DIR *dir_tree_list(int dir_fd);

/* Removes everything below a directory that may be removed, without following links or crossing
 * mounts. True: nothing is left. */
bool dir_tree_empty(int dir_fd);

/* The disk usage of a directory, measured in pieces: a job may have any number of files, and its
 * shim has other things to do. Leaves out other file systems, directories deeper than
 * DISK_WALK_DEPTH_MAX, and whatever cannot be read: it is a limit against excessive use, not a
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
