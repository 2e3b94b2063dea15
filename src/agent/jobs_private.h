/* Between the files of jobs.h:
 *   jobs.c         the life of a job
 *   jobs_table.c   all of them
 *   jobs_start.c   from the server's message to a run
 *   jobs_result.c  from the end of a run to what the server is told */
#ifndef AGENT_JOBS_PRIVATE_H
#define AGENT_JOBS_PRIVATE_H

#include "agent/jobs.h"
#include "base/map.h"

struct jobs {
    struct loop *loop;
    const struct config *config;
    const struct jobs_handler *handler;
    void *user;
    struct str node_id;
    struct outbox *outbox;
    struct runs *runs;
    struct map by_key;
    struct agent_job *first, *last;
    size_t count;
    size_t counts[JOBS_STATES];
    int64_t kept_bytes; /* of all that are KEPT */
};

extern const struct run_handler jobs_run_handler;

/* "ID.ATTEMPT"; false: such a name cannot be. */
bool jobs_key(struct str job_id, int64_t attempt, char key[JOBS_KEY_MAX]);
struct agent_job *jobs_new_job(struct jobs *jobs, enum jobs_state state); /* not in the table yet */
void jobs_enter(struct agent_job *job);                                   /* its key is set */
void jobs_set_state(struct agent_job *job, enum jobs_state state);
void jobs_leave(struct agent_job *job);  /* and is gone; neither run nor note may be left */
void jobs_delete(struct agent_job *job); /* only its memory */

/* What the server asks for; strings in the message. */
struct jobs_order {
    struct str job_id;
    int64_t attempt;
    struct str type, namespace, title, session_id, src, tgt, audio_ref, traceparent;
    int64_t priority;
    int64_t timeout_ms;
    bool interactive;
    const struct json *payload, *command, *options, *secrets;
};

enum err jobs_order_read(const struct json *body, struct arena *arena, struct jobs_order *ret_order,
                         struct problem *why);
/* NULL: this agent can run it; else why not, for the log. */
const char *jobs_order_unfit(const struct config *config, const struct jobs_order *order);
/* Starts job->run from job->message. */
enum err jobs_start(struct agent_job *job, struct problem *why);
/* What is kept with the run, to know the job again. */
void jobs_meta_write(const struct agent_job *job, struct buf *out);
bool jobs_meta_read(struct str meta, struct agent_job *job);

/* The FAIL reason of a run that ended; "" = it is DONE. At least 48 bytes. */
void jobs_reason(const struct run_exit *exit, char *to, size_t size);
/* The result: figures, last output, and what the job itself left in its result file. */
void jobs_result_write(const struct agent_job *job, struct buf *out);
/* Why it was killed stays with the run, for who tells of its end. */
void jobs_evidence_keep(struct agent_job *job, struct str evidence);
void jobs_evidence_find(struct agent_job *job);
/* A file in the run's directory says that its outcome is settled, so that the next agent need not
 * tell it again. Made when this one goes orderly; without it the server hears it twice and says so.
 */
void jobs_settled_mark(const struct agent_job *job);
bool jobs_settled_marked(const struct agent_job *job);

#endif
