/* The connection to one shim: what it says, what it is told, and what it means when it goes away.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/process_tree.h"
#include "agent/shim.h"
#include "agent/shim_link.h"

static void on_poll(uv_poll_t *poll, int status, int events);

static void poll_closed(uv_handle_t *handle)
{
    run_unpin(container_of(handle, struct run_private, poll));
}

void run_link_open(struct run_private *priv, int fd)
{
    assert(priv->fd < 0 && fd >= 0);
    /* The handle of an earlier connection may still be closing; the tick comes back to it. */
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

/* --- telling --- */

static int compose(const struct run_private *priv, enum run_todo todo, char packet[SHIM_PACKET_MAX])
{
    if (todo == RUN_TODO_STOP)
        return snprintf(packet, SHIM_PACKET_MAX, "stop %s %" PRId64, priv->stop_reason,
                        priv->stop_kill_ms);
    if (todo == RUN_TODO_DEADLINE)
        return snprintf(packet, SHIM_PACKET_MAX, "deadline %" PRId64, priv->deadline_ms);
    return snprintf(packet, SHIM_PACKET_MAX, "ping");
}

void run_link_flush(struct run_private *priv)
{
    static const enum run_todo all[] = {RUN_TODO_STOP, RUN_TODO_DEADLINE, RUN_TODO_PING};
    char packet[SHIM_PACKET_MAX];

    for (size_t i = 0; i < COUNT_OF(all) && priv->fd >= 0; i++) {
        int len;

        if (!(priv->todo & all[i]))
            continue;
        len = compose(priv, all[i], packet);
        assert(len > 0 && len < SHIM_PACKET_MAX);
        if (send(priv->fd, packet, (size_t)len, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
            break; /* no room: when there is; a shim that is gone: its end is read */
        priv->todo &= ~(unsigned)all[i];
    }
    if (priv->fd >= 0)
        uv_poll_start(&priv->poll, UV_READABLE | (priv->todo ? UV_WRITABLE : 0), on_poll);
}

/* --- listening --- */

static void hear_hello(struct run_private *priv, struct str words)
{
    int64_t pid, start;

    if (!str_int(str_cut(&words, ' '), &pid) || !str_int(words, &start) || pid <= 1)
        return;
    priv->greeted = true;
    priv->shim_pid = (int)pid;
    priv->shim_start = (uint64_t)start;
}

static void hear_started(struct run_private *priv, struct str words)
{
    struct run *run = &priv->run;
    int64_t pid;

    assert(run->state != RUN_ENDED);
    str_int(str_cut(&words, ' '), &run->started_ms);
    if (words.at && str_int(words, &pid) && pid > 1) /* an older shim does not tell */
        run->pid = (int)pid;
    if (run->state != RUN_STARTING)
        return; /* adopted: it was taken for running already */
    run->state = RUN_RUNNING;
    if (run->handler->started)
        run->handler->started(run);
}

static void hear_stopping(struct run_private *priv, struct str words)
{
    if (priv->run.state < RUN_STOPPING)
        priv->run.state = RUN_STOPPING;
}

static void hear_pong(struct run_private *priv, struct str words)
{
    priv->pinged_ms = 0;
    priv->patience_ms = clock_mono_ms() + priv->run.runs->patience_ms;
}

static void hear_ended(struct run_private *priv, struct str words)
{
    struct runs *runs = priv->run.runs;
    struct run_exit exit;
    struct str key, meta;
    int dir_fd = run_open_dir(runs, priv->run.key);
    bool found =
        dir_fd >= 0 && runfile_get_exit(dir_fd, &priv->arena, &exit, &key, &meta) == ERR_OK;

    if (dir_fd >= 0)
        close(dir_fd);
    run_link_close(priv);
    if (found)
        run_set_ended(priv, &exit);
    else
        run_lost(priv, "SHIM_LOST", "Its exit record is gone.", true);
}

static void hear_failed(struct run_private *priv, struct str words)
{
    char sentence[160];

    if (words.len >= sizeof sentence)
        words.len = sizeof sentence - 1;
    str_copy(words, sentence, sizeof sentence);
    run_link_close(priv);
    run_lost(priv, "START_FAILED", sentence, false);
}

static const struct {
    const char *word;
    void (*hear)(struct run_private *priv, struct str words);
} news[] = {
    {"hello", hear_hello}, {"started", hear_started}, {"stopping", hear_stopping},
    {"pong", hear_pong},   {"ended", hear_ended},     {"failed", hear_failed},
};

static void hear(struct run_private *priv, struct str words)
{
    struct str first = str_cut(&words, ' ');

    assert(!priv->gone && !priv->lost); /* its connection would be closed */
    for (size_t i = 0; i < COUNT_OF(news); i++)
        if (str_is(first, news[i].word)) {
            news[i].hear(priv, words);
            return;
        }
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct run_private *priv = container_of(poll, struct run_private, poll);
    char packet[SHIM_PACKET_MAX];
    ssize_t got = 0;

    priv->pins++; /* the handler may forget the run while we look at it */
    priv->run.runs->pins++;
    while (priv->fd >= 0 && (got = recv(priv->fd, packet, sizeof packet, MSG_DONTWAIT)) > 0)
        hear(priv, (struct str){.at = packet, .len = (size_t)got});
    if (priv->fd >= 0) {
        if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
            run_link_close(priv); /* the tick finds out what became of its shim */
            run_link_seek(priv);
        } else if (events & UV_WRITABLE)
            run_link_flush(priv);
    }
    run_unpin(priv);
}

/* --- looking for a shim --- */

static int connect_at(int dir_fd)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    /* Short whatever the length of the path. */
    snprintf(name.sun_path, sizeof name.sun_path, "/proc/self/fd/%d/" RUNFILE_SOCK, dir_fd);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&name, sizeof name) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* We hold the lock: no shim is there, nor can one come. */
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
        run_lost(priv, "START_FAILED", /* it listens first */
                 runs->spawner.why[0] ? runs->spawner.why : "Its shim did not start.", false);
    else if (!same_boot)
        run_lost(priv, "SHIM_LOST", "The machine was restarted while it ran.", false);
    else
        run_lost(priv, "SHIM_LOST", "Its shim died; what was left of its processes was killed.",
                 true);
}

