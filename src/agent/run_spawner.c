/* Where shims come from: a process of our own or one that serves agents, see spawner.h. An order is
 * one packet with the run's directory and the shim's end of its connection. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/shim_link.h"
#include "agent/spawner.h"
#include "base/log.h"
#include "base/mem.h"

extern char **environ;

enum { HELLO_MS_MAX = 2000, ORDER_FDS_MAX = 2 };

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

/* An ended spawner may take a moment until it can be reaped. */
static void reap_old(struct run_spawner *spawner)
{
    if (spawner->old_pid > 0 && waitpid(spawner->old_pid, NULL, WNOHANG) != 0)
        spawner->old_pid = 0;
}

static void poll_closed(uv_handle_t *handle)
{
    struct runs *runs = handle->data;

    free(handle);
    runs_unpin(runs);
}

static void let_go(struct runs *runs)
{
    struct run_spawner *spawner = &runs->spawner;

    assert(spawner->fd >= 0 && spawner->poll);
    uv_close((uv_handle_t *)spawner->poll, poll_closed);
    close(spawner->fd);
    if (spawner->old_pid > 0) /* two deaths within a tick: the first is surely over */
        waitpid(spawner->old_pid, NULL, 0);
    spawner->old_pid = spawner->pid;
    spawner->poll = NULL;
    spawner->fd = -1;
    spawner->pid = 0;
    spawner->number++;
    reap_old(spawner);
}

static void watch(struct run_spawner *spawner);

/* Where groups are, or that it is gone. Orders that were under way then show up as runs without a
 * lock. */
static void hear(struct runs *runs)
{
    char packet[SPAWNER_PACKET_MAX];
    ssize_t got = recv(runs->spawner.fd, packet, sizeof packet, MSG_DONTWAIT);

    if (got > 0 && runs->spawner.path)
        spawner_hear((struct str){.at = packet, .len = (size_t)got}, &runs->place,
                     &runs->spawner.version, &runs->spawner.private_tmp);
    else if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
        let_go(runs);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct runs *runs = poll->data;

    if (status < 0 || events & UV_READABLE)
        hear(runs);
    send_unsent(runs);
}

static void watch(struct run_spawner *spawner)
{
    if (spawner->fd >= 0)
        uv_poll_start(spawner->poll, UV_READABLE | (spawner->first ? UV_WRITABLE : 0), on_poll);
}

static enum err begin(struct runs *runs, int fd, pid_t pid, struct problem *why)
{
    struct run_spawner *spawner = &runs->spawner;

    spawner->poll = mem_new(uv_poll_t);
    spawner->poll->data = runs;
    if (uv_poll_init(&runs->loop->uv, spawner->poll, fd) != 0) {
        free(spawner->poll);
        spawner->poll = NULL;
        spawner->old_pid = pid;
        close(fd);
        return problem_set(why, ERR_IO, "", "The spawner's socket cannot be watched.");
    }
    runs->pins++;
    spawner->fd = fd;
    spawner->pid = pid;
    watch(spawner);
    return ERR_OK;
}

static enum err open_own(struct runs *runs, struct problem *why)
{
    int fds[2], error;
    pid_t pid;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0)
        return problem_set(why, ERR_IO, "", "No socket can be had: %s.", strerror(errno));
    error = spawn(runs->shim_path, fds[1], &pid);
    close(fds[1]);
    if (error != 0) {
        close(fds[0]);
        return problem_set(why, ERR_IO, "", "%s cannot be started for shims: %s.", runs->shim_path,
                           strerror(error));
    }
    return begin(runs, fds[0], pid, why);
}

/* Who we are, and what of our environment jobs shall have: shims are no children of ours. */
static int introduce(const struct runs *runs, int fd)
{
    static const char *const names[] = {"PATH", "HOME", "LANG"};
    struct buf words = {0};
    int error;

    buf_fmt(&words, "agent %d %s", SPAWNER_VERSION, runs->group_name);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const char *value = getenv(names[i]);

        if (!value || words.len + strlen(value) + 16 > SPAWNER_PACKET_MAX)
            continue;
        buf_char(&words, '\0');
        buf_fmt(&words, "%s=%s", names[i], value);
    }
    error = send(fd, words.at, words.len, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? errno : 0;
    buf_free(&words);
    return error;
}

