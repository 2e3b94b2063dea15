/* An HTTP server whose connections are socketpairs and whose loop is run by hand: one thread, no
 * ports, and the same bytes always give the same result. Does not use cmocka, since fuzz targets
 * use it too. */
#ifndef TESTS_IO_WIRE_H
#define TESTS_IO_WIRE_H

#include "io/ws.h"

struct wire {
    struct loop loop;
    struct http_server server;
    int fd;         /* our end; -1: no connection */
    struct buf got; /* what the server sent */
    bool ended;     /* the server has shut down its side */
};

/* Once per process. */
void wire_init(struct wire *wire, const struct http_limits *limits,
               const struct http_callbacks *callbacks, void *owner);
void wire_done(struct wire *wire);
void wire_connect(struct wire *wire);
void wire_send(struct wire *wire, struct str bytes); /* also lets the server process it */
void wire_turn(struct wire *wire);
void wire_hang_up(struct wire *wire); /* waits until the server has noticed */

#endif
