/* Helpers for file descriptors. */
#ifndef AGENT_FD_H
#define AGENT_FD_H

#include <errno.h>
#include <unistd.h>

#include "base/str.h"

/* A negative fd is ignored. */
static inline void fd_close(int fd)
{
    if (fd >= 0)
        close(fd);
}

/* Returns 0 or errno. */
static inline int fd_write_all(int fd, struct str text)
{
    while (text.len > 0) {
        ssize_t done = write(fd, text.at, text.len);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done < 0 ? errno : EIO;
        text.at += done;
        text.len -= (size_t)done;
    }
    return 0;
}

#endif
