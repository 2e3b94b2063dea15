/* The connection to one shim: what it sends, what is sent to it, and what follows when the
 * connection ends. Also where shims come from: our own spawner process or a shared one, see
 * spawner.h; an order is one packet with the run's directory and the shim's end of its
 * connection. */
#include "agent/shim_link.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/fd.h"
#include "agent/process_tree.h"
#include "agent/runfile.h"
#include "agent/shim.h"
#include "agent/spawner.h"
#include "base/log.h"

static void on_poll(uv_poll_t *poll, int status, int events);
static void send_unsent(struct runs *runs);
static bool run_spawner_again(struct run_private *priv, int dir_fd);

/* --- a shim --- */

static void poll_closed(uv_handle_t *handle)
{
    run_unpin(container_of(handle, struct run_private, poll));
}

void run_link_open(struct run_private *priv, int fd)
{
    assert(priv->fd < 0 && fd >= 0);
    /* The handle of an earlier connection may still be closing; the tick tries again. */
    if (priv->pins > 0 || uv_poll_init(&priv->run.runs->loop->uv, &priv->poll, fd) != 0) {
        close(fd);
        return;
    }
    priv->fd = fd;
    priv->pins++;
    priv->run.runs->pins++;
    uv_poll_start(&priv->poll, UV_READABLE, on_poll);
}

void run_link_close(struct run_private *priv)
{
    if (priv->fd < 0)
        return;
    uv_close((uv_handle_t *)&priv->poll, poll_closed);
    close(priv->fd);
    priv->fd = -1;
}

/* --- sending --- */

