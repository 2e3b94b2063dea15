/* Directory trees: emptying one, and measuring one's disk usage in pieces. */
#include "agent/dir_tree.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/fd.h"
#include "base/clock.h"

struct emptying {
    int top_fd;
    int64_t number; /* for the names of directories that are moved up */
};

static void remove_tree(struct emptying *emptying, int parent_fd, const char *name, int depth);

/* --- emptying --- */

enum { DEPTH_MAX = 16, NAME_SIZE = 32 };

/* Opens a directory inside another, without following links and not if it is a mount point: what a
 * job has mounted there is not ours. -1 and errno. */
static int dir_tree_open(int parent_fd, const char *name)
{
    struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
                           .resolve = RESOLVE_NO_XDEV};

    int fd = (int)syscall(SYS_openat2, parent_fd, name, &how, sizeof how);

    if (fd < 0 && (errno == ENOSYS || errno == EPERM)) /* an old kernel, or a system call filter */
        fd = openat(parent_fd, name, (int)how.flags);
    return fd;
}

DIR *dir_tree_entries(int fd)
{
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;

    if (!dir)
        fd_close(fd);
    return dir;
}

DIR *dir_tree_list(int dir_fd)
{
    return dir_tree_entries(openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

/* Opened with its own descriptor; a job may have taken away our permission to read it. */
static DIR *open_list(int parent_fd, const char *name)
{
    int fd = dir_tree_open(parent_fd, name);

    if (fd < 0 && errno == EACCES && fchmodat(parent_fd, name, 0700, 0) == 0)
        fd = dir_tree_open(parent_fd, name);
    return dir_tree_entries(fd);
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

/* However deep the tree is, few descriptors are open: directories that are too deep are moved
 * up. */
static void remove_tree(struct emptying *emptying, int parent_fd, const char *name, int depth)
{
    char up[NAME_SIZE];

    if (unlinkat(parent_fd, name, 0) == 0 || (errno != EISDIR && errno != EPERM))
        return;
    if (unlinkat(parent_fd, name, AT_REMOVEDIR) == 0)
        return;
    if (depth == DEPTH_MAX) {
        snprintf(up, sizeof up, "u%" PRId64, emptying->number++);
        renameat(parent_fd, name, emptying->top_fd, up);
        return;
    }
    empty_dir(emptying, parent_fd, name, depth + 1);
    unlinkat(parent_fd, name, AT_REMOVEDIR);
}

static bool is_empty(int dir_fd)
{
    DIR *dir = open_list(dir_fd, ".");
    bool empty = true;

    for (struct dirent *entry; dir && empty && (entry = readdir(dir));)
        empty = is_dots(entry->d_name);
    if (dir)
        closedir(dir);
    return empty;
}

bool dir_tree_empty(int dir_fd)
{
    struct emptying emptying = {
        .top_fd = dir_fd,
        .number = clock_mono_us()}; /* avoids names left over from an earlier call */
    int64_t before = -1;

    /* Again only while something was moved up: what cannot be removed is left for the next call. */
    while (before != emptying.number && !is_empty(dir_fd)) {
        before = emptying.number;
        empty_dir(&emptying, dir_fd, ".", 0);
    }
    return is_empty(dir_fd);
}

/* --- disk usage --- */

enum { BLOCK_BYTES = 512 }; /* unit of st_blocks on every file system */

static void enter(struct disk_walk *walk, int dir_fd, const char *name)
{
    DIR *dir = dir_tree_entries(dir_tree_open(dir_fd, name));

    if (dir)
        walk->dirs[walk->depth++] = dir;
}

bool disk_walk_begin(struct disk_walk *walk, int dir_fd)
{
    struct stat info;

    assert(walk->depth == 0);
    walk->bytes = 0;
    if (fstat(dir_fd, &info) != 0)
        return false;
    walk->device = info.st_dev;
    enter(walk, dir_fd, ".");
    return walk->depth > 0;
}

bool disk_walk_step(struct disk_walk *walk, int entries)
{
    for (; entries > 0 && walk->depth > 0; entries--) {
        DIR *dir = walk->dirs[walk->depth - 1];
        const struct dirent *entry = readdir(dir);
        struct stat info;

        if (!entry) {
            closedir(dir);
            walk->depth--;
            continue;
        }
        if (is_dots(entry->d_name) ||
            fstatat(dirfd(dir), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0 ||
            info.st_dev != walk->device)
            continue;
        if (!S_ISDIR(info.st_mode)) {
            walk->bytes += info.st_blocks * BLOCK_BYTES / (info.st_nlink > 0 ? info.st_nlink : 1);
            continue;
        }
        walk->bytes += info.st_blocks * BLOCK_BYTES;
        if (walk->depth < DISK_WALK_DEPTH_MAX)
            enter(walk, dirfd(dir), entry->d_name);
    }
    return walk->depth > 0;
}

void disk_walk_done(struct disk_walk *walk)
{
    while (walk->depth > 0)
        closedir(walk->dirs[--walk->depth]);
}
