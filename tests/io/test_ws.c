/* WebSockets frame by frame over raw sockets, then both roles together. */
#include "io/ws.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../unit.h"
#include "base/mem.h"
#include "frames.h"
#include "peer.h"
#include "site.h"

enum { TEXT = 0x1, BINARY = 0x2, CLOSE = 0x8, PING = 0x9, PONG = 0xa };

struct piece {
    int first; /* FIN, RSV and opcode; -1: `text` is sent raw */
    struct str text;
};

#define FRAME(byte, literal)                                                                       \
    {                                                                                              \
        (byte),                                                                                    \
        {                                                                                          \
            (literal), sizeof(literal) - 1                                                         \
        }                                                                                          \
    }
#define RAW(literal) FRAME(-1, literal)

/* `want`: what comes back: t:TEXT, pong:TEXT, and close:CODE (0: no code), after which the
 * connection must end. Without a close it must stay usable. */
static const struct {
    struct piece pieces[5];
    const char *want;
    int code; /* the code that the handler gets, if it is closed */
} rows[] = {
    /* messages */
    {{FRAME(FRAME_FIN | TEXT, "hello")}, "t:hello", 0},
    {{FRAME(FRAME_FIN | TEXT, "")}, "t:", 0},
    {{FRAME(FRAME_FIN | TEXT, "\xe4\xb8\xad\xf0\x9f\x98\x80")},
     "t:\xe4\xb8\xad\xf0\x9f\x98\x80",
     0},
    {{FRAME(TEXT, "a"), FRAME(0, "b"), FRAME(FRAME_FIN, "c")}, "t:abc", 0},
    {{FRAME(TEXT, ""), FRAME(0, ""), FRAME(FRAME_FIN, "")}, "t:", 0},
    {{FRAME(TEXT, "\xe4\xb8"), FRAME(FRAME_FIN, "\xad")}, "t:\xe4\xb8\xad", 0},
    {{FRAME(TEXT, "a"), FRAME(FRAME_FIN | PING, "p"), FRAME(FRAME_FIN, "b")}, "pong:p t:ab", 0},
    {{FRAME(TEXT, "a"), FRAME(FRAME_FIN | PONG, "p"), FRAME(FRAME_FIN, "b")}, "t:ab", 0},
    {{FRAME(FRAME_FIN | TEXT, "a"), FRAME(FRAME_FIN | TEXT, "b")}, "t:a t:b", 0},
    {{FRAME(FRAME_FIN | PING, "")}, "pong:", 0},
    {{FRAME(FRAME_FIN | PONG, "unasked")}, "", 0},
    /* closes */
    {{FRAME(FRAME_FIN | CLOSE, "\x03\xe8")}, "close:1000", 1000},
    {{FRAME(FRAME_FIN | CLOSE, "")}, "close:0", 1005},
    {{FRAME(FRAME_FIN | CLOSE, "\x03\xe8"
                               "bye")},
     "close:1000",
     1000},
    {{FRAME(FRAME_FIN | CLOSE, "\x0b\xb8")}, "close:3000", 3000},
    {{FRAME(FRAME_FIN | CLOSE, "\x13\x87")}, "close:4999", 4999},
    {{FRAME(FRAME_FIN | CLOSE, "\x03")}, "close:1002", 1002},
    {{FRAME(FRAME_FIN | CLOSE, "\x03\xec")}, "close:1002", 1002}, /* 1004 */
    {{FRAME(FRAME_FIN | CLOSE, "\x03\xed")}, "close:1002", 1002}, /* 1005 */
    {{FRAME(FRAME_FIN | CLOSE, "\x03\xee")}, "close:1002", 1002}, /* 1006 */
    {{FRAME(FRAME_FIN | CLOSE, "\x03\xf7")}, "close:1002", 1002}, /* 1015 */
    {{FRAME(FRAME_FIN | CLOSE, "\x00\x00")}, "close:1002", 1002},
    {{FRAME(FRAME_FIN | CLOSE, "\x07\xd0")}, "close:1002", 1002}, /* 2000 */
    {{FRAME(FRAME_FIN | CLOSE, "\x13\x88")}, "close:1002", 1002}, /* 5000 */
    {{FRAME(FRAME_FIN | CLOSE, "\x03\xe8\xff")}, "close:1007", 1007},
    {{FRAME(FRAME_FIN | CLOSE, "\x03\xe8"), FRAME(FRAME_FIN | TEXT, "x")}, "close:1000", 1000},
    {{FRAME(TEXT, "a"), FRAME(FRAME_FIN | CLOSE, "\x03\xe8")}, "close:1000", 1000},
    /* protocol errors */
    {{FRAME(FRAME_FIN | BINARY, "x")}, "close:1003", 1003},
    {{FRAME(BINARY, "x")}, "close:1003", 1003},
    {{FRAME(FRAME_FIN | TEXT, "\xff")}, "close:1007", 1007},
    {{FRAME(FRAME_FIN | TEXT, "\xed\xa0\x80")}, "close:1007", 1007},
    {{FRAME(FRAME_FIN | TEXT, "\xc0\xaf")}, "close:1007", 1007},
    {{FRAME(FRAME_FIN | TEXT, "\xe4\xb8")}, "close:1007", 1007},
    {{FRAME(TEXT, "\xe4"), FRAME(FRAME_FIN, "x")}, "close:1007", 1007},
    {{RAW("\x81\x05hello")}, "close:1002", 1002}, /* not masked */
    {{RAW("\x89\x00")}, "close:1002", 1002},
    {{FRAME(FRAME_FIN | 0x40 | TEXT, "x")}, "close:1002", 1002}, /* RSV1 without deflate */
    {{FRAME(FRAME_FIN | 0x20 | TEXT, "x")}, "close:1002", 1002},
    {{FRAME(FRAME_FIN | 0x10 | TEXT, "x")}, "close:1002", 1002},
    {{FRAME(FRAME_FIN | 0x70 | PING, "")}, "close:1002", 1002},
    {{FRAME(FRAME_FIN | 0x3, "x")}, "close:1002", 1002},
    {{FRAME(FRAME_FIN | 0x7, "x")}, "close:1002", 1002},
    {{FRAME(FRAME_FIN | 0xb, "x")}, "close:1002", 1002},
    {{FRAME(FRAME_FIN | 0xf, "x")}, "close:1002", 1002},
    {{FRAME(FRAME_FIN, "x")}, "close:1002", 1002}, /* continues no message */
    {{FRAME(0, "x")}, "close:1002", 1002},
    {{FRAME(TEXT, "a"), FRAME(FRAME_FIN | TEXT, "b")}, "close:1002", 1002},
    {{FRAME(TEXT, "a"), FRAME(FRAME_FIN | BINARY, "b")}, "close:1003", 1003},
    {{FRAME(FRAME_FIN | TEXT, "ab"), FRAME(FRAME_FIN, "c")}, "t:ab close:1002", 1002},
    {{FRAME(PING, "x")}, "close:1002", 1002}, /* a fragmented control frame */
    {{FRAME(CLOSE, "")}, "close:1002", 1002},
    {{RAW("\x89\xfe\x00\x7e\x00\x00\x00\x00")}, "close:1002", 1002}, /* a ping of 126 bytes */
    {{RAW("\x88\xff\x00\x00\x00\x00\x00\x01\x00\x00")}, "close:1002", 1002},
    {{RAW("\x81\xff\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")},
     "close:1002",
     1002}, /* 2^63 */
    {{RAW("\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00x")}, "close:1009", 1009},
    {{RAW("\x81\xfe\x00\x05\x00\x00\x00\x00hello")},
     "close:1002",
     1002}, /* a longer length field than needed */
    {{RAW("\x81\xff\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00hello")}, "close:1002", 1002},
    {{FRAME(FRAME_FIN | TEXT, "0123456789012345678901234567890123456789")}, "close:1009", 1009},
    {{FRAME(TEXT, "01234567890123456789"), FRAME(FRAME_FIN, "01234567890123456789")},
     "close:1009",
     1009},
};

