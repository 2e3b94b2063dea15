#include "agent/cgroup_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { READ_STEP = 4096, FILE_BYTES_MAX = 4 << 20 };

int cgroup_file_put(int dir_fd, const char *name, const char *text)
{
    int fd = openat(dir_fd, name, O_WRONLY | O_CLOEXEC);
    size_t len = strlen(text);
    ssize_t done;
    int error = 0;

    assert(len > 0); /* an empty write would say nothing */
    if (fd < 0)
        return errno;
    do
        done = write(fd, text, len);
    while (done < 0 && errno == EINTR);
    if (done != (ssize_t)len)
        error = done < 0 ? errno : EIO;
    close(fd);
    return error;
}

int cgroup_file_get(int dir_fd, const char *name, struct buf *ret_text)
{
    int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC);
    ssize_t got;

    if (fd < 0)
        return errno;
    do {
        buf_reserve(ret_text, READ_STEP);
        got = read(fd, ret_text->at + ret_text->len, READ_STEP);
        if (got > 0)
            ret_text->len += (size_t)got;
    } while ((got > 0 && ret_text->len < FILE_BYTES_MAX) || (got < 0 && errno == EINTR));
    if (got < 0) {
        int error = errno;

        close(fd);
        return error;
    }
    close(fd);
    return 0;
}

bool cgroup_file_int(int dir_fd, const char *name, const char *field, int64_t *ret_value)
{
    struct buf text = {0};
    struct str rest;
    bool found = false;

    if (cgroup_file_get(dir_fd, name, &text) != 0) {
        buf_free(&text);
        return false;
    }
    rest = buf_view(&text);
    while (rest.at && !found) {
        struct str line = str_cut(&rest, '\n');

        if (field && !str_is(str_cut(&line, ' '), field))
            continue;
        found = line.at && str_int(str_trim(line), ret_value);
        if (!field)
            break;
    }
    buf_free(&text);
    return found;
}
