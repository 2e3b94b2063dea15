/* SIGHUP: the settings are read again from where they came (file, environment, flags), checked
 * whole, and only then taken over; a mistake changes nothing and is told. Fields with FIELD_LIVE
 * take effect at once, the others are named and wait for a start. TLS certificates and the log file
 * are opened again in any case: what stands behind a path may have changed. */
#ifndef SERVER_RELOAD_H
#define SERVER_RELOAD_H

#include "server/server.h"

void reload_run(struct server *server); /* on the main thread; logs its outcome */

#endif
