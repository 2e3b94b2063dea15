/* Connecting: the name is looked up on libuv's thread pool, then its addresses are tried in turn.
 */
#include <assert.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/mem.h"
#include "io/net_private.h"

/* Outlives its connection if that is closed while the lookup still runs. */
struct net_dial {
    uv_getaddrinfo_t lookup;
    uv_connect_t connect;
    struct net_private *p; /* NULL: the connection is gone */
    struct addrinfo *addrs;
    struct addrinfo *next; /* to be tried */
    int error;             /* of the last try */
};

static void try_next(struct net_dial *dial);

static void dial_free(struct net_dial *dial)
{
    uv_freeaddrinfo(dial->addrs);
    free(dial);
}

void net_dial_closed(struct net_private *p)
{
    struct net_dial *dial = p->dial;

    p->dial = NULL;
    dial->p = NULL;
    /* A lookup that runs cannot be cancelled: on_lookup finds nobody and frees. libuv has ended a
     * connect by the time the handle is closed. */
    if (dial->addrs || dial->error)
        dial_free(dial);
    else
        uv_cancel((uv_req_t *)&dial->lookup);
}

static void set_options(uv_tcp_t *tcp)
{
    int timeout_ms = NET_USER_TIMEOUT_MS;
    uv_os_fd_t fd;

    /* Without these the connection works too: a failure is no reason to give it up. */
    uv_tcp_nodelay(tcp, 1);
    uv_tcp_keepalive(tcp, 1, NET_KEEPALIVE_S);
    if (uv_fileno((uv_handle_t *)tcp, &fd) == 0)
        setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
}

/* The failed socket is closed; libuv wants a fresh handle for the next address. */
static void on_socket_closed(uv_handle_t *handle)
{
    struct net_private *p = handle->data;

    uv_tcp_init(&p->conn.loop->uv, &p->tcp);
    p->tcp.data = p;
    if (p->conn.closing)
        net_close(&p->conn);
    else
        try_next(p->dial);
}

static void on_connected(uv_connect_t *connect, int status)
{
    struct net_dial *dial = container_of(connect, struct net_dial, connect);
    struct net_private *p = dial->p;

    if (!p || p->conn.closing)
        return; /* net_close came first; on_closed follows */
    loop_enter(p->conn.loop);
    if (status < 0) {
        dial->error = status;
        uv_close((uv_handle_t *)&p->tcp, on_socket_closed);
        return;
    }
    assert(p->dial == dial);
    set_options(&p->tcp);
    p->dial = NULL;
    dial_free(dial);
    net_conn_begin(&p->conn);
}

static void try_next(struct net_dial *dial)
{
    struct net_private *p = dial->p;
    struct addrinfo *addr = dial->next;
    int err;

    assert(p->dial == dial && !p->conn.closing);
    if (!addr) {
        net_conn_fail(&p->conn, uv_strerror(dial->error));
        return;
    }
    dial->next = addr->ai_next;
    net_peer_describe(addr->ai_addr, p->conn.peer, sizeof p->conn.peer);
    err = uv_tcp_connect(&dial->connect, &p->tcp, addr->ai_addr, on_connected);
    if (err < 0) {
        dial->error = err;
        uv_close((uv_handle_t *)&p->tcp, on_socket_closed);
    }
}

static void on_lookup(uv_getaddrinfo_t *lookup, int status, struct addrinfo *addrs)
{
    struct net_dial *dial = container_of(lookup, struct net_dial, lookup);

    dial->addrs = dial->next = addrs;
    dial->error = status < 0 ? status : UV_EADDRNOTAVAIL;
    if (!dial->p) {
        dial_free(dial);
        return;
    }
    loop_enter(dial->p->conn.loop);
    if (!dial->p->conn.closing)
        try_next(dial);
}

enum err net_connect(struct loop *loop, const char *host, int port, struct net_tls *tls,
                     const struct net_limits *limits, const struct net_handler *handler, void *user,
                     struct net_conn **ret_conn, struct problem *why)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
    struct net_dial *dial;
    struct net_conn *conn;
    char service[8];
    int err;

    assert(port >= 0 && port <= 65535);
    if (loop->stopping)
        return problem_set(why, ERR_CLOSED, "", "The loop is stopping.");
    dial = mem_new(struct net_dial);
    snprintf(service, sizeof service, "%d", port);
    err = uv_getaddrinfo(&loop->uv, &dial->lookup, on_lookup, host, service, &hints);
    if (err < 0) {
        free(dial);
        return problem_set(why, ERR_IO, "", "Cannot look up %s: %s.", host, uv_strerror(err));
    }
    conn = net_conn_new(net_loop(loop), handler, user, limits->write_queue_bytes_max);
    dial->p = conn->priv;
    conn->priv->dial = dial;
    if (tls)
        conn->priv->tls = tls_new(tls, host);
    net_conn_deadline(conn, loop->mono_ms + limits->header_timeout_ms);
    *ret_conn = conn;
    return ERR_OK;
}
