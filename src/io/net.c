/* A connection: reading, the write queue, TLS, its deadline and its end; and the two ways to get
 * one, accepted by a listener or dialled. */
#include "io/net.h"

#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "base/spare.h"
#include "base/str.h"
#include "io/ip.h"
#include "io/loop.h"
#include "io/tls.h"
#include "io/wheel.h"

enum {
    NET_LINGER_MS = 2000, /* how long a closed connection may take to drain */
    NET_BACKLOG = 1024,
    NET_KEEPALIVE_S = 30,
    NET_USER_TIMEOUT_MS = 60000,
};

/* Bytes that the kernel did not take at once, with the libuv request that writes them. */
struct net_flight {
    uv_write_t req;
    struct buf bytes;
};

struct net_private {
    struct net_conn conn; /* first: the two are one piece of memory */
    uv_tcp_t tcp;
    struct net_loop *net;
    struct net_listener *listener; /* NULL: we dialled */
    struct net_dial *dial;         /* NULL: connected */
    struct tls *tls;               /* NULL: plain */
    int64_t write_queue_bytes_max;
    struct buf out;            /* not sent yet; plaintext */
    struct net_flight *flight; /* NULL: the kernel took everything so far */
    struct buf unread;
    struct net_peer *peer; /* NULL: authenticated, or its address is not known */
    struct wheel_item deadline;
    LIST_ENTRY(net_private) link;
    TAILQ_ENTRY(net_private) dirty_link;
    TAILQ_ENTRY(net_private) unread_link;
    TAILQ_ENTRY(net_private) unknown_link;
    TAILQ_ENTRY(net_private) peer_link;
    TAILQ_ENTRY(net_private) behind_link;
    int64_t behind_bytes; /* its share of net->behind_bytes; 0: its reader has taken all */
    bool dirty;
    bool opened;    /* the handler's `opened` was called */
    bool paused;    /* by the handler */
    bool refused;   /* over the limits; the handler never sees it */
    bool unknown;   /* its peer is not authenticated; in listener->unknown */
    bool given_up;  /* for a newer connection, which already has its slot */
    bool lingering; /* our side is shut; reading until the peer's is */
    bool in_data;   /* inside the handler's `data` */
    bool eof;       /* the peer shut its side */
    bool unread_queued;
};

LIST_HEAD(net_conn_list, net_private);
LIST_HEAD(net_listener_list, net_listener);

/* The connections from one address that are not authenticated. */
struct net_peer {
    uint64_t id;
    int64_t count;
    struct net_conn_queue conns; /* the oldest first */
};

/* What the connections of one loop share. */
struct net_loop {
    struct loop_part part;
    struct loop *loop;
    struct net_conn_list conns;
    struct net_listener_list listeners;
    struct net_conn_queue dirty;  /* have something to flush */
    struct net_conn_queue unread; /* have bytes to be read again */
    struct net_conn_queue behind; /* readers have not taken everything; longest first */
    int64_t behind_bytes;         /* of all of these */
    struct wheel wheel;
    char *plain; /* TLS_RECORD_BYTES, NULL until the first TLS connection */
};

/* Outlives its connection when that is closed while the lookup is running. */
struct net_dial {
    uv_getaddrinfo_t lookup;
    uv_connect_t connect;
    struct net_private *p; /* NULL: the connection is gone */
    struct addrinfo *addrs;
    struct addrinfo *next; /* to be tried */
    int error;             /* of the last try */
};

static void net_conn_start_read(struct net_private *p);
static void net_conn_fail(struct net_conn *conn, const char *error);
static void unknown_remove(struct net_private *p);
static void try_next(struct net_dial *dial);

/* --- a connection --- */

static void deliver(struct net_private *p, struct str bytes)
{
    assert(!p->in_data && p->opened);
    p->in_data = true;
    p->conn.handler->data(&p->conn, bytes);
    p->in_data = false;
}

static void mark_dirty(struct net_private *p)
{
    if (p->dirty)
        return;
    p->dirty = true;
    TAILQ_INSERT_TAIL(&p->net->dirty, p, dirty_link);
}

static void unmark_dirty(struct net_private *p)
{
    if (p->dirty)
        TAILQ_REMOVE(&p->net->dirty, p, dirty_link);
    p->dirty = false;
}

