/* Callbacks: POSTs the result of a job to its callback_url, at least once. The store is the outbox:
 * a finished job's callback stays PENDING until it was answered with 2xx. Keeper's thread. */
#ifndef SERVER_CALLBACK_H
#define SERVER_CALLBACK_H

#include "server/server.h"

struct callbacks;

struct callbacks *callbacks_new(struct worker *keeper);
void callbacks_free(struct callbacks *callbacks);
void callbacks_tick(struct callbacks *callbacks);
void callbacks_kick(struct callbacks *callbacks); /* any thread: a job with a callback ended */

/* URLs that callers can make this server call: endpoints of nodes, and callbacks of jobs. */

enum url_use { URL_ENDPOINT, URL_CALLBACK };

/* By the current settings and tokens, whatever they were when the URL was given. Any thread. */
bool urls_allowed(struct server *server, enum url_use use, struct str url);
/* The same; the problem names the setting. ERR_BAD_FIELD. An empty URL is accepted. */
enum err urls_check(struct server *server, enum url_use use, struct str url, struct problem *why);

#endif
