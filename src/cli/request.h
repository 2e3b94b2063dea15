/* One blocking HTTP call to the server: the command line has nothing else to do meanwhile. */
#ifndef CLI_REQUEST_H
#define CLI_REQUEST_H

#include "base/json.h"
#include "cli/cli.h"

struct request {
    const char *method;
    const char *path; /* "/v1/nodes", with its query */
    struct str body;  /* JSON; at == NULL: none */
    const char *idempotency_key;
    const char *last_event_id; /* a stream continues after this one; NULL: with new events */
    int64_t timeout_ms;        /* 0: REQUEST_TIMEOUT_MS */
    bool any_status;           /* JSON replies with a status other than 2xx are accepted too */
    bool text;                 /* the reply is text, not JSON */
    /* For a stream: called for each piece as it arrives, no time limit; false ends it. NULL: a
     * plain reply. */
    bool (*piece)(void *user, struct str bytes);
    void *user;
    /* the answer */
    int status;
    struct str reply;        /* in the cli's arena */
    const struct json *json; /* NULL: the reply is not JSON */
};

/* CLI_OK: a 2xx reply arrived and, unless it streams, is JSON. Otherwise the error was reported on
 * stderr and its exit code is returned. */
int request_run(struct cli *cli, struct request *request);
/* The same, but what would go to stderr is returned in *ret_said (empty: nothing). */
int request_quietly(struct cli *cli, struct request *request, struct str *ret_said);
/* Reports why the server refused, for a reply that any_status let through. */
int request_refused(struct cli *cli, const struct request *request);
/* The same for GET, for the common case of one path and one JSON reply. */
int request_get(struct cli *cli, const char *path, const struct json **ret_json);
/* All elements of a list, page after page, as one raw JSON text
 * `{"NAME":[...],"next_cursor":null}`. */
int request_list(struct cli *cli, const char *path, const char *name, const struct json **ret_json);
/* Percent-encodes what is not allowed in a path segment or a query value. */
const char *request_escape(struct cli *cli, struct str text);

/* Asking for one thing and printing the answer in the form that was asked for. */

/* GETs one thing: a field a line (or what `show` prints), its JSON, or with -o name its member
 * `id`.
 */
int answer_show(struct cli *cli, const char *path, const char *id,
                void (*show)(struct cli *cli, const struct json *json));
/* Sends a body (at == NULL: none) and prints the result: the sentence, the JSON that came back,
 * or with -o name the command's first argument. */
__attribute__((format(printf, 5, 6))) int answer_send(struct cli *cli, const char *method,
                                                      const char *path, struct str body,
                                                      const char *fmt, ...);
/* A request's body: body_begin opens an object, body_end returns its text, in the arena. */
struct jsonw body_begin(struct cli *cli);
struct str body_end(struct cli *cli, struct jsonw *w);
/* "/v1/nodes/{id}": that is the command's first argument, escaped. */
const char *answer_path(struct cli *cli, const char *path);
/* A command that is one call. */
int answer_call(struct cli *cli, const struct command_call *call);

/* Waiting for a job's end, for `job wait` and `job submit --wait`. */

enum { WAIT_FOREVER = -1 };

/* Asks until the job is DONE or FAILED or `timeout_ms` have passed. Prints the job with -o json,
 * else nothing on success. CLI_OK, CLI_JOB_FAILED, CLI_TIMEOUT, or why it could not be asked. */
int wait_job(struct cli *cli, const char *job_id, int64_t timeout_ms);

/* Asks until the node of the command's first argument is `goal`: ready, drained (nothing runs on it
 * any more), offline or gone. */
int wait_node(struct cli *cli, const char *path, const char *goal, int64_t timeout_ms);

#endif
