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
/* Makes the parent called `name` below our own group and tries it. When nobody but this program is
 * in our group, we go one level down to be able to pass controllers on. */
void cgroup_probe(const char *name, struct cgroup_place *ret_place);
/* The same below `base`, a group that somebody keeps for us; the processes in it go one level
 * down. The parent is given to this user and group. */
void cgroup_probe_at(const char *base, const char *name, uid_t uid, gid_t gid,
                     struct cgroup_place *ret_place);
/* Removes the parent if nothing is in it. */
void cgroup_unprobe(const struct cgroup_place *place);
/* Removes the groups below the parent that nobody is in and whose name is no key of `runs`. */
void cgroup_sweep(const struct cgroup_place *place, const struct map *runs);
const char *cgroup_limit_name(enum cgroup_limit limit);

/* The group of one run. */
struct cgroup {
    int fd;                           /* -1: no group */
    int procs_fd;                     /* to enter; -1 if opened only to look and kill */
    char path[CGROUP_PATH_MAX + 136]; /* parent / key */
};

#define CGROUP_NONE ((struct cgroup){.fd = -1, .procs_fd = -1})

struct cgroup_limits {
    int64_t memory_bytes_max;   /* 0 = none */
    int64_t memory_bytes_spare; /* if there is no other: for as well as it goes; swap is free */
    int64_t pids_max;
    int64_t cpu_permille_max; /* of one core */
    int64_t cpu_weight;       /* 0 = as it is; where it cannot be set it stays so */
};

/* A limit that cannot be set is an error; without limits a run has a group if one can be had. */
enum err cgroup_make(struct cgroup *group, const struct cgroup_place *place, struct str key,
                     const struct cgroup_limits *wanted, struct problem *why);
/* If it exists, for looking and killing. */
void cgroup_open(struct cgroup *group, const struct cgroup_place *place, struct str key);
/* In the new process. Only system calls that are safe after a vfork. 0 or errno. */
int cgroup_enter(const struct cgroup *group);
/* KILL to all in it; true when the kernel did it in one step or everybody was frozen meanwhile. */
bool cgroup_kill(const struct cgroup *group);
bool cgroup_empty(const struct cgroup *group);
int64_t cgroup_oom_kills(const struct cgroup *group); /* 0 also when not known */
bool cgroup_cpu_ms(const struct cgroup *group, int64_t *ret_ms);
bool cgroup_memory_bytes(const struct cgroup *group, int64_t *ret_bytes);
void cgroup_remove(struct cgroup *group); /* and closes; nobody must be in it */
void cgroup_close(struct cgroup *group);

/* Files of the kernel's file systems: small, and without a size. Paths are relative to dir_fd. The
 * first two return 0 or errno. */
int cgroup_file_put(int dir_fd, const char *name, const char *text);
int cgroup_file_get(int dir_fd, const char *name, struct buf *ret_text);
/* The number after the name `field` of a file with a pair on each line; field NULL: the file is
 * one number. */
bool cgroup_file_int(int dir_fd, const char *name, const char *field, int64_t *ret_value);

#endif