void run_link_flush(struct run_private *priv)
{
    static const enum run_todo all[] = {RUN_TODO_STOP, RUN_TODO_DEADLINE, RUN_TODO_PING};
    char packet[SHIM_PACKET_MAX];

    for (size_t i = 0; i < COUNT_OF(all) && priv->fd >= 0; i++) {
        int len;

        if (!(priv->todo & all[i]))
            continue;
        if (all[i] == RUN_TODO_STOP)
            len = snprintf(packet, sizeof packet, "stop %s %" PRId64, priv->stop_reason,
                           priv->stop_kill_ms);
        else if (all[i] == RUN_TODO_DEADLINE)
            len = snprintf(packet, sizeof packet, "deadline %" PRId64, priv->deadline_ms);
        else
            len = snprintf(packet, sizeof packet, "ping");
        assert(len > 0 && len < SHIM_PACKET_MAX);
        if (send(priv->fd, packet, (size_t)len, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
            break; /* no room: sent when there is; if the shim is gone, the read side reports it */
        priv->todo &= ~(unsigned)all[i];
    }
    if (priv->fd >= 0)
        uv_poll_start(&priv->poll, UV_READABLE | (priv->todo ? UV_WRITABLE : 0), on_poll);
}

/* --- receiving --- */

static void hear_started(struct run_private *priv, struct str args)
{
    struct run *run = &priv->run;
    int64_t pid;

    assert(run->state != RUN_ENDED);
    str_int(str_cut(&args, ' '), &run->started_ms);
    if (args.at && str_int(args, &pid) && pid > 1) /* an older shim does not send it */
        run->pid = (int)pid;
    if (run->state != RUN_STARTING)
        return; /* adopted: it already counted as running */
    run->state = RUN_RUNNING;
    if (run->handler->started)
        run->handler->started(run);
}

static void hear_ended(struct run_private *priv)
{
    struct runs *runs = priv->run.runs;
    struct run_exit exit;
    struct str key, meta;
    int dir_fd = run_open_dir(runs, priv->run.key);
    bool found =
        dir_fd >= 0 && runfile_get_exit(dir_fd, &priv->arena, &exit, &key, &meta) == ERR_OK;

    fd_close(dir_fd);
    run_link_close(priv);
    if (found)
        run_set_ended(priv, &exit);
    else
        run_lost(priv, "SHIM_LOST", "Its exit record is gone.", true);
}

static void hear_failed(struct run_private *priv, struct str args)
{
    char sentence[160];

    if (args.len >= sizeof sentence)
        args.len = sizeof sentence - 1;
    str_copy(args, sentence, sizeof sentence);
    run_link_close(priv);
    run_lost(priv, "START_FAILED", sentence, false);
}

static void hear(struct run_private *priv, struct str packet)
{
    struct str name = str_cut(&packet, ' ');
    int64_t pid, start;

    assert(!priv->gone && !priv->lost); /* its connection would be closed */
    if (str_is(name, "hello")) {
        if (str_int(str_cut(&packet, ' '), &pid) && str_int(packet, &start) && pid > 1) {
            priv->greeted = true;
            priv->shim_pid = (int)pid;
            priv->shim_start = (uint64_t)start;
        }
    } else if (str_is(name, "started")) {
        hear_started(priv, packet);
    } else if (str_is(name, "stopping")) {
        if (priv->run.state < RUN_STOPPING)
            priv->run.state = RUN_STOPPING;
    } else if (str_is(name, "pong")) {
        priv->pinged_ms = 0;
        priv->patience_ms = clock_mono_ms() + priv->run.runs->patience_ms;
    } else if (str_is(name, "ended")) {
        hear_ended(priv);
    } else if (str_is(name, "failed")) {
        hear_failed(priv, packet);
    }
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct run_private *priv = container_of(poll, struct run_private, poll);
    char packet[SHIM_PACKET_MAX];
    ssize_t got = 0;

    priv->pins++; /* the handler may drop the run while we use it */
    priv->run.runs->pins++;
    while (priv->fd >= 0 && (got = recv(priv->fd, packet, sizeof packet, MSG_DONTWAIT)) > 0)
        hear(priv, (struct str){.at = packet, .len = (size_t)got});
    if (priv->fd >= 0) {
        if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
            run_link_close(priv); /* the tick finds out what happened to its shim */
            run_link_seek(priv);
        } else if (events & UV_WRITABLE)
            run_link_flush(priv);
    }
    run_unpin(priv);
}

/* --- looking for a shim --- */

/* We hold the lock, so there is no shim and none can start. */
static void settle(struct run_private *priv, int dir_fd)
{
    struct run_exit exit;
    struct str key, meta;
    struct runs *runs = priv->run.runs;
    bool same_boot = str_eq(priv->boot_id, runs->boot_id);

    assert(priv->fd < 0 && !priv->lost);
    if (runfile_get_exit(dir_fd, &priv->arena, &exit, &key, &meta) == ERR_OK)
        run_set_ended(priv, &exit);
    else if (faccessat(dir_fd, RUNFILE_SOCK, F_OK, AT_SYMLINK_NOFOLLOW) != 0)
        run_lost(priv, "START_FAILED", /* a shim listens before anything else */
                 runs->spawner.why[0] ? runs->spawner.why : "Its shim did not start.", false);
    else if (!same_boot)
        run_lost(priv, "SHIM_LOST", "The machine was restarted while it ran.", false);
    else
        run_lost(priv, "SHIM_LOST", "Its shim died; what was left of its processes was killed.",
                 true);
}

void run_link_seek(struct run_private *priv)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int dir_fd, fd;

    assert(priv->fd < 0 && priv->run.state != RUN_ENDED && !priv->lost);
    if (priv->order_dir_fd >= 0)
        return; /* its order is pending: the lock is ours */
    dir_fd = run_open_dir(priv->run.runs, priv->run.key);
    if (dir_fd < 0) {
        if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP)
            run_lost(priv, "SHIM_LOST", "Its directory is gone.", true);
        return; /* otherwise no descriptor is available right now */
    }
    if (flock(dir_fd, LOCK_EX | LOCK_NB) == 0) {
        if (faccessat(dir_fd, RUNFILE_SOCK, F_OK, AT_SYMLINK_NOFOLLOW) != 0 &&
            run_spawner_again(priv, dir_fd))
            return;
        settle(priv, dir_fd);
        close(dir_fd);
        return;
    }
    /* Short, however long the path is. */
    snprintf(name.sun_path, sizeof name.sun_path, "/proc/self/fd/%d/" RUNFILE_SOCK, dir_fd);
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&name, sizeof name) == 0) {
        run_link_open(priv, fd);
        priv->todo |=
            (priv->stop_kill_ms ? RUN_TODO_STOP : 0) | (priv->deadline_ms ? RUN_TODO_DEADLINE : 0);
        run_link_flush(priv);
    } else if (fd >= 0) {
        close(fd);
    }
    close(dir_fd);
}

/* --- a shim that does not react --- */

static int64_t earlier(int64_t a, int64_t b)
{
    return !a || (b && b < a) ? b : a;
}

