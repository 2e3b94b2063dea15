/* What ws.c and ws_open.c share and nobody else sees. */
#ifndef IO_WS_PRIVATE_H
#define IO_WS_PRIVATE_H

#include "io/http_parse.h"
#include "io/ws.h"

enum {
    WS_NORMAL = 1000,
    WS_PROTOCOL = 1002,
    WS_NOT_TEXT = 1003,
    WS_NO_CODE = 1005,
    WS_BROKEN = 1006,
    WS_BAD_UTF8 = 1007,
    WS_TOO_BIG = 1009,
    WS_TRY_LATER = 1013,
};

enum ws_state { WS_OPENING, WS_OPEN, WS_CLOSING };

/* The client's half of a handshake; gone once it is done. */
struct ws_opening {
    struct http_scan scan;
    struct buf answer;
    char accept[32];
};

struct ws_private {
    struct ws ws; /* first: the two are one piece of memory */
    struct net_conn *net;
    const struct ws_limits *limits;
    struct ws_opening *opening;
    struct ws_reader *reader; /* only while a frame is incomplete */
    struct buf message;       /* fragments so far */
    struct buf control;       /* a control frame that comes in pieces */
    uint64_t frame_left;      /* of the payload of the frame being read */
    int64_t heard_ms;         /* when the peer last sent anything */
    int code_sent;
    int code_got;
    enum ws_state state;
    uint8_t frame_opcode;
    bool frame_fin;
    bool in_frame;
    bool in_message; /* its first fragment was seen */
    bool pinged;     /* and nothing came since */
    bool client;
};

extern const struct net_handler ws_net_handler;

struct ws_private *ws_new(struct loop *loop, const struct ws_handler *handler,
                          const struct ws_limits *limits, void *user);
void ws_begin(struct ws_private *p);                          /* the handshake is done */
void ws_read(struct ws_private *p, struct str bytes);         /* frames */
void ws_opening_read(struct ws_private *p, struct str bytes); /* the server's answer */
void ws_opening_free(struct ws_private *p);

#endif
