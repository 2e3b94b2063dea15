/* WebSockets: handshakes of both roles (RFC 6455 section 4), then frames in and out on wslay's
 * frame layer. A wslay context takes 4 KiB, so a connection borrows one from its loop only while it
 * is inside a frame; an idle connection has none. */
#include "io/ws.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <wslay/wslay.h>

#include "base/mem.h"
#include "base/url.h"
#include "io/http.h"
#include "io/http_parse.h"
#include "io/tls.h"

enum {
    WS_PROTOCOL = 1002,
    WS_NOT_TEXT = 1003,
    WS_NO_CODE = 1005,
    WS_BROKEN = 1006,
    WS_BAD_UTF8 = 1007,
    WS_TOO_BIG = 1009,
    WS_TRY_LATER = 1013,
};

enum ws_state { WS_OPENING, WS_OPEN, WS_CLOSING };

/* The client's side of a handshake; freed when the handshake is done. */
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
    bool pinged;     /* a ping was sent, and nothing received since */
    bool client;
};

struct ws_reader {
    wslay_frame_context_ptr ctx;
    struct str input;
    uint64_t inside; /* bytes passed to wslay that belong to no frame reported yet */
    struct ws_reader *next;
};

static void ws_opening_free(struct ws_private *p);
static void ws_opening_read(struct ws_private *p, struct str bytes);

/* --- frames --- */

enum {
    WS_SPARE_READERS = 16,
    WS_CLOSE_MS = 2000, /* for the peer to answer our close frame */
    WS_CONTROL_MAX = 125,
    WS_FRAME_OVERHEAD = 14,
    FRAME_FIN = 0x80,   /* in the first byte */
    FRAME_MASK = 0x80,  /* in the second, above the length or one of these codes: */
    FRAME_LEN_16 = 126, /* the length is in the next two bytes */
    FRAME_LEN_64 = 127, /* in the next eight */
};

const struct ws_limits ws_limits_default = {
    .message_bytes_max = 1024 * 1024,
    .queue_bytes_max = 1024 * 1024,
    .ping_ms = 15000,
};

/* What the WebSockets of one loop share. */
struct ws_loop {
    struct loop_part part;
    struct loop *loop;
    struct ws_reader *spare;
    int spare_count;
    wslay_frame_context_ptr writer;
    struct buf *out; /* where the frame being written goes */
    struct buf text; /* of the frame being read */
};

/* --- wslay's callbacks --- */

static ssize_t give_input(uint8_t *to, size_t size, int flags, void *user)
{
    struct ws_reader *reader = user;
    size_t len = reader->input.len < size ? reader->input.len : size;

    if (len == 0)
        return -1; /* wslay then wants to be called again */
    memcpy(to, reader->input.at, len);
    reader->input.at += len;
    reader->input.len -= len;
    reader->inside += len;
    return (ssize_t)len;
}

static ssize_t take_output(const uint8_t *bytes, size_t len, int flags, void *user)
{
    struct ws_loop *wsl = user;

    buf_add(wsl->out, bytes, len);
    return (ssize_t)len;
}

static int make_mask(uint8_t *to, size_t len, void *user)
{
    return getrandom(to, len, 0) == (ssize_t)len ? 0 : -1;
}

static wslay_frame_context_ptr context_new(void *user)
{
    static const struct wslay_frame_callbacks callbacks = {
        .send_callback = take_output, .recv_callback = give_input, .genmask_callback = make_mask};
    wslay_frame_context_ptr ctx;

    if (wslay_frame_context_init(&ctx, &callbacks, user) != 0)
        abort(); /* out of memory */
    return ctx;
}

/* --- per loop --- */

static void reader_free(struct ws_reader *reader)
{
    if (!reader)
        return;
    wslay_frame_context_free(reader->ctx);
    free(reader);
}

