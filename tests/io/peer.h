/* The raw other side of a connection: a blocking socket and a buffer. What does not arrive within
 * PEER_PATIENCE_S fails the test instead of blocking it. */
#ifndef TESTS_IO_PEER_H
#define TESTS_IO_PEER_H

#include "base/str.h"

enum { PEER_PATIENCE_S = 10 };

struct peer {
    int fd;
    struct buf in; /* read but not used yet */
};

struct peer_reply {
    int status;
    char head[4096];
    char body[65536];
    size_t body_len;
};

void peer_dial(struct peer *peer, int port);
void peer_close(struct peer *peer);
void peer_reset(struct peer *peer); /* closes with RST */
/* It is no error if the other side has closed. */
void peer_send(struct peer *peer, struct str bytes);
void peer_send_bytewise(struct peer *peer, struct str bytes);
/* Reads until `count` bytes are there; false if the connection ends first. */
bool peer_await(struct peer *peer, size_t count);
void peer_take(struct peer *peer, void *to, size_t count); /* peer_await must hold */
/* Reads one HTTP reply (`head_only`: to a HEAD request); false if the connection ends first. */
bool peer_reply(struct peer *peer, struct peer_reply *ret_reply, bool head_only);
bool peer_reply_has(const struct peer_reply *reply, const char *line); /* a header line */
bool peer_ended(struct peer *peer); /* no further bytes came before the other side closed */

#endif
