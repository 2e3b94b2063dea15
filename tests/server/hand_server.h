/* A server without sockets: workers whose loops have inboxes that the test runs by hand. */
#ifndef TESTS_SERVER_HAND_SERVER_H
#define TESTS_SERVER_HAND_SERVER_H

#include "server/api_job.h"
#include "server/hub.h"

#define HAND_SERVER_START_MS INT64_C(1800000000000)

enum { HAND_SERVER_LOOPS = 2 };

struct server *hand_server_new(struct settings *settings);
void hand_server_free(struct server *server);
void hand_server_pass(struct server *server,
                      int64_t ms); /* moves each loop's clock, ticks its hub */
/* Runs its inbox; returns the number of messages. */
int hand_server_run(struct server *server, int loop);

#endif
