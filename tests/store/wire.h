/* A long wire to a server on this machine: everything takes a while in each direction, replies on
 * marked connections can be held, and round trips are counted. Runs on a thread of its own. */
#ifndef TESTS_STORE_WIRE_H
#define TESTS_STORE_WIRE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { WIRE_ENDS_MAX = 16 };

struct wire_piece;
struct wire_way { /* one direction of a connection */
    int from, to;
    struct wire_piece *first, *last;
};

struct wire_end {
    struct wire_way out, back; /* to the server and back; out.from < 0: unused */
    bool answered;             /* since the last piece was sent */
    bool marked;               /* the mark was seen on this connection */
};

struct long_wire {
    int port;          /* of the near end */
    int to;            /* port of the server */
    int delay_ms;      /* in each direction */
    const char *mark;  /* a word of a command, which marks its connection */
    _Atomic bool held; /* nothing comes back on marked connections */
    _Atomic int trips; /* on marked connections: pieces sent after an answer */
    _Atomic int said;  /* how often the mark was seen */
    _Atomic bool over;
    int listener;
    struct wire_end ends[WIRE_ENDS_MAX];
    pthread_t thread;
};

void wire_open(struct long_wire *wire);
void wire_close(struct long_wire *wire);

#endif
