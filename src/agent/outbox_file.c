/* Appending and replacing the outbox's file: see outbox_file.h. */
#include "agent/outbox_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

static int write_all(int fd, struct str text, int64_t at)
{
    while (text.len > 0) {
        ssize_t done = pwrite(fd, text.at, text.len, at);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done < 0 ? errno : EIO;
        text.at += done;
        text.len -= (size_t)done;
        at += done;
    }
    return 0;
}

static int append(struct outbox_file *file)
{
    assert(file->batch.len > 0 && file->batch.at[file->batch.len - 1] == '\n');
    int error = write_all(file->fd, buf_view(&file->batch), file->size);

    if (!error && fdatasync(file->fd) != 0)
        error = errno;
    return error;
}

/* The entry of a new file is durable when its directory is. */
static int sync_dir(const char *path)
{
    char *dir = strdup(path);
    char *slash = strrchr(dir, '/');
    int fd, error = 0;

    if (slash)
        *slash = 0;
    fd = open(slash ? (*dir ? dir : "/") : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) != 0)
        error = errno;
    if (fd >= 0)
        close(fd);
    free(dir);
    return error;
}

/* The old file stays whole until the new one is. */
static int replace(struct outbox_file *file)
{
    struct buf name = {0};
    int fd, error = 0;

    buf_fmt(&name, "%s.new", file->path);
    buf_char(&name, 0);
    fd = open(name.at, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        error = errno;
    if (!error)
        error = write_all(fd, buf_view(&file->batch), 0);
    if (!error && fdatasync(fd) != 0)
        error = errno;
    if (!error && rename(name.at, file->path) != 0)
        error = errno;
    if (!error) {
        close(file->fd);
        file->fd = fd;
        error = sync_dir(file->path);
    } else if (fd >= 0) {
        close(fd);
        unlink(name.at);
    }
    buf_free(&name);
    return error;
}

static void write_batch(uv_work_t *work)
{
    struct outbox_file *file = work->data;

    file->error = file->rewrite ? replace(file) : append(file);
}

static void batch_over(uv_work_t *work, int status)
{
    struct outbox_file *file = work->data;

    assert(file->busy && status == 0);
    file->busy = false;
    if (file->error)
        file->dirty = true;
    else
        file->size = (file->rewrite ? 0 : file->size) + (int64_t)file->batch.len;
    if (!file->error && file->rewrite)
        file->dirty = false;
    buf_clear(&file->batch);
    file->written(file);
}

static void start(struct outbox_file *file, struct loop *loop, bool rewrite)
{
    assert(!file->busy);
    file->busy = true;
    file->rewrite = rewrite;
    file->work.data = file;
    uv_queue_work(&loop->uv, &file->work, write_batch, batch_over);
}

void outbox_file_flush(struct outbox_file *file, struct loop *loop)
{
    struct buf batch = file->batch;

    if (file->busy || file->dirty || file->pending.len == 0)
        return;
    file->batch = file->pending;
    file->pending = batch;
    start(file, loop, false);
}

void outbox_file_rewrite(struct outbox_file *file, struct loop *loop, struct str text)
{
    assert(!file->busy && text.at != file->pending.at);
    buf_clear(&file->pending); /* `text` knows better */
    buf_clear(&file->batch);
    buf_str(&file->batch, text);
    start(file, loop, true);
}

static enum err read_all(int fd, size_t max, struct buf *text)
{
    for (;;) {
        ssize_t got;

        buf_reserve(text, 65536);
        got = read(fd, text->at + text->len, 65536);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return ERR_IO;
        if (got == 0)
            return ERR_OK;
        text->len += (size_t)got;
        if (text->len > max)
            return ERR_TOO_LARGE;
    }
}

enum err outbox_file_open(struct outbox_file *file, const char *path, size_t max,
                          struct buf *ret_text, struct problem *why)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    enum err err = fd < 0 ? ERR_IO : read_all(fd, max, ret_text);

    if (err == ERR_TOO_LARGE)
        problem_set(why, err, "", "%s is too large to be an outbox.", path);
    else if (err)
        problem_set(why, err, "", "Cannot read %s: %s.", path, strerror(errno));
    if (err) {
        if (fd >= 0)
            close(fd);
        return err;
    }
    /* A line that was cut short was not on disk when the process died: it never counted. */
    while (ret_text->len > 0 && ret_text->at[ret_text->len - 1] != '\n')
        ret_text->len--;
    if (ftruncate(fd, (off_t)ret_text->len) != 0)
        file->dirty = true;
    file->path = strdup(path);
    file->fd = fd;
    file->size = (int64_t)ret_text->len;
    return ERR_OK;
}

void outbox_file_close(struct outbox_file *file)
{
    struct buf batch = file->batch;

    assert(!file->busy);
    if (file->pending.len > 0 && !file->dirty) {
        file->batch = file->pending;
        file->pending = batch;
        append(file); /* nobody is left to be told */
    }
    close(file->fd);
    buf_free(&file->pending);
    buf_free(&file->batch);
    free(file->path);
}