static void free_part(struct loop_part *part)
{
    struct ws_loop *wsl = container_of(part, struct ws_loop, part);

    while (wsl->spare) {
        struct ws_reader *reader = wsl->spare;

        wsl->spare = reader->next;
        reader_free(reader);
    }
    wslay_frame_context_free(wsl->writer);
    buf_free(&wsl->text);
    wsl->loop->ws = NULL;
    free(wsl);
}

static struct ws_loop *ws_loop(struct loop *loop)
{
    struct ws_loop *wsl = loop->ws;

    if (wsl)
        return wsl;
    wsl = mem_new(struct ws_loop);
    wsl->part.free = free_part;
    wsl->loop = loop;
    wsl->writer = context_new(wsl);
    loop_add_part(loop, &wsl->part);
    loop->ws = wsl;
    return wsl;
}

/* --- writing --- */

static bool send_frame(struct ws_private *p, uint8_t opcode, struct str payload)
{
    struct ws_loop *wsl = ws_loop(p->ws.loop);
    struct wslay_frame_iocb frame = {.fin = 1,
                                     .opcode = opcode,
                                     .mask = p->client,
                                     .payload_length = payload.len,
                                     .data = (const uint8_t *)payload.at,
                                     .data_length = payload.len};

    wsl->out = net_room(p->net, payload.len + WS_FRAME_OVERHEAD);
    if (!wsl->out)
        return false;
    if (!p->client) { /* an unmasked frame is a short header and the payload */
        uint8_t head[10] = {(uint8_t)(FRAME_FIN | opcode)};
        int len_bytes = payload.len > 0xffff ? 8 : payload.len >= FRAME_LEN_16 ? 2 : 0;

        head[1] = (uint8_t)(len_bytes == 8 ? FRAME_LEN_64 : len_bytes ? FRAME_LEN_16 : payload.len);
        for (int i = 0; i < len_bytes; i++)
            head[2 + i] = (uint8_t)(payload.len >> 8 * (len_bytes - 1 - i));
        buf_reserve(wsl->out, payload.len + sizeof head);
        buf_add(wsl->out, head, 2 + (size_t)len_bytes);
        buf_str(wsl->out, payload);
        return true;
    }
    do {
        ssize_t sent = wslay_frame_send(wsl->writer, &frame);

        assert(sent >= 0); /* the buffer takes everything */
        frame.data += sent;
        frame.data_length -= (size_t)sent;
    } while (frame.data_length > 0);
    return true;
}

static void send_close(struct ws_private *p, int code, struct str reason)
{
    char payload[WS_CONTROL_MAX];
    size_t len = 0;

    assert(p->state == WS_OPEN && code >= 1000 && code <= 4999);
    if (code != WS_NO_CODE) {
        payload[len++] = (char)(code >> 8);
        payload[len++] = (char)code;
        if (reason.len > sizeof payload - len)
            reason.len = sizeof payload - len;
        if (reason.len > 0)
            memcpy(payload + len, reason.at, reason.len);
        len += reason.len;
    }
    p->state = WS_CLOSING;
    p->code_sent = code;
    send_frame(p, WSLAY_CONNECTION_CLOSE, (struct str){.at = payload, .len = len});
}

/* The peer broke a rule: closes with the code for it and ignores further input. */
static void fail(struct ws_private *p, int code)
{
    if (p->state == WS_OPEN)
        send_close(p, code, STR(""));
    net_close_after(p->net);
}

bool ws_send(struct ws *ws, struct str text)
{
    struct ws_private *p = ws->priv;
    size_t max = (size_t)p->limits->queue_bytes_max;

    if (p->state != WS_OPEN || p->net->closing)
        return false;
    if (net_write_queued(p->net) + text.len > max) {
        net_flush(p->net); /* coalesced bytes do not mean a slow reader */
        if (net_write_queued(p->net) > 0 && net_write_queued(p->net) + text.len > max) {
            fail(p, WS_TRY_LATER);
            return false;
        }
    }
    return send_frame(p, WSLAY_TEXT_FRAME, text);
}

