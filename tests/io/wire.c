#include "wire.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "io/http.h"
#include "io/net.h"

static void must(bool held)
{
    if (!held)
        abort();
}

void wire_init(struct wire *wire, const struct http_limits *limits,
               const struct http_callbacks *callbacks, void *owner)
{
    struct problem why;

    *wire = (struct wire){.fd = -1};
    must(loop_init(&wire->loop, 0) == ERR_OK);
    wire->server = (struct http_server){
        .loop = &wire->loop, .limits = limits, .callbacks = callbacks, .owner = owner};
    must(http_serve(&wire->server, "127.0.0.1:0", &why) == ERR_OK);
}

void wire_done(struct wire *wire)
{
    wire_hang_up(wire);
    loop_done(&wire->loop);
    buf_free(&wire->got);
}

void wire_connect(struct wire *wire)
{
    int ends[2];

    must(wire->fd < 0);
    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    wire->fd = ends[0];
    wire->ended = false;
    buf_clear(&wire->got);
    must(net_listener_adopt(wire->server.listener, ends[1]) == ERR_OK);
}

static void collect(struct wire *wire)
{
    for (;;) {
        ssize_t len;

        buf_reserve(&wire->got, 65536);
        len = recv(wire->fd, wire->got.at + wire->got.len, 65536, 0);
        if (len == 0)
            wire->ended = true;
        if (len <= 0)
            return;
        wire->got.len += (size_t)len;
    }
}

void wire_turn(struct wire *wire)
{
    /* The reads, then the inbox, then the writes that came of it. */
    for (int i = 0; i < 3; i++)
        uv_run(&wire->loop.uv, UV_RUN_NOWAIT);
    collect(wire);
}

void wire_send(struct wire *wire, struct str bytes)
{
    while (bytes.len > 0) {
        ssize_t len = send(wire->fd, bytes.at, bytes.len, MSG_NOSIGNAL);

        if (len <= 0)
            break; /* closed or held back: the rest does not matter */
        bytes.at += len;
        bytes.len -= (size_t)len;
        wire_turn(wire);
    }
    wire_turn(wire);
}

void wire_hang_up(struct wire *wire)
{
    if (wire->fd < 0)
        return;
    close(wire->fd);
    wire->fd = -1;
    while (!net_idle(&wire->loop))
        uv_run(&wire->loop.uv, UV_RUN_ONCE);
}
