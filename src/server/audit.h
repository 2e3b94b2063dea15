/* Who did what: one entry for each thing an operator asked for that changes something, and for what
 * was refused. A line of the log (event=audit), a line of a file in the data directory, and the
 * newest of them in memory for GET /v1/audit. What changed something and what was refused have a
 * file and a ring each: however much is refused, no record of a change makes room for it. Kept on
 * the main thread, see token_file.h. */
#ifndef SERVER_AUDIT_H
#define SERVER_AUDIT_H

#include "base/digest.h"
#include "server/server.h"

struct audit;

enum audit_kind {
    AUDIT_CHANGE,  /* it changed something, or may have */
    AUDIT_REFUSED, /* it changed nothing */
    AUDIT_KINDS,
};

enum {
    AUDIT_KEPT = 4096, /* in memory, of each kind */
    AUDIT_FILE_BYTES_MAX =
        8 * 1024 * 1024,     /* then it becomes audit.jsonl.1, in place of the last */
    AUDIT_TEXT_MAX = 128,    /* of a target, a name, an id */
    AUDIT_QUEUED_MAX = 2048, /* of each kind, on their way to the main thread */
    AUDIT_BATCH_MAX = 256,   /* written and synced together; then signals have their turn */
};

struct audit_entry {
    int64_t id; /* counts up over both kinds, and over restarts */
    int64_t at_ms;
    enum audit_kind kind;
    int64_t count;               /* of the calls it stands for; the rest tells of the first */
    char who[AUDIT_TEXT_MAX];    /* the token's name; "" without tokens */
    char peer[64];               /* address and port; "" when it stands for several */
    char action[AUDIT_TEXT_MAX]; /* "nodes.drain" */
    char target[AUDIT_TEXT_MAX]; /* "" when it has none */
    char request_id[AUDIT_TEXT_MAX];
    char body_sha256[DIGEST_HEX + 1]; /* of what was asked for; "" without a body, or refused */
    char mac[DIGEST_HEX + 1];         /* see audit_chain.h; "": it is not signed */
    int status;                       /* of the answer */
    char result[64];                  /* "ok", or the error's name */
};

/* Of a call that was answered so. An error of ours does not tell whether it happened. */
enum audit_kind audit_kind_of(int status);

/* Never fails: without a file what happens is kept in memory and in the log. */
struct audit *audit_open(struct str data_dir);
void audit_free(struct audit *audit); /* NULL is fine */

/* From a loop. `id` is set on the main thread. What finds AUDIT_QUEUED_MAX before it is only
 * counted, and told in an entry "audit.left_out". */
void audit_note(struct worker *from, const struct audit_entry *entry);

/* Something a loop asks; it comes back to it once all that was noted before is in the files. */
struct audit_request {
    struct msg msg;
    struct worker *from;
    int error; /* errno of the file of changes, which does not have this batch; 0: it has */
};

/* From a loop: an entry that must be on the disk before something is done. Stands in the request's
 * memory. */
struct audit_record {
    struct audit_request request;
    struct audit_entry entry;
    void (*done)(struct audit_record *record); /* on the loop; ask request.error */
};
void audit_write(struct audit_record *record);

/* From a loop: a page, newest first, as members `audit` and `next_cursor` of an object, and in
 * `chain` whether all changes in the files fit together. */
struct audit_query {
    struct audit_request request;
    int64_t before; /* ids below this one; 0: all */
    size_t max;
    bool verify; /* the files are read for that now; else it is what was found last */
    struct str who, action, target, kind;    /* only these; at == NULL: all */
    struct buf answer;                       /* whoever asked frees it */
    void (*done)(struct audit_query *query); /* on the loop */
};
void audit_ask(struct audit_query *query);

/* On the main thread: one batch of what the loops sent. True: there may be more. */
bool audit_run(struct server *server);

#endif