bool ws_takes(struct ws *ws, size_t bytes)
{
    struct ws_private *p = ws->priv;
    size_t max = (size_t)p->limits->queue_bytes_max;

    return p->state == WS_OPEN && !p->net->closing &&
           (bytes <= max ? !ws_is_behind(ws, max - bytes) : !ws_is_behind(ws, 0));
}

bool ws_peer_left(const struct ws *ws)
{
    return net_peer_left(ws->priv->net);
}

bool ws_is_behind(struct ws *ws, size_t bytes)
{
    struct net_conn *net = ws->priv->net;

    if (net_write_queued(net) <= bytes)
        return false;
    net_flush(net); /* as above */
    return net_write_queued(net) > bytes;
}

bool ws_send_first(struct ws *ws, struct str text)
{
    bool sent = ws_send(ws, text);

    net_flush_first(ws->priv->net);
    return sent;
}

void ws_close(struct ws *ws, int code, const char *reason)
{
    struct ws_private *p = ws->priv;

    if (p->state == WS_OPENING)
        net_close(p->net);
    if (p->state != WS_OPEN || p->net->closing)
        return;
    send_close(p, code, str_of(reason));
    net_conn_deadline(p->net, ws->loop->mono_ms + WS_CLOSE_MS);
}

/* --- reading --- */

static void take_close(struct ws_private *p, struct str payload)
{
    int code = WS_NO_CODE;

    if (payload.len >= 2)
        code = (unsigned char)payload.at[0] << 8 | (unsigned char)payload.at[1];
    /* Codes that nobody may send. */
    if (payload.len == 1 ||
        (payload.len >= 2 && !((code >= 1000 && code <= 1003) || (code >= 1007 && code <= 1014) ||
                               (code >= 3000 && code <= 4999)))) {
        fail(p, WS_PROTOCOL);
    } else if (payload.len > 2 && !str_is_utf8(str_from(payload, 2))) {
        fail(p, WS_BAD_UTF8);
    } else {
        p->code_got = code;
        if (p->state == WS_OPEN)
            send_close(p, code, STR(""));
        net_close_after(p->net);
    }
}

/* 0, or the code to fail with. wslay has checked lengths and the form of control frames. */
static int check_frame(const struct ws_private *p, const struct wslay_frame_iocb *frame)
{
    if (frame->rsv != 0 || (frame->mask != 0) == p->client)
        return WS_PROTOCOL;
    if (wslay_is_ctrl_frame(frame->opcode))
        return frame->opcode > WSLAY_PONG ? WS_PROTOCOL : 0;
    if (frame->opcode == WSLAY_BINARY_FRAME)
        return WS_NOT_TEXT;
    if (frame->opcode > WSLAY_BINARY_FRAME)
        return WS_PROTOCOL;
    if ((frame->opcode == WSLAY_CONTINUATION_FRAME) != p->in_message)
        return WS_PROTOCOL;
    if (frame->payload_length > (uint64_t)p->limits->message_bytes_max - p->message.len)
        return WS_TOO_BIG;
    return 0;
}

/* After our close frame further input is ignored. */
static void deliver(struct ws_private *p, struct str text)
{
    if (p->state != WS_OPEN)
        return;
    if (str_is_utf8(text))
        p->ws.handler->message(&p->ws, text);
    else
        fail(p, WS_BAD_UTF8);
}

static void end_frame(struct ws_private *p, struct buf *pieces, struct str last)
{
    bool control = wslay_is_ctrl_frame(p->frame_opcode);
    struct str whole = last;
    struct buf text;

    p->in_frame = false;
    if (!control && !p->frame_fin) {
        p->in_message = true;
        buf_str(pieces, last);
        return;
    }
    if (pieces->len > 0) {
        buf_str(pieces, last);
        whole = buf_view(pieces);
    }
    text = *pieces; /* detached first: the handler may close the connection */
    *pieces = (struct buf){0};
    if (!control) {
        p->in_message = false;
        deliver(p, whole);
    } else if (p->frame_opcode == WSLAY_CONNECTION_CLOSE) {
        take_close(p, whole);
    } else if (p->frame_opcode == WSLAY_PING && p->state == WS_OPEN) {
        send_frame(p, WSLAY_PONG, whole);
    }
    buf_free(&text);
}

