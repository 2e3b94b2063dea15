/* The listeners: one for each loop, on the same port, with or without TLS. */
#ifndef SERVER_LISTEN_H
#define SERVER_LISTEN_H

#include "server/server.h"

/* Is the address one, and may it be served on? `guarded`: there are tokens. */
enum err listen_check(const struct settings *settings, bool guarded, struct problem *why);
/* How many connections each of so many loops can have with so many descriptors, `wanted` at most;
 * 0: too few descriptors to serve anybody. */
int64_t listen_connections(int64_t descriptors, int loops, int64_t wanted);
/* All descriptors this process may have, and no more connections than they suffice for: at the
 * limit it is known who goes, without descriptors it is not. Before anything else is opened. */
enum err listen_fit(struct server *server, struct problem *why);
/* Every loop begins to serve; sets server->port. On the main thread, while the loops run. */
enum err listen_all(struct server *server, struct problem *why);
/* The certificate is read again, for new connections. On failure the one before stays. Does
 * nothing without TLS. On the main thread. */
enum err listen_tls(struct server *server, const struct settings *settings, struct problem *why);

#endif
