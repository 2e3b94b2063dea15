/* Requests on their way to a handler: the route table, the Host and Origin check, and the ways a
 * handler answers. The caller is authenticated and authorized with the head, before any of the body
 * is read. */
#ifndef SERVER_ROUTE_H
#define SERVER_ROUTE_H

#include "server/server.h"
#include "server/settings.h"

enum {
    ROUTE_PARAMS_MAX = 3,
    ROUTE_LARGE = 8,         /* a large route takes this many times the usual body */
    CALL_LIST_DEFAULT = 100, /* `limit` of most lists */
    CALL_LIST_MAX = 1000,
};

/* A request as a handler sees it. Lives in the request's arena. */
struct call {
    struct http_request *req; /* NULL: it came over a WebSocket, from a node or a client */
    /* Sends the answer if there is no `req`. */
    void (*answer)(struct call *call, const struct http_reply *reply);
    struct str node_id; /* whose socket that is, once the node has said hello */
    struct node *node;
    /* On a node's socket: sends a frame before the answer. */
    void (*push)(struct call *call, struct str frame);
    /* Called when a node's report about a job was accepted for the first time; the terms are those
     * the answer to an ACK contains (0: none). True: that answered the call. NULL: the node expects
     * a reply. */
    bool (*accepted)(struct call *call, bool ack, int64_t lease_ms, int64_t stop_grace_ms);
    /* A frame that submits has no head: its Idempotency-Key, and the job as it was sent. */
    struct str key;
    struct str text;
    void (*begun)(struct call *call, uint64_t job); /* the id it may get, before anyone sees it */
    uint64_t job; /* the job a successful answer is about; an earlier one for a known key */
    struct worker *worker;
    const struct route *route;
    struct arena *arena;
    struct str params[ROUTE_PARAMS_MAX]; /* the path's {…} parts */
    const struct token *token;           /* the caller's; NULL: there are no tokens */
    int64_t auth_number;                 /* the worker's, when they were checked */
    bool by_proxy;                       /* a trusted proxy passed it on */
    struct turn turn;                    /* for a long answer */
    bool job_counted;                    /* its first job was counted with the head */
    int64_t retry_after_s;               /* for an answer 429 or 503; 0: a second */
    struct str target;     /* what it is about, for the audit: set by a handler if it is not in the
                              path; at == NULL: params[0] */
    enum err err;          /* the error the answer reports */
    struct str request_id; /* the caller's, or made by us when needed */
    char job_id[JOB_ID_TEXT + 1]; /* for the log, if the handler knows it; "" = none */
    struct str about_node;
    int attempt;
    const struct json *body; /* parsed, an object; NULL where the route takes none */
    void *user;              /* the handler's */
};

struct route {
    enum http_method method;
    const char *path; /* "/v1/jobs/{id}/cancel" */
    void (*handle)(struct call *call);
    enum token_scope scope; /* who may call it once tokens exist; a row without one is refused */
    bool shared;            /* it acts on what all namespaces share: only for `default` */
    bool body;              /* takes a JSON object (an absent one reads as {} if body_optional) */
    bool body_optional;
    bool submits;     /* jobs, which count against the rate of the caller's token */
    bool large;       /* eight times the usual body */
    bool long_answer; /* its answer grows with the cluster: these take turns, see turns.h */
    bool socket;      /* a node may call it over its WebSocket */
    /* A node's frame with this `msg` calls this route; NULL: none does. */
    const char *message;
    bool receipt; /* such frames may be answered together once accepted */
    const char *help;
    /* For the OpenAPI document, see openapi.c. */
    const char *query; /* the parameters it reads, separated by blanks; NULL: none */
    const char *in;    /* schema of its body; NULL: it takes none */
    const char *out;   /* schema of its answer; NULL: not JSON */
    const char *media; /* NULL: application/json */
    int status;        /* 0: 200 */
    int also;          /* another status with the same answer; 0: none */
};

extern const struct http_callbacks route_callbacks;
const struct route *route_at(size_t index); /* NULL after the last: for the tests and docs */
/* The route of a request, by its path as sent; fills `params`, decoded. NULL: there is none;
 * *ret_known_path says whether the path takes other methods. HEAD is treated as GET. */
const struct route *route_find(enum http_method method, struct str path, struct arena *arena,
                               struct str params[ROUTE_PARAMS_MAX], bool *ret_known_path);
const struct route *route_of_message(struct str word); /* by the `msg` of a node's frame */

