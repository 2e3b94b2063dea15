/* HTTP client on libcurl multi and a libuv loop: pushes to nodes, callbacks. One per loop. */
#ifndef IO_CLIENT_H
#define IO_CLIENT_H

#include "base/str.h"
#include "io/loop.h"

struct client;

struct client_call {
    const char *method; /* "POST" */
    const char *url;
    struct str body;
    const char *content_type;
    const char *const *headers; /* extra lines, "Name: value", NULL-terminated; NULL: none */
    const char *ca_file;        /* certificates to trust, for https; NULL: the system's */
    const char *cert_file;      /* our own, for servers that request one; NULL: none */
    const char *key_file;
    int64_t timeout_ms; /* for the whole call; 0: no limit, for streams */
    int64_t reply_bytes_max;
    /* NULL: the response body is kept in `reply`. Else each piece of a 2xx body is passed on as it
     * arrives (server-sent events) and reply_bytes_max does not apply; false ends the call. */
    bool (*piece)(struct client_call *call, struct str bytes);
    void (*done)(struct client_call *call); /* once, on the loop */
    /* results */
    /* ERR_OK: a response arrived, whatever its status. ERR_TIMEOUT, ERR_IO, ERR_TOO_LARGE (the body
     * is longer than reply_bytes_max), ERR_CLOSED (the client was freed first). */
    enum err err;
    int status;
    struct buf reply; /* the caller frees it */
    void *priv;       /* client.c's, until done */
};

enum err client_new(struct loop *loop, int64_t connections_max, struct client **ret_client);
/* No redirects, no proxies, http and https only. `call` and what it points to must stay valid until
 * `done`, which is never called before this returns. */
enum err client_send(struct client *client, struct client_call *call);
void client_free(struct client *client); /* unfinished calls get ERR_CLOSED */

/* Does one of `patterns` allow `url`? "http://127.0.0.1:*", "https://hooks.example.com/x/" (prefix
 * of the path), "loopback" = any port on 127.0.0.0/8, [::1], localhost. No userinfo, no fragments.
 */
bool client_url_allowed(struct str url, const struct str *patterns, size_t count);

#endif
