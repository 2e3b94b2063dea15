/* Listening and accepting within limits. A connection over a limit is accepted all the same, told
 * so in a few bytes and closed: left in the backlog it would only come again. */
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/metrics.h"
#include "io/ip.h"
#include "io/net_private.h"

bool net_addr_split(struct str addr, struct str *ret_host, int *ret_port)
{
    struct str host = addr;
    int64_t port;
    size_t colon = addr.len;

    while (colon > 0 && addr.at[colon - 1] != ':')
        colon--;
    if (colon < 2)
        return false;
    host.len = colon - 1;
    if (!str_int((struct str){.at = addr.at + colon, .len = addr.len - colon}, &port) || port < 0 ||
        port > 65535)
        return false;
    if (host.at[0] == '[') {
        if (host.len < 3 || host.at[host.len - 1] != ']')
            return false;
        host = (struct str){.at = host.at + 1, .len = host.len - 2};
    } else if (memchr(host.at, ':', host.len)) {
        return false; /* an IPv6 address needs its brackets */
    }
    *ret_host = host;
    *ret_port = (int)port;
    return true;
}

bool net_addr_is_loopback(const char *addr)
{
    struct str host = str_of(addr);
    struct sockaddr_in6 v6;
    struct sockaddr_in v4;
    char text[64];
    int port;

    net_addr_split(str_of(addr), &host, &port); /* a bare address is fine too */
    if (str_eq_nocase(host, STR("localhost")))
        return true;
    if (!str_copy(host, text, sizeof text))
        return false;
    if (uv_ip4_addr(text, 0, &v4) == 0)
        return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
    return uv_ip6_addr(text, 0, &v6) == 0 && IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

uint64_t net_peer_describe(const struct sockaddr *addr, char *ret_text, size_t size)
{
    char host[INET6_ADDRSTRLEN] = "";
    struct ip ip;

    if (addr->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)addr;

        uv_ip4_name(v4, host, sizeof host);
        snprintf(ret_text, size, "%s:%d", host, ntohs(v4->sin_port));
        ip = ip_of_v4(&v4->sin_addr);
        return ip_peer_id(&ip);
    }
    if (addr->sa_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)addr;

        uv_ip6_name(v6, host, sizeof host);
        snprintf(ret_text, size, "[%s]:%d", host, ntohs(v6->sin6_port));
        ip = ip_of_v6(&v6->sin6_addr);
        return ip_peer_id(&ip);
    }
    str_copy(STR("unknown"), ret_text, size);
    return 0;
}

/* --- who goes when there is no room ---
 *
 * A peer that has not shown who it is may be anybody, and there are many of them. Of those the one
 * that had the longest time to do so makes room for a newcomer: who is let in shows it within a
 * moment, so a peer that comes back gets in through any number of silent ones, and nobody who has
 * shown it is ever given up. */

static struct net_peer *peer_of(struct net_listener *listener, uint64_t id)
{
    struct net_peer *peer = idmap_get(&listener->peers, id);

    if (!peer) {
        peer = mem_new(struct net_peer);
        peer->id = id;
        TAILQ_INIT(&peer->conns);
        idmap_put(&listener->peers, id, peer);
    }
    return peer;
}

static void peer_join(struct net_private *p, uint64_t peer_id)
{
    if (!peer_id)
        return;
    p->peer = peer_of(p->listener, peer_id);
    p->peer->count++;
    TAILQ_INSERT_TAIL(&p->peer->conns, p, peer_link);
}

static void peer_leave(struct net_private *p)
{
    struct net_peer *peer = p->peer;

    p->peer = NULL;
    if (!peer)
        return;
    peer->count--;
    TAILQ_REMOVE(&peer->conns, p, peer_link);
    if (peer->count == 0) {
        idmap_del(&p->listener->peers, peer->id);
        free(peer);
    }
}

static void unknown_add(struct net_private *p)
{
    struct net_listener *listener = p->listener;

    p->unknown = true;
    listener->unknown_count++;
    TAILQ_INSERT_TAIL(&listener->unknown, p, unknown_link);
    peer_join(p, p->conn.peer_id);
}

static void unknown_remove(struct net_private *p)
{
    struct net_listener *listener = p->listener;

    if (!p->unknown)
        return;
    p->unknown = false;
    listener->unknown_count--;
    TAILQ_REMOVE(&listener->unknown, p, unknown_link);
    peer_leave(p);
}

void net_known(struct net_conn *conn)
{
    if (conn->priv->listener)
        unknown_remove(conn->priv);
}

/* Its place is free at once, its descriptor with it; its end is told in the next turn. */
static void give_up(struct net_private *p)
{
    p->given_up = true;
    unknown_remove(p);
    p->listener->connections--;
    metric_add_label(METRIC_CONNECTIONS_DROPPED, "unknown", 1);
    net_conn_fail(&p->conn, "another connection needed its place");
}

