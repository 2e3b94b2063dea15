/* What the main thread does while the others work: it waits for signals, and tells the service
 * manager that the others are alive. */
#ifndef SERVER_SIGNALS_H
#define SERVER_SIGNALS_H

#include "server/dev.h"

void signals_block(void); /* before the threads start: they have them blocked too */
/* Until SIGTERM or SIGINT, which is returned. SIGHUP reloads; an agent that died is started again.
 */
int signals_wait(struct server *server, struct dev *agent);

#endif