/* What the kernel does not take of a reply waits in memory for as long as its reader likes. So
 * there is one limit for all connections of a loop; when it is exceeded, the one that has been
 * behind for the longest time is dropped, see turn(). */
static void count_behind(struct net_private *p)
{
    struct net_loop *net = p->net;
    int64_t bytes = p->flight ? (int64_t)(p->flight->bytes.len + p->out.len) : 0;

    if (!p->listener || p->conn.queue_bounded || uv_is_closing((uv_handle_t *)&p->tcp))
        bytes = 0;
    if (bytes > 0 && p->behind_bytes == 0)
        TAILQ_INSERT_TAIL(&net->behind, p, behind_link);
    else if (bytes == 0 && p->behind_bytes > 0)
        TAILQ_REMOVE(&net->behind, p, behind_link);
    net->behind_bytes += bytes - p->behind_bytes;
    p->behind_bytes = bytes;
}

/* --- writing --- */

static void on_written(uv_write_t *req, int status)
{
    struct net_flight *flight = container_of(req, struct net_flight, req);
    struct net_private *p = req->data;

    assert(p->flight == flight);
    p->flight = NULL;
    spare_give(&flight->bytes);
    free(flight);
    count_behind(p);
    if (uv_is_closing((uv_handle_t *)&p->tcp))
        return;
    if (status < 0)
        net_conn_fail(&p->conn, uv_strerror(status));
    else
        net_flush(&p->conn);
    if (!p->flight && !p->conn.closing && p->opened && p->conn.handler->written)
        p->conn.handler->written(&p->conn);
}

/* Writes `wire` to the socket, and leaves to libuv what the kernel does not take. */
static void send_wire(struct net_private *p, struct buf *wire)
{
    uv_buf_t piece = uv_buf_init(wire->at, (unsigned)wire->len);
    int sent = uv_try_write((uv_stream_t *)&p->tcp, &piece, 1);
    struct net_flight *flight;
    int err;

    assert(!p->flight);
    if (sent < 0 && sent != UV_EAGAIN) {
        net_conn_fail(&p->conn, uv_strerror(sent));
        return;
    }
    if (sent < 0)
        sent = 0;
    if ((size_t)sent == wire->len) {
        spare_give(wire);
        return;
    }
    flight = mem_new(struct net_flight);
    flight->req.data = p;
    flight->bytes = *wire;
    *wire = (struct buf){0};
    piece = uv_buf_init(flight->bytes.at + sent, (unsigned)(flight->bytes.len - (size_t)sent));
    err = uv_write(&flight->req, (uv_stream_t *)&p->tcp, &piece, 1, on_written);
    if (err < 0) {
        buf_free(&flight->bytes);
        free(flight);
        net_conn_fail(&p->conn, uv_strerror(err));
        return;
    }
    p->flight = flight;
    count_behind(p);
}

void net_flush(struct net_conn *conn)
{
    struct net_private *p = conn->priv;
    struct buf *wire = &p->out;
    uv_os_fd_t fd;

    unmark_dirty(p);
    count_behind(p);
    if (p->dial || p->flight || p->lingering || uv_is_closing((uv_handle_t *)&p->tcp))
        return;
    if (p->tls) {
        wire = tls_wire(p->tls);
        if (p->opened && p->out.len > 0) {
            if (!tls_write(p->tls, buf_view(&p->out))) {
                net_conn_fail(conn, tls_error(p->tls));
                return;
            }
            spare_give(&p->out);
        }
        if (conn->closing)
            tls_end(p->tls);
    }
    if (wire->len > 0)
        send_wire(p, wire);
    if (!conn->closing || p->flight || uv_is_closing((uv_handle_t *)&p->tcp))
        return;
    /* Everything is sent: shuts down our side and reads until the peer has shut down its own. */
    if (p->eof || uv_fileno((uv_handle_t *)&p->tcp, &fd) != 0 || shutdown(fd, SHUT_WR) != 0) {
        net_close(conn);
        return;
    }
    p->lingering = true;
    net_conn_start_read(p);
}