/* The one of this address that makes room for another of it; NULL: there is room. */
static struct net_private *peer_oldest(struct net_listener *listener, uint64_t peer_id)
{
    int64_t max = listener->limits->connections_per_peer_max;
    struct net_peer *peer = peer_id ? idmap_get(&listener->peers, peer_id) : NULL;

    return peer && max > 0 && peer->count >= max ? TAILQ_FIRST(&peer->conns) : NULL;
}

void net_counts_as(struct net_conn *conn, uint64_t peer_id)
{
    struct net_private *p = conn->priv, *oldest;

    if (!p->listener || !p->unknown || (p->peer ? p->peer->id : 0) == peer_id)
        return;
    peer_leave(p);
    oldest = peer_oldest(p->listener, peer_id);
    if (oldest)
        give_up(oldest);
    peer_join(p, peer_id);
}

/* False: everybody is known, and there is no place left. */
static bool make_room(struct net_listener *listener, uint64_t peer_id)
{
    const struct net_limits *limits = listener->limits;
    int64_t unknown_max = limits->connections_max * limits->connections_unknown_percent / 100;
    struct net_private *oldest = peer_oldest(listener, peer_id);

    if (!oldest && (listener->connections >= limits->connections_max ||
                    listener->unknown_count >= (unknown_max > 0 ? unknown_max : 1))) {
        oldest = TAILQ_FIRST(&listener->unknown);
        if (!oldest)
            return false;
    }
    if (oldest)
        give_up(oldest);
    return true;
}

/* --- accepting --- */

void net_listener_left(struct net_private *p)
{
    struct net_listener *listener = p->listener;

    unknown_remove(p);
    if (p->refused)
        listener->refused--;
    else if (!p->given_up)
        listener->connections--;
    assert(listener->connections >= 0 && listener->refused >= 0);
}

/* Cheap: no TLS, no handler, a few bytes, and only so many at a time. */
static void refuse(struct net_private *p)
{
    struct net_listener *listener = p->listener;

    p->refused = true;
    metric_add_label(METRIC_CONNECTIONS_DROPPED, "full", 1);
    if (listener->refused++ >= NET_REFUSED_MAX || listener->tls ||
        listener->handler->refusal.len == 0) {
        net_close(&p->conn);
        return;
    }
    net_write(&p->conn, listener->handler->refusal);
    net_close_after(&p->conn);
}

/* libuv keeps a spare descriptor: when there are no more it closes that, accepts and drops what
 * waits, and opens it again. If another thread was quicker to take it, libuv would ask us for ever,
 * so a connection that is not known makes room. connections_max leaves enough descriptors for all
 * else, so this is for a process that lost some of them while it ran. */
static void out_of_descriptors(struct net_listener *listener)
{
    struct net_private *oldest = TAILQ_FIRST(&listener->unknown);

    if (oldest)
        give_up(oldest);
}

static void on_connection(uv_stream_t *server, int status)
{
    struct net_listener *listener = server->data;
    struct sockaddr_storage addr;
    int addr_len = sizeof addr;
    struct net_private *p;
    uint64_t peer_id = 0;

    if (status == UV_EMFILE || status == UV_ENFILE)
        out_of_descriptors(listener);
    if (status < 0)
        return;
    loop_enter(listener->net->loop);
    p = net_conn_new(listener->net, listener->handler, listener->user,
                     listener->limits->write_queue_bytes_max)
            ->priv;
    p->listener = listener;
    if (uv_accept(server, (uv_stream_t *)&p->tcp) != 0) {
        listener->connections++;
        net_close(&p->conn);
        return;
    }
    if (uv_tcp_getpeername(&p->tcp, (struct sockaddr *)&addr, &addr_len) == 0)
        peer_id = net_peer_describe((struct sockaddr *)&addr, p->conn.peer, sizeof p->conn.peer);
    p->conn.peer_id = peer_id;
    if (!make_room(listener, peer_id)) {
        refuse(p);
        return;
    }
    listener->connections++;
    unknown_add(p);
    if (listener->tls) {
        p->tls = tls_new(listener->tls, NULL);
        net_conn_deadline(&p->conn, p->conn.loop->mono_ms + listener->limits->header_timeout_ms);
    }
    net_conn_begin(&p->conn);
}

/* --- the listener --- */

/* Accepted sockets inherit these, so a connection costs no setsockopt of its own. */
static int set_options(uv_tcp_t *tcp)
{
    static const struct {
        int level, name, value;
    } options[] = {
        {SOL_SOCKET, SO_REUSEADDR, 1},
        {SOL_SOCKET, SO_REUSEPORT, 1},
        {SOL_SOCKET, SO_KEEPALIVE, 1},
        {IPPROTO_TCP, TCP_NODELAY, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, NET_KEEPALIVE_S},
        {IPPROTO_TCP, TCP_KEEPINTVL, NET_KEEPALIVE_S / 3},
        {IPPROTO_TCP, TCP_USER_TIMEOUT, NET_USER_TIMEOUT_MS},
    };
    uv_os_fd_t fd;
    int err = uv_fileno((uv_handle_t *)tcp, &fd);

    for (size_t i = 0; err == 0 && i < COUNT_OF(options); i++)
        if (setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof(int)) != 0)
            err = UV_EINVAL;
    return err;
}

