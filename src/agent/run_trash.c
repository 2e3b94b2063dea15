/* Directories that go. A job may leave any number of files behind, so a directory is only renamed
 * on the loop and emptied on a thread of libuv's pool; the key is free at once. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/run_private.h"

enum { DEPTH_MAX = 16, NAME_SIZE = 32 };

struct emptying {
    int trash_fd;
    int64_t number; /* names of what is brought up */
};

static void remove_tree(struct emptying *emptying, int parent_fd, const char *name, int depth);

/* Not what a job has mounted there: that is somebody else's. */
static int open_dir(int parent_fd, const char *name)
{
    struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
                           .resolve = RESOLVE_NO_XDEV};

    int fd = (int)syscall(SYS_openat2, parent_fd, name, &how, sizeof how);

    if (fd < 0 && (errno == ENOSYS || errno == EPERM)) /* an old kernel, or one that is fenced */
        fd = openat(parent_fd, name, (int)how.flags);
    return fd;
}

/* Open and listed with a descriptor of its own; a job may have taken our right to read it. */
static DIR *open_list(int parent_fd, const char *name)
{
    int fd = open_dir(parent_fd, name);
    DIR *dir;

    if (fd < 0 && errno == EACCES && fchmodat(parent_fd, name, 0700, 0) == 0)
        fd = open_dir(parent_fd, name);
    dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (!dir && fd >= 0)
        close(fd);
    return dir;
}

static bool is_dots(const char *name)
{
    return name[0] == '.' && (name[1] == '\0' || (name[1] == '.' && name[2] == '\0'));
}

static void empty_dir(struct emptying *emptying, int parent_fd, const char *name, int depth)
{
    DIR *dir = open_list(parent_fd, name);

    if (!dir)
        return;
    fchmod(dirfd(dir), 0700);
    for (struct dirent *entry; (entry = readdir(dir));)
        if (!is_dots(entry->d_name))
            remove_tree(emptying, dirfd(dir), entry->d_name, depth);
    closedir(dir);
}

/* However deep it goes, few descriptors are open: what lies too deep is brought up. */
static void remove_tree(struct emptying *emptying, int parent_fd, const char *name, int depth)
{
    char up[NAME_SIZE];

    if (unlinkat(parent_fd, name, 0) == 0 || (errno != EISDIR && errno != EPERM))
        return;
    if (unlinkat(parent_fd, name, AT_REMOVEDIR) == 0)
        return;
    if (depth == DEPTH_MAX) {
        snprintf(up, sizeof up, "u%" PRId64, emptying->number++);
        renameat(parent_fd, name, emptying->trash_fd, up);
        return;
    }
    empty_dir(emptying, parent_fd, name, depth + 1);
    unlinkat(parent_fd, name, AT_REMOVEDIR);
}

static bool is_empty(int trash_fd)
{
    DIR *dir = open_list(trash_fd, ".");
    bool empty = true;

    for (struct dirent *entry; dir && empty && (entry = readdir(dir));)
        empty = is_dots(entry->d_name);
    if (dir)
        closedir(dir);
    return empty;
}

/* On a thread of the pool: only the directory is touched, nothing of `runs` that changes. */
static void empty_trash(uv_work_t *work)
{
    struct runs *runs = container_of(work, struct runs, trash_work);
    struct emptying emptying = {
        .trash_fd = runs->trash_fd,
        .number = clock_mono_us()}; /* no name that is still there from another time */
    int64_t before = -1;

    /* Again only while something was brought up: what cannot be removed waits for the next time. */
    while (before != emptying.number && !is_empty(emptying.trash_fd)) {
        before = emptying.number;
        empty_dir(&emptying, emptying.trash_fd, ".", 0);
    }
}

static void trash_emptied(uv_work_t *work, int status)
{
    struct runs *runs = container_of(work, struct runs, trash_work);

    assert(runs->trash_busy);
    runs->trash_busy = false;
    close(runs->trash_fd);
    if (runs->trash_again && !runs->freed)
        run_trash_empty(runs);
    runs_unpin(runs);
}

void run_trash_empty(struct runs *runs)
{
    runs->trash_again = runs->trash_busy;
    if (runs->trash_busy)
        return;
    runs->trash_fd = openat(runs->dir_fd, RUN_TRASH, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (runs->trash_fd < 0)
        return; /* nothing was ever put there */
    runs->trash_busy = true;
    runs->pins++;
    if (uv_queue_work(&runs->loop->uv, &runs->trash_work, empty_trash, trash_emptied) != 0)
        abort(); /* only for a work without a function */
}

static bool throw_away(struct runs *runs, int from_fd, const char *name)
{
    char gone[sizeof RUN_TRASH + NAME_SIZE];
    bool done;

    snprintf(gone, sizeof gone, RUN_TRASH "/%" PRId64, runs->trash_number++);
    done = renameat(from_fd, name, runs->dir_fd, gone) == 0;

    /* It was removed by hand; or a job took our right to move it. */
    if (!done && ((errno == ENOENT && mkdirat(runs->dir_fd, RUN_TRASH, 0700) == 0) ||
                  (errno == EACCES && fchmodat(from_fd, name, 0700, 0) == 0)))
        done = renameat(from_fd, name, runs->dir_fd, gone) == 0;
    run_trash_empty(runs);
    return done;
}

bool runs_discard(struct runs *runs, const char *path)
{
    return throw_away(runs, AT_FDCWD, path);
}

void run_trash(struct runs *runs, struct str key)
{
    char name[RUN_KEY_MAX + 1];

    str_copy(key, name, sizeof name);
    throw_away(runs, runs->dir_fd, name);
}

void run_trash_work(struct runs *runs, struct str key)
{
    int dir_fd = run_open_dir(runs, key);

    if (dir_fd < 0)
        return;
    runfile_keep_result(dir_fd); /* a shim that died did not */
    unlinkat(dir_fd, RUNFILE_INPUT, 0);
    /* Most jobs leave nothing there. */
    if (unlinkat(dir_fd, RUNFILE_WORK, AT_REMOVEDIR) != 0 && errno != ENOENT)
        throw_away(runs, dir_fd, RUNFILE_WORK);
    close(dir_fd);
}
