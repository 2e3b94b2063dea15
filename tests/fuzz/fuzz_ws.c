/* Any bytes after a WebSocket handshake. A second, simpler reader, written from RFC 6455 and given
 * the whole input, predicts the result: the messages the handler gets, the frames sent back, and
 * the close code. The connection must do exactly that, however the bytes are cut.
 *
 * The first byte of an input chooses where it is cut. */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wire.h"

enum { MESSAGE_MAX = 300 };

static const struct ws_limits ws_limits = {
    .message_bytes_max = MESSAGE_MAX, .queue_bytes_max = 1 << 24, .ping_ms = 0};

/* The result of an input. */
struct result {
    struct buf events; /* messages with their lengths, then the close code */
    struct buf sent;   /* frames after the 101 */
};

static struct wire wire;
static struct result got;

static void must(bool held, const char *what)
{
    if (held)
        return;
    fprintf(stderr, "does not hold: %s\n", what);
    abort();
}

static void add_message(struct buf *events, struct str text)
{
    buf_fmt(events, "%zu:", text.len);
    buf_str(events, text);
}

/* --- expected --- */

static void sent_frame(struct buf *sent, int opcode, struct str payload)
{
    buf_char(sent, (char)(0x80 | opcode));
    buf_char(sent, (char)payload.len); /* only control frames are sent here */
    buf_str(sent, payload);
}

static void sent_close(struct buf *sent, int code)
{
    char payload[2] = {(char)(code >> 8), (char)code};

    sent_frame(sent, 8, (struct str){.at = payload, .len = code == 1005 ? 0 : 2});
}

struct frame {
    bool fin, masked;
    int rsv, opcode;
    uint64_t len;
    size_t header_len;
    unsigned char mask[4];
};

/* 0: incomplete; -1: malformed; 1: read. */
static int read_header(const uint8_t *at, size_t left, struct frame *frame)
{
    size_t extra;

    if (left < 2)
        return 0;
    *frame = (struct frame){.fin = at[0] >> 7,
                            .rsv = at[0] >> 4 & 7,
                            .opcode = at[0] & 15,
                            .masked = at[1] >> 7,
                            .len = at[1] & 127};
    if (frame->opcode >= 8 && (!frame->fin || frame->len > 125))
        return -1;
    extra = frame->len == 126 ? 2 : frame->len == 127 ? 8 : 0;
    if (left < 2 + extra)
        return 0;
    if (extra > 0) {
        frame->len = 0;
        for (size_t i = 0; i < extra; i++)
            frame->len = frame->len << 8 | at[2 + i];
        if (frame->len >> 63 || frame->len < (extra == 2 ? 126u : 65536u))
            return -1;
    }
    frame->header_len = 2 + extra + (frame->masked ? 4 : 0);
    if (left < frame->header_len)
        return 0;
    if (frame->masked)
        memcpy(frame->mask, at + 2 + extra, 4);
    return frame->len == 0 || left > frame->header_len;
}

static int judge(const struct frame *frame, bool in_message, size_t message_len)
{
    if (frame->rsv || !frame->masked)
        return 1002;
    if (frame->opcode >= 8)
        return frame->opcode > 10 ? 1002 : 0;
    if (frame->opcode == 2)
        return 1003;
    if (frame->opcode > 2 || (frame->opcode == 0) != in_message)
        return 1002;
    return frame->len > MESSAGE_MAX - message_len ? 1009 : 0;
}

static int close_code(struct str payload)
{
    int code = 1005;

    if (payload.len == 1)
        return -1002;
    if (payload.len >= 2) {
        code = (unsigned char)payload.at[0] << 8 | (unsigned char)payload.at[1];
        if (code < 1000 || code > 4999 || (code > 1003 && code < 1007) ||
            (code > 1014 && code < 3000))
            return -1002;
        if (!str_is_utf8((struct str){.at = payload.at + 2, .len = payload.len - 2}))
            return -1007;
    }
    return code;
}

