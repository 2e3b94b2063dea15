/* WebSocket (RFC 6455) on wslay, both roles. Handlers only see complete messages. */
#ifndef IO_WS_H
#define IO_WS_H

#include "io/http.h"

struct ws;

struct ws_handler {
    void (*opened)(struct ws *ws);                   /* client role: the handshake is done */
    void (*message)(struct ws *ws, struct str text); /* UTF-8 text; may call ws_close */
    void (*closed)(struct ws *ws, int code);         /* once, last; 1006 when no close frame came */
    void (*written)(struct ws *ws);                  /* a slow reader has caught up; may be NULL */
};

struct ws_limits {
    int64_t message_bytes_max;
    int64_t queue_bytes_max; /* may wait to be sent; beyond it the peer is closed with 1013 */
    int64_t ping_ms;    /* sends a ping when nothing came for this long; dead after twice that */
    bool counts_behind; /* server role: bytes its peer leaves unread count against
                           write_queues_bytes_max, and it may be dropped for them */
};

extern const struct ws_limits ws_limits_default;

struct ws {
    struct loop *loop;
    const struct ws_handler *handler;
    void *user;
    char peer[64];
    const char *error; /* client role, when closed: what failed, a static text */
    int status;        /* client role, when closed: the server's answer if it was not 101, else 0 */
    struct ws_private *priv;
};

/* True when the request asks for an upgrade to WebSocket (Upgrade, Connection, version 13, key). */
bool ws_wanted(const struct http_request *req);
/* Replies 101 and turns the connection into a WebSocket; consumes the request, for which ws_wanted
 * was true. NULL when the peer has left meanwhile. */
struct ws *ws_accept(struct http_request *req, const struct ws_handler *handler,
                     const struct ws_limits *limits, void *user);
/* Client role. Calls `opened` or, on failure, `closed`, but neither before this returns.
 * `limits` must outlive the connection. url "ws://host:port/path" or "wss://"; `headers` are extra
 * lines ("Authorization: ..."). */
enum err ws_connect(struct loop *loop, const char *url, const struct http_header *headers,
                    size_t header_count, struct net_tls *tls, const struct ws_handler *handler,
                    const struct ws_limits *limits, void *user, struct ws **ret_ws,
                    struct problem *why);
/* Copies. false: the peer is closing or too slow. */
bool ws_send(struct ws *ws, struct str text);
/* The same; it leaves before what other connections are sent in this turn of the loop. */
bool ws_send_first(struct ws *ws, struct str text);
bool ws_takes(struct ws *ws, size_t bytes); /* would ws_send() succeed now? */
bool ws_peer_left(const struct ws *ws);     /* see net_peer_left */
/* Are more than `bytes` still unsent after coalesced writes were flushed? Then `written` is called
 * once all of it has been sent. */
bool ws_is_behind(struct ws *ws, size_t bytes);
/* Sends a close frame; `closed` follows when the peer has answered or did not in time. */
void ws_close(struct ws *ws, int code, const char *reason);

#endif