static void take_piece(struct ws_private *p, const struct wslay_frame_iocb *frame)
{
    struct str piece = {.at = (const char *)frame->data, .len = frame->data_length};
    struct buf *pieces;

    if (!p->in_frame) {
        int code = check_frame(p, frame);

        if (code) {
            fail(p, code);
            return;
        }
        p->in_frame = true;
        p->frame_opcode = frame->opcode;
        p->frame_fin = frame->fin;
        p->frame_left = frame->payload_length;
        p->reader->inside -= frame->mask ? 6 : 2;
        p->reader->inside -= frame->payload_length > 0xffff ? 8
                             : frame->payload_length > 125  ? 2
                                                            : 0;
    }
    assert(piece.len <= p->frame_left && piece.len <= p->reader->inside);
    p->frame_left -= piece.len;
    p->reader->inside -= piece.len;
    pieces = wslay_is_ctrl_frame(p->frame_opcode) ? &p->control : &p->message;
    if (p->frame_left > 0)
        buf_str(pieces, piece);
    else
        end_frame(p, pieces, piece);
}

static void unmask(char *to, const char *from, size_t len, const char mask[4])
{
    uint64_t wide, word;
    size_t i = 0;

    memcpy(&wide, mask, 4);
    memcpy((char *)&wide + 4, mask, 4);
    for (; i + sizeof word <= len; i += sizeof word) {
        memcpy(&word, from + i, sizeof word);
        word ^= wide;
        memcpy(to + i, &word, sizeof word);
    }
    for (; i < len; i++)
        to[i] = (char)(from[i] ^ mask[i % 4]);
}

/* Fast path for nearly all frames of clients: a short text in a single frame that has arrived
 * completely. wslay handles everything else, and must be between two frames here. */
static bool take_short(struct ws_private *p)
{
    struct ws_reader *reader = p->reader;
    const unsigned char *at = (const unsigned char *)reader->input.at;
    struct buf *text = &ws_loop(p->ws.loop)->text;
    size_t head = 6, len;

    if (p->client || p->in_frame || p->in_message || reader->inside > 0 ||
        reader->input.len < head || at[0] != (FRAME_FIN | WSLAY_TEXT_FRAME) ||
        !(at[1] & FRAME_MASK))
        return false;
    len = at[1] & ~FRAME_MASK;
    if (len == FRAME_LEN_64)
        return false;
    if (len == FRAME_LEN_16) {
        len = (size_t)at[2] << 8 | at[3];
        head = 8;
        if (len < FRAME_LEN_16)
            return false;
    }
    if (reader->input.len < head + len || len > (size_t)p->limits->message_bytes_max)
        return false;
    buf_clear(text);
    buf_reserve(text, len + 1);
    unmask(text->at, (const char *)at + head, len, (const char *)at + head - 4);
    text->len = len;
    reader->input.at += head + len;
    reader->input.len -= head + len;
    deliver(p, buf_view(text));
    return true;
}

