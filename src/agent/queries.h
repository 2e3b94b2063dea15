/* Calls of the server's routes over the link: each is answered once, by the server, by its deadline
 * or by the end of the connection. One loop. */
#ifndef AGENT_QUERIES_H
#define AGENT_QUERIES_H

#include "base/json.h"
#include "io/loop.h"

#define QUERIES_ID_FIRST (1LL << 40) /* ids below are the outbox' */

struct queries;

/* The caller's; it stays until `done`. */
struct query {
    const char *method; /* NULL: POST */
    const char *path;
    struct str body; /* a JSON object; at == NULL: {}. Copied. */
    int64_t timeout_ms;
    void (*done)(struct query *query); /* never inside queries_send */
    /* results */
    /* ERR_OK, what the server said, ERR_TIMEOUT, or ERR_CLOSED: the connection ended first. Of the
     * last two nobody knows whether the server did it. */
    enum err err;
    const struct json *reply; /* of ERR_OK: the answer's body; else all of the refusal. Until done
                               * returns; NULL when there is none. */
    /* queries.c's own */
    int64_t id, late_ms;
    struct query *prev, *next;
};

/* `send` hands a text to the server; false: there is no connection. */
struct queries *queries_new(struct loop *loop,
                            bool (*send)(struct queries *queries, struct str text), void *user);
void *queries_user(const struct queries *queries);
void queries_send(struct queries *queries, struct query *query);
bool queries_reply(struct queries *queries, const struct json *body); /* false: not one of ours */
void queries_down(struct queries *queries);                           /* the connection ended */
void queries_free(struct queries *queries); /* tells nobody; before loop_done */

#endif
