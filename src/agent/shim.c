/* `berth shim`: a single shim by hand, or the nursery that the agent keeps. The nursery is a
 * process that has loaded the program once and forks a shim for each order it gets; it ends with
 * the agent, and its shims live on. */
#include "agent/shim.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "agent/cgroup.h"

enum { FD_DIR, FD_AGENT, FD_COUNT };

static int own_oom_adj(void)
{
    int64_t value = 0;

    cgroup_file_int(AT_FDCWD, "/proc/self/oom_score_adj", NULL, &value);
    return (int)value;
}

/* An order is one byte and two descriptors. 1: it is there, 0: the agent is gone, -1: not usable.
 */
static int take_order(int orders_fd, int fds[FD_COUNT])
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * FD_COUNT)];
    } control;
    char byte;
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    struct msghdr msg = {.msg_iov = &data,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof control.bytes};
    const struct cmsghdr *cmsg;
    size_t count;
    ssize_t got = recvmsg(orders_fd, &msg, MSG_CMSG_CLOEXEC);

    if (got < 0)
        return errno == EINTR ? -1 : 0;
    if (got == 0)
        return 0;
    cmsg = CMSG_FIRSTHDR(&msg);
    if (!cmsg || cmsg->cmsg_type != SCM_RIGHTS)
        return -1;
    count = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    memcpy(fds, CMSG_DATA(cmsg), sizeof(int) * count);
    if (count == FD_COUNT)
        return 1;
    while (count > 0)
        close(fds[--count]); /* too many are open: the run's connection ends, and so it does */
    return -1;
}

static void start_shim(int orders_fd, const int fds[FD_COUNT], int oom_adj)
{
    pid_t pid = fork();

    if (pid == 0) {
        signal(SIGCHLD, SIG_DFL);
        close(orders_fd);
        setsid();
        shim_run(fds[FD_DIR], fds[FD_AGENT], oom_adj);
        _exit(0);
    }
    if (pid < 0) {
        char packet[SHIM_PACKET_MAX];
        int len =
            snprintf(packet, sizeof packet, "failed No shim can be made: %s.", strerror(errno));

        send(fds[FD_AGENT], packet, (size_t)len, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    close(fds[FD_DIR]);
    close(fds[FD_AGENT]);
}

static int nursery(void)
{
    int orders_fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    int oom_adj = own_oom_adj();
    int fds[FD_COUNT], got;

    if (orders_fd < 0 || null_fd < 0)
        return 1;
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        dup2(null_fd, fd); /* shims outlive the agent and must not hold its terminal */
    close(null_fd);
    signal(SIGCHLD, SIG_IGN); /* the kernel buries our children */
    prctl(PR_SET_NAME, "berth-nursery");
    while ((got = take_order(orders_fd, fds)) != 0)
        if (got > 0)
            start_shim(orders_fd, fds, oom_adj);
    return 0;
}

static bool has_ended(int dir_fd)
{
    struct arena arena = {0};
    struct run_exit exit;
    struct str key, meta;
    bool ended = runfile_get_exit(dir_fd, &arena, &exit, &key, &meta) == ERR_OK;

    arena_free(&arena);
    return ended;
}

static int single(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0) {
        fprintf(stderr, "berth shim: %s cannot be opened: %s\n", dir, strerror(errno));
        return 1;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 || has_ended(fd)) {
        fprintf(stderr, "berth shim: %s has a shim or has ended already\n", dir);
        close(fd);
        return 1;
    }
    for (int i = 1; i < SIGRTMIN; i++)
        if (i != SIGKILL && i != SIGSTOP)
            signal(i, SIG_DFL); /* the job would inherit what is ignored; a nursery starts clean */
    setsid();
    shim_run(fd, -1, own_oom_adj());
    return 0;
}

int shim_main(int argc, char **argv)
{
    if (argc != 1) {
        fprintf(stderr, "usage: berth shim DIR\n");
        return 2;
    }
    return strcmp(argv[0], "-") == 0 ? nursery() : single(argv[0]);
}