void net_flush_alone(struct net_conn *conn)
{
    struct net_private *p = conn->priv;

    if (TAILQ_FIRST(&p->net->dirty) == p && !TAILQ_NEXT(p, dirty_link))
        net_flush(conn);
}

void net_flush_first(struct net_conn *conn)
{
    struct net_private *p = conn->priv;

    if (!p->dirty)
        return;
    TAILQ_REMOVE(&p->net->dirty, p, dirty_link);
    TAILQ_INSERT_HEAD(&p->net->dirty, p, dirty_link);
}

bool net_peer_left(const struct net_conn *conn)
{
    struct pollfd peer = {.fd = -1, .events = POLLRDHUP};

    if (conn->closing || uv_fileno((const uv_handle_t *)&conn->priv->tcp, &peer.fd) != 0)
        return true;
    return poll(&peer, 1, 0) > 0;
}

size_t net_write_queued(const struct net_conn *conn)
{
    const struct net_private *p = conn->priv;
    size_t queued = p->out.len;

    if (p->tls)
        queued += tls_wire(p->tls)->len;
    if (p->flight)
        queued += uv_stream_get_write_queue_size((const uv_stream_t *)&p->tcp);
    return queued;
}

struct buf *net_room(struct net_conn *conn, size_t bytes)
{
    struct net_private *p = conn->priv;
    size_t max = (size_t)p->write_queue_bytes_max;

    if (conn->closing)
        return NULL;
    /* One reply may be larger than the queue; a second one must wait for the reader. */
    if (p->out.len + bytes > max || p->flight) {
        size_t queued;

        net_flush(conn);
        queued = net_write_queued(conn);
        if (!conn->closing && queued > 0 && queued + bytes > max)
            net_conn_fail(conn, "the peer reads too slowly");
        if (conn->closing)
            return NULL;
    }
    if (!p->out.at)
        p->out = spare_take(); /* an idle connection has no buffer */
    buf_reserve(&p->out, bytes);
    mark_dirty(p);
    return &p->out;
}

void net_write(struct net_conn *conn, struct str bytes)
{
    struct buf *out = net_room(conn, bytes.len);

    if (out)
        buf_str(out, bytes);
}

/* --- reading --- */

static void on_ended(struct net_private *p)
{
    p->eof = true;
    if (p->conn.closing || net_write_queued(&p->conn) == 0)
        net_close(&p->conn);
    else
        net_close_after(&p->conn); /* the peer may still read what is queued */
}

static void open_to_handler(struct net_private *p)
{
    assert(!p->opened);
    p->opened = true;
    net_conn_deadline(&p->conn, 0);
    if (p->out.len > 0)
        mark_dirty(p); /* written while we dialled */
    p->conn.handler->opened(&p->conn);
}

static bool tls_step(struct net_private *p)
{
    enum tls_result result = tls_handshake(p->tls);

    mark_dirty(p);
    if (result == TLS_DONE) {
        p->conn.peer_name = tls_peer_name(p->tls);
        open_to_handler(p);
        return !p->conn.closing;
    }
    if (result == TLS_MORE)
        return false;
    net_flush(&p->conn); /* the TLS alert with the reason */
    net_conn_fail(&p->conn, tls_error(p->tls));
    return false;
}

static void tls_input(struct net_private *p, struct str cipher)
{
    enum tls_result result = TLS_MORE;
    size_t len;

    tls_feed(p->tls, cipher);
    if (p->opened || tls_step(p)) {
        while (!p->conn.closing && !p->paused) {
            result = tls_read(p->tls, p->net->plain, TLS_RECORD_BYTES, &len);
            if (result != TLS_DONE)
                break;
            deliver(p, (struct str){.at = p->net->plain, .len = len});
        }
    }
    tls_keep(p->tls);
    if (tls_wire(p->tls)->len > 0)
        mark_dirty(p);
    if (p->conn.closing)
        return;
    if (result == TLS_ENDED)
        on_ended(p);
    else if (result == TLS_FAILED)
        net_conn_fail(&p->conn, tls_error(p->tls));
}

static void unqueue_unread(struct net_private *p)
{
    if (p->unread_queued)
        TAILQ_REMOVE(&p->net->unread, p, unread_link);
    p->unread_queued = false;
}

