/* What net.c, net_listen.c and net_dial.c share and nobody else sees. */
#ifndef IO_NET_PRIVATE_H
#define IO_NET_PRIVATE_H

#include <sys/queue.h>

#include "base/map.h"
#include "io/net.h"
#include "io/tls.h"
#include "io/wheel.h"

enum {
    NET_SPARE_BUFS = 64,             /* empty write buffers kept for the next writer */
    NET_SPARE_BYTES_MAX = 16 * 1024, /* a bigger one is given back to the heap */
    NET_LINGER_MS = 2000,            /* how long a closed connection may take to drain */
    NET_BACKLOG = 1024,
    NET_KEEPALIVE_S = 30,
    NET_USER_TIMEOUT_MS = 60000,
};

/* Bytes that the kernel did not take at once, with the request that waits for it. */
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
    struct net_peer *peer; /* NULL: known, or its address is not */
    struct wheel_item deadline;
    LIST_ENTRY(net_private) link;
    TAILQ_ENTRY(net_private) dirty_link;
    TAILQ_ENTRY(net_private) unread_link;
    TAILQ_ENTRY(net_private) unknown_link;
    TAILQ_ENTRY(net_private) peer_link;
    TAILQ_ENTRY(net_private) behind_link;
    int64_t behind_bytes; /* of net->behind_bytes; 0: its reader has taken all */
    bool dirty;
    bool opened;    /* the handler was told */
    bool paused;    /* by the handler */
    bool refused;   /* over the limits; the handler never hears of it */
    bool unknown;   /* its peer has not shown who it is; in listener->unknown */
    bool given_up;  /* for a newer connection, which has its place already */
    bool lingering; /* our side is shut; reading until the peer's is */
    bool in_data;   /* the handler is being given bytes */
    bool eof;       /* the peer shut its side */
    bool unread_queued;
};

LIST_HEAD(net_conn_list, net_private);
TAILQ_HEAD(net_conn_queue, net_private);
LIST_HEAD(net_listener_list, net_listener);

/* The connections of one address that are not known. */
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
    struct net_conn_queue behind; /* whose readers have not taken all, the longest first */
    int64_t behind_bytes;         /* of all of them */
    struct wheel wheel;
    struct buf spare[NET_SPARE_BUFS];
    int spare_count;
    char *plain; /* TLS_RECORD_BYTES, NULL until the first TLS connection */
};

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

struct net_loop *net_loop(struct loop *loop); /* made at its first use */

/* A connection without a socket yet; linked into the loop. */
struct net_conn *net_conn_new(struct net_loop *net, const struct net_handler *handler, void *user,
                              int64_t write_queue_bytes_max);
void net_conn_begin(struct net_conn *conn); /* the socket stands: TLS or `opened`, then reading */
void net_conn_fail(struct net_conn *conn, const char *error);
void net_conn_start_read(struct net_private *p);

/* Text of a socket address, and what it counts as for the limit per peer. */
uint64_t net_peer_describe(const struct sockaddr *addr, char *ret_text, size_t size);
/* "host:port", "[v6]:port" -> parts; port 0 to 65535. */
bool net_addr_split(struct str addr, struct str *ret_host, int *ret_port);

void net_listener_left(struct net_private *p); /* a connection of its listener is gone */
void net_listener_free(struct net_listener *listener);
void net_dial_closed(struct net_private *p); /* a connection that still dials is gone */

#endif
