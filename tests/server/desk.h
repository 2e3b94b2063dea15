/* A server without sockets: workers whose loops have inboxes that the test runs by hand. */
#ifndef TESTS_SERVER_DESK_H
#define TESTS_SERVER_DESK_H

#include "server/hub_private.h"
#include "server/waiters.h"

#define DESK_START_MS INT64_C(1800000000000)

enum { DESK_LOOPS = 2 };

struct server *desk_new(struct settings *settings);
void desk_free(struct server *server);
void desk_pass(struct server *server, int64_t ms); /* every loop's clock, and its hub's tick */
int desk_run(struct server *server, int loop);     /* its inbox; how many messages there were */

#endif
