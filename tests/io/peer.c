#include "peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "../unit.h"

void peer_dial(struct peer *peer, int port)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct timeval patience = {.tv_sec = PEER_PATIENCE_S};
    int one = 1;

    *peer = (struct peer){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    assert_true(peer->fd >= 0);
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(peer->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(peer->fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    setsockopt(peer->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    assert_int_equal(connect(peer->fd, (struct sockaddr *)&addr, sizeof addr), 0);
}

void peer_close(struct peer *peer)
{
    if (peer->fd >= 0)
        close(peer->fd);
    peer->fd = -1;
    buf_free(&peer->in);
}

void peer_reset(struct peer *peer)
{
    struct linger at_once = {.l_onoff = 1};

    setsockopt(peer->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    peer_close(peer);
}

void peer_send(struct peer *peer, struct str bytes)
{
    while (bytes.len > 0) {
        ssize_t sent = send(peer->fd, bytes.at, bytes.len, MSG_NOSIGNAL);

        if (sent < 0)
            return;
        bytes.at += sent;
        bytes.len -= (size_t)sent;
    }
}

void peer_send_bytewise(struct peer *peer, struct str bytes)
{
    for (size_t i = 0; i < bytes.len; i++)
        peer_send(peer, (struct str){.at = bytes.at + i, .len = 1});
}

/* False at the end of the connection. */
static bool read_some(struct peer *peer)
{
    ssize_t len;

    buf_reserve(&peer->in, 65536);
    len = recv(peer->fd, peer->in.at + peer->in.len, 65536, 0);
    if (len < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        fail_msg("nothing came for %d s", PEER_PATIENCE_S);
    if (len <= 0)
        return false;
    peer->in.len += (size_t)len;
    return true;
}

bool peer_await(struct peer *peer, size_t count)
{
    while (peer->in.len < count)
        if (!read_some(peer))
            return false;
    return true;
}

void peer_take(struct peer *peer, void *to, size_t count)
{
    assert_true(peer->in.len >= count);
    memcpy(to, peer->in.at, count);
    buf_drop(&peer->in, count);
}

bool peer_reply_has(const struct peer_reply *reply, const char *line)
{
    char wanted[256];

    snprintf(wanted, sizeof wanted, "\r\n%s\r\n", line);
    return strstr(reply->head, wanted) != NULL;
}

bool peer_reply(struct peer *peer, struct peer_reply *ret_reply, bool head_only)
{
    const char *end;
    const char *length;
    size_t head_len;

    while (!peer->in.at || !(end = memmem(peer->in.at, peer->in.len, "\r\n\r\n", 4)))
        if (!read_some(peer))
            return false;
    head_len = (size_t)(end - peer->in.at) + 4;
    assert_true(head_len < sizeof ret_reply->head);
    peer_take(peer, ret_reply->head, head_len);
    ret_reply->head[head_len] = '\0';
    assert_int_equal(sscanf(ret_reply->head, "HTTP/1.1 %d ", &ret_reply->status), 1);
    length = strcasestr(ret_reply->head, "\r\nContent-Length: ");
    ret_reply->body_len = length && !head_only ? (size_t)atol(length + 18) : 0;
    assert_true(ret_reply->body_len < sizeof ret_reply->body);
    if (!peer_await(peer, ret_reply->body_len))
        return false;
    peer_take(peer, ret_reply->body, ret_reply->body_len);
    ret_reply->body[ret_reply->body_len] = '\0';
    return true;
}

bool peer_ended(struct peer *peer)
{
    return peer->in.len == 0 && !read_some(peer);
}
