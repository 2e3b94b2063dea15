/* Members: who is online, as one list with sequence numbers, so that whoever follows it
 * knows when it missed something. The list is made from the nodes of the store, so it is the union
 * over all instances; its numbers are this instance's own, named by `source`.
 *
 * The keeper owns it; requests ask the keeper. */
#ifndef SERVER_MEMBERS_H
#define SERVER_MEMBERS_H

#include "server/route.h"

struct terminals;

struct terminals *terminals_new(struct server *server);
void terminals_free(struct terminals *terminals);
/* On the keeper's loop, with each tick: who came, changed, left. */
void terminals_tick(struct terminals *terminals);
/* On the keeper's loop: {"type":"TERMINAL_LIST",...}. */
void terminals_write_list(struct terminals *terminals, struct jsonw *w);
/* On each loop's tick: nodes are told that the list has changed. */
void terminals_tell(struct worker *worker);

#endif
