/* A run's own /tmp and /var/tmp, shared memory and queues. Directories that everybody may write to
 * are where work of different users meets: names that can be guessed, files that somebody forgot,
 * sockets. So a run has a mount namespace of its own in which /tmp and /var/tmp are directories of
 * its run, and go with it; and /dev/shm is a file system in memory, whose pages count as memory of
 * whoever fills them, up to half of the machine's. With a namespace for IPC the keys of System V
 * and the queues of POSIX are its own, too.
 *
 * That needs CAP_SYS_ADMIN, or a user namespace: there a process has it over its own mounts and
 * over nothing else. The latter knows one user alone, so it is for work that is the user of its
 * shim. */
#ifndef AGENT_PRIVATE_TMP_H
#define AGENT_PRIVATE_TMP_H

#include <stdbool.h>

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
