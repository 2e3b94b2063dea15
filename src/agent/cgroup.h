/* The kernel's control groups (v2) give a run three things: killing its whole tree, limits and
 * figures. All runs have their groups in one parent per agent, below a group without processes of
 * its own. Controllers are enabled there and nowhere else, because that would damage a group with
 * processes of others (such as a login session). Groups are only created on v2; cgroup_find() also
 * knows v1, to read the limits of this process. */
#ifndef AGENT_CGROUP_H
#define AGENT_CGROUP_H

#include <sys/types.h>

#include "base/err.h"
#include "base/map.h"
#include "base/str.h"

enum { CGROUP_PATH_MAX = 512 };

enum cgroup_limit { CGROUP_MEMORY, CGROUP_PIDS, CGROUP_CPU, CGROUP_LIMITS };

/* Where runs get their groups, and which limits can be set there. */
struct cgroup_place {
    char parent[CGROUP_PATH_MAX]; /* "": no groups can be created */
    bool limits[CGROUP_LIMITS];
    char missing[240]; /* what is not available and why; "" if all is */
};

/* Finds the group of this process below the mounts. Pure: works on the contents of
 * /proc/self/mountinfo and /proc/self/cgroup. controller NULL means the v2 hierarchy. */
bool cgroup_find(struct str mounts, struct str groups, const char *controller, char *path,
                 size_t size);
/* Creates the parent `name` below our own group and tests it. If only this program is in our group,
 * we move one level down to be able to enable controllers. */
void cgroup_probe(const char *name, struct cgroup_place *ret_place);
/* The same below `base`, a group that was set up for us; the processes in it move one level down.
 * The parent is given to this user and group. */
void cgroup_probe_at(const char *base, const char *name, uid_t uid, gid_t gid,
                     struct cgroup_place *ret_place);
/* Removes the parent if it is empty. */
void cgroup_unprobe(const struct cgroup_place *place);
/* Removes the empty groups below the parent whose name is not a key of `runs`. */
void cgroup_sweep(const struct cgroup_place *place, const struct map *runs);
extern const char *const cgroup_limit_names[CGROUP_LIMITS];

/* The group of one run. */
struct cgroup {
    int fd;                           /* -1: no group */
    int procs_fd;                     /* to enter; -1 if opened only to look and kill */
    char path[CGROUP_PATH_MAX + 136]; /* parent / key */
};

#define CGROUP_NONE ((struct cgroup){.fd = -1, .procs_fd = -1})

struct cgroup_limits {
    int64_t memory_bytes_max;     /* 0 = none */
    int64_t memory_bytes_default; /* best effort, if there is no other limit; swap is not limited */
    int64_t pids_max;
    int64_t cpu_permille_max; /* of one core */
    int64_t cpu_weight;       /* 0 = unchanged; best effort */
};

/* A limit that cannot be set is an error; a run without limits gets a group if one can be
 * created. */
enum err cgroup_make(struct cgroup *group, const struct cgroup_place *place, struct str key,
                     const struct cgroup_limits *wanted, struct problem *why);
/* Opens the group, if it exists, for looking and killing. */
void cgroup_open(struct cgroup *group, const struct cgroup_place *place, struct str key);
/* Call in the new process. Uses only system calls that are safe after vfork. Returns 0 or errno. */
int cgroup_enter(const struct cgroup *group);
/* Sends KILL to all processes in it; true if the kernel did it atomically or all were frozen
 * meanwhile. */
bool cgroup_kill(const struct cgroup *group);
bool cgroup_empty(const struct cgroup *group);
int64_t cgroup_oom_kills(const struct cgroup *group); /* 0 also if unknown */
void cgroup_remove(struct cgroup *group);             /* also closes it; it must be empty */
void cgroup_close(struct cgroup *group);

/* Files of the kernel's file systems: small, and reported without a size. Paths are relative to
 * dir_fd. The first two return 0 or errno. */
int cgroup_file_put(int dir_fd, const char *name, const char *text);
int cgroup_file_get(int dir_fd, const char *name, struct buf *ret_text);
/* Reads the number after the name `field` from a file with one pair per line; field NULL: the file
 * is a single number. */
bool cgroup_file_int(int dir_fd, const char *name, const char *field, int64_t *ret_value);

#endif
