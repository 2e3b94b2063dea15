/* What all parts of the load generator rest on: its clock, its complaints, non-blocking
 * connections, and how an HTTP answer ends. */
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "load.h"

int64_t bench_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static int complain(int code, const char *fmt, va_list args)
{
    fputs("load: ", stderr);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    return code;
}

int bench_fail(const char *fmt, ...)
{
    va_list args;
    int code;

    va_start(args, fmt);
    code = complain(1, fmt, args);
    va_end(args);
    return code;
}

int bench_misuse(const char *fmt, ...)
{
    va_list args;
    int code;

    va_start(args, fmt);
    code = complain(2, fmt, args);
    va_end(args);
    return code;
}

/* The connect itself may block: on one machine it is over at once. */
enum err bench_conn_open(struct bench_conn *conn, const struct bench_target *target, int epoll,
                         uint32_t index)
{
    int family = target->addr.ss_family, one = 1;
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = index};

    *conn = (struct bench_conn){.target = target, .epoll = epoll, .index = index};
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

/* --- WebSocket: the little of RFC 6455 a load generator needs; no fragments --- */

void bench_ws_hello(struct buf *out, const struct bench_target *target, const char *path)
{
    buf_fmt(out,
            "GET %s HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: YmVydGggYmVuY2ggbm9kZQ==\r\n\r\n",
            path, target->host);
}

void bench_ws_put(struct buf *out, int opcode, struct str payload)
{
    unsigned char head[14] = {(unsigned char)(0x80 | opcode)};
    size_t len = 2;

    if (payload.len < 126) {
        head[1] = (unsigned char)(0x80 | payload.len);
    } else {
        assert(payload.len <= UINT16_MAX);
        head[1] = 0x80 | 126;
        head[2] = (unsigned char)(payload.len >> 8);
        head[3] = (unsigned char)payload.len;
        len = 4;
    }
    buf_add(out, head, len + 4); /* four bytes of mask: zero */
    buf_str(out, payload);
}

int bench_ws_next(struct str in, size_t *at, int *ret_opcode, struct str *ret_payload)
{
    const unsigned char *head = (const unsigned char *)in.at + *at;
    size_t left = in.len - *at, head_len = 2, len;

    assert(*at <= in.len);
    if (left < 2)
        return 0;
    if (!(head[0] & 0x80) || (head[1] & 0x80))
        return -1; /* a fragment, or masked by a server */
    len = head[1] & 0x7f;
    head_len += len == 126 ? 2 : len == 127 ? 8 : 0;
    if (left < head_len)
        return 0;
    if (head_len > 2) {
        len = 0;
        for (size_t i = 2; i < head_len; i++)
            len = len << 8 | head[i];
    }
    if (left - head_len < len)
        return 0;
    *ret_opcode = head[0] & 0x0f;
    *ret_payload = (struct str){.at = in.at + *at + head_len, .len = len};
    *at += head_len + len;
    return 1;
}
