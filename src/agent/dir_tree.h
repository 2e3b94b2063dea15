/* Removing what a job left: any number of files, however deep, with whatever modes. */
#ifndef AGENT_DIR_TREE_H
#define AGENT_DIR_TREE_H

#include <stdbool.h>

/* All below a directory that may be removed; nothing else, whatever links and mounts are there.
 * True: nothing is left. */
bool dir_tree_empty(int dir_fd);

/* A directory in another one, by no link; not one that a job has mounted there: that is somebody
 * else's. -1 and errno. */
int dir_tree_open(int parent_fd, const char *name);

#endif