void run_link_watch(struct run_private *priv, int64_t now_ms)
{
    int64_t due = priv->stop_kill_ms; /* when its tree should have been killed; 0: never */
    int64_t patience_ms = priv->run.runs->patience_ms;
    struct run_proc shim;

    if (priv->timeout_ms && priv->created_mono_ms)
        due = earlier(due, priv->created_mono_ms + priv->timeout_ms + priv->grace_ms);
    if (priv->deadline_ms) { /* on another clock */
        int64_t most_ms = priv->deadline_grace_ms ? priv->deadline_grace_ms : RUN_DEADLINE_GRACE_MS;

        due = earlier(due, priv->deadline_ms - clock_lease_ms() + clock_mono_ms() +
                               (priv->grace_ms < most_ms ? priv->grace_ms : most_ms));
    }
    if (!due || now_ms < due + patience_ms || now_ms < priv->patience_ms || !priv->shim_pid)
        return;
    if (!priv->pinged_ms) {
        priv->pinged_ms = now_ms;
        priv->todo |= RUN_TODO_PING;
        run_link_flush(priv);
    } else if (now_ms - priv->pinged_ms >= patience_ms) {
        /* Stopped or stuck. The closed connection reports its end; then the tree is killed. But a
         * shim that waits for a disk is working, and may be writing the exit record. */
        if (!process_tree_proc(priv->shim_pid, &shim) || shim.state != 'D')
            process_tree_kill_one(priv->shim_pid, priv->shim_start, SIGKILL);
        priv->pinged_ms = now_ms;
    }
}

/* --- the spawner --- */

enum { HELLO_MS_MAX = 2000, ORDER_FDS_MAX = 2 };

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

static void spawner_poll_closed(uv_handle_t *handle)
{
    struct runs *runs = handle->data;

    free(handle);
    runs_unpin(runs);
}

static void let_go(struct runs *runs)
{
    struct run_spawner *spawner = &runs->spawner;

    assert(spawner->fd >= 0 && spawner->poll);
    uv_close((uv_handle_t *)spawner->poll, spawner_poll_closed);
    close(spawner->fd);
    if (spawner->old_pid > 0) /* two deaths within a tick: the first one has surely ended */
        waitpid(spawner->old_pid, NULL, 0);
    spawner->old_pid = spawner->pid;
    spawner->poll = NULL;
    spawner->fd = -1;
    spawner->pid = 0;
    spawner->number++;
    reap_old(spawner);
}

/* Reports where the groups are, or that the spawner is gone. Pending orders then show up as runs
 * without a lock. */
static void hear_spawner(struct runs *runs)
{
    char packet[SPAWNER_PACKET_MAX];
    ssize_t got = recv(runs->spawner.fd, packet, sizeof packet, MSG_DONTWAIT);

    if (got > 0 && runs->spawner.path)
        spawner_hear((struct str){.at = packet, .len = (size_t)got}, &runs->place,
                     &runs->spawner.version, &runs->spawner.private_tmp);
    else if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
        let_go(runs);
}

static void on_spawner_poll(uv_poll_t *poll, int status, int events)
{
    struct runs *runs = poll->data;

    if (status < 0 || events & UV_READABLE)
        hear_spawner(runs);
    send_unsent(runs);
}

static void watch(struct run_spawner *spawner)
{
    if (spawner->fd >= 0)
        uv_poll_start(spawner->poll,
                      UV_READABLE | (TAILQ_EMPTY(&spawner->unsent) ? 0 : UV_WRITABLE),
                      on_spawner_poll);
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

/* Sends our name and the environment that jobs should get: shims are not our children. */
static int introduce(const struct runs *runs, int fd)
{
    static const char *const names[] = {"PATH", "HOME", "LANG"};
    struct buf packet = {0};
    int error;

    buf_fmt(&packet, "agent %d %s", SPAWNER_VERSION, runs->group_name);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const char *value = getenv(names[i]);

        if (!value || packet.len + strlen(value) + 16 > SPAWNER_PACKET_MAX)
            continue;
        buf_char(&packet, '\0');
        buf_fmt(&packet, "%s=%s", names[i], value);
    }
    error = send(fd, packet.at, packet.len, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? errno : 0;
    buf_free(&packet);
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

/* Connects to the spawner; also again after the connection was lost. */
static enum err reach(struct runs *runs, struct problem *why)
{
    struct run_spawner *spawner = &runs->spawner;
    struct problem own = {0};
    enum err err = spawner->path ? open_served(runs, &own) : open_own(runs, &own);

    assert((err == ERR_OK) == (spawner->fd >= 0));
    if (err && !spawner->away_ms) {
        log_event(LOG_WARN, "agent.spawner_away", KC("reason", own.detail));
        spawner->away_ms = clock_mono_ms();
    } else if (!err && spawner->away_ms) {
        log_event(LOG_INFO, "agent.spawner_back",
                  KI("away_ms", clock_mono_ms() - spawner->away_ms));
        spawner->away_ms = 0;
    }
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
        return ERR_OK; /* each tick looks for it */
    }
    answer = (struct pollfd){.fd = spawner->fd, .events = POLLIN};
    if (poll(&answer, 1, HELLO_MS_MAX) > 0)
        hear_spawner(runs);
    return ERR_OK;
}

/* --- orders --- */

static int send_fds(int fd, struct str packet, const int *fds, size_t count)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * ORDER_FDS_MAX)];
    } control = {0};
    struct iovec data = {.iov_base = (char *)packet.at, .iov_len = packet.len};
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
    struct buf packet = {0};

    buf_char(&packet, 'r');
    if (priv->user.len > 0)
        buf_fmt(&packet, " user=" STR_FMT, STR_ARG(priv->user));
    if (priv->run.runs->rules.allow_root)
        buf_str(&packet, STR(" allow_root"));
    error = send_fds(fd, buf_view(&packet), fds, COUNT_OF(fds));
    buf_free(&packet);
    return error;
}

