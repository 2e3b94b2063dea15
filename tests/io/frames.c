#include "frames.h"

#include <string.h>

#include "../unit.h"

const char frame_upgrade[] = "GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n"
                             "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                             "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

static void add_length(struct buf *to, size_t len, unsigned char mask)
{
    if (len < 126) {
        buf_char(to, (char)(mask | len));
    } else if (len <= 0xffff) {
        buf_char(to, (char)(mask | 126));
        buf_char(to, (char)(len >> 8));
        buf_char(to, (char)len);
    } else {
        buf_char(to, (char)(mask | 127));
        for (int shift = 56; shift >= 0; shift -= 8)
            buf_char(to, (char)((uint64_t)len >> shift));
    }
}

void frame_add(struct buf *to, unsigned char first, struct str payload)
{
    static const char mask[4] = {0x12, 0x34, 0x56, 0x78};

    buf_char(to, (char)first);
    add_length(to, payload.len, 0x80);
    buf_add(to, mask, sizeof mask);
    for (size_t i = 0; i < payload.len; i++)
        buf_char(to, (char)(payload.at[i] ^ mask[i % 4]));
}

void frame_add_unmasked(struct buf *to, unsigned char first, struct str payload)
{
    buf_char(to, (char)first);
    add_length(to, payload.len, 0);
    buf_str(to, payload);
}

void frame_open(struct peer *peer, int port)
{
    static struct peer_reply reply;

    peer_dial(peer, port);
    peer_send(peer, str_of(frame_upgrade));
    assert_true(peer_reply(peer, &reply, true));
    assert_int_equal(reply.status, 101);
    assert_true(peer_reply_has(&reply, "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
}

bool frame_read(struct peer *peer, unsigned char *ret_first, struct buf *ret_payload)
{
    unsigned char head[10];
    size_t extra;
    size_t len;

    if (!peer_await(peer, 2))
        return false;
    peer_take(peer, head, 2);
    assert_int_equal(head[1] & 0x80, 0); /* a server does not mask */
    extra = head[1] == 126 ? 2 : head[1] == 127 ? 8 : 0;
    len = head[1];
    if (extra > 0) {
        assert_true(peer_await(peer, extra));
        peer_take(peer, head + 2, extra);
        len = 0;
        for (size_t i = 0; i < extra; i++)
            len = len << 8 | head[2 + i];
    }
    assert_true(peer_await(peer, len));
    buf_clear(ret_payload);
    buf_add(ret_payload, peer->in.at, len);
    buf_drop(&peer->in, len);
    *ret_first = head[0];
    return true;
}
