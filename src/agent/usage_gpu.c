/* The GPU's share, from nvidia-smi or a configured command. The command runs beside everything
 * else: its output is read when it comes, and one that is late is killed. One that cannot even be
 * killed (a driver that hangs) is left alone, and no other is started. */
#include "agent/usage_gpu.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/usage.h"

enum {
    EVERY_MS = 5000, /* it takes a good part of a second of somebody's time */
    DEADLINE_MS = 2000,
    AGAIN_MS = 60000, /* after it failed */
    LOOK_MS = 100,    /* for the end of one whose output has ended */
    OUTPUT_BYTES_MAX = 4096,
};

void usage_gpu_init(struct usage_gpu *gpu, const char *command)
{
    *gpu = (struct usage_gpu){.command = command, .fd = -1, .permille = USAGE_NONE};
    if (command && !command[0])
        gpu->next_ms = INT64_MAX;
}

int64_t usage_gpu_parse(struct str text)
{
    int64_t sum = 0, count = 0;

    while (text.len) {
        struct str line = str_cut(&text, '\n');
        struct str word = usage_word(&line);
        int64_t centi;

        if (word.len && word.at[word.len - 1] == '%')
            word.len--;
        if (!word.len)
            continue;
        if (!usage_centi(word, &centi) || centi > 10000)
            return USAGE_NONE; /* "[N/A]" or something that is no percentage */
        sum += centi;
        count++;
    }
    return count ? sum / count / 10 : USAGE_NONE;
}

static int spawn_command(const char *command, posix_spawn_file_actions_t *files,
                         posix_spawnattr_t *attr, int *ret_pid)
{
    char *const smi[] = {"nvidia-smi", "--query-gpu=utilization.gpu",
                         "--format=csv,noheader,nounits", NULL};
    char *const shell[] = {"/bin/sh", "-c", (char *)command, NULL};

    if (command)
        return posix_spawn(ret_pid, shell[0], files, attr, shell, environ);
    return posix_spawnp(ret_pid, smi[0], files, attr, smi, environ);
}

/* In a group of its own, so that all of it can be killed; with the signals as a program expects. */
static int start(struct usage_gpu *gpu)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, all;
    int ends[2], error;

    assert(gpu->pid == 0 && gpu->fd < 0); /* one at a time */
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
        return errno;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, ends[1], 1);
    posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setpgroup(&attr, 0);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                        POSIX_SPAWN_SETSIGDEF);
    error = spawn_command(gpu->command, &files, &attr, &gpu->pid);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&files);
    close(ends[1]);
    if (error) {
        close(ends[0]);
        gpu->pid = 0;
        return error;
    }
    gpu->fd = ends[0];
    return 0;
}

static void stop_reading(struct usage_gpu *gpu)
{
    if (gpu->fd >= 0)
        close(gpu->fd);
    gpu->fd = -1;
}

static void give_up(struct usage_gpu *gpu, int64_t now_ms)
{
    stop_reading(gpu);
    buf_clear(&gpu->output);
    gpu->permille = USAGE_NONE; /* an old figure is no figure */
    gpu->next_ms = now_ms + AGAIN_MS;
}

/* Never waits: a process that does not end is looked at again. */
static void reap(struct usage_gpu *gpu, int64_t now_ms)
{
    int status = 0;
    pid_t pid = waitpid(gpu->pid, &status, WNOHANG);

    assert(gpu->fd < 0); /* its output was read to the end, or nobody wants it */
    if (pid == 0 || (pid < 0 && errno == EINTR))
        return;
    gpu->pid = 0;
    if (gpu->next_ms > now_ms) /* it was given up before */
        return;
    if (pid < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        give_up(gpu, now_ms);
        return;
    }
    gpu->permille = usage_gpu_parse(buf_view(&gpu->output));
    buf_clear(&gpu->output);
    gpu->next_ms = now_ms + (gpu->permille == USAGE_NONE ? AGAIN_MS : EVERY_MS);
}

int64_t usage_gpu_step(struct usage_gpu *gpu, int64_t now_ms)
{
    int error;

    if (gpu->pid > 0 && gpu->fd < 0)
        reap(gpu, now_ms);
    if (gpu->pid > 0 && gpu->next_ms <= now_ms && now_ms >= gpu->deadline_ms) {
        kill(-gpu->pid, SIGKILL);
        give_up(gpu, now_ms);
    }
    if (gpu->pid == 0 && gpu->next_ms <= now_ms) {
        error = start(gpu);
        if (error == 0)
            gpu->deadline_ms = now_ms + DEADLINE_MS;
        else
            give_up(gpu, now_ms);
        if (!gpu->command && error == ENOENT)
            gpu->next_ms = INT64_MAX; /* no nvidia-smi here, and there will be none */
    }
    if (gpu->pid == 0)
        return gpu->next_ms;
    if (gpu->fd >= 0)
        return gpu->deadline_ms;
    return now_ms + LOOK_MS;
}

void usage_gpu_readable(struct usage_gpu *gpu, int64_t now_ms)
{
    char bytes[512];
    ssize_t got;

    assert(gpu->fd >= 0 && gpu->pid > 0);
    got = read(gpu->fd, bytes, sizeof bytes);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got > 0 && gpu->output.len < OUTPUT_BYTES_MAX) {
        buf_add(&gpu->output, bytes, (size_t)got);
        return;
    }
    if (got > 0) { /* it talks and talks */
        kill(-gpu->pid, SIGKILL);
        give_up(gpu, now_ms);
        return;
    }
    stop_reading(gpu);
}

void usage_gpu_done(struct usage_gpu *gpu)
{
    stop_reading(gpu);
    if (gpu->pid > 0) {
        kill(-gpu->pid, SIGKILL);
        waitpid(gpu->pid, NULL, WNOHANG);
    }
    buf_free(&gpu->output);
}
