/* Callbacks: the result of a job POSTed to its callback_url, at least once. The outbox is the
 * store: a finished job stays PENDING until its callback was answered 2xx. Keeper's thread. */
#ifndef SERVER_CALLBACK_H
#define SERVER_CALLBACK_H

#include "server/server.h"

struct callbacks;

struct callbacks *callbacks_new(struct worker *keeper);
void callbacks_free(struct callbacks *callbacks);
void callbacks_tick(struct callbacks *callbacks);
void callbacks_kick(struct callbacks *callbacks); /* any thread: a job with a callback ended */

#endif