/* Best effort: leftovers are found again later. */
void run_spawner_clean(struct runs *runs, int fd)
{
    const struct run_spawner *spawner = &runs->spawner;

    if (fd < 0)
        return;
    if (spawner->path && spawner->fd >= 0 && spawner->version >= SPAWNER_USERS)
        send_fds(spawner->fd, STR("c"), &fd, 1);
    close(fd);
}

/* The order was sent or given up. */
static void close_order(struct run_private *priv)
{
    TAILQ_REMOVE(&priv->run.runs->spawner.unsent, priv, unsent);
    assert(priv->order_dir_fd >= 0 && priv->order_fd >= 0);
    close(priv->order_dir_fd); /* the shim's copy keeps the lock; without one it is released */
    close(priv->order_fd);
    priv->order_dir_fd = priv->order_fd = -1;
}

static bool is_away_for_long(const struct run_spawner *spawner)
{
    return !spawner->path || clock_mono_ms() - spawner->away_ms >= spawner->patience_ms;
}

static void send_unsent(struct runs *runs)
{
    struct run_spawner *spawner = &runs->spawner;
    struct run_private *priv;
    int error;

    while ((priv = TAILQ_FIRST(&spawner->unsent))) {
        if (spawner->fd < 0 && reach(runs, NULL)) {
            while ((priv = TAILQ_FIRST(&spawner->unsent)) && is_away_for_long(spawner))
                close_order(priv); /* its connection is closed, which ends the run */
            return;
        }
        error = send_order(spawner->fd, priv);
        if (error == EAGAIN || error == EINTR || error == ETOOMANYREFS || error == ENOBUFS)
            break;
        if (error != 0) {
            let_go(runs); /* try once more with a new one */
            continue;
        }
        priv->order_number = spawner->number;
        close_order(priv);
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
    TAILQ_INSERT_TAIL(&spawner->unsent, priv, unsent);
    if (spawner->fd < 0 && reach(runs, why) && is_away_for_long(spawner)) {
        close_order(priv);
        return ERR_IO;
    }
    send_unsent(runs);
    return ERR_OK;
}

/* We hold the lock and no shim came: if its order was lost with its spawner, it is sent once more.
 * If so, takes dir_fd. */
static bool run_spawner_again(struct run_private *priv, int dir_fd)
{
    struct runs *runs = priv->run.runs;
    int fds[2];

    if (runs->spawner.fd >= 0)
        hear_spawner(runs); /* we may not have noticed yet that it is gone */
    if (priv->order_number == 0 || priv->order_number == runs->spawner.number)
        return false;
    if (priv->pins > 0) { /* its old connection is being closed; the tick tries again */
        close(dir_fd);
        return true;
    }
    priv->order_number = 0; /* only one retry */
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0)
        return false;
    run_link_open(priv, fds[0]);
    if (run_spawner_order(priv, dir_fd, fds[1], NULL))
        run_link_close(priv);
    return true;
}

void run_spawner_cancel(struct run_private *priv)
{
    if (priv->order_dir_fd >= 0)
        close_order(priv);
}

void run_spawner_tick(struct runs *runs)
{
    reap_old(&runs->spawner);
    if (runs->spawner.fd < 0 && runs->spawner.path)
        reach(runs, NULL);
    if (!TAILQ_EMPTY(&runs->spawner.unsent))
        send_unsent(runs); /* poll does not report that fewer descriptors are in flight */
}

void run_spawner_close(struct runs *runs)
{
    struct run_spawner *spawner = &runs->spawner;

    assert(TAILQ_EMPTY(&spawner->unsent));
    if (spawner->fd >= 0) {
        if (spawner->pid > 0)
            kill(spawner->pid, SIGKILL); /* our own child, not reaped yet: the pid is right */
        let_go(runs);
    }
    if (spawner->old_pid > 0)
        waitpid(spawner->old_pid, NULL, 0);
    spawner->old_pid = 0;
}
