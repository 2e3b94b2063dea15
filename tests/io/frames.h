/* Hand-made WebSocket frames, valid or not, for a raw peer. */
#ifndef TESTS_IO_FRAMES_H
#define TESTS_IO_FRAMES_H

#include "peer.h"

enum { FRAME_MORE = 0, FRAME_FIN = 0x80 };

/* The first byte is written as given: FIN, RSV bits and opcode. */
void frame_add(struct buf *to, unsigned char first, struct str payload); /* masked */
/* As a server sends it. */
void frame_add_unmasked(struct buf *to, unsigned char first, struct str payload);
/* Sends the upgrade request for /ws and reads the 101. */
void frame_open(struct peer *peer, int port);
/* Reads one frame of the server; false if the connection ends first. */
bool frame_read(struct peer *peer, unsigned char *ret_first, struct buf *ret_payload);

extern const char frame_upgrade[]; /* the request that frame_open sends */

#endif
