/* What the kernel's control groups give a run: an end for its whole tree, limits and figures. A
 * machine has one v2 hierarchy, several of v1, or both; each part is taken from whichever offers
 * it. Groups stand below the agent's own group, in one parent per agent. */
#ifndef AGENT_CGROUP_H
#define AGENT_CGROUP_H

#include "base/err.h"
#include "base/map.h"
#include "base/str.h"

enum cgroup_part {
    CGROUP_KILL,
    CGROUP_CPU, /* what it used */
    CGROUP_MEMORY,
    CGROUP_PIDS,
    CGROUP_QUOTA, /* what CPU it may use */
    CGROUP_PARTS
};

enum { CGROUP_PATH_MAX = 512 };

struct cgroup_place {
    int version;                  /* 1 or 2; 0: not offered */
    char parent[CGROUP_PATH_MAX]; /* directory in which runs have theirs */
};

struct cgroup_places {
    struct cgroup_place part[CGROUP_PARTS];
    char missing[160]; /* what is not offered and why; "" when all is */
};

/* Where the group of this process is found below the mounts: pure, from the texts of
 * /proc/self/mountinfo and /proc/self/cgroup. controller NULL means the v2 hierarchy. */
bool cgroup_find(struct str mounts, struct str groups, const char *controller, char *path,
                 size_t size);
/* Makes the parents called `name` and tries them. On v2 this may move the process into a group of
 * its own beside them, because a group with processes cannot pass controllers on. */
void cgroup_probe(const char *name, struct cgroup_places *ret_places);
/* Removes the parents if nothing is in them. */
void cgroup_unprobe(const struct cgroup_places *places);
/* Removes the groups below the parents that nobody is in and whose name is no key of `runs`. */
void cgroup_sweep(const struct cgroup_places *places, const struct map *runs);
const char *cgroup_part_name(enum cgroup_part part);

/* The groups of one run, one for each hierarchy it takes part in. */
struct cgroup {
    size_t count;
    struct cgroup_dir {
        int fd;
        int procs_fd; /* to enter; -1 when it was opened for looking only */
        int version;
        unsigned parts;                   /* bit per enum cgroup_part */
        char path[CGROUP_PATH_MAX + 136]; /* parent / key */
    } dirs[CGROUP_PARTS];
};

struct cgroup_limits {
    int64_t memory_bytes_max; /* 0 = none */
    int64_t pids_max;
    int64_t cpu_permille_max; /* of one core */
};

/* Groups are made for the parts that are always used (kill, cpu) and for those with a limit. A
 * limit that is offered but cannot be set is an error. */
enum err cgroup_make(struct cgroup *group, const struct cgroup_places *places, struct str key,
                     const struct cgroup_limits *limits, struct problem *why);
/* Those that exist, for looking and killing. */
void cgroup_open(struct cgroup *group, const struct cgroup_places *places, struct str key);
/* For CLONE_INTO_CGROUP; -1 when none is v2. */
int cgroup_clone_fd(const struct cgroup *group);
/* In the new process: enters the v1 groups, and the v2 group unless it was cloned into it. Only
 * system calls that are safe after a vfork. 0 or errno. */
int cgroup_enter(const struct cgroup *group, bool cloned_into);
/* KILL to all in it; true when the kernel did it in one step or everybody was frozen meanwhile. */
bool cgroup_kill(const struct cgroup *group);
bool cgroup_empty(const struct cgroup *group);
int64_t cgroup_oom_kills(const struct cgroup *group); /* 0 also when not known */
bool cgroup_cpu_ms(const struct cgroup *group, int64_t *ret_ms);
bool cgroup_memory_bytes(const struct cgroup *group, int64_t *ret_bytes);
void cgroup_remove(struct cgroup *group); /* and closes; nobody must be in it */
void cgroup_close(struct cgroup *group);

#endif
