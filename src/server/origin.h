/* Which requests may come in at all: a web page elsewhere must not be able to talk to this server
 * through somebody's browser, also not to one that only listens on loopback. */
#ifndef SERVER_ORIGIN_H
#define SERVER_ORIGIN_H

#include "server/settings.h"

/* ERR_FORBIDDEN: its Host is not ours, or it was sent for a page of another origin. */
enum err origin_check(const struct http_request *req, const struct settings *settings,
                      struct problem *why);

#endif
