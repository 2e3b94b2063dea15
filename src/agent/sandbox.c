/* What the processes between the agent and a job may do, and what a job may not: capabilities, the
 * system call filter, and a private /tmp. */
#include "agent/sandbox.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/cgroup.h"
#include "agent/runfile.h"
#include "base/str.h"

/* --- capabilities --- */

bool privileges_survive(void)
{
    return prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0;
}

static int set_capabilities(uint64_t capabilities)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3] = {{0}};

    for (int i = 0; i < _LINUX_CAPABILITY_U32S_3; i++)
        caps[i].permitted = caps[i].effective = (uint32_t)(capabilities >> (32 * i));
    return syscall(SYS_capset, &header, caps) == 0 ? 0 : errno;
}

bool privileges_keep(uint64_t capabilities)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3] = {{0}};
    uint64_t permitted = 0;

    if (syscall(SYS_capget, &header, caps) != 0)
        return false;
    for (int i = 0; i < _LINUX_CAPABILITY_U32S_3; i++)
        permitted |= (uint64_t)caps[i].permitted << (32 * i);
    return set_capabilities(permitted & capabilities) == 0;
}

void privileges_bound(void)
{
    for (unsigned long i = 0; i < 64; i++)
        prctl(PR_CAPBSET_DROP, i, 0, 0, 0); /* fails after the last existing one */
}

int privileges_give_up(void)
{
    int error = set_capabilities(0);

    if (error == 0 && prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0)
        error = errno == EINVAL ? 0 : errno; /* a kernel without them */
    if (error == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        error = errno;
    return error;
}

/* --- system calls --- */

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

/* EPERM, whatever the arguments. */
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
    /* namespaces created by others */
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
    /* keys, which are not separated by job */
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

#ifdef ARCH /* without known system call numbers there is no filter */
    load(&program, offsetof(struct seccomp_data, arch));
    add(&program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0));
    answer(&program, SECCOMP_RET_KILL_PROCESS); /* of another architecture, with other numbers */
    load(&program, offsetof(struct seccomp_data, nr));
    answer_if(&program, BPF_JGE, X32_BIT, unknown);
    /* Its flags are in memory that a filter cannot read; libraries fall back to clone. */
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

/* --- /tmp --- */

const struct private_tmp_dir private_tmp_dirs[PRIVATE_TMP_DIRS] = {
    {RUNFILE_TMP, "/tmp"},
    {RUNFILE_VAR_TMP, "/var/tmp"},
};

/* Directories in memory are created anew, and gone with the last process that sees them. */
static const struct {
    const char *type, *at, *options;
} in_memory[] = {
    {"tmpfs", "/dev/shm", "mode=1777"},
    {"mqueue", "/dev/mqueue", NULL},
};

enum { TMP_NAMESPACES = CLONE_NEWNS | CLONE_NEWIPC };

/* All other users appear as nobody there. */
static int map_id(const char *path, unsigned id)
{
    char line[48];

    snprintf(line, sizeof line, "%u %u 1", id, id);
    return cgroup_file_put(AT_FDCWD, path, line);
}

static int enter_user_namespace(void)
{
    unsigned uid = geteuid(), gid = getegid();
    int error = unshare(CLONE_NEWUSER | TMP_NAMESPACES) == 0 ? 0 : errno;

    if (error == 0)
        /* Required before the group can be mapped. */
        error = cgroup_file_put(AT_FDCWD, "/proc/self/setgroups", "deny");
    if (error == 0)
        error = map_id("/proc/self/uid_map", uid);
    if (error == 0)
        error = map_id("/proc/self/gid_map", gid);
    return error;
}

int private_tmp_enter(const char *const from[PRIVATE_TMP_DIRS], bool user_namespace)
{
    int error = unshare(TMP_NAMESPACES) == 0 ? 0 : errno;

    if (error == EPERM && user_namespace)
        error = enter_user_namespace();
    /* Later mounts of the machine are still visible here; mounts made here are not visible
     * there. */
    if (error == 0 && mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) != 0)
        error = errno;
    for (int i = 0; error == 0 && i < PRIVATE_TMP_DIRS; i++)
        if (access(private_tmp_dirs[i].at, F_OK) == 0 && /* a small system may have only one */
            mount(from[i], private_tmp_dirs[i].at, NULL, MS_BIND | MS_REC, NULL) != 0)
            error = errno;
    for (size_t i = 0; error == 0 && i < COUNT_OF(in_memory); i++)
        if (access(in_memory[i].at, F_OK) == 0 &&
            mount(in_memory[i].type, in_memory[i].at, in_memory[i].type, MS_NOSUID | MS_NODEV,
                  in_memory[i].options) != 0)
            error = errno;
    return error;
}

int private_tmp_probe(bool user_namespace)
{
    static const char *const from[PRIVATE_TMP_DIRS] = {"/", "/"};
    int status = 0;
    pid_t pid = fork();

    if (pid == 0)
        _exit(private_tmp_enter(from, user_namespace));
    if (pid < 0)
        return errno;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return errno;
    return WIFEXITED(status) ? WEXITSTATUS(status) : EPERM; /* a filter may have ended it */
}

static bool is_in(const char *path, const char *dir)
{
    char real[PATH_MAX];
    size_t len;

    if (!realpath(dir, real))
        return false;
    len = strlen(real);
    return strncmp(path, real, len) == 0 && (path[len] == '/' || path[len] == '\0');
}

const char *private_tmp_hides(const char *path)
{
    for (int i = 0; i < PRIVATE_TMP_DIRS; i++)
        if (is_in(path, private_tmp_dirs[i].at))
            return private_tmp_dirs[i].at;
    for (size_t i = 0; i < COUNT_OF(in_memory); i++)
        if (is_in(path, in_memory[i].at))
            return in_memory[i].at;
    return NULL;
}
