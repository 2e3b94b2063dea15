/* Reading and replacing small files. */
#include "base/file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum err failed(struct problem *why, const char *what, const char *path)
{
    enum err err = errno == ENOENT || errno == ENOTDIR ? ERR_NOT_FOUND : ERR_IO;

    return problem_set(why, err, "", "Cannot %s %s: %s.", what, path, strerror(errno));
}

/* Reads the whole file, but at most one byte more than `max`; returns < 0 when it cannot be read.
 * The size from fstat is only a first guess: the file may grow, and kernel files report 0. */
static ssize_t read_all(int fd, size_t max, struct arena *arena, char **ret_text)
{
    struct stat stat;
    size_t guess = fstat(fd, &stat) == 0 && stat.st_size > 0 ? (size_t)stat.st_size : 4095;
    size_t cap = (guess < max ? guess : max) + 1;
    char *text = arena_raw(arena, cap);
    size_t len = 0;
    ssize_t got;

    while ((got = read(fd, text + len, cap - len)) != 0) {
        if (got < 0 && errno != EINTR)
            return -1;
        len += got > 0 ? (size_t)got : 0;
        if (len > max)
            break;
        if (len == cap) {
            size_t more = cap * 2 <= max ? cap * 2 : max + 1;

            text = arena_resize(arena, text, cap, more);
            cap = more;
        }
    }
    assert(len <= cap && len <= max + 1);
    *ret_text = text;
    return (ssize_t)len;
}

enum err file_read(const char *path, size_t max, struct arena *arena, struct str *ret_text,
                   struct problem *why)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *text = NULL;
    ssize_t len;

    if (fd < 0)
        return failed(why, "open", path);
    len = read_all(fd, max, arena, &text);
    if (len < 0) {
        enum err err = failed(why, "read", path);

        close(fd);
        return err;
    }
    close(fd);
    if ((size_t)len > max)
        return problem_set(why, ERR_TOO_LARGE, "", "%s has more than %zu bytes.", path, max);
    *ret_text = (struct str){.at = text, .len = (size_t)len};
    return ERR_OK;
}

static bool write_all(int fd, struct str text)
{
    while (text.len > 0) {
        ssize_t done = write(fd, text.at, text.len);

        if (done < 0 && errno != EINTR)
            return false;
        text.at += done > 0 ? done : 0;
        text.len -= done > 0 ? (size_t)done : 0;
    }
    return true;
}

/* A new file's directory entry is durable only once the directory itself is synced. */
static bool sync_dir(const char *path)
{
    struct str dir = str_of(path);
    char text[4096] = ".";
    int fd;
    bool good;

    while (dir.len > 0 && dir.at[dir.len - 1] != '/')
        dir.len--;
    if (dir.len > 0 && !str_copy(dir, text, sizeof text))
        return false;
    fd = open(text, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    good = fd >= 0 && fsync(fd) == 0;
    if (fd >= 0)
        close(fd);
    return good;
}

enum err file_replace(const char *path, struct str text, struct problem *why)
{
    struct buf name = {0};
    enum err err = ERR_OK;
    int fd;

    assert(path[0]);
    buf_fmt(&name, "%s.new", path);
    buf_char(&name, 0);
    fd = open(name.at, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || !write_all(fd, text) || fsync(fd) != 0)
        err = failed(why, "write", name.at);
    if (fd >= 0)
        close(fd);
    if (!err && rename(name.at, path) != 0)
        err = failed(why, "replace", path);
    if (!err && !sync_dir(path))
        err = failed(why, "keep", path);
    else if (err && fd >= 0)
        unlink(name.at);
    buf_free(&name);
    return err ? ERR_IO : ERR_OK;
}

bool file_is_public(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && st.st_mode & S_IROTH;
}

struct file_stamp file_stamp(const char *path)
{
    struct stat st;

    if (stat(path, &st) != 0)
        return (struct file_stamp){0};
    return (struct file_stamp){.device = st.st_dev,
                               .inode = st.st_ino,
                               .size = (uint64_t)st.st_size,
                               .changed_ns =
                                   st.st_mtim.tv_sec * INT64_C(1000000000) + st.st_mtim.tv_nsec};
}

bool file_stamp_same(const struct file_stamp *a, const struct file_stamp *b)
{
    return a->device == b->device && a->inode == b->inode && a->size == b->size &&
           a->changed_ns == b->changed_ns;
}
