/* See syscalls.h. */
#include "agent/syscalls.h"

#include <assert.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "base/str.h"

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif

#define X32_BIT 0x40000000u

enum {
    NAMESPACES = CLONE_NEWNS | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC |
                 CLONE_NEWUTS | CLONE_NEWCGROUP,
    BODY_MAX = 192 /* instructions; a jump reaches 255 */
};

/* EPERM, whatever they are asked for. */
static const int refused[] = {
    /* mounting */
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_open_tree,
    SYS_move_mount,
    SYS_fsopen,
    SYS_fsconfig,
    SYS_fsmount,
    SYS_fspick,
    SYS_mount_setattr,
    SYS_open_by_handle_at,
    /* namespaces that others made */
    SYS_setns,
    /* the kernel itself */
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_reboot,
    SYS_syslog,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_io_uring_setup,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    SYS_kcmp,
    /* keys, which know nothing of jobs */
    SYS_add_key,
    SYS_request_key,
    SYS_keyctl,
    /* the machine */
    SYS_swapon,
    SYS_swapoff,
    SYS_acct,
    SYS_quotactl,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_clock_adjtime,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_vhangup,
#ifdef SYS_kexec_file_load
    SYS_kexec_file_load,
#endif
#ifdef SYS_iopl
    SYS_iopl,
    SYS_ioperm,
#endif
};

struct program {
    struct sock_filter *at;
    size_t count;
};

static void add(struct program *program, struct sock_filter instruction)
{
    assert(program->count < BODY_MAX);
    program->at[program->count++] = instruction;
}

static void load(struct program *program, size_t offset)
{
    add(program, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset));
}

static void answer(struct program *program, uint32_t action)
{
    add(program, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action));
}

/* What was loaded is, or has one of, `value`: this answer; else on. */
static void answer_if(struct program *program, uint16_t test, uint32_t value, uint32_t action)
{
    add(program, (struct sock_filter)BPF_JUMP((uint16_t)(BPF_JMP | test | BPF_K), value, 0, 1));
    answer(program, action);
}

/* The same of the low half of an argument of one call; the number of the call is loaded again. */
static void answer_if_argument(struct program *program, int call, int argument, uint16_t test,
                               uint32_t value, uint32_t action)
{
    add(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 4));
    load(program, offsetof(struct seccomp_data, args) + 8 * (size_t)argument);
    answer_if(program, test, value, action);
    load(program, offsetof(struct seccomp_data, nr));
}

struct sock_fprog *syscalls_filter(struct arena *arena)
{
    const uint32_t no = SECCOMP_RET_ERRNO | EPERM, unknown = SECCOMP_RET_ERRNO | ENOSYS;
    struct sock_fprog *filter = arena_new(arena, struct sock_fprog);
    struct program program = {.at = arena_array(arena, struct sock_filter, BODY_MAX)};

#ifdef ARCH /* where it is not known how calls are numbered there is no filter */
    load(&program, offsetof(struct seccomp_data, arch));
    add(&program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0));
    answer(&program, SECCOMP_RET_KILL_PROCESS); /* of another machine, with other numbers */
    load(&program, offsetof(struct seccomp_data, nr));
    answer_if(&program, BPF_JGE, X32_BIT, unknown);
    /* What it asks for stands in memory that a filter cannot see; everybody falls back to clone. */
    answer_if(&program, BPF_JEQ, SYS_clone3, unknown);
    answer_if_argument(&program, SYS_clone, 0, BPF_JSET, NAMESPACES, no);
    answer_if_argument(&program, SYS_unshare, 0, BPF_JSET, NAMESPACES, no);
    answer_if_argument(&program, SYS_ioctl, 1, BPF_JEQ, TIOCSTI, no);
    for (size_t i = 0; i < COUNT_OF(refused); i++)
        answer_if(&program, BPF_JEQ, (uint32_t)refused[i], no);
#else
    (void)refused;
    (void)unknown;
    (void)no;
#endif
    answer(&program, SECCOMP_RET_ALLOW);
    *filter = (struct sock_fprog){.len = (unsigned short)program.count, .filter = program.at};
    return filter;
}

int syscalls_refuse(const struct sock_fprog *filter)
{
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter, 0, 0) == 0)
        return 0;
    return errno == EINVAL ? 0 : errno;
}
