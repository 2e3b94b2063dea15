/* Jobs from the message that brings them to the outcome the server has accepted: admission, ACK,
 * the run, its end, the report. A job starts only after its ACK was accepted, and its run is
 * dropped only after its outcome was. Jobs of an earlier agent are adopted. One loop. */
#ifndef AGENT_JOBS_H
#define AGENT_JOBS_H

#include <sys/queue.h>

#include "agent/config.h"
#include "agent/outbox.h"
#include "agent/runfile.h"
#include "base/map.h"
#include "model/demand.h"

struct jobs;

enum jobs_state {
    JOBS_ACKING,    /* its ACK is not answered yet: nothing runs */
    JOBS_RUNNING,   /* its run has not ended */
    JOBS_REPORTING, /* ended; its outcome is not answered yet */
    JOBS_KEPT,      /* settled; the run's output can still be read */
    JOBS_STATES
};

enum {
    JOBS_KEY_MAX = RUN_KEY_MAX + 1,
    JOBS_OUTPUT_MAX = RUNFILE_RESULT_MAX,
    JOBS_RESULT_MAX = 60 * 1024
};

/* One attempt of a job on this node. */
struct agent_job {
    struct jobs *jobs;
    TAILQ_ENTRY(agent_job) entry;
    enum jobs_state state;
    char key[JOBS_KEY_MAX]; /* "j0ahx2vbjw0000.1" */
    char job_id[OUTBOX_JOB_MAX + 1];
    int attempt;
    struct str type, title;
    struct str traceparent; /* len 0: none */
    int64_t priority;
    bool asks;            /* it declared its needs, */
    struct demand demand; /* these; else demand_plain. In the arena, without keys */
    uint64_t gpus;        /* GPUs assigned to it, one bit per id */
    bool command;         /* it brought its own command and needs no executor */
    int64_t received_ms;  /* wall */
    int64_t since_ms;     /* CLOCK_MONOTONIC: when it took its slot */
    int64_t taken_ms;     /* clock_lease_ms(): before its ACK was first sent */
    int64_t listed_ms;    /* when heartbeats began to list it; 0: it was adopted */
    int64_t lease_ms;     /* from its ACK's answer; 0: it may not be tried again, so no fence */
    /* Likewise: how far it may exceed its timeout before it is started elsewhere; -1: no timeout */
    int64_t timeout_grace_ms;
    bool cancelled;     /* before it started */
    bool stopping;      /* its run is being stopped */
    bool dropped;       /* the server wants no report of it */
    struct run *run;    /* NULL: none (yet) */
    int64_t kept_bytes; /* while KEPT: size of its output on disk */
    struct outbox_note *note;
    struct str evidence;        /* JSON: why it was killed; at == NULL: it was not */
    const struct json *message; /* as received; until it runs */
    struct arena message_arena;
    struct arena arena;
};

/* The inputs for deciding whether a job may start. */
struct jobs_request {
    struct str type;
    int64_t priority;
    bool interactive;
    struct demand demand;
    uint64_t gpus;
};

struct jobs_handler {
    bool (*send)(struct jobs *jobs, struct str text); /* to the server; false: not connected */
    /* May such a job start now? NULL, or the reason for refusing it, and a sentence. */
    const char *(*refuses)(struct jobs *jobs, const struct jobs_request *request,
                           struct buf *detail);
    void (*slot_taken)(struct agent_job *job); /* once, before it starts */
    void (*slot_freed)(struct agent_job *job); /* once, for each slot_taken */
    void (*started)(struct agent_job *job);    /* its process runs */
    bool (*has_gpus)(struct jobs *jobs);       /* this machine has GPUs */
};

struct jobs_config {
    const struct config *config;
    struct str node_id;
    const char *data_dir; /* absolute */
    struct runs *runs;    /* must outlive it */
};

/* Nothing is sent before outbox_up(jobs->outbox). `config` and what it points to must outlive it.
 */
struct jobs *jobs_new(struct loop *loop, const struct jobs_config *config,
                      const struct jobs_handler *handler, void *user);
/* Adopts a run that an earlier agent left: its job continues, or its outcome is reported. */
void jobs_adopt(struct jobs *jobs, struct run *run);
size_t jobs_in_use(const struct jobs *jobs); /* running or about to */

void jobs_trim(struct jobs *jobs); /* called periodically: removes what was kept long enough */

/* Messages from the server. */
void jobs_job(struct jobs *jobs, const struct json *body);
void jobs_cancel(struct jobs *jobs, const struct json *body);
void jobs_drop(struct jobs *jobs, const struct json *body);
/* The server accepted a heartbeat that was sent at that moment (clock_lease_ms()). If the reply
 * says so, it renewed the leases of the jobs listed there, and their fences move. */
void jobs_renewed(struct jobs *jobs, int64_t sent_boot_ms, const struct json *reply);
/* `running_jobs`: the jobs for which the server still expects an outcome. */
void jobs_write_running(const struct jobs *jobs, struct jsonw *w);

/* attempt 0: the newest. */
struct agent_job *jobs_find(const struct jobs *jobs, struct str job_id, int attempt);
/* Ends it because the machine is about to freeze; `evidence` (JSON, copied) goes with the result.
 */
void jobs_kill(struct agent_job *job, struct str evidence, int64_t grace_ms);
/* Cancels all jobs that run or are about to. */
void jobs_end(struct jobs *jobs);
/* Leaves the runs to their shims. Before runs_free and loop_done. */
void jobs_free(struct jobs *jobs);

struct jobs {
    struct loop *loop;
    const struct config *config;
    const struct jobs_handler *handler;
    void *user;
    struct str node_id;
    struct outbox *outbox; /* messages the server has not answered yet */
    struct runs *runs;
    struct map by_key;
    TAILQ_HEAD(, agent_job) all; /* in the order they arrived */
    size_t count;
    size_t counts[JOBS_STATES];
    int64_t kept_bytes; /* sum over all KEPT jobs */
};

#endif
