/* Which URLs callers may have this server call: endpoints of nodes, and callbacks of jobs. */
#ifndef SERVER_URLS_H
#define SERVER_URLS_H

#include "server/server.h"

enum url_use { URL_ENDPOINT, URL_CALLBACK };

/* By the settings and tokens of now, whatever they were when the URL was given. Any thread. */
bool urls_allowed(struct server *server, enum url_use use, struct str url);
/* The same; the problem names the setting. ERR_BAD_FIELD. An empty URL is none. */
enum err urls_check(struct server *server, enum url_use use, struct str url, struct problem *why);

#endif
