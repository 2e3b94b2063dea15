/* One file for each slot, `slot-0` and so on; they are left behind and used again. flock() tells
 * which are taken: the kernel unlocks when the last holder dies, however it dies. */
#include "agent/admit_slots.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PATH_MAX_BYTES = 4096,
    LINE_MAX_BYTES = 160,
    NAME_MAX_BYTES = 24,
    TYPE_MAX = 64,
    LOCK_TRIES = 100,
    LOCK_PAUSE_MS = 10,
    SLOT_FD_MIN = 200, /* scripts use the small numbers themselves: `exec 3>file` would free it */
};

static enum err cannot(struct problem *why, const char *what, const char *path)
{
    return problem_set(why, ERR_IO, "", "Cannot %s %s: %s.", what, path, strerror(errno));
}

/* In /tmp anybody could have put something there first. */
static enum err check_dir(int fd, const char *path, struct problem *why)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        return cannot(why, "look at", path);
    if (st.st_uid != geteuid() || (st.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return problem_set(why, ERR_FORBIDDEN, "", "%s belongs to somebody else.", path);
    return ERR_OK;
}

enum err admit_slots_open(struct admit_slots *ret_slots, struct problem *why)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    struct admit_slots slots = {.dir_fd = -1, .gate_fd = -1};
    char path[PATH_MAX_BYTES];
    int len = runtime && runtime[0] == '/'
                  ? snprintf(path, sizeof path, "%s/berth-run", runtime)
                  : snprintf(path, sizeof path, "/tmp/berth-run-%u", (unsigned)geteuid());
    enum err err;

    if (len < 0 || (size_t)len >= sizeof path)
        return problem_set(why, ERR_BAD_CONFIG, "", "XDG_RUNTIME_DIR is too long.");
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return cannot(why, "make", path);
    slots.dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (slots.dir_fd < 0)
        return cannot(why, "open", path);
    err = check_dir(slots.dir_fd, path, why);
    if (!err) {
        slots.gate_fd = openat(slots.dir_fd, "gate", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC,
                               S_IRUSR | S_IWUSR);
        if (slots.gate_fd < 0)
            err = cannot(why, "open the gate in", path);
    }
    if (err) {
        close(slots.dir_fd);
        return err;
    }
    *ret_slots = slots;
    return ERR_OK;
}

void admit_slots_close(struct admit_slots *slots)
{
    close(slots->gate_fd);
    close(slots->dir_fd);
    *slots = (struct admit_slots){.dir_fd = -1, .gate_fd = -1};
}

enum err admit_slots_lock(struct admit_slots *slots, struct problem *why)
{
    for (int i = 0; i < LOCK_TRIES; i++) {
        if (flock(slots->gate_fd, LOCK_EX | LOCK_NB) == 0)
            return ERR_OK;
        if (errno != EWOULDBLOCK && errno != EINTR)
            return cannot(why, "lock", "the gate");
        poll(NULL, 0, LOCK_PAUSE_MS);
    }
    return problem_set(why, ERR_BUSY, "", "Another `berth run` has been deciding for long.");
}

void admit_slots_unlock(struct admit_slots *slots)
{
    flock(slots->gate_fd, LOCK_UN);
}

static int open_slot(const struct admit_slots *slots, const char *name, int more)
{
    return openat(slots->dir_fd, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | more, S_IRUSR | S_IWUSR);
}

/* "STARTED_MONO_MS PRIORITY TYPE"; what cannot be read still is a slot that is taken. */
static struct protect_task read_slot(int fd, struct arena *arena)
{
    struct protect_task task = {.id = STR("run"),
                                .type = STR(""),
                                .memory_kib = USAGE_NONE,
                                .swap_kib = USAGE_NONE,
                                .cpu_permille = USAGE_NONE};
    char line[LINE_MAX_BYTES] = "";
    ssize_t len = pread(fd, line, sizeof line - 1, 0);
    char type[TYPE_MAX + 1];

    if (len > 0 &&
        sscanf(line, "%" SCNd64 " %" SCNd64 " %64s", &task.started_ms, &task.priority, type) == 3)
        task.type = arena_str(arena, str_of(type));
    return task;
}

size_t admit_slots_list(struct admit_slots *slots, struct protect_task *tasks, size_t max,
                        struct arena *arena)
{
    int copy = openat(slots->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = copy < 0 ? NULL : fdopendir(copy);
    struct dirent *entry;
    size_t count = 0;

    if (!dir && copy >= 0)
        close(copy);
    while (dir && count < max && (entry = readdir(dir)) != NULL) {
        int fd;

        if (strncmp(entry->d_name, "slot-", 5) != 0)
            continue;
        fd = open_slot(slots, entry->d_name, 0);
        if (fd < 0)
            continue;
        if (flock(fd, LOCK_SH | LOCK_NB) != 0)
            tasks[count++] = read_slot(fd, arena);
        close(fd); /* and with it our own lock */
    }
    if (dir)
        closedir(dir);
    assert(count <= max);
    return count;
}

/* The lowest that nobody holds. */
static int lock_free_slot(struct admit_slots *slots)
{
    for (int i = 0; i < ADMIT_SLOTS_MAX; i++) {
        char name[NAME_MAX_BYTES];
        int fd;

        snprintf(name, sizeof name, "slot-%d", i);
        fd = open_slot(slots, name, O_CREAT);
        if (fd < 0)
            return -1;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            return fd;
        close(fd);
    }
    errno = EAGAIN;
    return -1;
}

enum err admit_slots_take(struct admit_slots *slots, const struct protect_task *task, int *ret_fd,
                          struct problem *why)
{
    int fd = lock_free_slot(slots), high;
    char line[LINE_MAX_BYTES];
    int len = snprintf(line, sizeof line, "%" PRId64 " %" PRId64 " " STR_FMT "\n", task->started_ms,
                       task->priority, STR_ARG(task->type));

    assert(task->type.len > 0 && task->type.len <= TYPE_MAX && len < LINE_MAX_BYTES);
    if (fd < 0)
        return cannot(why, "take", "a slot");
    if (ftruncate(fd, 0) != 0 || pwrite(fd, line, (size_t)len, 0) != len) {
        cannot(why, "write", "a slot");
        close(fd);
        return ERR_IO;
    }
    high = fcntl(fd, F_DUPFD, SLOT_FD_MIN); /* the copy is not close-on-exec: that is the point */
    if (high < 0)
        high = fcntl(fd, F_DUPFD, 0); /* few descriptors are allowed here */
    close(fd);
    if (high < 0)
        return cannot(why, "keep", "a slot");
    *ret_fd = high;
    return ERR_OK;
}
