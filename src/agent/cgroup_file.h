/* Small files of /proc and of cgroups: read whole, written in one call. */
#ifndef AGENT_CGROUP_FILE_H
#define AGENT_CGROUP_FILE_H

#include "base/str.h"

/* Paths are relative to dir_fd unless they are absolute. 0 or errno. */
int cgroup_file_put(int dir_fd, const char *name, const char *text);
int cgroup_file_get(int dir_fd, const char *name, struct buf *ret_text);
/* The number behind the word `field` ("oom_kill 3"), or the whole file's when field is NULL. */
bool cgroup_file_int(int dir_fd, const char *name, const char *field, int64_t *ret_value);

#endif
