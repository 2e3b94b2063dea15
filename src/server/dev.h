/* The agent of `berth dev`: a process of its own beside the server, on this machine, that takes any
 * command. It ends with the server. */
#ifndef SERVER_DEV_H
#define SERVER_DEV_H

#include "server/server.h"

struct dev {
    int pid; /* 0: none runs */
    int64_t started_ms;
};

enum { DEV_URL_BYTES = 64 };

/* The server's URL, for people and for the agent. */
const char *dev_url(const struct server *server, char to[DEV_URL_BYTES]);
/* The agent's own token, in case there are tokens: new at each start, stored nowhere. */
void dev_token(struct server *server);
enum err dev_start(struct dev *dev, const struct server *server, struct problem *why);
/* A child ended: if it was the agent, starts another, which adopts what it ran. */
void dev_revive(struct dev *dev, const struct server *server);
void dev_stop(struct dev *dev);

#endif
