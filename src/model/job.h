/* A job: its states, what each event does to it, and the one counter change that goes with it. */
#ifndef MODEL_JOB_H
#define MODEL_JOB_H

#include "base/str.h"

enum job_state {
    JOB_NEW,
    JOB_SELECTING,
    JOB_RESERVED, /* exists only in memory: `reserve` writes DISPATCHED */
    JOB_DISPATCHED,
    JOB_ACKED,
    JOB_RETRYING,
    JOB_DONE,
    JOB_FAILED,
    JOB_STATE_COUNT
};

const char *job_state_name(enum job_state state);  /* "NEW" */
const char *job_status_name(enum job_state state); /* "Created" */
bool job_state_by_name(struct str name, enum job_state *ret_state);
bool job_state_final(enum job_state state); /* DONE, FAILED */

enum job_event {
    JOB_EV_SELECT,
    JOB_EV_RESERVED,
    JOB_EV_NO_CANDIDATE,
    JOB_EV_SENT,
    JOB_EV_SEND_FAILED,
    JOB_EV_REFUSED, /* by the node before its ACK: NODE_OVERLOADED, TYPE_NOT_ALLOWED */
    JOB_EV_ACK,
    JOB_EV_ACK_TIMEOUT,
    JOB_EV_DONE,
    JOB_EV_FAIL,
    JOB_EV_RUN_TIMEOUT, /* also: its node is lost */
    JOB_EV_CANCEL, /* any state that is not final -> FAILED; a running lease stays until its node
                      ends it */
    JOB_EV_QUEUE_TIMEOUT, /* NEW, SELECTING, RETRYING -> FAILED */
    JOB_EVENT_COUNT
};

const char *job_event_name(enum job_event event); /* "ack_timeout" */
/* Does a node's final message say that the work succeeded? It does if the status is absent or
 * "ok". */
bool job_status_ok(struct str status);

enum job_effect {
    JOB_EFFECT_NONE,
    JOB_EFFECT_RESERVE,
    JOB_EFFECT_RELEASE_RESERVED,
    JOB_EFFECT_COMMIT,
    JOB_EFFECT_DEC_RUNNING,
    JOB_EFFECT_COUNT
};

const char *job_effect_name(enum job_effect effect); /* "release_reserved" */

struct job_facts {
    enum job_state state;
    int attempt;
    int max_attempts; /* attempts in all; also called max_retry */
    struct str node;  /* at == NULL: none */
};

/* ACK, DONE and FAIL come from a node: attempt and node must be given and match the job's. For
 * other events they may be omitted; if given, they must match the job's (RESERVED: its new
 * node). */
struct job_input {
    enum job_event event;
    int attempt;          /* 0: does not come from a node */
    struct str node;      /* at == NULL: does not come from a node */
    bool candidates_left; /* SEND_FAILED, REFUSED */
};

struct job_step {
    bool accepted;
    enum job_state state;
    int attempt;
    enum job_effect effect;
};

/* The whole state machine, one table inside. An event that does not fit (stale attempt, another
 * node, a final state, no such edge) is not accepted and changes nothing. */
struct job_step job_step(const struct job_facts *job, const struct job_input *in);

/* Reasons that mean a node refused, not that the work failed. */
bool job_reason_is_refusal(struct str reason);

/* Job ids: 63 bits, time-ordered: ms since 2024 (41) | sequence (13) | instance (9). On the wire
 * 'j' and 13 base32 characters. They come from one atomic counter per process, without a lock.
 * Texts sort as their ids do. 0 is never an id. */
enum { JOB_ID_TEXT = 14, JOB_ATTEMPTS_MAX = 9, JOB_ATTEMPTS_DEFAULT = 2 };

uint64_t job_id_next(int64_t wall_ms, unsigned instance);
void job_id_floor(uint64_t id); /* after recovery: all later ids are larger than `id` */
void job_id_text(uint64_t id, char out[JOB_ID_TEXT + 1]);
bool job_id_parse(struct str text, uint64_t *ret_id);

#endif