static void await_word(struct peer *peer, struct str word, bool *ret_closed, size_t row)
{
    struct str kind = str_cut(&word, ':');
    unsigned char first = 0;
    struct buf payload = {0};
    int64_t code = 0;
    int got = 0;

    if (!frame_read(peer, &first, &payload))
        fail_msg("row %zu: the connection ended before " STR_FMT, row, STR_ARG(kind));
    if (str_is(kind, "close")) {
        if (payload.len >= 2)
            got = (unsigned char)payload.at[0] << 8 | (unsigned char)payload.at[1];
        assert_true(str_int(word, &code));
        if (first != (FRAME_FIN | CLOSE) || got != code)
            fail_msg("row %zu: got frame %02x with code %d", row, first, got);
        *ret_closed = true;
    } else {
        unsigned char wanted = str_is(kind, "pong") ? PONG : TEXT;

        if (first != (FRAME_FIN | wanted) || !str_eq(buf_view(&payload), word))
            fail_msg("row %zu: got frame %02x \"" STR_FMT "\"", row, first,
                     STR_ARG(buf_view(&payload)));
    }
    buf_free(&payload);
}

static void check(struct site *site, size_t row, bool bytewise)
{
    struct str want = str_of(rows[row].want);
    int closed_before = site->ws_closed;
    bool closed = false;
    struct buf raw = {0};
    struct peer peer;

    for (size_t i = 0; i < COUNT_OF(rows[row].pieces); i++) {
        struct piece piece = rows[row].pieces[i];

        if (piece.first < 0)
            buf_str(&raw, piece.text);
        else if (piece.text.at)
            frame_add(&raw, (unsigned char)piece.first, piece.text);
    }
    frame_open(&peer, site_port(site));
    if (bytewise)
        peer_send_bytewise(&peer, buf_view(&raw));
    else
        peer_send(&peer, buf_view(&raw));
    while (want.len > 0)
        await_word(&peer, str_cut(&want, ' '), &closed, row);
    if (!closed) {
        buf_clear(&raw);
        frame_add(&raw, FRAME_FIN | TEXT, STR("still here"));
        frame_add(&raw, FRAME_FIN | CLOSE, STR("\x03\xe9"));
        peer_send(&peer, buf_view(&raw));
        await_word(&peer, STR("t:still here"), &closed, row);
        await_word(&peer, STR("close:1001"), &closed, row);
    }
    if (!peer_ended(&peer))
        fail_msg("row %zu: stays open", row);
    peer_close(&peer);
    site_await(site, &site->ws_closed, closed_before + 1);
    if (site->ws_code != (rows[row].code ? rows[row].code : 1001))
        fail_msg("row %zu: the handler got code %d", row, site->ws_code);
    buf_free(&raw);
}