/* Delivers what net_unread() put back, before anything newer. */
static void read_again(struct net_private *p)
{
    struct buf bytes = p->unread;

    p->unread = (struct buf){0};
    unqueue_unread(p);
    if (bytes.len > 0 && !p->conn.closing)
        deliver(p, buf_view(&bytes));
    buf_free(&bytes);
    if (p->tls && !p->conn.closing)
        tls_input(p, STR_NONE);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret_buf)
{
    struct net_private *p = handle->data;

    *ret_buf = uv_buf_init(p->conn.loop->read_buf, LOOP_READ_BYTES);
}

static void on_read(uv_stream_t *stream, ssize_t len, const uv_buf_t *buf)
{
    struct net_private *p = stream->data;

    if (len == 0)
        return; /* EAGAIN: nothing to read */
    loop_enter(p->conn.loop);
    if (len < 0) {
        if (len != UV_EOF && !p->conn.error)
            p->conn.error = uv_strerror((int)len);
        on_ended(p);
        return;
    }
    if (p->conn.closing)
        return; /* discarded, see net_close_after */
    if (p->unread_queued)
        read_again(p);
    if (p->conn.closing)
        return;
    if (p->tls)
        tls_input(p, (struct str){.at = buf->base, .len = (size_t)len});
    else
        deliver(p, (struct str){.at = buf->base, .len = (size_t)len});
    if (p->dirty)
        net_flush(&p->conn);
}

static void net_conn_start_read(struct net_private *p)
{
    int err = uv_read_start((uv_stream_t *)&p->tcp, on_alloc, on_read);

    if (err < 0 && err != UV_EALREADY)
        net_conn_fail(&p->conn, uv_strerror(err));
}

void net_read_pause(struct net_conn *conn)
{
    struct net_private *p = conn->priv;

    if (p->paused || conn->closing)
        return;
    p->paused = true;
    uv_read_stop((uv_stream_t *)&p->tcp);
}

static void queue_unread(struct net_private *p)
{
    if (p->unread_queued)
        return;
    p->unread_queued = true;
    TAILQ_INSERT_TAIL(&p->net->unread, p, unread_link);
}

void net_read_resume(struct net_conn *conn)
{
    struct net_private *p = conn->priv;

    if (!p->paused || conn->closing)
        return;
    p->paused = false;
    if (p->tls)
        queue_unread(p); /* the session may hold bytes that no socket will announce */
    net_conn_start_read(p);
}

void net_unread(struct net_conn *conn, struct str bytes)
{
    assert(conn->priv->opened);
    if (bytes.len == 0 || conn->closing)
        return;
    buf_str(&conn->priv->unread, bytes);
    queue_unread(conn->priv);
}

/* --- beginning and end --- */

static void on_expired(struct wheel_item *item)
{
    struct net_private *p = container_of(item, struct net_private, deadline);
    struct net_conn *conn = &p->conn;

    if (!conn->closing && p->opened && conn->handler->expired) {
        conn->handler->expired(conn);
        return;
    }
    if (!conn->error && !conn->closing)
        conn->error = "timed out";
    net_close(conn);
}

void net_conn_deadline(struct net_conn *conn, int64_t mono_ms)
{
    if (!conn->closing)
        wheel_set(&conn->priv->net->wheel, &conn->priv->deadline, mono_ms);
}

/* A connection that has no socket yet; linked into the loop. */
static struct net_conn *net_conn_new(struct net_loop *net, const struct net_handler *handler,
                                     void *user, int64_t write_queue_bytes_max)
{
    struct net_private *p = mem_new(struct net_private);

    assert(handler->opened && handler->data && handler->closed && write_queue_bytes_max > 0);
    p->conn = (struct net_conn){.loop = net->loop, .handler = handler, .user = user, .priv = p};
    p->net = net;
    p->write_queue_bytes_max = write_queue_bytes_max;
    uv_tcp_init(&net->loop->uv, &p->tcp); /* opens no socket yet: cannot fail */
    p->tcp.data = p;
    LIST_INSERT_HEAD(&net->conns, p, link);
    return &p->conn;
}

