/* Who did what: one entry for each thing an operator asked for that changes something, whether it
 * was allowed or not. A line of the log (event=audit), a line of audit.jsonl in the data directory,
 * and the newest of them in memory for GET /v1/audit. Kept on the main thread, see warden.h. */
#ifndef SERVER_AUDIT_H
#define SERVER_AUDIT_H

#include "server/server.h"

struct audit;

enum {
    AUDIT_KEPT = 4096, /* in memory */
    AUDIT_FILE_BYTES_MAX =
        8 * 1024 * 1024,  /* then it becomes audit.jsonl.1, in place of the last */
    AUDIT_TEXT_MAX = 128, /* of a target, a name, an id */
};

struct audit_entry {
    int64_t id; /* counts up, over restarts too */
    int64_t at_ms;
    char who[AUDIT_TEXT_MAX];    /* the token's name; "" without tokens */
    char peer[64];               /* address and port */
    char action[AUDIT_TEXT_MAX]; /* "nodes.drain" */
    char target[AUDIT_TEXT_MAX]; /* "" when it has none */
    char request_id[AUDIT_TEXT_MAX];
    int status;      /* of the answer */
    char result[64]; /* "ok", or the error's name */
};

/* Never fails: without a file what happens is kept in memory and in the log. */
struct audit *audit_open(struct str data_dir);
void audit_free(struct audit *audit); /* NULL is fine */

/* From a loop. `id` is set here. */
void audit_note(struct worker *from, const struct audit_entry *entry);

/* From a loop: a page, newest first, as members `audit` and `next_cursor` of an object. */
struct audit_query {
    struct msg msg;
    struct worker *from;
    int64_t before; /* ids below this one; 0: all */
    size_t max;
    struct str who, action, target;          /* only these; at == NULL: all */
    struct buf answer;                       /* whoever asked frees it */
    void (*done)(struct audit_query *query); /* on the loop */
};
void audit_ask(struct audit_query *query);

#endif
