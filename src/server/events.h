/* The event stream (GET /v1/events, server-sent events). Events are created only while there are
 * readers, and for a while after the last one left. The keeper numbers the events and keeps the
 * latest, so that a reader that reconnects misses none; each loop passes them to its own streams.
 * Everything is bounded: a reader that misses something gets a `gap`. */
#ifndef SERVER_EVENTS_H
#define SERVER_EVENTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "model/namespace.h"
#include "server/route.h"

struct events;

struct events *events_new(struct worker *worker);
void events_free(struct events *events);
void events_tick(struct events *events);        /* keeps idle streams alive, flushes thinned ones */
void events_keeper_tick(struct server *server); /* on the keeper's loop */
void events_drain(struct events *events);       /* the server is stopping: ends all streams */

/* The tokens changed: ends streams whose token is no longer valid. */
void events_recheck(struct events *events);

/* Any loop. `name` is a literal: "job", "node". */
bool events_wanted(const struct server *server);      /* by anybody */
bool events_has_readers(const struct server *server); /* by a stream of this instance */
void events_elsewhere(struct server *server, uint64_t job, struct str namespace,
                      struct str text); /* a job's event at another instance */
void events_job(struct server *server, const char *what, const struct store_head *head);
void events_node(struct server *server, const char *what, struct str node_id);
/* On the keeper's loop: a change of the member list. */
void events_host(struct server *server, struct str data);

/* One event as it is sent; shared by the loops that send it and the keeper's list. */
struct frame {
    _Atomic int refs;
    int64_t seq;
    uint64_t job;                      /* 0: not about a job, and for all readers */
    char namespace[NAMESPACE_MAX + 1]; /* of the job */
    bool host;                         /* about the member list */
    STAILQ_ENTRY(frame) link;          /* in the keeper's list */
    size_t len;
    char text[];
};

void frame_unref(struct frame *frame);

/* A thinned stream, for people: only the latest event of each job in every fifth of a second, and
 * no more in total than a person could follow. A loop has one for all its readers of a namespace
 * that want it. */

enum {
    LATEST_MS = 200,
    LATEST_FRAMES = 256,
    LATEST_PLACES = 4 * LATEST_FRAMES, /* a power of two */
};

struct latest {
    struct frame *frames[LATEST_FRAMES]; /* each with a reference */
    size_t count;
    uint16_t places[LATEST_PLACES]; /* by job: the frame's number + 1; 0: free */
    int64_t skipped;                /* events dropped for lack of room */
};

/* Keeps the frame; it replaces an earlier one of the same job. */
void latest_add(struct latest *latest, struct frame *frame);
void latest_sort(struct latest *latest); /* by number; only before latest_clear */
void latest_clear(struct latest *latest);

#endif