static int bind_and_listen(struct net_listener *listener, const struct sockaddr *addr)
{
    struct sockaddr_storage bound;
    int len = sizeof bound;
    int err = set_options(&listener->tcp);

    if (err == 0)
        err = uv_tcp_bind(&listener->tcp, addr, 0);
    if (err == 0)
        err = uv_listen((uv_stream_t *)&listener->tcp, NET_BACKLOG, on_connection);
    if (err == 0)
        err = uv_tcp_getsockname(&listener->tcp, (struct sockaddr *)&bound, &len);
    if (err == 0)
        listener->port =
            ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                              : ((struct sockaddr_in *)&bound)->sin_port);
    return err;
}

static bool addr_parse(const char *addr, struct sockaddr_storage *ret_addr)
{
    struct str host;
    char text[64];
    int port;

    if (!net_addr_split(str_of(addr), &host, &port))
        return false;
    if (str_eq_nocase(host, STR("localhost")))
        host = STR("127.0.0.1");
    if (!str_copy(host, text, sizeof text))
        return false;
    return uv_ip4_addr(text, port, (struct sockaddr_in *)ret_addr) == 0 ||
           uv_ip6_addr(text, port, (struct sockaddr_in6 *)ret_addr) == 0;
}

enum err net_addr_free(const char *addr, struct problem *why)
{
    struct sockaddr_storage sockaddr = {0};
    const int on = 1;
    int fd, err = 0;

    if (!addr_parse(addr, &sockaddr))
        return ERR_OK; /* net_listen tells what is wrong with it */
    fd = socket(sockaddr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return ERR_OK;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(fd, (struct sockaddr *)&sockaddr, sizeof sockaddr) != 0)
        err = errno;
    close(fd);
    if (err != EADDRINUSE)
        return ERR_OK;
    return problem_set(why, ERR_IO, "listen", "Cannot listen on %s: %s.", addr,
                       uv_strerror(UV_EADDRINUSE));
}

enum err net_listen(struct loop *loop, const char *addr, const struct net_limits *limits,
                    const struct net_handler *handler, void *user,
                    struct net_listener **ret_listener, struct problem *why)
{
    struct sockaddr_storage sockaddr;
    struct net_listener *listener;
    int err;

    assert(limits->connections_max > 0 && limits->write_queue_bytes_max > 0);
    assert(limits->connections_unknown_percent > 0 && limits->connections_unknown_percent <= 100);
    if (!addr_parse(addr, &sockaddr))
        return problem_set(why, ERR_BAD_FIELD, "listen",
                           "\"%s\" is not an address like 127.0.0.1:7420 or [::1]:7420.", addr);
    listener = mem_new(struct net_listener);
    listener->net = net_loop(loop);
    listener->limits = limits;
    listener->handler = handler;
    listener->user = user;
    TAILQ_INIT(&listener->unknown);
    err = uv_tcp_init_ex(&loop->uv, &listener->tcp, sockaddr.ss_family);
    if (err != 0) { /* no descriptor, or no IPv6 here: libuv has kept nothing */
        free(listener);
        return problem_set(why, ERR_IO, "listen", "Cannot listen on %s: %s.", addr,
                           uv_strerror(err));
    }
    listener->tcp.data = listener;
    LIST_INSERT_HEAD(&listener->net->listeners, listener, link);
    err = bind_and_listen(listener, (struct sockaddr *)&sockaddr);
    if (err != 0) {
        net_listener_close(listener);
        return problem_set(why, ERR_IO, "listen", "Cannot listen on %s: %s.", addr,
                           uv_strerror(err));
    }
    *ret_listener = listener;
    return ERR_OK;
}

int net_listener_port(const struct net_listener *listener)
{
    return listener->port;
}

void net_listener_tls(struct net_listener *listener, struct net_tls *tls)
{
    struct net_tls *old = listener->tls;

    listener->tls = net_tls_ref(tls);
    net_tls_free(old);
}

void net_listener_close(struct net_listener *listener)
{
    if (uv_is_closing((uv_handle_t *)&listener->tcp))
        return;
    net_listener_tls(listener, NULL);
    uv_close((uv_handle_t *)&listener->tcp, NULL);
}

void net_listener_free(struct net_listener *listener)
{
    assert(listener->connections == 0 && listener->refused == 0);
    LIST_REMOVE(listener, link);
    idmap_free(&listener->peers);
    free(listener);
}

int64_t net_listener_connections(const struct net_listener *listener)
{
    return listener->connections;
}