static enum err open_served(struct runs *runs, struct problem *why)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error = 0;

    if (fd < 0)
        return problem_set(why, ERR_IO, "", "No socket can be had: %s.", strerror(errno));
    if (!str_copy(str_of(runs->spawner.path), name.sun_path, sizeof name.sun_path))
        error = ENAMETOOLONG;
    else if (connect(fd, (struct sockaddr *)&name, sizeof name) != 0)
        error = errno;
    else
        error = introduce(runs, fd);
    if (error == 0)
        return begin(runs, fd, 0, why);
    close(fd);
    return problem_set(why, ERR_IO, "", "The spawner at %s cannot be reached: %s.",
                       runs->spawner.path, strerror(error));
}

/* Also again after it was lost. */
static enum err reach(struct runs *runs, struct problem *why)
{
    struct run_spawner *spawner = &runs->spawner;
    struct problem own = {0};
    enum err err = spawner->path ? open_served(runs, &own) : open_own(runs, &own);

    assert((err == ERR_OK) == (spawner->fd >= 0));
    if (err && !spawner->away_ms)
        log_event(LOG_WARN, "agent.spawner_away", KC("reason", own.detail));
    if (!err && spawner->away_ms)
        log_event(LOG_INFO, "agent.spawner_back",
                  KI("away_ms", clock_mono_ms() - spawner->away_ms));
    if (err && !spawner->away_ms)
        spawner->away_ms = clock_mono_ms();
    if (!err)
        spawner->away_ms = 0;
    str_copy(str_of(own.detail), spawner->why, sizeof spawner->why);
    if (err && why)
        *why = own;
    return err;
}

enum err run_spawner_start(struct runs *runs, const char *path, struct problem *why)
{
    struct run_spawner *spawner = &runs->spawner;
    struct pollfd answer;

    assert(spawner->fd < 0);
    spawner->number = 1;
    spawner->patience_ms = RUN_SPAWNER_MS_MAX;
    spawner->path = path ? arena_cstr(&runs->arena, str_of(path)) : NULL;
    if (!path)
        return reach(runs, why);
    if (reach(runs, NULL)) {
        str_copy(str_of(spawner->why), runs->place.missing, sizeof runs->place.missing);
        return ERR_OK; /* it is sought at every tick */
    }
    answer = (struct pollfd){.fd = spawner->fd, .events = POLLIN};
    if (poll(&answer, 1, HELLO_MS_MAX) > 0)
        hear(runs);
    return ERR_OK;
}

/* --- orders --- */

static int send_fds(int fd, struct str words, const int *fds, size_t count)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * ORDER_FDS_MAX)];
    } control = {0};
    struct iovec data = {.iov_base = (char *)words.at, .iov_len = words.len};
    struct msghdr msg = {.msg_iov = &data,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = CMSG_SPACE(sizeof(int) * count)};
    struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);

    assert(count > 0 && count <= ORDER_FDS_MAX);
    cmsg->cmsg_level = SOL_SOCKET;
    cmsg->cmsg_type = SCM_RIGHTS;
    cmsg->cmsg_len = CMSG_LEN(sizeof(int) * count);
    memcpy(CMSG_DATA(cmsg), fds, sizeof(int) * count);
    return sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ? 0 : errno;
}

static int send_order(int fd, const struct run_private *priv)
{
    int fds[] = {priv->order_dir_fd, priv->order_fd}, error;
    struct buf words = {0};

    buf_char(&words, 'r');
    if (priv->user.len > 0)
        buf_fmt(&words, " user=" STR_FMT, STR_ARG(priv->user));
    if (priv->run.runs->rules.allow_root)
        buf_str(&words, STR(" allow_root"));
    error = send_fds(fd, buf_view(&words), fds, COUNT_OF(fds));
    buf_free(&words);
    return error;
}

/* As well as it goes: what is left is found again. */
void run_spawner_clean(struct runs *runs, int fd)
{
    const struct run_spawner *spawner = &runs->spawner;

    if (fd < 0)
        return;
    if (spawner->path && spawner->fd >= 0 && spawner->version >= SPAWNER_USERS)
        send_fds(spawner->fd, STR("c"), &fd, 1);
    close(fd);
}