void run_link_seek(struct run_private *priv)
{
    int dir_fd, fd;

    assert(priv->fd < 0 && priv->run.state != RUN_ENDED && !priv->lost);
    if (priv->order_dir_fd >= 0)
        return; /* its order waits: the lock is ours */
    dir_fd = run_open_dir(priv->run.runs, priv->run.key);
    if (dir_fd < 0) {
        if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP)
            run_lost(priv, "SHIM_LOST", "Its directory is gone.", true);
        return; /* else no descriptor is to be had just now */
    }
    if (flock(dir_fd, LOCK_EX | LOCK_NB) == 0) {
        if (faccessat(dir_fd, RUNFILE_SOCK, F_OK, AT_SYMLINK_NOFOLLOW) != 0 &&
            run_spawner_again(priv, dir_fd))
            return;
        settle(priv, dir_fd);
    } else if ((fd = connect_at(dir_fd)) >= 0) {
        run_link_open(priv, fd);
        priv->todo |=
            (priv->stop_kill_ms ? RUN_TODO_STOP : 0) | (priv->deadline_ms ? RUN_TODO_DEADLINE : 0);
        run_link_flush(priv);
    }
    close(dir_fd);
}

/* --- a shim that does not react --- */

static int64_t earlier(int64_t a, int64_t b)
{
    return !a || (b && b < a) ? b : a;
}

/* When its tree should have been killed at the latest; 0: never. */
static int64_t due_ms(const struct run_private *priv)
{
    int64_t due = priv->stop_kill_ms;

    if (priv->timeout_ms && priv->created_mono_ms)
        due = earlier(due, priv->created_mono_ms + priv->timeout_ms + priv->grace_ms);
    if (priv->deadline_ms) { /* on another clock */
        int64_t most_ms = priv->deadline_grace_ms ? priv->deadline_grace_ms : RUN_DEADLINE_GRACE_MS;

        due = earlier(due, priv->deadline_ms - clock_lease_ms() + clock_mono_ms() +
                               (priv->grace_ms < most_ms ? priv->grace_ms : most_ms));
    }
    return due;
}

void run_link_watch(struct run_private *priv, int64_t now_ms)
{
    int64_t due = due_ms(priv), patience_ms = priv->run.runs->patience_ms;
    struct run_proc shim;

    if (!due || now_ms < due + patience_ms || now_ms < priv->patience_ms || !priv->shim_pid)
        return;
    if (!priv->pinged_ms) {
        priv->pinged_ms = now_ms;
        priv->todo |= RUN_TODO_PING;
        run_link_flush(priv);
    } else if (now_ms - priv->pinged_ms >= patience_ms) {
        /* Stopped or stuck. Its end is read from the connection; the tree is killed after it. But
         * who waits for a disk is at work, and may be writing down how the run ended. */
        if (!run_tree_proc(priv->shim_pid, &shim) || shim.state != 'D')
            run_tree_kill_one(priv->shim_pid, priv->shim_start, SIGKILL);
        priv->pinged_ms = now_ms;
    }
}
