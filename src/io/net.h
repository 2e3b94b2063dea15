/* Sockets: listening (SO_REUSEPORT, one listener per loop), accepting within limits, TLS, a bounded
 * write queue, deadlines. Knows bytes, not HTTP. */
#ifndef IO_NET_H
#define IO_NET_H

#include <sys/queue.h>

#include "base/map.h"
#include "base/str.h"
#include "io/loop.h"

enum { NET_REFUSED_MAX = 64 }; /* connections over the limit that a loop may still talk to */

struct net_limits {
    int64_t connections_max;             /* per loop */
    int64_t connections_unknown_percent; /* of them for peers that are not known, see net_known */
    int64_t connections_per_peer_max;    /* not known, per loop and remote address; 0 = no limit */
    int64_t write_queue_bytes_max;       /* a slower reader is dropped */
    int64_t write_queues_bytes_max;      /* of all together, per loop; 0 = no limit */
    int64_t header_timeout_ms;           /* also for connecting and the TLS handshake */
    int64_t body_timeout_ms;
    int64_t idle_timeout_ms;
};

struct net_tls; /* an SSL_CTX that can be replaced while connections live */
/* client_ca NULL = no client certificates asked. Reload = make a new one and net_listener_tls(). */
enum err net_tls_server(const char *cert_file, const char *key_file, const char *client_ca_file,
                        struct net_tls **ret_tls, struct problem *why);
/* Of a server with a client_ca: who shows no certificate is let in all the same; a wrong one never.
 */
void net_tls_client_optional(struct net_tls *config);
/* Of a server with a client_ca: its list of certificates that are good no more (PEM). One that has
 * run out lets nobody in. */
enum err net_tls_revoked(struct net_tls *config, const char *crl_file, struct problem *why);
/* ca_file NULL = the system's. */
enum err net_tls_client(const char *ca_file, struct net_tls **ret_tls, struct problem *why);
/* A certificate to show to a server that asks for one. */
enum err net_tls_identity(struct net_tls *config, const char *cert_file, const char *key_file,
                          struct problem *why);
void net_tls_free(struct net_tls *config); /* connections that use it keep it alive; NULL is fine */

struct net_conn;

/* What the layer above does with a connection. All calls come on the loop's thread. */
struct net_handler {
    void (*opened)(struct net_conn *conn);                 /* accepted or connected, TLS done */
    void (*data)(struct net_conn *conn, struct str bytes); /* plaintext; may close the connection */
    void (*closed)(struct net_conn *conn);                 /* once, last; then the memory goes */
    /* A deadline set by net_conn_deadline passed. Not set: the connection is closed. */
    void (*expired)(struct net_conn *conn);
    /* What the kernel did not take at once has left, and nothing waits behind it; may be NULL. */
    void (*written)(struct net_conn *conn);
    /* What a connection over the limits is told before it is closed; may be empty. */
    struct str refusal;
};

struct net_conn {
    struct loop *loop;
    const struct net_handler *handler; /* may be replaced, with `user`, from inside a callback */
    void *user;                        /* of the handler's owner */
    char peer[64];                     /* "127.0.0.1:5123" */
    uint64_t peer_id;                  /* what it counts as for limits per address; 0: not known */
    bool closing;
    bool queue_bounded;    /* by its handler: it is not given up for what others do not read */
    bool first;            /* what it is sent in a turn leaves before what others are sent */
    const char *peer_name; /* out of the certificate it showed and we checked; NULL: none */
    const char *error;     /* what broke it, in words that live for ever; NULL: nothing did */
    /* the rest is private to net.c, behind this header */
    struct net_private *priv;
};

struct net_listener;

/* addr "127.0.0.1:7420", "[::1]:0"; port 0 takes a free one (see net_listener_port).
 * `user` is handed to each accepted connection's conn->user. */
enum err net_listen(struct loop *loop, const char *addr, const struct net_limits *limits,
                    const struct net_handler *handler, void *user,
                    struct net_listener **ret_listener, struct problem *why);
/* Loops share a port, which would let another process share it, too, and get some of the
 * connections: ask before the first of them listens. Says no only when somebody listens there. */
enum err net_addr_free(const char *addr, struct problem *why);
int net_listener_port(const struct net_listener *listener);
/* From now on accepted connections speak TLS with this one; NULL: plain. On the loop's thread. */
void net_listener_tls(struct net_listener *listener, struct net_tls *tls);
/* Closes those whose certificate the listener's TLS knows as revoked by now. How many. */
int64_t net_listener_recheck(struct net_listener *listener);
/* Stops accepting; connections live on, and so does the listener, until loop_done. */
void net_listener_close(struct net_listener *listener);
int64_t net_listener_connections(const struct net_listener *listener);
/* A connected socket that came in another way is served like one that was accepted; no limit counts
 * it. */
enum err net_listener_adopt(struct net_listener *listener, int fd);
bool net_idle(const struct loop *loop); /* it has no connection */
/* The peer has shown who it is. Until then its connection is the first to go when another comes and
 * there is no room; from now on it is given up for nobody. */
void net_known(struct net_conn *conn);
/* It is used for a peer of another address now: until it is known it counts as one of that one's,
 * and the oldest of those makes room for it if need be. 0: of none. */
void net_counts_as(struct net_conn *conn, uint64_t peer_id);

/* Tries the host's addresses in turn. `opened` comes when it is connected, `closed` when none
 * answered; neither before this returns. What is written meanwhile waits. */
enum err net_connect(struct loop *loop, const char *host, int port, struct net_tls *tls,
                     const struct net_limits *limits, const struct net_handler *handler, void *user,
                     struct net_conn **ret_conn, struct problem *why);

/* Bytes are copied. All writes of one turn leave in one system call (see loop->on_turn). */
void net_write(struct net_conn *conn, struct str bytes);
/* The same without the copy: room for `bytes` more, to be appended by the caller at once. NULL when
 * the connection is closing or its reader is too slow (it is closed then). */
struct buf *net_room(struct net_conn *conn, size_t bytes);
void net_flush(struct net_conn *conn);
size_t net_write_queued(const struct net_conn *conn);
void net_close(struct net_conn *conn); /* now; what is queued is lost */
/* Once what is queued has left. Then what the peer still sends is thrown away for a moment, so that
 * it can read our last words instead of a reset. */
void net_close_after(struct net_conn *conn);
void net_read_pause(struct net_conn *conn); /* back-pressure */
void net_read_resume(struct net_conn *conn);
/* Bytes that a handler was given but the next one shall read; delivered at the end of the turn. */
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