static void close_order(struct run_private *priv)
{
    assert(priv->order_dir_fd >= 0 && priv->order_fd >= 0);
    close(priv->order_dir_fd); /* the lock lives on in the shim's copy, or ends here */
    close(priv->order_fd);
    priv->order_dir_fd = priv->order_fd = -1;
}

static struct run_private *take_first(struct run_spawner *spawner)
{
    struct run_private *priv = spawner->first;

    assert(priv && spawner->last);
    spawner->first = priv->next_unsent;
    if (!spawner->first)
        spawner->last = NULL;
    priv->next_unsent = NULL;
    return priv;
}

/* Their connections end, and so they do. */
static void give_up(struct run_spawner *spawner)
{
    while (spawner->first)
        close_order(take_first(spawner));
}

static bool is_away_for_long(const struct run_spawner *spawner)
{
    return !spawner->path || clock_mono_ms() - spawner->away_ms >= spawner->patience_ms;
}

static void send_unsent(struct runs *runs)
{
    struct run_spawner *spawner = &runs->spawner;

    while (spawner->first) {
        struct run_private *priv = spawner->first;
        int error;

        if (spawner->fd < 0 && reach(runs, NULL)) {
            if (is_away_for_long(spawner))
                give_up(spawner);
            return;
        }
        error = send_order(spawner->fd, priv);
        if (error == EAGAIN || error == EINTR || error == ETOOMANYREFS || error == ENOBUFS)
            break;
        if (error != 0) {
            let_go(runs); /* and once more with a new one */
            continue;
        }
        priv->order_number = spawner->number;
        close_order(take_first(spawner));
    }
    watch(spawner);
}

enum err run_spawner_order(struct run_private *priv, int dir_fd, int shim_fd, struct problem *why)
{
    struct runs *runs = priv->run.runs;
    struct run_spawner *spawner = &runs->spawner;

    assert(dir_fd >= 0 && shim_fd >= 0 && priv->order_dir_fd < 0);
    priv->order_dir_fd = dir_fd;
    priv->order_fd = shim_fd;
    if (spawner->fd < 0 && reach(runs, why) && is_away_for_long(spawner)) {
        close_order(priv);
        return ERR_IO;
    }
    if (spawner->last)
        spawner->last->next_unsent = priv;
    else
        spawner->first = priv;
    spawner->last = priv;
    send_unsent(runs);
    return ERR_OK;
}

bool run_spawner_again(struct run_private *priv, int dir_fd)
{
    struct runs *runs = priv->run.runs;
    int fds[2];

    if (runs->spawner.fd >= 0)
        hear(runs); /* that it is gone may not have been noticed yet */
    if (priv->order_number == 0 || priv->order_number == runs->spawner.number)
        return false;
    if (priv->pins > 0) { /* its old connection is being closed; the tick comes back to it */
        close(dir_fd);
        return true;
    }
    priv->order_number = 0; /* once */
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0)
        return false;
    run_link_open(priv, fds[0]);
    if (run_spawner_order(priv, dir_fd, fds[1], NULL))
        run_link_close(priv);
    return true;
}

void run_spawner_cancel(struct run_private *priv)
{
    struct run_spawner *spawner = &priv->run.runs->spawner;
    struct run_private **at = &spawner->first, *before = NULL;

    if (priv->order_dir_fd < 0)
        return;
    while (*at != priv) {
        assert(*at);
        before = *at;
        at = &before->next_unsent;
    }
    *at = priv->next_unsent;
    if (spawner->last == priv)
        spawner->last = before;
    close_order(priv);
}

void run_spawner_tick(struct runs *runs)
{
    reap_old(&runs->spawner);
    if (runs->spawner.fd < 0 && runs->spawner.path)
        reach(runs, NULL);
    if (runs->spawner.first)
        send_unsent(runs); /* too many descriptors under way is not told by a poll */
}

void run_spawner_close(struct runs *runs)
{
    struct run_spawner *spawner = &runs->spawner;

    assert(!spawner->first);
    if (spawner->fd >= 0) {
        if (spawner->pid > 0)
            kill(spawner->pid, SIGKILL); /* our own child, not reaped yet: it is the right one */
        let_go(runs);
    }
    if (spawner->old_pid > 0)
        waitpid(spawner->old_pid, NULL, 0);
    spawner->old_pid = 0;
}
