/* Reports about jobs, kept until the server has answered them. In memory only: an outcome is on
 * disk as the record of its run, and the next agent reports it from there. A note is sent again
 * after every reconnect and after every "not now", in the order the notes were put. All calls on
 * the loop's thread. */
#ifndef AGENT_OUTBOX_H
#define AGENT_OUTBOX_H

#include <sys/queue.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/map.h"
#include "io/loop.h"

struct outbox;

enum outbox_kind { OUTBOX_ACK, OUTBOX_DONE, OUTBOX_FAIL, OUTBOX_KINDS };

enum {
    OUTBOX_JOB_MAX = 64,       /* bytes of a job's id */
    OUTBOX_WINDOW = 256,       /* notes sent and not answered yet */
    OUTBOX_PAUSE_MIN_MS = 200, /* after "not now", doubling, with full jitter */
    OUTBOX_PAUSE_MAX_MS = 5000,
};

/* One message to the server. `user` belongs to the owner of the outcome; the rest is read only. */
struct outbox_note {
    struct outbox *outbox;
    TAILQ_ENTRY(outbox_note) entry;
    uint64_t seq; /* the message's id: never 0, unique */
    enum outbox_kind kind;
    bool old;  /* from the file of earlier versions */
    bool sent; /* on this connection, and not answered yet */
    bool bare; /* sent without its result, which the server had refused */
    /* From the reply to an accepted ACK; 0 and -1 if it has none. */
    int64_t lease_ms, stop_grace_ms;
    int attempt;
    char job_id[OUTBOX_JOB_MAX + 1];
    struct str reason; /* FAIL */
    bool command;      /* DONE, FAIL: of a command that the job brought */
    struct str result; /* JSON; at == NULL: none */
    void *user;
};

/* The server's final answer. */
enum outbox_verdict {
    OUTBOX_ACCEPTED,
    OUTBOX_DUPLICATE, /* it already had it */
    OUTBOX_REFUSED,   /* 409, 404: the attempt is not ours; or the server cannot read the note */
};

struct outbox_handler {
    bool (*send)(struct outbox *outbox, struct str text); /* false: not connected */
    /* Called once, at the end: the note is freed when this returns. */
    void (*settled)(struct outbox_note *note, enum outbox_verdict verdict);
};

struct outbox {
    struct loop *loop;
    const struct outbox_handler *handler;
    void *user;
    TAILQ_HEAD(, outbox_note) notes; /* in the order they were put */
    struct idmap by_seq;
    uint64_t last_seq;
    size_t count, in_flight;
    bool up;
    bool freeing;
    int pauses; /* in a row */
    bool paused;
    struct rnd rnd;
    uv_timer_t pause;
    char *old_path;   /* of a file of earlier versions; NULL: there is none */
    size_t old_count; /* its notes that are not answered yet */
    struct buf text;  /* of the message being made */
};

struct outbox *outbox_new(struct loop *loop, const struct outbox_handler *handler, void *user);
/* Puts in first what an earlier version stored and had not sent yet; the file is removed when all
 * of it was answered. Does nothing if there is no file. */
void outbox_take_old(struct outbox *outbox, const char *path);
/* Strings are copied. Sent at once when the link is up. */
struct outbox_note *outbox_put(struct outbox *outbox, enum outbox_kind kind, struct str job_id,
                               int attempt, struct str reason, struct str result, bool command,
                               void *user);
void outbox_drop(struct outbox_note *note); /* without calling `settled` */
void outbox_up(struct outbox *outbox);      /* the link is up: sends everything */
void outbox_down(struct outbox *outbox);    /* notes that were not answered will be sent again */
/* A `reply` of the server. False: not about a note. */
bool outbox_reply(struct outbox *outbox, const struct json *reply);
/* The longest pause after the next "not now": longer each time, until something is accepted. */
int64_t outbox_pause_ms(const struct outbox *outbox);
/* Before loop_done, which frees its memory. */
void outbox_free(struct outbox *outbox);

#endif
