/* Members: who is online, as one list with sequence numbers, so that a client following it notices
 * when it missed something. The list is made from the nodes in the store, so it covers all
 * instances; the numbers are this instance's own, which `source` identifies.
 *
 * The keeper owns it; requests ask the keeper. */
#ifndef SERVER_MEMBERS_H
#define SERVER_MEMBERS_H

#include "base/json.h"
#include "server/server.h"

struct members;

struct members *members_new(struct server *server);
void members_free(struct members *members);
/* On the keeper's loop, at each tick: finds who joined, changed or left. */
void members_tick(struct members *members);
/* On the keeper's loop: {"type":"TERMINAL_LIST",...}. */
void members_write_list(struct members *members, struct jsonw *w);
/* On each loop's tick: tells connected nodes that the list has changed. */
void members_announce(struct worker *worker);

#endif