static void test_frames(void **state)
{
    static struct site site;

    site = (struct site){.ws_limits.message_bytes_max = 32};
    site_start(&site);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        check(&site, i, false);
        check(&site, i, true);
    }
    site_stop(&site);
}

static void test_sizes(void **state)
{
    static const size_t sizes[] = {125, 126, 4083, 4095, 4096, 4097, 65535, 65536, 1000000};
    static struct site site;
    unsigned char first;
    struct buf payload = {0};
    struct peer peer;

    site = (struct site){0};
    site_start(&site);
    frame_open(&peer, site_port(&site));
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        struct buf text = {0};
        struct buf raw = {0};

        buf_reserve(&text, sizes[i]);
        memset(text.at, 'a' + (int)i, sizes[i]);
        text.len = sizes[i];
        frame_add(&raw, FRAME_FIN | TEXT, buf_view(&text));
        peer_send(&peer, buf_view(&raw));
        assert_true(frame_read(&peer, &first, &payload));
        assert_true(str_eq(buf_view(&payload), buf_view(&text)));
        buf_free(&text);
        buf_free(&raw);
    }
    peer_close(&peer);
    site_await(&site, &site.ws_closed, 1);
    assert_int_equal(site.ws_code, 1006);
    buf_free(&payload);
    site_stop(&site);
}

/* --- the handshake --- */

