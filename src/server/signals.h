/* What the main thread does while the server runs: it waits for signals, and reports to the service
 * manager that the other threads are alive. */
#ifndef SERVER_SIGNALS_H
#define SERVER_SIGNALS_H

#include "server/dev.h"

void signals_block(void); /* before the threads start: they inherit the mask */
/* Waits for SIGTERM or SIGINT and returns it. SIGHUP reloads; an agent that died is restarted. */
int signals_wait(struct server *server, struct dev *agent);

#endif
