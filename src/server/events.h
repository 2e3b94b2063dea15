/* What happens, told to whoever listens (GET /v1/events, server-sent events). Nothing is written
 * while nobody listens, and for a while after the last one left. The keeper numbers the events and
 * keeps the last of them, so that a reader that comes back misses none; each loop passes them to
 * its own streams. Everything is bounded: who misses something is told so (`gap`). */
#ifndef SERVER_EVENTS_H
#define SERVER_EVENTS_H

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

#endif
