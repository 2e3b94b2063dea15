/* An HTTP server whose connections come out of a socketpair and whose loop is turned by hand: one
 * thread, no ports, the same bytes give the same result every time. Knows no cmocka: the fuzz
 * targets use it as well. */
#ifndef TESTS_IO_WIRE_H
#define TESTS_IO_WIRE_H

#include "io/ws.h"

struct wire {
    struct loop loop;
    struct http_server server;
    int fd;         /* our end; -1: no connection */
    struct buf got; /* what the server sent */
    bool ended;     /* the server shut its side */
};

/* Once per process. */
void wire_init(struct wire *wire, const struct http_limits *limits,
               const struct http_callbacks *callbacks, void *owner);
void wire_done(struct wire *wire);
void wire_connect(struct wire *wire);
void wire_send(struct wire *wire, struct str bytes); /* and lets the server do what it can */
void wire_turn(struct wire *wire);
void wire_hang_up(struct wire *wire); /* and waits until the server has noticed */

#endif
