/* Where shims come from: a nursery process for each agent, see shim.c. An order is one packet with
 * the run's directory and the shim's end of its connection. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/run_private.h"
#include "base/mem.h"

extern char **environ;

static void send_unsent(struct runs *runs);

/* --- the process --- */

static int spawn(const char *path, int orders_fd, pid_t *ret_pid)
{
    char *argv[] = {(char *)path, "shim", "-", NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t set;
    int error;

    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, orders_fd, STDIN_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr,
                             POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    sigemptyset(&set);
    posix_spawnattr_setsigmask(&attr, &set);
    sigfillset(&set);
    posix_spawnattr_setsigdefault(&attr, &set);
    error = posix_spawn(ret_pid, path, &actions, &attr, argv, environ);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

/* An ended nursery may take a moment until it can be reaped. */
static void reap_old(struct run_nursery *nursery)
{
    if (nursery->old_pid > 0 && waitpid(nursery->old_pid, NULL, WNOHANG) != 0)
        nursery->old_pid = 0;
}

static void poll_closed(uv_handle_t *handle)
{
    struct runs *runs = handle->data;

    free(handle);
    runs_unpin(runs);
}

static void let_go(struct runs *runs)
{
    struct run_nursery *nursery = &runs->nursery;

    assert(nursery->fd >= 0 && nursery->poll);
    uv_close((uv_handle_t *)nursery->poll, poll_closed);
    close(nursery->fd);
    if (nursery->old_pid > 0) /* two deaths within a tick: the first is surely over */
        waitpid(nursery->old_pid, NULL, 0);
    nursery->old_pid = nursery->pid;
    nursery->poll = NULL;
    nursery->fd = -1;
    nursery->pid = 0;
    reap_old(nursery);
}

static void watch(struct run_nursery *nursery);

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct runs *runs = poll->data;
    char byte;

    if (status < 0 || events & UV_READABLE) {
        ssize_t got = recv(runs->nursery.fd, &byte, 1, MSG_DONTWAIT);

        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
            let_go(runs); /* it died; orders that were under way show up as shims without a lock */
    }
    send_unsent(runs);
}

static void watch(struct run_nursery *nursery)
{
    if (nursery->fd >= 0)
        uv_poll_start(nursery->poll, UV_READABLE | (nursery->first ? UV_WRITABLE : 0), on_poll);
}

enum err run_nursery_open(struct runs *runs, struct problem *why)
{
    struct run_nursery *nursery = &runs->nursery;
    int fds[2], error;
    pid_t pid;

    assert(nursery->fd < 0);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0)
        return problem_set(why, ERR_IO, "", "No socket can be had: %s.", strerror(errno));
    error = spawn(runs->shim_path, fds[1], &pid);
    close(fds[1]);
    if (error != 0) {
        close(fds[0]);
        return problem_set(why, ERR_IO, "", "%s cannot be started for shims: %s.", runs->shim_path,
                           strerror(error));
    }
    nursery->poll = mem_new(uv_poll_t);
    nursery->poll->data = runs;
    if (uv_poll_init(&runs->loop->uv, nursery->poll, fds[0]) != 0) {
        free(nursery->poll);
        nursery->poll = NULL;
        nursery->old_pid = pid;
        close(fds[0]);
        return problem_set(why, ERR_IO, "", "The shims' socket cannot be watched.");
    }
    runs->pins++;
    nursery->fd = fds[0];
    nursery->pid = pid;
    watch(nursery);
    return ERR_OK;
}

/* --- orders --- */

static int send_order(int fd, int dir_fd, int shim_fd)
{
    int fds[] = {dir_fd, shim_fd};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof fds)];
    } control = {0};
    char byte = 'r';
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    struct msghdr msg = {.msg_iov = &data,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof control.bytes};
    struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);

    cmsg->cmsg_level = SOL_SOCKET;
    cmsg->cmsg_type = SCM_RIGHTS;
    cmsg->cmsg_len = CMSG_LEN(sizeof fds);
    memcpy(CMSG_DATA(cmsg), fds, sizeof fds);
    return sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ? 0 : errno;
}

static void close_order(struct run_private *priv)
{
    assert(priv->order_dir_fd >= 0 && priv->order_fd >= 0);
    close(priv->order_dir_fd); /* the lock lives on in the shim's copy, or ends here */
    close(priv->order_fd);
    priv->order_dir_fd = priv->order_fd = -1;
}

static struct run_private *take_first(struct run_nursery *nursery)
{
    struct run_private *priv = nursery->first;

    assert(priv && nursery->last);
    nursery->first = priv->next_unsent;
    if (!nursery->first)
        nursery->last = NULL;
    priv->next_unsent = NULL;
    return priv;
}

static void send_unsent(struct runs *runs)
{
    struct run_nursery *nursery = &runs->nursery;

    while (nursery->first) {
        int error;

        if (nursery->fd < 0 && run_nursery_open(runs, NULL)) {
            while (nursery->first)
                close_order(take_first(nursery)); /* their connections end, and so they do */
            return;
        }
        error = send_order(nursery->fd, nursery->first->order_dir_fd, nursery->first->order_fd);
        if (error == EAGAIN || error == EINTR || error == ETOOMANYREFS || error == ENOBUFS)
            break;
        if (error != 0) {
            let_go(runs); /* and once more with a new one */
            continue;
        }
        close_order(take_first(nursery));
    }
    watch(nursery);
}

enum err run_nursery_order(struct run_private *priv, int dir_fd, int shim_fd, struct problem *why)
{
    struct runs *runs = priv->run.runs;
    struct run_nursery *nursery = &runs->nursery;

    assert(dir_fd >= 0 && shim_fd >= 0 && priv->order_dir_fd < 0);
    priv->order_dir_fd = dir_fd;
    priv->order_fd = shim_fd;
    if (nursery->fd < 0) {
        enum err err = run_nursery_open(runs, why);

        if (err) {
            close_order(priv);
            return err;
        }
    }
    if (nursery->last)
        nursery->last->next_unsent = priv;
    else
        nursery->first = priv;
    nursery->last = priv;
    send_unsent(runs);
    return ERR_OK;
}

void run_nursery_cancel(struct run_private *priv)
{
    struct run_nursery *nursery = &priv->run.runs->nursery;
    struct run_private **at = &nursery->first, *before = NULL;

    if (priv->order_dir_fd < 0)
        return;
    while (*at != priv) {
        assert(*at);
        before = *at;
        at = &before->next_unsent;
    }
    *at = priv->next_unsent;
    if (nursery->last == priv)
        nursery->last = before;
    close_order(priv);
}

void run_nursery_tick(struct runs *runs)
{
    reap_old(&runs->nursery);
    if (runs->nursery.first)
        send_unsent(runs); /* too many descriptors under way is not told by a poll */
}

void run_nursery_close(struct runs *runs)
{
    struct run_nursery *nursery = &runs->nursery;

    assert(!nursery->first);
    if (nursery->fd >= 0) {
        kill(nursery->pid, SIGKILL); /* our own child, not reaped yet: it is the right one */
        let_go(runs);
    }
    if (nursery->old_pid > 0)
        waitpid(nursery->old_pid, NULL, 0);
    nursery->old_pid = 0;
}