/* The socket is connected: TLS or `opened`, then reading. */
static void net_conn_begin(struct net_conn *conn)
{
    struct net_private *p = conn->priv;

    assert(!p->opened && !p->dial);
    if (!p->tls) {
        open_to_handler(p);
    } else {
        if (!p->net->plain)
            p->net->plain = mem_alloc(TLS_RECORD_BYTES);
        tls_step(p); /* a TLS client sends first */
    }
    if (!conn->closing && !p->paused)
        net_conn_start_read(p);
}

static void dial_free(struct net_dial *dial)
{
    uv_freeaddrinfo(dial->addrs);
    free(dial);
}

static void on_closed(uv_handle_t *handle)
{
    struct net_private *p = handle->data;
    struct net_conn *conn = &p->conn;
    bool expected = p->opened || !p->listener; /* after a dial either `opened` or `closed` comes */
    struct net_listener *listener = p->listener;
    struct net_dial *dial = p->dial;

    assert(conn->closing && !p->dirty && !p->flight);
    if (dial) { /* closed while it was still dialling */
        p->dial = NULL;
        dial->p = NULL;
        /* A running lookup cannot be cancelled: on_lookup finds no connection and frees the dial.
         * libuv has ended a connect by the time the handle is closed. */
        if (dial->addrs || dial->error)
            dial_free(dial);
        else
            uv_cancel((uv_req_t *)&dial->lookup);
    }
    LIST_REMOVE(p, link);
    if (expected && !p->refused)
        conn->handler->closed(conn);
    if (listener) {
        unknown_remove(p);
        if (p->refused)
            listener->refused--;
        else if (!p->given_up)
            listener->connections--;
        assert(listener->connections >= 0 && listener->refused >= 0);
    }
    tls_free(p->tls);
    buf_free(&p->out);
    buf_free(&p->unread);
    free(p);
}

void net_close(struct net_conn *conn)
{
    struct net_private *p = conn->priv;

    conn->closing = true;
    if (uv_is_closing((uv_handle_t *)&p->tcp))
        return; /* on_closed follows, or the dial sees `closing` before its next attempt */
    unmark_dirty(p);
    unqueue_unread(p);
    wheel_remove(&p->deadline);
    uv_close((uv_handle_t *)&p->tcp, on_closed);
    count_behind(p);
}

static void net_conn_fail(struct net_conn *conn, const char *error)
{
    if (!conn->error)
        conn->error = error;
    net_close(conn);
}

void net_close_after(struct net_conn *conn)
{
    struct net_private *p = conn->priv;

    if (conn->closing)
        return;
    if (!p->opened && !p->refused) {
        net_close(conn);
        return;
    }
    net_conn_deadline(conn, conn->loop->mono_ms + NET_LINGER_MS);
    conn->closing = true;
    mark_dirty(p); /* the flush closes it */
}

/* --- per loop --- */

static void ready(struct loop_part *part)
{
    struct net_loop *net = container_of(part, struct net_loop, part);
    struct net_private *p;

    while ((p = TAILQ_FIRST(&net->unread)))
        read_again(p);
}

static void turn(struct loop_part *part)
{
    struct net_loop *net = container_of(part, struct net_loop, part);
    struct net_private *p, *next;

    while ((p = TAILQ_FIRST(&net->dirty)))
        net_flush(&p->conn);
    for (p = TAILQ_FIRST(&net->behind); p; p = next) {
        int64_t max = p->listener->limits->write_queues_bytes_max;

        next = TAILQ_NEXT(p, behind_link);
        if (max == 0 || net->behind_bytes <= max || !next)
            break; /* a single reply may be larger than the limit */
        metric_add_label(METRIC_CONNECTIONS_DROPPED, "behind", 1);
        net_conn_fail(&p->conn, "the peer reads too slowly");
    }
}

static void tick(struct loop_part *part)
{
    struct net_loop *net = container_of(part, struct net_loop, part);

    wheel_run(&net->wheel, net->loop->mono_ms);
}

int64_t net_listener_recheck(struct net_listener *listener)
{
    struct net_private *p;
    int64_t closed = 0;

    LIST_FOREACH(p, &listener->net->conns, link)
    {
        if (p->listener != listener || !p->tls || p->conn.closing ||
            !tls_is_revoked(p->tls, listener->tls))
            continue;
        net_close(&p->conn); /* freed later, so the list stays valid */
        closed++;
    }
    return closed;
}

