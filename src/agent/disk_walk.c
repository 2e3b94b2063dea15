/* See disk_walk.h. */
#include "agent/disk_walk.h"

#include <assert.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/dir_tree.h"

enum { BLOCK_BYTES = 512 }; /* of st_blocks, whatever the file system has */

static void enter(struct disk_walk *walk, int dir_fd, const char *name)
{
    int fd = dir_tree_open(dir_fd, name);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;

    if (dir)
        walk->dirs[walk->depth++] = dir;
    else if (fd >= 0)
        close(fd);
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

static void count(struct disk_walk *walk, int dir_fd, const char *name)
{
    struct stat info;

    if (fstatat(dir_fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0 || info.st_dev != walk->device)
        return;
    if (!S_ISDIR(info.st_mode)) {
        walk->bytes += info.st_blocks * BLOCK_BYTES / (info.st_nlink > 0 ? info.st_nlink : 1);
        return;
    }
    walk->bytes += info.st_blocks * BLOCK_BYTES;
    if (walk->depth < DISK_WALK_DEPTH_MAX)
        enter(walk, dir_fd, name);
}

bool disk_walk_step(struct disk_walk *walk, int entries)
{
    for (; entries > 0 && walk->depth > 0; entries--) {
        DIR *dir = walk->dirs[walk->depth - 1];
        const struct dirent *entry = readdir(dir);

        if (!entry) {
            closedir(dir);
            walk->depth--;
        } else if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            count(walk, dirfd(dir), entry->d_name);
        }
    }
    return walk->depth > 0;
}

void disk_walk_done(struct disk_walk *walk)
{
    while (walk->depth > 0)
        closedir(walk->dirs[--walk->depth]);
}
