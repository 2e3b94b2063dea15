/* What the processes between the agent and a job may do, and what a job may not. */
#ifndef AGENT_SANDBOX_H
#define AGENT_SANDBOX_H

#include <linux/filter.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"

#define PRIVILEGE(capability) ((uint64_t)1 << (capability))

/* Becoming another user takes all capabilities of root away; the permitted ones stay when this was
 * called before. */
bool privileges_survive(void);
/* These capabilities and no others, of those that are permitted. */
bool privileges_keep(uint64_t capabilities);
/* No program that is started from here on can get any, whatever its file says. Needs CAP_SETPCAP.
 */
void privileges_bound(void);
/* In the new process: none at all, for good. Only system calls that are safe after a vfork. 0 or
 * errno. */
int privileges_give_up(void);

/* System calls that work gets refused. It is no root, so most of them would fail anyway; what the
 * list takes away is the way to the kernel's least tested parts, above all by a user namespace of
 * its own. docs/security.md has the list for people. */

/* The filter, in the arena. */
struct sock_fprog *syscalls_filter(struct arena *arena);
/* In the new process, once it can get no privileges any more. Only system calls that are safe after
 * a vfork. 0 or errno; a kernel without filters is no error. */
int syscalls_refuse(const struct sock_fprog *filter);

/* A run's own /tmp and /var/tmp, shared memory and queues. Directories that everybody may write to
 * are where work of different users meets: names that can be guessed, files that somebody forgot,
 * sockets. So a run has a mount namespace of its own in which /tmp and /var/tmp are directories of
 * its run, and go with it; and /dev/shm is a file system in memory, whose pages count as memory of
 * the process that fills them, up to half of the machine's. With a namespace for IPC the keys of
 * System V and the queues of POSIX are its own, too.
 *
 * That needs CAP_SYS_ADMIN, or a user namespace: there a process has it over its own mounts and
 * over nothing else. The latter knows one user alone, so it is for work that is the user of its
 * shim. */

enum { PRIVATE_TMP_DIRS = 2 };

/* Their names in the directory of a run, and where they are mounted. */
struct private_tmp_dir {
    const char *name, *at;
};
extern const struct private_tmp_dir private_tmp_dirs[PRIVATE_TMP_DIRS];

/* In the new process, with these directories in the order of the table for /tmp and /var/tmp; with
 * user_namespace by one of those if nothing else is allowed. Only system calls that are safe after
 * a vfork. 0 or errno.
 */
int private_tmp_enter(const char *const from[PRIVATE_TMP_DIRS], bool user_namespace);
/* Whether we can, by trying it in another process. 0 or errno. */
int private_tmp_probe(bool user_namespace);
/* The directory that would hide this path, because it is in it; NULL: none. */
const char *private_tmp_hides(const char *path);

#endif