/* Answers. Each ends the request. */
void call_reply(struct call *call, const struct http_reply *reply);
void call_body(struct call *call, int status, struct str json);
void call_json(struct call *call, int status, struct buf *body); /* and frees the body */
/* The loop's own buffer, empty: for a body written and answered at once, without an allocation. */
struct buf *call_buf(struct call *call);
/* An object as the body, in that buffer: begin, write its members, end. */
struct jsonw call_begin(struct call *call);
void call_end(struct call *call, int status, struct jsonw *w);
void call_ok(struct call *call); /* {"ok":true} */
void call_problem(struct call *call, const struct problem *why);
void call_error(struct call *call, enum err err, const char *field, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* A problem body with more members: begin, write, then end. */
struct jsonw call_problem_begin(struct buf *buf, const struct problem *why);
void call_problem_end(struct call *call, struct jsonw *w, const struct problem *why);
/* A problem as members of an object being written (batch answers, WebSocket replies). */
void problem_write(struct jsonw *w, const struct problem *why);
void write_int_or_null(struct jsonw *w, const char *name, bool known, int64_t value);
void write_job_id(struct jsonw *w, uint64_t job); /* `job_id` */
/* Copies a member of another object; null if that has none. */
void write_member(struct jsonw *w, const char *name, const struct json *from);

/* The node a request speaks for: its socket's, or `node_id` of the body, which the token must
 * allow. False: already answered. */
bool call_node(struct call *call, struct str *ret_node_id);
/* X-Request-Id of the request, or one of our own. */
struct str call_request_id(struct call *call);

struct str call_query(struct call *call, const char *name);  /* a socket's call has none */
struct str call_header(struct call *call, const char *name); /* likewise */
/* Query parameters. False: answered already with 400. */
bool call_query_int(struct call *call, const char *name, int64_t min, int64_t max, int64_t *value);
bool call_query_bool(struct call *call, const char *name, bool *value);
bool call_query_ms(struct call *call, const char *name, int64_t max, int64_t *value);
/* False: the token may not speak for this node; answered with 403. */
bool call_speaks_for(struct call *call, struct str node_id);
bool call_job_id(struct call *call, struct str text, uint64_t *ret_id); /* 404 if it is not one */
/* Reads the body by its rows. False: already answered with the problem. */
bool call_read(struct call *call, const struct schema *schema, void *ret_fields);
/* A store op of this request: answered on its loop, with memory from its arena. */
struct store_op call_op(const struct call *call, enum store_verb verb, store_done *done);
/* The same for an op that does nothing if it arrives too late. */
struct store_op call_op_timely(const struct call *call, enum store_verb verb, store_done *done);

/* Names, between a caller and everything behind the API: a caller sends and gets the names of its
 * own namespace as it knows them, and other namespaces do not exist for it. A caller who sees all
 * gets full names (model/namespace.h). */
struct namespace_view call_view(const struct call *call);
/* The full form of a name from the caller. False: already answered with 400. */
bool call_name(struct call *call, const char *field, struct str name, size_t max,
               struct str *ret_full);
bool call_sees(const struct call *call, struct str full);
struct str call_shown(const struct call *call, struct str full);
/* Call this on a job that was read: one of another namespace becomes ERR_NOT_FOUND. */
void call_hide_job(const struct call *call, struct store_op *op);
bool call_has_job(struct call *call, struct store_op *op); /* the same; false: answered already */
const struct snap_node *call_has_node(struct call *call, struct str id); /* NULL: likewise */

/* Which requests may come in at all: a web page elsewhere must not be able to talk to this server
 * through somebody's browser, even if it listens only on loopback. */

/* ERR_FORBIDDEN: the Host is not ours, or a page of another origin sent the request. */
enum err origin_check(const struct http_request *req, const struct settings *settings,
                      struct problem *why);

/* Callers behind a proxy. A proxy in `trusted_proxies` names its caller (X-Forwarded-For) and how
 * it was called (X-Forwarded-Proto); from anybody else these headers prove nothing and are
 * ignored. */

/* For a request with a token: if it crossed a network unencrypted, as far as we can tell, logs that
 * once. */
void proxy_warn_clear(const struct call *call);

/* ETags and conditional requests: an answer the client already has is not sent again
 * (If-None-Match), and a change is made only to the version the client saw (If-Match). */

bool etag_has_copy(struct http_request *req, struct str etag); /* quotes included */
/* False: already answered with 412; `what` is named in the sentence. */
bool etag_matches(struct call *call, struct str etag, const char *what);
/* Answers with an ETag. */
void etag_reply(struct call *call, int status, struct str body, struct str etag);
/* 200 with its ETag, or 304 without a body. */
void etag_json(struct call *call, const struct buf *body, struct str etag);

#endif
