/* System calls that work gets refused. It is no root, so most of them would fail anyway; what the
 * list takes away is the way to the kernel's least tested parts, above all by a user namespace of
 * its own. docs/security.md has the list for people. */
#ifndef AGENT_SYSCALLS_H
#define AGENT_SYSCALLS_H

#include <linux/filter.h>

#include "base/mem.h"

/* The filter, in the arena. */
struct sock_fprog *syscalls_filter(struct arena *arena);
/* In the new process, once it can get no privileges any more. Only system calls that are safe after
 * a vfork. 0 or errno; a kernel without filters is no error. */
int syscalls_refuse(const struct sock_fprog *filter);

#endif