static void close_all(struct loop_part *part)
{
    struct net_loop *net = container_of(part, struct net_loop, part);
    struct net_private *p;
    struct net_listener *listener;

    LIST_FOREACH(listener, &net->listeners, link)
    {
        net_listener_close(listener);
    }
    LIST_FOREACH(p, &net->conns, link)
    {
        net_close(&p->conn);
    }
}

static void free_part(struct loop_part *part)
{
    struct net_loop *net = container_of(part, struct net_loop, part);
    struct net_listener *listener;

    assert(LIST_EMPTY(&net->conns));
    while ((listener = LIST_FIRST(&net->listeners))) {
        assert(listener->connections == 0 && listener->refused == 0);
        LIST_REMOVE(listener, link);
        idmap_free(&listener->peers);
        free(listener);
    }
    free(net->plain);
    net->loop->net = NULL;
    free(net);
}

bool net_idle(const struct loop *loop)
{
    return !loop->net || LIST_EMPTY(&loop->net->conns);
}

/* Created on first use. */
static struct net_loop *net_loop(struct loop *loop)
{
    struct net_loop *net = loop->net;

    if (net)
        return net;
    net = mem_new(struct net_loop);
    net->part = (struct loop_part){
        .ready = ready, .turn = turn, .tick = tick, .close = close_all, .free = free_part};
    net->loop = loop;
    LIST_INIT(&net->conns);
    LIST_INIT(&net->listeners);
    TAILQ_INIT(&net->dirty);
    TAILQ_INIT(&net->behind);
    TAILQ_INIT(&net->unread);
    wheel_init(&net->wheel, loop->mono_ms, on_expired);
    loop_add_part(loop, &net->part);
    loop->net = net;
    return net;
}

/* --- listening --- */

/* Accepting within limits. A connection over a limit is still accepted, gets a short refusal and is
 * closed: left in the backlog it would only come up again. */

/* "host:port", "[v6]:port" -> parts; port 0 to 65535. */
static bool net_addr_split(struct str addr, struct str *ret_host, int *ret_port)
{
    struct str host = addr;
    int64_t port;
    size_t colon = addr.len;

    while (colon > 0 && addr.at[colon - 1] != ':')
        colon--;
    if (colon < 2)
        return false;
    host.len = colon - 1;
    if (!str_int(str_from(addr, colon), &port) || port < 0 || port > 65535)
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

/* Text of a socket address, and its ip_peer_id(). */
static uint64_t net_peer_describe(const struct sockaddr *addr, char *ret_text, size_t size)
{
    char host[INET6_ADDRSTRLEN] = "";
    struct ip ip;

    if (addr->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)addr;

        uv_ip4_name(v4, host, sizeof host);
        snprintf(ret_text, size, "%s:%d", host, ntohs(v4->sin_port));
        ip = ip_of_v4(&v4->sin_addr);
    } else if (addr->sa_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)addr;

        uv_ip6_name(v6, host, sizeof host);
        snprintf(ret_text, size, "[%s]:%d", host, ntohs(v6->sin6_port));
        ip = ip_of_v6(&v6->sin6_addr);
    } else {
        str_copy(STR("unknown"), ret_text, size);
        return 0;
    }
    return ip_peer_id(&ip);
}

/* --- what is dropped when there is no room ---
 *
 * Anybody can open connections without authenticating, and any number of them. So the oldest such
 * connection makes room for a new one: legitimate peers authenticate within a moment, so a peer
 * that reconnects gets in past any number of silent ones, and no authenticated peer is ever
 * dropped. */

