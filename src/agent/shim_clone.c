/* A new process that shares our memory until its exec, as after vfork(), but straight into a v2
 * control group: copying the memory of this program costs more than all else a start needs, and
 * moving a process into a group afterwards may wait for every core. The C library has no call for
 * it, so the system call is made in place: no frame of ours must be left by the child, because the
 * parent goes on in it. */
#include <assert.h>
#include <errno.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/shim.h"

enum { FLAGS = CLONE_VFORK | CLONE_VM };

#if defined(__x86_64__)

__attribute__((always_inline)) static inline long clone3_here(const struct clone_args *args,
                                                              size_t size)
{
    long result;

    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"((long)SYS_clone3), "D"(args), "S"(size)
                     : "rcx", "r11", "memory");
    return result;
}

#elif defined(__aarch64__)

__attribute__((always_inline)) static inline long clone3_here(const struct clone_args *args,
                                                              size_t size)
{
    register long number __asm__("x8") = SYS_clone3;
    register long first __asm__("x0") = (long)args;
    register long second __asm__("x1") = (long)size;

    __asm__ volatile("svc 0" : "+r"(first) : "r"(number), "r"(second) : "memory");
    return first;
}

#else

__attribute__((always_inline)) static inline long clone3_here(const struct clone_args *args,
                                                              size_t size)
{
    return -ENOSYS; /* this machine's way is not known: fork() will do */
}

#endif

/* Small on purpose, and never inlined: what the child does in this frame the parent finds again. */
__attribute__((noinline)) static long clone_and_become(const struct clone_args *args,
                                                       struct shim_plan *plan)
{
    long pid = clone3_here(args, sizeof *args);

    if (pid == 0)
        shim_job_become(plan);
    return pid;
}

pid_t shim_clone(struct shim_plan *plan, int group_fd)
{
    struct clone_args args = {.flags = FLAGS, .exit_signal = SIGCHLD};
    long pid;

    if (group_fd >= 0) {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = (uint64_t)group_fd;
    }
    plan->cloned_into = group_fd >= 0;
    pid = clone_and_become(&args, plan);
    if (pid > 0)
        return (pid_t)pid;
    /* An old kernel, or a filter that does not know the call. */
    plan->cloned_into = false;
    pid = syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0)
        shim_job_become(plan);
    return (pid_t)pid;
}
