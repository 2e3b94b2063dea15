/* The manager's socket is opened once and kept: a message costs one system call. */
#include "io/notify.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/str.h"

static struct sockaddr_un manager;
static socklen_t manager_len; /* 0: there is none */
static int manager_fd = -1;
static int64_t watchdog_ms;

static int64_t read_number(const char *name)
{
    int64_t value;

    return str_int(str_of(getenv(name)), &value) && value > 0 ? value : 0;
}

void notify_init(void)
{
    const char *address = getenv("NOTIFY_SOCKET");
    size_t len = address ? strlen(address) : 0;
    int64_t pid = read_number("WATCHDOG_PID");

    assert(manager_fd < 0);
    /* A path, or with a leading @ a name in the abstract namespace. */
    if (len >= 2 && len < sizeof manager.sun_path && (address[0] == '/' || address[0] == '@')) {
        manager = (struct sockaddr_un){.sun_family = AF_UNIX};
        memcpy(manager.sun_path, address, len);
        if (address[0] == '@')
            manager.sun_path[0] = 0;
        manager_len =
            (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + (address[0] == '/'));
        manager_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    }
    if (manager_fd >= 0 && (pid == 0 || pid == getpid()))
        watchdog_ms = read_number("WATCHDOG_USEC") / 1000;
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
}

bool notify_send(const char *lines)
{
    size_t len = strlen(lines);

    assert(len > 0);
    return manager_fd >= 0 && sendto(manager_fd, lines, len, MSG_NOSIGNAL,
                                     (struct sockaddr *)&manager, manager_len) == (ssize_t)len;
}

int64_t notify_watchdog_ms(void)
{
    return watchdog_ms;
}