static void expect(struct str bytes, struct result *want)
{
    struct buf message = {0};
    struct buf payload = {0};
    bool in_message = false;
    int code = 0;

    while (!code) {
        struct frame frame;
        int read = read_header((const uint8_t *)bytes.at, bytes.len, &frame);

        if (read == 0)
            break;
        code = read < 0 ? 1002 : judge(&frame, in_message, message.len);
        if (code || bytes.len - frame.header_len < frame.len)
            break;
        buf_clear(&payload);
        for (size_t i = 0; i < frame.len; i++)
            buf_char(&payload, (char)(bytes.at[frame.header_len + i] ^ (char)frame.mask[i % 4]));
        bytes.at += frame.header_len + frame.len;
        bytes.len -= frame.header_len + frame.len;
        if (frame.opcode == 8) {
            code = abs(close_code(buf_view(&payload)));
        } else if (frame.opcode == 9) {
            sent_frame(&want->sent, 10, buf_view(&payload));
        } else if (frame.opcode < 8) {
            buf_str(&message, buf_view(&payload));
            in_message = !frame.fin;
            if (frame.fin && !str_is_utf8(buf_view(&message)))
                code = 1007;
            else if (frame.fin)
                add_message(&want->events, buf_view(&message));
            if (frame.fin)
                buf_clear(&message);
        }
    }
    if (code)
        sent_close(&want->sent, code);
    buf_fmt(&want->events, "closed %d", code ? code : 1006);
    buf_free(&message);
    buf_free(&payload);
}

/* --- actual --- */

static void on_message(struct ws *ws, struct str text)
{
    must(str_is_utf8(text) && text.len <= MESSAGE_MAX, "a message is text within its limit");
    add_message(&got.events, text);
}

static void on_closed(struct ws *ws, int code)
{
    buf_fmt(&got.events, "closed %d", code);
}

static const struct ws_handler handler = {.message = on_message, .closed = on_closed};

static void on_request(struct http_request *req)
{
    must(ws_wanted(req), "the handshake is right");
    ws_accept(req, &handler, &ws_limits, NULL);
}

static const struct http_callbacks callbacks = {.request = on_request};

static const char upgrade[] = "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n"
                              "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                              "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/* cut 0: the handshake and all frames in one packet. */
static void run_over(struct str bytes, size_t cut)
{
    struct buf first = {0};
    const char *end;

    buf_clear(&got.events);
    buf_clear(&got.sent);
    buf_add(&first, upgrade, sizeof upgrade - 1);
    if (cut == 0)
        buf_str(&first, bytes);
    wire_connect(&wire);
    wire_send(&wire, buf_view(&first));
    for (size_t len; cut > 0 && bytes.len > 0; bytes.at += len, bytes.len -= len) {
        len = cut < bytes.len ? cut : bytes.len;
        wire_send(&wire, (struct str){.at = bytes.at, .len = len});
    }
    wire_turn(&wire);
    end = memmem(wire.got.at, wire.got.len, "\r\n\r\n", 4);
    must(end && memcmp(wire.got.at, "HTTP/1.1 101 ", 13) == 0, "the handshake is answered");
    buf_add(&got.sent, end + 4, wire.got.len - (size_t)(end + 4 - wire.got.at));
    wire_hang_up(&wire);
    buf_free(&first);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct str bytes = {.at = (const char *)data + 1, .len = size - 1};
    struct result want = {0};

    if (size < 2 || size > 8192)
        return 0;
    if (!wire.loop.read_buf)
        wire_init(&wire, &http_limits_default, &callbacks, NULL);
    expect(bytes, &want);
    for (int whole = 0; whole < 2; whole++) {
        run_over(bytes, whole ? 0 : 1 + data[0] % 64);
        must(str_eq(buf_view(&got.events), buf_view(&want.events)),
             "the handler gets the same events");
        must(str_eq(buf_view(&got.sent), buf_view(&want.sent)), "the same frames are sent");
    }
    buf_free(&want.events);
    buf_free(&want.sent);
    return 0;
}
