/* What trees of our own processes use: this one, the named ones (shims) and all their
 * descendants. */
#ifndef AGENT_USAGE_TREE_H
#define AGENT_USAGE_TREE_H

#include "agent/usage.h"

struct usage_trees;
struct usage_trees *usage_trees_new(void);
void usage_trees_free(struct usage_trees *trees);
void usage_trees_own(struct usage_trees *trees, const int *pids, size_t count);
/* Fills own_* and trees of `usage`, whose cores_milli must be set. Between two walks there is a
 * pause unless it is urgent. */
void usage_trees_read(struct usage_trees *trees, struct usage_files *files, int64_t mono_ms,
                      bool urgent, struct usage *usage);
/* See usage_tree_of. */
int usage_trees_find(const struct usage_trees *trees, int pid);

#endif
