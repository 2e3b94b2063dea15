/* What http.c, http_reply.c and ws.c share and nobody else sees. */
#ifndef IO_HTTP_PRIVATE_H
#define IO_HTTP_PRIVATE_H

#include <sys/queue.h>

#include "io/http.h"
#include "io/http_body.h"
#include "io/http_parse.h"

enum {
    HTTP_HELD_BYTES_MAX =
        64 * 1024, /* pipelined bytes held while a reply is pending; then reading stops */
    HTTP_SKIP_BYTES_MAX = 64 * 1024, /* of a refused body; a longer one closes the connection */
    HTTP_SPARE_REQUESTS = 256,       /* with their memory, kept for the next ones */
    HTTP_DATE_BYTES = 96,
};

enum http_state {
    HTTP_HEAD,   /* idle, or in the middle of a head */
    HTTP_BODY,   /* reading the body of conn->req */
    HTTP_WAIT,   /* conn->req is with its handler */
    HTTP_SKIP,   /* a refused request's body is thrown away */
    HTTP_STREAM, /* answers until somebody closes; what comes in is ignored */
    HTTP_TAKEN,  /* another handler has the connection */
};

struct http_conn {
    struct net_conn *net;
    struct http_server_private *srv;
    struct http_private *req;   /* being read or answered; NULL: none */
    struct http_stream *stream; /* HTTP_STREAM */
    struct buf held;            /* the begin of a head, or what was pipelined */
    struct http_scan scan;      /* of the head that comes in */
    struct http_body body;
    int64_t begun_us; /* of the head that comes in */
    int64_t requests;
    int64_t skipped; /* bytes of a refused body so far */
    enum http_state state;
    bool skippable; /* the body of the request, if it is refused: it is short, and surely comes */
    bool busy;      /* inside consume(): a reply need not go on reading */
    bool blank;     /* the one empty line before a request was seen */
    LIST_ENTRY(http_conn) link;
};

struct http_private {
    struct http_request req; /* first: the two are one piece of memory */
    struct http_conn *conn;  /* NULL: the peer is gone */
    struct buf body;         /* one that did not come with its head */
    int64_t body_bytes_max;
    int64_t body_reserved; /* of bodies_bytes_max */
    bool keep_alive;
    bool upgrade;
    bool answerable; /* the handler has it, or http refuses it */
    int minor;
    LIST_ENTRY(http_private) link;
};

LIST_HEAD(http_conn_list, http_conn);
LIST_HEAD(http_request_list, http_private);

struct http_server_private {
    struct loop_part part;
    struct http_server *server;
    struct http_conn_list conns;
    struct http_request_list requests; /* not answered yet */
    struct http_request_list spare;
    int spare_count;
    struct http_header *headers; /* header_count_max, for the head being read */
    char date[HTTP_DATE_BYTES];  /* what every answer says in this second */
    size_t date_len;
    int64_t date_s;
    bool draining;
};

/* http_request.c */
struct http_private *http_request_new(struct http_conn *conn);
void http_request_free(struct http_private *p);
/* The read buffer is used again before the reply: what the request needs of it is copied. */
void http_request_keep(struct http_private *p, const struct http_head *head, struct str text);
/* Do its path and the values of its query decode to text? */
enum err http_request_check(struct http_request *req, struct problem *why);
/* It is to hold so much of a body; false: all bodies together are too much. */
bool http_request_reserve(struct http_private *p, size_t bytes);
void http_request_release(struct http_private *p); /* what it reserved */

/* http.c */
/* What did not come yet of the body of a request that is being answered; false: the connection must
 * end. */
bool http_conn_leave_body(struct http_conn *conn);
void http_conn_replied(struct http_conn *conn, bool keep_alive); /* the request is freed already */
/* Hands the connection over: the request is consumed, what was read too far goes to `handler`. */
struct net_conn *http_take(struct http_request *req, const struct net_handler *handler, void *user);

/* http_reply.c */
void http_refuse(struct http_private *p, const struct problem *why);
struct str http_date_lines(struct http_server_private *srv); /* Date and the fixed headers */
void http_stream_closed(struct http_stream *stream);

#endif
