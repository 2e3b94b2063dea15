/* One connection: reading, the write queue, TLS around both, its deadline and its end. How it comes
 * to be is told in net_listen.c and net_dial.c. */
#include "io/net.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/mem.h"
#include "base/metrics.h"
#include "io/net_private.h"

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

/* --- buffers that wait for their next writer, so that an idle connection holds none --- */

static void spare_take(struct net_loop *net, struct buf *buf)
{
    assert(!buf->at && net->spare_count >= 0);
    if (net->spare_count > 0)
        *buf = net->spare[--net->spare_count];
}

static void spare_give(struct net_loop *net, struct buf *buf)
{
    if (net->spare_count == NET_SPARE_BUFS || buf->cap > NET_SPARE_BYTES_MAX) {
        buf_free(buf);
        return;
    }
    buf->len = 0;
    if (buf->at)
        net->spare[net->spare_count++] = *buf;
    *buf = (struct buf){0};
}

/* --- readers that are behind ---
 *
 * What the kernel does not take of an answer waits here, in memory, for as long as its reader
 * likes; so there is one bound for all of them, and over it the one that has been behind for the
 * longest time goes. */

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

static void give_up_behind(struct net_loop *net)
{
    struct net_private *p, *next;

    for (p = TAILQ_FIRST(&net->behind); p; p = next) {
        int64_t max = p->listener->limits->write_queues_bytes_max;

        next = TAILQ_NEXT(p, behind_link);
        if (max == 0 || net->behind_bytes <= max || !next)
            break; /* one may be larger than all are to be */
        metric_add_label(METRIC_CONNECTIONS_DROPPED, "behind", 1);
        net_conn_fail(&p->conn, "the peer reads too slowly");
    }
}

/* --- writing --- */

static void on_written(uv_write_t *req, int status)
{
    struct net_flight *flight = container_of(req, struct net_flight, req);
    struct net_private *p = req->data;

    assert(p->flight == flight);
    p->flight = NULL;
    spare_give(p->net, &flight->bytes);
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

/* Hands `wire` to the kernel, and to libuv what the kernel does not take. */
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
        spare_give(p->net, wire);
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

/* Everything has left: shut our side and read until the peer has shut its own. */
static void linger(struct net_private *p)
{
    uv_os_fd_t fd;

    if (p->eof || uv_fileno((uv_handle_t *)&p->tcp, &fd) != 0 || shutdown(fd, SHUT_WR) != 0) {
        net_close(&p->conn);
        return;
    }
    p->lingering = true;
    net_conn_start_read(p);
}

void net_flush(struct net_conn *conn)
{
    struct net_private *p = conn->priv;
    struct buf *wire = &p->out;

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
            spare_give(p->net, &p->out);
        }
        if (conn->closing)
            tls_end(p->tls);
    }
    if (wire->len > 0)
        send_wire(p, wire);
    if (conn->closing && !p->flight && !uv_is_closing((uv_handle_t *)&p->tcp))
        linger(p);
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
    /* One answer may be bigger than the queue; a second one must wait for the reader. */
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
        spare_take(p->net, &p->out);
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
        net_close_after(&p->conn); /* it may still read what is queued */
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
    net_flush(&p->conn); /* the alert that tells the peer why */
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

/* What was put back, before anything newer. */
static void read_again(struct net_private *p)
{
    struct buf bytes = p->unread;

    p->unread = (struct buf){0};
    if (p->unread_queued)
        TAILQ_REMOVE(&p->net->unread, p, unread_link);
    p->unread_queued = false;
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
        return; /* nothing there after all */
    loop_enter(p->conn.loop);
    if (len < 0) {
        if (len != UV_EOF && !p->conn.error)
            p->conn.error = uv_strerror((int)len);
        on_ended(p);
        return;
    }
    if (p->conn.closing)
        return; /* thrown away, see net_close_after */
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

void net_conn_start_read(struct net_private *p)
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

struct net_conn *net_conn_new(struct net_loop *net, const struct net_handler *handler, void *user,
                              int64_t write_queue_bytes_max)
{
    struct net_private *p = mem_new(struct net_private);

    assert(handler->opened && handler->data && handler->closed && write_queue_bytes_max > 0);
    p->conn = (struct net_conn){.loop = net->loop, .handler = handler, .user = user, .priv = p};
    p->net = net;
    p->write_queue_bytes_max = write_queue_bytes_max;
    uv_tcp_init(&net->loop->uv, &p->tcp); /* opens nothing yet: cannot fail */
    p->tcp.data = p;
    LIST_INSERT_HEAD(&net->conns, p, link);
    return &p->conn;
}

void net_conn_begin(struct net_conn *conn)
{
    struct net_private *p = conn->priv;

    assert(!p->opened && !p->dial);
    if (!p->tls) {
        open_to_handler(p);
    } else {
        if (!p->net->plain)
            p->net->plain = mem_alloc(TLS_RECORD_BYTES);
        tls_step(p); /* the client's role speaks first */
    }
    if (!conn->closing && !p->paused)
        net_conn_start_read(p);
}

static void on_closed(uv_handle_t *handle)
{
    struct net_private *p = handle->data;
    struct net_conn *conn = &p->conn;
    bool told = p->opened || !p->listener; /* who dialled waits for one of the two calls */

    assert(conn->closing && !p->dirty && !p->flight);
    if (p->dial)
        net_dial_closed(p);
    LIST_REMOVE(p, link);
    if (told && !p->refused)
        conn->handler->closed(conn);
    if (p->listener)
        net_listener_left(p);
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
        return; /* on_closed comes, or net_dial.c sees `closing` before its next try */
    unmark_dirty(p);
    if (p->behind_bytes > 0)
        TAILQ_REMOVE(&p->net->behind, p, behind_link);
    p->net->behind_bytes -= p->behind_bytes;
    p->behind_bytes = 0;
    if (p->unread_queued)
        TAILQ_REMOVE(&p->net->unread, p, unread_link);
    p->unread_queued = false;
    wheel_remove(&p->deadline);
    uv_close((uv_handle_t *)&p->tcp, on_closed);
}

void net_conn_fail(struct net_conn *conn, const char *error)
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
    mark_dirty(p); /* the end comes with the flush */
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
    struct net_private *p;

    while ((p = TAILQ_FIRST(&net->dirty)))
        net_flush(&p->conn);
    give_up_behind(net);
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
        net_close(&p->conn); /* its memory goes later: the list stays */
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

    assert(LIST_EMPTY(&net->conns));
    while (!LIST_EMPTY(&net->listeners))
        net_listener_free(LIST_FIRST(&net->listeners));
    while (net->spare_count > 0)
        buf_free(&net->spare[--net->spare_count]);
    free(net->plain);
    net->loop->net = NULL;
    free(net);
}

struct net_loop *net_loop(struct loop *loop)
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