static void test_handshake_errors(void **state)
{
    static struct peer_reply reply;
    static struct site site;
    static const struct {
        const char *lines;
        int status;
    } cases[] = {
        {"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
         "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
         101},
        {"Upgrade: WebSocket\r\nConnection: keep-alive, upgrade\r\nSec-WebSocket-Version: 13\r\n"
         "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Extensions: "
         "permessage-deflate\r\n",
         101},
        {"", 426},
        {"Upgrade: h2c\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
         "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
         426},
        {"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
         "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
         426},
        {"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 8\r\n"
         "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
         426},
        {"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n", 426},
        {"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
         "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=\r\n",
         426},
        {"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
         "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZR==\r\n", /* extra bits after the 16th byte */
         426},
        {"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
         "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25j-Q==\r\n",
         426},
    };

    site = (struct site){0};
    site_start(&site);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct buf raw = {0};
        struct peer peer;

        buf_fmt(&raw, "GET /ws HTTP/1.1\r\nHost: a\r\n%s\r\n", cases[i].lines);
        peer_dial(&peer, site_port(&site));
        peer_send(&peer, buf_view(&raw));
        assert_true(peer_reply(&peer, &reply, true));
        if (reply.status != cases[i].status)
            fail_msg("case %zu: %d", i, reply.status);
        assert_null(strcasestr(reply.head, "Sec-WebSocket-Extensions"));
        peer_close(&peer);
        buf_free(&raw);
    }
    site_stop(&site);
}

static void test_frames_in_the_packet_of_the_handshake(void **state)
{
    static struct peer_reply reply;
    static struct site site;
    bool closed = false;
    struct buf raw = {0};
    struct peer peer;

    site = (struct site){0};
    site_start(&site);
    buf_str(&raw, str_of(frame_upgrade));
    frame_add(&raw, FRAME_FIN | TEXT, STR("first"));
    frame_add(&raw, FRAME_FIN | TEXT, STR("second"));
    raw.len -= 3; /* the second one is incomplete */
    peer_dial(&peer, site_port(&site));
    peer_send(&peer, buf_view(&raw));
    assert_true(peer_reply(&peer, &reply, true));
    assert_int_equal(reply.status, 101);
    await_word(&peer, STR("t:first"), &closed, 0);
    raw.len += 3;
    peer_send(&peer, (struct str){.at = raw.at + raw.len - 3, .len = 3});
    await_word(&peer, STR("t:second"), &closed, 0);
    peer_close(&peer);
    buf_free(&raw);
    site_stop(&site);
}

/* --- closing, silence, slow readers --- */

static void test_the_server_says_goodbye(void **state)
{
    static struct site site;
    bool closed = false;
    struct buf raw = {0};
    struct peer peer;

    site = (struct site){0};
    site_start(&site);
    frame_open(&peer, site_port(&site));
    frame_add(&raw, FRAME_FIN | TEXT, STR("close 4001"));
    frame_add(&raw, FRAME_FIN | TEXT, STR("not echoed any more"));
    peer_send(&peer, buf_view(&raw));
    await_word(&peer, STR("close:4001"), &closed, 0);
    buf_clear(&raw);
    frame_add(&raw, FRAME_FIN | CLOSE, STR("\x0f\xa1"));
    peer_send(&peer, buf_view(&raw));
    assert_true(peer_ended(&peer));
    site_await(&site, &site.ws_closed, 1);
    assert_int_equal(site.ws_code, 4001);
    peer_close(&peer);
    buf_free(&raw);
    site_stop(&site);
}

static void test_a_goodbye_that_is_not_answered(void **state)
{
    static struct site site;
    bool closed = false;
    struct buf raw = {0};
    struct peer peer;

    site = (struct site){0};
    site_start(&site);
    frame_open(&peer, site_port(&site));
    frame_add(&raw, FRAME_FIN | TEXT, STR("close 4001"));
    peer_send(&peer, buf_view(&raw));
    await_word(&peer, STR("close:4001"), &closed, 0);
    assert_true(peer_ended(&peer)); /* its deadline passed */
    site_await(&site, &site.ws_closed, 1);
    assert_int_equal(site.ws_code, 4001);
    peer_close(&peer);
    buf_free(&raw);
    site_stop(&site);
}

static void test_silence(void **state)
{
    static struct site site;
    unsigned char first;
    struct buf payload = {0};
    struct buf raw = {0};
    struct peer peer;

    site = (struct site){.ws_limits.ping_ms = 500};
    site_start(&site);
    frame_open(&peer, site_port(&site));
    for (int i = 0; i < 2; i++) { /* a peer that answers pings stays connected */
        assert_true(frame_read(&peer, &first, &payload));
        assert_int_equal(first, FRAME_FIN | PING);
        buf_clear(&raw);
        frame_add(&raw, FRAME_FIN | PONG, buf_view(&payload));
        peer_send(&peer, buf_view(&raw));
    }
    assert_int_equal(site.ws_closed, 0);
    assert_true(frame_read(&peer, &first, &payload));
    assert_int_equal(first, FRAME_FIN | PING);
    assert_true(peer_ended(&peer));
    site_await(&site, &site.ws_closed, 1);
    assert_int_equal(site.ws_code, 1006);
    peer_close(&peer);
    buf_free(&raw);
    buf_free(&payload);
    site_stop(&site);
}

