/* A real PostgreSQL for tests: a cluster in a directory of its own, on a free loopback port,
 * stopped by its pid. PostgreSQL refuses to run as root; then it runs as the user postgres. */
#ifndef TESTS_STORE_PG_RIG_H
#define TESTS_STORE_PG_RIG_H

#include <stdbool.h>
#include <sys/types.h>

struct pg_server {
    pid_t pid; /* 0: not running */
    int port;
    char dir[80];
    char url[96]; /* postgresql://berth@127.0.0.1:PORT/postgres */
};

bool pg_available(void);
void pg_server_start(struct pg_server *server); /* also after a kill; aborts if it fails */
void pg_server_kill(struct pg_server *server);  /* at once, with all its processes */
void pg_server_remove(struct pg_server *server);

#endif
