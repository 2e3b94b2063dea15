/* A server under test: one loop on a thread of its own, an HTTP server on a free port, and paths
 * that do one thing each. Tests wait for events on the loop with site_await, never for time. */
#ifndef TESTS_IO_SITE_H
#define TESTS_IO_SITE_H

#include <semaphore.h>

#include "io/ws.h"

enum { SITE_PENDING_MAX = 16 };

/*  /echo         answers "METHOD path query body" at once
 *  /later        is kept until site_answer
 *  /small        takes a body of 10 bytes
 *  /none         is refused before its body is read
 *  /stream       becomes a stream
 *  /known        like /echo, and marks its connection as known
 *  /refused      answers 401
 *  /moved        redirects to /echo, with a line end in the value
 *  /ws           a WebSocket that echoes; "close N" closes with N, "push N" sends N bytes back */
struct site {
    struct loop loop;
    struct http_server server;
    struct http_limits limits;
    struct ws_limits ws_limits;
    sem_t happened;   /* posted by the loop for each event below */
    atomic_int later; /* requests kept so far */
    atomic_int gone;  /* of these, those whose peer left */
    atomic_int asked; /* requests handed over, on any path */
    atomic_int streams_closed;
    atomic_int ws_opened;
    atomic_int ws_closed;
    atomic_int ws_code; /* of the last close */
    atomic_int ws_written;
    struct http_request *pending[SITE_PENDING_MAX];
    struct http_stream *stream;
    struct ws *ws;
};

void site_open(struct site *site);  /* limits must be set before; zero means default */
void site_start(struct site *site); /* site_open, then runs the loop on its thread */
void site_stop(struct site *site);
int site_port(const struct site *site);
void site_await(struct site *site, atomic_int *counter, int at_least);
/* Runs `step` on the loop, and returns when it has run. */
void site_do(struct site *site, void (*step)(struct site *site, int arg), int arg);
void site_answer(struct site *site, int index, const char *body); /* answers a kept request */

#endif