static void send_many(struct site *site, int count)
{
    static char text[10000];

    memset(text, 'm', sizeof text);
    for (int i = 0; i < count && site->ws; i++)
        if (!ws_send(site->ws, (struct str){.at = text, .len = sizeof text}))
            return;
    assert_true(count < 1000);
}

static void test_a_slow_reader_is_dropped(void **state)
{
    static struct site site;
    struct peer peer;

    site = (struct site){.ws_limits.queue_bytes_max = 100000};
    site_start(&site);
    frame_open(&peer, site_port(&site));
    site_await(&site, &site.ws_opened, 1);
    site_do(&site, send_many, 2000); /* 20 MB: more than any socket buffer takes */
    site_await(&site, &site.ws_closed, 1);
    assert_int_equal(site.ws_code, 1013);
    peer_close(&peer);
    site_stop(&site);
}

static void test_a_burst_is_not_a_slow_reader(void **state)
{
    static struct site site;
    unsigned char first;
    struct buf payload = {0};
    struct peer peer;

    site = (struct site){.ws_limits.queue_bytes_max = 100000};
    site_start(&site);
    frame_open(&peer, site_port(&site));
    site_await(&site, &site.ws_opened, 1);
    site_do(&site, send_many, 15); /* over the limit of the queue, but the kernel takes it */
    for (int i = 0; i < 15; i++) {
        assert_true(frame_read(&peer, &first, &payload));
        assert_int_equal(payload.len, 10000);
    }
    peer_close(&peer);
    buf_free(&payload);
    site_stop(&site);
}

enum { BEHIND_BYTES = 50000 };

/* Sends until the reader is behind; ws_code counts the messages. */
static void send_until_behind(struct site *site, int count)
{
    static char text[10000];

    memset(text, 'm', sizeof text);
    site->ws_code = 0;
    while (site->ws_code < count && !ws_is_behind(site->ws, BEHIND_BYTES)) {
        assert_true(ws_send(site->ws, (struct str){.at = text, .len = sizeof text}));
        site->ws_code++;
    }
}

/* A sender that checks first never exceeds its limit, and is notified when it may go on. */
static void test_a_reader_that_is_behind_catches_up(void **state)
{
    static struct site site;
    unsigned char first;
    struct buf payload = {0};
    struct peer peer;

    site = (struct site){.ws_limits.queue_bytes_max = 100000};
    site_start(&site);
    frame_open(&peer, site_port(&site));
    site_await(&site, &site.ws_opened, 1);
    site_do(&site, send_until_behind, 2000);
    int sent = site.ws_code;
    assert_in_range(sent, BEHIND_BYTES / 10000, 1999);
    assert_int_equal(site.ws_written, 0);
    for (int i = 0; i < sent; i++) {
        assert_true(frame_read(&peer, &first, &payload));
        assert_int_equal(payload.len, 10000);
    }
    site_await(&site, &site.ws_written, 1);
    site_do(&site, send_until_behind, 1); /* it may send again */
    assert_int_equal(site.ws_code, 1);
    assert_true(frame_read(&peer, &first, &payload));
    assert_int_equal(site.ws_written, 1);
    assert_int_equal(site.ws_closed, 0);
    peer_close(&peer);
    buf_free(&payload);
    site_stop(&site);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frames),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_handshake_errors),
        cmocka_unit_test(test_frames_in_the_packet_of_the_handshake),
        cmocka_unit_test(test_the_server_says_goodbye),
        cmocka_unit_test(test_a_goodbye_that_is_not_answered),
        cmocka_unit_test(test_silence),
        cmocka_unit_test(test_a_slow_reader_is_dropped),
        cmocka_unit_test(test_a_burst_is_not_a_slow_reader),
        cmocka_unit_test(test_a_reader_that_is_behind_catches_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
