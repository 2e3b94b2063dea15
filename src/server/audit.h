/* Who did what: one entry for each operator's request that changes something, and for each refused
 * one. An entry is a line of the log (event=audit) and a line of a file in the data directory; the
 * newest are in memory for GET /v1/audit. Changes and refusals have separate files and rings:
 * however many calls are refused, they never push out the record of a change. Runs on the main
 * thread, see token_file.h. */
#ifndef SERVER_AUDIT_H
#define SERVER_AUDIT_H

#include "base/digest.h"
#include "server/server.h"

struct audit;

enum audit_kind {
    AUDIT_CHANGE,  /* the call changed something, or may have */
    AUDIT_REFUSED, /* the call changed nothing */
    AUDIT_KINDS,
};

enum {
    AUDIT_KEPT = 4096, /* in memory, of each kind */
    AUDIT_FILE_BYTES_MAX =
        8 * 1024 * 1024,     /* then it becomes audit.jsonl.1 and replaces the last one */
    AUDIT_TEXT_MAX = 128,    /* of a target, a name, an id */
    AUDIT_QUEUED_MAX = 2048, /* of each kind, on their way to the main thread */
    AUDIT_BATCH_MAX = 256,   /* written and synced together; then signals are handled */
};

struct audit_entry {
    int64_t id; /* counts up over both kinds, and over restarts */
    int64_t at_ms;
    enum audit_kind kind;
    int64_t count;               /* of calls in this entry; the other members are of the first */
    char who[AUDIT_TEXT_MAX];    /* the token's name; "" without tokens */
    char peer[64];               /* address and port; "" when the calls are of several callers */
    char action[AUDIT_TEXT_MAX]; /* "nodes.drain" */
    char target[AUDIT_TEXT_MAX]; /* "" when there is none */
    char request_id[AUDIT_TEXT_MAX];
    char body_sha256[DIGEST_HEX + 1]; /* of the request; "" without a body, or if refused */
    char mac[DIGEST_HEX + 1];         /* see audit_chain.h; "": not signed */
    int status;                       /* of the answer */
    char result[64];                  /* "ok", or the error's name */
};

/* The kind of a call with this status. After a server error the change may have happened. */
enum audit_kind audit_kind_of(int status);

/* Never fails: without a file entries are only in memory and in the log. */
struct audit *audit_open(struct str data_dir);
void audit_free(struct audit *audit); /* NULL is fine */

/* From a loop. `id` is set on the main thread. When AUDIT_QUEUED_MAX entries are waiting, further
 * ones are only counted, and reported in an entry "audit.left_out". */
void audit_note(struct worker *from, const struct audit_entry *entry);

/* A request from a loop; it returns there once all entries noted before it are in the files. */
struct audit_request {
    struct msg msg;
    struct worker *from;
    void (*done)(struct audit_request *request); /* on the loop */
    int error; /* errno when this batch could not be written to the file of changes; 0: it was */
};

/* From a loop: an entry that must be on disk before its request is carried out: done() checks the
 * error. Lives in the request's memory. */
struct audit_record {
    struct audit_request request;
    struct audit_entry entry;
};
void audit_write(struct audit_record *record);

/* From a loop: a page, newest first, as members `audit` and `next_cursor` of an object, and in
 * `chain` whether all changes in the files fit together. */
struct audit_query {
    struct audit_request request;
    int64_t before; /* ids below this one; 0: all */
    size_t max;
    bool verify; /* check the files now; else the result of the last check is used */
    struct str who, action, target, kind; /* only these; at == NULL: all */
    struct buf answer;                    /* freed by the caller */
};
void audit_ask(struct audit_query *query);

/* On the main thread: handles one batch from the loops. True: there may be more. */
bool audit_run(struct server *server);

#endif