/* Frames. */
static void ws_read(struct ws_private *p, struct str bytes)
{
    struct ws_loop *wsl = ws_loop(p->ws.loop);
    struct wslay_frame_iocb frame;

    assert(p->state != WS_OPENING);
    p->heard_ms = p->ws.loop->mono_ms;
    p->pinged = false;
    if (!p->reader && wsl->spare) {
        p->reader = wsl->spare;
        assert(p->reader->inside == 0 && wsl->spare_count > 0);
        wsl->spare = p->reader->next;
        wsl->spare_count--;
    } else if (!p->reader) {
        p->reader = mem_new(struct ws_reader);
        p->reader->ctx = context_new(p->reader);
    }
    p->reader->input = bytes;
    while (!p->net->closing) {
        ssize_t len;

        if (take_short(p))
            continue;
        len = wslay_frame_recv(p->reader->ctx, &frame);
        if (len == WSLAY_ERR_WANT_READ)
            break;
        if (len < 0)
            fail(p, WS_PROTOCOL);
        else
            take_piece(p, &frame);
    }
    if (p->net->closing || p->in_frame || p->reader->inside > 0)
        return;
    /* Only a reader that is between two frames can serve another connection. */
    assert(p->reader->inside == 0 && p->reader->input.len == 0);
    if (wsl->spare_count == WS_SPARE_READERS) {
        reader_free(p->reader);
    } else {
        p->reader->next = wsl->spare;
        wsl->spare = p->reader;
        wsl->spare_count++;
    }
    p->reader = NULL;
}

/* --- opening and closing --- */

static struct ws_private *ws_new(struct loop *loop, const struct ws_handler *handler,
                                 const struct ws_limits *limits, void *user)
{
    struct ws_private *p = mem_new(struct ws_private);

    assert(handler->message && handler->closed && limits->message_bytes_max > 0);
    p->ws = (struct ws){.loop = loop, .handler = handler, .user = user, .priv = p};
    p->limits = limits;
    return p;
}

/* The handshake is done. */
static void ws_begin(struct ws_private *p)
{
    assert(p->net && p->state == WS_OPENING && !p->opening);
    p->state = WS_OPEN;
    p->heard_ms = p->ws.loop->mono_ms;
    net_conn_deadline(p->net, p->limits->ping_ms > 0 ? p->heard_ms + p->limits->ping_ms : 0);
}

static void on_opened(struct net_conn *net)
{
    /* Client role only: the request has been written and the server's response is awaited. */
    net_conn_deadline(net, net->loop->mono_ms + http_limits_default.net.header_timeout_ms);
}

static void on_data(struct net_conn *net, struct str bytes)
{
    struct ws_private *p = net->user;

    if (p->state == WS_OPENING)
        ws_opening_read(p, bytes);
    else
        ws_read(p, bytes);
}

static void on_expired(struct net_conn *net)
{
    struct ws_private *p = net->user;
    int64_t ping_ms = p->limits->ping_ms;
    int64_t due_ms = p->heard_ms + ping_ms;

    if (p->state != WS_OPEN || p->pinged) {
        if (!net->error)
            net->error = "the peer is silent";
        net_close(net);
        return;
    }
    if (due_ms <= net->loop->mono_ms) {
        p->pinged = true;
        send_frame(p, WSLAY_PING, STR(""));
        due_ms = net->loop->mono_ms + ping_ms;
    }
    net_conn_deadline(net, due_ms);
}

static void on_written(struct net_conn *net)
{
    struct ws_private *p = net->user;

    if (p->state == WS_OPEN && p->ws.handler->written)
        p->ws.handler->written(&p->ws);
}

static void on_closed(struct net_conn *net)
{
    struct ws_private *p = net->user;
    int code = p->code_got ? p->code_got : p->code_sent ? p->code_sent : WS_BROKEN;

    p->ws.error = net->error;
    p->ws.handler->closed(&p->ws, code);
    reader_free(p->reader);
    ws_opening_free(p);
    buf_free(&p->message);
    buf_free(&p->control);
    free(p);
}

static const struct net_handler ws_net_handler = {.opened = on_opened,
                                                  .data = on_data,
                                                  .closed = on_closed,
                                                  .expired = on_expired,
                                                  .written = on_written};

/* --- handshakes --- */

enum { WS_KEY_LEN = 24, WS_ANSWER_BYTES_MAX = 16 * 1024, WS_ANSWER_HEADERS_MAX = 64 };

static const char base64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* --- the server's role --- */

