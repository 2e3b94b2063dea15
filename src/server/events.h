/* What happens, told to whoever listens (GET /v1/events, server-sent events). Nothing is written
 * while nobody listens, and for a while after the last one left. The keeper numbers the events and
 * keeps the last of them, so that a reader that comes back misses none; each loop passes them to
 * its own streams. Everything is bounded: who misses something is told so (`gap`). */
#ifndef SERVER_EVENTS_H
#define SERVER_EVENTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/namespace.h"
#include "server/route.h"

struct events;

struct events *events_new(struct worker *worker);
void events_free(struct events *events);
void events_subscribe(struct call *call);       /* consumes the request */
void events_subscribe_host(struct call *call);  /* the list of members, and how it changes */
void events_tick(struct events *events);        /* keeps idle streams alive, tells thin ones */
void events_keeper_tick(struct server *server); /* on the keeper's loop */
void events_drain(struct events *events);       /* the server goes: streams end */

/* The tokens changed: streams whose token is not good any more end. */
void events_recheck(struct events *events);

/* Any loop. `name` is a literal: "job", "node". */
bool events_wanted(const struct server *server);     /* by anybody */
bool events_heard_here(const struct server *server); /* by a stream of this instance */
void events_elsewhere(struct server *server, uint64_t job, struct str namespace,
                      struct str text); /* of a job, at another instance */
void events_job(struct server *server, const char *what, const struct store_head *head);
void events_node(struct server *server, const char *what, struct str node_id);
/* On the keeper's loop: a change of the list of members. */
void events_host(struct server *server, struct str data);

/* One event as it is sent; shared by the loops it goes to and by what is kept. */
struct frame {
    _Atomic int refs;
    int64_t seq;
    uint64_t job;                      /* 0: not of a job, and for everybody */
    char namespace[NAMESPACE_MAX + 1]; /* of the job */
    bool host;                         /* of the list of members */
    struct frame *next;                /* the keeper's, of those kept */
    size_t len;
    char text[];
};

void frame_unref(struct frame *frame);

/* A stream for eyes: of each job only the last event of every fifth of a second, and of a flood as
 * many as somebody could look at. A loop has one for all its readers of a namespace that asked for
 * it. */

enum {
    LATEST_MS = 200,
    LATEST_FRAMES = 256,
    LATEST_PLACES = 4 * LATEST_FRAMES, /* a power of two */
};

struct latest {
    struct frame *frames[LATEST_FRAMES]; /* each with a reference */
    size_t count;
    uint16_t places[LATEST_PLACES]; /* by job: the frame's number + 1; 0: free */
    int64_t skipped;                /* events that found no room */
};

/* Keeps the frame, in the place of an earlier one of the same job. */
void latest_add(struct latest *latest, struct frame *frame);
void latest_sort(struct latest *latest); /* by number; only before latest_clear */
void latest_clear(struct latest *latest);

#endif
