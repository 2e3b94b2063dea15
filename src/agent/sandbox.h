/* What the processes between the agent and a job may do, and what a job may not. */
#ifndef AGENT_SANDBOX_H
#define AGENT_SANDBOX_H

#include <linux/filter.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"

#define PRIVILEGE(capability) ((uint64_t)1 << (capability))

/* Switching to another user drops all of root's capabilities; call this before to keep the
 * permitted ones. */
bool privileges_survive(void);
/* Keeps these capabilities, as far as they are permitted, and drops all others. */
bool privileges_keep(uint64_t capabilities);
/* No program started from here on can gain capabilities, whatever its file says. Needs
 * CAP_SETPCAP. */
void privileges_bound(void);
/* In the new process: drops all privileges for good. Only system calls that are safe after vfork. 0
 * or errno. */
int privileges_give_up(void);

/* System calls that work is denied. Work does not run as root, so most of them would fail anyway;
 * the filter cuts off the kernel's least tested parts, above all those that a private user
 * namespace would open. docs/security.md has the list. */

/* The filter, in the arena. */
struct sock_fprog *syscalls_filter(struct arena *arena);
/* In the new process, once it can no longer gain privileges. Only system calls that are safe after
 * vfork. 0 or errno; a kernel without filters is not an error. */
int syscalls_refuse(const struct sock_fprog *filter);

/* A run's own /tmp and /var/tmp, shared memory and queues. World-writable directories are where
 * work of different users meets: guessable names, forgotten files, sockets. So a run has its own
 * mount namespace in which /tmp and /var/tmp are directories of its run, and are removed with it;
 * and /dev/shm is a file system in memory, whose pages count as memory of the process that fills
 * them, up to half of the machine's. An IPC namespace also makes the keys of System V and the
 * queues of POSIX its own.
 *
 * That needs CAP_SYS_ADMIN, or a user namespace: there a process has it over its own mounts and
 * over nothing else. A user namespace maps only one user, so it is for work that runs as its shim's
 * user. */

enum { PRIVATE_TMP_DIRS = 2 };

/* Their names in the directory of a run, and where they are mounted. */
struct private_tmp_dir {
    const char *name, *at;
};
extern const struct private_tmp_dir private_tmp_dirs[PRIVATE_TMP_DIRS];

/* In the new process, with these directories, in the order of the table, for /tmp and /var/tmp;
 * with user_namespace in a user namespace if nothing else is allowed. Only system calls that are
 * safe after vfork. 0 or errno. */
int private_tmp_enter(const char *const from[PRIVATE_TMP_DIRS], bool user_namespace);
/* Tests in another process whether it works. 0 or errno. */
int private_tmp_probe(bool user_namespace);
/* The directory that would hide this path by being mounted over it; NULL: none. */
const char *private_tmp_hides(const char *path);

#endif