static void accept_for(struct str key, char *ret_accept)
{
    char text[WS_KEY_LEN + 36];

    assert(key.len == WS_KEY_LEN);
    memcpy(text, key.at, WS_KEY_LEN);
    memcpy(text + WS_KEY_LEN, "258EAFA5-E914-47DA-95CA-C5AB0DC85B11", 36);
    tls_sha1_base64((struct str){.at = text, .len = sizeof text}, ret_accept);
}

/* Base64 of 16 bytes: 22 digits, the last of which carries two bits, and two padding characters. */
static bool is_key(struct str key)
{
    if (key.len != WS_KEY_LEN || key.at[22] != '=' || key.at[23] != '=' ||
        !strchr("AQgw", key.at[21]))
        return false;
    for (size_t i = 0; i < 22; i++)
        if (!key.at[i] || !strchr(base64, key.at[i]))
            return false;
    return true;
}

bool ws_wanted(const struct http_request *req)
{
    return req->method == HTTP_M_GET && http_wants_upgrade(req) && req->body.len == 0 &&
           http_list_has(http_header_get(req, "upgrade"), STR("websocket")) &&
           str_is(http_header_get(req, "sec-websocket-version"), "13") &&
           is_key(http_header_get(req, "sec-websocket-key"));
}

struct ws *ws_accept(struct http_request *req, const struct ws_handler *handler,
                     const struct ws_limits *limits, void *user)
{
    struct ws_private *p;
    char accept[32];

    assert(ws_wanted(req));
    if (!http_can_take(req))
        return NULL;
    p = ws_new(req->loop, handler, limits, user);
    str_copy(str_of(req->peer), p->ws.peer, sizeof p->ws.peer);
    accept_for(http_header_get(req, "sec-websocket-key"), accept);
    p->net = http_take(req, &ws_net_handler, p);
    p->net->queue_bounded = !limits->counts_behind;
    net_write(p->net, STR("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
                          "Connection: Upgrade\r\nSec-WebSocket-Accept: "));
    net_write(p->net, str_of(accept));
    net_write(p->net, STR("\r\n\r\n"));
    ws_begin(p);
    return &p->ws;
}

/* --- the client's role --- */

static void ws_opening_free(struct ws_private *p)
{
    if (!p->opening)
        return;
    buf_free(&p->opening->answer);
    free(p->opening);
    p->opening = NULL;
}

static struct str find(const struct http_head *head, const char *name)
{
    return http_header_find(head->headers, head->header_count, name);
}

/* NULL when the server accepted the handshake. */
static const char *judge(struct ws_private *p, struct str text)
{
    struct http_header headers[WS_ANSWER_HEADERS_MAX];
    struct http_head head = {.headers = headers, .header_max = WS_ANSWER_HEADERS_MAX};

    if (http_head_response(&head, text) != ERR_OK)
        return "the server's answer is malformed";
    if (head.status != 101) {
        p->ws.status = head.status;
        return "the server refused the upgrade";
    }
    if (!head.upgrade || !http_list_has(find(&head, "upgrade"), STR("websocket")) ||
        !str_is(find(&head, "sec-websocket-accept"), p->opening->accept))
        return "the server's handshake is wrong";
    if (find(&head, "sec-websocket-extensions").at || find(&head, "sec-websocket-protocol").at)
        return "the server chose what was not offered";
    return NULL;
}

