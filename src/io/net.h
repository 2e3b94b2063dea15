/* Sockets: listening (SO_REUSEPORT, one listener per loop), accepting within limits, TLS, a bounded
 * write queue, deadlines. Knows bytes, not HTTP. */
#ifndef IO_NET_H
#define IO_NET_H

#include <sys/queue.h>

#include "base/map.h"
#include "base/str.h"
#include "io/loop.h"

enum { NET_REFUSED_MAX = 64 }; /* connections being refused at a time, per loop */

struct net_limits {
    int64_t connections_max;             /* per loop */
    int64_t connections_unknown_percent; /* of these for unauthenticated peers, see net_known */
    int64_t connections_per_peer_max;    /* unauthenticated, per loop and address; 0 = no limit */
    int64_t write_queue_bytes_max;       /* a reader further behind is dropped */
    int64_t write_queues_bytes_max;      /* of all queues of a loop; 0 = no limit */
    int64_t header_timeout_ms;           /* also for connecting and the TLS handshake */
    int64_t body_timeout_ms;
    int64_t idle_timeout_ms;
};

struct net_tls; /* an SSL_CTX that can be replaced while connections live */
/* client_ca NULL = requests no client certificates. To reload, create a new one and pass it to
 * net_listener_tls(). */
enum err net_tls_server(const char *cert_file, const char *key_file, const char *client_ca_file,
                        struct net_tls **ret_tls, struct problem *why);
/* For a server with a client_ca: also accepts clients without a certificate; a wrong one is still
 * refused. */
void net_tls_client_optional(struct net_tls *config);
/* For a server with a client_ca: its certificate revocation list (PEM). With an expired list every
 * client is refused. */
enum err net_tls_revoked(struct net_tls *config, const char *crl_file, struct problem *why);
/* ca_file NULL = the system's. */
enum err net_tls_client(const char *ca_file, struct net_tls **ret_tls, struct problem *why);
/* The certificate for servers that request one. */
enum err net_tls_identity(struct net_tls *config, const char *cert_file, const char *key_file,
                          struct problem *why);
void net_tls_free(struct net_tls *config); /* connections that use it keep it alive; NULL is fine */

struct net_conn;

/* What the layer above does with a connection. All calls come on the loop's thread. */
struct net_handler {
    void (*opened)(struct net_conn *conn);                 /* accepted or connected, TLS done */
    void (*data)(struct net_conn *conn, struct str bytes); /* plaintext; may close the connection */
    void (*closed)(struct net_conn *conn); /* once, last; then the memory is freed */
    /* A deadline set by net_conn_deadline passed. Not set: the connection is closed. */
    void (*expired)(struct net_conn *conn);
    /* Everything that the kernel did not take at once has been sent; may be NULL. */
    void (*written)(struct net_conn *conn);
    /* Sent to a connection over the limits before it is closed; may be empty. */
    struct str refusal;
};

struct net_conn {
    struct loop *loop;
    const struct net_handler *handler; /* may be replaced, with `user`, from inside a callback */
    void *user;                        /* of the handler's owner */
    char peer[64];                     /* "127.0.0.1:5123" */
    uint64_t peer_id;                  /* identifies its address in limits; 0: not known */
    bool closing;
    bool queue_bounded;    /* by its handler: exempt from write_queues_bytes_max */
    const char *peer_name; /* from the peer's verified certificate; NULL: none */
    const char *error;     /* what broke it, a static text; NULL: nothing did */
    /* private to net.c */
    struct net_private *priv;
};

struct net_listener;

/* addr "127.0.0.1:7420", "[::1]:0"; port 0 takes a free one: listener->port.
 * `user` is handed to each accepted connection's conn->user. */
enum err net_listen(struct loop *loop, const char *addr, const struct net_limits *limits,
                    const struct net_handler *handler, void *user,
                    struct net_listener **ret_listener, struct problem *why);
/* Loops share a port, which would let another process share it too and get some of the connections:
 * call this before the first loop listens. Fails only when some process listens there. */
enum err net_addr_free(const char *addr, struct problem *why);
/* Connections accepted from now on use this TLS configuration; NULL: plain. On the loop's thread.
 */
void net_listener_tls(struct net_listener *listener, struct net_tls *tls);
/* Closes connections whose certificate has been revoked since; returns how many. */
int64_t net_listener_recheck(struct net_listener *listener);
/* Stops accepting; its connections stay open, and the listener lives until loop_done. */
void net_listener_close(struct net_listener *listener);
/* Serves a connected socket from elsewhere like one that was accepted; it counts against no limit.
 */
enum err net_listener_adopt(struct net_listener *listener, int fd);
bool net_idle(const struct loop *loop); /* the loop has no connection */
/* The peer has been authenticated. Until then its connection may be dropped to make room for a new
 * one; from now on it never is. */
void net_known(struct net_conn *conn);
/* The connection now serves a client at another address (behind a proxy): until it is authenticated
 * it counts for that address, whose oldest connection makes room for it if needed. 0: for none. */
void net_counts_as(struct net_conn *conn, uint64_t peer_id);

/* Tries the host's addresses in turn. Calls `opened` once connected, or `closed` when no address
 * answered, but neither before this returns. Bytes written meanwhile are queued. */
enum err net_connect(struct loop *loop, const char *host, int port, struct net_tls *tls,
                     const struct net_limits *limits, const struct net_handler *handler, void *user,
                     struct net_conn **ret_conn, struct problem *why);

/* Bytes are copied. All writes of one turn leave in one system call (see loop->on_turn). */
void net_write(struct net_conn *conn, struct str bytes);
/* The same without the copy: room for `bytes` more, to be appended by the caller at once. NULL when
 * the connection is closing or its reader is too slow (it is closed then). */
struct buf *net_room(struct net_conn *conn, size_t bytes);
void net_flush(struct net_conn *conn);
/* The same if no other connection has something to write in this turn: its peer can go on while
 * this loop answers others. */
void net_flush_alone(struct net_conn *conn);
/* At the end of the turn, what it has to write is sent before that of other connections. */
void net_flush_first(struct net_conn *conn);
size_t net_write_queued(const struct net_conn *conn);
/* Has the peer closed its side, though not all it sent may have been read yet? Asks the kernel. */
bool net_peer_left(const struct net_conn *conn);
void net_close(struct net_conn *conn); /* now; what is queued is lost */
/* Closes once the queue is sent. For a moment longer, input from the peer is read and discarded, so
 * that the peer can read our last bytes instead of getting a reset. */
void net_close_after(struct net_conn *conn);
void net_read_pause(struct net_conn *conn); /* back-pressure */
void net_read_resume(struct net_conn *conn);
/* Puts back bytes that the next handler is to read; they are delivered at the end of the turn. */
void net_unread(struct net_conn *conn, struct str bytes);
/* One deadline per connection, checked each tick; 0 clears it. */
void net_conn_deadline(struct net_conn *conn, int64_t mono_ms);
bool net_addr_is_loopback(const char *addr);

TAILQ_HEAD(net_conn_queue, net_private);

struct net_listener {
    uv_tcp_t tcp;
    struct net_loop *net;
    const struct net_limits *limits;
    const struct net_handler *handler;
    void *user;
    struct net_tls *tls;
    int port;
    int64_t connections;
    int64_t refused; /* of NET_REFUSED_MAX */
    int64_t unknown_count;
    struct net_conn_queue unknown; /* the oldest first */
    struct idmap peers;            /* address -> struct net_peer */
    LIST_ENTRY(net_listener) link;
};

#endif
