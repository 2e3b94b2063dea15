/* Every way a call can fail: one row each with its wire name, HTTP status and CLI exit code.
 * To add an error, add a row. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

/*   symbol                    wire name                       http  exit  title */
#define ERR_ROWS(ROW)                                                                              \
    ROW(ERR_BAD_REQUEST, "BAD_REQUEST", 400, 2, "The request is not valid")                        \
    ROW(ERR_BAD_JSON, "BAD_JSON", 400, 2, "The body is not valid JSON")                            \
    ROW(ERR_BAD_FIELD, "BAD_FIELD", 400, 2, "A field is missing or has a wrong value")             \
    ROW(ERR_BAD_CONFIG, "BAD_CONFIG", 400, 2, "The configuration is not valid")                    \
    ROW(ERR_UNAUTHORIZED, "UNAUTHORIZED", 401, 1, "A valid token is required")                     \
    ROW(ERR_FORBIDDEN, "FORBIDDEN", 403, 1, "This is not allowed")                                 \
    ROW(ERR_NOT_FOUND, "NOT_FOUND", 404, 3, "No such thing")                                       \
    ROW(ERR_METHOD, "METHOD_NOT_ALLOWED", 405, 2, "The route does not take this method")           \
    ROW(ERR_REQUEST_TIMEOUT, "REQUEST_TIMEOUT", 408, 6, "The request came too slowly")             \
    ROW(ERR_STALE, "STALE_ATTEMPT", 409, 4, "The message belongs to an attempt that ended")        \
    ROW(ERR_CONFLICT, "CONFLICT", 409, 4, "The state does not allow this")                         \
    ROW(ERR_IDEMPOTENCY, "IDEMPOTENCY_KEY_REUSED", 409, 4,                                         \
        "The Idempotency-Key was used with another body")                                          \
    ROW(ERR_PRECONDITION, "PRECONDITION_FAILED", 412, 4, "It is not in the version you saw")       \
    ROW(ERR_TOO_LARGE, "TOO_LARGE", 413, 2, "The request is too large")                            \
    ROW(ERR_URI_TOO_LONG, "URI_TOO_LONG", 414, 2, "The request line is too long")                  \
    ROW(ERR_EXPECTATION, "EXPECTATION_FAILED", 417, 2, "The expectation cannot be met")            \
    ROW(ERR_NO_CAPABLE_NODE, "NO_CAPABLE_NODE", 422, 5, "No node can do this work")                \
    ROW(ERR_PREFERRED_NOT_CAPABLE, "PREFERRED_NODE_NOT_CAPABLE", 422, 5,                           \
        "The preferred node cannot do this work")                                                  \
    ROW(ERR_UPGRADE, "UPGRADE_REQUIRED", 426, 2, "The route speaks WebSocket")                     \
    ROW(ERR_QUEUE_FULL, "QUEUE_FULL", 429, 5, "The queue is full")                                 \
    ROW(ERR_LIMITED, "LIMITED", 429, 5, "A key of the job is at its limit")                        \
    ROW(ERR_QUOTA, "QUOTA_EXCEEDED", 429, 5, "The token has used up its quota")                    \
    ROW(ERR_RATE_LIMIT, "RATE_LIMITED", 429, 5, "Too many requests")                               \
    ROW(ERR_HEADERS, "HEADERS_TOO_LARGE", 431, 2, "The headers are too large")                     \
    ROW(ERR_INTERNAL, "INTERNAL", 500, 1, "Something is broken in the server")                     \
    ROW(ERR_NOT_BUILT, "NOT_IMPLEMENTED", 501, 1, "The transfer coding is not supported")          \
    ROW(ERR_PREFERRED_UNAVAILABLE, "PREFERRED_NODE_UNAVAILABLE", 503, 5,                           \
        "The preferred node has no room")                                                          \
    ROW(ERR_ALL_FULL, "ALL_CANDIDATES_FULL_OR_FAILED", 503, 5, "No candidate took the work")       \
    ROW(ERR_STORE_DOWN, "SCHEDULER_DEPENDENCY_DOWN", 503, 5, "The store cannot be reached")        \
    ROW(ERR_STORE_FULL, "STORE_FULL", 503, 5,                                                      \
        "The store takes no new work: Redis is near its maxmemory")                                \
    ROW(ERR_BUSY, "SCHEDULER_BUSY", 503, 5, "Too much is in flight")                               \
    ROW(ERR_AUDIT, "AUDIT_NOT_WRITTEN", 503, 5, "The audit cannot be written")                     \
    ROW(ERR_NO_DATABASE, "DEPLOYMENTS_NEED_SHARED_DATABASE", 503, 5,                               \
        "Deployments need a shared database")                                                      \
    ROW(ERR_TIMEOUT, "TIMEOUT", 504, 6, "No answer came in time")                                  \
    ROW(ERR_UNKNOWN, "OUTCOME_UNKNOWN", 504, 6,                                                    \
        "The store did not answer: it may have happened or not")                                   \
    ROW(ERR_HTTP_VERSION, "HTTP_VERSION_NOT_SUPPORTED", 505, 2, "Only HTTP/1.x is spoken")         \
    /* Inside the program; a client never sees these names. */                                     \
    ROW(ERR_QUEUES_FULL, "QUEUE_FULL", 429, 5, "All queues together are full")                     \
    ROW(ERR_QUOTA_WAITING, "QUOTA_EXCEEDED", 429, 5, "Too many jobs of the token wait")            \
    ROW(ERR_QUOTA_BYTES, "QUOTA_EXCEEDED", 429, 5,                                                 \
        "The jobs of the token that wait are too large")                                           \
    ROW(ERR_TOO_LATE, "SCHEDULER_DEPENDENCY_DOWN", 503, 5, "The call reached the store too late")  \
    ROW(ERR_MEMORY, "INTERNAL", 500, 1, "Out of memory")                                           \
    ROW(ERR_IO, "INTERNAL", 500, 1, "An I/O call failed")                                          \
    ROW(ERR_CLOSED, "INTERNAL", 500, 1, "The peer is gone")

#define ERR_ENUM_ROW(symbol, wire, http, exit_code, title) symbol,
enum err { ERR_OK = 0, ERR_ROWS(ERR_ENUM_ROW) ERR_COUNT };
#undef ERR_ENUM_ROW

const char *err_name(enum err err);               /* the wire name; "OK" for ERR_OK */
const char *err_title(enum err err);              /* one plain sentence */
int err_http(enum err err);                       /* HTTP status; 200 for ERR_OK */
int err_exit(enum err err);                       /* exit code of the CLI */
enum err err_by_name(const char *wire, int http); /* ERR_INTERNAL when unknown */

/* What went wrong, for people: which error, which field, and one sentence. */
struct problem {
    enum err err;
    int line;         /* of a file, 0 when it is not about a file */
    int column;       /* of the field's text, from 1; 0 when it is not about one character */
    char field[64];   /* "" when it is not about one field */
    char detail[320]; /* a whole sentence */
};

/* Fills `why` (which may be NULL) and returns `err`, so that a caller can say
 * `return problem_set(why, ERR_BAD_FIELD, "max", "max must be 1 to 9, not %d.", n);` */
__attribute__((format(printf, 4, 5))) enum err problem_set(struct problem *why, enum err err,
                                                           const char *field, const char *fmt, ...);

#endif
