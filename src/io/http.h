/* HTTP/1.1 server on net.h. Every limit is enforced before a handler sees a request; the handler
 * may reply now or later, on the same loop, even after the peer left. */
#ifndef IO_HTTP_H
#define IO_HTTP_H

#include "base/mem.h"
#include "io/net.h"

/* Up to here a request's body is not counted, just as its head is not; the rest counts against
 * bodies_bytes_max. So clients with large bodies never block those with small ones. */
enum { HTTP_BODY_SMALL_BYTES = 16 * 1024 };

struct http_limits {
    struct net_limits net;
    int64_t header_bytes_max; /* request line and headers together */
    int64_t header_count_max;
    int64_t uri_bytes_max;
    int64_t body_bytes_max;              /* the server's limit; a route may set a smaller one */
    int64_t bodies_bytes_max;            /* all bodies of the process, read or being worked on */
    int64_t requests_per_connection_max; /* 0 = no limit */
};

extern const struct http_limits http_limits_default;

enum http_method {
    HTTP_M_GET,
    HTTP_M_HEAD,
    HTTP_M_POST,
    HTTP_M_PUT,
    HTTP_M_PATCH,
    HTTP_M_DELETE,
    HTTP_M_OPTIONS,
    HTTP_M_OTHER
};

struct http_header {
    struct str name; /* as sent */
    struct str value;
};

struct http_server;

/* A request: its head, and once it is complete its body. It lives until http_reply (or ws_accept,
 * http_stream) and everything it points to lives with it: strings are in its arena. */
struct http_request {
    struct http_server *server;
    struct loop *loop;
    enum http_method method;
    /* As sent: split it at its slashes, then decode each part with http_path_part. A path that is
     * not percent-encoded UTF-8 without NUL has been refused already. */
    struct str path;
    struct str query; /* after '?', still encoded; its values decode to text, as the path does */
    struct str body;
    const struct http_header *headers;
    size_t header_count;
    const char *peer; /* the sender: "127.0.0.1:5123"; without a port when set by http_caller */
    uint64_t peer_id; /* the sender's address, for limits; 0: not known */
    const char *peer_name; /* from the sender's certificate; NULL: it has none */
    struct arena arena;    /* the request's memory: handlers allocate here */
    int64_t begun_us;      /* monotonic, when its first byte was parsed */
    void *user;            /* for the handler */
    void *call;            /* of the callbacks: from `head` to `request` */
    bool gone;             /* the peer left; a reply is still required but not sent */
    /* Called once when the peer leaves before the reply; may be NULL. */
    void (*on_gone)(struct http_request *req);
    struct http_private *priv;
};

struct http_callbacks {
    /* The head is complete and nothing of the body was read: authenticates and authorises the
     * caller. False: it has called http_reply; then a short body is skipped, and for a longer one
     * the connection is closed after the reply. Else *ret_body_bytes_max limits the body. NULL:
     * every request is accepted. */
    bool (*head)(struct http_request *req, int64_t *ret_body_bytes_max);
    void (*request)(struct http_request *req); /* must lead to exactly one reply */
    /* Writes the body of an error that http itself replies with (400, 408, 413, 431...). */
    void (*problem)(struct http_request *req, const struct problem *why, struct buf *ret_body);
};

struct http_server {
    struct loop *loop;
    struct net_listener *listener;
    const struct http_limits *limits;
    const struct http_callbacks *callbacks;
    void *owner; /* of the callbacks */
    struct http_server_private *priv;
};

enum err http_serve(struct http_server *server, const char *addr, struct problem *why);
int http_port(const struct http_server *server);
/* Stops accepting; closes idle connections now and the others after their reply. */
void http_drain(struct http_server *server);
int64_t http_connections(const struct http_server *server); /* WebSockets and streams included */
int64_t http_bodies_bytes(void); /* what counts against bodies_bytes_max now */
/* Counts other data of such size against the same limit. False: there is no room for it now. */
bool http_bodies_take(int64_t bytes, const struct http_limits *limits);
void http_bodies_give(int64_t bytes);

/* The sender has been authenticated: its connection is never dropped to make room for another. */
void http_known(struct http_request *req);
/* The peer is a proxy that forwards the request for `peer`: text that lives as long as the request,
 * with its ip_peer_id(). */
void http_caller(struct http_request *req, const char *peer, uint64_t peer_id);
struct str http_header_get(const struct http_request *req, const char *name); /* at==NULL: absent */
/* One segment of a path, percent-decoded, in the arena if needed. Text that is not percent-encoded
 * is returned as it is. */
struct str http_path_part(struct str part, struct arena *arena);
/* A decoded query parameter, in the arena; at==NULL: absent. */
struct str http_query(struct http_request *req, const char *name);

struct http_reply {
    int status;
    const char *content_type; /* NULL: application/json */
    struct str body;          /* copied */
    const struct http_header *headers;
    size_t header_count;
    bool at_once; /* see net_flush_alone() */
};

/* Exactly once per request; frees it. HEAD sends the headers alone. Adds Date, Content-Length,
 * Connection where needed, X-Content-Type-Options: nosniff. A 401 closes the connection: a client
 * that is not authenticated should not occupy one. */
void http_reply(struct http_request *req, const struct http_reply *reply);

/* Server-sent events: the request turns into a stream until one side closes it. */
struct http_stream {
    struct net_conn *conn;
    void *user;
    void (*closed)(struct http_stream *stream); /* once; then the memory is freed */
};
/* Replies 200 without a length; consumes the request. NULL when there is nothing to stream to: the
 * peer left, or requested only the headers (HEAD). */
struct http_stream *http_stream(struct http_request *req, const char *content_type);
/* false when the reader is too slow and the piece was dropped (the stream then closes). */
bool http_stream_send(struct http_stream *stream, struct str bytes);
void http_stream_close(struct http_stream *stream);

/* Is it an HTTP/1.1 request to switch to another protocol? */
bool http_wants_upgrade(const struct http_request *req);
/* False: the connection is gone, and the request has been freed. */
bool http_can_take(struct http_request *req);
/* Hands the connection over: the request is consumed; bytes read beyond it go to `handler`. */
struct net_conn *http_take(struct http_request *req, const struct net_handler *handler, void *user);

#endif
