/* Non-blocking connections of the load generator, and how an HTTP answer ends. */
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "cli/bench.h"

int64_t bench_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* The connect itself may block: on one machine it is over at once. */
enum err bench_conn_open(struct bench_conn *conn, const struct bench_target *target, int epoll,
                         uint32_t index)
{
    int family = target->addr.ss_family, one = 1;
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = index};

    *conn = (struct bench_conn){.epoll = epoll, .index = index};
    conn->fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (conn->fd < 0)
        return ERR_IO;
    if (connect(conn->fd, (const struct sockaddr *)&target->addr, target->addr_len) != 0)
        goto fail;
    setsockopt(conn->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, conn->fd, &event) != 0)
        goto fail;
    return ERR_OK;
fail:
    close(conn->fd);
    conn->fd = -1;
    return ERR_IO;
}

void bench_conn_close(struct bench_conn *conn)
{
    if (conn->fd >= 0)
        close(conn->fd);
    conn->fd = -1;
    buf_free(&conn->in);
    buf_free(&conn->out);
}

bool bench_conn_read(struct bench_conn *conn)
{
    static char piece[BENCH_READ_BYTES];
    ssize_t got = recv(conn->fd, piece, sizeof piece, MSG_DONTWAIT);

    assert(conn->fd >= 0);
    if (got > 0)
        buf_add(&conn->in, piece, (size_t)got);
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

static void arm_out(struct bench_conn *conn, bool on)
{
    struct epoll_event event = {.events = EPOLLIN | (on ? EPOLLOUT : 0), .data.u32 = conn->index};

    if (conn->out_armed != on)
        epoll_ctl(conn->epoll, EPOLL_CTL_MOD, conn->fd, &event);
    conn->out_armed = on;
}

bool bench_conn_flush(struct bench_conn *conn)
{
    ssize_t sent;

    assert(conn->fd >= 0);
    if (conn->out.len == 0)
        return true;
    sent = send(conn->fd, conn->out.at, conn->out.len, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR)
        return false;
    if (sent == (ssize_t)conn->out.len)
        buf_clear(&conn->out);
    else if (sent > 0)
        buf_drop(&conn->out, (size_t)sent);
    arm_out(conn, conn->out.len > 0);
    return true;
}

static struct str header_value(struct str head, const char *name)
{
    size_t name_len = strlen(name);

    while (head.at) {
        struct str line = str_cut(&head, '\n');

        if (line.len > name_len && line.at[name_len] == ':' &&
            strncasecmp(line.at, name, name_len) == 0) {
            if (line.at[line.len - 1] == '\r')
                line.len--;
            return str_trim(
                (struct str){.at = line.at + name_len + 1, .len = line.len - name_len - 1});
        }
    }
    return STR_NONE;
}

int bench_http_answer(struct str in, size_t *ret_len)
{
    const char *end = in.len ? memmem(in.at, in.len, "\r\n\r\n", 4) : NULL;
    struct str head, length;
    int64_t status, body_len = 0;

    if (!end)
        return 0;
    assert(end >= in.at && (size_t)(end - in.at) + 4 <= in.len);
    head = (struct str){.at = in.at, .len = (size_t)(end - in.at) + 2};
    if (head.len < 12 || !str_int((struct str){.at = in.at + 9, .len = 3}, &status) || status < 100)
        return -1;
    length = header_value(head, "Content-Length");
    if (!length.at || !str_int(length, &body_len) || body_len < 0)
        return -1;
    *ret_len = head.len + 2 + (size_t)body_len;
    return in.len >= *ret_len ? (int)status : 0;
}
