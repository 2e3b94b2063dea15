/* One HTTP call to the server and its answer, blocking: the command line has nothing else to do. */
#ifndef CLI_REQUEST_H
#define CLI_REQUEST_H

#include "base/json.h"
#include "cli/cli.h"

struct ask {
    const char *method;
    const char *path; /* "/v1/nodes", with its query */
    struct str body;  /* JSON; at == NULL: none */
    const char *idempotency_key;
    const char *last_event_id; /* a stream goes on behind this one; NULL: with what comes */
    int64_t timeout_ms;        /* 0: ASK_TIMEOUT_MS */
    bool any_status;           /* JSON with another status than 2xx is an answer too */
    bool text;                 /* the answer is text, not JSON */
    /* For a stream: each piece as it comes, no time limit; false ends it. NULL: a plain answer. */
    bool (*piece)(void *user, struct str bytes);
    void *user;
    /* the answer */
    int status;
    struct str reply;        /* in the cli's arena */
    const struct json *json; /* NULL: the reply is not JSON */
};

enum { ASK_TIMEOUT_MS = 30000, ASK_REPLY_BYTES_MAX = 64 * 1024 * 1024 };

/* CLI_OK: a 2xx came and, unless it streams, is JSON. Else what went wrong was said on stderr and
 * the exit code that fits is returned. */
int ask_run(struct cli *cli, struct ask *ask);
/* The same, but what would be said on stderr comes back in *ret_said (empty: nothing). */
int ask_quietly(struct cli *cli, struct ask *ask, struct str *ret_said);
/* Says why the server refused, for an answer that any_status let through. */
int ask_refused(struct cli *cli, const struct ask *ask);
/* The same for GET, into the common case of "one path, one JSON answer". */
int ask_get(struct cli *cli, const char *path, const struct json **ret_json, struct str *ret_reply);
/* Every element of a list, page after page, as the raw JSON of `{"NAME":[...],"next_cursor":null}`
 * joined into one such text. */
int ask_list(struct cli *cli, const char *path, const char *name, const struct json **ret_json,
             struct str *ret_reply);
/* Percent-encodes what may not stand in a path segment or a query value. */
const char *ask_escape(struct cli *cli, struct str text);

#endif
