/* The listeners: one for each loop, on the same port, with or without TLS. */
#ifndef SERVER_LISTEN_H
#define SERVER_LISTEN_H

#include "server/server.h"

/* Is the address valid, and may the server listen on it? `guarded`: there are tokens. */
enum err listen_check(const struct settings *settings, bool guarded, struct problem *why);
/* How many connections each of `loops` loops can have with this many descriptors, `wanted` at most;
 * 0: too few descriptors to serve any. */
int64_t listen_connections(int64_t descriptors, int loops, int64_t wanted);
/* Raises the limit on descriptors as far as allowed, and lowers connections_max to fit: at that
 * limit we choose which connection to drop, but not when descriptors run out. Call before anything
 * else is opened. */
enum err listen_fit(struct server *server, struct problem *why);
/* Starts listening on every loop; sets server->port. On the main thread, while the loops run. */
enum err listen_all(struct server *server, struct problem *why);
/* Reads the certificate again, for new connections. On failure the old one stays. Does nothing
 * without TLS. On the main thread. */
enum err listen_tls(struct server *server, const struct settings *settings, struct problem *why);

#endif