/* The server's answer. */
static void ws_opening_read(struct ws_private *p, struct str bytes)
{
    struct ws_opening *opening = p->opening;
    enum http_scan_result result;
    const char *error = NULL;
    struct buf answer;
    size_t len = 0;

    buf_str(&opening->answer, bytes);
    result = http_scan(&opening->scan, buf_view(&opening->answer), &len);
    if (result == HTTP_SCAN_BAD || opening->answer.len - len > WS_ANSWER_BYTES_MAX * 8)
        error = "the server's answer is malformed";
    else if (result == HTTP_SCAN_MORE && opening->answer.len <= WS_ANSWER_BYTES_MAX)
        return;
    else if (result == HTTP_SCAN_MORE)
        error = "the server's answer is too long";
    else
        error = judge(p, (struct str){.at = opening->answer.at, .len = len});
    if (error) {
        if (!p->net->error)
            p->net->error = error;
        net_close(p->net);
        return;
    }
    answer = opening->answer; /* may hold the first frames */
    opening->answer = (struct buf){0};
    ws_opening_free(p);
    str_copy(str_of(p->net->peer), p->ws.peer, sizeof p->ws.peer);
    ws_begin(p);
    if (p->ws.handler->opened)
        p->ws.handler->opened(&p->ws);
    if (answer.len > len && !p->net->closing)
        ws_read(p, (struct str){.at = answer.at + len, .len = answer.len - len});
    buf_free(&answer);
}

static void write_request(struct ws_private *p, const struct url *url,
                          const struct http_header *headers, size_t header_count)
{
    unsigned char random[16];
    char key[WS_KEY_LEN + 1];
    struct buf text = {0};

    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        abort();
    for (size_t i = 0, bits = 0; i < 22; i++, bits += 6) {
        unsigned pair =
            (unsigned)random[bits / 8] << 8 | (bits / 8 < 15 ? random[bits / 8 + 1] : 0);

        key[i] = base64[pair >> (10 - bits % 8) & 63];
    }
    memcpy(key + 22, "==", 3);
    accept_for(str_of(key), p->opening->accept);
    buf_fmt(&text, "GET " STR_FMT " HTTP/1.1\r\nHost: ", STR_ARG(url->target));
    buf_fmt(&text, url->is_v6 ? "[" STR_FMT "]" : STR_FMT, STR_ARG(url->host));
    if (url->port_number)
        buf_fmt(&text, ":%d", url->port_number);
    buf_fmt(&text,
            "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: %s\r\n",
            key);
    for (size_t i = 0; i < header_count; i++)
        buf_fmt(&text, STR_FMT ": " STR_FMT "\r\n", STR_ARG(headers[i].name),
                STR_ARG(headers[i].value));
    buf_str(&text, STR("\r\n"));
    net_write(p->net, buf_view(&text));
    buf_free(&text);
}

enum err ws_connect(struct loop *loop, const char *url_text, const struct http_header *headers,
                    size_t header_count, struct net_tls *tls, const struct ws_handler *handler,
                    const struct ws_limits *limits, void *user, struct ws **ret_ws,
                    struct problem *why)
{
    struct net_limits net_limits = http_limits_default.net;
    struct ws_private *p;
    struct url url;
    char host[256];
    bool secure;
    int port;
    enum err err;

    if (!url_parse(str_of(url_text), &url) || url.port_number < 0 ||
        !str_copy(url.host, host, sizeof host))
        return problem_set(why, ERR_BAD_FIELD, "url", "\"%s\" is not a WebSocket URL.", url_text);
    secure = str_eq_nocase(url.scheme, STR("wss"));
    if (!secure && !str_eq_nocase(url.scheme, STR("ws")))
        return problem_set(why, ERR_BAD_FIELD, "url", "\"%s\" must begin with ws:// or wss://.",
                           url_text);
    if (secure && !tls)
        return problem_set(why, ERR_BAD_CONFIG, "url", "wss:// needs TLS to be set up.");
    port = url.port_number ? url.port_number : secure ? 443 : 80;
    p = ws_new(loop, handler, limits, user);
    p->client = true;
    net_limits.write_queue_bytes_max = 2 * limits->queue_bytes_max;
    err = net_connect(loop, host, port, secure ? tls : NULL, &net_limits, &ws_net_handler, p,
                      &p->net, why);
    if (err) {
        free(p);
        return err;
    }
    p->opening = mem_new(struct ws_opening);
    write_request(p, &url, headers, header_count);
    *ret_ws = &p->ws;
    return ERR_OK;
}