static void peer_join(struct net_private *p, uint64_t peer_id)
{
    struct net_peer *peer;

    if (!peer_id)
        return;
    peer = idmap_get(&p->listener->peers, peer_id);
    if (!peer) {
        peer = mem_new(struct net_peer);
        peer->id = peer_id;
        TAILQ_INIT(&peer->conns);
        idmap_put(&p->listener->peers, peer_id, peer);
    }
    p->peer = peer;
    peer->count++;
    TAILQ_INSERT_TAIL(&peer->conns, p, peer_link);
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

/* Frees its slot and its descriptor at once; the handler's `closed` comes in the next turn. */
static void give_up(struct net_private *p)
{
    p->given_up = true;
    unknown_remove(p);
    p->listener->connections--;
    metric_add_label(METRIC_CONNECTIONS_DROPPED, "unknown", 1);
    net_conn_fail(&p->conn, "another connection needed its place");
}

/* The connection that must make room for another from its address; NULL: there is room. */
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

/* False: there is no slot left, and all peers are authenticated. */
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

static void on_connection(uv_stream_t *server, int status)
{
    struct net_listener *listener = server->data;
    struct sockaddr_storage addr;
    int addr_len = sizeof addr;
    struct net_private *p;
    uint64_t peer_id = 0;

    /* Out of descriptors. libuv keeps a spare one: it closes that, accepts and drops what waits,
     * and opens it again. If another thread takes the descriptor first, libuv would call us for
     * ever, so an unauthenticated connection makes room. connections_max leaves enough descriptors
     * for everything else; this is for a process that leaked some. */
    p = TAILQ_FIRST(&listener->unknown);
    if ((status == UV_EMFILE || status == UV_ENFILE) && p)
        give_up(p);
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
        /* Refused cheaply: no TLS, no handler, a few bytes, and at most NET_REFUSED_MAX at a time.
         */
        p->refused = true;
        metric_add_label(METRIC_CONNECTIONS_DROPPED, "full", 1);
        if (listener->refused++ >= NET_REFUSED_MAX || listener->tls ||
            listener->handler->refusal.len == 0) {
            net_close(&p->conn);
            return;
        }
        net_write(&p->conn, listener->handler->refusal);
        net_close_after(&p->conn);
        return;
    }
    listener->connections++;
    p->unknown = true;
    listener->unknown_count++;
    TAILQ_INSERT_TAIL(&listener->unknown, p, unknown_link);
    peer_join(p, peer_id);
    if (listener->tls) {
        p->tls = tls_new(listener->tls, NULL);
        net_conn_deadline(&p->conn, p->conn.loop->mono_ms + listener->limits->header_timeout_ms);
    }
    net_conn_begin(&p->conn);
}

/* --- the listener --- */

static int bind_and_listen(struct net_listener *listener, const struct sockaddr *addr)
{
    /* Accepted sockets inherit these options, which saves a setsockopt per connection. */
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
    struct sockaddr_storage bound;
    int len = sizeof bound;
    uv_os_fd_t fd;
    int err = uv_fileno((uv_handle_t *)&listener->tcp, &fd);

    for (size_t i = 0; err == 0 && i < COUNT_OF(options); i++)
        if (setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof(int)) != 0)
            err = UV_EINVAL;
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
        return ERR_OK; /* net_listen reports what is wrong with it */
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
    if (err != 0) { /* no descriptor, or no IPv6 here: libuv holds no socket */
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

enum err net_listener_adopt(struct net_listener *listener, int fd)
{
    struct net_conn *conn = net_conn_new(listener->net, listener->handler, listener->user,
                                         listener->limits->write_queue_bytes_max);
    int err = uv_tcp_open(&conn->priv->tcp, fd);

    if (err) {
        net_conn_fail(conn, uv_strerror(err));
        return ERR_IO;
    }
    net_conn_begin(conn);
    return ERR_OK;
}

/* --- dialling --- */

/* The name is looked up on libuv's thread pool, then its addresses are tried in turn. */

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
    int timeout_ms = NET_USER_TIMEOUT_MS;
    uv_os_fd_t fd;

    if (!p || p->conn.closing)
        return; /* net_close came first; on_closed follows */
    loop_enter(p->conn.loop);
    if (status < 0) {
        dial->error = status;
        uv_close((uv_handle_t *)&p->tcp, on_socket_closed);
        return;
    }
    assert(p->dial == dial);
    /* The connection works without these options, so a failure is no reason to drop it. */
    uv_tcp_nodelay(&p->tcp, 1);
    uv_tcp_keepalive(&p->tcp, 1, NET_KEEPALIVE_S);
    if (uv_fileno((uv_handle_t *)&p->tcp, &fd) == 0)
        setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
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
